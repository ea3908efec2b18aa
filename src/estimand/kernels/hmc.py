"""Hamiltonian Monte Carlo."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from estimand.density import Density, PathPoint
from estimand.kernels.base import GradientKernel
from estimand.kernels.protocol import Info, State, Tuning, chosen, cost, is_bad, log_uniform
from estimand.settings import require_count


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class HMC(GradientKernel):
    """Hamiltonian Monte Carlo with a fixed number of leapfrog steps.

    Args:
        step_size: of the leapfrog integrator, in unconstrained coordinates; one number or one for
            each temperature.
        num_leapfrog: leapfrog steps in a trajectory.
        metric: inverse mass matrix: a vector (diagonal), a matrix, or an array with one of either
            for each temperature; identity by default.

    Examples:
        >>> annealed = ep.AnIS(num_temperatures=20, kernel=ep.HMC(step_size=0.2, num_leapfrog=5))
        >>> evidence = ep.log_evidence(program(2.0), annealed)
        >>> abs(float(evidence.log_z) + 2.2655) < 4 * evidence.standard_error
        True
    """

    step_size: Any = 0.1
    num_leapfrog: int = 10
    metric: Any = None
    target_acceptance: ClassVar[float] = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("HMC", "num_leapfrog", self.num_leapfrog)

    def natural_step(self, dimension: int) -> float:
        """The step size, relative to the target's own scale, that adaptation starts from."""
        return min(1.2 / dimension**0.25, 3.0 / self.num_leapfrog)

    def step(
        self,
        rng_key: jax.Array,
        density: Density,
        state: State,
        point: PathPoint,
        tuning: Tuning,
    ) -> tuple[State, Info]:
        momentum_key, accept_key = jax.random.split(rng_key)
        momentum = jax.random.normal(momentum_key, state.position.shape, state.position.dtype)

        def leapfrog(_: int, carry: tuple) -> tuple:
            position, momentum, gradient, _, _ = carry
            momentum += 0.5 * tuning.step_size * tuning.stretch_transposed(gradient)
            position += tuning.step_size * tuning.stretch(momentum)
            terms, log_density, gradient = density.value_and_gradient(position, point)
            momentum += 0.5 * tuning.step_size * tuning.stretch_transposed(gradient)
            return position, momentum, gradient, terms, log_density

        start = point.log_density(state.terms)
        carry = (state.position, momentum, state.gradient, state.terms, start)
        carry = lax.fori_loop(0, self.num_leapfrog, leapfrog, carry)
        position, end_momentum, gradient, terms, end = carry
        energy_gained = 0.5 * (jnp.sum(end_momentum**2) - jnp.sum(momentum**2))
        log_ratio = end - start - energy_gained
        proposal = State(position, terms, gradient)
        accepted = log_uniform(accept_key, log_ratio.dtype) < log_ratio
        state = chosen(accepted, proposal, state)
        return state, cost(
            gradients=self.num_leapfrog, invalid=is_bad(terms, state.terms), acceptance=accepted
        )
