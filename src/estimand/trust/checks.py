"""Checks: functions from an output to findings, the reasons not to trust it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from estimand.density import Density
from estimand.trust.existence import check_existence
from estimand.trust.outputs import (
    Goal,
    OutputEstimate,
    exactly_zero,
    joint_errors,
    percent,
    rule_of_three,
)
from estimand.trust.resolution import check_resolution
from estimand.trust.status import Finding, Status
from estimand.trust.thresholds import (
    MAX_JOINT_ERRORS,
    MAX_R_HAT,
    SLACK,
)

# The names of the checks for terms that no draw has met, and for an f that is the same at nearly
# all draws. A route that does not look there cannot refute them.
UNMET, SAME = "terms", "sameness"

Check = Callable[[OutputEstimate, Density], Iterable[Finding]]


def check_numbers(output: OutputEstimate, _density: Density | None = None) -> list[Finding]:
    """No output is `ok` whose value or error is not a number."""
    if not output.status or math.isfinite(output.standard_error + output.value):
        return []
    if math.isfinite(output.value):
        return [Finding(Status.low_ess, None, "no error is known", "numbers")]
    return [Finding(Status.nan_density, None, f"the value is {output.value}", "numbers")]


CHECKS: tuple[Check, ...] = (check_resolution, check_numbers)
"""What every output goes through, whatever method it is of."""


def with_known_zeros(
    outputs: Sequence[OutputEstimate], density: Density
) -> tuple[OutputEstimate, ...]:
    """The outputs; those that no draw has met and that are 0 by their expression are 0 exactly."""
    if all(output.status is not Status.no_mass_found for output in outputs):
        return tuple(outputs)
    return tuple(
        exactly_zero(output) if is_zero else output
        for output, is_zero in zip(outputs, density.known_zeros, strict=True)
    )


def checked(
    outputs: Sequence[OutputEstimate], density: Density, checks: Sequence[Check] = CHECKS
) -> tuple[OutputEstimate, ...]:
    """The outputs with what all checks find."""
    outputs = with_known_zeros(outputs, density)
    for check in checks:
        outputs = [output.with_findings(check(output, density)) for output in outputs]
    found = check_existence(outputs, density)
    outputs = [output.with_findings(items) for output, items in zip(outputs, found, strict=True)]
    return tuple(
        output
        if math.isfinite(output.standard_error + output.value)
        else output._replace(standard_error=math.inf)
        for output in outputs
    )


class Unmet(NamedTuple):
    """What may be missed of something that no draw has met: findings, or a standard error."""

    findings: tuple[Finding, ...] = ()
    error: float = 0.0


def unmet(
    what: str, num_effective: float, largest: float, goal: float, check: str = UNMET
) -> Unmet:
    """Whether something that no draw has met can be neglected.

    Args:
        what: a sentence without its end, "the term in line 3 is 0".
        num_effective: effective draws of the posterior.
        largest: what it adds to f where it is met, at the most.
        goal: the error that is asked for.
        check: `UNMET` or `SAME`.
    """
    bound = rule_of_three(num_effective) * largest
    if bound <= goal:
        return Unmet(error=bound / 2)
    size = f"up to {bound:.2g}" if math.isfinite(bound) else "any amount, as it has no bound"
    detail = (
        f"{what} at nearly all draws: too few of the rare draws at which it differs were seen, and "
        f"these could change the answer by {size}"
    )
    lack = bound / goal if math.isfinite(bound) and goal > 0 else 0.0
    return Unmet((Finding(Status.not_converged, None, detail, check, lack),))


def check_goal(output: OutputEstimate, goal: Goal, slack: float = SLACK) -> list[Finding]:
    """Whether the requested error was reached."""
    if output.is_within(goal, slack):
        return []
    if math.isfinite(output.standard_error):
        share = output.standard_error / output.error_scale
        detail = f"relative error {percent(share)}; {goal.text}"
        allowed = goal.allowed(output)
        excess = output.standard_error / allowed if 0 < allowed < math.inf else 0.0
        lack = excess * excess  # A power would raise an error where it overflows.
    else:
        detail, lack = f"no error is known; {goal.text}", 0.0
    return [Finding(Status.not_converged, None, detail, "goal", lack)]


def check_magnitude(output: OutputEstimate, other: OutputEstimate) -> list[Finding]:
    """Whether an estimate has less than another one whose draws did not suffice.

    Importance weights of a proposal that does not fit say too little, and seldom too much: by
    Markov's inequality a tenfold at most once in ten times.
    """
    if not math.isfinite(other.standard_error):
        return []
    margin = other.standard_error + 2 * output.standard_error
    has_more = other.magnitude - output.magnitude > margin
    has_far_more = other.magnitude > 10 * output.magnitude
    if not has_more and not has_far_more:
        return []
    detail = (
        f"the mixture, whose draws did not suffice, found {other.value:.4g} ± "
        f"{other.standard_error:.2g}"
    )
    return [Finding(Status.replicates_disagree, None, detail, "agreement")]


def check_mixing(r_hat: float, part: str | None = None, limit: float = MAX_R_HAT) -> list[Finding]:
    """Whether Markov chains agree with each other."""
    if r_hat <= limit:
        return []
    detail = f"R-hat {r_hat:.2f}; at most {limit} allowed"
    return [Finding(Status.not_converged, part, detail, "mixing")]


def check_agreement(output: OutputEstimate, other: OutputEstimate, route: str) -> list[Finding]:
    """Whether another route says the same."""
    distance = joint_errors(output, other)
    if distance <= MAX_JOINT_ERRORS:
        return []
    detail = (
        f"{route} says {other.value:.4g} ± {other.standard_error:.2g}: {distance:.1f} joint "
        f"standard errors away; at most {MAX_JOINT_ERRORS:.0f} allowed"
    )
    return [Finding(Status.replicates_disagree, None, detail, "agreement")]
