"""The benchmarks' subset simulation is a fair peer: unbiased, with a known error."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import estimand as ep
from benchmarks.events import EVENTS, PriorMonteCarlo, subset
from benchmarks.subset_simulation import Space, evaluate, relative_variance, run_chains
from estimand.runtime import LocalRuntime
from problems.known import known
from tests import stats

NUM_RUNS = 50


@pytest.mark.parametrize("name", list(EVENTS))
def test_margins_are_the_programs_events(name: str, rng_key: jax.Array) -> None:
    density = ep.Density.of(known(name).expectation)

    def both(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        position = 3 * jax.random.normal(key, (density.dimension,))
        return EVENTS[name].margin(density.constrain(position)), density.outputs(position)[0]

    margins, outputs = jax.jit(jax.vmap(both))(jax.random.split(rng_key, 10_000))
    np.testing.assert_array_equal(margins > 0, outputs == 1)
    assert 0 < (margins > 0).mean() < 1


@pytest.mark.parametrize(
    "name", [pytest.param("normal_tail", marks=pytest.mark.slow), "four_branch"]
)
def test_mean_of_runs(name: str, rng_key: jax.Array) -> None:
    problem, method = known(name), subset(EVENTS[name], 2000)
    density = ep.Density.of(problem.expectation)
    runs = [method.run(key, density, LocalRuntime()) for key in jax.random.split(rng_key, NUM_RUNS)]
    ratios = np.array([run.outputs[0].value for run in runs]) / problem.values[0]
    stats.assert_mean(ratios, 1.0)
    # The literature's coefficient of variation at this size is 0.13 to 0.3 for such events.
    assert ratios.std() < 0.4
    reported = np.array([run.outputs[0].standard_error for run in runs]) / problem.values[0]
    assert 0.5 < ratios.std() / reported.mean() < 2


def test_cost(rng_key: jax.Array) -> None:
    """A level's seeds are not evaluated again: 2,000, then 1,800 for each of two more levels."""
    density = ep.Density.of(known("four_branch").expectation)
    run = subset(EVENTS["four_branch"], 2000).run(rng_key, density, LocalRuntime())
    assert (run.num_evaluations, run.num_gradients) == (5600, 0)
    assert run.notes == ("3 levels",)


def test_chains_with_data_keep_the_posterior(rng_key: jax.Array) -> None:
    """Exact draws stay exact in coordinates that are not the density's own."""
    density = ep.Density.of(known("rp22").expectation).part("gamma2")
    margin = EVENTS["rp22"].margin
    space = Space(density, jnp.array([0.5, -0.3]), jnp.array([[0.8, 0.0], [0.4, 1.3]]))
    start_key, chains_key = jax.random.split(rng_key)
    draws = jax.random.normal(start_key, (4000, 2))
    x = jnp.linalg.solve(space.factor, (draws - space.mean[None]).T).T
    level, _ = run_chains(margin, chains_key, space, evaluate(margin, space, x), -jnp.inf, 0.0)
    positions = level.x[-1] @ space.factor.T + space.mean[None]
    assert 0.1 < float((level.x[1:] != level.x[:-1]).any(-1).mean()) < 0.9
    stats.assert_mean(jnp.concatenate([positions, positions**2], axis=1), [0.0, 0.0, 1.0, 1.0])


def test_relative_variance_of_independent_and_of_constant_chains() -> None:
    rng = np.random.default_rng(0)
    independent = rng.random((10, 100_000)) < 0.1
    np.testing.assert_allclose(relative_variance(independent) * independent.size, 9.0, rtol=0.05)
    constant = np.repeat(independent[:1], 10, axis=0)
    np.testing.assert_allclose(relative_variance(constant) * constant.size, 90.0, rtol=0.05)


def test_prior_monte_carlo(rng_key: jax.Array) -> None:
    problem = known("four_branch")
    density = ep.Density.of(problem.expectation)
    run = PriorMonteCarlo(num_samples=200_000).run(rng_key, density, LocalRuntime())
    count = round(run.outputs[0].value * 200_000)
    stats.assert_proportion(count, 200_000, problem.values[0])
    assert (run.num_evaluations, run.num_gradients) == (200_000, 0)


def test_size_must_fit_the_chains() -> None:
    with pytest.raises(ValueError, match="num_samples must be a positive multiple of 100"):
        subset(EVENTS["rp22"], 1050)
