"""Explore from the posterior: its chains' draws, and ladders from these to every γf±.

Nothing is drawn from the prior, unless the validation does: it leads fresh prior draws to the
posterior, where they must not find what the chains have not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from estimand.methods.adaptive.draws import Evaluated, Part
from estimand.methods.adaptive.plan import Ladder, Plan, Scouting, State, evaluate_all, report
from estimand.methods.adaptive.posterior import KINDS, NUM_PRIOR_PIECES, Posterior, from_prior
from estimand.methods.adaptive.proposal import Exploration
from estimand.runtime import Runtime, Task, run_task
from estimand.sampling import Climbed, Mixture, climb_to_target, effective_sample_size, root_of
from estimand.sampling import ensemble as ensembles
from estimand.sampling import mixture as mixtures

# Chains of each island of a ladder, as multiples of those of the posterior.
NUM_PIECES = 2
# Effective draws of the posterior, at the least, from which a part is fitted without a ladder, and
# how many for each number in a mean and a covariance.
ENOUGH, ENOUGH_PER_MOMENT = 400.0, 2.0
# How much wider than the posterior the defensive component is.
WIDENING = 2.0
# Rounds of moves after prior draws have come to the posterior.
SETTLING_ROUNDS = 4


def explore_from_posterior(plan: Plan, state: State, runtime: Runtime) -> State:
    """Explorations of all parts: by weighing the chains' draws, or by a ladder from them."""
    posterior = plan.posterior
    assert posterior is not None
    evaluated = posterior.evaluated
    points, chains = posterior.to_fitted(evaluated.positions, runtime), posterior.chain_numbers
    state = state._replace(prior=_widened(points))
    enough = max(ENOUGH, ENOUGH_PER_MOMENT * mixtures.num_moments(plan.density.dimension))
    unseen = []
    for part in plan.parts:
        log_weights = _log_sizes(evaluated, part)
        if not np.isfinite(log_weights).any() and not plan.has_ladder:
            continue
        if part.sign and effective_sample_size(log_weights) < enough:
            unseen.append(part)
        else:
            seen = Exploration(points, log_weights, chains)
            state = state._replace(
                found=state.found | {part: seen}, explored=state.explored | {part: (seen,)}
            )
            state = state._replace(part_costs=state.part_costs | {part: len(points)})
    state, scoutings = scout_from_posterior(plan, state, runtime, unseen)
    for part, (found, cost) in scoutings.items():
        state = state._replace(part_costs=state.part_costs | {part: cost})
        if found.has_mass:
            state = state._replace(
                found=state.found | {part: found.flattened()},
                explored=state.explored | {part: (found,)},
            )
    return state


def _widened(points: np.ndarray) -> Mixture:
    """One Student-t distribution, wider than the points are."""
    covariance = np.atleast_2d(np.cov(points.T))
    variances = np.diag(covariance) + 1e-12 * (1 + points.mean(axis=0) ** 2)
    shrunk = 0.9 * covariance + 0.1 * np.diag(variances)
    return Mixture(
        weights=np.ones(1),
        means=points.mean(axis=0)[None],
        factors=WIDENING * root_of(shrunk)[None],
        degrees=np.full(1, mixtures.STUDENT_DEGREES),
    )


def scout_from_posterior(
    plan: Plan, state: State, runtime: Runtime, parts: Sequence[Part], wider: int = 1
) -> tuple[State, dict[Part, Scouting]]:
    """Fresh explorations: prior draws led to the posterior, and ladders from posterior draws.

    A part that the chains' draws were enough for is seen by weighing the fresh ones.
    """
    posterior = plan.posterior
    assert posterior is not None
    if not parts:
        return state, {}
    symbols = ", ".join(dict.fromkeys(part.symbol for part in parts))
    report(plan, state, runtime, f"exploring {symbols}")
    pieces, fresh, scoutings = NUM_PIECES * wider, None, {}
    seeds = {
        part: plan.seed(
            "climb", *part.label, state.attempt, len(state.explored.get(part, ())), wider
        )
        for part in parts
    }
    climbing = [
        part
        for part in parts
        if part.sign and (part in state.ladders or part not in state.explored)
    ]
    tasks = [_climb_task(posterior, part, seeds[part], pieces) for part in climbing]
    all_climbed: dict[Part, Climbed] = dict(zip(climbing, runtime.map(tasks), strict=True))
    for part in parts:
        before = state.cost.spent
        if part in all_climbed:
            climbed = all_climbed[part]
            ladders = (*state.ladders.get(part, ()), Ladder.of(climbed))
            state = state._replace(ladders=state.ladders | {part: ladders})
            state = state.paid(0, climbed.num_gradients)
            found = _exploration(climbed)
            found = found._replace(points=posterior.to_fitted(found.points, runtime))
        else:
            if fresh is None:
                state, fresh = _fresh_posterior(plan, state, runtime, seeds[part])
            found = fresh.weighed(part)
        scoutings[part] = Scouting(found, state.cost.spent - before)
    return state, scoutings


class _Fresh(NamedTuple):
    """Fresh draws of the posterior, with the log of what each stands for, and its chain."""

    evaluated: Evaluated
    log_weights: np.ndarray
    chains: np.ndarray

    def weighed(self, part: Part) -> Exploration:
        log_weights = self.log_weights + _log_sizes(self.evaluated, part)
        return Exploration(self.evaluated.positions, log_weights, self.chains)


def _log_sizes(evaluated: Evaluated, part: Part) -> np.ndarray:
    """log f± of a part at draws of the posterior; −inf where it is not a number."""
    log_sizes = part.log_sizes(evaluated.signs, evaluated.log_sizes)
    return np.where(log_sizes < np.inf, log_sizes, -np.inf)


def _fresh_posterior(
    plan: Plan, state: State, runtime: Runtime, seed: tuple[int, ...]
) -> tuple[State, _Fresh]:
    """From the prior, in standardised coordinates; without one further draws of the chains."""
    posterior = plan.posterior
    assert posterior is not None
    gammas, ensemble = posterior.gammas, posterior.ensemble
    log_z, num_rounds = np.zeros(ensembles.NUM_ISLANDS), SETTLING_ROUNDS
    if plan.density.layout.improper_sites:
        num_rounds = 2 * SETTLING_ROUNDS
    else:
        climbed: Climbed = run_task(
            runtime, from_prior, gammas[-1], (*seed, 0), NUM_PRIOR_PIECES, False, kinds=KINDS
        )
        state = state.paid(0, climbed.num_gradients)
        if np.isfinite(climbed.log_z).any():
            positions = climbed.ensemble.positions
            if len(gammas) > 1:
                ends = (gammas[-1], gammas[0])
                positions = run_task(runtime, ensembles.recoordinated, *ends, positions)
            ensemble, log_z = ensemble._replace(positions=positions), climbed.log_z
    arguments = gammas, ensemble, num_rounds, (*seed, 1)
    drawn = run_task(runtime, ensembles.draw, *arguments, kinds=KINDS)
    states = drawn.positions.transpose(1, 2, 0, 3)
    points = posterior.to_fitted(states.reshape(-1, states.shape[-1]), runtime)
    state, evaluated = evaluate_all(plan, state.paid(0, drawn.num_gradients), runtime, [points])
    per_island = len(points) // ensembles.NUM_ISLANDS
    chains = np.arange(len(points)) // len(drawn.positions)
    return state, _Fresh(evaluated[0], np.repeat(log_z, per_island), chains)


def climb_again(
    posterior: Posterior, part: Part, seed: tuple[int, ...], runtime: Runtime
) -> Ladder:
    """What one more ladder says."""
    return Ladder.of(runtime.map([_climb_task(posterior, part, seed, NUM_PIECES)])[0])


def _climb_task(posterior: Posterior, part: Part, seed: tuple[int, ...], pieces: int) -> Task:
    starts = posterior.starts()
    count = pieces * ensembles.NUM_CHAINS * ensembles.NUM_MOVES
    order = np.random.default_rng(seed).permutation(starts.shape[1])[:count]
    arguments = (
        tuple(part.of(chart) for chart in posterior.charts),
        posterior.margin_scales,
        starts[:, order],
        seed,
        pieces,
        posterior.step_sizes,
    )
    return Task(climb_to_target, arguments, KINDS)


def _exploration(climbed: Climbed) -> Exploration:
    positions = climbed.particles.positions
    count = positions.shape[1]
    log_z = np.where(np.isfinite(climbed.log_z), climbed.log_z, -math.inf)
    total = positions.shape[0] * count
    return Exploration(
        points=positions.reshape(total, -1),
        log_weights=np.repeat(log_z, count),
        chains=np.arange(total) // ensembles.NUM_MOVES,
    )
