"""Mixtures fitted to the points of many entries at once: `mixture.fit` in small, as one batch.

Log densities and moments are linear in the products of pairs of coordinates, so that a step of
expectation maximisation is two matrix products for each entry. No entry changes another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from estimand.sampling.mixture import (
    COMPONENT_COUNTS,
    Mixture,
    gaussians_of,
    is_supported,
    prior_variance,
    spread_starts,
    with_student,
)
from estimand.sampling.products import root_of

# Gaussians of a mixture, at the most; next to a single one they must gain so much in the mean log
# density of held-out points.
MAX_COMPONENTS = 8
MIN_GAIN = 0.005
# Of the Student-t in a mixture: few draws must reach far.
STUDENT_SHARE = 0.2
# Entries that are worked on at a time. Not measured.
BATCH = 4
# Steps of expectation maximisation: with points held out, with all, and in a refit.
STEPS, LAST_STEPS, REFIT_STEPS = 12, 4, 6
# Points per dimension that a covariance is averaged with, fewer in the last steps, where narrow
# modes have found their components; and that a present one counts for in a refit.
TRUST, LAST_TRUST, REFIT_TRUST = 2.0, 0.2, 10.0


class _Gaussians(NamedTuple):
    """Weights, means and Cholesky factors, with axes for entries and components."""

    weights: np.ndarray
    means: np.ndarray
    factors: np.ndarray

    @property
    def mixtures(self) -> list[Mixture]:
        """One for each entry."""
        degrees = np.full(self.weights.shape[1], np.inf)
        return [Mixture(*arrays, degrees) for arrays in zip(*self, strict=True)]


class _Frame(NamedTuple):
    """Where the points of each entry are, and the Cholesky factor of their covariance."""

    centers: np.ndarray
    roots: np.ndarray

    def whitened(self, points: np.ndarray) -> np.ndarray:
        inverses = np.linalg.inv(self.roots)
        return (points - self.centers[:, None]) @ np.swapaxes(inverses, 1, 2)


def fit_stack(
    points: np.ndarray,
    log_weights: np.ndarray,
    is_held_out: np.ndarray,
    rngs: Sequence[np.random.Generator],
) -> list[Mixture]:
    """A mixture for every entry: one Gaussian or several, and a Student-t.

    Args:
        points: with axes for entries, points and coordinates.
        log_weights: of the points of every entry.
        is_held_out: the points that decide between one Gaussian and several.
        rngs: a generator for each entry.
    """
    return [
        mixture
        for some in _batches(len(points))
        for mixture in _fit(points[some], log_weights[some], is_held_out, rngs[some])
    ]


def _batches(count: int) -> list[slice]:
    """A few entries at a time, which stay in the processor's cache."""
    return [slice(first, first + BATCH) for first in range(0, count, BATCH)]


def _fit(
    points: np.ndarray,
    log_weights: np.ndarray,
    is_held_out: np.ndarray,
    rngs: Sequence[np.random.Generator],
) -> list[Mixture]:
    weights, effective = _weights(log_weights)
    frame = _frame(points, weights, effective)
    whitened = frame.whitened(points)
    monomials = _monomials(whitened)
    train, test = weights * ~is_held_out, weights * is_held_out
    middle = _starting(np.zeros_like(whitened[:, :1]))
    chosen = _em(monomials, weights, middle, 1).mixtures
    count = _num_components(points.shape[1], points.shape[2])
    if count > 1:
        starts = [
            spread_starts(own, chance, count, rng)
            for own, chance, rng in zip(whitened, train, rngs, strict=True)
        ]
        single = _em(monomials, train, middle, 1)
        several = _em(monomials, train, _starting(np.stack(starts)), STEPS)
        scores = [_mean_log_density(each, monomials, test) for each in (single, several)]
        several = _em(monomials, weights, several, LAST_STEPS, trust=LAST_TRUST)
        chosen = [
            rich if gain > MIN_GAIN else plain
            for plain, rich, gain in zip(
                chosen, several.mixtures, scores[1] - scores[0], strict=True
            )
        ]
    return [
        with_student(own, center, root, STUDENT_SHARE)
        for own, center, root in zip(chosen, *frame, strict=True)
    ]


def refit_stack(
    mixtures: Sequence[Mixture], points: np.ndarray, log_weights: np.ndarray
) -> list[Mixture]:
    """A few more steps of every fit, from new weighted points, with the same components."""
    found: list[Mixture | None] = [None] * len(mixtures)
    sizes = np.array([mixture.size for mixture in mixtures])
    for size in np.unique(sizes):
        same = np.flatnonzero(sizes == size)
        for places in (same[some] for some in _batches(same.size)):
            own = [mixtures[place] for place in places]
            fitted = _refit(own, points[places], log_weights[places])
            for place, mixture in zip(places, fitted, strict=True):
                found[place] = mixture
    return [mixture for mixture in found if mixture is not None]


def _refit(mixtures: list[Mixture], points: np.ndarray, log_weights: np.ndarray) -> list[Mixture]:
    weights, _ = _weights(log_weights)
    present = [gaussians_of(mixture) for mixture in mixtures]
    frame = _Frame(*(np.stack(arrays) for arrays in zip(*map(_moments, present), strict=True)))
    inverses = np.linalg.inv(frame.roots)
    means = np.stack([own.means for own in present]) - frame.centers[:, None]
    start = _Gaussians(
        np.stack([own.weights for own in present]),
        means @ np.swapaxes(inverses, 1, 2),
        inverses[:, None] @ np.stack([own.factors for own in present]),
    )
    monomials = _monomials(frame.whitened(points))
    prior = start.factors @ np.swapaxes(start.factors, 2, 3)
    fitted = _em(monomials, weights, start, REFIT_STEPS, prior, REFIT_TRUST)
    result = []
    for own, middle, axes in zip(fitted.mixtures, *frame, strict=True):
        center, root = _moments(own)
        inverse = np.linalg.inv(root)
        means, factors = (own.means - center) @ inverse.T, inverse @ own.factors
        moved = own._replace(means=means, factors=factors)
        result.append(with_student(moved, middle + axes @ center, axes @ root, STUDENT_SHARE))
    return result


def _moments(gaussians: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """Mean and root of the covariance of a mixture of Gaussians."""
    chance = gaussians.weights / gaussians.weights.sum()
    center = chance @ gaussians.means
    deviations = gaussians.means - center
    within = gaussians.factors @ np.swapaxes(gaussians.factors, 1, 2)
    within = (chance[:, None, None] * within).sum(axis=0)
    return center, root_of(within + (chance[:, None] * deviations).T @ deviations)


def _weights(log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights that add up to the number of effective points, and that number."""
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    total = weights.sum(axis=1)
    effective = total**2 / (weights**2).sum(axis=1)
    return weights * (effective / total)[:, None], effective


def _num_components(num_points: int, dimension: int) -> int:
    """Half of the points count: many states of a chain are the same."""
    supported = [k for k in COMPONENT_COUNTS if is_supported(k, num_points / 2, dimension)]
    return min(MAX_COMPONENTS, max(supported))


def _frame(points: np.ndarray, weights: np.ndarray, effective: np.ndarray) -> _Frame:
    chance = weights / weights.sum(axis=1, keepdims=True)
    centers = (chance[..., None] * points).sum(axis=1)
    deviations = points - centers[:, None]
    covariances = np.swapaxes(deviations * chance[..., None], 1, 2) @ deviations
    diagonal = np.arange(points.shape[-1])
    variances = np.maximum(covariances[:, diagonal, diagonal], 1e-12 * (1 + centers**2))
    shrinkage = np.clip(points.shape[-1] / effective, 1e-3, 1.0)
    covariances *= (1 - shrinkage)[:, None, None]
    covariances[:, diagonal, diagonal] += shrinkage[:, None] * variances
    return _Frame(centers, np.stack([root_of(covariance) for covariance in covariances]))


def _starting(means: np.ndarray) -> _Gaussians:
    count, size, dimension = means.shape
    factor = math.sqrt(prior_variance(size, dimension)) * np.eye(dimension)
    factors = np.broadcast_to(factor, (count, size, dimension, dimension))
    return _Gaussians(np.full((count, size), 1 / size), means, factors)


def _em(
    monomials: np.ndarray,
    weights: np.ndarray,
    start: _Gaussians,
    num_steps: int,
    prior: np.ndarray | None = None,
    trust: float = TRUST,
) -> _Gaussians:
    """Weighted expectation maximisation for all entries, as `mixture.fit` does it for one."""
    size, dimension = start.means.shape[1:]
    if prior is None:
        prior = prior_variance(size, dimension) * np.eye(dimension)
    prior_points = trust * dimension
    gaussians = start
    for _ in range(num_steps):
        shares = _shares(gaussians, monomials)[1]
        shares *= weights[:, None]
        sums = shares @ np.swapaxes(monomials, 1, 2)
        mass, first, products = _unpacked(sums, dimension)
        means = first / (mass + 1e-3)[..., None]
        crossed = first[..., :, None] * means[..., None, :]
        scatter = products - crossed - np.swapaxes(crossed, 2, 3)
        scatter += mass[..., None, None] * means[..., :, None] * means[..., None, :]
        covariances = (scatter + prior_points * prior) / (mass + prior_points)[..., None, None]
        factors = np.stack([root_of(covariance) for covariance in covariances])
        chance = (mass + 1.0) / (mass.sum(axis=1, keepdims=True) + size)
        gaussians = _Gaussians(chance, means, factors)
    return gaussians


def _monomials(points: np.ndarray) -> np.ndarray:
    """For each entry rows for 1, the coordinates and the products of two of them."""
    columns = np.ascontiguousarray(np.swapaxes(points, 1, 2))
    one, other = np.triu_indices(points.shape[-1])
    ones = np.ones((len(points), 1, points.shape[1]))
    return np.concatenate([ones, columns, columns[:, one] * columns[:, other]], axis=1)


def _unpacked(sums: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums of monomials as sums of 1, of coordinates and of their products."""
    one, other = np.triu_indices(dimension)
    products = np.empty((*sums.shape[:2], dimension, dimension))
    products[..., one, other] = products[..., other, one] = sums[..., 1 + dimension :]
    return sums[..., 0], sums[..., 1 : 1 + dimension], products


def _shares(gaussians: _Gaussians, monomials: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The log density of each point, and the shares of the components in it."""
    dimension = gaussians.means.shape[-1]
    inverses = np.linalg.inv(gaussians.factors)
    precisions = np.swapaxes(inverses, 2, 3) @ inverses
    slopes = (precisions @ gaussians.means[..., None])[..., 0]
    constants = np.log(gaussians.weights) - 0.5 * (slopes * gaussians.means).sum(axis=-1)
    constants += np.log(np.diagonal(inverses, axis1=2, axis2=3)).sum(axis=-1)
    constants -= 0.5 * dimension * math.log(2 * math.pi)
    one, other = np.triu_indices(dimension)
    squares = np.where(one == other, -0.5, -1.0) * precisions[..., one, other]
    coefficients = np.concatenate([constants[..., None], slopes, squares], axis=-1)
    logs = coefficients @ monomials
    top = logs.max(axis=1, keepdims=True)
    logs -= top
    np.exp(logs, out=logs)
    total = logs.sum(axis=1, keepdims=True)
    logs /= total
    return (top + np.log(total))[:, 0], logs


def _mean_log_density(
    gaussians: _Gaussians, monomials: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    logs = _shares(gaussians, monomials)[0]
    return (logs * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-300)
