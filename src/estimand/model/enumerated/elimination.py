"""Sums over labels, one label at a time, in the order that keeps the tables small.

A table is a log density over a few labels, for many such groups of labels at once: its last axis
runs over the groups, the others over the values of each label. Labels that have no table in common
and whose tables look alike are summed out together, so that a plate is one operation, a chain of
length T about log2(T) of them, and what is compiled does not grow with the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# The most joint values of labels that one table may have. The largest table of a sum is what it
# costs in memory, for every particle.
MAX_JOINT = 4096


class TooManyError(ValueError):
    """A sum would need a table with too many joint values; the message says how many."""


@jax.custom_jvp
def log_sum_exp(table: jax.Array) -> jax.Array:
    """log Σ exp over the first axis; −inf where every entry is."""
    top = jnp.max(table, axis=0)
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    total = jnp.sum(jnp.exp(table - top[None]), axis=0)
    return jnp.log(total) + top


@log_sum_exp.defjvp
def _log_sum_exp_slope(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    (table,), (slopes,) = primals, tangents
    total = log_sum_exp(table)
    finite = jnp.where(jnp.isfinite(total), total, 0.0)
    return total, jnp.sum(jnp.exp(table - finite[None]) * slopes, axis=0)


class Table(NamedTuple):
    """Which labels the axes of a table are: a row for each place along its last axis."""

    scopes: np.ndarray


class Source(NamedTuple):
    """Rows of a table, and where each of its axes is among those of the sum."""

    table: int
    rows: np.ndarray
    axes: tuple[int, ...]


class Round(NamedTuple):
    """Labels that are summed out at once; `around` are those that they share a table with."""

    labels: np.ndarray
    around: np.ndarray
    sources: tuple[Source, ...]


class Elimination(NamedTuple):
    """The order in which labels are summed out, and the tables that are left over `kept`."""

    sizes: tuple[int, ...]
    rounds: tuple[Round, ...]
    kept: tuple[int, ...]
    left: tuple[Source, ...]

    @property
    def largest(self) -> int:
        """Joint values of the largest table."""
        shapes = [self._shape(one) for one in self.rounds]
        return max((math.prod(shape) for shape in shapes), default=1)

    def _shape(self, one: Round) -> tuple[int, ...]:
        return tuple(self.sizes[v] for v in (one.labels[0], *one.around[0]))

    def run(self, tables: Sequence[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
        """The log sum as a table over the kept labels, and what was summed in every round."""
        every, sums = list(tables), []
        for one in self.rounds:
            shape = (*self._shape(one), len(one.labels))
            total = jnp.zeros(shape)
            for source in one.sources:
                total = total + self._spread(every[source.table], source, shape)
            sums.append(total)
            every.append(log_sum_exp(total))
        shape = tuple(self.sizes[v] for v in self.kept)
        result = jnp.zeros(shape)
        for source in self.left:
            spread = self._spread(every[source.table], source, (*shape, len(source.rows)))
            result = result + jnp.sum(spread, axis=-1)
        return result, sums

    @staticmethod
    def _spread(table: jax.Array, source: Source, shape: tuple[int, ...]) -> jax.Array:
        """The rows of a table with an axis of length 1 for every label it does not have."""
        taken = take_rows(table, source.rows)
        order = np.argsort(source.axes)
        taken = jnp.transpose(taken, (*order, taken.ndim - 1))
        absent = [d for d in range(len(shape) - 1) if d not in source.axes]
        return jnp.expand_dims(taken, absent)

    def draw(self, rng_key: jax.Array, sums: Sequence[jax.Array], kept: Any = 0) -> jax.Array:
        """The places of the values of all labels, drawn from what was summed in every round.

        `kept` is the number of the joint value of the kept labels.
        """
        chosen = jnp.zeros(len(self.sizes), jnp.int32)
        if self.kept:
            places = jnp.unravel_index(kept, tuple(self.sizes[v] for v in self.kept))
            chosen = chosen.at[np.array(self.kept)].set(jnp.stack(places).astype(jnp.int32))
        for number, one in reversed(list(enumerate(self.rounds))):
            logits = sums[number]
            for axis in range(one.around.shape[1]):
                values = chosen[one.around[:, axis]]
                index = values.reshape((1,) * (logits.ndim - 1) + (-1,))
                logits = jnp.take_along_axis(logits, index, axis=1)[:, 0]
            key = jax.random.fold_in(rng_key, number)
            drawn = jax.random.categorical(key, logits, axis=0)
            chosen = chosen.at[one.labels].set(drawn.astype(jnp.int32))
        return chosen


def take_rows(table: jax.Array, rows: np.ndarray) -> jax.Array:
    """Rows along the last axis, as a slice where they are regular."""
    steps = np.diff(rows)
    step = int(steps[0]) if steps.size else 1
    if step > 0 and (steps == step).all():
        first, last = int(rows[0]), int(rows[-1]) + 1
        if (first, last, step) == (0, table.shape[-1], 1):
            return table
        return table[..., first:last:step]
    return table[..., rows]


# The order ----------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """One group of labels of a table."""

    table: int
    row: int
    scope: tuple[int, ...]


def eliminate(
    sizes: Sequence[int], tables: Sequence[Table], kept: Sequence[int] = ()
) -> Elimination:
    """A good order in which to sum labels out.

    Args:
        sizes: how many values each label has.
        tables: the labels of the tables that are added up.
        kept: labels that are not summed out.

    Raises:
        TooManyError: if every order leads to a table of more than `MAX_JOINT` joint values.
    """
    sequential = _Order(sizes, tables, kept, slack=1)
    if len(sequential.rounds) <= 2:
        return sequential.result()
    # Summing out every other label of a chain is more work than going along it, and far less deep.
    parallel = _Order(sizes, tables, kept, slack=max(sizes))
    return min(sequential, parallel, key=lambda order: order.price).result()


# What a round costs beside its numbers, in numbers. Not measured.
_ROUND_PRICE = 500


class _Order:
    """Chooses the rounds; labels whose tables have up to `slack` times the least size go first."""

    def __init__(
        self, sizes: Sequence[int], tables: Sequence[Table], kept: Sequence[int], slack: int
    ) -> None:
        self.sizes, self.kept, self.slack = tuple(sizes), tuple(kept), slack
        self.rounds: list[Round] = []
        self.rows: dict[int, set[_Row]] = {v: set() for v in range(len(sizes))}
        self.bare: list[_Row] = []
        self.num_tables = len(tables)
        self.price = 0
        for number, table in enumerate(tables):
            for row, scope in enumerate(table.scopes.tolist()):
                self._add(_Row(number, row, tuple(scope)))
        open_labels = set(range(len(sizes))) - set(kept)
        while open_labels:
            open_labels -= self._sum_some(open_labels)

    def result(self) -> Elimination:
        left = {row for v in self.kept for row in self.rows[v]} | set(self.bare)
        sources = _sources(sorted(left), self.kept)
        return Elimination(self.sizes, tuple(self.rounds), self.kept, sources)

    def _add(self, row: _Row) -> None:
        for v in row.scope:
            self.rows[v].add(row)
        if not row.scope:
            self.bare.append(row)

    def _around(self, label: int) -> tuple[int, ...]:
        return tuple(sorted({v for row in self.rows[label] for v in row.scope} - {label}))

    def _sum_some(self, open_labels: set[int]) -> set[int]:
        around = {v: self._around(v) for v in open_labels}
        costs = {v: math.prod(self.sizes[w] for w in (v, *others)) for v, others in around.items()}
        least = min(costs.values())
        if least > MAX_JOINT:
            raise TooManyError(f"{least:,} joint values; {MAX_JOINT:,} at most")
        limit = min(least * self.slack, MAX_JOINT)
        chosen: set[int] = set()
        for v in sorted(open_labels, key=lambda v: (costs[v], v)):
            if costs[v] <= limit and chosen.isdisjoint(around[v]):
                chosen.add(v)
        groups: dict[tuple, list[int]] = {}
        for v in sorted(chosen):
            groups.setdefault(self._signature(v, around[v]), []).append(v)
            self.price += costs[v]
        for members in groups.values():
            self._sum_alike(members, around)
        return chosen

    def _signature(self, label: int, around: tuple[int, ...]) -> tuple:
        axes = {v: k for k, v in enumerate((label, *around))}
        tables = sorted((row.table, tuple(axes[v] for v in row.scope)) for row in self.rows[label])
        return tuple(self.sizes[v] for v in (label, *around)), tuple(tables)

    def _sum_alike(self, labels: list[int], around: dict[int, tuple[int, ...]]) -> None:
        places: dict[tuple[int, tuple[int, ...], int], list[int]] = {}
        for v in labels:
            axes = {w: k for k, w in enumerate((v, *around[v]))}
            seen: dict[tuple, int] = {}
            for row in sorted(self.rows[v]):
                kind = (row.table, tuple(axes[w] for w in row.scope))
                seen[kind] = seen.get(kind, 0) + 1
                places.setdefault((*kind, seen[kind]), []).append(row.row)
        sources = tuple(
            Source(table, np.array(rows), axes) for (table, axes, _), rows in places.items()
        )
        scopes = np.array([around[v] for v in labels], int).reshape(len(labels), -1)
        self.rounds.append(Round(np.array(labels), scopes, sources))
        self.price += _ROUND_PRICE
        for place, v in enumerate(labels):
            for old in list(self.rows[v]):
                for w in old.scope:
                    self.rows[w].discard(old)
            self._add(_Row(self.num_tables, place, around[v]))
        self.num_tables += 1


def _sources(rows: Sequence[_Row], kept: tuple[int, ...]) -> tuple[Source, ...]:
    axes = {v: k for k, v in enumerate(kept)}
    places: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for row in rows:
        places.setdefault((row.table, tuple(axes[v] for v in row.scope)), []).append(row.row)
    return tuple(Source(table, np.array(rows), where) for (table, where), rows in places.items())
