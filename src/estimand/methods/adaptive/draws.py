"""Importance draws that serve every part and every output, and what they say.

Weights of a part against the proposal, means over independent quasi-random replicates with control
variates, and from these the figures of an output.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density
from estimand.methods.protocol import (
    LOG_MAX,
    LOG_MIN,
    Figures,
    below_the_smallest_number,
    rule_of_three,
)
from estimand.sampling.weights import effective_sample_size, log_mean, pareto_k
from estimand.trust.status import Status
from estimand.trust.thresholds import MAX_PARETO_K

# Effective draws that every part must have before an error is believed.
MIN_EFFECTIVE = 400.0
MAX_WEIGHT_SHARE = 0.002
# Bytes of all draws together; working on them takes up to four times as many.
MAX_BYTES = 2**30
# Where the parts cancel, the error is relative to this share of E|f|.
CANCELLATION_FLOOR = 0.01


class Part(NamedTuple):
    """γ2 (sign 0), or γ1⁺ / γ1⁻ of one output."""

    sign: int
    output: int

    @property
    def name(self) -> str:
        return {0: "gamma2", 1: "gamma1_plus", -1: "gamma1_minus"}[self.sign]


GAMMA2 = Part(0, 0)


# Positions, log prior, log likelihood, signs and log-magnitudes of the outputs.
Found = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Draws(NamedTuple):
    """Evaluated positions, each serving every part and every output.

    `replicate` numbers the independent quasi-random replicate that a draw belongs to. `controls`
    have mean 0 under the proposal: the components' shares in it less their weights.
    """

    positions: np.ndarray
    log_prior: np.ndarray
    log_likelihood: np.ndarray
    signs: np.ndarray
    log_sizes: np.ndarray
    log_proposal: np.ndarray
    replicate: np.ndarray
    controls: np.ndarray

    @staticmethod
    def join(draws: list[Draws]) -> Draws:
        return Draws(*(np.concatenate(pieces) for pieces in zip(*draws, strict=True)))

    def has_room(self, count: int) -> bool:
        """Whether so many more fit into the memory that draws may take."""
        size, num_bytes = len(self.replicate), sum(array.nbytes for array in self)
        return num_bytes * (size + count) <= MAX_BYTES * size

    def log_weights(self, part: Part) -> np.ndarray:
        """log of a part's density over the proposal's; −inf where it is no number."""
        with np.errstate(invalid="ignore"):
            value = self.log_likelihood + self.log_prior - self.log_proposal
            if part.sign:
                is_there = part.sign * self.signs[:, part.output] > 0
                value = value + np.where(is_there, self.log_sizes[:, part.output], -np.inf)
        return np.where(value < np.inf, value, -np.inf)

    def nan_mass(self) -> float:
        """Prior mass of the places at which the density or an output is no number."""
        is_bad = ~(self.log_likelihood < np.inf)
        is_bad |= (self.log_likelihood > -np.inf) & ~(self.log_sizes < np.inf).all(axis=1)
        with np.errstate(invalid="ignore"):
            ratio = self.log_prior - self.log_proposal
        # A draw whose prior density is no number either is far outside.
        return math.exp(log_mean(np.where(is_bad & np.isfinite(ratio), ratio, -np.inf)))


def part_ess(draws: Draws, part: Part) -> float:
    """Effective sample size of a part's weights."""
    return effective_sample_size(draws.log_weights(part))


def pooled(pilots: list[Draws], part: Part) -> tuple[np.ndarray, np.ndarray]:
    """The points of all pilots with weights of one part, each pilot counting by its ESS."""
    log_weights = [pilot.log_weights(part) for pilot in pilots]
    sizes = [effective_sample_size(weights) for weights in log_weights]
    scaled = [
        weights - log_mean(weights) + math.log(size)
        for weights, size in zip(log_weights, sizes, strict=True)
        if size > 0
    ]
    points = [pilot.positions for pilot, size in zip(pilots, sizes, strict=True) if size > 0]
    return np.concatenate(points), np.concatenate(scaled)


def relative_weights(log_weights: np.ndarray) -> np.ndarray:
    """Weights divided by their mean."""
    mean = log_mean(log_weights)
    return np.exp(log_weights - mean) if mean > -np.inf else np.zeros(log_weights.size)


class Means(NamedTuple):
    """Means over replicates, with what the controls explain taken out of them.

    The coefficients of a replicate's controls are fitted to the other replicates. Fitted to its own
    draws, too, they would explain a rare heavy draw away, from the mean and from its error.
    """

    replicate: np.ndarray
    counts: np.ndarray
    controls: np.ndarray
    deviations: np.ndarray
    inverses: np.ndarray

    @classmethod
    def of(cls, draws: Draws) -> Means:
        replicate = draws.replicate
        counts = np.bincount(replicate)
        deviations = draws.controls - draws.controls.mean(axis=0, dtype=float)
        each = [deviations[replicate == r] for r in range(counts.size)]
        grams = np.stack([rows.T @ rows for rows in each])
        inverses = np.linalg.pinv(grams.sum(axis=0) - grams, 1e-8, True)
        return cls(replicate, counts, _totals(draws.controls, replicate), deviations, inverses)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        plain = np.bincount(self.replicate, weights=values) / self.counts
        moments = _totals(self.deviations * (values - values.mean())[:, None], self.replicate)
        coefficients = np.einsum("rkl,rl->rk", self.inverses, moments.sum(axis=0) - moments)
        return plain - (self.controls * coefficients).sum(axis=1) / self.counts


def _totals(columns: np.ndarray, replicate: np.ndarray) -> np.ndarray:
    """Sums of columns by replicate."""
    size = replicate.max() + 1
    sums = [np.bincount(replicate, weights=column, minlength=size) for column in columns.T]
    return np.stack(sums, axis=1) if sums else np.zeros((size, 0))


def part_variance(draws: Draws, part: Part) -> float:
    """Relative variance of a part's Z, from the replicates and from rounding."""
    log_weights = draws.log_weights(part)
    means = Means.of(draws)(relative_weights(log_weights))
    if not means.any():
        return math.inf
    return float(means.var(ddof=1) / means.size) + _rounding(draws, part) ** 2


def controlled_log_mean(draws: Draws, part: Part) -> float:
    """log Z of a part: the mean weight with what the controls explain taken out of it."""
    log_weights = draws.log_weights(part)
    mean = float(Means.of(draws)(relative_weights(log_weights)).mean())
    return log_mean(log_weights) + math.log(mean) if mean > 0 else -math.inf


def _rounding(draws: Draws, part: Part) -> float:
    """Relative error of a part's mean weight by rounding: the resolution of its logarithms."""
    sizes = abs(draws.log_prior) + abs(draws.log_likelihood) + abs(draws.log_proposal)
    if part.sign:
        sizes = sizes + abs(draws.log_sizes[:, part.output])
    weights = np.where(np.isfinite(sizes), relative_weights(draws.log_weights(part)), 0.0)
    resolution = float(jnp.finfo(jnp.result_type(float)).eps)
    return resolution * float(np.mean(weights * np.where(weights > 0, sizes, 0.0)))


def output_figures(draws: Draws, output: int) -> Figures:
    """Ratio of pooled means for one output, with the error between replicates."""
    parts = [GAMMA2, Part(1, output), Part(-1, output)]
    log_weights = [draws.log_weights(part) for part in parts]
    log_z = [log_mean(weights) for weights in log_weights]
    if log_z[0] == -math.inf or max(log_z[1:]) == -math.inf:
        bound = rule_of_three(effective_sample_size(log_weights[0]))
        return Figures(0.0, math.inf, Status.no_mass_found, 0.0, upper_bound=bound)
    # Relative to the larger part, so that no scale of f under- or overflows.
    log_scale = max(log_z[1:])
    if log_scale - log_z[0] < LOG_MIN:
        return below_the_smallest_number(log_z[1], log_z[2])
    means = Means.of(draws)
    z2 = means(np.exp(log_weights[0] - log_z[0]))
    plus, minus = (means(np.exp(weights - log_scale)) for weights in log_weights[1:])
    relative = (plus.mean() - minus.mean()) / z2.mean()
    residuals = plus - minus - relative * z2
    error = float(residuals.std(ddof=1) / math.sqrt(residuals.size))
    sums = abs(relative), plus.mean(), minus.mean()
    rounding = sum(_rounding(draws, part) * sums[k] for k, part in enumerate(parts))
    scale = math.exp(min(log_scale - log_z[0], LOG_MAX))
    sizes = [effective_sample_size(weights) for weights in log_weights]
    present = [size for size, part in zip(sizes[1:], log_z[1:], strict=True) if part > -math.inf]
    return Figures(
        value=float(relative * scale),
        standard_error=float(math.hypot(error, rounding) * scale),
        status=Status.ok,
        ess_z1=min(present),
        is_log_scale=len(present) == 1,
        degrees=float(residuals.size - 1),
        magnitude=float((plus.mean() + minus.mean()) * scale),
        log_z1_plus=log_z[1],
        log_z1_minus=log_z[2],
        ess_z1_plus=sizes[1],
        ess_z1_minus=sizes[2],
    )


def influences(draws: Draws, parts: list[Part]) -> list[np.ndarray]:
    """For every output the influence of each draw on the estimate, relative to its scale."""
    if GAMMA2 not in parts or len(parts) == 1:
        return [relative_weights(draws.log_weights(parts[0])) - 1.0]
    weights = relative_weights(draws.log_weights(GAMMA2))
    result = []
    for output in range(draws.signs.shape[1]):
        log_parts = [draws.log_weights(Part(sign, output)) for sign in (1, -1)]
        # Relative to E|f|, so that no scale of f under- or overflows.
        log_size = log_mean(np.logaddexp(*log_parts))
        if log_size == -math.inf:
            continue
        f = np.exp(log_parts[0] - log_size) - np.exp(log_parts[1] - log_size)
        scale = max(abs(f.mean()), CANCELLATION_FLOOR)
        result.append((f - weights * f.mean()) / scale)
    return result or [weights - 1.0]


def error_scale(figures: Figures) -> float:
    """What an error is relative to: the value, or a share of E|f| where the parts cancel."""
    return max(abs(figures.value), CANCELLATION_FLOOR * figures.magnitude) or math.inf


def is_reached(figures: Figures, goal: float) -> bool:
    """Whether the error is small relative to its scale."""
    return figures.standard_error <= goal * error_scale(figures)


def part_status(log_weights: np.ndarray, is_missed: bool) -> Status:
    """What the weights of a part say, and a fresh exploration that found more than they have."""
    if is_missed:
        return Status.replicates_disagree
    # A large tail index is harmless while no single draw weighs much.
    largest = math.exp(log_weights.max() - log_mean(log_weights)) / log_weights.size
    if largest > MAX_WEIGHT_SHARE and pareto_k(log_weights) > MAX_PARETO_K:
        return Status.heavy_tailed
    return Status.ok if effective_sample_size(log_weights) >= MIN_EFFECTIVE else Status.low_ess


# --- compiled pieces ---


@jax.jit
def draw_prior(density: Density, rng_keys: jax.Array) -> tuple:
    """Draws from the prior, as `Found`."""

    def one(key: jax.Array) -> tuple:
        position, terms, outputs = density.draw_with_outputs(key)
        return position, terms.log_prior, terms.log_likelihood, *outputs

    return jax.vmap(one)(rng_keys)


@jax.jit
def evaluate(density: Density, positions: jax.Array) -> tuple:
    """Log prior, log likelihood, signs and log-magnitudes at positions."""

    def one(position: jax.Array) -> tuple:
        terms, outputs = density.evaluate(position)
        return terms.log_prior, terms.log_likelihood, *outputs

    return jax.vmap(one)(positions)
