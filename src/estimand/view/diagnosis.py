"""What a record says about its own estimate: diagnostics, a verdict, and advice.

Everything here is worked out from the record alone, also from one that was loaded or merged.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from estimand.record import CONSTANT_NAMES, PartSummary, Record
from estimand.trust import Finding, OutputEstimate, Status, thresholds
from estimand.view.remedies import message


class PartDiagnosis(NamedTuple):
    """One normalising constant of an output.

    `ess` is (Σw)²/Σw², as the paper has it; `largest_share` the share of the largest weight;
    `error_share` the part's share of the variance of the estimate, as if the parts were
    independent; `deviation` the relative standard deviation of Z between replicates (islands, or
    batches of draws) and `farthest` the distance of the farthest from their mean in those.
    `num_temperatures` and the range of `acceptance` rates are of the way from the prior to the
    target, 0 and NaN for a method that has none.
    """

    name: str
    log_z: float
    standard_error: float
    ess: float
    num_samples: int
    pareto_k: float
    largest_share: float
    error_share: float
    num_replicates: int
    deviation: float
    farthest: float
    num_temperatures: int
    acceptance: tuple[float, float]
    status: Status


class PlainSampling(NamedTuple):
    """What averaging f over as many posterior draws as densities were evaluated would have said.

    `num_hits` of the `num_draws` draws are at places where f is not 0. `standard_error` is what
    the draws say of their own error; `true_error` is the error that they have.
    """

    num_draws: int
    num_hits: int
    value: float
    standard_error: float
    true_error: float

    def __str__(self) -> str:
        if self.num_hits == 0:
            return f"0 of {self.num_draws:,} draws reached the target"
        number = f"{self.value:.4g} ± {self.standard_error:.2g}"
        return f"{number} ({self.num_hits:,} of {self.num_draws:,} draws reached the target)"


class Diagnosis(NamedTuple):
    """The evidence for and against the estimate of one output.

    `cancellation` is |Z1⁺ − Z1⁻| / (Z1⁺ + Z1⁻): 1 for f of one sign, near 0 where its signs
    cancel. `plain` is None where the method keeps no draws; `gain` is how many times the error of
    the estimate that of plain draws would be, infinite where none reaches the target.
    """

    label: str
    relative_error: float
    cancellation: float
    parts: tuple[PartDiagnosis, ...]
    plain: PlainSampling | None
    gain: float
    verdict: str
    advice: str


def diagnose(record: Record) -> tuple[Diagnosis, ...]:
    """The diagnosis of every output."""
    return tuple(_diagnose_output(record, output) for output in range(len(record.outputs)))


def _diagnose_output(record: Record, number: int) -> Diagnosis:
    output = record.outputs[number]
    relative_error = math.inf
    if output.value != 0 and math.isfinite(output.standard_error):
        relative_error = output.standard_error / abs(output.value)
    cancellation = _cancellation(output)
    parts = _part_diagnoses(record, number)
    plain = plain_sampling(record, number)
    gain = _gain(output, plain)
    return Diagnosis(
        label=record.output.labels[number],
        relative_error=relative_error,
        cancellation=cancellation,
        parts=parts,
        plain=plain,
        gain=gain,
        verdict=_verdict(record, number, relative_error),
        advice=_advice(output, cancellation, parts, plain, gain),
    )


def _cancellation(output: OutputEstimate) -> float:
    logs = np.asarray([output.parts.log_z("plus"), output.parts.log_z("minus")])
    if np.isnan(logs).any() or not np.isfinite(logs).any():
        return math.nan
    plus, minus = np.exp(logs - logs.max())
    return float(abs(plus - minus) / (plus + minus))


def _part_diagnoses(record: Record, output: int) -> tuple[PartDiagnosis, ...]:
    found = [record.part(name, output) for name in ("gamma1_plus", "gamma1_minus", "gamma2")]
    parts = [part for part in found if part is not None]
    variances = _variance_pieces(parts)
    total = sum(variances.values())
    result = []
    for part in parts:
        replicates = _compare_replicates(part.replicate_log_z)
        share = variances[part.name] / total if 0 < total < math.inf else math.nan
        result.append(
            PartDiagnosis(
                name=CONSTANT_NAMES[part.name],
                log_z=part.log_z,
                standard_error=math.sqrt(part.relative_variance),
                ess=part.ess,
                num_samples=part.num_samples,
                pareto_k=part.pareto_k,
                largest_share=math.exp(part.largest[0] - part.log_z) / part.num_samples,
                error_share=share,
                num_replicates=part.replicate_log_z.size,
                deviation=replicates.deviation,
                farthest=replicates.farthest,
                num_temperatures=part.betas.shape[1],
                acceptance=_range(part.acceptance),
                status=part.status,
            )
        )
    return tuple(result)


def _range(values: np.ndarray) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    return (float(known.min()), float(known.max())) if known.size else (math.nan, math.nan)


def _variance_pieces(parts: list[PartSummary]) -> dict[str, float]:
    """Z₊²v₊, Z₋²v₋ and (Z₊ − Z₋)²v₂, up to a common factor; v are relative variances."""
    targets = [part for part in parts if part.name != "gamma2"]
    top = max((part.log_z for part in targets), default=0.0)
    sizes = {part.name: math.exp(part.log_z - top) for part in targets}
    difference = sizes.get("gamma1_plus", 0.0) - sizes.get("gamma1_minus", 0.0)
    return {
        part.name: sizes.get(part.name, difference) ** 2 * part.relative_variance for part in parts
    }


class _Replicates(NamedTuple):
    """How far replicates are apart: see `PartDiagnosis`."""

    deviation: float
    farthest: float


def _compare_replicates(log_z: np.ndarray) -> _Replicates:
    if log_z.size < 2 or not np.isfinite(log_z).any():
        return _Replicates(math.nan, math.nan)
    ratios = np.exp(log_z - np.max(log_z))
    deviation = ratios.std(ddof=1)
    if not deviation > 0:
        return _Replicates(0.0, 0.0)
    farthest = np.abs(ratios - ratios.mean()).max() / deviation
    return _Replicates(float(deviation / ratios.mean()), float(farthest))


# --- what plain posterior sampling would have said ---


def plain_sampling(record: Record, output: int) -> PlainSampling | None:
    """Averages f over posterior draws made from the record's own, or gives None without any.

    The posterior is put together from the draws of all densities (the balance heuristic), so that
    places with little posterior mass that γf± knows are there with their right small mass.
    """
    if record.draws_of("gamma2", output) is None:
        return None
    f, mass = posterior_sample(record, output)
    if not mass.any():
        return None
    f, mass = _calibrated(f, mass, record.outputs[output].value)
    # One for each density evaluated: generous to a Markov chain, whose draws cost more.
    count = max(1, record.num_evaluations + record.num_gradients)
    hits = np.random.default_rng(0).multinomial(count, mass)
    scale = float(np.abs(f).max()) or 1.0
    mean = float(hits @ (f / scale)) / count
    variance = float(hits @ (f / scale - mean) ** 2) / max(count - 1, 1)
    true_variance = float(mass @ (f / scale - mass @ (f / scale)) ** 2)
    return PlainSampling(
        num_draws=count,
        num_hits=int(hits[f != 0].sum()),
        value=mean * scale,
        standard_error=math.sqrt(variance / count) * scale,
        true_error=math.sqrt(true_variance / count) * scale,
    )


def _calibrated(f: np.ndarray, mass: np.ndarray, value: float) -> tuple[np.ndarray, np.ndarray]:
    """Masses tilted so that the mean of f is the estimate, which rests on more draws than these."""
    mass = mass / mass.sum()
    scaled = f / (float(np.abs(f).max()) or 1.0)
    mean, square = mass @ scaled, mass @ scaled**2
    variance = mass @ (scaled - mean) ** 2
    # Rounding alone gives a constant f some variance.
    if variance > 1e-12 * square:
        slope = (value / np.abs(f).max() - mean) / variance
        tilted = mass * np.maximum(1 + slope * (scaled - mean), 0.0)
        mass = tilted / tilted.sum() if tilted.any() else mass
    return f, mass


def posterior_sample(record: Record, output: int) -> tuple[np.ndarray, np.ndarray]:
    """Values of f at all kept draws, and the posterior mass that each stands for."""
    parts = record.outputs[output].parts
    log_ratios = {
        "gamma1_plus": parts.log_z("normaliser") - parts.log_z("plus"),
        "gamma1_minus": parts.log_z("normaliser") - parts.log_z("minus"),
    }
    found = [record.draws_of(name, output) for name in ("gamma2", *log_ratios)]
    groups = [draws for draws in found if draws is not None]
    sizes = {draws.name: 1 / np.sum(draws.weights**2) for draws in groups}
    values, masses = [], []
    for draws in groups:
        f = draws.outputs[:, output]
        mixture = np.full(f.shape, sizes["gamma2"])
        for name, sign in (("gamma1_plus", 1.0), ("gamma1_minus", -1.0)):
            if name in sizes and math.isfinite(log_ratios[name]):
                with np.errstate(divide="ignore", over="ignore"):
                    ratio = np.exp(np.log(np.maximum(sign * f, 0.0)) + log_ratios[name])
                mixture = mixture + sizes[name] * ratio
        values.append(f)
        masses.append(sizes[draws.name] * draws.weights / mixture)
    f, mass = np.concatenate(values), np.concatenate(masses)
    is_number = np.isfinite(f) & np.isfinite(mass)
    return f[is_number], mass[is_number]


# --- words ---


def percent(share: float) -> str:
    """A share as a percentage with two significant digits."""
    return f"{float(f'{100 * share:.2g}'):g} %" if math.isfinite(share) else "unknown"


def _verdict(record: Record, number: int, relative_error: float) -> str:
    output = record.outputs[number]
    if output.is_zero:
        return "The value is exact: by its expression, the output is 0 whatever is drawn."
    if output.status is Status.ok:
        return (
            "The estimate can be used: all checks passed, and its relative error is "
            f"{percent(relative_error)}."
        )
    details = "; ".join(map(str, sorted_findings(output)))
    return f"The estimate cannot be trusted ({details}). {message(record, number)}"


def sorted_findings(output: OutputEstimate) -> list[Finding]:
    """The findings about an output, the most severe first."""
    return sorted(output.findings, key=lambda finding: -finding.status.severity)


def _gain(output: OutputEstimate, plain: PlainSampling | None) -> float:
    if plain is None or output.is_zero:
        return math.nan
    if plain.num_hits == 0:
        return math.inf
    return plain.true_error / output.standard_error if output.standard_error > 0 else math.nan


def _advice(
    output: OutputEstimate,
    cancellation: float,
    parts: tuple[PartDiagnosis, ...],
    plain: PlainSampling | None,
    gain: float,
) -> str:
    if output.status is not Status.ok and (words := _what_is_wrong(parts)):
        return words
    if cancellation < thresholds.STRONG_CANCELLATION:
        return (
            "The two signs of f nearly cancel, which leaves "
            f"{percent(cancellation)} of E|f|: look at the standard error rather than at the "
            "relative one."
        )
    if output.status is not Status.ok:
        return _main_source(parts)
    if plain is None or math.isnan(gain):
        return ""
    if math.isinf(gain):
        return (
            f"Averaging {plain.num_draws:,} posterior draws would have said 0 ± 0: none of them "
            "reaches the target."
        )
    if gain < 1.5:
        return "Averaging as many posterior draws would have been just as good here."
    return (
        f"Averaging as many posterior draws would have had {rounded(gain)} times the error; it "
        f"needs {rounded(gain**2)} times as many draws to match it."
    )


def rounded(number: float) -> str:
    """Two significant digits, in words where there are many zeros."""
    short = float(f"{number:.2g}")
    for word, size in (("billion", 1e9), ("million", 1e6)):
        if size <= short < 1000 * size:
            return f"{short / size:g} {word}"
    return f"{short:,.0f}" if 10 <= short < 1e6 else f"{short:g}"


def _what_is_wrong(parts: tuple[PartDiagnosis, ...]) -> str:
    """The part that needs more effort most, and why; nothing if no part stands out."""
    stuck = [part for part in parts if part.acceptance[0] < thresholds.LOW_ACCEPTANCE]
    if stuck:
        part = min(stuck, key=lambda part: part.acceptance[0])
        return (
            f"On the way to {part.name} no more than {percent(part.acceptance[0])} of the moves "
            "are accepted at some temperature: take a smaller step or another kernel."
        )
    poor = [part for part in parts if part.ess < thresholds.MIN_ESS]
    if poor:
        part = min(poor, key=lambda part: part.ess)
        return (
            f"{part.name} rests on {part.ess:.0f} effective draws of {part.num_samples:,}: give "
            "that part more samples, more temperatures or a better kernel."
        )
    tails = [
        part
        for part in parts
        if part.pareto_k > thresholds.MAX_PARETO_K
        and part.largest_share > thresholds.MAX_WEIGHT_SHARE
    ]
    if tails:
        part = max(tails, key=lambda part: part.pareto_k)
        return f"The weights of {part.name} have a Pareto tail index of {part.pareto_k:.2f}."
    apart = [part for part in parts if part.farthest > thresholds.FAR and part.num_replicates >= 8]
    if apart:
        part = max(apart, key=lambda part: part.farthest)
        return (
            f"One replicate of {part.name} is {part.farthest:.1f} standard deviations from the "
            "others."
        )
    return ""


def _main_source(parts: tuple[PartDiagnosis, ...]) -> str:
    shares = [part for part in parts if math.isfinite(part.error_share)]
    if not shares:
        return ""
    part = max(shares, key=lambda part: part.error_share)
    return f"{percent(part.error_share)} of the error comes from {part.name}."
