"""A fitted mixture in JAX: draws and densities for code that never leaves the device.

`mixture` and `warp` are in NumPy, because every number of components would be a compilation of its
own. Where a hundred thousand draws or more are wanted of one mixture, that is worth it.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp, ndtri
from numpy.polynomial import chebyshev

from estimand.sampling import sobol
from estimand.sampling.mixture import Mixture
from estimand.sampling.products import inverses_of
from estimand.sampling.warp import LEVELS, Warped

# Sobol points of each replicate: then they end.
MAX_POINTS = 2**sobol.BITS
# Components are filled up to a multiple of this, so that few numbers of them are compiled.
COMPONENTS = 8
# log χ² as a polynomial of the normal quantile at the same level, on an interval that no double
# precision level leaves: exact to 1e-12 from three degrees of freedom on, to 1e-8 with one.
POLYNOMIAL_DEGREE = 64
LARGEST_NORMAL = 8.5
# Levels at the ends of the unit interval.
SMALLEST_LEVEL = 1e-16


class Source(NamedTuple):
    """What the uniforms of each replicate are made of; the first axis are the replicates.

    Scrambled Sobol points if there are directions, random words by key and number if not.
    """

    directions: np.ndarray
    shifts: np.ndarray
    rest: np.ndarray
    keys: np.ndarray

    @classmethod
    def of(
        cls, rng: np.random.Generator, num_replicates: int, dimension: int, is_random: bool
    ) -> Source:
        """For points of so many coordinates."""
        keys = rng.integers(2**32, size=(num_replicates, 2), dtype=np.uint32)
        if is_random:
            nothing = np.zeros((num_replicates, 0))
            return cls(np.zeros((num_replicates, 0, 0), np.uint32), nothing, nothing, keys)
        scrambles = [sobol.scramble(rng, dimension) for _ in range(num_replicates)]
        directions, shifts, rest = (np.stack(arrays) for arrays in zip(*scrambles, strict=True))
        return cls(directions.astype(np.uint32), shifts.astype(np.uint32), rest, keys)


def uniforms_of(source: Source, start: jax.Array, count: int, dimension: int) -> jax.Array:
    """So many points of one replicate, from the given number on: (count, dimension)."""
    if not source.directions.size:
        key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(source.keys)), start)
        return jax.random.uniform(key, (count, dimension), jnp.result_type(float))
    numbers = start.astype(jnp.uint32) + jnp.arange(count, dtype=jnp.uint32)

    def with_digit(k: jax.Array, words: jax.Array) -> jax.Array:
        is_one = (numbers >> k.astype(jnp.uint32)) & 1
        return words ^ (is_one[:, None] * jnp.asarray(source.directions)[None, :, k])

    words = jnp.broadcast_to(jnp.asarray(source.shifts)[None], (count, dimension))
    words = lax.fori_loop(0, sobol.BITS, with_digit, words)
    return (
        words.astype(jnp.result_type(float)) + jnp.asarray(source.rest)[None]
    ) * 2.0**-sobol.BITS


class Components(NamedTuple):
    """The components of a mixture, in warped coordinates if there are knots; weights may be 0."""

    log_constants: np.ndarray
    means: np.ndarray
    factors: np.ndarray
    inverses: np.ndarray
    degrees: np.ndarray
    curves: np.ndarray
    knots: np.ndarray

    @classmethod
    def of(cls, piece: Warped) -> Components:
        mixture = _padded(piece.mixture)
        inverses = inverses_of(mixture.factors)
        dimension, is_student = mixture.dimension, np.isfinite(mixture.degrees)
        with np.errstate(divide="ignore"):
            constants = np.log(mixture.weights)
        constants += np.log(np.diagonal(inverses, axis1=1, axis2=2)).sum(axis=1)
        constants -= 0.5 * dimension * math.log(2 * math.pi)
        for k in np.flatnonzero(is_student):
            nu = float(mixture.degrees[k])
            constants[k] += math.lgamma(0.5 * (nu + dimension)) - math.lgamma(0.5 * nu)
            constants[k] -= 0.5 * dimension * math.log(0.5 * nu)
        curves = np.stack([chi_squared_curve(float(nu)) for nu in mixture.degrees])
        knots = np.zeros((0, dimension)) if piece.warp is None else piece.warp.knots
        # Infinite degrees would make NaNs where they are not asked for.
        degrees = np.where(is_student, mixture.degrees, 0.0)
        return cls(constants, mixture.means, mixture.factors, inverses, degrees, curves, knots)


class Sampler(NamedTuple):
    """Several mixtures that are drawn from as one, and the components that serve as controls.

    `edges` divide the unit interval among all components, and `controls` are places among these,
    with the components' weights.
    """

    pieces: tuple[Components, ...]
    edges: np.ndarray
    controls: np.ndarray
    control_weights: np.ndarray

    @classmethod
    def of(cls, pieces: list[Warped], controls: list[np.ndarray], num_controls: int) -> Sampler:
        """Of mixtures whose weights add up to one, with the controls of each.

        Controls are filled up to so many; those that fill up are 0 everywhere.
        """
        arrays = tuple(Components.of(piece) for piece in pieces)
        weights = [_padded(piece.mixture).weights for piece in pieces]
        starts = np.cumsum([0, *(own.size for own in weights[:-1])])
        joined = np.concatenate(weights)
        chosen = np.concatenate(
            [start + own for start, own in zip(starts, controls, strict=True)]
        ).astype(int)
        empty = num_controls - chosen.size
        return cls(
            arrays,
            np.cumsum(joined) / joined.sum(),
            np.pad(chosen, (0, empty), constant_values=-1),
            np.pad(joined[chosen], (0, empty)),
        )

    @property
    def dimension(self) -> int:
        return self.pieces[0].means.shape[1]

    def draw(self, uniforms: jax.Array) -> jax.Array:
        """Points from uniforms of shape (n, d + 2): component, Student-t scale, normals."""
        chosen = jnp.searchsorted(jnp.asarray(self.edges), uniforms[:, 0], side="right")
        levels = jnp.clip(uniforms[:, 1:], SMALLEST_LEVEL, 1 - SMALLEST_LEVEL)
        normals = ndtri(levels)
        points, start = jnp.zeros_like(normals[:, 1:]), 0
        for piece in self.pieces:
            size = len(piece.means)
            own = _drawn(piece, chosen - start, normals)
            is_own = (chosen >= start) & (chosen < start + size)
            points = jnp.where(is_own[:, None], own, points)
            start += size
        return points

    def log_density_and_controls(self, points: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The log density, and the controls: shares in it of components less their weights."""
        logs = jnp.concatenate([_log_densities(piece, points) for piece in self.pieces])
        log_density = logsumexp(logs, axis=0)
        places = jnp.asarray(self.controls)
        shares = (
            jnp.exp(logs[places] - log_density[None]) - jnp.asarray(self.control_weights)[:, None]
        )
        return log_density, jnp.where(places[:, None] >= 0, shares, 0.0).T


def _drawn(piece: Components, chosen: jax.Array, normals: jax.Array) -> jax.Array:
    """A point of the chosen component for each row; anything where it is not one of these."""
    curve = jnp.asarray(piece.curves)[jnp.clip(chosen, 0, len(piece.means) - 1)]
    nu = jnp.asarray(piece.degrees)[jnp.clip(chosen, 0, len(piece.means) - 1)]
    is_student = nu > 0
    chi_squared = jnp.exp(_chebyshev(curve, normals[:, 0] / LARGEST_NORMAL))
    stretch = jnp.where(is_student, jnp.sqrt(nu / chi_squared), 1.0)
    stretched = normals[:, 1:] * stretch[:, None]

    def add(points: jax.Array, item: tuple) -> tuple[jax.Array, None]:
        number, mean, factor = item
        own = mean[None] + stretched @ factor.T
        return jnp.where((chosen == number)[:, None], own, points), None

    items = jnp.arange(len(piece.means)), jnp.asarray(piece.means), jnp.asarray(piece.factors)
    points = lax.scan(add, jnp.zeros_like(stretched), items)[0]
    return points if not len(piece.knots) else _forward(jnp.asarray(piece.knots), points)


def _log_densities(piece: Components, points: jax.Array) -> jax.Array:
    """log(weight · density) of every component, of shape (components, points)."""
    log_volume = jnp.zeros(len(points))
    if len(piece.knots):
        points, log_volume = _inverse(jnp.asarray(piece.knots), points)

    def one(item: tuple) -> jax.Array:
        constant, mean, inverse, nu = item
        squares = jnp.sum(((points - mean[None]) @ inverse.T) ** 2, axis=1)
        degrees = jnp.where(nu > 0, nu, 1.0)
        student = -0.5 * (degrees + points.shape[1]) * jnp.log1p(squares / degrees)
        return constant + jnp.where(nu > 0, student, -0.5 * squares)

    arrays = piece.log_constants, piece.means, piece.inverses, piece.degrees
    return lax.map(one, jax.tree.map(jnp.asarray, arrays)) + log_volume[None]


def _forward(knots: jax.Array, warped: jax.Array) -> jax.Array:
    """As `Warp.forward`."""
    levels = jnp.asarray(LEVELS)
    columns = jnp.arange(knots.shape[1])[None]
    piece = jnp.clip(jnp.searchsorted(levels, warped) - 1, 0, levels.size - 2)
    slopes = (jnp.diff(knots, axis=0) / jnp.diff(levels)[:, None])[piece, columns]
    return knots[piece, columns] + slopes * (warped - levels[piece])


def _inverse(knots: jax.Array, points: jax.Array) -> tuple[jax.Array, jax.Array]:
    """As `Warp.inverse`."""
    levels = jnp.asarray(LEVELS)
    columns = jnp.arange(knots.shape[1])[None]
    found = jax.vmap(jnp.searchsorted, in_axes=1, out_axes=1)(knots, points)
    piece = jnp.clip(found - 1, 0, levels.size - 2)
    slopes = (jnp.diff(knots, axis=0) / jnp.diff(levels)[:, None])[piece, columns]
    warped = levels[piece] + (points - knots[piece, columns]) / slopes
    return warped, -jnp.sum(jnp.log(slopes), axis=1)


def _padded(mixture: Mixture) -> Mixture:
    """The mixture with components without weight, up to the next number that is compiled."""
    missing = -mixture.size % COMPONENTS
    if not missing:
        return mixture
    filler = Mixture(
        np.zeros(missing),
        np.zeros((missing, mixture.dimension)),
        np.broadcast_to(np.eye(mixture.dimension), (missing, *mixture.factors.shape[1:])),
        np.full(missing, np.inf),
    )
    return Mixture.join([mixture, filler])


@functools.cache
def chi_squared_curve(degrees: float) -> np.ndarray:
    """Chebyshev coefficients of log χ² at the level of a standard normal number; 0 for infinity."""
    from scipy.special import gammainccinv, gammaincinv, ndtr

    if not math.isfinite(degrees):
        return np.zeros(POLYNOMIAL_DEGREE + 1)
    count = POLYNOMIAL_DEGREE + 1
    nodes = np.cos(np.pi * (np.arange(count) + 0.5) / count)
    normals = LARGEST_NORMAL * nodes
    lower = gammaincinv(degrees / 2, ndtr(np.minimum(normals, 0.0)))
    upper = gammainccinv(degrees / 2, ndtr(-np.maximum(normals, 0.0)))
    return chebyshev.chebfit(nodes, np.log(2 * np.where(normals < 0, lower, upper)), count - 1)


def _chebyshev(coefficients: jax.Array, x: jax.Array) -> jax.Array:
    """By Clenshaw's recurrence, a row of coefficients for each number."""

    def step(carry: tuple, column: jax.Array) -> tuple[tuple, None]:
        last, before = carry
        return (column + 2 * x * last - before, last), None

    nothing = jnp.zeros_like(x)
    columns = coefficients.T[:0:-1]
    (last, before), _ = lax.scan(step, (nothing, nothing), columns)
    return coefficients[:, 0] + x * last - before
