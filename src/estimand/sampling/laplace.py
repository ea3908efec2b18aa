"""The mode of a density, and the Gaussian with the curvature there.

In many dimensions no cloud of particles says what a covariance is, and the curvature at the mode
often does: exactly so for a Gaussian density.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from estimand.density import Density, PathPoint

MAX_STEPS = 40
# Newton's decrement below which a mode counts as found: a fraction of a standard deviation.
TOLERANCE = 1e-3


class Mode(NamedTuple):
    """A position of highest density, and −1 times the second derivatives of its logarithm."""

    position: jax.Array
    precision: jax.Array
    is_found: jax.Array
    num_steps: jax.Array


class _Search(NamedTuple):
    position: jax.Array
    log_density: jax.Array
    gradient: jax.Array
    precision: jax.Array
    damping: jax.Array
    decrement: jax.Array
    step: jax.Array


@jax.jit
def find_mode(density: Density, start: jax.Array) -> Mode:
    """Damped Newton steps uphill from a position; reverse-mode gradients are needed."""
    one = jnp.ones((), start.dtype)

    def log_density(position: jax.Array) -> jax.Array:
        return PathPoint(one, one).log_density(density.terms(position))

    def curvature(position: jax.Array) -> jax.Array:
        try:
            return -jax.jacfwd(jax.grad(log_density))(position)
        except TypeError:  # a custom reverse rule, as a solver of ODEs has, has no forward mode
            return -jax.jacrev(jax.grad(log_density))(position)

    def is_unfinished(search: _Search) -> jax.Array:
        return (search.decrement > TOLERANCE) & (search.step < MAX_STEPS)

    def newton(search: _Search) -> _Search:
        scale = jnp.maximum(jnp.abs(jnp.diag(search.precision)), 1e-12)
        damped = search.precision + jnp.diag(search.damping * scale)
        factor = jnp.linalg.cholesky(damped)
        direction = jax.scipy.linalg.cho_solve((factor, True), search.gradient)
        candidate = search.position + direction
        value = log_density(candidate)
        is_better = value > search.log_density
        decrement = jnp.sqrt(jnp.abs(direction @ search.gradient))
        position = jnp.where(is_better, candidate, search.position)
        # At the top nothing is better any more, by rounding.
        is_flat = jnp.isfinite(value) & (decrement <= TOLERANCE) & (search.damping < 0.1)
        gradient, precision = lax.cond(
            is_better,
            lambda: (jax.grad(log_density)(candidate), curvature(candidate)),
            lambda: (search.gradient, search.precision),
        )
        damping = jnp.where(is_better, 0.1 * search.damping, 10 * search.damping + 1e-3)
        return _Search(
            position,
            jnp.where(is_better, value, search.log_density),
            gradient,
            precision,
            damping,
            jnp.where(is_better | is_flat, decrement, jnp.inf),
            search.step + 1,
        )

    search = lax.while_loop(
        is_unfinished,
        newton,
        _Search(
            start,
            log_density(start),
            jax.grad(log_density)(start),
            curvature(start),
            jnp.asarray(0.01, start.dtype),
            jnp.asarray(jnp.inf, start.dtype),
            jnp.int32(0),
        ),
    )
    is_positive = jnp.isfinite(jnp.linalg.cholesky(search.precision)).all()
    is_found = (search.decrement <= TOLERANCE) & is_positive
    return Mode(search.position, search.precision, is_found, search.step)
