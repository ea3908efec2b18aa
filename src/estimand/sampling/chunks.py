"""Work in pieces of one size, which bounds memory and is compiled once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from estimand.density import Density, has_loop
from estimand.runtime import Task, has_accelerator, spread

# Rows that a compiled function takes at a time, where nothing else is said.
CHUNK = 4096
# Bytes of the largest array in a batch of evaluations. With 20,000 data and 160 MB an evaluation
# took 200 µs, with 10 MB and with 2.5 MB 10 µs, a gradient 430, 64 and 39 µs.
MAX_BYTES = 4 * 2**20
# And at most so many rows: microseconds for an evaluation and for a gradient of radon were 0.6 and
# 1.3 with 64 rows at a time, 0.8 and 5.9 with all 4,096; SIR took 1.3 and 24, and 2.9 and 21.
MAX_ROWS = 64
# Fewer than this many rows are worked on one by one: a logistic regression on 100,000 of data took
# 11 ns for each with one row, 25 to 29 ns with two to eight, and 20 ns with 16.
MIN_ROWS = 16
# Models without a loop and with no larger array for a row are worked on all at once: the loop over
# batches took 0.2 s more to compile, and saves a hundredth of a microsecond for a row.
MAX_SMALL_BYTES = 256

# What a number takes to compute, about, and how many of them a step costs by itself.
NUMBER_SECONDS = 1e-9
STEP_NUMBERS = 512
# Numbers of an evaluation, at the least, for batches to be cut into pieces: a tenth of a
# millisecond. The paper's radon model has 6,211, an epidemic in 100 steps 8,951.
MIN_NUMBERS = 1e5
# Work of a piece, at the least.
PIECE_SECONDS = 0.05


def rows_at_a_time(density: Density, most: int, num_evaluations: int = 1) -> int:
    """How many rows of a batch are one piece, which may be run elsewhere.

    All of them if evaluations are cheap. Of expensive ones few, but as many as it takes for the
    numbers to outweigh the steps: loops of many steps on few numbers want wide batches. It follows
    from the program's expression alone: pieces of another size could differ in their last bits.

    Args:
        density: what is evaluated.
        most: rows of the whole batch.
        num_evaluations: of each row.
    """
    num_steps, num_numbers = density.work
    if num_numbers < MIN_NUMBERS:
        return most
    wide_enough = STEP_NUMBERS * num_steps / num_numbers
    long_enough = PIECE_SECONDS / (NUMBER_SECONDS * num_evaluations * num_numbers)
    return min(most, 2 ** max(0, math.ceil(math.log2(max(wide_enough, long_enough)))))


def in_pieces(function: Callable, density: Density, rows: np.ndarray) -> Any:
    """As `in_chunks`, of a compiled function of a density and some rows; pieces may run elsewhere.

    Args:
        function: at the top level of its module.
        density: its first argument.
        rows: its second argument, of which it is given some at a time.
    """
    size = rows_at_a_time(density, CHUNK)
    pieces = spread([Task(function, (density, some)) for some in _cut(rows, size)])
    pieces = [jax.tree.map(np.asarray, piece) for piece in pieces]
    return jax.tree.map(lambda *parts: np.concatenate(parts)[: len(rows)], *pieces)


def in_chunks(function: Callable[[Any], Any], rows: np.ndarray, size: int = CHUNK) -> Any:
    """Applies a compiled function of some rows to all rows, `size` at a time, as NumPy arrays."""
    pieces = [jax.tree.map(np.asarray, function(some)) for some in _cut(rows, size)]
    return jax.tree.map(lambda *parts: np.concatenate(parts)[: len(rows)], *pieces)


def _cut(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """The rows in pieces of one size; the last one is filled up with the first row."""
    padded = np.concatenate([rows, np.repeat(rows[:1], -len(rows) % size, axis=0)])
    return [padded[start : start + size] for start in range(0, len(padded), size)]


def vmapped(
    function: Callable[[Any], Any], rows: Any, copies: int = 1, max_rows: int = MAX_ROWS
) -> Any:
    """As `jax.vmap`, under jit, with as many rows at a time as a processor likes.

    Args:
        function: of one row.
        rows: a pytree of arrays whose first axis is mapped over.
        copies: how many of these maps run at a time, by a `jax.vmap` around them.
        max_rows: rows at a time, at the most.
    """
    count = jax.tree.leaves(rows)[0].shape[0]
    row = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), rows)
    traced, result = jax.make_jaxpr(function, return_shape=True)(row)
    leaves, structure = jax.tree.flatten(result)

    def made(row: Any) -> list[Any]:
        """Arrays with elements, in their order: `lax.map` cannot divide others into batches."""
        found = core.jaxpr_as_fun(traced)(*jax.tree.leaves(row))
        return [array for array, leaf in zip(found, leaves, strict=True) if leaf.size]

    size = count
    if not _is_small(traced.jaxpr):
        size = _batch_size(count, copies * _largest_bytes(traced.jaxpr), max_rows)
    arrays = jax.vmap(made)(rows) if size == count else lax.map(made, rows, batch_size=size)
    some = iter(arrays)
    every = [
        next(some) if leaf.size else jnp.zeros((count, *leaf.shape), leaf.dtype) for leaf in leaves
    ]
    return jax.tree.unflatten(structure, every)


def _is_small(jaxpr: core.Jaxpr) -> bool:
    """Whether a row is so little work that a loop over batches takes longer to compile."""
    return not has_loop(jaxpr) and _largest_bytes(jaxpr) <= MAX_SMALL_BYTES


def _batch_size(count: int, num_bytes: int, max_rows: int = MAX_ROWS) -> int:
    """How many rows are worked on at a time, given the bytes of the largest array for one."""
    if has_accelerator():
        return count
    limit = MAX_BYTES // num_bytes
    if limit < MIN_ROWS:
        return 1
    size = divisor(count, min(max_rows, limit))
    return size if size >= min(MIN_ROWS, count) else divisor(count, limit)


def divisor(count: int, limit: int) -> int:
    """The largest divisor of a number up to a limit, and 1 at the least."""
    return max((k for k in range(1, min(count, limit) + 1) if count % k == 0), default=1)


def bytes_of_row(density: Density) -> int:
    """Bytes of the largest array that an evaluation of one position makes."""
    row = jax.ShapeDtypeStruct((density.dimension,), jnp.result_type(float))
    return _largest_bytes(jax.make_jaxpr(density.evaluate)(row).jaxpr)


def _largest_bytes(jaxpr: core.Jaxpr) -> int:
    """Of any array that the steps of an expression make."""
    sizes = [1]
    for equation in jaxpr.eqns:
        made: list[Any] = [out.aval for out in equation.outvars]
        sizes += [math.prod(array.shape) * array.dtype.itemsize for array in made]
        sizes += [_largest_bytes(inner) for inner in core.jaxprs_in_params(equation.params)]
    return max(sizes)


def in_batches(
    function: Callable[[jax.Array], tuple[Any, Any]], rng_keys: jax.Array, batch_size: int | None
) -> tuple[Any, Any]:
    """Applies a function of several keys to all keys, `batch_size` of them at a time, under jit.

    The function gives what it knows of each sample and totals over its samples; the former are
    joined and the latter added up.
    """
    count = rng_keys.shape[0]
    if batch_size is None or batch_size >= count:
        return function(rng_keys)
    whole = count - count % batch_size
    grouped = rng_keys[:whole].reshape(-1, batch_size, *rng_keys.shape[1:])
    samples, totals = lax.map(function, grouped)
    samples = jax.tree.map(lambda x: x.reshape(whole, *x.shape[2:]), samples)
    totals = jax.tree.map(lambda x: x.sum(axis=0), totals)
    if whole == count:
        return samples, totals
    last_samples, last_totals = function(rng_keys[whole:])
    return (
        jax.tree.map(lambda a, b: jnp.concatenate([a, b]), samples, last_samples),
        jax.tree.map(jnp.add, totals, last_totals),
    )
