"""Expectation programming for Python: write a program, get the expectation of what it returns.

The rooms, in the order in which data flow through them; each imports only from those above it:

    settings     what all settings share
    runtime/     what a run is carried by: tasks, checkpoint, progress, interruption, clock
    model/       how a model is stated: the protocol, and the NumPyro program
    target/      what a return expression says about itself
    density      a model with its data as arrays: γ, γf⁺ or γf⁻
    kernels/     Markov kernels, a file for each
    sampling/    machinery that estimators and methods share
    trust/       what a number stands on, and whether that is enough
    estimators/  Z of one density, a file for each
    methods/     E[f], a file for each; the default is `auto`
    record/      what is kept: storage, merging, provenance, export
    plots/       plots of a record, a file for each
    view/        diagnosis, tables, report
    sensitivity/ derivatives of an expectation by what its program was given
    estimate     the entry points
    many/        the same for many data sets
    answers/     questions beyond one expectation: evidence, tails, decisions, leave-one-out
    cli          the command line
"""

import logging as _logging

from estimand.answers import (
    Action,
    ComparedModel,
    Comparison,
    Decision,
    Distribution,
    LeaveOneOut,
    LogEvidence,
    Prediction,
    Quantile,
    Quantiles,
    Quantity,
    Shortfall,
    StudyValue,
    compare,
    decide,
    differentiable,
    distribution,
    leave_one_out,
    log_evidence,
    quantile,
    shortfall,
)
from estimand.density import Density
from estimand.estimate import (
    Estimate,
    EstimationError,
    estimate_expectation,
    load,
)
from estimand.estimators import SMC, AnIS, BridgeSampling, ImportanceSampling
from estimand.kernels import HMC, MALA, NUTS, IndependentT, RandomWalk
from estimand.many import Estimates, estimate_many, load_many
from estimand.methods import (
    SKIP,
    TABI,
    AdaptiveIS,
    Ascents,
    Auto,
    Economical,
    PosteriorBridge,
    PosteriorMCMC,
    SelfNormalised,
)
from estimand.model import (
    Command,
    Expectation,
    ExpectationProgram,
    ProgramError,
    SimulatorError,
    expect,
    expectation,
    from_density,
    from_pymc,
    from_simulator,
)
from estimand.record import Branch, MergeError, RecordError
from estimand.runtime import CheckpointError
from estimand.sampling import geometric, linear
from estimand.sensitivity import Derivative, Sensitivity
from estimand.target import event
from estimand.trust import Evidence, Finding, Status
from estimand.view import DesignPoint, Reliability

__version__ = "0.1.0"

# What happens in a run, and why, for those who want to know; silent unless they say so.
_logging.getLogger("estimand").addHandler(_logging.NullHandler())

__all__ = [
    "HMC",
    "MALA",
    "NUTS",
    "SKIP",
    "SMC",
    "TABI",
    "Action",
    "AdaptiveIS",
    "AnIS",
    "Ascents",
    "Auto",
    "Branch",
    "BridgeSampling",
    "CheckpointError",
    "Command",
    "ComparedModel",
    "Comparison",
    "Decision",
    "Density",
    "Derivative",
    "DesignPoint",
    "Distribution",
    "Economical",
    "Estimate",
    "Estimates",
    "EstimationError",
    "Evidence",
    "Expectation",
    "ExpectationProgram",
    "Finding",
    "ImportanceSampling",
    "IndependentT",
    "LeaveOneOut",
    "LogEvidence",
    "MergeError",
    "PosteriorBridge",
    "PosteriorMCMC",
    "Prediction",
    "ProgramError",
    "Quantile",
    "Quantiles",
    "Quantity",
    "RandomWalk",
    "RecordError",
    "Reliability",
    "SelfNormalised",
    "Sensitivity",
    "Shortfall",
    "SimulatorError",
    "Status",
    "StudyValue",
    "compare",
    "decide",
    "differentiable",
    "distribution",
    "estimate_expectation",
    "estimate_many",
    "event",
    "expect",
    "expectation",
    "from_density",
    "from_pymc",
    "from_simulator",
    "geometric",
    "leave_one_out",
    "linear",
    "load",
    "load_many",
    "log_evidence",
    "quantile",
    "shortfall",
]


def __dir__() -> list[str]:
    """The public names, and the plots: what a prompt completes."""
    return sorted([*__all__, "__version__", "plots"])
