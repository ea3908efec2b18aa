"""Resampling schemes: unbiased, and those of low variance keep whole counts."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimand.sampling import resampling
from tests.stats import assert_mean

SCHEMES = (
    resampling.multinomial,
    resampling.stratified,
    resampling.systematic,
    resampling.residual,
)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_resampling_is_unbiased(scheme: Callable, rng_key: jax.Array) -> None:
    """Expected counts are the weights; a particle of weight 0 never survives."""
    log_weights = jnp.log(jnp.array([0.0, 0.5, 0.1, 0.0, 1.3, 0.02, 0.0]))
    keys = jax.random.split(rng_key, 4000)
    chosen = np.asarray(jax.vmap(lambda key: scheme(key, log_weights, 13))(keys))
    counts = np.stack([(chosen == i).sum(axis=1) for i in range(7)], axis=1)
    assert (counts[:, [0, 3, 6]] == 0).all()
    expected = 13 * np.exp(np.asarray(log_weights)) / np.exp(np.asarray(log_weights)).sum()
    assert_mean(counts[:, [1, 2, 4, 5]], expected[[1, 2, 4, 5]])


@pytest.mark.parametrize("scheme", SCHEMES[1:])
def test_low_variance_schemes_keep_whole_counts(scheme: Callable, rng_key: jax.Array) -> None:
    log_weights = jnp.log(jnp.array([3.0, 1.0, 2.0, 2.0]))
    for key in jax.random.split(rng_key, 20):
        chosen = np.asarray(scheme(key, log_weights, 8))
        np.testing.assert_array_equal(np.bincount(chosen, minlength=4), [3, 1, 2, 2])
