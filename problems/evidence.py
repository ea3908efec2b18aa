"""Models of which the evidence is known, and quantities beyond one expectation."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist


def _numbers(text: str) -> np.ndarray:
    return np.array(text.split(), float)


# Williams (1959): 42 specimens of Radiata pine, their maximum compression strength parallel to the
# grain, their density, and their density adjusted for resin content.
STRENGTH = _numbers(
    "3040 2470 3610 3480 3810 2330 1800 3110 3670 2310 4360 1880 3670 1740 "
    "2250 2650 4970 2620 2900 1670 2540 3840 3800 4600 1900 2530 2920 4990 "
    "1670 3310 3450 3600 2850 1590 3770 3850 2480 3570 2620 1890 3030 3030"
)
DENSITY = _numbers(
    "29.2 24.7 32.3 31.3 31.5 24.5 19.9 27.3 32.3 24.0 33.8 21.5 32.2 22.5 "
    "27.5 25.6 34.5 26.2 26.7 21.1 24.1 30.7 32.7 32.6 22.1 25.3 30.8 38.9 "
    "22.1 29.2 30.1 31.4 26.7 22.1 30.3 32.0 23.2 30.3 29.9 20.8 33.2 28.2"
)
ADJUSTED_DENSITY = _numbers(
    "25.4 22.2 32.2 31.0 30.9 23.9 19.2 27.2 29.0 23.9 33.2 21.0 29.0 22.0 "
    "23.8 25.3 34.2 25.7 26.4 20.0 23.9 30.7 32.6 32.5 20.8 23.1 29.8 38.1 "
    "21.3 28.5 29.2 31.4 25.9 21.4 29.8 30.6 22.6 30.3 23.8 18.4 29.4 28.2"
)
# With the density, and with the adjusted one; closed form, see `log_pine_evidence`.
PINE_LOG_Z = (-310.12829, -301.70460)
# By quadrature over the radius: the cube cuts off next to nothing.
SHELLS_LOG_Z = {
    2: -1.745642,
    5: -5.673601,
    10: -14.590491,
    20: -36.086548,
    30: -60.127767,
}
EGGBOX_LOG_Z = 235.855940
CORRELATED_LOG_Z = -12.4827386


def pine(strength: Any, density: Any) -> jax.Array:
    """Strength by density; the return value is that expected at a density of 30."""
    precision = numpyro.sample("precision", dist.Gamma(3.0, 2 * 300.0**2))
    scale = 1 / jnp.sqrt(precision)
    level = numpyro.sample("level", dist.Normal(3000.0, scale / math.sqrt(0.06)))
    slope = numpyro.sample("slope", dist.Normal(185.0, scale / math.sqrt(6.0)))
    mean = jnp.mean(density)
    with numpyro.plate("rows", len(density)):
        line = level + slope * (density - mean)
        numpyro.sample("strength", dist.Normal(line, scale), obs=strength)
    return level + slope * (30.0 - mean)


def log_pine_evidence(strength: np.ndarray, density: np.ndarray) -> float:
    """The normal and gamma distributions are conjugate: a multivariate t density."""
    from scipy import stats

    design = np.stack([np.ones(len(density)), density - density.mean()], axis=1)
    shape = np.eye(len(strength)) + design @ np.diag([1 / 0.06, 1 / 6.0]) @ design.T
    location = design @ np.array([3000.0, 185.0])
    rate = 2 * 300.0**2
    law = stats.multivariate_t(location, shape * rate / 3.0, df=6.0)
    return float(law.logpdf(strength))


def shells(dimension: int) -> None:
    """Two thin spheres of radius 2 whose centres are 7 apart."""
    x = numpyro.sample("x", dist.Uniform(-6.0, 6.0).expand([dimension]).to_event(1))

    def shell(side: float) -> jax.Array:
        centred = x.at[0].add(-3.5 * side)
        radius = jnp.sqrt(jnp.sum(centred**2) + 1e-300)
        return dist.Normal(2.0, 0.1).log_prob(radius)

    numpyro.factor("shells", jnp.logaddexp(shell(1.0), shell(-1.0)))


def eggbox() -> None:
    """Eighteen modes, all of the same size."""
    x = numpyro.sample("x", dist.Uniform(0.0, 10 * math.pi).expand([2]).to_event(1))
    numpyro.factor("eggs", (2.0 + jnp.prod(jnp.cos(x / 2))) ** 5)


def correlated() -> None:
    """A normal prior and a likelihood with correlations of 0.95, in ten dimensions."""
    x = numpyro.sample("x", dist.Normal(2.0, 1.0).expand([10]).to_event(1))
    covariance = 0.05 * jnp.eye(10) + 0.95
    numpyro.factor("rows", dist.MultivariateNormal(jnp.zeros(10), covariance).log_prob(x))


def tests_of_pages() -> tuple[jax.Array, jax.Array]:
    """Two pages, of which 40 of 1,000 and 70 of 1,000 visitors did what they were asked to."""
    a = numpyro.sample("a", dist.Beta(41.0, 961.0))
    b = numpyro.sample("b", dist.Beta(71.0, 931.0))
    return a > b, jnp.maximum(a - b, 0.0)


# P(a > b) and E[max(a − b, 0)], by quadrature.
PAGES = (1.61406181e-3, 4.78141938e-6)


def predictive_t() -> jax.Array:
    """Student's t with 9 degrees of freedom, as a normal distribution of unknown precision."""
    precision = numpyro.sample("precision", dist.Gamma(4.5, 4.5))
    return numpyro.sample("x", dist.Normal(0.0, 1.0)) / jnp.sqrt(precision)


def normal() -> jax.Array:
    return numpyro.sample("x", dist.Normal(0.0, 1.0))


# Quantile and expected shortfall at a tail probability of a millionth, in closed form.
TAILS = {predictive_t: (10.7201604, 12.1451241), normal: (4.75342431, 4.94833272)}
