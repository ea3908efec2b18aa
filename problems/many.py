"""Programs whose expectation has a closed form for every data set."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats

import estimand as ep

# x has two independent standard normal elements, and y is their sum with this error.
NOISE = 0.5
VARIANCE = 1 / (1 / 2 + 1 / NOISE**2)
EDGE = 4.5


def observe(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x.sum(), NOISE), obs=y)
    return x.sum()


@ep.expectation
def cube(y: Any) -> Any:
    """Of both signs."""
    return observe(y) ** 3


@ep.expectation
def beyond(y: Any) -> Any:
    """An event that is rare for most data."""
    return observe(y) > EDGE


def means(y: np.ndarray) -> np.ndarray:
    """The posterior mean of the sum; its variance is `VARIANCE`."""
    return VARIANCE / NOISE**2 * y


def cubes(y: np.ndarray) -> np.ndarray:
    return means(y) ** 3 + 3 * means(y) * VARIANCE


def tails(y: np.ndarray) -> np.ndarray:
    return stats.norm.sf(EDGE, means(y), math.sqrt(VARIANCE))


@ep.expectation
def two_modes(y: Any, tilt: Any) -> Any:
    """|x| is observed, and x itself but vaguely: two modes, far apart, of unequal mass."""
    x = numpyro.sample("x", dist.Normal(0.0, 3.0))
    noise = numpyro.sample("noise", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(jnp.abs(x), 0.2), obs=y)
    numpyro.sample("tilt", dist.Normal(x, 4.0), obs=tilt)
    return x + 0.1 * noise[0]


def two_modes_truth(y: float, tilt: float) -> float:
    x = np.linspace(-15.0, 15.0, 600_001)
    log_density = -0.5 * (((np.abs(x) - y) / 0.2) ** 2 + ((tilt - x) / 4.0) ** 2 + (x / 3.0) ** 2)
    weights = np.exp(log_density - log_density.max())
    return float((weights * x).sum() / weights.sum())


@ep.expectation
def schools(y: Any) -> Any:
    """A hierarchy with unknown scale, which is asked for."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    tau = numpyro.sample("tau", dist.HalfNormal(10.0))
    with numpyro.plate("schools", 8):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, 10.0), obs=y)
    return tau


def schools_truth(y: np.ndarray) -> float:
    """Effects and their mean integrate out: the data's mean has variance 100 + (τ² + 100)/8."""
    tau = np.linspace(1e-4, 100.0, 100_001)
    variance = tau**2 + 100.0
    of_mean = 100.0 + variance / 8
    log_density = -3.5 * np.log(variance) - 0.5 * ((y - y.mean()) ** 2).sum() / variance
    log_density += -0.5 * np.log(of_mean) - 0.5 * y.mean() ** 2 / of_mean - 0.5 * (tau / 10.0) ** 2
    weights = np.exp(log_density - log_density.max())
    return float((weights * tau).sum() / weights.sum())
