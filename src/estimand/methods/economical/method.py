"""`Economical`: few evaluations of an expensive simulator, guided by a surrogate."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import numpy as np

from estimand.density import Density
from estimand.methods.adaptive import require_goal
from estimand.methods.economical import rounds as stages
from estimand.methods.economical.judge import judge
from estimand.methods.economical.pool import Proposal
from estimand.methods.economical.rounds import Evaluated, Round
from estimand.methods.economical.surrogate import Surrogate
from estimand.methods.economical.target import Target
from estimand.methods.protocol import Run, in_plain_coordinates
from estimand.model import Called, ProgramError, Simulator, SimulatorError, SimulatorModel
from estimand.runtime import OutOfTimeError, Progress, Runtime, run_task
from estimand.sampling import entropy_of, named_seed
from estimand.settings import Settings, require_count
from estimand.trust import Finding, Goal, OutputEstimate, Status

# Numbers that a simulator may give for a point; the surrogate predicts each of them.
MAX_NUMBERS = 100
# Two values of one point are the same up to this, relative to their size and spread: numerical
# noise of threads that add up in any order.
SAME = 1e-6
# A run ends before its budget if its error was this share of the requested one, in so many rounds
# in a row: the rest is a reserve against what the surrogate has not seen. Not measured.
EARLY_SHARE, EARLY_ROUNDS = 0.2, 3
# Fewer evaluations than this are no round of their own.
MIN_LEFT = stages.MIN_ROUND // 2

SURPRISED = Finding(
    Status.not_converged,
    None,
    "the last evaluations are where the surrogate was sure, and show that it was wrong",
    "surprise",
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Economical(Settings):
    """Estimates with 500 to 5,000 evaluations of a simulator, in up to about ten dimensions.

    A Gaussian process of all evaluations so far says where the integrand is large and where it is
    in doubt; the simulator is asked there, and at some points only to look where the process sees
    nothing. The estimate is what the process says of many points, corrected by the truth at some of
    them: each round of evaluations corrects the process that the rounds before it made, and is
    unbiased whatever that is. Rounds of a process that was sure and wrong are not counted.

    Args:
        max_evaluations: points that are simulated at the most.
        relative_error: standard error to reach, relative to the value. A run ends early if it is
            far below.
        absolute_error: a standard error that is small enough, whatever the value is.
        max_seconds: time limit. When it is up, the calls under way are finished and what is known
            is returned.

    Examples:
        >>> import numpy as np
        >>> failure = ep.from_simulator(
        ...     lambda points: 4.5 - points["x"],
        ...     prior={"x": dist.Normal(0, 1)},
        ...     f=lambda sites, margin: margin < 0,
        ... )
        >>> result = ep.estimate_expectation(failure(), ep.Economical(max_evaluations=200))
        >>> abs(result.value / 3.39767e-6 - 1) < 0.05
        True
    """

    max_evaluations: int = 1000
    relative_error: float = 0.05
    absolute_error: float = 0.0
    max_seconds: float = math.inf

    def __post_init__(self) -> None:
        require_count("Economical", "max_evaluations", self.max_evaluations)
        require_goal("Economical", self)

    @property
    def goal(self) -> Goal:
        """The standard error that is asked for."""
        return Goal(self.relative_error, self.absolute_error)

    def check(self, density: Density) -> None:
        model = density.model
        if not isinstance(model, SimulatorModel):
            raise ProgramError(
                f"Economical is for programs made by from_simulator, and {density.name!r} is not "
                "one: use the default method."
            )
        density.require_prior("Economical")
        if density.layout.has_discrete:
            raise ProgramError(
                f"Economical needs continuous sites, and site {density.layout.discrete_sites[0]!r} "
                f"of simulator {density.name!r} is discrete: use Auto, or estimate for each of its "
                "values."
            )
        if density.dimension == 0:
            raise ProgramError(f"Economical: simulator {density.name!r} has nothing to draw.")
        size = model.simulator.job.outputs.size
        if size > MAX_NUMBERS:
            raise ProgramError(
                f"Economical: simulator {density.name!r} gives {size} numbers for a point, and a "
                f"surrogate of at most {MAX_NUMBERS} is made. Give what the likelihood and f need: "
                "a summary, or the log likelihood itself."
            )
        least = self.least_evaluations(density)
        if self.max_evaluations < least:
            raise ProgramError(
                f"Economical: max_evaluations={self.max_evaluations:,} is too small: with this "
                f"simulator it needs at least {least:,}."
            )

    def least_evaluations(self, density: Density) -> int:
        """The first design, a repetition, and two rounds."""
        return stages.design_size(density.dimension) + 1 + 2 * stages.MIN_ROUND

    def run(self, rng_key: jax.Array, density: Density, runtime: Runtime) -> Run:
        limited = runtime.until(runtime.clock() + self.max_seconds)
        try:
            return _run(self, entropy_of(rng_key), density, limited)
        except OutOfTimeError:
            if limited.offered is None:
                raise
            detail = f"the time limit of {self.max_seconds:g} s was reached"
            finding = Finding(Status.interrupted, None, detail, "time")
            return limited.offered().with_finding(finding)


class State(NamedTuple):
    """What is known after some rounds."""

    known: Evaluated
    rounds: tuple[Round, ...] = ()
    surrogate: Surrogate | None = None
    proposal: Proposal = Proposal(())
    num_precise: int = 0
    num_looks: int = 0
    is_surprised: bool = False

    @property
    def spent(self) -> int:
        """Evaluations, with the one that was repeated."""
        return len(self.known) + 1


def _run(method: Economical, entropy: tuple[int, ...], density: Density, runtime: Runtime) -> Run:
    target = Target(density, named_seed(entropy, "prior"))
    target.simulator.remember()
    calls_before = target.simulator.num_calls
    state = _first(method, target, named_seed(entropy, "design"), runtime)
    wanted = stages.num_looks(target.dimension, method.max_evaluations)
    while method.max_evaluations - state.spent >= MIN_LEFT:
        if state.num_precise >= EARLY_ROUNDS and state.num_looks >= wanted:
            break
        seed = named_seed(entropy, "round", len(state.rounds))
        state = _next(method, target, state, seed, runtime)
        runtime.offer(functools.partial(_finished, method, target, state, calls_before))
    return _finished(method, target, state, calls_before)


def _first(method: Economical, target: Target, seed: tuple[int, ...], runtime: Runtime) -> State:
    """The first design, and one of its points once more: simulators must be deterministic."""
    points = stages.design(target, seed)
    known = _simulated(method, target, points, runtime, 0)
    is_fine = known.is_fine
    if is_fine.sum() < max(8, len(points) // 2):
        row, values = target.inputs(points[~is_fine][:1])[0], known.outputs[~is_fine][0]
        error = known.errors[int(np.argmin(is_fine))]
        raise SimulatorError(
            f"the simulator failed at {int((~is_fine).sum())} of the first {len(points)} points: "
            f"{target.simulator.told(row, values, error)}"
        )
    place = int(np.argmax(is_fine))
    row = target.inputs(points[place][None])[0]
    again = run_task(runtime, repeated, target.simulator, row, known.outputs[place])
    spread = np.ptp(known.outputs[is_fine], axis=0)
    if (np.abs(again - known.outputs[place]) > SAME * (np.abs(again) + spread)).any():
        raise SimulatorError(
            f"the simulator gave {known.outputs[place]} and then {again} at the same point, "
            f"{target.simulator.point_text(row)}. It must be deterministic: fix the seed of its "
            "random numbers, or make what they stand for sites of the prior."
        )
    target.learn_scales(known.points[is_fine], known.outputs[is_fine])
    return State(known)


def repeated(simulator: Simulator, row: np.ndarray, known: np.ndarray) -> np.ndarray:
    """A task: what a point gives if it is simulated again.

    It is not where no call has been made yet: everything came from a file.
    """
    return simulator.again(row) if simulator.num_calls else known


def simulate(simulator: Simulator, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A task: what some points give."""
    return simulator.call(rows).packed()


def _simulated(
    method: Economical, target: Target, points: np.ndarray, runtime: Runtime, spent: int
) -> Evaluated:
    """The simulator at some points, a piece after the other so that a run can be stopped."""
    rows = target.inputs(points)
    called = []
    for piece in target.simulator.pieces(len(rows)):
        progress = Progress("simulating", spent + piece.start, method.max_evaluations)
        runtime.report(progress)
        called.append(Called.unpacked(*run_task(runtime, simulate, target.simulator, rows[piece])))
    values = np.concatenate([one.values for one in called])
    errors = tuple(error for one in called for error in one.errors)
    return Evaluated.of(target, points, Called(values, errors))


def _next(
    method: Economical, target: Target, state: State, seed: tuple[int, ...], runtime: Runtime
) -> State:
    """One more round."""
    runtime.report(Progress("fitting a surrogate", state.spent, method.max_evaluations))
    surrogate = stages.fitted(state.known, state.surrogate, seed)
    surrogate = dataclasses.replace(surrogate, doubt=stages.doubt_of(list(state.rounds)))
    proposal, pool = stages.prepared(target, surrogate, state.proposal, seed)
    left = method.max_evaluations - state.spent
    count, looking = _sizes(method, target, state, left)
    chosen, counts = stages.choose(pool, count, seed)
    points = pool.points[chosen]
    known = np.concatenate([state.known.points, points])
    others = stages.looks(target, known, pool, looking, seed)
    every = _simulated(method, target, np.concatenate([points, others]), runtime, state.spent)
    found = every.first(len(points))
    one = Round(
        pool, chosen, counts, found, stages.scores_of(surrogate, pool, chosen, found), state.spent
    )
    # What a surrogate said that was sure and wrong is not counted; its evaluations stay known.
    rounds = (one,) if state.is_surprised else (*state.rounds, one)
    is_surprised = stages.is_surprised(target, surrogate, state.known, every)
    early = Goal(EARLY_SHARE * method.relative_error, EARLY_SHARE * method.absolute_error)
    is_precise = not is_surprised and all(
        output.status for output in judge(target, list(rounds), early, slack=1.0)
    )
    return State(
        known=state.known.joined(every),
        rounds=(one,) if is_surprised else rounds,
        surrogate=surrogate,
        proposal=proposal,
        num_precise=state.num_precise + 1 if is_precise else 0,
        num_looks=state.num_looks + looking,
        is_surprised=is_surprised,
    )


def _sizes(method: Economical, target: Target, state: State, left: int) -> tuple[int, int]:
    """Evaluations of the next round that are chosen by the surrogate, and that only look."""
    missing = stages.num_looks(target.dimension, method.max_evaluations) - state.num_looks
    size = stages.round_size(len(state.known))
    looking = int(stages.LOOKS_OF_ROUND * size)
    if state.num_precise >= EARLY_ROUNDS:
        size, looking = stages.MIN_ROUND, stages.round_size(len(state.known))
    looking = max(0, min(missing, looking, left - stages.MIN_ROUND))
    # A last round of few evaluations would be none of its own.
    if left - size - looking < stages.MIN_ROUND:
        size = left - looking
    return size, looking


def _finished(method: Economical, target: Target, state: State, calls_before: int) -> Run:
    """What is known after some rounds, as a method gives it."""
    outputs: tuple[OutputEstimate, ...] = judge(target, list(state.rounds), method.goal)
    if state.is_surprised:
        outputs = tuple(output.with_findings([SURPRISED]) for output in outputs)
    outputs = in_plain_coordinates(outputs, target.density)
    old = state.spent - (target.simulator.num_calls - calls_before)
    notes = [f"by Economical: {state.spent:,} evaluations, guided by a surrogate"]
    if old > 0:
        notes.append(f"{old:,} of them were known from before")
    return Run(outputs, state.spent, 0, notes=tuple(notes))
