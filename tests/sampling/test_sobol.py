"""Sobol points: SciPy's, scrambled so that every elementary interval keeps its one point."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import qmc

from estimand.sampling import sobol
from tests.stats import assert_mean


@pytest.mark.parametrize("log2_count", [0, 1, 6, 11])
def test_plain_points_are_scipys(log2_count: int) -> None:
    """As a set: SciPy's are in the order of a Gray code."""
    own = sobol.plain(log2_count, sobol.MAX_DIMENSION)
    scipys = qmc.Sobol(sobol.MAX_DIMENSION, scramble=False).random_base2(log2_count)
    np.testing.assert_array_equal(own[np.lexsort(own.T)], scipys[np.lexsort(scipys.T)])


def test_every_interval_of_a_coordinate_has_one_point(seed: int) -> None:
    points = sobol.scrambled(np.random.default_rng(seed), 9, sobol.MAX_DIMENSION)
    assert points.shape == (512, sobol.MAX_DIMENSION)
    intervals = np.sort(np.floor(512 * points).astype(int), axis=0)
    np.testing.assert_array_equal(intervals, np.arange(512)[:, None] + np.zeros_like(intervals))


@pytest.mark.parametrize("split", range(9))
def test_every_box_of_the_first_two_coordinates_has_one_point(split: int, seed: int) -> None:
    """Boxes of equal area, whatever their shape."""
    points = sobol.scrambled(np.random.default_rng(seed), 8, 2)
    rows, columns = (np.floor(points * [2**split, 2 ** (8 - split)]).astype(int)).T
    assert np.unique(rows * 2 ** (8 - split) + columns).size == 256


def test_scrambles_are_unbiased_and_precise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = np.stack([sobol.scrambled(rng, 5, 3) for _ in range(1000)])
    assert points.min() > 0
    assert points.max() < 1
    # Every single point is uniform, and so is each pair of coordinates of one.
    assert_mean(points[:, [0, 1, 17]].reshape(1000, -1), 0.5)
    assert_mean(points[:, 17, 0] * points[:, 17, 2], 0.25)
    means = np.exp(points).prod(axis=2).mean(axis=1)
    assert_mean(means, math.expm1(1.0) ** 3)
    plain = np.exp(rng.random((1000, 32, 3))).prod(axis=2).mean(axis=1)
    assert means.std() < 0.3 * plain.std()
