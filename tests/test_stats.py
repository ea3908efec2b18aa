"""Each statistical assertion accepts a correct toy and rejects named mutants.

The toy is importance sampling of a normal mean: x ~ N(0, 1), y | x ~ N(x, 1), y = 1, proposals
from q = N(0.4, 1), so Z2 = N(1; 0, 2) and the posterior is N(1/2, 1/2).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special
from scipy import stats as laws

from tests import stats
from tests.stats import (
    assert_coverage,
    assert_error_rate,
    assert_estimate,
    assert_mean,
    assert_proportion,
    assert_same_law,
    assert_standard_errors,
    assert_unbiased,
    assert_uniform_ranks,
)

Array = NDArray[np.float64]

Y = 1.0
LOG_Z2 = float(laws.norm.logpdf(Y, 0, math.sqrt(2)))
MEAN, SD = Y / 2, math.sqrt(0.5)
EDGE = SD * float(laws.norm.pdf(MEAN / SD))
PLUS = MEAN * float(laws.norm.cdf(MEAN / SD)) + EDGE
MINUS = PLUS - MEAN


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(int(os.environ.get("ESTIMAND_TEST_SEED", "0")))


def log_normal(x: Any, mean: Any, sd: float) -> Any:
    return -0.5 * ((x - mean) / sd) ** 2 - math.log(sd) - 0.5 * math.log(2 * math.pi)


def importance(rng: np.random.Generator, runs: int, n: int) -> tuple[Array, Array]:
    """Draws and log weights, one row a run."""
    x = rng.normal(0.4, 1.0, (runs, n))
    return x, log_normal(x, 0, 1) + log_normal(Y, x, 1) - log_normal(x, 0.4, 1)


def log_mean(log_weights: Array) -> Array:
    return special.logsumexp(log_weights, axis=1) - math.log(log_weights.shape[1])


# Unbiased evidence -------------------------------------------------------------------------------


def test_unbiased_accepts_importance_sampling(rng: np.random.Generator) -> None:
    x, log_w = importance(rng, 500, 1000)
    assert_unbiased(log_mean(log_w), LOG_Z2)
    with np.errstate(divide="ignore"):
        parts = log_w + np.log(np.maximum(x, 0)), log_w + np.log(np.maximum(-x, 0))
    assert_unbiased(log_mean(parts[0]), LOG_Z2 + math.log(PLUS))
    assert_unbiased(log_mean(parts[1]), LOG_Z2 + math.log(MINUS))


def test_unbiased_counts_minus_infinity_as_zero(rng: np.random.Generator) -> None:
    log_z = np.where(rng.random(2000) < 0.5, -np.inf, math.log(2))
    assert_unbiased(log_z, 0.0)


def test_unbiased_accepts_an_exact_estimator() -> None:
    assert_unbiased(np.full(400, LOG_Z2 + 1e-12), LOG_Z2)
    with pytest.raises(AssertionError, match="biased"):
        assert_unbiased(np.full(400, LOG_Z2 + 1e-6), LOG_Z2)


def wrong_weight_sign(rng: np.random.Generator) -> Array:
    x = rng.normal(0.4, 1.0, (500, 1000))
    return log_mean(log_normal(x, 0, 1) + log_normal(Y, x, 1) + log_normal(x, 0.4, 1))


def missing_jacobian(rng: np.random.Generator) -> Array:
    """Proposals x = sinh(u) weighted as though u were x."""
    u = rng.normal(0.4, 0.8, (500, 1000))
    x = np.sinh(u)
    return log_mean(log_normal(x, 0, 1) + log_normal(Y, x, 1) - log_normal(u, 0.4, 0.8))


def average_in_log_space(rng: np.random.Generator) -> Array:
    return importance(rng, 500, 1000)[1].mean(axis=1)


def one_percent_high(rng: np.random.Generator) -> Array:
    return log_mean(importance(rng, 500, 1000)[1]) + math.log(1.01)


def resampled_twice(rng: np.random.Generator) -> Array:
    """The best of two runs: every run looks correct, the selection is not."""
    return log_mean(importance(rng, 1000, 1000)[1]).reshape(500, 2).max(axis=1)


@pytest.mark.parametrize(
    "mutant",
    [wrong_weight_sign, missing_jacobian, average_in_log_space, one_percent_high, resampled_twice],
)
def test_unbiased_rejects(
    mutant: Callable[[np.random.Generator], Array], rng: np.random.Generator
) -> None:
    with pytest.raises(AssertionError, match=r"^biased.*standard error.*z = .*alpha"):
        assert_unbiased(mutant(rng), LOG_Z2)


def test_unbiased_accepts_the_jacobian(rng: np.random.Generator) -> None:
    u = rng.normal(0.4, 0.8, (500, 1000))
    x = np.sinh(u)
    log_w = log_normal(x, 0, 1) + log_normal(Y, x, 1) - log_normal(u, 0.4, 0.8)
    assert_unbiased(log_mean(log_w + np.log(np.cosh(u))), LOG_Z2)


def test_unbiased_rejects_swapped_branches(rng: np.random.Generator) -> None:
    x, log_w = importance(rng, 500, 1000)
    with np.errstate(divide="ignore"):
        log_plus = log_mean(log_w + np.log(np.maximum(x, 0)))
    with pytest.raises(AssertionError, match="biased"):
        assert_unbiased(log_plus, LOG_Z2 + math.log(MINUS))


def test_unbiased_refuses_what_it_cannot_judge(rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match="400 runs"):
        assert_unbiased(np.zeros(399), 0.0)
    with pytest.raises(ValueError, match="one axis"):
        assert_unbiased(np.zeros((400, 2)), 0.0)
    with pytest.raises(AssertionError, match="NaN"):
        assert_unbiased([*np.zeros(400), np.nan], 0.0)
    with pytest.raises(AssertionError, match="infinite"):
        assert_unbiased([*np.zeros(400), np.inf], 0.0)
    rare = np.where(np.arange(1000) % 10 == 0, math.log(10), -np.inf)
    with pytest.raises(AssertionError, match="no power"):
        assert_unbiased(rare, 0.0)


# Calibrated errors -------------------------------------------------------------------------------


def ratio_estimates(rng: np.random.Generator, runs: int, n: int) -> tuple[Array, Array, Array]:
    """Estimates of E[x] + 3 from separate draws for Z1 and Z2, and the two relative variances."""
    x1, log_w1 = importance(rng, runs, n)
    _, log_w2 = importance(rng, runs, n)
    terms1, terms2 = np.exp(log_w1) * (x1 + 3), np.exp(log_w2)
    estimates = terms1.mean(axis=1) / terms2.mean(axis=1)
    variances = [t.var(axis=1) / t.mean(axis=1) ** 2 / n for t in (terms1, terms2)]
    return estimates, variances[0], variances[1]


def test_errors_accept_the_delta_method(rng: np.random.Generator) -> None:
    estimates, v1, v2 = ratio_estimates(rng, 1500, 500)
    errors = estimates * np.sqrt(v1 + v2)
    assert_standard_errors(estimates, errors)
    half = laws.norm.isf(0.05) * errors
    assert_coverage(estimates - half, estimates + half, MEAN + 3, 0.9)
    assert_coverage(estimates - half, estimates + half, MEAN + 3, at_least=0.87)


def test_errors_reject_a_missing_z2_part(rng: np.random.Generator) -> None:
    estimates, v1, _ = ratio_estimates(rng, 1500, 500)
    errors = estimates * np.sqrt(v1)
    with pytest.raises(AssertionError, match="wrong standard errors"):
        assert_standard_errors(estimates, errors)
    half = laws.norm.isf(0.05) * errors
    with pytest.raises(AssertionError, match="cover"):
        assert_coverage(estimates - half, estimates + half, MEAN + 3, 0.9)
    with pytest.raises(AssertionError, match="at least"):
        assert_coverage(estimates - half, estimates + half, MEAN + 3, at_least=0.87)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_errors_reject_wrong_variances(rng: np.random.Generator, factor: float) -> None:
    estimates, v1, v2 = ratio_estimates(rng, 1500, 500)
    with pytest.raises(AssertionError, match="wrong standard errors"):
        assert_standard_errors(estimates, estimates * np.sqrt(factor * (v1 + v2)))


def test_errors_allow_for_heavy_tails(rng: np.random.Generator) -> None:
    """Laplace errors have excess kurtosis 3; a chi-square test would reject them too often."""
    estimates = rng.laplace(0, 1, 3000)
    assert_standard_errors(estimates, np.full(3000, math.sqrt(2)), tolerance=0.0)


def test_errors_refuse_what_they_cannot_judge(rng: np.random.Generator) -> None:
    x = rng.normal(size=300)
    with pytest.raises(ValueError, match="200 runs"):
        assert_standard_errors(x[:199], np.ones(199))
    with pytest.raises(AssertionError, match="estimates are NaN"):
        assert_standard_errors(np.where(x > 1, np.nan, x), np.ones(300))
    with pytest.raises(AssertionError, match="errors are NaN"):
        assert_standard_errors(x, np.where(x > 1, np.nan, 1.0))
    with pytest.raises(AssertionError, match="zero variance"):
        assert_standard_errors(x, np.zeros(300))
    spike = np.where(np.arange(300) < 2, 1.0, 1e-3 * x)
    with pytest.raises(AssertionError, match="no power"):
        assert_standard_errors(spike, np.full(300, spike.std()))


def test_coverage_rejects_too_wide_intervals_and_nan(rng: np.random.Generator) -> None:
    x = rng.normal(size=2000)
    assert_coverage(x - 1, x + 1, 0.0, float(2 * laws.norm.cdf(1) - 1))
    with pytest.raises(AssertionError, match="cover"):
        assert_coverage(x - 1.5, x + 1.5, 0.0, 0.68)
    assert_coverage(x - 1.5, x + 1.5, 0.0, 0.68, at_least=0.68)
    with pytest.raises(AssertionError, match="0 of 2000"):
        assert_coverage(np.full(2000, np.nan), x + 1, 0.0, 0.68)
    with pytest.raises(ValueError, match="level"):
        assert_coverage(x - 1, x + 1, 0.0)
    with pytest.raises(ValueError, match="upper ends"):
        assert_coverage(x - 1, x[1:], 0.0, 0.68)


# Distributions, means and proportions ------------------------------------------------------------


def metropolis(rng: np.random.Generator, power: float, drift: float = 0.0) -> Array:
    """Chains started at exact posterior draws; power 1 and drift 0 leave the posterior invariant.

    A drift makes the proposal asymmetric, which the acceptance ratio here ignores.
    """
    x = rng.normal(MEAN, SD, 4000)
    for _ in range(10):
        proposal = x + rng.normal(drift, 1.0, 4000)
        log_ratio = log_normal(proposal, MEAN, SD) - log_normal(x, MEAN, SD)
        x = np.where(np.log(rng.random(4000)) < power * log_ratio, proposal, x)
    return x


def posterior_cdf(x: Array) -> Array:
    return laws.norm.cdf(x, MEAN, SD)


def test_same_law_accepts_an_invariant_kernel(rng: np.random.Generator) -> None:
    x = metropolis(rng, power=1.0)
    assert_same_law(x, posterior_cdf)
    assert_mean(np.stack([x, x**2], axis=1), [MEAN, MEAN**2 + SD**2])


@pytest.mark.parametrize(
    "mutant", [{"power": 0.5}, {"power": 2.0}, {"power": -1.0}, {"power": 1.0, "drift": 0.5}]
)
def test_same_law_rejects_a_wrong_acceptance_ratio(
    rng: np.random.Generator, mutant: dict[str, float]
) -> None:
    with pytest.raises(AssertionError, match="do not follow the law"):
        assert_same_law(metropolis(rng, **mutant), posterior_cdf)


def test_same_law_rejects_nan(rng: np.random.Generator) -> None:
    with pytest.raises(AssertionError, match="NaN"):
        assert_same_law([*rng.normal(MEAN, SD, 100), np.nan], posterior_cdf)


def test_mean_finds_the_one_wrong_entry(rng: np.random.Generator) -> None:
    truth = np.arange(6.0).reshape(2, 3)
    samples = truth + rng.normal(size=(2000, 2, 3))
    before = stats.assertions_made()
    assert_mean(samples, truth)
    assert stats.assertions_made() - before == 6
    samples[:, 1, 2] += 0.3
    with pytest.raises(AssertionError, match=r"entry \(1, 2\)"):
        assert_mean(samples, truth)
    samples[0, 0, 0] = np.nan
    with pytest.raises(AssertionError, match="NaN"):
        assert_mean(samples, truth)
    with pytest.raises(ValueError, match="30 samples"):
        assert_mean(samples[:10], truth)


def test_mean_of_constants_is_exact() -> None:
    assert_mean(np.full(50, 0.1), 0.1)
    assert_mean(np.zeros(50), 0.0)
    with pytest.raises(AssertionError, match="is not"):
        assert_mean(np.full(50, 0.1), 0.1001)


def test_proportion(rng: np.random.Generator) -> None:
    assert_proportion(rng.binomial(10_000, 0.3), 10_000, 0.3)
    assert_proportion(0, 1000, 0.0)
    with pytest.raises(AssertionError, match="proportion"):
        assert_proportion(rng.binomial(10_000, 0.3), 10_000, 0.35)
    with pytest.raises(AssertionError, match="proportion"):
        assert_proportion(rng.binomial(10_000, 0.3), 10_000, 0.25)
    with pytest.raises(AssertionError, match="proportion"):
        assert_proportion(1, 1000, 0.0)


def test_estimate(rng: np.random.Generator) -> None:
    sample = rng.normal(3.0, 2.0, 16)
    value, error = float(sample.mean()), float(sample.std(ddof=1) / 4)
    assert_estimate(value, error, 3.0, degrees=15)
    assert_estimate(value, error, value + 6 * error, degrees=15)
    for degrees, far in ((np.inf, 6), (15, 9)):
        with pytest.raises(AssertionError, match="standard errors"):
            assert_estimate(value, error, value + far * error, degrees=degrees)
    with pytest.raises(AssertionError, match="standard errors"):
        assert_estimate(math.nan, error, 3.0)


def test_uniform_ranks(rng: np.random.Generator) -> None:
    assert_uniform_ranks(rng.integers(0, 20, 2000), 19)
    for shape in ((1.3, 1.0), (1.0, 1.3), (1.4, 1.4), (0.7, 0.7)):
        mutant = rng.binomial(19, rng.beta(*shape, size=2000))
        with pytest.raises(AssertionError, match="ranks are not uniform"):
            assert_uniform_ranks(mutant, 19)
    with pytest.raises(ValueError, match="from 0 to 19"):
        assert_uniform_ranks(np.array([3, 20]), 19)
    with pytest.raises(ValueError, match="integers"):
        assert_uniform_ranks(np.array([0.5, 1.0]), 19)


# Rate of the error -------------------------------------------------------------------------------

SIZES = [50, 200, 800]


def test_error_rate_accepts_averages(rng: np.random.Generator) -> None:
    log_z = [log_mean(importance(rng, 600, n)[1]) for n in SIZES]
    assert_error_rate(SIZES, [np.expm1(z - LOG_Z2) for z in log_z])


def test_error_rate_rejects_an_error_that_stays(rng: np.random.Generator) -> None:
    with pytest.raises(AssertionError, match="not -1/2"):
        assert_error_rate(SIZES, [importance(rng, 600, 50)[1].mean(axis=1) for _ in SIZES])


def test_error_rate_rejects_a_bias_under_the_noise(rng: np.random.Generator) -> None:
    errors = [rng.normal(0, n**-0.5, 600) + 0.05 for n in SIZES]
    with pytest.raises(AssertionError, match="not -1/2"):
        assert_error_rate(SIZES, errors)


def test_error_rate_rejects_an_error_that_falls_too_fast(rng: np.random.Generator) -> None:
    with pytest.raises(AssertionError, match="not -1/2"):
        assert_error_rate(SIZES, [rng.normal(0, 1 / n, 600) for n in SIZES])


def test_error_rate_refuses_what_it_cannot_judge(rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match="different sizes"):
        assert_error_rate([10, 10], [np.ones(30), np.ones(30)])
    with pytest.raises(ValueError, match="30 errors"):
        assert_error_rate([10, 20], [np.ones(30), np.ones(29)])
    with pytest.raises(AssertionError, match="NaN"):
        assert_error_rate([10, 20], [np.ones(30), np.full(30, np.nan)])
    with pytest.raises(AssertionError, match="exactly zero"):
        assert_error_rate([10, 20], [np.ones(30), np.zeros(30)])
    few = [rng.normal(0, n**-0.5, 30) for n in (100, 110)]
    with pytest.raises(AssertionError, match="no power"):
        assert_error_rate([100, 110], few)


# The declared rate -------------------------------------------------------------------------------


def skewed_runs(rng: np.random.Generator) -> None:
    assert_unbiased(rng.normal(-0.125, 0.5, 400), 0.0)


def skewed_mean(rng: np.random.Generator) -> None:
    assert_mean(rng.exponential(1.0, 400), 1.0)


def covering(rng: np.random.Generator) -> None:
    x = rng.normal(size=400)
    assert_coverage(x - 1, x + 1, 0.0, float(2 * laws.norm.cdf(1) - 1))


def right_errors(rng: np.random.Generator) -> None:
    assert_standard_errors(rng.logistic(size=400), np.full(400, math.pi / 3**0.5), tolerance=0.0)


def right_law(rng: np.random.Generator) -> None:
    assert_same_law(rng.normal(size=200), laws.norm.cdf)


def right_proportion(rng: np.random.Generator) -> None:
    assert_proportion(rng.binomial(300, 0.2), 300, 0.2)


def right_estimate(rng: np.random.Generator) -> None:
    sample = rng.normal(3.0, 2.0, 16)
    assert_estimate(sample.mean(), sample.std(ddof=1) / 4, 3.0, degrees=15)


def right_ranks(rng: np.random.Generator) -> None:
    assert_uniform_ranks(rng.integers(0, 10, 500), 9)


def right_rate(rng: np.random.Generator) -> None:
    assert_error_rate(SIZES, [rng.normal(0, n**-0.5, 100) for n in SIZES])


@pytest.mark.parametrize(
    "toy",
    [
        skewed_runs,
        skewed_mean,
        covering,
        right_errors,
        right_law,
        right_proportion,
        right_estimate,
        right_ranks,
        right_rate,
    ],
)
def test_false_alarms_keep_the_declared_rate(
    toy: Callable[[np.random.Generator], None],
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At an ALPHA large enough to count, correct toys fail no more often than it says.

    The margin of a third is for the approximations in the tests of means and standard errors.
    """
    alpha, repeats = 0.03, 1500
    monkeypatch.setattr(stats, "_made", 0)
    monkeypatch.setattr(stats, "ALPHA", alpha)
    alarms = 0
    for _ in range(repeats):
        try:
            toy(rng)
        except AssertionError:
            alarms += 1
    assert stats.assertions_made() == repeats
    too_many = laws.binom.isf(stats.FAILURE_RATE / stats.MAX_ASSERTIONS, repeats, 4 / 3 * alpha)
    assert alarms <= too_many


def test_the_rate_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert math.isclose(stats.ALPHA * stats.MAX_ASSERTIONS, stats.FAILURE_RATE)
    monkeypatch.setattr(stats, "_made", 0)
    assert_proportion(5, 10, 0.5)
    assert_mean(np.tile(np.arange(4.0), (50, 1)), np.arange(4.0))
    with pytest.raises(AssertionError):
        assert_proportion(0, 1000, 0.5)
    with pytest.raises(ValueError, match="runs"):
        assert_unbiased([0.0], 0.0)
    assert stats.assertions_made() == 6
