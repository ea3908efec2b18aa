"""Models stated as NumPyro programs; the only place that traces NumPyro."""

from estimand.model.numpyro.branching import BranchingExpectation, Leaf, Values
from estimand.model.numpyro.conditional import ConditionalExpectation, ConditionalProgram
from estimand.model.numpyro.guide import SiteDistributions, guide_of, propose
from estimand.model.numpyro.joint import sample_joint
from estimand.model.numpyro.mapped import Cube, Mapped
from estimand.model.numpyro.model import NumpyroModel, source_text
from estimand.model.numpyro.program import (
    CONCRETE,
    Arguments,
    Expectation,
    ExpectationProgram,
    bind,
    expect,
    expectation,
    expression_of,
    rebound,
)
from estimand.model.numpyro.questions import Derived

__all__ = [
    "CONCRETE",
    "Arguments",
    "BranchingExpectation",
    "ConditionalExpectation",
    "ConditionalProgram",
    "Cube",
    "Derived",
    "Expectation",
    "ExpectationProgram",
    "Leaf",
    "Mapped",
    "NumpyroModel",
    "SiteDistributions",
    "Values",
    "bind",
    "expect",
    "expectation",
    "expression_of",
    "guide_of",
    "propose",
    "rebound",
    "sample_joint",
    "source_text",
]
