"""Questions beyond one expectation: evidence, tails, decisions, derivatives, leave-one-out."""

from estimand.answers.comparison import ComparedModel, Comparison, compare
from estimand.answers.decisions import Action, Decision, decide
from estimand.answers.differentiable import differentiable
from estimand.answers.distribution import Distribution, distribution
from estimand.answers.evidence import LogEvidence, log_evidence
from estimand.answers.leave_one_out import LeaveOneOut, Prediction, leave_one_out
from estimand.answers.quantiles import Quantile, Quantiles, Shortfall, quantile, shortfall
from estimand.answers.quantity import Quantity
from estimand.answers.studies import StudyValue

__all__ = [
    "Action",
    "ComparedModel",
    "Comparison",
    "Decision",
    "Distribution",
    "LeaveOneOut",
    "LogEvidence",
    "Prediction",
    "Quantile",
    "Quantiles",
    "Quantity",
    "Shortfall",
    "StudyValue",
    "compare",
    "decide",
    "differentiable",
    "distribution",
    "leave_one_out",
    "log_evidence",
    "quantile",
    "shortfall",
]
