"""Explore: where γ, γf⁺ and γf⁻ have their mass, from prior draws and from scouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np

from estimand.density import Density
from estimand.estimators import SMC
from estimand.methods.adaptive.ascents import Ascents, scout_by_ascents
from estimand.methods.adaptive.draws import GAMMA2, Draws, Evaluated, Part
from estimand.methods.adaptive.from_posterior import explore_from_posterior, scout_from_posterior
from estimand.methods.adaptive.looks import unseen_looks
from estimand.methods.adaptive.plan import (
    PROBE,
    Plan,
    Scouting,
    State,
    evaluate,
    evaluate_all,
    report,
)
from estimand.methods.adaptive.proposal import Exploration
from estimand.runtime import Runtime, Task, run_task
from estimand.sampling import Mixture, effective_sample_size, prior_positions
from estimand.sampling import mixture as mixtures
from estimand.trust import Evidence, Trace

# Effective prior draws, at the least, from which a part is fitted without a scout.
ENOUGH_FROM_PRIOR = 100.0
# Draws that a user brings along belong together so many at a time.
SHORT_CHAIN = 20
# The part that stands for them: γ once more.
GIVEN = Part(0, -1)


def explore(plan: Plan, state: State, runtime: Runtime, offer: Callable[[State], None]) -> State:
    """All parts, and then the terms that no exploration of a part has seen."""
    if plan.posterior is not None:
        state = explore_from_posterior(plan, state, runtime)
    else:
        state = _explore_from_prior(plan, state, runtime, offer)
    if not state.has_nan and GAMMA2 in state.found:
        state, unseen = unseen_looks(plan, state, runtime)
        state = scouted(plan, state, runtime, unseen)
    if plan.given is not None and not state.has_nan:
        state = _with_given(plan, state, runtime, plan.given)
    return state


def _explore_from_prior(
    plan: Plan, state: State, runtime: Runtime, offer: Callable[[State], None]
) -> State:
    """Prior draws, and scouts for the parts that these do not see well enough."""
    report(plan, state, runtime, "drawing from the prior")
    columns = run_task(runtime, draw_prior, plan.density, plan.seed("probe"), PROBE)
    evaluated = Evaluated(*columns)
    state = state.paid(PROBE)
    if np.isnan(evaluated.positions).any():
        return state._replace(has_nan=True)
    probe = Draws.from_prior(evaluated, plan.sizes.num_replicates)
    state = state._replace(probe=probe)
    offer(state._replace(draws=probe))
    prior = run_task(runtime, fit_prior, probe.positions, plan.seed("prior"), kinds=(Mixture,))
    state = state._replace(prior=prior)
    enough = max(ENOUGH_FROM_PRIOR, 20 * mixtures.num_moments(plan.density.dimension))
    unseen = []
    for part in plan.parts:
        log_weights = probe.log_weights(part)
        if not np.isfinite(log_weights).any() and not plan.has_ladder:
            continue
        if effective_sample_size(log_weights) < enough:
            unseen.append(part)
        else:
            seen = Exploration(probe.positions, log_weights, np.arange(PROBE))
            state = state._replace(found=state.found | {part: seen})
    return scouted(plan, state, runtime, unseen)


def _with_given(plan: Plan, state: State, runtime: Runtime, given: np.ndarray) -> State:
    """The state in which a user's own draws have a group of components to themselves.

    They may be approximate, those of a guide: the draws of the proposal weigh what is fitted to
    them. Nothing is explored less because of them.
    """
    state, (evaluated,) = evaluate_all(plan, state, runtime, [given])
    is_possible = np.isfinite(evaluated.log_prior + evaluated.log_likelihood)
    log_weights = np.where(is_possible, 0.0, -np.inf)
    seen = Exploration(given, log_weights, np.arange(len(given)) // SHORT_CHAIN)
    return state._replace(found=state.found | {GIVEN: seen}) if seen.has_mass else state


def scouted(
    plan: Plan, state: State, runtime: Runtime, parts: Sequence[Part], wider: int = 1
) -> State:
    """The state after scouts have looked for parts, in place of what was known of them."""
    state, scoutings = scout(plan, state, runtime, parts, wider)
    for part, (found, cost) in scoutings.items():
        if wider == 1:
            state = state._replace(part_costs=state.part_costs | {part: cost})
        elif not found.has_mass:
            continue
        state = state._replace(explored=state.explored | {part: (found,)})
        if found.has_mass:
            state = state._replace(found=state.found | {part: found.flattened()})
    return state


def scout(
    plan: Plan, state: State, runtime: Runtime, parts: Sequence[Part], wider: int = 1
) -> tuple[State, dict[Part, Scouting]]:
    """Fresh scouts of some parts: as a rule independent runs of SMC from the prior."""
    if plan.posterior is not None:
        return scout_from_posterior(plan, state, runtime, parts, wider)
    if isinstance(plan.scout, Ascents):
        return scout_by_ascents(plan, state, runtime, parts, wider)
    if not parts:
        return state, {}
    symbols = ", ".join(dict.fromkeys(part.symbol for part in parts))
    report(plan, state, runtime, f"exploring {symbols}")
    tasks = [_scout_task(plan, state, part, wider) for part in parts]
    scoutings = {}
    for part, evidence in zip(parts, runtime.map(tasks), strict=True):
        before = state.cost.spent
        state = state.paid(evidence.num_evaluations, evidence.num_gradients)
        log_weights = np.asarray(evidence.log_weights, float)
        found = Exploration(
            points=np.asarray(evidence.positions, float),
            log_weights=np.where(log_weights < np.inf, log_weights, -np.inf),
            chains=np.arange(np.size(evidence.log_weights)) // plan.scout.num_steps,
        )
        scoutings[part] = Scouting(found, state.cost.spent - before)
    return state, scoutings


def _scout_task(plan: Plan, state: State, part: Part, wider: int) -> Task:
    # γ goes up the ladder, too, where nothing changes: that code is compiled for the others anyway.
    density = part.of(plan.softened)
    round_number = len(state.explored.get(part, ()))
    key = plan.key("scout", *part.label, state.attempt, round_number, wider)
    pieces = wider * plan.num_pieces
    return Task(run_scout, (plan.scout, key, density, pieces), kinds=(Evidence, Trace))


# --- tasks ---


def run_scout(scout: SMC, rng_key: jax.Array, density: Density, num_pieces: int) -> Evidence:
    """Islands from the prior to one density, with so many times more particles."""
    return scout.estimate_on_host(rng_key, density, num_pieces=num_pieces)


def draw_prior(density: Density, seed: tuple[int, ...], count: int) -> list[np.ndarray]:
    """Draws from the prior, with log prior, log likelihood, signs and log-magnitudes."""
    positions = prior_positions(density, seed, count)
    return [positions, *evaluate(density, positions)]


def fit_prior(positions: np.ndarray, seed: tuple[int, ...]) -> Mixture:
    """A mixture fitted to prior draws: the defensive component of every proposal."""
    count = len(positions)
    rng = np.random.default_rng(seed)
    return mixtures.fit(positions, np.zeros(count), np.arange(count), rng)
