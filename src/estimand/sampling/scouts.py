"""Islands of waste-free SMC driven from the host: only the moves of the chains are compiled.

The same sampler as `tempering.drive` with islands and adaptive temperatures. Temperatures, weights,
resampling and covariances are a few thousand numbers and are NumPy's; random numbers are arguments.
What is compiled has the density once and little else: the whole sampler takes ten times as long
to compile. One shape serves every part, output and temperature, and scouts with more particles,
which move in pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from estimand.density import GRADIENT_COST, Density, PathPoint, Terms
from estimand.kernels import DrivenKernel, Given, State, Tuning
from estimand.runtime import Task, compiled_per_model, has_accelerator, spread
from estimand.sampling.chunks import divisor, rows_at_a_time, vmapped
from estimand.sampling.prior import prior_positions
from estimand.sampling.products import sums_of_products
from estimand.sampling.resampling import systematic
from estimand.sampling.tempering import MAX_TEMPERATURES, Population

MAX_SECANTS = 24


class Scouted(NamedTuple):
    """Particles at the end, island by island, log Z of each island, and what they cost.

    `betas` are the inverse temperatures that were gone through, and `acceptance` the acceptance
    rate of each island at each of them.
    """

    positions: np.ndarray
    log_z: np.ndarray
    betas: np.ndarray
    acceptance: np.ndarray
    num_evaluations: int
    num_gradients: int
    num_invalid: int

    @property
    def log_weights(self) -> np.ndarray:
        """log Z of each particle's island."""
        return np.repeat(self.log_z, len(self.positions) // self.log_z.size)


def can_scout(population: Population, density: Density) -> bool:
    """Whether the host can drive such a population."""
    is_usual = population.waste_free and population.adapt and population.resampling is systematic
    has_others = population.num_islands > 1 and population.num_steps > 1
    is_driven = isinstance(population.kernel, DrivenKernel) and not density.layout.discrete_sites
    return is_usual and has_others and is_driven


def run_scouts(
    population: Population, density: Density, seed: tuple[int, ...], num_pieces: int = 1
) -> Scouted:
    """Leads islands from the prior to a part of the target.

    Args:
        population: how many particles there are, and how they move.
        density: the part, softened or not.
        seed: of all random numbers.
        num_pieces: so many times more particles, moved in as many calls.
    """
    if has_accelerator():
        # It moves all pieces in the time of one.
        size = num_pieces * population.num_particles
        population, num_pieces = population._replace(num_particles=size), 1
    rng = np.random.default_rng(seed)
    mover = _Mover(population, density)
    islands = _start(mover, (*seed, 0), num_pieces)
    beta, log_z = 0.0, np.zeros(population.num_islands)
    step_sizes = np.full(population.num_islands, mover.kernel.natural_step(density.dimension))
    rungs, betas, acceptances = density.num_rungs, [], []
    for _ in range(MAX_TEMPERATURES):
        after = next_temperature(islands.terms, beta, population.conditional_ess, rungs)
        log_weights = Reweighting(islands.terms, beta, rungs).log_weights(after)
        log_z, is_alive = grown(log_z, log_weights)
        if not is_alive.any():
            break
        factors = covariance_factors(islands.positions, log_weights)
        tuning = _tuning(step_sizes, factors)
        starts = _resampled(rng, islands, log_weights, is_alive, num_pieces * population.num_chains)
        islands, acceptance = _moved(mover, rng, starts, num_pieces, after, tuning)
        step_sizes = step_sizes * np.exp(2.0 * (acceptance - mover.kernel.target_acceptance))
        beta = after
        betas.append(beta)
        acceptances.append(acceptance)
        if beta >= 1:
            break
    log_z = log_z if beta >= 1 else np.full_like(log_z, -np.inf)
    return Scouted(
        positions=islands.positions.reshape(-1, density.dimension),
        log_z=log_z,
        betas=np.array(betas),
        acceptance=np.array(acceptances).reshape(len(betas), population.num_islands).T,
        num_evaluations=mover.num_evaluations,
        num_gradients=mover.num_gradients,
        num_invalid=mover.num_invalid,
    )


class _Islands(NamedTuple):
    """Positions and terms; the first axis are the islands, the second one particles or chains."""

    positions: Any
    terms: Terms

    @staticmethod
    def join(pieces: list[_Islands]) -> _Islands:
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *pieces)


# --- the compiled moves ---


@compiled_per_model(static_argnums=(0,), optimisation=1)
def _chains(
    kernel: DrivenKernel,
    density: Density,
    starts: _Islands,
    point: PathPoint,
    tunings: Tuning,
    given: Given,
) -> tuple:
    """The states of chains that move by given random numbers.

    Starts have axes for groups, of which each has a tuning, and chains; the random numbers have one
    for moves before these.
    """

    num_groups = starts.positions.shape[0]

    def group(states: State, given: Given, tuning: Tuning) -> tuple:
        def one(chain: tuple[State, Given]) -> tuple:
            state, info = kernel.advance(density, chain[0], point, tuning, chain[1])
            return state, (_Islands(*state[:2]), info.acceptance, info.num_invalid)

        return vmapped(one, (states, given), copies=num_groups)

    def step(state: State, given: Given) -> tuple:
        flags = jnp.broadcast_to(given.is_position, given.threshold.shape)
        return jax.vmap(group)(state, given._replace(is_position=flags), tunings)

    nothing = jnp.zeros_like(starts.positions) if kernel.needs_gradient else ()
    return lax.scan(step, State(starts.positions, starts.terms, nothing), given)[1]


class _Mover:
    """Calls the compiled moves, always with the same shapes, and counts what they cost."""

    def __init__(self, population: Population, density: Density) -> None:
        self.population, self.density = population, density
        self.kernel = cast(DrivenKernel, population.kernel)
        self.num_moves = population.num_steps - (not self.kernel.needs_gradient)
        self.num_evaluations = self.num_gradients = self.num_invalid = 0

    @property
    def capacity(self) -> int:
        """Positions that one call evaluates."""
        return self.num_moves * self.population.num_islands * self.population.num_chains

    def terms(self, positions: np.ndarray) -> _Islands:
        """Evaluates as many positions as one call can: they take the places of the moves."""
        num_islands, num_chains = self.population.num_islands, self.population.num_chains
        shape = (self.num_moves, num_islands, num_chains)
        noise = positions.reshape(*shape, -1)
        ladder = (self.density.num_rungs,) if self.density.num_rungs > 1 else ()
        nothing: Any = np.zeros(shape[1:])
        terms = Terms(nothing, nothing, np.zeros((*shape[1:], *ladder)))  # type: ignore[arg-type]
        factors = np.ones(factor_shape(num_islands, self.population.num_particles, noise.shape[-1]))
        tuning = _tuning(np.ones(num_islands), factors)
        numbers = noise, np.zeros(shape), np.ones(self.num_moves, bool)
        return _by_island(self._call(_Islands(noise[0], terms), 1.0, tuning, numbers)[0])

    def moves(
        self, rng: np.random.Generator, starts: _Islands, beta: float, tuning: Tuning
    ) -> tuple[_Islands, np.ndarray]:
        """Every state of chains from these starts, and the acceptance rate of each island."""
        shape = (self.num_moves, *starts.positions.shape[:2])
        noise = rng.standard_normal((*shape, self.density.dimension))
        threshold = -rng.standard_exponential(shape)
        is_position = np.zeros(self.num_moves, bool)
        if self.kernel.needs_gradient:
            # The first step only finds the gradient where the chain starts.
            noise[0], is_position[0] = starts.positions, True
        numbers = noise, threshold, is_position
        states, accepted = self._call(starts, beta, tuning, numbers)
        if not self.kernel.needs_gradient:
            states = jax.tree.map(
                lambda first, rest: np.concatenate([first[None], rest]), starts, states
            )
        return _by_island(states), accepted[~is_position].mean(axis=(0, 2))

    def _call(
        self, starts: _Islands, beta: float, tuning: Tuning, numbers: tuple
    ) -> tuple[_Islands, np.ndarray]:
        """The states after every move, and which moves were accepted."""
        noise, threshold, is_position = numbers
        shape = threshold.shape
        if not self.kernel.needs_gradient:
            # The host can scale the noise then, and all chains are one group to the compiler.
            noise = np.where(is_position[:, None, None, None], noise, _stretched(noise, tuning))
            tuning = _tuning(np.ones(1), np.ones((1, noise.shape[-1])))
            starts = jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), starts)
            noise, threshold = (
                x.reshape(shape[0], 1, -1, *x.shape[3:]) for x in (noise, threshold)
            )
        dtype = jnp.result_type(float)
        point = PathPoint(*from_prior(beta, self.density.num_rungs))  # type: ignore[arg-type]
        starts, point, tuning, noise, threshold = jax.tree.map(
            lambda x: np.asarray(x, dtype), (starts, point, tuning, noise, threshold)
        )
        given = Given(noise, threshold, is_position)
        found = self._in_pieces(starts, point, tuning, given)
        states, accepted, invalid = jax.tree.map(
            lambda x: np.asarray(x, float).reshape(*shape, *x.shape[3:]), found
        )
        if self.kernel.needs_gradient:
            self.num_gradients += self.capacity
        else:
            self.num_evaluations += self.capacity
        self.num_invalid += int(invalid.sum())
        return states, accepted

    def _in_pieces(self, starts: _Islands, point: PathPoint, tuning: Tuning, given: Given) -> tuple:
        """As `_chains`, of some chains of one group at a time where evaluations are expensive."""
        num_groups, num_chains = starts.positions.shape[:2]
        total = num_groups * num_chains
        cost = GRADIENT_COST if self.kernel.needs_gradient else 1
        size = rows_at_a_time(self.density, total, cost * self.num_moves)
        if size == total:
            return _chains(self.kernel, self.density, starts, point, tuning, given)
        size = divisor(num_chains, size)

        def task(group: int, first: int) -> Task:
            groups, chains = slice(group, group + 1), slice(first, first + size)
            own = Given(
                given.noise[:, groups, chains],
                given.threshold[:, groups, chains],
                given.is_position,
            )
            some: _Islands = jax.tree.map(lambda x: x[groups, chains], starts)
            tunings: Tuning = jax.tree.map(lambda x: x[groups], tuning)
            return Task(_chains, (self.kernel, self.density, some, point, tunings, own))

        firsts = range(0, num_chains, size)
        pieces = spread([task(group, first) for group in range(num_groups) for first in firsts])

        def joined(*parts: Any) -> np.ndarray:
            whole = np.concatenate([np.asarray(part) for part in parts], axis=2)
            return whole.reshape(whole.shape[0], num_groups, num_chains, *whole.shape[3:])

        return jax.tree.map(joined, *pieces)


def _by_island(states: _Islands) -> _Islands:
    """States with axes (moves, islands, chains) as particles of islands, chain by chain."""
    return jax.tree.map(
        lambda x: np.moveaxis(x, 0, 2).reshape(x.shape[1], -1, *x.shape[3:]), states
    )


def _stretched(noise: np.ndarray, tuning: Tuning) -> np.ndarray:
    """The moves of random walks, scaled by the tuning of each island."""
    factors, is_diagonal = np.asarray(tuning.factor), tuning.factor.ndim == 2
    moves = noise * factors[:, None] if is_diagonal else noise @ factors.transpose(0, 2, 1)
    return moves * np.asarray(tuning.step_size)[:, None, None]


def _tuning(step_sizes: Any, factors: Any) -> Tuning:
    center: Any = np.zeros(factors.shape[:2])
    return Tuning(step_sizes, factors, center)


# --- between the moves ---


def _start(mover: _Mover, seed: tuple[int, ...], num_pieces: int) -> _Islands:
    """Draws from the prior, as many as one call of the moves evaluates for each piece."""
    count = mover.capacity
    points = prior_positions(mover.density, seed, num_pieces * count)
    islands = _Islands.join(
        [mover.terms(points[k * count : (k + 1) * count]) for k in range(num_pieces)]
    )
    log_weight = islands.terms.log_weight
    is_bad = ~(log_weight < np.inf)
    likelihood: Any = np.where(is_bad, -np.inf, islands.terms.log_likelihood)
    return islands._replace(terms=islands.terms._replace(log_likelihood=likelihood))


def grown(log_z: np.ndarray, log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log Z of each island after a change of temperature, and which islands are alive."""
    tops = log_weights.max(axis=1)
    is_alive = tops > -np.inf
    safe = np.where(is_alive, tops, 0.0)
    with np.errstate(divide="ignore"):
        means = np.log(np.mean(np.exp(log_weights - safe[:, None]), axis=1)) + safe
    return np.where(is_alive, log_z + means, -np.inf), is_alive


def _resampled(
    rng: np.random.Generator,
    islands: _Islands,
    log_weights: np.ndarray,
    is_alive: np.ndarray,
    count: int,
) -> _Islands:
    """Where chains start; an island that has died out goes on as a copy, with no weight."""
    sources = np.where(is_alive, np.arange(is_alive.size), np.flatnonzero(is_alive)[0])
    chosen = np.stack([systematic_indices(rng, log_weights[k], count) for k in sources])
    return jax.tree.map(lambda x: x[sources[:, None], chosen], islands)


def systematic_indices(rng: np.random.Generator, log_weights: np.ndarray, count: int) -> np.ndarray:
    """As `resampling.systematic`."""
    weights = np.exp(log_weights - log_weights.max())
    edges = np.cumsum(weights)
    slices = (np.arange(count) + rng.random()) / count
    indices = np.searchsorted(edges / edges[-1], slices, side="right")
    return np.minimum(indices, np.flatnonzero(weights)[-1])


def _moved(
    mover: _Mover,
    rng: np.random.Generator,
    starts: _Islands,
    num_pieces: int,
    beta: float,
    tuning: Tuning,
) -> tuple[_Islands, np.ndarray]:
    """The islands after their moves, and the acceptance rate of each."""
    count = mover.population.num_chains
    pieces, acceptance = [], []
    for number in range(num_pieces):
        own = slice(number * count, (number + 1) * count)
        piece: _Islands = jax.tree.map(lambda x, own=own: x[:, own], starts)
        moved, accepted = mover.moves(rng, piece, beta, tuning)
        pieces.append(moved)
        acceptance.append(accepted)
    return _Islands.join(pieces), np.mean(acceptance, axis=0)


Path = Callable[[float, int], tuple[float, float]]
"""A way to a density: the powers of a `PathPoint` by inverse temperature and number of rungs."""


def from_prior(beta: float, rungs: int) -> tuple[float, float]:
    """From the prior to the target, as `tempering.from_prior`."""
    return min(rungs * beta, 1.0), beta


def to_posterior(beta: float, _rungs: int) -> tuple[float, float]:
    """From the prior to the posterior."""
    return beta, 0.0


def from_posterior(beta: float, _rungs: int) -> tuple[float, float]:
    """From the posterior to the target."""
    return 1.0, beta


class Reweighting:
    """The weights that particles get when the inverse temperature changes, by the new one.

    As `tempering.log_increments`.
    """

    def __init__(self, terms: Terms, before: float, rungs: int, path: Path = from_prior) -> None:
        ladder = np.asarray(terms.log_target)
        ladder = ladder[..., None] if rungs == 1 else ladder
        factors = [np.asarray(terms.log_likelihood), *np.moveaxis(ladder, -1, 0)]
        self.is_zero = [~np.isfinite(factor) for factor in factors]
        self.log_factors = [
            np.where(is_zero, 0.0, factor)
            for factor, is_zero in zip(factors, self.is_zero, strict=True)
        ]
        self.before, self.rungs, self.path = _powers(path(before, rungs), rungs), rungs, path

    def log_weights(self, after: float) -> np.ndarray:
        """log of the weights; −inf where a factor that counts is 0 or not a number."""
        now = _powers(self.path(after, self.rungs), self.rungs)
        counts = [old != 0 or new != 0 for old, new in zip(self.before, now, strict=True)]
        total = np.zeros(self.log_factors[0].shape)
        for k in np.flatnonzero(counts):
            total += (now[k] - self.before[k]) * self.log_factors[k]
        for k in np.flatnonzero(counts):
            total[self.is_zero[k]] = -np.inf
        return total


def _powers(point: tuple[float, float], rungs: int) -> list[float]:
    """The power of the likelihood, and of each target of the ladder; see `PathPoint`."""
    likelihood, target = point
    if rungs == 1:
        return [likelihood, target]
    shares = np.clip(1 - np.abs(rungs * target - np.arange(1, rungs + 1)), 0.0, 1.0)
    return [likelihood, *shares.tolist()]


def next_temperature(
    terms: Terms, beta: float, target: float, rungs: int, path: Path = from_prior
) -> float:
    """As `tempering.next_temperature`."""
    reweighting, whole = Reweighting(terms, beta, rungs, path), 1 - beta
    alive = np.count_nonzero(reweighting.log_weights(beta + 1e-9 * whole) > -np.inf)

    def excess(log_step: float) -> float:
        """How much too long a step is: a nearly linear function of its logarithm.

        log(−log(ESS / alive)) less its wanted value; for Gaussian log weights its slope is 2.
        """
        log_weights = reweighting.log_weights(beta + math.exp(log_step))
        top = log_weights.max()
        if not top > -np.inf:
            return math.inf
        weights = np.exp(log_weights - top)
        share = weights.sum() ** 2 / (alive * np.vdot(weights, weights))
        return math.log(max(-math.log(share), 1e-30) / -math.log(target))

    log_step = _root(excess, math.log(whole), slope=2.0)
    after = min(beta + math.exp(log_step), 1.0)
    rung = round(after * rungs) / rungs
    return rung if rung > beta and abs(rung - after) < 1e-3 / rungs else after


def _root(function: Callable[[float], float], high: float, slope: float) -> float:
    """Where an increasing function is 0, up to 1e-4 of its value; `high` if it is not above 0.

    Secants within a bracket, the first one by the slope that is expected.
    """
    low, value = high - 30.0, function(high)
    if value <= 0:
        return high
    place, last = high, None
    for _ in range(MAX_SECANTS):
        if last is not None and value != last[1]:
            slope = (value - last[1]) / (place - last[0])
        guess = place - value / slope if slope > 0 and math.isfinite(value) else -math.inf
        last = (place, value) if math.isfinite(value) else None
        place = guess if low < guess < high else 0.5 * (low + high)
        value = function(place)
        low, high = (low, place) if value > 0 else (place, high)
        if abs(value) < 1e-4:
            return place
    return low


def covariance_factors(positions: np.ndarray, log_weights: np.ndarray) -> np.ndarray:
    """Factors of the covariance of all other islands' particles, as `adapted_tunings`."""
    num_islands, count, dimension = positions.shape
    weights = np.exp(log_weights - log_weights.max())
    center = np.einsum("in,ind->d", weights, positions) / weights.sum()
    deviations = positions - center

    def of_others(sums: np.ndarray) -> np.ndarray:
        return sums.sum(axis=0, keepdims=True) - sums

    sizes = np.maximum(of_others(weights.sum(axis=1)), 1e-300)
    weighted = weights[:, :, None] * deviations
    shifts = of_others(weighted.sum(axis=1)) / sizes[:, None]
    floors = 1e-12 * (1 + (center + shifts) ** 2)
    if len(factor_shape(num_islands, count, dimension)) == 2:
        squares = of_others((weighted * deviations).sum(axis=1)) / sizes[:, None]
        return np.sqrt(np.maximum(squares - shifts**2, floors))
    effective = sizes**2 / np.maximum(of_others((weights**2).sum(axis=1)), 1e-300)
    products = [sums_of_products(*pair) for pair in zip(weighted, deviations, strict=True)]
    seconds = of_others(np.stack(products)) / sizes[:, None, None]
    covariances = seconds - shifts[:, :, None] * shifts[:, None, :]
    return np.stack([_factor(*item) for item in zip(covariances, floors, effective, strict=True)])


def factor_shape(num_islands: int, count: int, dimension: int) -> tuple[int, ...]:
    """Of `covariance_factors`: scales alone where others' particles are too few for more."""
    has_few = (num_islands - 1) * count < 4 * dimension
    return (num_islands, dimension) if has_few else (num_islands, dimension, dimension)


def _factor(covariance: np.ndarray, floor: np.ndarray, effective: float) -> np.ndarray:
    """The Cholesky factor of a covariance, shrunk as `tempering.shrunk` does it."""
    shrinkage = np.clip(len(floor) / max(effective, 1e-12), 0.01, 1.0)
    variances = np.maximum(np.diag(covariance), floor)
    shrunk = (1 - shrinkage) * covariance + shrinkage * np.diag(variances)
    try:
        return np.linalg.cholesky(shrunk)
    except np.linalg.LinAlgError:
        return np.diag(np.sqrt(variances))
