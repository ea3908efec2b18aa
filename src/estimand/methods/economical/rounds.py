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
from estimand.methods.economical.pool import Pool, Proposal, adapted, pool_of
from estimand.methods.economical.surrogate import Surrogate
from estimand.methods.economical.target import Target, Values
from estimand.model import Called

# Points of the first design for each dimension and at the least; it is half prior draws and half
# wider ones.
DESIGN_PER_DIMENSION, MIN_DESIGN = 8, 24
DESIGN_WIDENED = 2.5
# Evaluations of a round: a share of those so far, and at the least.
ROUND_SHARE, MIN_ROUND = 0.3, 24
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
    return points


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
