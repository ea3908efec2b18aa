"""Models of real data with known answers: eight schools, an epidemic, radon."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from problem import Problem, problem_of

from experiments.radon import model as radon
from experiments.sir import model as sir

# Eight schools -----------------------------------------------------------------------------------


def eight_schools(y: np.ndarray, sigma: np.ndarray) -> Any:
    """Eight schools, centred; two moments and three events."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)
    events = theta[0] > 28.0, jnp.max(theta) < 0.0, jnp.min(theta) > 15.0
    return theta[0], theta[0] - theta[2], *events


def _eight_schools() -> Problem:
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    return problem_of(
        "eight_schools",
        eight_schools,
        (y, sigma),
        plus=(6.4344493611, 3.2645135773, 4.8291111505e-3, 0.014922977894, 6.8049844811e-5),
        minus=(0.2225651571, 0.9796337758, 0.0, 0.0, 0.0),
        value=(6.2118842041, 2.2848798015, 4.8291111505e-3, 0.014922977894, 6.8049844811e-5),
        log_z2=-31.3113473523,
        how="theta integrated in closed form, (mu, tau) by two-dimensional quadrature",
        tags="continuous half-line vector signed multiple event rare",
    )


# An epidemic -------------------------------------------------------------------------------------


def _sir() -> Problem:
    return Problem(
        name="sir",
        model=sir.sir,
        args=(sir.DATA,),
        value=sir.EXPECTATION,
        log_z2=sir.LOG_Z2,
        log_z1_plus=sir.LOG_Z1,
        log_z1_minus=-math.inf,
        how="two-dimensional quadrature, Runge-Kutta with 64 steps a day; the model takes 10 "
        "steps a day, which moves E by about 1e-6 of itself",
        tags=frozenset({"continuous", "half-line", "bounded", "rare", "gradient"}),
    )


# Radon -------------------------------------------------------------------------------------------


def radon_step(county: np.ndarray, floor: np.ndarray, log_radon: np.ndarray) -> Any:
    """Every county below the limit, as an indicator."""
    return radon.radon(county, floor, log_radon, step=True)


def _radon(
    name: str, model: Callable[..., Any], data: radon.Data, log_z2: float, log_z1: float, tags: str
) -> Problem:
    return Problem(
        name=name,
        model=model,
        args=tuple(data),
        value=math.exp(log_z1 - log_z2),
        log_z2=log_z2,
        log_z1_plus=log_z1,
        log_z1_minus=-math.inf,
        how="experiments/radon/truth.py: counties in closed form and by one-dimensional "
        "quadrature, the other three parameters by the trapezoidal rule",
        tags=frozenset(tags.split()),
    )


def _radons() -> list[Problem]:
    data, log_z2, tags = radon.load(), -224.0416133308, "continuous half-line vector rare"
    return [
        _radon("radon", radon.radon, data, log_z2, -241.1573149301, f"{tags} gradient"),
        _radon("radon_step", radon_step, data, log_z2, -239.8961090214, f"{tags} event"),
        _radon(
            "radon_85",
            radon.radon,
            radon.load(None),
            -1074.4262980040,
            -1114.6260313070,
            f"{tags} gradient",
        ),
    ]


APPLIED = [_eight_schools(), _sir(), *_radons()]
