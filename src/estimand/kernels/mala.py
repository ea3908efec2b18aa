"""The Metropolis-adjusted Langevin algorithm."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from estimand.density import Density, PathPoint
from estimand.kernels.base import GradientKernel
from estimand.kernels.protocol import (
    Given,
    Info,
    State,
    Tuning,
    chosen,
    cost,
    is_bad,
    log_uniform,
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class MALA(GradientKernel):
    """Metropolis-adjusted Langevin: Hamiltonian Monte Carlo with a single leapfrog step.

    Args:
        step_size: standard deviation of the proposal's noise; one number or one for each
            temperature.
        metric: covariance that preconditions noise and drift, given as for `HMC`.

    Examples:
        >>> annealed = ep.AnIS(num_temperatures=20, kernel=ep.MALA(step_size=0.5))
        >>> evidence = ep.log_evidence(program(2.0), annealed)
        >>> abs(float(evidence.log_z) + 2.2655) < 4 * evidence.standard_error
        True
    """

    step_size: Any = 0.1
    metric: Any = None
    target_acceptance: ClassVar[float] = 0.574
    needs_gradient: ClassVar[bool] = True

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
        noise_key, accept_key = jax.random.split(rng_key)
        shape, dtype = state.position.shape, state.position.dtype
        noise = jax.random.normal(noise_key, shape, dtype)
        given = Given(noise, log_uniform(accept_key, dtype))
        return self.advance(density, state, point, tuning, given)

    def advance(
        self, density: Density, state: State, point: PathPoint, tuning: Tuning, given: Given
    ) -> tuple[State, Info]:
        half = given.noise + 0.5 * tuning.step_size * tuning.stretch_transposed(state.gradient)
        position = given.proposal(state.position + tuning.step_size * tuning.stretch(half))
        terms, log_density, gradient = density.value_and_gradient(position, point)
        end = half + 0.5 * tuning.step_size * tuning.stretch_transposed(gradient)
        energy_gained = 0.5 * (jnp.sum(end**2) - jnp.sum(given.noise**2))
        log_ratio = log_density - point.log_density(state.terms) - energy_gained
        proposal = State(position, terms, gradient)
        accepted = given.accepts(log_ratio)
        state = chosen(accepted, proposal, state)
        return state, cost(gradients=1, invalid=is_bad(terms, state.terms), acceptance=accepted)
