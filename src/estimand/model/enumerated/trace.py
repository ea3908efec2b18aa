"""A traced program with labels, and sums over these."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.model.enumerated.elimination import (
    MAX_JOINT,
    Elimination,
    Table,
    eliminate,
    log_sum_exp,
)
from estimand.model.enumerated.expression import Expression, Step, run
from estimand.model.enumerated.pieces import Piece, pieces_of
from estimand.model.enumerated.reach import Fixed, Reach, Reached, reached
from estimand.model.enumerated.tables import Layout, lay_out, tabulate


class Apart(NamedTuple):
    """A program at a position and labels; the first three add up to its log density.

    Args:
        log_priors: of every site that is kept, with its Jacobian.
        log_prior_of_labels: of all labels.
        log_likelihood: of the data.
        outputs: all numbers of the return value.
        values: of every site that is kept.
    """

    log_priors: tuple[Any, ...]
    log_prior_of_labels: Any
    log_likelihood: Any
    outputs: Any
    values: tuple[Any, ...]


class Trace(NamedTuple):
    """A traced program and what its variables depend on; `results` are variables."""

    expression: Expression
    found: Reached
    results: Apart
    supports: tuple[np.ndarray, ...]
    others: Callable[[], Reached]
    """What depends on positions or data."""

    @property
    def label_input(self) -> int:
        return self.expression.inputs[1]

    @property
    def sizes(self) -> list[int]:
        """How many values each label has."""
        return [len(support) for support in self.supports]

    @property
    def default(self) -> np.ndarray:
        """Each label's first value."""
        return np.array([support[0] for support in self.supports], float)

    def reach(self, place: int) -> np.ndarray | None:
        return self.found.reach[place]

    def labels_of(self, place: int) -> list[int]:
        """The labels that a variable depends on."""
        reach = self.reach(place)
        if reach is None:
            return []
        return np.flatnonzero(reach.any(axis=tuple(range(reach.ndim - 1)))).tolist()

    def layout(
        self, pieces: Sequence[Piece], *, is_apart: bool = False, limit: int = MAX_JOINT
    ) -> Layout:
        supports = self.supports
        return lay_out(
            self.expression, self.found, pieces, supports, is_apart=is_apart, limit=limit
        )

    def pieces(self, places: Sequence[int]) -> list[Piece]:
        return [
            piece for place in places for piece in pieces_of(self.expression, self.found, place)
        ]

    def frontier(self, wanted: Sequence[int]) -> set[int]:
        """The variables without labels from which some variables are computed."""
        needed = set(wanted)
        frontier = {place for place in wanted if self.reach(place) is None}
        for step in reversed(self.expression.steps):
            if any(place in needed and self.reach(place) is not None for place in step.outputs):
                needed.update(step.inputs)
                frontier.update(place for place in step.inputs if self.reach(place) is None)
        return frontier

    def is_constant(self, wanted: Sequence[int]) -> bool:
        """Whether some variables depend on labels and written numbers alone."""
        return all(self.others().reach[place] is None for place in wanted)

    def evaluate_at(
        self,
        wanted: int,
        values: dict[int, Any],
        given: dict[int, Any],
    ) -> Any:
        """A variable for many values of others, along the first axis of each.

        Args:
            wanted: the variable.
            values: of variables without labels.
            given: labels, or variables that depend on them.
        """
        steps = self.expression.steps_to([wanted], {*values, *given})
        return jax.vmap(lambda one: run(steps, {**values, **one})[wanted])(given)

    def constants_at(self, wanted: Sequence[int], labels: np.ndarray) -> list[np.ndarray] | None:
        """Variables for many values of all labels, if they depend on nothing else."""
        if not self.is_constant(wanted):
            return None
        expression = self.expression
        nothing = {
            place: np.zeros(expression.avals[place].shape, expression.avals[place].dtype)
            for place in expression.inputs
        }
        steps = expression.steps_to(wanted, {*expression.constants, *expression.inputs})

        def at(one: jax.Array) -> list[jax.Array]:
            start = {**nothing, **expression.constants, self.label_input: one}
            found = run(steps, start)
            return [found[place] for place in wanted]

        with jax.ensure_compile_time_eval():
            found = jax.jit(jax.vmap(at))(self.as_labels(labels))
        return [np.asarray(one, float) for one in found]

    def as_labels(self, labels: np.ndarray) -> jax.Array:
        return jnp.asarray(labels, self.expression.avals[self.label_input].dtype)


class Start(NamedTuple):
    """The steps that lead to all variables without labels that are needed."""

    frontier: frozenset[int]
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, trace: Trace, wanted: Sequence[int]) -> Start:
        frontier = trace.frontier(wanted)
        steps = trace.expression.steps_to(list(frontier), trace.expression.constants)
        return cls(frozenset(frontier), tuple(steps))

    def values(self, trace: Trace, position: jax.Array, data: Sequence[Any]) -> dict[int, Any]:
        inputs = [position, trace.as_labels(trace.default), *data]
        start = dict(zip(trace.expression.inputs, inputs, strict=True))
        found = run(self.steps, {**start, **trace.expression.constants})
        return {place: found[place] for place in self.frontier}


class Summed(NamedTuple):
    """log Σ over the labels, and what it is made of.

    `clamped` is the log sum for all values of the labels that are kept, without `rest`.
    """

    log_total: jax.Array
    clamped: jax.Array
    rounds: list[jax.Array]


class Sum(NamedTuple):
    """The sum over labels of the exponential of some pieces, and of further tables."""

    layout: Layout
    elimination: Elimination

    @classmethod
    def of(
        cls,
        trace: Trace,
        layout: Layout,
        kept: Sequence[int] = (),
        further: Sequence[Table] = (),
    ) -> Sum:
        return cls(layout, eliminate(trace.sizes, [*layout.tables, *further], kept))

    def tables(self, trace: Trace, values: dict[int, Any]) -> tuple[list[jax.Array], jax.Array]:
        return tabulate(trace.expression, self.layout, values, trace.label_input)

    def total(self, tables: Sequence[jax.Array], rest: jax.Array) -> Summed:
        clamped, rounds = self.elimination.run(tables)
        return Summed(log_sum_exp(jnp.ravel(clamped)) + rest, clamped, rounds)


def traced(
    function: Callable[..., Apart],
    dimension: int,
    supports: Sequence[np.ndarray],
    data: Sequence[Any],
    known: dict[int, Fixed],
) -> Trace:
    """Traces a program and follows its labels.

    Args:
        function: of position, labels and data.
        dimension: of a position.
        supports: the values of each label.
        data: shapes of the data.
        known: values of data by their place, where the analysis may look at them.
    """
    dtype = jnp.result_type(float)
    count = len(supports)
    shapes = [jax.ShapeDtypeStruct((size,), dtype) for size in (dimension, count)]
    jaxpr, structure = jax.make_jaxpr(function, return_shape=True)(*shapes, tuple(data))
    expression = Expression(jaxpr)
    reach = [None, np.eye(count, dtype=bool), *[None] * len(data)]
    fixed = [None, None, *(known.get(place) for place in range(len(data)))]
    found = reached(expression, reach, fixed, count)
    results = jax.tree.unflatten(jax.tree.structure(structure), expression.outputs)

    @functools.cache
    def others() -> Reached:
        shapes = [expression.avals[place].shape for place in expression.inputs]
        inputs: list[Reach] = [np.ones((*shape, 1), bool) for shape in shapes]
        inputs[1] = None
        return reached(expression, inputs, [None] * len(inputs), 1)

    return Trace(expression, found, results, tuple(supports), others)
