"""Models stated as NumPyro programs; the only place that traces NumPyro."""

from estimand.model.numpyro.branching import BranchingExpectation, Leaf, Values
from estimand.model.numpyro.cube import Cube
from estimand.model.numpyro.guide import SiteDistributions, guide_of, propose
from estimand.model.numpyro.joint import sample_joint
from estimand.model.numpyro.model import NumpyroModel, source_text
from estimand.model.numpyro.program import (
    CONCRETE,
    Expectation,
    ExpectationProgram,
    bind,
    expect,
    expectation,
)

__all__ = [
    "CONCRETE",
    "BranchingExpectation",
    "Cube",
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
    "sample_joint",
    "source_text",
]
