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

from estimand.methods import Run
from estimand.model import PARTS
from estimand.record.branches import merged_branches
from estimand.record.draws import MAX_DRAWS, KeptDraws, joined_sites, thin
from estimand.record.parts import (
    DENSITY_NAMES,
    SHARED,
    Merging,
    PartSummary,
    find_part,
    merged_ess,
    merged_part,
    with_parts,
)
from estimand.record.record import Contents, Record
from estimand.record.settling import Settling
from estimand.sampling import log_mean
from estimand.trust import (
    EffectiveSizes,
    Finding,
    OutputEstimate,
    Status,
    rule_of_three,
    thresholds,
)

# What only says that a run ended early: a further run that did not takes its place.
_CUT_SHORT = ("interruption", "time")


class MergeError(ValueError):
    """Records that cannot be merged; the message says why.

    Examples:
        >>> try:
        ...     result.merge(ep.estimate_expectation(program(3.0)))
        ... except ep.MergeError as error:
        ...     print("other data")
        other data
    """


def merge(records: Sequence[Record]) -> dict[str, Any]:
    """The fields of the record that stands for all of several runs; their order does not matter."""
    _check(records)
    records = sorted(records, key=lambda record: record.provenance.keys)
    shares = _shares(records)
    first = records[0]
    numbers = range(len(first.outputs))
    parts = _merged_parts(shares, records)
    outputs = tuple(
        _merged_output(shares, [record.outputs[k] for record in records]) for k in numbers
    )
    run = Run(
        outputs=with_parts(outputs, parts),
        num_evaluations=sum(record.num_evaluations for record in records),
        num_gradients=sum(record.num_gradients for record in records),
        notes=tuple(dict.fromkeys(note for record in records for note in record.run.notes)),
        branches=merged_branches([record.run for record in records], shares),
    )
    keys = tuple(sorted(key for record in records for key in record.provenance.keys))
    created = max(record.provenance.created for record in records)
    return {
        "program": first.program,
        "method": first.method,
        "output": first.output,
        "run": run,
        "compile_seconds": sum(record.compile_seconds for record in records),
        "run_seconds": sum(record.run_seconds for record in records),
        "provenance": dataclasses.replace(first.provenance, keys=keys, created=created),
        "density": None,
        "contents": Contents(
            parts=parts,
            draws=_merged_draws(shares, records),
            paths=tuple(_merged_path(records, k) for k in numbers),
        ),
    }


def _shares(records: Sequence[Record]) -> np.ndarray:
    costs = np.asarray([float(record.cost) for record in records])
    return costs / costs.sum()


def _check(records: Sequence[Record]) -> None:
    first, names = records[0], dict[str, int]()
    for number, record in enumerate(records, start=1):
        if not record.provenance.keys:
            raise MergeError(
                f"merge: record {number} does not say which program, data and key it is of; only "
                "records made by estimate_expectation can be merged."
            )
        for field in ("program_digest", "data_digest", "method_digest"):
            if getattr(record.provenance, field) != getattr(first.provenance, field):
                what = field.removesuffix("_digest")
                raise MergeError(
                    f"merge: record {number} has different {_other(what)} from record 1 ({what} "
                    f"{_shown(record, what)} against {_shown(first, what)}). Only runs of the "
                    "same program, data and method can be merged."
                )
        if record.precision != first.precision:
            raise MergeError(
                f"merge: record {number} is of {record.precision} precision and record 1 of "
                f"{first.precision} precision. Only runs of the same precision can be merged."
            )
        for key in record.provenance.keys:
            if key in names:
                raise MergeError(
                    f"merge: records {names[key]} and {number} have the same random key ({key}): "
                    "they are the same run twice, which adds nothing. Run it again with "
                    "another rng_key."
                )
            names[key] = number


def _other(what: str) -> str:
    return {"program": "source code", "data": "data", "method": "settings"}[what]


def _shown(record: Record, what: str) -> str:
    digest = getattr(record.provenance, f"{what}_digest")[:8]
    return {"program": record.program, "data": digest, "method": record.method}[what]


# --- outputs ---


def _merged_output(shares: np.ndarray, outputs: list[OutputEstimate]) -> OutputEstimate:
    """The mean over runs, without its parts."""
    merged = OutputEstimate(
        value=0.0,
        standard_error=math.inf,
        is_log_scale=all(
            output.is_log_scale for output in outputs if math.isfinite(output.standard_error)
        ),
        upper_bound=_merged_bound([output.upper_bound for output in outputs]),
        ess=_merged_sizes(shares, outputs),
        route=", ".join(dict.fromkeys(output.route for output in outputs if output.route)),
    )
    values = np.asarray([output.value for output in outputs])
    errors = np.asarray([output.standard_error for output in outputs])
    weights = _ratio_weights(shares, outputs)
    if not np.isfinite(errors).any():
        merged = merged._replace(value=outputs[0].value)
        return merged.with_findings(_merged_findings(outputs, merged.ess))
    value = float(weights @ values)
    magnitudes = np.nan_to_num([output.magnitude for output in outputs])
    merged = merged._replace(value=value, magnitude=float(weights @ magnitudes))
    findings = _merged_findings(outputs, merged.ess)
    if not np.isfinite(errors).all():
        # A run that found nothing belongs to the mean; its error shows between the runs only.
        variance = float(np.sum(weights**2 * (values - value) ** 2)) * len(values)
        detail = "a run found nothing, and others did"
        disagreement = Finding(Status.replicates_disagree, None, detail, "merge")
        return merged._replace(
            standard_error=math.sqrt(variance / (len(values) - 1)),
            degrees=float(len(values) - 1),
            is_log_scale=False,
        ).with_findings([disagreement, *findings])
    pieces = (weights * errors) ** 2
    degrees = np.asarray([output.degrees for output in outputs])
    covariances = np.asarray([output.covariance for output in outputs])
    merged = merged._replace(
        standard_error=math.sqrt(pieces.sum()),
        covariance=float(weights**2 @ covariances),
        degrees=float(pieces.sum() ** 2 / max(np.sum(pieces**2 / degrees), 1e-300))
        if np.isfinite(degrees).any()
        else math.inf,
    )
    return merged.with_findings([*_disagreement(values, errors, weights, degrees), *findings])


def _ratio_weights(shares: np.ndarray, outputs: list[OutputEstimate]) -> np.ndarray:
    """Weighted by share · Z2 the mean of the ratios is the ratio of the means."""
    log_z2 = np.asarray([output.parts.log_z("normaliser") for output in outputs])
    weights = shares
    if np.isfinite(log_z2).all():
        weights = shares * np.exp(log_z2 - log_z2.max())
    return weights / weights.sum()


def _merged_sizes(shares: np.ndarray, outputs: list[OutputEstimate]) -> EffectiveSizes:
    def log_z(field: str) -> np.ndarray:
        return np.asarray([output.parts.log_z(field) for output in outputs])

    with np.errstate(invalid="ignore"):
        log_z1 = np.logaddexp(log_z("plus"), log_z("minus"))
    return EffectiveSizes(
        z1=merged_ess(shares, log_z1, [output.ess.z1 for output in outputs]),
        z2=merged_ess(shares, log_z("normaliser"), [output.ess.z2 for output in outputs]),
        plus=merged_ess(shares, log_z("plus"), [output.ess.plus for output in outputs]),
        minus=merged_ess(shares, log_z("minus"), [output.ess.minus for output in outputs]),
    )


def _merged_findings(outputs: list[OutputEstimate], ess: EffectiveSizes) -> list[Finding]:
    """What was found in the runs, but for what all of them together have put right."""
    found: dict[tuple, list[Finding]] = {}
    for output in outputs:
        for finding in output.findings:
            found.setdefault((finding.status, finding.part, finding.check), []).append(finding)
    is_enough = min(ess.z1, ess.z2) >= thresholds.ENOUGH_ESS
    merged = []
    for (status, part, check), findings in found.items():
        is_made_up = check in _CUT_SHORT and len(findings) < len(outputs)
        if is_made_up or (status is Status.low_ess and is_enough):
            continue
        detail = findings[0].detail
        if not detail.startswith("in a run: "):
            detail = f"in a run: {detail}"
        merged.append(Finding(status, part, detail, check))
    return merged


def _disagreement(
    values: np.ndarray, errors: np.ndarray, weights: np.ndarray, degrees: np.ndarray
) -> list[Finding]:
    """Whether a run is farther from the mean of all than the errors explain.

    With Student's t where the errors have few degrees of freedom.
    """
    from scipy.special import stdtr

    mean = weights @ values
    variances = (1 - 2 * weights) * errors**2 + np.sum((weights * errors) ** 2)
    if (variances > 0).all():
        scores = np.abs(values - mean) / np.sqrt(variances)
        rates = 2 * stdtr(np.where(np.isfinite(degrees), degrees, 1e9), -scores)
        if rates.min() * len(values) >= thresholds.DISAGREEMENT_RATE:
            return []
        detail = f"a run is {scores[np.argmin(rates)]:.1f} standard errors from the mean of all"
    elif np.ptp(values) > 0:
        detail = "the runs differ by more than their errors, which are 0"
    else:
        return []
    return [Finding(Status.replicates_disagree, None, detail, "merge")]


def _merged_bound(bounds: list[float]) -> float:
    """After no hit in several runs: the bound of as many draws as they had together."""
    if not all(0 < bound < 1 for bound in bounds):
        return min(bounds)
    draws = sum(math.log1p(-thresholds.CONFIDENCE) / math.log1p(-bound) for bound in bounds)
    return rule_of_three(draws)


# --- what a record keeps ---


def _labels(records: Sequence[Record], kind: str) -> list[tuple[str, int]]:
    """Densities and outputs of which any record has parts, or draws.

    A normaliser is one in common only where it is that in every record.
    """
    found = {(item.name, item.output) for record in records for item in getattr(record, kind)}
    own = {label for label in found if label[0] == "gamma2" and label[1] != SHARED}
    if own:
        numbers = range(len(records[0].outputs))
        found = (found - {("gamma2", SHARED)}) | {("gamma2", number) for number in numbers}
    order = list(DENSITY_NAMES.values())
    return sorted(found, key=lambda label: (label[0] != "gamma2", label[1], order.index(label[0])))


def _merged_parts(shares: np.ndarray, records: Sequence[Record]) -> tuple[PartSummary, ...]:
    return tuple(
        _merged_part(shares, records, name, number) for name, number in _labels(records, "parts")
    )


def _merged_part(
    shares: np.ndarray, records: Sequence[Record], name: str, number: int
) -> PartSummary:
    """A run without the part has found no mass there: its Z is 0 and counts."""
    found = [find_part(record.parts, name, number) for record in records]
    is_there = np.asarray([part is not None for part in found])
    log_z = np.asarray([-math.inf if part is None else part.log_z for part in found])
    total = log_mean(np.log(shares * shares.size) + log_z)
    pieces = [part._replace(output=number) for part in found if part is not None]
    return merged_part(Merging(pieces, shares[is_there], total))


def _merged_draws(shares: np.ndarray, records: Sequence[Record]) -> tuple[KeptDraws, ...]:
    result = []
    for name, number in _labels(records, "draws"):
        pieces, log_weights = [], []
        for share, record in zip(shares, records, strict=True):
            draws = find_part(record.draws, name, number)
            part = find_part(record.parts, name, number)
            if draws is not None and part is not None:
                pieces.append(draws)
                log_weights.append(np.log(draws.weights) + math.log(share) + part.log_z)
        joined = np.concatenate(log_weights)
        rng = np.random.default_rng([len(records), PARTS.index(name), number + 1])
        thinned = thin(joined - joined.max(), MAX_DRAWS, rng)
        sites = {
            site: values[thinned.indices]
            for site, values in joined_sites([draws.sites for draws in pieces]).items()
        }
        outputs = np.concatenate([draws.outputs for draws in pieces])[thinned.indices]
        result.append(KeptDraws(name, number, thinned.log_weights, outputs, sites))
    return tuple(result)


def _merged_path(records: Sequence[Record], number: int) -> Settling:
    """The first run's path, then the estimate after each further run."""
    first = records[0].paths[number]
    costs, values, errors = [first.cost], [first.value], [first.standard_error]
    for count in range(2, len(records) + 1):
        some = records[:count]
        output = _merged_output(_shares(some), [record.outputs[number] for record in some])
        costs.append(np.asarray([float(sum(record.cost for record in some))]))
        values.append(np.asarray([output.value]))
        errors.append(np.asarray([output.standard_error]))
    return Settling(np.concatenate(costs), np.concatenate(values), np.concatenate(errors))
