"""`AdaptiveIS`: importance sampling from a mixture fitted to every part at once.

Scouts (independent runs of sequential Monte Carlo) find where γ, γf⁺ and γf⁻ have their mass; one
mixture is fitted to all of them; quasi-random draws from the frozen mixture then serve every
normalising constant and every output. The scouts only fit; fresh draws integrate: that keeps the
estimate unbiased and its error visible.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from estimand.density import Density, has_varying_scales
from estimand.estimators import SMC
from estimand.methods.adaptive.ascents import Ascents
from estimand.methods.adaptive.draws import GAMMA2, Part
from estimand.methods.adaptive.explore import explore
from estimand.methods.adaptive.fit import fit
from estimand.methods.adaptive.integrate import integrate
from estimand.methods.adaptive.judge import PartJudgement, has_nan, judge, part_only
from estimand.methods.adaptive.looks import looks_of, looks_of_density
from estimand.methods.adaptive.plan import (
    PROBE,
    Effort,
    Ladder,
    Limits,
    Plan,
    Sizes,
    State,
    can_afford,
    report,
    running_seconds,
)
from estimand.methods.adaptive.posterior import Posterior
from estimand.methods.adaptive.proposal import Exploration
from estimand.methods.adaptive.refine import refine
from estimand.methods.adaptive.validate import validate
from estimand.methods.protocol import Budget, Run, in_plain_coordinates, plain_positions
from estimand.model import ProgramError
from estimand.runtime import LocalRuntime, OutOfTimeError, Runtime, run_task
from estimand.sampling import check_draws, comparison_scales, freeze_draws, positions_of
from estimand.sampling import mixture as mixtures
from estimand.settings import Settings, require_count
from estimand.trust import Evidence, Finding, Goal, Status

PILOT = 8192
# Draws of a replicate in the first round, and what a small budget makes less of.
FIRST_ROUND, LARGEST_ROUND = 2048, 8192
# Prior draws that say how far comparisons spread.
NUM_SCALE_DRAWS = 1000
MIN_PILOT = 1024
# Budget at which every stage has its full size, for up to three parts, and the least share of it.
FULL_BUDGET = 1_000_000
MIN_SCALE = 0.05
# Scouts of full size are so many pieces of this size, each 40 short chains; above this dimension
# half as many.
PIECE = SMC(num_particles=200, num_steps=5, num_islands=5)
NUM_PIECES = 10
MAX_WIDE_SCOUTS = 20
# How often the stages from refining on are gone through: what a validation finds is fitted. Small
# explorations find less at a time.
MAX_ATTEMPTS, MAX_SMALL_ATTEMPTS = 2, 4


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AdaptiveIS(Settings):
    """Importance sampling from a fitted mixture; a method for all parts at once, and an estimator.

    ``estimate_expectation(expectation, AdaptiveIS())`` fits one mixture to all parts and lets
    every draw serve all of them. ``TABI(AdaptiveIS())`` treats each part on its own. Integer sites
    are relaxed: real numbers stand for them, each value having an interval of length one. It works
    on the host between compiled pieces and cannot itself be jitted.

    Args:
        relative_error: standard error to reach, relative to the value (to Z as an estimator).
        absolute_error: a standard error that is small enough, whatever the value is.
        max_evaluations: evaluations that may be spent, a gradient counting as 3. A budget below
            the least that it can do is refused. What an exploration costs is known only
            afterwards; where one overruns the budget, the notes say by how much.
        max_seconds: time limit. When it is up, the step under way is finished and what is known
            is returned; the notes say by how much it was overrun.
        num_replicates: independent quasi-random replicates, from which the error is estimated.
        standardise: explore and fit in coordinates in which location-scale priors are standard
            ones; False keeps the model's own, in which the edges of events are more often
            straight. By default False for events where no prior scale is unknown and no prior has
            heavy tails.
        effort: size of explorations, pilots and rounds, as a share of the full one, which a large
            budget has. By default as much as the budget allows.
        scout: what explores: `SMC`, whose islands are the independent scouts, by default five of
            2,000 particles, 1,000 above 20 dimensions; or `Ascents`.
        draws: draws that you have already, of chains or of a guide: a dict of arrays by site with
            leading axes (chains, draws), or an ArviZ DataTree or InferenceData. The mixture is
            fitted to them, too. They need not be exact, and exploring does not end with them.

    Examples:
        >>> result = ep.estimate_expectation(program(2.0), ep.AdaptiveIS())
        >>> round(result.value, 1), result.status.name
        (2.5, 'ok')
    """

    relative_error: float = 0.01
    absolute_error: float = 0.0
    max_evaluations: int = 1_000_000
    max_seconds: float = math.inf
    num_replicates: int = 16
    standardise: bool | None = None
    effort: float | None = None
    scout: SMC | Ascents | None = None
    draws: Any = dataclasses.field(default=None, hash=False, compare=False)

    def __post_init__(self) -> None:
        require_count("AdaptiveIS", "max_evaluations", self.max_evaluations)
        require_count("AdaptiveIS", "num_replicates", self.num_replicates)
        if self.num_replicates < 4:
            raise ValueError("AdaptiveIS: num_replicates must be at least 4 to give an error.")
        if self.effort is not None and not 0 < self.effort <= 1:
            raise ValueError(f"AdaptiveIS: effort must be in (0, 1]; it is {self.effort}.")
        require_goal("AdaptiveIS", self)
        freeze_draws(self)

    @property
    def goal(self) -> Goal:
        """The standard error that is asked for."""
        return Goal(self.relative_error, self.absolute_error)

    def check(self, density: Density) -> None:
        if not density.layout.is_relaxable:
            density.require_continuous("AdaptiveIS", "continuous sites or integers")
        if density.dimension == 0:
            raise ProgramError(
                f"AdaptiveIS: program {density.name!r} has nothing to draw; use Auto or TABI."
            )
        relaxed = density.relaxed()
        self.explorer.check(relaxed)
        if self.draws is not None:
            check_draws("AdaptiveIS", density, self.draws)
        require_budget("AdaptiveIS", self.max_evaluations, self.least_evaluations(density))

    @property
    def explorer(self) -> SMC | Ascents:
        """The scout, or a piece of the default one."""
        return PIECE if self.scout is None else self.scout

    def least_evaluations(self, density: Density) -> int:
        """What the smallest possible run costs: the probe, a pilot and a round of replicates."""
        sizes = self._sizes(density, len(parts_of(density)), MIN_SCALE * FULL_BUDGET)
        return PROBE + sizes.pilot + sizes.num_replicates * sizes.round

    def enough_evaluations(self, density: Density) -> int:
        """The budget from which on it can do what suits the program."""
        return self.least_evaluations(density)

    def run(self, rng_key: jax.Array, density: Density, runtime: Runtime) -> Run:
        budget = Budget(self.max_evaluations, self.max_seconds, runtime.clock())
        run = self.run_within(rng_key, density, runtime)
        return budget.with_overruns(run, runtime, "an exploration that has begun")

    def run_within(
        self,
        rng_key: jax.Array,
        density: Density,
        runtime: Runtime,
        reach: Limits | None = None,
        posterior: Posterior | None = None,
    ) -> Run:
        """As `run`, for a method that accounts for budget and time itself.

        A mixture that fits may use up the limits of `reach`; what checks it may take longer. With
        the chains of a posterior it is fitted to their draws, too.
        """
        looking = density.with_looks()
        plan = self._plan(rng_key, looking, parts_of(looking), runtime)
        if posterior is not None:
            draws = posterior.draws_in(plan.density, runtime)
            given = draws if plan.given is None else np.concatenate([plan.given, draws])
            plan = plan._replace(given=given)
        plan = plan._replace(looks=looks_of(plan.density), reach=reach or plan.limits)
        return self._run_plan(plan, runtime)[0]

    def run_from(
        self,
        rng_key: jax.Array,
        posterior: Posterior,
        runtime: Runtime,
        reach: Limits | None = None,
    ) -> tuple[Run, dict[Part, tuple[Ladder, ...]]]:
        """As `run_within`, exploring from the posterior; and the ladders that it climbed."""
        plan = self._plan_from(rng_key, posterior, runtime)
        return self._run_plan(plan._replace(reach=reach or plan.limits), runtime)

    def _run_plan(self, plan: Plan, runtime: Runtime) -> tuple[Run, dict[Part, tuple[Ladder, ...]]]:
        is_bounded = plan.reach is plan.limits
        limited = runtime.until(plan.started + self.max_seconds if is_bounded else math.inf)
        try:
            state = _estimate(plan, limited)
            return _run(plan, state), state.ladders
        except OutOfTimeError:
            if limited.offered is None:
                raise
            detail = "the time limit was reached before all checks were made"
            finding = Finding(Status.interrupted, None, detail, "time")
            return limited.offered().with_finding(finding), {}

    def estimate(self, rng_key: jax.Array, density: Density) -> Evidence:
        return self.estimate_in(LocalRuntime(), rng_key, density)

    def estimate_in(self, runtime: Runtime, rng_key: jax.Array, density: Density) -> Evidence:
        """As `estimate`, with every stage as tasks of the runtime."""
        return self.judged_in(runtime, rng_key, density).evidence

    def judged_in(
        self,
        runtime: Runtime,
        rng_key: jax.Array,
        density: Density,
        posterior: Posterior | None = None,
    ) -> PartJudgement:
        """As `estimate_in`, with what speaks against it; exploring from a posterior if given."""
        part = Part(int(density.sign), int(density.output))
        if posterior is None:
            self.check(density)
            plan = self._plan(rng_key, density, (part,), runtime)
        else:
            plan = self._plan_from(rng_key, posterior, runtime)
        if not part.sign:
            plan = plan._replace(looks=looks_of_density(plan.density))
        state = _estimate(plan, runtime)
        evidence, findings = part_only(plan, state)
        is_nan = state.draws is not None and has_nan(state, part)
        evidence = evidence._replace(
            positions=plain_positions(plan.density, evidence.positions),
            evaluations=np.asarray([state.cost.num_evaluations]),  # type: ignore[arg-type]
            gradients=np.asarray([state.cost.num_gradients]),  # type: ignore[arg-type]
            invalid=np.asarray([int(is_nan)]),  # type: ignore[arg-type]
        )
        return PartJudgement(evidence, findings)

    def _plan(
        self, rng_key: jax.Array, density: Density, parts: tuple[Part, ...], runtime: Runtime
    ) -> Plan:
        plan = self._sized(rng_key, self._in_coordinates(density), parts, runtime)
        if not plan.density.has_comparisons:
            return plan
        report(plan, State(), runtime, "drawing from the prior")
        seed = plan.seed("scales")
        scales = run_task(runtime, comparison_scales, plan.density, seed, NUM_SCALE_DRAWS)
        return plan._replace(softened=plan.density.softened(scales))

    def _plan_from(self, rng_key: jax.Array, posterior: Posterior, runtime: Runtime) -> Plan:
        density = posterior.fitted
        plan = self._sized(rng_key, density, parts_of(density), runtime)
        plan = plan._replace(posterior=posterior, looks=looks_of(density))
        scales = posterior.margin_scales
        return plan if scales is None else plan._replace(softened=density.softened(scales))

    def _sized(
        self, rng_key: jax.Array, density: Density, parts: tuple[Part, ...], runtime: Runtime
    ) -> Plan:
        scout, num_pieces = self.explorer, 1
        sizes = self._sizes(density, len(parts), self.max_evaluations)
        if self.scout is None:
            most = NUM_PIECES if density.dimension <= MAX_WIDE_SCOUTS else NUM_PIECES // 2
            num_pieces = max(1, round(most * self._scale(len(parts))))
        elif isinstance(scout, SMC):
            chains = max(8, int(scout.num_particles * self._scale(len(parts))) // scout.num_steps)
            count = min(chains * scout.num_steps, scout.num_particles)
            scout = dataclasses.replace(scout, num_particles=count)
        given = None
        if self.draws is not None:
            given = positions_of("AdaptiveIS", density, self.draws).reshape(-1, density.dimension)
        limits = Limits(self.goal, self.max_evaluations, self.max_seconds)
        return Plan(
            density=density,
            given=given,
            softened=density,
            parts=parts,
            scout=scout,
            num_pieces=num_pieces,
            is_small=self.effort is not None and self.effort < 1,
            sizes=sizes,
            limits=limits,
            reach=limits,
            rng_key=rng_key,
            started=runtime.clock(),
            compiled=runtime.compile_seconds(),
        )

    def _in_coordinates(self, density: Density) -> Density:
        standardise = self.standardise
        if standardise is None:
            standardise = has_varying_scales(density) or not suits_own_coordinates(density)
        density = density.relaxed()
        return density.standardised() if standardise else density

    def _scale(self, num_parts: int, budget: float | None = None) -> float:
        """A smaller budget shrinks every stage, down to sizes below which there is no error."""
        budget = self.max_evaluations if budget is None else budget
        scale = min(1.0, max(MIN_SCALE, budget / (FULL_BUDGET * max(1.0, num_parts / 3))))
        return scale if self.effort is None else min(scale, max(MIN_SCALE, self.effort))

    def _sizes(self, density: Density, num_parts: int, budget: float) -> Sizes:
        scale = self._scale(num_parts, budget)
        pilot = min(max(PILOT, 20 * mixtures.num_moments(density.dimension)), 5 * PILOT)
        return Sizes(
            pilot=int(max(MIN_PILOT, pilot * scale) * max(1.0, num_parts / 3)),
            round=min(FIRST_ROUND, int(LARGEST_ROUND * scale)),
            num_replicates=self.num_replicates,
        )


def require_goal(owner: str, settings: Any) -> None:
    """Refuses errors and times that nothing can reach."""
    for name in ("relative_error", "absolute_error", "max_seconds"):
        value = getattr(settings, name)
        if not isinstance(value, int | float | np.number) or isinstance(value, bool):
            raise ValueError(f"{owner}: {name} must be a number, as 0.01; it is {value!r}.")
    for name in ("relative_error", "max_seconds"):
        if not getattr(settings, name) > 0:
            raise ValueError(f"{owner}: {name} must be positive; it is {getattr(settings, name)}.")
    if not settings.absolute_error >= 0:
        raise ValueError(
            f"{owner}: absolute_error must not be negative; it is {settings.absolute_error}."
        )


def require_budget(owner: str, max_evaluations: int, least: int) -> None:
    """Refuses a budget below the least that a method can do."""
    if max_evaluations < least:
        raise ProgramError(
            f"{owner}: max_evaluations={max_evaluations:,} is too small: with this program it "
            f"needs at least {least:,}."
        )


def suits_own_coordinates(density: Density) -> bool:
    """Whether the edges of events are worth the model's own coordinates.

    They are straight there more often. But what is far out in a heavy tail no mixture reaches: in
    these coordinates E[x; x > 10] of Student's t with two degrees came out 4 % too small, `ok`.
    """
    return density.has_comparisons and not density.layout.has_heavy_coordinates


def parts_of(density: Density) -> tuple[Part, ...]:
    """γ, and γf± of every output but those that the return expression rules out."""
    known, is_zero = density.known_signs, density.known_zeros
    signed = (
        Part(sign, output)
        for output in range(density.num_outputs)
        for sign in (1, -1)
        if sign * known[output] >= 0 and not is_zero[output]
    )
    return (GAMMA2, *signed)


def _estimate(plan: Plan, runtime: Runtime) -> State:
    """Explore and fit; then refine, integrate and validate, until nothing was missed."""

    def offer(state: State) -> None:
        if GAMMA2 in plan.parts:
            runtime.offer(lambda: _run(plan, state))

    state = explore(plan, State(), runtime, offer)
    state = fit(plan, state, runtime, state.found)
    if not state.groups:
        return state
    effort = Effort(state.cost.spent, running_seconds(plan, runtime))
    state, parts = state._replace(exploration=effort), tuple(state.explored)
    num_attempts = MAX_SMALL_ATTEMPTS if plan.is_small else MAX_ATTEMPTS
    for attempt in range(num_attempts):
        begun = Effort(state.cost.spent, running_seconds(plan, runtime))
        state = refine(plan, state._replace(attempt=attempt), runtime)
        state = integrate(plan, state, runtime, offer)
        seconds = running_seconds(plan, runtime) - begun.seconds
        effort = Effort(state.cost.spent - begun.evaluations, seconds)
        state = validate(plan, state, runtime, _worth_validating(plan, state, runtime, parts))
        again = Effort(
            effort.evaluations + sum(state.part_costs.get(part, 0) for part in state.missed),
            effort.seconds + state.exploration.seconds,
        )
        is_last = attempt + 1 == num_attempts
        if is_last or not state.missed or not can_afford(plan, state, runtime, again):
            break
        parts = tuple(part for part in state.missed if part in state.explored)
        joined = {part: Exploration.join(state.explored[part]).flattened() for part in parts}
        state = fit(plan, state._replace(found=state.found | joined), runtime, parts)
    return state


def _worth_validating(
    plan: Plan, state: State, runtime: Runtime, parts: tuple[Part, ...]
) -> tuple[Part, ...]:
    """All parts; where that is too expensive, without those of outputs that lack draws anyway."""
    effort = Effort(sum(state.part_costs.get(part, 0) for part in parts))
    if GAMMA2 not in plan.parts or can_afford(plan, state, runtime, effort, plan.reach):
        return parts
    lacking = {number for number, output in enumerate(judge(plan, state)) if not output.status}
    return tuple(part for part in parts if part.sign == 0 or part.output not in lacking)


def _run(plan: Plan, state: State) -> Run:
    """What is known of all outputs in a state."""
    outputs = in_plain_coordinates(judge(plan, state), plan.density)
    notes = []
    if state.sums is not None:
        notes.append(f"{state.sums.size:,} further draws were summed up where they were made")
    if state.net is not None:
        notes.append(f"checked at {len(state.net.positions):,} more prior draws")
    if state.probe is not None and (share := state.probe.nan_mass(plan.density.num_outputs)) > 0:
        notes.append(
            f"the density or f is NaN or +inf in {100 * share:.2g} % of the prior: taken as 0 there"
        )
    return Run(outputs, *state.cost, notes=tuple(notes))
