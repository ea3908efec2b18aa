"""The draws that a record keeps: a bounded number, with weights that make them stand for all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density
from estimand.methods import Run
from estimand.model import PARTS, SummingModel
from estimand.record.parts import used_evidence
from estimand.runtime import compiled_per_model
from estimand.sampling import in_chunks, vmapped

# Draws that a record keeps of each density, and numbers that it keeps in all.
MAX_DRAWS = 5000
MAX_NUMBERS = 4_000_000
_CHUNK = 1000


class KeptDraws(NamedTuple):
    """Weighted draws of one density: values by site, and every output there."""

    name: str
    output: int
    log_weights: np.ndarray
    outputs: np.ndarray
    sites: dict[str, np.ndarray]

    @property
    def weights(self) -> np.ndarray:
        """Weights that add up to 1."""
        weights = np.exp(self.log_weights - self.log_weights.max())
        return weights / weights.sum()


# Logarithm of the largest ratio of two weights: of a larger one the lesser is 0.
MAX_LOG_RATIO = 700.0


class Thinned(NamedTuple):
    """Indices of the draws that stay, and their new log weights."""

    indices: np.ndarray
    log_weights: np.ndarray


def thin(log_weights: np.ndarray, count: int, rng: np.random.Generator) -> Thinned:
    """At most `count` of some weighted draws, with new weights that keep every mean unbiased.

    A draw of weight w stays with probability min(1, w/c) and has then weight max(w, c), where c
    makes the expected number of draws `count`: heavy draws stay as they are (Fearnhead and
    Clifford 2003).
    """
    # What is 0 beside the heaviest has no share.
    alive = np.flatnonzero(log_weights > np.max(log_weights, initial=-np.inf) - MAX_LOG_RATIO)
    kept = np.asarray(log_weights, float)[alive]
    if alive.size <= count:
        return Thinned(alive, kept)
    weights = np.sort(np.exp(kept - kept.max()))
    # With the m heaviest kept for certain the others share the remaining count − m places.
    below = np.cumsum(weights)
    heavy = np.arange(count)
    threshold = below[weights.size - 1 - heavy] / (count - heavy)
    heaviest_of_rest = weights[weights.size - 1 - heavy]
    certain = int(np.argmax(heaviest_of_rest <= threshold * (1 + 1e-12)))
    cut = threshold[certain]
    ratios = np.exp(kept - kept.max()) / cut
    edges = np.floor(np.cumsum(np.minimum(ratios, 1.0)) + rng.uniform())
    chosen = np.flatnonzero(np.diff(edges, prepend=0.0) > 0)[:count]
    return Thinned(alive[chosen], np.maximum(kept[chosen], math.log(cut) + kept.max()))


def resample(log_weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of equally weighted draws, by systematic resampling, in random order."""
    weights = np.exp(log_weights - np.max(log_weights))
    edges = np.cumsum(weights) / weights.sum()
    points = (np.arange(count) + rng.uniform()) / count
    return rng.permutation(np.minimum(np.searchsorted(edges, points), weights.size - 1))


def kept_draws(run: Run, density: Density) -> tuple[KeptDraws, ...]:
    """Draws of every density that the outputs of a fresh run rest on."""
    used = used_evidence(run)
    width = max(1, density.dimension + density.num_outputs)
    count = max(100, min(MAX_DRAWS, MAX_NUMBERS // (width * max(1, len(used)))))
    result = []
    for name, output, evidence in used:
        # Seeded, so that a record is the same however often it is made.
        rng = np.random.default_rng([PARTS.index(name), output + 1])
        thinned = thin(np.asarray(evidence.log_weights, float), count, rng)
        positions = np.asarray(evidence.positions)[thinned.indices]
        sites, outputs = values_at(density, positions)
        sites |= summed_sites(density.part(name, output), positions, rng)
        result.append(KeptDraws(name, output, thinned.log_weights, outputs, sites))
    return tuple(result)


def values_at(density: Density, positions: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Values by site, and every output, at positions in plain coordinates."""
    gamma = density.part("gamma2")
    sites, outputs = in_chunks(lambda rows: _values(gamma, jnp.asarray(rows)), positions, _CHUNK)
    return sites, np.asarray(outputs, float)[:, : density.num_outputs]


def joined_sites(pieces: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The values of several groups of draws, which may have different sites.

    A site that a group does not have is NaN there, and one that has fewer elements is filled up
    with NaN.
    """
    sizes = [len(next(iter(piece.values()), ())) for piece in pieces]
    joined = {}
    for name in dict.fromkeys(name for piece in pieces for name in piece):
        known = [piece[name] for piece in pieces if name in piece]
        if len(known) == len(pieces) and len({array.shape[1:] for array in known}) == 1:
            joined[name] = np.concatenate(known)
            continue
        rank = max(array.ndim for array in known)
        wide = [array.reshape(array.shape + (1,) * (rank - array.ndim)) for array in known]
        axes = zip(*(array.shape[1:] for array in wide), strict=True)
        shape: tuple[int, ...] = tuple(max(lengths) for lengths in axes)
        filled = np.full((sum(sizes), *shape), np.nan)
        start, arrays = 0, iter(wide)
        for piece, size in zip(pieces, sizes, strict=True):
            if name in piece:
                array = next(arrays)
                inner = [slice(end) for end in np.shape(array)[1:]]
                filled[(slice(start, start + size), *inner)] = array
            start += size
        joined[name] = filled
    return joined


def summed_sites(
    part: Density, positions: np.ndarray, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Draws of the sites that are summed out, given each position; none where there are none."""
    model = part.model
    if not isinstance(model, SummingModel):
        return {}
    if part.sign != 0 and not model.can_draw_targets(part.arrays):
        return {}
    seeds = rng.integers(2**31, size=(len(positions), 1)).astype(float)
    rows = np.concatenate([positions, seeds], axis=1)
    return in_chunks(lambda some: _summed(part, jnp.asarray(some)), rows, _CHUNK)


@compiled_per_model
def _values(density: Density, positions: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    return vmapped(lambda u: (density.constrain(u), density.outputs(u)), positions)


@compiled_per_model
def _summed(density: Density, rows: jax.Array) -> dict[str, jax.Array]:
    def drawn(row: jax.Array) -> dict[str, jax.Array]:
        rng_key = jax.random.key(row[-1].astype(jnp.uint32))
        model: Any = density.model
        return model.summed_values(rng_key, row[:-1], density.arrays, density.output, density.sign)

    return jax.vmap(drawn)(rows)
