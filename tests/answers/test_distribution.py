"""The distribution function with its tails, against closed forms."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import estimand as ep
from estimand import plots
from problems import evidence as known
from tests.stats import assert_coverage, assert_estimate

GRID = np.array([-5.0, -2.0, 0.5, 2.0, 6.0])


@pytest.fixture(scope="module")
def found() -> ep.Distribution:
    return ep.distribution(ep.expectation(known.normal)(), GRID)


def test_both_tails_of_a_normal_distribution(found: ep.Distribution) -> None:
    assert found.status
    assert found.is_upper.tolist() == [False, False, True, True, True]
    truths = np.where(found.is_upper, stats.norm.sf(GRID), stats.norm.cdf(GRID))
    for tail, truth in zip(found.tails, truths, strict=True):
        assert_estimate(tail.value, tail.standard_error, truth, degrees=tail.degrees)
    np.testing.assert_allclose(found.cdf, stats.norm.cdf(GRID), rtol=0.05)
    np.testing.assert_allclose(found.survival, stats.norm.sf(GRID), rtol=0.05)
    low, high = found.interval()
    assert ((low <= found.cdf) & (found.cdf <= high)).all()
    low, high = found.survival_interval()
    assert ((low <= found.survival) & (found.survival <= high)).all()


def test_a_distribution_can_be_read(found: ep.Distribution) -> None:
    pytest.importorskip("pandas")
    assert "P(f > t)" in str(found)
    assert found.to_dataframe().index.tolist() == GRID.tolist()
    assert found.to_dict()["points"][0]["t"] == -5.0
    plt.switch_backend("agg")
    left, right = plots.plot_distribution(found)
    assert left.get_ylabel() == "P(f ≤ t)"
    assert right.get_yscale() == "log"


def test_a_distribution_with_atoms() -> None:
    @ep.expectation
    def count() -> Any:
        rate = numpyro.sample("rate", dist.Gamma(3.0, 1.0))
        return numpyro.sample("count", dist.Poisson(rate))

    grid = [0.0, 1.0, 4.0, 20.0]
    found = ep.distribution(count(), grid)
    truths = stats.nbinom.cdf(grid, 3, 0.5), stats.nbinom.sf(grid, 3, 0.5)
    for tail, is_upper, cdf, survival in zip(found.tails, found.is_upper, *truths, strict=True):
        truth = survival if is_upper else cdf
        assert_estimate(tail.value, tail.standard_error, truth, degrees=tail.degrees)


def test_wrong_grids_are_refused() -> None:
    bound = ep.expectation(known.normal)()
    with pytest.raises(ValueError, match="must rise"):
        ep.distribution(bound, [1.0, 0.0])
    with pytest.raises(ValueError, match="list of numbers"):
        ep.distribution(bound, 1.0)  # type: ignore[arg-type]


def test_beyond_the_ends_of_a_value_it_is_known() -> None:
    """By the expression; that no draw has met P(f ≤ 0) does not prove that it is 0."""

    @ep.expectation
    def square() -> Any:
        return numpyro.sample("u", dist.Uniform(0.0, 1.0)) ** 2

    found = ep.distribution(square(), [-1.0, 0.0, 0.25, 1.0, 2.0], throw=False)
    assert [status.name == "ok" for status in found.statuses] == [True, False, True, True, True]
    assert found.cdf[[0, 3, 4]].tolist() == [0.0, 1.0, 1.0]
    assert found.standard_error[[0, 3, 4]].tolist() == [0.0, 0.0, 0.0]
    low, high = found.interval()
    assert low[[0, 3, 4]].tolist() == high[[0, 3, 4]].tolist() == [0.0, 1.0, 1.0]
    assert "0 exactly" in str(found)


# --- coverage ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "law"), [(known.normal, stats.norm), (known.predictive_t, stats.t(9))]
)
def test_bands_cover_point_by_point(model: Any, law: Any) -> None:
    bound = ep.expectation(model)()
    runs = [ep.distribution(bound, GRID, rng_key=key) for key in range(200)]
    ends = np.asarray([run.survival_interval() for run in runs])
    for point, truth in enumerate(law.sf(GRID)):
        assert_coverage(ends[:, 0, point], ends[:, 1, point], truth, 0.95)
