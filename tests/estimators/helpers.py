"""Many runs of an estimator on a problem of the table, and the truth of each part."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import estimand as ep
from estimand.density import Density
from problems import Problem
from tests.stats import assert_unbiased

PARTS = ("gamma1_plus", "gamma1_minus", "gamma2")


def density_of(problem: Problem) -> Density:
    return Density.of(ep.expectation(problem.model, enumerate=False)(*problem.args))


def log_truth(problem: Problem, part: str) -> float:
    truths = {
        "gamma1_plus": problem.log_z1_plus,
        "gamma1_minus": problem.log_z1_minus,
        "gamma2": problem.log_z2,
    }
    assert isinstance(truths[part], float)
    return truths[part]  # type: ignore[return-value]


def many(estimator: Any, density: Density, rng_key: jax.Array, runs: int) -> Any:
    """log Z and its relative variance for many keys and all three parts."""

    @jax.jit
    @jax.vmap
    def run(sign: jax.Array, keys: jax.Array) -> Any:
        part = dataclasses.replace(density, sign=sign)
        evidence = jax.vmap(estimator.estimate, in_axes=(0, None))(keys, part)
        return evidence.log_z, evidence.relative_variance

    return zip(*run(jnp.array([1, -1, 0]), jax.random.split(rng_key, (3, runs))), strict=True)


def assert_all_parts_unbiased(
    estimator: Any, problem: Problem, rng_key: jax.Array, runs: int = 500
) -> None:
    results = many(estimator, density_of(problem), rng_key, runs)
    for part, (log_z, _) in zip(PARTS, results, strict=True):
        assert_unbiased(np.asarray(log_z), log_truth(problem, part))
