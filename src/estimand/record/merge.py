"""Merging: records of the same program, data and method from different keys become one.

Normalising constants are averaged, not ratios: the mean of Ẑ over runs is unbiased where each Ẑ
is, and E[f] is then taken from the means. Runs count by their cost, never by their estimated
error, which is low where the estimate is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from estimand.methods.protocol import CONFIDENCE, Figures, Run, rule_of_three, worst
from estimand.model.program import PARTS
from estimand.record.record import (
    MAX_DRAWS,
    MAX_LARGEST,
    Contents,
    Draws,
    PartSummary,
    Path,
    Record,
    thin,
)
from estimand.sampling.weights import log_mean, pareto_k
from estimand.trust.evidence import Evidence
from estimand.trust.status import Status

# Effective draws from which on a merged estimate's error is believed where its pieces' were not.
ENOUGH_EFFECTIVE = 400.0
# Runs that are farther apart than their errors explain, at this rate, disagree.
DISAGREEMENT_RATE = 1e-4


class MergeError(ValueError):
    """Records that cannot be merged; the message says why."""


def merge(records: Sequence[Record]) -> dict[str, Any]:
    """The fields of the record that stands for all of several runs; their order does not matter."""
    _check(records)
    records = sorted(records, key=lambda record: record.origin.keys)
    costs = np.asarray([float(record.cost) for record in records])
    shares = costs / costs.sum()
    first = records[0]
    outputs = range(len(first.run.figures))
    runs = [record.run for record in records]
    figures = tuple(
        _merged_figures(shares, [run.figures[k] for run in runs], runs) for k in outputs
    )
    evidence: tuple[tuple[str, Evidence], ...] = ()
    log_z2 = np.asarray([run.log_z2 for run in runs])
    run = Run(
        figures=figures,
        num_evaluations=sum(run.num_evaluations for run in runs),
        num_gradients=sum(run.num_gradients for run in runs),
        ess_z2=_merged_ess(shares, log_z2, [run.ess_z2 for run in runs]),
        log_z2=_log_average(shares, log_z2),
        evidence=evidence,
        notes=tuple(dict.fromkeys(note for run in runs for note in run.notes)),
    )
    keys = tuple(sorted(key for record in records for key in record.origin.keys))
    created = max(record.origin.created for record in records)
    return {
        "program": first.program,
        "method": first.method,
        "output": first.output,
        "run": run,
        "compile_seconds": sum(record.compile_seconds for record in records),
        "run_seconds": sum(record.run_seconds for record in records),
        "origin": dataclasses.replace(first.origin, keys=keys, created=created),
        "density": None,
        "contents": Contents(
            parts=_merged_parts(shares, records),
            draws=_merged_draws(shares, records),
            paths=tuple(_merged_path(records, k) for k in outputs),
        ),
    }


def _check(records: Sequence[Record]) -> None:
    first, names = records[0], dict[str, int]()
    for number, record in enumerate(records, start=1):
        if not record.origin.keys:
            raise MergeError(
                f"merge: record {number} does not say which program, data and key it is of; only "
                "records made by estimate_expectation can be merged."
            )
        for field in ("program_digest", "data_digest", "method_digest"):
            if getattr(record.origin, field) != getattr(first.origin, field):
                what = field.removesuffix("_digest")
                raise MergeError(
                    f"merge: record {number} is of other {_other(what)} than record 1 ({what} "
                    f"{_shown(record, what)} against {_shown(first, what)}). Only runs of the "
                    "same program, data and method can be merged."
                )
        for key in record.origin.keys:
            if key in names:
                raise MergeError(
                    f"merge: records {names[key]} and {number} have the same random key ({key}): "
                    "they are the same run twice, which adds no knowledge. Run it again with "
                    "another rng_key."
                )
            names[key] = number


def _other(what: str) -> str:
    return {"program": "source code", "data": "data", "method": "settings"}[what]


def _shown(record: Record, what: str) -> str:
    digest = getattr(record.origin, f"{what}_digest")[:8]
    return {"program": record.program, "data": digest, "method": record.method}[what]


# --- figures ---


def _merged_figures(shares: np.ndarray, figures: list[Figures], runs: list[Run]) -> Figures:
    values = np.asarray([item.value for item in figures])
    errors = np.asarray([item.standard_error for item in figures])
    log_z2 = np.asarray([run.log_z2 for run in runs])
    log_plus = np.asarray([item.log_z1_plus for item in figures])
    log_minus = np.asarray([item.log_z1_minus for item in figures])
    has_z2 = np.isfinite(log_z2).all()
    # Weighted by share · Z2 the mean of the ratios is the ratio of the means.
    weights = shares * np.exp(log_z2 - log_z2.max()) if has_z2 else shares
    weights = weights / weights.sum()
    with np.errstate(invalid="ignore"):
        log_z1 = np.logaddexp(log_plus, log_minus)
    merged = figures[0]._replace(
        ess_z1=_merged_ess(shares, log_z1, [x.ess_z1 for x in figures]),
        is_log_scale=all(item.is_log_scale for item in figures if np.isfinite(item.standard_error)),
        upper_bound=_merged_bound([item.upper_bound for item in figures]),
        log_z1_plus=_log_average(shares, log_plus),
        log_z1_minus=_log_average(shares, log_minus),
        ess_z1_plus=_merged_ess(shares, log_plus, [item.ess_z1_plus for item in figures]),
        ess_z1_minus=_merged_ess(shares, log_minus, [item.ess_z1_minus for item in figures]),
    )
    if not np.isfinite(errors).any():
        return merged._replace(status=worst([item.status for item in figures]))
    value = float(weights @ values)
    magnitudes = np.nan_to_num([item.magnitude for item in figures])
    merged = merged._replace(value=value, magnitude=float(weights @ magnitudes))
    if not np.isfinite(errors).all():
        # A run that found nothing belongs to the mean; its error shows between the runs only.
        spread = float(np.sum(weights**2 * (values - value) ** 2)) * len(values)
        return merged._replace(
            standard_error=math.sqrt(spread / (len(values) - 1)),
            degrees=float(len(values) - 1),
            status=worst([Status.replicates_disagree, *(item.status for item in figures)]),
            is_log_scale=False,
        )
    pieces = (weights * errors) ** 2
    degrees = np.asarray([item.degrees for item in figures])
    merged = merged._replace(
        standard_error=math.sqrt(pieces.sum()),
        degrees=float(pieces.sum() ** 2 / max(np.sum(pieces**2 / degrees), 1e-300))
        if np.isfinite(degrees).any()
        else math.inf,
    )
    ess = min(merged.ess_z1, _merged_ess(shares, log_z2, [run.ess_z2 for run in runs]))
    statuses = [_mended(item.status, ess) for item in figures]
    if _disagree(values, errors, weights, degrees):
        statuses.append(Status.replicates_disagree)
    return merged._replace(status=worst(statuses))


def _mended(status: Status, ess: float) -> Status:
    return Status.ok if status is Status.low_ess and ess >= ENOUGH_EFFECTIVE else status


def _disagree(
    values: np.ndarray, errors: np.ndarray, weights: np.ndarray, degrees: np.ndarray
) -> bool:
    """Whether a run is farther from the mean of all than the errors explain.

    With Student's t where the errors have few degrees of freedom.
    """
    from scipy.special import stdtr

    mean = weights @ values
    variances = (1 - 2 * weights) * errors**2 + np.sum((weights * errors) ** 2)
    if not (variances > 0).all():
        return bool(np.ptp(values) > 0)
    scores = np.abs(values - mean) / np.sqrt(variances)
    rates = 2 * stdtr(np.where(np.isfinite(degrees), degrees, 1e9), -scores)
    return bool(rates.min() * len(values) < DISAGREEMENT_RATE)


def _merged_bound(bounds: list[float]) -> float:
    """After no hit in several runs: the bound of as many draws as they had together."""
    if not all(0 < bound < 1 for bound in bounds):
        return min(bounds)
    draws = sum(math.log1p(-CONFIDENCE) / math.log1p(-bound) for bound in bounds)
    return rule_of_three(draws)


def _log_average(shares: np.ndarray, log_values: np.ndarray) -> float:
    if np.isnan(log_values).any():
        return math.nan
    return log_mean(np.log(shares * shares.size) + log_values)


def _merged_ess(shares: np.ndarray, log_z: np.ndarray, sizes: list[float]) -> float:
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


# --- what a record keeps ---


def _labels(groups: list[tuple]) -> list[tuple[str, int]]:
    found = {(item.name, item.output) for group in groups for item in group}
    return sorted(
        found, key=lambda label: (PARTS.index(label[0]) != 2, label[1], label[0] != "gamma1_plus")
    )


def _merged_parts(shares: np.ndarray, records: Sequence[Record]) -> tuple[PartSummary, ...]:
    return tuple(
        _merged_part(shares, [record.part(name, output) for record in records], name, output)
        for name, output in _labels([record.parts for record in records])
    )


def _merged_part(
    shares: np.ndarray, parts: list[PartSummary | None], name: str, output: int
) -> PartSummary:
    """A run without the part has found no mass there: its Z is 0 and counts."""
    there = [(share, part) for share, part in zip(shares, parts, strict=True) if part is not None]
    pieces = [part for _, part in there]
    part_shares = np.asarray([share for share, _ in there])
    log_z = np.asarray([part.log_z for part in pieces])
    total = _log_average(shares, np.asarray([-math.inf if p is None else p.log_z for p in parts]))
    relative = part_shares * np.exp(log_z - total)
    variances = np.asarray([part.relative_variance for part in pieces])
    count = sum(part.num_samples for part in pieces)
    # On one scale, on which the mean of all weights is the merged Z.
    scales = [math.log(share * count / part.num_samples) for share, part in there]
    largest = np.concatenate([s + p.largest for s, p in zip(scales, pieces, strict=True)])
    largest = np.sort(largest)[::-1][:MAX_LARGEST]
    return PartSummary(
        name=name,
        output=output,
        log_z=total,
        relative_variance=float(np.sum(relative**2 * variances)),
        ess=_merged_ess(part_shares, log_z, [part.ess for part in pieces]),
        pareto_k=_merged_tail(pieces, largest, count),
        status=worst([part.status for part in pieces]),
        num_samples=count,
        largest=largest,
        replicate_log_z=np.concatenate([part.replicate_log_z for part in pieces]),
        betas=_stacked([part.betas for part in pieces]),
        acceptance=_stacked([part.acceptance for part in pieces]),
        effective=_stacked([part.effective for part in pieces]),
    )


def _merged_tail(pieces: list[PartSummary], largest: np.ndarray, count: int) -> float:
    """The tail index of all weights; only the largest matter, so the others may be any smaller."""
    if np.isnan([part.pareto_k for part in pieces]).any():
        return math.nan
    return pareto_k(np.concatenate([largest, np.full(count - largest.size, largest[-1])]))


def _stacked(arrays: list[np.ndarray]) -> np.ndarray:
    width = max(array.shape[1] for array in arrays)
    return np.concatenate(
        [
            np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=np.nan)
            for array in arrays
        ]
    )


def _merged_draws(shares: np.ndarray, records: Sequence[Record]) -> tuple[Draws, ...]:
    result = []
    for name, output in _labels([record.draws for record in records]):
        there = [
            (share, draws, part.log_z)
            for share, record in zip(shares, records, strict=True)
            if (draws := record.draws_of(name, output)) is not None
            and (part := record.part(name, output)) is not None
        ]
        log_weights = np.concatenate(
            [np.log(draws.weights) + math.log(share) + log_z for share, draws, log_z in there]
        )
        log_weights = log_weights - log_weights.max()
        rng = np.random.default_rng([len(records), PARTS.index(name), output + 1])
        chosen, log_weights = thin(log_weights, MAX_DRAWS, rng)
        pieces = [draws for _, draws, _ in there]
        sites = {
            site: np.concatenate([draws.sites[site] for draws in pieces])[chosen]
            for site in pieces[0].sites
        }
        outputs = np.concatenate([draws.outputs for draws in pieces])[chosen]
        result.append(Draws(name, output, log_weights, outputs, sites))
    return tuple(result)


def _merged_path(records: Sequence[Record], output: int) -> Path:
    """The first run's path, then the estimate after each further run."""
    first = records[0].paths[output]
    costs, values, errors = [first.cost], [first.value], [first.standard_error]
    for number in range(2, len(records) + 1):
        runs = [record.run for record in records[:number]]
        spent = np.asarray([float(record.cost) for record in records[:number]])
        figures = _merged_figures(spent / spent.sum(), [run.figures[output] for run in runs], runs)
        costs.append(np.asarray([spent.sum()]))
        values.append(np.asarray([figures.value]))
        errors.append(np.asarray([figures.standard_error]))
    return Path(np.concatenate(costs), np.concatenate(values), np.concatenate(errors))
