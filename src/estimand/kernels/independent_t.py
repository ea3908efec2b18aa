"""Independent Metropolis–Hastings with Student-t proposals."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density, PathPoint
from estimand.kernels.base import GradientFreeKernel
from estimand.kernels.protocol import Info, State, Tuning, chosen, cost, is_bad, log_uniform
from estimand.kernels.tuning import tuning_of
from estimand.settings import require_positive


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class IndependentT(GradientFreeKernel):
    """Independent Student-t proposals with the particles' mean and covariance.

    For `SMC`, which takes both from its particles. Good up to a few dimensions, where it mixes at
    once and jumps between modes; useless where the target is far from elliptic.

    Args:
        degrees_of_freedom: of the Student-t distribution.

    Examples:
        >>> islands = ep.SMC(num_islands=8, kernel=ep.IndependentT())
        >>> evidence = ep.log_evidence(program(2.0), islands)
        >>> abs(float(evidence.log_z) + 2.2655) < 4 * evidence.standard_error
        True
    """

    degrees_of_freedom: float = 5.0
    target_acceptance: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        require_positive("IndependentT", "degrees_of_freedom", np.asarray(self.degrees_of_freedom))

    def check(self, density: Density) -> None:
        density.require_continuous("IndependentT", "continuous sites")

    def structure(self) -> IndependentT:
        return self

    def natural_step(self, dimension: int) -> float:
        """Independent proposals have no step size."""
        return 1.0

    def tuning(self, density: Density, num_temperatures: int) -> Tuning:
        scale, metric = ("scale", 1.0), ("metric", None)
        return tuning_of("IndependentT", density, num_temperatures, scale=scale, metric=metric)

    def step(
        self,
        rng_key: jax.Array,
        density: Density,
        state: State,
        point: PathPoint,
        tuning: Tuning,
    ) -> tuple[State, Info]:
        normal_key, gamma_key, accept_key = jax.random.split(rng_key, 3)
        dimension, nu = state.position.size, self.degrees_of_freedom
        normal = jax.random.normal(normal_key, (dimension,), state.position.dtype)
        chi_squared = 2 * jax.random.gamma(gamma_key, nu / 2, dtype=state.position.dtype)
        position = tuning.center + tuning.stretch(normal * jnp.sqrt(nu / chi_squared))

        def log_proposal(position: jax.Array) -> jax.Array:
            deviation = position - tuning.center
            if tuning.factor.ndim == 1:
                whitened = deviation / tuning.factor
            else:
                whitened = jax.scipy.linalg.solve_triangular(tuning.factor, deviation, lower=True)
            return -0.5 * (nu + dimension) * jnp.log1p(jnp.sum(whitened**2) / nu)

        terms = density.terms(position)
        log_ratio = point.log_density(terms) - point.log_density(state.terms)
        log_ratio += log_proposal(state.position) - log_proposal(position)
        accepted = log_uniform(accept_key, log_ratio.dtype) < log_ratio
        state = chosen(accepted, State(position, terms, ()), state)
        return state, cost(evaluations=1, invalid=is_bad(terms, state.terms), acceptance=accepted)
