"""The driver: finds branches, runs each with a key of its own, and spends where the error is.

A small run of every branch comes first. Then branches that were not found yet are looked for in
order of promise, until what is left has a bound that is small against the error; a branch whose own
estimate cannot be trusted, and matters, gets a larger budget; and the branches with the largest
share of the variance are run again, which adds to what they have.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from estimand.density import Density
from estimand.estimators import SMC, BridgeSampling, Estimator, Request, estimate_all
from estimand.methods.branching.sums import (
    Branch,
    allowed_error,
    as_known,
    bound_on_rest,
    has_value,
    has_z2,
    summed,
)
from estimand.methods.posterior_bridge import PosteriorBridge
from estimand.methods.posterior_mcmc import PosteriorMCMC
from estimand.methods.protocol import Budget, Cost, GoalMethod, Method, Run
from estimand.model import BranchingExpectation, Leaf, ProgramError, SummingModel, Values
from estimand.runtime import OutOfTimeError, Progress, Runtime
from estimand.sampling import named_key
from estimand.trust import (
    BranchEstimate,
    Finding,
    Goal,
    OutputEstimate,
    Parts,
    Status,
    check_evidence,
    checked,
    errors_of_pieces,
    shares_of,
)

# Branches that are looked for before any is run. If these are all, all are run, however rare: f may
# be large there.
MAX_FOUND = 32
# Branches that are run, at the most.
MAX_BRANCHES = 100
# Of unboundedly many branches those are run first that leave no more of the prior mass than this.
FIRST_LEFT = 0.01
# The relative error that the first run of a branch is asked for, and the least that any is.
FIRST_ERROR, LEAST_ERROR = 0.05, 1e-6
# What may be missing must be this much smaller than the allowed error before the search ends.
REST_SHARE = 0.1
# Runs of one branch, at the most, and those that may try to repair one that cannot be trusted.
MAX_RUNS, MAX_REPAIRS = 12, 3
REPAIR_FACTOR = 4
# Of the allowed variance, what branches are given: they do not meet it exactly.
VARIANCE_SHARE = 0.7
# For branches of which a method gives E[f] alone.
ISLANDS = SMC(num_particles=4000, num_steps=40, num_islands=16)

_REPAIRABLE = (
    Status.low_ess,
    Status.heavy_tailed,
    Status.replicates_disagree,
    Status.not_converged,
)


def estimate_branches(
    rng_key: jax.Array, program: BranchingExpectation, method: Method, runtime: Runtime
) -> Run:
    """E[f] = ΣZ1 / ΣZ2 over the branches of a program, by any method that gives Z2."""
    _require_evidence(program.name, method)
    started = runtime.clock()
    if not isinstance(method, GoalMethod):
        survey = _Survey(rng_key, program, method, runtime)
        survey.run()
        return survey.finished()
    budget = Budget(method.max_evaluations, method.max_seconds, started)
    limited = runtime.until(started + method.max_seconds)
    survey = _Survey(rng_key, program, method, limited, started)
    try:
        survey.run()
        run = survey.finished()
    except OutOfTimeError:
        if limited.offered is None:
            raise
        detail = f"the time limit of {method.max_seconds:g} s was reached before all branches"
        finding = Finding(Status.interrupted, None, detail, "time")
        run = limited.offered().with_finding(finding)
    return budget.with_overruns(run, runtime, "a branch that has begun")


def _require_evidence(program: str, method: Method) -> None:
    if isinstance(method, PosteriorBridge | PosteriorMCMC):
        raise ProgramError(
            f"program {program!r} branches, and a sum over branches needs the evidence Z2 of each, "
            f"which {type(method).__name__} does not give: use Auto, AdaptiveIS, TABI or "
            "SelfNormalised."
        )


class _Step(NamedTuple):
    """A further run: of which branch, to which relative error, at what cost at the most."""

    number: int
    relative_error: float
    max_evaluations: int


class _Survey:
    """One estimation under way."""

    def __init__(
        self,
        rng_key: jax.Array,
        program: BranchingExpectation,
        method: Method,
        runtime: Runtime,
        started: float = 0.0,
    ):
        self.rng_key, self.program, self.method, self.runtime = rng_key, program, method, runtime
        self.started = started
        self.tree = program.tree()
        self.waiting: list[Leaf] = []
        self.branches: list[Branch] = []
        self.notes: dict[str, list[str]] = {}

    @property
    def goal(self) -> Goal | None:
        return self.method.goal if isinstance(self.method, GoalMethod) else None

    @property
    def mass_left(self) -> float:
        waiting = math.fsum(leaf.mass for leaf in self.waiting)
        return waiting + self.tree.mass_left

    @property
    def ran(self) -> list[Branch]:
        return [branch for branch in self.branches if branch.runs]

    @property
    def cost(self) -> Cost:
        total = Cost()
        for branch in self.branches:
            for run in branch.runs:
                total = total + run.cost
        return total

    def run(self) -> None:
        """All runs of all branches."""
        self._find()
        for number in range(len(self.branches)):
            step = self._first_step(number, 2 * (len(self.branches) - number))
            if step is None:
                self._close(number)
                break
            self._run_branch(step)
        while (step := self._next_step()) is not None:
            self._run_branch(step)

    def known(self) -> Run:
        """What the branches say that were run so far."""
        estimates = [branch.estimate() for branch in self.ran]
        # Where a run ends early, some of those to begin with were not run.
        not_run = math.fsum(branch.leaf.mass for branch in self.branches if not branch.runs)
        outputs = summed(estimates, self.mass_left + not_run, self.goal)
        return Run(outputs, *self.cost, notes=self._notes(), branches=tuple(estimates))

    def _notes(self) -> tuple[str, ...]:
        """What is to be said of single branches, and of several at once."""
        return tuple(
            f"branch {texts[0]}: {note}" if len(texts) == 1 else f"in {len(texts)} branches: {note}"
            for note, texts in self.notes.items()
        )

    def finished(self) -> Run:
        """What is known at the end, said to be so."""
        run = self.known()
        count = len(run.branches)
        note = f"a sum over {count} branch{'' if count == 1 else 'es'}"
        if self.mass_left > 0:
            note += f"; those that were not run have {self.mass_left:.2g} of the prior mass"
        outputs = tuple(output._replace(route="a sum over branches") for output in run.outputs)
        return run._replace(outputs=outputs, notes=(note, *run.notes))

    # --- finding branches ---

    def _find(self) -> None:
        """The branches to begin with, all of them checked before any is run."""
        while len(self.waiting) < MAX_FOUND and self.tree.mass_left > 0:
            leaf = self.tree.next_leaf()
            self.waiting += [] if leaf is None else [leaf]
        is_complete = self.tree.mass_left == 0
        while self.waiting and (is_complete or not self.branches or self.mass_left > FIRST_LEFT):
            self._open(self.waiting.pop(0))

    def _open(self, leaf: Leaf) -> None:
        density = Density.of(self.program.branch(leaf.values))
        self.method.check(density)
        self.branches.append(Branch(leaf, density))

    def _close(self, number: int) -> None:
        """Branches from this one on are not run: there is nothing left to run them with."""
        self.waiting = [branch.leaf for branch in self.branches[number:]] + self.waiting
        del self.branches[number:]

    def _open_next(self, estimates: list[BranchEstimate]) -> bool:
        """Opens the branch of the most promise; False if there is none."""

        def log_promise(values: Values) -> float:
            return _log_likelihood_near(estimates, values)

        if self.waiting:
            best = max(
                self.waiting, key=lambda leaf: math.log(leaf.mass) + log_promise(leaf.values)
            )
            self.waiting.remove(best)
        else:
            found = self.tree.next_leaf(log_promise)
            if found is None:
                return False
            best = found
        self._open(best)
        return True

    # --- running one ---

    def _first_step(self, number: int, share: int) -> _Step | None:
        """A small run, at a share of what is left; None if what it needs is more than that.

        The first branch of all is run in any case.
        """
        if not isinstance(self.method, GoalMethod):
            return _Step(number, math.nan, 0)
        density = self.branches[number].density
        enough = self.method.enough_evaluations(density)
        if enough > self.method.max_evaluations:
            enough = self.method.least_evaluations(density)
        if number > 0 and enough > self._left:
            return None
        budget = max(int(self._left) // share, enough)
        return _Step(number, max(self.method.relative_error, FIRST_ERROR), budget)

    def _run_branch(self, step: _Step) -> None:
        branch, method = self.branches[step.number], self.method
        text = ", ".join(f"{name}={value}" for name, value in branch.leaf.values)
        self.runtime.report(Progress(f"branch {text}", self.cost.spent, self._budget))
        key = named_key(self.rng_key, "branch", branch.leaf.values, len(branch.runs))
        inner = self.runtime.until(math.inf, aside=True)
        if isinstance(method, GoalMethod):
            settings: Any = dataclasses.replace(
                method,  # type: ignore[type-var]
                relative_error=step.relative_error,
                absolute_error=0.0,
                max_evaluations=step.max_evaluations,
                max_seconds=self._seconds(),
            )
            run = settings.run_within(key, branch.density, inner)
        else:
            run = method.run(key, branch.density, inner)
        run = self._with_evidence(named_key(key, "evidence"), branch.density, run, inner)
        model = branch.density.model
        summed_out = (model.note,) if isinstance(model, SummingModel) else ()
        for note in (*summed_out, *run.notes):
            texts = self.notes.setdefault(note, [])
            texts += [] if text in texts else [text]
        outputs = tuple(
            _judged(output, branch.density, number)
            for number, output in enumerate(checked(run.outputs, branch.density))
        )
        self.branches[step.number] = branch.with_run(run._replace(outputs=outputs))
        self.runtime.offer(self.known)

    @property
    def _budget(self) -> int:
        return self.method.max_evaluations if isinstance(self.method, GoalMethod) else 0

    def _seconds(self) -> float:
        """What one branch may take: an equal share of the time left to those that have none yet."""
        assert isinstance(self.method, GoalMethod)
        if math.isinf(self.method.max_seconds):
            return math.inf
        left = self.method.max_seconds - (self.runtime.clock() - self.started)
        return max(left, 1e-3) / max(1, len(self.branches) - len(self.ran))

    def _with_evidence(
        self, rng_key: jax.Array, density: Density, run: Run, runtime: Runtime
    ) -> Run:
        """The run with Z2 where its route gave E[f] alone."""
        lacking = [output for output in run.outputs if _lacks_evidence(output)]
        if not lacking:
            return run
        if not isinstance(self.method, GoalMethod):
            raise ProgramError(
                f"a sum over branches needs the evidence Z2 of each, and {self.method!r} gives "
                "none: use Auto, AdaptiveIS, TABI or SelfNormalised."
            )
        estimator = evidence_estimator(density)
        estimator.check(density)
        request = Request(estimator, rng_key, density.part("gamma2"))
        evidence = estimate_all(runtime, [request])[0]
        outputs = tuple(
            output._replace(parts=Parts(normaliser=evidence), covariance=0.0).with_findings(
                check_evidence(evidence, "Z2")
            )
            if _lacks_evidence(output)
            else output
            for output in run.outputs
        )
        name = type(estimator).__name__
        return run._replace(
            outputs=outputs,
            num_evaluations=run.num_evaluations + evidence.num_evaluations,
            num_gradients=run.num_gradients + evidence.num_gradients,
        ).with_notes(f"the evidence by {name}, because {lacking[0].route} gives none")

    # --- what next ---

    def _next_step(self) -> _Step | None:
        estimates = [branch.estimate() for branch in self.branches]
        outputs = summed(estimates, self.mass_left, self.goal)
        if self._is_worth_a_search(estimates, outputs) and self._open_next(estimates):
            number = len(self.branches) - 1
            if (step := self._first_step(number, 4)) is not None:
                return step
            self._close(number)
        if not isinstance(self.method, GoalMethod):
            return None
        return self._repair(estimates, outputs) or self._more_precise(estimates, outputs)

    def _is_worth_a_search(
        self, estimates: list[BranchEstimate], outputs: tuple[OutputEstimate, ...]
    ) -> bool:
        """Whether what is left of the branches could matter, and another one can be paid."""
        if self.mass_left <= 0 or len(self.branches) >= MAX_BRANCHES:
            return False
        for number, output in enumerate(outputs):
            if not has_z2(output) or not math.isfinite(output.standard_error):
                return True
            bound = bound_on_rest(output, estimates, number, self.mass_left)
            if bound > REST_SHARE * allowed_error(output, self.goal):
                return True
        return False

    @property
    def _left(self) -> float:
        if not isinstance(self.method, GoalMethod):
            return math.inf
        return self.method.max_evaluations - self.cost.spent

    def _repair(
        self, estimates: list[BranchEstimate], outputs: tuple[OutputEstimate, ...]
    ) -> _Step | None:
        """A larger run of a branch that cannot be trusted, and for which the sum cannot be."""
        assert isinstance(self.method, GoalMethod)
        found = {finding.detail for output in outputs for finding in output.findings}
        for number, estimate in enumerate(estimates):
            is_to_blame = any(detail.startswith(f"branch {estimate.text}: ") for detail in found)
            if not is_to_blame or estimate.status not in _REPAIRABLE:
                continue
            branch = self.branches[number]
            budget = REPAIR_FACTOR * branch.runs[-1].cost.spent
            if len(branch.runs) < MAX_REPAIRS and budget <= self._left:
                return _Step(number, max(self.method.relative_error, FIRST_ERROR), budget)
        return None

    def _more_precise(
        self, estimates: list[BranchEstimate], outputs: tuple[OutputEstimate, ...]
    ) -> _Step | None:
        """A further run of the branch whose variance falls most for what it costs."""
        assert isinstance(self.method, GoalMethod)
        goal = self.method.goal
        best: tuple[float, _Step | None] = (0.0, None)
        for number, output in enumerate(outputs):
            if not math.isfinite(output.standard_error) or output.is_within(goal):
                continue
            allowed = goal.allowed(output)
            there = [k for k, item in enumerate(estimates) if has_z2(item.outputs[number])]
            pieces = [as_known(estimates[k].outputs[number]) for k in there]
            errors = errors_of_pieces(pieces) / allowed
            shares = shares_of([piece.parts.log_z("normaliser") for piece in pieces])
            costs = np.asarray([max(1, self.branches[k].cost) for k in there], float)
            # With errors that fall as cost^−½, the least cost has variances in these proportions.
            wanted = errors * np.sqrt(costs)
            targets = np.sqrt(VARIANCE_SHARE * wanted / max(wanted.sum(), 1e-300))
            for k, piece, error, target, share in zip(
                there, pieces, errors, targets, shares, strict=True
            ):
                step = self._step_towards(k, piece, error, target, share, allowed)
                gain = error**2 / self.branches[k].cost
                if step is not None and error > target and gain > best[0]:
                    best = (gain, step)
        return best[1]

    def _step_towards(
        self,
        number: int,
        piece: OutputEstimate,
        error: float,
        target: float,
        share: float,
        allowed: float,
    ) -> _Step | None:
        """A run after which a branch adds as much to the error as it may, if it can be paid."""
        branch = self.branches[number]
        is_there = has_value(piece) and share > 0 and math.isfinite(piece.error_scale)
        if not is_there or len(branch.runs) >= MAX_RUNS:
            return None
        assert isinstance(self.method, GoalMethod)
        relative = target * allowed / share / piece.error_scale
        relative = min(max(relative, LEAST_ERROR), FIRST_ERROR)
        least = self.method.enough_evaluations(branch.density)
        budget = max(least, int(branch.cost * min((error / max(target, 1e-9)) ** 2, 1e6)))
        budget = min(budget, int(self._left))
        usual = branch.cost // len(branch.runs)
        if budget < max(least, usual // 2):
            return None
        return _Step(number, relative, budget)


def evidence_estimator(density: Density) -> Estimator:
    """What gives Z2 where a route gives E[f] alone."""
    return ISLANDS if density.layout.has_discrete else BridgeSampling()


def _lacks_evidence(output: OutputEstimate) -> bool:
    return math.isfinite(output.standard_error) and output.parts.normaliser is None


def _judged(output: OutputEstimate, density: Density, number: int) -> OutputEstimate:
    """An output of a branch: without what it was asked for, and 0 where f is 0 for certain."""
    output = output.without_findings("goal")
    bounds = density.bounds
    if bounds.low[number] == bounds.high[number] == 0 and has_z2(output):
        findings = check_evidence(output.parts.normaliser, "Z2")
        findings += [item for item in output.findings if item.part == "Z2"]
        return as_known(output._replace(standard_error=math.inf, findings=tuple(findings)))
    return output


def _log_likelihood_near(estimates: list[BranchEstimate], values: Values) -> float:
    """The average log likelihood of the branch that is most like these values; 0 if none is."""

    def distance(estimate: BranchEstimate) -> tuple[int, int]:
        common = 0
        for own, other in zip(estimate.values, values, strict=False):
            if own != other:
                return -common, abs(own[1] - other[1]) if own[0] == other[0] else 0
            common += 1
        return -common, 0

    known = [estimate for estimate in estimates if math.isfinite(estimate.log_z2)]
    if not known:
        return 0.0
    nearest = min(known, key=distance)
    return nearest.log_z2 - math.log(nearest.mass)
