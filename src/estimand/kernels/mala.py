"""The Metropolis-adjusted Langevin algorithm."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax

from estimand.density import Density, PathPoint
from estimand.kernels.base import GradientKernel
from estimand.kernels.hmc import HMC
from estimand.kernels.protocol import Info, State, Tuning


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class MALA(GradientKernel):
    """Metropolis-adjusted Langevin: Hamiltonian Monte Carlo with a single leapfrog step.

    Args:
        step_size: standard deviation of the proposal's noise; one number or one for each
            temperature.
        metric: covariance that preconditions noise and drift, given as for `HMC`.
    """

    step_size: Any = 0.1
    metric: Any = None
    target_acceptance: ClassVar[float] = 0.574

    def natural_step(self, dimension: int) -> float:
        """The step size, relative to the target's own scale, that adaptation starts from."""
        return 1.4 / dimension ** (1 / 6)

    def step(
        self,
        rng_key: jax.Array,
        density: Density,
        state: State,
        point: PathPoint,
        tuning: Tuning,
    ) -> tuple[State, Info]:
        return HMC(num_leapfrog=1).step(rng_key, density, state, point, tuning)
