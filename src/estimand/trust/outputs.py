"""One output's estimate: a number together with what it stands on.

Replacing an estimate replaces its parts, route and findings with it. Every method makes its
outputs here, from `Parts` and a `Ratio`, and one rule says which of the parts matter.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from estimand.trust.evidence import Evidence, check_evidence
from estimand.trust.status import Finding, Status, most_severe, worst
from estimand.trust.thresholds import (
    CANCELLATION_FLOOR,
    CONFIDENCE,
    LOG_MIN,
    MATTERS,
    exp,
)

PART_NAMES = {"plus": "Z1_plus", "minus": "Z1_minus", "normaliser": "Z2"}


class Parts(NamedTuple):
    """The normalising constants that an output is made of; None where one was not estimated.

    Each is `Evidence`, or in a record that was loaded or merged the summary that is kept of it.
    """

    plus: Any = None
    minus: Any = None
    normaliser: Any = None

    def known(self) -> Iterator[tuple[str, Any]]:
        """Those that were estimated, by the names Z1_plus, Z1_minus and Z2."""
        for field, name in PART_NAMES.items():
            if getattr(self, field) is not None:
                yield name, getattr(self, field)

    def log_z(self, field: str) -> float:
        """log Z of a part: −inf if it was left out because it is 0, NaN if no Z was estimated."""
        part = getattr(self, field)
        if part is not None:
            return float(part.log_z)
        return math.nan if self.normaliser is None else -math.inf

    def matters(self, field: str) -> bool:
        """Whether a part is large enough to change the estimate; Z2 always is.

        A part without an error matters, and its own error does not hide the others.
        """
        part = getattr(self, field)
        if field == "normaliser":
            return True
        if part is None or not math.isfinite(self.log_z(field)):
            return False
        if not math.isfinite(part.relative_variance):
            return True
        top = max(self._log_sizes().values())
        sizes = {name: math.exp(log_size - top) for name, log_size in self._log_sizes().items()}
        sizes["normaliser"] = abs(sizes.get("plus", 0.0) - sizes.get("minus", 0.0))
        others = [
            size * math.sqrt(getattr(self, name).relative_variance)
            for name, size in sizes.items()
            if name != field and math.isfinite(getattr(self, name).relative_variance)
        ]
        return is_material(sizes[field], others)

    def _log_sizes(self) -> dict[str, float]:
        sizes = {field: self.log_z(field) for field in ("plus", "minus")}
        return {field: log_z for field, log_z in sizes.items() if math.isfinite(log_z)}


def is_material(size: float, errors_of_others: Iterable[float]) -> bool:
    """The rule for "does this part matter": it does unless the others' error dwarfs all of it."""
    return size > MATTERS * math.hypot(*errors_of_others)


class EffectiveSizes(NamedTuple):
    """Effective sample sizes as the paper's section 5 defines them for a method."""

    z1: float = 0.0
    z2: float = math.nan
    plus: float = math.nan
    minus: float = math.nan


class Goal(NamedTuple):
    """The standard error that is asked for: relative to the value, or absolute, if that is more."""

    relative: float
    absolute: float = 0.0

    def allowed(self, output: OutputEstimate) -> float:
        """The largest standard error that an output may have."""
        return max(self.relative * output.error_scale, self.absolute)

    @property
    def text(self) -> str:
        """What was asked for, in words."""
        text = f"{percent(self.relative)} requested"
        return f"{text}, or {self.absolute:g} in absolute terms" if self.absolute else text


def percent(share: Any) -> str:
    """A share in per cent, with two digits."""
    return f"{float(f'{100 * float(share):.2g}'):g} %"


class OutputEstimate(NamedTuple):
    """The estimate of one output, and what it stands on.

    `degrees` are those of Student's t where the error comes from few replicates; `magnitude` is
    E|f|; `upper_bound` bounds an indicator that no draw has met. With `is_log_scale` the interval
    is that of the logarithm. `route` says how it was obtained, where a method has several ways.
    `covariance` is that of the value with log Z2, NaN where it is not known. The status is the most
    severe of the findings.
    """

    value: float
    standard_error: float
    degrees: float = math.inf
    magnitude: float = math.nan
    is_log_scale: bool = False
    upper_bound: float = math.inf
    ess: EffectiveSizes = EffectiveSizes()
    parts: Parts = Parts()
    route: str = ""
    findings: tuple[Finding, ...] = ()
    covariance: float = math.nan

    @property
    def status(self) -> Status:
        return most_severe(self.findings)

    @property
    def standing(self) -> Status:
        """The status by which it is compared with others.

        What was cut short stands where its other checks left it, and is not known to have settled.
        """
        if self.status is not Status.interrupted:
            return self.status
        found = (finding.status for finding in self.findings)
        return worst((Status.not_converged, *(x for x in found if x is not Status.interrupted)))

    @property
    def is_zero(self) -> bool:
        """Whether it is 0 exactly, which draws cannot show: it is known of f."""
        return bool(self.status) and self.value == self.standard_error == self.magnitude == 0

    @property
    def error_scale(self) -> float:
        """What an error is relative to: the value, or a share of E|f| where the parts cancel."""
        return max(abs(self.value), CANCELLATION_FLOOR * self.magnitude) or math.inf

    def is_within(self, goal: Goal, slack: float = 1.0) -> bool:
        """Whether the standard error is as small as it is asked for, up to a factor."""
        is_known = math.isfinite(self.standard_error)
        return is_known and self.standard_error <= slack * goal.allowed(self)

    def with_findings(self, findings: Iterable[Finding]) -> OutputEstimate:
        """The same with further findings."""
        return self._replace(findings=(*self.findings, *findings))

    def findings_of(self, *checks: str) -> tuple[Finding, ...]:
        """What some checks have found."""
        return tuple(finding for finding in self.findings if finding.check in checks)

    def without_findings(self, *checks: str) -> OutputEstimate:
        """The same without what some checks have found."""
        kept = tuple(finding for finding in self.findings if finding.check not in checks)
        return self._replace(findings=kept)


class Ratio(NamedTuple):
    """(Z1⁺ − Z1⁻) / Z2 with its error and E|f|, all relative to e^log_scale.

    The scale is the larger of Z1±/Z2, so that no scale of f overflows. `covariance` is that of the
    ratio with log Z2.
    """

    log_scale: float
    value: float
    standard_error: float
    magnitude: float
    degrees: float = math.inf
    covariance: float = math.nan


def without_value(
    *findings: Finding,
    parts: Parts | None = None,
    ess: EffectiveSizes | None = None,
    num_draws: float | None = None,
) -> OutputEstimate:
    """The estimate of an output of which nothing is known: never 0 ± 0.

    If `num_draws` posterior draws have not met it, there is a bound in case it is an indicator.
    """
    return OutputEstimate(
        value=0.0,
        standard_error=math.inf,
        upper_bound=math.inf if num_draws is None else rule_of_three(num_draws),
        ess=EffectiveSizes() if ess is None else ess,
        parts=Parts() if parts is None else parts,
        findings=findings,
    )


def exactly_zero(output: OutputEstimate) -> OutputEstimate:
    """The output where it is known that f is 0, so that draws have nothing to add.

    It stays as it is if there is no posterior: then it has no expectation.
    """
    normaliser = output.parts.normaliser
    # Without a normaliser it is posterior draws that have given a bound.
    has_posterior = (
        output.upper_bound < math.inf if normaliser is None else (math.isfinite(normaliser.log_z))
    )
    if output.status is not Status.no_mass_found or not has_posterior:
        return output
    return output._replace(
        value=0.0, standard_error=0.0, upper_bound=0.0, magnitude=0.0, findings=()
    )


def no_mass(detail: str) -> Finding:
    """The finding that no sample has met the target, or the posterior."""
    return Finding(Status.no_mass_found, None, detail, "mass")


def from_ratio(
    ratio: Ratio, *, parts: Parts, ess: EffectiveSizes, is_one_sided: bool
) -> OutputEstimate:
    """The estimate of an output that has mass, without findings but that of an underflow."""
    if ratio.log_scale < LOG_MIN:
        detail = f"the logarithm of E|f| is {ratio.log_scale:.1f}; {LOG_MIN:.1f} is the least"
        return OutputEstimate(
            value=0.0,
            standard_error=math.inf,
            upper_bound=sys.float_info.min,
            ess=ess,
            parts=parts,
            findings=(Finding(Status.underflow, None, detail, "numbers"),),
        )
    scale = exp(ratio.log_scale)
    return OutputEstimate(
        value=float(ratio.value * scale),
        standard_error=float(ratio.standard_error * scale),
        degrees=ratio.degrees,
        magnitude=float(ratio.magnitude * scale),
        is_log_scale=is_one_sided,
        ess=ess,
        parts=parts,
        covariance=float(ratio.covariance * scale),
    )


def combine(plus: Evidence | None, minus: Evidence | None, normaliser: Evidence) -> OutputEstimate:
    """(Z1⁺ − Z1⁻) / Z2 from parts that were estimated independently of each other."""
    parts = Parts(plus=plus, minus=minus, normaliser=normaliser)
    signs = [part for part in (plus, minus) if part is not None]
    with_mass = [part for part in signs if np.isfinite(part.log_z)]
    ess = EffectiveSizes(
        z1=min((part.ess for part in with_mass), default=0.0),
        z2=normaliser.ess,
        plus=math.nan if plus is None else plus.ess,
        minus=math.nan if minus is None else minus.ess,
    )
    invalid = [
        finding
        for name, part in parts.known()
        if part.num_invalid
        for finding in check_evidence(part, name)
    ]
    if not with_mass or not np.isfinite(normaliser.log_z):
        empty = "the posterior" if with_mass else "the target"
        findings = [no_mass(f"no sample has mass of {empty}"), *invalid]
        return without_value(*findings, parts=parts, ess=ess)
    output = from_ratio(
        _independent_ratio(parts), parts=parts, ess=ess, is_one_sided=len(with_mass) == 1
    )
    if invalid or output.findings:
        return output.with_findings(invalid)
    return output.with_findings(
        finding
        for field, name in PART_NAMES.items()
        if parts.matters(field)
        for finding in check_evidence(getattr(parts, field), name)
    )


def _independent_ratio(parts: Parts) -> Ratio:
    log_plus, log_minus = parts.log_z("plus"), parts.log_z("minus")
    log_top = max(log_plus, log_minus)
    sizes = {"plus": math.exp(log_plus - log_top), "minus": math.exp(log_minus - log_top)}
    difference = sizes["plus"] - sizes["minus"]
    variances = [
        Variance.of(size, getattr(parts, field))
        for field, size in (("normaliser", difference), *sizes.items())
        if math.isfinite(parts.log_z(field))
    ]
    return Ratio(
        log_scale=log_top - parts.log_z("normaliser"),
        value=difference,
        standard_error=math.sqrt(sum(item.variance for item in variances)),
        magnitude=sum(sizes.values()),
        degrees=joint_degrees(variances),
        covariance=-difference * float(parts.normaliser.relative_variance),
    )


class Variance(NamedTuple):
    """What a part adds to a variance, and the degrees of freedom of that."""

    variance: float
    degrees: float

    @classmethod
    def of(cls, size: float, part: Evidence) -> Variance:
        relative = float(part.relative_variance)
        variance = size**2 * relative if math.isfinite(relative) else math.inf
        return cls(variance, float(part.degrees))


def joint_degrees(variances: list[Variance]) -> float:
    """Degrees of freedom of a sum of variances that have their own (Satterthwaite)."""
    total = sum(item.variance for item in variances)
    weighted = sum(item.variance**2 / item.degrees for item in variances)
    return total**2 / weighted if 0 < weighted < math.inf else math.inf


def joint_errors(first: OutputEstimate, second: OutputEstimate) -> float:
    """How far two independent estimates of one output are apart, in joint standard errors."""
    error = math.hypot(first.standard_error, second.standard_error)
    distance = abs(first.value - second.value)
    if error > 0:
        return distance / error
    return 0.0 if distance == 0 else math.inf


def rule_of_three(num_effective: float) -> float:
    """Upper bound on a probability after no hit in so many independent draws."""
    return 1 - (1 - CONFIDENCE) ** (1 / max(num_effective, 1.0))
