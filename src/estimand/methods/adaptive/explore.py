"""Explore: where γ, γf⁺ and γf⁻ have their mass, from prior draws and from scouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from estimand.density import Density
from estimand.estimators import Request, estimate_all
from estimand.methods.adaptive.draws import Draws, Evaluated, Part
from estimand.methods.adaptive.plan import PROBE, Plan, State, report
from estimand.methods.adaptive.proposal import Exploration
from estimand.runtime import Runtime, run_task
from estimand.sampling import Mixture, effective_sample_size
from estimand.sampling import mixture as mixtures

# Effective prior draws, at the least, from which a part is fitted without a scout.
ENOUGH_FROM_PRIOR = 100.0


def explore(plan: Plan, state: State, runtime: Runtime, offer: Callable[[State], None]) -> State:
    """Prior draws, and scouts for the parts that these do not see well enough."""
    report(plan, state, runtime, "drawing from the prior")
    columns = run_task(runtime, draw_prior, plan.density, plan.key("probe"), PROBE)
    evaluated = Evaluated(*(np.asarray(column, float) for column in columns))
    state = state.paid(PROBE)
    if np.isnan(evaluated.positions).any():
        return state._replace(has_nan=True)
    probe = Draws.from_prior(evaluated, plan.sizes.num_replicates)
    state = state._replace(has_nan=probe.nan_mass() > 0)
    offer(state._replace(draws=probe))
    prior = run_task(runtime, fit_prior, probe.positions, plan.seed("prior"), kinds=(Mixture,))
    state = state._replace(prior=prior)
    enough = max(ENOUGH_FROM_PRIOR, 20 * mixtures.num_moments(plan.density.dimension))
    for part in plan.parts:
        log_weights = probe.log_weights(part)
        if not np.isfinite(log_weights).any() and not plan.has_ladder:
            continue
        if effective_sample_size(log_weights) < enough:
            state = scouted(plan, state, runtime, part)
        else:
            seen = Exploration(probe.positions, log_weights, np.arange(PROBE))
            state = state._replace(found=state.found | {part: seen})
    return state


def scouted(plan: Plan, state: State, runtime: Runtime, part: Part, wider: int = 1) -> State:
    """The state after scouts have looked for a part, in place of what was known of it."""
    before = state.cost.spent
    state, found = scout(plan, state, runtime, part, wider)
    costs = state.part_costs if wider > 1 else state.part_costs | {part: state.cost.spent - before}
    if wider > 1 and not found.has_mass:
        return state
    state = state._replace(explored=state.explored | {part: (found,)}, part_costs=costs)
    if found.has_mass:
        state = state._replace(found=state.found | {part: found.flattened()})
    return state


def scout(
    plan: Plan, state: State, runtime: Runtime, part: Part, wider: int = 1
) -> tuple[State, Exploration]:
    """Fresh scouts of a part: independent runs of sequential Monte Carlo from the prior."""
    report(plan, state, runtime, f"exploring {part.symbol}")
    density = plan.softened.part(part.name, part.output) if part.sign else plan.density
    count = wider * plan.scout.num_particles
    scouts = dataclasses.replace(plan.scout, num_particles=count)
    round_number = len(state.explored.get(part, ()))
    key = plan.key("scout", *part, state.attempt, round_number, wider)
    evidence = estimate_all(runtime, [Request(scouts, key, density)])[0]
    state = state.paid(evidence.num_evaluations, evidence.num_gradients)
    state = state._replace(has_nan=state.has_nan or evidence.num_invalid > 0)
    return state, Exploration(
        points=np.asarray(evidence.positions, float),
        log_weights=np.asarray(evidence.log_weights, float),
        chains=np.arange(np.size(evidence.log_weights)) // plan.scout.num_steps,
    )


# --- tasks ---


def draw_prior(density: Density, rng_key: jax.Array, count: int) -> Any:
    """Draws from the prior, with log prior, log likelihood, signs and log-magnitudes."""
    return _draw_prior(density, jax.random.split(rng_key, count))


@jax.jit
def _draw_prior(density: Density, rng_keys: jax.Array) -> tuple:
    def one(key: jax.Array) -> tuple:
        position, terms, outputs = density.draw_with_outputs(key)
        return position, terms.log_prior, terms.log_likelihood, *outputs

    return jax.vmap(one)(rng_keys)


def fit_prior(positions: np.ndarray, seed: tuple[int, ...]) -> Mixture:
    """A mixture fitted to prior draws: the defensive component of every proposal."""
    count = len(positions)
    rng = np.random.default_rng(seed)
    return mixtures.fit(positions, np.zeros(count), np.arange(count), rng)
