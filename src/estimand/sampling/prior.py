"""Draws from the prior, in pieces of one size that are compiled once."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density
from estimand.runtime import compiled_per_model
from estimand.sampling.chunks import in_chunks

# Counter-based like JAX's own generator, and a third of its size when compiled.
_LEAN_GENERATOR = "philox2x32"


@functools.cache
def _generator() -> tuple[str, int]:
    """The generator of prior draws, and how many 32-bit words a key of it has."""

    def words(name: str) -> int:
        key = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=name)))
        return int(key.shape[-1])

    try:
        return _LEAN_GENERATOR, words(_LEAN_GENERATOR)
    except ValueError:  # JAX 0.10.0 and 0.10.1 do not have it.
        return "threefry2x32", words("threefry2x32")


def prior_positions(density: Density, seed: tuple[int, ...], count: int) -> np.ndarray:
    """The positions of so many exact draws from the prior."""
    words = np.random.default_rng(seed).integers(
        2**32, size=(count, _generator()[1]), dtype=np.uint32
    )
    plain = density.unsoftened()
    positions = in_chunks(lambda rows: _positions(plain, rows), words)
    return np.asarray(positions, float)


@compiled_per_model(optimisation=0)
def _positions(density: Density, words: jax.Array) -> jax.Array:
    keys = jax.random.wrap_key_data(words, impl=_generator()[0])
    return jax.vmap(lambda key: density.model.draw(key, density.arrays))(keys)


def comparison_scales(density: Density, seed: tuple[int, ...], count: int) -> np.ndarray:
    """How far the comparisons of a return expression spread in draws from the prior.

    Comparisons are softened relative to this; see `Density.softened`.
    """
    positions = prior_positions(density, seed, count).astype(jnp.result_type(float))
    margins = np.asarray(density.margins(positions))
    return 1.48 * _medians(np.abs(margins - _medians(margins)))


def _medians(columns: np.ndarray) -> np.ndarray:
    """The median of every column, without what is not a number; NaN where nothing is one."""
    counts = np.count_nonzero(~np.isnan(columns), axis=0)
    middle = np.stack([np.maximum(counts - 1, 0) // 2, counts // 2])
    middle = np.minimum(middle, len(columns) - 1)
    return np.take_along_axis(np.sort(columns, axis=0), middle, axis=0).mean(axis=0)
