"""Means that do not exist are told by how fast f grows where a prior has heavy tails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.trust.existence import GROWTH, TAILS

DRAWS = ep.TABI(ep.ImportanceSampling(num_samples=500))


def checks(prior: Any, f: Callable, y: float | None = None) -> set[str]:
    def program() -> Any:
        x = numpyro.sample("x", prior)
        if y is not None:
            numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return f(x)

    result = ep.estimate_expectation(ep.expectation(program)(), DRAWS, throw=False)
    return {finding.check for finding in result.findings[0]} & {TAILS, GROWTH}


def found(prior: Any, f: Callable, y: float | None = None) -> bool:
    return TAILS in checks(prior, f, y)


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


NORMAL = dist.Normal(0.0, 1.0)


def exp_of_square(x: Any) -> Any:
    return jnp.exp(x**2 / 2) / (1 + x**2)


@pytest.mark.parametrize(
    ("prior", "f", "expected"),
    [
        (NORMAL, exp_of_square, {GROWTH}),
        (NORMAL, lambda x: jnp.exp(x**2 / 2) / (1 + x**2) ** 2, set()),
        (NORMAL, lambda x: jnp.exp(x**2 / 2) / (1 + jnp.abs(x)), {TAILS}),
        (NORMAL, lambda x: jnp.exp(x**2), {TAILS}),
        (NORMAL, lambda x: jnp.exp(x**2 / 4), set()),
        (NORMAL, lambda x: jnp.exp(30 * x), set()),
        (NORMAL, lambda x: 1 / (1 + jnp.exp(x)), set()),
        (dist.Normal(1e6, 1e-3), lambda x: jnp.exp(x - 1e6), set()),
        (dist.Laplace(), lambda x: jnp.exp(jnp.abs(x)) / (1 + x**2), {GROWTH}),
        (dist.LogNormal(), lambda x: exp_of_square(jnp.log(x)), {GROWTH}),
        (dist.Uniform(0.0, 1.0), lambda x: jnp.exp(1 / x), {TAILS}),
        (dist.Gamma(2.0, 1.0), lambda x: jnp.exp(0.9 * x), set()),
        (dist.Gamma(2.0, 1.0), lambda x: jnp.exp(1.1 * x), {TAILS}),
    ],
)
def test_f_beside_a_light_prior(prior: Any, f: Callable, expected: set[str]) -> None:
    assert checks(prior, f) == expected


def test_importance_weights_of_a_heavier_density() -> None:
    heavy = dist.Cauchy(1.0, 2.0)
    assert checks(NORMAL, lambda x: jnp.exp(heavy.log_prob(x) - NORMAL.log_prob(x))) == {GROWTH}
    assert not checks(NORMAL, lambda x: jnp.exp(heavy.log_prob(x)))


def test_data_outweigh_a_growing_f() -> None:
    """The posterior is half as wide as the prior."""
    assert not checks(NORMAL, exp_of_square, y=1.0)
    assert checks(NORMAL, lambda x: jnp.exp(x**2) / (1 + x**2), y=0.0) == {GROWTH}


def test_what_rounding_leaves_is_no_slope() -> None:
    """A Cauchy prior times a factor that makes it normal: far out only rounding is left."""

    def program() -> Any:
        x = numpyro.sample("x", dist.Cauchy())
        numpyro.factor("weight", NORMAL.log_prob(x) - dist.Cauchy().log_prob(x))
        return jnp.exp(x**2 / 2) / (1 + x**2)

    result = ep.estimate_expectation(ep.expectation(program)(), DRAWS, throw=False)
    assert all(finding.check != TAILS for finding in result.findings[0])
