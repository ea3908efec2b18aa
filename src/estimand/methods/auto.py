"""The default method: a fitted mixture where that works, SMC or bridge sampling elsewhere."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax

from estimand.density import Density
from estimand.estimators.bridge import BridgeSampling
from estimand.estimators.importance import ImportanceSampling
from estimand.estimators.smc import SMC
from estimand.methods.adaptive.draws import is_reached
from estimand.methods.adaptive.method import SLACK, AdaptiveIS
from estimand.methods.posterior_bridge import PosteriorBridge
from estimand.methods.protocol import (
    MAX_JOINT_ERRORS,
    Figures,
    Run,
    gravity,
    in_plain_coordinates,
    joint_errors,
    worst,
)
from estimand.methods.tabi import TABI
from estimand.model.sites import ProgramError
from estimand.runtime.compilation import compile_seconds
from estimand.runtime.interruption import offer, offering_nothing
from estimand.runtime.journal import clock, remember
from estimand.runtime.progress import Progress, say
from estimand.settings import Settings, require_count
from estimand.trust.status import Status

# Above this dimension the last route is bridge sampling instead of islands. Chains are many and
# start apart, so that separate modes show as chains that disagree.
MAX_ISLAND_DIMENSION = 20
ISLANDS = SMC(num_particles=4000, num_steps=40, num_islands=16)
CHAINS = BridgeSampling(num_samples=2500, num_warmup=1000, num_chains=8)
# For programs without latent sites, whose weights are all equal.
POINT = TABI(ImportanceSampling(num_samples=1000))
# What these cost for each density, roughly.
ROUTE_COST = 1_000_000
# Shares of the budget for the mixture, and for a second one in other coordinates.
FIRST_SHARE, SECOND_SHARE = 0.8, 0.2
MIN_SCALE = 0.1
# Every output is explored on its own: ten take ten seconds, and more than this an hour.
MAX_OUTPUTS = 200

# Statuses that another route may mend. A NaN or missing mass it would only find again.
_MENDABLE = (
    Status.low_ess,
    Status.heavy_tailed,
    Status.replicates_disagree,
    Status.not_converged,
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Auto(Settings):
    """Chooses the route by the program, and takes another one where the first cannot be trusted.

    Programs go through `AdaptiveIS`, in standardised coordinates and, where its own checks do not
    pass and a prior scale is itself unknown, in the model's own ones. Outputs that no mixture
    fits, and programs with discrete sites that are no integers, are estimated by `TABI` with
    independent islands of `SMC`, whose error is that between islands: coarser, and honest. Above
    20 continuous dimensions it is `BridgeSampling` of NUTS chains, which cannot see a mode that no
    chain visits, compared with `PosteriorBridge` while the budget lasts. Routes that contradict
    each other say so in the status, and the estimate's notes say which output went which way.

    Args:
        relative_error: standard error to reach, relative to the value.
        max_evaluations: evaluations that may be spent, a gradient counting as 3; a route that has
            begun is finished.
        max_seconds: time after which no further route or round is begun.

    Examples:
        >>> method = ep.Auto(relative_error=0.001, max_seconds=60)
        >>> result = ep.estimate_expectation(program(2.0), method)
        >>> result.standard_error <= 0.001 * result.value
        True
    """

    relative_error: float = 0.01
    max_evaluations: int = 4_000_000
    max_seconds: float = math.inf

    def __post_init__(self) -> None:
        require_count("Auto", "max_evaluations", self.max_evaluations)
        for name in ("relative_error", "max_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Auto: {name} must be positive; it is {getattr(self, name)}.")

    def check(self, density: Density) -> None:
        density.require_prior("the default method")
        if density.num_outputs > MAX_OUTPUTS:
            raise ProgramError(
                f"program {density.name!r} has {density.num_outputs:,} outputs, and the default "
                f"method explores each on its own, at most {MAX_OUTPUTS} of them. Estimate some at "
                "a time, as in expectation[0]; or all from the same draws of the posterior by "
                "SelfNormalised(SMC()) or PosteriorMCMC()."
            )

    def run(self, rng_key: jax.Array, density: Density) -> Run:
        return _Journey(self, rng_key, density).run()


class _Journey:
    """One estimation under way: the figures so far, and what they cost."""

    def __init__(self, settings: Auto, rng_key: jax.Array, density: Density):
        self.settings, self.rng_key, self.density = settings, rng_key, density
        self.started = clock()
        self.num_evaluations = self.num_gradients = 0
        self.notes: list[str] = []

    def run(self) -> Run:
        if self.density.dimension == 0:
            self.notes.append("there is nothing to draw: it is the return value itself")
            run = self._counted(POINT.run(self._next_key(), self.density))
            return self._finished(run, list(run.figures))
        layout = self.density.layout
        if not layout.is_spreadable:
            outputs = tuple(range(self.density.num_outputs))
            run = self._by_islands(outputs)
            self.notes.append(f"by islands of SMC: site {layout.discrete_sites[0]!r} is discrete")
            return self._finished(run, list(map(self._judged, run.figures)))
        has_varying_scales = self.density.has_varying_scales()
        is_event = self.density.has_comparisons
        is_standardised = has_varying_scales or not is_event
        run = self._by_mixture(FIRST_SHARE, standardise=is_standardised)
        figures = list(run.figures)
        offer(lambda: self._finished(run, figures))
        with offering_nothing():
            self._mend(figures, has_varying_scales or is_event, not is_standardised)
        return self._finished(run, figures)

    def _mend(self, figures: list[Figures], has_other: bool, standardise: bool) -> None:
        """Puts the figures of other routes in the place of weak ones, as far as is allowed."""
        can_repeat = self._weak(figures) and self._has_left(max(SECOND_SHARE, self.spent_share / 2))
        if can_repeat and has_other:
            other = self._by_mixture(SECOND_SHARE, standardise=standardise)
            self._take(figures, other.figures, "the mixture in other coordinates")
        weak = self._weak(figures)
        if weak and self._has_left(MIN_SCALE * self._route_share(weak)):
            self._take_last_route(figures, weak)

    def _by_mixture(self, share: float, *, standardise: bool) -> Run:
        method = AdaptiveIS(
            relative_error=self.settings.relative_error,
            max_evaluations=max(1, int(share * self.settings.max_evaluations)),
            max_seconds=max(share * self.seconds_left, 1e-3),
            standardise=standardise,
        )
        run = self._counted(method.run(self._next_key(), self.density))
        self.notes.extend(note for note in run.notes if note not in self.notes)
        return run

    def _take_last_route(self, figures: list[Figures], weak: tuple[int, ...]) -> None:
        if self.density.dimension <= MAX_ISLAND_DIMENSION or self.density.layout.has_integers:
            run = self._by_islands(weak)
            self._take(figures, self._spread(run.figures, weak), "islands of SMC")
            return
        run = self._by_chains(weak)
        self._take(figures, self._spread(run.figures, weak), "bridge sampling of NUTS draws")
        if self._has_left(0.3):
            say(Progress("comparing with the bridge from the posterior"))
            method = PosteriorBridge()
            other = self._counted(
                method.run(self._next_key(), self.density.standardised(), outputs=weak)
            )
            self._compare(figures, self._spread(other.figures, weak))

    def _by_islands(self, outputs: tuple[int, ...]) -> Run:
        scale = self._scale(outputs)
        chains = max(10, int(scale * ISLANDS.num_chains))
        islands = dataclasses.replace(ISLANDS, num_particles=chains * ISLANDS.num_steps)
        return self._by_parts(islands, outputs)

    def _by_chains(self, outputs: tuple[int, ...]) -> Run:
        count = max(200, int(self._scale(outputs) * CHAINS.num_samples))
        return self._by_parts(dataclasses.replace(CHAINS, num_samples=count), outputs)

    def _by_parts(self, route: Any, outputs: tuple[int, ...]) -> Run:
        say(Progress(f"by {type(route).__name__}", self.spent, self.settings.max_evaluations))
        density = self.density
        if not density.layout.has_integers:
            density = density.standardised()
        run = TABI(route).run(self._next_key(), density, outputs)
        return self._counted(in_plain_coordinates(run, density))

    # --- what is left ---

    @property
    def spent(self) -> int:
        return self.num_evaluations + 3 * self.num_gradients

    @property
    def seconds_left(self) -> float:
        return self.settings.max_seconds - (clock() - self.started)

    @property
    def spent_share(self) -> float:
        return self.spent / self.settings.max_evaluations

    @property
    def share_left(self) -> float:
        """What is left of the budget, or less if at the pace so far there is no time for it.

        A further route is compiled again, which takes as long as it has so far.
        """
        compiling = remember("compile seconds", compile_seconds)
        running = clock() - self.started - compiling
        seconds_per_share = max(running, 0.0) / max(self.spent_share, 1e-12)
        in_time = (self.seconds_left - compiling) / max(seconds_per_share, 1e-12)
        return min(1 - self.spent_share, in_time)

    def _has_left(self, share: float) -> bool:
        return self.share_left >= share and self.seconds_left > 0

    def _scale(self, outputs: tuple[int, ...]) -> float:
        """How large a last route may be that estimates each part on its own."""
        return min(1.0, max(MIN_SCALE, self.share_left / self._route_share(outputs)))

    def _route_share(self, outputs: tuple[int, ...]) -> float:
        """What a last route of full size costs, as a share of the budget."""
        return ROUTE_COST * (1 + len(outputs)) / self.settings.max_evaluations

    def _next_key(self) -> jax.Array:
        self.rng_key, key = jax.random.split(self.rng_key)
        return key

    def _counted(self, run: Run) -> Run:
        self.num_evaluations += run.num_evaluations
        self.num_gradients += run.num_gradients
        return run

    # --- which figures are kept ---

    def _weak(self, figures: list[Figures]) -> tuple[int, ...]:
        return tuple(i for i, item in enumerate(figures) if item.status in _MENDABLE)

    def _spread(self, figures: tuple[Figures, ...], outputs: tuple[int, ...]) -> list:
        spread: list[Figures | None] = [None] * self.density.num_outputs
        for output, item in zip(outputs, figures, strict=True):
            spread[output] = self._judged(item)
        return spread

    def _judged(self, figures: Figures) -> Figures:
        if math.isinf(figures.degrees):
            figures = figures._replace(degrees=float(CHAINS.num_chains - 1))
        if figures.status is Status.ok and not is_reached(
            figures, SLACK * self.settings.relative_error
        ):
            return figures._replace(status=Status.not_converged)
        return figures

    def _take(self, figures: list[Figures], others: Any, route: str) -> None:
        """The other route's figures where they have the better status, or the smaller error."""
        assert self.density.layout.output is not None
        for output in self._weak(figures):
            mine, other = figures[output], others[output]
            if other is None or not _is_better(other, mine):
                continue
            label = self.density.layout.output.labels[output] or "the estimate"
            self.notes.append(f"{label} by {route}: before, it was {mine.status.name}")
            figures[output] = other

    def _compare(self, figures: list[Figures], others: Any) -> None:
        for output, other in enumerate(others):
            if other is None or other.status not in (Status.ok, Status.not_converged):
                continue
            mine = figures[output]
            said = f"the bridge from the posterior says {other.value:.4g}"
            if joint_errors(mine, other) > MAX_JOINT_ERRORS:
                status = worst([mine.status, Status.replicates_disagree])
                figures[output] = mine._replace(status=status)
                said += ", which contradicts it"
            self.notes.append(f"{said} ± {other.standard_error:.2g}")

    def _finished(self, run: Run, figures: list[Figures]) -> Run:
        return run._replace(
            figures=tuple(figures),
            num_evaluations=self.num_evaluations,
            num_gradients=self.num_gradients,
            notes=tuple(self.notes),
        )


def _is_better(one: Figures, other: Figures) -> bool:
    def key(figures: Figures) -> tuple:
        has_error, status = math.isfinite(figures.standard_error), figures.status
        # Few effective draws and too large an error are the same lack.
        grave = gravity(Status.low_ess if status is Status.not_converged else status)
        return not has_error, grave, figures.standard_error

    return key(one) < key(other)
