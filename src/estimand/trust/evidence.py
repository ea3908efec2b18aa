"""Evidence: an estimate of the normalising constant of one density, and how it went."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from estimand.density import is_invalid
from estimand.sampling.weights import effective_sample_size, pareto_k, total
from estimand.trust.status import Status
from estimand.trust.thresholds import MAX_PARETO_K, MIN_ESS


class Trace(NamedTuple):
    """What happened at each temperature; log weights and positions only on request."""

    betas: jax.Array
    acceptance_rate: jax.Array
    log_weights: jax.Array | None
    positions: jax.Array | None


class Evidence(NamedTuple):
    """An estimate of Z = ∫ density, as arrays that can be jitted and vmapped over.

    `log_weights` are those of the samples at `positions`; their mean is Ẑ. The counts are per
    sample. `degrees` are those of Student's t where the variance comes from few replicates. The
    properties below are for people: they need concrete values.
    """

    log_z: jax.Array
    relative_variance: jax.Array
    log_weights: jax.Array
    positions: jax.Array
    evaluations: jax.Array
    gradients: jax.Array
    invalid: jax.Array
    trace: Trace | None = None
    degrees: jax.Array | float = math.inf

    @property
    def ess(self) -> float:
        """(Σw)² / Σw², the paper's effective sample size."""
        return effective_sample_size(np.asarray(self.log_weights))

    @property
    def pareto_k(self) -> float:
        return pareto_k(np.asarray(self.log_weights))

    @property
    def standard_error(self) -> float:
        """Standard error of log Z, which is the relative standard error of Z."""
        return math.sqrt(float(self.relative_variance))

    @property
    def num_evaluations(self) -> int:
        return total(self.evaluations)

    @property
    def num_gradients(self) -> int:
        return total(self.gradients)

    @property
    def num_invalid(self) -> int:
        return total(self.invalid)

    @property
    def status(self) -> Status:
        if self.num_invalid:
            return Status.nan_density
        if not np.isfinite(self.log_z):
            return Status.no_mass_found
        if self.pareto_k > MAX_PARETO_K:
            return Status.heavy_tailed
        is_fine = self.ess >= MIN_ESS and is_precise(self.relative_variance, self.degrees)
        return Status.ok if is_fine else Status.low_ess

    def __str__(self) -> str:
        number = f"log Z = {float(self.log_z):.6g} ± {self.standard_error:.2g}"
        return f"{number}  (ESS {self.ess:.0f}, {self.num_evaluations} evaluations, " + (
            f"{self.num_gradients} gradients, status {self.status.name})"
        )


def evidence_from_weights(
    log_weights: jax.Array,
    positions: jax.Array,
    evaluations: jax.Array,
    gradients: jax.Array,
    invalid: jax.Array,
    trace: Trace | None = None,
) -> Evidence:
    """Evidence from independent samples with weights of mean Z; NaN and +inf count as 0."""
    log_weights = jnp.where(is_invalid(log_weights), -jnp.inf, log_weights)
    count = log_weights.shape[0]
    log_z = logsumexp(log_weights) - math.log(count)
    normalised = jnp.exp(log_weights - jnp.where(jnp.isfinite(log_z), log_z, 0.0))
    variance = jnp.var(normalised, ddof=1) / count if count > 1 else jnp.inf
    relative_variance = jnp.where(jnp.isfinite(log_z), variance, jnp.inf)
    return Evidence(
        log_z, relative_variance, log_weights, positions, evaluations, gradients, invalid, trace
    )


def is_precise(relative_variance: jax.Array | float, degrees: jax.Array | float) -> bool:
    """Whether an estimated variance says that the true one is as small as `MIN_ESS` asks.

    From few replicates it must be smaller still, by the 5 % quantile of a χ² law over its degrees
    of freedom (Wilson and Hilferty 1931): else those runs would pass that underrate their error.
    """
    spread = 2 / (9 * float(degrees))
    share = max(1 - spread - 1.645 * math.sqrt(spread), 0.0) ** 3
    return float(relative_variance) <= share / MIN_ESS
