"""Lookups such as ``locations[label]``, where all labels have the same value in a run.

Then one row of the operand stands for all. It is taken once for all runs, which is what one writes
by hand for a mixture, and its gradient is a sum; that of a lookup is a loop over all labels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.model.enumerated.expression import Expression, Step
from estimand.model.enumerated.reach import Reached


class Lookup(NamedTuple):
    """A step that takes the same place along one axis of an operand throughout a run.

    `places` are these places by run; `window` has for every other axis of the operand its place in
    the result, and `shape` is that of the result.
    """

    result: int
    operand: int
    axis: int
    places: np.ndarray
    window: tuple[int, ...]
    shape: tuple[int, ...]

    def rows(self, operand: jax.Array) -> jax.Array:
        """What is taken in every run."""
        first = jnp.moveaxis(operand, self.axis, 0)
        is_whole = np.array_equal(self.places, np.arange(first.shape[0]))
        return first if is_whole else first[self.places]

    def spread(self, row: jax.Array) -> jax.Array:
        """The result in one run."""
        return jax.lax.broadcast_in_dim(row, self.shape, self.window)


def lookups(
    expression: Expression, found: Reached, steps: list[Step], labels: np.ndarray
) -> list[Lookup]:
    """The lookups among the steps of some runs.

    Args:
        expression: the traced program.
        found: what its variables depend on.
        steps: that the runs go through.
        labels: the values of all labels in every run.
    """
    made = []
    known = _Known(expression, labels)
    for step in steps:
        if step.name != "gather" or found.reach[step.inputs[0]] is not None:
            continue
        axis = _axis(step)
        if axis is None:
            continue
        operand = expression.avals[step.inputs[0]].shape
        indices = known.value(step.inputs[1])
        if indices is None:
            continue
        flat = indices.reshape(len(labels), -1)
        is_inside = flat.size and flat.min() >= 0 and flat.max() < operand[axis]
        if not is_inside or (flat != flat[:, :1]).any():
            continue
        shape = expression.avals[step.outputs[0]].shape
        window = _window(step, len(shape), axis)
        made.append(Lookup(step.outputs[0], step.inputs[0], axis, flat[:, 0], window, shape))
    return made


def _axis(step: Step) -> int | None:
    """The axis along which a step looks up, if it is one and all others are taken whole."""
    numbers, sizes = step.params["dimension_numbers"], step.params["slice_sizes"]
    if len(numbers.start_index_map) != 1:
        return None
    axis = numbers.start_index_map[0]
    whole = step.equation.invars[0].aval.shape
    others = [d for d in range(len(sizes)) if d != axis and d not in numbers.operand_batching_dims]
    is_whole = all(sizes[d] == whole[d] for d in others)
    return axis if is_whole and axis in numbers.collapsed_slice_dims else None


def _window(step: Step, ndim: int, axis: int) -> tuple[int, ...]:
    numbers = step.params["dimension_numbers"]
    offsets = iter(numbers.offset_dims)
    batch = [d for d in range(ndim) if d not in numbers.offset_dims]
    pairs = dict(
        zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    )
    sizes = step.params["slice_sizes"]
    return tuple(
        batch[pairs[d]] if d in pairs else next(offsets) for d in range(len(sizes)) if d != axis
    )


class _Known:
    """Values that depend on the labels alone, in all runs, computed with NumPy."""

    def __init__(self, expression: Expression, labels: np.ndarray) -> None:
        self.expression, self.count = expression, len(labels)
        self.found: dict[int, np.ndarray | None] = {expression.inputs[1]: labels}

    def value(self, place: int) -> np.ndarray | None:
        if place not in self.found:
            self.found[place] = self._made(place)
        return self.found[place]

    def _made(self, place: int) -> np.ndarray | None:
        if place in self.expression.constants:
            constant = np.asarray(self.expression.constants[place])
            return np.broadcast_to(constant, (self.count, *constant.shape))
        step = self.expression.made_by.get(place)
        if step is None or step.name not in _NUMPY:
            return None
        shape = self.expression.avals[place].shape
        operands = [self.value(source) for source in step.inputs]
        if any(operand is None for operand in operands):
            return None
        return _NUMPY[step.name](step, (self.count, *shape), *operands)


def _spread(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A scalar beside arrays, with an axis for the runs."""
    return value.reshape(-1, *[1] * (len(shape) - 1)) if value.ndim == 1 else value


def _binary(function: Any) -> Any:
    return lambda _, shape, a, b: function(_spread(a, shape), _spread(b, shape))


def _broadcast(step: Step, shape: tuple[int, ...], value: np.ndarray) -> np.ndarray:
    inner = [shape[0]] + [1] * (len(shape) - 1)
    for d, size in zip(step.params["broadcast_dimensions"], value.shape[1:], strict=True):
        inner[1 + d] = size
    return np.broadcast_to(value.reshape(inner), shape)


def _select(_: Step, shape: tuple[int, ...], which: Any, *cases: np.ndarray) -> np.ndarray:
    spread = [_spread(case, shape) for case in cases]
    return np.where(_spread(which, shape).astype(bool), spread[-1], spread[0])


def _converted(step: Step, _: tuple[int, ...], value: np.ndarray) -> np.ndarray:
    return value.astype(step.params["new_dtype"])


def _reshaped(_: Step, shape: tuple[int, ...], value: np.ndarray) -> np.ndarray:
    return value.reshape(shape)


def _sliced(step: Step, shape: tuple[int, ...], value: np.ndarray) -> np.ndarray:
    strides = step.params["strides"] or (1,) * (len(shape) - 1)
    bounds = zip(step.params["start_indices"], step.params["limit_indices"], strides, strict=True)
    return value[(slice(None), *(slice(*bound) for bound in bounds))]


_NUMPY: dict[str, Any] = {
    "add": _binary(np.add),
    "sub": _binary(np.subtract),
    "lt": _binary(np.less),
    "select_n": _select,
    "broadcast_in_dim": _broadcast,
    "convert_element_type": _converted,
    "reshape": _reshaped,
    "squeeze": _reshaped,
    "expand_dims": _reshaped,
    "slice": _sliced,
}
