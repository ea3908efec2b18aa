"""Particles that chains lead along a path: from the prior to the posterior, and on to the target.

Islands of waste-free sequential Monte Carlo whose moves are those of `ensemble`: the same compiled
code that samples the posterior. On the way from the posterior to a target the product of the mean
weights of an island estimates Z1±/Z2: neither the prior nor Z2 is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from estimand.density import SOFTNESS, Density, Terms
from estimand.sampling.ensemble import (
    NUM_CHAINS,
    NUM_ISLANDS,
    NUM_MOVES,
    TARGET_ACCEPTANCE,
    Ensemble,
    Way,
    advance,
    recoordinated,
    terms_at,
)
from estimand.sampling.scouts import (
    Path,
    Reweighting,
    covariance_factors,
    from_posterior,
    grown,
    next_temperature,
    systematic_indices,
)
from estimand.sampling.weights import effective_sample_size

MAX_TEMPERATURES = 100
# Particles of an island from one piece.
NUM_STATES = NUM_CHAINS * NUM_MOVES
# Steps on the way to a target are not smaller than this share of those in the posterior.
MIN_STEP_SHARE = 0.25
# Share of the particles that the step to the target itself leaves effective.
MIN_LAST_STEP = 0.3
# Rounds of moves at each temperature, at the most, and the correlation of starts and ends, in any
# coordinate, up to which chains have forgotten where they started: two hundred that have nothing
# in common show as much by chance.
MAX_ROUNDS = 8
FORGOTTEN = 0.3
# Short trajectories stay on the inner side of an edge, and long ones reach far.
SHORTEST = 0.1
# Share of the particles that each new temperature leaves effective.
CONDITIONAL_ESS = 0.5


class Particles(NamedTuple):
    """Positions and terms with axes (islands, particles)."""

    positions: np.ndarray
    terms: Terms


class Climbed(NamedTuple):
    """Particles at the end of a path, and how they came there.

    `log_z` has the log of the ratio of the ends by island, −inf where the end was not reached;
    `stiffness` for each temperature the largest correlation, over coordinates, of where chains
    start and where they end.
    """

    particles: Particles
    log_z: np.ndarray
    ensemble: Ensemble
    betas: np.ndarray
    stiffness: np.ndarray
    acceptance: np.ndarray
    num_gradients: int
    num_invalid: int


def climb(
    charts: tuple[Density, ...],
    starts: np.ndarray,
    path: Path,
    seed: tuple[int, ...],
    *,
    num_pieces: int = 1,
    step_sizes: Sequence[float] = (),
    max_rounds: int = 1,
    is_pooled: bool = False,
) -> Climbed:
    """Leads draws of the start of a path to its end.

    Args:
        charts: γ, or a part with its ladder of softened targets, in one or several coordinates.
        starts: draws of the start of the path, with axes (islands, draws, dimension), in the
            coordinates of the first chart.
        path: the powers of likelihood and target by inverse temperature.
        seed: of all random numbers.
        num_pieces: each island has so many times `NUM_CHAINS` chains.
        step_sizes: of the first moves in each chart, relative to the scale of the particles.
        max_rounds: of moves at each temperature, if chains still remember where they started.
        is_pooled: whether chains start from particles of all islands; estimates of different
            islands are then not independent.
    """
    rng = np.random.default_rng(seed)
    dimension, rungs = starts.shape[-1], charts[0].num_rungs
    particles, num_gradients, num_invalid = evaluated(charts[0], starts, path)
    unit = np.broadcast_to(np.eye(dimension), (NUM_ISLANDS, dimension, dimension))
    sizes = step_sizes or (1.0 / dimension**0.25,) * len(charts)
    ways = tuple(Way.of(size, unit) for size in sizes)
    ensemble = Ensemble(starts[:, :NUM_CHAINS], ways)
    # Trajectories that end beyond the edge of an event are lost whatever their steps are.
    least_steps = [MIN_STEP_SHARE * size if step_sizes else 0.0 for size in sizes]
    log_z, beta = np.zeros(NUM_ISLANDS), 0.0
    betas: list[float] = []
    stiffness: list[float] = []
    acceptance: list[float] = []
    while beta < 1 and len(betas) < MAX_TEMPERATURES:
        after = next_temperature(particles.terms, beta, CONDITIONAL_ESS, rungs, path)
        log_weights = Reweighting(particles.terms, beta, rungs, path).log_weights(after)
        log_z, is_alive = grown(log_z, log_weights)
        if not is_alive.any():
            break
        ensemble = _with_metrics(charts, ensemble, particles.positions, log_weights)
        count = num_pieces * NUM_CHAINS
        chosen = _chosen(rng, particles.positions, log_weights, is_alive, count, is_pooled)
        stages = _moved(charts, rng, ensemble, chosen, path(after, rungs), max_rounds, least_steps)
        num_gradients += stages.num_gradients
        num_invalid += stages.num_invalid
        particles, ensemble = stages.particles, stages.ensemble
        beta = after
        betas.append(beta)
        acceptance.append(stages.acceptance)
        stiffness.append(stages.stiffness)
    if beta < 1:
        log_z = np.full(NUM_ISLANDS, -np.inf)
    return Climbed(
        particles=particles,
        log_z=log_z,
        ensemble=ensemble,
        betas=np.array(betas),
        stiffness=np.array(stiffness),
        acceptance=np.array(acceptance),
        num_gradients=num_gradients,
        num_invalid=num_invalid,
    )


class _Stage(NamedTuple):
    """Particles after their moves at one temperature."""

    particles: Particles
    ensemble: Ensemble
    acceptance: float
    stiffness: float
    num_gradients: int
    num_invalid: int


def _with_metrics(
    charts: tuple[Density, ...],
    ensemble: Ensemble,
    positions: np.ndarray,
    log_weights: np.ndarray,
) -> Ensemble:
    """The ensemble with the covariances of weighted particles in every chart."""
    ways = []
    for number, (chart, way) in enumerate(zip(charts, ensemble.ways, strict=True)):
        moved = recoordinated(charts[0], chart, positions) if number else positions
        ways.append(way._replace(factors=_dense(covariance_factors(moved, log_weights))))
    return ensemble._replace(ways=tuple(ways))


def _moved(
    charts: tuple[Density, ...],
    rng: np.random.Generator,
    ensemble: Ensemble,
    starts: np.ndarray,
    point: tuple[float, float],
    max_rounds: int,
    least_steps: Sequence[float],
) -> _Stage:
    """Rounds of moves until chains have forgotten where they started; the later half is kept."""
    places = [
        starts[:, first : first + NUM_CHAINS] for first in range(0, starts.shape[1], NUM_CHAINS)
    ]
    rounds: list[list[Any]] = []
    rates: list[float] = []
    stiffness = math.inf
    least_rounds = len(charts) if max_rounds > 1 else 1
    while len(rounds) < least_rounds or (len(rounds) < max_rounds and stiffness > FORGOTTEN):
        pieces, turn = [], len(rounds) % len(charts)
        for number, place in enumerate(places):
            ensemble = ensemble._replace(positions=place)
            moved, _ = advance(charts, rng, ensemble, turn, point=point, shortest=SHORTEST)
            places[number] = moved.positions[-1]
            pieces.append(moved)
            rates.append(float(moved.acceptance.mean()))
            change = np.clip(rates[-1] - TARGET_ACCEPTANCE, -0.5, 0.3)
            ways = list(ensemble.ways)
            step_size = ways[turn].step_size * math.exp(change)
            step_size = float(np.clip(step_size, least_steps[turn], 2.0))
            ways[turn] = ways[turn]._replace(step_size=step_size)
            ensemble = ensemble._replace(ways=tuple(ways))
        rounds.append(pieces)
        stiffness = _largest_correlation(starts, np.concatenate(places, axis=1))
    later = rounds[(len(rounds) - 1) // 2 :]
    kept = [piece for pieces in later for piece in pieces]
    done = [piece for pieces in rounds for piece in pieces]
    return _Stage(
        particles=_joined(kept),
        ensemble=ensemble._replace(positions=places[-1]),
        acceptance=float(np.mean(rates)),
        stiffness=stiffness,
        num_gradients=sum(piece.num_gradients for piece in done),
        num_invalid=sum(piece.num_invalid for piece in done),
    )


def climb_to_target(
    charts: tuple[Density, ...],
    scales: np.ndarray | None,
    starts: np.ndarray,
    seed: tuple[int, ...],
    num_pieces: int,
    step_sizes: tuple[float, ...],
) -> Climbed:
    """Leads draws of the posterior to γf±, past softened targets where f compares.

    Only two neighbouring rungs of the ladder are evaluated at a time, and those that are not
    needed are left out: the target itself is tried after each.

    Args:
        charts: the part in the coordinates of the chains.
        scales: the spread of the comparisons' margins in the posterior; None if f has none.
        starts: draws of the posterior, with axes (islands, draws, dimension).
        seed: of all random numbers.
        num_pieces: each island has so many times `NUM_CHAINS` chains.
        step_sizes: those of chains in the posterior.
    """

    def climbed_from(starts: np.ndarray, softness: tuple, path: Path, number: int) -> Climbed:
        own = charts
        if scales is not None:
            own = tuple(chart.softened(scales, softness) for chart in charts)
        return climb(
            own,
            starts,
            path,
            (*seed, number),
            num_pieces=num_pieces,
            step_sizes=step_sizes,
            max_rounds=MAX_ROUNDS,
        )

    climbed = climbed_from(starts, SOFTNESS[:2], from_posterior, 0)
    stages = [climbed]
    for number in range(2, len(SOFTNESS) + 1):
        if scales is None or not np.isfinite(climbed.log_z).any():
            break
        positions, softer = climbed.particles.positions, SOFTNESS[number - 1]
        final = charts[0].softened(scales, (softer, 0.0))
        is_last = number == len(SOFTNESS) or _is_near(final, positions)
        sharper = 0.0 if is_last else SOFTNESS[number]
        climbed = climbed_from(positions, (softer, sharper), up_a_rung, number)
        stages.append(climbed)
        if is_last:
            break
    return climbed._replace(
        log_z=np.sum([stage.log_z for stage in stages], axis=0),
        betas=np.concatenate([stage.betas + k for k, stage in enumerate(stages)]),
        stiffness=np.concatenate([stage.stiffness for stage in stages]),
        acceptance=np.concatenate([stage.acceptance for stage in stages]),
        num_gradients=sum(stage.num_gradients for stage in stages),
        num_invalid=sum(stage.num_invalid for stage in stages),
    )


def up_a_rung(beta: float, _rungs: int) -> tuple[float, float]:
    """From the first of two rungs of a ladder to the second."""
    return 1.0, 0.5 + 0.5 * beta


def _is_near(density: Density, positions: np.ndarray) -> bool:
    """Whether a step to the last rung leaves enough particles effective; some are asked.

    Those that the target excludes count as lost, as they do not for a temperature.
    """
    some = positions[:, :: max(1, positions.shape[1] // NUM_STATES)]
    terms = evaluated(density, some, up_a_rung)[0].terms
    log_weights = Reweighting(terms, 0.0, 2, up_a_rung).log_weights(1.0)
    return effective_sample_size(log_weights.ravel()) >= MIN_LAST_STEP * log_weights.size


def evaluated(density: Density, positions: np.ndarray, path: Path) -> tuple[Particles, int, int]:
    """Terms at positions with axes (islands, particles, dimension); what is not a number has no
    mass."""
    terms, num_gradients = terms_at(density, positions, path(0.0, 1))
    # A prior draw without a prior density: of a negative scale, say. No chain moves from there.
    is_bad = ~(terms.log_weight < np.inf) | np.isnan(terms.log_prior)
    likelihood: Any = np.where(is_bad, -np.inf, terms.log_likelihood)
    terms = terms._replace(log_likelihood=likelihood)
    return Particles(positions, terms), num_gradients, int(is_bad.sum())


def _chosen(
    rng: np.random.Generator,
    positions: np.ndarray,
    log_weights: np.ndarray,
    is_alive: np.ndarray,
    count: int,
    is_pooled: bool,
) -> np.ndarray:
    """Where chains start; an island that has died out goes on as a copy, with no weight."""
    if is_pooled:
        flat = positions.reshape(-1, positions.shape[-1])
        indices = systematic_indices(rng, log_weights.ravel(), NUM_ISLANDS * count)
        return flat[rng.permutation(indices)].reshape(NUM_ISLANDS, count, -1)
    sources = np.where(is_alive, np.arange(is_alive.size), np.flatnonzero(is_alive)[0])
    chosen = np.stack(
        [rng.permutation(systematic_indices(rng, log_weights[k], count)) for k in sources]
    )
    return positions[sources[:, None], chosen]


def _joined(pieces: list[Any]) -> Particles:
    """All states of all pieces, island by island."""

    def by_island(x: np.ndarray) -> np.ndarray:
        return np.moveaxis(x, 0, 2).reshape(x.shape[1], -1, *x.shape[3:])

    parts = [Particles(by_island(p.positions), jax.tree.map(by_island, p.terms)) for p in pieces]
    return jax.tree.map(lambda *arrays: np.concatenate(arrays, axis=1), *parts)


def _dense(factors: np.ndarray) -> np.ndarray:
    """Factors as matrices, where there are only scales."""
    return factors if factors.ndim == 3 else factors[:, :, None] * np.eye(factors.shape[1])


def _largest_correlation(starts: np.ndarray, ends: np.ndarray) -> float:
    """Over coordinates, of where chains start and where they end."""
    one, other = (x.reshape(-1, x.shape[-1]) for x in (starts, ends))
    one, other = one - one.mean(axis=0), other - other.mean(axis=0)
    sizes = np.sqrt((one**2).sum(axis=0) * (other**2).sum(axis=0))
    products = (one * other).sum(axis=0)
    return float(np.max(products / np.maximum(sizes, 1e-300)))
