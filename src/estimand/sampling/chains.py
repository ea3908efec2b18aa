"""Markov chains by NumPyro's NUTS on a density, and draws that a user brings along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro import infer
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

from estimand.density import Density, PathPoint
from estimand.model import ProgramError
from estimand.runtime import compiled_per_model

# Prior draws of which the most likely one starts a chain.
NUM_STARTS = 256


class Chains(NamedTuple):
    """Positions of shape (chains, draws, dimension), and the gradients that they cost.

    `is_started` is False where a chain found nowhere to start, and then nothing was drawn.
    """

    positions: np.ndarray
    num_gradients: int
    is_started: bool = True


def nuts_chains(
    rng_key: jax.Array, density: Density, num_samples: int, num_warmup: int, num_chains: int
) -> Chains:
    """Draws of a density by NumPyro's NUTS, each from the best of `NUM_STARTS` prior draws."""
    start_key, run_key = jax.random.split(rng_key)
    starts, scores = _starts(density, jax.random.split(start_key, (num_chains, NUM_STARTS)))
    if not np.isfinite(scores).all():
        return Chains(np.zeros((num_chains, 0, density.dimension)), 0, is_started=False)
    positions, steps = nuts(num_warmup, num_samples, run_key, density, starts)
    return Chains(np.asarray(positions, float), int(np.asarray(steps).sum(dtype=np.int64)))


@compiled_per_model(static_argnums=(0, 1))
def nuts(
    num_warmup: int, num_samples: int, rng_key: jax.Array, density: Density, starts: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Positions of shape (chains, draws, dimension), and the gradients of each transition.

    NumPyro's kernel without its `MCMC`, which would compile again at every call.
    """
    kernel = infer.NUTS(potential_fn=lambda position: -log_density(density, position))
    keys = jax.random.split(rng_key, starts.shape[0])
    start = kernel.init(keys, num_warmup, starts, (), {})

    def step(state: Any, _: None) -> tuple:
        state = kernel.sample(state, (), {})
        return state, (state.z, state.num_steps)

    path: Any
    _, path = lax.scan(step, start, None, length=num_warmup + num_samples)
    positions, steps = path
    return jnp.swapaxes(positions[num_warmup:], 0, 1), steps


@compiled_per_model
def _starts(density: Density, rng_keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The most likely of some prior draws for each chain, and how likely it is."""
    positions, terms = jax.vmap(jax.vmap(density.draw_prior))(rng_keys)
    scores = jnp.where(terms.log_weight < jnp.inf, terms.log_weight, -jnp.inf)
    best = jnp.argmax(scores, axis=1)
    starts = jnp.take_along_axis(positions, best[:, None, None], axis=1)[:, 0]
    return starts, scores.max(axis=1)


def log_density(density: Density, position: jax.Array) -> jax.Array:
    """The log density at the end of the path, where nothing is tempered."""
    one = jnp.ones((), position.dtype)
    return PathPoint(one, one).log_density(density.terms(position))


def r_hat(values: np.ndarray) -> float:
    """The largest split R-hat of any quantity, of shape (chains, draws) or with more axes."""
    return float(np.max(np.asarray(split_gelman_rubin(values))))


def rank_r_hat(values: np.ndarray) -> float:
    """The larger R-hat of ranks, and of ranks of distances from the median (Vehtari et al. 2021).

    Args:
        values: one quantity, with axes (chains, draws).
    """
    folded = np.abs(values - np.median(values))
    return max(r_hat(_normal_scores(values)), r_hat(_normal_scores(folded)))


def _normal_scores(values: np.ndarray) -> np.ndarray:
    """Normal quantiles of the ranks; equal values have their mean rank."""
    from scipy.special import ndtri

    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - 0.5 * (counts - 1))[places.reshape(values.shape)]
    return ndtri((ranks - 0.375) / (values.size + 0.25))


def autocorrelation_size(values: np.ndarray) -> np.ndarray:
    """Effective sample size of each quantity by its autocorrelation along (chains, draws).

    NumPyro 0.21 has none where a chain stands still: NaN.
    """
    return np.asarray(effective_sample_size(values), float)


# --- draws that a user has already ---


def freeze_draws(settings: Any) -> None:
    """Stores the setting `draws` as arrays by site, from a dict or from ArviZ's containers."""
    draws = settings.draws
    # xarray's containers are mappings, too.
    is_plain = isinstance(draws, Mapping) and not hasattr(draws, "data_vars")
    if draws is None or is_plain:
        return
    owner, dataset = type(settings).__name__, _posterior(draws)
    if dataset is None:
        raise TypeError(
            f"{owner}: draws is of type {type(draws).__name__}: give a dict of arrays by "
            "site, or an ArviZ DataTree or InferenceData with a group posterior."
        )
    lacking = {"chain", "draw"} - set(dataset.dims)
    if lacking:
        raise ValueError(f"{owner}: the posterior of draws has no dimension {sorted(lacking)}.")
    by_site = {
        str(name): np.asarray(variable.transpose("chain", "draw", ...).values)
        for name, variable in dataset.data_vars.items()
        if {"chain", "draw"} <= set(variable.dims)
    }
    object.__setattr__(settings, "draws", by_site)


def _posterior(container: Any) -> Any | None:
    """The data set of posterior draws in one of ArviZ's containers; None if there is none."""
    if hasattr(container, "data_vars") and not hasattr(container, "children"):
        return container
    if hasattr(container, "children"):
        group = container.children.get("posterior")
        tree = container if group is None else group
        return tree.to_dataset() if tree.data_vars else None
    group = getattr(container, "posterior", None)
    return group if hasattr(group, "data_vars") else None


def check_draws(asker: str, density: Density, draws: Any) -> None:
    """Refuses draws that lack a site of the program, or are not grouped by chain."""
    sizes = set()
    for site in density.layout.sites:
        if site.name not in draws:
            raise ProgramError(
                f"{asker}: draws has no entry for site {site.name!r} of program {density.name!r}."
            )
        shape = jnp.shape(draws[site.name])
        if len(shape) < 2 or shape[2:] != site.shape:
            raise ProgramError(
                f"{asker}: draws of site {site.name!r} have shape {shape}; expected "
                f"(chains, draws, *{site.shape}), as group_by_chain=True gives them."
            )
        sizes.add(shape[:2])
    if len(sizes) > 1:
        raise ProgramError(
            f"{asker}: the sites of draws differ in their leading axes (chains, draws): "
            f"{sorted(sizes)}."
        )


def positions_of(asker: str, density: Density, draws: Any) -> np.ndarray:
    """Draws by site as positions of shape (chains, draws, dimension)."""
    values = {site.name: jnp.asarray(draws[site.name]) for site in density.layout.sites}
    positions = np.asarray(_unconstrain(density, values), float)
    for site in density.layout.sites:
        if not np.isfinite(positions[:, :, site.start : site.stop]).all():
            raise ProgramError(
                f"{asker}: draws of site {site.name!r} are NaN or outside its support; "
                f"they must be posterior draws of program {density.name!r}."
            )
    return positions


@compiled_per_model
def _unconstrain(density: Density, values: dict[str, jax.Array]) -> jax.Array:
    return jax.vmap(jax.vmap(density.position_of))(values)
