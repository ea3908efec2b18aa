"""Islands that the host drives: the same sampler as the compiled one, piece by piece and in all."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import estimand as ep
from estimand.density import Density, Terms
from estimand.model import PARTS
from estimand.sampling import comparison_scales, prior_positions, scouts, tempering
from estimand.sampling.schedule import linear
from problems import PROBLEMS
from tests.stats import assert_coverage, assert_estimate, assert_mean


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def random_terms(rng: np.random.Generator, rungs: int, shape: tuple[int, ...] = (3, 40)) -> Any:
    """Log densities as particles have them: some are 0, and one is not a number."""
    likelihood = 30 * rng.standard_normal(shape)
    target = rng.standard_normal((*shape, rungs)) if rungs > 1 else 20 * rng.standard_normal(shape)
    likelihood[0, :3], target[1, :2], target[2, 5] = -np.inf, -np.inf, np.nan
    return Terms(rng.standard_normal(shape), likelihood, target)  # type: ignore[arg-type]


@pytest.mark.parametrize("rungs", [1, 9])
@pytest.mark.parametrize(("before", "after"), [(0.0, 0.01), (0.0, 0.3), (0.05, 0.15), (0.4, 1.0)])
def test_weights_are_those_of_the_compiled_sampler(
    rungs: int, before: float, after: float, rng: np.random.Generator
) -> None:
    terms = random_terms(rng, rungs)

    def path(beta: Any) -> Any:
        return tempering.PathPoint(jnp.minimum(rungs * beta, 1.0), jnp.asarray(beta))

    with jax.enable_x64():
        traced = jax.tree.map(jnp.asarray, terms)
        expected = tempering.log_increments(path, jnp.asarray(before), jnp.asarray(after), traced)
    found = scouts.Reweighting(terms, before, rungs).log_weights(after)
    # What was 0 before has no weight at all; the compiled sampler finds that from the density.
    was_alive = np.isfinite(scouts.Reweighting(terms, 0.0, rungs).log_weights(max(before, 1e-6)))
    np.testing.assert_allclose(
        found[was_alive], np.asarray(expected)[was_alive], rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("rungs", [1, 9])
def test_temperatures_are_those_of_the_compiled_sampler(
    rungs: int, rng: np.random.Generator
) -> None:
    terms = random_terms(rng, rungs)

    def path(beta: Any) -> Any:
        return tempering.PathPoint(jnp.minimum(rungs * beta, 1.0), beta)

    with jax.enable_x64():
        traced = jax.tree.map(jnp.asarray, terms)
        expected = tempering.next_temperature(path, jnp.asarray(0.0), traced, 0.5, rungs)
    found = scouts.next_temperature(terms, 0.0, 0.5, rungs)
    assert found == pytest.approx(float(expected), rel=1e-4)
    share = scouts.Reweighting(terms, 0.0, rungs).log_weights(found)
    weights = np.exp(share - share.max())
    alive = np.isfinite(scouts.Reweighting(terms, 0.0, rungs).log_weights(1e-9)).sum()
    assert weights.sum() ** 2 / (weights**2).sum() == pytest.approx(0.5 * alive, rel=1e-3)


@pytest.mark.parametrize("count", [4, 200])
def test_factors_are_those_of_the_compiled_sampler(count: int, rng: np.random.Generator) -> None:
    """Scales alone where the others' particles are few, else factors of their covariance."""
    dimension = 5
    positions = rng.standard_normal((4, count, dimension)) @ np.tri(dimension)
    log_weights = rng.standard_normal((4, count))
    found = scouts.covariance_factors(positions, log_weights)
    assert found.shape == scouts.factor_shape(4, count, dimension)
    for island in range(4):
        others = [k for k in range(4) if k != island]
        weights = np.exp(log_weights[others]).ravel()
        points = positions[others].reshape(-1, dimension)
        covariance = np.cov(points.T, aweights=weights, bias=True)
        if found.ndim == 2:
            np.testing.assert_allclose(found[island] ** 2, np.diag(covariance), rtol=1e-9)
            continue
        effective = weights.sum() ** 2 / (weights**2).sum()
        shrinkage = max(0.01, dimension / effective)
        shrunk = (1 - shrinkage) * covariance + shrinkage * np.diag(np.diag(covariance))
        np.testing.assert_allclose(found[island] @ found[island].T, shrunk, rtol=1e-9)


def test_factors_where_one_island_has_all_the_weight(rng: np.random.Generator) -> None:
    positions = rng.standard_normal((3, 50, 2))
    log_weights = np.full((3, 50), -np.inf)
    log_weights[0] = 0.0
    assert np.isfinite(scouts.covariance_factors(positions, log_weights)).all()


def test_systematic_indices(rng: np.random.Generator) -> None:
    log_weights = np.log(np.array([0.1, 0.0, 0.25, 0.65, 0.0]) + 1e-300)
    log_weights[[1, 4]] = -np.inf
    counts = np.bincount(scouts.systematic_indices(rng, log_weights, 100), minlength=5)
    assert np.abs(counts - 100 * np.array([0.1, 0.0, 0.25, 0.65, 0.0])).max() <= 1
    assert counts[1] == counts[4] == 0


def density_of(name: str, part: str) -> tuple[Density, float]:
    problem = PROBLEMS[name]
    density = Density.of(ep.expectation(problem.model)(*problem.args))
    truths = dict(
        zip(PARTS, (problem.log_z1_plus, problem.log_z1_minus, problem.log_z2), strict=True)
    )
    return density.part(part), float(np.atleast_1d(truths[part])[0])


CASES = [
    ("half_line", "gamma1_plus", None),
    ("posterior_predictive_2d", "gamma1_plus", ep.MALA()),
]


@pytest.mark.parametrize(("name", "part", "kernel"), CASES, ids=lambda value: str(value))
def test_hosted_islands_cover(name: str, part: str, kernel: Any, seed: int) -> None:
    """As the compiled sampler's islands: intervals cover, and Z is right on average."""
    density, log_z = density_of(name, part)
    islands = 8
    settings = ep.SMC(num_particles=500, num_steps=10, kernel=kernel, num_islands=islands)
    keys = [jax.random.key(1000 * seed + number) for number in range(200)]
    found = [settings.estimate_on_host(key, density) for key in keys]
    ratios = np.exp([float(item.log_z) - log_z for item in found])
    errors = ratios * np.sqrt([float(item.relative_variance) for item in found])
    assert_coverage(ratios - 2.3646 * errors, ratios + 2.3646 * errors, 1.0, at_least=0.9)
    assert_mean(ratios, 1.0)


def test_softened_islands_reach_a_rare_event(seed: int) -> None:
    """P(x > 4.5) = 3.4e-6 by comparisons that sharpen on the way; four runs move in pieces."""

    @ep.expectation
    def tail() -> Any:
        import numpyro
        import numpyro.distributions as dist

        return numpyro.sample("x", dist.Normal(0.0, 1.0)) > 4.5

    density = Density.of(tail()).part("gamma1_plus")
    softened = density.softened(comparison_scales(density, (seed,), 1000))
    settings = ep.SMC(num_particles=1000, num_steps=10, num_islands=16)
    evidence = settings.estimate_on_host(jax.random.key(seed), softened, num_pieces=2)
    truth = math.log(3.3976731e-6)
    ratio, error = math.exp(float(evidence.log_z) - truth), math.sqrt(evidence.relative_variance)
    assert_estimate(ratio, ratio * error, 1.0, degrees=15)
    assert evidence.positions.shape == (2 * 16_000, 1)


def test_a_target_of_zero_has_no_mass() -> None:
    density, _ = density_of("posterior_predictive_2d", "gamma1_minus")
    settings = ep.SMC(num_particles=200, num_steps=10, num_islands=4)
    evidence = settings.estimate_on_host(jax.random.key(0), density)
    assert float(evidence.log_z) == -math.inf
    assert evidence.relative_variance == math.inf


def test_what_the_host_cannot_drive_is_compiled(rng_key: jax.Array) -> None:
    density, _ = density_of("half_line", "gamma2")
    population = ep.SMC(num_islands=4).population(ep.IndependentT())
    assert not scouts.can_scout(population, density)
    settings = ep.SMC(num_particles=40, num_steps=4, num_islands=2, schedule=linear(2))
    hosted = settings.estimate_on_host(rng_key, density)
    assert float(hosted.log_z) == float(settings.estimate(rng_key, density).log_z)


def test_prior_positions_are_draws_of_the_prior(seed: int) -> None:
    density, _ = density_of("posterior_predictive_2d", "gamma2")
    positions = prior_positions(density, (seed, 1), 5000)
    assert positions.shape == (5000, 2)
    assert_mean(positions[:, 0], 0.0)
    assert_mean(positions[:, 1] ** 2, 1.0)
    np.testing.assert_array_equal(positions, prior_positions(density, (seed, 1), 5000))
    assert not np.array_equal(positions, prior_positions(density, (seed, 2), 5000))


def test_prior_draws_of_distributions_that_need_jaxs_own_generator(seed: int) -> None:
    """JAX draws from a Poisson distribution only with threefry keys."""
    density, _ = density_of("drawn_kicks", "gamma2")
    positions = prior_positions(density.relaxed(), (seed, 1), 2000)
    assert np.isfinite(positions).all()
    problem = PROBLEMS["drawn_kicks"]
    expectation = ep.expectation(problem.model)(*problem.args)
    method = ep.AdaptiveIS(max_evaluations=100_000)
    result = ep.estimate_expectation(expectation, method, throw=False)
    output = result.outputs[0]
    truth = float(np.ravel(problem.value)[0])
    assert_estimate(output.value, output.standard_error, truth, degrees=output.degrees)
