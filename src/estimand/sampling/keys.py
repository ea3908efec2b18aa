"""Random seeds and keys by name, made by NumPy: JAX would compile a program for each operation."""

from __future__ import annotations

import zlib
from typing import Any

import jax
import numpy as np


def entropy_of(rng_key: jax.Array) -> tuple[int, ...]:
    """The words of a key."""
    return tuple(np.asarray(jax.random.key_data(rng_key)).ravel().tolist())


def named_seed(entropy: tuple[int, ...], *name: Any) -> tuple[int, ...]:
    """A seed for NumPy's generators that follows from words and a name."""
    return (*entropy, zlib.crc32(repr(name).encode()))


def named_key(rng_key: jax.Array, *name: Any) -> jax.Array:
    """A key that follows from another one and a name."""
    data = jax.random.key_data(rng_key)
    seed = np.random.SeedSequence(named_seed(entropy_of(rng_key), *name))
    words: Any = seed.generate_state(data.size, np.uint32).reshape(data.shape)
    return jax.random.wrap_key_data(words, impl=jax.random.key_impl(rng_key))
