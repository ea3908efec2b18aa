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

from estimand.density import MAGNITUDE, Density, has_varying_scales
from estimand.estimators import SMC
from estimand.kernels import DrivenKernel
from estimand.methods.adaptive import Limits, Part, parts_of
from estimand.methods.adaptive.draws import GAMMA2, Draws, Evaluated, Means, output_estimate
from estimand.methods.adaptive.integrate import MIN_CONTROLLED, lack_of
from estimand.methods.adaptive.judge import judge
from estimand.methods.adaptive.looks import MAX_HIDDEN_SHARE, NEGLIGIBLE, centred_looks, looks_of
from estimand.methods.adaptive.plan import Plan, Sizes, State
from estimand.methods.adaptive.proposal import Exploration, Proposal
from estimand.methods.adaptive.validate import Beyond, share_beyond
from estimand.methods.protocol import Run, in_plain_coordinates
from estimand.model import PLAIN
from estimand.runtime import Runtime, run_task
from estimand.sampling import (
    Mixture,
    Swarm,
    SwarmSize,
    Warped,
    effective_sample_size,
    evaluate_stack,
    fit_stack,
    margin_spreads,
    prior_positions_of,
    recoordinated_stack,
    refit_stack,
    run_swarms,
    stacked,
)
from estimand.sampling import mixture as mixtures
from estimand.trust import Goal, thresholds

# Prior draws of every data set, and of every scout.
PROBE = 1024
# Chains and moves of scouts: in few dimensions, and from 7 on, where three explorations have the
# 6,000 points that rule out a missed mode.
SMALL, LARGE = SwarmSize(256, 2), SwarmSize(512, 3)
MAX_DIMENSION = 20
MAX_PARTS = 100
# γf± or a term has scouts of its own unless so many of those of γ are effective for it.
MIN_SEEN_SHARE = 0.1
# With fewer of them than this share it has a mixture of its own, fitted to the points of γ.
MIN_SHARED = 0.7
# Points that a mixture is fitted to.
MAX_FIT_POINTS = 1024
PILOT = 1024
# A mixture of which this share of the pilot draws is effective is not fitted again, and one of
# which fewer draws are effective cannot be.
GOOD_SHARE, MIN_REFIT = 0.4, 20.0
# Refits, at the most, of which each must gain so much.
MAX_REFITS, MIN_GAIN = 3, 1.05
NUM_REPLICATES = 16
# Draws of each replicate, round after round.
ROUNDS = (256, 256, 512, 1024, 2048)
# Draws of each replicate, beyond those, where scouts found heavier points.
MORE = 512
# How often the stages from fitting on are gone through: what the first check finds is fitted.
MAX_ATTEMPTS = 2
# Nothing more is drawn if so many times all rounds would not be enough.
HOPELESS = 1.5
LANE = "the mixture, with all data sets at once"


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
    lane.probe()
    lane.explore()
    for _ in range(MAX_ATTEMPTS):
        lane.fit()
        lane.refine()
        lane.integrate()
        lane.check()
        lane.begin_again()
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
        has_many_dimensions = first.dimension >= thresholds.MIN_EXPLORED_DIMENSION
        self.size = LARGE if has_many_dimensions else SMALL
        limits = Limits(goal, math.inf, math.inf)
        sizes = Sizes(PILOT, ROUNDS[0], NUM_REPLICATES)
        # Signs and bounds of outputs follow from the data, too.
        self.plans = [
            Plan(own, own, parts_of(own), SMC(), sizes, limits, limits, key, 0.0, looks_of(own))
            for density, key in zip(densities, keys, strict=True)
            for own in [dataclasses.replace(coordinates, arrays=density.arrays)]
        ]
        self.states = [State() for _ in densities]
        self.reasons = [""] * len(densities)
        self.left = list(range(len(densities)))
        """The data sets that are still in the pass."""

    def hand_over(self, number: int, reason: str) -> None:
        """Takes a data set out of the pass."""
        self.reasons[number] = reason
        self.left = [k for k in self.left if k != number]

    # --- stages ---

    def probe(self) -> None:
        """Draws from the prior: what f and its comparisons are like, and a defensive component."""
        left = list(self.left)
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
                self.hand_over(k, "prior draws are not numbers")
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
        for k in list(self.left):
            if (k, GAMMA2) not in found:
                self.hand_over(k, "no mass of the posterior was found")
        left = self.left
        if not left:
            return
        points = np.stack([self.states[k].found[GAMMA2].points for k in left])
        evaluated = self._evaluated(left, points)
        unseen = []
        for k, own in zip(left, evaluated, strict=True):
            for part in (*self.plans[k].parts[1:], *self.plans[k].looks):
                log_sizes = part.log_sizes(own.signs, own.log_sizes)
                log_sizes = np.where(log_sizes < np.inf, log_sizes, -np.inf)
                share = effective_sample_size(log_sizes) / log_sizes.size
                if share < MIN_SEEN_SHARE and self._is_there(k, part, log_sizes):
                    unseen.append((k, part))
                elif part.sign != MAGNITUDE and MIN_SEEN_SHARE <= share < MIN_SHARED:
                    self._take_weighted(k, part, log_sizes)
        self._take(self._scouted(unseen, "explore"))

    def fit(self) -> None:
        """A mixture for every part that was explored, and has none or was missed."""
        pairs = [
            (k, part)
            for k in self.left
            for part in self.states[k].found
            if part not in self.states[k].groups or part in self.states[k].missed
        ]
        thinned = {(k, part): _thinned(self.states[k].found[part]) for k, part in pairs}
        sizes = [len(item.points) for item in thinned.values()]
        for size in dict.fromkeys(sizes):
            some = [pair for pair, own in zip(pairs, sizes, strict=True) if own == size]
            found = [thinned[pair] for pair in some]
            is_held_out = found[0].chains % 4 == 0
            rngs = [
                np.random.default_rng(
                    self.plans[k].seed("fit", self.states[k].attempt, *part.label)
                )
                for k, part in some
            ]
            fitted = fit_stack(
                np.stack([item.points for item in found]),
                np.stack([item.log_weights for item in found]),
                is_held_out,
                rngs,
            )
            for (k, part), mixture in zip(some, fitted, strict=True):
                groups = self.states[k].groups | {part: Warped(mixture)}
                self.states[k] = self.states[k]._replace(groups=groups)

    def refine(self) -> None:
        """Refits to pilot draws where that helps, and the shares of the parts."""
        proposals = {k: Proposal.of(self.states[k].groups, self._prior(k)) for k in self.left}
        pilots = self._drawn(proposals, PILOT, "pilot")
        weak = list(proposals)
        for number in range(MAX_REFITS):
            weak = [k for k in weak if self._least_share(k, pilots[k]) < GOOD_SHARE]
            refits = self._refitted({k: proposals[k] for k in weak}, pilots)
            drawn = self._drawn(refits, PILOT, f"pilot after refit {number}")
            weak = [
                k
                for k, pilot in drawn.items()
                if self._least_share(k, pilot) > MIN_GAIN * self._least_share(k, pilots[k])
            ]
            proposals |= {k: refits[k] for k in weak}
            pilots |= {k: drawn[k] for k in weak}
        for k, proposal in proposals.items():
            allocated = proposal.allocated(pilots[k], self.plans[k].parts)
            allocated = allocated._replace(least_control=MIN_CONTROLLED / ROUNDS[0])
            groups = dict(allocated.groups)
            self.states[k] = self.states[k]._replace(proposal=allocated, groups=groups)

    def integrate(self) -> None:
        """Quasi-random replicates, until all parts have enough draws or the rounds are over."""
        left = list(self.left)
        for k in left:
            self.states[k] = self.states[k]._replace(draws=None)
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
            self.hand_over(k, f"{total:,} draws did not suffice")

    def check(self) -> None:
        """Fresh scouts, and whether they found what the draws miss.

        Those of a hierarchy move in the model's own coordinates: where the mixture's have a neck
        that scouts do not enter, these have none.
        """
        wanted = [(k, part) for k in self.left for part in self._checked_parts(k)]
        found = self._scouted(wanted, "check", is_plain=self.is_hierarchy)
        self._take(found)
        self._compare(self.left, found)
        # The heaviest of more draws is heavier, and the tails of a mixture that fits are in reach.
        missed = [k for k in self.left if self.states[k].missed and not self.states[k].attempt]
        more = self._drawn({k: self._proposal(k) for k in missed}, MORE, "more", NUM_REPLICATES)
        for k, draws in more.items():
            self.states[k] = self.states[k]._replace(draws=Draws.join([self._draws(k), draws]))
        self._compare(missed, found)

    def _compare(self, numbers: list[int], found: dict[Pair, _Found]) -> None:
        """Notes what scouts found of some data sets that weighs more than any draw."""
        for k in numbers:
            self.states[k] = self.states[k]._replace(missed=frozenset())
        for (k, part), item in found.items():
            if k not in numbers:
                continue
            state = self.states[k]
            beyond = _beyond(state, part, item)
            unseen = state.unseen | {part: beyond.left_out}
            is_missed = beyond.above > thresholds.MAX_EXCEEDANCE
            missed = state.missed | {part} if is_missed else state.missed
            self.states[k] = state._replace(unseen=unseen, missed=missed)

    def begin_again(self) -> None:
        """Leaves the data sets of which something was missed, with what was found of it."""
        self.left = [k for k in self.left if self.states[k].missed]
        for k in self.left:
            state = self.states[k]
            joined = {part: Exploration.join(state.explored[part]) for part in state.missed}
            self.states[k] = state._replace(attempt=state.attempt + 1, found=state.found | joined)

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
        routed = tuple(output._replace(route=LANE) for output in plain)
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
        seeds = [self.plans[k].seed(name, *part.label, self.states[k].attempt) for k, part in pairs]
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
                proposal.points(self._uniforms(k, name, count, num_replicates))
                for k, proposal in proposals.items()
            ]
        )
        owners = np.repeat(np.arange(num_replicates), count)
        evaluated = self._evaluated(list(proposals), positions)
        pairs = zip(proposals.items(), evaluated, strict=True)
        return {k: proposal.weighed(own, owners) for (k, proposal), own in pairs}

    def _uniforms(self, k: int, name: str, count: int, num_replicates: int) -> np.ndarray:
        plan, state = self.plans[k], self.states[k]
        rng = np.random.default_rng(plan.seed("draw", name, state.attempt))
        dimension = plan.density.dimension + 2
        return mixtures.shifted_uniforms(rng, num_replicates, count, dimension)

    def _proposal(self, k: int) -> Proposal:
        proposal = self.states[k].proposal
        assert proposal is not None
        return proposal

    def _draws(self, k: int) -> Draws:
        draws = self.states[k].draws
        assert draws is not None
        return draws

    def _prior(self, k: int) -> Mixture:
        prior = self.states[k].prior
        assert prior is not None
        return prior

    def _take_weighted(self, k: int, part: Part, log_sizes: np.ndarray) -> None:
        """Takes the points of γ for those of a part, by their weights."""
        state = self.states[k]
        weighted = state.found[GAMMA2]._replace(log_weights=log_sizes)
        self.states[k] = state._replace(found=state.found | {part: weighted})

    def _is_there(self, k: int, part: Part, log_sizes: np.ndarray) -> bool:
        """Whether scouts can find a way to a part."""
        probe = self.states[k].probe
        assert probe is not None
        known = part.log_sizes(probe.signs, probe.log_sizes), log_sizes
        return self.plans[k].has_ladder or any((some > -np.inf).any() for some in known)

    def _least_share(self, k: int, pilot: Draws) -> float:
        """The least share of pilot draws that is effective for a part that was fitted to."""
        return min(pilot.ess(part) for part in self.states[k].groups) / pilot.size

    def _refitted(
        self, proposals: dict[int, Proposal], pilots: dict[int, Draws]
    ) -> dict[int, Proposal]:
        """Proposals whose groups are fitted to weighted pilot draws, where these are enough."""
        pairs = [
            (k, part)
            for k, proposal in proposals.items()
            for part in proposal.groups
            if pilots[k].ess(part) > MIN_REFIT
        ]
        if not pairs:
            return {}
        fitted = refit_stack(
            [proposals[k].groups[part].mixture for k, part in pairs],
            np.stack([pilots[k].positions for k, _ in pairs]),
            np.stack([pilots[k].log_weights(part) for k, part in pairs]),
        )
        found = {k: proposals[k] for k, _ in pairs}
        for (k, part), mixture in zip(pairs, fitted, strict=True):
            found[k] = found[k]._replace(groups=found[k].groups | {part: Warped(mixture)})
        return found

    def _lacks(self, k: int) -> bool:
        """Whether more draws are needed. Where no round of these would do, nothing more is done."""
        draws = self.states[k].draws
        assert draws is not None
        if self.states[k].attempt and draws.size < NUM_REPLICATES * sum(ROUNDS[:3]):
            return True  # The heaviest of more draws is heavier.
        factor = lack_of(self.plans[k], self.states[k]._replace(draws=draws)).factor
        if factor * draws.size > HOPELESS * NUM_REPLICATES * sum(ROUNDS):
            self.hand_over(k, "the mixture does not fit")
        return factor > 1 and not self.reasons[k]

    def _checked_parts(self, k: int) -> tuple[Part, ...]:
        """What fresh scouts look for: γ, all that was explored, and where f matters.

        After something was missed, that alone, as in `AdaptiveIS`. In few dimensions not γf± whose
        f is nowhere much larger than its mean: the scouts of γ look there, too.
        """
        plan, state = self.plans[k], self.states[k]
        assert state.draws is not None
        if state.missed:
            return tuple(state.missed)
        log_z2 = state.draws.weights(GAMMA2).log_mean
        parts = dict.fromkeys(state.found)
        for part in plan.parts[1:]:
            estimate = output_estimate(Means(state.draws), part.output)
            size = thresholds.exp(state.draws.weights(part).log_mean - log_z2)
            is_small = NEGLIGIBLE * size < plan.limits.goal.allowed(estimate)
            largest = plan.density.farthest(part.output)
            is_even = self.size is SMALL and largest * MAX_HIDDEN_SHARE <= estimate.magnitude
            if not is_small and not is_even:
                parts[part] = None
        return (*parts, *centred_looks(plan, state.draws))


class _Found(NamedTuple):
    """What scouts found of a part, and its log density at their points."""

    exploration: Exploration
    log_density: np.ndarray


def _thinned(exploration: Exploration) -> Exploration:
    """So many points that a fit takes little time: all states of some of the chains.

    Chains are kept in fours, because one of four is held out.
    """
    step = math.ceil(len(exploration.points) / MAX_FIT_POINTS)
    is_kept = exploration.chains // 4 % step == 0
    return Exploration(*(column[is_kept] for column in exploration))


def _beyond(state: State, part: Part, found: _Found) -> Beyond:
    """How much of what scouts found weighs more than any draw."""
    assert state.draws is not None
    assert state.proposal is not None
    heaviest = float(state.draws.log_weights(part).max())
    if heaviest == -math.inf:
        return Beyond(1.0, 1.0)
    log_weights = found.log_density - state.proposal.log_density(found.exploration.points)
    return share_beyond(log_weights, heaviest, np.ones(log_weights.size))


def _inverse(covariance: np.ndarray) -> np.ndarray:
    """Of a covariance, whose variances are at least rounding."""
    variances = np.maximum(np.diag(covariance), 1e-12)
    return np.linalg.inv(0.99 * covariance + 0.01 * np.diag(variances))
