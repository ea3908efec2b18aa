"""Markov kernels that leave a tempered density invariant: RandomWalk, MALA, HMC, NUTS.

One protocol serves them all. `tuning` turns the settings into arrays, one entry per temperature;
`init` makes the state of a particle at a point of the path; `step` moves it. All act on one
particle and are vmapped by the estimators. The state keeps the terms of its position, so that a
new temperature costs a kernel without gradients no evaluation at all.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro.infer import hmc_util

from estimand.density import Density, PathPoint, Terms, is_invalid
from estimand.settings import (
    Settings,
    freeze_matrix,
    freeze_scale,
    require_count,
    require_positive,
)

_DEAD = 1e30


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


class Kernel(Protocol):
    """What an estimator needs of a Markov kernel."""

    def check(self, density: Density) -> None: ...

    def structure(self) -> Kernel: ...

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


def _cost(
    evaluations: Any = 0, gradients: Any = 0, invalid: Any = False, acceptance: Any = 0.0
) -> Info:
    return Info(
        jnp.asarray(acceptance, jnp.result_type(float)),
        jnp.asarray(evaluations, jnp.int32),
        jnp.asarray(gradients, jnp.int32),
        jnp.asarray(invalid, jnp.int32),
    )


def _is_bad(proposed: Terms, current: Terms) -> jax.Array:
    """A density that is NaN or infinite at a place that the prior takes seriously.

    Far out, where the prior is all but zero, programs overflow, and it does not matter.
    """
    is_plausible = proposed.log_prior > current.log_prior - 100.0
    return is_plausible & is_invalid(proposed.log_weight)


def _accept(
    rng_key: jax.Array, log_ratio: jax.Array, proposal: State, state: State
) -> tuple[State, jax.Array]:
    accepted = -jax.random.exponential(rng_key, dtype=log_ratio.dtype) < log_ratio
    return jax.tree.map(lambda new, old: jnp.where(accepted, new, old), proposal, state), accepted


class _GradientFreeKernel(Settings):
    """What RandomWalk and IndependentT share: a new temperature costs no evaluation."""

    def init(
        self, density: Density, position: jax.Array, terms: Terms, point: PathPoint
    ) -> tuple[State, Info]:
        return State(position, terms, ()), _cost()


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class RandomWalk(_GradientFreeKernel):
    """Gaussian random-walk Metropolis–Hastings; discrete sites are proposed from their prior.

    Args:
        scale: standard deviation of the proposal in unconstrained coordinates: one number, one
            for each temperature, or a dict with one for each continuous site.
        covariance: covariance matrix of the proposal (or one for each temperature), which `scale`
            then multiplies.

    With discrete sites, a step also redraws one of their elements from its prior given the rest.
    """

    scale: Any = 0.5
    covariance: Any = None
    target_acceptance: ClassVar[float] = 0.3

    def __post_init__(self) -> None:
        freeze_scale(self, "scale", by_site=True)
        freeze_matrix(self, "covariance")

    def check(self, density: Density) -> None:
        """RandomWalk moves every kind of site."""

    def natural_step(self, dimension: int) -> float:
        """The step size, relative to the target's own scale, that adaptation starts from."""
        return 2.38 / math.sqrt(max(dimension, 1))

    def structure(self) -> RandomWalk:
        return RandomWalk()

    def tuning(self, density: Density, num_temperatures: int) -> Tuning:
        scale, metric = ("scale", self.scale), ("covariance", self.covariance)
        return _tuning("RandomWalk", density, num_temperatures, scale=scale, metric=metric)

    def step(
        self,
        rng_key: jax.Array,
        density: Density,
        state: State,
        point: PathPoint,
        tuning: Tuning,
    ) -> tuple[State, Info]:
        if not density.layout.discrete_sites:
            return self._walk(rng_key, density, state, point, tuning)
        walk_key, discrete_key = jax.random.split(rng_key)
        jumped, jump = self._jump(discrete_key, density, state, point)
        if density.layout.num_continuous == 0:
            return jumped, jump
        walked, walk = self._walk(walk_key, density, jumped, point, tuning)
        return walked, Info(
            (walk.acceptance + jump.acceptance) / 2,
            *(a + b for a, b in zip(walk[1:], jump[1:], strict=True)),
        )

    def _walk(
        self,
        rng_key: jax.Array,
        density: Density,
        state: State,
        point: PathPoint,
        tuning: Tuning,
    ) -> tuple[State, Info]:
        move_key, accept_key = jax.random.split(rng_key)
        noise = jax.random.normal(move_key, (density.layout.num_continuous,), state.position.dtype)
        move = tuning.step_size * tuning.stretch(noise)
        position = state.position.at[: move.size].add(move)
        terms = density.terms(position)
        log_ratio = point.log_density(terms) - point.log_density(state.terms)
        state, accepted = _accept(accept_key, log_ratio, State(position, terms, ()), state)
        return state, _cost(evaluations=1, invalid=_is_bad(terms, state.terms), acceptance=accepted)

    def _jump(
        self, rng_key: jax.Array, density: Density, state: State, point: PathPoint
    ) -> tuple[State, Info]:
        """Redraws one element of the discrete sites from its prior given everything else.

        That element's own prior is not changed by its redraw, so the proposal's density is its
        prior and cancels; the rest of the tempered density decides.
        """
        draw_key, choose_key, accept_key = jax.random.split(rng_key, 3)
        drawn, before, after = density.draw_discrete(draw_key, state.position)
        element = jax.random.randint(choose_key, (), 0, before.size)
        position = jnp.where(density.layout.discrete_elements == element, drawn, state.position)
        terms = density.terms(position)
        log_ratio = point.log_density(terms) - point.log_density(state.terms)
        log_ratio += before[element] - after[element]
        state, accepted = _accept(accept_key, log_ratio, State(position, terms, ()), state)
        return state, _cost(evaluations=2, invalid=_is_bad(terms, state.terms), acceptance=accepted)


class _GradientKernel(Settings):
    """What MALA, HMC and NUTS share."""

    step_size: Any
    metric: Any

    def __post_init__(self) -> None:
        freeze_scale(self, "step_size")
        freeze_matrix(self, "metric")

    def check(self, density: Density) -> None:
        density.require_continuous(type(self).__name__)

    def structure(self) -> Any:
        return dataclasses.replace(self, step_size=1.0, metric=None)  # type: ignore[type-var]

    def tuning(self, density: Density, num_temperatures: int) -> Tuning:
        owner, scale = type(self).__name__, ("step_size", self.step_size)
        return _tuning(
            owner, density, num_temperatures, scale=scale, metric=("metric", self.metric)
        )

    def init(
        self, density: Density, position: jax.Array, terms: Terms, point: PathPoint
    ) -> tuple[State, Info]:
        _, _, gradient = density.value_and_gradient(position, point)
        return State(position, terms, gradient), _cost(gradients=1)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class HMC(_GradientKernel):
    """Hamiltonian Monte Carlo with a fixed number of leapfrog steps.

    Args:
        step_size: of the leapfrog integrator, in unconstrained coordinates; one number or one for
            each temperature.
        num_leapfrog: leapfrog steps in a trajectory.
        metric: inverse mass matrix: a vector (diagonal), a matrix, or an array with one of either
            for each temperature; identity by default.
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
        state, accepted = _accept(accept_key, log_ratio, proposal, state)
        return state, _cost(
            gradients=self.num_leapfrog, invalid=_is_bad(terms, state.terms), acceptance=accepted
        )


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class MALA(_GradientKernel):
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


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class NUTS(_GradientKernel):
    """The no-U-turn sampler with a given step size; NumPyro's own tree builder.

    Args:
        step_size: of the leapfrog integrator; one number or one for each temperature.
        max_tree_depth: a trajectory has at most 2**max_tree_depth − 1 steps.
        metric: inverse mass matrix, given as for `HMC`.
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
        return State(position, terms, gradient), _cost(
            gradients=tree.num_proposals + 1,
            invalid=_is_bad(terms, state.terms),
            acceptance=tree.sum_accept_probs / tree.num_proposals,
        )


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class IndependentT(_GradientFreeKernel):
    """Independent proposals from a Student-t law with the particles' mean and covariance.

    For `SMC`, which takes both from its particles. Good up to a few dimensions, where it mixes at
    once and jumps between modes; useless where the target is far from elliptic.

    Args:
        degrees_of_freedom: of the Student-t law.
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
        return _tuning("IndependentT", density, num_temperatures, scale=scale, metric=metric)

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
        state, accepted = _accept(accept_key, log_ratio, State(position, terms, ()), state)
        return state, _cost(evaluations=1, invalid=_is_bad(terms, state.terms), acceptance=accepted)


# --- from settings to arrays ---


def _tuning(
    owner: str,
    density: Density,
    num_temperatures: int,
    *,
    scale: tuple[str, Any],
    metric: tuple[str, Any],
) -> Tuning:
    """Arrays with one entry per temperature from a kernel's settings, each given by name."""
    scale_name, value = scale
    factor = _factor(owner, density.layout.num_continuous, num_temperatures, *metric)
    if isinstance(value, tuple) and isinstance(value[0], tuple):
        scales = _site_scales(owner, density, dict(value))
        factor = factor * (scales if factor.ndim == 2 else scales[..., None])
        value = 1.0
    steps = np.asarray(value)
    if steps.ndim == 1 and steps.size != num_temperatures:
        raise ValueError(
            f"{owner}: {scale_name} has {steps.size} entries for {num_temperatures} temperatures."
        )
    dtype = jnp.result_type(float)
    return Tuning(
        jnp.asarray(np.broadcast_to(steps, (num_temperatures,)), dtype),
        jnp.asarray(np.broadcast_to(factor, (num_temperatures, *factor.shape[1:])), dtype),
        jnp.zeros((num_temperatures, density.layout.num_continuous), dtype),
    )


def _factor(
    owner: str, dimension: int, num_temperatures: int, name: str, metric: Any
) -> np.ndarray:
    """Square roots of a metric: shape (1 or T, d) for diagonal ones, (1 or T, d, d) for dense."""
    if metric is None:
        return np.ones((1, dimension))
    array = np.asarray(metric)
    dense, diagonal = (dimension, dimension), (dimension,)
    per_temperature = (num_temperatures, dimension)
    if array.shape == dense == per_temperature and dimension > 1:
        raise ValueError(
            f"{owner}: {name} of shape {array.shape} may be one matrix or a diagonal for each of "
            f"the {num_temperatures} temperatures: give it with shape {(1, *dense)} or "
            f"{(num_temperatures, *dense)}."
        )
    if array.shape in (diagonal, per_temperature) and array.shape != dense:
        require_positive(owner, name, array)
        return np.sqrt(np.atleast_2d(array))
    if array.shape in (dense, (1, *dense), (num_temperatures, *dense)):
        try:
            return np.linalg.cholesky(array.reshape(-1, *dense))
        except np.linalg.LinAlgError:
            raise ValueError(f"{owner}: {name} must be positive definite.") from None
    raise ValueError(
        f"{owner}: {name} has shape {array.shape}; for {dimension} continuous dimensions it must "
        f"be {diagonal}, {dense}, {per_temperature} or {(num_temperatures, *dense)}."
    )


def _site_scales(owner: str, density: Density, scales: dict[str, Any]) -> np.ndarray:
    continuous = [site for site in density.layout.sites if not site.latent.is_discrete]
    names = [site.latent.name for site in continuous]
    for name in scales:
        if name not in names:
            raise ValueError(
                f"{owner}: scale names {name!r}, which is no continuous site of program "
                f"{density.name!r}; it has {names}."
            )
    pieces = []
    for site in continuous:
        if site.latent.name not in scales:
            raise ValueError(f"{owner}: scale has no entry for site {site.latent.name!r}.")
        value = np.asarray(scales[site.latent.name])
        try:
            pieces.append(np.broadcast_to(value, site.shape).reshape(math.prod(site.shape)))
        except ValueError:
            raise ValueError(
                f"{owner}: scale of site {site.latent.name!r} has shape {value.shape}; its "
                f"unconstrained shape is {site.shape}."
            ) from None
    return np.concatenate(pieces)[None]
