"""The net: prior draws that a program whose evaluations are nearly free is checked at.

A narrow piece that no scout came near, because something broad weighs more at every temperature, is
still met by one prior draw in so many. A cheap program has tens of thousands of these in a fraction
of the time that compiling takes.
"""

from __future__ import annotations

import math

import numpy as np

from estimand.methods.adaptive.draws import Draws, Evaluated, Part
from estimand.methods.adaptive.explore import draw_prior
from estimand.methods.adaptive.looks import is_material
from estimand.methods.adaptive.plan import Plan, State, report
from estimand.methods.adaptive.proposal import Exploration, Proposal
from estimand.runtime import Runtime, run_task
from estimand.sampling import Mode, find_mode, has_curvature
from estimand.sampling import mixture as mixtures
from estimand.trust import thresholds

# Draws at the most, numbers that evaluating them computes (some 0.2 s), and numbers that are kept.
MAX_NET = 65_536
MAX_COMPUTED = 2e8
MAX_KEPT = 4_000_000
# Fewer draws see little that the first ones have not.
MIN_NET = 8_192
# Draws that weigh most in a part, by which it is judged.
NUM_HEAVIEST = 2_000
# Points around a mode that the net has found.
NUM_AROUND = 500


def net_size(plan: Plan) -> int:
    """So many prior draws are nearly free; 0 where they are not."""
    density = plan.density
    if plan.posterior is not None or density.layout.improper_sites:
        return 0
    width = density.dimension + 2 * (density.num_outputs + len(plan.looks)) + 4
    size = min(MAX_NET, MAX_COMPUTED / density.work.num_numbers, MAX_KEPT / width)
    return int(size) if size >= MIN_NET else 0


def with_net(plan: Plan, state: State, runtime: Runtime) -> State:
    """The state with a net of prior draws, if they are nearly free."""
    size = net_size(plan)
    if not size or state.net is not None:
        return state
    report(plan, state, runtime, "checking at prior draws")
    columns = run_task(runtime, draw_prior, plan.density, plan.seed("net"), size)
    return state._replace(net=Evaluated(*columns))


def missed_by_draws(plan: Plan, state: State) -> dict[Part, np.ndarray]:
    """For every part of which the net has more than the draws, where it has it."""
    net, draws, proposal = state.net, state.draws, state.proposal
    if net is None or draws is None or proposal is None:
        return {}
    found = {}
    looks = (look for look in plan.looks if is_material(plan, draws, look))
    for part in (*plan.parts, *looks):
        if places := _beyond(net, draws, proposal, part):
            found[part] = net.positions[places]
    return found


def _beyond(net: Evaluated, draws: Draws, proposal: Proposal, part: Part) -> list[int]:
    """Draws of the net that weigh more than all draws, if they have mass that counts."""
    with np.errstate(invalid="ignore"):
        log_weights = net.log_likelihood + part.log_sizes(net.signs, net.log_sizes)
    log_weights = np.where(log_weights < np.inf, log_weights, -np.inf)
    order = np.argsort(-log_weights, kind="stable")[:NUM_HEAVIEST]
    order = order[log_weights[order] > -np.inf]
    if not order.size:
        return []
    some = Evaluated(*(column[order] for column in net))
    with np.errstate(invalid="ignore"):
        own = log_weights[order] + some.log_prior - proposal.log_density(some.positions)
    excess = np.maximum(own - draws.log_weights(part).max(), 0.0)
    log_mass = log_weights[order] - math.log(len(net.positions)) - draws.weights(part).log_mean
    # What weights no greater than the heaviest leave out of each draw.
    left_out = -np.expm1(-excess) * np.exp(np.minimum(log_mass, 0.0))
    if left_out.sum() <= thresholds.MAX_EXCEEDANCE:
        return []
    return order[np.argsort(-left_out)][: np.count_nonzero(excess)].tolist()


def around(
    plan: Plan, state: State, runtime: Runtime, part: Part, places: np.ndarray
) -> tuple[State, Exploration | None]:
    """Points around the mode that is uphill of the heaviest place that the net has found."""
    density = part.of(plan.density)
    if plan.density.layout.has_discrete or not has_curvature(density):
        return state, None
    mode: Mode = run_task(runtime, find_mode, density, places[0], kinds=(Mode,))
    state = state.paid(0, mode.num_gradients)
    if not mode.is_found:
        return state, None
    seed = plan.seed("around", *part.label, state.attempt)
    uniforms = np.random.default_rng(seed).random((NUM_AROUND, len(mode.position) + 2))
    points = mixtures.gaussian(mode.position, mode.precision).draw(uniforms)
    return state, Exploration(points, np.zeros(NUM_AROUND), np.arange(NUM_AROUND))
