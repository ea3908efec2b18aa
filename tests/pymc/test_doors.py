"""The same problems in PyMC as in NumPyro: equal densities and right answers."""

from __future__ import annotations

import pytest

from problems.doors import STATED
from tests.model.test_doors import check_answer, check_densities

pytest.importorskip("pymc")


@pytest.mark.parametrize("problem", STATED)
def test_densities_are_equal(problem: str, seed: int) -> None:
    # NumPyro's and PyMC's negative binomial densities differ by 8e-7 of rounding, and by more where
    # the mean is 1e-10.
    check_densities(problem, "pymc", seed, rounding=5e-6 if problem == "sir" else 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("problem", STATED)
def test_answers_are_right(problem: str) -> None:
    check_answer(problem, "pymc")
