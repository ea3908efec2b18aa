"""A simulator between a prior and a return value, as a `Model`.

`given` is a NumPyro model whose first data are the simulator's outputs. As a whole it is evaluated
through a callback; a method that calls the simulator itself evaluates `given` alone.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from estimand.model.layout import Coordinates, Output, ProgramError, Site
from estimand.model.numpyro import NumpyroModel
from estimand.model.protocol import Assessment, Data, Evaluation, Identity, Redraw
from estimand.model.simulator.calls import Simulator


@dataclasses.dataclass(frozen=True)
class SimulatorModel:
    """A model that a function outside of JAX has a part in."""

    given: NumpyroModel
    simulator: Simulator

    @property
    def name(self) -> str:
        return self.given.name

    @property
    def sites(self) -> tuple[Site, ...]:
        return self.given.sites

    @property
    def output(self) -> Output | None:
        return self.given.output

    @property
    def coordinates(self) -> Coordinates:
        return self.given.coordinates

    def in_coordinates(self, coordinates: Coordinates) -> SimulatorModel:
        return dataclasses.replace(self, given=self.given.in_coordinates(coordinates))

    def without_output(self) -> SimulatorModel:
        return dataclasses.replace(self, given=self.given.without_output())

    def identity(self, data: Data) -> Identity:
        found = self.given.identity((*self._blank(), *data))
        job = self.simulator.job
        return found._replace(program=(found.program, job.function, job.is_per_point))

    # --- one position at a time ---

    def draw(self, rng_key: jax.Array, data: Data) -> jax.Array:
        return self.given.draw(rng_key, (*self._blank(), *data))

    def evaluate(self, position: jax.Array, data: Data) -> Evaluation:
        return self.given.evaluate(position, (*self._simulated(self.values(position, data)), *data))

    def assess(self, values: dict[str, jax.Array], data: Data) -> Assessment:
        return self.given.assess(values, (*self._simulated(values), *data))

    def values(self, position: jax.Array, data: Data) -> dict[str, jax.Array]:
        return self.given.values(position, (*self._blank(), *data))

    def redraw(self, rng_key: jax.Array, position: jax.Array, data: Data) -> Redraw:
        return self.given.redraw(rng_key, position, (*self._blank(), *data))

    def log_scales(self, rng_key: jax.Array, data: Data) -> jax.Array:
        return self.given.log_scales(rng_key, (*self._blank(), *data))

    def evaluate_given(self, position: jax.Array, row: jax.Array, data: Data) -> Evaluation:
        """As `evaluate`, with the simulator's outputs given as a row of numbers."""
        return self.given.evaluate(position, (*self._outputs(row), *data))

    def inputs(self, position: jax.Array, data: Data) -> jax.Array:
        """What the simulator is called with, as a row of numbers."""
        return self._row(self.values(position, data))

    # --- the simulator ---

    def _row(self, values: dict[str, jax.Array]) -> jax.Array:
        names = self.simulator.job.inputs.names
        dtype = jnp.result_type(float)
        return jnp.concatenate([jnp.ravel(values[name]).astype(dtype) for name in names])

    def _outputs(self, row: jax.Array) -> tuple[jax.Array, ...]:
        shapes = self.simulator.job.outputs
        return tuple(array[0] for array in shapes.split(row[None]))

    def _blank(self) -> tuple[jax.Array, ...]:
        return self._outputs(jnp.ones(self.simulator.job.outputs.size, jnp.result_type(float)))

    def _simulated(self, values: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
        return self._outputs(_call(self.simulator, self._row(values)))


def _call(simulator: Simulator, row: jax.Array) -> jax.Array:
    """The outputs at a point as a row of numbers, through a callback that takes whole batches."""
    name = getattr(simulator.job.function, "__name__", "simulate")

    # JAX hands arrays to a callback in a thread that does not know of double precision, and would
    # round them: they go as pairs of integers, which nothing touches.
    @jax.custom_jvp
    def call(row: jax.Array) -> jax.Array:
        words = lax.bitcast_convert_type(row, jnp.uint32).reshape(-1)
        count = simulator.job.outputs.size * (words.size // row.size)
        struct = jax.ShapeDtypeStruct((count,), jnp.uint32)
        found = jax.pure_callback(
            functools.partial(on_host, np.dtype(row.dtype)),
            struct,
            words,
            vmap_method="expand_dims",
        )
        pairs = found.reshape(simulator.job.outputs.size, -1)
        return lax.bitcast_convert_type(pairs if pairs.shape[1] > 1 else pairs[:, 0], row.dtype)

    def on_host(dtype: np.dtype, words: Any) -> np.ndarray:
        array = np.ascontiguousarray(words)
        rows = array.reshape(-1, array.shape[-1]).view(dtype).astype(float)
        found = np.ascontiguousarray(simulator.call(rows).values, dtype).view(np.uint32)
        return found.reshape((*array.shape[:-1], -1))

    @call.defjvp
    def no_gradient(_primals: Any, _tangents: Any) -> Any:
        raise ProgramError(
            f"simulator {name!r} has no gradients, and this method needs them: use Economical, "
            "Auto in up to 12 dimensions, or AdaptiveIS."
        )

    return call(row)
