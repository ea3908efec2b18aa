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

# Effective draws beyond the farthest point that is taken from draws; farther out the tail is
# continued as that of an exponential distribution.
MIN_BEYOND = 25.0
# Effective draws between a threshold and the nearest point that is taken from draws. Not measured.
MIN_LOCAL = 100.0
# Share of the draws' weight that one value has where a distribution has an atom.
ATOM_SHARE = 0.01
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


def _itself(_numbers: Any, value: Any) -> Any:
    return jnp.asarray(value, float)
