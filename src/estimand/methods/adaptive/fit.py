"""Fit: a mixture for each part, to points of explorations or by the curvature at the mode."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from estimand.density import gradient_mode
from estimand.methods.adaptive.draws import Part
from estimand.methods.adaptive.plan import MIN_LAPLACE_DIMENSION, Plan, State, draw_all, report
from estimand.methods.adaptive.proposal import Exploration, Proposal
from estimand.runtime import Runtime, run_task
from estimand.sampling import Mixture, Mode, Warped, find_mode, relative_weights, warp
from estimand.sampling import mixture as mixtures

# Draws that decide between the fit to points and the curvature at the mode.
TRIAL = 1024
# A part that has a smaller share of effective pilot draws is explored with more particles.
MIN_PILOT_SHARE = 0.02
# States of chains, for each number in a mean and a covariance, that say more than the curvature.
ENOUGH_PER_MOMENT = 10


def fit(plan: Plan, state: State, runtime: Runtime, parts: Iterable[Part]) -> State:
    """The state with a group of components for each of some parts."""
    report(plan, state, runtime, "fitting")
    for part in parts:
        state, group = _fit_part(plan, state, runtime, part)
        state = state._replace(groups=state.groups | {part: group})
    return state


def _fit_part(plan: Plan, state: State, runtime: Runtime, part: Part) -> tuple[State, Warped]:
    """A mixture fitted to points, or the curvature at the mode where that fits better."""
    found = state.found[part]
    state, rival = _curvature(plan, state, runtime, part, found)
    fitted: Warped = run_task(
        runtime,
        fit_points,
        found,
        rival,
        bool(part.sign) and plan.has_ladder,
        plan.seed("fit", *part.label, state.attempt, len(found.points)),
        kinds=(Warped, Mixture, warp.Warp),
    )
    # With fewer points than a covariance has numbers, the fit is judged by its own draws.
    is_judged = len(found.points) >= mixtures.num_moments(plan.density.dimension)
    if rival is None or is_judged:
        return state, fitted
    state, share = _effective_share(plan, state, runtime, fitted, part, "fitted")
    if share > MIN_PILOT_SHARE:
        return state, fitted
    state, share = _effective_share(plan, state, runtime, Warped(rival), part, "rival")
    return state, Warped(rival) if share > MIN_PILOT_SHARE else fitted


def _curvature(
    plan: Plan, state: State, runtime: Runtime, part: Part, found: Exploration
) -> tuple[State, Mixture | None]:
    """The Gaussian with the curvature at the mode, in many dimensions and if there is one."""
    if part in state.guesses:
        return state, state.guesses[part]
    density = part.of(plan.density)
    is_worth_it = density.dimension >= MIN_LAPLACE_DIMENSION
    num_moments = mixtures.num_moments(density.dimension)
    is_known = plan.posterior is not None and len(found.points) >= ENOUGH_PER_MOMENT * num_moments
    if not is_worth_it or is_known or gradient_mode(density) != "reverse":
        return state, None
    start = np.average(found.points, axis=0, weights=relative_weights(found.log_weights))
    mode: Mode = run_task(runtime, find_mode, density, start, kinds=(Mode,))
    state = state.paid(0, mode.num_gradients)
    if not mode.is_found:
        return state, None
    return state, mixtures.gaussian(mode.position, mode.precision)


def _effective_share(
    plan: Plan, state: State, runtime: Runtime, group: Warped, part: Part, name: str
) -> tuple[State, float]:
    """Share of draws from a group alone that are effective for its part."""
    assert state.prior is not None
    proposal = Proposal.of({part: group}, state.prior)
    trial = f"trial of {part.label}, {name}"
    state, draws = draw_all(plan, state, runtime, proposal, TRIAL, trial)
    return state, draws.ess(part) / TRIAL


# --- tasks ---


def fit_points(
    found: Exploration, rival: Mixture | None, is_warpable: bool, seed: tuple[int, ...]
) -> Warped:
    """A mixture fitted to weighted points, in warped coordinates where that is better."""
    rng = np.random.default_rng(seed)
    if is_warpable:
        return warp.fit(*found, rng, rival)
    return Warped(mixtures.fit(*found, rng, rival))
