"""Validate: explore again, and ask whether the new scouts found what the draws miss.

Weights, effective sample sizes and standard errors cannot see a mode that no draw came near; a
fresh exploration can.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from estimand.methods.adaptive.draws import GAMMA2, Part
from estimand.methods.adaptive.explore import scout
from estimand.methods.adaptive.looks import centred_looks
from estimand.methods.adaptive.net import around, missed_by_draws, with_net
from estimand.methods.adaptive.plan import Plan, State, evaluate_all, means_of
from estimand.methods.adaptive.proposal import Exploration
from estimand.runtime import Runtime
from estimand.sampling import relative_weights
from estimand.trust import thresholds


def validate(plan: Plan, state: State, runtime: Runtime, parts: Iterable[Part]) -> State:
    """The state with the parts that were missed, and the share of each that was not seen.

    What the points of all scouts weigh beyond the heaviest draw is mass that the estimate may lack,
    and counts as an error.
    """
    draws = state.draws
    assert draws is not None
    means = means_of(plan, state)
    looks = centred_looks(plan, draws) if GAMMA2 in plan.parts else ()
    wanted = tuple(dict.fromkeys((*parts, *looks)))
    state, scoutings = scout(plan, state._replace(missed=frozenset()), runtime, wanted)
    for part, (fresh, cost) in scoutings.items():
        state = state._replace(part_costs={part: cost} | state.part_costs)
        if not fresh.has_mass:
            continue
        known = [item for item in state.explored.get(part, ()) if item.has_mass]
        explorations = (*known, fresh)
        state = state._replace(explored=state.explored | {part: explorations})
        heaviest = means.log_largest(part)
        if heaviest == -np.inf:
            state = _noted(state, part, unseen=1.0, is_missed=True)
            continue
        state, shares = _beyond(plan, state, runtime, explorations, part, heaviest)
        unseen = float(np.mean([share.left_out for share in shares]))
        is_missed = shares[-1].above > thresholds.MAX_EXCEEDANCE
        state = _noted(state, part, unseen=unseen, is_missed=is_missed)
    return _by_net(plan, state, runtime)


def _by_net(plan: Plan, state: State, runtime: Runtime) -> State:
    """The state with what a net of prior draws shows to be missing, and points around it."""
    state = with_net(plan, state, runtime)
    for part, places in missed_by_draws(plan, state).items():
        state, found = around(plan, state, runtime, part, places)
        if found is not None:
            explorations = (*state.explored.get(part, ()), found)
            state = state._replace(explored=state.explored | {part: explorations})
        state = state._replace(missed=state.missed | {part})
    return state


def _noted(state: State, part: Part, *, unseen: float, is_missed: bool) -> State:
    missed = state.missed | {part} if is_missed else state.missed
    return state._replace(missed=missed, unseen=state.unseen | {part: unseen})


class Beyond(NamedTuple):
    """Shares of an exploration's mass where weights are above the heaviest draw's.

    `left_out` is what weights no greater than the heaviest leave out of it.
    """

    above: float
    left_out: float


def _beyond(
    plan: Plan,
    state: State,
    runtime: Runtime,
    explorations: tuple[Exploration, ...],
    part: Part,
    heaviest: float,
) -> tuple[State, list[Beyond]]:
    proposal = state.proposal
    assert proposal is not None
    batches = [item.points for item in explorations]
    state, evaluated = evaluate_all(plan, state, runtime, batches)
    shares = []
    for exploration, item in zip(explorations, evaluated, strict=True):
        log_weights = proposal.weighed(item, 0).log_weights(part)
        weights = relative_weights(exploration.flattened().log_weights)
        shares.append(share_beyond(log_weights, heaviest, weights))
    return state, shares


def share_beyond(log_weights: np.ndarray, heaviest: float, weights: np.ndarray) -> Beyond:
    """How much of some points, which count by weights, weighs more than the heaviest draw."""
    excess = np.maximum(log_weights - heaviest, 0.0)
    columns = [excess > 0, -np.expm1(-excess)]
    return Beyond(*np.average(columns, axis=1, weights=weights).tolist())
