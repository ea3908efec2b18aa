"""How an estimation went: statuses, and the findings that they are made of."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple


class Status(enum.Enum):
    """How an estimation went, from harmless to severe; the values are the messages.

    Only `ok` can be trusted.
    """

    ok = "All checks passed."
    low_ess = (
        "The effective sample size is too low for the standard error to be trusted: take more "
        "samples, more temperatures or a better kernel."
    )
    not_converged = (
        "The estimate has not settled: the Markov chains disagree with each other, or the budget "
        "ran out before the requested error was reached. Allow more evaluations or time."
    )
    heavy_tailed = (
        "The weights are so heavy-tailed that their variance may not exist: use a proposal with "
        "wider tails or more temperatures, and check that the expectation exists."
    )
    unresolved = (
        "Much of the mass lies where floating-point numbers end or are too coarse: check that the "
        "expectation exists, use a prior with less mass at the edge of its support, or write the "
        "model so that this edge is at 0."
    )
    replicates_disagree = (
        "Independent explorations found mass that the estimate has missed: explore with more "
        "scouts or particles."
    )
    underflow = (
        "There is mass, but the expectation is closer to 0 than floating point can represent: the "
        "logarithms of its parts are in log_z. Return a larger multiple of it."
    )
    no_mass_found = (
        "No sample found any mass of the target. This does not prove that there is none: take "
        "more samples or more temperatures, or start from a proposal that reaches the target."
    )
    interrupted = (
        "The run was cut short, by Ctrl-C or by its time limit, before all checks were made: this "
        "is what was known by then. Run it again with more time, or call refine, to continue."
    )
    nan_density = (
        "The density or the target was NaN or +inf at some positions, which were treated as "
        "having density 0: fix the program there."
    )

    def __bool__(self) -> bool:
        return self is Status.ok

    @property
    def severity(self) -> int:
        """0 for `ok`; the larger, the worse."""
        return _SEVERITY[self]


_SEVERITY = {status: number for number, status in enumerate(Status)}


class Finding(NamedTuple):
    """What a check found: a status, the part that it is about, and the numbers in words.

    `part` is ``"Z1_plus"``, ``"Z1_minus"``, ``"Z1"`` for both signs together, or ``"Z2"``, and None
    where it is about the whole output. `check` names the check.
    """

    status: Status
    part: str | None
    detail: str
    check: str = ""

    def __str__(self) -> str:
        return f"{self.part}: {self.detail}" if self.part else self.detail


def most_severe(findings: Iterable[Finding]) -> Status:
    """The status of the most severe finding; `ok` if there is none."""
    return worst(finding.status for finding in findings)


def worst(statuses: Iterable[Status]) -> Status:
    """The most severe of several statuses; `ok` if there is none."""
    return max(statuses, key=lambda status: status.severity, default=Status.ok)
