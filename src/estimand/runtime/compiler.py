"""Whether XLA compiles what it is given: one version is known not to."""

from __future__ import annotations

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np

# From this version of JAX on the check is made. With 0.10 nothing wrong is known.
FIRST_CHECKED = (0, 11)
_NUM_POINTS = 4096


def warn_of_wrong_code() -> None:
    """Warns, once, if batches of log(c·exp(x)) are compiled wrongly, as by jaxlib 0.11.2.

    The normal density with a positive site as its scale contains this expression.
    """
    if jax.__version_info__ >= FIRST_CHECKED and not is_right():
        warnings.warn(
            f"JAX {jax.__version__} compiles batches of log(c * exp(x)) wrongly on this machine, "
            "and results can be wrong whatever their status says: install jax 0.10.",
            RuntimeWarning,
            stacklevel=3,
        )


@functools.cache
def is_right() -> bool:
    """Whether a normal density with an exponential as its scale has the right values."""
    x = np.arange(11.0)

    def log_density(position: jax.Array) -> jax.Array:
        scale = jnp.exp(position[2]).reshape(1)
        residuals = (x - position[0] - position[1] * x) / scale
        terms = jax.lax.sub(-0.5 * residuals**2, jnp.broadcast_to(jnp.log(2.5 * scale), x.shape))
        return jnp.sum(terms) - jnp.log(scale[0])

    positions = np.random.default_rng(0).normal(size=(_NUM_POINTS, 3))
    with jax.enable_x64(True):
        found = np.asarray(jax.jit(jax.vmap(log_density))(positions))
    scales = np.exp(positions[:, 2:])
    residuals = (x - positions[:, :1] - positions[:, 1:2] * x) / scales
    expected = (-0.5 * residuals**2 - np.log(2.5 * scales)).sum(axis=1) - positions[:, 2]
    return bool(np.allclose(found, expected, rtol=1e-9, atol=1e-9))
