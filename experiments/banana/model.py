"""A banana-shaped density, and a target of both signs (the paper's appendix N)."""

from __future__ import annotations

from typing import Any

import jax
import numpyro
import numpyro.distributions as dist


def banana() -> Any:
    """A cube, cut off steeply through the banana's arms."""
    x1 = numpyro.sample("x1", dist.Normal(0.0, 4.0))
    x2 = numpyro.sample("x2", dist.Normal(0.0, 4.0))
    curved = x2 / 2 + 0.03 * (x1**2 - 100.0)
    numpyro.factor("banana", -0.5 * (0.03 * x1**2 + curved**2))
    return (x1 - 2.0) ** 3 * jax.nn.sigmoid(-50.0 * (x2 + 5.0))
