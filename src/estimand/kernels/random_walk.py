"""Gaussian random-walk Metropolis–Hastings."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from estimand.density import Density, PathPoint
from estimand.kernels.base import GradientFreeKernel
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
from estimand.kernels.tuning import tuning_of
from estimand.settings import freeze_matrix, freeze_scale


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class RandomWalk(GradientFreeKernel):
    """Gaussian random-walk Metropolis–Hastings; discrete sites are proposed from their prior.

    Args:
        scale: standard deviation of the proposal in unconstrained coordinates: one number, one
            for each temperature, or a dict with one for each continuous site.
        covariance: covariance matrix of the proposal (or one for each temperature), which `scale`
            then multiplies.

    With discrete sites, a step also redraws one of their elements from its prior given the rest.

    Examples:
        >>> annealed = ep.AnIS(num_temperatures=20, kernel=ep.RandomWalk(scale={"x": 0.7}))
        >>> evidence = ep.log_evidence(program(2.0), annealed)
        >>> abs(float(evidence.log_z) + 2.2655) < 4 * evidence.standard_error
        True
    """

    scale: Any = 0.5
    covariance: Any = None
    target_acceptance: ClassVar[float] = 0.3
    needs_gradient: ClassVar[bool] = False

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
        return tuning_of("RandomWalk", density, num_temperatures, scale=scale, metric=metric)

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
        dtype = state.position.dtype
        noise = jax.random.normal(move_key, (density.layout.num_continuous,), dtype)
        given = Given(noise, log_uniform(accept_key, dtype))
        return self.advance(density, state, point, tuning, given)

    def advance(
        self, density: Density, state: State, point: PathPoint, tuning: Tuning, given: Given
    ) -> tuple[State, Info]:
        move = tuning.step_size * tuning.stretch(given.noise)
        position = given.proposal(state.position.at[: move.size].add(move))
        terms = density.terms(position)
        log_ratio = point.log_density(terms) - point.log_density(state.terms)
        proposal = State(position, terms, ())
        accepted = given.accepts(log_ratio)
        state = chosen(accepted, proposal, state)
        return state, cost(evaluations=1, invalid=is_bad(terms, state.terms), acceptance=accepted)

    def _jump(
        self, rng_key: jax.Array, density: Density, state: State, point: PathPoint
    ) -> tuple[State, Info]:
        """Redraws one element of the discrete sites from its prior given everything else.

        That element's own prior is not changed by its redraw, so the proposal's density is its
        prior and cancels; the rest of the tempered density decides.
        """
        draw_key, choose_key, accept_key = jax.random.split(rng_key, 3)
        redraw = density.redraw(draw_key, state.position)
        element = jax.random.randint(choose_key, (), 0, redraw.log_before.size)
        is_chosen = density.layout.discrete_elements == element
        position = jnp.where(is_chosen, redraw.position, state.position)
        terms = density.terms(position)
        log_ratio = point.log_density(terms) - point.log_density(state.terms)
        log_ratio += redraw.log_before[element] - redraw.log_after[element]
        accepted = log_uniform(accept_key, log_ratio.dtype) < log_ratio
        state = chosen(accepted, State(position, terms, ()), state)
        return state, cost(evaluations=2, invalid=is_bad(terms, state.terms), acceptance=accepted)
