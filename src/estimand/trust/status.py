"""How an estimation went: statuses, and the findings that they are made of."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple


class Status(enum.Enum):
    """How an estimation went, from harmless to severe; the values say what they mean.

    Only `ok` can be trusted. What to do about the others depends on the program and the method: an
    estimate says it when it is printed.

    Examples:
        >>> result.status is ep.Status.ok, bool(result.status)
        (True, True)
        >>> result.status.value
        'All checks passed.'
    """

    ok = "All checks passed."
    low_ess = "Too few effective draws stand behind the estimate to know its error."
    not_converged = "The estimate has not settled."
    heavy_tailed = "A few draws decide: the weights have tails too heavy for a standard error."
    unresolved = "Much of the mass lies where floating-point numbers end."
    replicates_disagree = "Independent explorations found mass that the estimate has missed."
    underflow = "The expectation is closer to 0 than floating point can represent."
    no_mass_found = "No draw found any mass of the target, which does not prove that there is none."
    interrupted = "The run was cut short before all checks were made: this is what was known."
    nan_density = "The program does not give a finite number everywhere that there could be mass."

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
    where it is about the whole output. `check` names the check. `lack` is how many times as many
    draws would settle it, 0 where more draws do not, or where nobody knows.

    Examples:
        >>> few = ep.TABI(ep.ImportanceSampling(num_samples=20))
        >>> poor = ep.estimate_expectation(program(2.0), few, throw=False)
        >>> [finding.status.name for finding in poor.findings[0]][0]
        'low_ess'
    """

    status: Status
    part: str | None
    detail: str
    check: str = ""
    lack: float = 0.0

    def __str__(self) -> str:
        return f"{self.part}: {self.detail}" if self.part else self.detail


def most_severe(findings: Iterable[Finding]) -> Status:
    """The status of the most severe finding; `ok` if there is none."""
    return worst(finding.status for finding in findings)


def worst(statuses: Iterable[Status]) -> Status:
    """The most severe of several statuses; `ok` if there is none."""
    return max(statuses, key=lambda status: status.severity, default=Status.ok)
