"""Whether floating point resolves the mass that an estimate rests on.

A target whose integral diverges looks finite in floating point: it ends where the numbers do. And a
prior that crowds against the edge of its support has mass between the last two numbers before it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density
from estimand.runtime import compiled_per_model
from estimand.sampling import in_chunks
from estimand.trust.evidence import Evidence
from estimand.trust.outputs import PART_NAMES, OutputEstimate, percent
from estimand.trust.status import Finding, Status
from estimand.trust.thresholds import MAX_UNRESOLVED

# A step of the coordinates, of which half at least must be seen in the values.
STEP = 0.01
# Values larger than usual ones of the posterior by this share of the largest exponent go on
# to where numbers end: the mean of what is beyond a threshold of a Cauchy distribution does.
FARTHEST = 0.2
# The names of the checks.
RANGE, COARSE = "range", "resolution"


class Unresolved(NamedTuple):
    """Shares of a part's mass where numbers end, and where they do not tell their coordinates."""

    ended: float
    coarse: float


def check_resolution(output: OutputEstimate, density: Density) -> list[Finding]:
    """Parts that matter and have much mass where numbers end or are too coarse."""
    findings = []
    for field, name in PART_NAMES.items():
        evidence = getattr(output.parts, field)
        if not isinstance(evidence, Evidence) or not math.isfinite(evidence.log_z):
            continue
        if not output.parts.matters(field):
            continue
        own = output.parts.normaliser
        normaliser = own if isinstance(own, Evidence) else evidence
        shares = unresolved_shares(density, evidence, normaliser)
        if sum(shares) <= MAX_UNRESOLVED:
            continue
        allowed = f"at most {percent(MAX_UNRESOLVED)} allowed"
        if shares.ended >= shares.coarse:
            detail = f"{percent(shares.ended)} of the mass is where numbers end; {allowed}"
            findings.append(Finding(Status.unresolved, name, detail, RANGE))
        else:
            detail = (
                f"{percent(shares.coarse)} of the mass is where numbers are too coarse; {allowed}"
            )
            findings.append(Finding(Status.unresolved, name, detail, COARSE))
    return findings


def unresolved_shares(density: Density, evidence: Evidence, normaliser: Evidence) -> Unresolved:
    """Shares of a part's mass where values nearly overflow or do not tell their coordinates."""
    log_weights = np.asarray(evidence.log_weights, float)
    weights = np.exp(log_weights - log_weights.max())
    positions = np.asarray(evidence.positions)
    is_transformed = density.layout.is_transformed
    own = positions[:, is_transformed]
    numbers = jnp.finfo(jnp.result_type(float))
    largest, finest = math.log(numbers.max), -math.log(numbers.eps)
    # Densities have squares of large values, and 0 is approached far more closely.
    has_ended = np.asarray(((own > 0.4 * largest) | (own < -0.8 * largest)).any(axis=1))
    values, farthest = np.abs(positions[:, ~is_transformed]), math.exp(FARTHEST * largest)
    is_far = (values > farthest).any(axis=1)
    if np.average(is_far, weights=weights) > MAX_UNRESOLVED / 2:
        # A program whose numbers are that large everywhere is at home there.
        scales = np.maximum(_medians(normaliser, ~is_transformed), 1.0)
        is_far = (values / scales > farthest).any(axis=1)
    has_ended |= is_far
    is_outer = (np.abs(own) > 0.4 * finest).any(axis=1) & ~has_ended
    is_coarse = np.zeros_like(is_outer)
    if np.average(is_outer, weights=weights) > MAX_UNRESOLVED:
        is_coarse[is_outer] = _is_coarse(density, positions[is_outer])
    return Unresolved(
        *(float(np.average(flags, weights=weights)) for flags in (has_ended, is_coarse))
    )


def _medians(evidence: Evidence, columns: np.ndarray) -> np.ndarray:
    """How large some coordinates are in the middle of a part's mass."""
    log_weights = np.asarray(evidence.log_weights, float)
    weights = np.exp(log_weights - log_weights.max())
    sizes = np.abs(np.asarray(evidence.positions)[:, columns])
    orders = np.argsort(sizes, axis=0)
    shares = np.cumsum(weights[orders], axis=0) / weights.sum()
    rows = np.argmax(shares >= 0.5, axis=0)
    return np.take_along_axis(sizes, np.take_along_axis(orders, rows[None], axis=0), axis=0)[0]


def _is_coarse(density: Density, positions: np.ndarray) -> np.ndarray:
    """Whether a small step of the coordinates is lost in the values of the sites."""
    rows = positions.astype(jnp.result_type(float))
    steps = in_chunks(lambda chunk: _seen_steps(density, chunk), rows)
    own = np.asarray(steps)[:, density.layout.is_transformed]
    return np.asarray(~(np.abs(own / STEP - 1) <= 0.5).all(axis=1))


@compiled_per_model
def _seen_steps(density: Density, positions: jax.Array) -> jax.Array:
    """How far coordinates move that become values, and coordinates again, after a step."""

    def seen(position: jax.Array) -> jax.Array:
        return density.position_of(density.constrain(position))

    step: Any = STEP * jnp.asarray(density.layout.is_transformed, positions.dtype)
    return jax.vmap(lambda position: seen(position + step) - seen(position))(positions)
