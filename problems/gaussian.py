"""The posterior predictive density of a Gaussian model (the paper's 5.1), in any dimension.

The posterior is N(y/2, I/2) and f(x) = N(−y; x, I/2), so that E = N(−y; y/2, I): with |y| = 3.5 the
distance is 1.5 · 3.5 in any dimension. `python -m problems.gaussian` prints the truth.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats

from problems.problem import Problem, problem_of

DIMENSION, NORM = 10, 3.5


def data(dimension: int = DIMENSION) -> np.ndarray:
    """The observation: equal entries, of length 3.5 in any dimension."""
    return np.full(dimension, NORM / math.sqrt(dimension))


def posterior_predictive(y: np.ndarray) -> Any:
    """The density of a new observation at −y, with half the variance."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1))
    numpyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=y)
    return jnp.exp(dist.Normal(x, math.sqrt(0.5)).to_event(1).log_prob(-y))


def log_z2(dimension: int = DIMENSION) -> float:
    """log N(y; 0, 2I)."""
    return -0.5 * dimension * math.log(4 * math.pi) - NORM**2 / 4


def expectation(dimension: int = DIMENSION) -> float:
    """N(−y; y/2, I)."""
    return math.exp(-0.5 * dimension * math.log(2 * math.pi) - 0.5 * (1.5 * NORM) ** 2)


def log_z1(dimension: int = DIMENSION) -> float:
    """log ∫ prior · likelihood · f with its data: log N(y; 0, 2I) + log N(−y; y/2, I)."""
    squares = NORM**2
    return -0.5 * dimension * math.log(8 * math.pi**2) - squares / 4 - 1.125 * squares


def posterior_predictive_problem(name: str, dim: int) -> Problem:
    """The problem in any dimension."""
    y = data(dim)
    return problem_of(
        name,
        posterior_predictive,
        (y,),
        plus=math.exp(float(stats.norm.logpdf(-y, y / 2, 1).sum())),
        minus=0.0,
        log_z2=float(stats.norm.logpdf(y, 0, math.sqrt(2)).sum()),
        how="closed form: E = N(-y; y/2, I)",
        tags="continuous vector rare gradient",
    )


def problems() -> list[Problem]:
    """In the paper's ten dimensions, and in two."""
    return [
        posterior_predictive_problem("posterior_predictive", DIMENSION),
        posterior_predictive_problem("posterior_predictive_2d", 2),
    ]


if __name__ == "__main__":
    for size in (2, 5, 10, 25, 50, 100):
        print(f"D = {size:3}   log Z2 = {log_z2(size):.6f}   E = {expectation(size):.8e}")
