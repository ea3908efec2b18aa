"""Jackknifed errors, and which draws are independent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from estimand.trust import Evidence, jackknife, replicates_of
from tests import stats


def evidence(log_weights: np.ndarray, **more: Any) -> Evidence:
    zeros: Any = np.zeros(log_weights.size, int)
    weights: Any = log_weights
    number: Any = 0.1
    return Evidence(number, number, weights, zeros, zeros, zeros, zeros, **more)


def test_jackknife_of_a_mean_is_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=(16, 3))
    found = jackknife(lambda mean: mean, values)
    np.testing.assert_allclose(found.value, values.mean(axis=0))
    np.testing.assert_allclose(found.standard_error, values.std(axis=0, ddof=1) / 4)
    assert found.degrees == pytest.approx(15)


def test_jackknife_of_a_ratio_covers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ends = []
    for _ in range(400):
        common = rng.normal(size=16)
        table = np.stack([2 + 0.1 * common, 1 + 0.1 * common + 0.05 * rng.normal(size=16)], axis=1)
        found = jackknife(lambda mean: mean[0] / mean[1], table)
        reach = 2.1314 * float(found.standard_error)
        ends.append((float(found.value) - reach, float(found.value) + reach))
    low, high = np.asarray(ends).T
    stats.assert_coverage(low, high, 2.0, 0.95)


def test_jackknife_of_independent_groups_adds_variances() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(16, 1)), rng.normal(size=(9, 1))
    found = jackknife(lambda a, b: a - b, first, second)
    variance = first.var(ddof=1) / 16 + second.var(ddof=1) / 9
    assert float(found.standard_error[0]) == pytest.approx(np.sqrt(variance))
    assert found.degrees < 24


def test_replicates_are_those_of_the_draws_or_batches_or_unknown() -> None:
    weights = np.linspace(0.0, 1.0, 64)
    own = np.arange(64) % 4
    np.testing.assert_array_equal(replicates_of(evidence(weights, replicate=own)), own)
    batches = replicates_of(evidence(weights))
    assert batches is not None
    assert np.bincount(batches).tolist() == [4] * 16
    assert replicates_of(evidence(np.zeros(64))) is None
    assert replicates_of(evidence(weights[:8])) is None
