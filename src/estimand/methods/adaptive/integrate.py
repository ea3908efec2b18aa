"""Integrate: rounds of quasi-random replicates until the error or the budget is reached."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

from estimand.density import MAGNITUDE
from estimand.methods.adaptive.draws import Draws, output_estimate, part_variance
from estimand.methods.adaptive.looks import is_material
from estimand.methods.adaptive.plan import (
    Effort,
    Limits,
    Plan,
    State,
    can_afford,
    draw_all,
    means_of,
    report,
    running_seconds,
)
from estimand.methods.adaptive.proposal import MAX_SOBOL_DIMENSION, MIN_GROUP_SHARE
from estimand.methods.adaptive.refine import fit_again
from estimand.methods.adaptive.stream import is_streamed, stream
from estimand.runtime import Runtime
from estimand.trust import OutputEstimate, thresholds

# Draws cost little compared with exploration: at least this share of its evaluations.
DRAW_SHARE = 0.3
# Draws of a replicate from a component, at the least, for its share to be a control variate.
MIN_CONTROLLED = 20
# If enough effective draws need more of them than the budget allows by this factor, no more are
# made: the mixture does not fit. One that fits may use the budget up.
HOPELESS = 8.0
# The share of the first round, one in so many, after which that is asked for the first time. Points
# that are not quasi-random may come in pieces. Others come in two halves, which tell more of the
# error than one round: too often that would be the last because its error is small by chance.
FEW, HALF = 8, 2
# A round brings so many times the draws that its error asks for, if that is more than the least and
# less than the most of those that there are. Where the budget ends, it may be half of the least.
ENOUGH = 1.1
LEAST_ROUND, MOST_ROUND = 0.25, 1.0
# The share of the requested error that draws aim at: checks add to it what draws may have missed.
AIM = 0.97
# How often the proposal is fitted again to its own draws, after so many first rounds or more, if so
# many times more draws are needed, and of a part's own less than this share is effective. A first
# round on four branches had 505 effective draws of 8,192, and one after a second fit 2,862.
MAX_TURNS = 4
TURN_ROUNDS = 1
TURN_LACK = 2.5
TURN_FIT = 0.6


def integrate(plan: Plan, state: State, runtime: Runtime, offer: Callable[[State], None]) -> State:
    """The state with draws of a proposal, fitted again to its own draws where that pays."""
    for turn in range(MAX_TURNS):
        state, is_worth_a_fit = _integrated(plan, state, runtime, offer, turn)
        if not is_worth_a_fit:
            break
        state = fit_again(plan, state, runtime, turn)
    return state


def _integrated(
    plan: Plan, state: State, runtime: Runtime, offer: Callable[[State], None], turn: int
) -> tuple[State, bool]:
    """The state with draws of its proposal, in rounds as large as the error asks for.

    And whether they stopped because a new fit promises to need far fewer.
    """
    assert state.proposal is not None
    replicates = range(plan.sizes.num_replicates)
    explored = state.exploration.evaluations
    reserve = state.exploration if state.explored else Effort()
    count = max(plan.sizes.round, int(DRAW_SHARE * explored / len(replicates)))
    proposal = state.proposal._replace(least_control=MIN_CONTROLLED / count)
    report(plan, state, runtime, "integrating")
    began = running_seconds(plan, runtime)
    state = state._replace(proposal=proposal, sums=None)
    few = count // (FEW if plan.density.dimension > MAX_SOBOL_DIMENSION else HALF)
    state, draws = draw_all(plan, state, runtime, proposal, few, f"turn {turn}", replicates)
    state = state._replace(draws=draws)
    offer(state)
    lack = _lack(plan, state, runtime)
    if not _is_hopeless(plan, state, lack, reserve):
        state, more = draw_all(
            plan, state, runtime, proposal, count - few, f"turn {turn}, rest", replicates
        )
        draws = Draws.join([draws, more])
        state = state._replace(draws=draws)
        offer(state)
        lack = _lack(plan, state, runtime)
    number, enough = 0, TURN_ROUNDS * 4**turn * len(replicates) * count
    while lack.factor > 1 and not _is_hopeless(plan, state, lack, reserve):
        is_poor = lack.factor > TURN_LACK and lack.fit < TURN_FIT
        if is_poor and draws.size >= enough and turn + 1 < MAX_TURNS:
            again = reserve.evaluations + plan.sizes.pilot + draws.size
            if can_afford(plan, state, runtime, Effort(again, reserve.seconds)):
                return state, True
        pace = (running_seconds(plan, runtime) - began) / draws.size
        per_replicate = draws.size / len(replicates)
        count = math.ceil(per_replicate * _share_of_round(lack))
        if is_streamed(state, len(replicates) * count):
            lacking = functools.partial(_lack, plan, runtime=runtime)
            return stream(plan, state, runtime, offer, lacking, reserve), False
        limits = plan.reach if lack.missing <= 1 else plan.limits
        while count and not _is_affordable(plan, state, runtime, reserve, count, pace, limits):
            count //= 2
        if count < LEAST_ROUND / 2 * per_replicate:
            break
        number += 1
        name = f"turn {turn}, round {number}"
        state, more = draw_all(plan, state, runtime, proposal, count, name, replicates)
        draws = Draws.join([draws, more])
        state = state._replace(draws=draws)
        offer(state)
        lack = _lack(plan, state, runtime)
    return state, False


def _share_of_round(lack: Lack) -> float:
    """How many draws the next round brings, as a share of those that there are."""
    return min(max(ENOUGH * (lack.factor - 1), LEAST_ROUND), MOST_ROUND)


def _is_affordable(
    plan: Plan,
    state: State,
    runtime: Runtime,
    reserve: Effort,
    count: int,
    pace: float,
    limits: Limits,
) -> bool:
    """Whether so many draws of each replicate can be paid, each taking `pace` seconds."""
    num_draws = plan.sizes.num_replicates * count
    effort = Effort(reserve.evaluations + num_draws, reserve.seconds + num_draws * pace)
    return can_afford(plan, state, runtime, effort, limits)


class Lack(NamedTuple):
    """How many times more draws are needed for enough effective ones, and for the goal, too.

    At most 1 where there are enough. `fit` is the least share of effective draws among those that
    the components of a part are meant to give, and `outputs` are what these draws say of them.
    """

    missing: float
    factor: float
    fit: float
    outputs: tuple[OutputEstimate, ...] = ()


def _is_hopeless(plan: Plan, state: State, lack: Lack, reserve: Effort) -> bool:
    """Whether the mixture does not fit: too few draws are effective for any budget."""
    assert state.draws is not None
    size = state.draws.size
    left = plan.limits.max_evaluations - state.cost.spent - reserve.evaluations
    return lack.missing > 1 and lack.factor * size > HOPELESS * (size + left)


def _lack(plan: Plan, state: State, runtime: Runtime) -> Lack:
    lack = lack_of(plan, state)
    if lack.outputs:
        first, *others = lack.outputs
        more = ", …" if others else ""
        shown = f"{first.value:.5g} ± {first.standard_error:.1g}{more}"
        report(plan, state, runtime, "integrating", shown)
    return lack


def lack_of(plan: Plan, state: State) -> Lack:
    """What draws of the state's proposal lack."""
    means = means_of(plan, state)
    needed = [
        part
        for part in dict.fromkeys((*state.groups, *plan.looks))
        if part.sign != MAGNITUDE or is_material(plan, means.draws, part)
    ]
    sizes = [means.ess(part) for part in needed]
    missing = thresholds.ENOUGH_ESS / max(min(sizes), 1e-3)
    assert state.proposal is not None
    shares = state.proposal.shares
    wanted = (shares.get(part, MIN_GROUP_SHARE) for part in needed)
    fit = min(size / (share * means.size) for size, share in zip(sizes, wanted, strict=True))
    goal = plan.limits.goal
    if len(plan.parts) == 1:
        variance = part_variance(means, plan.parts[0])
        return Lack(missing, max(missing, variance / (AIM * goal.relative) ** 2), fit)
    outputs = tuple(output_estimate(means, output) for output in range(plan.density.num_outputs))
    errors = [output.standard_error / (AIM * goal.allowed(output)) for output in outputs]
    return Lack(missing, max(missing, *(error * error for error in errors)), fit, outputs)
