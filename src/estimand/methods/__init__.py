"""Methods: how an expectation is estimated. A protocol, and a file for each."""

from estimand.methods.adaptive import AdaptiveIS, Ascents
from estimand.methods.auto import Auto
from estimand.methods.branching import estimate_branches
from estimand.methods.economical import Economical
from estimand.methods.evidence import EvidenceRun, estimate_evidence, evidence_of_branches
from estimand.methods.many import LANE, Outcome, run_lane, unsuited
from estimand.methods.posterior_bridge import PosteriorBridge
from estimand.methods.posterior_mcmc import PosteriorMCMC
from estimand.methods.protocol import Cost, Method, Run, interrupted
from estimand.methods.self_normalised import SelfNormalised
from estimand.methods.tabi import SKIP, TABI
from estimand.methods.text import METHODS, method_of

__all__ = [
    "LANE",
    "METHODS",
    "SKIP",
    "TABI",
    "AdaptiveIS",
    "Ascents",
    "Auto",
    "Cost",
    "Economical",
    "EvidenceRun",
    "Method",
    "Outcome",
    "PosteriorBridge",
    "PosteriorMCMC",
    "Run",
    "SelfNormalised",
    "estimate_branches",
    "estimate_evidence",
    "evidence_of_branches",
    "interrupted",
    "method_of",
    "run_lane",
    "unsuited",
]
