"""Judge: what the draws and the explorations say of every output."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from estimand.methods.adaptive.ascents import Ascents, lonely_share
from estimand.methods.adaptive.draws import (
    GAMMA2,
    Means,
    Part,
    output_estimate,
    part_evidence,
)
from estimand.methods.adaptive.looks import NEGLIGIBLE, check_looks
from estimand.methods.adaptive.numbers import largest_nan_share
from estimand.methods.adaptive.plan import Plan, State, means_of
from estimand.trust import (
    Evidence,
    Finding,
    OutputEstimate,
    Parts,
    Status,
    check_goal,
    check_size,
    check_tail,
    no_mass,
    thresholds,
    without_value,
)


def judge(plan: Plan, state: State) -> tuple[OutputEstimate, ...]:
    """The estimate of every output, with its parts and findings."""
    if state.draws is None:
        is_nan = state.has_nan or (
            state.probe is not None and state.probe.nan_mass(plan.density.num_outputs) > 0
        )
        finding = _nan_finding() if is_nan else no_mass("no draw of the prior has mass")
        return (without_value(finding),) * plan.density.num_outputs
    means = means_of(plan, state)
    evidence = {
        part: part_evidence(means, part, state.unseen.get(part, 0.0)) for part in plan.parts
    }
    outputs = range(plan.density.num_outputs)
    return tuple(_judge_output(plan, state, means, evidence, output) for output in outputs)


class PartJudgement(NamedTuple):
    """Evidence of one density on its own, and what speaks against it."""

    evidence: Evidence
    findings: tuple[Finding, ...]


def part_only(plan: Plan, state: State) -> PartJudgement:
    """The draws as evidence of the only part of the plan."""
    part = plan.parts[0]
    if state.draws is None:
        finding = _nan_finding() if state.has_nan else no_mass("no draw of the prior has mass")
        return PartJudgement(_empty_evidence(plan), (finding,))
    means = means_of(plan, state)
    evidence = part_evidence(means, part, state.unseen.get(part, 0.0))
    if not math.isfinite(evidence.log_z):
        return PartJudgement(evidence, (no_mass(f"all {state.draws.size:,} weights are 0"),))
    findings = [_missed_finding(part)] if part in state.missed else []
    findings += _thin_exploration(plan, state)
    if findings:
        evidence = evidence._replace(relative_variance=np.asarray(math.inf))  # type: ignore[arg-type]
    log_weights = state.draws.log_weights(part)
    findings += check_tail(log_weights, part.constant)
    findings += check_size(means.ess(part), part.constant, thresholds.ENOUGH_ESS)
    if has_nan(state, part):
        findings.append(_nan_finding())
    return PartJudgement(evidence, tuple(findings))


def _empty_evidence(plan: Plan) -> Evidence:
    zeros = np.zeros(2, np.int32)
    return Evidence(
        log_z=np.asarray(-math.inf),  # type: ignore[arg-type]
        relative_variance=np.asarray(math.inf),  # type: ignore[arg-type]
        log_weights=np.full(2, -math.inf),  # type: ignore[arg-type]
        positions=np.zeros((2, plan.density.dimension)),  # type: ignore[arg-type]
        evaluations=zeros,  # type: ignore[arg-type]
        gradients=zeros,  # type: ignore[arg-type]
        invalid=zeros,  # type: ignore[arg-type]
    )


def _judge_output(
    plan: Plan, state: State, means: Means, evidence: dict[Part, Evidence], output: int
) -> OutputEstimate:
    own = {"normaliser": GAMMA2, "plus": Part(1, output), "minus": Part(-1, output)}
    parts = Parts(**{field: evidence.get(part) for field, part in own.items()})
    estimate = output_estimate(means, output, parts)
    if state.has_nan or any(has_nan(state, part) for part in own.values()):
        return estimate.with_findings([_nan_finding()])
    if estimate.findings:
        missed = [_missed_finding(GAMMA2)] if GAMMA2 in state.missed else []
        is_nan = [_nan_finding()] if _is_nan_in_posterior(state, output) else []
        return estimate.with_findings([*missed, *is_nan])
    unseen = [
        state.unseen.get(part, 0.0) * _size(parts, field, estimate) for field, part in own.items()
    ]
    lacking, findings = check_looks(plan, state, estimate, output)
    error = math.hypot(estimate.standard_error, lacking, *unseen)
    estimate = estimate._replace(standard_error=error)
    allowed = plan.limits.goal.allowed(estimate)
    for field, part in own.items():
        is_small = NEGLIGIBLE * _size(parts, field, estimate) < allowed
        if part in state.missed and not is_small:
            findings.append(_missed_finding(part))
        if parts.matters(field) and part in evidence:
            log_weights = means.draws.log_weights(part)
            findings += check_tail(log_weights, part.constant)
            findings += check_size(means.ess(part), part.constant, thresholds.ENOUGH_ESS)
    findings += _thin_exploration(plan, state)
    findings += check_goal(estimate, plan.limits.goal)
    return estimate.with_findings(findings)


def _thin_exploration(plan: Plan, state: State) -> list[Finding]:
    """Whether the scouts were too few to rule out that they all missed a mode."""
    dimension, lack = plan.density.dimension, 0.0
    if isinstance(plan.scout, Ascents):
        share = lonely_share(state.ends) if state.ends else 0.0
        if share <= thresholds.MAX_LONELY_SHARE:
            return []
        detail = (
            f"{100 * share:.0f} % of {len(state.ends)} ascents ended where no other one did: there "
            "may be more modes"
        )
    else:
        has_many_dimensions = dimension >= thresholds.MIN_EXPLORED_DIMENSION
        if not has_many_dimensions or not 0 < state.num_explored < thresholds.MIN_EXPLORED:
            return []
        lack = thresholds.MIN_EXPLORED / state.num_explored
        detail = (
            f"{state.num_explored:,} points explored; {thresholds.MIN_EXPLORED:,} needed in "
            f"{dimension} dimensions to rule out a missed mode"
        )
    return [Finding(Status.not_converged, None, detail, "exploration", lack)]


def has_nan(state: State, part: Part) -> bool:
    """Whether a part could have mass where it is not a number."""
    assert state.draws is not None
    log_z = state.draws.weights(part).log_mean
    if part.sign and log_z == -math.inf:
        return False
    known = [draws for draws in (state.probe, state.draws) if draws is not None]
    shares = [largest_nan_share(draws, part, log_z) for draws in known]
    return max(shares) > thresholds.MAX_NAN_SHARE


def _is_nan_in_posterior(state: State, output: int) -> bool:
    """Whether an output without mass is not a number where the posterior has some."""
    assert state.draws is not None
    is_bad = state.draws.is_bad((output,)) & ~state.draws.is_bad(())
    weights = state.draws.weights(GAMMA2).relative
    return bool(weights[is_bad].sum() > thresholds.MAX_NAN_SHARE * weights.sum())


def _size(parts: Parts, field: str, estimate: OutputEstimate) -> float:
    """What a part adds to the value, or takes from it."""
    if field == "normaliser":
        return abs(estimate.value)
    log_ratio = parts.log_z(field) - parts.log_z("normaliser")
    return thresholds.exp(log_ratio) if math.isfinite(log_ratio) else 0.0


def _nan_finding() -> Finding:
    detail = "the density or the target is NaN or +inf where there could be mass, by what is around"
    return Finding(Status.nan_density, None, detail, "numbers")


def _missed_finding(part: Part) -> Finding:
    detail = (
        f"more than {100 * thresholds.MAX_EXCEEDANCE:g} % of a fresh exploration's mass weighs "
        "more than any draw"
    )
    return Finding(Status.replicates_disagree, part.constant, detail, "validation")
