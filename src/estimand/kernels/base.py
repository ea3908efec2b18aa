"""What gradient-free and gradient-based kernels share."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from estimand.density import Density, PathPoint, Terms
from estimand.kernels.protocol import Info, State, Tuning, cost
from estimand.kernels.tuning import tuning_of
from estimand.settings import Settings, freeze_matrix, freeze_scale


class GradientFreeKernel(Settings):
    """What RandomWalk and IndependentT share: a new temperature costs no evaluation."""

    def init(
        self, density: Density, position: jax.Array, terms: Terms, point: PathPoint
    ) -> tuple[State, Info]:
        return State(position, terms, ()), cost()


class GradientKernel(Settings):
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
        return tuning_of(
            owner, density, num_temperatures, scale=scale, metric=("metric", self.metric)
        )

    def init(
        self, density: Density, position: jax.Array, terms: Terms, point: PathPoint
    ) -> tuple[State, Info]:
        _, _, gradient = density.value_and_gradient(position, point)
        return State(position, terms, gradient), cost(gradients=1)
