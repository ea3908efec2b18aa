"""The mean of the return value over the labels, given the rest.

It is taken in the cheapest way that is exact. Few labels are summed last, one run of the program
for each of their joint values. Terms of sums need the joint distribution of their own labels alone.
A function of how many labels do something needs the distribution of that number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from estimand.model.enumerated.counting import Counts, count
from estimand.model.enumerated.elimination import (
    MAX_JOINT,
    Elimination,
    Table,
    TooManyError,
    log_sum_exp,
    take_rows,
)
from estimand.model.enumerated.expression import Step
from estimand.model.enumerated.pieces import Piece
from estimand.model.enumerated.tables import Layout, table_of, tabulate
from estimand.model.enumerated.trace import Sum, Summed, Trace

# Up to so many joint values of the labels that the outputs depend on, these are summed last.
MAX_CLAMPED = 64

Values = dict[int, Any]


class Target(Protocol):
    """How outputs are averaged over the labels.

    The weights come from the density alone and the means from the outputs: whoever reads the
    return expression must not take the comparisons of the density for its own.
    """

    @property
    def joint(self) -> Sum:
        """The sum over the labels of the density."""

    @property
    def wanted(self) -> list[int]:
        """The variables that are needed beside those of the joint sum."""

    @property
    def num_runs(self) -> int:
        """Runs of the program beside those of the joint sum."""

    def weigh(self, trace: Trace, values: Values) -> tuple[Summed, Any]:
        """The log sum, and the weights of what is averaged."""

    def mean(self, trace: Trace, values: Values, weights: Any) -> jax.Array:
        """The outputs' means, by these weights."""


def target_of(trace: Trace, density: Layout) -> Target:
    """The cheapest way to average the outputs of a program.

    Raises:
        TooManyError: if there is none.
    """
    place = trace.results.outputs
    labels = trace.labels_of(place)
    if not labels:
        return Free(Sum.of(trace, density), place)
    if math.prod(trace.sizes[v] for v in labels) <= MAX_CLAMPED:
        return Clamped.of(trace, density, place, labels)
    return Several.of(trace, density, place)


# --- outputs without labels, and with few ---


class Free(NamedTuple):
    """Outputs that do not depend on the labels."""

    joint: Sum
    place: int

    @property
    def wanted(self) -> list[int]:
        return [self.place]

    @property
    def num_runs(self) -> int:
        return 0

    def weigh(self, trace: Trace, values: Values) -> tuple[Summed, Any]:
        return self.joint.total(*self.joint.tables(trace, values)), ()

    def mean(self, trace: Trace, values: Values, weights: Any) -> jax.Array:  # noqa: ARG002
        return values[self.place]


class Clamped(NamedTuple):
    """Outputs that depend on few labels, which are summed last.

    `chosen` are the joint values at which some output is not 0, if that is known; `numbers` are the
    outputs there, if they depend on nothing else.
    """

    joint: Sum
    place: int
    labels: np.ndarray
    chosen: np.ndarray
    numbers: np.ndarray | None

    @classmethod
    def of(cls, trace: Trace, density: Layout, place: int, kept: Sequence[int]) -> Clamped:
        rows = []
        for values in itertools.product(*(trace.supports[v] for v in kept)):
            row = trace.default
            row[list(kept)] = values
            rows.append(row)
        labels = np.array(rows)
        known, numbers = trace.constants_at([place], labels), None
        chosen = np.arange(len(labels))
        if known is not None:
            chosen = _not_zero(known[0])
            numbers = known[0][chosen]
        return cls(Sum.of(trace, density, kept), place, labels[chosen], chosen, numbers)

    @property
    def wanted(self) -> list[int]:
        return [self.place] if self.numbers is None else []

    @property
    def num_runs(self) -> int:
        return len(self.labels) if self.numbers is None else 0

    def weigh(self, trace: Trace, values: Values) -> tuple[Summed, Any]:
        summed = self.joint.total(*self.joint.tables(trace, values))
        return summed, _log_shares(jnp.ravel(summed.clamped))[self.chosen]

    def mean(self, trace: Trace, values: Values, weights: Any) -> jax.Array:
        return _mean(weights, self.outputs(trace, values))

    def outputs(self, trace: Trace, values: Values) -> jax.Array:
        """All outputs at the chosen joint values."""
        if self.numbers is not None:
            return jnp.asarray(self.numbers)
        given = {trace.label_input: trace.as_labels(self.labels)}
        return trace.evaluate_at(self.place, values, given)


def _not_zero(numbers: np.ndarray) -> np.ndarray:
    """Where some output is not 0; one place at least."""
    chosen = np.flatnonzero((numbers.reshape(len(numbers), -1) != 0).any(axis=1))
    return chosen if chosen.size else np.array([0])


def _log_shares(log_weights: jax.Array) -> jax.Array:
    return log_weights - log_sum_exp(log_weights)


def _mean(log_shares: jax.Array, outputs: Any) -> jax.Array:
    # No share is above 1, and the absolute value shows it to whoever reads the expression.
    return jnp.sum(jnp.exp(-jnp.abs(log_shares))[:, None] * outputs, axis=0)


# --- outputs with many labels: each by its own way ---


class Several(NamedTuple):
    """Outputs that are sums of terms with few labels, or that depend on counts."""

    joint: Sum
    terms: tuple[Terms, ...]
    counted: tuple[Counted, ...]

    @classmethod
    def of(cls, trace: Trace, density: Layout, place: int) -> Several:
        terms, counted = [], []
        for start, leaf in _leaves(trace, place):
            one = _cheapest(trace, density, start, leaf)
            terms += [one] if isinstance(one, Terms) else []
            counted += [one] if isinstance(one, Counted) else []
        tables = [table for one in terms for table in one.tables]
        joint = Sum.of(trace, density, (), tables)
        return cls(joint, tuple(terms), tuple(counted))

    @property
    def wanted(self) -> list[int]:
        terms = [place for one in self.terms for place in one.wanted]
        return terms + [place for one in self.counted for place in one.wanted]

    @property
    def num_runs(self) -> int:
        return sum(one.num_runs for one in self.terms)

    def weigh(self, trace: Trace, values: Values) -> tuple[Summed, Any]:
        tables, rest = self.joint.tables(trace, values)
        sizes = trace.sizes
        zeros = [
            jnp.zeros((*(sizes[v] for v in table.scopes[0]), len(table.scopes)))
            for one in self.terms
            for table in one.tables
        ]

        def total(further: list[jax.Array]) -> tuple[jax.Array, Summed]:
            summed = self.joint.total([*tables, *further], rest)
            return summed.log_total, summed

        # The slopes of the log sum by the entries of a table are the probabilities of these.
        shares, summed = jax.grad(total, has_aux=True)(zeros) if zeros else ([], total([])[1])
        return summed, (shares, [one.log_shares(tables) for one in self.counted])

    def mean(self, trace: Trace, values: Values, weights: Any) -> jax.Array:
        shares, log_shares = weights
        every, found = iter(shares), {}
        for one in self.terms:
            found[one.start] = one.mean(trace, values, [next(every) for _ in one.tables])
        for counted, log_share in zip(self.counted, log_shares, strict=True):
            found[counted.start] = counted.mean(trace, values, log_share)
        return jnp.concatenate([found[start] for start in sorted(found)])


def _cheapest(trace: Trace, density: Layout, start: int, leaf: int) -> Terms | Counted:
    """Terms of few labels, else counts, else all joint values of the labels of each term."""
    try:
        return Terms.of(trace, start, leaf, limit=MAX_CLAMPED)
    except TooManyError:
        pass
    try:
        return Counted.of(trace, density, start, leaf)
    except TooManyError as error:
        try:
            return Terms.of(trace, start, leaf, limit=MAX_JOINT)
        except TooManyError:
            raise error from None


def _leaves(trace: Trace, place: int) -> list[tuple[int, int]]:
    """The parts that a vector of outputs is put together from, and where each starts."""
    step = trace.expression.made_by.get(place)
    if step is None:
        return [(0, place)]
    if step.name in ("convert_element_type", "reshape"):
        return _leaves(trace, step.inputs[0])
    if step.name != "concatenate" and not (step.name == "stack" and step.params["axis"] == 0):
        return [(0, place)]
    found, start = [], 0
    for part in step.inputs:
        found += [(start + offset, leaf) for offset, leaf in _leaves(trace, part)]
        start += math.prod(trace.expression.avals[part].shape)
    return found


@jax.custom_jvp
def _share(probability: jax.Array) -> jax.Array:
    """A probability, in a form that shows that it is between 0 and 1."""
    return jnp.exp(-jnp.abs(jnp.log(probability)))


@_share.defjvp
def _share_slope(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    return _share(*primals), tangents[0]


class Terms(NamedTuple):
    """An output that is a sum of terms with few labels each, or outputs that each have few.

    `numbers` are the tables of the terms, if they depend on labels alone.
    """

    start: int
    leaf: int
    size: int
    layout: Layout
    numbers: tuple[np.ndarray, ...] | None

    @classmethod
    def of(cls, trace: Trace, start: int, leaf: int, limit: int) -> Terms:
        size = math.prod(trace.expression.avals[leaf].shape)
        pieces = trace.pieces([leaf]) if size == 1 else [Piece(leaf)]
        layout = trace.layout(pieces, is_apart=True, limit=limit)
        labelled = layout._replace(plain=())
        has_factors = any(piece.factors for one in layout.runs for piece in one.pieces)
        numbers = None
        if layout.runs and not has_factors and trace.is_constant(labelled.places):
            numbers = tuple(_constant_tables(trace, labelled)[0])
        return cls(start, leaf, size, layout, numbers)

    @property
    def wanted(self) -> list[int]:
        return self._computed.places

    @property
    def _computed(self) -> Layout:
        """What is computed in every evaluation."""
        return self.layout if self.numbers is None else self.layout._replace(runs=(), tables=())

    @property
    def num_runs(self) -> int:
        return self._computed.num_runs

    @property
    def tables(self) -> list[Table]:
        return [table for table in self.layout.tables if table.scopes.shape[1]]

    def mean(self, trace: Trace, values: Values, shares: list[jax.Array]) -> jax.Array:
        """The outputs' means from the probabilities of the labels of each table."""
        if not self.layout.runs and self.layout.plain == (Piece(self.leaf),):
            return jnp.ravel(values[self.leaf]).astype(jnp.result_type(float))
        every, found = iter(shares), []
        made, rest = tabulate(trace.expression, self._computed, values, trace.label_input)
        tables: Sequence[Any] = made if self.numbers is None else self.numbers
        for table, numbers in zip(self.layout.tables, tables, strict=True):
            has_labels = table.scopes.shape[1] > 0
            found.append(_averaged(next(every), numbers) if has_labels else jnp.asarray(numbers))
        if self.size == 1:
            return jnp.reshape(rest + sum(jnp.sum(one) for one in found), (1,))
        cells = [cell for one in self.layout.runs for cell in one.cells]
        order = np.argsort(np.concatenate([cell.elements[0] for cell in cells]))
        outputs = found[0] if len(found) == 1 else jnp.concatenate(found)
        return take_rows(outputs, order)


def _averaged(probabilities: jax.Array, numbers: Any) -> jax.Array:
    """The mean of every row of a table over the values of its labels.

    Values at which written numbers are 0 in all rows are left out: they are no terms.
    """
    if isinstance(numbers, np.ndarray):
        num_rows = numbers.shape[-1]
        flat = numbers.reshape(-1, num_rows)
        chosen = _not_zero(flat)
        probabilities, numbers = probabilities.reshape(-1, num_rows)[chosen], flat[chosen]
    return jnp.sum(_share(probabilities) * numbers, axis=tuple(range(numbers.ndim - 1)))


# --- functions of counts ---


class Counted(NamedTuple):
    """An output that depends on the labels through sums of integers alone.

    `cuts` are these sums and the `values` they can have, by the number that encodes them all.
    Of an "all" or "any" only 0 and `most`, which is 1, are told apart.
    """

    start: int
    leaf: int
    counts: tuple[Counts, ...]
    elimination: Any
    cuts: tuple[int, ...]
    values: tuple[np.ndarray, ...]
    most: int | None = None

    @classmethod
    def of(cls, trace: Trace, density: Layout, start: int, leaf: int) -> Counted:
        cuts = _cuts(trace, leaf)
        if len(cuts) == 1 and (known := _exceptions(trace, cuts[0])):
            counts, value = known
            elimination = _eliminated(trace, density, counts)
            return cls(start, leaf, tuple(counts), elimination, tuple(cuts), (value,), 1)
        counts, values, unit = [], [], 1
        places: dict[tuple, tuple[int, int, int]] = {}
        for cut in cuts:
            found, lowest, highest = _counts(trace, cut)
            size = highest - lowest + 1
            # The same sum may be written several times.
            content = (lowest, *(one.content for one in found))
            if content in places:
                values.append(places[content])
                continue
            if unit * size > MAX_JOINT:
                raise TooManyError(
                    f"the return value depends on sums over labels with more than {MAX_JOINT:,} "
                    "joint values"
                )
            counts += [one._replace(numbers=unit * one.numbers) for one in found]
            values.append((lowest, unit, size))
            places[content] = values[-1]
            unit *= size
        codes = np.arange(unit)
        decoded = tuple(low + codes // one % size for low, one, size in values)
        elimination = _eliminated(trace, density, counts)
        decoded = tuple(
            _as_cut(trace, cut, numbers) for cut, numbers in zip(cuts, decoded, strict=True)
        )
        return cls(start, leaf, tuple(counts), elimination, tuple(cuts), decoded)

    @property
    def wanted(self) -> list[int]:
        return [self.leaf]

    def log_shares(self, tables: list[jax.Array]) -> jax.Array:
        """The log probability of every value of the counts."""
        found = count(self.elimination, tables, self.counts, self.most)
        return _log_shares(found[: len(self.values[0])])

    def mean(self, trace: Trace, values: Values, log_shares: jax.Array) -> jax.Array:
        given = {
            cut: jnp.asarray(numbers) for cut, numbers in zip(self.cuts, self.values, strict=True)
        }
        outputs = trace.evaluate_at(self.leaf, values, given)
        flat = outputs.reshape(len(log_shares), -1).astype(log_shares.dtype)
        return _mean(log_shares, flat)


def _eliminated(trace: Trace, density: Layout, counts: Sequence[Counts]) -> Elimination:
    tables = [*density.tables, *(Table(one.scopes) for one in counts)]
    return Sum.of(trace, density._replace(tables=tuple(tables))).elimination


def _exceptions(trace: Trace, cut: int) -> tuple[list[Counts], np.ndarray] | None:
    """What an "all" or an "any" counts, and its values without and with such; None for others.

    An "all" counts what is false, an "any" what is true.
    """
    name = trace.expression.made_by[cut].name
    if name not in ("reduce_and", "reduce_or"):
        return None
    found, lowest, highest = _counts(trace, cut)
    size = math.prod(trace.expression.avals[trace.expression.made_by[cut].inputs[0]].shape)
    if lowest == highest or (highest < size if name == "reduce_and" else lowest > 0):
        return None
    if name == "reduce_or":
        return found, np.array([False, True])
    tops = [one.numbers.max(axis=tuple(range(one.numbers.ndim - 1))) for one in found]
    pairs = zip(found, tops, strict=True)
    return [one._replace(numbers=top - one.numbers) for one, top in pairs], np.array([True, False])


def _cuts(trace: Trace, leaf: int) -> list[int]:
    """The sums through which alone an output depends on the labels."""
    cuts, waiting, seen = [], [leaf], set()
    while waiting:
        place = waiting.pop()
        if place in seen or trace.reach(place) is None:
            continue
        seen.add(place)
        step = trace.expression.made_by.get(place)
        if step is not None and _is_count(trace, step):
            cuts.append(place)
        elif step is None:
            raise _too_many(trace, leaf)
        else:
            waiting.extend(step.inputs)
    return sorted(cuts)


def _is_count(trace: Trace, step: Step) -> bool:
    is_sum = step.name in ("reduce_sum", "reduce_and", "reduce_or")
    return is_sum and not trace.expression.avals[step.outputs[0]].shape


def _too_many(trace: Trace, leaf: int) -> TooManyError:
    labels = trace.labels_of(leaf)
    joint = math.prod(float(trace.sizes[v]) for v in labels)
    return TooManyError(
        f"the return value depends on {len(labels)} labels with {joint:.3g} joint values; "
        f"{MAX_JOINT:,} at most, unless it is a sum over labels or depends on counts of them "
        "(jnp.sum, jnp.all, jnp.any)"
    )


def _counts(trace: Trace, cut: int) -> tuple[list[Counts], int, int]:
    """What each group of labels adds to a sum, from 0 on, and the range of the sum."""
    step = trace.expression.made_by[cut]
    pieces = [Piece(step.inputs[0])]
    if step.name == "reduce_sum":
        pieces = trace.pieces([cut])
    places = [piece.place for piece in pieces]
    if not trace.is_constant(places) or any(piece.factors for piece in pieces):
        raise _too_many(trace, cut)
    layout = trace.layout(pieces, limit=MAX_CLAMPED)
    tables, offset = _constant_tables(trace, layout)
    found, lowest, highest = [], 0, 0
    for table, whole in zip(layout.tables, tables, strict=True):
        if (whole != np.round(whole)).any():
            raise _too_many(trace, cut)
        integers = whole.astype(int)
        axes = tuple(range(integers.ndim - 1))
        least = integers.min(axis=axes)
        found.append(Counts(table.scopes, integers - least))
        lowest += int(least.sum())
        highest += int(integers.max(axis=axes).sum())
    if offset != round(offset):
        raise _too_many(trace, cut)
    return found, lowest + int(offset), highest + int(offset)


def _constant_tables(trace: Trace, layout: Layout) -> tuple[list[np.ndarray], float]:
    """The tables of pieces that depend on labels alone, and the sum of those without labels."""
    tables, rest = [], 0.0
    if layout.plain:
        known = trace.constants_at([piece.place for piece in layout.plain], trace.default[None])
        assert known is not None
        rest = sum(
            piece.coefficient * one.sum() for piece, one in zip(layout.plain, known, strict=True)
        )
    for one in layout.runs:
        known = trace.constants_at([piece.place for piece in one.pieces], one.labels)
        assert known is not None
        flat = [
            piece.coefficient * values.reshape(len(one.labels), -1)
            for piece, values in zip(one.pieces, known, strict=True)
        ]
        rest += sum(
            float(values[0, free].sum()) for values, free in zip(flat, one.free, strict=True)
        )
        with jax.ensure_compile_time_eval():
            tables += [
                np.asarray(table_of(jnp.asarray(flat[cells.piece]), cells)) for cells in one.cells
            ]
    return tables, rest


def _as_cut(trace: Trace, cut: int, sums: np.ndarray) -> np.ndarray:
    """The value of a cut for each value of its sum."""
    step = trace.expression.made_by[cut]
    size = math.prod(trace.expression.avals[step.inputs[0]].shape)
    if step.name == "reduce_and":
        return sums == size
    return sums > 0 if step.name == "reduce_or" else sums.astype(trace.expression.avals[cut].dtype)
