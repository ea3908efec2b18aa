"""Statuses: their order, their messages, and that they come from findings alone."""

from __future__ import annotations

import itertools

import pytest

import estimand as ep
from estimand.trust import Finding, Status, most_severe, worst
from tests.trust.helpers import output

ORDER = [
    "ok",
    "low_ess",
    "not_converged",
    "heavy_tailed",
    "unresolved",
    "replicates_disagree",
    "underflow",
    "no_mass_found",
    "interrupted",
    "nan_density",
]


def found(*statuses: Status) -> list[Finding]:
    return [Finding(status, None, "why", "a check") for status in statuses]


def test_severity_is_in_this_order() -> None:
    assert [status.name for status in sorted(Status, key=lambda item: item.severity)] == ORDER
    assert [status.severity for status in Status] == list(range(len(ORDER)))
    assert Status.ok.severity == 0


def test_only_ok_can_be_trusted() -> None:
    assert [status for status in Status if status] == [Status.ok]
    assert ep.Status is Status
    assert ep.Finding is Finding


def test_every_status_has_a_message_of_its_own() -> None:
    """One sentence; what to do is said with the estimate (tests/view/test_remedies.py)."""
    for status in Status:
        assert status.value.endswith(".")
        assert status.value.count(". ") == 0
    assert len({status.value for status in Status}) == len(Status)


def test_the_worst_of_none_is_ok() -> None:
    assert worst([]) is most_severe([]) is Status.ok


@pytest.mark.parametrize(("mild", "severe"), [*itertools.pairwise(ORDER)])
def test_the_more_severe_of_two_wins_in_any_order(mild: str, severe: str) -> None:
    pair = [Status[mild], Status[severe]]
    for statuses in (pair, pair[::-1]):
        assert worst(statuses) is Status[severe]
        assert most_severe(found(*statuses)) is Status[severe]
        assert output(1.0, 0.1, *statuses).status is Status[severe]


def test_a_finding_says_which_part_it_is_about() -> None:
    assert (
        str(Finding(Status.low_ess, "Z1_plus", "ESS 3; 50 needed")) == "Z1_plus: ESS 3; 50 needed"
    )
    assert str(Finding(Status.low_ess, None, "ESS 3; 50 needed")) == "ESS 3; 50 needed"


def test_findings_are_added_and_taken_away_by_check() -> None:
    bare = output()
    assert bare.findings == ()
    assert bare.status is Status.ok
    size = Finding(Status.low_ess, "Z2", "few", "size")
    goal = Finding(Status.not_converged, None, "not reached", "goal")
    numbers = Finding(Status.nan_density, None, "NaN", "numbers")
    all_three = bare.with_findings([size]).with_findings(iter([goal, numbers]))
    assert all_three.findings == (size, goal, numbers)
    assert all_three.status is Status.nan_density
    assert bare.findings == ()
    without = all_three.without_findings("numbers")
    assert without.findings == (size, goal)
    assert without.status is Status.not_converged
    assert all_three.without_findings("numbers", "goal").status is Status.low_ess
    assert all_three.without_findings("numbers", "goal", "size").status is Status.ok
    assert all_three.without_findings("merge").findings == all_three.findings
    # All else stays.
    assert without._replace(findings=()) == bare
