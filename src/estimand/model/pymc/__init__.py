"""Models stated in PyMC."""

from estimand.model.pymc.program import PymcProgram, from_pymc

__all__ = ["PymcProgram", "from_pymc"]
