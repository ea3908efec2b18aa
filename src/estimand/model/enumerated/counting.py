"""Sums over labels for each value of a count, such as how many labels have the value 1.

A table has then one more axis, for what the labels that are summed out so far have counted. Where
tables are multiplied, their counts add up: a convolution. Where it only matters whether anything
was counted, the axis has two places, the second one for all counts above 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from estimand.model.enumerated.elimination import Elimination, Source, log_sum_exp, take_rows


class Counts(NamedTuple):
    """What the labels of a table count: an integer ≥ 0 for all their values and every row."""

    scopes: np.ndarray
    numbers: np.ndarray

    @property
    def content(self) -> tuple:
        """What two of them are compared by."""
        return tuple((array.shape, array.tobytes()) for array in self)

    def up_to(self, most: int | None) -> Counts:
        return self if most is None else self._replace(numbers=np.minimum(self.numbers, most))

    def table(self) -> np.ndarray:
        """The table of a factor that is 1 where the count is what the labels count, else 0."""
        counts = np.arange(self.numbers.max() + 1)[:, None]
        is_it = self.numbers[..., None, :] == counts
        return np.where(is_it, 0.0, -np.inf)


def count(
    elimination: Elimination,
    tables: Sequence[Array],
    counts: Sequence[Counts],
    most: int | None = None,
) -> Array:
    """The log sum for every value of the count, from 0 on.

    Args:
        elimination: of the tables and then those of the counts; no label is kept.
        tables: log densities.
        counts: of which the total is counted.
        most: if given, higher counts are counted as this one.
    """
    every = [table[..., None, :] for table in tables]
    every += [jnp.asarray(one.up_to(most).table()) for one in counts]
    for one in elimination.rounds:
        product = _product(
            [_spread(every[s.table], s, one.around.shape[1] + 1) for s in one.sources], most
        )
        every.append(log_sum_exp(product))
    left = elimination.left
    factors = [_total(take_rows(every[source.table], source.rows), most) for source in left]
    return _product([factor[:, None] for factor in factors], most)[:, 0]


def _spread(table: Array, source: Source, num_labels: int) -> Array:
    taken = take_rows(table, source.rows)
    order = np.argsort(source.axes)
    taken = jnp.transpose(taken, (*order, taken.ndim - 2, taken.ndim - 1))
    return jnp.expand_dims(taken, [d for d in range(num_labels) if d not in source.axes])


def _product(factors: Sequence[Array], most: int | None) -> Array:
    """The product of tables: those that count nothing are added, the others convolved."""
    result = sum((one for one in factors if one.shape[-2] == 1), start=jnp.zeros(()))
    for factor in sorted((one for one in factors if one.shape[-2] > 1), key=lambda f: f.shape[-2]):
        result = factor if result.ndim == 0 else _capped(_convolved(factor, result), most)
    return result


def _convolved(first: Array, second: Array) -> Array:
    """log Σ_b exp(first[c − b] + second[b]) for every c."""
    if second.shape[-2] == 1:
        return first + second
    if first.shape[-2] < second.shape[-2]:
        first, second = second, first
    long, short = first.shape[-2], second.shape[-2]
    places = np.arange(long + short - 1) - np.arange(short)[:, None]
    edge = [(0, 0)] * (first.ndim - 2) + [(0, 1), (0, 0)]
    padded = jnp.pad(first, edge, constant_values=-jnp.inf)
    shifted = padded[..., np.where((places < 0) | (places >= long), long, places), :]
    return log_sum_exp(jnp.moveaxis(shifted + second[..., :, None, :], -3, 0))


def _capped(table: Array, most: int | None) -> Array:
    """The same with all higher counts as one."""
    if most is None or table.shape[-2] <= most + 1:
        return table
    rest = log_sum_exp(jnp.moveaxis(table[..., most:, :], -2, 0))
    return jnp.concatenate([table[..., :most, :], rest[..., None, :]], axis=-2)


def _total(table: Array, most: int | None) -> Array:
    """The product of all rows, as a table with axes for counts alone."""
    if table.shape[-2] == 1:
        return jnp.sum(table, axis=-1)
    while table.shape[-1] > 1:
        half = table.shape[-1] // 2
        pairs = _capped(_convolved(table[..., :half], table[..., half : 2 * half]), most)
        rest = table[..., 2 * half :]
        more = pairs.shape[-2] - rest.shape[-2]
        rest = jnp.pad(rest, [(0, more), (0, 0)], constant_values=-jnp.inf)
        table = jnp.concatenate([pairs, rest], axis=-1)
    return table[..., 0]
