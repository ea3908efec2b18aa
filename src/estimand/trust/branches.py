"""Estimates that add up: E[f] = ΣZ1 / ΣZ2 over pieces that were estimated independently.

The pieces are the branches of a program, or several runs of one branch, of which each counts by a
coefficient. With p the share of a piece in ΣZ2 and d = E[f | piece] − E[f],

    Var = Σ p² (σ² + d² v + 2 d c),

where σ is the standard error of the piece's E[f], v the relative variance of its Z2, and c the
covariance of the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from estimand.trust.evidence import Evidence
from estimand.trust.outputs import (
    EffectiveSizes,
    OutputEstimate,
    Parts,
    Variance,
    joint_degrees,
)
from estimand.trust.status import Finding, Status, worst


class BranchEstimate(NamedTuple):
    """What was found of one branch of a program.

    `values` are those of its branching sites, `mass` is their prior probability, and `outputs` are
    the estimates of E[f | branch]. `log_z2` is that of the branch, its prior probability included;
    −inf if no mass was found. `density` is there in the session that made the estimate.
    """

    values: tuple[tuple[str, int], ...]
    mass: float
    log_z2: float
    relative_variance: float
    outputs: tuple[OutputEstimate, ...]
    cost: int
    density: Any = None

    @property
    def status(self) -> Status:
        return worst(output.status for output in self.outputs)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for output in self.outputs for finding in output.findings)

    @property
    def text(self) -> str:
        """Its values in words: ``k=2, m=0``."""
        return ", ".join(f"{name}={value}" for name, value in self.values)


class Probability(NamedTuple):
    """The posterior probability of a branch, and its standard error."""

    value: float
    standard_error: float


def probabilities(branches: Sequence[BranchEstimate]) -> list[Probability]:
    """The shares of the branches in ΣZ2; what may be missing in that is part of their errors."""
    missed = share_of_rest(branches, 1 - math.fsum(branch.mass for branch in branches))
    shares = shares_of([branch.log_z2 for branch in branches])
    variances = np.asarray(
        [
            branch.relative_variance if share > 0 else 0.0
            for branch, share in zip(branches, shares, strict=True)
        ]
    )
    pieces = shares**2 * variances
    total = pieces.sum()
    found = []
    for share, variance, piece in zip(shares, variances, pieces, strict=True):
        relative = (1 - share) ** 2 * variance + (total - piece) + (missed / 2) ** 2
        found.append(Probability(float(share), float(share * math.sqrt(max(relative, 0.0)))))
    return found


def share_of_rest(branches: Sequence[BranchEstimate], mass: float) -> float:
    """The share in all Z2 of branches of some prior mass that were not run, at the most.

    If their average likelihood, Z2 over the prior mass, is at most that of the best branch.
    """
    there = [branch for branch in branches if math.isfinite(branch.log_z2)]
    if not there or not mass > 0:
        return 0.0
    log_likelihood = max(branch.log_z2 - math.log(branch.mass) for branch in there)
    log_total = np.logaddexp.reduce([branch.log_z2 for branch in there])
    return 1 / (1 + math.exp(-min(math.log(mass) + log_likelihood - log_total, 700.0)))


def shares_of(log_sizes: Sequence[float] | np.ndarray) -> np.ndarray:
    """Sizes divided by their sum; all 0 if none has any."""
    sizes = np.asarray(log_sizes, float)
    if not np.isfinite(sizes).any():
        return np.zeros(sizes.size)
    sizes = np.exp(sizes - sizes[np.isfinite(sizes)].max())
    return sizes / sizes.sum()


def pooled(
    outputs: Sequence[OutputEstimate],
    log_coefficients: Sequence[float],
    *,
    is_one_model: bool,
    known: dict[tuple, Any] | None = None,
) -> OutputEstimate:
    """One estimate from independent ones that have a value and a Z2 each, without findings.

    Args:
        outputs: the pieces.
        log_coefficients: by which the Z of each counts.
        is_one_model: whether all pieces have their positions in the same coordinates.
        known: the evidence that was pooled for other outputs, which they may have in common.
    """
    known = {} if known is None else known
    pieces = _pieces(outputs, log_coefficients)
    shares = np.asarray([piece.share for piece in pieces])
    signs = {math.copysign(1, piece.value) for piece in pieces if piece.value != 0}

    def part(field: str) -> Evidence | None:
        evidence = [getattr(output.parts, field) for output in outputs]
        key = (*map(id, evidence), *log_coefficients)
        if field != "normaliser" or key not in known:
            known[key] = pooled_evidence(evidence, log_coefficients, is_one_model=is_one_model)
        return known[key]

    return _sum_of(pieces)._replace(
        magnitude=float(shares @ np.nan_to_num([output.magnitude for output in outputs])),
        is_log_scale=len(signs) == 1
        and all(output.is_log_scale or output.value == 0 for output in outputs),
        upper_bound=max(output.upper_bound for output in outputs),
        ess=_pooled_sizes(outputs, shares),
        parts=Parts(plus=part("plus"), minus=part("minus"), normaliser=part("normaliser")),
    )


def errors_of_pieces(outputs: Sequence[OutputEstimate]) -> np.ndarray:
    """What each piece of a plain sum adds to the standard error, as if it were alone."""
    return _errors(_pieces(outputs, [0.0] * len(outputs)))


def merged_branch(
    branches: Sequence[BranchEstimate], log_coefficients: np.ndarray
) -> BranchEstimate:
    """One branch from what several runs say of it, by their numbers alone."""
    log_z2 = np.asarray([branch.log_z2 for branch in branches]) + log_coefficients
    shares = shares_of(log_z2)
    is_there = shares > 0
    variances = np.asarray([branch.relative_variance for branch in branches])[is_there]
    first = branches[0]
    return first._replace(
        log_z2=float(np.logaddexp.reduce(log_z2)),
        relative_variance=float(shares[is_there] ** 2 @ variances) if is_there.any() else math.inf,
        outputs=tuple(
            _merged_output(branches, shares, number) for number in range(len(first.outputs))
        ),
        cost=sum(branch.cost for branch in branches),
        density=None,
    )


def _merged_output(
    branches: Sequence[BranchEstimate], shares: np.ndarray, number: int
) -> OutputEstimate:
    outputs = [branch.outputs[number] for branch in branches]
    findings = {
        (finding.status, finding.part, finding.check): finding
        for output in outputs
        for finding in output.findings
    }
    there = [
        (output, branch, share)
        for output, branch, share in zip(outputs, branches, shares, strict=True)
        if share > 0 and math.isfinite(output.standard_error)
    ]
    if not there:
        return outputs[0]._replace(parts=Parts(), findings=tuple(findings.values()))
    total = sum(share for _, _, share in there)
    pieces = [
        _Piece.of(output, share / total, branch.relative_variance)
        for output, branch, share in there
    ]
    magnitudes = [share / total * output.magnitude for output, _, share in there]
    return _sum_of(pieces)._replace(
        magnitude=math.fsum(magnitudes),
        is_log_scale=all(output.is_log_scale for output, _, _ in there),
        findings=tuple(findings.values()),
    )


def _pieces(outputs: Sequence[OutputEstimate], log_coefficients: Sequence[float]) -> list[_Piece]:
    log_z2 = [output.parts.log_z("normaliser") for output in outputs]
    shares = shares_of(np.asarray(log_z2) + np.asarray(log_coefficients))
    return [
        _Piece.of(output, share, float(output.parts.normaliser.relative_variance))
        for output, share in zip(outputs, shares, strict=True)
    ]


def _sum_of(pieces: Sequence[_Piece]) -> OutputEstimate:
    """Value and error of a sum, and nothing else."""
    errors = _errors(pieces)
    scale = float(errors.max()) or 1.0
    value = _mean(pieces)
    relative = [float(error / scale) ** 2 for error in errors]
    variances = [
        Variance(variance, piece.degrees) for variance, piece in zip(relative, pieces, strict=True)
    ]
    return OutputEstimate(
        value=value,
        standard_error=scale * math.sqrt(math.fsum(relative)),
        degrees=joint_degrees(variances),
        covariance=math.fsum(piece.covariance_part(value) for piece in pieces),
    )


def _mean(pieces: Sequence[_Piece]) -> float:
    return math.fsum(piece.share * piece.value for piece in pieces)


def _errors(pieces: Sequence[_Piece]) -> np.ndarray:
    # Relative to the largest number, so that no square under- or overflows.
    scale = max(abs(number) for piece in pieces for number in (piece.value, piece.error)) or 1.0
    mean = _mean(pieces)
    return scale * np.sqrt([piece.variance(mean, scale) for piece in pieces])


class _Piece(NamedTuple):
    """The numbers of one piece: see the module's formula."""

    share: float
    value: float
    error: float
    variance_of_z2: float
    covariance: float
    degrees: float

    @classmethod
    def of(cls, output: OutputEstimate, share: float, variance_of_z2: float) -> _Piece:
        """An error of Z2 that is not known counts as all of it; findings say that it is not."""
        variance_of_z2 = min(variance_of_z2, 1.0)
        return cls(
            share=float(share),
            value=output.value,
            error=output.standard_error,
            variance_of_z2=variance_of_z2,
            covariance=output.covariance,
            degrees=output.degrees,
        )

    def variance(self, mean: float, scale: float) -> float:
        """What it adds to the variance of the whole, relative to a scale."""
        distance, error = (self.value - mean) / scale, self.error / scale
        spread = math.sqrt(self.variance_of_z2)
        # Where it is not known, at the worst.
        cross = abs(distance) * error * spread
        if math.isfinite(self.covariance):
            cross = min(max(distance * self.covariance / scale, -cross), cross)
        total = error**2 + (distance * spread) ** 2 + 2 * cross
        return self.share**2 * max(total, 0.0)

    def covariance_part(self, mean: float) -> float:
        own = self.covariance + (self.value - mean) * self.variance_of_z2
        return self.share**2 * own


def _pooled_sizes(outputs: Sequence[OutputEstimate], shares: np.ndarray) -> EffectiveSizes:
    magnitudes = np.nan_to_num([output.magnitude for output in outputs])

    def size(weights: np.ndarray, sizes: Iterable[float]) -> float:
        known = np.asarray(list(sizes), float)
        is_there = (weights > 0) & (known > 0)
        if not is_there.any():
            return 0.0
        return float(weights.sum() ** 2 / np.sum(weights[is_there] ** 2 / known[is_there]))

    def of_part(field: str, sizes: Iterable[float]) -> float:
        return size(shares_of([_log_z(getattr(item.parts, field)) for item in outputs]), sizes)

    return EffectiveSizes(
        z1=size(shares * magnitudes, (output.ess.z1 for output in outputs)),
        z2=size(shares, (output.ess.z2 for output in outputs)),
        plus=of_part("plus", (output.ess.plus for output in outputs)),
        minus=of_part("minus", (output.ess.minus for output in outputs)),
    )


def _log_z(part: Any) -> float:
    return -math.inf if part is None else float(part.log_z)


def pooled_evidence(
    pieces: Sequence[Evidence | None], log_coefficients: Sequence[float], *, is_one_model: bool
) -> Evidence | None:
    """The evidence of a sum of densities; a piece without evidence is one without mass.

    The weights of all pieces together have the mean ΣcZ. They are interleaved, so that every share
    of them has its share of each piece. Positions of different models have no common coordinates,
    and are left out.
    """
    found = [
        (piece, float(coefficient))
        for piece, coefficient in zip(pieces, log_coefficients, strict=True)
        if piece is not None and math.isfinite(piece.log_z)
    ]
    if not found:
        return next((piece for piece in pieces if piece is not None), None)
    log_z = np.asarray([coefficient + float(piece.log_z) for piece, coefficient in found])
    shares = shares_of(log_z)
    variances = [
        Variance.of(share, piece)
        for share, (piece, _) in zip(shares, found, strict=True)
        if share > 0
    ]
    sizes = [np.size(piece.log_weights) for piece, _ in found]
    order = interleaved(sizes)
    log_weights = np.concatenate(
        [
            np.asarray(piece.log_weights, float) + coefficient + math.log(sum(sizes) / size)
            for (piece, coefficient), size in zip(found, sizes, strict=True)
        ]
    )
    positions = np.zeros((sum(sizes), 0))
    if is_one_model:
        positions = np.concatenate([np.asarray(piece.positions) for piece, _ in found])
    arrays: dict[str, Any] = {
        "log_z": np.asarray(log_z.max() + math.log(np.exp(log_z - log_z.max()).sum())),
        "relative_variance": np.asarray(math.fsum(item.variance for item in variances)),
        "log_weights": log_weights[order],
        "positions": positions[order],
        "evaluations": np.asarray([sum(piece.num_evaluations for piece, _ in found)]),
        "gradients": np.asarray([sum(piece.num_gradients for piece, _ in found)]),
        "invalid": np.asarray([sum(piece.num_invalid for piece, _ in found)]),
        "degrees": joint_degrees(variances),
    }
    return Evidence(**arrays)


def interleaved(sizes: Sequence[int]) -> np.ndarray:
    """An order of rows that lie one piece after the other, in which each piece is spread evenly."""
    places = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
    return np.argsort(places, kind="stable")
