"""The table of what a record keeps of a part, by which it is stored, exported and merged."""

from __future__ import annotations

import math
import typing

import numpy as np
import pytest

from estimand.methods import Run
from estimand.record import storage
from estimand.record.parts import (
    PART_FIELDS,
    SHARED,
    Merging,
    PartSummary,
    find_part,
    merged_part,
    summarise,
    used_evidence,
    with_parts,
)
from estimand.trust import Evidence, OutputEstimate, Parts, Status
from tests.trust.helpers import evidence


def summary(log_z: float = 0.0, output: int = SHARED, count: int = 1000) -> PartSummary:
    """A summary with something in every field."""
    log_weights = log_z + np.random.default_rng(count).normal(0.0, 0.5, count)
    return PartSummary(
        name="gamma2",
        output=output,
        log_z=log_z,
        relative_variance=0.3 / count,
        ess=0.8 * count,
        pareto_k=0.1,
        status=Status.low_ess,
        num_samples=count,
        largest=np.sort(log_weights)[::-1],
        replicate_log_z=log_weights[:16],
        betas=np.linspace(0, 1, 5)[None],
        acceptance=np.full((1, 5), 0.5),
        effective=np.full((1, 5), 0.9),
    )


def test_the_table_has_every_field_in_order() -> None:
    assert tuple(field.name for field in PART_FIELDS) == PartSummary._fields
    assert {field.name: field.kind for field in PART_FIELDS} == typing.get_type_hints(PartSummary)


def test_every_field_is_stored_and_read_again() -> None:
    part = summary()
    plain = storage.plain_part(part)
    arrays = {
        f"part3.{field.name}": getattr(part, field.name) for field in PART_FIELDS if field.is_array
    }
    assert {*plain, *(name.removeprefix("part3.") for name in arrays)} == set(PartSummary._fields)
    read = storage._decode_part(plain, arrays, 3)
    for field in PART_FIELDS:
        mine, theirs = getattr(part, field.name), getattr(read, field.name)
        assert type(theirs) is type(mine)
        np.testing.assert_array_equal(theirs, mine)


def test_one_run_merged_alone_is_itself_in_every_field() -> None:
    part = summary()
    merged = merged_part(Merging([part], np.ones(1), part.log_z))
    for name in PartSummary._fields:
        if name != "pareto_k":
            np.testing.assert_array_equal(getattr(merged, name), getattr(part, name), name)
    assert merged.pareto_k == pytest.approx(0.0, abs=0.2)


def test_two_runs_merged() -> None:
    """Z is the mean by share; counts and arrays are put together; the worst status stays."""
    first = summary(math.log(2.0), count=1000)
    second = summary(math.log(4.0), count=3000)._replace(
        status=Status.heavy_tailed, betas=np.linspace(0, 1, 7)[None], acceptance=np.ones((1, 7))
    )
    shares = np.asarray([0.25, 0.75])
    merged = merged_part(Merging([first, second], shares, math.log(3.5)))
    assert merged.log_z == math.log(3.5)
    pieces = shares * [2.0, 4.0] / 3.5
    expected = pieces[0] ** 2 * first.relative_variance + pieces[1] ** 2 * second.relative_variance
    assert merged.relative_variance == pytest.approx(expected)
    assert merged.ess == pytest.approx(1 / (pieces[0] ** 2 / 800 + pieces[1] ** 2 / 2400))
    assert merged.num_samples == 4000
    assert merged.status is Status.heavy_tailed
    assert merged.replicate_log_z.size == 32
    assert merged.betas.shape == merged.acceptance.shape == (2, 7)
    assert np.isnan(merged.betas[0, 5:]).all()
    assert (np.diff(merged.largest) <= 0).all()
    # On the common scale the mean of all weights is the merged Z.
    factors = shares * 4000 / np.asarray([1000, 3000])
    largest = [factors[k] * np.exp(part.largest) for k, part in enumerate((first, second))]
    np.testing.assert_allclose(
        np.exp(merged.largest), np.sort(np.concatenate(largest))[::-1][: merged.largest.size]
    )


# --- normalisers of outputs ---


def run_of(*outputs: Parts) -> Run:
    return Run(tuple(OutputEstimate(1.0, 0.1, parts=parts) for parts in outputs), 100, 0)


def labels(run: Run) -> list[tuple[str, int]]:
    return [(used.name, used.output) for used in used_evidence(run)]


def test_a_normaliser_in_common_is_there_once() -> None:
    plus, other, shared = evidence(1.0), evidence(2.0), evidence(3.0)
    run = run_of(Parts(plus=plus, normaliser=shared), Parts(minus=other, normaliser=shared))
    assert labels(run) == [("gamma2", SHARED), ("gamma1_plus", 0), ("gamma1_minus", 1)]
    parts = [summarise(used) for used in used_evidence(run)]
    for number in (0, 1):
        assert find_part(parts, "gamma2", number).log_z == 3.0
    assert find_part(parts, "gamma1_minus", 0) is None


def test_normalisers_of_their_own_have_the_outputs_number() -> None:
    plus = evidence(1.0)
    own = [evidence(3.0), evidence(3.5)]
    run = run_of(*(Parts(plus=plus, normaliser=item) for item in own))
    assert labels(run) == [
        ("gamma2", 0),
        ("gamma2", 1),
        ("gamma1_plus", 0),
        ("gamma1_plus", 1),
    ]
    parts = [summarise(used) for used in used_evidence(run)]
    assert [find_part(parts, "gamma2", number).log_z for number in (0, 1)] == [3.0, 3.5]
    bare = [output._replace(parts=Parts()) for output in run.outputs]
    again = with_parts(bare, parts)
    assert [output.parts.log_z("normaliser") for output in again] == [3.0, 3.5]
    assert [output.parts.log_z("minus") for output in again] == [-math.inf, -math.inf]


def test_one_output_has_its_normaliser_in_common_with_all() -> None:
    assert labels(run_of(Parts(normaliser=evidence(3.0)))) == [("gamma2", SHARED)]


def test_parts_without_mass_are_not_kept() -> None:
    nothing: Evidence = evidence(-math.inf, math.inf)
    assert labels(run_of(Parts(nothing, nothing, evidence(0.0)))) == [("gamma2", SHARED)]
    assert labels(run_of(Parts())) == []
