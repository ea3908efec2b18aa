"""Every program of the hostile table has its declared outcome, by two methods."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import estimand as ep
from problems.hostile import (
    TABLE,
    Refused,
    Right,
    Row,
    Told,
    thousands_of_latents,
    thousands_of_outputs,
)
from tests.stats import assert_estimate

# Draws from the prior: quick, and correct wherever the prior has mass.
PLAIN = ep.TABI(ep.ImportanceSampling(num_samples=20_000))


def rows(*, are_refused: bool) -> list[Any]:
    return [
        pytest.param(row, id=name)
        for name, row in TABLE.items()
        if isinstance(row.outcome, Refused) == are_refused
    ]


def assert_outcome(result: ep.Estimate, outcome: Told | Right) -> None:
    assert_honest(result)
    if isinstance(outcome, Told):
        assert {status.name for status in result.statuses} == {outcome.status.name}
        assert outcome.status.name in str(result)
        return
    truths = np.ravel(outcome.truth)
    for output, truth in zip(result.outputs, truths, strict=True):
        assert output.status is ep.Status.ok, str(result)
        assert_agrees(output, truth)


def assert_agrees(output: Any, truth: float) -> None:
    """By the estimate's own error, or exactly where there is none."""
    if output.standard_error <= 1e-12 * abs(truth):
        assert output.value == pytest.approx(truth, rel=1e-9)
        return
    # In units of the truth, because the test squares.
    unit = abs(truth) or 1.0
    assert_estimate(
        output.value / unit, output.standard_error / unit, truth / unit, degrees=output.degrees
    )


def assert_honest(result: ep.Estimate) -> None:
    """Never a silent NaN, and never 0 ± 0 but where the expression says so."""
    for number, (output, bounds) in enumerate(zip(result.outputs, result.bounds(), strict=True)):
        assert math.isfinite(output.value)
        assert output.standard_error >= 0
        assert not np.isnan(bounds).any()
        assert bounds[0] <= output.value <= bounds[1]
        if (output.value, output.standard_error) == (0.0, 0.0):
            assert result.density is not None
            assert result.density.known_zeros[number]
        if output.status is ep.Status.ok:
            assert math.isfinite(output.standard_error)


def test_the_table_is_large() -> None:
    assert len(TABLE) >= 40


@pytest.mark.parametrize("row", rows(are_refused=True))
def test_refused_at_once(row: Row) -> None:
    assert isinstance(row.outcome, Refused)
    with pytest.raises(row.outcome.error) as error:
        row.bind()
    for word in row.outcome.words:
        assert word in str(error.value)


@pytest.mark.parametrize("row", rows(are_refused=False))
def test_by_draws_from_the_prior(row: Row) -> None:
    assert row.plain is not None
    assert_outcome(ep.estimate_expectation(row.bind(), PLAIN, throw=False), row.plain)


@pytest.mark.slow
@pytest.mark.parametrize("row", rows(are_refused=False))
def test_by_default(row: Row) -> None:
    assert not isinstance(row.outcome, Refused)
    assert_outcome(ep.estimate_expectation(row.bind(), throw=False), row.outcome)


def test_thousands_of_latents() -> None:
    method = ep.TABI(ep.ImportanceSampling(num_samples=4000, batch_size=500))
    assert_outcome(ep.estimate_expectation(thousands_of_latents(2000), method), Right(1.5))


def test_thousands_of_outputs() -> None:
    """All from the same draws; the default method says so before it starts."""
    expectation = thousands_of_outputs(3000)
    with pytest.raises(ep.ProgramError, match=r"3,000 outputs.*expectation\[0\].*SelfNormalised"):
        ep.estimate_expectation(expectation)
    method = ep.SelfNormalised(ep.ImportanceSampling(num_samples=2000))
    result = ep.estimate_expectation(expectation, method)
    for k in (0, 2999):
        assert_agrees(result.outputs[k], 1.5 * (k + 1))
