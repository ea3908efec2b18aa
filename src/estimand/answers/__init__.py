"""What people ask next of an expectation: decisions, sensitivities, leave-one-out."""

from estimand.answers.decisions import Action, Decision, Quantity, decide

__all__ = ["Action", "Decision", "Quantity", "decide"]
