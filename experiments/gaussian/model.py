"""The posterior predictive density of a Gaussian model (the paper's 5.1)."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

DIMENSION, NORM = 10, 3.5


def data(dimension: int = DIMENSION) -> np.ndarray:
    """The observation: equal entries, of length 3.5 in any dimension."""
    return np.full(dimension, NORM / math.sqrt(dimension))


def posterior_predictive(y: np.ndarray) -> Any:
    """The density of a new observation at −y, with half the variance."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1))
    numpyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=y)
    return jnp.exp(dist.Normal(x, math.sqrt(0.5)).to_event(1).log_prob(-y))
