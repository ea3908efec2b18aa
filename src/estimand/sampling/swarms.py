"""Scouts of a stack of densities: tempered particles for all entries at once.

Waste-free sequential Monte Carlo as in `scouts`, without islands: its particles say where an entry
has its mass, and no estimate is made of them. Temperatures, weights, resampling and covariances are
NumPy's, for all entries at once, and each entry has temperatures and random numbers of its own: no
entry changes another. Only the moves are compiled, for a few entries at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from estimand.density import Density, PathPoint, Terms
from estimand.kernels import DrivenKernel, Given, State, Tuning
from estimand.runtime import compiled_per_model
from estimand.sampling.chunks import vmapped
from estimand.sampling.products import root_of
from estimand.sampling.scouts import systematic_indices
from estimand.sampling.stacks import Seed, in_groups, prior_positions_of, taken

# Share of effective particles that every temperature leaves.
CONDITIONAL_ESS = 0.5
MAX_TEMPERATURES = 100
# Chains that move at a time: of eight schools a gradient took 2 µs with 64, and 1 µs with 512.
MAX_ROWS = 512
# Steps of the search for a temperature, and what is close enough: a tenth of a step. Not measured.
MAX_SECANTS = 10
CLOSE = 0.2


class SwarmSize(NamedTuple):
    """Chains of every entry, and the moves that each makes at a temperature."""

    num_chains: int
    num_moves: int

    def capacity(self, kernel: DrivenKernel) -> int:
        """Positions of an entry that one call evaluates."""
        return self.num_chains * (self.num_moves + kernel.needs_gradient)


class Swarm(NamedTuple):
    """The particles of every entry at the end; all those of an entry weigh the same.

    Of an entry that `is_lost` they have not reached the target. The counts are those of one entry.
    """

    positions: np.ndarray
    terms: Terms
    is_lost: np.ndarray
    num_evaluations: np.ndarray
    num_gradients: np.ndarray


class _Particles(NamedTuple):
    """Axes for entries, and for particles or chains."""

    positions: np.ndarray
    terms: Terms

    def of(self, entries: Any) -> _Particles:
        return jax.tree.map(lambda array: array[entries], self)


def run_swarms(
    kernel: DrivenKernel,
    stack: Density,
    seeds: Sequence[Seed],
    size: SwarmSize,
    num_start: int,
) -> Swarm:
    """Leads particles from the prior to the density of each entry.

    Args:
        kernel: how they move.
        stack: the densities, all softened or none.
        seeds: of all random numbers of each entry.
        size: chains and moves.
        num_start: draws from the prior that each entry starts from.
    """
    count, rungs = len(seeds), _num_rungs(stack)
    mover = _Mover(kernel, stack, size)
    rngs = [np.random.default_rng(seed) for seed in seeds]
    particles = mover.started([(*seed, 0) for seed in seeds], num_start)
    betas, steps = np.zeros(count), np.full(count, kernel.natural_step(mover.dimension))
    ends: list[_Particles | None] = [None] * count
    left = np.arange(count)
    for _ in range(MAX_TEMPERATURES):
        path = _Path(particles.terms, betas[left], rungs)
        after = path.next_temperatures()
        log_weights = path.log_weights(after)
        is_alive = log_weights.max(axis=1) > -np.inf
        left, after, log_weights = left[is_alive], after[is_alive], log_weights[is_alive]
        if not left.size:
            break
        particles = particles.of(is_alive)
        # At the end they move twice: some of them are copies of a few.
        before, own = betas[left], [rngs[entry] for entry in left]
        factors = _factors(particles.positions, log_weights)
        starts = _resampled(own, particles, log_weights, size.num_chains)
        particles, accepted = mover.moved(own, left, starts, after, steps[left], factors)
        steps[left] *= np.exp(2.0 * (accepted - kernel.target_acceptance))
        betas[left] = after
        is_over = before >= 1
        for place in np.flatnonzero(is_over):
            ends[left[place]] = particles.of(place)
        particles, left = particles.of(~is_over), left[~is_over]
        if not left.size:
            break
    return mover.swarm(ends)


# --- the compiled moves ---


@compiled_per_model(static_argnums=(0,))
def _move(kernel: DrivenKernel, density: Density, starts: Any, path: Any, given: Given) -> tuple:
    """The states of chains of every entry, which move by given random numbers."""

    def of_entry(item: tuple) -> tuple:
        own, (positions, terms), (point, tuning), given = item

        def one(chain: tuple[State, Given]) -> tuple:
            state, info = kernel.advance(own, chain[0], point, tuning, chain[1])
            return state, (state.position, state.terms, info.acceptance)

        def step(state: State, given: Given) -> tuple:
            flags = jnp.broadcast_to(given.is_position, given.threshold.shape)
            chains = state, given._replace(is_position=flags)
            return vmapped(one, chains, max_rows=MAX_ROWS)

        nothing = jnp.zeros_like(positions) if kernel.needs_gradient else ()
        return lax.scan(step, State(positions, terms, nothing), given)[1]

    return lax.map(of_entry, (density, tuple(starts), path, given))


class _Mover:
    """Calls the compiled moves, always with the same shapes, and counts what they cost."""

    def __init__(self, kernel: DrivenKernel, stack: Density, size: SwarmSize) -> None:
        self.kernel, self.stack, self.size = kernel, stack, size
        self.num_rows = size.num_moves + kernel.needs_gradient
        self.dimension, self.rungs = stack.dimension, _num_rungs(stack)
        self.num_calls = np.zeros(len(stack.sign), int)

    def started(self, seeds: Sequence[Seed], num_start: int) -> _Particles:
        """Draws from the prior, evaluated in the places of moves."""
        count, capacity = len(seeds), self.size.capacity(self.kernel)
        whole = -(-num_start // capacity) * capacity
        positions = prior_positions_of(self.stack, seeds, whole)
        pieces = [self._evaluated(piece) for piece in np.split(positions, whole // capacity, 1)]
        joined = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *pieces)
        particles = _Particles(*jax.tree.map(lambda x: x[:, :num_start], joined))
        assert particles.positions.shape[:2] == (count, num_start)
        is_bad = ~(particles.terms.log_weight < np.inf)
        likelihood: Any = np.where(is_bad, -np.inf, particles.terms.log_likelihood)
        terms = particles.terms._replace(log_likelihood=likelihood)
        return particles._replace(terms=terms)

    def _evaluated(self, positions: np.ndarray) -> _Particles:
        count = len(positions)
        noise = positions.reshape(count, self.num_rows, self.size.num_chains, self.dimension)
        ladder = (self.rungs,) if self.rungs > 1 else ()
        nothing: Any = np.zeros((count, self.size.num_chains))
        terms = Terms(nothing, nothing, np.zeros((*nothing.shape, *ladder)))  # type: ignore[arg-type]
        factors = np.broadcast_to(np.eye(self.dimension), (count, *(2 * (self.dimension,))))
        flags = np.ones((count, self.num_rows), bool)
        every, ones = np.arange(count), np.ones(count)
        starts = _Particles(noise[:, 0], terms)
        thresholds = np.zeros(noise.shape[:3])
        return self._call(every, starts, ones, ones, factors, noise, thresholds, flags)[0]

    def moved(
        self,
        rngs: list[np.random.Generator],
        entries: np.ndarray,
        starts: _Particles,
        betas: np.ndarray,
        step_sizes: np.ndarray,
        factors: np.ndarray,
    ) -> tuple[_Particles, np.ndarray]:
        """Every state of chains from these starts, and the acceptance rate of each entry."""
        shape = (self.num_rows, self.size.num_chains)
        noise = np.stack([rng.standard_normal((*shape, self.dimension)) for rng in rngs])
        thresholds = np.stack([-rng.standard_exponential(shape) for rng in rngs])
        flags = np.zeros((len(rngs), self.num_rows), bool)
        if self.kernel.needs_gradient:
            # The first step only finds the gradient where a chain starts.
            noise[:, 0], flags[:, 0] = starts.positions, True
        numbers = noise, thresholds, flags
        particles, accepted = self._call(entries, starts, betas, step_sizes, factors, *numbers)
        accepted = accepted[:, self.num_rows - self.size.num_moves :].mean(axis=(1, 2))
        if not self.kernel.needs_gradient:
            joined = jax.tree.map(lambda *ends: np.concatenate(ends, axis=1), starts, particles)
            particles = _Particles(*joined)
        return particles, accepted

    def _call(
        self,
        entries: np.ndarray,
        starts: _Particles,
        betas: np.ndarray,
        step_sizes: np.ndarray,
        factors: np.ndarray,
        noise: np.ndarray,
        thresholds: np.ndarray,
        flags: np.ndarray,
    ) -> tuple[_Particles, np.ndarray]:
        """The states after every move as particles, and which moves were accepted."""
        point: Any = np.minimum(self.rungs * betas, 1.0), betas
        center: Any = np.zeros(factors.shape[:2])
        path = PathPoint(*point), Tuning(step_sizes, factors, center)  # type: ignore[arg-type]
        dtype = jnp.result_type(float)
        starts, path, noise, thresholds = jax.tree.map(
            lambda x: np.asarray(x, dtype), (starts, path, noise, thresholds)
        )
        given: Any = Given(noise, thresholds, flags)  # type: ignore[arg-type]

        def function(density: Density, *rows: Any) -> tuple:
            return _move(self.kernel, density, *rows)

        found = in_groups(function, taken(self.stack, entries), starts, path, given)
        self.num_calls[entries] += 1
        positions, terms, accepted = jax.tree.map(lambda x: np.asarray(x, float), found)
        count = len(entries)
        flat = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[3:]), (positions, terms))
        return _Particles(*flat), accepted

    def swarm(self, ends: list[_Particles | None]) -> Swarm:
        """What became of all entries."""
        num_particles = self.size.num_chains * (self.size.num_moves + 1)
        ladder = (self.rungs,) if self.rungs > 1 else ()
        nothing: Any = np.zeros(num_particles)
        target: Any = np.zeros((num_particles, *ladder))
        empty = _Particles(
            np.zeros((num_particles, self.dimension)), Terms(nothing, nothing, target)
        )
        whole = [empty if end is None else end for end in ends]
        positions, terms = jax.tree.map(lambda *parts: np.stack(parts), *whole)
        cost = self.num_calls * self.size.capacity(self.kernel)
        is_lost = np.array([end is None for end in ends])
        if self.kernel.needs_gradient:
            return Swarm(positions, terms, is_lost, np.zeros_like(cost), cost)
        return Swarm(positions, terms, is_lost, cost, np.zeros_like(cost))


def _num_rungs(stack: Density) -> int:
    return 1 if stack.scales is None else stack.softness.shape[-1]


# --- between the moves ---


class _Path:
    """The weights that particles get when the inverse temperatures of their entries change."""

    def __init__(self, terms: Terms, before: np.ndarray, rungs: int) -> None:
        ladder = np.asarray(terms.log_target)
        ladder = ladder[..., None] if rungs == 1 else ladder
        factors = np.concatenate([np.asarray(terms.log_likelihood)[..., None], ladder], axis=-1)
        # The factors come first, so that sums run along particles.
        factors = np.ascontiguousarray(np.moveaxis(factors, -1, 1))
        self.is_zero = ~np.isfinite(factors)
        self.log_factors = np.where(self.is_zero, 0.0, factors)
        self.rungs, self.betas = rungs, before
        self.before = _powers(before, rungs)

    def log_weights(self, after: np.ndarray) -> np.ndarray:
        """log of the weights; −inf where a factor that counts is 0 or not a number."""
        now = _powers(after, self.rungs)
        counts = (now != 0) | (self.before != 0)
        total = ((now - self.before)[:, :, None] * self.log_factors).sum(axis=1)
        total[(self.is_zero & counts[:, :, None]).any(axis=1)] = -np.inf
        return total

    def next_temperatures(self) -> np.ndarray:
        """The temperatures that leave the wanted share of particles effective, or the last one.

        Secants within a bracket for log(−log(share)), a nearly linear function of the logarithm of
        the step, with slope 2 for Gaussian log weights.
        """
        whole = np.maximum(1 - self.betas, 1e-12)
        alive = np.count_nonzero(self.log_weights(self.betas + 1e-9 * whole) > -np.inf, axis=1)

        def excess(log_steps: np.ndarray) -> np.ndarray:
            log_weights = self.log_weights(self.betas + np.exp(log_steps))
            top = log_weights.max(axis=1, keepdims=True)
            weights = np.exp(log_weights - np.where(np.isfinite(top), top, 0.0))
            squares = (weights**2).sum(axis=1)
            with np.errstate(divide="ignore", invalid="ignore"):
                share = weights.sum(axis=1) ** 2 / (alive * squares)
                value = np.log(np.maximum(-np.log(share), 1e-30) / -math.log(CONDITIONAL_ESS))
            return np.where(np.isfinite(value), value, np.inf)

        log_steps = _roots(excess, np.log(whole))
        after = np.minimum(self.betas + np.exp(log_steps), 1.0)
        rung = np.round(after * self.rungs) / self.rungs
        is_rung = (rung > self.betas) & (np.abs(rung - after) < 1e-3 / self.rungs)
        return np.where(is_rung, rung, after)


def _powers(betas: np.ndarray, rungs: int) -> np.ndarray:
    """The powers of the likelihood and of each target of the ladder; see `PathPoint`."""
    likelihood = np.minimum(rungs * betas, 1.0)
    if rungs == 1:
        return np.stack([likelihood, betas], axis=1)
    shares = np.clip(1 - np.abs(rungs * betas[:, None] - np.arange(1, rungs + 1)), 0.0, 1.0)
    return np.concatenate([likelihood[:, None], shares], axis=1)


def _roots(function: Callable[[np.ndarray], np.ndarray], high: np.ndarray) -> np.ndarray:
    """Where increasing functions are about 0, below rather than above; `high` if none is above."""
    place, value = high, function(high)
    is_done = value <= 0
    best, low = np.where(is_done, high, high - 30.0), high - 30.0
    slope = np.full(high.size, 2.0)
    for _ in range(MAX_SECANTS):
        if is_done.all():
            break
        with np.errstate(invalid="ignore", divide="ignore"):
            guess = place - value / slope
        is_inside = (guess > low) & (guess < high) & (slope > 0) & np.isfinite(value)
        there = np.where(is_inside, guess, 0.5 * (low + high))
        found = function(there)
        with np.errstate(invalid="ignore", divide="ignore"):
            fresh = (found - value) / (there - place)
        slope = np.where(np.isfinite(fresh) & ~is_done, fresh, slope)
        place, value = there, found
        is_below = value <= 0
        low, high = np.where(is_below, place, low), np.where(is_below, high, place)
        best = np.where(is_done, best, np.where(np.abs(value) < CLOSE, place, low))
        is_done = is_done | (np.abs(value) < 0.1 * CLOSE)
    return best


def _factors(positions: np.ndarray, log_weights: np.ndarray) -> np.ndarray:
    """Cholesky factors of the particles' covariances, shrunk as `scouts` does it."""
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    centers = (weights[..., None] * positions).sum(axis=1)
    deviations = positions - centers[:, None]
    covariances = np.swapaxes(deviations * weights[..., None], 1, 2) @ deviations
    dimension = positions.shape[-1]
    diagonal = np.arange(dimension)
    floor = 1e-12 * (1 + centers**2)
    variances = np.maximum(covariances[:, diagonal, diagonal], floor)
    shrinkage = np.clip(dimension * (weights**2).sum(axis=1), 0.01, 1.0)
    covariances *= (1 - shrinkage)[:, None, None]
    covariances[:, diagonal, diagonal] += shrinkage[:, None] * variances
    return np.stack([root_of(covariance) for covariance in covariances])


def _resampled(
    rngs: list[np.random.Generator], particles: _Particles, log_weights: np.ndarray, count: int
) -> _Particles:
    """Where the chains of every entry start."""
    chosen = np.stack(
        [systematic_indices(rng, own, count) for rng, own in zip(rngs, log_weights, strict=True)]
    )
    rows = np.arange(len(rngs))[:, None]
    return _Particles(*jax.tree.map(lambda array: array[rows, chosen], tuple(particles)))
