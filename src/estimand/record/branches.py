"""What a record keeps of the branches of a program: their numbers, their draws, and merging."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from estimand.density import Density
from estimand.methods import Run
from estimand.model import PARTS, Output
from estimand.record.draws import MAX_DRAWS, KeptDraws, joined_sites, summed_sites, thin, values_at
from estimand.record.parts import DENSITY_NAMES, used_evidence
from estimand.trust import (
    BranchEstimate,
    Evidence,
    Finding,
    Parts,
    Status,
    merged_branch,
    probabilities,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Branch:
    """One branch of a program, for people.

    `values` are those of its branching sites and `prior` is their prior probability, which is
    part of `log_z2`; `probability` is their posterior one. `value` and `standard_error` are of
    E[f | branch], in the structure of the program's return value. `cost` is in evaluations.

    Examples:
        >>> @ep.expectation
        ... def mixed():
        ...     is_high = numpyro.sample("is_high", dist.Bernoulli(0.25), infer={"branching": True})
        ...     return numpyro.sample("x", dist.Normal(10.0 if is_high else 0.0, 1.0))
        >>> branches = ep.estimate_expectation(mixed()).branches
        >>> [branch.text for branch in branches], [round(branch.prior, 2) for branch in branches]
        (['is_high=0', 'is_high=1'], [0.75, 0.25])
    """

    values: dict[str, int]
    prior: float
    log_z2: float
    log_z2_error: float
    probability: float
    probability_error: float
    value: Any
    standard_error: Any
    status: Status
    findings: tuple[tuple[Finding, ...], ...]
    cost: int

    @property
    def text(self) -> str:
        """Its values in words: ``k=2, m=0``."""
        return ", ".join(f"{name}={value}" for name, value in self.values.items())


def branches_of(run: Run, output: Output) -> tuple[Branch, ...]:
    """The branches of a run, the most probable first."""
    found = []
    for branch, probability in zip(run.branches, probabilities(run.branches), strict=True):
        numbers = [(item.value, item.standard_error) for item in branch.outputs]
        values, errors = np.asarray(numbers, float).T
        found.append(
            Branch(
                values=dict(branch.values),
                prior=branch.mass,
                log_z2=branch.log_z2,
                log_z2_error=math.sqrt(branch.relative_variance),
                probability=probability.value,
                probability_error=probability.standard_error,
                value=output.unflatten(values),
                standard_error=output.unflatten(errors),
                status=branch.status,
                findings=tuple(item.findings for item in branch.outputs),
                cost=branch.cost,
            )
        )
    return tuple(sorted(found, key=lambda branch: -branch.probability))


def without_draws(run: Run) -> Run:
    """The same with the numbers of its branches alone."""
    return run._replace(
        branches=tuple(
            branch._replace(
                density=None,
                outputs=tuple(output._replace(parts=Parts()) for output in branch.outputs),
            )
            for branch in run.branches
        )
    )


# --- draws ---


class _Source(NamedTuple):
    """The draws of one branch, of one density."""

    branch: BranchEstimate
    evidence: Evidence
    name: str
    output: int

    @property
    def log_weights(self) -> np.ndarray:
        """Weights that add up to the Z of the branch."""
        weights = np.asarray(self.evidence.log_weights, float)
        return weights - math.log(weights.size)

    def kept(
        self, rows: np.ndarray, rng: np.random.Generator
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Values of all sites, the branching ones first, and outputs at some of the draws."""
        density: Density = self.branch.density
        positions = np.asarray(self.evidence.positions)[rows]
        sites, outputs = values_at(density, positions)
        drawn = summed_sites(density.part(self.name, self.output), positions, rng)
        own = {name: np.full(len(rows), value) for name, value in self.branch.values}
        return own | sites | drawn, outputs


def branch_draws(run: Run) -> tuple[KeptDraws, ...]:
    """Draws of every density that the outputs rest on, over all branches.

    A site that a branch does not have is NaN there, and one that has fewer elements is filled up
    with NaN.
    """
    fields = {name: field for field, name in DENSITY_NAMES.items()}
    result = []
    for used in used_evidence(run):
        number = max(used.output, 0)
        sources = [
            _Source(branch, evidence, used.name, used.output)
            for branch in run.branches
            if isinstance(
                evidence := getattr(branch.outputs[number].parts, fields[used.name]), Evidence
            )
            and math.isfinite(evidence.log_z)
        ]
        owners = np.repeat(np.arange(len(sources)), [item.log_weights.size for item in sources])
        rows = np.concatenate([np.arange(item.log_weights.size) for item in sources])
        # Seeded, so that a record is the same however often it is made.
        rng = np.random.default_rng([PARTS.index(used.name), used.output + 1])
        thinned = thin(np.concatenate([item.log_weights for item in sources]), MAX_DRAWS, rng)
        kept = [
            (k, source.kept(rows[thinned.indices[owners[thinned.indices] == k]], rng))
            for k, source in enumerate(sources)
            if (owners[thinned.indices] == k).any()
        ]
        order = np.concatenate([np.flatnonzero(owners[thinned.indices] == k) for k, _ in kept])
        result.append(
            KeptDraws(
                name=used.name,
                output=used.output,
                log_weights=thinned.log_weights[order],
                outputs=np.concatenate([outputs for _, (_, outputs) in kept]),
                sites=joined_sites([sites for _, (sites, _) in kept]),
            )
        )
    return tuple(result)


# --- merging ---


def merged_branches(runs: Sequence[Run], shares: np.ndarray) -> tuple[BranchEstimate, ...]:
    """The branches of several runs, each from the runs that have it."""
    found: dict[tuple, list[tuple[BranchEstimate, float]]] = {}
    for run, share in zip(runs, shares, strict=True):
        for branch in run.branches:
            found.setdefault(branch.values, []).append((branch, float(share)))
    merged = []
    for pieces in found.values():
        branches, weights = zip(*pieces, strict=True)
        weights = np.asarray(weights) / sum(weights)
        mass = float(weights @ [branch.mass for branch in branches])
        merged.append(merged_branch(branches, np.log(weights))._replace(mass=mass))
    return tuple(merged)
