"""Models stated as a log likelihood in JAX and a prior."""

from estimand.model.density.calls import call, free_name
from estimand.model.density.program import DensityProgram, from_density

__all__ = ["DensityProgram", "call", "free_name", "from_density"]
