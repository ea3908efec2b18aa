"""Expectation programming for Python: write a program, get the expectation of what it returns."""

from estimand.adaptive import AdaptiveIS
from estimand.annealed import AnIS
from estimand.auto import Auto
from estimand.bridge import BridgeSampling
from estimand.density import Density
from estimand.estimate import (
    Estimate,
    EstimationError,
    estimate_expectation,
    load,
    log_evidence,
)
from estimand.evidence import Evidence, ImportanceSampling, Status
from estimand.io import RecordError
from estimand.journal import CheckpointError
from estimand.kernels import HMC, MALA, NUTS, IndependentT, RandomWalk
from estimand.merge import MergeError
from estimand.methods import SKIP, TABI, SelfNormalised
from estimand.posterior import PosteriorMCMC
from estimand.posterior_bridge import PosteriorBridge
from estimand.program import Expectation, ExpectationProgram, ProgramError, expect, expectation
from estimand.schedule import geometric, linear
from estimand.smc import SMC
from estimand.target import event

__version__ = "0.1.0"

__all__ = [
    "HMC",
    "MALA",
    "NUTS",
    "SKIP",
    "SMC",
    "TABI",
    "AdaptiveIS",
    "AnIS",
    "Auto",
    "BridgeSampling",
    "CheckpointError",
    "Density",
    "Estimate",
    "EstimationError",
    "Evidence",
    "Expectation",
    "ExpectationProgram",
    "ImportanceSampling",
    "IndependentT",
    "MergeError",
    "PosteriorBridge",
    "PosteriorMCMC",
    "ProgramError",
    "RandomWalk",
    "RecordError",
    "SelfNormalised",
    "Status",
    "estimate_expectation",
    "event",
    "expect",
    "expectation",
    "geometric",
    "linear",
    "load",
    "log_evidence",
]
