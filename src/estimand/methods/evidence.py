"""The evidence Z2 of a program by the default method: routes tried in order, as in `auto`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from estimand.density import Density
from estimand.estimators import Estimator, Request, estimate_all
from estimand.methods.adaptive import AdaptiveIS, PartJudgement, Posterior, sample_posterior
from estimand.methods.auto import (
    FIRST_SHARE,
    ISLANDS,
    MAX_ISLAND_DIMENSION,
    MIN_POSTERIOR_BUDGET,
    POINT,
    Auto,
    has_chains,
    has_other_coordinates,
    prefers_posterior,
    prefers_standardised,
)
from estimand.methods.branching import estimate_branches, evidence_estimator
from estimand.methods.protocol import Cost
from estimand.model import BranchingExpectation
from estimand.runtime import Progress, Runtime
from estimand.sampling import named_key
from estimand.trust import (
    Evidence,
    Finding,
    Status,
    check_evidence,
    check_precision,
    share_of_rest,
    thresholds,
)

BY_MIXTURE = "a mixture"
BY_OTHER_MIXTURE = "a mixture in other coordinates"
BY_CHAINS = "a mixture fitted to chains of the posterior"
BY_BRANCHES = "a sum over branches"


class EvidenceRun(NamedTuple):
    """Z2 of a program, how it was obtained, what speaks against it, and what it cost."""

    evidence: Evidence
    route: str
    findings: tuple[Finding, ...]
    cost: Cost
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, judged: PartJudgement, route: str, cost: Cost) -> EvidenceRun:
        """With a check of the error, which is not that of a ratio here."""
        findings = judged.findings
        if not findings:
            evidence = judged.evidence
            findings = tuple(check_precision(evidence.relative_variance, evidence.degrees, "Z2"))
        return cls(judged.evidence, route, findings, cost)

    @property
    def is_ok(self) -> bool:
        return not self.findings

    @property
    def rank(self) -> tuple[int, float]:
        """The smaller, the better."""
        severity = max((finding.status.severity for finding in self.findings), default=0)
        return severity, float(self.evidence.relative_variance)


def estimate_evidence(
    rng_key: jax.Array, density: Density, runtime: Runtime, settings: Auto
) -> EvidenceRun:
    """Z2 by the first route whose checks pass; if none does, by the best of them."""
    looking = density.with_looks()
    has_terms = any(look.output is None for look in looking.looks)
    # Terms of the density are read beside the return value.
    density = looking.part("gamma2") if has_terms else density.without_outputs()
    density.require_prior("the evidence")
    runs: list[EvidenceRun] = []
    budget = settings.max_evaluations
    for run in _routes(rng_key, density, runtime, settings):
        runs.append(run)
        if run.is_ok or sum(run.cost.spent for run in runs) >= budget:
            break
    best = min(runs, key=lambda run: run.rank)
    cost = Cost()
    for run in runs:
        cost = cost + run.cost
    refused = tuple(
        f"{run.route} did not pass all checks: {run.findings[0]}" for run in runs if run is not best
    )
    return best._replace(cost=cost, notes=refused)


def _routes(
    rng_key: jax.Array, density: Density, runtime: Runtime, settings: Auto
) -> Iterator[EvidenceRun]:
    """One run after the other, each only if the one before it is not good enough."""

    def key(route: str) -> jax.Array:
        return named_key(rng_key, "evidence", route)

    if density.dimension == 0:
        yield _by_estimator(key("point"), density, runtime, POINT)
        return
    can_chain = has_chains(density) and settings.max_evaluations >= MIN_POSTERIOR_BUDGET
    is_first = can_chain and prefers_posterior(density)
    if is_first:
        yield _by_chains(key(BY_CHAINS), density, runtime, settings)
    if density.layout.is_relaxable and (not is_first or density.dimension <= MAX_ISLAND_DIMENSION):
        first = prefers_standardised(density)
        yield _by_mixture(key(BY_MIXTURE), density, runtime, settings, BY_MIXTURE, first)
        if has_other_coordinates(density):
            route = BY_OTHER_MIXTURE
            yield _by_mixture(key(route), density, runtime, settings, route, not first)
    if can_chain and not is_first:
        yield _by_chains(key(BY_CHAINS), density, runtime, settings)
    estimator = evidence_estimator(density) if density.condition is None else ISLANDS
    yield _by_estimator(key("estimator"), density, runtime, estimator)


def _by_mixture(
    rng_key: jax.Array,
    density: Density,
    runtime: Runtime,
    settings: Auto,
    route: str,
    standardise: bool,
) -> EvidenceRun:
    judged = _method(settings, standardise).judged_in(runtime, rng_key, density)
    return EvidenceRun.of(judged, route, _cost(judged.evidence))


def _by_chains(
    rng_key: jax.Array, density: Density, runtime: Runtime, settings: Auto
) -> EvidenceRun:
    runtime.report(Progress("sampling the posterior", 0, settings.max_evaluations))
    posterior: Posterior = sample_posterior(density, rng_key, runtime)
    judged = _method(settings, None).judged_in(runtime, rng_key, density, posterior)
    return EvidenceRun.of(judged, BY_CHAINS, posterior.cost + _cost(judged.evidence))


def _method(settings: Auto, standardise: bool | None) -> AdaptiveIS:
    return AdaptiveIS(
        relative_error=settings.relative_error,
        max_evaluations=max(1, int(FIRST_SHARE * settings.max_evaluations)),
        standardise=standardise,
        draws=settings.draws,
    )


def _by_estimator(
    rng_key: jax.Array, density: Density, runtime: Runtime, estimator: Estimator
) -> EvidenceRun:
    estimator.check(density)
    evidence = estimate_all(runtime, [Request(estimator, rng_key, density)])[0]
    found = tuple(check_evidence(evidence, "Z2"))
    return EvidenceRun(evidence, type(estimator).__name__, found, _cost(evidence))


def _cost(evidence: Evidence) -> Cost:
    return Cost(evidence.num_evaluations, evidence.num_gradients)


def evidence_of_branches(
    rng_key: jax.Array, program: BranchingExpectation, runtime: Runtime, settings: Auto
) -> EvidenceRun:
    """ΣZ2 over the branches of a program that returns 1."""
    run = estimate_branches(rng_key, program, settings, runtime)
    output, branches = run.outputs[0], run.branches
    evidence: Evidence = output.parts.normaliser
    missed = share_of_rest(branches, 1 - math.fsum(branch.mass for branch in branches))
    findings = output.findings
    if evidence is not None:
        variance = float(evidence.relative_variance) + (missed / 2) ** 2
        evidence = evidence._replace(relative_variance=np.asarray(variance))  # type: ignore[arg-type]
        if not findings:
            findings = tuple(check_precision(variance, evidence.degrees, "Z2"))
    findings += _unfit(branches, settings)
    return EvidenceRun(evidence, BY_BRANCHES, findings, run.cost, run.notes)


def _unfit(branches: Sequence, settings: Auto) -> tuple[Finding, ...]:
    """Branches that cannot be trusted, and have a share of ΣZ2 that matters."""
    total = np.logaddexp.reduce([branch.log_z2 for branch in branches])
    return tuple(
        finding._replace(detail=f"branch {branch.text}: {finding.detail}", part="Z2")
        for branch in branches
        if branch.status is not Status.ok
        and thresholds.exp(branch.log_z2 - total) > settings.relative_error
        for finding in branch.findings[:1]
    )
