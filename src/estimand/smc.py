"""Tempered sequential Monte Carlo, standard and waste-free (Dau and Chopin 2022)."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp

from estimand import resampling as schemes
from estimand import schedule as schedules
from estimand.density import Density, PathPoint, Terms, is_invalid
from estimand.evidence import Evidence, Trace
from estimand.kernels import MALA, Kernel, RandomWalk, Tuning
from estimand.settings import Settings, require_count

# More temperatures than this are never needed at a conditional effective sample size of ½.
MAX_TEMPERATURES = 200
# Particles per squared dimension from which a single run may take its own covariance.
OWN_COVARIANCE = 10


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class SMC(Settings):
    """Tempered sequential Monte Carlo from the prior to the target.

    With a fixed `schedule` and ``adapt=False`` Ẑ is unbiased. With an adaptive schedule or adapted
    kernels, the default, it is consistent: its bias vanishes faster than its error.

    Args:
        num_particles: particles kept at each temperature.
        num_steps: length of the Markov chains between temperatures. Waste-free: every state of
            num_particles / num_steps chains is kept; standard: the last one of each chain.
        waste_free: keep every state of the chains.
        kernel: `RandomWalk`, `MALA`, `HMC` or `IndependentT`; by default `RandomWalk` up to 6
            dimensions or with discrete sites, `MALA` above.
        adapt: take covariance and step size from the particles; the kernel's own metric is then
            not used and its step size only relative to the default one.
        schedule: inverse temperatures from 0 to 1, or None to choose each by conditional ESS.
        conditional_ess: share of the particles that each new temperature leaves effective.
        resampling: one of the functions of `estimand.resampling`.
        num_islands: independent runs. With more than one, the reported error is that between
            islands, which sees what a single run cannot (burn-in, missed modes).

    Examples:
        >>> evidence = ep.log_evidence(program(2.0), ep.SMC(num_islands=8))
        >>> abs(float(evidence.log_z) + 2.2655) < 4 * evidence.standard_error
        True
    """

    num_particles: int = 5000
    num_steps: int = 25
    waste_free: bool = True
    kernel: Kernel | None = None
    adapt: bool = True
    schedule: Any = None
    conditional_ess: float = 0.5
    resampling: Callable = schemes.systematic
    num_islands: int = 1

    def __post_init__(self) -> None:
        for name in ("num_particles", "num_steps", "num_islands"):
            require_count("SMC", name, getattr(self, name))
        if self.waste_free and self.num_particles % self.num_steps:
            raise ValueError(
                f"SMC: waste-free keeps all num_steps={self.num_steps} states of every chain, so "
                f"num_particles={self.num_particles} must be a multiple of it."
            )
        if not 0 < self.conditional_ess < 1:
            raise ValueError(
                f"SMC: conditional_ess must be between 0 and 1; it is {self.conditional_ess}."
            )
        if self.kernel is not None and not hasattr(self.kernel, "target_acceptance"):
            raise TypeError(
                f"SMC: kernel must be RandomWalk, MALA, HMC or IndependentT; it is {self.kernel!r}."
            )
        if self.schedule is not None:
            object.__setattr__(self, "schedule", schedules.validated(self.schedule))

    @property
    def num_chains(self) -> int:
        return self.num_particles // self.num_steps if self.waste_free else self.num_particles

    def kernel_for(self, density: Density) -> Any:
        """The kernel, or the default one for the program."""
        if self.kernel is not None:
            return self.kernel
        is_small = density.layout.num_continuous <= 6
        return RandomWalk() if is_small or density.layout.has_integers else MALA()

    def check(self, density: Density) -> None:
        density.require_prior("SMC")
        kernel = self.kernel_for(density)
        kernel.check(density)
        kernel.tuning(density, 1)

    def estimate(self, rng_key: jax.Array, density: Density) -> Evidence:
        self.check(density)
        kernel = self.kernel_for(density)
        structure = dataclasses.replace(self, kernel=kernel.structure(), schedule=None)
        dtype = jnp.result_type(float)
        betas = None if self.schedule is None else jnp.asarray(self.schedule, dtype)
        tuning = jax.tree.map(lambda x: x[0], kernel.tuning(density, 1))
        return _islands(structure, rng_key, density, betas, tuning)


Path = Callable[[jax.Array], PathPoint]
"""A way to the target from a density that can be drawn from: its point at inverse temperature β."""


def from_prior(density: Density) -> Path:
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


@functools.partial(jax.jit, static_argnums=0)
def _islands(
    settings: SMC, rng_key: jax.Array, density: Density, betas: Any, tuning: Tuning
) -> Evidence:
    clouds = _run(settings, rng_key, density, betas, tuning)
    log_z = logsumexp(clouds.log_z) - math.log(settings.num_islands)
    log_weights = jnp.repeat(clouds.log_z, settings.num_particles)
    if settings.num_islands > 1:
        ratios = jnp.exp(clouds.log_z - jnp.where(jnp.isfinite(log_z), log_z, 0.0))
        relative_variance = jnp.var(ratios, ddof=1) / settings.num_islands
    else:
        # What moves do not forget shows between families.
        between_families = jnp.sum(clouds.influence[0] ** 2)
        relative_variance = jnp.maximum(clouds.relative_variance[0], between_families)
    return Evidence(
        log_z,
        jnp.where(jnp.isfinite(log_z), relative_variance, jnp.inf),
        log_weights,
        clouds.positions.reshape(-1, density.dimension),
        clouds.evaluations,
        clouds.gradients,
        clouds.invalid,
        Trace(clouds.betas, clouds.acceptance, None, None),
        settings.num_islands - 1.0 if settings.num_islands > 1 else math.inf,
    )


def _run(settings: SMC, rng_key: jax.Array, density: Density, betas: Any, tuning: Tuning) -> Cloud:
    """Islands in step: they share temperatures, and each is tuned to the others' particles."""
    start_key, move_key = jax.random.split(rng_key)
    path, num_islands = from_prior(density), settings.num_islands

    def start(key: jax.Array) -> Cloud:
        keys = jax.random.split(key, settings.num_particles)
        positions, terms = jax.vmap(density.draw_prior)(keys)
        is_bad = is_invalid(terms.log_weight)
        return start_cloud(settings, density, positions, terms.without(is_bad), is_bad.sum())

    def step(clouds: Cloud) -> Cloud:
        number, before = clouds.step.max(), clouds.beta.max()
        if betas is None:
            target, rungs = settings.conditional_ess, density.num_rungs
            beta = next_temperature(path, before, clouds.terms, target, rungs)
        else:
            beta = betas[number + 1]
        if settings.adapt:
            increments = log_increments(path, before, beta, clouds.terms)
            tunings = adapted_tunings(density, clouds, increments)
        else:
            tunings = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_islands, *x.shape)), tuning)
        keys = jax.random.split(jax.random.fold_in(move_key, number), num_islands)

        def move(key: jax.Array, cloud: Cloud, tuning: Tuning) -> Cloud:
            return temper(settings, key, density, path, cloud, beta, tuning)

        return jax.vmap(move)(keys, clouds, tunings)

    limit = MAX_TEMPERATURES if betas is None else betas.size - 1
    clouds = lax.while_loop(
        lambda clouds: is_unfinished(clouds, limit).any(),
        step,
        jax.vmap(start)(jax.random.split(start_key, num_islands)),
    )
    return clouds._replace(log_z=jnp.where(clouds.beta < 1, -jnp.inf, clouds.log_z))


def start_cloud(
    settings: SMC, density: Density, positions: jax.Array, terms: Terms, num_invalid: jax.Array
) -> Cloud:
    """The cloud at β = 0, of draws from the start of the path that cost one evaluation each."""
    kernel: Any = settings.kernel
    zero = jnp.zeros((), positions.dtype)
    trace = jnp.full(MAX_TEMPERATURES, jnp.nan, positions.dtype)
    return Cloud(
        jnp.int32(0),
        zero,
        positions,
        terms,
        zero,
        zero,
        jnp.asarray(kernel.natural_step(density.layout.num_continuous), positions.dtype),
        jnp.int32(settings.num_particles),
        jnp.int32(0),
        num_invalid.astype(jnp.int32),
        trace,
        trace,
        jnp.arange(settings.num_particles, dtype=jnp.int32),
        jnp.zeros(settings.num_particles, positions.dtype),
    )


def is_unfinished(cloud: Cloud, limit: int = MAX_TEMPERATURES) -> jax.Array:
    """Whether there is a way to go, steps to go it, and a particle alive."""
    return (cloud.beta < 1) & (cloud.step < limit) & (cloud.log_z > -jnp.inf)


def temper(
    settings: SMC,
    rng_key: jax.Array,
    density: Density,
    path: Path,
    cloud: Cloud,
    beta: jax.Array,
    tuning: Tuning,
) -> Cloud:
    """The cloud at the next inverse temperature: weigh, resample, move. Nothing moves the dead."""
    kernel: Any = settings.kernel
    resample_key, chain_key = jax.random.split(rng_key)
    increments = log_increments(path, cloud.beta, beta, cloud.terms)
    log_mean = logsumexp(increments) - math.log(settings.num_particles)
    variance = _relative_variance(settings, increments - log_mean, cloud.step)
    chosen = settings.resampling(resample_key, increments, settings.num_chains)
    ancestors = (cloud.positions[chosen], jax.tree.map(lambda x: x[chosen], cloud.terms))
    point = path(beta)
    states, info, final = _move(settings, chain_key, density, ancestors, point, tuning)
    acceptance = info.acceptance.mean()
    change = jnp.exp(2.0 * (acceptance - kernel.target_acceptance))
    moved = Cloud(
        cloud.step + 1,
        beta,
        states[0],
        states[1],
        cloud.log_z + log_mean,
        cloud.relative_variance + variance,
        cloud.step_size * change,
        cloud.evaluations + info.num_evaluations.sum(dtype=jnp.int32) + final[0],
        cloud.gradients + info.num_gradients.sum(dtype=jnp.int32) + final[1],
        cloud.invalid + info.num_invalid.sum(dtype=jnp.int32),
        cloud.betas.at[cloud.step].set(beta),
        cloud.acceptance.at[cloud.step].set(acceptance),
        jnp.repeat(cloud.roots[chosen], settings.num_particles // settings.num_chains),
        cloud.influence.at[cloud.roots].add(jnp.expm1(increments - log_mean) / increments.size),
    )
    is_alive = cloud.log_z > -jnp.inf
    return jax.tree.map(lambda new, old: jnp.where(is_alive, new, old), moved, cloud)


def log_increments(path: Path, beta: jax.Array, after: jax.Array, terms: Terms) -> jax.Array:
    """log of the weights that particles get when the inverse temperature changes."""
    before = path(beta).log_density(terms)
    is_alive = before > -jnp.inf
    return jnp.where(
        is_alive, path(after).log_density(terms) - jnp.where(is_alive, before, 0), -jnp.inf
    )


def next_temperature(
    path: Path, beta: jax.Array, terms: Terms, target: float, num_rungs: int = 1
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


def _relative_variance(settings: SMC, log_normalised: jax.Array, step: jax.Array) -> jax.Array:
    """Variance of the mean weight: independent particles at first, independent chains later."""
    weights = jnp.exp(log_normalised)
    particles = jnp.var(weights, ddof=1) / weights.size
    if not settings.waste_free or settings.num_chains < 2:
        return particles
    chains = weights.reshape(settings.num_chains, settings.num_steps).mean(axis=1)
    return jnp.where(step == 0, particles, jnp.var(chains, ddof=1) / settings.num_chains)


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
    if size < OWN_COVARIANCE * dimension**2 if count == 1 else (count - 1) * size < 4 * dimension:
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


def _move(
    settings: SMC,
    rng_key: jax.Array,
    density: Density,
    ancestors: tuple,
    point: PathPoint,
    tuning: Tuning,
) -> tuple:
    """Markov chains from the ancestors at one point; their states, costs and start costs."""
    kernel: Any = settings.kernel

    def chain(key: jax.Array, position: jax.Array, terms: Terms) -> tuple:
        start, start_cost = kernel.init(density, position, terms, point)

        def step(state: Any, step_key: jax.Array) -> tuple:
            state, info = kernel.step(step_key, density, state, point, tuning)
            kept = (state.position, state.terms) if settings.waste_free else ()
            return state, (kept, info)

        length = settings.num_steps - 1 if settings.waste_free else settings.num_steps
        path: Any
        last, path = lax.scan(step, start, jax.random.split(key, length))
        states, info = path
        if settings.waste_free:
            states = jax.tree.map(
                lambda first, rest: jnp.concatenate([first[None], rest]), (position, terms), states
            )
        else:
            states = (last.position, last.terms)
        return states, info, (start_cost.num_evaluations, start_cost.num_gradients)

    keys = jax.random.split(rng_key, settings.num_chains)
    states, info, start_cost = jax.vmap(chain)(keys, *ancestors)
    if settings.waste_free:
        count = settings.num_particles
        states = jax.tree.map(lambda x: x.reshape(count, *x.shape[2:]), states)
    return states, info, jax.tree.map(lambda x: x.sum(dtype=jnp.int32), start_cost)
