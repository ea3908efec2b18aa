"""Adversarial programs: the truths by two ways, and what the table needs."""

from __future__ import annotations

import pytest

from benchmarks.adversarial import counted, judged
from problems.adversarial import CATEGORIES, FIRST, PROGRAMS, SECOND


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_ways_give_the_same_truth(name: str) -> None:
    program = PROGRAMS[name]
    assert program.disagreement() <= program.tolerance <= 0.01


@pytest.mark.parametrize("half", [FIRST, SECOND])
def test_every_category_has_programs(half: dict) -> None:
    assert {program.category for program in half.values()} == set(CATEGORIES)


def row(value: float, error: float, status: str) -> dict:
    output = {"value": value, "error": error, "status": status, "route": "", "findings": []}
    return {
        "program": "first/operating_cost_with_meltdown",
        "budget": 1000,
        "seed": 0,
        "goal": 0.01,
        "truth": [141.0],
        "outputs": [output],
    }


def test_answers_are_judged_by_their_errors_and_the_goal() -> None:
    near, far, refused = row(142.0, 1e-9, "ok"), row(150.0, 1.0, "ok"), row(0.0, 1.0, "low_ess")
    unsure = row(150.0, 3.0, "ok")
    (cell,) = counted(list(judged([near, far, refused, unsure]))).values()
    assert (cell["outputs"], cell["ok"], cell["wrong"]) == (4, 3, 1)
