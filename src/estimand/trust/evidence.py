"""Evidence: an estimate of the normalising constant of one density, and how it went."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from estimand.density import is_invalid
from estimand.sampling import effective_sample_size, log_mean, pareto_k, total
from estimand.trust.status import Finding, Status, most_severe
from estimand.trust.thresholds import (
    MAX_PARETO_K,
    MAX_WEIGHT_SHARE,
    MIN_ESS,
    PRECISION_QUANTILE,
)


class Trace(NamedTuple):
    """What happened at each temperature; log weights and positions only on request."""

    betas: jax.Array
    acceptance_rate: jax.Array
    log_weights: jax.Array | None
    positions: jax.Array | None


class Evidence(NamedTuple):
    """An estimate of Z = ∫ density, as arrays that can be jitted and vmapped over.

    `log_weights` are those of the samples at `positions`; their mean is Ẑ. The counts are per
    sample. `degrees` are those of Student's t where the variance comes from few replicates, and
    `replicate` numbers the one that each sample belongs to. The properties below are for people:
    they need concrete values.

    Examples:
        >>> evidence = result.outputs[0].parts.normaliser
        >>> abs(float(evidence.log_z) + 2.2655) < 0.01, evidence.ess > 400
        (True, True)
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
    replicate: jax.Array | None = None

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
        return most_severe(check_evidence(self))

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
    return Evidence(
        log_z=log_z,
        relative_variance=jnp.where(jnp.isfinite(log_z), variance, jnp.inf),
        log_weights=log_weights,
        positions=positions,
        evaluations=evaluations,
        gradients=gradients,
        invalid=invalid,
        trace=trace,
    )


def check_evidence(evidence: Evidence, part: str | None = None) -> list[Finding]:
    """The problems of one estimate of a normalising constant; none if it can be trusted."""
    if evidence.num_invalid:
        detail = f"the density was NaN or +inf at {evidence.num_invalid:,} positions"
        return [Finding(Status.nan_density, part, detail, "numbers")]
    if not np.isfinite(evidence.log_z):
        detail = f"all {np.size(evidence.log_weights):,} weights are 0"
        return [Finding(Status.no_mass_found, part, detail, "mass")]
    return [
        *check_tail(np.asarray(evidence.log_weights, float), part),
        *check_size(evidence.ess, part),
        *check_precision(evidence.relative_variance, evidence.degrees, part),
    ]


def check_tail(log_weights: np.ndarray, part: str | None = None) -> list[Finding]:
    """Whether a few draws decide; a large tail index is harmless while none weighs much."""
    largest = math.exp(log_weights.max() - log_mean(log_weights)) / log_weights.size
    if not largest > MAX_WEIGHT_SHARE or not (tail := pareto_k(log_weights)) > MAX_PARETO_K:
        return []
    detail = (
        f"Pareto k {tail:.2f}, above {MAX_PARETO_K}, and one draw holds {100 * largest:.2g} % of "
        f"the weight, above {100 * MAX_WEIGHT_SHARE:g} %"
    )
    return [Finding(Status.heavy_tailed, part, detail, "tail")]


def check_size(ess: float, part: str | None = None, needed: float = MIN_ESS) -> list[Finding]:
    """Whether so many effective samples are enough for an error."""
    if ess >= needed:
        return []
    detail = f"ESS {ess:.0f}; {needed:.0f} needed"
    lack = needed / float(ess) if ess >= 1 else needed
    return [Finding(Status.low_ess, part, detail, "size", lack)]


def check_precision(
    relative_variance: jax.Array | float, degrees: jax.Array | float, part: str | None = None
) -> list[Finding]:
    """Whether an estimated variance says that the true one is as small as `MIN_ESS` asks."""
    limit = largest_variance(degrees)
    if float(relative_variance) <= limit:
        return []
    if math.isfinite(relative_variance):
        detail = f"relative error {_percent(relative_variance)}; at most {_percent(limit)} allowed"
        if math.isfinite(degrees):
            detail += f" with {float(degrees):.0f} degrees of freedom"
        lack = float(relative_variance) / limit if limit > 0 else 0.0
    else:
        detail, lack = "no error is known", 0.0
    return [Finding(Status.low_ess, part, detail, "precision", lack)]


def largest_variance(degrees: jax.Array | float) -> float:
    """The relative variance up to which an estimate passes.

    From few replicates it must be smaller, by the 5 % quantile of χ² over its degrees of
    freedom (Wilson and Hilferty 1931): otherwise those runs would pass that underrate their error.
    """
    width = 2 / (9 * float(degrees))
    share = max(1 - width - PRECISION_QUANTILE * math.sqrt(width), 0.0) ** 3
    return share / MIN_ESS


def _percent(relative_variance: jax.Array | float) -> str:
    return f"{100 * math.sqrt(float(relative_variance)):.2g} %"
