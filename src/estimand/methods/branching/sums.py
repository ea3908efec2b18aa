"""What the branches say together, and what speaks against it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from estimand.density import Density
from estimand.methods.adaptive import PROBE
from estimand.methods.protocol import Run
from estimand.model import Leaf
from estimand.trust import (
    BranchEstimate,
    Finding,
    Goal,
    OutputEstimate,
    Status,
    check_goal,
    exactly_zero,
    most_severe,
    no_mass,
    pooled,
    rule_of_three,
    share_of_rest,
    shares_of,
    thresholds,
    without_value,
)

# Weights that are too few say too little of a branch, and seldom too much: by Markov's inequality a
# tenfold at most once in ten times.
UNDERRATED = 10.0
# Branches that are named where several cannot be trusted.
MAX_REPORTED = 3
# For methods that are not asked for an error.
USUAL = Goal(0.01)


class Branch(NamedTuple):
    """A branch under way: its values and prior mass, its density, and its runs."""

    leaf: Leaf
    density: Density
    runs: tuple[Run, ...] = ()

    @property
    def cost(self) -> int:
        return sum(run.cost.spent for run in self.runs)

    def with_run(self, run: Run) -> Branch:
        return self._replace(runs=(*self.runs, run))

    def estimate(self) -> BranchEstimate:
        """What all runs say together."""
        known: dict[tuple, Any] = {}
        outputs = tuple(
            _joined([run.outputs[number] for run in self.runs], self.runs, known)
            for number in range(self.density.num_outputs)
        )
        normalisers = [
            output.parts.normaliser
            for output in outputs
            if math.isfinite(output.parts.log_z("normaliser"))
        ]
        best = min(normalisers, key=lambda part: float(part.relative_variance), default=None)
        return BranchEstimate(
            values=self.leaf.values,
            mass=self.leaf.mass,
            log_z2=-math.inf if best is None else float(best.log_z),
            relative_variance=math.inf if best is None else float(best.relative_variance),
            outputs=outputs,
            cost=self.cost,
            density=self.density,
        )


def has_z2(output: OutputEstimate) -> bool:
    """Whether mass of the posterior was found."""
    return math.isfinite(output.parts.log_z("normaliser"))


def has_value(output: OutputEstimate) -> bool:
    """Whether there is an estimate, with an error, and a Z2."""
    return has_z2(output) and math.isfinite(output.standard_error)


def _joined(
    outputs: list[OutputEstimate], runs: Sequence[Run], known: dict[tuple, Any]
) -> OutputEstimate:
    """One output of a branch from its runs: from those that can be trusted, if there are any."""
    there = [
        (output, run)
        for output, run in zip(outputs, runs, strict=True)
        if has_value(output) and math.isfinite(output.parts.normaliser.relative_variance)
    ]
    chosen = [pair for pair in there if pair[0].status] or there
    if not chosen:
        return outputs[-1]
    if len(chosen) == 1:
        return chosen[0][0]
    costs = [max(1, run.cost.spent) for _, run in chosen]
    coefficients = [math.log(cost / sum(costs)) for cost in costs]
    pieces = [output for output, _ in chosen]
    joined = pooled(pieces, coefficients, is_one_model=True, known=known)
    findings = {
        (finding.status, finding.part, finding.check): finding
        for output, _ in chosen
        for finding in output.findings
    }
    return joined.with_findings(findings.values())


def summed(
    branches: Sequence[BranchEstimate], mass_left: float, goal: Goal | None
) -> tuple[OutputEstimate, ...]:
    """Every output, as a sum over branches."""
    numbers, known = range(len(branches[0].outputs)), dict[tuple, Any]()
    return tuple(_summed(branches, number, mass_left, goal, known) for number in numbers)


def _summed(
    branches: Sequence[BranchEstimate],
    number: int,
    mass_left: float,
    goal: Goal | None,
    known: dict[tuple, Any],
) -> OutputEstimate:
    there = [branch for branch in branches if has_z2(branch.outputs[number])]
    if not there:
        own = branches[0].outputs[number].findings
        return without_value(*(own or (no_mass("no branch has mass"),)))
    outputs = [branch.outputs[number] for branch in there]
    pieces = [as_known(output) for output in outputs]
    total = pooled(pieces, [0.0] * len(pieces), is_one_model=False, known=known)
    if not any(map(has_value, outputs)):
        return _without_value(total, there, number)
    if total.magnitude == 0 and total.value == 0:
        finding = no_mass("f is 0 in every branch that was run")
        total = without_value(finding, parts=total.parts, ess=total.ess)
        is_known = all(branch.density.known_zeros[number] for branch in branches)
        return exactly_zero(total) if is_known and mass_left == 0 else total
    doubts = [
        *_unexplored(total, branches, number, mass_left),
        *_weak(total, branches, number),
    ]
    limit = thresholds.MATTERS * allowed_error(total, goal)
    findings = _reported([doubt for doubt in doubts if not doubt.bound <= limit])
    missed = math.fsum(doubt.bound for doubt in doubts if doubt.is_missing and doubt.bound <= limit)
    total = total._replace(standard_error=math.hypot(total.standard_error, missed / 2))
    if goal is not None:
        findings += check_goal(total, goal)
    return total.with_findings(findings)


def allowed_error(total: OutputEstimate, goal: Goal | None) -> float:
    """The error against which what may be missing is measured."""
    return max(total.standard_error, (goal or USUAL).allowed(total))


def as_known(output: OutputEstimate) -> OutputEstimate:
    """The same, with 0 for a value that no draw has met; a doubt says what that may be."""
    if has_value(output):
        return output
    return output._replace(value=0.0, standard_error=0.0, magnitude=0.0, covariance=0.0)


def _without_value(
    total: OutputEstimate, branches: Sequence[BranchEstimate], number: int
) -> OutputEstimate:
    shares = shares_of([branch.log_z2 for branch in branches])
    bounds = [branch.outputs[number].upper_bound for branch in branches]
    largest = branches[int(np.argmax(shares))]
    empty = without_value(*largest.outputs[number].findings, parts=total.parts, ess=total.ess)
    bound = sum(share * bound for share, bound in zip(shares, bounds, strict=True) if share > 0)
    return empty._replace(upper_bound=float(bound))


class Doubt(NamedTuple):
    """Something that may be wrong, and by how much it could change the estimate at the most.

    `is_missing` if it is something that the estimate leaves out, rather than has wrong.
    """

    bound: float
    finding: Finding
    is_missing: bool


def _reported(doubts: list[Doubt]) -> list[Finding]:
    """The findings of the largest doubts, and one for all others."""
    largest = sorted(doubts, key=lambda doubt: -doubt.bound)
    findings = [doubt.finding for doubt in largest[:MAX_REPORTED]]
    if others := [doubt.finding for doubt in largest[MAX_REPORTED:]]:
        detail = f"and in {len(others)} more branches"
        findings.append(Finding(most_severe(others), None, detail, "branches"))
    return findings


def _unexplored(
    total: OutputEstimate, branches: Sequence[BranchEstimate], number: int, mass_left: float
) -> list[Doubt]:
    """Branches that were not run, and those in which no mass was found."""
    found = []
    if mass_left > 0:
        bound = bound_on_rest(total, branches, number, mass_left)
        detail = (
            f"branches with {mass_left:.2g} of the prior mass were not run; if the data are as "
            f"likely there as in the best branch, they change the estimate by up to {bound:.2g}"
        )
        finding = Finding(Status.not_converged, None, detail, "branches")
        found.append(Doubt(bound, finding, is_missing=True))
    for branch in branches:
        output = branch.outputs[number]
        if has_z2(output) or branch.density.dimension == 0:
            continue
        mass = branch.mass
        if output.status is Status.no_mass_found:
            mass *= rule_of_three(_num_tried(output))
        bound = bound_on_rest(total, branches, number, mass)
        found.append(Doubt(bound, _finding_of(branch, output), is_missing=True))
    return found


def _num_tried(output: OutputEstimate) -> int:
    """Draws that have not met any mass of the posterior."""
    normaliser = output.parts.normaliser
    return PROBE if normaliser is None else np.size(normaliser.log_weights)


def bound_on_rest(
    total: OutputEstimate, branches: Sequence[BranchEstimate], number: int, mass: float
) -> float:
    """By how much branches of some prior mass would change the estimate, at the most.

    If their E[f] is at most as large as the largest one of the others.
    """
    there = [branch for branch in branches if has_z2(branch.outputs[number])]
    largest = max(abs(as_known(branch.outputs[number]).value) for branch in there)
    return share_of_rest(branches, mass) * (largest + abs(total.value))


def _weak(total: OutputEstimate, branches: Sequence[BranchEstimate], number: int) -> list[Doubt]:
    """Branches whose own estimate cannot be trusted."""
    shares = shares_of([branch.log_z2 for branch in branches])
    found = []
    for branch, share in zip(branches, shares, strict=True):
        output = branch.outputs[number]
        if output.status or not has_z2(output) or share == 0:
            continue
        finding = _finding_of(branch, output)
        if has_value(output):
            reach = abs(output.value - total.value) + output.standard_error
            found.append(Doubt(UNDERRATED * share * reach, finding, is_missing=False))
        else:
            farthest = branch.density.farthest(number)
            bound = share * output.upper_bound * farthest
            found.append(Doubt(bound, finding, is_missing=True))
    return found


def _finding_of(branch: BranchEstimate, output: OutputEstimate) -> Finding:
    """The most severe finding about a branch, as one about the sum."""
    if not output.findings:
        return Finding(Status.low_ess, None, f"branch {branch.text}: no error is known", "branches")
    worst = max(output.findings, key=lambda finding: finding.status.severity)
    return worst._replace(detail=f"branch {branch.text}: {worst.detail}")
