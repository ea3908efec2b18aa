"""Annealed importance sampling (Neal 1998), as the paper's appendix A has it."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from estimand.density import Density, PathPoint, Terms, is_invalid
from estimand.kernels import Kernel, RandomWalk, Tuning
from estimand.runtime import compiled_per_model
from estimand.sampling import in_batches
from estimand.sampling import schedule as schedules
from estimand.settings import Settings, require_count
from estimand.trust import Evidence, Trace, evidence_from_weights

# A particle that has not found mass after this many prior draws gets weight 0 instead.
MAX_REDRAWS = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AnIS(Settings):
    """Annealed importance sampling: unbiased for any kernel, schedule and number of samples.

    A particle is drawn from the prior and led to the target through the densities
    prior · (likelihood · f)^β; its weight is the product of the ratios on the way.

    Args:
        num_samples: independent particles.
        num_temperatures: annealing distributions, evenly spaced; 100 unless `schedule` is given.
        schedule: inverse temperatures from 0 to 1 instead (`linear`, `geometric` or any array).
        kernel: a `RandomWalk`, `MALA`, `HMC` or `NUTS`.
        num_steps: kernel steps at each temperature; as in the paper none is made at the last.
        redraw: what to do with a prior draw at which the target's density is 0. False keeps it,
            with weight 0. True draws again until the density is positive and multiplies Z by the
            share of draws that were (unbiased too), which serves targets that are 0 for a good
            part of the prior.
        keep_path: keep the positions and log weights of every temperature in the evidence's trace.
        batch_size: particles run at a time, which bounds memory; the result is the same.

    Examples:
        >>> evidence = ep.log_evidence(program(2.0), ep.AnIS(num_temperatures=20))
        >>> abs(float(evidence.log_z) + 2.2655) < 4 * evidence.standard_error
        True
    """

    num_samples: int = 1000
    num_temperatures: int | None = None
    schedule: Any = None
    kernel: Kernel = dataclasses.field(default=RandomWalk())
    num_steps: int = 1
    redraw: bool = False
    keep_path: bool = False
    batch_size: int | None = None

    def __post_init__(self) -> None:
        require_count("AnIS", "num_samples", self.num_samples)
        require_count("AnIS", "num_steps", self.num_steps)
        if self.batch_size is not None:
            require_count("AnIS", "batch_size", self.batch_size)
        if self.redraw and self.num_samples < 2:
            raise ValueError("AnIS: redraw=True needs num_samples of at least 2.")
        if not isinstance(self.kernel, Kernel):
            raise TypeError(f"AnIS: kernel must be a kernel such as HMC(); it is {self.kernel!r}.")
        if self.schedule is not None:
            if self.num_temperatures is not None:
                raise ValueError("AnIS: give either num_temperatures or schedule, not both.")
            object.__setattr__(self, "schedule", schedules.validated(self.schedule))
        elif self.num_temperatures is not None:
            require_count("AnIS", "num_temperatures", self.num_temperatures)

    @property
    def betas(self) -> tuple[float, ...]:
        """Inverse temperatures, the prior's 0 included."""
        if self.schedule is not None:
            return self.schedule
        return schedules.linear(100 if self.num_temperatures is None else self.num_temperatures)

    def check(self, density: Density) -> None:
        density.require_prior("AnIS")
        self.kernel.check(density)
        self.kernel.tuning(density, len(self.betas) - 1)

    def estimate(self, rng_key: jax.Array, density: Density) -> Evidence:
        self.check(density)
        betas = jnp.asarray(self.betas, jnp.result_type(float))
        tuning = self.kernel.tuning(density, betas.size - 1)
        # Schedule and step sizes are data: changing them compiles nothing.
        structure = dataclasses.replace(
            self, num_temperatures=None, schedule=None, kernel=self.kernel.structure()
        )
        return _anneal(structure, rng_key, density, betas, tuning)


class _Particle(NamedTuple):
    position: jax.Array
    terms: Terms
    log_weight: jax.Array
    tries: jax.Array
    evaluations: jax.Array
    gradients: jax.Array
    invalid: jax.Array


@compiled_per_model(static_argnums=(0,))
def _anneal(
    settings: AnIS, rng_key: jax.Array, density: Density, betas: jax.Array, tuning: Tuning
) -> Evidence:
    def run(keys: jax.Array) -> tuple:
        particles, acceptance, path = jax.vmap(
            lambda key: _anneal_particle(settings, key, density, betas, tuning)
        )(keys)
        return (particles, path), acceptance.sum(axis=0)

    keys = jax.random.split(rng_key, settings.num_samples)
    (particles, path), acceptance = in_batches(run, keys, settings.batch_size)
    log_weights, positions = path if path is not None else (None, None)
    evidence = evidence_from_weights(
        particles.log_weight,
        particles.position,
        particles.evaluations,
        particles.gradients,
        particles.invalid,
        Trace(betas, acceptance / settings.num_samples, log_weights, positions),
    )
    return _correct_for_redraws(evidence, particles.tries) if settings.redraw else evidence


def _anneal_particle(
    settings: AnIS, rng_key: jax.Array, density: Density, betas: jax.Array, tuning: Tuning
) -> tuple[_Particle, jax.Array, Any]:
    start_key, path_key = jax.random.split(rng_key)
    particle = _start(settings, start_key, density)
    kernel = settings.kernel

    def reweigh(particle: _Particle, beta_step: jax.Array) -> _Particle:
        log_ratio = beta_step * particle.terms.log_weight
        return particle._replace(log_weight=particle.log_weight + log_ratio)

    def move(particle: _Particle, key: jax.Array, beta: jax.Array, tuning: Tuning) -> tuple:
        point = PathPoint(beta, beta)
        state, cost = kernel.init(density, particle.position, particle.terms, point)

        def step(carry: tuple, step_key: jax.Array) -> tuple:
            state, cost = carry
            state, info = kernel.step(step_key, density, state, point, tuning)
            return (state, jax.tree.map(jnp.add, cost, info)), None

        step_keys = jax.random.split(key, settings.num_steps)
        (state, cost), _ = lax.scan(step, (state, cost), step_keys)
        particle = particle._replace(
            position=state.position,
            terms=state.terms,
            evaluations=particle.evaluations + cost.num_evaluations,
            gradients=particle.gradients + cost.num_gradients,
            invalid=particle.invalid + cost.num_invalid,
        )
        return particle, cost.acceptance / settings.num_steps

    def temperature(particle: _Particle, step: tuple) -> tuple:
        beta_step, beta, key, tuning = step
        particle = reweigh(particle, beta_step)
        particle, acceptance = move(particle, key, beta, tuning)
        kept = (particle.log_weight, particle.position) if settings.keep_path else None
        return particle, (acceptance, kept)

    num_moves = betas.size - 2
    steps = (
        betas[1:-1] - betas[:-2],
        betas[1:-1],
        jax.random.split(path_key, num_moves),
        jax.tree.map(lambda x: x[:num_moves], tuning),
    )
    kept: Any
    particle, kept = lax.scan(temperature, particle, steps)
    acceptance, path = kept
    particle = reweigh(particle, betas[-1] - betas[-2])
    if settings.keep_path:
        last = (particle.log_weight, particle.position)
        path = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), path, last)
    return particle, acceptance, path


def _start(settings: AnIS, rng_key: jax.Array, density: Density) -> _Particle:
    def draw(tries: jax.Array, invalid: jax.Array) -> _Particle:
        key = jax.random.fold_in(rng_key, tries)
        position, terms = density.draw_prior(key)
        is_bad = is_invalid(terms.log_weight)
        terms = terms.without(is_bad)
        zero = jnp.zeros((), terms.log_prior.dtype)
        return _Particle(position, terms, zero, tries, tries, jnp.int32(0), invalid + is_bad)

    first = draw(jnp.int32(1), jnp.int32(0))
    if not settings.redraw:
        return first
    return lax.while_loop(
        lambda p: (p.terms.log_weight == -jnp.inf) & (p.tries <= MAX_REDRAWS),
        lambda p: draw(p.tries + 1, p.invalid),
        first,
    )


def _correct_for_redraws(evidence: Evidence, tries: jax.Array) -> Evidence:
    """Multiplies Z by the share of prior draws at which the density was positive.

    With N particles after T draws, (N − 1)/(T − 1) estimates that share without bias, and
    independently of the particles.
    """
    count = tries.size
    share = (count - 1) / (jnp.sum(tries.astype(evidence.log_z.dtype)) - 1)
    return evidence._replace(
        log_z=evidence.log_z + jnp.log(share),
        relative_variance=evidence.relative_variance + (1 - share) / count,
        log_weights=evidence.log_weights + jnp.log(share),
    )
