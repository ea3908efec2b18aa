"""A tempered bridge from the posterior to the target: Z1⁺/Z2 and Z1⁻/Z2 without Z2."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density, PathPoint, Terms, is_invalid
from estimand.kernels import HMC, AdaptableKernel, RandomWalk
from estimand.methods.protocol import Cost, Method, Run
from estimand.model import ProgramError
from estimand.runtime import Runtime, Task, compiled_per_model, run_task
from estimand.sampling import (
    NUM_STARTS,
    Chains,
    Population,
    autocorrelation_size,
    check_draws,
    drive,
    effective_sample_size,
    freeze_draws,
    log_mean,
    meng_wong,
    nuts_chains,
    positions_of,
    r_hat,
    start_cloud,
    total,
)
from estimand.sampling import resampling as schemes
from estimand.settings import Settings, require_count, require_share
from estimand.trust import (
    EffectiveSizes,
    Finding,
    OutputEstimate,
    Parts,
    Ratio,
    Status,
    check_agreement,
    check_mixing,
    check_precision,
    check_size,
    from_ratio,
    is_material,
    no_mass,
    without_value,
)

NOTE = (
    "by the bridge from the posterior: a mode of the target where the posterior has no draws "
    "would be missed"
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class PosteriorBridge(Settings):
    """Posterior draws carried over to the target along γ·f^b, from b = 0 to b = 1.

    For high dimension, where NUTS explores the posterior well and annealing from the prior is
    expensive. Every chain starts a sequential Monte Carlo run of its own, an island; the estimate
    is the mean over islands and its error that between them, with Student's t. It goes where the
    posterior's draws lead: a mode that only f sees is missed, silently, and the result's notes
    always say so. `cross_check` compares it with a route that does not start at the posterior.

    Args:
        num_samples: posterior draws kept from each chain.
        num_warmup: draws discarded from the start of each chain.
        num_islands: independent chains, each the start of an island.
        draws: posterior draws instead, as ``mcmc.get_samples(group_by_chain=True)`` gives them: a
            dict of arrays by site with leading axes (chains, draws); or an ArviZ DataTree or
            InferenceData, whose posterior has the sites by name. They are cut into
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
        freeze_draws(self)
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
        if self.cross_check is not None and not isinstance(self.cross_check, Method):
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
            length = jnp.shape(self.draws[density.layout.sites[0].name])[1]
            if length < 4:
                raise ProgramError(
                    f"PosteriorBridge: draws has {length} draws in each chain; R-hat needs at "
                    "least 4."
                )
        if self.cross_check is not None:
            self.cross_check.check(density)

    def run(self, rng_key: jax.Array, density: Density, runtime: Runtime) -> Run:
        return self.run_outputs(rng_key, density, runtime, range(density.num_outputs))

    def run_outputs(
        self, rng_key: jax.Array, density: Density, runtime: Runtime, outputs: Sequence[int]
    ) -> Run:
        """Estimates of some of the outputs."""
        keys = jax.random.split(rng_key, 2 + 2 * density.num_outputs)
        posterior = self._posterior(keys[0], density.part("gamma2"), runtime)
        if not posterior.positions.size:
            finding = no_mass("no prior draw to start a chain from has posterior mass")
            unknown = without_value(finding, ess=EffectiveSizes(z2=0.0))
            return Run((unknown,) * len(outputs), *posterior.cost, notes=(NOTE,))
        population = self._population(self.kernel_for(density))
        starts = jnp.asarray(_cut(posterior.positions, self.num_islands, self.num_particles))
        tasks = [
            Task(
                _temper_islands,
                (population, keys[2 + 2 * output + number], density.part(name, output), starts),
                kinds=(_Trail,),
            )
            for output in outputs
            for number, name in enumerate(("gamma1_plus", "gamma1_minus"))
        ]
        bridges = [_bridge(population, starts, trail) for trail in runtime.map(tasks)]
        if self.draws is not None and any(part.is_foreign for part in bridges):
            raise ProgramError(
                f"PosteriorBridge: the density of program {density.name!r} is 0 at some of the "
                "draws; they must be posterior draws of the same program and data."
            )
        run = Run(
            tuple(
                _combine(plus, minus, posterior)
                for plus, minus in zip(bridges[::2], bridges[1::2], strict=True)
            ),
            *sum((part.cost for part in bridges), start=posterior.cost),
            notes=(NOTE,),
        )
        if self.cross_check is None:
            return run
        other = self.cross_check.run(keys[1], density, runtime)
        return _compared(run, self.cross_check, other, outputs)

    def _posterior(self, rng_key: jax.Array, density: Density, runtime: Runtime) -> _Posterior:
        if self.draws is not None:
            return _Posterior(positions_of("PosteriorBridge", density, self.draws), Cost())
        settings = self.num_samples, self.num_warmup, self.num_islands
        chains: Chains = run_task(
            runtime, nuts_chains, rng_key, density, *settings, kinds=(Chains,)
        )
        cost = Cost(NUM_STARTS * self.num_islands, chains.num_gradients)
        return _Posterior(chains.positions, cost)


class _Posterior(NamedTuple):
    """Posterior draws of shape (chains, draws, dimension), empty if there are none; their cost."""

    positions: np.ndarray
    cost: Cost

    @property
    def ess(self) -> float:
        """The least effective sample size of any coordinate."""
        sizes = autocorrelation_size(self.positions)
        return float(np.clip(np.nan_to_num(sizes), 0.0, self.positions[..., 0].size).min())

    def findings(self) -> list[Finding]:
        return check_size(self.ess, "Z2") + check_mixing(r_hat(self.positions), "Z2")


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
    findings: list[Finding]
    cost: Cost
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


@compiled_per_model(static_argnums=(0,))
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


def _bridge(population: Population, starts: jax.Array, trail: _Trail) -> _Bridged:
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
    findings = []
    if num_invalid := total(trail.invalid):
        detail = f"the density was NaN or +inf at {num_invalid:,} positions"
        findings.append(Finding(Status.nan_density, None, detail, "numbers"))
    if not trail.is_finished:
        detail = "islands did not reach the target in the largest number of temperatures"
        findings.append(Finding(Status.not_converged, None, detail, "path"))
    alive = np.asarray(starts)[log_target[0] > -np.inf]
    # Equal weights inside an island, the islands weighted by what they found.
    ess = population.num_particles * effective_sample_size(log_ratios)
    return _Bridged(
        log_ratios=log_ratios,
        ess=min(ess, float(len(np.unique(alive, axis=0)))),
        findings=findings,
        cost=Cost(total(trail.evaluations), total(trail.gradients)),
        is_foreign=bool(trail.is_foreign),
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


def _combine(plus: _Bridged, minus: _Bridged, posterior: _Posterior) -> OutputEstimate:
    """(Z1⁺ − Z1⁻)/Z2 as the mean over islands, with the error between them."""
    parts = {"Z1_plus": plus, "Z1_minus": minus}
    present = [part for part in parts.values() if part.log_mean > -math.inf]
    findings = [finding for part in parts.values() for finding in part.findings]
    ess = EffectiveSizes(
        z1=min((part.ess for part in present), default=0.0),
        z2=posterior.ess,
        plus=plus.ess,
        minus=minus.ess,
    )
    if not present:
        finding = no_mass("f is 0 at all posterior draws")
        return without_value(finding, *findings, ess=ess, num_draws=posterior.ess)
    log_scale = max(part.log_mean for part in present)
    sizes = {name: np.exp(part.log_ratios - log_scale) for name, part in parts.items()}
    count = len(plus.log_ratios)
    differences = sizes["Z1_plus"] - sizes["Z1_minus"]
    errors = {name: size.std(ddof=1) / math.sqrt(count) for name, size in sizes.items()}
    findings += posterior.findings()
    for name, part in parts.items():
        others = [error for other, error in errors.items() if other != name]
        if is_material(sizes[name].mean(), others):
            variance = (errors[name] / sizes[name].mean()) ** 2
            findings += check_size(part.ess, name) + check_precision(variance, count - 1, name)
    ratio = Ratio(
        log_scale=log_scale,
        value=float(differences.mean()),
        standard_error=float(differences.std(ddof=1)) / math.sqrt(count),
        magnitude=float(sum(size.mean() for size in sizes.values())),
        degrees=float(count - 1),
    )
    output = from_ratio(ratio, parts=Parts(), ess=ess, is_one_sided=len(present) == 1)
    return output.with_findings(findings)


def _compared(run: Run, method: Method, other: Run, outputs: Sequence[int]) -> Run:
    """The same estimates with what the comparison with another route found."""
    compared, notes = [], []
    for mine, number in zip(run.outputs, outputs, strict=True):
        theirs = other.outputs[number]
        findings = []
        if not theirs.status:
            notes.append(f"not cross-checked: {method!r} is {theirs.status.name}")
        else:
            findings = check_agreement(mine, theirs, repr(method))
            said = f"{method!r} says {theirs.value:.4g} ± {theirs.standard_error:.2g}"
            verb = "disagrees" if findings else "agrees"
            notes.append(f"the cross-check {verb}: {said}")
        compared.append(mine.with_findings(findings))
    cost = run.cost + other.cost
    return Run(tuple(compared), *cost, notes=run.notes).with_notes(*notes)
