"""The no-U-turn sampler."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.infer import hmc_util

from estimand.density import Density, PathPoint
from estimand.kernels.base import GradientKernel
from estimand.kernels.protocol import Info, State, Tuning, cost, is_bad
from estimand.settings import require_count

_DEAD = 1e30


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class NUTS(GradientKernel):
    """The no-U-turn sampler with a given step size; NumPyro's own tree builder.

    Args:
        step_size: of the leapfrog integrator; one number or one for each temperature.
        max_tree_depth: a trajectory has at most 2**max_tree_depth − 1 steps.
        metric: inverse mass matrix, given as for `HMC`.

    Examples:
        >>> annealed = ep.AnIS(num_temperatures=10, kernel=ep.NUTS(step_size=0.3, max_tree_depth=3))
        >>> evidence = ep.log_evidence(program(2.0), annealed)
        >>> abs(float(evidence.log_z) + 2.2655) < 4 * evidence.standard_error
        True
    """

    step_size: Any = 0.1
    max_tree_depth: int = 10
    metric: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("NUTS", "max_tree_depth", self.max_tree_depth)

    def step(
        self,
        rng_key: jax.Array,
        density: Density,
        state: State,
        point: PathPoint,
        tuning: Tuning,
    ) -> tuple[State, Info]:
        momentum_key, tree_key = jax.random.split(rng_key)
        identity = jnp.ones_like(state.position)

        def kinetic(_: jax.Array, momentum: jax.Array) -> jax.Array:
            return 0.5 * jnp.sum(momentum**2)

        def update(step_size: jax.Array, _: jax.Array, integrator: Any) -> Any:
            # Leapfrog in whitened coordinates w, where position = stretch(w): the metric is then
            # the identity, and one expression serves diagonal and dense metrics.
            whitened, momentum, _, slope = integrator
            momentum = momentum - 0.5 * step_size * slope
            whitened = whitened + step_size * momentum
            energy, slope = potential(whitened)
            momentum = momentum - 0.5 * step_size * slope
            return hmc_util.IntegratorState(whitened, momentum, energy, slope)

        def potential(whitened: jax.Array) -> tuple[jax.Array, jax.Array]:
            position = state.position + tuning.stretch(whitened)
            _, value, gradient = density.value_and_gradient(position, point)
            return -value, -tuning.stretch_transposed(gradient)

        # A particle where the density is 0 diverges at its first step instead of building a tree.
        energy = -point.log_density(state.terms)
        start = hmc_util.IntegratorState(
            jnp.zeros_like(state.position),
            jax.random.normal(momentum_key, state.position.shape, state.position.dtype),
            jnp.where(energy == jnp.inf, -_DEAD, energy),
            -tuning.stretch_transposed(state.gradient),
        )
        tree = hmc_util.build_tree(
            update,
            kinetic,
            start,
            identity,
            tuning.step_size,
            tree_key,
            max_tree_depth=self.max_tree_depth,
        )
        position = state.position + tuning.stretch(tree.z_proposal)
        # The tree keeps energies, not terms: one more evaluation gives them.
        terms, _, gradient = density.value_and_gradient(position, point)
        return State(position, terms, gradient), cost(
            gradients=tree.num_proposals + 1,
            invalid=is_bad(terms, state.terms),
            acceptance=tree.sum_accept_probs / tree.num_proposals,
        )
