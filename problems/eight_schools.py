"""Eight schools (Rubin, 1981), centred: moments and events of the effects."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from problems.problem import Problem, problem_of

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools(y: np.ndarray, sigma: np.ndarray) -> Any:
    """Eight schools, centred; two moments and three events."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)
    events = theta[0] > 28.0, jnp.max(theta) < 0.0, jnp.min(theta) > 15.0
    return theta[0], theta[0] - theta[2], *events


def eight_schools_means(y: np.ndarray, sigma: np.ndarray) -> Any:
    """The first school's effect, and its distance to the third's."""
    return eight_schools(y, sigma)[:2]


def _eight_schools() -> Problem:
    return problem_of(
        "eight_schools",
        eight_schools,
        (EFFECTS, ERRORS),
        plus=(6.4344493611, 3.2645135773, 4.8291111505e-3, 0.014922977894, 6.8049844811e-5),
        minus=(0.2225651571, 0.9796337758, 0.0, 0.0, 0.0),
        value=(6.2118842041, 2.2848798015, 4.8291111505e-3, 0.014922977894, 6.8049844811e-5),
        log_z2=-31.3113473523,
        how="theta integrated in closed form, (mu, tau) by two-dimensional quadrature",
        tags="continuous half-line vector signed multiple event rare",
    )


def problems() -> list[Problem]:
    """The one problem of this module."""
    return [_eight_schools()]
