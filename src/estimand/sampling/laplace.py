"""The mode of a density, and the Gaussian with the curvature there.

In many dimensions no cloud of particles says what a covariance is, and the curvature at the mode
often does: exactly so for a Gaussian density.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density, PathPoint
from estimand.runtime import compiled_per_model

MAX_STEPS = 40
MIN_DAMPING = 1e-4
# Newton's decrement below which a mode counts as found: a fraction of a standard deviation.
TOLERANCE = 1e-3


class Mode(NamedTuple):
    """A position of highest density, and −1 times the second derivatives of its logarithm."""

    position: np.ndarray
    precision: np.ndarray
    log_density: float
    is_found: bool
    num_steps: int

    @property
    def num_gradients(self) -> int:
        """What it cost: at every step a gradient for each column of the second derivatives."""
        return (self.num_steps + 1) * (1 + 2 * self.position.size)


class _Curvature(NamedTuple):
    """The log density at a position, and its first and second derivatives; `precision` is −1 times
    the second ones."""

    value: np.ndarray
    gradient: np.ndarray
    precision: np.ndarray


def find_mode(density: Density, start: np.ndarray, target: float = 1.0) -> Mode:
    """Damped Newton steps uphill from a position; second derivatives are needed.

    Directions in which the density is convex are climbed as if it were concave there, so that
    saddles and flat places are left (Dauphin and others 2014). The steps are NumPy's, so that only
    the derivatives are compiled, once for all parts.

    Args:
        density: what is climbed.
        start: where.
        target: the power of f, or the place on its ladder, as `PathPoint` has it.
    """
    position, here = start, _curvature_at(density, start, target)
    axes = _Axes.of(here)
    damping, decrement, num_steps = MIN_DAMPING, math.inf, 0
    while decrement > TOLERANCE and num_steps < MAX_STEPS and math.isfinite(here.value):
        num_steps += 1
        direction = axes.direction(here.gradient, damping)
        candidate = position + direction
        there = _curvature_at(density, candidate, target)
        rise = float(direction @ here.gradient)
        gain = float(there.value - here.value)
        # At the top nothing is better any more, by rounding.
        is_flat = math.isfinite(gain) and math.sqrt(abs(rise)) <= TOLERANCE
        if axes.is_concave and damping < 0.1 and (gain > 0 or is_flat):
            decrement = math.sqrt(abs(rise))
        if gain > 0:
            damping = max(0.1 * damping, MIN_DAMPING) if gain > 0.25 * rise else damping
            position, here, axes = candidate, there, _Axes.of(there)
        else:
            damping = max(10 * damping, 0.01)
    is_found = decrement <= TOLERANCE and axes.is_concave
    return Mode(position, here.precision, float(here.value), is_found, num_steps)


class _Axes(NamedTuple):
    """The principal axes of a curvature, in coordinates scaled by its diagonal."""

    scales: np.ndarray
    values: np.ndarray
    vectors: np.ndarray
    is_concave: bool

    @classmethod
    def of(cls, here: _Curvature) -> _Axes:
        """Second derivatives that are not numbers, as far out some may be, count as 1 and 0."""
        is_known = np.isfinite(here.precision)
        precision = np.where(is_known, here.precision, np.eye(len(is_known)))
        scales = 1 / np.sqrt(np.maximum(np.abs(np.diag(precision)), 1e-12))
        values, vectors = np.linalg.eigh(precision * scales[:, None] * scales)
        return cls(scales, values, vectors, bool(is_known.all() and values[0] > 1e-12 * values[-1]))

    def direction(self, gradient: np.ndarray, damping: float) -> np.ndarray:
        """The damped Newton step."""
        climbed = self.vectors.T @ (self.scales * gradient)
        return self.scales * (self.vectors @ (climbed / (np.abs(self.values) + damping)))


def has_curvature(density: Density) -> bool:
    """Whether second derivatives of a density can be had: callbacks have none."""
    dtype = jnp.result_type(float)
    position = jax.ShapeDtypeStruct((density.dimension,), dtype)
    try:
        jax.eval_shape(_second_derivatives, density, position, jax.ShapeDtypeStruct((), dtype))
    except Exception:  # noqa: BLE001 - JAX raises all kinds
        return False
    return True


def _curvature_at(density: Density, position: np.ndarray, target: float) -> _Curvature:
    dtype = jnp.result_type(float)
    found = _curvature(density, np.asarray(position, dtype), np.asarray(target, dtype))
    return _Curvature(*(np.asarray(x, float) for x in found))


@compiled_per_model(optimisation=0)
def _curvature(density: Density, position: jax.Array, target: jax.Array) -> tuple:
    return _second_derivatives(density, position, target)


def _second_derivatives(density: Density, position: jax.Array, target: jax.Array) -> tuple:
    point = PathPoint(jnp.ones((), position.dtype), target)

    def slope(position: jax.Array) -> tuple:
        _, value, gradient = density.value_and_gradient(position, point)
        return gradient, (value, gradient)

    try:
        second, (value, gradient) = jax.jacfwd(slope, has_aux=True)(position)
    except TypeError:  # a custom reverse rule, as a solver of ODEs has, has no forward mode
        second, (value, gradient) = jax.jacrev(slope, has_aux=True)(position)
    return value, gradient, -second
