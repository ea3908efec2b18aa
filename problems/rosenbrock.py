"""Rosenbrock's valley, a thin curved density on a square."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpyro
import numpyro.distributions as dist
from scipy import special, stats

from problems.problem import Problem, problem_of, quad


def rosenbrock() -> Any:
    """Rosenbrock's valley on a square; two moments and two events."""
    x = numpyro.sample("x", dist.Uniform(-5.0, 5.0))
    y = numpyro.sample("y", dist.Uniform(-5.0, 5.0))
    numpyro.factor("valley", -((1.0 - x) ** 2) - 100.0 * (y - x**2) ** 2)
    return y, x > 2.2, (x - 1.0) ** 3, y < -0.2


def _rosenbrock() -> Problem:
    sd = math.sqrt(0.005)
    scale = 0.01 * sd * math.sqrt(2 * math.pi)
    cuts = (-2.4, -math.sqrt(5), -2.0, -1.0, 0.0, 1.0, 2.0, 2.2, math.sqrt(5), 2.4)

    def over_y(x: float, low: float, high: float, power: int) -> float:
        # Given x, y is N(x^2, sd^2) cut to the square.
        u, v = (low - x**2) / sd, (high - x**2) / sd
        mass = special.ndtr(v) - special.ndtr(u)
        first = x**2 * mass + sd * (stats.norm.pdf(u) - stats.norm.pdf(v))
        return scale * math.exp(-((1 - x) ** 2)) * float(first if power else mass)

    def area(f: Callable[[float], float], low: float = -5.0, high: float = 5.0) -> float:
        return quad(f, low, high, *(c for c in cuts if low < c < high))

    z2 = area(lambda x: over_y(x, -5, 5, 0))
    return problem_of(
        "rosenbrock",
        rosenbrock,
        (),
        plus=(
            area(lambda x: over_y(x, 0, 5, 1)) / z2,
            area(lambda x: over_y(x, -5, 5, 0), low=2.2) / z2,
            area(lambda x: (x - 1) ** 3 * over_y(x, -5, 5, 0), low=1.0) / z2,
            area(lambda x: over_y(x, -5, -0.2, 0), low=-2.0, high=2.0) / z2,
        ),
        minus=(
            -area(lambda x: over_y(x, -5, 0, 1), low=-2.0, high=2.0) / z2,
            0.0,
            -area(lambda x: (x - 1) ** 3 * over_y(x, -5, 5, 0), high=1.0) / z2,
            0.0,
        ),
        log_z2=math.log(z2),
        how="y integrated in closed form, x by adaptive quadrature",
        tags="continuous bounded signed multiple event",
    )


def problems() -> list[Problem]:
    """The one problem of this module."""
    return [_rosenbrock()]
