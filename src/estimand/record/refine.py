"""Whether an estimate has reached the requested error, what it lacks, and how to continue."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple, TypeVar

import jax

from estimand.methods import Auto, Method
from estimand.model import Bound
from estimand.record.provenance import provenance_of
from estimand.record.record import Record
from estimand.trust import Goal, OutputEstimate, Status, check_goal

Kind = TypeVar("Kind", bound=Record)


class Question(NamedTuple):
    """What an estimate is of, and how it was obtained, as it is needed to go on with it."""

    expectation: Bound
    method: Method


def lack_of(record: Record, goal: float) -> float:
    """How many times more draws the requested error needs; at most 1 where it is reached."""
    if any(status is Status.nan_density for status in record.statuses):
        return 0.0
    return max(_lacking(output, goal) for output in record.outputs)


def _lacking(output: OutputEstimate, goal: float) -> float:
    if not math.isfinite(output.standard_error):
        return math.inf
    lack = (output.standard_error / (goal * output.error_scale)) ** 2
    # An error that rests on few draws, or on a run that was cut off, is not yet known.
    is_unknown = output.status in (Status.low_ess, Status.interrupted)
    return max(lack, 2.0) if is_unknown else lack


def judged(estimate: Kind, goal: float) -> Kind:
    """The estimate with findings for the error that is requested now."""
    outputs = []
    for output in estimate.outputs:
        output = output.without_findings("goal")
        is_known = math.isfinite(output.standard_error)
        findings = check_goal(output, Goal(goal), slack=1.0) if is_known else []
        outputs.append(output.with_findings(findings))
    if [output.findings for output in outputs] == list(estimate.findings):
        return estimate
    return dataclasses.replace(estimate, run=estimate.run._replace(outputs=tuple(outputs)))


def question_of(
    estimate: Record,
    question: Question | None,
    expectation: Bound | None,
    method: Method | None,
) -> Question:
    """What the estimate is of, checked against it."""
    if expectation is None and question is not None:
        expectation = question.expectation
    if method is None:
        method = Auto() if question is None else question.method
    if expectation is None:
        raise ValueError(
            "refine: a record that was loaded does not have its program: give it with its data, "
            f"as in refine(expectation={estimate.program}(data), relative_error=...)."
        )
    if not estimate.provenance.keys:
        raise ValueError(
            "refine: the estimate does not say which key it is of; only estimates made by "
            "estimate_expectation can be refined."
        )
    if not isinstance(expectation, Bound):
        raise TypeError(f"refine: expected a bound expectation program, got {expectation!r}.")
    given = provenance_of(expectation, method, jax.random.key(0))
    for what, remedy in {
        "program": "give the program that it was made with, unchanged",
        "data": "give the same data",
        "method": f"give method={estimate.method}",
    }.items():
        if getattr(given, f"{what}_digest") != getattr(estimate.provenance, f"{what}_digest"):
            raise ValueError(f"refine: the estimate belongs to another {what}: {remedy}.")
    return Question(expectation, method)
