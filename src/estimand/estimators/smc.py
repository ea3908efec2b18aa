"""Tempered sequential Monte Carlo, standard and waste-free (Dau and Chopin 2022)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from estimand.density import Density, is_invalid
from estimand.kernels import MALA, AdaptableKernel, RandomWalk, Tuning
from estimand.runtime import compiled_per_model
from estimand.sampling import (
    MAX_TEMPERATURES,
    Cloud,
    Population,
    Scouted,
    can_scout,
    drive,
    entropy_of,
    from_prior,
    log_mean,
    run_scouts,
    start_cloud,
)
from estimand.sampling import resampling as schemes
from estimand.sampling import schedule as schedules
from estimand.settings import Settings, require_count, require_share
from estimand.trust import Evidence, Trace


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
        resampling: one of the functions of `estimand.sampling.resampling`.
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
    kernel: AdaptableKernel | None = None
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
        require_share("SMC", "conditional_ess", self.conditional_ess)
        if self.kernel is not None and not isinstance(self.kernel, AdaptableKernel):
            raise TypeError(
                f"SMC: kernel must be RandomWalk, MALA, HMC or IndependentT; it is {self.kernel!r}."
            )
        if self.schedule is not None:
            object.__setattr__(self, "schedule", schedules.validated(self.schedule))

    @property
    def num_chains(self) -> int:
        return self.num_particles // self.num_steps if self.waste_free else self.num_particles

    def kernel_for(self, density: Density) -> AdaptableKernel:
        """The kernel, or the default one for the program."""
        if self.kernel is not None:
            return self.kernel
        is_small = density.layout.num_continuous <= 6
        return RandomWalk() if is_small or density.layout.has_discrete else MALA()

    def check(self, density: Density) -> None:
        density.require_prior("SMC")
        kernel = self.kernel_for(density)
        kernel.check(density)
        kernel.tuning(density, 1)

    def estimate(self, rng_key: jax.Array, density: Density) -> Evidence:
        self.check(density)
        kernel = self.kernel_for(density)
        dtype = jnp.result_type(float)
        betas = None if self.schedule is None else jnp.asarray(self.schedule, dtype)
        tuning = jax.tree.map(lambda x: x[0], kernel.tuning(density, 1))
        return _islands(self.population(kernel), rng_key, density, betas, tuning)

    def estimate_on_host(
        self, rng_key: jax.Array, density: Density, num_pieces: int = 1
    ) -> Evidence:
        """As `estimate`, with far less to compile, and other random numbers, where it is possible.

        Islands that adapt can be driven by the host. With so many times more particles they move
        in as many pieces, for which nothing else is compiled.
        """
        self.check(density)
        population = self.population(self.kernel_for(density))
        if self.schedule is None and can_scout(population, density):
            scouted = run_scouts(population, density, entropy_of(rng_key), num_pieces)
            return _evidence_of(scouted)
        larger = dataclasses.replace(self, num_particles=num_pieces * self.num_particles)
        return jax.block_until_ready(larger.estimate(rng_key, density))

    def population(self, kernel: AdaptableKernel) -> Population:
        """What is compiled in: schedule, step sizes and metric are not."""
        return Population(
            num_particles=self.num_particles,
            num_steps=self.num_steps,
            kernel=kernel.structure(),
            resampling=self.resampling,
            conditional_ess=self.conditional_ess,
            waste_free=self.waste_free,
            adapt=self.adapt,
            num_islands=self.num_islands,
        )


@compiled_per_model(static_argnums=(0,))
def _islands(
    population: Population, rng_key: jax.Array, density: Density, betas: Any, tuning: Tuning
) -> Evidence:
    clouds = _run(population, rng_key, density, betas, tuning)
    num_islands = population.num_islands
    log_z = logsumexp(clouds.log_z) - math.log(num_islands)
    if num_islands > 1:
        ratios = jnp.exp(clouds.log_z - jnp.where(jnp.isfinite(log_z), log_z, 0.0))
        relative_variance = jnp.var(ratios, ddof=1) / num_islands
    else:
        # What moves do not forget shows between families.
        between_families = jnp.sum(clouds.influence[0] ** 2)
        relative_variance = jnp.maximum(clouds.relative_variance[0], between_families)
    return Evidence(
        log_z=log_z,
        relative_variance=jnp.where(jnp.isfinite(log_z), relative_variance, jnp.inf),
        log_weights=jnp.repeat(clouds.log_z, population.num_particles),
        positions=clouds.positions.reshape(-1, density.dimension),
        evaluations=clouds.evaluations,
        gradients=clouds.gradients,
        invalid=clouds.invalid,
        trace=Trace(
            betas=clouds.betas,
            acceptance_rate=clouds.acceptance,
            log_weights=None,
            positions=None,
        ),
        degrees=num_islands - 1.0 if num_islands > 1 else math.inf,
    )


def _evidence_of(scouted: Scouted) -> Evidence:
    """What islands that the host has driven say of Z."""
    log_z, num_islands = scouted.log_z, scouted.log_z.size
    log_mean_z = log_mean(log_z)
    relative_variance = math.inf
    if math.isfinite(log_mean_z):
        relative_variance = float(np.exp(log_z - log_mean_z).var(ddof=1) / num_islands)

    def by_temperature(values: np.ndarray) -> Any:
        padding = np.full((num_islands, MAX_TEMPERATURES - scouted.betas.size), np.nan)
        rows = np.broadcast_to(values, (num_islands, scouted.betas.size))
        return np.concatenate([rows, padding], axis=1)

    arrays: dict[str, Any] = {
        "log_z": np.asarray(log_mean_z),
        "relative_variance": np.asarray(relative_variance),
        "log_weights": scouted.log_weights,
        "positions": scouted.positions,
        "evaluations": np.array([scouted.num_evaluations]),
        "gradients": np.array([scouted.num_gradients]),
        "invalid": np.array([scouted.num_invalid]),
    }
    trace = Trace(
        betas=by_temperature(scouted.betas),
        acceptance_rate=by_temperature(scouted.acceptance),
        log_weights=None,
        positions=None,
    )
    return Evidence(**arrays, trace=trace, degrees=num_islands - 1.0)


def _run(
    population: Population, rng_key: jax.Array, density: Density, betas: Any, tuning: Tuning
) -> Cloud:
    """Islands from draws of the prior to the target."""
    start_key, move_key = jax.random.split(rng_key)

    def start(key: jax.Array) -> Cloud:
        keys = jax.random.split(key, population.num_particles)
        positions, terms = jax.vmap(density.draw_prior)(keys)
        is_bad = is_invalid(terms.log_weight)
        return start_cloud(population, density, positions, terms.without(is_bad), is_bad.sum())

    clouds = jax.vmap(start)(jax.random.split(start_key, population.num_islands))
    clouds, _ = drive(
        population, move_key, density, from_prior(density), clouds, betas=betas, tuning=tuning
    )
    return clouds._replace(log_z=jnp.where(clouds.beta < 1, -jnp.inf, clouds.log_z))
