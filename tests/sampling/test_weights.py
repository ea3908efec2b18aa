"""Effective sample sizes, and the index of a tail."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from estimand.sampling.weights import (
    effective_sample_size,
    log_mean,
    pareto_k,
    relative_weights,
)


def test_effective_sample_size() -> None:
    assert effective_sample_size(np.log([1.0, 1.0, 1.0, 0.0 + 1e-300])) == pytest.approx(3.0)
    assert effective_sample_size(np.log([1.0, 2.0, 3.0]) - 5000) == pytest.approx(36 / 14)
    assert effective_sample_size(np.full(3, -np.inf)) == 0.0


def test_relative_weights() -> None:
    log_weights = np.log([1.0, 2.0, 6.0]) - 5000
    for found in (
        relative_weights(log_weights),
        relative_weights(log_weights, log_mean(log_weights)),
    ):
        np.testing.assert_allclose(found, [1 / 3, 2 / 3, 2.0])
    assert not relative_weights(np.full(3, -np.inf)).any()


@pytest.mark.parametrize("k", [0.1, 0.5, 0.9])
def test_pareto_k_finds_the_tail_index(k: float, seed: int) -> None:
    weights = scipy.stats.genpareto(k).rvs(200_000, random_state=seed)
    assert abs(pareto_k(np.log(weights)) - k) < 0.12


def test_pareto_k_of_light_weights(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert pareto_k(np.log(rng.uniform(0.5, 1.0, 5000))) < 0.1
    assert pareto_k(np.zeros(1000)) == -np.inf
    assert math.isnan(pareto_k(np.zeros(10)))
