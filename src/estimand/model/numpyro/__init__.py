"""Models stated as NumPyro programs; the only place that traces NumPyro."""

from estimand.model.numpyro.branching import BranchingExpectation, Leaf, Values
from estimand.model.numpyro.conditional import ConditionalExpectation, ConditionalProgram
from estimand.model.numpyro.derived import at_settings, require_same_density
from estimand.model.numpyro.guide import SiteDistributions, guide_of, propose
from estimand.model.numpyro.joint import sample_joint
from estimand.model.numpyro.mapped import Cube, Mapped
from estimand.model.numpyro.model import NumpyroModel, source_text
from estimand.model.numpyro.numbers import not_a_number
from estimand.model.numpyro.perturbed import (
    LIKELIHOOD,
    PRIOR,
    Perturbed,
    named_arrays,
    perturbed,
)
from estimand.model.numpyro.pointwise import (
    predicted_row,
    rows_of,
    the_posterior,
    without_rows,
)
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
from estimand.model.numpyro.study import Study

__all__ = [
    "CONCRETE",
    "LIKELIHOOD",
    "PRIOR",
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
    "Perturbed",
    "SiteDistributions",
    "Study",
    "Values",
    "at_settings",
    "bind",
    "expect",
    "expectation",
    "expression_of",
    "guide_of",
    "named_arrays",
    "not_a_number",
    "perturbed",
    "predicted_row",
    "propose",
    "rebound",
    "require_same_density",
    "rows_of",
    "sample_joint",
    "source_text",
    "the_posterior",
    "without_rows",
]
