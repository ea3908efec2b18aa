"""Expectation programming for Python: write a program, get the expectation of what it returns."""

from estimand.density import Density
from estimand.estimate import Estimate, EstimationError, estimate_expectation, load, log_evidence
from estimand.estimators.annealed import AnIS
from estimand.estimators.bridge import BridgeSampling
from estimand.estimators.importance import ImportanceSampling
from estimand.estimators.smc import SMC
from estimand.kernels.hmc import HMC
from estimand.kernels.independent_t import IndependentT
from estimand.kernels.mala import MALA
from estimand.kernels.nuts import NUTS
from estimand.kernels.random_walk import RandomWalk
from estimand.methods.adaptive.method import AdaptiveIS
from estimand.methods.auto import Auto
from estimand.methods.posterior_bridge import PosteriorBridge
from estimand.methods.posterior_mcmc import PosteriorMCMC
from estimand.methods.self_normalised import SelfNormalised
from estimand.methods.tabi import SKIP, TABI
from estimand.model.program import Expectation, ExpectationProgram, expect, expectation
from estimand.model.sites import ProgramError
from estimand.record.merge import MergeError
from estimand.record.storage import RecordError
from estimand.runtime.journal import CheckpointError
from estimand.sampling.schedule import geometric, linear
from estimand.target.reading import event
from estimand.trust.evidence import Evidence
from estimand.trust.status import Status

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
