"""Models stated as a log likelihood in JAX and a prior."""

from estimand.model.density.program import DensityProgram, from_density

__all__ = ["DensityProgram", "from_density"]
