"""Sequential Monte Carlo: unbiased where claimed, and errors that cover."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.sampling import resampling
from problems import PROBLEMS
from tests.estimators.helpers import PARTS, density_of, log_truth, many
from tests.parameters import product
from tests.stats import assert_coverage, assert_unbiased

FIXED = {
    "waste-free": ep.SMC(num_particles=120, num_steps=4, schedule=ep.linear(4), adapt=False),
    "standard": ep.SMC(
        num_particles=60, num_steps=2, waste_free=False, schedule=ep.linear(4), adapt=False
    ),
    "MALA": ep.SMC(
        num_particles=120,
        num_steps=4,
        schedule=ep.linear(4),
        adapt=False,
        kernel=ep.MALA(step_size=0.6),
        resampling=resampling.multinomial,
    ),
    "HMC": ep.SMC(
        num_particles=120,
        num_steps=4,
        schedule=ep.linear(4),
        adapt=False,
        kernel=ep.HMC(step_size=0.3, num_leapfrog=3),
        resampling=resampling.stratified,
    ),
    "IndependentT": ep.SMC(
        num_particles=120,
        num_steps=4,
        schedule=ep.linear(4),
        adapt=False,
        kernel=ep.IndependentT(),
        resampling=resampling.residual,
    ),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    product(
        FIXED,
        ["half_line", "dependent"],
        slow=lambda kind, name: name == "dependent" or kind not in ("waste-free", "standard"),
    ),
)
def test_fixed_smc_is_unbiased(kind: str, name: str, rng_key: jax.Array) -> None:
    """Fixed schedule and kernels: unbiased, also where the target is 0 on part of the space."""
    problem = PROBLEMS[name]
    results = many(FIXED[kind], density_of(problem), rng_key, 500)
    for part, (log_z, _) in zip(PARTS, results, strict=True):
        assert_unbiased(np.asarray(log_z), log_truth(problem, part))


def test_fixed_smc_is_unbiased_with_discrete_sites(rng_key: jax.Array) -> None:
    problem = PROBLEMS["branching"]
    results = many(FIXED["waste-free"], density_of(problem), rng_key, 500)
    for part, (log_z, _) in zip(PARTS, results, strict=True):
        assert_unbiased(np.asarray(log_z), log_truth(problem, part))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kernel"),
    [("half_line", None), ("simplex", ep.MALA()), ("posterior_predictive_2d", ep.IndependentT())],
)
def test_adaptive_smc_covers_by_islands(name: str, kernel: Any, rng_key: jax.Array) -> None:
    """Student-t interval over 8 islands, adaptive temperatures and kernels."""
    problem, islands = PROBLEMS[name], 8
    settings = ep.SMC(num_particles=500, num_steps=10, kernel=kernel, num_islands=islands)
    results = list(many(settings, density_of(problem), rng_key, 300))
    for part, (log_z, relative_variance) in zip(PARTS, results, strict=True):
        if log_truth(problem, part) == -math.inf:
            continue
        estimate = np.exp(np.asarray(log_z) - log_truth(problem, part))
        error = estimate * np.sqrt(np.asarray(relative_variance))
        reach = 2.3646 * error
        assert_coverage(estimate - reach, estimate + reach, 1.0, at_least=0.9)


@pytest.mark.slow
def test_single_run_error_is_of_the_right_size(rng_key: jax.Array) -> None:
    problem = PROBLEMS["half_line"]
    settings = ep.SMC(num_particles=2000, num_steps=20)
    results = list(many(settings, density_of(problem), rng_key, 200))
    for part, (log_z, relative_variance) in zip(PARTS, results, strict=True):
        ratios = np.exp(np.asarray(log_z) - log_truth(problem, part))
        reported = math.sqrt(np.mean(relative_variance))
        assert 0.7 < reported / ratios.std(ddof=1) < 1.4


def test_error_of_moves_that_forget_nothing(rng_key: jax.Array) -> None:
    """With steps that hardly move, the variance is computed between families of particles."""
    problem = PROBLEMS["figure1"]
    settings = ep.SMC(
        num_particles=400,
        num_steps=1,
        waste_free=False,
        kernel=ep.RandomWalk(scale=1e-6),
        schedule=ep.geometric(10),
        adapt=False,
    )
    log_z, relative_variance = next(many(settings, density_of(problem), rng_key, 300))
    ratios = np.exp(np.asarray(log_z) - log_truth(problem, PARTS[0]))
    reported = math.sqrt(np.mean(relative_variance))
    assert 0.7 < reported / ratios.std(ddof=1) < 1.4


def test_multimodal_target(rng_key: jax.Array) -> None:
    """Two modes of weights 1:3 at distance 8, in 4 dimensions: both keep their mass."""

    @ep.expectation
    def program() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 4.0).expand([4]).to_event(1))
        law = dist.MixtureSameFamily(
            dist.Categorical(jnp.array([0.25, 0.75])),
            dist.Normal(jnp.array([[-2.0] * 4, [2.0] * 4]), 0.5).to_event(1),
        )
        prior = dist.Normal(0.0, 4.0).expand([4]).to_event(1)
        numpyro.factor("modes", law.log_prob(x) - prior.log_prob(x))
        return x[0] > 0

    density = ep.Density.of(program())
    settings = ep.SMC(num_particles=2000, num_steps=20, num_islands=16)
    evidence = settings.estimate(rng_key, density)
    assert abs(float(evidence.log_z)) < 5 * evidence.standard_error < 0.5
    share = np.mean(np.asarray(evidence.positions)[:, 0] > 0)
    assert 0.6 < share < 0.9


def test_nothing_to_find(rng_key: jax.Array) -> None:
    density = density_of(PROBLEMS["normal_tail"]).part("gamma1_plus")
    evidence = ep.SMC(num_particles=100, num_steps=10, num_islands=2).estimate(rng_key, density)
    assert evidence.status is ep.Status.no_mass_found
    assert evidence.log_z == -np.inf


@pytest.mark.slow
def test_same_key_same_result(rng_key: jax.Array) -> None:
    density = density_of(PROBLEMS["half_line"])
    settings = ep.SMC(num_particles=100, num_steps=10, num_islands=2)
    first, second = (settings.estimate(rng_key, density) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    other = settings.estimate(jax.random.fold_in(rng_key, 1), density)
    assert other.log_z != first.log_z
    jitted = jax.jit(settings.estimate)(rng_key, density)
    np.testing.assert_allclose(jitted.log_z, first.log_z, rtol=1e-10)


def test_as_a_tabi_estimator(rng_key: jax.Array) -> None:
    problem = PROBLEMS["figure1"]
    expectation = ep.expectation(problem.model)(*problem.args)
    sampler = ep.SMC(num_particles=4000, num_steps=40, num_islands=8)
    result = ep.estimate_expectation(expectation, ep.TABI(sampler), rng_key=rng_key)
    assert abs(result.value - problem.value) < 5 * result.standard_error < 1.0
    plain = ep.estimate_expectation(expectation, ep.SelfNormalised(sampler), rng_key=rng_key)
    assert abs(plain.value - problem.value) < 0.3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ep.SMC(num_particles=0), ["num_particles"]),
        (lambda: ep.SMC(num_particles=100, num_steps=30), ["multiple", "100", "30"]),
        (lambda: ep.SMC(conditional_ess=1.5), ["conditional_ess"]),
        (lambda: ep.SMC(kernel=ep.NUTS()), ["RandomWalk, MALA, HMC or IndependentT"]),  # type: ignore[arg-type]
        (lambda: ep.SMC(schedule=[0.0, 0.5]), ["end at 1"]),
        (lambda: ep.IndependentT(degrees_of_freedom=-1.0), ["degrees_of_freedom"]),
    ],
)
def test_bad_settings_are_refused(make: Callable, words: list[str]) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        make()
    for word in words:
        assert word in str(error.value)


def test_kernel_is_chosen_by_program() -> None:
    assert ep.SMC().kernel_for(density_of(PROBLEMS["figure1"])) == ep.RandomWalk()
    assert ep.SMC().kernel_for(density_of(PROBLEMS["posterior_predictive"])) == ep.MALA()
    assert ep.SMC().kernel_for(density_of(PROBLEMS["branching"])) == ep.RandomWalk()
    assert (
        dataclasses.replace(ep.SMC(), kernel=ep.HMC()).kernel_for(density_of(PROBLEMS["figure1"]))
        == ep.HMC()
    )
