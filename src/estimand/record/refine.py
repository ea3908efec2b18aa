"""Whether an estimate has the error that was asked for, what it lacks, and how to go on."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple, TypeVar

import jax

from estimand.methods.adaptive.draws import error_scale, is_reached
from estimand.methods.auto import Auto
from estimand.methods.protocol import INTERRUPTED, Figures, Method, worst
from estimand.model.program import Expectation
from estimand.record.merge import ENOUGH_EFFECTIVE
from estimand.record.provenance import origin_of
from estimand.record.record import Record
from estimand.trust.status import Status

Kind = TypeVar("Kind", bound=Record)


class Task(NamedTuple):
    """What an estimate is of, as it is needed to go on with it."""

    expectation: Expectation
    method: Method


def lack_of(record: Record, goal: float) -> float:
    """How many times more draws the asked error needs; at most 1 where it is reached."""
    if any(status is Status.nan_density for status in record.statuses):
        return 0.0
    lack = max(_lacking(figures, goal) for figures in record.run.figures)
    return max(lack, 2.0) if _is_unchecked(record) else lack


def _is_unchecked(record: Record) -> bool:
    """Whether it is of an interrupted run alone, which did not come to look for missed modes."""
    return INTERRUPTED in record.run.notes and len(record.origin.keys) == 1


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
    has_goal = hasattr(method, "relative_error") and not _is_unchecked(estimate)
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


def task_of(
    estimate: Record, task: Task | None, expectation: Expectation | None, method: Method | None
) -> Task:
    """What the estimate is of, checked against it."""
    if expectation is None and task is not None:
        expectation = task.expectation
    if method is None:
        method = Auto() if task is None else task.method
    if expectation is None:
        raise ValueError(
            "refine: a record that was loaded does not have its program: give it with its data, "
            f"as in refine(expectation={estimate.program}(data), relative_error=...)."
        )
    if not estimate.origin.keys:
        raise ValueError(
            "refine: the estimate does not say which key it is of; only estimates made by "
            "estimate_expectation can be refined."
        )
    if not isinstance(expectation, Expectation):
        raise TypeError(f"refine: expected a bound expectation program, got {expectation!r}.")
    given = origin_of(expectation, method, jax.random.key(0))
    for what, remedy in {
        "program": "give the program that it was made with, unchanged",
        "data": "give the same data",
        "method": f"give method={estimate.method}",
    }.items():
        if getattr(given, f"{what}_digest") != getattr(estimate.origin, f"{what}_digest"):
            raise ValueError(f"refine: the estimate is of another {what}: {remedy}.")
    return Task(expectation, method)
