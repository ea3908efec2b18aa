"""Whether an estimate has the error that was asked for, and how many draws it lacks."""

from __future__ import annotations

import dataclasses
import math
from typing import TypeVar

from estimand.evidence import Status
from estimand.importance import error_scale, is_reached
from estimand.merge import ENOUGH_EFFECTIVE
from estimand.methods import Figures, Method, worst
from estimand.record import Record

Kind = TypeVar("Kind", bound=Record)


def lack_of(record: Record, goal: float) -> float:
    """How many times more draws the asked error needs; at most 1 where it is reached."""
    if any(status is Status.nan_density for status in record.statuses):
        return 0.0
    return max(_lacking(figures, goal) for figures in record.run.figures)


def _lacking(figures: Figures, goal: float) -> float:
    if not math.isfinite(figures.standard_error):
        return math.inf
    lack = (figures.standard_error / (goal * error_scale(figures))) ** 2
    # An error that rests on few draws is not yet known.
    return max(lack, 2.0) if figures.status is Status.low_ess else lack


def judged(estimate: Kind, method: Method, goal: float) -> Kind:
    """The estimate with statuses that go by the error that was asked for now.

    Of a method that itself has an error to reach, `not_converged` says only that it did not.
    """
    has_goal = hasattr(method, "relative_error")
    figures = []
    for item in estimate.run.figures:
        status = item.status
        if status is Status.not_converged and has_goal:
            is_enough = min(item.ess_z1, estimate.run.ess_z2) >= ENOUGH_EFFECTIVE
            status = Status.ok if is_enough else Status.low_ess
        if not (math.isfinite(item.standard_error) and is_reached(item, goal)):
            status = worst([status, Status.not_converged])
        figures.append(item._replace(status=status))
    if tuple(figures) == estimate.run.figures:
        return estimate
    return dataclasses.replace(estimate, run=estimate.run._replace(figures=tuple(figures)))
