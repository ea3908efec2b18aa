"""A banana-shaped density, and a target of both signs (the paper's appendix N).

The truth is by two-dimensional quadrature on Gauss-Legendre panels. Those of x2 end at the cut,
where the target falls to 0 within about 0.5. `python -m problems.banana` prints it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpy.typing import NDArray
from scipy import special

from problems.problem import Problem, panels, problem_of

Array = NDArray[np.float64]

EXPECTATION, LOG_Z2 = -0.0923781142525, -1.7170561092889
_X1 = (-30.0, -18.0, -12.0, -6.0, 0.0, 2.0, 6.0, 12.0, 18.0, 30.0)
_X2 = (-60.0, -20.0, -10.0, -7.0, -6.0, -5.5, -5.0, -4.5, -4.0, 0.0, 5.0, 10.0, 40.0)


def banana() -> Any:
    """A cube, cut off steeply through the banana's arms."""
    x1 = numpyro.sample("x1", dist.Normal(0.0, 4.0))
    x2 = numpyro.sample("x2", dist.Normal(0.0, 4.0))
    curved = x2 / 2 + 0.03 * (x1**2 - 100.0)
    numpyro.factor("banana", -0.5 * (0.03 * x1**2 + curved**2))
    return (x1 - 2.0) ** 3 * jax.nn.sigmoid(-50.0 * (x2 + 5.0))


class Truth(NamedTuple):
    """The parts of the expectation, and log Z2."""

    plus: float
    minus: float
    log_z2: float

    @property
    def value(self) -> float:
        return self.plus - self.minus


def log_gamma(x1: Array, x2: Array) -> Array:
    """log of prior times factor."""
    curved = x2 / 2 + 0.03 * (x1**2 - 100.0)
    log_prior = -(x1**2 + x2**2) / 32 - math.log(32 * math.pi)
    return log_prior - 0.5 * (0.03 * x1**2 + curved**2)


def truth(num_nodes: int = 60) -> Truth:
    """With this many nodes in each panel."""
    x1, w1 = panels(_X1, num_nodes)
    x2, w2 = panels(_X2, num_nodes)
    gamma = np.exp(log_gamma(x1[:, None], x2)) * w1[:, None] * w2
    f = (x1[:, None] - 2.0) ** 3 * special.expit(-50.0 * (x2 + 5.0))
    z2 = gamma.sum()
    plus, minus = (float((gamma * np.maximum(sign * f, 0.0)).sum() / z2) for sign in (1, -1))
    return Truth(plus, minus, math.log(z2))


def _banana() -> Problem:
    return problem_of(
        "banana",
        banana,
        (),
        plus=0.0543333487867,
        minus=0.1467114630392,
        value=EXPECTATION,
        log_z2=LOG_Z2,
        how="two-dimensional quadrature, to 1e-12",
        tags="continuous signed gradient",
    )


def problems() -> list[Problem]:
    """The one problem of this module."""
    return [_banana()]


if __name__ == "__main__":
    for count in (20, 40, 60, 80):
        found = truth(count)
        print(f"{count} nodes a panel: E = {found.value:.13f}  log Z2 = {found.log_z2:.13f}")
