"""Estimates: what all rounds together say of every integral."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from estimand.density import MAGNITUDE
from estimand.methods.economical.rounds import Round
from estimand.methods.economical.target import Values

# Rounds count by their size times a power of the evaluations that their surrogate knew: their
# errors fall faster than those of plain draws. The weights do not depend on what was found.
POWER = 2.0


class Part(NamedTuple):
    """γ, whose sign is 0, γf± of an output, or γ|f| (`MAGNITUDE`)."""

    sign: int
    output: int

    def log_sizes(self, values: Values) -> np.ndarray:
        """log of the likelihood times f±."""
        if self.sign:
            sign = 0 if self.sign == MAGNITUDE else self.sign
            return values.log_weights(self.output, sign)
        found = values.log_likelihood
        return np.where(np.isfinite(found), found, -np.inf)


class Sums(NamedTuple):
    """Z of γ and of γf± of one output, each relative to e^scale, and the covariance of errors.

    Without a likelihood γ is the prior, and its Z is 1.
    """

    values: np.ndarray
    covariance: np.ndarray
    scales: np.ndarray


def shares_of(rounds: list[Round]) -> np.ndarray:
    """By which the rounds count."""
    sizes = np.asarray([one.size * float(one.num_before) ** POWER for one in rounds])
    return sizes / sizes.sum()


def sums_of(rounds: list[Round], parts: list[Part]) -> Sums:
    """What the rounds say of γ and of γf± of an output."""
    scales = _scales(rounds, parts)
    values, covariance = np.zeros(len(parts)), np.zeros((len(parts), len(parts)))
    for share, one in zip(shares_of(rounds), rounds, strict=True):
        found = sums_of_round(one, parts, scales)
        values += share * found.values
        covariance += share**2 * found.covariance
    return Sums(values, covariance, scales)


def _scales(rounds: list[Round], parts: list[Part]) -> np.ndarray:
    """The largest integrand of γ, and that of γ|f|, as logarithms."""
    tops = {0: -math.inf, 1: -math.inf}
    for part in parts:
        for one in rounds:
            for values in (one.pool.values, one.found.values):
                kind = abs(part.sign)
                tops[kind] = max(tops[kind], float(part.log_sizes(values).max(initial=-np.inf)))
    return np.asarray(
        [top if math.isfinite(top := tops[abs(part.sign)]) else 0.0 for part in parts]
    )


def sums_of_round(one: Round, parts: list[Part], scales: np.ndarray) -> Sums:
    """What one round says."""
    pool, count = one.pool, one.pool.log_weights.size
    predicted = _sizes(pool.values, parts, scales)
    terms = np.exp(pool.log_weights)[:, None] * predicted
    differences = _sizes(one.found.values, parts, scales) - predicted[one.chosen]
    differences = np.repeat(np.exp(one.log_factors)[:, None] * differences, one.counts, axis=0)
    return Sums(
        terms.mean(axis=0) + differences.mean(axis=0),
        _covariance(terms) / count + _covariance(differences) / one.size,
        scales,
    )


def _sizes(values: Values, parts: list[Part], scales: np.ndarray) -> np.ndarray:
    columns = zip(parts, scales, strict=True)
    return np.stack([np.exp(part.log_sizes(values) - scale) for part, scale in columns], axis=1)


def _covariance(rows: np.ndarray) -> np.ndarray:
    return np.atleast_2d(np.cov(rows, rowvar=False))


def expected_variance(rounds: list[Round], column: int, scale: float) -> float:
    """Of the corrections to one column of the pools, by what the surrogate says of itself.

    As much of it as one error at the most: if several were to be expected, the evaluations have met
    them, and their own variance has them.
    """
    variances = [_expected_of_round(one, column, scale) for one in rounds]
    expected = sum(one.size * float(one.pool.misses[column]) for one in rounds)
    return float(shares_of(rounds) ** 2 @ variances) / max(1.0, expected)


def _expected_of_round(one: Round, column: int, scale: float) -> float:
    count = one.pool.chances.size
    log_terms = one.pool.log_weights[:count] - math.log(count)
    with np.errstate(over="ignore"):
        terms = np.exp(log_terms + one.pool.log_doubts[:, column] - scale)
    # Where the prior is 0 in floating point, so is the chance.
    squares = np.divide(terms**2, one.pool.chances, out=np.zeros(count), where=one.pool.chances > 0)
    return float(squares.sum()) / one.size
