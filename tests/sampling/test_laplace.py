"""The mode and its curvature: exact for Gaussian densities, and no mode where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.sampling.laplace import MAX_STEPS, find_mode

DIM = 8
RNG = np.random.default_rng(3)
DESIGN = RNG.normal(size=(12, DIM))
Y = RNG.normal(size=12) + 3.0
PRIOR_SCALE, NOISE = 2.0, 0.5


def linear_regression(design: jax.Array, y: jax.Array) -> Any:
    x = numpyro.sample("x", dist.Normal(1.0, PRIOR_SCALE).expand([DIM]).to_event(1))
    numpyro.sample("y", dist.Normal(design @ x, NOISE).to_event(1), obs=y)
    return jnp.exp(-0.5 * jnp.sum(x**2))


def regression(part: str = "gamma2") -> ep.Density:
    return ep.Density.of(ep.expectation(linear_regression)(DESIGN, Y)).part(part)


def density_of(model: Callable) -> ep.Density:
    return ep.Density.of(ep.expectation(model)())


@pytest.mark.parametrize("part", ["gamma2", "gamma1_plus"])
@pytest.mark.parametrize("far", [0.0, 30.0])
def test_gaussian_is_exact(part: str, far: float) -> None:
    """f multiplies the posterior's precision by one more identity."""
    precision = np.eye(DIM) / PRIOR_SCALE**2 + DESIGN.T @ DESIGN / NOISE**2
    shift = np.full(DIM, 1.0) / PRIOR_SCALE**2 + DESIGN.T @ Y / NOISE**2
    if part == "gamma1_plus":
        precision = precision + np.eye(DIM)
    mode = find_mode(regression(part), np.full(DIM, far))
    assert mode.is_found
    np.testing.assert_allclose(mode.position, np.linalg.solve(precision, shift), atol=1e-6)
    np.testing.assert_allclose(mode.precision, precision, rtol=1e-9, atol=1e-9)
    assert int(mode.num_steps) <= 10


def test_standardised_coordinates_move_the_mode() -> None:
    """x = 1 + 2z: the precision in z is 4 times that in x."""
    density = regression()
    plain, standard = (find_mode(d, np.zeros(DIM)) for d in (density, density.standardised()))
    np.testing.assert_allclose(1 + 2 * standard.position, plain.position, atol=1e-6)
    np.testing.assert_allclose(standard.precision, 4 * plain.precision, rtol=1e-9, atol=1e-9)


def test_curved_density() -> None:
    """Gamma(3, 2) on the log scale: mode log(3/2), curvature 3, from both sides."""

    def model() -> Any:
        x = numpyro.sample("x", dist.Gamma(3.0, 2.0).expand([DIM]).to_event(1))
        return x[0]

    for start in (-3.0, 3.0):
        mode = find_mode(density_of(model), np.full(DIM, start))
        assert mode.is_found
        np.testing.assert_allclose(mode.position, np.full(DIM, np.log(1.5)), atol=1e-4)
        np.testing.assert_allclose(mode.precision, 3 * np.eye(DIM), atol=1e-3)


def _with_factor(factor: Callable[[jax.Array], jax.Array]) -> Callable:
    def model() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.factor("factor", factor(x))
        return x[0]

    return model


@pytest.mark.parametrize("start", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize(
    "factor",
    [
        lambda x: jnp.sum(x**2),
        lambda x: jnp.sum(jnp.exp(x)),
        lambda x: x[0] ** 2 - 5 * x[1] ** 2,
        lambda x: jnp.where(x[0] < 1.0, 5 * x[0], -jnp.inf),
        lambda x: jnp.where(x[0] < 1.0, 50 * x[0], -jnp.inf),
        lambda x: x[0] * jnp.nan,
    ],
    ids=["convex", "exponential", "saddle", "wall", "steep wall", "nan"],
)
def test_no_mode_is_claimed_where_there_is_none(factor: Callable, start: float) -> None:
    """Unbounded densities, and ones that rise up to an edge: there is no curvature at a maximum."""
    mode = find_mode(density_of(_with_factor(factor)), np.full(2, start))
    assert not mode.is_found
    assert int(mode.num_steps) <= MAX_STEPS


def test_single_precision() -> None:
    with jax.enable_x64(False):
        mode = find_mode(regression(), np.zeros(DIM))
        assert mode.is_found
        found = np.asarray(mode.position, float)
    exact = find_mode(regression(), np.zeros(DIM))
    np.testing.assert_allclose(found, exact.position, atol=1e-4)
