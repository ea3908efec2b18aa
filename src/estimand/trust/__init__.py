"""What a number stands on, and whether that is enough: evidence, outputs, findings, checks."""

from estimand.trust import thresholds
from estimand.trust.checks import (
    CHECKS,
    Check,
    check_agreement,
    check_goal,
    check_mixing,
    check_numbers,
    checked,
)
from estimand.trust.evidence import (
    Evidence,
    Trace,
    check_evidence,
    check_precision,
    check_size,
    check_tail,
    evidence_from_weights,
)
from estimand.trust.outputs import (
    PART_NAMES,
    EffectiveSizes,
    OutputEstimate,
    Parts,
    Ratio,
    combine,
    from_ratio,
    is_material,
    joint_errors,
    no_mass,
    rule_of_three,
    without_value,
)
from estimand.trust.resolution import check_resolution
from estimand.trust.status import Finding, Status, most_severe, worst

__all__ = [
    "CHECKS",
    "PART_NAMES",
    "Check",
    "EffectiveSizes",
    "Evidence",
    "Finding",
    "OutputEstimate",
    "Parts",
    "Ratio",
    "Status",
    "Trace",
    "check_agreement",
    "check_evidence",
    "check_goal",
    "check_mixing",
    "check_numbers",
    "check_precision",
    "check_resolution",
    "check_size",
    "check_tail",
    "checked",
    "combine",
    "evidence_from_weights",
    "from_ratio",
    "is_material",
    "joint_errors",
    "most_severe",
    "no_mass",
    "rule_of_three",
    "thresholds",
    "without_value",
    "worst",
]
