"""What an estimator needs of a Markov kernel.

`tuning` turns the settings into arrays, one entry per temperature; `init` makes the state of a
particle at a point of the path; `step` moves it. All act on one particle and are vmapped by the
estimators. The state keeps the terms of its position, so that a new temperature costs a kernel
without gradients no evaluation at all.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from estimand.density import Density, PathPoint, Terms, is_invalid


class State(NamedTuple):
    """What the next step needs: position, its terms, and the gradient where one is used."""

    position: jax.Array
    terms: Terms
    gradient: Any


class Info(NamedTuple):
    """What a person needs: acceptance, and what the step cost."""

    acceptance: jax.Array
    num_evaluations: jax.Array
    num_gradients: jax.Array
    num_invalid: jax.Array


class Tuning(NamedTuple):
    """Step sizes and metric as arrays; with a leading axis, one entry per temperature.

    `factor` is the vector of scales or the Cholesky factor by which standard normal draws are
    multiplied: the square root of the proposal's covariance, or of the inverse mass matrix.
    `center` is where independent proposals are centred.
    """

    step_size: jax.Array
    factor: jax.Array
    center: jax.Array

    def stretch(self, vector: jax.Array) -> jax.Array:
        return self.factor * vector if self.factor.ndim == 1 else self.factor @ vector

    def stretch_transposed(self, vector: jax.Array) -> jax.Array:
        return self.factor * vector if self.factor.ndim == 1 else self.factor.T @ vector


@runtime_checkable
class Kernel(Protocol):
    """What an estimator needs of a Markov kernel; settings are hashable, and static under jit."""

    def check(self, density: Density) -> None:
        """Raises, before any work, if the kernel cannot take this density."""

    def structure(self) -> Any:
        """The kernel without the numbers that `tuning` has: what is compiled in."""

    def tuning(self, density: Density, num_temperatures: int) -> Tuning: ...

    def init(
        self, density: Density, position: jax.Array, terms: Terms, point: PathPoint
    ) -> tuple[State, Info]: ...

    def step(
        self,
        rng_key: jax.Array,
        density: Density,
        state: State,
        point: PathPoint,
        tuning: Tuning,
    ) -> tuple[State, Info]: ...


def cost(
    evaluations: Any = 0, gradients: Any = 0, invalid: Any = False, acceptance: Any = 0.0
) -> Info:
    """What a step cost, as arrays."""
    return Info(
        jnp.asarray(acceptance, jnp.result_type(float)),
        jnp.asarray(evaluations, jnp.int32),
        jnp.asarray(gradients, jnp.int32),
        jnp.asarray(invalid, jnp.int32),
    )


def is_bad(proposed: Terms, current: Terms) -> jax.Array:
    """A density that is NaN or infinite at a place that the prior takes seriously.

    Far out, where the prior is all but zero, programs overflow, and it does not matter.
    """
    is_plausible = proposed.log_prior > current.log_prior - 100.0
    return is_plausible & is_invalid(proposed.log_weight)


def log_uniform(rng_key: jax.Array, dtype: Any) -> jax.Array:
    """The logarithm of a uniform number, which an accepted log ratio exceeds."""
    return -jax.random.exponential(rng_key, dtype=dtype)


def chosen(accepted: jax.Array, proposal: State, state: State) -> State:
    """The proposal if it was accepted, else the state."""
    return jax.tree.map(lambda new, old: jnp.where(accepted, new, old), proposal, state)


class Given(NamedTuple):
    """The random numbers of one step, drawn outside: normal noise and the log of a uniform.

    Where `is_position`, the noise is itself the next position, which is always accepted.
    """

    noise: jax.Array
    threshold: jax.Array
    is_position: jax.Array | bool = False

    def proposal(self, moved: jax.Array) -> jax.Array:
        """Where a step goes that would otherwise move to `moved`."""
        if self.is_position is False:
            return moved
        return jnp.where(self.is_position, self.noise, moved)

    def accepts(self, log_ratio: jax.Array) -> jax.Array:
        """Whether a proposal with this Metropolis–Hastings ratio is accepted."""
        return (self.threshold < log_ratio) | self.is_position


@runtime_checkable
class AdaptableKernel(Kernel, Protocol):
    """A kernel whose step size and metric can be taken from particles."""

    target_acceptance: ClassVar[float]

    def natural_step(self, dimension: int) -> float:
        """The step size, relative to the target's own scale, that adaptation starts from."""


@runtime_checkable
class DrivenKernel(AdaptableKernel, Protocol):
    """A kernel whose random numbers can come from outside, on densities without discrete sites.

    What is compiled then has the density once and no generator of random numbers in it.
    """

    needs_gradient: ClassVar[bool]

    def advance(
        self, density: Density, state: State, point: PathPoint, tuning: Tuning, given: Given
    ) -> tuple[State, Info]:
        """As `step`, with given random numbers."""
