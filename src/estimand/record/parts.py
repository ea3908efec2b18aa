"""What a record keeps of one normalising constant, as one table of fields.

Storage, export and merging all read `PART_FIELDS`: a new field is a line there and a line in
`summarise`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from estimand.methods import Run
from estimand.sampling import log_mean, pareto_k
from estimand.trust import (
    NUM_BATCHES,
    PART_NAMES,
    Evidence,
    OutputEstimate,
    Parts,
    Status,
    has_islands,
    worst,
)

# The largest weights of each density that a record keeps, from which the tail is judged.
MAX_LARGEST = 4096

DENSITY_NAMES = {"plus": "gamma1_plus", "minus": "gamma1_minus", "normaliser": "gamma2"}
"""The density of each of an output's parts."""
CONSTANT_NAMES = {DENSITY_NAMES[field]: name for field, name in PART_NAMES.items()}
"""The normalising constant of each density: Z1_plus, Z1_minus, Z2."""
SHARED = -1
"""The number of the output of a normaliser that all outputs have in common."""


class PartSummary(NamedTuple):
    """What is known of one density, γ2 or γ1± of one output.

    The `output` of γ2 is −1 where all outputs have it in common. `largest` are the largest log
    weights in falling order; `replicate_log_z` the estimates of independent islands, or of batches
    of draws; `betas`, `acceptance` and `effective` (the share of effective particles) have a row
    for each island, and NaN where nothing is known.
    """

    name: str
    output: int
    log_z: float
    relative_variance: float
    ess: float
    pareto_k: float
    status: Status
    num_samples: int
    largest: np.ndarray
    replicate_log_z: np.ndarray
    betas: np.ndarray
    acceptance: np.ndarray
    effective: np.ndarray


class Merging(NamedTuple):
    """The summaries of one density in several runs, and how much each run counts.

    `log_z` is that of all runs together, in which a run without the part counts as Z = 0.
    """

    pieces: Sequence[PartSummary]
    shares: np.ndarray
    log_z: float

    @property
    def num_samples(self) -> int:
        return sum(piece.num_samples for piece in self.pieces)

    def largest(self) -> np.ndarray:
        """The largest weights on one scale, on which the mean of all weights is the merged Z."""
        count = self.num_samples
        scaled = [
            math.log(share * count / piece.num_samples) + piece.largest
            for share, piece in zip(self.shares, self.pieces, strict=True)
        ]
        return np.sort(np.concatenate(scaled))[::-1][:MAX_LARGEST]


class Field(NamedTuple):
    """One field of a part: its kind, and how it is merged."""

    name: str
    kind: type
    merged: Callable[[Merging], Any]

    @property
    def is_array(self) -> bool:
        return self.kind is np.ndarray


def merged_ess(shares: np.ndarray, log_z: np.ndarray, sizes: Sequence[float]) -> float:
    """(Σw)² / Σw² of all draws together, from that of each run."""
    if np.isnan(sizes).any():
        return math.nan
    if np.isnan(log_z).any():
        return float(sum(sizes))
    present = np.isfinite(log_z) & (np.asarray(sizes) > 0)
    if not present.any():
        return 0.0
    weights = shares[present] * np.exp(log_z[present] - log_z[present].max())
    return float(weights.sum() ** 2 / np.sum(weights**2 / np.asarray(sizes)[present]))


def _variance(merging: Merging) -> float:
    log_z = np.asarray([piece.log_z for piece in merging.pieces])
    relative = merging.shares * np.exp(log_z - merging.log_z)
    variances = np.asarray([piece.relative_variance for piece in merging.pieces])
    return float(np.sum(relative**2 * variances))


def _ess(merging: Merging) -> float:
    log_z = np.asarray([piece.log_z for piece in merging.pieces])
    return merged_ess(merging.shares, log_z, [piece.ess for piece in merging.pieces])


def _tail(merging: Merging) -> float:
    """The tail index of all weights; only the largest matter, so the others may be any smaller."""
    if np.isnan([piece.pareto_k for piece in merging.pieces]).any():
        return math.nan
    largest = merging.largest()
    rest = np.full(merging.num_samples - largest.size, largest[-1])
    return pareto_k(np.concatenate([largest, rest]))


def _first(name: str) -> Callable[[Merging], Any]:
    return lambda merging: getattr(merging.pieces[0], name)


def _joined(name: str) -> Callable[[Merging], np.ndarray]:
    return lambda merging: np.concatenate([getattr(piece, name) for piece in merging.pieces])


def _stacked(name: str) -> Callable[[Merging], np.ndarray]:
    def stack(merging: Merging) -> np.ndarray:
        arrays = [getattr(piece, name) for piece in merging.pieces]
        width = max(array.shape[1] for array in arrays)
        return np.concatenate(
            [
                np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=np.nan)
                for array in arrays
            ]
        )

    return stack


PART_FIELDS = (
    Field("name", str, _first("name")),
    Field("output", int, _first("output")),
    Field("log_z", float, lambda merging: merging.log_z),
    Field("relative_variance", float, _variance),
    Field("ess", float, _ess),
    Field("pareto_k", float, _tail),
    Field("status", Status, lambda merging: worst(piece.status for piece in merging.pieces)),
    Field("num_samples", int, lambda merging: merging.num_samples),
    Field("largest", np.ndarray, lambda merging: merging.largest()),
    Field("replicate_log_z", np.ndarray, _joined("replicate_log_z")),
    Field("betas", np.ndarray, _stacked("betas")),
    Field("acceptance", np.ndarray, _stacked("acceptance")),
    Field("effective", np.ndarray, _stacked("effective")),
)


def merged_part(merging: Merging) -> PartSummary:
    """One summary for several runs."""
    return PartSummary(**{field.name: field.merged(merging) for field in PART_FIELDS})


# --- from a fresh run ---


class UsedEvidence(NamedTuple):
    """The evidence that an output rests on, by the name of its density."""

    name: str
    output: int
    evidence: Evidence


def used_evidence(run: Run) -> list[UsedEvidence]:
    """All evidence with mass that outputs rest on, normalisers first and then output by output.

    A normaliser in common is there once.
    """
    normalisers = [output.parts.normaliser for output in run.outputs]
    is_shared = all(item is normalisers[0] for item in normalisers)
    used: dict[tuple[str, int], Evidence] = {}
    for fields in (("normaliser",), ("plus", "minus")):
        for number, field in itertools.product(range(len(run.outputs)), fields):
            evidence = getattr(run.outputs[number].parts, field)
            if isinstance(evidence, Evidence) and math.isfinite(evidence.log_z):
                is_common = field == "normaliser" and is_shared
                used[DENSITY_NAMES[field], SHARED if is_common else number] = evidence
    return [UsedEvidence(name, number, evidence) for (name, number), evidence in used.items()]


def find_part(items: Sequence[Any], name: str, output: int) -> Any:
    """The item of one density and output, or the one that all outputs have in common."""
    own = {(item.name, item.output): item for item in items}
    return own.get((name, output), own.get((name, SHARED)))


def with_parts(
    outputs: Sequence[OutputEstimate], parts: Sequence[PartSummary]
) -> tuple[OutputEstimate, ...]:
    """The outputs of a record that was loaded or merged, with the summaries of their parts."""
    return tuple(
        output._replace(
            parts=Parts(
                **{field: find_part(parts, name, number) for field, name in DENSITY_NAMES.items()}
            )
        )
        for number, output in enumerate(outputs)
    )


def summarise(used: UsedEvidence) -> PartSummary:
    """What a record keeps of evidence."""
    evidence = used.evidence
    log_weights = np.asarray(evidence.log_weights, float)
    temperatures = _temperatures(evidence)
    return PartSummary(
        name=used.name,
        output=used.output,
        log_z=float(evidence.log_z),
        relative_variance=float(evidence.relative_variance),
        ess=evidence.ess,
        pareto_k=pareto_k(log_weights),
        status=evidence.status,
        num_samples=log_weights.size,
        largest=np.sort(log_weights)[::-1][:MAX_LARGEST],
        replicate_log_z=_replicates(evidence),
        betas=temperatures.betas,
        acceptance=temperatures.acceptance,
        effective=temperatures.effective,
    )


class _Temperatures(NamedTuple):
    """Inverse temperatures, acceptance and share of effective particles, a row for each island."""

    betas: np.ndarray
    acceptance: np.ndarray
    effective: np.ndarray


def _temperatures(evidence: Evidence) -> _Temperatures:
    trace = evidence.trace
    if trace is None:
        nothing = np.zeros((0, 0))
        return _Temperatures(nothing, nothing, nothing)
    betas = np.atleast_2d(np.asarray(trace.betas, float))
    acceptance = np.atleast_2d(np.asarray(trace.acceptance_rate, float))
    effective = np.full(betas.shape, np.nan)
    if trace.log_weights is not None:
        path = np.asarray(trace.log_weights, float)
        path = path if path.shape[-1] == betas.shape[-1] - 1 else path.T
        tops = np.exp(path - path.max(axis=0, keepdims=True))
        effective[0, 1:] = tops.sum(axis=0) ** 2 / (tops**2).sum(axis=0) / path.shape[0]
    # A kernel that does not move at the first or at the last temperature has no acceptance there.
    missing = betas.shape[1] - acceptance.shape[1]
    first = (missing + 1) // 2
    pad = ((0, 0), (first, missing - first))
    acceptance = np.pad(acceptance, pad, constant_values=np.nan)
    known = ~np.isnan(betas).all(axis=0)
    return _Temperatures(betas[:, known], acceptance[:, known], effective[:, known])


def _replicates(evidence: Evidence) -> np.ndarray:
    """log Z of independent islands, or of batches of the draws; empty if all weights agree."""
    log_weights = independent_log_weights(evidence)
    if log_weights.size < 2:
        return np.zeros(0)
    if has_islands(evidence):
        return log_weights
    batches = np.array_split(log_weights, min(NUM_BATCHES, log_weights.size))
    return np.asarray([log_mean(batch) for batch in batches])


def independent_log_weights(evidence: Evidence) -> np.ndarray:
    """Log weights of independent pieces: of islands if there are any, else of the draws.

    Particles of one island, and draws that a Markov chain gave, have equal weights, which say
    nothing of the error.
    """
    log_weights = np.asarray(evidence.log_weights, float)
    if has_islands(evidence):
        assert evidence.trace is not None
        islands = np.shape(evidence.trace.betas)[0]
        return log_weights.reshape(islands, -1)[:, 0]
    if (log_weights == log_weights[0]).all():
        return log_weights[:1]
    return log_weights
