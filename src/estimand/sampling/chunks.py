"""Work in pieces of one size, which bounds memory and is compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# Rows that a compiled function takes at a time, where nothing else is said.
CHUNK = 4096


def in_chunks(function: Callable[[Any], Any], rows: np.ndarray, size: int = CHUNK) -> Any:
    """Applies a compiled function of some rows to all rows, `size` at a time, as NumPy arrays."""
    count = len(rows)
    padded = np.concatenate([rows, np.repeat(rows[:1], -count % size, axis=0)])
    pieces = [
        jax.tree.map(np.asarray, function(padded[start : start + size]))
        for start in range(0, len(padded), size)
    ]
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *pieces)


def in_batches(
    function: Callable[[jax.Array], tuple[Any, Any]], rng_keys: jax.Array, batch_size: int | None
) -> tuple[Any, Any]:
    """Applies a function of several keys to all keys, `batch_size` of them at a time, under jit.

    The function gives what it knows of each sample and totals over its samples; the former are
    joined and the latter added up.
    """
    count = rng_keys.shape[0]
    if batch_size is None or batch_size >= count:
        return function(rng_keys)
    whole = count - count % batch_size
    grouped = rng_keys[:whole].reshape(-1, batch_size, *rng_keys.shape[1:])
    samples, totals = lax.map(function, grouped)
    samples = jax.tree.map(lambda x: x.reshape(whole, *x.shape[2:]), samples)
    totals = jax.tree.map(lambda x: x.sum(axis=0), totals)
    if whole == count:
        return samples, totals
    last_samples, last_totals = function(rng_keys[whole:])
    return (
        jax.tree.map(lambda a, b: jnp.concatenate([a, b]), samples, last_samples),
        jax.tree.map(jnp.add, totals, last_totals),
    )
