"""Meng and Wong's estimator: errors that cover, and chains that do not move."""

from __future__ import annotations

import numpy as np
import pytest

from estimand.sampling.bridging import meng_wong
from tests.stats import assert_coverage


def test_reported_error_covers(seed: int) -> None:
    """Meng and Wong's estimator on independent and on autocorrelated draws of a skewed law."""
    rng = np.random.default_rng(seed)
    for correlation in (0.0, 0.9):
        lows, highs = [], []
        for _ in range(400):
            noise = rng.normal(size=(4, 500))
            states = np.empty_like(noise)
            states[:, 0] = noise[:, 0]
            for t in range(1, 500):
                kept = correlation * states[:, t - 1]
                states[:, t] = kept + np.sqrt(1 - correlation**2) * noise[:, t]
            drawn = 1.3 * states + 0.2
            normal = rng.normal(size=2000)

            def log_ratio(x: np.ndarray) -> np.ndarray:
                return -0.5 * ((x - 0.2) / 1.3) ** 2 - np.log(1.3) + 0.5 * x**2 + 3.0

            log_z, variance = meng_wong(log_ratio(drawn), log_ratio(normal))
            reach = 1.96 * np.sqrt(variance)
            lows.append(log_z - reach)
            highs.append(log_z + reach)
        assert_coverage(lows, highs, 3.0, at_least=0.92)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_chain_that_does_not_move() -> None:
    """Draws of N(0, 1), one chain of which did not move; the truth is log Z = 1."""
    rng = np.random.default_rng(0)
    log_drawn = 1.0 + 0.1 * rng.standard_normal((10, 64))
    log_drawn[3] = log_drawn[3, 0]
    log_normal = 1.0 + 0.1 * rng.standard_normal(640)
    log_z, variance = meng_wong(log_drawn, log_normal)
    assert abs(log_z - 1.0) < 0.05
    assert 0 < variance < 0.05
