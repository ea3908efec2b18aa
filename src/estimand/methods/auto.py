"""The default method: routes tried in order, each for the outputs that are still weak."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax

from estimand.density import Density, has_varying_scales
from estimand.estimators import SMC, Estimator, ImportanceSampling
from estimand.methods.adaptive import (
    MIN_LAPLACE_DIMENSION,
    AdaptiveIS,
    Ascents,
    Limits,
    Posterior,
    can_ascend,
    parts_of,
    require_budget,
    require_goal,
    suits_own_coordinates,
)
from estimand.methods.from_posterior import estimate_from_posterior
from estimand.methods.protocol import Budget, Cost, Run, in_plain_coordinates
from estimand.methods.tabi import TABI
from estimand.model import ProgramError
from estimand.runtime import OutOfTimeError, Progress, Runtime, has_accelerator
from estimand.sampling import check_draws, freeze_draws, named_key
from estimand.settings import Settings, require_count
from estimand.trust import (
    SAME,
    UNMET,
    Finding,
    Goal,
    OutputEstimate,
    Status,
    check_goal,
    check_magnitude,
    exactly_zero,
    may_be_infinite,
    thresholds,
    with_known_zeros,
)

_log = logging.getLogger("estimand")

# From this dimension on chains of the posterior come first. Below it scouts from the prior explore
# well and see modes that are far apart, and there is less to compile: a Gaussian in 10 dimensions
# takes 0.6 of NUTS's first answer, and 0.8 by chains (`benchmarks.cold_start`).
MIN_POSTERIOR_DIMENSION = 13
# The least that chains of the posterior need.
MIN_POSTERIOR_BUDGET = 2_000_000
# Above this dimension nothing starts from the prior.
MAX_ISLAND_DIMENSION = 20
ISLANDS = SMC(num_particles=4000, num_steps=40, num_islands=16)
# For programs without latent sites, whose weights are all equal.
POINT = ImportanceSampling(num_samples=1000)
# What these cost for each density, roughly.
ROUTE_COST = 1_000_000
# Shares of the budget for the mixture, and for a second one in other coordinates.
FIRST_SHARE, SECOND_SHARE = 0.8, 0.2
# And what a mixture that fits may use up of what is left. Its last checks need the rest.
REACH = 0.9
# Numbers that an evaluation computes, at the least, for a mixture by ascents in any dimension: some
# 100 µs. From `MIN_LAPLACE_DIMENSION` on they need fewer evaluations than scouts in any case.
MIN_VERY_EXPENSIVE = 1e5
# And for a mixture of medium size where few points do not rule out a missed mode: some 20 µs.
MIN_EXPENSIVE = 2e4
# Size of their explorations and rounds: a small mixture's, and that which a budget of 200,000 pays
# for.
SMALL_EFFORT, MEDIUM_EFFORT = 1 / 16, 0.2
# What they should have for up to three parts, and what they may spend where the whole budget has
# it: of the lesser one, gradients of ascents in 43 dimensions leave too few draws. At most half of
# the whole and of the time. Effort and budget grow where less than the usual error is requested, up
# to an effort that is worth it.
SMALL_BUDGET, SMALL_LIMIT = 200_000, 400_000
SMALL_SHARE = 0.5
USUAL_ERROR = 0.01
LARGE_EFFORT = 0.5
MIN_SCALE = 0.1
MIN_ISLAND_CHAINS = 10
# Every output is explored on its own: ten take ten seconds, and more than this an hour.
MAX_OUTPUTS = 200

# Statuses that another route may fix. A NaN or missing mass it would only find again.
_FIXABLE = (
    Status.low_ess,
    Status.heavy_tailed,
    Status.replicates_disagree,
    Status.not_converged,
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Auto(Settings):
    """Chooses the route by the program, and takes another one where the first cannot be trusted.

    Programs go through `AdaptiveIS` in standardised coordinates (events with known prior scales in
    the model's own ones) and, where its own checks do not pass, in the other ones. A small one
    comes first, which is enough where it passes all checks; from seven dimensions on, and where an
    evaluation takes a tenth of a millisecond, it explores by `Ascents`. Outputs that no
    mixture fits, and programs with discrete sites that are not integers, are estimated by `TABI`
    with independent islands of `SMC`, whose error is that between islands: coarser, and honest.
    From 13 continuous dimensions on, for hierarchies and where a prior is improper, chains of the
    posterior come first: a mixture fitted to them and to ladders from them to the target, their
    averages, or the ladders themselves. Routes that contradict each other say so in the status, and
    the estimate's notes say which output went which way.

    Args:
        relative_error: standard error to reach, relative to the value.
        absolute_error: a standard error that is small enough, whatever the value is: of an
            expectation near 0, say.
        max_evaluations: evaluations that may be spent, a gradient counting as 3. A budget below
            the least that the method can do is refused; a route that has begun is finished, and
            the notes say by how much the budget was overrun.
        max_seconds: time limit. When it is up, the step under way is finished and what is known
            is returned; the notes say by how much it was overrun.
        draws: draws that you have already, of chains or of a guide, as `AdaptiveIS` takes them:
            mixtures are fitted to them, too.

    Examples:
        >>> method = ep.Auto(relative_error=0.001, max_seconds=60)
        >>> result = ep.estimate_expectation(program(2.0), method)
        >>> result.standard_error <= 0.001 * result.value
        True
    """

    relative_error: float = 0.01
    absolute_error: float = 0.0
    max_evaluations: int = 8_000_000
    max_seconds: float = math.inf
    draws: Any = dataclasses.field(default=None, hash=False, compare=False)

    def __post_init__(self) -> None:
        require_count("Auto", "max_evaluations", self.max_evaluations)
        require_goal("Auto", self)
        freeze_draws(self)

    @property
    def goal(self) -> Goal:
        """The standard error that is asked for."""
        return Goal(self.relative_error, self.absolute_error)

    def check(self, density: Density) -> None:
        is_enough = self.max_evaluations >= MIN_POSTERIOR_BUDGET
        if not has_chains(density) or not is_enough:
            density.require_prior(
                "the default method with discrete sites, a condition or a small budget"
            )
        if density.num_outputs > MAX_OUTPUTS:
            raise ProgramError(
                f"program {density.name!r} has {density.num_outputs:,} outputs, and the default "
                f"method explores each on its own, at most {MAX_OUTPUTS} of them. Estimate some at "
                "a time, as in expectation[0]; or all from the same draws of the posterior by "
                "SelfNormalised(SMC()) or PosteriorMCMC()."
            )
        require_budget("Auto", self.max_evaluations, least_evaluations(density))
        if self.draws is not None:
            check_draws("Auto", density, self.draws)

    def least_evaluations(self, density: Density) -> int:
        """What the smallest possible run costs."""
        return least_evaluations(density)

    def enough_evaluations(self, density: Density) -> int:
        """The budget from which on the first route is the one that suits the program."""
        if density.dimension and prefers_posterior(density):
            return MIN_POSTERIOR_BUDGET
        return least_evaluations(density)

    def run(self, rng_key: jax.Array, density: Density, runtime: Runtime) -> Run:
        budget = Budget(self.max_evaluations, self.max_seconds, runtime.clock())
        run = self.run_within(rng_key, density, runtime)
        return budget.with_overruns(run, runtime, "a route that has begun")

    def run_within(self, rng_key: jax.Array, density: Density, runtime: Runtime) -> Run:
        """As `run`, for whoever accounts for budget and time."""
        started = runtime.clock()
        limited = runtime.until(started + self.max_seconds)
        journey = Journey(self, rng_key, density, limited, started)
        try:
            for route in ROUTES:
                if route.applies(journey):
                    journey = _followed(route, journey)
                    _log_route(route, journey)
                    if journey.outputs:
                        limited.offer(journey.finished)
            return journey.finished()
        except OutOfTimeError:
            if limited.offered is None:
                raise
            detail = f"the time limit of {self.max_seconds:g} s was reached before all routes"
            finding = Finding(Status.interrupted, None, detail, "time")
            return limited.offered().with_finding(finding)


def _followed(route: Route, journey: Journey) -> Journey:
    """The journey after a route; as before, with a note, if there was not enough memory for it."""
    try:
        return route.follow(journey)
    except jax.errors.JaxRuntimeError as error:
        if not journey.outputs or "RESOURCE_EXHAUSTED" not in str(error):
            raise
        note = "another route needed more memory than there is, and was given up"
        return journey._replace(notes=(*journey.notes, note))


def _log_route(route: Route, journey: Journey) -> None:
    statuses = [output.status.name for output in journey.outputs] or "none yet"
    _log.info("%s: statuses %s after %s evaluations", route.name, statuses, journey.cost.spent)
    for output in journey.outputs:
        for finding in output.findings:
            _log.info("%s: %s: %s", route.name, finding.status.name, finding)


def least_evaluations(density: Density) -> int:
    """What the smallest possible run of the default method costs."""
    num_parts = len(parts_of(density))
    if density.dimension == 0:
        return POINT.num_samples * num_parts
    if not density.layout.is_relaxable:
        return MIN_ISLAND_CHAINS * ISLANDS.num_steps * ISLANDS.num_islands * num_parts
    return AdaptiveIS().least_evaluations(density)


class Journey(NamedTuple):
    """One estimation under way: the outputs so far, how they were obtained, and their cost."""

    settings: Auto
    rng_key: jax.Array
    density: Density
    runtime: Runtime
    started: float
    outputs: tuple[OutputEstimate, ...] = ()
    cost: Cost = Cost()
    notes: tuple[str, ...] = ()
    posterior: Posterior | None = None
    """Chains that an earlier route has sampled: later mixtures are fitted to them, too."""

    def finished(self) -> Run:
        return Run(self.outputs, *self.cost, notes=self.notes)

    def key(self, route: str) -> jax.Array:
        """The random key of a route, which does not depend on the routes before it."""
        return named_key(self.rng_key, route)

    @property
    def weak(self) -> tuple[int, ...]:
        """The outputs that another route may fix."""
        if self.density.dimension == 0:
            return ()
        statuses = [output.status for output in self.outputs]
        return tuple(number for number, status in enumerate(statuses) if status in _FIXABLE)

    # --- what is left ---

    @property
    def seconds_left(self) -> float:
        if math.isinf(self.settings.max_seconds):
            return math.inf
        return self.settings.max_seconds - (self.runtime.clock() - self.started)

    def left(self, share: float = 1.0) -> Limits:
        """All that may still be spent, or a share of it."""
        budget = share * (self.settings.max_evaluations - self.cost.spent)
        return Limits(self.settings.goal, budget, share * self.seconds_left)

    @property
    def spent_share(self) -> float:
        return self.cost.spent / self.settings.max_evaluations

    def share_left(self) -> float:
        """What is left of the budget, or less if at the pace so far there is no time for it.

        A further route is compiled again, which takes as long as it has so far.
        """
        if math.isinf(self.settings.max_seconds):
            return 1 - self.spent_share
        compiling = self.runtime.compile_seconds()
        running = self.runtime.clock() - self.started - compiling
        seconds_per_share = max(running, 0.0) / max(self.spent_share, 1e-12)
        in_time = (self.seconds_left - compiling) / max(seconds_per_share, 1e-12)
        return min(1 - self.spent_share, in_time)

    def has_left(self, share: float) -> bool:
        return self.share_left() >= share and self.seconds_left > 0

    def has_left_for_parts(self) -> bool:
        """Whether the smallest route that takes each part on its own can be paid."""
        return self.has_left(MIN_SCALE * self._route_share(self.weak))

    def scale(self, outputs: Sequence[int]) -> float:
        """How large a route may be that takes each part on its own."""
        return min(1.0, max(MIN_SCALE, self.share_left() / self._route_share(outputs)))

    def _route_share(self, outputs: Sequence[int]) -> float:
        """What a route of full size that takes each part on its own costs, of the budget."""
        return ROUTE_COST * (1 + len(outputs)) / self.settings.max_evaluations

    # --- what is taken over ---

    def with_run(self, run: Run) -> Journey:
        """After a route: its cost and notes, whatever becomes of its outputs."""
        notes = tuple(dict.fromkeys((*self.notes, *run.notes)))
        return self._replace(cost=self.cost + run.cost, notes=notes)

    def starting_with(self, run: Run, route: str) -> Journey:
        """After the first route, whose outputs are all there is."""
        outputs = tuple(output._replace(route=route) for output in run.outputs)
        return self.with_run(run)._replace(outputs=outputs)

    def taking(self, others: dict[int, OutputEstimate], route: str) -> Journey:
        """Another route's outputs where they have the better status, or the smaller error."""
        outputs, notes = list(self.outputs), list(self.notes)
        for number in self.weak:
            mine, other = outputs[number], others.get(number)
            if other is None:
                continue
            other = other.with_findings(check_magnitude(other, mine))
            if not _is_better(other, mine):
                continue
            notes.append(f"{self._label(number)} by {route} (was {mine.status.name})")
            outputs[number] = other._replace(route=route)
        return self._replace(outputs=tuple(outputs), notes=tuple(notes))

    def _label(self, number: int) -> str:
        assert self.density.model.output is not None
        return self.density.model.output.labels[number] or "the estimate"


def _is_better(one: OutputEstimate, other: OutputEstimate) -> bool:
    def key(output: OutputEstimate) -> tuple:
        # Few effective draws and too large an error are the same lack.
        standing = output.standing
        status = Status.low_ess if standing is Status.not_converged else standing
        return not math.isfinite(output.standard_error), status.severity, output.standard_error

    return key(one) < key(other)


# --- routes ---


class Route(Protocol):
    """A way to estimate: whether it is to be taken now, and the journey after it."""

    @property
    def name(self) -> str: ...

    def applies(self, journey: Journey) -> bool: ...

    def follow(self, journey: Journey) -> Journey: ...


class _Point:
    """Programs without latent sites: the return value itself."""

    name = "the return value itself"

    def applies(self, journey: Journey) -> bool:
        return journey.density.dimension == 0

    def follow(self, journey: Journey) -> Journey:
        run = TABI(POINT).run(journey.key(self.name), journey.density, journey.runtime)
        note = "there is nothing to draw: it is the return value itself"
        outputs = tuple(map(exactly_zero, run.outputs))
        return journey.starting_with(run.with_notes(note)._replace(outputs=outputs), self.name)


@dataclasses.dataclass(frozen=True)
class _Small:
    """A mixture at a fraction of its usual cost.

    It has the same checks, and counts only if every output passes them.
    """

    name: str
    suits: Callable[[Density], bool]
    effort: float
    scout: Ascents | None = None

    def applies(self, journey: Journey) -> bool:
        layout = journey.density.layout
        if journey.outputs or layout.improper_sites or not layout.is_relaxable:
            return False
        if has_accelerator() and self.scout is None:
            return False  # More particles take no more time there.
        has_enough = self._share(journey, SMALL_BUDGET) <= SMALL_SHARE
        is_small = self._effort(journey) < LARGE_EFFORT and has_enough
        return is_small and _has_safe_means(journey.density) and self.suits(journey.density)

    def follow(self, journey: Journey) -> Journey:
        run = _by_mixture(
            journey,
            self.name,
            min(SMALL_SHARE, self._share(journey, SMALL_LIMIT)),
            prefers_standardised(journey.density),
            SMALL_SHARE * journey.seconds_left,
            self.scout,
            self._effort(journey),
        )
        # What is not a number here is none elsewhere.
        if all(output.status or output.status is Status.nan_density for output in run.outputs):
            return journey.starting_with(run, self.name)
        finding = next(item for output in run.outputs for item in output.findings)
        note = f"{self.name} did not pass all checks ({finding})"
        journey = journey.with_run(run._replace(notes=()))
        return journey._replace(notes=(*journey.notes, note))

    def _effort(self, journey: Journey) -> float:
        return self.effort * _strictness(journey)

    def _share(self, journey: Journey, evaluations: float) -> float:
        """Evaluations for up to three parts, as a share of the budget."""
        num_parts = len(parts_of(journey.density))
        evaluations *= max(1.0, num_parts / 3) * _strictness(journey)
        return evaluations / journey.settings.max_evaluations


def _strictness(journey: Journey) -> float:
    """How many times smaller than usual the requested error is."""
    return max(1.0, USUAL_ERROR / journey.settings.relative_error)


def _has_safe_means(density: Density) -> bool:
    """Whether no output could be large in heavy tails: small explorations do not go there."""
    return not any(may_be_infinite(density, output) for output in range(density.num_outputs))


def _suits_ascents(density: Density) -> bool:
    is_very_expensive = density.work.num_numbers >= MIN_VERY_EXPENSIVE
    has_many = density.dimension >= MIN_LAPLACE_DIMENSION and not has_varying_scales(density)
    return (is_very_expensive or has_many) and can_ascend(density)


def _has_few_dimensions(density: Density) -> bool:
    return density.dimension < thresholds.MIN_EXPLORED_DIMENSION


def _is_expensive(density: Density) -> bool:
    return density.work.num_numbers >= MIN_EXPENSIVE


class _Mixture:
    """A mixture fitted to all parts, in the coordinates that suit the program."""

    name = "the mixture"

    def applies(self, journey: Journey) -> bool:
        layout = journey.density.layout
        if layout.improper_sites or not layout.is_relaxable:
            return False
        if not journey.outputs:
            return True
        is_small = layout.dimension <= MAX_ISLAND_DIMENSION
        is_next = is_small and prefers_posterior(journey.density)
        return is_next and bool(journey.weak) and journey.has_left(SECOND_SHARE)

    def follow(self, journey: Journey) -> Journey:
        standardise = prefers_standardised(journey.density)
        share = min(FIRST_SHARE, 1 - journey.spent_share)
        run = _by_mixture(journey, self.name, share, standardise, reach=journey.left(REACH))
        if journey.outputs:
            return journey.with_run(run).taking(dict(enumerate(run.outputs)), self.name)
        return journey.starting_with(run, self.name)


class _OtherMixture:
    """The mixture in the other coordinates, where these differ."""

    name = "the mixture in other coordinates"

    def applies(self, journey: Journey) -> bool:
        share = max(SECOND_SHARE, journey.spent_share / 2)
        layout = journey.density.layout
        if not journey.weak or layout.improper_sites or not layout.is_relaxable:
            return False
        if layout.dimension > MAX_ISLAND_DIMENSION:
            return False
        return has_other_coordinates(journey.density) and journey.has_left(share)

    def follow(self, journey: Journey) -> Journey:
        standardise = not prefers_standardised(journey.density)
        run = _by_mixture(journey, self.name, SECOND_SHARE, standardise)
        return journey.with_run(run).taking(dict(enumerate(run.outputs)), self.name)


class _Islands:
    """Independent islands of SMC for each part; from the start for discrete, non-integer sites."""

    name = "islands of SMC"

    def applies(self, journey: Journey) -> bool:
        if not journey.outputs:
            return not journey.density.layout.is_relaxable
        if journey.density.layout.improper_sites or not _suits_islands(journey):
            return False
        return bool(journey.weak) and journey.has_left_for_parts()

    def follow(self, journey: Journey) -> Journey:
        outputs = journey.weak or tuple(range(journey.density.num_outputs))
        chains = max(MIN_ISLAND_CHAINS, int(journey.scale(outputs) * ISLANDS.num_chains))
        islands = dataclasses.replace(ISLANDS, num_particles=chains * ISLANDS.num_steps)
        run = _by_parts(journey, self.name, islands, outputs)
        if journey.outputs:
            # Islands do not look for what the routes before them have not met.
            found = {
                number: output.with_findings(journey.outputs[number].findings_of(UNMET, SAME))
                for number, output in zip(outputs, run.outputs, strict=True)
            }
            return journey.with_run(run).taking(found, self.name)
        site = journey.density.layout.discrete_sites[0]
        run = run.with_notes(f"by islands of SMC: site {site!r} is discrete")
        return journey.starting_with(run, self.name)


class _Posterior:
    """Chains of the posterior: a mixture fitted to them and to ladders, averages, and ladders.

    First from `MIN_POSTERIOR_DIMENSION` on and where a prior is improper, else where the mixture
    from the prior has failed.
    """

    name = "chains of the posterior"

    def applies(self, journey: Journey) -> bool:
        density, budget = journey.density, journey.settings.max_evaluations
        is_affordable = journey.has_left(MIN_POSTERIOR_BUDGET / budget)
        if not has_chains(density) or not is_affordable:
            return False
        is_first_choice = prefers_posterior(density)
        is_later_choice = bool(journey.weak) and not is_first_choice
        return is_later_choice if journey.outputs else is_first_choice

    def follow(self, journey: Journey) -> Journey:
        found, posterior = estimate_from_posterior(
            journey.key(self.name),
            journey.density,
            journey.runtime.until(math.inf, aside=bool(journey.outputs)),
            journey.left(),
            journey.settings.draws,
        )
        journey = journey._replace(posterior=posterior)
        if journey.outputs:
            others = dict(enumerate(found.outputs))
            return journey.with_run(found).taking(others, self.name)
        return journey.with_run(found)._replace(outputs=found.outputs)


ROUTES: tuple[Route, ...] = (
    _Point(),
    _Small("a mixture by ascents", _suits_ascents, SMALL_EFFORT, Ascents(num_points=1024)),
    _Posterior(),
    _Small("a small mixture", _has_few_dimensions, SMALL_EFFORT),
    _Small("a mixture of medium size", _is_expensive, MEDIUM_EFFORT),
    _Mixture(),
    _OtherMixture(),
    _Posterior(),
    _Islands(),
)
"""The routes in the order in which they are tried."""


def has_chains(density: Density) -> bool:
    """Whether chains can be led to γ: not where it is cut off by a condition, or discrete."""
    return not density.layout.has_discrete and density.condition is None


def prefers_posterior(density: Density) -> bool:
    """Whether chains of the posterior come first."""
    if density.condition is not None:
        return False
    if density.layout.improper_sites or density.dimension >= MIN_POSTERIOR_DIMENSION:
        return True
    # Of hierarchies with few groups and much data the mixture from the prior missed the neck, with
    # status `ok` in one of six seeds (tests/methods/test_routes.py, informed_groups).
    return has_varying_scales(density)


def _suits_islands(journey: Journey) -> bool:
    layout = journey.density.layout
    return layout.dimension <= MAX_ISLAND_DIMENSION or layout.has_discrete


def prefers_standardised(density: Density) -> bool:
    """Whether mixtures are fitted in standardised coordinates first."""
    return has_varying_scales(density) or not suits_own_coordinates(density)


def has_other_coordinates(density: Density) -> bool:
    """Whether the other coordinates are worth a try."""
    if density.layout.has_heavy_coordinates:
        return False
    return has_varying_scales(density) or density.has_comparisons


def _by_mixture(
    journey: Journey,
    name: str,
    share: float,
    standardise: bool,
    seconds: float | None = None,
    scout: Ascents | None = None,
    effort: float | None = None,
    reach: Limits | None = None,
) -> Run:
    settings = journey.settings
    seconds = share * journey.seconds_left if seconds is None else seconds
    method = AdaptiveIS(
        relative_error=settings.relative_error,
        absolute_error=settings.absolute_error,
        max_evaluations=max(1, int(share * settings.max_evaluations)),
        max_seconds=max(seconds, 1e-3),
        standardise=standardise,
        effort=effort,
        scout=scout,
        draws=settings.draws,
    )
    runtime = journey.runtime.until(math.inf, aside=bool(journey.outputs))
    run = method.run_within(journey.key(name), journey.density, runtime, reach, journey.posterior)
    return run._replace(outputs=with_known_zeros(run.outputs, journey.density))


def _by_parts(journey: Journey, name: str, estimator: Estimator, outputs: Sequence[int]) -> Run:
    """Each part on its own, with outputs that say whether the requested error was reached."""
    budget = journey.settings.max_evaluations
    journey.runtime.report(Progress(f"by {type(estimator).__name__}", journey.cost.spent, budget))
    density = journey.density
    if not density.layout.has_discrete:
        density = density.standardised()
    run = TABI(estimator).run_outputs(journey.key(name), density, journey.runtime, outputs)
    judged = tuple(
        _judged(output, journey.settings) for output in in_plain_coordinates(run.outputs, density)
    )
    return run._replace(outputs=judged)


def _judged(output: OutputEstimate, settings: Auto) -> OutputEstimate:
    if math.isinf(output.degrees):
        output = output._replace(degrees=float(ISLANDS.num_islands - 1))
    if output.status:
        output = output.with_findings(check_goal(output, settings.goal))
    return output
