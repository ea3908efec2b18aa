"""What one estimation by a fitted mixture is about (`Plan`), and where it stands (`State`).

Both are plain values; every stage is a function from a plan, a state and a runtime to the next
state. A task's random key follows from the run's key and the task's own name, so that no result
depends on the order or the place in which tasks run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density
from estimand.estimators import SMC
from estimand.methods.adaptive.draws import Draws, Evaluated, Means, Part
from estimand.methods.adaptive.proposal import Exploration, Proposal
from estimand.methods.adaptive.sums import Sums
from estimand.methods.protocol import Cost
from estimand.model import PLAIN
from estimand.runtime import Progress, Runtime, Task, compiled_per_model
from estimand.sampling import (
    Climbed,
    Mixture,
    Mode,
    Warped,
    entropy_of,
    in_pieces,
    named_key,
    named_seed,
    vmapped,
)
from estimand.trust import Goal

if TYPE_CHECKING:
    from estimand.methods.adaptive.ascents import Ascents
    from estimand.methods.adaptive.posterior import Posterior

PROBE = 4096
# From this dimension on the curvature at the mode competes with the fit to points.
MIN_LAPLACE_DIMENSION = 7


class Limits(NamedTuple):
    """What may be spent."""

    goal: Goal
    max_evaluations: float
    max_seconds: float


class Sizes(NamedTuple):
    """How large each stage is."""

    pilot: int
    round: int
    num_replicates: int


class Plan(NamedTuple):
    """What is estimated, from which density, with which sizes and limits."""

    density: Density
    softened: Density
    parts: tuple[Part, ...]
    scout: SMC | Ascents
    sizes: Sizes
    limits: Limits
    reach: Limits
    """What draws may use up where the mixture fits: at least the limits."""
    rng_key: jax.Array
    started: float
    looks: tuple[Part, ...] = ()
    """Terms that are explored on their own where nothing else has seen them."""
    posterior: Posterior | None = None
    """Chains that explorations start from; None if they start from the prior."""
    given: np.ndarray | None = None
    """Positions that a user has brought along, or chains before this."""
    num_pieces: int = 1
    """How many times larger than the scout explorations are."""
    is_small: bool = False
    """Whether explorations and rounds are smaller than the budget allows."""
    compiled: float = 0.0
    """Seconds of compilation before it was begun."""

    @property
    def has_ladder(self) -> bool:
        """Whether comparisons in the target can be softened."""
        return self.softened is not self.density

    @property
    def num_programs(self) -> int:
        """How many programs are compiled: prior draws, evaluations, moves, and what else it has."""
        density = self.density
        has_curvature = density.dimension >= MIN_LAPLACE_DIMENSION
        is_moved = density.model.coordinates != PLAIN
        return 3 + density.has_comparisons + has_curvature + is_moved

    def seed(self, *name: Any) -> tuple[int, ...]:
        """The seed of the task of this name, for NumPy's generators."""
        return named_seed(entropy_of(self.rng_key), *name)

    def key(self, *name: Any) -> jax.Array:
        """The key of the task of this name, for JAX."""
        return named_key(self.rng_key, *name)


class Effort(NamedTuple):
    """Evaluations and seconds that some stage took."""

    evaluations: float = 0.0
    seconds: float = 0.0


class Scouting(NamedTuple):
    """What fresh scouts found of a part, and what they spent."""

    found: Exploration
    spent: int


class Ladder(NamedTuple):
    """What a ladder from the posterior to a part says of Z1±/Z2, island by island."""

    log_z: np.ndarray
    stiffness: float
    num_gradients: int

    @classmethod
    def of(cls, climbed: Climbed) -> Ladder:
        stiffness = float(np.max(climbed.stiffness, initial=0.0))
        return cls(climbed.log_z, stiffness, climbed.num_gradients)


class State(NamedTuple):
    """What has been found, fitted and spent so far.

    `missed` are the parts of which the last validation found more than the draws have, and
    `unseen` the share of each part's mass beyond the reach of the draws. `attempt` counts how often
    the loop of stages was begun. `probe` are the first draws of the prior, and `net` are
    those that it is checked at; `has_nan` says that not
    even these are numbers. `ends` are those of all ascents, and
    `guesses` what they say of each part. `draws` are those of the proposal, and `sums` of further
    ones that were not kept.
    """

    cost: Cost = Cost()
    attempt: int = 0
    has_nan: bool = False
    probe: Draws | None = None
    net: Evaluated | None = None
    prior: Mixture | None = None
    found: dict[Part, Exploration] = {}  # noqa: RUF012 - never changed in place
    explored: dict[Part, tuple[Exploration, ...]] = {}  # noqa: RUF012
    part_costs: dict[Part, int] = {}  # noqa: RUF012
    groups: dict[Part, Warped] = {}  # noqa: RUF012
    exploration: Effort = Effort()
    proposal: Proposal | None = None
    draws: Draws | None = None
    sums: Sums | None = None
    ladders: dict[Part, tuple[Ladder, ...]] = {}  # noqa: RUF012
    ends: tuple[Mode, ...] = ()
    guesses: dict[Part, Mixture] = {}  # noqa: RUF012
    missed: frozenset[Part] = frozenset()
    unseen: dict[Part, float] = {}  # noqa: RUF012

    def paid(self, num_evaluations: int = 0, num_gradients: int = 0) -> State:
        return self._replace(cost=self.cost + Cost(num_evaluations, num_gradients))

    @property
    def num_explored(self) -> int:
        """Points of all scouts together."""
        return sum(len(item.points) for items in self.explored.values() for item in items)


def means_of(plan: Plan, state: State) -> Means:
    """Means over all draws of the proposal."""
    assert state.draws is not None
    return Means(state.draws, state.sums, plan.parts)


def can_afford(
    plan: Plan, state: State, runtime: Runtime, effort: Effort, limits: Limits | None = None
) -> bool:
    """Whether so much more fits into what may be spent."""
    limits = plan.limits if limits is None else limits
    if state.cost.spent + effort.evaluations > limits.max_evaluations:
        return False
    if math.isinf(limits.max_seconds):
        return True
    return seconds_since(plan, runtime) + effort.seconds <= limits.max_seconds


def seconds_since(plan: Plan, runtime: Runtime) -> float:
    """Seconds since the estimation was begun."""
    return runtime.clock() - plan.started


def running_seconds(plan: Plan, runtime: Runtime) -> float:
    """The same without compilation: what the next piece of work of a kind takes."""
    return seconds_since(plan, runtime) - (runtime.compile_seconds() - plan.compiled)


def report(plan: Plan, state: State, runtime: Runtime, stage: str, estimate: str = "") -> None:
    """Tells whoever waits which stage is under way."""
    budget = int(min(plan.limits.max_evaluations, 2**62))
    runtime.report(Progress(stage, state.cost.spent, budget, estimate, plan.num_programs))


# --- evaluation of positions, which every stage needs ---


def evaluate_all(
    plan: Plan, state: State, runtime: Runtime, batches: list[np.ndarray]
) -> tuple[State, list[Evaluated]]:
    """Log prior, log likelihood and outputs at several batches of positions, a task each."""
    tasks = [Task(evaluate, (plan.density, positions)) for positions in batches]
    columns = runtime.map(tasks)
    evaluated = [
        Evaluated(positions, *found) for positions, found in zip(batches, columns, strict=True)
    ]
    return state.paid(sum(len(positions) for positions in batches)), evaluated


def evaluate(density: Density, positions: np.ndarray) -> list[np.ndarray]:
    """Log prior, log likelihood, signs and log-magnitudes at positions."""
    rows = np.asarray(positions, jnp.result_type(float))
    columns = in_pieces(_evaluate, density, rows)
    # Output after output in memory: each is read on its own, again and again.
    return [np.asfortranarray(column, float) for column in columns]


@compiled_per_model(optimisation=1)
def _evaluate(density: Density, positions: jax.Array) -> tuple:
    return columns_at(density, positions)


def columns_at(density: Density, positions: jax.Array) -> tuple:
    """Log prior, log likelihood, signs and log-magnitudes at positions, in JAX."""

    def one(position: jax.Array) -> tuple:
        terms, (signs, log_sizes) = density.evaluate(position)
        if density.condition is None:
            return terms.log_prior, terms.log_likelihood, signs, log_sizes
        # The condition is a factor of γ; outputs, which have it as a factor, are given it.
        log_share = jnp.where(signs[density.condition] > 0, log_sizes[density.condition], -jnp.inf)
        has_share = log_share > -jnp.inf
        log_sizes = jnp.where(has_share, log_sizes - log_share, log_sizes)
        return terms.log_prior, terms.log_likelihood + log_share, signs, log_sizes

    return vmapped(one, positions)


def draw_all(
    plan: Plan,
    state: State,
    runtime: Runtime,
    proposal: Proposal,
    count: int,
    name: str,
    replicates: range = range(1),
) -> tuple[State, Draws]:
    """Draws of a proposal, so many for each replicate; `name` tells them from all others."""
    batches = [
        proposal.draw(plan.seed("draw", name, state.attempt, replicate), count)
        for replicate in replicates
    ]
    state, evaluated = evaluate_all(plan, state, runtime, batches)
    owners = np.repeat(np.asarray(replicates), count)
    return state, proposal.weighed(Evaluated.join(evaluated), owners)
