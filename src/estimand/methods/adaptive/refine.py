"""Refine: refits from pilot draws, and the shares of the draws that each part gets."""

from __future__ import annotations

import numpy as np

from estimand.methods.adaptive.draws import Draws, Part, Pool, pooled
from estimand.methods.adaptive.explore import scouted
from estimand.methods.adaptive.fit import MIN_PILOT_SHARE, fit, fit_points
from estimand.methods.adaptive.plan import Effort, Plan, State, can_afford, draw_all, report
from estimand.methods.adaptive.proposal import Exploration, Proposal
from estimand.runtime import Runtime, Task
from estimand.sampling import Mixture, Warped, warp

MAX_REFITS = 8
# Effective pilot draws of a part, at the least, for a refit.
MIN_REFIT = 20.0
# A refit must gain so much in the least effective sample size of any part.
MIN_GAIN = 1.05
# How many times more particles explore a part that the pilot hardly sees.
WIDER = 4


def refine(plan: Plan, state: State, runtime: Runtime) -> State:
    """The state with a proposal that is refitted while that helps, and allocated to the parts."""
    prior = state.prior
    assert prior is not None
    proposal = Proposal.of(state.groups, prior)
    state, pilot = draw_all(plan, state, runtime, proposal, plan.sizes.pilot, "pilot")
    if not state.missed:
        before = state.groups
        state = _explore_more(plan, state, runtime, pilot)
        if state.groups is not before:
            proposal = Proposal.of(state.groups, prior)
            state, pilot = draw_all(
                plan, state, runtime, proposal, plan.sizes.pilot, "pilot after more scouts"
            )
    state, proposal, pilot = _refitted(plan, state, runtime, proposal, pilot)
    return state._replace(proposal=proposal.allocated(pilot, plan.parts))


def _refitted(
    plan: Plan, state: State, runtime: Runtime, proposal: Proposal, pilot: Draws
) -> tuple[State, Proposal, Draws]:
    """The best of a row of refits, each to all pilots so far, and its own pilot."""
    pilots = [pilot]
    best, best_pilot, best_size = proposal, pilot, 0.0
    for number in range(MAX_REFITS):
        report(plan, state, runtime, "fitting")
        sizes = {part: pilots[-1].ess(part) for part in proposal.groups}
        size = min(sizes.values())
        is_better = size > MIN_GAIN * best_size
        if size > best_size:
            best, best_pilot, best_size = proposal, pilots[-1], size
        if not is_better:
            break
        proposal = _refit(plan, state, runtime, proposal, pilots, sizes, number)
        name = f"pilot after refit {number}"
        state, pilot = draw_all(plan, state, runtime, proposal, plan.sizes.pilot, name)
        pilots.append(pilot)
    return state, best, best_pilot


def _refit(
    plan: Plan,
    state: State,
    runtime: Runtime,
    proposal: Proposal,
    pilots: list[Draws],
    sizes: dict[Part, float],
    number: int,
) -> Proposal:
    chosen = [part for part in proposal.groups if sizes[part] > MIN_REFIT]
    tasks = [
        Task(
            refit_group,
            (
                proposal.groups[part],
                pooled(pilots, part),
                plan.seed("refit", *part.label, state.attempt, number),
            ),
            kinds=(Warped, Mixture, warp.Warp),
        )
        for part in chosen
    ]
    groups = proposal.groups | dict(zip(chosen, runtime.map(tasks), strict=True))
    return proposal._replace(groups=groups)


def fit_again(plan: Plan, state: State, runtime: Runtime, turn: int) -> State:
    """The state with groups that are fitted to all draws of the proposal so far."""
    draws, proposal, prior = state.draws, state.proposal, state.prior
    assert draws is not None
    assert proposal is not None
    assert prior is not None
    report(plan, state, runtime, "fitting")
    chosen = [part for part in proposal.groups if draws.ess(part) > MIN_REFIT]
    tasks = []
    for part in chosen:
        pool = pooled([draws], part)
        found = Exploration(pool.points, pool.log_weights, np.arange(draws.size))
        seed = plan.seed("fit again", *part.label, state.attempt, turn)
        arguments = (found, None, bool(part.sign) and plan.has_ladder, seed)
        tasks.append(Task(fit_points, arguments, kinds=(Warped, Mixture, warp.Warp)))
    fresh = dict(zip(chosen, runtime.map(tasks), strict=True))
    proposal = Proposal.of(proposal.groups | fresh, prior)
    name = f"pilot of turn {turn}"
    state, pilot = draw_all(plan, state, runtime, proposal, plan.sizes.pilot, name)
    return state._replace(proposal=proposal.allocated(pilot, plan.parts))


def _explore_more(plan: Plan, state: State, runtime: Runtime, pilot: Draws) -> State:
    """The state after parts that the pilot hardly sees were explored with more particles."""
    for part, cost in state.part_costs.items():
        is_weak = pilot.ess(part) < MIN_PILOT_SHARE * pilot.size
        reserve = state.exploration.evaluations + plan.sizes.num_replicates * plan.sizes.round
        effort = Effort(WIDER * cost + reserve, WIDER * (state.exploration.seconds + 1.0))
        if is_weak and can_afford(plan, state, runtime, effort):
            before = state.found
            state = scouted(plan, state, runtime, [part], WIDER)
            if state.found is not before:
                state = fit(plan, state, runtime, [part])
    return state


# --- tasks ---


def refit_group(group: Warped, pool: Pool, seed: tuple[int, ...]) -> Warped:
    """A few more steps of a fit, from weighted draws."""
    return group.refit(pool.points, pool.log_weights, np.random.default_rng(seed))
