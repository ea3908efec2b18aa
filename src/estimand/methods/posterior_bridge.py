"""A tempered bridge from the posterior to the target: Z1⁺/Z2 and Z1⁻/Z2 without Z2."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import effective_sample_size as autocorrelation_size

from estimand.density import Density, PathPoint, Terms, is_invalid
from estimand.kernels import HMC, AdaptableKernel, RandomWalk
from estimand.methods.protocol import (
    LOG_MAX,
    MAX_JOINT_ERRORS,
    Figures,
    Method,
    Run,
    joint_errors,
    rule_of_three,
    worst,
)
from estimand.model.sites import ProgramError
from estimand.runtime.journal import remember
from estimand.sampling import resampling as schemes
from estimand.sampling.bridging import meng_wong
from estimand.sampling.chains import (
    MAX_R_HAT,
    NUM_STARTS,
    check_draws,
    nuts_chains,
    positions_of,
    r_hat,
)
from estimand.sampling.tempering import Population, drive, start_cloud
from estimand.sampling.weights import effective_sample_size, log_mean, total
from estimand.settings import Settings, require_count, require_share
from estimand.trust.evidence import is_precise
from estimand.trust.status import Status
from estimand.trust.thresholds import MIN_ESS

NOTE = (
    "by the bridge from the posterior: a mode of the target where the posterior has no draws "
    "would be missed"
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class PosteriorBridge(Settings):
    """Posterior draws carried over to the target along γ·f^b, from b = 0 to b = 1.

    For high dimension, where NUTS explores the posterior well and annealing from the prior is
    dear. Every chain starts a sequential Monte Carlo run of its own, an island; the estimate is
    the mean over islands and its error that between them, with Student's t. It goes where the
    posterior's draws lead: a mode that only f sees is missed, silently, and the result's notes
    always say so. `cross_check` compares it with a route that does not start at the posterior.

    Args:
        num_samples: posterior draws kept from each chain.
        num_warmup: draws discarded from the start of each chain.
        num_islands: independent chains, each the start of an island.
        draws: posterior draws instead, as ``mcmc.get_samples(group_by_chain=True)`` gives them: a
            dict of arrays by site with leading axes (chains, draws). They are cut into
            `num_islands` pieces of equal length, chain after chain.
        num_particles: particles of each island at each temperature.
        num_steps: states of each Markov chain between temperatures; all of them are particles.
        kernel: `RandomWalk`, `MALA`, `HMC` or `IndependentT`, adapted to the particles; by default
            `RandomWalk` up to 6 dimensions and `HMC(num_leapfrog=3)` above.
        conditional_ess: share of the particles that each new temperature leaves effective.
        cross_check: a method that takes another route, such as ``TABI(SMC(num_islands=8))``. Where
            its status is ok and it is more than four joint errors away, the status is
            `replicates_disagree`.

    Examples:
        >>> draws = {"x": 1 + jnp.sqrt(0.5) * jax.random.normal(jax.random.key(0), (4, 500))}
        >>> result = ep.estimate_expectation(program(2.0), ep.PosteriorBridge(draws=draws))
        >>> abs(result.value - 2.5) < 4 * result.standard_error
        True
    """

    num_samples: int = 1000
    num_warmup: int = 500
    num_islands: int = 8
    draws: Any = dataclasses.field(default=None, hash=False, compare=False)
    num_particles: int = 2000
    num_steps: int = 25
    kernel: AdaptableKernel | None = None
    conditional_ess: float = 0.5
    cross_check: Method | None = None

    def __post_init__(self) -> None:
        for name in ("num_samples", "num_warmup", "num_islands", "num_particles", "num_steps"):
            require_count("PosteriorBridge", name, getattr(self, name))
        if self.num_islands < 2:
            raise ValueError(
                "PosteriorBridge: num_islands must be at least 2: the error is that between them."
            )
        if self.num_steps < 2:
            raise ValueError("PosteriorBridge: num_steps must be at least 2: the chains must move.")
        if self.num_samples < 4:
            raise ValueError("PosteriorBridge: num_samples must be at least 4 for R-hat.")
        if self.cross_check is not None and not hasattr(self.cross_check, "run"):
            raise TypeError(
                "PosteriorBridge: cross_check must be a method such as TABI(SMC()); it is "
                f"{self.cross_check!r}."
            )
        if self.num_particles % self.num_steps:
            raise ValueError(
                f"PosteriorBridge: all num_steps={self.num_steps} states of every chain are kept, "
                f"so num_particles={self.num_particles} must be a multiple of it."
            )
        require_share("PosteriorBridge", "conditional_ess", self.conditional_ess)
        if self.kernel is not None and not isinstance(self.kernel, AdaptableKernel):
            raise TypeError(
                "PosteriorBridge: kernel must be RandomWalk, MALA, HMC or IndependentT; it is "
                f"{self.kernel!r}."
            )

    def _population(self, kernel: AdaptableKernel) -> Population:
        return Population(
            num_particles=self.num_particles,
            num_steps=self.num_steps,
            kernel=kernel.structure(),
            resampling=schemes.systematic,
            conditional_ess=self.conditional_ess,
            num_islands=self.num_islands,
        )

    def kernel_for(self, density: Density) -> AdaptableKernel:
        """The kernel, or the default one for the program."""
        if self.kernel is not None:
            return self.kernel
        # At equal cost its error in 100 dimensions is 0.4 of MALA's; in 10 they are the same.
        return RandomWalk() if density.dimension <= 6 else HMC(num_leapfrog=3)

    def check(self, density: Density) -> None:
        density.require_continuous("PosteriorBridge")
        self.kernel_for(density).check(density)
        if self.draws is None:
            density.require_prior("PosteriorBridge without draws")
        else:
            check_draws("PosteriorBridge", density, self.draws)
            length = jnp.shape(self.draws[density.layout.sites[0].latent.name])[1]
            if length < 4:
                raise ProgramError(
                    f"PosteriorBridge: draws has {length} draws in each chain; R-hat needs at "
                    "least 4."
                )
        if self.cross_check is not None:
            self.cross_check.check(density)

    def run(
        self, rng_key: jax.Array, density: Density, outputs: Sequence[int] | None = None
    ) -> Run:
        """Figures of all outputs, or of some of them."""
        outputs = range(density.num_outputs) if outputs is None else outputs
        keys = jax.random.split(rng_key, 2 + 2 * density.num_outputs)
        posterior = self._posterior(keys[0], density.part("gamma2"))
        if posterior.positions is None:
            figures = [Figures(0.0, math.inf, Status.no_mass_found, 0.0) for _ in outputs]
            return posterior.run(figures, [])
        population = self._population(self.kernel_for(density))
        starts = jnp.asarray(_cut(posterior.positions, self.num_islands, self.num_particles))
        figures, bridges = [], []
        for output in outputs:
            parts = []
            for number, name in enumerate(("gamma1_plus", "gamma1_minus")):
                key = keys[2 + 2 * output + number]
                parts.append(_bridge(population, key, density.part(name, output), starts))
            bridges.extend(parts)
            figures.append(_combine(parts[0], parts[1], posterior))
        if self.draws is not None and any(part.is_foreign for part in bridges):
            raise ProgramError(
                f"PosteriorBridge: the density of program {density.name!r} is 0 at some of the "
                "draws; they must be posterior draws of the same program and data."
            )
        run = posterior.run(figures, bridges)
        if self.cross_check is None:
            return run
        return _compared(run, self.cross_check, self.cross_check.run(keys[1], density), outputs)

    def _posterior(self, rng_key: jax.Array, density: Density) -> _Posterior:
        if self.draws is not None:
            return _Posterior(positions_of("PosteriorBridge", density, self.draws), 0, 0)
        num_tried = NUM_STARTS * self.num_islands
        chains = nuts_chains(rng_key, density, self.num_samples, self.num_warmup, self.num_islands)
        if chains is None:
            return _Posterior(None, num_tried, 0)
        return _Posterior(chains[0], num_tried, chains[1])


class _Posterior(NamedTuple):
    """Posterior draws of shape (chains, draws, dimension), or None, and their cost."""

    positions: np.ndarray | None
    num_evaluations: int
    num_gradients: int

    @property
    def ess(self) -> float:
        """The least effective sample size of any coordinate."""
        if self.positions is None:
            return 0.0
        sizes = np.asarray(autocorrelation_size(self.positions))
        return float(np.clip(np.nan_to_num(sizes), 0.0, self.positions[..., 0].size).min())

    @property
    def statuses(self) -> list[Status]:
        assert self.positions is not None
        found = [Status.ok if self.ess >= MIN_ESS else Status.low_ess]
        if not r_hat(self.positions) <= MAX_R_HAT:
            found.append(Status.not_converged)
        return found

    def run(self, figures: list[Figures], bridges: list[_Bridged]) -> Run:
        return Run(
            figures=tuple(figures),
            num_evaluations=self.num_evaluations + sum(part.num_evaluations for part in bridges),
            num_gradients=self.num_gradients + sum(part.num_gradients for part in bridges),
            ess_z2=self.ess,
            notes=(NOTE,),
        )


def _cut(positions: np.ndarray, num_islands: int, num_particles: int) -> np.ndarray:
    """The draws, chain after chain, as the first particles of the islands.

    Spread evenly: thinned where there are too many, repeated where there are too few.
    """
    count = num_islands * num_particles
    flat = positions.reshape(-1, positions.shape[-1])
    return flat[np.arange(count) * len(flat) // count].reshape(num_islands, num_particles, -1)


class _Bridged(NamedTuple):
    """log of Z1±/Z2 by island, and how it went."""

    log_ratios: np.ndarray
    ess: float
    statuses: list[Status]
    num_evaluations: int
    num_gradients: int
    is_foreign: bool

    @property
    def log_mean(self) -> float:
        return log_mean(self.log_ratios)


def from_posterior(beta: jax.Array) -> PathPoint:
    """The path from the posterior to the target."""
    return PathPoint(jnp.ones_like(beta), beta)


class _Trail(NamedTuple):
    """What the islands leave: log f± of every particle at every temperature, and the cost."""

    betas: jax.Array
    log_target: jax.Array
    is_finished: jax.Array
    is_foreign: jax.Array
    evaluations: jax.Array
    gradients: jax.Array
    invalid: jax.Array


@functools.partial(jax.jit, static_argnums=0)
def _temper_islands(
    population: Population, rng_key: jax.Array, density: Density, starts: jax.Array
) -> _Trail:
    """Islands led from posterior draws to the target."""
    terms: Terms = jax.vmap(jax.vmap(density.terms))(starts)
    is_bad = is_invalid(terms.log_target)
    is_foreign = ~(terms.log_prior + terms.log_likelihood > -jnp.inf)
    terms = terms._replace(log_target=jnp.where(is_bad, -jnp.inf, terms.log_target))
    clouds = jax.vmap(lambda *args: start_cloud(population, density, *args))(
        starts, terms, is_bad.sum(axis=1)
    )
    has_mass = (terms.log_target > -jnp.inf).any(axis=1)
    clouds = clouds._replace(log_z=jnp.where(has_mass, clouds.log_z, -jnp.inf))
    clouds, log_target = drive(
        population,
        rng_key,
        density,
        from_posterior,
        clouds,
        keep=lambda clouds: clouds.terms.log_target,
    )
    assert log_target is not None
    leader = jnp.argmax(clouds.step)
    return _Trail(
        betas=jnp.concatenate([jnp.zeros(1, starts.dtype), clouds.betas[leader]]),
        log_target=log_target,
        is_finished=((clouds.beta == 1) | ~has_mass).all(),
        is_foreign=is_foreign.any(),
        evaluations=clouds.evaluations,
        gradients=clouds.gradients,
        invalid=clouds.invalid,
    )


def _bridge(
    population: Population, rng_key: jax.Array, density: Density, starts: jax.Array
) -> _Bridged:
    trail = remember(
        "islands", lambda: _temper_islands(population, rng_key, density, starts), _Trail
    )
    log_target = np.asarray(trail.log_target, float)
    betas = np.asarray(trail.betas, float)
    betas = betas[np.isfinite(betas)]
    # Draws of another density give no ratio, and a warning that the refusal of them makes needless.
    with np.errstate(invalid="ignore"):
        log_ratios = np.array(
            [
                _log_ratio(betas, log_target[:, island], population.num_chains)
                for island in range(population.num_islands)
            ]
        )
    statuses = [Status.nan_density] if total(trail.invalid) else []
    if not trail.is_finished:
        statuses.append(Status.not_converged)
    alive = np.asarray(starts)[log_target[0] > -np.inf]
    # Equal weights inside an island, the islands weighted by what they found.
    ess = population.num_particles * effective_sample_size(log_ratios)
    return _Bridged(
        log_ratios,
        min(ess, float(len(np.unique(alive, axis=0)))),
        statuses,
        total(trail.evaluations),
        total(trail.gradients),
        bool(trail.is_foreign),
    )


def _log_ratio(betas: np.ndarray, log_target: np.ndarray, num_chains: int) -> float:
    """log of the path's end over its start: each step bridged between the particles of its ends.

    The particles at both temperatures serve the step between them, which the mean weight of those
    at the first alone does not; all that a step needs of a particle is its log f.
    """
    if not (log_target[0] > -np.inf).any():
        return -math.inf
    log_ratio = 0.0
    for t, step in enumerate(np.diff(betas)):
        at_start, at_end = step * log_target[t], step * log_target[t + 1]
        log_ratio += meng_wong(at_end.reshape(num_chains, -1), at_start)[0]
    return log_ratio


def _combine(plus: _Bridged, minus: _Bridged, posterior: _Posterior) -> Figures:
    """(Z1⁺ − Z1⁻)/Z2 as the mean over islands, with the error between them."""
    parts = [part for part in (plus, minus) if part.log_mean > -math.inf]
    statuses = [status for part in (plus, minus) for status in part.statuses]
    figures = Figures(
        value=0.0,
        standard_error=math.inf,
        status=worst([Status.no_mass_found, *statuses]),
        ess_z1=min((part.ess for part in parts), default=0.0),
        upper_bound=rule_of_three(posterior.ess),
        ess_z1_plus=plus.ess,
        ess_z1_minus=minus.ess,
    )
    if not parts:
        return figures
    log_scale = max(part.log_mean for part in parts)
    sizes = [np.exp(part.log_ratios - log_scale) for part in (plus, minus)]
    count = len(plus.log_ratios)
    differences = sizes[0] - sizes[1]
    error = float(differences.std(ddof=1)) / math.sqrt(count)
    statuses += posterior.statuses
    for size, part in zip(sizes, (plus, minus), strict=True):
        # A weak part does not matter while all of it is less than the error.
        if size.mean() > 0.5 * error:
            variance = size.var(ddof=1) / count / size.mean() ** 2
            is_fine = part.ess >= MIN_ESS and is_precise(variance, count - 1)
            statuses.append(Status.ok if is_fine else Status.low_ess)
    scale = math.exp(min(log_scale, LOG_MAX))
    return figures._replace(
        value=float(differences.mean()) * scale,
        standard_error=error * scale,
        magnitude=float(sizes[0].mean() + sizes[1].mean()) * scale,
        status=worst(statuses),
        degrees=float(count - 1),
        is_log_scale=len(parts) == 1,
    )


def _compared(run: Run, method: Method, other: Run, outputs: Sequence[int]) -> Run:
    """The same figures, their status and notes after the comparison with another route."""
    figures, notes = [], list(run.notes)
    for mine, output in zip(run.figures, outputs, strict=True):
        theirs = other.figures[output]
        said = f"{method!r} says {theirs.value:.4g} ± {theirs.standard_error:.2g}"
        if not theirs.status:
            notes.append(f"not cross-checked: {method!r} is {theirs.status.name}")
        elif joint_errors(mine, theirs) > MAX_JOINT_ERRORS:
            notes.append(f"the cross-check disagrees: {said}")
            mine = mine._replace(status=worst([mine.status, Status.replicates_disagree]))
        else:
            notes.append(f"the cross-check agrees: {said}")
        figures.append(mine)
    return run._replace(
        figures=tuple(figures),
        num_evaluations=run.num_evaluations + other.num_evaluations,
        num_gradients=run.num_gradients + other.num_gradients,
        evidence=other.evidence,
        notes=tuple(notes),
    )
