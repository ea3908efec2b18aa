"""What `estimate_expectation` needs of a method, and what a method gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import GRADIENT_COST, Density, to_plain_coordinates
from estimand.model import PLAIN
from estimand.runtime import Runtime
from estimand.sampling import in_chunks
from estimand.trust import (
    BranchEstimate,
    Evidence,
    Finding,
    Goal,
    OutputEstimate,
    Parts,
    Status,
)


class Cost(NamedTuple):
    """Densities evaluated without and with their gradient."""

    num_evaluations: int = 0
    num_gradients: int = 0

    def __add__(self, other: Any) -> Cost:
        return Cost(
            self.num_evaluations + other.num_evaluations,
            self.num_gradients + other.num_gradients,
        )

    @property
    def spent(self) -> int:
        """In evaluations, as budgets count it."""
        return self.num_evaluations + GRADIENT_COST * self.num_gradients


class Run(NamedTuple):
    """A method's estimates of all outputs, and what they cost.

    `branches` are those of a program that branches.
    """

    outputs: tuple[OutputEstimate, ...]
    num_evaluations: int
    num_gradients: int
    notes: tuple[str, ...] = ()
    branches: tuple[BranchEstimate, ...] = ()

    @property
    def cost(self) -> Cost:
        return Cost(self.num_evaluations, self.num_gradients)

    def with_notes(self, *notes: str) -> Run:
        """The same with further notes, none of them twice."""
        return self._replace(notes=tuple(dict.fromkeys((*self.notes, *notes))))

    def with_finding(self, finding: Finding) -> Run:
        """The same with a finding about every output that a route had not finished with `ok`."""
        outputs = tuple(
            output if output.route and output.status else output.with_findings([finding])
            for output in self.outputs
        )
        return self._replace(outputs=outputs)


@runtime_checkable
class Method(Protocol):
    """How an expectation is estimated; settings are hashable."""

    def check(self, density: Density) -> None:
        """Raises, before any work, if the method cannot take this program."""

    def run(self, rng_key: jax.Array, density: Density, runtime: Runtime) -> Run: ...


@runtime_checkable
class GoalMethod(Method, Protocol):
    """A method that goes on until an error is reached, within a budget and a time."""

    relative_error: float
    absolute_error: float
    max_evaluations: int
    max_seconds: float

    @property
    def goal(self) -> Goal: ...

    def least_evaluations(self, density: Density) -> int:
        """What the smallest possible run costs."""

    def enough_evaluations(self, density: Density) -> int:
        """The budget from which on it can do what suits the program."""

    def run_within(self, rng_key: jax.Array, density: Density, runtime: Runtime) -> Run:
        """As `run`, for whoever accounts for budget and time."""


def in_plain_coordinates(
    outputs: Sequence[OutputEstimate], density: Density
) -> tuple[OutputEstimate, ...]:
    """The same with positions as the density in plain coordinates has them."""
    moved: dict[int, Any] = {}

    def plain(evidence: Evidence | None) -> Evidence | None:
        if evidence is None:
            return None
        key = id(evidence.positions)
        if key not in moved:
            moved[key] = plain_positions(density, evidence.positions)
        return evidence._replace(positions=moved[key])

    same: dict[int, Evidence | None] = {}

    def once(evidence: Evidence | None) -> Evidence | None:
        # Outputs that have a normaliser in common go on having it in common.
        if id(evidence) not in same:
            same[id(evidence)] = plain(evidence)
        return same[id(evidence)]

    return tuple(
        output._replace(parts=Parts(*(once(part) for part in output.parts))) for output in outputs
    )


def plain_positions(density: Density, positions: Any) -> Any:
    """Positions, one per row, as the density in plain coordinates has them."""
    if density.model.coordinates == PLAIN:
        return positions
    rows = np.asarray(positions, jnp.result_type(float))
    return in_chunks(lambda some: to_plain_coordinates(density, some), rows)


def interrupted(run: Run, seconds: float) -> Run:
    """A run that was cut off: its outputs are those by then, and not to be trusted."""
    detail = f"stopped by Ctrl-C after {seconds:.1f} s"
    return run.with_finding(Finding(Status.interrupted, None, detail, "interruption"))


class Budget(NamedTuple):
    """What a run may spend, and when it was begun on the runtime's clock."""

    max_evaluations: int
    max_seconds: float
    started: float

    def with_overruns(self, run: Run, runtime: Runtime, why: str) -> Run:
        """The run with a note for each limit that it overran, by how much and why.

        Times within a twentieth of the limit are not worth a note.
        """
        notes = []
        if (spent := run.cost.spent) > self.max_evaluations:
            allowed = f"{self.max_evaluations:,} allowed"
            notes.append(f"spent {spent:,} evaluations of {allowed}: {why} is finished")
        if math.isfinite(self.max_seconds):
            seconds = runtime.clock() - self.started
            if seconds > 1.05 * self.max_seconds:
                compiling = _seconds(runtime.compile_seconds())
                notes.append(
                    f"took {_seconds(seconds)} of {self.max_seconds:g} s allowed ({compiling} "
                    "compiling): a step that has begun is finished"
                )
        return run.with_notes(*notes)


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
