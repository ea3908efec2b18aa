"""Tables of the pieces of a sum over the values of the labels they depend on.

The program is run with all labels set at once, as sparse Jacobians are computed by colours: labels
that no element of a piece has in common share a colour, and are given their k-th value in the same
run. A mixture with 30 labels of 3 values needs 3 runs, a chain of any length 9.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.model.enumerated.elimination import MAX_JOINT, Table, TooManyError
from estimand.model.enumerated.expression import Expression, run
from estimand.model.enumerated.lookups import Lookup, lookups
from estimand.model.enumerated.pieces import Piece
from estimand.model.enumerated.reach import Reached


class Cells(NamedTuple):
    """Elements of a piece that make one table.

    `block` are the runs in which the labels of the elements take all their values, of shape
    `shape`; `elements` has the elements of each row of the table, and −1 where a row has fewer.
    """

    piece: int
    block: tuple[int, int]
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    elements: np.ndarray


class Runs(NamedTuple):
    """Runs of the program with labels set, and what is taken from them.

    `labels` has the values of all labels in each run. `free` are for each piece the elements that
    depend on no label.
    """

    labels: np.ndarray
    pieces: tuple[Piece, ...]
    free: tuple[np.ndarray, ...]
    cells: tuple[Cells, ...]
    lookups: tuple[Lookup, ...] = ()


class Layout(NamedTuple):
    """All runs that the tables of some pieces need, the tables' labels, and pieces without any."""

    runs: tuple[Runs, ...]
    tables: tuple[Table, ...]
    plain: tuple[Piece, ...]

    @property
    def num_runs(self) -> int:
        return sum(len(one.labels) for one in self.runs)

    @property
    def places(self) -> list[int]:
        """The variables that are needed."""
        pieces = [*self.plain, *(piece for one in self.runs for piece in one.pieces)]
        factors = [place for piece in pieces for place, _ in piece.factors]
        return [*(piece.place for piece in pieces), *factors]


def lay_out(
    expression: Expression,
    found: Reached,
    pieces: Sequence[Piece],
    supports: Sequence[np.ndarray],
    *,
    is_apart: bool = False,
    limit: int = MAX_JOINT,
) -> Layout:
    """Plans the runs for the tables of some pieces.

    Args:
        expression: the traced program.
        found: what its variables depend on.
        pieces: of a sum.
        supports: the values of each label.
        is_apart: with a row of a table for every element of a piece, also for those without
            labels; else elements with the same labels are added up.
        limit: the most joint values of the labels of one element, and the most runs.

    Raises:
        TooManyError: if a piece depends on too many labels at once.
    """
    plain = [piece for piece in pieces if found.reach[piece.place] is None]
    classes: dict[tuple, list[tuple[Piece, list[tuple[int, ...]]]]] = {}
    for piece in pieces:
        reach = found.reach[piece.place]
        if reach is not None:
            rows = reach.reshape(-1, reach.shape[-1])
            scopes = [tuple(np.flatnonzero(one).tolist()) for one in rows]
            sizes = [len(support) for support in supports]
            colours = _colours(set(scopes), sizes, limit)
            classes.setdefault(colours, []).append((piece, scopes))
    runs, tables = [], []
    for colours, members in classes.items():
        one, made = _runs(colours, members, supports, is_apart)
        free = {place for place, reach in enumerate(found.reach) if reach is None}
        steps = expression.steps_to([piece.place for piece, _ in members], free)
        looked = lookups(expression, found, steps, one.labels)
        runs.append(one._replace(lookups=tuple(looked)))
        tables.extend(made)
    return Layout(tuple(runs), tuple(tables), tuple(plain))


def _colours(scopes: set[tuple[int, ...]], sizes: Sequence[int], limit: int) -> tuple:
    """A colour for every label, another one for labels that stand in one scope; and the blocks.

    Colours are numbered; all labels of a colour have as many values. A block is the colours of a
    scope that is within no larger one.
    """
    for scope in scopes:
        joint = math.prod(float(sizes[v]) for v in scope)
        if joint > limit:
            raise TooManyError(
                f"{len(scope)} labels with {joint:.4g} joint values meet in one factor; "
                f"{limit:,} at most"
            )
    near: dict[int, set[int]] = {}
    for scope in scopes:
        for v in scope:
            near.setdefault(v, set()).update(scope)
    colours: dict[int, tuple[int, int]] = {}
    for v in sorted(near):
        taken = {colours[w] for w in near[v] if w in colours}
        number = next(k for k in itertools.count() if (k, sizes[v]) not in taken)
        colours[v] = (number, sizes[v])
    blocks = {tuple(sorted(colours[v] for v in scope)) for scope in scopes}
    largest = {b for b in blocks if not any(b != c and set(b) <= set(c) for c in blocks)}
    num_runs = sum(_joint(block) for block in largest)
    if num_runs > limit:
        raise TooManyError(
            f"one evaluation needs {num_runs:,} runs of the program; {limit:,} at most"
        )
    every = tuple(colours.get(v, (-1, 0)) for v in range(len(sizes)))
    return every, tuple(sorted(largest))


def _joint(block: tuple[tuple[int, int], ...]) -> int:
    return math.prod(size for _, size in block)


def _runs(
    colours: tuple,
    members: list[tuple[Piece, list[tuple[int, ...]]]],
    supports: Sequence,
    is_apart: bool,
) -> tuple[Runs, list[Table]]:
    every, blocks = colours
    starts = dict(zip(blocks, np.cumsum([0, *map(_joint, blocks)]), strict=False))
    labels = np.concatenate([_assignments(block, every, supports) for block in blocks])
    free, cells, tables = [], [], []
    for number, (_, scopes) in enumerate(members):
        nowhere = [e for e, scope in enumerate(scopes) if not scope and not is_apart]
        free.append(np.array(nowhere, int))
        for where, rows in _alike(scopes, every, blocks, is_apart).items():
            block, axes = where
            start = int(starts[block])
            width = max(map(len, rows.values()))
            elements = np.full((width, len(rows)), -1)
            for k, row in enumerate(rows.values()):
                elements[: len(row), k] = row
            shape = tuple(size for _, size in block)
            span = (start, start + _joint(block))
            cells.append(Cells(number, span, shape, axes, elements))
            scopes_of_rows = [scope for scope, _ in rows]
            tables.append(Table(np.array(scopes_of_rows, int).reshape(len(rows), -1)))
    return Runs(labels, tuple(piece for piece, _ in members), tuple(free), tuple(cells)), tables


def _assignments(block: tuple, every: tuple, supports: Sequence[np.ndarray]) -> np.ndarray:
    """The values of all labels for all joint values of the colours in a block."""
    rows = []
    for places in itertools.product(*(range(size) for _, size in block)):
        chosen = dict(zip(block, places, strict=True))
        rows.append([support[chosen.get(every[v], 0)] for v, support in enumerate(supports)])
    return np.array(rows, float).reshape(-1, len(supports))


def _alike(
    scopes: list[tuple[int, ...]], every: tuple, blocks: tuple, is_apart: bool
) -> dict[tuple, dict[tuple[tuple[int, ...], int], list[int]]]:
    """Elements by the block they are read from and its axes, and then by row of a table.

    A row has labels, in the order of the axes, and a number that tells apart those of equal labels.
    """
    found: dict[tuple, dict[tuple[tuple[int, ...], int], list[int]]] = {}
    for element, scope in enumerate(scopes):
        if scope or is_apart:
            ordered = tuple(sorted(scope, key=lambda v: every[v]))
            own = [every[v] for v in ordered]
            block = next(block for block in blocks if set(own) <= set(block))
            axes = tuple(block.index(colour) for colour in own)
            rows = found.setdefault((block, axes), {})
            rows.setdefault((ordered, element if is_apart else 0), []).append(element)
    return found


# Evaluation ---------------------------------------------------------------------------------------


def tabulate(
    expression: Expression, layout: Layout, values: dict[int, Any], label_input: int
) -> tuple[list[jax.Array], jax.Array]:
    """The tables, and the sum of all elements without labels.

    Args:
        expression: the traced program.
        layout: of the pieces.
        values: of all variables that depend on no label, as far as they are needed.
        label_input: the variable that holds the values of the labels.
    """
    rest = jnp.zeros(())
    for piece in layout.plain:
        rest += piece.weight(values) * jnp.sum(values[piece.place])
    tables: list[jax.Array] = []
    for one in layout.runs:
        flat = _evaluated(expression, one, values, label_input)
        for number, free in enumerate(one.free):
            if free.size:
                rest += jnp.sum(flat[number][0, free])
        tables.extend(table_of(flat[cells.piece], cells) for cells in one.cells)
    return tables, rest


def _evaluated(
    expression: Expression, one: Runs, values: dict[int, Any], label_input: int
) -> list[jax.Array]:
    """For every piece its elements, flattened, in all runs; times its weight."""
    wanted = [piece.place for piece in one.pieces]
    aval = expression.avals[label_input]
    rows = [lookup.rows(values[lookup.operand]) for lookup in one.lookups]
    known = {*values, label_input, *(lookup.result for lookup in one.lookups)}
    steps = expression.steps_to(wanted, known)

    def single(labels: jax.Array, rows: list[jax.Array]) -> list[jax.Array]:
        taken = {
            lookup.result: lookup.spread(row) for lookup, row in zip(one.lookups, rows, strict=True)
        }
        found = run(steps, {**values, label_input: labels, **taken})
        return [jnp.ravel(found[place]).astype(aval.dtype) for place in wanted]

    flat = jax.vmap(single)(jnp.asarray(one.labels, aval.dtype), rows)
    return [
        array if piece == Piece(piece.place) else piece.weight(values) * array
        for piece, array in zip(one.pieces, flat, strict=True)
    ]


def table_of(flat: jax.Array, cells: Cells) -> jax.Array:
    """A table from the elements of a piece in all runs."""
    start, stop = cells.block
    block = flat if (start, stop) == (0, len(flat)) else flat[start:stop]
    elements = cells.elements
    width, num_rows = elements.shape
    order = elements.T.ravel()
    is_whole = order.size == block.shape[1] and (order == np.arange(order.size)).all()
    if is_whole:
        rows = block.reshape(*cells.shape, num_rows, width)
    else:
        if (order < 0).any():
            block = jnp.pad(block, ((0, 0), (0, 1)))
        rows = block[:, order].reshape(*cells.shape, num_rows, width)
    rows = jnp.sum(rows, axis=-1) if width > 1 else rows[..., 0]
    # Colours that these elements do not depend on.
    index = tuple(slice(None) if d in cells.axes else 0 for d in range(len(cells.shape)))
    return rows[index]
