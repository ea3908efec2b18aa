"""Warp bridge sampling: the evidence of a density from Markov-chain draws of it.

Meng and Wong (1996) for the estimator, Meng and Schilling (2002) for the warp. The draws are
standardised by a mean and covariance fitted to half of them and made symmetric about the mean;
the other half is bridged to a standard normal distribution.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density
from estimand.model import ProgramError
from estimand.runtime import LocalRuntime, Runtime, compiled_per_model, run_task
from estimand.sampling import (
    NUM_STARTS,
    Chains,
    check_draws,
    freeze_draws,
    log_density,
    meng_wong,
    nuts_chains,
    positions_of,
    r_hat,
)
from estimand.settings import Settings, require_count
from estimand.trust import Evidence, check_mixing, evidence_from_weights


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class BridgeSampling(Settings):
    """Warp bridge sampling of draws by NumPyro's NUTS, or of draws that you already have.

    Strong in high dimension where NUTS explores the density well; blind, like NUTS, to a mode that
    no chain visits. It works on the host between compiled pieces and cannot itself be jitted.

    Args:
        num_samples: draws kept from each chain.
        num_warmup: draws discarded from the start of each chain.
        num_chains: independent chains, run side by side.
        draws: draws of γ2 instead, as ``mcmc.get_samples(group_by_chain=True)`` gives them: a dict
            of arrays by site with leading axes (chains, draws); or an ArviZ DataTree or
            InferenceData, whose posterior has the sites by name. They are of γ2 and serve no other
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
        freeze_draws(self)
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
        return self.estimate_in(LocalRuntime(), rng_key, density)

    def estimate_in(self, runtime: Runtime, rng_key: jax.Array, density: Density) -> Evidence:
        """As `estimate`, with the chains as a task of their own."""
        self.check(density)
        chain_key, normal_key = jax.random.split(rng_key)
        if self.draws is None:
            settings = self.num_samples, self.num_warmup, self.num_chains
            chains: Chains = run_task(
                runtime, nuts_chains, chain_key, density, *settings, kinds=(Chains,)
            )
            if not chains.is_started:
                return _nothing_found(density, NUM_STARTS * self.num_chains)
            return _bridge(normal_key, density, chains.positions, chains.num_gradients)
        if int(density.sign):
            raise ProgramError(
                f"BridgeSampling: the given draws are of γ2 of program {density.name!r} and "
                "cannot serve another part; leave out draws= there."
            )
        positions = positions_of("BridgeSampling", density, self.draws)
        return _bridge(normal_key, density, positions, 0)


@compiled_per_model
def _log_densities(density: Density, positions: jax.Array) -> jax.Array:
    return jax.vmap(lambda position: log_density(density, position))(positions)


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
    if check_mixing(r_hat(bridged)):
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
