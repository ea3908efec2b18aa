"""`jax.grad` of expectations: closed forms, a design, and where it refuses."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import optimize
from scipy import stats as laws

import estimand as ep


@ep.expectation
def cube(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x**3


@ep.expectation
def failure(thickness: float) -> Any:
    load = numpyro.sample("load", dist.Normal(1.0, 0.2))
    strength = numpyro.sample("strength", dist.Normal(1.0, 0.1))
    return load > strength * thickness


def test_value_and_gradient_by_closed_form() -> None:
    value, slope = jax.value_and_grad(ep.differentiable(cube))(2.0)
    assert float(value) == pytest.approx(2.5, rel=0.01)
    assert float(slope) == pytest.approx(3 * 4 / 8 + 0.75, rel=0.01)


def test_several_outputs_and_arguments_in_a_loss() -> None:
    @ep.expectation
    def moments(y: Any, scale: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, scale))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return {"first": x, "second": x**2}

    function = ep.differentiable(moments)

    def loss(y: Any, scale: Any) -> Any:
        found = function(y, scale=scale)
        return found["second"] - found["first"] ** 2  # the posterior variance

    by_data, by_scale = jax.grad(loss, argnums=(0, 1))(1.0, 1.0)
    assert float(by_data) == pytest.approx(0.0, abs=0.02)
    assert float(by_scale) == pytest.approx(0.5, rel=0.02)  # of s²/(1 + s²)


@pytest.mark.slow
def test_a_design_within_an_optimiser() -> None:
    """A beam: material costs 1 for each unit of thickness, and its failure 100,000."""
    probability = ep.differentiable(failure)
    slope = jax.grad(lambda d: d + 1e5 * probability(d))
    found = optimize.brentq(lambda d: float(slope(d)), 1.6, 2.8, xtol=1e-3)

    def exact(d: float) -> float:
        return float(d + 1e5 * laws.norm.sf((d - 1) / jnp.sqrt(0.04 + 0.01 * d * d)))

    best = optimize.minimize_scalar(exact, bounds=(1.6, 2.8), method="bounded")
    assert found == pytest.approx(best.x, abs=0.02)
    assert exact(found) < best.fun * 1.001


def test_it_refuses_within_jit_and_where_the_estimate_does() -> None:
    function = ep.differentiable(cube)
    with pytest.raises(ep.ProgramError, match="outside of jit"):
        jax.jit(function)(2.0)

    @ep.expectation
    def hidden(limit: float) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        return jax.lax.scan(lambda c, s: (c | (s > limit), None), False, x)[0]

    with pytest.raises(ep.EstimationError, match="not_converged"):
        jax.grad(ep.differentiable(hidden))(1.0)

    @ep.expectation
    def stepped(a: float) -> Any:
        return numpyro.sample("x", dist.Normal(jnp.floor(a), 1.0))

    with pytest.raises(ep.EstimationError, match="passes through `floor`"):
        jax.grad(ep.differentiable(stepped))(1.5)
    with pytest.raises(TypeError, match="expected an expectation program"):
        ep.differentiable(cube(2.0))  # type: ignore[arg-type]
