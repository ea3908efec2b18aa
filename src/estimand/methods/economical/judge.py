"""Judge: the estimate of every output, its parts, and what speaks against it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from estimand.density import MAGNITUDE
from estimand.methods.economical.estimates import (
    Part,
    expected_variance,
    shares_of,
    sums_of,
    sums_of_round,
)
from estimand.methods.economical.rounds import Round
from estimand.methods.economical.target import Target
from estimand.sampling import effective_sample_size
from estimand.trust import (
    UNMET,
    EffectiveSizes,
    Evidence,
    Finding,
    Goal,
    OutputEstimate,
    Parts,
    Ratio,
    Status,
    check_goal,
    check_size,
    from_ratio,
    no_mass,
    thresholds,
    without_value,
)

# Effective evaluations that γ and γ|f| need. Not measured.
MIN_EFFECTIVE = 20.0
# The last rounds, whose estimates must agree with each other.
NUM_COMPARED = 6
GAMMA = Part(0, 0)


class Ratios(NamedTuple):
    """(Z1⁺ − Z1⁻) / Z2 with its derivatives, relative to e^log_scale."""

    value: float
    slope: np.ndarray
    magnitude: float
    log_scale: float


def judge(
    target: Target, rounds: list[Round], goal: Goal, slack: float = thresholds.SLACK
) -> tuple[OutputEstimate, ...]:
    """The estimate of every output, with its parts and findings."""
    normaliser = _evidence(target, rounds, GAMMA)
    return tuple(
        _judge_output(target, rounds, goal, output, normaliser, slack)
        for output in range(target.num_outputs)
    )


def estimate(target: Target, rounds: list[Round], output: int) -> OutputEstimate:
    """Value and error of an output alone.

    The error is the one within rounds, and the one that the surrogate expects of itself: where it
    errs seldom, the few evaluations may not have met an error yet.
    """
    parts = _parts(target, output)
    sums = sums_of(rounds, parts)
    ratio = _ratio(target, parts, sums.values, sums.scales)
    variance = float(ratio.slope @ sums.covariance @ ratio.slope)
    expected = _expected(target, rounds, parts, ratio, sums.scales)
    return from_ratio(
        Ratio(
            log_scale=ratio.log_scale,
            value=ratio.value,
            standard_error=math.sqrt(max(variance, 0.0) + expected),
            magnitude=ratio.magnitude,
        ),
        parts=Parts(),
        ess=EffectiveSizes(),
        is_one_sided=len(parts) - int(target.has_likelihood) == 1 and ratio.value > 0,
    )


def _parts(target: Target, output: int) -> list[Part]:
    """γ if it must be estimated, and γf± but for a sign that the expression rules out."""
    known = int(target.reading.known_signs[output])
    signs = [sign for sign in (1, -1) if sign * known >= 0]
    return [GAMMA] * target.has_likelihood + [Part(sign, output) for sign in signs]


def _ratio(target: Target, parts: list[Part], values: np.ndarray, scales: np.ndarray) -> Ratios:
    first = int(target.has_likelihood)
    signs = np.asarray([part.sign for part in parts], float)
    below = float(values[0]) if first else 1.0
    below = below if below > 0 else math.nan
    value = float(signs @ values) / below
    slope = signs / below
    if first:
        slope[0] = -value / below
    return Ratios(
        value=value,
        slope=slope,
        magnitude=float(np.abs(values[first:]).sum()) / below,
        log_scale=float(scales[-1] - (scales[0] if first else 0.0)),
    )


def _expected(
    target: Target, rounds: list[Round], parts: list[Part], ratio: Ratios, scales: np.ndarray
) -> float:
    """The variance of the ratio that the surrogate expects beyond what was seen."""
    first, output = int(target.has_likelihood), parts[-1].output
    found = ratio.slope[-1] ** 2 * expected_variance(rounds, first + output, float(scales[-1]))
    if first:
        found += ratio.slope[0] ** 2 * expected_variance(rounds, 0, float(scales[0]))
    return float(found)


def _judge_output(
    target: Target,
    rounds: list[Round],
    goal: Goal,
    output: int,
    normaliser: Evidence,
    slack: float,
) -> OutputEstimate:
    evidence = {part.sign: _evidence(target, rounds, part) for part in _parts(target, output)}
    parts = Parts(plus=evidence.get(1), minus=evidence.get(-1), normaliser=normaliser)
    ess = EffectiveSizes(
        z1=effective_sample_size(_log_weights(rounds, Part(MAGNITUDE, output))),
        z2=normaliser.ess,
        plus=math.nan if parts.plus is None else parts.plus.ess,
        minus=math.nan if parts.minus is None else parts.minus.ess,
    )
    if not ess.z1 > 0 or not normaliser.ess > 0:
        empty = "the target" if normaliser.ess > 0 else "the posterior"
        missing = no_mass(f"no evaluation has mass of {empty}")
        return without_value(
            missing, *_nan_findings(target, rounds, output, 0.0), parts=parts, ess=ess
        )
    found = estimate(target, rounds, output)._replace(parts=parts, ess=ess)
    if found.findings:
        return found
    return found.with_findings(
        [
            *_nan_findings(target, rounds, output, found.magnitude),
            *check_size(ess.z1, "Z1", MIN_EFFECTIVE),
            *(check_size(ess.z2, "Z2", MIN_EFFECTIVE) if target.has_likelihood else ()),
            *_unmet_terms(target, rounds, output, goal.allowed(found)),
            *_disagreement(target, rounds, output),
            *check_goal(found, goal, slack),
        ]
    )


def _evidence(target: Target, rounds: list[Round], part: Part) -> Evidence:
    """The evaluations as weighted draws of one part, with the Z that the rounds say."""
    is_known = not part.sign and not target.has_likelihood
    log_weights = _log_weights(rounds, part)
    log_z, variance = 0.0, 0.0
    if not is_known:
        sums = sums_of(rounds, [part])
        value = float(sums.values[0])
        log_z = float(sums.scales[0]) + math.log(value) if value > 0 else -math.inf
        variance = float(sums.covariance[0, 0]) / value**2 if value > 0 else math.inf
    if np.isfinite(log_weights).any() and math.isfinite(log_z):
        top = log_weights.max()
        log_weights = log_weights - top - math.log(np.mean(np.exp(log_weights - top))) + log_z
    else:
        log_weights = np.full(log_weights.size, -math.inf)
        log_z, variance = -math.inf, math.inf
    zeros: Any = np.zeros(log_weights.size, np.int32)
    points = np.concatenate([one.found.points for one in rounds])
    arrays: Any = {
        "log_z": np.asarray(log_z),
        "relative_variance": np.asarray(variance),
        "log_weights": log_weights,
        "positions": target.positions(points),
    }
    return Evidence(**arrays, evaluations=zeros, gradients=zeros, invalid=zeros)


def _log_weights(rounds: list[Round], part: Part) -> np.ndarray:
    pieces = [
        math.log(share)
        + np.log(one.counts / one.size)
        + one.log_factors
        + part.log_sizes(one.found.values)
        for share, one in zip(shares_of(rounds), rounds, strict=True)
    ]
    return np.concatenate(pieces)


# --- what speaks against an estimate ---


def _nan_findings(
    target: Target, rounds: list[Round], output: int, magnitude: float
) -> list[Finding]:
    """Failed points where there could be mass, by what the surrogate says of them."""
    first = int(target.has_likelihood)
    total, failed = 0.0, []
    for share, one in zip(shares_of(rounds), rounds, strict=True):
        is_bad = ~one.found.is_fine
        if not is_bad.any():
            continue
        values = one.pool.values
        logs = np.logaddexp(
            values.log_weights(output)[one.chosen], one.pool.log_doubts[one.chosen, first + output]
        )
        with np.errstate(over="ignore"):
            sizes = np.exp(one.log_factors + logs) * one.counts / one.size
        total += share * float(sizes[is_bad].sum())
        failed += _failures(target, one, is_bad)
    below = 1.0
    if first:
        sums = sums_of(rounds, [GAMMA])
        below = float(sums.values[0]) * thresholds.exp(float(sums.scales[0]))
    if not failed or total <= thresholds.MAX_NAN_SHARE * magnitude * below:
        return []
    more = f", and at {len(failed) - 1} more points" if len(failed) > 1 else ""
    detail = f"the simulator failed where there could be mass: {failed[0]}{more}"
    return [Finding(Status.nan_density, None, detail, "numbers")]


def _failures(target: Target, one: Round, is_bad: np.ndarray) -> list[str]:
    rows = target.inputs(one.found.points[is_bad])
    outputs = one.found.outputs[is_bad]
    errors = [one.found.errors[place] for place in np.flatnonzero(is_bad)]
    return [target.simulator.told(*item) for item in zip(rows, outputs, errors, strict=True)]


def _unmet_terms(target: Target, rounds: list[Round], output: int, allowed: float) -> list[Finding]:
    """Terms of an output that no evaluation has met, and that the surrogate cannot rule out."""
    findings, first = [], int(target.has_likelihood)
    for number, look in enumerate(target.looks, target.num_outputs):
        if look.output != output:
            continue
        if any(np.isfinite(one.found.values.log_weights(number)).any() for one in rounds):
            continue
        pool = rounds[-1].pool
        count = pool.chances.size
        weights = np.exp(pool.log_weights[:count]) / count
        with np.errstate(over="ignore"):
            bound = float(weights @ np.exp(pool.log_doubts[:, first + number]))
        if bound > allowed:
            detail = (
                f"the term in {look.text} is 0 at all evaluations, and what was missed could add "
                f"{bound:.2g}"
            )
            findings.append(Finding(Status.not_converged, None, detail, UNMET))
    return findings


def _disagreement(target: Target, rounds: list[Round], output: int) -> list[Finding]:
    """Whether the last rounds are farther apart than their errors explain."""
    from scipy.stats import chi2

    some = rounds[-NUM_COMPARED:]
    parts = _parts(target, output)
    sums = sums_of(rounds, parts)
    whole = _ratio(target, parts, sums.values, sums.scales)
    distances = []
    for one in some:
        found = sums_of_round(one, parts, sums.scales)
        away = float(whole.slope @ (found.values - sums.values))
        own = float(whole.slope @ found.covariance @ whole.slope)
        expected = _expected(target, [one], parts, whole, sums.scales)
        if own + expected > 0:
            distances.append(away**2 / (own + expected))
    if not distances or chi2.sf(sum(distances), len(distances)) > thresholds.DISAGREEMENT_RATE:
        return []
    detail = (
        f"the estimates of the last {len(distances)} rounds are {math.sqrt(max(distances)):.2g} "
        "standard errors away from the whole"
    )
    return [Finding(Status.replicates_disagree, None, detail, "agreement")]
