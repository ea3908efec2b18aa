"""Pools: many points where the surrogate says that something is, for free.

A proposal is fitted to the surrogate's own targets, along a path from the prior as in iterated
cross-entropy; a pool is drawn from it. The pool stands for the integral, and the simulator is asked
at some of its points only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from estimand.methods.economical.surrogate import Surrogate
from estimand.methods.economical.target import Target, Values
from estimand.sampling import Mixture, effective_sample_size, mixture, relative_weights

# Points of a pool, those of them that can be chosen, and points by which the proposal is adapted.
POOL, CHOICE, SCOUTS = 32768, 8192, 4096
# Effective points, at the least, that a step along the path may leave.
MIN_EFFECTIVE = 200
MAX_STEPS = 14
# Shares of the proposal: the prior, the prior made wider, and what was fitted.
PRIOR_SHARE, WIDE_SHARE = 0.15, 0.15
WIDENED = 2.0
# Standard deviations of the surrogate at which the integrand is looked at, and their weights.
NODES = np.array([-3.0, -2.0, -1.2, -0.5, 0.5, 1.2, 2.0, 3.0])
NODE_WEIGHTS = np.exp(-0.5 * NODES**2) * np.array([1.2, 0.9, 0.75, 0.85, 0.85, 0.75, 0.9, 1.2])
NODE_WEIGHTS /= NODE_WEIGHTS.sum()
# Shares by which points of a pool are chosen: where the surrogate is in doubt, where the integrand
# is large, by the prior, and evenly.
DOUBT_SHARE, SIZE_SHARE, PLAIN_SHARE, EVEN_SHARE = 0.5, 0.25, 0.1, 0.15


class Proposal(NamedTuple):
    """The prior, a wide Gaussian, and a mixture for each target."""

    fitted: tuple[Mixture, ...]

    def _broad(self, dimension: int) -> Mixture:
        return Mixture(
            weights=np.ones(1),
            means=np.zeros((1, dimension)),
            factors=WIDENED * np.eye(dimension)[None],
            degrees=np.full(1, math.inf),
        )

    def _joined(self, dimension: int) -> Mixture:
        share = 1 - PRIOR_SHARE - WIDE_SHARE
        pieces = [self._broad(dimension).scaled(WIDE_SHARE)]
        for one in self.fitted:
            pieces.append(one.scaled(share / len(self.fitted) / one.weights.sum()))
        joined = Mixture.join(pieces)
        return joined.scaled((1 - PRIOR_SHARE) / joined.weights.sum())

    def draw(self, target: Target, count: int, seed: tuple[int, ...]) -> Drawn:
        """Independent points with their log weights, prior over proposal."""
        rng = np.random.default_rng(seed)
        joined = self._joined(target.dimension)
        from_prior = int(rng.binomial(count, PRIOR_SHARE))
        uniforms = rng.random((count - from_prior, target.dimension + 2))
        points = np.concatenate([target.draw((*seed, 1), from_prior), joined.draw(uniforms)])
        points = rng.permutation(points)
        log_prior = target.log_prior(points)
        log_density = np.logaddexp(
            math.log(PRIOR_SHARE) + log_prior, mixture.log_density(joined, points)
        )
        return Drawn(points, log_prior - log_density)


class Drawn(NamedTuple):
    """Points of a proposal, and log of prior over proposal."""

    points: np.ndarray
    log_weights: np.ndarray


class Pool(NamedTuple):
    """Points with what the surrogate says of them.

    `log_weights` and `values` are of all points, the other columns of those that can be chosen, the
    first ones. `log_doubts` are logarithms of the standard deviations that the surrogate allows the
    integrand: a column for γ, if there is a likelihood, and for each output and look. `misses` is
    the share of choices at which the surrogate expects to be far off, for each of these.
    """

    points: np.ndarray
    log_weights: np.ndarray
    values: Values
    log_doubts: np.ndarray
    misses: np.ndarray
    chances: np.ndarray
    predicted: np.ndarray
    deviations: np.ndarray


def adapted(
    target: Target, surrogate: Surrogate, proposal: Proposal, seed: tuple[int, ...]
) -> Proposal:
    """The proposal fitted to the surrogate's targets, step by step from the one before."""
    rng = np.random.default_rng((*seed, 1))
    reached = np.zeros(num_targets(target))
    is_first = not proposal.fitted
    for step in range(MAX_STEPS):
        drawn = proposal.draw(target, SCOUTS, (*seed, 2, step))
        outputs = surrogate.inverse(surrogate.mean(drawn.points))
        log_likelihood, ladder = target.ladder(drawn.points, outputs)
        fitted = []
        for number in range(reached.size):
            log_f = _column(target, ladder, number)
            reached[number], log_weights = _farthest(drawn.log_weights, log_likelihood, log_f)
            if np.isfinite(log_weights).any():
                groups = np.arange(len(drawn.points))
                fitted.append(mixture.fit(drawn.points, log_weights, groups, rng))
        proposal = Proposal(tuple(fitted))
        if (reached >= 1).all() and not (is_first and step == 0):
            break
    return proposal


def num_targets(target: Target) -> int:
    """γ if there is a likelihood, every output, and every term behind them."""
    return int(target.has_likelihood) + target.num_outputs + len(target.looks)


def _column(target: Target, ladder: np.ndarray, number: int) -> np.ndarray | None:
    """log |f| of a target, from soft to sharp; None for γ."""
    if target.has_likelihood:
        return None if number == 0 else ladder[:, :, number - 1]
    return ladder[:, :, number]


def _farthest(
    log_weights: np.ndarray, log_likelihood: np.ndarray, log_f: np.ndarray | None
) -> tuple[float, np.ndarray]:
    """How far along the path enough points are effective, and their weights there."""

    def at(share: float) -> np.ndarray:
        found = log_weights + _scaled(share, log_likelihood)
        if log_f is not None:
            count = log_f.shape[1]
            parts = np.clip(1 - np.abs(count * share - np.arange(1, count + 1)), 0.0, 1.0)
            with np.errstate(invalid="ignore"):
                for rung in np.flatnonzero(parts):
                    found = found + _scaled(parts[rung], log_f[:, rung])
        return np.where(np.isfinite(found), found, -np.inf)

    if effective_sample_size(at(1.0)) >= MIN_EFFECTIVE:
        return 1.0, at(1.0)
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = 0.5 * (low + high)
        if effective_sample_size(at(middle)) >= MIN_EFFECTIVE:
            low = middle
        else:
            high = middle
    return low, at(low)


def _scaled(share: float, log_values: np.ndarray) -> np.ndarray:
    """share · log_values with 0 · (−inf) = 0."""
    return share * log_values if share > 0 else np.zeros_like(log_values)


def pool_of(
    target: Target, surrogate: Surrogate, proposal: Proposal, seed: tuple[int, ...]
) -> Pool:
    """A pool with the chance of each of its points to be simulated."""
    drawn = proposal.draw(target, POOL, (*seed, 3))
    rng = np.random.default_rng((*seed, 4))
    points = drawn.points[:CHOICE]
    predicted, deviations = surrogate.predict(points)
    rest = surrogate.mean(drawn.points[CHOICE:])
    outputs = surrogate.inverse(np.concatenate([predicted, rest]))
    every = target.values(drawn.points, outputs)
    values = Values(*(column[:CHOICE] for column in every))
    signs = rng.choice([-1.0, 1.0], predicted.shape)
    nodes = [
        target.values(points, surrogate.inverse(predicted + node * signs * deviations))
        for node in NODES
    ]
    doubts = _doubts(target, values, nodes)
    log_sizes = np.stack(columns_of(target, values), axis=1)
    is_sensible = target.is_sensible(points)
    chances = _chances(drawn.log_weights[:CHOICE], log_sizes, doubts.logs, is_sensible)
    return Pool(
        points=points,
        log_weights=drawn.log_weights,
        values=every,
        log_doubts=doubts.logs,
        misses=chances @ doubts.rates,
        chances=chances,
        predicted=predicted,
        deviations=deviations,
    )


class Doubts(NamedTuple):
    """Logarithms of the integrand's standard deviations, and how likely it is to be far off."""

    logs: np.ndarray
    rates: np.ndarray


def _doubts(target: Target, values: Values, nodes: list[Values]) -> Doubts:
    """How far the integrand is elsewhere within the surrogate's error, column by column."""
    columns = [columns_of(target, some) for some in (values, *nodes)]
    tops = [
        max(column.max(initial=-np.inf) for column in some) for some in zip(*columns, strict=True)
    ]
    tops = [top if np.isfinite(top) else 0.0 for top in tops]
    here = np.stack(_signed(target, values, tops), axis=1)
    squares, largest = np.zeros_like(here), np.zeros_like(here)
    for weight, other in zip(NODE_WEIGHTS, nodes, strict=True):
        distance = np.abs(np.stack(_signed(target, other, tops), axis=1) - here)
        squares += weight * distance**2
        np.maximum(largest, distance, out=largest)
    with np.errstate(divide="ignore"):
        logs = 0.5 * np.log(squares) + np.asarray(tops)
    most = largest**2
    rates = np.divide(squares, most, out=np.zeros_like(squares), where=most > 0)
    return Doubts(logs, rates)


def columns_of(target: Target, values: Values) -> list[np.ndarray]:
    """log of likelihood, if there is one, and of likelihood · |f| for every output and look."""
    found = []
    if target.has_likelihood:
        found.append(np.where(np.isfinite(values.log_likelihood), values.log_likelihood, -np.inf))
    return found + [values.log_weights(k) for k in range(values.signs.shape[1])]


def _signed(target: Target, values: Values, tops: list[float]) -> list[np.ndarray]:
    first = int(target.has_likelihood)
    found = [values.likelihoods(tops[0])] if first else []
    return found + [values.weights(k, tops[first + k]) for k in range(values.signs.shape[1])]


def _chances(
    log_weights: np.ndarray, log_sizes: np.ndarray, log_doubts: np.ndarray, is_even: np.ndarray
) -> np.ndarray:
    """By which points are chosen: shares of several kinds, each spread evenly over the targets."""

    def spread(logs: np.ndarray) -> np.ndarray | None:
        columns = [
            relative_weights(log_weights + column)
            for column in logs.T
            if np.isfinite(log_weights + column).any()
        ]
        return np.mean(columns, axis=0) if columns else None

    zero = np.zeros((log_weights.size, 1))
    kinds = [
        (DOUBT_SHARE, spread(log_doubts)),
        (SIZE_SHARE, spread(log_sizes)),
        (PLAIN_SHARE, spread(zero)),
        (EVEN_SHARE, is_even.astype(float)),
    ]
    chances = np.zeros(log_weights.size)
    for share, found in kinds:
        if found is not None:
            chances += share * found
    return chances / chances.sum()
