"""Importance draws that serve every part and every output, and what they say.

Weights of a part against the proposal, means over independent quasi-random replicates with control
variates, and from these the estimate of an output.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from estimand.sampling import effective_sample_size, log_mean, relative_weights
from estimand.trust import (
    EffectiveSizes,
    Evidence,
    OutputEstimate,
    Parts,
    Ratio,
    from_ratio,
    no_mass,
    thresholds,
    without_value,
)

# Bytes of all draws together; working on them takes up to four times as many.
MAX_BYTES = 2**30


class Part(NamedTuple):
    """γ2 (sign 0), or γ1⁺ / γ1⁻ of one output."""

    sign: int
    output: int

    @property
    def name(self) -> str:
        return {0: "gamma2", 1: "gamma1_plus", -1: "gamma1_minus"}[self.sign]

    @property
    def constant(self) -> str:
        """The name of its normalising constant."""
        return {0: "Z2", 1: "Z1_plus", -1: "Z1_minus"}[self.sign]

    @property
    def symbol(self) -> str:
        return {0: "γ", 1: "γf⁺", -1: "γf⁻"}[self.sign]


GAMMA2 = Part(0, 0)


class Evaluated(NamedTuple):
    """Positions with log prior, log likelihood, signs and log-magnitudes of the outputs."""

    positions: np.ndarray
    log_prior: np.ndarray
    log_likelihood: np.ndarray
    signs: np.ndarray
    log_sizes: np.ndarray


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

    @classmethod
    def from_prior(cls, evaluated: Evaluated, num_replicates: int) -> Draws:
        """Draws of the prior, dealt out to so many replicates."""
        count = len(evaluated.positions)
        return cls(
            *evaluated,
            log_proposal=evaluated.log_prior,
            replicate=np.arange(count) % num_replicates,
            controls=np.zeros((count, 0)),
        )

    @staticmethod
    def join(draws: list[Draws]) -> Draws:
        return Draws(*(np.concatenate(pieces) for pieces in zip(*draws, strict=True)))

    @property
    def size(self) -> int:
        return len(self.replicate)

    def has_room(self, count: int) -> bool:
        """Whether so many more fit into the memory that draws may take."""
        num_bytes = sum(array.nbytes for array in self)
        return num_bytes * (self.size + count) <= MAX_BYTES * self.size

    def log_weights(self, part: Part) -> np.ndarray:
        """log of a part's density over the proposal's; −inf where it is not a number."""
        with np.errstate(invalid="ignore"):
            value = self.log_likelihood + self.log_prior - self.log_proposal
            if part.sign:
                is_there = part.sign * self.signs[:, part.output] > 0
                value = value + np.where(is_there, self.log_sizes[:, part.output], -np.inf)
        return np.where(value < np.inf, value, -np.inf)

    def ess(self, part: Part) -> float:
        """Effective sample size of a part's weights."""
        return effective_sample_size(self.log_weights(part))

    def nan_mass(self) -> float:
        """Prior mass of the places at which the density or an output is not a number."""
        is_bad = ~(self.log_likelihood < np.inf)
        is_bad |= (self.log_likelihood > -np.inf) & ~(self.log_sizes < np.inf).all(axis=1)
        with np.errstate(invalid="ignore"):
            ratio = self.log_prior - self.log_proposal
        # A draw whose prior density is not a number either is far outside.
        return math.exp(log_mean(np.where(is_bad & np.isfinite(ratio), ratio, -np.inf)))


class Pool(NamedTuple):
    """Weighted points of several pilots."""

    points: np.ndarray
    log_weights: np.ndarray


def pooled(pilots: list[Draws], part: Part) -> Pool:
    """The points of all pilots with weights of one part, each pilot counting by its ESS."""
    points, scaled = [], []
    for pilot in pilots:
        log_weights = pilot.log_weights(part)
        size = effective_sample_size(log_weights)
        if size > 0:
            points.append(pilot.positions)
            scaled.append(log_weights - log_mean(log_weights) + math.log(size))
    return Pool(np.concatenate(points), np.concatenate(scaled))


class Means(NamedTuple):
    """Means over replicates, with what the controls explain taken out of them.

    The coefficients of a replicate's controls are fitted to the other replicates. Fitted to its own
    draws, too, they would explain a rare heavy draw away, from the mean and from its error.
    """

    draws: Draws
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
        controls = _totals(draws.controls, replicate)
        return cls(draws, counts, controls, deviations, inverses)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        replicate = self.draws.replicate
        plain = np.bincount(replicate, weights=values) / self.counts
        moments = _totals(self.deviations * (values - values.mean())[:, None], replicate)
        coefficients = np.einsum("rkl,rl->rk", self.inverses, moments.sum(axis=0) - moments)
        return plain - (self.controls * coefficients).sum(axis=1) / self.counts


def _totals(columns: np.ndarray, replicate: np.ndarray) -> np.ndarray:
    """Sums of columns by replicate."""
    size = replicate.max() + 1
    sums = [np.bincount(replicate, weights=column, minlength=size) for column in columns.T]
    return np.stack(sums, axis=1) if sums else np.zeros((size, 0))


def part_variance(means: Means, part: Part) -> float:
    """Relative variance of a part's Z, from the replicates and from rounding."""
    values = means(relative_weights(means.draws.log_weights(part)))
    if not values.any():
        return math.inf
    return float(values.var(ddof=1) / values.size) + _rounding(means.draws, part) ** 2


def part_evidence(means: Means, part: Part, unseen: float = 0.0) -> Evidence:
    """The draws as evidence of one part, with the error between replicates.

    `unseen` is a share of the part's mass that explorations found beyond the reach of the draws.
    """
    draws = means.draws
    log_weights = draws.log_weights(part)
    mean = float(means(relative_weights(log_weights)).mean())
    log_z = log_mean(log_weights) + math.log(mean) if mean > 0 else -math.inf
    zeros = np.zeros(log_weights.size, np.int32)
    return Evidence(
        log_z=np.asarray(log_z),  # type: ignore[arg-type]
        relative_variance=np.asarray(  # type: ignore[arg-type]
            part_variance(means, part) + unseen**2 if math.isfinite(log_z) else math.inf
        ),
        log_weights=log_weights,  # type: ignore[arg-type]
        positions=draws.positions,  # type: ignore[arg-type]
        evaluations=zeros,  # type: ignore[arg-type]
        gradients=zeros,  # type: ignore[arg-type]
        invalid=zeros,  # type: ignore[arg-type]
        degrees=means.counts.size - 1.0,
    )


def _rounding(draws: Draws, part: Part) -> float:
    """Relative error of a part's mean weight by rounding: the resolution of its logarithms."""
    sizes = abs(draws.log_prior) + abs(draws.log_likelihood) + abs(draws.log_proposal)
    if part.sign:
        sizes = sizes + abs(draws.log_sizes[:, part.output])
    weights = np.where(np.isfinite(sizes), relative_weights(draws.log_weights(part)), 0.0)
    resolution = float(jnp.finfo(jnp.result_type(float)).eps)
    return resolution * float(np.mean(weights * np.where(weights > 0, sizes, 0.0)))


def output_estimate(means: Means, output: int, parts: Parts | None = None) -> OutputEstimate:
    """Ratio of pooled means for one output, with the error between replicates."""
    draws, parts = means.draws, Parts() if parts is None else parts
    names = (GAMMA2, Part(1, output), Part(-1, output))
    log_weights = [draws.log_weights(part) for part in names]
    log_z2, *log_z1 = (log_mean(weights) for weights in log_weights)
    sizes = [effective_sample_size(weights) for weights in log_weights]
    if log_z2 == -math.inf or max(log_z1) == -math.inf:
        empty = "the target" if log_z2 > -math.inf else "the posterior"
        finding = no_mass(f"none of {draws.size:,} draws has mass of {empty}")
        ess = EffectiveSizes(z2=sizes[0])
        return without_value(finding, parts=parts, ess=ess, num_draws=sizes[0])
    # Relative to the larger part, so that no scale of f under- or overflows.
    log_top = max(log_z1)
    z2 = means(np.exp(log_weights[0] - log_z2))
    plus, minus = (means(np.exp(weights - log_top)) for weights in log_weights[1:])
    relative = (plus.mean() - minus.mean()) / z2.mean()
    residuals = plus - minus - relative * z2
    error = float(residuals.std(ddof=1) / math.sqrt(residuals.size))
    sums = abs(relative), plus.mean(), minus.mean()
    rounding = sum(_rounding(draws, part) * sums[k] for k, part in enumerate(names))
    present = [size for size, log_z in zip(sizes[1:], log_z1, strict=True) if log_z > -math.inf]
    ratio = Ratio(
        log_scale=log_top - log_z2,
        value=float(relative),
        standard_error=math.hypot(error, rounding),
        magnitude=float(plus.mean() + minus.mean()),
        degrees=float(residuals.size - 1),
    )
    ess = EffectiveSizes(z1=min(present), z2=sizes[0], plus=sizes[1], minus=sizes[2])
    return from_ratio(ratio, parts=parts, ess=ess, is_one_sided=len(present) == 1)


def influences(draws: Draws, parts: tuple[Part, ...]) -> list[np.ndarray]:
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
        scale = max(abs(f.mean()), thresholds.CANCELLATION_FLOOR)
        result.append((f - weights * f.mean()) / scale)
    return result or [weights - 1.0]
