"""What people ask next of an expectation: decisions, derivatives, leave-one-out."""

from estimand.answers.decisions import Action, Decision, Quantity, decide
from estimand.answers.differentiable import differentiable
from estimand.answers.leave_one_out import LeaveOneOut, Prediction, leave_one_out

__all__ = [
    "Action",
    "Decision",
    "LeaveOneOut",
    "Prediction",
    "Quantity",
    "decide",
    "differentiable",
    "leave_one_out",
]
