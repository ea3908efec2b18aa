"""Quantiles and shortfalls far out, against closed forms."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import estimand as ep
from estimand.answers.tail import Beyond, Curve
from estimand.trust import thresholds
from problems import evidence as known
from tests.stats import assert_coverage, assert_estimate

MILLIONTH = 1e-6
normal, predictive_t = ep.expectation(known.normal), ep.expectation(known.predictive_t)


@ep.expectation
def conjugate(y: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return {"x": x, "cube": x**3}


@ep.expectation
def count() -> Any:
    rate = numpyro.sample("rate", dist.Gamma(3.0, 1.0))
    return numpyro.sample("count", dist.Poisson(rate))


def assert_quantile(quantile: ep.Quantile, truth: float) -> None:
    assert quantile.status, quantile.findings
    assert_estimate(quantile.value, quantile.standard_error, truth, degrees=quantile.tail.degrees)
    low, high = quantile.interval()
    assert low < quantile.value < high


@pytest.mark.parametrize("model", [known.normal, known.predictive_t])
def test_a_millionth_of_the_tail(model: Any) -> None:
    truth = known.TAILS[model][0]
    found = ep.quantile(ep.expectation(model)(), 1 - MILLIONTH)
    assert found.status
    assert found.value == found.tails[0].value
    assert_quantile(found.tails[0], truth)
    # The requested error of 1 % of the tail, over the density there, is 0.1 % of the quantile.
    assert found.standard_error < thresholds.SLACK * 0.001 * truth


def test_several_levels_share_each_exploration() -> None:
    levels = np.array([1e-9, 0.01, 0.5, 0.9, 1 - MILLIONTH])
    found = ep.quantile(conjugate(2.0)["x"], levels)
    assert found.value.shape == (5,)
    for tail, level in zip(found.tails, levels, strict=True):
        assert_quantile(tail, 1 + math.sqrt(0.5) * stats.norm.ppf(level))
    assert (np.diff(found.value) > 0).all()
    low, high = found.interval()
    assert (low < found.value).all()
    assert (found.value < high).all()
    assert "0.999999" in str(found)
    assert len(found.to_dict()["quantiles"]) == 5


def test_tail_probabilities_have_no_digits_to_lose() -> None:
    found = ep.quantile(normal(), tail_probability=1e-25)
    assert_quantile(found.tails[0], float(stats.norm.isf(1e-25)))
    with pytest.raises(ValueError, match="between 0 and 1"):
        ep.quantile(normal(), 1 - 1e-25)


def test_a_function_of_a_posterior() -> None:
    found = ep.quantile(conjugate(2.0)["cube"], tail_probability=1e-4)
    truth = (1 + math.sqrt(0.5) * stats.norm.isf(1e-4)) ** 3
    assert_quantile(found.tails[0], float(truth))


def test_quantiles_of_counts_are_exact() -> None:
    levels = [0.01, 0.99, 1 - MILLIONTH]
    found = ep.quantile(count(), levels)
    assert found.value.tolist() == stats.nbinom.ppf(levels, 3, 0.5).tolist()
    assert found.standard_error.tolist() == [0.0, 0.0, 0.0]
    for tail in found.tails:
        assert tail.is_exact
        assert tail.interval() == (tail.value, tail.value)


def test_a_quantile_between_two_counts_is_refused() -> None:
    """P(count ≤ 2) is ½: it cannot be told whether the median is 2 or 3."""
    with pytest.raises(ep.EstimationError) as error:
        ep.quantile(count(), 0.5)
    [tail] = error.value.estimate.tails
    assert tail.status is ep.Status.not_converged
    assert "too close to 0.5" in tail.findings[0].detail
    assert tail.interval() == (2.0, 3.0)


def test_a_jump_in_a_continuous_distribution() -> None:
    """A claim is 0 with probability ½, and there are quantiles in and beyond the atom."""

    @ep.expectation
    def claim() -> Any:
        return jnp.maximum(numpyro.sample("x", dist.Normal(0.0, 1.0)), 0.0)

    found = ep.quantile(claim(), [0.3, 1 - 1e-5])
    assert found.tails[0].value == 0.0
    assert found.tails[0].is_exact
    assert_quantile(found.tails[1], float(stats.norm.isf(1e-5)))


def test_a_catastrophe_beyond_a_gap() -> None:
    """One case in 10,000 is a hundred times as large as the others."""

    @ep.expectation
    def loss() -> Any:
        is_bad = numpyro.sample("is_bad", dist.Bernoulli(1e-4))
        size = numpyro.sample("size", dist.Normal(0.0, 1.0))
        return size + 100.0 * is_bad

    found = ep.quantile(loss(), tail_probability=[1e-3, 2e-5])
    assert_quantile(found.tails[1], 100 + float(stats.norm.isf(0.2)))
    truth = stats.norm.isf((1e-3 - 1e-4) / (1 - 1e-4))
    assert_quantile(found.tails[0], float(truth))


@ep.expectation
def two_lumps() -> Any:
    weights = dist.Categorical(jnp.array([0.5, 0.5]))
    lumps = dist.Normal(jnp.array([-10.0, 10.0]), jnp.array([0.1, 0.1]))
    return numpyro.sample("x", dist.MixtureSameFamily(weights, lumps))


def test_a_quantile_beside_a_gap_is_refused() -> None:
    """P(f > 0) is ½: by an error of 1 % it cannot be told on which side of the gap they are."""
    found = ep.quantile(two_lumps(), [0.495, 0.5, 0.505], throw=False)
    truths = [-10 + 0.1 * stats.norm.ppf(0.99), 0.0, 10 + 0.1 * stats.norm.ppf(0.01)]
    for tail, truth in zip(found.tails, truths, strict=True):
        assert tail.status is ep.Status.not_converged
        assert "hardly any mass" in str(tail.findings)
        assert "smaller relative_error" in str(tail.findings)
        low, high = tail.interval(0.99999)
        assert low < -9.7 < 9.7 < high
        assert low < truth < high


def test_a_quantile_near_a_gap() -> None:
    """The probability beyond the gap is farther from the wanted one than its error."""
    levels = [0.4, 0.6]
    found = ep.quantile(two_lumps(), levels)
    truths = [-10 + 0.1 * stats.norm.ppf(0.8), 10 + 0.1 * stats.norm.ppf(0.2)]
    for tail, truth in zip(found.tails, truths, strict=True):
        assert_quantile(tail, float(truth))
        assert tail.standard_error < 0.01


def test_draws_on_both_sides_of_a_threshold_show_a_gap() -> None:
    """Draws from 0 on, and others from 1 on; 1 is in a gap of the distribution from ½ to 3."""
    shares = (np.arange(10_000) + 0.5) / 10_000
    values = np.where(shares < 0.5, shares, 2.0 + 2 * shares)
    before = Beyond.of(-math.inf, values, np.ones(10_000))
    beyond = Beyond.of(1.0, values, np.ones(10_000))
    curve = Curve.of(beyond, before)
    # Twice the mass is from 0 on, and half of the mass beyond 1 from 3.5 on.
    assert curve.reach(-math.log(1.9)) == pytest.approx(0.05, abs=1e-3)
    assert curve.reach(math.log(2)) == pytest.approx(3.5, abs=1e-3)
    gap = curve.gap(-0.05, 0.05)
    assert gap is not None
    assert gap.low <= 1.0
    assert gap.high == pytest.approx(3.0, abs=1e-3)
    assert curve.gap(0.05, 0.2) is None
    assert curve.gap(-0.3, -0.05) is None


def test_quantiles_of_programs_without_draws_are_exact() -> None:
    """All sites are summed out: that no value is beyond 6 is known."""

    @ep.expectation
    def die() -> Any:
        return numpyro.sample("die", dist.DiscreteUniform(1, 6))

    found = ep.quantile(die(), [0.1, 0.4, 0.9])
    assert found.value.tolist() == [1.0, 3.0, 6.0]
    assert all(tail.is_exact for tail in found.tails)


def test_a_bounded_value() -> None:
    """The first guess is beyond the end of the distribution."""

    @ep.expectation
    def bounded() -> Any:
        return numpyro.sample("x", dist.Uniform(0.0, 1.0))

    found = ep.quantile(bounded(), tail_probability=1e-7)
    assert_quantile(found.tails[0], 1 - 1e-7)


def test_wrong_questions_are_refused() -> None:
    with pytest.raises(TypeError, match="has 2 outputs"):
        ep.quantile(conjugate(2.0), 0.5)
    with pytest.raises(TypeError, match="give levels or tail_probability"):
        ep.quantile(normal())
    with pytest.raises(ValueError, match="levels must be between"):
        ep.quantile(normal(), [0.5, 1.0])
    with pytest.raises(TypeError, match="called with its data"):
        ep.quantile(normal, 0.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be Auto"):
        ep.quantile(normal(), 0.5, method=ep.AdaptiveIS())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tail_probability must be between"):
        ep.shortfall(normal(), 0.0)


# --- shortfall ---


@pytest.mark.parametrize("model", [known.normal, known.predictive_t])
def test_the_shortfall_of_a_millionth(model: Any) -> None:
    found = ep.shortfall(ep.expectation(model)(), MILLIONTH)
    assert found.status
    assert_estimate(
        found.value, found.standard_error, known.TAILS[model][1], degrees=found.excess.degrees
    )
    assert "farthest above" in str(found)
    assert found.to_dict()["quantile"] == found.quantile.value


def test_the_shortfall_of_the_smallest_values() -> None:
    found = ep.shortfall(normal(), MILLIONTH, lower=True)
    truth = -known.TAILS[known.normal][1]
    assert_estimate(found.value, found.standard_error, truth, degrees=found.excess.degrees)


def test_the_shortfall_of_counts() -> None:
    """With an atom at the quantile a part of it belongs to the worst cases."""
    found = ep.shortfall(count(), 0.01)
    edge = stats.nbinom.ppf(0.99, 3, 0.5)
    counts = np.arange(edge, edge + 400)
    truth = edge + ((counts - edge) * stats.nbinom.pmf(counts, 3, 0.5)).sum() / 0.01
    assert found.quantile.value == edge
    assert_estimate(found.value, found.standard_error, truth, degrees=found.excess.degrees)


def test_a_mean_that_does_not_exist_is_refused() -> None:
    @ep.expectation
    def cauchy() -> Any:
        return numpyro.sample("x", dist.Cauchy(0.0, 1.0))

    found = ep.shortfall(cauchy(), 1e-3, throw=False)
    assert_quantile(found.quantile, float(stats.cauchy.isf(1e-3)))
    assert not found.status


# --- draws beyond a threshold ---


def test_where_draws_beyond_a_threshold_lead() -> None:
    """Exponential: depth and distance are the same, inside of the draws and outside."""
    values = 2.0 - np.log1p(-(np.arange(10_000) + 0.5) / 10_000)
    beyond = Beyond.of(2.0, values, np.ones(10_000))
    assert beyond.size == pytest.approx(10_000)
    for depth in (-0.2, 0.0, 0.001, 0.1, 1.0, 5.0, 12.0):
        assert beyond.reach(depth) == pytest.approx(2.0 + depth, abs=0.01 + 0.05 * abs(depth))
    assert beyond.log_error(0.0) == 0.0
    assert beyond.log_error(math.log(2)) == pytest.approx(0.01, rel=1e-3)
    assert not beyond.is_atom.any()


def test_equal_values_are_an_atom() -> None:
    beyond = Beyond.of(0.0, np.array([1.0, 1.0, 2.0, 3.0, -1.0] * 100), np.ones(500))
    assert beyond.values.tolist() == [1.0, 2.0, 3.0]
    assert beyond.size == pytest.approx(400)
    assert beyond.is_atom.tolist() == [True, True, True]
    assert beyond.place(math.log(2)) == 0


# --- coverage ---


@pytest.mark.slow
@pytest.mark.parametrize("model", [known.normal, known.predictive_t])
def test_intervals_of_quantiles_cover(model: Any) -> None:
    """The error of draws next to the threshold is bounded: intervals may be too wide."""
    bound, truth = ep.expectation(model)(), known.TAILS[model][0]
    runs = [ep.quantile(bound, tail_probability=MILLIONTH, rng_key=key) for key in range(200)]
    low, high = zip(*(run.interval() for run in runs), strict=True)
    assert_coverage(low, high, truth, at_least=0.95)


@pytest.mark.slow
@pytest.mark.parametrize("model", [known.normal, known.predictive_t])
def test_intervals_of_shortfalls_cover(model: Any) -> None:
    bound, truth = ep.expectation(model)(), known.TAILS[model][1]
    runs = [ep.shortfall(bound, MILLIONTH, rng_key=key) for key in range(200)]
    low, high = zip(*(run.interval() for run in runs), strict=True)
    assert_coverage(low, high, truth, at_least=0.95)
