"""How an expectation depends on what its program was given: derivatives from the same draws."""

from estimand.sensitivity.derivatives import Derivative, derivatives
from estimand.sensitivity.entry import Sensitivity, sensitivity_of

__all__ = ["Derivative", "Sensitivity", "derivatives", "sensitivity_of"]
