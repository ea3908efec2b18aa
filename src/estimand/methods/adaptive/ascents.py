"""Explore by ascents: from prior draws to the modes of γ, and from there to those of every γf±.

Each Newton step costs a gradient for every coordinate, and a dozen of them come to a mode, however
far the prior is from it; sequential Monte Carlo takes thousands of gradients for that. Around the
modes Gaussians of their curvature are drawn from, and their draws are weighed: these are the points
that are fitted to. What ascents say of modes that none of them has met is how many of them ended
alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from estimand.density import Density
from estimand.methods.adaptive.draws import GAMMA2, Evaluated, Part
from estimand.methods.adaptive.plan import Plan, Scouting, State, evaluate_all, report
from estimand.methods.adaptive.proposal import Exploration, uniforms_for
from estimand.model import ProgramError
from estimand.runtime import Runtime, Task, run_task
from estimand.sampling import (
    Mixture,
    Mode,
    effective_sample_size,
    find_mode,
    has_curvature,
    relative_weights,
    spread_of_margins,
)
from estimand.sampling import mixture as mixtures
from estimand.settings import Settings, require_count

# How soft comparisons are on the way from the posterior to an event, relative to their spread
# there. The event itself has no derivatives.
SOFTNESS = (1.0, 0.25, 0.0625)
# Powers of an f without comparisons on the way.
POWERS = (0.5, 1.0)
# Draws of the posterior from which the modes of a target are climbed.
NUM_CLIMBS = 4
# Standard deviations within which two ascents have ended at the same mode.
SAME_MODE = 0.1
# Modes whose evidence is smaller than the largest one by more than this, in logarithms, have no
# component.
MAX_LAG = 15.0
# Effective draws of the posterior, at the least, from which a part is seen without a climb.
ENOUGH = 100.0


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Ascents(Settings):
    """Explores by Newton's method, where one evaluation takes a tenth of a millisecond or more.

    For ``AdaptiveIS(scout=Ascents())``, which the default method does by itself: continuous sites,
    up to some dozen of them, and a density with second derivatives. If ascents end where no other
    one did, there may be more modes, and the status says so.

    Args:
        num_ascents: from so many prior draws, in each of the two explorations.
        num_points: draws around the modes of each part.
    """

    num_ascents: int = 16
    num_points: int = 2048

    def __post_init__(self) -> None:
        require_count("Ascents", "num_ascents", self.num_ascents)
        require_count("Ascents", "num_points", self.num_points)

    def check(self, density: Density) -> None:
        density.require_continuous("Ascents", "continuous sites")
        density.require_prior("Ascents")
        if not can_ascend(density):
            raise ProgramError(
                f"Ascents: program {density.name!r} has no second derivatives; use AdaptiveIS with "
                "its default scout."
            )


def can_ascend(density: Density) -> bool:
    """Whether a density has the derivatives for it."""
    return not density.layout.has_discrete and has_curvature(density)


def lonely_share(ends: Sequence[Mode]) -> float:
    """The share of ascents that ended where no other one did, or nowhere.

    By Good and Turing it is about the share of starts from which modes are reached that nobody has
    met yet.
    """
    groups = _grouped([end for end in ends if end.is_found])
    alone = sum(len(group) == 1 for group in groups) + sum(not end.is_found for end in ends)
    return alone / len(ends)


def scout_by_ascents(
    plan: Plan, state: State, runtime: Runtime, parts: Sequence[Part], wider: int = 1
) -> tuple[State, dict[Part, Scouting]]:
    """Fresh explorations of some parts, from other prior draws than those before."""
    if not parts:
        return state, {}
    assert isinstance(plan.scout, Ascents)
    symbols = ", ".join(dict.fromkeys(part.symbol for part in parts))
    report(plan, state, runtime, f"exploring {symbols}")
    seed = plan.seed("ascents", state.attempt, len(state.ends), wider)
    before = state.cost.spent
    state, ends = _ascended(plan, state, runtime, seed, wider * plan.scout.num_ascents)
    modes = _distinct(ends)
    around = _around(modes)
    if around is None:
        nowhere = np.zeros((1, plan.density.dimension))
        nothing = Exploration(nowhere, np.full(1, -np.inf), np.zeros(1, int))
        return state, dict.fromkeys(parts, Scouting(nothing, state.cost.spent - before))
    state, cloud = _drawn(plan, state, runtime, around, (*seed, 1))
    posterior = cloud.resampled(GAMMA2, np.random.default_rng((*seed, 2)))
    scoutings = {}
    for number, part in enumerate(parts):
        began = before if not number else state.cost.spent
        own, guess = cloud, around
        if effective_sample_size(cloud.log_weights(part)) < ENOUGH:
            state, climbed = _climbed(plan, state, runtime, part, posterior, (*seed, 3, number))
            if (beside := _around(climbed, power=0.0)) is not None:
                guess = beside
                joined = Mixture.join([around.scaled(0.2), beside.scaled(0.8)])
                state, own = _drawn(plan, state, runtime, joined, (*seed, 4, number))
        found = own.resampled(part, np.random.default_rng((*seed, 5, number)))
        state = state._replace(guesses=state.guesses | {part: guess})
        scoutings[part] = Scouting(found, state.cost.spent - began)
    return state, scoutings


# --- γ ---


def _ascended(
    plan: Plan, state: State, runtime: Runtime, seed: tuple[int, ...], count: int
) -> tuple[State, list[Mode]]:
    """The ends of ascents: half of them from the likeliest of some prior draws, half from any."""
    probe = state.probe
    assert probe is not None
    rng = np.random.default_rng(seed)
    possible = rng.permutation(np.flatnonzero(probe.log_likelihood > -np.inf))
    any_of, some = np.split(possible, [count // 2])
    some = some[: len(some) // 2]
    likeliest = some[np.argsort(-probe.log_likelihood[some], kind="stable")][: count - count // 2]
    starts = probe.positions[np.concatenate([any_of, likeliest])]
    density = GAMMA2.of(_softened(plan, plan.softened.scales))
    tasks = [Task(find_mode, (density, start), (Mode,)) for start in starts]
    ends = runtime.map(tasks)
    state = state.paid(0, sum(end.num_gradients for end in ends))
    return state._replace(ends=(*state.ends, *ends)), ends


def _grouped(ends: Sequence[Mode]) -> list[list[Mode]]:
    """Ascents by the mode at which they ended."""
    groups: list[list[Mode]] = []
    for end in ends:
        for group in groups:
            step = end.position - group[0].position
            if step @ group[0].precision @ step < SAME_MODE**2:
                group.append(end)
                break
        else:
            groups.append([end])
    return groups


def _distinct(ends: Sequence[Mode]) -> list[Mode]:
    return [group[0] for group in _grouped([end for end in ends if end.is_found])]


def _around(modes: Sequence[Mode], *, power: float = 0.5) -> Mixture | None:
    """Gaussians and Student-t distributions at modes, with this power of their evidence as weight.

    At modes of one density it lies between equal weights and the right ones.
    """
    if not modes:
        return None
    log_z = np.array([m.log_density - 0.5 * np.linalg.slogdet(m.precision)[1] for m in modes])
    log_z -= log_z.max()
    weights = np.where(log_z > -MAX_LAG, np.exp(power * log_z), 0.0)
    weights /= weights.sum()
    pairs = zip(modes, weights.tolist(), strict=True)
    return Mixture.join(
        [mixtures.gaussian(m.position, m.precision).scaled(weight) for m, weight in pairs if weight]
    )


class _Cloud(NamedTuple):
    """Draws around modes, and the density that they are from."""

    evaluated: Evaluated
    log_proposal: np.ndarray

    def log_weights(self, part: Part) -> np.ndarray:
        found = self.evaluated
        with np.errstate(invalid="ignore"):
            value = found.log_prior + found.log_likelihood - self.log_proposal
            value = value + part.log_sizes(found.signs, found.log_sizes)
        return np.where(value < np.inf, value, -np.inf)

    def resampled(self, part: Part, rng: np.random.Generator) -> Exploration:
        """As many points of equal weight; copies of one belong together."""
        log_weights = self.log_weights(part)
        count = log_weights.size
        if not np.isfinite(log_weights).any():
            return Exploration(self.evaluated.positions, log_weights, np.arange(count))
        edges = np.cumsum(relative_weights(log_weights)) / count
        places = (np.arange(count) + rng.random()) / count
        chosen = np.minimum(np.searchsorted(edges, places), count - 1)
        return Exploration(self.evaluated.positions[chosen], np.zeros(count), chosen)


def _drawn(
    plan: Plan, state: State, runtime: Runtime, around: Mixture, seed: tuple[int, ...]
) -> tuple[State, _Cloud]:
    assert isinstance(plan.scout, Ascents)
    points = around.draw(uniforms_for(seed, plan.scout.num_points, plan.density.dimension))
    state, evaluated = evaluate_all(plan, state, runtime, [points])
    return state, _Cloud(evaluated[0], mixtures.log_density(around, points))


# --- γf± ---


def _climbed(
    plan: Plan,
    state: State,
    runtime: Runtime,
    part: Part,
    posterior: Exploration,
    seed: tuple[int, ...],
) -> tuple[State, list[Mode]]:
    """Modes of a part and of its softer forms, from draws of the posterior."""
    scales, targets = None, POWERS
    if plan.has_ladder:
        scales = run_task(runtime, spread_of_margins, plan.density, posterior.points)
        targets = tuple((1 + np.arange(len(SOFTNESS))) / len(SOFTNESS))
    density = part.of(_softened(plan, scales))
    starts = np.random.default_rng(seed).permutation(posterior.points)[:NUM_CLIMBS]
    kinds = (Mode,)
    paths = runtime.map([Task(climb_modes, (density, start, targets), kinds) for start in starts])
    modes = [mode for path in paths for mode in path]
    state = state.paid(0, sum(mode.num_gradients for mode in modes))
    return state, _distinct(modes)


def _softened(plan: Plan, scales: np.ndarray | None) -> Density:
    """With soft comparisons, if there are any; the same compiled code serves all parts."""
    return plan.density if scales is None else plan.density.softened(scales, SOFTNESS)


# --- tasks ---


def climb_modes(density: Density, start: np.ndarray, targets: tuple[float, ...]) -> list[Mode]:
    """The modes on the way to a target, each from the one before."""
    modes = []
    for target in targets:
        modes.append(find_mode(density, start, target))
        if math.isfinite(modes[-1].log_density):
            start = modes[-1].position
    return modes
