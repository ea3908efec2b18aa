"""Estimators of the normalising constant of one density: a protocol, and a file for each."""

from estimand.estimators.annealed import AnIS
from estimand.estimators.bridge import BridgeSampling
from estimand.estimators.importance import ImportanceSampling
from estimand.estimators.protocol import Estimator, Request, StagedEstimator, estimate_all
from estimand.estimators.smc import SMC

__all__ = [
    "SMC",
    "AnIS",
    "BridgeSampling",
    "Estimator",
    "ImportanceSampling",
    "Request",
    "StagedEstimator",
    "estimate_all",
]
