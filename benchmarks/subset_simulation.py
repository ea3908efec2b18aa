"""Subset simulation: the rare-event field's standard, in its textbook form.

Au and Beck (2001): the event margin(x) > 0 is reached through nested ones, margin(x) ≥ b, each as
likely as p0 = 0.1 given the one before. The best tenth of a level's states start the chains that
make the next level. The chains move by adaptive conditional sampling (Papaioannou, Betz,
Zwirglmaier and Straub 2015): proposals that leave the standard normal invariant, scaled by the
spread of the level's own states, with an acceptance of 0.44 sought after each tenth of the chains.

The posterior of a program with data is not standard normal. There NUTS draws start the chains of
the first level, their mean and covariance define the coordinates, and the acceptance has the ratio
of posterior and normal density in these. One evaluation gives margin and density, and counts once.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.methods import Run
from estimand.runtime import run_task
from estimand.sampling import nuts_chains
from estimand.trust import EffectiveSizes, OutputEstimate, no_mass, without_value

CHAIN_LENGTH = 10  # 1 / p0: a level has as many states as the one before
NUM_GROUPS = 10
SOUGHT_ACCEPTANCE = 0.44
FIRST_SCALE = 0.6
NUM_NUTS_CHAINS = 4
SIZE_UNIT = CHAIN_LENGTH * NUM_GROUPS
MAX_LEVELS = 50


class Space(NamedTuple):
    """A density in coordinates x of which position = mean + factor · x."""

    density: Any
    mean: jax.Array
    factor: jax.Array


class States(NamedTuple):
    """Points, their margins, and log of their density over the standard normal one."""

    x: jax.Array
    margin: jax.Array
    log_ratio: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubsetSimulation:
    """A method, for `estimate_expectation`, of programs that return one event.

    Args:
        margin: function of a dictionary of the sites' values; positive where the event happens.
        num_samples: states of each level, a multiple of 100.
        num_warmup: warm-up draws of each NUTS chain; 0 for no NUTS, where a program has no data
            and its prior is normal.
    """

    margin: Callable
    num_samples: int
    num_warmup: int = 0

    def __post_init__(self):
        if self.num_samples < SIZE_UNIT or self.num_samples % SIZE_UNIT:
            raise ValueError(
                f"SubsetSimulation: num_samples must be a positive multiple of {SIZE_UNIT}; "
                f"it is {self.num_samples}."
            )

    def check(self, density):
        density.require_prior("SubsetSimulation")
        density.require_continuous("SubsetSimulation", needs="continuous sites")

    def run(self, rng_key, density, runtime):
        density = density.part("gamma2").standardised()
        first_key, rng_key = jax.random.split(rng_key)
        first = self._from_posterior if self.num_warmup else self._from_prior
        space, level, log_scale, num_gradients = first(first_key, density, runtime)
        num_evaluations = self.num_samples
        num_seeds = self.num_samples // CHAIN_LENGTH
        log_probability = square_error = 0.0
        for num_levels in range(1, MAX_LEVELS + 1):
            margins = np.asarray(level.margin)
            order = np.argsort(-margins, axis=None)
            bound = margins.flat[order[num_seeds - 1 : num_seeds + 1]].mean()
            if bound >= 0 or num_levels == MAX_LEVELS:
                break
            log_probability -= math.log(CHAIN_LENGTH)
            square_error += relative_variance(margins >= bound)
            order_key, level_key, rng_key = jax.random.split(rng_key, 3)
            chosen = jax.random.permutation(order_key, order[:num_seeds])
            seeds = States(*(flat(value)[chosen] for value in level))
            level, log_scale = run_task(
                runtime, run_chains, self.margin, level_key, space, seeds, bound, log_scale
            )
            num_evaluations += self.num_samples - num_seeds
        return Run(
            outputs=(_estimate(log_probability, margins > 0, square_error),),
            num_evaluations=num_evaluations,
            num_gradients=num_gradients,
            notes=(f"{num_levels} levels",),
        )

    def _from_prior(self, rng_key, density, runtime):
        """Independent draws; the standardised coordinates of a normal prior are already right."""
        space = Space(density, jnp.zeros(density.dimension), jnp.eye(density.dimension))
        keys = jax.random.split(rng_key, (CHAIN_LENGTH, self.num_samples // CHAIN_LENGTH))
        level = run_task(runtime, draw_prior, self.margin, keys, space)
        return space, level, math.log(FIRST_SCALE), 0

    def _from_posterior(self, rng_key, density, runtime):
        """One NUTS draw for each chain of the first level."""
        nuts_key, order_key, chains_key = jax.random.split(rng_key, 3)
        num_seeds = self.num_samples // CHAIN_LENGTH
        num_draws = math.ceil(num_seeds / NUM_NUTS_CHAINS)
        settings = num_draws, self.num_warmup, NUM_NUTS_CHAINS
        chains = run_task(runtime, nuts_chains, nuts_key, density, *settings)
        if not chains.is_started:
            raise RuntimeError(f"NUTS finds nowhere to start in program {density.name!r}")
        positions = jax.random.permutation(order_key, flat(chains.positions))[:num_seeds]
        factor = np.linalg.cholesky(np.cov(np.asarray(positions), rowvar=False))
        space = Space(density, positions.mean(0), jnp.asarray(factor))
        seeds = evaluate(self.margin, space, to_coordinates(space, positions))
        start = space, seeds, -math.inf, math.log(FIRST_SCALE)
        level, log_scale = run_task(runtime, run_chains, self.margin, chains_key, *start)
        return space, level, log_scale, chains.num_gradients


def flat(values):
    return values.reshape(-1, *values.shape[2:])


@jax.jit
def to_coordinates(space, positions):
    centred = (positions - space.mean[None]).T
    return jax.scipy.linalg.solve_triangular(space.factor, centred, lower=True).T


def evaluate_one(margin, space, x):
    position = space.mean + space.factor @ x
    terms = space.density.terms(position)
    log_ratio = terms.log_prior + terms.log_likelihood + 0.5 * x @ x
    return States(x, margin(space.density.constrain(position)), log_ratio)


@functools.partial(jax.jit, static_argnums=0)
def evaluate(margin, space, x):
    return jax.vmap(functools.partial(evaluate_one, margin, space))(x)


@functools.partial(jax.jit, static_argnums=0)
def draw_prior(margin, rng_keys, space):
    def one(rng_key):
        return evaluate_one(margin, space, space.density.draw_prior(rng_key)[0])

    return jax.vmap(jax.vmap(one))(rng_keys)


@functools.partial(jax.jit, static_argnums=0)
def run_chains(margin, rng_key, space, seeds, bound, log_scale):
    """Chains from seeds within the level; states of shape (length, chains), the seeds first.

    The chains run in groups, and each group learns the scale from the ones before it.
    """
    spread = seeds.x.std(axis=0)

    def step(states, rng_key, scale):
        noise_key, accept_key = jax.random.split(rng_key)
        sd = jnp.minimum(1.0, scale * spread)[None]
        noise = jax.random.normal(noise_key, states.x.shape)
        proposed = evaluate(margin, space, jnp.sqrt(1 - sd**2) * states.x + sd * noise)
        log_uniform = -jax.random.exponential(accept_key, states.margin.shape)
        is_likely = log_uniform < proposed.log_ratio - states.log_ratio
        accepted = is_likely & (proposed.margin >= bound)
        moved = States(
            *(
                jnp.where(accepted.reshape(-1, *[1] * (new.ndim - 1)), new, old)
                for new, old in zip(proposed, states, strict=True)
            )
        )
        return moved, (moved, accepted.mean())

    def group(log_scale, inputs):
        number, rng_key, states = inputs
        keys = jax.random.split(rng_key, CHAIN_LENGTH - 1)
        _, (path, rates) = jax.lax.scan(
            lambda states, key: step(states, key, jnp.exp(log_scale)), states, keys
        )
        path = jax.tree.map(lambda start, rest: jnp.concatenate([start[None], rest]), states, path)
        gain = 1 / jnp.sqrt(number + 1.0)
        log_scale += gain * (rates.mean() - SOUGHT_ACCEPTANCE)
        # Above this every proposal is independent; the next level would start far too wide.
        return jnp.minimum(log_scale, -jnp.log(spread.min())), path

    groups = jax.tree.map(lambda value: value.reshape(NUM_GROUPS, -1, *value.shape[1:]), seeds)
    keys = jax.random.split(rng_key, NUM_GROUPS)
    log_scale, paths = jax.lax.scan(
        group, jnp.asarray(log_scale, float), (jnp.arange(NUM_GROUPS), keys, groups)
    )
    level = jax.tree.map(
        lambda value: jnp.moveaxis(value, 1, 0).reshape(CHAIN_LENGTH, -1, *value.shape[3:]), paths
    )
    return level, log_scale


def relative_variance(is_inside):
    """Squared coefficient of variation of a share, with the correlation along chains.

    Au and Beck's equation; the chains are taken as independent of each other.
    """
    share = is_inside.mean()
    if share in (0, 1):
        return 0.0
    residual = is_inside - share
    length = len(residual)
    correlations = [
        (residual[lag:] * residual[: length - lag]).mean() / (share * (1 - share))
        for lag in range(1, length)
    ]
    gamma = 2 * sum((1 - lag / length) * rho for lag, rho in enumerate(correlations, start=1))
    return float((1 - share) / (share * is_inside.size) * max(1 + gamma, 0.0))


def _estimate(log_probability, is_inside, square_error):
    """The levels are taken as independent of each other, which is the usual lower bound."""
    ess = EffectiveSizes(z1=float(is_inside.sum()), z2=float(is_inside.size))
    if not is_inside.any():
        return without_value(no_mass("no state of the last level is in the event"), ess=ess)
    value = math.exp(log_probability) * float(is_inside.mean())
    error = value * math.sqrt(square_error + relative_variance(is_inside))
    return OutputEstimate(value, error, is_log_scale=True, ess=ess)
