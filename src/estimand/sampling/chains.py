"""Markov chains by NumPyro's NUTS on a density, and draws that a user brings along."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro import infer
from numpyro.diagnostics import split_gelman_rubin

from estimand.density import Density, PathPoint
from estimand.model.sites import ProgramError
from estimand.runtime.journal import remember
from estimand.sampling.weights import total

MAX_R_HAT = 1.05
# Prior draws of which the most likely one starts a chain.
NUM_STARTS = 256


def check_draws(asker: str, density: Density, draws: Any) -> None:
    """Refuses draws that lack a site of the program, or are not grouped by chain."""
    sizes = set()
    for place in density.layout.sites:
        name = place.latent.name
        if name not in draws:
            raise ProgramError(
                f"{asker}: draws has no entry for site {name!r} of program {density.name!r}."
            )
        shape = jnp.shape(draws[name])
        if len(shape) < 2 or shape[2:] != place.latent.shape:
            raise ProgramError(
                f"{asker}: draws of site {name!r} have shape {shape}; expected "
                f"(chains, draws, *{place.latent.shape}), as group_by_chain=True gives them."
            )
        sizes.add(shape[:2])
    if len(sizes) > 1:
        raise ProgramError(
            f"{asker}: the sites of draws differ in their leading axes (chains, draws): "
            f"{sorted(sizes)}."
        )


def positions_of(asker: str, density: Density, draws: Any) -> np.ndarray:
    """Draws by site as positions of shape (chains, draws, dimension)."""
    names = [site.latent.name for site in density.layout.sites]
    positions = np.asarray(
        _unconstrain(density, {name: jnp.asarray(draws[name]) for name in names}), float
    )
    for site in density.layout.sites:
        if not np.isfinite(positions[:, :, site.start : site.stop]).all():
            raise ProgramError(
                f"{asker}: draws of site {site.latent.name!r} are NaN or outside its support; "
                f"they must be posterior draws of program {density.name!r}."
            )
    return positions


def nuts_chains(
    rng_key: jax.Array, density: Density, num_samples: int, num_warmup: int, num_chains: int
) -> tuple[np.ndarray, int] | None:
    """Draws of a density by NumPyro's NUTS, and the gradients that they cost.

    Positions of shape (chains, draws, dimension); None if a chain finds nowhere to start, after
    `NUM_STARTS` prior draws each.
    """
    settings = num_samples, num_warmup, num_chains
    return remember("NUTS", lambda: _nuts_chains(rng_key, density, *settings))


def _nuts_chains(
    rng_key: jax.Array, density: Density, num_samples: int, num_warmup: int, num_chains: int
) -> tuple[np.ndarray, int] | None:
    start_key, run_key = jax.random.split(rng_key)
    starts, scores = _starts(density, jax.random.split(start_key, (num_chains, NUM_STARTS)))
    if not np.isfinite(scores).all():
        return None
    positions, steps = _nuts(num_warmup, num_samples, run_key, density, starts)
    return np.asarray(positions, float), total(steps)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _nuts(
    num_warmup: int, num_samples: int, rng_key: jax.Array, density: Density, starts: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Positions of shape (chains, draws, dimension), and the gradients of each transition.

    NumPyro's kernel without its `MCMC`, which would compile again at every call.
    """
    kernel = infer.NUTS(potential_fn=lambda position: -_log_density(density, position))
    keys = jax.random.split(rng_key, starts.shape[0])
    start = kernel.init(keys, num_warmup, starts, (), {})

    def step(state: Any, _: None) -> tuple:
        state = kernel.sample(state, (), {})
        return state, (state.z, state.num_steps)

    path: Any
    _, path = lax.scan(step, start, None, length=num_warmup + num_samples)
    positions, steps = path
    return jnp.swapaxes(positions[num_warmup:], 0, 1), steps


def r_hat(positions: np.ndarray) -> float:
    """The largest split R-hat of any coordinate of (chains, draws, dimension)."""
    return float(np.max(np.asarray(split_gelman_rubin(positions))))


def _log_density(density: Density, position: jax.Array) -> jax.Array:
    one = jnp.ones((), position.dtype)
    return PathPoint(one, one).log_density(density.terms(position))


@jax.jit
def _unconstrain(density: Density, latents: dict[str, jax.Array]) -> jax.Array:
    return jax.vmap(jax.vmap(lambda values: density.terms_at(values)[0]))(latents)


@jax.jit
def _starts(density: Density, rng_keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The most likely of some prior draws for each chain, and how likely it is."""
    positions, terms = jax.vmap(jax.vmap(density.draw_prior))(rng_keys)
    scores = jnp.where(terms.log_weight < jnp.inf, terms.log_weight, -jnp.inf)
    best = jnp.argmax(scores, axis=1)
    starts = jnp.take_along_axis(positions, best[:, None, None], axis=1)[:, 0]
    return starts, scores.max(axis=1)
