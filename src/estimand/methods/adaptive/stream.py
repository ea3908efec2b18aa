"""Stream: draws beyond those that are kept, summed up where they are made.

Nothing of them comes back but a few sums, so that memory stays that of one batch, whatever their
number, and a device makes them without waiting for the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Axes

from estimand.density import Density
from estimand.methods.adaptive.plan import (
    Effort,
    Plan,
    State,
    can_afford,
    columns_at,
    running_seconds,
)
from estimand.methods.adaptive.proposal import MAX_SOBOL_DIMENSION
from estimand.methods.adaptive.sums import Sums
from estimand.runtime import Runtime, Task, compiled_per_model, has_accelerator, memory_of_device
from estimand.sampling import (
    MAX_POINTS,
    NUMBER_SECONDS,
    Sampler,
    Source,
    bytes_of_row,
    uniforms_of,
)

# Draws of all replicates in a batch on a processor, and at most on an accelerator, whose batches
# may also take this share of its memory.
BATCH, LARGE_BATCH = 4096, 2**19
MEMORY_SHARE = 1 / 16
# Arrays as large as the largest one that an evaluation of a row needs at a time, roughly.
ARRAYS = 4
# Work of a task, by the program's expression, on a processor; an accelerator does as many times
# more in that time.
TASK_SECONDS = 0.25
ACCELERATION = 64.0
# What drawing and weighing takes, whatever the program.
MIN_NUMBERS = 1000.0
# On an accelerator draws are no longer kept from so many on. On a processor they are kept for as
# long as they fit into memory: a million draws take as long as compiling this.
KEPT_ON_ACCELERATOR = 2**17

Lacking = Callable[[State], Any]


def is_streamed(state: State, count: int) -> bool:
    """Whether so many more draws are better summed up than kept."""
    assert state.draws is not None
    if has_accelerator() and state.draws.size + count > KEPT_ON_ACCELERATOR:
        return True
    return not state.draws.has_room(count)


def stream(
    plan: Plan,
    state: State,
    runtime: Runtime,
    offer: Callable[[State], None],
    lacking: Lacking,
    reserve: Effort,
) -> State:
    """The state with sums of further draws, until the error or the budget is reached.

    Args:
        lacking: how many times more draws a state needs; at most 1 if it has enough.
        reserve: what must be left over.
    """
    tasks = _Tasks.of(plan, state)
    began, seconds = running_seconds(plan, runtime), 0.0
    lack, done = lacking(state), 0
    while lack.factor > 1 and done < tasks.most:
        assert state.draws is not None
        wanted = min(lack.factor - 1, 1.0) * (state.draws.size / tasks.size + done)
        # How long a task takes is not known before the first one.
        count = min(max(math.ceil(wanted), 1), tasks.most - done) if done else 1
        limits = plan.reach if lack.missing <= 1 else plan.limits
        while count and not can_afford(
            plan, state, runtime, _effort(reserve, count, tasks, seconds), limits
        ):
            count //= 2
        if not count:
            break
        for some in runtime.map(tasks.some(done, count)):
            sums = some if state.sums is None else state.sums + some
            state = state.paid(tasks.size)._replace(sums=sums)
        done += count
        seconds = (running_seconds(plan, runtime) - began) / done
        offer(state)
        lack = lacking(state)
    return state


def _effort(reserve: Effort, count: int, tasks: _Tasks, seconds: float) -> Effort:
    """So many tasks, each of which takes so many seconds, and what must be left over."""
    return Effort(reserve.evaluations + count * tasks.size, reserve.seconds + count * seconds)


class _Tasks(NamedTuple):
    """The tasks of a stream: what they have in common, and how large they are."""

    plan: Plan
    shared: tuple
    rows: int
    num_batches: int

    @classmethod
    def of(cls, plan: Plan, state: State) -> _Tasks:
        proposal, draws = state.proposal, state.draws
        assert proposal is not None
        assert draws is not None
        rng = np.random.default_rng(plan.seed("stream", state.attempt))
        dimension, replicates = plan.density.dimension, plan.sizes.num_replicates
        is_random = dimension > MAX_SOBOL_DIMENSION
        columns = _Columns(
            np.array([part.sign for part in plan.parts]),
            np.array([part.output for part in plan.parts]),
            np.array([draws.weights(part).log_mean for part in plan.parts]),
        )
        shared = (
            plan.density,
            proposal.sampler(),
            Source.of(rng, replicates, dimension + 2, is_random),
            columns,
        )
        return cls(plan, shared, *_sizes(plan))

    @property
    def size(self) -> int:
        """Draws of one task."""
        return self.plan.sizes.num_replicates * self.rows * self.num_batches

    @property
    def most(self) -> int:
        """How many tasks there can be: quasi-random points end."""
        return MAX_POINTS // (self.rows * self.num_batches)

    def some(self, start: int, count: int) -> list[Task]:
        return [
            Task(summed, (*self.shared, number, self.num_batches, self.rows), kinds=(Sums,))
            for number in range(start, start + count)
        ]


def _sizes(plan: Plan) -> tuple[int, int]:
    """Draws of a replicate in a batch, and batches of a task: by the expression, not the clock."""
    replicates = plan.sizes.num_replicates
    seconds = NUMBER_SECONDS * max(MIN_NUMBERS, plan.density.work.num_numbers)
    most = BATCH
    if has_accelerator():
        room = MEMORY_SHARE * memory_of_device() / (ARRAYS * bytes_of_row(plan.density))
        most, seconds = min(LARGE_BATCH, int(room)), seconds / ACCELERATION
    rows = _power_of_two(min(most, TASK_SECONDS / seconds) / replicates)
    return rows, _power_of_two(TASK_SECONDS / (seconds * replicates * rows))


def _power_of_two(number: float) -> int:
    """The largest up to a number, and 1 at the least."""
    return 2 ** int(math.log2(max(number, 1.0)))


# --- tasks ---


class _Columns(NamedTuple):
    """Sign, output and log mean weight of each part."""

    signs: np.ndarray
    outputs: np.ndarray
    log_means: np.ndarray


def summed(
    density: Density,
    sampler: Sampler,
    source: Source,
    columns: _Columns,
    number: int,
    num_batches: int,
    rows: int,
) -> Sums:
    """The sums of some batches of draws, the number-th of so many each."""
    first, count = np.int32(number * num_batches), np.int32(num_batches)
    return Sums(*map(np.asarray, _sums(density, sampler, source, columns, first, count, rows)))


@compiled_per_model(static_argnums=(6,))
def _sums(
    density: Density,
    sampler: Sampler,
    source: Source,
    columns: _Columns,
    first: jax.Array,
    count: jax.Array,
    rows: int,
) -> Sums:
    def of_replicates(
        density: Density, sampler: Sampler, columns: _Columns, own: Source, first: Any, count: Any
    ) -> Sums:
        def add(number: jax.Array, sums: Sums) -> Sums:
            start = (first + number) * rows
            batch = _of_batch(density, sampler, columns, own, start, rows)
            added = jax.tree.map(jnp.add, sums, batch)
            return added._replace(largest=jnp.maximum(sums.largest, batch.largest))

        start = jax.eval_shape(
            lambda: _of_batch(density, sampler, columns, own, jnp.int32(0), rows)
        )
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), start)
        return lax.fori_loop(0, count, add, nothing)

    num_devices = math.gcd(jax.local_device_count(), source.keys.shape[0])
    if num_devices == 1:
        return of_replicates(density, sampler, columns, source, first, count)
    mesh = Mesh(np.array(jax.local_devices()[:num_devices]), ("replicates",))
    everywhere, divided = Axes(), Axes("replicates")
    places = (everywhere, everywhere, everywhere, divided, everywhere, everywhere)
    divide = jax.shard_map(
        of_replicates, mesh=mesh, in_specs=places, out_specs=divided, check_vma=False
    )
    return divide(density, sampler, columns, source, first, count)


def _of_batch(
    density: Density,
    sampler: Sampler,
    columns: _Columns,
    source: Source,
    start: jax.Array,
    rows: int,
) -> Sums:
    """The sums of so many draws of each replicate, from a number on."""
    dimension = density.dimension

    def uniforms(own: Source) -> jax.Array:
        return uniforms_of(own, start, rows, dimension + 2)

    drawn = jax.vmap(uniforms)(source)
    points = sampler.draw(drawn.reshape(-1, dimension + 2))
    log_proposal, controls = sampler.log_density_and_controls(points)
    log_prior, log_likelihood, signs, log_sizes = columns_at(density, points)
    outputs, own_signs = jnp.asarray(columns.outputs), jnp.asarray(columns.signs)
    is_there = own_signs[None] * signs[:, outputs] > 0
    log_values = jnp.where(is_there, log_sizes[:, outputs], -jnp.inf)
    log_weights = jnp.where(own_signs[None] == 0, 0.0, log_values)
    log_weights += (log_prior + log_likelihood - log_proposal)[:, None] - columns.log_means[None]
    # As for the draws that are kept: nothing where it is not a number.
    weights = jnp.exp(jnp.where(log_weights < jnp.inf, log_weights, -jnp.inf))
    shape = drawn.shape[:2]
    weights, controls = (x.reshape(*shape, -1) for x in (weights, controls))
    return Sums(
        counts=jnp.full(shape[0], float(rows)),
        controls=controls.sum(axis=1),
        products=jnp.einsum("rnk,rnl->rkl", controls, controls),
        weights=weights.sum(axis=1),
        squares=(weights**2).sum(axis=1),
        moments=jnp.einsum("rnp,rnk->rpk", weights, controls),
        largest=weights.max(axis=1),
    )
