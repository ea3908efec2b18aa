"""Temperature schedules."""

from __future__ import annotations

import numpy as np

import estimand as ep


def test_schedules() -> None:
    assert ep.linear(4) == (0.0, 0.25, 0.5, 0.75, 1.0)
    betas = ep.geometric(100)
    np.testing.assert_allclose(betas, (np.geomspace(1, 1001, 101) - 1) / 1000, atol=1e-15)
    assert (betas[0], betas[-1]) == (0.0, 1.0)
    assert ep.AnIS(schedule=np.linspace(0, 1, 6)).betas == ep.linear(5)
    assert len(ep.AnIS(num_temperatures=7).betas) == 8
