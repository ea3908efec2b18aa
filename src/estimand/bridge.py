"""Warp bridge sampling: the evidence of a density from Markov-chain draws of it.

Meng and Wong (1996) for the estimator, Meng and Schilling (2002) for the warp. The draws are
standardised by a mean and covariance fitted to half of them and made symmetric about the mean;
the other half is bridged to a standard normal law.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro import infer
from numpyro.diagnostics import effective_sample_size as autocorrelation_size
from numpyro.diagnostics import split_gelman_rubin

from estimand.density import Density, PathPoint
from estimand.evidence import Evidence, evidence_from_weights, log_mean, total
from estimand.journal import remember
from estimand.program import ProgramError
from estimand.settings import Settings, require_count

MAX_R_HAT = 1.05
# Prior draws of which the most likely one starts a chain.
NUM_STARTS = 256


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class BridgeSampling(Settings):
    """Warp bridge sampling of draws by NumPyro's NUTS, or of draws that one already has.

    Strong in high dimension where NUTS explores the density well; blind, like NUTS, to a mode that
    no chain visits. It works on the host between compiled pieces and cannot itself be jitted.

    Args:
        num_samples: draws kept from each chain.
        num_warmup: draws discarded from the start of each chain.
        num_chains: independent chains, run side by side.
        draws: draws of γ2 instead, as ``mcmc.get_samples(group_by_chain=True)`` gives them: a dict
            of arrays by site with leading axes (chains, draws). They are of γ2 and serve no other
            part: use them as ``log_evidence(..., BridgeSampling(draws=...))`` or as TABI's
            `normaliser`.

    Examples:
        >>> draws = {"x": 1 + jnp.sqrt(0.5) * jax.random.normal(jax.random.key(0), (4, 500))}
        >>> evidence = ep.log_evidence(program(2.0), ep.BridgeSampling(draws=draws))
        >>> abs(float(evidence.log_z) + 2.2655) < 4 * evidence.standard_error
        True
    """

    num_samples: int = 2000
    num_warmup: int = 1000
    num_chains: int = 4
    draws: Any = dataclasses.field(default=None, hash=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("num_samples", "num_warmup", "num_chains"):
            require_count("BridgeSampling", name, getattr(self, name))
        if self.num_samples < 100:
            raise ValueError("BridgeSampling: num_samples must be at least 100 for its error.")

    def check(self, density: Density) -> None:
        density.require_continuous("BridgeSampling")
        if self.draws is None:
            density.require_prior("BridgeSampling")
        else:
            check_draws("BridgeSampling", density, self.draws)

    def estimate(self, rng_key: jax.Array, density: Density) -> Evidence:
        self.check(density)
        chain_key, normal_key = jax.random.split(rng_key)
        if self.draws is None:
            chains = nuts_chains(
                chain_key, density, self.num_samples, self.num_warmup, self.num_chains
            )
            if chains is None:
                return _nothing_found(density, NUM_STARTS * self.num_chains)
            positions, num_gradients = chains
        else:
            if int(density.sign):
                raise ProgramError(
                    f"BridgeSampling: the given draws are of γ2 of program {density.name!r} and "
                    "cannot serve another part; leave out draws= there."
                )
            positions, num_gradients = positions_of("BridgeSampling", density, self.draws), 0
        return _bridge(normal_key, density, positions, num_gradients)


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
def _log_densities(density: Density, positions: jax.Array) -> jax.Array:
    return jax.vmap(lambda position: _log_density(density, position))(positions)


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


def _nothing_found(density: Density, num_evaluations: int) -> Evidence:
    zeros = jnp.zeros(1, jnp.int32)
    evidence = evidence_from_weights(
        jnp.full(1, -jnp.inf), jnp.zeros((1, density.dimension)), zeros, zeros, zeros
    )
    return evidence._replace(evaluations=jnp.full(1, num_evaluations, jnp.int32))


def _bridge(
    rng_key: jax.Array, density: Density, positions: np.ndarray, num_gradients: int
) -> Evidence:
    """The first half of every chain fits the warp, the second is bridged."""
    chains, length, dimension = positions.shape
    half = length // 2
    fitted = positions[:, :half].reshape(-1, dimension)
    center = fitted.mean(axis=0)
    covariance = np.cov(fitted, rowvar=False).reshape(dimension, dimension)
    covariance += 1e-10 * np.diag(np.diag(covariance) + 1e-300)
    factor = np.linalg.cholesky(covariance)
    log_volume = np.log(np.diag(factor)).sum()
    bridged = positions[:, half:]
    size = chains * bridged.shape[1]
    whitened = np.linalg.solve(factor, (bridged.reshape(size, dimension) - center).T).T
    normals = np.asarray(jax.random.normal(rng_key, (size, dimension)), float)

    def log_ratio(points: np.ndarray) -> np.ndarray:
        """log of the warped density, symmetric about 0, over the standard normal one."""
        sides = [
            np.asarray(_log_densities(density, jnp.asarray(center + sign * points @ factor.T)))
            for sign in (1.0, -1.0)
        ]
        log_normal = -0.5 * (points**2).sum(axis=1) - 0.5 * dimension * math.log(2 * math.pi)
        return np.logaddexp(*sides) - math.log(2.0) + log_volume - log_normal

    log_z, relative_variance = meng_wong(
        log_ratio(whitened).reshape(chains, -1), log_ratio(normals)
    )
    if r_hat(bridged) > MAX_R_HAT:
        relative_variance = math.inf
    count = chains * length
    zeros = np.zeros(count, np.int64)
    return Evidence(
        log_z=jnp.asarray(log_z),
        relative_variance=jnp.asarray(relative_variance),
        log_weights=jnp.full(count, log_z),
        positions=jnp.asarray(positions.reshape(count, dimension)),
        evaluations=np.asarray([4 * size]),  # type: ignore[arg-type]
        gradients=np.asarray([num_gradients]),  # type: ignore[arg-type]
        invalid=zeros,  # type: ignore[arg-type]
    )


def meng_wong(log_drawn: np.ndarray, log_normal: np.ndarray) -> tuple[float, float]:
    """log Z and its relative variance from log density ratios at the draws and at normals.

    `log_drawn` has shape (chains, draws); its effective size, by the autocorrelation of what is
    averaged there, takes the place of its size in the optimal bridge.
    """
    log_z = float(np.median(log_drawn))
    effective = float(log_drawn.size)
    drawn_terms = log_drawn
    for _ in range(3):
        share = effective / (effective + log_normal.size)
        log_shares = math.log(share), math.log1p(-share)
        for _ in range(1000):
            drawn_terms = -np.logaddexp(log_shares[0] + log_drawn - log_z, log_shares[1])
            normal_terms = (
                log_normal - log_z - np.logaddexp(log_shares[0] + log_normal - log_z, log_shares[1])
            )
            change = log_mean(normal_terms) - log_mean(drawn_terms)
            log_z += change
            if abs(change) < 1e-10:
                break
        values = np.exp(drawn_terms - drawn_terms.max())
        if values.min() < values.max():
            # NumPyro 0.21 has no size for draws of which a chain stands still.
            size = np.nan_to_num(autocorrelation_size(values), nan=2.0)
            effective = float(np.clip(size, 2.0, values.size))
    drawn, normal = np.exp(drawn_terms), np.exp(normal_terms)
    variance = drawn.var() / drawn.mean() ** 2 / effective
    variance += normal.var() / normal.mean() ** 2 / normal.size
    return log_z, float(variance)
