"""Whether an expectation exists, by how fast f grows where a prior has heavy tails.

Far out on a ray, a heavy-tailed density falls like a power of the distance. Where γ|f| falls no
faster than its inverse, its integral is infinite, whatever finite number draws give.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density
from estimand.runtime import compiled_per_model
from estimand.sampling import has_curvature, in_chunks, vmapped
from estimand.trust.evidence import Evidence
from estimand.trust.outputs import OutputEstimate
from estimand.trust.status import Finding, Status

# Logarithms of the distances at which γ|f| is looked at: squares of the last are still numbers.
DISTANCES = (40.0, 60.0, 80.0)
# Draws of the posterior from which the rays start.
NUM_STARTS = 4
# Slopes of log γ|f| by the logarithm of the distance above which its integral is infinite: 0, up to
# rounding.
MAX_SLOPE = -0.01
# An expression may say that a site is at most the largest number there is: that is no bound.
LARGEST = 1e100
# The name of the check.
TAILS = "tails"


def may_be_infinite(density: Density, number: int) -> bool:
    """Whether an output without bounds depends on a prior with heavy tails."""
    return density.layout.has_heavy_tails and not density.farthest(number) < LARGEST


def check_existence(output: OutputEstimate, density: Density, number: int) -> list[Finding]:
    """Sites with heavy tails that f, the output of this number, grows too fast along."""
    base = output.parts.normaliser or output.parts.plus
    if not isinstance(base, Evidence) or not may_be_infinite(density, number):
        return []
    if density.layout.has_discrete or not has_curvature(density):
        return []
    rng = np.random.default_rng(0)
    weights = np.exp(np.asarray(base.log_weights, float) - np.max(base.log_weights))
    starts = np.asarray(base.positions)[
        rng.choice(weights.size, NUM_STARTS, p=weights / weights.sum())
    ]
    for site in density.layout.sites:
        if site.has_heavy_tails and _is_infinite(density, number, starts, site.start, site.stop):
            detail = f"f grows as fast as the tail of {site.name!r} falls: the mean does not exist"
            return [Finding(Status.unresolved, None, detail, TAILS)]
    return []


def _is_infinite(density: Density, number: int, starts: np.ndarray, first: int, last: int) -> bool:
    """Whether the integral of γ|f| along some coordinates of a site is infinite."""
    is_transformed = density.layout.is_transformed
    for place in range(first, last):
        distances = np.array(DISTANCES)
        if is_transformed[place]:
            # The coordinate is a logarithm, and has a Jacobian of its own.
            ends, own = np.stack([distances, -distances]), np.zeros(distances.size)
        else:
            ends, own = np.stack([np.exp(distances), -np.exp(distances)]), distances
        rows = np.broadcast_to(
            starts[:, None, None], (len(starts), *ends.shape, starts.shape[1])
        ).copy()
        rows[..., place] = ends
        logs = in_chunks(lambda some: _log_sizes(density, some), rows.reshape(-1, rows.shape[-1]))
        logs = np.asarray(logs, float)[:, number].reshape(rows.shape[:-1]) + own
        with np.errstate(invalid="ignore"):
            slopes = np.diff(logs, axis=-1) / np.diff(distances)
        if (np.isfinite(logs).all(axis=-1) & (slopes > MAX_SLOPE).all(axis=-1)).any():
            return True
    return False


@compiled_per_model(optimisation=0)
def _log_sizes(density: Density, positions: jax.Array) -> jax.Array:
    """log γ|f| of every output."""

    def one(position: jax.Array) -> jax.Array:
        terms, (_, log_sizes) = density.evaluate(position)
        return terms.log_prior + terms.log_likelihood + log_sizes

    return vmapped(one, jnp.asarray(positions))
