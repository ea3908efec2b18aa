"""Programs by name: their closed forms against quadrature of the models."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from numpyro.infer.util import log_density

from benchmarks.dimension import needed
from problems.known import known


def expectation(name: str, *axes: np.ndarray, sites: Any) -> float:
    """E[f] by the trapezoidal rule on a product of even axes, from the model's own density."""
    model = known(name).expectation.gamma2

    def at(point: dict[str, Any]) -> Any:
        outputs: list[Any] = []
        log_gamma, _ = log_density(lambda: outputs.append(model()), (), {}, point)
        return log_gamma, outputs[-1]

    columns = [x.ravel() for x in np.meshgrid(*axes, indexing="ij")]
    log_gamma, f = map(np.asarray, jax.jit(jax.vmap(at))(sites(*columns)))
    weights = np.exp(log_gamma - log_gamma.max())
    return float(weights @ f / weights.sum())


def pair(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.stack([first, second], axis=-1)


def test_normal_excess() -> None:
    found = expectation("normal_excess", np.linspace(-10, 12, 220_001), sites=lambda x: {"x": x})
    assert found == pytest.approx(known("normal_excess").values[0], rel=1e-8)
    assert found == pytest.approx(3.82154e-4, rel=2e-6)


def test_groups() -> None:
    axis = np.linspace(-9, 11, 121)
    found = expectation(
        "groups_2", axis, axis, axis, sites=lambda mu, a, b: {"mu": mu, "theta": pair(a, b)}
    )
    np.testing.assert_allclose(known("groups_2").values, found, rtol=1e-8)


@pytest.mark.parametrize("name", ["equal_modes_2", "unequal_modes_2"])
def test_two_modes(name: str) -> None:
    axis = np.linspace(-9, 9, 401)
    found = expectation(name, axis, axis, sites=lambda a, b: {"x": pair(a, b)})
    np.testing.assert_allclose(known(name).values, found, rtol=1e-8)


@pytest.mark.parametrize(
    ("dimension", "value"),
    [
        (2, 1.64702163e-7),
        (5, 1.04575392e-8),
        (10, 1.0567684272e-10),
        (25, 1.09051292e-16),
        (50, 1.14916519e-26),
        (100, 1.27610307e-46),
    ],
)
def test_gaussian(dimension: int, value: float) -> None:
    np.testing.assert_allclose(known(f"gaussian_{dimension}").values, value, rtol=1e-8)


def test_problems_of_the_table() -> None:
    problem = known("figure1_zero")
    assert problem.values == 0
    assert problem.scales == problem.magnitudes > 0
    assert len(known("eight_schools_means").values) == 2


def test_evaluations_needed_for_one_percent() -> None:
    points = [{"cost": 1e4, "error": 0.1}, {"cost": 1e6, "error": 0.001}]
    found = needed(points)
    assert not found["is_bound"]
    np.testing.assert_allclose(found["evaluations"], 1e5)
    assert needed(points[1:]) == {"evaluations": 1e6, "is_bound": True}
    assert needed(points[:1]) is None
