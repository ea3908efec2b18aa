"""Particles led along a path of tempered densities: weigh, resample, move.

One driver, `drive`, serves every sampler that tempers: `SMC`, from the prior to the target, and
`PosteriorBridge`, from the posterior to the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp

from estimand.density import Density, PathPoint, Terms
from estimand.kernels import AdaptableKernel, Tuning

# More temperatures than this are never needed at a conditional effective sample size of ½.
MAX_TEMPERATURES = 200
# Particles per squared dimension from which a single run may take its own covariance.
OWN_COVARIANCE = 10


class Population(NamedTuple):
    """How many particles there are, and how they move; static under jit.

    With `waste_free` every state of num_particles / num_steps chains is a particle, else the last
    state of each of num_particles chains.
    """

    num_particles: int
    num_steps: int
    kernel: AdaptableKernel
    resampling: Callable
    conditional_ess: float = 0.5
    waste_free: bool = True
    adapt: bool = True
    num_islands: int = 1

    @property
    def num_chains(self) -> int:
        return self.num_particles // self.num_steps if self.waste_free else self.num_particles


TemperingPath = Callable[[jax.Array], PathPoint]
"""A way to the target from a density that can be drawn from: its point at inverse temperature β."""


def from_prior(density: Density) -> TemperingPath:
    """From the prior to the target; likelihood and softest target first, then up the ladder."""
    rungs = density.num_rungs
    return lambda beta: PathPoint(jnp.minimum(rungs * beta, 1.0), beta)


class Cloud(NamedTuple):
    """The particles between two temperatures, and what is known so far."""

    step: jax.Array
    beta: jax.Array
    positions: jax.Array
    terms: Terms
    log_z: jax.Array
    relative_variance: jax.Array
    step_size: jax.Array
    evaluations: jax.Array
    gradients: jax.Array
    invalid: jax.Array
    betas: jax.Array
    acceptance: jax.Array
    # For each particle the first one that it descends from, and for each of those what its
    # descendants have added to Z so far, relatively.
    roots: jax.Array
    influence: jax.Array


def drive(
    population: Population,
    rng_key: jax.Array,
    density: Density,
    path: TemperingPath,
    clouds: Cloud,
    *,
    betas: jax.Array | None = None,
    tuning: Tuning | None = None,
    keep: Callable[[Cloud], jax.Array] | None = None,
) -> tuple[Cloud, jax.Array | None]:
    """Islands led to the end of a path in step: they share temperatures.

    Each island is tuned to the others' particles; with ``adapt=False`` by the given tuning. Without
    `betas` each temperature is chosen by conditional effective sample size. What `keep` gives of
    the clouds is kept at the start and after every temperature, NaN beyond the last one.
    """
    num_islands = population.num_islands
    limit = MAX_TEMPERATURES if betas is None else betas.size - 1

    def step(carry: tuple) -> tuple:
        clouds, kept = carry
        number, before = clouds.step.max(), clouds.beta.max()
        if betas is None:
            target, rungs = population.conditional_ess, density.num_rungs
            beta = next_temperature(path, before, clouds.terms, target, rungs)
        else:
            beta = betas[number + 1]
        if population.adapt:
            increments = log_increments(path, before, beta, clouds.terms)
            tunings = adapted_tunings(density, clouds, increments)
        else:
            tunings = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_islands, *x.shape)), tuning)
        keys = jax.random.split(jax.random.fold_in(rng_key, number), num_islands)

        def move(key: jax.Array, cloud: Cloud, tuning: Tuning) -> Cloud:
            return temper(population, key, density, path, cloud, beta, tuning)

        clouds = jax.vmap(move)(keys, clouds, tunings)
        if keep is not None:
            kept = kept.at[number + 1].set(keep(clouds))
        return clouds, kept

    kept = None
    if keep is not None:
        first = keep(clouds)
        kept = jnp.full((limit + 1, *first.shape), jnp.nan, first.dtype).at[0].set(first)
    return lax.while_loop(lambda carry: is_unfinished(carry[0], limit).any(), step, (clouds, kept))


def start_cloud(
    population: Population,
    density: Density,
    positions: jax.Array,
    terms: Terms,
    num_invalid: jax.Array,
) -> Cloud:
    """The cloud at β = 0, of draws from the start of the path that cost one evaluation each."""
    zero = jnp.zeros((), positions.dtype)
    trace = jnp.full(MAX_TEMPERATURES, jnp.nan, positions.dtype)
    return Cloud(
        step=jnp.int32(0),
        beta=zero,
        positions=positions,
        terms=terms,
        log_z=zero,
        relative_variance=zero,
        step_size=jnp.asarray(
            population.kernel.natural_step(density.layout.num_continuous), positions.dtype
        ),
        evaluations=jnp.int32(population.num_particles),
        gradients=jnp.int32(0),
        invalid=num_invalid.astype(jnp.int32),
        betas=trace,
        acceptance=trace,
        roots=jnp.arange(population.num_particles, dtype=jnp.int32),
        influence=jnp.zeros(population.num_particles, positions.dtype),
    )


def is_unfinished(cloud: Cloud, limit: int = MAX_TEMPERATURES) -> jax.Array:
    """True until β reaches 1, the steps run out, or every weight is 0."""
    return (cloud.beta < 1) & (cloud.step < limit) & (cloud.log_z > -jnp.inf)


def temper(
    population: Population,
    rng_key: jax.Array,
    density: Density,
    path: TemperingPath,
    cloud: Cloud,
    beta: jax.Array,
    tuning: Tuning,
) -> Cloud:
    """The cloud at the next inverse temperature: weigh, resample, move. Nothing moves the dead."""
    kernel = population.kernel
    resample_key, chain_key = jax.random.split(rng_key)
    increments = log_increments(path, cloud.beta, beta, cloud.terms)
    log_mean = logsumexp(increments) - math.log(population.num_particles)
    variance = _relative_variance(population, increments - log_mean, cloud.step)
    chosen = population.resampling(resample_key, increments, population.num_chains)
    ancestors = (cloud.positions[chosen], jax.tree.map(lambda x: x[chosen], cloud.terms))
    point = path(beta)
    moves = _move(population, chain_key, density, ancestors, point, tuning)
    change = jnp.exp(2.0 * (moves.acceptance - kernel.target_acceptance))
    descendants = population.num_particles // population.num_chains
    moved = Cloud(
        step=cloud.step + 1,
        beta=beta,
        positions=moves.positions,
        terms=moves.terms,
        log_z=cloud.log_z + log_mean,
        relative_variance=cloud.relative_variance + variance,
        step_size=cloud.step_size * change,
        evaluations=cloud.evaluations + moves.evaluations,
        gradients=cloud.gradients + moves.gradients,
        invalid=cloud.invalid + moves.invalid,
        betas=cloud.betas.at[cloud.step].set(beta),
        acceptance=cloud.acceptance.at[cloud.step].set(moves.acceptance),
        roots=jnp.repeat(cloud.roots[chosen], descendants),
        influence=cloud.influence.at[cloud.roots].add(
            jnp.expm1(increments - log_mean) / increments.size
        ),
    )
    is_alive = cloud.log_z > -jnp.inf
    return jax.tree.map(lambda new, old: jnp.where(is_alive, new, old), moved, cloud)


def log_increments(
    path: TemperingPath, beta: jax.Array, after: jax.Array, terms: Terms
) -> jax.Array:
    """log of the weights that particles get when the inverse temperature changes."""
    before = path(beta).log_density(terms)
    is_alive = before > -jnp.inf
    return jnp.where(
        is_alive, path(after).log_density(terms) - jnp.where(is_alive, before, 0), -jnp.inf
    )


def next_temperature(
    path: TemperingPath, beta: jax.Array, terms: Terms, target: float, num_rungs: int = 1
) -> jax.Array:
    """The inverse temperature at which the conditional ESS falls to `target`, by bisection.

    Particles that are lost however small the step is (the target is 0 there) do not count.
    """
    whole = 1 - beta
    alive = jnp.sum(log_increments(path, beta, beta + 1e-9 * whole, terms) > -jnp.inf)

    def share(step: jax.Array) -> jax.Array:
        log_weights = log_increments(path, beta, beta + step, terms)
        log_ess = 2 * logsumexp(log_weights) - logsumexp(2 * log_weights)
        return jnp.where(log_weights.max() > -jnp.inf, jnp.exp(log_ess) / alive, 0.0)

    def halve(_: int, ends: tuple) -> tuple:
        low, high = ends
        middle = 0.5 * (low + high)
        is_fine = share(jnp.exp(middle)) > target
        return jnp.where(is_fine, middle, low), jnp.where(is_fine, high, middle)

    # On the log scale, because the first steps from a vague prior are tiny.
    low, _ = lax.fori_loop(0, 40, halve, (jnp.log(whole) - 30.0, jnp.log(whole)))
    step = jnp.where(share(whole) > target, whole, jnp.exp(low))
    after = jnp.where(step == whole, 1.0, beta + step)
    # Beyond a rung whole regions may be lost at once: bisection must not creep up to it.
    rung = jnp.round(after * num_rungs) / num_rungs
    return jnp.where((rung > beta) & (jnp.abs(rung - after) < 1e-3 / num_rungs), rung, after)


def _relative_variance(
    population: Population, log_normalised: jax.Array, step: jax.Array
) -> jax.Array:
    """Variance of the mean weight: independent particles at first, independent chains later."""
    weights = jnp.exp(log_normalised)
    particles = jnp.var(weights, ddof=1) / weights.size
    if not population.waste_free or population.num_chains < 2:
        return particles
    chains = weights.reshape(population.num_chains, population.num_steps).mean(axis=1)
    return jnp.where(step == 0, particles, jnp.var(chains, ddof=1) / population.num_chains)


def adapted_tunings(density: Density, clouds: Cloud, log_weights: jax.Array) -> Tuning:
    """For each island its step size, and the moments of all other islands' weighted particles.

    Scaling moves by the covariance of the very particles that are moved draws them towards its
    errors: in 100 dimensions 2,000 particles made Z too large by a factor of 400, in every island
    alike. A single island has no others and takes its own covariance where the particles are so
    many that this does not matter, and its own variances where they are not.
    """
    positions = clouds.positions[..., : density.layout.num_continuous]
    count, size, dimension = positions.shape
    weights = jnp.exp(log_weights - log_weights.max())
    center = jnp.einsum("in,ind->d", weights, positions) / weights.sum()
    deviations = positions - center[None, None]

    def of_others(sums: jax.Array) -> jax.Array:
        return sums if count == 1 else sums.sum(axis=0, keepdims=True) - sums

    sizes = of_others(weights.sum(axis=1))
    effective = sizes**2 / of_others((weights**2).sum(axis=1))
    shifts = of_others(jnp.einsum("in,ind->id", weights, deviations)) / sizes[:, None]
    centers = jnp.broadcast_to(center, shifts.shape) + shifts
    if count == 1:
        has_few = size < OWN_COVARIANCE * dimension**2
    else:
        has_few = (count - 1) * size < 4 * dimension
    if has_few:
        squares = of_others(jnp.einsum("in,ind->id", weights, deviations**2)) / sizes[:, None]
        variances = jnp.maximum(squares - shifts**2, 1e-12 * (1 + centers**2))
        return Tuning(clouds.step_size, jnp.sqrt(variances), centers)
    seconds = lax.map(lambda item: (item[0][:, None] * item[1]).T @ item[1], (weights, deviations))
    covariances = of_others(seconds) / sizes[:, None, None]
    covariances = covariances - shifts[:, :, None] * shifts[:, None, :]
    return jax.vmap(shrunk)(clouds.step_size, centers, covariances, effective)


def shrunk(
    step_size: jax.Array, center: jax.Array, covariance: jax.Array, effective: jax.Array
) -> Tuning:
    """Tuning by a covariance from so many effective particles, shrunk towards its diagonal."""
    dimension = max(center.size, 1)
    shrinkage = jnp.clip(dimension / effective, 0.01, 1.0)
    variances = jnp.maximum(jnp.diag(covariance), 1e-12 * (1 + center**2))
    covariance = (1 - shrinkage) * covariance + shrinkage * jnp.diag(variances)
    factor = jnp.linalg.cholesky(covariance)
    factor = jnp.where(jnp.isfinite(factor).all(), factor, jnp.diag(jnp.sqrt(variances)))
    return Tuning(step_size, factor, center)


class _Moves(NamedTuple):
    """The states of Markov chains, and what they cost."""

    positions: jax.Array
    terms: Terms
    acceptance: jax.Array
    evaluations: jax.Array
    gradients: jax.Array
    invalid: jax.Array


def _move(
    population: Population,
    rng_key: jax.Array,
    density: Density,
    ancestors: tuple,
    point: PathPoint,
    tuning: Tuning,
) -> _Moves:
    """Markov chains from the ancestors at one point of the path."""
    kernel = population.kernel

    def chain(key: jax.Array, position: jax.Array, terms: Terms) -> tuple:
        start, start_cost = kernel.init(density, position, terms, point)

        def step(state: Any, step_key: jax.Array) -> tuple:
            state, info = kernel.step(step_key, density, state, point, tuning)
            kept = (state.position, state.terms) if population.waste_free else ()
            return state, (kept, info)

        length = population.num_steps - 1 if population.waste_free else population.num_steps
        path: Any
        last, path = lax.scan(step, start, jax.random.split(key, length))
        states, info = path
        if population.waste_free:
            states = jax.tree.map(
                lambda first, rest: jnp.concatenate([first[None], rest]), (position, terms), states
            )
        else:
            states = (last.position, last.terms)
        return states, info, start_cost

    keys = jax.random.split(rng_key, population.num_chains)
    states, info, start_cost = jax.vmap(chain)(keys, *ancestors)
    if population.waste_free:
        count = population.num_particles
        states = jax.tree.map(lambda x: x.reshape(count, *x.shape[2:]), states)

    def added(field: str) -> jax.Array:
        at_start = getattr(start_cost, field).sum(dtype=jnp.int32)
        return getattr(info, field).sum(dtype=jnp.int32) + at_start

    return _Moves(
        positions=states[0],
        terms=states[1],
        acceptance=info.acceptance.mean(),
        evaluations=added("num_evaluations"),
        gradients=added("num_gradients"),
        invalid=info.num_invalid.sum(dtype=jnp.int32),
    )
