"""Resampling: which particles live on, given their log weights.

Each scheme is a function ``(rng_key, log_weights, num_draws) -> indices`` whose expected count of
index i is num_draws times its normalised weight.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def _normalised(log_weights: jax.Array) -> jax.Array:
    return jax.nn.softmax(log_weights)


def _invert(weights: jax.Array, uniforms: jax.Array) -> jax.Array:
    """Indices at increasing uniforms of the cumulative weights; never one of weight 0."""
    cumulative = jnp.cumsum(weights)
    indices = jnp.searchsorted(cumulative / cumulative[-1], uniforms, side="right")
    last = weights.size - 1 - jnp.argmax(weights[::-1] > 0)
    return jnp.minimum(indices, last)


def multinomial(rng_key: jax.Array, log_weights: jax.Array, num_draws: int) -> jax.Array:
    """Independent draws."""
    uniforms = jax.random.uniform(rng_key, (num_draws,), log_weights.dtype)
    return _invert(_normalised(log_weights), jnp.sort(uniforms))


def stratified(rng_key: jax.Array, log_weights: jax.Array, num_draws: int) -> jax.Array:
    """One draw from each of num_draws equal slices of the cumulative weight."""
    uniforms = jax.random.uniform(rng_key, (num_draws,), log_weights.dtype)
    return _invert(_normalised(log_weights), (jnp.arange(num_draws) + uniforms) / num_draws)


def systematic(rng_key: jax.Array, log_weights: jax.Array, num_draws: int) -> jax.Array:
    """Stratified with one uniform for all slices: the least variance in practice."""
    uniform = jax.random.uniform(rng_key, (), log_weights.dtype)
    return _invert(_normalised(log_weights), (jnp.arange(num_draws) + uniform) / num_draws)


def residual(rng_key: jax.Array, log_weights: jax.Array, num_draws: int) -> jax.Array:
    """The whole part of every expected count for certain, the rest by independent draws."""
    expected = num_draws * _normalised(log_weights)
    whole = jnp.floor(expected)
    position = jnp.arange(num_draws)
    certain = _count_to_index(whole, position)
    num_certain = whole.sum().astype(int)
    rest = jnp.log(expected - whole)
    uncertain = multinomial(rng_key, jnp.where(jnp.isfinite(rest), rest, -jnp.inf), num_draws)
    shuffled = jax.random.permutation(jax.random.fold_in(rng_key, 1), uncertain)
    return jnp.where(position < num_certain, certain, shuffled)


def _count_to_index(counts: jax.Array, position: jax.Array) -> jax.Array:
    index = jnp.searchsorted(jnp.cumsum(counts), position.astype(counts.dtype), side="right")
    return jnp.minimum(index, counts.size - 1)
