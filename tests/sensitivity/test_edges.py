"""Derivatives where what is moved has an edge: boundaries of events, ends of supports, steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats as laws

import estimand as ep
from tests import stats


def slope(bound: Any, name: str, method: Any = None, key: int = 0) -> ep.Derivative:
    found = ep.estimate_expectation(bound, method, rng_key=key, throw=False)
    return found.sensitivity(throw=False).arguments[name]


def check(derivative: ep.Derivative, truth: float) -> None:
    assert derivative.status, derivative.findings
    numbers = float(derivative.value), float(derivative.standard_error)
    stats.assert_estimate(*numbers, truth, degrees=derivative.degrees)


def refused(derivative: ep.Derivative, status: str, words: str) -> None:
    assert np.isnan(derivative.value).all()
    assert np.isinf(derivative.standard_error).all()
    assert derivative.status.name == status
    assert words in str(derivative.findings[0][-1])


# --- boundaries of events ---


@ep.expectation
def union(a: float, b: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    return (x > a) | (x < -b)


@ep.expectation
def both(a: float, b: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    y = numpyro.sample("y", dist.Normal(0.0, 1.0))
    return (x > a) & (y > b)


@ep.expectation
def over(limit: float) -> Any:
    return numpyro.sample("x", dist.Exponential(1.0)) > limit


@ep.expectation
def jump(limit: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    return jnp.where(x > limit, 1e4 * (x - limit) + 50.0, x)


@ep.expectation
def spike(limit: float) -> Any:
    labels = dist.Categorical(jnp.array([0.9, 0.1]))
    parts = dist.Normal(jnp.array([0.0, 3.0]), jnp.array([1.0, 0.01]))
    return numpyro.sample("x", dist.MixtureSameFamily(labels, parts)) > limit


@ep.expectation
def count(limit: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    return jnp.sum(x > limit) >= 2


def test_a_rare_union_whose_margins_spread_over_both_sides() -> None:
    """The widths of one side alone are a hundredth of the spread over both."""
    check(slope(union(4.0, 4.3), "a"), -laws.norm.pdf(4.0))
    check(slope(union(4.0, 4.3), "b"), -laws.norm.pdf(4.3))


def test_a_boundary_close_to_the_end_of_a_support() -> None:
    check(slope(over(0.01), "limit"), -np.exp(-0.01))


def test_a_return_value_that_jumps_and_has_a_steep_slope_beyond() -> None:
    truth = -1e4 * laws.norm.sf(3.0) - 47 * laws.norm.pdf(3.0)
    check(slope(jump(3.0), "limit"), truth)


def test_a_density_that_is_not_flat_over_the_spread_of_the_margin() -> None:
    truth = -0.9 * laws.norm.pdf(3.01) - 0.1 * laws.norm.pdf(3.01, 3.0, 0.01)
    check(slope(spike(3.01), "limit"), truth)


def test_a_count_of_comparisons() -> None:
    step = 1e-5
    high, low = (laws.binom.sf(1, 4, laws.norm.sf(2.5 + s)) for s in (step, -step))
    check(slope(count(2.5), "limit"), (high - low) / (2 * step))


def test_few_draws_on_one_side_of_a_boundary_say_nothing() -> None:
    """Half of what crosses is there, and looks well."""
    refused(slope(both(3.0, 1.0), "b", key=1), "low_ess", "on one side of it")


@pytest.mark.slow
def test_more_draws_say_what_few_did_not() -> None:
    truth = -laws.norm.pdf(1.0) * laws.norm.sf(3.0)
    check(slope(both(3.0, 1.0), "b", ep.Auto(relative_error=0.001), key=1), truth)


def test_a_margin_without_a_slope_at_the_boundary_is_refused() -> None:
    @ep.expectation
    def square(limit: float) -> Any:
        return numpyro.sample("x", dist.Normal(0.0, 1.0)) ** 2 > limit

    @ep.expectation
    def cube(limit: float) -> Any:
        return numpyro.sample("x", dist.Normal(0.0, 1.0)) ** 3 > limit

    assert not slope(square(1e-6), "limit").status
    assert not slope(cube(1e-3), "limit").status


def test_a_comparison_of_sums_that_are_equal_is_refused() -> None:
    """In 2.0 > 2.0 and 2.0 ≥ 2.0 a softened comparison is ½, at any width."""

    @ep.expectation
    def tied(limit: float) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        return jnp.sum(jnp.where(x > limit, 1.0, 0.0)) >= 2.0

    refused(slope(tied(1.0), "limit"), "not_converged", "count with integers")


# --- steps of what is given, which automatic differentiation takes for constants ---


def drawn(mean: Any = 1.0) -> Any:
    return numpyro.sample("x", dist.Normal(mean, 1.0))


def counted(a: Any) -> Any:
    x = drawn()
    numpyro.sample("y", dist.Normal(x, 1.0), obs=jnp.round(a))
    return x


STEPS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "floor": (lambda a: drawn() * jnp.floor(a), "`floor`"),
    "ceil": (lambda a: drawn() * jnp.ceil(a), "`ceil`"),
    "sign": (lambda a: drawn() * jnp.sign(a), "`sign`"),
    "round, observed": (counted, "`round`"),
    "floor of a mean": (lambda a: drawn(jnp.floor(a)), "`floor`"),
    "floor of a boundary": (lambda a: drawn() > jnp.floor(a), "`floor`"),
    "quotient": (lambda a: drawn() * (a // 1.0), "`round`"),
    "cast": (lambda a: drawn() * jnp.int32(a), "a cast to whole numbers"),
    "comparison": (lambda a: drawn() * (a > 1), "a comparison"),
    "choice": (lambda a: drawn() * jnp.where(a > 2, 2.0, 1.0), "a comparison"),
    "step": (lambda a: drawn() * jnp.heaviside(a, 0.5), "a comparison"),
    "branch": (lambda a: drawn() * jax.lax.cond(a > 2, lambda: 2.0, lambda: 1.0), "a comparison"),
    "loop": (
        lambda a: drawn() * jax.lax.fori_loop(0, 3, lambda _, total: total + jnp.floor(a), 0.0),
        "`floor`",
    ),
    "computed again": (lambda a: drawn() * jax.checkpoint(jnp.floor)(a), "`floor`"),
    "stopped": (lambda a: drawn() * jax.lax.stop_gradient(a), "`stop_gradient`"),
    "stopped mean": (lambda a: drawn(jax.lax.stop_gradient(a)), "`stop_gradient`"),
    "stopped in part": (lambda a: drawn() * a * jax.lax.stop_gradient(a), "`stop_gradient`"),
    "stopped with a site": (lambda a: jax.lax.stop_gradient(a * drawn()) + a, "`stop_gradient`"),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_passes_through_a_step_is_refused(name: str) -> None:
    """It was 0 exactly, `ok`; or, stopped in part, the half of it."""
    function, words = STEPS[name]
    program = ep.expectation(function)
    refused(slope(program(1.7), "a"), "not_converged", f"this passes through {words}")


@jax.custom_jvp
def straight_through(a: Any) -> Any:
    return jnp.round(a)


straight_through.defjvps(lambda da, _, a: 2.0 * da)

# The derivative at 1.5.
SLOPED: dict[str, tuple[Callable[[Any], Any], float]] = {
    "unused": (lambda a: 1.0, 0.0),
    "fraction": (lambda a: a % 1.0, 1.0),
    "rest": (lambda a: a - jnp.floor(a), 1.0),
    "hinge": (lambda a: jnp.where(a > 1, a, 0.0), 1.0),
    "flat side of a hinge": (lambda a: jnp.where(a > 2, a, 2.0), 0.0),
    "hinge of numbers": (lambda a: (a - 1.0) * (a > 1), 1.0),
    "guarded": (lambda a: jnp.where(jnp.isnan(a), 0.0, a), 1.0),
    "signed power": (lambda a: jnp.sign(a) * jnp.abs(a) ** 2, 3.0),
    "table": (lambda a: jnp.interp(a, jnp.arange(4.0), jnp.arange(4.0) ** 2), 3.0),
    "own derivative": (lambda a: straight_through(a), 2.0),
    "branch": (lambda a: jax.lax.cond(a > 0, jnp.square, jnp.negative, a), 3.0),
    "log of a sum": (lambda a: jax.nn.logsumexp(jnp.stack([a, 0.0])), laws.logistic.cdf(1.5)),
    "shares": (lambda a: jax.nn.softmax(jnp.stack([a, 0.0]))[0], laws.logistic.pdf(1.5)),
}


@pytest.mark.parametrize("name", SLOPED)
def test_what_has_a_slope_beside_its_steps_keeps_it(name: str) -> None:
    function, factor = SLOPED[name]
    program = ep.expectation(lambda a: drawn() * function(a))
    found = slope(program(1.5), "a")
    if name in ("unused", "flat side of a hinge"):
        assert found.status
        assert found.value == found.standard_error == 0
    else:
        check(found, factor)


def test_a_step_of_another_output_is_not_its_own() -> None:
    @ep.expectation
    def program(a: np.ndarray) -> Any:
        x = drawn()
        return {"plain": x * a[0], "stepped": x * jnp.floor(a[1])}

    result = ep.estimate_expectation(program(np.array([1.5, 2.5])))
    plain, stepped = (result.sensitivity(k, throw=False).arguments["a"] for k in (0, 1))
    assert plain.status
    assert plain.value[1] == 0
    assert stepped.statuses[1].name == "not_converged"


CLOSED: dict[str, Callable[[Any], dist.Distribution]] = {
    "Uniform": lambda a: dist.Uniform(-a, a),
    "TruncatedNormal": lambda a: dist.TruncatedNormal(a, 1.0, low=0.0, high=2 * a),
    "Gamma": lambda a: dist.Gamma(a, 1.0),
    "VonMises": lambda a: dist.VonMises(0.0, a),
    "MultivariateNormal": lambda a: dist.MultivariateNormal(a * jnp.ones(2), a * jnp.eye(2)),
}


@pytest.mark.parametrize("name", CLOSED)
def test_distributions_have_no_steps_of_what_is_given(name: str) -> None:
    """Their code compares parameters, as with the ends of a support."""

    @ep.expectation
    def program(a: float) -> Any:
        z = numpyro.sample("z", CLOSED[name](a))
        return jnp.sum(z**2)

    found = slope(program(1.5), "a")
    assert found.status, found.findings
    assert found.value != 0


# --- edges of the density ---


@ep.expectation
def longest(y: np.ndarray) -> Any:
    end = numpyro.sample("end", dist.Exponential(1.0))
    with numpyro.plate("rows", y.size):
        numpyro.sample("y", dist.Uniform(0.0, end), obs=y)
    return end


def step(below: float) -> ep.ExpectationProgram:
    @ep.expectation
    def program(limit: float) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("step", jnp.where(x > limit, 0.0, below))
        return x

    return program


def test_the_row_at_the_end_of_a_support_is_refused_and_the_others_are_0() -> None:
    """Its derivative is 1.10; rows that are not the longest may move without effect."""
    found = slope(longest(np.array([0.5, 1.0, 2.0])), "y")
    assert [status.name for status in found.statuses] == ["ok", "ok", "not_converged"]
    assert found.value[:2].tolist() == [0.0, 0.0]
    assert np.isnan(found.value[2])
    assert "the density jumps as this moves" in str(found.findings[2][-1])


@pytest.mark.parametrize("below", [-np.inf, -3.0])
def test_a_step_in_a_factor_is_refused(below: float) -> None:
    refused(slope(step(below)(1.0), "limit"), "not_converged", "the density jumps")


def test_a_step_within_a_loop_is_refused() -> None:
    @ep.expectation
    def program(limit: float) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        weigh = lambda total, one: (total + jnp.where(one > limit, 0.0, -1.0), None)  # noqa: E731
        numpyro.factor("steps", jax.lax.scan(weigh, 0.0, x)[0])
        return x[0]

    refused(slope(program(0.5), "limit"), "not_converged", "the density may jump")


def test_a_kink_in_a_factor_is_no_jump() -> None:
    @ep.expectation
    def program(limit: float) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("kink", jnp.where(x > limit, -2.0 * (x - limit), 0.0))
        return x

    def exact(limit: float) -> float:
        grid = np.linspace(-9.0, 9.0, 400_001)
        weights = np.exp(-(grid**2) / 2 - 2 * np.maximum(grid - limit, 0.0))
        return float(grid @ weights / weights.sum())

    check(slope(program(0.5), "limit"), (exact(0.501) - exact(0.499)) / 0.002)


def test_the_end_of_a_support_of_a_prior_moves_with_its_draws() -> None:
    @ep.expectation
    def program(end: float) -> Any:
        return numpyro.sample("x", dist.Uniform(0.0, end))

    check(slope(program(2.0), "end"), 0.5)


def test_an_expectation_given_a_condition_says_what_to_do_instead() -> None:
    def model(limit: float) -> None:
        numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.deterministic("limit", jnp.asarray(limit))

    given = ep.expect(model, lambda s: s["x"], given=lambda s: s["x"] > s["limit"])
    result = ep.estimate_expectation(given(2.0))
    with pytest.raises(ep.ProgramError, match="quotient of two expectations"):
        result.sensitivity()
