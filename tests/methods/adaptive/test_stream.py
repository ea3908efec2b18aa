"""Streamed draws: the same sums as of draws that are kept, and errors that hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.methods.adaptive import draws as draws_module
from estimand.methods.adaptive.draws import Draws, Means
from estimand.methods.adaptive.explore import explore
from estimand.methods.adaptive.fit import fit
from estimand.methods.adaptive.integrate import integrate
from estimand.methods.adaptive.method import parts_of
from estimand.methods.adaptive.plan import Plan, State, evaluate_all
from estimand.methods.adaptive.refine import refine
from estimand.methods.adaptive.stream import _Tasks, summed
from estimand.runtime import LocalRuntime
from estimand.sampling import uniforms_of
from problems import PROBLEMS
from tests.methods.adaptive.test_adaptive import bound
from tests.stats import assert_coverage, assert_mean

FEW = 2**21


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws are streamed from the second round on."""
    monkeypatch.setattr(draws_module, "MAX_BYTES", FEW)


def drawn(name: str, rng_key: jax.Array) -> tuple[Plan, State]:
    """A plan of the problem, and its state after draws of its proposal."""
    runtime, density = LocalRuntime(), ep.Density.of(bound(name))
    method = ep.AdaptiveIS(effort=0.05)
    plan = method._plan(rng_key, density, parts_of(density), runtime)
    state = explore(plan, State(), runtime, lambda _state: None)
    state = refine(plan, fit(plan, state, runtime, state.found), runtime)
    return plan, integrate(plan, state, runtime, lambda _state: None)


@pytest.mark.parametrize("name", ["figure1", "banana", "three_outputs"])
def test_sums_are_those_of_draws_that_are_kept(name: str, rng_key: jax.Array) -> None:
    plan, state = drawn(name, rng_key)
    tasks = _Tasks.of(plan, state)
    rows, replicates = 64, plan.sizes.num_replicates
    density, sampler, source, columns = tasks.shared
    first, second = (
        summed(density, sampler, source, columns, number, 2, rows) for number in range(2)
    )
    sums = second + first

    proposal: Any = state.proposal
    pieces = []
    for k in range(replicates):
        own = jax.tree.map(lambda array, k=k: array[k], source)
        uniforms = uniforms_of(own, jnp.int32(0), 4 * rows, plan.density.dimension + 2)
        points = np.asarray(sampler.draw(uniforms))
        state, evaluated = evaluate_all(plan, state, LocalRuntime(), [points])
        pieces.append(proposal.weighed(evaluated[0], k))
    kept: Any = state.draws
    assert sums.size == sum(piece.size for piece in pieces) == 4 * rows * replicates
    together = Draws.join([kept, *pieces])
    streamed, all_kept = Means(kept, sums, plan.parts), Means(together)
    for part in plan.parts:
        scale = np.exp(kept.weights(part).log_mean - together.weights(part).log_mean)
        found, expected = streamed.of(part), all_kept.of(part)
        assert found.mean * scale == pytest.approx(expected.mean, rel=1e-9, abs=1e-9)
        deviations = found.deviations * scale
        np.testing.assert_allclose(deviations, expected.deviations, rtol=1e-9, atol=1e-9)
        assert streamed.ess(part) == pytest.approx(all_kept.ess(part), rel=1e-9)
        assert streamed.log_largest(part) == pytest.approx(all_kept.log_largest(part), rel=1e-9)


def test_stream_goes_on_where_memory_ends(little_memory: None, rng_key: jax.Array) -> None:
    method = ep.AdaptiveIS(relative_error=3e-4, max_evaluations=3_000_000)
    result: Any = ep.estimate_expectation(bound("banana"), method, rng_key=rng_key)
    truth: Any = PROBLEMS["banana"].value
    assert result.status is ep.Status.ok
    assert "further draws were summed up" in str(result)
    assert result.standard_error <= 3e-4 * abs(truth)
    assert abs(result.value - truth) < 5 * result.standard_error


def test_stream_keeps_to_the_budget(little_memory: None, rng_key: jax.Array) -> None:
    method = ep.AdaptiveIS(relative_error=1e-9, max_evaluations=700_000)
    result = ep.estimate_expectation(bound("banana"), method, rng_key=rng_key, throw=False)
    assert result.status is ep.Status.not_converged
    assert 400_000 < result.num_evaluations <= 700_000


@ep.expectation
def half(y: float) -> jax.Array:
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(x, 1), obs=y)
    return jnp.where(x > 1.5, x**2, 0.0)


@pytest.mark.slow
def test_intervals_of_streams_cover(little_memory: None, seed: int) -> None:
    """Against quadrature: the posterior is N(y/2, 1/2)."""
    grid = np.linspace(1.5, 12.0, 2_000_001)
    values = grid**2 * np.exp(-((grid - 0.25) ** 2)) / np.sqrt(np.pi)
    truth = np.trapezoid(values, grid)
    method = ep.AdaptiveIS(relative_error=6e-4, max_evaluations=2_000_000, effort=0.05)
    lows, highs, errors, num_streamed = [], [], [], 0
    for run in range(100):
        result = ep.estimate_expectation(half(0.5), method, rng_key=1000 * seed + run)
        low, high = result.interval(0.95)
        lows.append(low)
        highs.append(high)
        errors.append(result.value)
        num_streamed += "summed up" in str(result)
    assert num_streamed > 50
    assert_coverage(lows, highs, truth, 0.95)
    assert_mean(errors, truth)


def test_devices_share_a_stream(tmp_path: Path) -> None:
    """Four devices give what one gives, each a quarter of the replicates."""
    script = """
import jax, numpy as np, sys
from estimand.methods.adaptive import draws
draws.MAX_BYTES = 2**21
import estimand as ep
from tests.methods.adaptive.test_adaptive import bound
assert jax.local_device_count() == int(sys.argv[1])
method = ep.AdaptiveIS(relative_error=1e-9, max_evaluations=700_000)
result = ep.estimate_expectation(bound("banana"), method, rng_key=0, throw=False)
assert "summed up" in str(result)
print(float(result.value).hex(), float(result.standard_error).hex())
"""
    found = []
    for count in ("1", "4"):
        environment = os.environ | {
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={count}",
            "ESTIMAND_CACHE": str(tmp_path),
        }
        run = subprocess.run(
            [sys.executable, "-c", script, count],
            env=environment,
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        found.append([float.fromhex(word) for word in run.stdout.split()[-2:]])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-10)
