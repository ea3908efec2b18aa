"""Limit states as functions of NumPy: failure is g < 0, and its probability is known.

RP numbers are those of TNO's Black-box Reliability Challenge as kept in `openturns/otbenchmark`.
Several of the references published there are off in the third digit: the probabilities here are by
quadrature. The others have closed forms, or are by a grid or ten million plain draws, as is said
where they stand. Only NumPy is imported, so that other libraries can run them in an environment of
their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
EULER = 0.5772156649015329


class Marginal(NamedTuple):
    """An independent input: its family, and mean and standard deviation, or ends if uniform."""

    family: str
    first: float
    second: float

    @property
    def parameters(self) -> tuple[float, float]:
        """Of the family itself: location and scale, those of the logarithm, or both ends."""
        if self.family == "lognormal":
            variance = math.log1p((self.second / self.first) ** 2)
            return math.log(self.first) - variance / 2, math.sqrt(variance)
        if self.family == "gumbel":
            scale = self.second * math.sqrt(6) / math.pi
            return self.first - EULER * scale, scale
        return self.first, self.second


class LimitState(NamedTuple):
    """A limit state of points of shape (n, d), and the probability that it is negative."""

    marginals: tuple[Marginal, ...]
    margin: Callable[[Array], Array]
    probability: float

    @property
    def dimension(self) -> int:
        return len(self.marginals)

    def simulate(self, points: dict[str, Array]) -> Array:
        """The margin of points by the names of their sites."""
        columns = [points[f"x{k}"] for k in range(self.dimension)]
        return self.margin(np.stack(columns, axis=1))

    def program(self, **settings: Any) -> Any:
        """The failure as a program of estimand."""
        import estimand as ep

        prior = {f"x{k}": _distribution(item) for k, item in enumerate(self.marginals)}
        return ep.from_simulator(self.simulate, prior=prior, f=_is_negative, **settings)


def _is_negative(_sites: dict[str, Any], margin: Any) -> Any:
    return margin < 0


def _distribution(marginal: Marginal) -> Any:
    import numpyro.distributions as dist

    families = {
        "normal": dist.Normal,
        "lognormal": dist.LogNormal,
        "gumbel": dist.Gumbel,
        "uniform": dist.Uniform,
    }
    if marginal.family == "exponential":
        return dist.Exponential(1.0 / marginal.first)
    return families[marginal.family](*marginal.parameters)


def normal(mean: float = 0.0, sd: float = 1.0, count: int = 1) -> tuple[Marginal, ...]:
    return (Marginal("normal", mean, sd),) * count


def lognormal(mean: float, sd: float, count: int = 1) -> tuple[Marginal, ...]:
    return (Marginal("lognormal", mean, sd),) * count


def four_branch(x: Array) -> Array:
    total, difference = (x[:, 0] + x[:, 1]) / math.sqrt(2), x[:, 0] - x[:, 1]
    bowl, edge = 3 + 0.1 * difference**2, 7 / math.sqrt(2)
    return np.min([bowl - total, bowl + total, difference + edge, edge - difference], axis=0)


def rp14(x: Array) -> Array:
    bending = np.sqrt(x[:, 2] ** 2 * x[:, 3] ** 2 / 16 + x[:, 4] ** 2)
    return x[:, 0] - 32 / (math.pi * x[:, 1] ** 3) * bending


def rp57(x: Array) -> Array:
    curved = np.maximum(-(x[:, 0] ** 2) + x[:, 1] ** 3 + 3, 2 - x[:, 0] - 8 * x[:, 1])
    return np.minimum(curved, (x[:, 0] + 3) ** 2 + (x[:, 1] + 3) ** 2 - 4)


def rp60(x: Array) -> Array:
    load = x[:, 4]
    second = np.maximum(x[:, 3] - load, np.minimum(x[:, 1], x[:, 2]) - load)
    lowest = np.min(x[:, 1:4], axis=1)
    return np.minimum(x[:, 0] - load, np.maximum(lowest - load / 2, second))


def rp77(x: Array) -> Array:
    return np.where(x[:, 2] <= 5, x[:, 0] - x[:, 1] - x[:, 2], x[:, 2] - x[:, 1])


def several(x: Array) -> Array:
    """Four planes at nearly the same distance."""
    return np.min([4 - x[:, 0], 4.3 + x[:, 0], 4.2 - x[:, 1], 4.1 + x[:, 2]], axis=0)


def wiggle(x: Array) -> Array:
    return 3 - x[:, 0] + 0.5 * np.sin(6 * x[:, 1])


def rastrigin(x: Array) -> Array:
    """Failure in many islands."""
    return 10 - np.sum(x**2 - 5 * np.cos(2 * math.pi * x), axis=1)


def oscillator(x: Array) -> Array:
    """A nonlinear oscillator under a pulse: masses, stiffnesses, yield, force and duration."""
    mass, first, second, limit, force, duration = x.T
    squared = (first + second) / mass
    swing = np.sin(np.sqrt(squared) * duration / 2)
    return 3 * limit - np.abs(2 * force / (mass * squared) * swing)


def roof(x: Array) -> Array:
    """The deflection of a roof truss of steel and concrete."""
    load, length, steel, concrete, steel_modulus, concrete_modulus = x.T
    compliance = 3.81 / (concrete * concrete_modulus) + 1.13 / (steel * steel_modulus)
    return 0.03 - load * length**2 / 2 * compliance


def ishigami(x: Array) -> Array:
    first = np.sin(x[:, 0])
    return 10.5 - first - 7 * np.sin(x[:, 1]) ** 2 - 0.1 * x[:, 2] ** 4 * first


def well(x: Array) -> Array:
    """A plane, and a narrow well that no slope leads to and that has a third of the failures."""
    depth = np.exp(-((x[:, 0] + 3) ** 2 + (x[:, 1] + 3) ** 2) / 0.5)
    return 4 - x[:, 0] - 10 * depth


# The seven that the method is compared on.
COMPARED = {
    "four_branch": LimitState(normal(count=2), four_branch, 2.22279507e-3),
    "rp22": LimitState(
        normal(count=2),
        lambda x: 2.5 - x.sum(axis=1) / math.sqrt(2) + 0.1 * (x[:, 0] - x[:, 1]) ** 2,
        4.20730551e-3,
    ),
    "rp25": LimitState(
        normal(count=2),
        lambda x: np.maximum(x[:, 0] ** 2 - 8 * x[:, 1] + 16, -16 * x[:, 0] + x[:, 1] + 32),
        4.14856629e-5,
    ),
    "rp31": LimitState(normal(count=2), lambda x: 2 - x[:, 1] + 256 * x[:, 0] ** 4, 3.22668121e-3),
    "rp53": LimitState(
        (*normal(1.5), *normal(2.5)),
        lambda x: np.sin(2.5 * x[:, 0]) + 2 - (x[:, 0] ** 2 + 4) * (x[:, 1] - 1) / 20,
        3.13204857e-2,
    ),
    "rp75": LimitState(normal(count=2), lambda x: 3 - x[:, 0] * x[:, 1], 9.81929872e-3),
    "rp89": LimitState(
        normal(count=2),
        lambda x: np.minimum(8 - x[:, 0] ** 2 - x[:, 1], 6 - x[:, 0] / 5 - x[:, 1]),
        5.47128052e-3,
    ),
}

# Others of the same set.
HELD_OUT = {
    "rp8": LimitState(
        lognormal(120, 12, 4) + lognormal(50, 10) + lognormal(40, 8),
        lambda x: x @ np.array([1.0, 2.0, 2.0, 1.0, -5.0, -5.0]),
        7.898e-4,
    ),
    "rp14": LimitState(
        (
            Marginal("uniform", 70, 80),
            *normal(39, 0.1),
            Marginal("gumbel", 1500, 350),
            *normal(400, 0.1),
            *normal(250_000, 35_000),
        ),
        rp14,
        7.72853e-4,
    ),
    "rp24": LimitState(
        normal(10, 3, 2),
        lambda x: 2.5 - 0.2357 * (x[:, 0] - x[:, 1]) + 0.00463 * (x.sum(axis=1) - 20) ** 4,
        2.859946e-3,
    ),
    "rp28": LimitState(
        (*normal(78064, 11710), *normal(0.0104, 0.00156)),
        lambda x: x[:, 0] * x[:, 1] - 146.14,
        1.4532947e-7,
    ),
    "rp33": LimitState(
        normal(count=3),
        lambda x: np.minimum(3 * math.sqrt(3) - x.sum(axis=1), 3 - x[:, 2]),
        2.57559779e-3,
    ),
    "rp54": LimitState(
        (Marginal("exponential", 1, 1),) * 20, lambda x: x.sum(axis=1) - 8.951, 9.90603073e-4
    ),
    "rp57": LimitState(normal(count=2), rp57, 2.823751e-2),
    "rp60": LimitState(
        lognormal(2200, 220)
        + lognormal(2100, 210)
        + lognormal(2300, 230)
        + lognormal(2000, 200)
        + lognormal(1200, 480),
        rp60,
        4.483970e-2,
    ),
    "rp77": LimitState((*normal(10, 0.5), *normal(), *normal(4)), rp77, 2.69084395e-7),
    "paraboloid_5": LimitState(
        normal(count=5), lambda x: 3.5 - x[:, 0] + (x[:, 1:] ** 2).sum(axis=1), 2.810171e-6
    ),
}

# Hard for a surrogate: closed forms of normal and χ² tails; `wiggle` by quadrature over x1.
HOSTILE = {
    "flat": LimitState(
        normal(count=2), lambda x: 1 / (1 + np.exp(10 * (x[:, 0] - 3.5))) - 0.5, 2.32629079e-4
    ),
    "plateau": LimitState(
        normal(count=2), lambda x: np.where(x[:, 0] < 3, 1.0, 4 - x[:, 0]), 3.16712418e-5
    ),
    "jump": LimitState(
        normal(count=2), lambda x: np.where(x.sum(axis=1) > 4.5, -1.0, 1.0), 7.31358293e-4
    ),
    "noise": LimitState(
        normal(count=2), lambda x: 3.5 - x[:, 0] + 1e-6 * np.sin(1e6 * x[:, 1]), 2.32629079e-4
    ),
    "far": LimitState(normal(count=5), lambda x: 5.2 - x.sum(axis=1) / math.sqrt(5), 9.96442632e-8),
    "several": LimitState(normal(count=4), several, 7.42127602e-5),
    "ball": LimitState(normal(count=10), lambda x: 45 - (x**2).sum(axis=1), 2.17472726e-6),
    "wiggle": LimitState(normal(count=2), wiggle, 2.25926818e-3),
    "well": LimitState(normal(count=2), well, 4.8838e-5),
}

# Run for the first time when the method was finished. The first two by a grid of 17,001 × 17,001
# points, the others by ten million plain draws, whose relative errors are 0.2 %, 0.3 % and 0.2 %.
FRESH = {
    "rastrigin": LimitState(normal(count=2), rastrigin, 7.29794e-2),
    "cubic": LimitState(
        (*normal(10, 5), *normal(9.9, 5)),
        lambda x: x[:, 0] ** 3 + x[:, 1] ** 3 - 18,
        5.70875e-3,
    ),
    "oscillator": LimitState(
        (
            *normal(1, 0.05),
            *normal(1, 0.1),
            *normal(0.1, 0.01),
            *normal(0.5, 0.05),
            *normal(1, 0.2),
            *normal(1, 0.2),
        ),
        oscillator,
        0.028573,
    ),
    "roof": LimitState(
        (
            *normal(20_000, 1400),
            *normal(12, 0.12),
            *normal(9.82e-4, 5.982e-5),
            *normal(0.04, 0.0048),
            *normal(1e11, 6e9),
            *normal(2e10, 1.2e9),
        ),
        roof,
        9.5374e-3,
    ),
    "ishigami": LimitState((Marginal("uniform", -math.pi, math.pi),) * 3, ishigami, 3.1156e-2),
}

LIMIT_STATES = COMPARED | HELD_OUT | FRESH | HOSTILE
