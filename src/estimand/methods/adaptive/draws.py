"""Importance draws that serve every part and every output, and what they say.

Weights of a part against the proposal, means over independent quasi-random replicates with control
variates, and from these the estimate of an output.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from estimand.density import MAGNITUDE, Density
from estimand.methods.adaptive.sums import Streamed, Sums
from estimand.sampling import effective_sample_size, log_mean, relative_weights, sums_of_products
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
    """γ2 (sign 0), γ1⁺ / γ1⁻ of one output, or a look (sign `MAGNITUDE`): γ·|f − centre|.

    A look is at an output, or at a term that stands behind the outputs. It says where to explore;
    no estimate is made of it.
    """

    sign: int
    output: int
    centre: float = 0.0

    @property
    def constant(self) -> str:
        """The name of its normalising constant."""
        return {0: "Z2", 1: "Z1_plus", -1: "Z1_minus", MAGNITUDE: "Z of a term"}[self.sign]

    @property
    def symbol(self) -> str:
        return {0: "γ", 1: "γf⁺", -1: "γf⁻", MAGNITUDE: "terms"}[self.sign]

    @property
    def label(self) -> tuple[int, int]:
        """What random keys are named by."""
        return self.sign, self.output

    def of(self, density: Density) -> Density:
        """This part of a program's density."""
        if self.sign == MAGNITUDE:
            return density.magnitude(self.output, self.centre)
        name = {0: "gamma2", 1: "gamma1_plus", -1: "gamma1_minus"}[self.sign]
        return density.part(name, self.output)

    def log_sizes(self, signs: np.ndarray, log_sizes: np.ndarray) -> np.ndarray:
        """The logarithm of f± or of |f − centre|, by signs and log-magnitudes of all outputs."""
        if not self.sign:
            return np.zeros(len(signs))
        own, log_abs = signs[:, self.output], log_sizes[:, self.output]
        if self.sign != MAGNITUDE:
            return np.where(self.sign * own > 0, log_abs, -np.inf)
        if self.centre == 0:
            return log_abs
        log_centre = math.log(abs(self.centre))
        top = np.maximum(log_abs, log_centre)
        with np.errstate(divide="ignore", invalid="ignore"):
            mine = own * np.exp(log_abs - top)
            return top + np.log(
                np.abs(mine - math.copysign(1, self.centre) * np.exp(log_centre - top))
            )


GAMMA2 = Part(0, 0)


class Evaluated(NamedTuple):
    """Positions with log prior, log likelihood, signs and log-magnitudes of the outputs."""

    positions: np.ndarray
    log_prior: np.ndarray
    log_likelihood: np.ndarray
    signs: np.ndarray
    log_sizes: np.ndarray

    @staticmethod
    def join(pieces: list[Evaluated]) -> Evaluated:
        return Evaluated(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))


class _Columns(NamedTuple):
    """A row for each draw."""

    positions: np.ndarray
    log_prior: np.ndarray
    log_likelihood: np.ndarray
    signs: np.ndarray
    log_sizes: np.ndarray
    log_proposal: np.ndarray
    replicate: np.ndarray
    controls: np.ndarray


class Draws(_Columns):
    """Evaluated positions, each serving every part and every output.

    `replicate` numbers the independent quasi-random replicate that a draw belongs to. `controls`
    have mean 0 under the proposal: the components' shares in it less their weights. What follows
    from these columns and is asked for again and again is computed once.
    """

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
        return self.weights(part).log_weights

    def ess(self, part: Part) -> float:
        """Effective sample size of a part's weights."""
        return self.weights(part).ess

    def weights(self, part: Part) -> Weights:
        """A part's weights, and what they say."""
        if part not in self._weights:
            self._weights[part] = Weights.of(self._log_weights(part))
        return self._weights[part]

    def part_means(self, part: Part) -> PartMeans:
        """The mean of a part's weights, with its error."""
        if part not in self._part_means:
            relative = self.weights(part).relative
            rounding = _rounding(self, part, relative)
            self._part_means[part] = self.replicates.means(relative, rounding)
        return self._part_means[part]

    @functools.cached_property
    def replicates(self) -> Replicates:
        """The replicates, and what their controls are worth."""
        return Replicates.of(self.replicate, self.controls)

    @functools.cached_property
    def _weights(self) -> dict[Part, Weights]:
        return {}

    @functools.cached_property
    def _part_means(self) -> dict[Part, PartMeans]:
        return {}

    def _log_weights(self, part: Part) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            value = self.log_likelihood + self.log_prior - self.log_proposal
            value = value + part.log_sizes(self.signs, self.log_sizes)
        return np.where(value < np.inf, value, -np.inf)

    def nan_mass(self, num_outputs: int) -> float:
        """Prior mass of the places at which the density or an output is not a number."""
        is_bad = self.is_bad(range(num_outputs))
        with np.errstate(invalid="ignore"):
            ratio = self.log_prior - self.log_proposal
        # A draw whose prior density is not a number either is far outside.
        return math.exp(log_mean(np.where(is_bad & np.isfinite(ratio), ratio, -np.inf)))

    def is_bad(self, outputs: Iterable[int]) -> np.ndarray:
        """Where the density, or one of some outputs, is not a number."""
        is_bad = ~(self.log_likelihood < np.inf)
        has_mass = self.log_likelihood > -np.inf
        for output in outputs:
            is_bad |= has_mass & ~(self.log_sizes[:, output] < np.inf)
        return is_bad


class Weights(NamedTuple):
    """Weights by their logarithms, with the log of their mean and their effective sample size."""

    log_weights: np.ndarray
    log_mean: float
    ess: float

    @classmethod
    def of(cls, log_weights: np.ndarray) -> Weights:
        log_weights.flags.writeable = False
        return cls(log_weights, log_mean(log_weights), effective_sample_size(log_weights))

    @property
    def relative(self) -> np.ndarray:
        """The weights divided by their mean."""
        return relative_weights(self.log_weights, self.log_mean)


class PartMeans(NamedTuple):
    """The mean of a part's relative weights, and its error.

    `deviations` have a row for each round and a column for each replicate: products of those of two
    parts add up to the covariance of their means. Each round is compared with itself alone: draws
    are added until the error is small, and the more rounds tell of it, the less it is so by chance.
    """

    mean: float
    deviations: np.ndarray
    rounding: float = 0.0

    def scaled(self, factor: float) -> PartMeans:
        return PartMeans(self.mean * factor, self.deviations * factor, self.rounding * factor)


class Pool(NamedTuple):
    """Weighted points of several pilots."""

    points: np.ndarray
    log_weights: np.ndarray


def pooled(pilots: list[Draws], part: Part) -> Pool:
    """The points of all pilots with weights of one part, each pilot counting by its ESS."""
    points, scaled = [], []
    for pilot in pilots:
        weights = pilot.weights(part)
        if weights.ess > 0:
            points.append(pilot.positions)
            scaled.append(weights.log_weights - weights.log_mean + math.log(weights.ess))
    return Pool(np.concatenate(points), np.concatenate(scaled))


class Replicates(NamedTuple):
    """Means over replicates, with what the controls explain taken out of them.

    The coefficients of a replicate's controls are fitted to the other replicates. Fitted to its own
    draws, too, they would explain a rare heavy draw away, from the mean and from its error.
    A run is a row of successive draws of one replicate; a replicate has one for each round.
    `counts` and `totals`, of the controls, are those of every run: their first axis are the
    rounds, the second the replicates.
    """

    starts: np.ndarray
    counts: np.ndarray
    controls: np.ndarray
    center: np.ndarray
    totals: np.ndarray
    grams: np.ndarray
    inverses: np.ndarray

    @classmethod
    def of(cls, replicate: np.ndarray, controls: np.ndarray) -> Replicates:
        num_replicates = int(replicate.max()) + 1
        starts = np.flatnonzero(np.diff(replicate, prepend=-1))
        counts = np.diff(starts, append=replicate.size).reshape(-1, num_replicates)
        center = controls.mean(axis=0)
        totals = np.zeros((*counts.shape, center.size))
        grams = np.zeros((num_replicates, center.size, center.size))
        bare = cls(starts, counts, controls, center, totals, grams, grams)
        for rows, number, owner in bare.runs:
            deviations = controls[rows] - center
            totals[number, owner] = controls[rows].sum(axis=0)
            grams[owner] += sums_of_products(deviations, deviations)
        return bare._replace(inverses=_inverses_without(grams))

    def with_sums(self, sums: Sums) -> Replicates:
        """The same with draws of which only the sums are known."""
        counts = np.concatenate([self.counts, sums.counts[None]])
        totals = np.concatenate([self.totals, sums.controls[None]])
        center = totals.sum(axis=(0, 1)) / counts.sum()
        own_counts, own_totals = self.counts.sum(axis=0), self.totals.sum(axis=0)
        deviations = own_totals - own_counts[:, None] * self.center
        grams = _recentered(self.grams, deviations, own_counts, center - self.center)
        grams += _recentered(sums.products, sums.controls, sums.counts, center)
        return self._replace(
            counts=counts,
            center=center,
            totals=totals,
            grams=grams,
            inverses=_inverses_without(grams),
        )

    @property
    def num_replicates(self) -> int:
        return self.counts.shape[1]

    @property
    def runs(self) -> list[tuple[slice, int, int]]:
        """The draws, the round and the replicate of every run; none where there are no controls."""
        if not self.center.size:
            return []
        ends = [*self.starts[1:], len(self.controls)]
        return [
            (slice(start, end), *divmod(run, self.num_replicates))
            for run, (start, end) in enumerate(zip(self.starts, ends, strict=True))
        ]

    def means(
        self, values: np.ndarray, rounding: float = 0.0, streamed: Streamed | None = None
    ) -> PartMeans:
        """The mean of all values; `streamed` has the sums of those that are not kept."""
        sums = np.add.reduceat(values, self.starts).reshape(-1, self.num_replicates)
        if streamed is not None:
            sums = np.concatenate([sums, streamed.weights[None]])
        mean, moments = sums.sum() / self.counts.sum(), np.zeros(self.totals.shape[1:])
        deviations = values - mean
        for rows, _, owner in self.runs:
            own = deviations[rows]
            moments[owner] += np.einsum("n,nk->k", own, self.controls[rows])
            moments[owner] -= own.sum() * self.center
        if streamed is not None:
            moments += streamed.about(mean, self.center)
        coefficients = np.einsum("rkl,rl->rk", self.inverses, moments.sum(axis=0) - moments)
        sums = sums - np.einsum("srk,rk->sr", self.totals, coefficients)
        return _mean_of_runs(sums, self.counts, rounding)


def _mean_of_runs(sums: np.ndarray, counts: np.ndarray, rounding: float) -> PartMeans:
    """The mean over all runs, which replicates of the same round give an error."""
    means, num_replicates = sums / counts, counts.shape[1]
    deviations = (means - means.mean(axis=1, keepdims=True)) * counts / counts.sum()
    # One replicate alone says nothing of the error.
    scale = math.sqrt(num_replicates / (num_replicates - 1)) if num_replicates > 1 else math.nan
    return PartMeans(float(sums.sum() / counts.sum()), scale * deviations, rounding)


def _recentered(
    products: np.ndarray, totals: np.ndarray, counts: np.ndarray, shift: np.ndarray
) -> np.ndarray:
    """Of each replicate Σ(x − shift)(x − shift)ᵀ, from Σxxᵀ, Σx and how many x there are."""
    crossed = totals[:, :, None] * shift
    own = counts[:, None, None] * (shift[:, None] * shift)
    return products - crossed - crossed.transpose(0, 2, 1) + own


def _inverses_without(grams: np.ndarray) -> np.ndarray:
    """For each replicate the pseudo-inverse of what the Gram matrices of the others add up to.

    One decomposition of the sum of all gives coordinates in which that sum is 1; in these the
    others' share is inverted, with a ridge for directions that no other replicate has.
    """
    values, vectors = np.linalg.eigh(grams.sum(axis=0))
    is_there = values > 1e-8 * values.max(initial=0.0)
    whiten = vectors[:, is_there] / np.sqrt(values[is_there])
    others = np.eye(whiten.shape[1]) * (1 + 1e-8) - whiten.T @ grams @ whiten
    return whiten @ np.linalg.inv(others) @ whiten.T


@dataclasses.dataclass(frozen=True)
class Means:
    """Means over the replicates of some draws, and of those that were only summed up.

    Args:
        draws: those that are kept.
        sums: of the others, with a column for each of the parts.
        parts: of the columns.
    """

    draws: Draws
    sums: Sums | None = None
    parts: tuple[Part, ...] = ()

    @property
    def size(self) -> int:
        return self.draws.size + (0 if self.sums is None else self.sums.size)

    def of(self, part: Part) -> PartMeans:
        """Means of a part's weights, relative to the mean weight of the draws that are kept."""
        kept = self.draws.part_means(part)
        if self.sums is None:
            return kept
        if part not in self.parts:
            # None of the draws that were summed up can have mass of it.
            return kept._replace(deviations=np.pad(kept.deviations, ((0, 1), (0, 0))))
        column = self.parts.index(part)
        streamed = Streamed(
            self._own.counts,
            self._own.controls,
            self._own.weights[:, column],
            self._own.moments[:, column],
        )
        relative = self.draws.weights(part).relative
        return self._replicates.means(relative, kept.rounding, streamed)

    def ess(self, part: Part) -> float:
        """Effective sample size of a part's weights; that of a look grows as in the draws kept."""
        kept = self.draws.ess(part)
        if self.sums is None or kept == 0:
            return kept
        if part not in self.parts:
            return kept * self.size / self.draws.size
        column, size = self.parts.index(part), self.draws.size
        total = size + float(self.sums.weights[:, column].sum())
        return total**2 / (size**2 / kept + float(self.sums.squares[:, column].sum()))

    def log_largest(self, part: Part) -> float:
        """The logarithm of the largest of a part's weights."""
        weights = self.draws.weights(part)
        largest = float(weights.log_weights.max())
        if self.sums is None or part not in self.parts or largest == -math.inf:
            return largest
        streamed = float(self.sums.largest[:, self.parts.index(part)].max())
        return max(largest, weights.log_mean + math.log(max(streamed, 1e-300)))

    @functools.cached_property
    def _own(self) -> Sums:
        assert self.sums is not None
        return self.sums.of_controls(self.draws.controls.shape[1])

    @functools.cached_property
    def _replicates(self) -> Replicates:
        return self.draws.replicates.with_sums(self._own)


def part_variance(means: Means, part: Part) -> float:
    """Relative variance of a part's Z, from the replicates and from rounding."""
    found = means.of(part)
    if not found.mean:
        return math.inf
    return float((found.deviations**2).sum()) + found.rounding**2


def part_evidence(means: Means, part: Part, unseen: float = 0.0) -> Evidence:
    """The draws as evidence of one part, with the error between replicates.

    `unseen` is a share of the part's mass that explorations found beyond the reach of the draws.
    """
    draws = means.draws
    weights = draws.weights(part)
    mean = means.of(part).mean
    log_z = weights.log_mean + math.log(mean) if mean > 0 else -math.inf
    zeros = np.zeros(draws.size, np.int32)
    return Evidence(
        log_z=np.asarray(log_z),  # type: ignore[arg-type]
        relative_variance=np.asarray(  # type: ignore[arg-type]
            part_variance(means, part) + unseen**2 if math.isfinite(log_z) else math.inf
        ),
        log_weights=weights.log_weights,  # type: ignore[arg-type]
        positions=draws.positions,  # type: ignore[arg-type]
        evaluations=zeros,  # type: ignore[arg-type]
        gradients=zeros,  # type: ignore[arg-type]
        invalid=zeros,  # type: ignore[arg-type]
        degrees=draws.replicates.num_replicates - 1.0,
        replicate=draws.replicate,  # type: ignore[arg-type]
    )


def _rounding(draws: Draws, part: Part, weights: np.ndarray) -> float:
    """Relative error of a part's mean weight by rounding: the resolution of its logarithms."""
    sizes = abs(draws.log_prior) + abs(draws.log_likelihood) + abs(draws.log_proposal)
    if part.sign:
        sizes = sizes + abs(draws.log_sizes[:, part.output])
    is_there = (weights > 0) & np.isfinite(sizes)
    resolution = float(jnp.finfo(jnp.result_type(float)).eps)
    terms = np.multiply(weights, sizes, out=np.zeros(draws.size), where=is_there)
    # Its square is a number, too.
    return min(resolution * float(terms.mean()), 1e100)


def output_estimate(means: Means, output: int, parts: Parts | None = None) -> OutputEstimate:
    """Ratio of pooled means for one output, with the error between replicates."""
    draws, parts = means.draws, Parts() if parts is None else parts
    names = (GAMMA2, Part(1, output), Part(-1, output))
    log_z2, *log_z1 = (draws.weights(part).log_mean for part in names)
    sizes = [means.ess(part) for part in names]
    if log_z2 == -math.inf or max(log_z1) == -math.inf:
        empty = "the target" if log_z2 > -math.inf else "the posterior"
        finding = no_mass(f"none of {draws.size:,} draws has mass of {empty}")
        ess = EffectiveSizes(z2=sizes[0])
        return without_value(finding, parts=parts, ess=ess, num_draws=sizes[0])
    # Relative to the larger part, so that no scale of f under- or overflows.
    log_top = max(log_z1)
    scales = (1.0, *(math.exp(log_z - log_top) for log_z in log_z1))
    z2, plus, minus = (
        means.of(part).scaled(scale) for scale, part in zip(scales, names, strict=True)
    )
    relative = (plus.mean - minus.mean) / z2.mean
    residuals = plus.deviations - minus.deviations - relative * z2.deviations
    rounded = plus.rounding + minus.rounding + abs(relative) * z2.rounding
    present = [size for size, log_z in zip(sizes[1:], log_z1, strict=True) if log_z > -math.inf]
    ratio = Ratio(
        log_scale=log_top - log_z2,
        value=float(relative),
        standard_error=math.hypot(np.linalg.norm(residuals), rounded),
        magnitude=plus.mean + minus.mean,
        degrees=draws.replicates.num_replicates - 1.0,
        covariance=float((residuals * z2.deviations).sum()),
    )
    ess = EffectiveSizes(z1=min(present), z2=sizes[0], plus=sizes[1], minus=sizes[2])
    return from_ratio(ratio, parts=parts, ess=ess, is_one_sided=len(present) == 1)


def influences(draws: Draws, parts: tuple[Part, ...]) -> list[np.ndarray]:
    """For every output the influence of each draw on the estimate, relative to its scale."""
    if GAMMA2 not in parts or len(parts) == 1:
        return [draws.weights(parts[0]).relative - 1.0]
    weights = draws.weights(GAMMA2).relative
    result = []
    for output in sorted({part.output for part in parts if part.sign}):
        log_parts = [draws.log_weights(Part(sign, output)) for sign in (1, -1)]
        # Relative to E|f|, so that no scale of f under- or overflows.
        log_size = log_mean(np.logaddexp(*log_parts))
        if log_size == -math.inf:
            continue
        f = np.exp(log_parts[0] - log_size) - np.exp(log_parts[1] - log_size)
        scale = max(abs(f.mean()), thresholds.CANCELLATION_FLOOR)
        result.append((f - weights * f.mean()) / scale)
    return result or [weights - 1.0]
