"""Weighted draws of a number beyond a threshold, and where its distribution goes on from there."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density
from estimand.estimate import Estimate
from estimand.model import Derived, Expectation
from estimand.runtime import compiled_per_model, in_precision
from estimand.sampling import in_chunks, vmapped
from estimand.trust import OutputEstimate

# Effective draws beyond the farthest point that is taken from draws; farther out the tail is
# continued as that of an exponential distribution.
MIN_BEYOND = 25.0
# Effective draws between a threshold and the nearest point that is taken from draws. Not measured.
MIN_LOCAL = 100.0
# Share of the draws' weight that one value has where a distribution has an atom.
ATOM_SHARE = 0.01
# Where one of so many equally probable parts of an interval has more than this share of its width,
# there is hardly any mass in it. Not measured.
GAP_PARTS, GAP_SHARE = 10, 0.5
_CHUNK = 1000


class Beyond(NamedTuple):
    """Draws of a number given that it is above a threshold, in rising order, with their weights.

    The threshold is −∞ for draws of the whole distribution. `size` is the effective number of
    draws; values that are equal are one here.
    """

    threshold: float
    values: np.ndarray
    weights: np.ndarray
    size: float

    @classmethod
    def of(cls, threshold: float, values: np.ndarray, weights: np.ndarray) -> Beyond:
        """In rising order; equal values are one, with their weights together."""
        is_there = (values > threshold) & (weights > 0) & np.isfinite(values)
        own = weights[is_there] / max(weights[is_there].sum(), 1e-300)
        distinct, places = np.unique(values[is_there], return_inverse=True)
        summed = np.bincount(places, weights=own, minlength=distinct.size)
        size = float(1 / (own**2).sum()) if own.size else 0.0
        return cls(threshold, distinct, summed, size)

    @property
    def above(self) -> np.ndarray:
        """For every value the probability of exceeding it."""
        return np.maximum(self.weights[::-1].cumsum()[::-1] - self.weights, 0.0)

    @property
    def nearest(self) -> float:
        """The depth from which on the draws tell where it is."""
        return -math.log1p(-min(MIN_LOCAL / max(self.size, 1.0), 0.5))

    @property
    def farthest(self) -> float:
        """The depth up to which they do."""
        return math.log(max(self.size / MIN_BEYOND, 1.0))

    def reach(self, depth: float) -> float:
        """Where the probability of exceeding it has fallen by a factor e^depth.

        A negative depth is before the threshold: the quantiles there go on as beyond it.
        """
        if math.isfinite(self.threshold) and depth < self.nearest:
            step = self._interpolated(self.nearest) - self.threshold
            return self.threshold + step * depth / self.nearest
        if depth <= self.farthest:
            return self._interpolated(depth)
        place = self.place(self.farthest)
        return float(self.values[place]) + (depth - self.farthest) * self.scale(place)

    def log_error(self, depth: float) -> float:
        """Standard error of the logarithm of how much the probability has fallen there."""
        if depth < self.nearest:
            return abs(depth) * math.sqrt(math.expm1(self.nearest) / self.size) / self.nearest
        return math.sqrt(math.expm1(depth) / self.size)

    def place(self, depth: float) -> int:
        """Of the smallest value that is exceeded with at most this probability."""
        is_deep = self.above <= math.exp(-depth) * (1 + 1e-12)
        return int(np.argmax(is_deep))

    def _interpolated(self, depth: float) -> float:
        """Between the values, as if the weight of each lay evenly up to it."""
        share = 1 - math.exp(-depth)
        start = self.threshold if math.isfinite(self.threshold) else self.values[0]
        points = np.concatenate([[start], self.values])
        return float(np.interp(share, np.concatenate([[0.0], self.weights.cumsum()]), points))

    def scale(self, place: int = 0) -> float:
        """How far values lie beyond the one at a place, or beyond the threshold.

        By the median, as if the tail were exponential: a few that are far out say nothing of it.
        """
        is_first = place == 0 and math.isfinite(self.threshold)
        start = self.threshold if is_first else float(self.values[place])
        shares = self.weights[place:].cumsum()
        middle = int(np.searchsorted(shares, shares[-1] / 2))
        return (float(self.values[place + middle]) - start) / math.log(2)

    @property
    def is_atom(self) -> np.ndarray:
        """Of which values there are so many draws that the distribution must have an atom there."""
        return self.weights > max(ATOM_SHARE, 3 / max(self.size, 1.0))


class Curve(NamedTuple):
    """How the probability of exceeding a number falls on both sides of a threshold.

    `depths` are its logarithms, negated, relative to the threshold: negative before it, where other
    draws tell, of which `size_before` are beyond the threshold. Where there is hardly any mass,
    two depths that are close together have values that are far apart.
    """

    depths: np.ndarray
    values: np.ndarray
    beyond: Beyond
    size_before: float = 0.0

    @classmethod
    def of(cls, beyond: Beyond, before: Beyond | None = None) -> Curve:
        """From draws beyond a threshold, and others from before it on, if there are any."""
        depths, values = _steps(beyond, beyond.above, 0.0, beyond.threshold)
        size = 0.0
        if before is not None:
            is_before = before.values <= beyond.threshold
            share = float(before.weights[~is_before].sum())
            if share > 0 and is_before.any():
                start = -math.log(before.weights.sum() / share)
                own, theirs = _steps(before, before.above / share, start, before.threshold)
                is_before = (own < 0) & (theirs < beyond.threshold)
                depths = np.concatenate([own[is_before], depths])
                values = np.concatenate([theirs[is_before], values])
                size = share * before.size
        return cls(depths, values, beyond, size)

    def covers(self, depth: float) -> bool:
        """Whether draws tell where it is, however far beyond the threshold."""
        return bool(self.depths.size) and depth >= self.depths[0]

    def reach(self, depth: float) -> float:
        """Where the probability of exceeding it has fallen by a factor e^depth."""
        if not self.covers(depth):
            return min(self.beyond.reach(depth), *self.values[:1])
        if depth > self.beyond.farthest or depth > self.depths[-1]:
            return max(self.beyond.reach(depth), float(np.interp(0.0, self.depths, self.values)))
        return float(np.interp(depth, self.depths, self.values))

    def log_error(self, depth: float) -> float:
        """Standard error of the logarithm of how much the probability has fallen there."""
        size = self.beyond.size if depth >= 0 or not self.size_before else self.size_before
        return math.sqrt(math.expm1(abs(depth)) / max(size, 1.0))

    def gap(self, low: float, high: float) -> Gap | None:
        """What has hardly any mass, if it is most of what lies between two depths."""
        points = np.linspace(low, high, GAP_PARTS + 1)
        ends = np.asarray([self.reach(float(point)) for point in points])
        widths = np.diff(ends)
        place = int(np.argmax(widths))
        if not widths[place] > GAP_SHARE * (ends[-1] - ends[0]):
            return None
        first = max(int(np.searchsorted(self.depths, points[place], "right")) - 1, 0)
        last = int(np.searchsorted(self.depths, points[place + 1], "left")) + 1
        inside = self.values[first:last]
        if inside.size < 2:
            return Gap(float(points[place]), float(ends[place]), float(ends[place + 1]))
        widest = int(np.argmax(np.diff(inside)))
        depth = float(self.depths[first + widest])
        return Gap(depth, float(inside[widest]), float(inside[widest + 1]))


class Gap(NamedTuple):
    """Two numbers with hardly any mass between them, and how far the probability has fallen."""

    depth: float
    low: float
    high: float


def _steps(
    sample: Beyond, shares: np.ndarray, start: float, threshold: float
) -> tuple[np.ndarray, np.ndarray]:
    """Depths and values in rising order, as if the weight of each value lay evenly up to it.

    That of an atom lies at the value itself.
    """
    is_there = shares > 0
    depths, values = -np.log(shares[is_there]), sample.values[is_there]
    first = threshold if math.isfinite(threshold) else (values[0] if values.size else math.nan)
    before = np.concatenate([[start], depths])[: depths.size]
    is_atom = sample.is_atom[is_there]
    order = np.concatenate([np.arange(depths.size) + 1.0, np.arange(depths.size)[is_atom] + 0.5])
    places = np.concatenate([[0.0], order]).argsort(kind="stable")
    depths = np.concatenate([[start], depths, before[is_atom]])[places]
    return depths, np.concatenate([[first], values, values[is_atom]])[places]


class ValuesOf:
    """The return value of a program at the draws of an estimate that another question made."""

    def __init__(self, base: Expectation):
        # All discrete sites as they are: the draws have a value of each.
        plain = Derived(base, base.name, _itself)
        plain.program.enumerate = False
        self._bound = plain()

    def at(self, estimate: Estimate, part: str, output: int) -> tuple[np.ndarray, np.ndarray]:
        """Values and weights of the draws of one density; none if it has no draws."""
        draws = estimate.draws_of(part, output)
        if draws is None or not len(draws.log_weights):
            return np.zeros(0), np.zeros(0)
        with in_precision(estimate.precision):
            density = Density.of(self._bound)
            known = {site.name for site in density.model.sites}
            sites = {name: array for name, array in draws.sites.items() if name in known}

            def outputs(rows: np.ndarray) -> jax.Array:
                some = {name: jnp.asarray(array[rows]) for name, array in sites.items()}
                return _outputs_at(density, some)

            values = in_chunks(outputs, np.arange(len(draws.log_weights)), _CHUNK)
        return np.asarray(values, float)[:, 0], draws.weights


@compiled_per_model
def _outputs_at(density: Density, sites: dict[str, jax.Array]) -> jax.Array:
    return vmapped(lambda values: density.model.assess(values, density.arrays).outputs, sites)


def known_by_reading(estimate: Estimate) -> tuple[OutputEstimate, ...]:
    """The outputs; those that are constants by the bounds of their expressions are exact.

    For a posterior that has mass.
    """
    if estimate.density is None:
        return tuple(estimate.outputs)
    low, high = estimate.density.bounds.low, estimate.density.bounds.high
    return tuple(
        output
        if low[k] != high[k]
        else output._replace(
            value=float(low[k]), standard_error=0.0, upper_bound=float(low[k]), findings=()
        )
        for k, output in enumerate(estimate.outputs)
    )


def _itself(_numbers: Any, value: Any) -> Any:
    return jnp.asarray(value, float)
