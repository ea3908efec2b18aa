"""Estimates that start from chains of the posterior, each output by what serves it best.

Importance sampling from a mixture that is fitted to the chains' draws and to ladders from them,
averages over the chains, and the ladders themselves. Where two of them are affordable they check
each other.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax

from estimand.density import GRADIENT_COST, Density
from estimand.methods.adaptive import (
    AdaptiveIS,
    Ladder,
    Limits,
    Part,
    Posterior,
    averages,
    by_ladders,
    climb_again,
    more_draws,
    sample_posterior,
)
from estimand.methods.protocol import Cost, Run
from estimand.runtime import Progress, Runtime
from estimand.sampling import ensemble, entropy_of, named_key, named_seed
from estimand.trust import (
    SAME,
    UNMET,
    Goal,
    OutputEstimate,
    Status,
    check_agreement,
    check_magnitude,
    thresholds,
)

# Share of the budget for the mixture; the rest is for chains and ladders.
MIXTURE_SHARE = 0.6
# What a mixture that fits may use up of what is left, if longer chains cannot reach the error.
REACH = 0.9
# How often the number of draws is doubled, and that of ladders raised, at the most.
MAX_DOUBLINGS = 6
BY_MIXTURE = "a mixture fitted to chains of the posterior"
BY_CHAINS = "the average over chains of the posterior"
BY_LADDERS = "ladders from the posterior"
ANY_ERROR = Goal(math.inf)
NOTE_IMPROPER = (
    "the prior of {site!r} is improper: there are no prior draws to check the chains with, and a "
    "mode in which none of them started would be missed"
)


class _Known(NamedTuple):
    """What is known so far, and what it cost."""

    posterior: Posterior
    outputs: tuple[OutputEstimate, ...]
    ladders: dict[Part, tuple[Ladder, ...]]
    cost: Cost
    notes: tuple[str, ...] = ()

    def run(self) -> Run:
        return Run(self.outputs, *self.cost, notes=self.notes)


def estimate_from_posterior(
    rng_key: jax.Array, density: Density, runtime: Runtime, limits: Limits, draws: Any = None
) -> tuple[Run, Posterior]:
    """Every output by the mixture; where that fails, by the chains' average or by ladders.

    With the chains, for what may come after this.
    """
    started = runtime.clock()
    budget = int(min(limits.max_evaluations, 2**62))
    runtime.report(Progress("sampling the posterior", 0, budget))
    key = named_key(rng_key, "posterior")
    posterior = sample_posterior(density.with_looks(), key, runtime)
    known = _Known(
        posterior=posterior,
        # Without a route: nothing has checked them yet, and a run that ends here is interrupted.
        outputs=averages(posterior, limits.goal),
        ladders={},
        cost=posterior.cost,
        notes=tuple(NOTE_IMPROPER.format(site=site) for site in density.layout.improper_sites[:1]),
    )
    runtime.offer(known.run)
    method = AdaptiveIS(
        relative_error=limits.goal.relative,
        absolute_error=limits.goal.absolute,
        max_evaluations=max(1, int(MIXTURE_SHARE * limits.max_evaluations)),
        max_seconds=max(MIXTURE_SHARE * limits.max_seconds, 1e-3),
        draws=draws,
    )
    inner = runtime.until(math.inf, aside=True)
    left = _Left(limits, started, runtime)
    reach = None if _chains_can_serve(known, left) else left.remaining(known, REACH)
    run, ladders = method.run_from(named_key(rng_key, "mixture"), posterior, inner, reach)
    known = known._replace(
        outputs=_routed(run.outputs, BY_MIXTURE),
        ladders=ladders,
        cost=known.cost + run.cost,
        notes=(*known.notes, *run.notes),
    )
    runtime.offer(known.run)
    known = _by_chains(named_seed(entropy_of(rng_key), "more"), known, runtime, left)
    known = _by_more_ladders(named_seed(entropy_of(rng_key), "ladders"), known, runtime, left)
    return _checked(known).run(), known.posterior


class _Left(NamedTuple):
    """What may still be spent."""

    limits: Limits
    started: float
    runtime: Runtime

    def allows(self, known: _Known, evaluations: float) -> bool:
        if known.cost.spent + evaluations > self.limits.max_evaluations:
            return False
        return self.runtime.clock() - self.started < self.limits.max_seconds

    def remaining(self, known: _Known, share: float) -> Limits:
        """A share of all of it."""
        budget = self.limits.max_evaluations - known.cost.spent
        seconds = self.limits.max_seconds - (self.runtime.clock() - self.started)
        return Limits(self.goal, share * budget, max(share * seconds, 1e-3))

    @property
    def goal(self) -> Goal:
        return self.limits.goal


def _routed(outputs: tuple[OutputEstimate, ...], route: str) -> tuple[OutputEstimate, ...]:
    return tuple(output._replace(route=route) for output in outputs)


def _is_better(one: OutputEstimate, other: OutputEstimate) -> bool:
    def key(output: OutputEstimate) -> tuple:
        return not math.isfinite(output.standard_error), output.standing.severity

    if key(one) != key(other):
        return key(one) < key(other)
    return one.standard_error < other.standard_error


def _taking(known: _Known, others: dict[int, OutputEstimate]) -> _Known:
    """Others' outputs where these are better and the present ones are not `ok`."""
    outputs = list(known.outputs)
    for number, other in others.items():
        mine = outputs[number]
        other = other.with_findings(check_magnitude(other, mine))
        if not mine.status and _is_better(other, mine):
            outputs[number] = other
    return known._replace(outputs=tuple(outputs))


def _with_unmet(known: _Known, number: int, other: OutputEstimate) -> OutputEstimate:
    """Ladders' estimate of an output, with what the looks of the present one have not met.

    An f that is the same at nearly all draws speaks against them unless they were led past its
    comparisons to where it differs, and it has a bound.
    """
    density, mine = known.posterior.density, known.outputs[number]
    is_led = density.has_comparisons and math.isfinite(density.farthest(number))
    checks = (UNMET,) if is_led else (UNMET, SAME)
    return other.with_findings(mine.findings_of(*checks))


def _by_chains(seed: tuple[int, ...], known: _Known, runtime: Runtime, left: _Left) -> _Known:
    """Averages over longer chains, for outputs of which these can reach the requested error."""
    for number in range(MAX_DOUBLINGS):
        found = _routed(averages(known.posterior, left.goal), BY_CHAINS)
        known = _taking(known, dict(enumerate(found)))
        weak = [found[k] for k, output in enumerate(known.outputs) if not output.status]
        if not any(_can_serve(known, average, left) for average in weak):
            break
        runtime.report(
            Progress("more draws", known.cost.spent, int(min(left.limits.max_evaluations, 2**62)))
        )
        before = known.posterior.cost
        rounds = len(known.posterior.states) // ensemble.NUM_MOVES
        posterior = more_draws(known.posterior, (*seed, number), runtime, rounds)
        added = Cost(
            posterior.cost.num_evaluations - before.num_evaluations,
            posterior.cost.num_gradients - before.num_gradients,
        )
        known = known._replace(posterior=posterior, cost=known.cost + added)
        runtime.offer(known.run)
    return known


def _chains_can_serve(known: _Known, left: _Left) -> bool:
    """Whether averages over longer chains can reach the requested error of any output."""
    return any(_can_serve(known, average, left) for average in averages(known.posterior, left.goal))


def _can_serve(known: _Known, average: OutputEstimate, left: _Left) -> bool:
    num_moves = len(known.posterior.states)
    spent = GRADIENT_COST * _gradients_per_move(known.posterior) * num_moves
    return left.allows(known, (_times_more(average, left.goal) - 1) * spent)


def _gradients_per_move(posterior: Posterior) -> float:
    """Roughly: all chains, and trajectories of the mean length."""
    lengths = [min(max(1.6 / step_size, 1.0), 60.0) for step_size in posterior.step_sizes]
    return posterior.num_chains * sum(lengths) / len(lengths)


def _times_more(average: OutputEstimate, goal: Goal) -> float:
    """How many times as many draws the requested error needs, at least twice as many."""
    if not math.isfinite(average.standard_error) or average.ess.z1 < thresholds.MIN_ESS:
        return math.inf
    share = average.standard_error / (thresholds.SLACK * goal.allowed(average))
    return max(2.0, 1.2 * share**2)


def _by_more_ladders(seed: tuple[int, ...], known: _Known, runtime: Runtime, left: _Left) -> _Known:
    """Estimates by ladders, with more of them while that can reach the requested error."""
    for number in range(MAX_DOUBLINGS):
        found = {
            k: _with_unmet(known, k, estimate._replace(route=BY_LADDERS))
            for k, output in enumerate(known.outputs)
            if not output.status
            and (estimate := by_ladders(known.ladders, k, left.goal)) is not None
            and _is_climbed(known, k)
        }
        known = _taking(known, found)
        chosen = [k for k in found if not known.outputs[k].status]
        parts = [part for part in known.ladders if part.output in chosen]
        if not parts:
            break
        count = len(known.ladders[parts[0]])
        needed = min(_ladders_needed(found[k], count, left.goal) for k in chosen)
        price = GRADIENT_COST * sum(
            ladder.num_gradients for part in parts for ladder in known.ladders[part][-1:]
        )
        if not left.allows(known, (needed - count) * price):
            break
        for part in parts:
            ladder = climb_again(
                known.posterior, part, (*seed, number, part.sign + 1, part.output), runtime
            )
            ladders = known.ladders | {part: (*known.ladders[part], ladder)}
            cost = known.cost + Cost(0, ladder.num_gradients)
            known = known._replace(ladders=ladders, cost=cost)
        runtime.offer(known.run)
    return known


def _is_climbed(known: _Known, output: int) -> bool:
    """Whether all of an output's mass was reached by ladders: f is 0 at nearly all draws."""
    signs = known.posterior.evaluated.signs[:, output]
    return bool((signs != 0).mean() < 0.5)


def _ladders_needed(estimate: OutputEstimate, count: int, goal: Goal) -> float:
    if not math.isfinite(estimate.standard_error):
        return math.inf
    share = estimate.standard_error / (thresholds.SLACK * goal.allowed(estimate))
    return max(count + 1.0, 1.2 * count * share**2)


def _checked(known: _Known) -> _Known:
    """The same with findings where averages or ladders contradict the mixture."""
    outputs = list(known.outputs)
    chains = averages(known.posterior, ANY_ERROR)
    for number, output in enumerate(outputs):
        if output.route != BY_MIXTURE or not output.status:
            continue
        others = {BY_CHAINS: chains[number], BY_LADDERS: None}
        if _is_climbed(known, number):
            others[BY_LADDERS] = by_ladders(known.ladders, number, ANY_ERROR)
        for name, other in others.items():
            usable = (Status.ok, Status.not_converged)
            if other is None or other.status not in usable:
                continue
            # Ladders that do not reach all of the target say too little, and importance weights
            # never too much.
            if name == BY_CHAINS or other.magnitude > output.magnitude:
                output = output.with_findings(check_agreement(output, other, name))
        outputs[number] = output
    return known._replace(outputs=tuple(outputs))
