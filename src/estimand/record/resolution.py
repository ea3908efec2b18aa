"""Whether floating point resolves the mass that an estimate rests on.

A target whose integral diverges looks finite in floating point: it ends where the numbers do. And a
prior that crowds against the edge of its support has mass between the last two numbers before it.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density
from estimand.methods.protocol import Run, worst
from estimand.record.record import used_evidence
from estimand.trust.evidence import Evidence
from estimand.trust.status import Status

# Share of the mass of a part that may lie where numbers end or are too coarse.
MAX_SHARE = 1e-3
# A step of the coordinates, of which half at least must be seen in the values.
STEP = 0.01
CHUNK = 4096


def without_unresolved(run: Run, density: Density) -> Run:
    """The run with status `unresolved` for outputs of which a part that matters is not resolved."""
    figures = list(run.figures)
    for name, output, evidence in used_evidence(run):
        if not _unresolved_share(density, evidence) > MAX_SHARE:
            continue
        for number, item in enumerate(figures):
            size = math.exp(min(float(evidence.log_z) - run.log_z2, 700.0))
            # A part does not matter while the error dwarfs all of it.
            if name == "gamma2" or (number == output and size > 0.5 * item.standard_error):
                status = worst([item.status, Status.unresolved])
                figures[number] = item._replace(status=status)
    return run._replace(figures=tuple(figures))


def _unresolved_share(density: Density, evidence: Evidence) -> float:
    """Share of a part's mass where values nearly overflow or do not tell their coordinates."""
    log_weights = np.asarray(evidence.log_weights, float)
    weights = np.exp(log_weights - log_weights.max())
    positions = np.asarray(evidence.positions)
    own = positions[:, density.layout.is_transformed]
    numbers = jnp.finfo(jnp.result_type(float))
    largest, finest = math.log(numbers.max), -math.log(numbers.eps)
    # Densities have squares of large values, and 0 is approached far more closely.
    is_lost = np.asarray(((own > 0.4 * largest) | (own < -0.8 * largest)).any(axis=1))
    is_outer = (np.abs(own) > 0.4 * finest).any(axis=1) & ~is_lost
    if np.average(is_outer, weights=weights) > MAX_SHARE:
        is_lost[is_outer] = _is_coarse(density, positions[is_outer])
    return float(np.average(is_lost, weights=weights))


def _is_coarse(density: Density, positions: np.ndarray) -> np.ndarray:
    """Whether a small step of the coordinates is lost in the values of the sites."""
    count = len(positions)
    padded = np.concatenate([positions, np.repeat(positions[:1], -count % CHUNK, axis=0)])
    pieces = [
        np.asarray(_seen_steps(density, jnp.asarray(padded[start : start + CHUNK])))
        for start in range(0, len(padded), CHUNK)
    ]
    steps = np.concatenate(pieces)[:count, density.layout.is_transformed]
    return np.asarray(~(np.abs(steps / STEP - 1) <= 0.5).all(axis=1))


@jax.jit
def _seen_steps(density: Density, positions: jax.Array) -> jax.Array:
    """How far coordinates move that become values, and coordinates again, after a step."""

    def seen(position: jax.Array) -> jax.Array:
        return density.terms_at(density.constrain(position))[0]

    step = STEP * jnp.asarray(density.layout.is_transformed, positions.dtype)
    return jax.vmap(lambda position: seen(position + step) - seen(position))(positions)
