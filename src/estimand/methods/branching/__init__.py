"""E[f] of a program that branches: a sum over its branches, each estimated on its own."""

from estimand.methods.branching.survey import estimate_branches, evidence_estimator

__all__ = ["estimate_branches", "evidence_estimator"]
