"""One pass over many data sets of one program: the stages of `AdaptiveIS`, small and side by side.

Probe, explore, fit, integrate and check as there, with the same rules for what is `ok`. Prior
draws, scouts and evaluations are those of all data sets at once. What takes more than this pass has
is not done here: a data set that has not earned its trust is handed over, with the reason.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import jax
import numpy as np

from estimand.density import Density, has_varying_scales
from estimand.estimators import SMC
from estimand.kernels import DrivenKernel
from estimand.methods.adaptive import Limits, Part, parts_of
from estimand.methods.adaptive.draws import GAMMA2, Draws, Evaluated, Means, output_estimate, pooled
from estimand.methods.adaptive.fit import fit_points
from estimand.methods.adaptive.integrate import MIN_CONTROLLED, lack_of
from estimand.methods.adaptive.judge import judge
from estimand.methods.adaptive.looks import MAX_HIDDEN_SHARE, NEGLIGIBLE, centred_looks, looks_of
from estimand.methods.adaptive.plan import Plan, Sizes, State
from estimand.methods.adaptive.proposal import Exploration, Proposal
from estimand.methods.adaptive.refine import refit_group
from estimand.methods.adaptive.validate import Beyond, share_beyond
from estimand.methods.protocol import Run, in_plain_coordinates
from estimand.model import PLAIN
from estimand.runtime import Runtime, run_task
from estimand.sampling import (
    Mixture,
    Swarm,
    SwarmSize,
    effective_sample_size,
    evaluate_stack,
    margin_spreads,
    prior_positions_of,
    recoordinated_stack,
    run_swarms,
    stacked,
)
from estimand.sampling import mixture as mixtures
from estimand.trust import Goal, thresholds

# Prior draws of every data set, and of every scout.
PROBE = 1024
# Chains and moves of scouts: random walks in few dimensions, gradients in more.
SMALL, LARGE = SwarmSize(256, 2), SwarmSize(512, 3)
MAX_DIMENSION = 20
MAX_PARTS = 100
# γf± or a term has scouts of its own unless so many of those of γ are effective for it.
MIN_SEEN_SHARE = 0.1
PILOT = 1024
# A mixture of which this share of the pilot draws is effective is not fitted again, and one of
# which fewer draws are effective cannot be.
GOOD_SHARE, MIN_REFIT = 0.4, 20.0
NUM_REPLICATES = 16
# Draws of each replicate, round after round.
ROUNDS = (256, 256, 512, 1024)
# Nothing more is drawn if so many times all rounds would not be enough.
HOPELESS = 2.0
ROUTE = "the mixture, with all data sets at once"


Pair = tuple[int, Part]
"""A data set, by its number, and a part of its program."""


class Outcome(NamedTuple):
    """What the pass says of a data set: a run that is `ok`, or why it is handed over."""

    run: Run | None
    reason: str = ""


def unsuited(density: Density) -> str:
    """Why the pass cannot take a program; empty if it can."""
    layout = density.layout
    if layout.improper_sites:
        return f"the prior of {layout.improper_sites[0]!r} is improper"
    if not layout.is_relaxable:
        return f"site {layout.discrete_sites[0]!r} is discrete and no integer"
    if not 1 <= density.dimension <= MAX_DIMENSION:
        return f"it has {density.dimension} dimensions; from 1 to {MAX_DIMENSION} are suited"
    if (count := len(parts_of(density))) > MAX_PARTS:
        return f"it has {count} parts; at most {MAX_PARTS} are suited"
    return ""


def run_lane(
    densities: Sequence[Density], keys: Sequence[jax.Array], goal: Goal, runtime: Runtime
) -> list[Outcome]:
    """What one pass says of every data set.

    Args:
        densities: γ of one program with each of the data sets, all of equal shapes.
        keys: a random key for each. What is said of a data set follows from its own alone.
        goal: the error that is asked for.
        runtime: where the tasks run.
    """
    lane = _Lane(densities, keys, goal, runtime)
    for stage in (lane.probe, lane.explore, lane.fit, lane.refine, lane.integrate, lane.check):
        stage()
    return [lane.outcome(number) for number in range(len(densities))]


class _Lane:
    """Where all data sets stand. Those with a reason to be handed over are in no further stage."""

    def __init__(
        self, densities: Sequence[Density], keys: Sequence[jax.Array], goal: Goal, runtime: Runtime
    ):
        first = densities[0]
        self.is_hierarchy = has_varying_scales(first)
        coordinates = first.relaxed().with_looks()
        if self.is_hierarchy or not first.has_comparisons:
            coordinates = coordinates.standardised()
        self.runtime = runtime
        self.kernel = cast(DrivenKernel, SMC().kernel_for(coordinates).structure())
        self.size = LARGE if self.kernel.needs_gradient else SMALL
        parts, looks = parts_of(coordinates), looks_of(coordinates)
        limits = Limits(goal, math.inf, math.inf)
        sizes = Sizes(PILOT, ROUNDS[0], NUM_REPLICATES)
        self.plans = [
            Plan(own, own, parts, SMC(), sizes, limits, key, 0.0, looks)
            for density, key in zip(densities, keys, strict=True)
            for own in [dataclasses.replace(coordinates, arrays=density.arrays)]
        ]
        self.states = [State() for _ in densities]
        self.reasons = [""] * len(densities)

    @property
    def left(self) -> list[int]:
        """The data sets that are still in the pass."""
        return [number for number, reason in enumerate(self.reasons) if not reason]

    # --- stages ---

    def probe(self) -> None:
        """Draws from the prior: what f and its comparisons are like, and the defensive component."""
        left = self.left
        stack = stacked([self.plans[k].density for k in left])
        seeds = [self.plans[k].seed("probe") for k in left]
        positions = run_task(self.runtime, prior_positions_of, stack, seeds, PROBE)
        columns = run_task(self.runtime, evaluate_stack, stack, positions)
        scales = None
        if self.plans[0].density.has_comparisons:
            scales = run_task(self.runtime, margin_spreads, stack, positions)
        for place, k in enumerate(left):
            evaluated = Evaluated(positions[place], *(column[place] for column in columns))
            if not np.isfinite(evaluated.positions).all():
                self.reasons[k] = "prior draws are not numbers"
                continue
            covariance = np.atleast_2d(np.cov(evaluated.positions.T))
            prior = mixtures.gaussian(evaluated.positions.mean(axis=0), _inverse(covariance))
            probe = Draws.from_prior(evaluated, NUM_REPLICATES)
            self.states[k] = self.states[k].paid(PROBE)._replace(probe=probe, prior=prior)
            if scales is not None:
                softened = self.plans[k].density.softened(scales[place])
                self.plans[k] = self.plans[k]._replace(softened=softened)

    def explore(self) -> None:
        """Scouts of γ, and of the parts and terms that those of γ do not see."""
        found = self._scouted([(k, GAMMA2) for k in self.left], "explore")
        self._take(found)
        for k in self.left:
            if (k, GAMMA2) not in found:
                self.reasons[k] = "no mass of the posterior was found"
        left = self.left
        if not left:
            return
        points = np.stack([self.states[k].found[GAMMA2].points for k in left])
        evaluated = self._evaluated(left, points)
        unseen = [
            (k, part)
            for k, own in zip(left, evaluated, strict=True)
            for part in (*self.plans[k].parts[1:], *self.plans[k].looks)
            if _seen_share(part, own) < MIN_SEEN_SHARE and self._is_there(k, part, own)
        ]
        self._take(self._scouted(unseen, "explore"))

    def fit(self) -> None:
        """A mixture for every part that was explored."""
        for k in self.left:
            plan, state = self.plans[k], self.states[k]
            groups = {
                part: fit_points(
                    found, None, bool(part.sign) and plan.has_ladder, plan.seed("fit", *part.label)
                )
                for part, found in state.found.items()
            }
            self.states[k] = state._replace(groups=groups)

    def refine(self) -> None:
        """A refit to pilot draws where that helps, and the shares of the parts."""
        proposals = {k: Proposal.of(self.states[k].groups, self._prior(k)) for k in self.left}
        pilots = self._drawn(proposals, PILOT, "pilot")
        weak = {k: draws for k, draws in pilots.items() if self._least_share(k, draws) < GOOD_SHARE}
        refits = {k: self._refitted(k, proposals[k], pilot) for k, pilot in weak.items()}
        for k, pilot in self._drawn(refits, PILOT, "pilot after refit").items():
            if self._least_share(k, pilot) > self._least_share(k, pilots[k]):
                proposals[k], pilots[k] = refits[k], pilot
        for k, proposal in proposals.items():
            allocated = proposal.allocated(pilots[k], self.plans[k].parts)
            allocated = allocated._replace(least_control=MIN_CONTROLLED / ROUNDS[0])
            groups = dict(allocated.groups)
            self.states[k] = self.states[k]._replace(proposal=allocated, groups=groups)

    def integrate(self) -> None:
        """Quasi-random replicates, until all parts have enough draws or the rounds are over."""
        left = self.left
        for number, count in enumerate(ROUNDS):
            proposals = {k: self._proposal(k) for k in left}
            drawn = self._drawn(proposals, count, f"round {number}", NUM_REPLICATES)
            for k, draws in drawn.items():
                before = self.states[k].draws
                if before is not None:
                    draws = Draws.join([before, draws])
                self.states[k] = self.states[k]._replace(draws=draws)
            left = [k for k in left if self._lacks(k)]
        for k in left:
            total = NUM_REPLICATES * sum(ROUNDS)
            self.reasons[k] = f"{total:,} draws did not suffice"

    def check(self) -> None:
        """Fresh scouts, and whether they found what the draws miss.

        Those of a hierarchy move in the model's own coordinates: where the mixture's have a neck
        that scouts do not enter, these have none.
        """
        wanted = [(k, part) for k in self.left for part in self._checked_parts(k)]
        found = self._scouted(wanted, "check", is_plain=self.is_hierarchy)
        self._take(found)
        for (k, part), item in found.items():
            state = self.states[k]
            beyond = _beyond(state, part, item)
            unseen = state.unseen | {part: beyond.left_out}
            is_missed = beyond.above > thresholds.MAX_EXCEEDANCE
            missed = state.missed | {part} if is_missed else state.missed
            self.states[k] = state._replace(unseen=unseen, missed=missed)

    def outcome(self, number: int) -> Outcome:
        """The run, if all of its outputs are `ok`."""
        if self.reasons[number]:
            return Outcome(None, self.reasons[number])
        plan, state = self.plans[number], self.states[number]
        outputs = judge(plan, state)
        for output in outputs:
            if not output.status:
                worst = max(output.findings, key=lambda finding: finding.status.severity)
                return Outcome(None, f"{worst.status.name}: {worst}")
        plain = in_plain_coordinates(outputs, plan.density)
        routed = tuple(output._replace(route=ROUTE) for output in plain)
        return Outcome(Run(routed, *state.cost))

    # --- what stages need ---

    def _scouted(
        self, pairs: list[Pair], name: str, *, is_plain: bool = False
    ) -> dict[Pair, _Found]:
        """What fresh scouts found of parts of data sets, but for those that have no mass."""
        if not pairs:
            return {}
        stack = stacked([part.of(self.plans[k].softened) for k, part in pairs])
        fitted = stack.model
        if is_plain:
            plain = PLAIN._replace(is_relaxed=fitted.coordinates.is_relaxed)
            stack = dataclasses.replace(stack, model=fitted.in_coordinates(plain))
        seeds = [self.plans[k].seed(name, *part.label) for k, part in pairs]
        arguments = self.kernel, stack, seeds, self.size, PROBE
        swarm: Swarm = run_task(self.runtime, run_swarms, *arguments)
        positions, log_prior = swarm.positions, np.asarray(swarm.terms.log_prior)
        if is_plain:
            positions, log_prior = run_task(
                self.runtime, recoordinated_stack, stack, fitted, positions
            )
        log_density = log_prior + np.asarray(swarm.terms.log_weight)
        for place, (k, _) in enumerate(pairs):
            cost = int(swarm.num_evaluations[place]), int(swarm.num_gradients[place])
            self.states[k] = self.states[k].paid(*cost)
        chains = np.tile(np.arange(self.size.num_chains), self.size.num_moves + 1)
        return {
            pair: _Found(
                Exploration(positions[place], np.zeros(chains.size), chains), log_density[place]
            )
            for place, pair in enumerate(pairs)
            if not swarm.is_lost[place]
        }

    def _take(self, found: dict[Pair, _Found]) -> None:
        """Adds explorations to what is known of the data sets."""
        for (k, part), item in found.items():
            state = self.states[k]
            known = state.explored.get(part, ())
            self.states[k] = state._replace(
                explored=state.explored | {part: (*known, item.exploration)},
                found={part: item.exploration} | state.found,
            )

    def _evaluated(self, numbers: list[int], positions: np.ndarray) -> list[Evaluated]:
        """Positions of some data sets, all of them as many, with what the program says there."""
        stack = stacked([self.plans[k].density for k in numbers])
        columns = run_task(self.runtime, evaluate_stack, stack, positions)
        for k in numbers:
            self.states[k] = self.states[k].paid(positions.shape[1])
        return [
            Evaluated(positions[place], *(column[place] for column in columns))
            for place in range(len(numbers))
        ]

    def _drawn(
        self, proposals: dict[int, Proposal], count: int, name: str, num_replicates: int = 1
    ) -> dict[int, Draws]:
        """Draws of proposals, so many for each replicate."""
        if not proposals:
            return {}
        positions = np.stack(
            [
                proposal.draw_replicates(
                    (self.plans[k].seed("draw", name, r) for r in range(num_replicates)), count
                )
                for k, proposal in proposals.items()
            ]
        )
        owners = np.repeat(np.arange(num_replicates), count)
        evaluated = self._evaluated(list(proposals), positions)
        pairs = zip(proposals.items(), evaluated, strict=True)
        return {k: proposal.weighed(own, owners) for (k, proposal), own in pairs}

    def _proposal(self, k: int) -> Proposal:
        proposal = self.states[k].proposal
        assert proposal is not None
        return proposal

    def _prior(self, k: int) -> Mixture:
        prior = self.states[k].prior
        assert prior is not None
        return prior

    def _is_there(self, k: int, part: Part, points: Evaluated) -> bool:
        """Whether scouts can find a way to a part."""
        probe = self.states[k].probe
        assert probe is not None
        known = (probe.signs, probe.log_sizes), (points.signs, points.log_sizes)
        return self.plans[k].has_ladder or any(
            (part.log_sizes(*columns) > -np.inf).any() for columns in known
        )

    def _least_share(self, k: int, pilot: Draws) -> float:
        """The least share of pilot draws that is effective for a part that was fitted to."""
        return min(pilot.ess(part) for part in self.states[k].groups) / pilot.size

    def _refitted(self, k: int, proposal: Proposal, pilot: Draws) -> Proposal:
        groups = {
            part: refit_group(
                group, pooled([pilot], part), self.plans[k].seed("refit", *part.label)
            )
            for part, group in proposal.groups.items()
            if pilot.ess(part) > MIN_REFIT
        }
        return proposal._replace(groups=proposal.groups | groups)

    def _lacks(self, k: int) -> bool:
        """Whether more draws are needed. Where no round of these would do, nothing more is done."""
        draws = self.states[k].draws
        assert draws is not None
        factor = lack_of(self.plans[k], self.states[k], draws).factor
        if factor * draws.size > HOPELESS * NUM_REPLICATES * sum(ROUNDS):
            self.reasons[k] = "the mixture does not fit"
        return factor > 1 and not self.reasons[k]

    def _checked_parts(self, k: int) -> tuple[Part, ...]:
        """What fresh scouts look for: γ, all that was explored, and where f matters.

        Not γf± whose f is nowhere much larger than its mean: the scouts of γ look there, too.
        """
        plan, state = self.plans[k], self.states[k]
        assert state.draws is not None
        log_z2 = state.draws.weights(GAMMA2).log_mean
        parts = dict.fromkeys(state.found)
        for part in plan.parts[1:]:
            estimate = output_estimate(Means.of(state.draws), part.output)
            size = thresholds.exp(state.draws.weights(part).log_mean - log_z2)
            is_small = NEGLIGIBLE * size < plan.limits.goal.allowed(estimate)
            is_even = plan.density.farthest(part.output) * MAX_HIDDEN_SHARE <= estimate.magnitude
            if not is_small and not is_even:
                parts[part] = None
        return (*parts, *centred_looks(plan, state.draws))


class _Found(NamedTuple):
    """What scouts found of a part, and its log density at their points."""

    exploration: Exploration
    log_density: np.ndarray


def _seen_share(part: Part, points: Evaluated) -> float:
    """The share of points of γ that is effective for a part."""
    log_sizes = part.log_sizes(points.signs, points.log_sizes)
    log_sizes = np.where(np.isnan(log_sizes), -np.inf, log_sizes)
    return effective_sample_size(log_sizes) / log_sizes.size


def _beyond(state: State, part: Part, found: _Found) -> Beyond:
    """How much of what scouts found weighs more than any draw."""
    assert state.draws is not None and state.proposal is not None
    heaviest = float(state.draws.log_weights(part).max())
    if heaviest == -math.inf:
        return Beyond(1.0, 1.0)
    log_weights = found.log_density - state.proposal.log_density(found.exploration.points)
    return share_beyond(log_weights, heaviest, np.ones(log_weights.size))


def _inverse(covariance: np.ndarray) -> np.ndarray:
    """Of a covariance, whose variances are at least rounding."""
    variances = np.maximum(np.diag(covariance), 1e-12)
    return np.linalg.inv(0.99 * covariance + 0.01 * np.diag(variances))
