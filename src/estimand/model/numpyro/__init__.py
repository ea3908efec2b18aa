"""Models stated as NumPyro programs; the only place that traces NumPyro."""

from estimand.model.numpyro.branching import BranchingExpectation, Leaf, Values
from estimand.model.numpyro.guide import SiteDistributions, guide_of, propose
from estimand.model.numpyro.model import NumpyroModel, source_text
from estimand.model.numpyro.program import (
    Expectation,
    ExpectationProgram,
    bind,
    expect,
    expectation,
    rebound,
)

__all__ = [
    "BranchingExpectation",
    "Expectation",
    "ExpectationProgram",
    "Leaf",
    "NumpyroModel",
    "SiteDistributions",
    "Values",
    "bind",
    "expect",
    "expectation",
    "guide_of",
    "propose",
    "rebound",
    "source_text",
]
