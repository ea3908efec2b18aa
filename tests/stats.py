"""Statistical assertions that share one declared false-alarm rate.

``FAILURE_RATE`` is the probability that a correct library makes any statistical assertion of the
whole suite fail for a fresh seed. It is split evenly over at most ``MAX_ASSERTIONS`` comparisons,
so no assertion carries a tolerance tuned by hand. Some assertions also fail when the data could
not have shown a fault; that is a fault of the test, and the message says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

FAILURE_RATE = 1e-3
MAX_ASSERTIONS = 1000
ALPHA = FAILURE_RATE / MAX_ASSERTIONS

MIN_UNBIASED_RUNS = 400
MIN_ERROR_RUNS = 200
MAX_RATIO_ERROR = 0.05

# Rounding in double precision: a spread below this says that all the runs agree exactly.
_ROUNDING = 1e-9

_made = 0


def assertions_made() -> int:
    """Comparisons made so far in this process, which must stay within ``MAX_ASSERTIONS``."""
    return _made


def _spend(comparisons: int = 1) -> None:
    global _made
    _made += comparisons


def _critical() -> float:
    """The two-sided normal quantile at ``ALPHA``."""
    return float(stats.norm.isf(ALPHA / 2))


def _vector(values: ArrayLike, name: str) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} must have one axis, the runs; got shape {array.shape}")
    return array


def mean_scores(samples: NDArray[np.float64], truth: ArrayLike) -> NDArray[np.float64]:
    """Normal scores of the mean along the first axis.

    The t statistic of a skewed sample has a far heavier tail on one side than the normal
    distribution. Hall's (1992) cubic transformation removes the skewness to first order and stays
    monotone.
    """
    n = samples.shape[0]
    mean = samples.mean(axis=0)
    truth = np.broadcast_to(np.asarray(truth, dtype=np.float64), mean.shape)
    floor = _ROUNDING * np.maximum(np.abs(truth), np.abs(samples).max(axis=0)) + 1e-300
    spread = np.maximum(samples.std(axis=0, ddof=1), floor)
    skewness = (((samples - mean) / spread) ** 3).mean(axis=0)
    t = (mean - truth) / spread
    corrected = t + skewness * t**2 / 3 + skewness**2 * t**3 / 27 + skewness / (6 * n)
    p = stats.t.sf(np.sqrt(n) * np.abs(corrected), n - 1)
    return np.sign(corrected) * stats.norm.isf(p)


def assert_mean(samples: ArrayLike, truth: ArrayLike) -> None:
    """The mean over the first axis is ``truth``, for each entry of the trailing axes.

    The samples must be independent. Every entry is one comparison.
    """
    array = np.asarray(samples, dtype=np.float64)
    if array.ndim == 0 or array.shape[0] < 30:
        raise ValueError(f"a test of a mean needs at least 30 samples; got shape {array.shape}")
    _spend(int(np.prod(array.shape[1:])))
    assert np.isfinite(array).all(), "the samples contain NaN or infinite values"
    scores = mean_scores(array, truth)
    if (np.abs(scores) <= _critical()).all():
        return
    worst = tuple(map(int, np.unravel_index(np.argmax(np.abs(scores)), scores.shape)))
    column = np.moveaxis(array, 0, -1)[worst]
    expected = np.broadcast_to(np.asarray(truth), scores.shape)[worst]
    raise AssertionError(
        f"mean {column.mean():.8g} (entry {worst}) is not {expected:.8g}: "
        f"standard error {column.std(ddof=1) / np.sqrt(len(column)):.3g}, "
        f"z = {scores[worst]:.2f}, alpha = {ALPHA:.1g}"
    )


def assert_unbiased(log_z_estimates: ArrayLike, log_z: float) -> None:
    """The mean of Z_hat / Z over independent runs is 1. Never tests log Z, which is biased."""
    log_ratios = _vector(log_z_estimates, "log_z_estimates") - log_z
    n = len(log_ratios)
    if n < MIN_UNBIASED_RUNS:
        raise ValueError(f"a test of unbiasedness needs {MIN_UNBIASED_RUNS} runs; got {n}")
    _spend()
    assert not np.isnan(log_ratios).any(), "some estimates of log Z are NaN"
    with np.errstate(over="ignore"):
        ratios = np.exp(log_ratios)
    assert np.isfinite(ratios).all(), "some estimates of Z are infinite, or far above the truth"
    ratio, error = ratios.mean(), ratios.std(ddof=1) / np.sqrt(n)
    score = float(mean_scores(ratios, 1.0))
    summary = (
        f"mean of Z_hat / Z over {n} runs is {ratio:.6g}, standard error {error:.3g}, "
        f"z = {score:.2f}, alpha = {ALPHA:.1g}"
    )
    assert abs(score) <= _critical(), f"biased: {summary}"
    assert error <= MAX_RATIO_ERROR, (
        f"no power: the standard error is over {MAX_RATIO_ERROR:.0%}, "
        f"use more runs or more samples per run ({summary})"
    )


def assert_coverage(
    lower: ArrayLike,
    upper: ArrayLike,
    truth: float,
    level: float | None = None,
    *,
    at_least: float | None = None,
) -> None:
    """Intervals from independent runs cover ``truth`` at rate ``level`` (exact binomial test).

    With ``at_least`` only coverage below that rate fails, and ``level`` is not tested. An interval
    with a NaN end does not cover.
    """
    low, high = _vector(lower, "lower"), _vector(upper, "upper")
    if low.shape != high.shape:
        raise ValueError(f"{len(low)} lower ends but {len(high)} upper ends")
    rate = level if at_least is None else at_least
    if rate is None:
        raise ValueError("give the level, or at_least")
    _spend()
    covered = int(np.sum((low <= truth) & (truth <= high)))
    alternative = "two-sided" if at_least is None else "less"
    p = stats.binomtest(covered, len(low), rate, alternative=alternative).pvalue
    wanted = f"{rate:.4g}" if at_least is None else f"at least {rate:.4g}"
    assert p >= ALPHA, (
        f"{covered} of {len(low)} intervals ({covered / len(low):.2%}) cover {truth:.8g}; "
        f"the rate should be {wanted}: p = {p:.2g}, alpha = {ALPHA:.1g}"
    )


def assert_estimate(
    value: float, standard_error: float, truth: float, *, degrees: float = np.inf
) -> None:
    """One estimate agrees with the truth by its own standard error (Student's t test)."""
    _spend()
    score = abs(value - truth) / standard_error
    assert 2 * stats.t.sf(score, degrees) >= ALPHA, (
        f"{value:.8g} ± {standard_error:.3g} is not {truth:.8g}: {score:.2f} standard errors, "
        f"{degrees} degrees of freedom, alpha = {ALPHA:.1g}"
    )


def assert_standard_errors(
    estimates: ArrayLike, standard_errors: ArrayLike, *, tolerance: float = 0.1
) -> None:
    """The empirical variance of independent runs agrees with the mean reported variance.

    A z-test on the log ratio of the two standard deviations. Its error comes from the influence
    function of that ratio, so it allows for kurtosis and for reported errors that move with the
    estimates. ``tolerance`` is relative slack on the ratio, for reported errors are first-order.
    """
    x, reported = _vector(estimates, "estimates"), _vector(standard_errors, "standard_errors")
    n = len(x)
    if n < MIN_ERROR_RUNS or len(reported) != n:
        raise ValueError(
            f"needs at least {MIN_ERROR_RUNS} runs with one standard error each; "
            f"got {n} estimates and {len(reported)} standard errors"
        )
    _spend()
    assert np.isfinite(x).all(), "some estimates are NaN or infinite"
    assert np.isfinite(reported).all(), "some standard errors are NaN or infinite"
    empirical, claimed = x.var(ddof=1), np.mean(reported**2)
    assert min(claimed, empirical) > 0, (
        f"a zero variance: empirical {empirical:.3g}, mean reported {claimed:.3g}"
    )
    influence = (x - x.mean()) ** 2 / empirical - reported**2 / claimed
    error = 0.5 * influence.std(ddof=1) / np.sqrt(n)
    log_ratio = 0.5 * np.log(claimed / empirical)
    margin = float(stats.t.isf(ALPHA / 2, n - 1)) * error
    summary = (
        f"reported / empirical standard deviation over {n} runs is {np.exp(log_ratio):.4g}, "
        f"relative standard error {error:.3g}, tolerance {tolerance:.3g}, alpha = {ALPHA:.1g}"
    )
    assert abs(log_ratio) <= np.log1p(tolerance) + margin, f"wrong standard errors: {summary}"
    assert margin <= np.log(2), f"no power: a factor of 2 could pass, use more runs ({summary})"


def assert_same_law(samples: ArrayLike, cdf: Callable[[NDArray[np.float64]], ArrayLike]) -> None:
    """Independent samples follow the distribution with this exact cdf (Kolmogorov-Smirnov)."""
    x = _vector(samples, "samples")
    _spend()
    assert not np.isnan(x).any(), "the samples contain NaN"
    result = stats.kstest(x, cdf)
    assert result.pvalue >= ALPHA, (
        f"{len(x)} samples do not follow the law: Kolmogorov-Smirnov distance "
        f"{result.statistic:.4g} at {result.statistic_location:.6g}, "
        f"p = {result.pvalue:.2g}, alpha = {ALPHA:.1g}"
    )


def assert_proportion(successes: int, n: int, p: float) -> None:
    """``successes`` out of ``n`` independent trials agree with probability ``p`` (exact)."""
    _spend()
    pvalue = stats.binomtest(int(successes), int(n), p).pvalue
    assert pvalue >= ALPHA, (
        f"{successes} of {n} ({successes / n:.4g}) is not a proportion of {p:.4g}: "
        f"p = {pvalue:.2g}, alpha = {ALPHA:.1g}"
    )


def assert_uniform_ranks(ranks: ArrayLike, num_draws: int) -> None:
    """Ranks among ``num_draws`` draws are uniform on 0, …, ``num_draws``.

    Simultaneous bands around the cumulative distribution: at every rank an exact binomial test of
    how many runs are at or below it, at ``ALPHA`` divided by the number of ranks.
    """
    found = np.asarray(ranks)
    if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
        raise ValueError(f"ranks must be integers along one axis; got {found.dtype} {found.shape}")
    if found.min() < 0 or found.max() > num_draws:
        raise ValueError(f"ranks must be from 0 to {num_draws}")
    _spend()
    below = np.cumsum(np.bincount(found, minlength=num_draws + 1))[:-1]
    expected = np.arange(1, num_draws + 1) / (num_draws + 1)
    law = stats.binom(len(found), expected)
    p = np.minimum(1.0, 2 * np.minimum(law.cdf(below), law.sf(below - 1)))
    worst = int(np.argmin(p))
    assert p[worst] >= ALPHA / num_draws, (
        f"ranks are not uniform: {below[worst]} of {len(found)} ({below[worst] / len(found):.2%}) "
        f"are at most {worst}, the rate should be {expected[worst]:.2%}: p = {p[worst]:.2g}, "
        f"alpha = {ALPHA / num_draws:.1g}"
    )


def assert_error_rate(sizes: ArrayLike, errors_by_size: Sequence[ArrayLike]) -> None:
    """The root mean square error falls as the sample size to the power -1/2.

    ``errors_by_size[i]`` holds the errors of independent runs with ``sizes[i]`` samples. A
    weighted regression on logarithms; the log of each mean square varies as the log of a
    chi-square over its degrees of freedom, or more where the errors have heavier tails.
    """
    log_n = np.log(_vector(sizes, "sizes"))
    errors = [_vector(e, "errors") for e in errors_by_size]
    runs = np.array([len(e) for e in errors])
    if len(errors) != len(log_n) or len(np.unique(log_n)) < 2 or runs.min() < 30:
        raise ValueError(
            "needs two or more different sizes, each with at least 30 errors; "
            f"got {len(log_n)} sizes and {runs.tolist()} errors"
        )
    _spend()
    assert all(np.isfinite(e).all() for e in errors), "some errors are NaN or infinite"
    squares = np.array([np.mean(e**2) for e in errors])
    assert (squares > 0).all(), f"the error is exactly zero at some size: {squares.tolist()}"
    chi_square = special.polygamma(1, runs / 2)
    heavy = np.array([(e**2).var(ddof=1) for e in errors]) / squares**2 / runs
    variance = np.maximum(chi_square, heavy) / 4
    log_rms = 0.5 * (np.log(squares) - special.digamma(runs / 2) + np.log(runs / 2))
    centred = log_n - np.average(log_n, weights=1 / variance)
    slope = np.sum(centred * log_rms / variance) / np.sum(centred**2 / variance)
    error = np.sum(centred**2 / variance) ** -0.5
    summary = (
        f"log-log slope of the error is {slope:.4f}, standard error {error:.2g}, "
        f"z = {(slope + 0.5) / error:.2f}, alpha = {ALPHA:.1g}, RMS {np.sqrt(squares)}"
    )
    assert abs(slope + 0.5) <= _critical() * error, f"the rate is not -1/2: {summary}"
    assert _critical() * error <= 0.25, (
        f"no power: a slope of -1/4 could pass, use more runs or a wider range ({summary})"
    )
