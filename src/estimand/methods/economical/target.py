"""What is known without the simulator: prior, likelihood and f as functions of its outputs.

Positions are in standardised coordinates, and whitened by the spread of prior draws.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import SOFTNESS, Density
from estimand.model import Layout, SimulatorModel
from estimand.runtime import NUM_KEPT_MODELS, compiled_per_model
from estimand.sampling import in_chunks, prior_positions
from estimand.target import Look, Reading, read

# Rows that compiled code takes at a time: a batch of the simulator, and a pool.
SMALL, LARGE = 256, 8192
NUM_PRIOR_DRAWS = LARGE
# A prior whose standard deviation is so many times what its quantiles say has heavy tails.
HEAVY = 2.0
# A prior density that is smaller than its largest by so much, as a logarithm, and 2 more for each
# dimension, is none. It is that of a normal beyond 8 standard deviations.
NEGLIGIBLE, MAX_MOVES = 35.0, 20


class Values(NamedTuple):
    """Terms and outputs at some points; the terms of sums stand behind the outputs."""

    log_likelihood: np.ndarray
    signs: np.ndarray
    log_sizes: np.ndarray

    def log_weights(self, output: int, sign: int = 0) -> np.ndarray:
        """log of likelihood · |f|, or · f±; −inf where it is not a number."""
        with np.errstate(invalid="ignore"):
            found = self.log_likelihood + self.log_sizes[:, output]
        if sign:
            found = np.where(sign * self.signs[:, output] > 0, found, -np.inf)
        return np.where(np.isfinite(found), found, -np.inf)

    def weights(self, output: int, log_scale: float) -> np.ndarray:
        """likelihood · f, with its sign, relative to a scale."""
        with np.errstate(over="ignore"):
            return self.signs[:, output] * np.exp(self.log_weights(output) - log_scale)

    def likelihoods(self, log_scale: float) -> np.ndarray:
        """The likelihood relative to a scale; 0 where it is not a number."""
        found = np.where(np.isfinite(self.log_likelihood), self.log_likelihood, -np.inf)
        with np.errstate(over="ignore"):
            return np.exp(found - log_scale)


class Target:
    """A simulator's program in whitened coordinates, without the simulator."""

    def __init__(self, density: Density, seed: tuple[int, ...]):
        assert isinstance(density.model, SimulatorModel)
        self.density = density.standardised()
        self.model: SimulatorModel = self.density.model  # type: ignore[assignment]
        self.simulator = self.model.simulator
        positions = prior_positions(self.density, seed, NUM_PRIOR_DRAWS)
        self.centre, self.spread = _middle_and_spread(positions)
        self.prior_draws = self.whitened(positions)
        self.scales: np.ndarray | None = None
        top = float(self.log_prior(self.prior_draws).max())
        self.least = top - NEGLIGIBLE - 2.0 * self.dimension

    @property
    def dimension(self) -> int:
        return self.centre.size

    @property
    def num_outputs(self) -> int:
        return self.density.num_outputs

    @property
    def reading(self) -> Reading:
        return _reading_of(self.density)

    @property
    def looks(self) -> tuple[Look, ...]:
        """The terms of sums, which stand behind the outputs."""
        return self.reading.looks

    @functools.cached_property
    def has_likelihood(self) -> bool:
        """Whether γ is more than the prior, as far as its expression tells."""
        jaxpr = self.reading.jaxpr.jaxpr
        constant = jaxpr.outvars[1]
        value = getattr(constant, "val", None)
        return value is None or float(np.asarray(value)) != 0.0

    def whitened(self, positions: np.ndarray) -> np.ndarray:
        return (positions - self.centre) / self.spread

    def positions(self, points: np.ndarray) -> np.ndarray:
        return self.centre + self.spread * points

    def draw(self, seed: tuple[int, ...], count: int) -> np.ndarray:
        """Points from the prior."""
        return self.whitened(prior_positions(self.density, seed, count))

    def is_sensible(self, points: np.ndarray) -> np.ndarray:
        """Whether the prior has anything there: simulators may not end at absurd inputs."""
        return self.log_prior(points) >= self.least

    def drawn_in(self, points: np.ndarray) -> np.ndarray:
        """The same with points that are not sensible moved towards the middle."""
        points = points.copy()
        for _ in range(MAX_MOVES):
            is_absurd = ~self.is_sensible(points)
            if not is_absurd.any():
                break
            points[is_absurd] *= 0.7
        return points

    def inputs(self, points: np.ndarray) -> np.ndarray:
        """What the simulator is called with."""
        return np.asarray(self._rows(_inputs, self.positions(points)), float)

    def log_prior(self, points: np.ndarray) -> np.ndarray:
        """In whitened coordinates."""
        found = np.asarray(self._rows(_log_prior, self.positions(points)), float)
        return found + np.log(self.spread).sum()

    def values(self, points: np.ndarray, outputs: np.ndarray) -> Values:
        """Terms and outputs of the program where the simulator gives these numbers."""
        rows = np.concatenate([self.positions(points), outputs], axis=1)
        found = self._rows(_values, rows)
        return Values(*(np.asarray(array, float) for array in found))

    def learn_scales(self, points: np.ndarray, outputs: np.ndarray) -> None:
        """Learns how far the margins of comparisons spread, relative to which they are softened."""
        if not self.reading.has_comparisons:
            return
        rows = np.concatenate([self.positions(points), outputs], axis=1)
        margins = np.asarray(self._rows(_margins, rows), float)
        middle = np.nanmedian(margins, axis=0)
        self.scales = 1.48 * np.nanmedian(np.abs(margins - middle), axis=0)

    def ladder(self, points: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log likelihood, and log |f| from soft to sharp, of shape (points, rungs, outputs)."""
        if self.scales is None:
            values = self.values(points, outputs)
            return values.log_likelihood, values.log_sizes[:, None, :]
        rows = np.concatenate([self.positions(points), outputs], axis=1)
        dtype = jnp.result_type(float)
        scales = np.asarray(self.scales, dtype)
        size = SMALL if len(rows) <= SMALL else LARGE
        found = in_chunks(
            lambda some: _ladder(self.density, some, scales), rows.astype(dtype), size
        )
        return np.asarray(found[0], float), np.asarray(found[1], float)

    def _rows(self, function: Any, rows: np.ndarray) -> Any:
        size = SMALL if len(rows) <= SMALL else LARGE
        dtype = jnp.result_type(float)
        return in_chunks(lambda some: function(self.density, some), rows.astype(dtype), size)


def _middle_and_spread(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation, or quantiles of a prior that may have neither."""
    mean, deviation = positions.mean(axis=0), positions.std(axis=0)
    low, median, high = np.quantile(positions, [0.16, 0.5, 0.84], axis=0)
    is_heavy = deviation > HEAVY * (high - low) / 2
    spread = np.where(is_heavy, (high - low) / 2, deviation)
    return np.where(is_heavy, median, mean), np.where(spread > 0, spread, 1.0)


def _reading_of(density: Density) -> Reading:
    avals = tuple(jax.typeof(array) for array in density.arrays)
    return _reading(density.model, avals, jnp.result_type(float))


@functools.lru_cache(maxsize=NUM_KEPT_MODELS)
def _reading(model: SimulatorModel, avals: tuple, dtype: Any) -> Reading:
    """The program as an expression of a position and of the simulator's outputs."""

    def evaluate(varying: tuple[jax.Array, jax.Array], arrays: tuple) -> tuple:
        found = model.evaluate_given(*varying, arrays)
        return (found.log_prior, found.log_likelihood), found.outputs

    varying = (
        jax.ShapeDtypeStruct((Layout(model.sites).dimension,), dtype),
        jax.ShapeDtypeStruct((model.simulator.job.outputs.size,), dtype),
    )
    structs = tuple(
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in avals
    )
    return read(evaluate, varying, structs, has_looks=True, log_densities=(0, 1))


@compiled_per_model(optimisation=0)
def _inputs(density: Density, positions: jax.Array) -> jax.Array:
    model: Any = density.model
    return jax.vmap(lambda position: model.inputs(position, density.arrays))(positions)


@compiled_per_model(optimisation=0)
def _log_prior(density: Density, positions: jax.Array) -> jax.Array:
    model: Any = density.model
    blank = jnp.ones(model.simulator.job.outputs.size, positions.dtype)
    return jax.vmap(
        lambda position: model.evaluate_given(position, blank, density.arrays).log_prior
    )(positions)


@compiled_per_model(optimisation=0)
def _values(density: Density, rows: jax.Array) -> tuple:
    reading, dimension = _reading_of(density), density.dimension

    def one(row: jax.Array) -> tuple:
        varying = row[:dimension], row[dimension:]
        (_, log_likelihood), outputs = reading.lifted(varying, density.arrays)
        return log_likelihood, outputs.sign, outputs.log_abs

    return jax.vmap(one)(rows)


@compiled_per_model(optimisation=0)
def _margins(density: Density, rows: jax.Array) -> jax.Array:
    reading, dimension = _reading_of(density), density.dimension
    return jax.vmap(
        lambda row: reading.margins((row[:dimension], row[dimension:]), density.arrays)[1]
    )(rows)


@compiled_per_model(optimisation=0)
def _ladder(density: Density, rows: jax.Array, scales: jax.Array) -> tuple:
    reading, dimension = _reading_of(density), density.dimension
    softness = jnp.asarray((*SOFTNESS, 0.0), rows.dtype)

    def one(row: jax.Array) -> tuple:
        varying = row[:dimension], row[dimension:]
        (_, log_likelihood), outputs = jax.vmap(
            lambda soft: reading.softened(soft, scales, varying, density.arrays),
            out_axes=((None, None), 0),
        )(softness)
        return log_likelihood, outputs.log_abs

    return jax.vmap(one)(rows)
