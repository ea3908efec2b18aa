"""Questions beyond one expectation: evidence and comparison, tails, distributions."""

from estimand.answers.comparison import ComparedModel, Comparison, compare
from estimand.answers.distribution import Distribution, distribution
from estimand.answers.evidence import LogEvidence, log_evidence
from estimand.answers.quantiles import Quantile, Quantiles, Shortfall, quantile, shortfall

__all__ = [
    "ComparedModel",
    "Comparison",
    "Distribution",
    "LogEvidence",
    "Quantile",
    "Quantiles",
    "Shortfall",
    "compare",
    "distribution",
    "log_evidence",
    "quantile",
    "shortfall",
]
