"""Adaptive temperatures."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimand.density import PathPoint, Terms
from estimand.sampling.tempering import next_temperature


def test_next_temperature_meets_the_conditional_ess() -> None:
    log_ratio = jnp.asarray(np.random.default_rng(0).normal(size=1000) * 30)

    def share(step: float, values: jax.Array) -> float:
        weights = np.exp(step * np.asarray(values) - np.max(step * np.asarray(values)))
        return weights.sum() ** 2 / (weights**2).sum() / values.size

    def after(beta: float, values: jax.Array) -> float:
        zeros = jnp.zeros(values.size)
        terms = Terms(zeros, zeros, values)
        return float(next_temperature(lambda b: PathPoint(b, b), jnp.asarray(beta), terms, 0.5))

    beta = after(0.1, log_ratio)
    assert share(beta - 0.1, log_ratio) == pytest.approx(0.5, abs=1e-3)
    assert after(0.9, log_ratio * 1e-3) == 1.0
    dead = jnp.concatenate([log_ratio, jnp.full(500, -jnp.inf)])
    assert after(0.1, dead) == pytest.approx(beta)
