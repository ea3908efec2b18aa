"""Chains of Hamiltonian Monte Carlo side by side, driven from the host.

Sixty-four chains in eight islands move together. Step size, metric and coordinates come from the
chains themselves, each island's from the other islands; random numbers and the length of the
trajectories are arguments. What is compiled has the density once and no adaptation in it: NumPyro's
NUTS takes several times as long to compile and to run (docs/models.md has the seconds of both).
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro.diagnostics import split_gelman_rubin

from estimand.density import Density, PathPoint, Terms
from estimand.runtime import Task, compiled_per_model, spread
from estimand.sampling.chunks import rows_at_a_time, vmapped
from estimand.sampling.products import inverses_of, sums_of_products

NUM_ISLANDS = 8
NUM_CHAINS = 8
"""Of each island."""
NUM_MOVES = 10
"""Of every chain in one call."""
MAX_LEAPFROG = 60
# Of a chain in one call, about, by which calls are cut into pieces.
NUM_EVALUATIONS = 300
# Of trajectories in coordinates of unit scale: a quarter of a Gaussian's period, on average.
TRAJECTORY = 0.5 * math.pi
TARGET_ACCEPTANCE = 0.7

# Rounds of moves until chains agree.
MIN_ROUNDS = 18
MAX_ROUNDS = 60
# Rounds over which chains must agree at the end of the warm-up, and how well.
WINDOW = 6
MAX_WARM_R_HAT = 1.1
# After so many rounds the coordinates are chosen anew.
BLENDING_ROUNDS = (4, 10)


class Way(NamedTuple):
    """How chains move in one kind of coordinates; axes are islands and chains.

    `slowness` divides the step size of chains that would otherwise not move.
    """

    step_size: float
    slowness: np.ndarray
    factors: np.ndarray

    @classmethod
    def of(cls, step_size: float, factors: np.ndarray) -> Way:
        """With all chains equally fast."""
        return cls(step_size, np.ones((NUM_ISLANDS, NUM_CHAINS)), factors)


class Ensemble(NamedTuple):
    """Where chains are, with axes (islands, chains), and how they move in each of their charts.

    Charts are the same density in several coordinates, which chains take in turns (Yu and Meng
    2011): a neck that is too narrow for steps in the one is wide in the other. Positions are in the
    coordinates of the first.
    """

    positions: np.ndarray
    ways: tuple[Way, ...]


class Moved(NamedTuple):
    """States with axes (moves, islands, chains), their acceptance rates, and what they cost."""

    positions: np.ndarray
    terms: Terms
    acceptance: np.ndarray
    num_gradients: int
    num_invalid: int


@compiled_per_model(optimisation=1)
def _trajectories(
    density: Density,
    point: PathPoint,
    step_sizes: jax.Array,
    factors: jax.Array,
    noise: jax.Array,
    thresholds: jax.Array,
    is_placed: jax.Array,
    num_leapfrog: jax.Array,
) -> tuple:
    """States after every move, acceptance probabilities, and positions that are not numbers.

    A move that is placed goes to where its noise says and only evaluates, by a step of length 0:
    so begin the chains, and the density is compiled once and not twice.
    """

    def evaluated(positions: jax.Array) -> tuple:
        one = functools.partial(density.value_and_gradient, point=point)
        shape = positions.shape[:2]
        found = vmapped(one, positions.reshape(-1, positions.shape[-1]))
        return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]).astype(noise.dtype), found)

    def move(carry: tuple, given: tuple) -> tuple:
        positions, found = carry
        noise, threshold, is_placed = given
        positions = jnp.where(is_placed, noise, positions)
        momenta = jnp.where(is_placed, 0.0, noise)
        found = *found[:2], jnp.where(is_placed, 0.0, found[2])
        steps = jnp.where(is_placed, 0.0, step_sizes)[..., None]

        def force(gradients: jax.Array) -> jax.Array:
            return 0.5 * steps * jnp.einsum("ide,icd->ice", factors, gradients)

        def leapfrog(_: int, carry: tuple) -> tuple:
            positions, momenta, (_, _, gradients) = carry
            momenta += force(gradients)
            positions += steps * jnp.einsum("ide,ice->icd", factors, momenta)
            found = evaluated(positions)
            return positions, momenta + force(found[2]), found

        count = jnp.where(is_placed, 1, num_leapfrog)
        ends, end_momenta, end = lax.fori_loop(0, count, leapfrog, (positions, momenta, found))
        gained = 0.5 * jnp.sum(end_momenta**2 - momenta**2, axis=-1)
        log_ratio = end[1] - found[1] - gained
        is_number = ~jnp.isnan(log_ratio)
        log_ratio = jnp.where(is_number, log_ratio, -jnp.inf)
        is_accepted = is_placed | (threshold < log_ratio)

        def chosen(new: jax.Array, old: jax.Array) -> jax.Array:
            axes = (1,) * (new.ndim - is_accepted.ndim)
            return jnp.where(is_accepted.reshape(is_accepted.shape + axes), new, old)

        carry = chosen(ends, positions), jax.tree.map(chosen, end, found)
        rate = jnp.exp(jnp.minimum(log_ratio, 0.0))
        is_bad = ~is_number & jnp.isfinite(ends).all(axis=-1)
        return carry, (carry[0], carry[1][0], rate, is_bad)

    nowhere = jnp.zeros(noise.shape[1:], noise.dtype)
    zeros = nowhere[..., 0]
    rungs = (density.num_rungs,) if density.num_rungs > 1 else ()
    targets = jnp.zeros((*zeros.shape, *rungs), zeros.dtype)
    nothing = Terms(zeros, zeros, targets), zeros, nowhere
    return lax.scan(move, (nowhere, nothing), (noise, thresholds, is_placed))[1]


def _called(
    density: Density,
    point: tuple[float, float],
    step_sizes: np.ndarray,
    factors: np.ndarray,
    noise: np.ndarray,
    thresholds: np.ndarray,
    is_placed: np.ndarray,
    num_leapfrog: int,
) -> tuple:
    """`_trajectories` of numbers of one kind, as arrays of NumPy."""
    dtype = jnp.result_type(float)
    path_point = PathPoint(*(np.asarray(power, dtype) for power in point))  # type: ignore[arg-type]
    numbers = tuple(np.asarray(x, dtype) for x in (step_sizes, factors, noise, thresholds))
    num_islands, num_chains = step_sizes.shape
    size = rows_at_a_time(density, num_islands * num_chains, NUM_EVALUATIONS)
    rows, columns = max(1, size // num_chains), min(size, num_chains)

    def task(island: int, chain: int) -> Task:
        islands, chains = slice(island, island + rows), slice(chain, chain + columns)
        steps, own_factors, momenta, least = numbers
        own = (
            steps[islands, chains],
            own_factors[islands],
            momenta[:, islands, chains],
            least[:, islands, chains],
        )
        return Task(_trajectories, (density, path_point, *own, is_placed, np.int32(num_leapfrog)))

    pieces = spread(
        [
            task(island, chain)
            for island in range(0, num_islands, rows)
            for chain in range(0, num_chains, columns)
        ]
    )

    def joined(*parts: Any) -> np.ndarray:
        arrays = [np.asarray(part, float) for part in parts]
        across = num_chains // columns
        bands = [
            np.concatenate(arrays[k : k + across], axis=2) for k in range(0, len(arrays), across)
        ]
        return np.concatenate(bands, axis=1)

    return jax.tree.map(joined, *pieces)


def terms_at(
    density: Density, positions: np.ndarray, point: tuple[float, float]
) -> tuple[Terms, int]:
    """Terms at positions with axes (islands, any number), and how many gradients they cost."""
    num_islands, count, dimension = positions.shape
    size = (1 + NUM_MOVES) * NUM_CHAINS
    num_calls = -(-count // size)
    rows = positions[:, np.arange(num_calls * size) % count]
    rows = rows.reshape(num_islands, num_calls, 1 + NUM_MOVES, NUM_CHAINS, dimension)
    factors = np.broadcast_to(np.eye(dimension), (num_islands, dimension, dimension))
    nothing = np.zeros((1 + NUM_MOVES, num_islands, NUM_CHAINS))
    is_placed = np.ones(1 + NUM_MOVES, bool)
    pieces = []
    for noise in rows.transpose(1, 2, 0, 3, 4):
        found = _called(density, point, nothing[0], factors, noise, nothing, is_placed, 1)
        pieces.append(found[1])

    def by_island(*parts: np.ndarray) -> np.ndarray:
        joined = np.moveaxis(np.concatenate(parts), 0, 1)
        return joined.reshape(num_islands, -1, *joined.shape[3:])[:, :count]

    return jax.tree.map(by_island, *pieces), num_islands * num_calls * size


def advance(
    charts: tuple[Density, ...],
    rng: np.random.Generator,
    ensemble: Ensemble,
    turn: int = 0,
    *,
    point: tuple[float, float] = (1.0, 1.0),
    spread: float = 0.3,
    num_leapfrog: int | None = None,
    shortest: float = 0.5,
) -> tuple[Moved, np.ndarray]:
    """Moves every chain `NUM_MOVES` times; also returns the step size of each chain.

    Args:
        charts: what the chains sample at the given point of the path.
        rng: of momenta, acceptances, and of the lengths of steps and trajectories.
        ensemble: where the chains start, and how they move.
        turn: the number of the chart whose turn it is, counted on and on.
        point: the powers of likelihood and target, as `PathPoint` has them.
        spread: of the logarithms of the chains' step sizes.
        num_leapfrog: steps of a trajectory, else by the step size, at random.
        shortest: of random trajectories, relative to their mean.
    """
    chosen = turn % len(charts)
    density, way = charts[chosen], ensemble.ways[chosen]
    starts = ensemble.positions
    if chosen:
        starts = recoordinated(charts[0], density, starts)
    shape = starts.shape
    jitter = np.exp(spread * rng.standard_normal(shape[:2]))
    step_sizes = way.step_size * jitter / way.slowness
    if num_leapfrog is None:
        length = TRAJECTORY * rng.uniform(shortest, 2 - shortest) / way.step_size
        num_leapfrog = int(np.clip(math.ceil(length), 1, MAX_LEAPFROG))
    noise = np.concatenate([starts[None], rng.standard_normal((NUM_MOVES, *shape))])
    thresholds = np.zeros((1 + NUM_MOVES, *shape[:2]))
    thresholds[1:] = -rng.standard_exponential((NUM_MOVES, *shape[:2]))
    is_placed = np.arange(1 + NUM_MOVES) == 0
    found = _called(
        density, point, step_sizes, way.factors, noise, thresholds, is_placed, num_leapfrog
    )
    positions, terms, acceptance, is_bad = jax.tree.map(lambda x: x[1:], found)
    if chosen:
        positions = recoordinated(density, charts[0], positions)
    num_chains = shape[0] * shape[1]
    moved = Moved(
        positions=positions,
        terms=terms,
        acceptance=acceptance,
        num_gradients=num_chains * (NUM_MOVES * num_leapfrog + 1),
        num_invalid=int(is_bad.sum()),
    )
    return moved, step_sizes


# --- warm-up ---


class Warmed(NamedTuple):
    """An ensemble after its warm-up, the centredness of its first chart, and what it cost.

    `r_hat` is the largest of any coordinate over the last rounds.
    """

    ensemble: Ensemble
    centredness: np.ndarray
    r_hat: float
    num_gradients: int


def charts_of(density: Density, centredness: np.ndarray) -> tuple[Density, ...]:
    """The charts of a density: blended as the data ask for, and standardised; or its own one."""
    if not density.model.coordinates.is_blended:
        return (density,)
    if not centredness.any():
        return (density.blended(centredness),)
    return density.blended(centredness), density.blended(np.zeros_like(centredness))


def warm_up(density: Density, start: Ensemble, seed: tuple[int, ...], num_rough: int = 0) -> Warmed:
    """Leads chains into the bulk of a density, and finds step sizes, metrics and coordinates.

    Args:
        density: in blended coordinates, with centredness 0, or in others, which then stay.
        start: where the chains start, and how they move at first.
        seed: of all random numbers.
        num_rough: rounds at the beginning with steps of very different sizes, for chains that
            start far away.
    """
    rng = np.random.default_rng(seed)
    ensemble, dimension = start, start.positions.shape[-1]
    centredness = np.zeros(dimension)
    charts: tuple[Density, ...] = (density,)
    is_blended = density.model.coordinates.is_blended
    rounds: list[np.ndarray] = []
    worst, num_gradients = math.inf, 0
    for number in range(num_rough + MAX_ROUNDS):
        is_rough = number < num_rough
        moved, step_sizes = advance(
            charts,
            rng,
            ensemble,
            number,
            spread=1.0 if is_rough else 0.3,
            num_leapfrog=10 if is_rough else None,
        )
        num_gradients += moved.num_gradients
        rounds.append(moved.positions)
        chosen = number % len(charts)
        way = _adapted(ensemble.ways[chosen], moved, step_sizes, is_rough)
        states = _recent(rounds)
        if chosen:
            states = recoordinated(charts[0], charts[chosen], states)
        ways = list(ensemble.ways)
        ways[chosen] = way._replace(factors=factors_of_others(states))
        ensemble = Ensemble(moved.positions[-1], tuple(ways))
        count = number + 1 - num_rough
        if is_blended and count in BLENDING_ROUNDS:
            standard = density.blended(np.zeros(dimension))
            centredness = best_centredness(recoordinated(charts[0], standard, _recent(rounds)))
            charts, before = charts_of(density, centredness), charts[0]
            rounds = [recoordinated(before, charts[0], item) for item in rounds[-WINDOW:]]
            ensemble = _in_charts(charts, rounds, ensemble)
        if count >= MIN_ROUNDS and count % WINDOW == 0:
            worst = r_hat_of(np.concatenate(rounds[-WINDOW:]))
            if worst < MAX_WARM_R_HAT:
                break
    return Warmed(ensemble, centredness, worst, num_gradients)


def _adapted(way: Way, moved: Moved, step_sizes: np.ndarray, is_rough: bool) -> Way:
    rates = moved.acceptance.mean(axis=0)
    slowness = np.clip(way.slowness * np.where(rates < 0.1, 3.0, 0.5), 1.0, 1e3)
    step_size = _next_step(way.step_size, step_sizes, rates, is_rough)
    return way._replace(step_size=step_size, slowness=slowness)


def _in_charts(
    charts: tuple[Density, ...], rounds: list[np.ndarray], ensemble: Ensemble
) -> Ensemble:
    """The same chains in new charts: the step size of the last way serves all at first."""
    step_size, states = ensemble.ways[-1].step_size, _recent(rounds)
    ways = [Way.of(step_size, factors_of_others(states))]
    for chart in charts[1:]:
        moved = recoordinated(charts[0], chart, states)
        ways.append(Way.of(step_size, factors_of_others(moved)))
    return Ensemble(rounds[-1][-1], tuple(ways))


def start_anywhere(starts: np.ndarray) -> Ensemble:
    """Chains at some positions, of whose density nothing is known."""
    dimension = starts.shape[-1]
    scales = _robust_scales(starts.reshape(-1, dimension))
    factors = np.broadcast_to(np.diag(scales), (NUM_ISLANDS, dimension, dimension))
    return Ensemble(starts, (Way.of(0.1 / dimension**0.25, factors),))


def _recent(rounds: list[np.ndarray]) -> np.ndarray:
    """States of the last third of all rounds, and of one at the least."""
    return np.concatenate(rounds[-max(1, len(rounds) // 3) :])


def _robust_scales(points: np.ndarray) -> np.ndarray:
    spread = 1.48 * np.median(np.abs(points - np.median(points, axis=0)), axis=0)
    return np.where(spread > 0, spread, 1.0)


def _next_step(before: float, step_sizes: np.ndarray, rates: np.ndarray, is_rough: bool) -> float:
    """By the acceptance rate; at first by those steps that led farthest."""
    if not is_rough:
        change = np.clip(rates.mean() - TARGET_ACCEPTANCE, -0.5, 0.3)
        return float(before * math.exp(change))
    reach = (rates * step_sizes) ** 2
    if not reach.any():
        return before / 5
    return float(math.exp(np.average(np.log(step_sizes), weights=reach)))


def factors_of_others(states: np.ndarray) -> np.ndarray:
    """For each island the Cholesky factor of the covariance of all others' states.

    It is shrunk towards its diagonal; states are of chains, so that few are independent.
    """
    count, num_islands, num_chains, dimension = states.shape
    points = states.transpose(1, 0, 2, 3).reshape(num_islands, -1, dimension)
    center = points.mean(axis=(0, 1))
    deviations = points - center
    products = np.stack([sums_of_products(own, own) for own in deviations])
    sums = deviations.sum(axis=1)
    size = (num_islands - 1) * points.shape[1]
    means = (sums.sum(axis=0) - sums) / size
    covariances = (products.sum(axis=0) - products) / size
    covariances -= means[:, :, None] * means[:, None, :]
    independent = (num_islands - 1) * num_chains * max(1.0, count / 3)
    share = np.clip(dimension / independent, 0.01, 1.0)
    floor = 1e-14 * (1 + center**2)
    return np.stack([_factor(covariance, floor, share) for covariance in covariances])


def _factor(covariance: np.ndarray, floor: np.ndarray, share: float) -> np.ndarray:
    variances = np.maximum(np.diag(covariance), floor)
    shrunk = (1 - share) * covariance
    np.fill_diagonal(shrunk, variances)
    try:
        return np.linalg.cholesky(shrunk)
    except np.linalg.LinAlgError:
        return np.diag(np.sqrt(variances))


def r_hat_of(states: np.ndarray) -> float:
    """The largest split R-hat of any coordinate, of states with axes (moves, islands, chains)."""
    count, dimension = len(states), states.shape[-1]
    chains = states.reshape(count, -1, dimension).swapaxes(0, 1)
    values = np.asarray(split_gelman_rubin(chains))
    return float(np.max(np.where(np.isnan(values), np.inf, values)))


# --- coordinates ---


def best_centredness(states: np.ndarray) -> np.ndarray:
    """What the data say of each coordinate, of what data and prior say together.

    In standardised coordinates the prior's precision is 1, so that a posterior precision p has
    1 − 1/p from the data: the centredness at which a Gaussian hierarchy and its scale are
    independent (Papaspiliopoulos, Roberts and Sköld 2007).
    """
    dimension = states.shape[-1]
    points = states.reshape(-1, dimension)
    center = points.mean(axis=0)
    covariance = sums_of_products(points - center, points - center) / len(points)
    independent = states.shape[1] * states.shape[2] * max(1.0, len(states) / 3)
    factor = _factor(covariance, 1e-14 * (1 + center**2), np.clip(dimension / independent, 0.01, 1))
    inverse = inverses_of(factor)
    precision = (inverse**2).sum(axis=0)
    return np.clip(1 - 1 / np.maximum(precision, 1.0), 0.0, 1.0)


def recoordinated(before: Density, after: Density, states: np.ndarray) -> np.ndarray:
    """The same states in the coordinates of another density of the same program."""
    rows = states.reshape(-1, states.shape[-1]).astype(jnp.result_type(float))
    size = NUM_ISLANDS * NUM_CHAINS * NUM_MOVES
    whole = -(-len(rows) // size) * size
    padded = rows[np.arange(whole) % len(rows)]
    before, after = before.without_outputs(), after.without_outputs()
    pieces = [
        np.asarray(_recoordinated(before, after, padded[k : k + size]), float)
        for k in range(0, whole, size)
    ]
    return np.concatenate(pieces)[: len(rows)].reshape(states.shape)


@compiled_per_model(optimisation=1)
def _recoordinated(density: Density, after: Density, positions: jax.Array) -> jax.Array:
    return jax.vmap(lambda position: after.position_of(density.constrain(position)))(positions)


# --- draws ---


class Drawn(NamedTuple):
    """States of chains with axes (moves, islands, chains), and what they cost."""

    ensemble: Ensemble
    positions: np.ndarray
    num_gradients: int


def draw(
    charts: tuple[Density, ...], ensemble: Ensemble, num_rounds: int, seed: tuple[int, ...]
) -> Drawn:
    """So many rounds of moves; nothing is adapted any more."""
    rng = np.random.default_rng(seed)
    pieces: list[Any] = []
    num_gradients = 0
    for number in range(num_rounds):
        moved, _ = advance(charts, rng, ensemble, number)
        ensemble = ensemble._replace(positions=moved.positions[-1])
        pieces.append(moved.positions)
        num_gradients += moved.num_gradients
    return Drawn(ensemble, np.concatenate(pieces), num_gradients)
