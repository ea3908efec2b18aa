"""Leave-one-out against conjugate models: an outlier, and rows with latents of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats as laws

import estimand as ep
from tests import stats

OUTLIER = np.random.default_rng(0).normal(size=12)
OUTLIER[3] = 9.0
OWN = np.array([0.3, -1.0, 5.0, 9.0])


@ep.expectation
def location(y: np.ndarray) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 3.0))
    with numpyro.plate("rows", y.size):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x


@ep.expectation
def own_latents(y: np.ndarray) -> Any:
    """Without a row nothing is known of its latent: the posterior's weights have no variance."""
    with numpyro.plate("rows", y.size):
        x = numpyro.sample("x", dist.Normal(0.0, 3.0))
        numpyro.sample("y", dist.Normal(x, 0.3), obs=y)
    return x[0]


def exact_location(y: np.ndarray) -> np.ndarray:
    found = []
    for row in range(y.size):
        others = np.delete(y, row)
        variance = 1 / (1 / 9 + others.size)
        found.append(laws.norm.logpdf(y[row], variance * others.sum(), np.sqrt(variance + 1)))
    return np.asarray(found)


EXACT = {"location": exact_location(OUTLIER), "own": laws.norm.logpdf(OWN, 0, np.sqrt(9.09))}


def check(loo: ep.LeaveOneOut, exact: np.ndarray) -> None:
    assert loo.status
    for row, truth in zip(loo.rows, exact, strict=True):
        stats.assert_estimate(row.elpd, row.standard_error, truth, degrees=15)
    stats.assert_estimate(loo.elpd, loo.standard_error, exact.sum(), degrees=15)


def test_an_outlier_by_closed_form() -> None:
    loo = ep.leave_one_out(location(OUTLIER))
    check(loo, EXACT["location"])
    assert min(loo.rows, key=lambda row: row.elpd).index == 3
    assert "ELPD" in str(loo)
    assert loo.se == pytest.approx(np.sqrt(12) * EXACT["location"].std(ddof=1), rel=0.01)


def test_rows_that_posterior_draws_cannot_predict_are_explored() -> None:
    loo = ep.leave_one_out(own_latents(OWN))
    check(loo, EXACT["own"])
    assert all(row.is_explored for row in loo.rows)
    assert min(row.posterior_k for row in loo.rows) > 0.7
    assert max(row.pareto_k for row in loo.rows) < 0.7
    assert "explored for 4 of the rows" in str(loo)


def test_rows_that_cut_off_a_part_of_the_parameters() -> None:
    """Without the outermost row there is mass where the posterior with it has none."""

    @ep.expectation
    def window(y: np.ndarray) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 2.0))
        with numpyro.plate("rows", y.size):
            numpyro.sample("y", dist.Uniform(x - 1.0, x + 1.0), obs=y)
        return x

    def log_evidence(y: np.ndarray) -> float:
        low, high = laws.norm.cdf([y.max() - 1, y.min() + 1], 0.0, 2.0)
        return float(np.log(high - low) - y.size * np.log(2.0))

    y = np.array([0.0, 0.4, -0.3, 1.3])
    loo = ep.leave_one_out(window(y))
    assert loo.status
    assert [row.is_explored for row in loo.rows] == [False, False, True, True]
    for row in loo.rows:
        truth = log_evidence(y) - log_evidence(np.delete(y, row.index))
        # Rows within the others' reach have one density everywhere: ½, without an error.
        error = max(row.standard_error, 1e-12)
        stats.assert_estimate(row.elpd, error, truth, degrees=15)


def test_the_least_of_some_shifted_exponentials() -> None:
    @ep.expectation
    def shifted(y: np.ndarray) -> Any:
        start = numpyro.sample("start", dist.Normal(0.0, 3.0))
        law = dist.TransformedDistribution(
            dist.Exponential(1.0), dist.transforms.AffineTransform(start, 1.0)
        )
        with numpyro.plate("rows", y.size):
            numpyro.sample("y", law, obs=y)
        return start

    def log_evidence(y: np.ndarray) -> float:
        start = np.linspace(-30.0, y.min(), 2_000_001)
        logs = laws.norm.logpdf(start, 0.0, 3.0) + y.size * start - y.sum()
        return float(np.log(np.trapezoid(np.exp(logs), start)))

    y = np.array([0.0, 2.0, 2.5, 3.0])
    loo = ep.leave_one_out(shifted(y))
    check(loo, np.asarray([log_evidence(y) - log_evidence(np.delete(y, k)) for k in range(4)]))
    assert [row.is_explored for row in loo.rows] == [True, False, False, False]


@pytest.mark.slow
def test_intervals_cover() -> None:
    found = [ep.leave_one_out(location(OUTLIER), rng_key=k) for k in range(200)]
    for row in (0, 3):
        low, high = np.asarray([loo.rows[row].interval for loo in found]).T
        stats.assert_coverage(low, high, EXACT["location"][row], 0.95)
    reach = np.asarray([2.1314 * loo.standard_error for loo in found])
    sums = np.asarray([loo.elpd for loo in found])
    stats.assert_coverage(sums - reach, sums + reach, EXACT["location"].sum(), at_least=0.95)


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # ArviZ's own
def test_arviz_compares_two_models() -> None:
    arviz_stats = pytest.importorskip("arviz_stats")

    @ep.expectation
    def heavy(y: np.ndarray) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 3.0))
        with numpyro.plate("rows", y.size):
            numpyro.sample("y", dist.StudentT(2.0, x, 1.0), obs=y)
        return x

    found = {
        program.name: ep.leave_one_out(program(OUTLIER)).to_arviz() for program in (location, heavy)
    }
    table = arviz_stats.compare(found)
    assert list(table.index) == ["heavy", "location"]
    assert table.loc["location", "elpd"] == pytest.approx(EXACT["location"].sum(), abs=0.1)


def test_what_is_wrong_is_said_before_any_work() -> None:
    @ep.expectation
    def two(y: np.ndarray) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.size):
            numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
            numpyro.sample("z", dist.Normal(x, 2.0), obs=y)
        return x

    y = np.array([0.1, 0.4])
    with pytest.raises(ep.ProgramError, match=r"observed sites \['y', 'z'\]"):
        ep.leave_one_out(two(y))
    assert ep.leave_one_out(two(y), site="z").status
    with pytest.raises(ep.ProgramError, match="no observed site 'w'"):
        ep.leave_one_out(two(y), site="w")
    with pytest.raises(ep.ProgramError, match="called with its data"):
        ep.leave_one_out(two)  # type: ignore[arg-type]
