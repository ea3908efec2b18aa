"""Where a density itself jumps as an array moves: the ends of a support, and steps in a likelihood.

The score knows nothing of what crosses such an edge. A comparison behind the density shows it: the
draws say whether the edge is where they have their mass, and a move of the array that takes one of
them just across it, whether the density jumps there.
"""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density
from estimand.runtime import compiled_per_model
from estimand.sampling import in_chunks

# Draws at which all edges are seen, and numbers of them that are in memory at a time.
MAX_DRAWS, MAX_NUMBERS = 8192, 16_000_000
# An edge is among the draws if so much of their weight is closer to it than this share of the
# spread of the distance.
NEAR, SHARE = 0.05, 1e-5
# Draws that are taken across each edge, and jumps of the density there, relative to what it is,
# below which there is none.
NUM_PROBED, NO_JUMP = 8, 1e-3
_NEWTON_STEPS = 4


def jumping(
    density: Density, places: tuple[int, ...], positions: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """For every element of some arrays whether γ jumps as it moves, where the draws have mass.

    Args:
        density: evaluates γ.
        places: of the arrays.
        positions: draws, a row for each.
        weights: their weights, relative to one another.
    """
    size = sum(int(np.size(density.arrays[place])) for place in places)
    found = np.zeros(size, bool)
    if not any(map(density.moves_edges, places)):
        return found
    rows = np.flatnonzero(weights > 0)
    count = jax.eval_shape(density.edges, jnp.asarray(positions[0])).size
    most = min(MAX_DRAWS, max(NUM_PROBED, MAX_NUMBERS // count))
    rows = rows[:: -(-len(rows) // most)]
    share = weights[rows] / weights[rows].sum()
    seen = in_chunks(lambda some: _edges(density, some), positions[rows])
    typical = rows[np.argsort(share)[-NUM_PROBED:]]
    for edge in np.flatnonzero(_is_among(seen, share)):
        distances = np.abs(seen[:, edge])
        nearest = np.argsort(np.where(np.isfinite(distances), distances, np.inf))[:NUM_PROBED]
        own = np.concatenate([nearest, np.searchsorted(rows, typical)])
        probe = _probed(density, jnp.asarray(positions[rows[own]]), int(edge), places)
        slopes, jumps = map(np.asarray, probe)
        lengths = np.sqrt((slopes**2).sum(axis=1))
        # Where an edge stands still, draws come close to it and no move of the array does.
        spread = np.sqrt(share @ np.square(seen[:, edge] - share @ seen[:, edge]))
        reach = NEAR * spread * lengths / max(np.median(lengths[len(nearest) :]), 1e-300)
        is_close = ~(np.abs(seen[own, edge]) > np.maximum(reach, 0.0))
        found |= ((slopes != 0) & (jumps & is_close & (lengths > 0))[:, None]).any(axis=0)
    return found


@compiled_per_model
def _edges(density: Density, positions: jax.Array) -> jax.Array:
    return jax.vmap(density.edges)(positions)


def _is_among(seen: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Whether an edge is where the draws have their mass."""
    seen = np.where(np.isfinite(seen), seen, np.nan)
    mean = np.nansum(share[:, None] * seen, axis=0)
    spread = np.sqrt(np.nansum(share[:, None] * (seen - mean) ** 2, axis=0))
    near = np.where(np.abs(seen) <= NEAR * spread, share[:, None], 0.0).sum(axis=0)
    below = np.where(seen <= 0, share[:, None], 0.0).sum(axis=0)
    above = np.where(seen > 0, share[:, None], 0.0).sum(axis=0)
    return (spread > 0) & (np.maximum(near, np.minimum(below, above)) > SHARE)


@compiled_per_model(static_argnums=(3,))
def _probed(
    density: Density, positions: jax.Array, edge: int, places: tuple[int, ...]
) -> tuple[jax.Array, jax.Array]:
    """For some draws how an edge moves with each element, and whether γ jumps where a move of all
    of them takes it across.

    Where no move takes it across, it counts as a jump.
    """
    chosen = [density.arrays[place] for place in places]
    ends = np.cumsum([0, *(array.size for array in chosen)])
    start = jnp.concatenate([jnp.ravel(array) for array in chosen]).astype(positions.dtype)
    rounding = max(float(jnp.finfo(array.dtype).eps) for array in chosen)

    def at(numbers: jax.Array) -> Density:
        arrays = list(density.arrays)
        pairs = itertools.pairwise(ends)
        for place, (low, high) in zip(places, pairs, strict=True):
            own = arrays[place]
            arrays[place] = numbers[low:high].reshape(own.shape).astype(own.dtype)
        return dataclasses.replace(density, arrays=tuple(arrays))

    def probe(position: jax.Array) -> tuple[jax.Array, jax.Array]:
        def distance(numbers: jax.Array) -> jax.Array:
            return at(numbers).edges(position)[edge]

        def log_density(numbers: jax.Array) -> jax.Array:
            terms = at(numbers).evaluate(position)[0]
            return terms.log_prior + terms.log_likelihood

        slope = jax.grad(distance)(start)
        length = jnp.sqrt(jnp.sum(slope**2))
        direction = jnp.where(length > 0, slope / length, 0.0)

        def closer(_: int, numbers: jax.Array) -> jax.Array:
            value, own = jax.value_and_grad(distance)(numbers)
            rate = jnp.sum(own * direction)
            return numbers - jnp.where(rate != 0, value / rate, 0.0) * direction

        across = jax.lax.fori_loop(0, _NEWTON_STEPS, closer, start)
        moved = jnp.sqrt(jnp.sum((across - start) ** 2))
        largest = jnp.max(jnp.abs(across) * (direction != 0))
        step = jnp.maximum(rounding**0.5 * moved, 64 * rounding * largest) * direction
        is_across = jnp.sign(distance(across + step)) != jnp.sign(distance(across - step))
        base = log_density(start)
        low, high = (jnp.exp(log_density(across + sign * step) - base) for sign in (-1, 1))
        is_jump = ~(jnp.abs(high - low) <= NO_JUMP * jnp.maximum(1.0, jnp.maximum(low, high)))
        return slope, is_jump | ~is_across

    return jax.vmap(probe)(positions)
