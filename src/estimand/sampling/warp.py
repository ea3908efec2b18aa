"""Mixtures in warped coordinates: marginals that end abruptly become Gaussian ones.

Inside an event, densities stop at its edges. A Gaussian fitted to that has most of its mass
outside as soon as there are many edges. Here each coordinate is mapped through the quantiles of
weighted points first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from estimand.sampling import mixture as mixtures
from estimand.sampling.mixture import Mixture

# Standard normal positions of the quantiles that are the knots of a warp.
LEVELS = np.linspace(-2.5, 2.5, 21)
# Slopes are at least this share of a coordinate's standard deviation.
MIN_SLOPE = 0.02
# Gain in mean held-out log density from which a warp is worth its kinks.
MIN_GAIN = 0.1


class Warp(NamedTuple):
    """For each coordinate an increasing, piecewise linear map from `LEVELS` to its knots."""

    knots: np.ndarray

    @classmethod
    def fit(cls, points: np.ndarray, weights: np.ndarray) -> Warp:
        """Maps the standard normal quantiles to those of weighted points."""
        from scipy.special import ndtr

        columns = []
        for column in points.T:
            order = np.argsort(column)
            cumulative = np.cumsum(weights[order])
            shares = (cumulative - 0.5 * weights[order]) / cumulative[-1]
            quantiles = np.interp(ndtr(LEVELS), shares, column[order])
            mean = np.average(column, weights=weights)
            scale = np.sqrt(np.average((column - mean) ** 2, weights=weights))
            least = MIN_SLOPE * max(scale, 1e-12 * (1 + abs(mean))) * np.diff(LEVELS)
            gaps = np.maximum(np.diff(quantiles), least)
            rising = np.concatenate([[0.0], np.cumsum(gaps)])
            middle = LEVELS.size // 2
            columns.append(quantiles[middle] + rising - rising[middle])
        return cls(np.stack(columns, axis=1))

    @property
    def _slopes(self) -> np.ndarray:
        return np.diff(self.knots, axis=0) / np.diff(LEVELS)[:, None]

    def forward(self, warped: np.ndarray) -> np.ndarray:
        """Points from warped coordinates; linear beyond the outermost knots."""
        piece = np.clip(np.searchsorted(LEVELS, warped) - 1, 0, LEVELS.size - 2)
        columns = np.arange(warped.shape[1])
        return self.knots[piece, columns] + self._slopes[piece, columns] * (warped - LEVELS[piece])

    def inverse(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Warped coordinates, and the log of the volume that they have for that of the points."""
        columns = np.arange(points.shape[1])
        found = [np.searchsorted(self.knots[:, k], points[:, k]) for k in columns]
        piece = np.clip(np.stack(found, axis=1) - 1, 0, LEVELS.size - 2)
        slopes = self._slopes[piece, columns]
        warped = LEVELS[piece] + (points - self.knots[piece, columns]) / slopes
        return warped, -np.log(slopes).sum(axis=1)


class Warped(NamedTuple):
    """A mixture, in warped coordinates if there is a warp."""

    mixture: Mixture
    warp: Warp | None = None

    def scaled(self, share: float) -> Warped:
        return Warped(self.mixture.scaled(share), self.warp)

    def refit(
        self, points: np.ndarray, log_weights: np.ndarray, rng: np.random.Generator
    ) -> Warped:
        """As `mixture.refit`; the warp stays."""
        if self.warp is not None:
            points = self.warp.inverse(points)[0]
        return Warped(mixtures.refit(self.mixture, points, log_weights, rng), self.warp)

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """As `mixture.log_density`, with the density that of the points."""
        return self.log_density_and_shares(points, np.zeros(0, int))[0]

    def log_density_and_shares(
        self, points: np.ndarray, chosen: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `mixture.log_density_and_shares`, with the density that of the points."""
        if self.warp is None:
            return mixtures.log_density_and_shares(self.mixture, points, chosen)
        warped, log_volume = self.warp.inverse(points)
        log_density, shares = mixtures.log_density_and_shares(self.mixture, warped, chosen)
        return log_density + log_volume, shares

    def draw(self, uniforms: np.ndarray) -> np.ndarray:
        """As `Mixture.draw`."""
        drawn = self.mixture.draw(uniforms)
        return drawn if self.warp is None else self.warp.forward(drawn)


def draw_from(pieces: list[Warped], uniforms: np.ndarray) -> np.ndarray:
    """Points from several mixtures, each by its weights; the first uniform chooses among them."""
    totals = np.array([piece.mixture.weights.sum() for piece in pieces])
    edges = np.concatenate([[0.0], np.cumsum(totals) / totals.sum()])
    chosen = np.searchsorted(edges[1:-1], uniforms[:, 0], side="right")
    points = np.empty((len(uniforms), uniforms.shape[1] - 2))
    for number, piece in enumerate(pieces):
        rows = chosen == number
        own = uniforms[rows].copy()
        own[:, 0] = (own[:, 0] - edges[number]) / (edges[number + 1] - edges[number])
        points[rows] = piece.draw(own)
    return points


def fit(
    points: np.ndarray,
    log_weights: np.ndarray,
    groups: np.ndarray,
    rng: np.random.Generator,
    rival: Mixture | None = None,
) -> Warped:
    """As `mixture.fit`, in warped coordinates where held-out groups have the better density."""
    names = rng.permutation(np.unique(groups))
    held_out = np.isin(groups, names[: max(1, names.size // 4)])
    alive = np.isfinite(log_weights)
    train, test = ~held_out & alive, held_out & alive
    if min(train.sum(), test.sum()) < 20 * points.shape[1] or not _has_quantiles(points[alive]):
        return Warped(mixtures.fit(points, log_weights, groups, rng, rival))
    scores = []
    for is_warped in (False, True):
        candidate = _fit(points[train], log_weights[train], groups[train], rng, rival, is_warped)
        weights = np.exp(log_weights[test] - log_weights[test].max())
        scores.append(np.average(candidate.log_density(points[test]), weights=weights))
    return _fit(points, log_weights, groups, rng, rival, scores[1] > scores[0] + MIN_GAIN)


def _has_quantiles(points: np.ndarray) -> bool:
    """Whether every coordinate has a value for each knot: copies of one point say no width."""
    return all(np.unique(column).size >= LEVELS.size for column in points.T)


def _fit(
    points: np.ndarray,
    log_weights: np.ndarray,
    groups: np.ndarray,
    rng: np.random.Generator,
    rival: Mixture | None,
    is_warped: bool,
) -> Warped:
    if not is_warped:
        return Warped(mixtures.fit(points, log_weights, groups, rng, rival))
    weights = np.exp(log_weights - log_weights.max())
    warp = Warp.fit(points, weights)
    return Warped(mixtures.fit(warp.inverse(points)[0], log_weights, groups, rng), warp)
