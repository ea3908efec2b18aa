"""Rounds: the surrogate of all evaluations so far, a pool, and the simulator at some of its points.

With a_j the weights of a pool, prior over proposal divided by the number of points, and p_j the
chances by which n of them are chosen, a round's estimate of ∫ h is

    Σ_j a_j ĥ_j + (1/n) Σ_i (a_i / p_i) (h_i − ĥ_i):

what the surrogate says of the whole pool, corrected by the truth at the chosen points. Given what
came before it is unbiased, whatever the surrogate is; the better that is, the smaller its error.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from estimand.methods.economical import surrogate as surrogates
from estimand.methods.economical.pool import Pool, Proposal, adapted, columns_of, pool_of
from estimand.methods.economical.surrogate import Surrogate
from estimand.methods.economical.target import Target, Values
from estimand.model import Called

# Points of the first design for each dimension and at the least; it is half prior draws and half
# wider ones.
DESIGN_PER_DIMENSION, MIN_DESIGN = 8, 24
DESIGN_WIDENED = 2.5
# Evaluations of a round: a share of those so far, and at the least.
ROUND_SHARE, MIN_ROUND = 0.3, 24
# Points that are simulated only to look where the surrogate sees nothing: for each dimension, as a
# share of the budget at the most, and of a round. They fill the ball that the prior and the targets
# have their mass in. Without them a narrow well with a third of the failure probability was missed
# with `ok` in 5 of 6 runs (`well` in `benchmarks.simulators`).
LOOKS_PER_DIMENSION, MAX_LOOK_SHARE, LOOKS_OF_ROUND = 50, 0.3, 0.25
NUM_CANDIDATES = 2048
# A surrogate is sure and wrong if it is off by more than so many of its standard deviations; where
# the integrand is smaller than at its largest by this much, as a logarithm, that does not matter.
SURPRISE, NEGLIGIBLE = 5.0, 7.0
# Rounds by whose predictions the surrogate's errors are judged, and the score that counts at most.
NUM_DOUBTED, MAX_SCORE = 3, 6.0


class Evaluated(NamedTuple):
    """All points that were simulated, with what came back."""

    points: np.ndarray
    outputs: np.ndarray
    values: Values
    errors: tuple[str | None, ...]

    @property
    def is_fine(self) -> np.ndarray:
        return np.isfinite(self.outputs).all(axis=1)

    def __len__(self) -> int:
        return len(self.points)

    @classmethod
    def of(cls, target: Target, points: np.ndarray, called: Called) -> Evaluated:
        return cls(points, called.values, target.values(points, called.values), called.errors)

    def first(self, count: int) -> Evaluated:
        """The first few of them."""
        return Evaluated(
            self.points[:count],
            self.outputs[:count],
            Values(*(column[:count] for column in self.values)),
            self.errors[:count],
        )

    def joined(self, other: Evaluated) -> Evaluated:
        return Evaluated(
            np.concatenate([self.points, other.points]),
            np.concatenate([self.outputs, other.outputs]),
            Values(*map(np.concatenate, zip(self.values, other.values, strict=True))),
            self.errors + other.errors,
        )


class Round(NamedTuple):
    """One round: its pool, the chosen points of it, and how often each was chosen.

    `num_before` is the number of evaluations that its surrogate knew.
    """

    pool: Pool
    chosen: np.ndarray
    counts: np.ndarray
    found: Evaluated
    scores: np.ndarray
    num_before: int

    @property
    def size(self) -> int:
        """Choices, of which some may be of the same point."""
        return int(self.counts.sum())

    @property
    def log_factors(self) -> np.ndarray:
        """log of a / p for the chosen points."""
        log_weights = self.pool.log_weights[self.chosen] - math.log(self.pool.chances.size)
        return log_weights - np.log(self.pool.chances[self.chosen])


def design_size(dimension: int) -> int:
    """Points of the first design."""
    return max(MIN_DESIGN, DESIGN_PER_DIMENSION * dimension)


def design(target: Target, seed: tuple[int, ...]) -> np.ndarray:
    """The first points: prior draws, every second one moved away from the middle."""
    points = target.draw((*seed, 0), design_size(target.dimension))
    points[1::2] *= DESIGN_WIDENED
    return target.drawn_in(points)


def fitted(known: Evaluated, before: Surrogate | None, seed: tuple[int, ...]) -> Surrogate:
    """The surrogate of all evaluations that did not fail."""
    rng = np.random.default_rng((*seed, 0))
    is_fine = known.is_fine
    points, outputs = known.points[is_fine], known.outputs[is_fine]
    # If there are too many, the latest are remembered first: they are where it matters.
    order = np.arange(len(points), dtype=float)
    return surrogates.fit(points, outputs, order, rng, before)


def prepared(
    target: Target, surrogate: Surrogate, proposal: Proposal, seed: tuple[int, ...]
) -> tuple[Proposal, Pool]:
    """The proposal adapted to a surrogate, and a pool of it."""
    proposal = adapted(target, surrogate, proposal, seed)
    return proposal, pool_of(target, surrogate, proposal, seed)


def round_size(num_before: int) -> int:
    """Evaluations of the next round."""
    return max(MIN_ROUND, int(ROUND_SHARE * num_before))


def num_looks(dimension: int, max_evaluations: int) -> int:
    """Points that are to be looked at in all."""
    return min(LOOKS_PER_DIMENSION * dimension, int(MAX_LOOK_SHARE * max_evaluations))


def looks(
    target: Target, known: np.ndarray, pool: Pool, count: int, seed: tuple[int, ...]
) -> np.ndarray:
    """Points far from all others, in the ball that has the prior's mass and what was found."""
    rng = np.random.default_rng((*seed, 6))
    points = rng.normal(size=(NUM_CANDIDATES, known.shape[1]))
    radii = _radius(pool) * rng.random(NUM_CANDIDATES) ** (1 / known.shape[1])
    points *= (radii / np.linalg.norm(points, axis=1))[:, None]
    points = points[target.is_sensible(points)]
    if not len(points):
        return points
    distances = np.min(
        [np.sum((points - point) ** 2, axis=1) for point in known], axis=0, initial=np.inf
    )
    chosen = []
    for _ in range(count):
        chosen.append(int(np.argmax(distances)))
        away = np.sum((points - points[chosen[-1]]) ** 2, axis=1)
        distances = np.minimum(distances, away)
    return points[chosen]


def _radius(pool: Pool) -> float:
    """Of the ball: as far as the targets go, and at least as far as the prior does."""
    distances = np.linalg.norm(pool.points, axis=1)
    weights = np.exp(pool.log_weights[: distances.size])
    order = np.argsort(distances)
    edge = [np.interp(0.99, np.cumsum(weights[order]) / weights.sum(), distances[order])]
    for number in range(pool.values.signs.shape[1]):
        logs = pool.log_weights[: distances.size]
        logs = logs + pool.values.log_weights(number)[: distances.size]
        if np.isfinite(logs).any():
            sizes = np.exp(logs - logs.max())[order]
            edge.append(np.interp(0.95, np.cumsum(sizes) / sizes.sum(), distances[order]))
    return float(max(edge))


def is_surprised(target: Target, surrogate: Surrogate, known: Evaluated, found: Evaluated) -> bool:
    """Whether the surrogate was sure of the integrand at a point where it counts, and wrong."""
    is_fine = found.is_fine
    if not is_fine.any():
        return False
    points = found.points[is_fine]
    predicted, deviations = surrogate.predict(points)
    with np.errstate(invalid="ignore", divide="ignore"):
        scores = np.abs(surrogate.forward(found.outputs[is_fine]) - predicted) / deviations
    is_far = ~(scores <= SURPRISE).all(axis=1)
    there = target.values(points, surrogate.inverse(predicted))
    here = Values(*(column[is_fine] for column in found.values))
    top = _log_integrands(target, known.points, known.values).max(axis=0)
    one, other = (_log_integrands(target, points, values) for values in (here, there))
    with np.errstate(invalid="ignore"):
        is_other = ~(np.abs(one - other) <= 1) & (np.maximum(one, other) > top - NEGLIGIBLE)
    is_other[:, -here.signs.shape[1] :] |= (here.signs * there.signs < 0) & (
        one[:, -here.signs.shape[1] :] > top[-here.signs.shape[1] :] - NEGLIGIBLE
    )
    return bool((is_far[:, None] & is_other).any())


def _log_integrands(target: Target, points: np.ndarray, values: Values) -> np.ndarray:
    """log of prior · likelihood, if there is one, and of prior · likelihood · |f|, by column."""
    log_prior = target.log_prior(points)[:, None]
    return log_prior + np.stack(columns_of(target, values), axis=1)


def choose(pool: Pool, count: int, seed: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Points of a pool by their chances, systematically, and how often each was chosen."""
    rng = np.random.default_rng((*seed, 5))
    order = rng.permutation(pool.chances.size)
    edges = np.cumsum(pool.chances[order])
    edges /= edges[-1]
    places = np.searchsorted(edges, (np.arange(count) + rng.random()) / count, side="right")
    chosen, counts = np.unique(order[np.minimum(places, order.size - 1)], return_counts=True)
    return chosen, counts


def scores_of(surrogate: Surrogate, pool: Pool, chosen: np.ndarray, found: Evaluated) -> np.ndarray:
    """How far off predictions were, in the standard deviations that the process itself has."""
    with np.errstate(invalid="ignore", divide="ignore"):
        warped = surrogate.forward(found.outputs)
        distance = np.abs(warped - pool.predicted[chosen])
        scores = surrogate.doubt * distance / pool.deviations[chosen]
    # Beyond the range of a warp: far off, however one counts.
    scores = np.where(np.isfinite(scores), scores, MAX_SCORE)
    return np.minimum(scores[found.is_fine], MAX_SCORE)


def doubt_of(rounds: list[Round]) -> float:
    """By how much the process underrates its errors, by its last predictions."""
    scores = [one.scores.ravel() for one in rounds[-NUM_DOUBTED:]]
    if not scores:
        return 1.0
    return max(1.0, math.sqrt(float(np.mean(np.concatenate(scores) ** 2))))
