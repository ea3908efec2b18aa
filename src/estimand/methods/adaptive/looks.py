"""Looks: pieces of the target and of the density that are explored on their own.

γ|f| as one density shows the bulk of f, and hides what is rare and large. Three kinds of looks show
more: at the terms of f and of γ, as far as the expressions tell them; and at γ·|f − μ|, where a
missed piece would change the answer. They only add to what the proposal is fitted to; estimates
weigh the whole f at every draw.
"""

from __future__ import annotations

import math

import numpy as np

from estimand.density import MAGNITUDE, Density
from estimand.methods.adaptive.draws import GAMMA2, Draws, Evaluated, Means, Part, output_estimate
from estimand.methods.adaptive.plan import Plan, State, evaluate_all
from estimand.methods.adaptive.proposal import Exploration
from estimand.runtime import Runtime
from estimand.sampling import effective_sample_size
from estimand.trust import (
    SAME,
    Finding,
    OutputEstimate,
    Status,
    Unmet,
    check_size,
    thresholds,
    unmet,
)

# A look is not explored if at least this share of some exploration's points is effective for it:
# 400 of the 10,000 points of five scouts. Not measured.
MIN_SEEN_SHARE = 0.04
# With fewer effective points than this the fit of a part may leave a term out. Not measured.
FEW_POINTS = 400.0
# Points of an exploration that this is judged by.
MAX_POINTS = 2000
# If E|f − μ| is at least this share of E|f|, a piece of γ|f − μ| has at least this share of its
# weight in γ|f|, too, and the scouts of γf± look at it.
MAX_HIDDEN_SHARE = 0.3
# A piece of which much was missed does not matter if so many times what was found of it is less
# than the error that was asked for. Not measured.
NEGLIGIBLE = 10.0


def looks_of(density: Density) -> tuple[Part, ...]:
    """The terms behind the outputs, but for those that the expression shows to be 0."""
    first = density.first_look
    numbers = range(first, first + len(density.looks))
    return tuple(Part(MAGNITUDE, number) for number in numbers if density.farthest(number) > 0)


def looks_of_density(density: Density) -> tuple[Part, ...]:
    """Those that are terms of the density."""
    first = density.first_look
    return tuple(
        look for look in looks_of(density) if density.looks[look.output - first].output is None
    )


def unseen_looks(plan: Plan, state: State, runtime: Runtime) -> tuple[State, tuple[Part, ...]]:
    """The terms of which no exploration so far has enough.

    A term that has enough to be fitted to, but few points, is found by these, so that it has
    components of its own.
    """
    if not plan.looks:
        return state, ()
    known = list(state.found.items())
    thinned = [_thinned(exploration) for _, exploration in known]
    state, evaluated = evaluate_all(plan, state, runtime, [item.points for item in thinned])
    unseen, found = [], dict(state.found)
    for look in plan.looks:
        seen = [
            _seen(look, part, exploration, points)
            for (part, _), exploration, points in zip(known, thinned, evaluated, strict=True)
        ]
        sizes = np.array([effective_sample_size(item.log_weights) for item in seen])
        if (sizes < MIN_SEEN_SHARE * np.array([len(item.points) for item in seen])).all():
            unseen.append(look)
        elif sizes.max() < FEW_POINTS:
            found[look] = seen[int(sizes.argmax())]
    return state._replace(found=found), tuple(unseen)


def _thinned(exploration: Exploration) -> Exploration:
    step = math.ceil(len(exploration.points) / MAX_POINTS)
    return Exploration(*(column[::step] for column in exploration))


def _seen(look: Part, part: Part, exploration: Exploration, points: Evaluated) -> Exploration:
    """A part's points with the weights of a look."""
    columns = points.signs, points.log_sizes
    with np.errstate(invalid="ignore"):
        log_weights = exploration.log_weights + look.log_sizes(*columns) - part.log_sizes(*columns)
    return exploration._replace(log_weights=np.where(np.isnan(log_weights), -np.inf, log_weights))


def centred_looks(plan: Plan, draws: Draws) -> tuple[Part, ...]:
    """γ·|f − μ| for the outputs that are nearly the same wherever γ|f| has its mass.

    And for those of which too few draws decide, whose μ is as yet a guess.
    """
    found, means = [], Means(draws)
    for output in range(plan.density.num_outputs):
        value = output_estimate(means, output).value
        if is_fixed(plan, output) or not math.isfinite(value) or value == 0:
            continue
        look = Part(MAGNITUDE, output, value)
        parts = [draws.weights(part) for part in (Part(1, output), Part(-1, output))]
        log_all = float(np.logaddexp(parts[0].log_mean, parts[1].log_mean))
        is_hidden = draws.weights(look).log_mean < log_all + math.log(MAX_HIDDEN_SHARE)
        is_weak = any(0 < weights.ess < thresholds.ENOUGH_ESS for weights in parts)
        if is_hidden or is_weak:
            found.append(look)
    return tuple(found)


def is_fixed(plan: Plan, output: int) -> bool:
    """Whether an output is a constant by its expression."""
    bounds = plan.density.bounds
    return bool(bounds.low[output] == bounds.high[output])


def is_material(plan: Plan, draws: Draws, part: Part, slack: float = 1.0) -> bool:
    """Whether a look has enough of an output to change it by the error that is asked for."""
    log_size = draws.weights(part).log_mean - draws.weights(GAMMA2).log_mean
    if not math.isfinite(log_size):
        return False
    owner = owner_of(plan, part)
    if owner is None:
        return math.log(slack) + log_size > math.log(plan.limits.goal.relative)
    allowed = plan.limits.goal.allowed(output_estimate(Means(draws), owner))
    return slack * thresholds.exp(log_size) > allowed


def owner_of(plan: Plan, part: Part) -> int | None:
    """The output that a look is at, or at a term of; None for a term of the density."""
    first = plan.density.first_look
    return part.output if part.output < first else plan.density.looks[part.output - first].output


def text_of(plan: Plan, part: Part) -> str:
    """What messages call a look."""
    first = plan.density.first_look
    if part.output < first:
        return f"where f differs from {part.centre:.4g}"
    look = plan.density.looks[part.output - first]
    return look.text if look.output is None else f"the term in {look.text}"


def check_looks(
    plan: Plan, state: State, estimate: OutputEstimate, output: int
) -> tuple[float, list[Finding]]:
    """What the looks at an output say against it, and what they add to its standard error."""
    draws = state.draws
    assert draws is not None
    findings: list[Finding] = []
    bounds: list[float] = []
    for part in (*plan.looks, *(part for part in state.missed if part not in plan.looks)):
        owner = owner_of(plan, part) if part.sign == MAGNITUDE else None
        if part.sign != MAGNITUDE or owner not in (output, None):
            continue
        weights = draws.weights(part)
        if weights.ess < thresholds.MIN_ESS and part not in state.groups:
            if owner == output and part.centre == 0:
                unseen = _never_seen(plan, draws, estimate, part)
                findings += unseen.findings
                bounds.append(unseen.error)
        elif part in state.missed and is_material(plan, draws, part, NEGLIGIBLE):
            detail = (
                f"{text_of(plan, part)}: more than {100 * thresholds.MAX_EXCEEDANCE:g} % of a "
                "fresh exploration's mass weighs more than any draw"
            )
            findings.append(Finding(Status.replicates_disagree, None, detail, "validation"))
        elif owner == output and is_material(plan, draws, part):
            found = check_size(weights.ess, None, thresholds.ENOUGH_ESS)
            findings += [
                item._replace(detail=f"{text_of(plan, part)}: {item.detail}") for item in found
            ]
    same = _check_constant(plan, draws, estimate, output)
    return math.hypot(same.error, *bounds), [*findings, *same.findings]


def _never_seen(plan: Plan, draws: Draws, estimate: OutputEstimate, part: Part) -> Unmet:
    """A term that no draw has met could still be there, as rarely as its draws leave open."""
    what, largest = f"{text_of(plan, part)} is 0", plan.density.farthest(part.output)
    return unmet(what, draws.ess(GAMMA2), largest, plan.limits.goal.allowed(estimate))


def _check_constant(plan: Plan, draws: Draws, estimate: OutputEstimate, output: int) -> Unmet:
    """An f that is the same at nearly all draws could still differ elsewhere."""
    look = Part(MAGNITUDE, output, estimate.value)
    if is_fixed(plan, output) or draws.ess(look) >= thresholds.MIN_ESS:
        return Unmet()
    farthest = plan.density.farthest(output, estimate.value)
    goal = plan.limits.goal.allowed(estimate)
    return unmet("f has practically the same value", draws.ess(GAMMA2), farthest, goal, SAME)
