"""Questions beyond one expectation: evidence and comparison, tails, distributions."""

from estimand.answers.comparison import ComparedModel, Comparison, compare
from estimand.answers.evidence import LogEvidence, log_evidence

__all__ = ["ComparedModel", "Comparison", "LogEvidence", "compare", "log_evidence"]
