"""Whether an expectation exists, and draws reach its mass, by how fast γ|f| falls far out.

Far out on a ray, a heavy-tailed density falls like a power of the distance, and a light one times
an f that grows as fast may, too. Where γ|f| falls no faster than the inverse of the distance, its
integral is infinite, whatever finite number draws give. Where only the prior is light, and γ|f|
falls a little faster than that, mass is beyond the reach of scouts that start from the prior.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density
from estimand.model import Site
from estimand.runtime import compiled_per_model
from estimand.sampling import has_curvature, in_chunks, vmapped
from estimand.trust.evidence import Evidence
from estimand.trust.outputs import OutputEstimate
from estimand.trust.status import Finding, Status

# Logarithms of the distances at which γ|f| is looked at. Along a heavy tail it may be like a
# lighter one for long, and squares of the last are still numbers.
DISTANCES = (40.0, 60.0, 80.0)
# The same in standard deviations of the posterior, where this is light: at the first it is e^−450
# of its height, and the exponential of the last may still be a number.
LIGHT_DISTANCES = (np.log(30.0), np.log(100.0), np.log(300.0))
# Slopes of the logarithm of γ|f| times the distance, by that of the distance. Above this one the
# integral is infinite: 0, up to rounding.
MAX_SLOPE = -0.01
# Above this one draws of a mixture miss too much of a tail that γ does not have, because f grows
# there by this power of the distance at the least.
MAX_LIGHT_SLOPE, MIN_GROWTH = -2.5, 10.0
# Draws of the posterior from which the rays start.
NUM_STARTS = 4
# An expression may say that a site is at most the largest number there is: that is no bound.
LARGEST = 1e100
# The names of the checks.
TAILS, GROWTH = "tails", "growth"


def may_be_infinite(density: Density, number: int) -> bool:
    """Whether an output without bounds depends on a prior with heavy tails."""
    return density.layout.has_heavy_tails and _has_no_bounds(density, number)


def _has_no_bounds(density: Density, number: int) -> bool:
    return not density.farthest(number) < LARGEST


def check_existence(outputs: Sequence[OutputEstimate], density: Density) -> list[list[Finding]]:
    """For each output the sites along which it grows too fast."""
    findings: list[list[Finding]] = [[] for _ in outputs]
    bases = [output.parts.normaliser or output.parts.plus for output in outputs]
    numbers = [
        number
        for number, base in enumerate(bases)
        if isinstance(base, Evidence) and _has_no_bounds(density, number)
    ]
    if not numbers or density.layout.has_discrete:
        return findings
    sites = [
        site for site in density.layout.sites if site.has_heavy_tails or density.has_exponentials
    ]
    if not sites or not has_curvature(density):
        return findings
    base = bases[numbers[0]]
    assert isinstance(base, Evidence)
    starts, scales = _starts(base)
    for site in sites:
        slopes = _largest_slopes(density, site, starts, scales)
        for number in numbers:
            findings[number].extend(_findings(site, slopes[number]))
    return findings


def _findings(site: Site, slope: float) -> list[Finding]:
    if slope > MAX_SLOPE:
        detail = f"f grows as fast as the tail of {site.name!r} falls: the mean does not exist"
        return [Finding(Status.unresolved, None, detail, TAILS)]
    if slope > MAX_LIGHT_SLOPE and not site.has_heavy_tails:
        detail = (
            f"f grows nearly as fast as the density of {site.name!r} falls: much of the mean may "
            "be where no draw is"
        )
        return [Finding(Status.heavy_tailed, None, detail, GROWTH)]
    return []


def _starts(base: Evidence) -> tuple[np.ndarray, np.ndarray]:
    """Some draws of the posterior, and the standard deviation of every coordinate."""
    weights = np.exp(np.asarray(base.log_weights, float) - np.max(base.log_weights))
    shares, positions = weights / weights.sum(), np.asarray(base.positions, float)
    chosen = np.random.default_rng(0).choice(shares.size, NUM_STARTS, p=shares)
    with np.errstate(over="ignore", invalid="ignore"):
        scales = np.sqrt(shares @ (positions - shares @ positions) ** 2)
    return positions[chosen], scales


def _largest_slopes(
    density: Density, site: Site, starts: np.ndarray, scales: np.ndarray
) -> np.ndarray:
    """For each output the largest slope along any coordinate of a site, in either direction."""
    distances = np.array(DISTANCES if site.has_heavy_tails else LIGHT_DISTANCES)
    largest = np.full(density.num_outputs, -np.inf)
    for place in range(site.start, site.stop):
        if site.has_heavy_tails and site.is_transformed:
            # The coordinate is a logarithm, and has a Jacobian of its own.
            ends, jacobian = distances, np.zeros(distances.size)
        else:
            scale = 1.0 if site.has_heavy_tails else scales[place]
            ends, jacobian = scale * np.exp(distances), distances
        rows = np.tile(starts[:, None, None], (1, 2, distances.size, 1))
        rows[..., place] += np.stack([ends, -ends])
        found = in_chunks(lambda some: _log_sizes(density, some), rows.reshape(-1, rows.shape[-1]))
        log_gamma, log_sizes, roundings = (
            np.asarray(column, float).reshape(*rows.shape[:-1], -1) for column in found
        )
        # A slope is at least this, whatever the rounding is.
        with np.errstate(invalid="ignore"):
            rises = np.diff(log_gamma + log_sizes + jacobian[:, None], axis=2)
            slopes = rises - roundings[:, :, 1:] - roundings[:, :, :-1]
            slopes /= np.diff(distances)[:, None]
            growths = np.diff(log_sizes, axis=2) / np.diff(distances)[:, None]
        counts = np.isfinite(slopes).all(axis=2)
        if not site.has_heavy_tails:
            counts &= (growths > MIN_GROWTH).all(axis=2)
        slopes = np.where(counts, slopes.min(axis=2), -np.inf).max(axis=(0, 1))
        largest = np.maximum(largest, slopes[: density.num_outputs])
    return largest


@compiled_per_model(optimisation=0)
def _log_sizes(density: Density, positions: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """log γ, log |f| of every output, and how much of their sum may be rounding."""

    def one(position: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        terms, (_, log_sizes) = density.evaluate(position)
        size = jnp.abs(terms.log_prior) + jnp.abs(terms.log_likelihood) + jnp.abs(log_sizes)
        rounding = jnp.finfo(log_sizes.dtype).eps * size
        return (terms.log_prior + terms.log_likelihood)[None], log_sizes, rounding

    return vmapped(one, jnp.asarray(positions))
