"""An epidemic whose cost rises exponentially with its reproduction number (the paper's 5.2)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

POPULATION, RECOVERY, DAYS, STEPS_A_DAY = 1e4, 0.25, 15, 10
DATA = np.array([25, 26, 25, 19, 32, 15, 25, 7, 14, 26, 13, 23, 24, 24, 30])

# By Gauss-Legendre panels of 600 x 420 nodes and 64 solver steps a day, stable to 1e-9. The model
# takes 10 steps a day, which moves E by about 1e-6 of itself.
EXPECTATION, LOG_Z1, LOG_Z2 = 3.015842088e7, -54.76700231, -71.98897706

_Pair = tuple[jax.Array, jax.Array]
_Triple = tuple[jax.Array, jax.Array, jax.Array]


def day(beta: jax.Array, state: _Pair) -> tuple[_Pair, jax.Array]:
    """One day by the classical Runge-Kutta method: (susceptible, infected), and the newly infected.

    The state stays in separate arrays: stacking it inside the loop is slow on a CPU.
    """
    h = 1.0 / STEPS_A_DAY

    def rates(s: jax.Array, i: jax.Array) -> _Pair:
        new = beta * s * i / POPULATION
        return new, new - RECOVERY * i

    def step(state: _Triple, _: None) -> tuple[_Triple, None]:
        s, i, c = state
        n1, d1 = rates(s, i)
        n2, d2 = rates(s - h / 2 * n1, i + h / 2 * d1)
        n3, d3 = rates(s - h / 2 * n2, i + h / 2 * d2)
        n4, d4 = rates(s - h * n3, i + h * d3)
        new = h / 6 * (n1 + 2 * n2 + 2 * n3 + n4)
        return (s - new, i + h / 6 * (d1 + 2 * d2 + 2 * d3 + d4), c + new), None

    (s, i, c), _ = jax.lax.scan(step, (*state, jnp.zeros_like(beta)), None, length=STEPS_A_DAY)
    return (s, i), c


def new_infections(beta: jax.Array, infected: jax.Array) -> jax.Array:
    """The newly infected on each of the 15 days."""
    start = (POPULATION - infected, infected)
    return jax.lax.scan(lambda state, _: day(beta, state), start, None, length=DAYS)[1]


def sir(y: np.ndarray, *, is_bounded: bool = True) -> Any:
    """The cost of the epidemic.

    Args:
        y: newly infected people on each day.
        is_bounded: the parameters' bounds are those of their priors. Otherwise the priors are
            normal and the density is 0 beyond the same bounds: kernels then move in the model's
            own coordinates, as those of the authors' code do. The posterior is the same, and both
            Z are smaller by the share of the normal priors that is within the bounds.
    """
    if is_bounded:
        beta = numpyro.sample("beta", dist.TruncatedNormal(2.0, 1.5, low=0.0))
        i0 = numpyro.sample("i0", dist.TruncatedNormal(10.0, 10.0, low=0.0, high=1000.0))
    else:
        beta = numpyro.sample("beta", dist.Normal(2.0, 1.5))
        i0 = numpyro.sample("i0", dist.Normal(10.0, 10.0))
        is_inside = (beta > 0) & (i0 > 0) & (i0 < 1000)
        numpyro.factor("bounds", jnp.where(is_inside, 0.0, -jnp.inf))
    new = new_infections(beta, 10.0 * i0)
    # Once everybody is infected the daily count rounds to zero, or just below, and the log of the
    # mean would be NaN. The floor is far below any mean that has weight.
    mean = jnp.maximum(new, 1e-10)
    with numpyro.plate("days", len(y)):
        numpyro.sample("y", dist.NegativeBinomial2(mean, 0.5), obs=y)
    return 1e12 * jax.nn.sigmoid(10.0 * beta / RECOVERY - 30.0)
