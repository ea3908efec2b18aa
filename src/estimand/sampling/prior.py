"""Draws from the prior, in pieces of one size that are compiled once."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density, margins
from estimand.runtime import compiled_per_model
from estimand.sampling.chunks import in_chunks, vmapped

# Counter-based like JAX's own generator, and a third of its size when compiled.
LEAN_GENERATOR = "philox2x32"
GENERATOR = "threefry2x32"


def prior_positions(density: Density, seed: tuple[int, ...], count: int) -> np.ndarray:
    """The positions of so many exact draws from the prior."""
    words = np.random.default_rng(seed).integers(2**32, size=(count, 2), dtype=np.uint32)
    plain = dataclasses.replace(density, scales=None, softness=None)
    positions = in_chunks(lambda rows: draw_positions(plain, rows), words)
    return np.asarray(positions, float)


@compiled_per_model(optimisation=0)
def draw_positions(density: Density, words: jax.Array) -> jax.Array:
    """The positions of exact draws from the prior, by random words of a row each."""

    def drawn(generator: str) -> jax.Array:
        size = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=generator))).size

        def one(row: jax.Array) -> jax.Array:
            key = jax.random.wrap_key_data(row, impl=generator)
            return density.model.draw(key, density.arrays)

        return vmapped(one, words[:, :size])

    try:
        return drawn(LEAN_GENERATOR)
    except Exception:  # noqa: BLE001 - JAX before 0.10.2 lacks it, and Poisson draws need the other
        return drawn(GENERATOR)


def comparison_scales(density: Density, seed: tuple[int, ...], count: int) -> np.ndarray:
    """How far the comparisons of a return expression spread in draws from the prior.

    Comparisons are softened relative to this; see `Density.softened`.
    """
    return spread_of_margins(density, prior_positions(density, seed, count))


def spread_of_margins(density: Density, positions: np.ndarray) -> np.ndarray:
    """How far the comparisons of a return expression spread at some positions."""
    return spread_of(np.asarray(margins(density, positions.astype(jnp.result_type(float)))))


def spread_of(columns: np.ndarray) -> np.ndarray:
    """How far every column spreads: the median distance from its median, as if it were normal."""
    return 1.48 * _medians(np.abs(columns - _medians(columns)))


def _medians(columns: np.ndarray) -> np.ndarray:
    """The median of every column, without what is not a number; NaN where nothing is one."""
    counts = np.count_nonzero(~np.isnan(columns), axis=0)
    middle = np.stack([np.maximum(counts - 1, 0) // 2, counts // 2])
    middle = np.minimum(middle, len(columns) - 1)
    return np.take_along_axis(np.sort(columns, axis=0), middle, axis=0).mean(axis=0)
