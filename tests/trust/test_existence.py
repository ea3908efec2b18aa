"""Means that do not exist are told by how fast f grows where a prior has heavy tails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.trust.existence import TAILS

DRAWS = ep.TABI(ep.ImportanceSampling(num_samples=500))


def found(prior: Any, f: Callable, y: float | None = None) -> bool:
    def program() -> Any:
        x = numpyro.sample("x", prior)
        if y is not None:
            numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return f(x)

    result = ep.estimate_expectation(ep.expectation(program)(), DRAWS, throw=False)
    return any(finding.check == TAILS for finding in result.findings[0])


@pytest.mark.parametrize(
    ("prior", "f", "is_infinite"),
    [
        (dist.Cauchy(3.0, 2.0), jnp.abs, True),
        (dist.Cauchy(), lambda x: jnp.abs(x) ** 0.9, False),
        (dist.Cauchy(), lambda x: jnp.maximum(x - 318.0, 0.0), True),
        (dist.Cauchy(), lambda x: x > 5.0, False),
        (dist.StudentT(3.0), lambda x: jnp.abs(x) ** 2.5, False),
        (dist.StudentT(3.0), lambda x: x**4, True),
        (dist.StudentT(5.0, 0.0, 0.1), jnp.exp, True),
        (dist.Pareto(1.0, 0.9), lambda x: x, True),
        (dist.Pareto(1.0, 1.5), lambda x: x, False),
        (dist.InverseGamma(1.0, 2.0), lambda x: x, True),
        (dist.HalfCauchy(1.0), lambda x: jnp.sqrt(x), False),
    ],
)
def test_moments_of_heavy_tails(prior: Any, f: Callable, is_infinite: bool) -> None:
    assert found(prior, f) is is_infinite


def test_data_make_a_mean_exist() -> None:
    assert not found(dist.Cauchy(), lambda x: x, y=1.0)
    assert not found(dist.Cauchy(), jnp.exp, y=1.0)
