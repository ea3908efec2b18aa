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
from scipy.linalg import cho_solve

from estimand.density import Density, PathPoint
from estimand.runtime import compiled_per_model

MAX_STEPS = 40
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

    The steps are NumPy's, so that only the derivatives are compiled, once for all parts.

    Args:
        density: what is climbed.
        start: where.
        target: the power of f, or the place on its ladder, as `PathPoint` has it.
    """
    position, here = start, _curvature_at(density, start, target)
    damping, decrement, num_steps = 0.01, math.inf, 0
    while decrement > TOLERANCE and num_steps < MAX_STEPS:
        num_steps += 1
        direction = _direction(here, damping)
        if direction is None:
            damping, decrement = 10 * damping + 1e-3, math.inf
            continue
        candidate = position + direction
        there = _curvature_at(density, candidate, target)
        reached = math.sqrt(abs(float(direction @ here.gradient)))
        is_better = bool(there.value > here.value)
        # At the top nothing is better any more, by rounding.
        is_flat = bool(np.isfinite(there.value)) and reached <= TOLERANCE and damping < 0.1
        decrement = reached if is_better or is_flat else math.inf
        damping = 0.1 * damping if is_better else 10 * damping + 1e-3
        if is_better:
            position, here = candidate, there
    is_found = decrement <= TOLERANCE and _cholesky(here.precision) is not None
    return Mode(position, here.precision, float(here.value), is_found, num_steps)


def has_curvature(density: Density) -> bool:
    """Whether second derivatives of a density can be had: callbacks have none."""
    dtype = jnp.result_type(float)
    position = jax.ShapeDtypeStruct((density.dimension,), dtype)
    try:
        jax.eval_shape(_second_derivatives, density, position, jax.ShapeDtypeStruct((), dtype))
    except Exception:  # noqa: BLE001 - JAX raises all kinds
        return False
    return True


def _direction(here: _Curvature, damping: float) -> np.ndarray | None:
    """The damped Newton step, if there is one."""
    scale = np.maximum(np.abs(np.diag(here.precision)), 1e-12)
    factor = _cholesky(here.precision + np.diag(damping * scale))
    if factor is None:
        return None
    direction = cho_solve((factor, True), here.gradient, check_finite=False)
    return direction if np.isfinite(direction).all() else None


def _cholesky(matrix: np.ndarray) -> np.ndarray | None:
    """The Cholesky factor; None unless the matrix is finite and positive definite."""
    if not np.isfinite(matrix).all():
        return None
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return None


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
