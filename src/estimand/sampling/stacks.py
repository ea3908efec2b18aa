"""The same work for many data sets: prior draws and evaluations of a stack of densities.

A stack is a density whose arrays have a leading axis, with an entry for each part of each data set.
What is compiled goes through a few entries, one after the other, and serves every data set, part
and output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from estimand.density import Density, margins
from estimand.runtime import compiled_per_model
from estimand.sampling.chunks import vmapped
from estimand.sampling.prior import draw_positions, spread_of

# Entries that one call of compiled code goes through, and rows of each that are evaluated at a
# time. Not measured: with more entries the last call of a stack has more that nobody asked for.
GROUP = 8
ROWS = 512

Seed = tuple[int, ...]


def stacked(densities: Sequence[Density]) -> Density:
    """Densities of one program, with data of equal shapes, as a stack."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *densities)


def taken(stack: Density, places: Any) -> Density:
    """Some entries of a stack."""
    return jax.tree.map(lambda array: np.asarray(array)[places], stack)


def in_groups(function: Callable, stack: Density, *rows: Any) -> Any:
    """A compiled function of a stack and of rows for each of its entries, as NumPy arrays."""
    count = len(stack.sign)
    padded = np.arange(-(-count // GROUP) * GROUP)
    padded[count:] = 0
    pieces = []
    for places in padded.reshape(-1, GROUP):
        some = [jax.tree.map(lambda array, own=places: array[own], item) for item in rows]
        found = function(taken(stack, places), *some)
        pieces.append(jax.tree.map(np.asarray, found))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *pieces)


# --- prior draws and evaluations ---


def prior_positions_of(stack: Density, seeds: Sequence[Seed], count: int) -> np.ndarray:
    """The positions of so many exact draws from the prior of each entry."""
    words = np.stack(
        [
            np.random.default_rng(seed).integers(2**32, size=(count, 2), dtype=np.uint32)
            for seed in seeds
        ]
    )
    plain = dataclasses.replace(stack, scales=None, softness=None)
    return np.asarray(in_groups(_draw, plain, words), float)


@compiled_per_model
def _draw(density: Density, words: jax.Array) -> jax.Array:
    return lax.map(lambda item: draw_positions(*item), (density, words))


def evaluate_stack(stack: Density, positions: np.ndarray) -> list[np.ndarray]:
    """Log prior, log likelihood, signs and log-magnitudes at positions of every entry.

    `positions` have axes for entries, points and coordinates.
    """
    count, num_points, dimension = positions.shape
    pieces = -(-num_points // ROWS)
    padded = np.zeros((count, pieces * ROWS), int)
    padded[:, :num_points] = np.arange(num_points)
    rows = np.take_along_axis(positions, padded[..., None], axis=1)
    rows = rows.reshape(count * pieces, ROWS, dimension).astype(jnp.result_type(float))
    repeated = taken(stack, np.repeat(np.arange(count), pieces))
    columns = in_groups(_evaluate, repeated, rows)
    joined = (x.reshape(count, pieces * ROWS, *x.shape[2:])[:, :num_points] for x in columns)
    return [np.asarray(column, float) for column in joined]


@compiled_per_model
def _evaluate(density: Density, positions: jax.Array) -> tuple:
    def of_entry(item: tuple[Density, jax.Array]) -> tuple:
        own, rows = item

        def one(position: jax.Array) -> tuple:
            terms, outputs = own.evaluate(position)
            return terms.log_prior, terms.log_likelihood, *outputs

        return vmapped(one, rows)

    return lax.map(of_entry, (density, positions))


def margin_spreads(stack: Density, positions: np.ndarray) -> np.ndarray:
    """How far the comparisons of a return expression spread at positions of every entry."""
    rows = positions.astype(jnp.result_type(float))
    return np.stack([spread_of(found) for found in in_groups(_margins, stack, rows)])


@compiled_per_model(optimisation=0)
def _margins(density: Density, positions: jax.Array) -> jax.Array:
    return lax.map(lambda item: margins(*item), (density, positions))


class Moved(NamedTuple):
    """Positions of every entry in other coordinates, and their log prior there."""

    positions: np.ndarray
    log_prior: np.ndarray


def recoordinated_stack(stack: Density, model: Any, positions: np.ndarray) -> Moved:
    """Positions of every entry in the coordinates of another form of the same model."""
    rows = positions.astype(jnp.result_type(float))

    def function(some: Density, points: np.ndarray) -> Any:
        return _recoordinated(model, some, points)

    found = in_groups(function, stack, rows)
    return Moved(*(np.asarray(column, float) for column in found))


@compiled_per_model(static_argnums=(0,), optimisation=0)
def _recoordinated(model: Any, density: Density, positions: jax.Array) -> tuple:
    def of_entry(item: tuple[Density, jax.Array]) -> tuple:
        own, rows = item
        other = dataclasses.replace(own, model=model)

        def one(row: jax.Array) -> tuple:
            position = other.position_of(own.constrain(row))
            return position, other.model.evaluate(position, other.arrays).log_prior

        return jax.vmap(one)(rows)

    return lax.map(of_entry, (density, positions))
