"""Markov kernels that leave a tempered density invariant: a protocol, and a file for each."""

from estimand.kernels.hmc import HMC
from estimand.kernels.independent_t import IndependentT
from estimand.kernels.mala import MALA
from estimand.kernels.nuts import NUTS
from estimand.kernels.protocol import (
    AdaptableKernel,
    DrivenKernel,
    Given,
    Info,
    Kernel,
    State,
    Tuning,
)
from estimand.kernels.random_walk import RandomWalk

__all__ = [
    "HMC",
    "MALA",
    "NUTS",
    "AdaptableKernel",
    "DrivenKernel",
    "Given",
    "IndependentT",
    "Info",
    "Kernel",
    "RandomWalk",
    "State",
    "Tuning",
]
