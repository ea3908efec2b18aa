"""What `estimate_expectation` needs of a method, and what a method gives."""

from __future__ import annotations

import math
import sys
from typing import NamedTuple, Protocol

import jax

from estimand.density import Density
from estimand.trust.evidence import Evidence
from estimand.trust.status import Status

CONFIDENCE = 0.95


# Independent routes that are farther apart than this many joint errors disagree.
MAX_JOINT_ERRORS = 4.0


LOG_MAX = math.log(sys.float_info.max) - 1


LOG_MIN = math.log(sys.float_info.min)


class Figures(NamedTuple):
    """What a method says of one output."""

    value: float
    standard_error: float
    status: Status
    ess_z1: float
    is_log_scale: bool = False
    upper_bound: float = math.inf
    degrees: float = math.inf
    magnitude: float = math.nan
    log_z1_plus: float = math.nan
    log_z1_minus: float = math.nan
    ess_z1_plus: float = math.nan
    ess_z1_minus: float = math.nan


class Run(NamedTuple):
    """What a method says of all outputs, and what it cost."""

    figures: tuple[Figures, ...]
    num_evaluations: int
    num_gradients: int
    ess_z2: float
    log_z2: float = math.nan
    evidence: tuple[tuple[str, Evidence], ...] = ()
    notes: tuple[str, ...] = ()

    def without_false_trust(self) -> Run:
        """The same with no output `ok` whose value or error is no number."""
        return self._replace(figures=tuple(_doubted(item) for item in self.figures))


def _doubted(figures: Figures) -> Figures:
    if figures.status is not Status.ok or math.isfinite(figures.standard_error + figures.value):
        return figures
    is_number = math.isfinite(figures.value)
    status = Status.low_ess if is_number else Status.nan_density
    return figures._replace(status=status, standard_error=math.inf)


def in_plain_coordinates(run: Run, density: Density) -> Run:
    """The same run with positions as the density in plain coordinates has them."""
    moved: dict[int, jax.Array] = {}
    evidence = []
    for name, item in run.evidence:
        key = id(item.positions)
        if key not in moved:
            moved[key] = density.in_plain_coordinates(item.positions)
        evidence.append((name, item._replace(positions=moved[key])))
    return run._replace(evidence=tuple(evidence))


class Method(Protocol):
    """What `estimate_expectation` needs of a method."""

    def check(self, density: Density) -> None:
        """Raises, before any work, if the method cannot take this program."""

    def run(self, rng_key: jax.Array, density: Density) -> Run: ...


def below_the_smallest_number(log_z1_plus: float, log_z1_minus: float) -> Figures:
    """Figures of an expectation that floating point cannot hold: never 0 ± 0."""
    return Figures(
        value=0.0,
        standard_error=math.inf,
        status=Status.underflow,
        ess_z1=0.0,
        upper_bound=sys.float_info.min,
        log_z1_plus=log_z1_plus,
        log_z1_minus=log_z1_minus,
    )


_GRAVITY = (
    Status.ok,
    Status.low_ess,
    Status.not_converged,
    Status.heavy_tailed,
    Status.unresolved,
    Status.replicates_disagree,
    Status.underflow,
    Status.no_mass_found,
    Status.nan_density,
)


def gravity(status: Status) -> int:
    """How grave a status is; 0 is `ok`."""
    return _GRAVITY.index(status)


def worst(statuses: list[Status]) -> Status:
    """The gravest of several statuses."""
    return max(statuses, key=gravity)


INTERRUPTED = "interrupted: this was known by then"


def cut_off(run: Run) -> Run:
    """A run that was interrupted: its figures are those by then, and not to be trusted."""
    figures = tuple(
        item._replace(status=worst([item.status, Status.not_converged])) for item in run.figures
    )
    return run._replace(figures=figures, notes=(*run.notes, INTERRUPTED))


def joint_errors(first: Figures, second: Figures) -> float:
    """How far two independent estimates of one output are apart, in joint standard errors."""
    error = math.hypot(first.standard_error, second.standard_error)
    distance = abs(first.value - second.value)
    return distance / error if error > 0 else (0.0 if distance == 0 else math.inf)


def rule_of_three(num_effective: float) -> float:
    """Upper bound on a probability after no hit in so many independent draws."""
    return 1 - (1 - CONFIDENCE) ** (1 / max(num_effective, 1.0))
