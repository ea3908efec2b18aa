"""Whether parameters of a program's distributions leave their ranges, as a negative scale does.

NumPyro's densities are not a number there, and count as 0. The expression shows of nearly all
programs that this cannot happen; of the others, prior draws tell how often it does.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density
from estimand.model import Layout, NumpyroModel
from estimand.runtime import NUM_KEPT_MODELS, compiled_per_model
from estimand.sampling import in_chunks, prior_positions
from estimand.target import Reading, read

# Prior draws that tell how often a parameter leaves its range.
NUM_DRAWS = 1024


def notes_on_ranges(density: Density) -> list[str]:
    """A sentence on every parameter that is out of its range at some draws of the prior."""
    if not isinstance(density.model, NumpyroModel) or density.layout.improper_sites:
        return []
    if not density.dimension or _is_proven(density):
        return []
    positions = prior_positions(density, (0,), NUM_DRAWS)
    found = in_chunks(lambda some: _in_ranges(density, some), positions, NUM_DRAWS)
    notes = []
    for range_, is_in in found.items():
        if share := 100 * float(np.mean(~is_in)):
            notes.append(
                f"the {range_.parameter} of site {range_.site!r} is {range_.text} at {share:.2g} % "
                "of prior draws, where the density counts as 0: if that is not meant, give what it "
                "depends on another prior, as dist.HalfNormal"
            )
    return notes


def _is_proven(density: Density) -> bool:
    """Whether by the expression all are in their ranges, or a loop decides, which may be slow."""
    if density.layout.has_discrete and density.layout.is_relaxable:
        density = density.relaxed()
    avals = tuple(jax.typeof(array) for array in density.arrays)
    reading = _reading(density.model, avals, jnp.result_type(float))
    return reading.has_loops or bool(np.all(density.bounds_of(reading).low == 1))


@functools.lru_cache(maxsize=NUM_KEPT_MODELS)
def _reading(model: Any, avals: tuple, dtype: Any) -> Reading:
    """The expression of whether parameters are in their ranges: 1 where they are."""

    def look(position: jax.Array, arrays: tuple) -> tuple[None, jax.Array]:
        flags = [jnp.ravel(flag) for flag in model.in_ranges(position, arrays).values()]
        return None, jnp.concatenate([jnp.ones(1), *flags]).astype(dtype)

    structs = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)
    return read(look, jax.ShapeDtypeStruct((Layout(model.sites).dimension,), dtype), structs)


@compiled_per_model(optimisation=0)
def _in_ranges(density: Density, positions: jax.Array) -> dict:
    model: Any = density.model
    return jax.vmap(lambda position: model.in_ranges(position, density.arrays))(positions)
