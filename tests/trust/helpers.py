"""Evidence and outputs made by hand."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from estimand.trust import Evidence, Finding, OutputEstimate, Status


def evidence(
    log_z: float = 0.0,
    relative_variance: float = 1e-4,
    *,
    degrees: float = math.inf,
    num_samples: int = 10_000,
    log_weights: Any = None,
    num_invalid: int = 0,
) -> Evidence:
    """Evidence of equal weights, whose numbers are as they are given."""
    weights = np.full(num_samples, log_z) if log_weights is None else np.asarray(log_weights)
    counts = jnp.zeros(weights.size, jnp.int32)
    return Evidence(
        log_z=jnp.asarray(log_z),
        relative_variance=jnp.asarray(relative_variance),
        log_weights=jnp.asarray(weights),
        positions=jnp.zeros((weights.size, 1)),
        evaluations=counts,
        gradients=counts,
        invalid=counts.at[0].set(num_invalid),
        degrees=degrees,
    )


def output(
    value: float = 2.0,
    standard_error: float = 0.01,
    *statuses: Status,
    magnitude: float = math.nan,
) -> OutputEstimate:
    """An output with a finding of each status."""
    findings = tuple(Finding(status, None, f"it is {status.name}", "made") for status in statuses)
    return OutputEstimate(value, standard_error, magnitude=magnitude, findings=findings)
