"""Estimates by the ladders themselves: the mean over islands of Z1±/Z2, and the error between them.

Coarser than importance sampling, and good in many dimensions, where nothing that can be drawn from
comes close enough to the target.
"""

from __future__ import annotations

import math

import numpy as np

from estimand.methods.adaptive.draws import Part
from estimand.methods.adaptive.plan import Ladder
from estimand.sampling import log_mean
from estimand.trust import (
    EffectiveSizes,
    Finding,
    Goal,
    OutputEstimate,
    Parts,
    Ratio,
    Status,
    check_goal,
    check_precision,
    from_ratio,
    thresholds,
)

# What islands do not show of their errors: on models with known answers those of ladders were 1.7
# times as large as islands said, in the root mean square of 31 outputs (`benchmarks.people`), where
# those of mixtures were 0.95 and of averages 1.1 times as large.
ERROR_FACTOR = 2.0


def by_ladders(
    ladders: dict[Part, tuple[Ladder, ...]], output: int, goal: Goal
) -> OutputEstimate | None:
    """The estimate of an output of whose parts all that have mass were climbed to; else None."""
    log_z = {
        sign: np.concatenate([ladder.log_z for ladder in ladders.get(Part(sign, output), ())])
        for sign in (1, -1)
        if Part(sign, output) in ladders
    }
    present = {sign: values for sign, values in log_z.items() if np.isfinite(values).any()}
    if not present:
        return None
    log_scale = max(log_mean(values) for values in present.values())
    value = variance = magnitude = 0.0
    findings: list[Finding] = []
    for sign, values in present.items():
        part = Part(sign, output)
        sizes = np.exp(values - log_scale)
        error = ERROR_FACTOR * float(sizes.std(ddof=1)) / math.sqrt(sizes.size)
        value += sign * float(sizes.mean())
        variance += error**2
        magnitude += float(sizes.mean())
        findings += check_precision((error / sizes.mean()) ** 2, sizes.size - 1, part.constant)
        findings += _check_stiffness(max(ladder.stiffness for ladder in ladders[part]), part)
    ratio = Ratio(
        log_scale=log_scale,
        value=value,
        standard_error=math.sqrt(variance),
        magnitude=magnitude,
        degrees=min(values.size for values in present.values()) - 1.0,
    )
    ess = EffectiveSizes(z1=float(min(values.size for values in present.values())))
    output_estimate = from_ratio(ratio, parts=Parts(), ess=ess, is_one_sided=len(present) == 1)
    return output_estimate.with_findings([*findings, *check_goal(output_estimate, goal)])


def _check_stiffness(stiffness: float, part: Part) -> list[Finding]:
    """Whether the chains of every level moved."""
    if stiffness <= thresholds.MAX_STIFFNESS:
        return []
    detail = (
        f"chains hardly moved at some level: starts and ends have correlation {stiffness:.2f}; at "
        f"most {thresholds.MAX_STIFFNESS} allowed"
    )
    return [Finding(Status.not_converged, part.constant, detail, "mixing")]
