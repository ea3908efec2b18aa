"""Explore, fit, integrate: importance sampling from a mixture fitted to every part at once.

Scouts (independent runs of sequential Monte Carlo) find where γ, γf⁺ and γf⁻ have their mass; one
mixture is fitted to all of them; quasi-random draws from the frozen mixture then serve every
normalising constant and every output. The scouts only fit; fresh draws integrate: that keeps the
estimate unbiased and its error visible.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density, gradient_mode
from estimand.estimators.protocol import remembered
from estimand.estimators.smc import SMC
from estimand.methods.adaptive.draws import (
    GAMMA2,
    MIN_EFFECTIVE,
    Draws,
    Found,
    Part,
    controlled_log_mean,
    draw_prior,
    error_scale,
    evaluate,
    is_reached,
    output_figures,
    part_ess,
    part_status,
    part_variance,
    pooled,
    relative_weights,
)
from estimand.methods.adaptive.proposal import Exploration, Proposal
from estimand.methods.protocol import Figures, Run, in_plain_coordinates, worst
from estimand.model.sites import ProgramError
from estimand.runtime.interruption import offer
from estimand.runtime.journal import clock, remember
from estimand.runtime.progress import Progress, say
from estimand.sampling import mixture as mixtures
from estimand.sampling import warp as warps
from estimand.sampling.laplace import Mode, find_mode
from estimand.sampling.mixture import CHUNK
from estimand.sampling.warp import Warped, draw_from
from estimand.sampling.weights import effective_sample_size, log_mean
from estimand.settings import Settings, require_count
from estimand.trust.evidence import Evidence, evidence_from_weights
from estimand.trust.status import Status

PROBE = 4096
PILOT = 8192
# Draws that decide between the fit to points and the curvature at the mode.
TRIAL = 1024
MAX_REFITS = 8
MIN_REFIT = 20.0
# A part that has a smaller share of effective pilot draws is explored with so many times more
# particles.
MIN_PILOT_SHARE = 0.02
WIDER = 4
MIN_LAPLACE_DIMENSION = 7
MAX_WIDE_SCOUTS = 20
# Effective prior draws, at the least, from which a part is fitted without a scout.
ENOUGH_FROM_PRIOR = 100.0
FIRST_ROUND = 8192
# Draws are cheap beside a dear exploration: at least this share of its evaluations.
DRAW_SHARE = 0.3
# Draws of a replicate from a component, at the least, for its share to be a control variate.
MIN_CONTROLLED = 20
MAX_SOBOL_DIMENSION = 40
# Beyond what the budget allows by this factor, more draws are not worth while.
HOPELESS = 8.0
# An error that is larger than the asked one by this factor has not converged.
SLACK = 1.5
# Share of a fresh exploration's mass that may weigh more than any draw. On targets that the
# mixture fits it is below 0.001, on a funnel or a missed mode above 0.02.
MAX_EXCEEDANCE = 0.01
# Points of scouts, at the least, that rule out a missed mode in `MIN_LAPLACE_DIMENSION` or more.
MIN_EXPLORED = 6_000
# Where the density is NaN the prior must have less mass than this.
MAX_NAN_MASS = 1e-9
FULL = "no more draws fit in memory: refine() adds independent runs"


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AdaptiveIS(Settings):
    """Importance sampling from a fitted mixture; a method for all parts at once, and an estimator.

    ``estimate_expectation(expectation, AdaptiveIS())`` fits one mixture to all parts and lets
    every draw serve all of them. ``TABI(AdaptiveIS())`` treats each part on its own. Integer sites
    are spread: real numbers stand for them, each value having an interval of length one. It works
    on the host between compiled pieces and cannot itself be jitted.

    Args:
        relative_error: standard error to reach, relative to the value (to Z as an estimator).
        max_evaluations: evaluations that may be spent, a gradient counting as 3. What an
            exploration costs is known only afterwards: the first one is made in any case.
        max_seconds: time after which no further round is begun.
        num_replicates: independent quasi-random replicates, from which the error is estimated.
        standardise: explore and fit in coordinates in which location-scale priors are standard
            ones; False keeps the model's own, in which the edges of events are more often
            straight. By default False for events where no prior scale is unknown.
        scout: the sampler that explores; its islands are the independent scouts. By default five
            of 2,000 particles, 1,000 above 20 dimensions.

    Examples:
        >>> result = ep.estimate_expectation(program(2.0), ep.AdaptiveIS())
        >>> round(result.value, 1), result.status.name
        (2.5, 'ok')
    """

    relative_error: float = 0.01
    max_evaluations: int = 1_000_000
    max_seconds: float = math.inf
    num_replicates: int = 16
    standardise: bool | None = None
    scout: SMC | None = None

    def __post_init__(self) -> None:
        require_count("AdaptiveIS", "max_evaluations", self.max_evaluations)
        require_count("AdaptiveIS", "num_replicates", self.num_replicates)
        if self.num_replicates < 4:
            raise ValueError("AdaptiveIS: num_replicates must be at least 4 to give an error.")
        for name in ("relative_error", "max_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"AdaptiveIS: {name} must be positive; it is {getattr(self, name)}."
                )

    def check(self, density: Density) -> None:
        if not density.layout.is_spreadable:
            density.require_continuous("AdaptiveIS", "continuous sites or integers")
        if density.dimension == 0:
            raise ProgramError(
                f"AdaptiveIS: program {density.name!r} has nothing to draw; use Auto or TABI."
            )
        density = density.spread()
        self.scout_for(density).check(density)

    def scout_for(self, density: Density) -> SMC:
        """The scout, or the default one for the program."""
        if self.scout is not None:
            return self.scout
        size = 2000 if density.dimension <= MAX_WIDE_SCOUTS else 1000
        return SMC(num_particles=size, num_steps=20, num_islands=5)

    def _in_coordinates(self, density: Density) -> Density:
        standardise = self.standardise
        if standardise is None:
            standardise = not density.has_comparisons or density.has_varying_scales()
        density = density.spread()
        return density.standardised() if standardise else density

    def run(self, rng_key: jax.Array, density: Density) -> Run:
        density = self._in_coordinates(density)
        known, outputs = density.known_signs, range(density.num_outputs)
        signed = [Part(sign, i) for i in outputs for sign in (1, -1) if sign * known[i] >= 0]
        parts = [GAMMA2, *signed]
        work = _Work(self, rng_key, density, parts)
        return work.run(work.estimate())

    def estimate(self, rng_key: jax.Array, density: Density) -> Evidence:
        self.check(density)
        part = Part(int(density.sign), int(density.output))
        density = self._in_coordinates(density)
        work = _Work(self, rng_key, density, [part])
        evidence: Any = work.evidence(work.estimate(), part)
        if part in work.missed or work.is_thin:
            evidence = evidence._replace(relative_variance=jnp.asarray(jnp.inf))
        return evidence._replace(
            positions=density.in_plain_coordinates(evidence.positions),
            evaluations=np.asarray([work.num_evaluations]),
            gradients=np.asarray([work.num_gradients]),
            invalid=np.asarray([int(work.has_nan)]),
        )


class _Work:
    """One estimation under way: what has been fitted and spent so far."""

    def __init__(
        self, settings: AdaptiveIS, rng_key: jax.Array, density: Density, parts: list[Part]
    ):
        self.settings, self.density, self.parts = settings, density, parts
        # A smaller budget shrinks every stage, down to sizes below which no error can be had.
        share = max(1.0, len(parts) / 3)
        scale = min(1.0, max(0.05, settings.max_evaluations / (1_000_000 * share)))
        pilot = min(max(PILOT, 20 * mixtures.num_moments(density.dimension)), 5 * PILOT)
        self.pilot_size = int(pilot * scale * share)
        self.round_size = int(FIRST_ROUND * scale)
        scout = settings.scout_for(density)
        chains = max(8, int(scout.num_particles * scale) // scout.num_steps)
        self.scout = dataclasses.replace(
            scout, num_particles=min(chains * scout.num_steps, scout.num_particles)
        )
        host_key, scale_key, self.key = jax.random.split(rng_key, 3)
        self.softened = density.softened(scale_key)
        self.rng = np.random.default_rng(np.asarray(jax.random.key_data(host_key)).tolist())
        self.num_evaluations = self.num_gradients = 0
        self.has_nan = self.is_full = False
        self.groups: dict[Part, Warped] = {}
        self.explored: dict[Part, list[Exploration]] = {}
        self.part_costs: dict[Part, int] = {}
        self.missed: set[Part] = set()
        # Share of each part's mass that scouts found beyond the reach of the draws.
        self.unseen: dict[Part, float] = {}
        self.started = clock()

    def estimate(self) -> Draws | None:
        """The draws that the estimate is made of; None if no part was found to have mass."""
        self._explore()
        if not self.groups:
            return None
        self.exploration = self.spent, self.seconds
        proposal = self._refine()
        draws = self._integrate(proposal)
        costs = self.spent - self.exploration[0], self.seconds - self.exploration[1]
        self._validate(proposal, draws, list(self.explored))
        again = costs[0] + sum(self.part_costs[part] for part in self.missed)
        if self.missed and self._can_afford(again, costs[1] + self.exploration[1]):
            # What the fresh scouts found and the proposal missed is fitted too.
            missed = list(self.missed)
            for part in missed:
                found = Exploration.join(self.explored[part])
                self.groups[part] = self._fit(part, found.flattened())
            proposal = self._refine()
            draws = self._integrate(proposal)
            self._validate(proposal, draws, missed)
        self.has_nan |= draws.nan_mass() > MAX_NAN_MASS
        return draws

    def run(self, draws: Draws | None) -> Run:
        """What the draws say of all outputs."""
        run = Run(
            figures=tuple(_judged(self, draws, i) for i in range(self.density.num_outputs)),
            num_evaluations=self.num_evaluations,
            num_gradients=self.num_gradients,
            ess_z2=0.0 if draws is None else part_ess(draws, GAMMA2),
            log_z2=-math.inf if draws is None else controlled_log_mean(draws, GAMMA2),
            evidence=tuple((part.name, self.evidence(draws, part)) for part in self.parts),
            notes=(FULL,) * self.is_full,
        )
        return in_plain_coordinates(run, self.density)

    def _offer(self, draws: Draws) -> None:
        if GAMMA2 in self.parts:
            offer(lambda: self.run(draws))

    @property
    def spent(self) -> int:
        return self.num_evaluations + 3 * self.num_gradients

    @property
    def seconds(self) -> float:
        return clock() - self.started

    @property
    def is_thin(self) -> bool:
        """Whether the scouts were too few to rule out that they all missed a mode."""
        count = sum(len(item.points) for found in self.explored.values() for item in found)
        return self.density.dimension >= MIN_LAPLACE_DIMENSION and 0 < count < MIN_EXPLORED

    def _can_afford(self, evaluations: float, seconds: float) -> bool:
        return (
            self.spent + evaluations <= self.settings.max_evaluations
            and self.seconds + seconds <= self.settings.max_seconds
        )

    def _say(self, stage: str, estimate: str = "") -> None:
        say(Progress(stage, self.spent, self.settings.max_evaluations, estimate))

    def _next_key(self) -> jax.Array:
        self.key, key = jax.random.split(self.key)
        return key

    def _evaluate(self, positions: np.ndarray) -> Found:
        dtype, count = jnp.result_type(float), len(positions)
        self.num_evaluations += count
        padded = np.concatenate([positions, np.repeat(positions[:1], -count % CHUNK, axis=0)])

        def evaluated() -> list[np.ndarray]:
            pieces = [
                evaluate(self.density, jnp.asarray(padded[start : start + CHUNK], dtype))
                for start in range(0, len(padded), CHUNK)
            ]
            return [
                np.concatenate([np.asarray(x, float) for x in column])[:count]
                for column in zip(*pieces, strict=True)
            ]

        return cast(Found, (positions, *remember("draws", evaluated)))

    # --- explore ---

    def _explore(self) -> None:
        self._say("drawing from the prior")
        keys = jax.random.split(self._next_key(), PROBE)
        drawn = remember("prior draws", lambda: draw_prior(self.density, keys))
        found = cast(Found, tuple(np.asarray(x, float) for x in drawn))
        self.num_evaluations += PROBE
        if np.isnan(found[0]).any():
            self.has_nan = True
            return
        probe = Draws(
            *found,
            log_proposal=found[1],
            replicate=np.zeros(PROBE, int),
            controls=np.zeros((PROBE, 0)),
        )
        self.has_nan |= probe.nan_mass() > 0
        self._offer(probe._replace(replicate=np.arange(PROBE) % self.settings.num_replicates))
        self.prior = mixtures.fit(probe.positions, np.zeros(PROBE), np.arange(PROBE), self.rng)
        enough = max(ENOUGH_FROM_PRIOR, 20 * mixtures.num_moments(self.density.dimension))
        for part in self.parts:
            log_weights = probe.log_weights(part)
            if not np.isfinite(log_weights).any() and self.softened is self.density:
                continue
            exploration = Exploration(probe.positions, log_weights, np.arange(PROBE))
            if effective_sample_size(log_weights) < enough:
                before = self.spent
                exploration = self._scout(part)
                self.explored[part], self.part_costs[part] = [exploration], self.spent - before
                exploration = exploration.flattened()
            if exploration.has_mass:
                self.groups[part] = self._fit(part, exploration)

    def _fit(self, part: Part, exploration: Exploration) -> Warped:
        """A mixture fitted to points, or the curvature at the mode where that fits better."""
        points, log_weights, _ = exploration
        density, rival = self.density.part(part.name, part.output), None
        if density.dimension >= MIN_LAPLACE_DIMENSION and gradient_mode(density) == "reverse":
            start = np.average(points, axis=0, weights=relative_weights(log_weights))
            from_here = jnp.asarray(start, jnp.result_type(float))
            mode = remember("mode", lambda: find_mode(density, from_here), Mode)
            # Every step has the cost of a gradient for each column of the second derivatives.
            self.num_gradients += (int(mode.num_steps) + 1) * (1 + 2 * density.dimension)
            if mode.is_found:
                rival = mixtures.gaussian(*(np.asarray(x, float) for x in mode[:2]))
        if part.sign and self.softened is not self.density:
            fitted = warps.fit(*exploration, self.rng, rival)
        else:
            fitted = Warped(mixtures.fit(*exploration, self.rng, rival))
        # Fewer points than a covariance has numbers are no judges of a fit; its own draws are.
        is_judged = len(points) >= mixtures.num_moments(density.dimension)
        if rival is None or is_judged or self._effective_share(fitted, part) > MIN_PILOT_SHARE:
            return fitted
        is_better = self._effective_share(Warped(rival), part) > MIN_PILOT_SHARE
        return Warped(rival) if is_better else fitted

    def _effective_share(self, group: Warped, part: Part) -> float:
        """Share of draws from a group alone that are effective for its part."""
        draws = self._draw(Proposal({part: group}, {part: 1.0}, self.prior), TRIAL, 0)
        return part_ess(draws, part) / TRIAL

    def _scout(self, part: Part, wider: int = 1) -> Exploration:
        label = {0: "γ", 1: "γf⁺", -1: "γf⁻"}[part.sign]
        self._say(f"exploring {label}")
        softened = self.softened.part(part.name, part.output) if part.sign else self.density
        count = wider * self.scout.num_particles
        scout = dataclasses.replace(self.scout, num_particles=count)
        evidence = remembered(scout, self._next_key(), softened)
        self.num_evaluations += evidence.num_evaluations
        self.num_gradients += evidence.num_gradients
        self.has_nan |= evidence.num_invalid > 0
        chains = np.arange(evidence.log_weights.size) // self.scout.num_steps
        return Exploration(
            np.asarray(evidence.positions, float), np.asarray(evidence.log_weights, float), chains
        )

    # --- fit ---

    def _refine(self) -> Proposal:
        """Refits from pilot draws while that helps, then divides the draws among the parts."""
        proposal = self._proposal()
        pilots, best, best_size = [self._draw(proposal, self.pilot_size, 0)], 0, 0.0
        if not self.missed and self._explore_more(pilots[0]):
            proposal = self._proposal()
            pilots = [self._draw(proposal, self.pilot_size, 0)]
        proposals = [proposal]
        for number in range(MAX_REFITS):
            self._say("fitting")
            sizes = {part: part_ess(pilots[-1], part) for part in proposal.groups}
            size = min(sizes.values())
            is_better = size > 1.05 * best_size
            if size > best_size:
                best, best_size = number, size
            if not is_better:
                break
            groups = dict(proposal.groups)
            for part, group in proposal.groups.items():
                if sizes[part] > MIN_REFIT:
                    points, log_weights = pooled(pilots, part)
                    groups[part] = group.refit(points, log_weights, self.rng)
            proposal = proposal._replace(groups=groups)
            proposals.append(proposal)
            pilots.append(self._draw(proposal, self.pilot_size, 0))
        proposal = proposals[best]
        return proposal.allocated(pilots[best], self.parts)

    def _proposal(self) -> Proposal:
        shares = dict.fromkeys(self.groups, 1 / len(self.groups))
        return Proposal(dict(self.groups), shares, self.prior)

    def _explore_more(self, pilot: Draws) -> bool:
        """Explores parts again, with more particles, that the pilot hardly sees."""
        is_any = False
        for part, cost in self.part_costs.items():
            is_weak = part_ess(pilot, part) < MIN_PILOT_SHARE * len(pilot.replicate)
            reserve = self.exploration[0] + self.settings.num_replicates * self.round_size
            seconds = WIDER * (self.exploration[1] + 1.0)
            if is_weak and self._can_afford(WIDER * cost + reserve, seconds):
                found = self._scout(part, wider=WIDER)
                if found.has_mass:
                    self.explored[part] = [found]
                    self.groups[part] = self._fit(part, found.flattened())
                    is_any = True
        return is_any

    def _draw(self, proposal: Proposal, count: int, replicate: int) -> Draws:
        shape = (count, self.density.dimension + 2)
        if self.density.dimension <= MAX_SOBOL_DIMENSION:
            uniforms = mixtures.sobol_uniforms(self.rng, *shape)
        else:
            uniforms = self.rng.random(shape)
        return proposal.evaluated(self._evaluate(draw_from(proposal.pieces, uniforms)), replicate)

    # --- integrate ---

    def _integrate(self, proposal: Proposal) -> Draws:
        """Rounds of replicates, each twice the last, until the error or the budget is reached."""
        replicates = range(self.settings.num_replicates)
        count = max(self.round_size, int(DRAW_SHARE * self.exploration[0] / len(replicates)))
        proposal = proposal._replace(least_control=MIN_CONTROLLED / count)
        self._say("integrating")
        began = self.seconds
        draws = Draws.join([self._draw(proposal, count, r) for r in replicates])
        self._offer(draws)
        reserve = self.exploration if self.explored else (0, 0.0)
        while (lack := self._lack(draws)) > 1:
            cost = len(replicates) * count
            seconds = (self.seconds - began) * cost / len(draws.replicate)
            self.is_full = not draws.has_room(cost)
            if self.is_full or not self._can_afford(reserve[0] + cost, reserve[1] + seconds):
                break
            left = self.settings.max_evaluations - self.spent - reserve[0]
            if lack * len(draws.replicate) > HOPELESS * (len(draws.replicate) + left):
                break
            more = [self._draw(proposal, count, r) for r in replicates]
            draws, count = Draws.join([draws, *more]), 2 * count
            self._offer(draws)
        return draws

    def _lack(self, draws: Draws) -> float:
        """How many times more draws the asked error needs; at most 1 where it is reached."""
        missing = max(MIN_EFFECTIVE / max(part_ess(draws, part), 1e-3) for part in self.groups)
        goal = self.settings.relative_error
        if len(self.parts) == 1:
            return max(missing, part_variance(draws, self.parts[0]) / goal**2)
        figures = [output_figures(draws, output) for output in range(self.density.num_outputs)]
        first, more = figures[0], ", …" * (len(figures) > 1)
        self._say("integrating", f"{first.value:.5g} ± {first.standard_error:.1g}{more}")
        errors = [item.standard_error / error_scale(item) for item in figures]
        return max(missing, *((error / goal) ** 2 for error in errors))

    def _validate(self, proposal: Proposal, draws: Draws, parts: list[Part]) -> None:
        """Explores again, and asks whether the new scouts found what the proposal misses.

        Weights, effective sample sizes and standard errors cannot see a mode that no draw came
        near; a fresh exploration can. What the points of all scouts weigh beyond the heaviest draw
        is mass that the estimate may lack, and counts as an error.
        """
        self.missed = set()
        for part in parts:
            fresh = self._scout(part)
            if not fresh.has_mass:
                continue
            explorations = [item for item in self.explored[part] if item.has_mass] + [fresh]
            self.explored[part], heaviest = explorations, draws.log_weights(part).max()
            if heaviest == -np.inf:
                self.unseen[part] = 1.0
                self.missed.add(part)
                continue
            shares = [self._beyond(item, part, proposal, heaviest) for item in explorations]
            self.unseen[part] = float(np.mean([lost for _, lost in shares]))
            if shares[-1][0] > MAX_EXCEEDANCE:
                self.missed.add(part)

    def _beyond(
        self, exploration: Exploration, part: Part, proposal: Proposal, heaviest: float
    ) -> np.ndarray:
        """Shares of the mass where weights are above the heaviest, and that these leave out."""
        evaluated = proposal.evaluated(self._evaluate(exploration.points), 0)
        excess = np.maximum(evaluated.log_weights(part) - heaviest, 0.0)
        weights = relative_weights(exploration.flattened().log_weights)
        return np.average([excess > 0, -np.expm1(-excess)], axis=1, weights=weights)

    def evidence(self, draws: Draws | None, part: Part) -> Evidence:
        """The draws as evidence of one part, with the error between replicates."""
        if draws is None:
            log_weights, positions = np.full(2, -np.inf), np.zeros((2, self.density.dimension))
        else:
            log_weights, positions = draws.log_weights(part), draws.positions
        zeros = jnp.zeros(log_weights.size, jnp.int32)
        evidence = evidence_from_weights(
            jnp.asarray(log_weights), jnp.asarray(positions), zeros, zeros, zeros
        )
        if draws is None:
            return evidence
        return evidence._replace(
            log_z=jnp.asarray(controlled_log_mean(draws, part)),
            degrees=self.settings.num_replicates - 1.0,
            relative_variance=jnp.asarray(
                part_variance(draws, part) + self.unseen.get(part, 0.0) ** 2
            ),
        )


def _judged(work: _Work, draws: Draws | None, output: int) -> Figures:
    """The figures of an output with the status that all of its parts deserve."""
    if draws is None:
        status = Status.nan_density if work.has_nan else Status.no_mass_found
        return Figures(0.0, math.inf, status, 0.0)
    figures = output_figures(draws, output)
    if work.has_nan:
        return figures._replace(status=Status.nan_density)
    if figures.status is not Status.ok:
        return figures
    log_z2 = log_mean(draws.log_weights(GAMMA2))
    statuses, errors = [], [figures.standard_error]
    for part in (GAMMA2, Part(1, output), Part(-1, output)):
        log_weights = draws.log_weights(part)
        size = math.exp(min(log_mean(log_weights) - log_z2, 700.0))
        unseen = work.unseen.get(part, 0.0)
        errors.append(unseen * (size if part.sign else abs(figures.value)))
        # A part does not matter while the error dwarfs all of it, unless it was not seen.
        if part == GAMMA2 or part in work.missed or size > 0.5 * figures.standard_error:
            statuses.append(part_status(log_weights, part in work.missed))
    figures = figures._replace(standard_error=math.hypot(*errors))
    if work.is_thin or not is_reached(figures, SLACK * work.settings.relative_error):
        statuses.append(Status.not_converged)
    return figures._replace(status=worst(statuses))
