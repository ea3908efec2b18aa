"""The table of all problems with exact answers, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from problems import (
    banana,
    eight_schools,
    figure1,
    gaussian,
    radon,
    reliability,
    rosenbrock,
    sir,
    textbook,
)
from problems.problem import Problem

_MODULES = (
    figure1,
    textbook,
    gaussian,
    banana,
    rosenbrock,
    reliability,
    eight_schools,
    sir,
    radon,
)

PROBLEMS: dict[str, Problem] = {
    problem.name: problem for module in _MODULES for problem in module.problems()
}

# Expectations that do not exist.
IMPROPER: dict[str, Callable[..., Any]] = {
    "pareto_mean": textbook.pareto_mean,
    "cauchy_mean": textbook.cauchy_mean,
}
