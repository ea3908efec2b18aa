"""The reliability index, design points and importance factors against closed forms."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import estimand as ep
from estimand import plots
from problems import reliability as known
from tests.stats import (
    assert_coverage,
    assert_estimate,
    assert_mean,
    assert_proportion,
    assert_standard_errors,
)


@ep.expectation
def plane() -> Any:
    """A plane at a distance of 5 in standard space, whose normal is (1, 2, 2) / 3."""
    a = numpyro.sample("a", dist.Normal(3.0, 2.0))
    b = numpyro.sample("b", dist.LogNormal(1.0, 0.5))
    c = numpyro.sample("c", dist.Uniform(0.0, 1.0))
    standard = (a - 3) / 2, (jnp.log(b) - 1) / 0.5, jax.scipy.special.ndtri(c)
    return (standard[0] + 2 * standard[1] + 2 * standard[2]) / 3 > 5.0


@pytest.fixture(scope="module")
def result() -> ep.Estimate:
    return ep.estimate_expectation(plane())


def test_a_plane_in_standard_space(result: ep.Estimate) -> None:
    found = result.reliability()
    assert_estimate(found.beta, found.beta_error, 5.0)
    assert found.interval[0] < found.beta < found.interval[1]
    [point] = found.design_points
    assert point.share == 1.0
    assert 0 < point.share_error < 0.01
    assert point.distance == pytest.approx(5.0, abs=0.01)
    assert [float(point.importance[site]) for site in "abc"] == pytest.approx(
        [1 / 9, 4 / 9, 4 / 9], abs=0.02
    )
    assert float(point.values["a"]) == pytest.approx(3 + 2 * 5 / 3, abs=0.2)
    assert "Design point 1" in str(found)
    assert "<table>" in found._repr_html_()


def test_the_summary_has_the_index_of_rare_events(result: ep.Estimate) -> None:
    assert "Reliability index" in str(result.summary())
    common = ep.estimate_expectation(ep.expect(plane.model, lambda sites: sites["a"] > 3.0)())
    assert "Reliability index" not in str(common.summary())


def test_what_was_asked_for_is_in_summary_report_and_plot() -> None:
    @ep.expectation
    def outputs() -> Any:
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([9]).to_event(1))
        return {"common": a + 0.1 * jnp.sum(b) > 1.0, "mean": a}

    found = ep.estimate_expectation(outputs())
    assert "Reliability index" not in str(found.summary())
    assert "What the event hangs on" not in found.to_html()
    with pytest.raises(ValueError, match="no design points of output 0 are known"):
        plots.plot_reliability(found)
    view = found.reliability()
    text = str(found.summary())
    assert "Reliability index" in text
    assert "Design points of common" in text
    assert "importance of a" in text
    assert "importance of 3 others" in text
    assert [label for label, _ in view.ranked(2)] == ["a", "9 others"]
    shares = np.stack([importance for _, importance in view.ranked(4)])
    np.testing.assert_allclose(shares.sum(axis=0), 1.0)
    page = found.to_html()
    assert page.count("What the event hangs on") == 2  # its caption, and its label for readers
    assert "Design points of common" in page
    ax = plots.plot_reliability(found)
    assert len(ax.get_yticklabels()) == len(view.design_points)


def test_a_plane_in_many_dimensions() -> None:
    """With as many steps as in few, searches ended apart, and “4 % of the probability” near it."""

    @ep.expectation
    def wide() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([20]).to_event(1))
        return jnp.sum(x) / math.sqrt(20) > 4.0

    [point] = ep.estimate_expectation(wide()).reliability().design_points
    assert point.share == 1.0
    assert point.distance == pytest.approx(4.0, abs=0.01)


def test_searches_that_end_apart_say_so() -> None:
    """Outside of a ball every point of its surface is as likely."""

    @ep.expectation
    def outside() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([10]).to_event(1))
        return jnp.sum(x**2) > 40.0

    found = ep.estimate_expectation(outside())
    view = found.reliability()
    assert view.design_points == ()
    assert "of the searches ended far apart" in view.note
    assert view.note in str(found.summary())


def test_every_branch_of_a_union_has_its_own_design_point() -> None:
    found = ep.estimate_expectation(ep.expectation(known.four_branch)()).reliability()
    distances = [point.distance for point in found.design_points]
    assert distances == pytest.approx([3.0, 3.0, 3.5, 3.5], abs=0.01)
    straight = float(stats.norm.sf(3.5)) / found.probability
    for point in found.design_points[2:]:
        assert_proportion(round(256 * point.share), 256, straight)


def test_with_data_it_is_the_most_likely_point_of_the_posterior() -> None:
    """Given y = 1 the posterior of x is N(½, ½): the event begins at 4."""

    @ep.expectation
    def far() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=1.0)
        return x > 4.0

    found = ep.estimate_expectation(far()).reliability()
    assert_estimate(found.beta, found.beta_error, 3.5 / math.sqrt(0.5))
    [point] = found.design_points
    assert float(point.values["x"]) == pytest.approx(4.0, abs=0.01)
    np.testing.assert_allclose(point.coordinates["w"], 0.0, atol=0.2)


def test_where_there_are_no_design_points(result: ep.Estimate, tmp_path: Path) -> None:
    result.save(tmp_path / "plane.est")
    loaded = ep.load(tmp_path / "plane.est").reliability()
    assert loaded.beta == result.reliability().beta
    assert loaded.design_points == ()
    assert "session" in loaded.note

    def discrete() -> None:
        rate = numpyro.sample("rate", dist.Gamma(3.0, 1.0))
        numpyro.sample("count", dist.Poisson(rate))

    rare = ep.expect(discrete, lambda sites: sites["count"] > 25)
    found = ep.estimate_expectation(rare()).reliability()
    assert found.design_points == ()
    assert found.beta > 4


def test_only_events_have_an_index(result: ep.Estimate) -> None:
    mean = ep.estimate_expectation(ep.expect(plane.model, lambda sites: sites["a"])())
    with pytest.raises(ValueError, match="is not an event"):
        mean.reliability()
    with pytest.raises(ValueError, match="output must be from 0 to 0"):
        result.reliability(1)


@pytest.mark.slow
def test_intervals_of_the_index_and_errors_of_shares_over_many_seeds() -> None:
    @ep.expectation
    def union() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        return (x[0] > 3.5) | (x[1] < -3.8)

    runs = [ep.estimate_expectation(union(), rng_key=key).reliability() for key in range(200)]
    first, second = stats.norm.sf([3.5, 3.8])
    probability = first + second - first * second
    low, high = zip(*(run.interval for run in runs), strict=True)
    assert_coverage(low, high, -float(stats.norm.ppf(probability)), 0.95)
    points = [run.design_points[0] for run in runs]
    shares = [point.share for point in points]
    assert_mean(shares, first / probability)
    assert_standard_errors(shares, [point.share_error for point in points])
