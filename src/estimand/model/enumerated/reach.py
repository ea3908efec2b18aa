"""Which numbers of an expression depend on which labels.

A label is one element of a discrete site. The analysis follows single elements: in a plate the
density of a row depends on the label of that row alone, and along a chain on two neighbours. What
it has no rule for depends on all that went into it, so that it errs on the safe side.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.model.enumerated.expression import Expression, Step, inner_of

# Calls that are evaluated as a whole, with their own derivative.
_WHOLE_CALLS = (
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "checkpoint",
    "remat2",
)
# Each element of the result depends on the same element of the operands, which may be scalars.
_ELEMENTWISE = {
    "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e",
    "bessel_i1e", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "copy_p", "cos", "cosh",
    "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt",
    "igamma", "igamma_grad_a", "igammac", "imag", "integer_pow", "is_finite", "le", "lgamma", "log",
    "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not", "or",
    "polygamma", "population_count", "pow", "real", "reduce_precision",
    "regularized_incomplete_beta", "rem", "round", "rsqrt", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square",
    "stop_gradient", "sub", "tan", "tanh", "xor", "zeta",
}  # fmt: skip
_REDUCTIONS = {
    "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or",
    "reduce_xor", "argmax", "argmin",
}  # fmt: skip
_CUMULATIVE = {"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"}

# For every element of an array (and in a last axis) for every label whether the one depends on the
# other; None where nothing does.
Reach = np.ndarray | None


class Fixed:
    """A value that depends on data alone, computed where it is asked for."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.compute = functools.cache(compute)

    @classmethod
    def of(cls, value: Any) -> Fixed:
        return cls(lambda: np.asarray(value))

    @property
    def value(self) -> np.ndarray:
        return self.compute()


class Reached(NamedTuple):
    """For every variable of an expression its reach, and its value if that is fixed."""

    reach: list[Reach]
    fixed: list[Fixed | None]


def reached(
    expression: Expression, inputs: Sequence[Reach], fixed: Sequence[Fixed | None], count: int
) -> Reached:
    """Follows the labels through an expression.

    Args:
        expression: its inputs are labels, data or positions.
        inputs: the reach of each input.
        fixed: the value of each input that is one of data; None for positions and labels.
        count: number of labels.
    """
    size = len(expression.avals)
    found = Reached([None] * size, [None] * size)
    for place, value in expression.constants.items():
        found.fixed[place] = Fixed.of(value)
    for place, one, value in zip(expression.inputs, inputs, fixed, strict=True):
        found.reach[place], found.fixed[place] = one, value
    for step in expression.steps:
        _follow(expression, step, found, count)
    return found


def _follow(expression: Expression, step: Step, found: Reached, count: int) -> None:
    operands = [found.reach[place] for place in step.inputs]
    values = [found.fixed[place] for place in step.inputs]
    if all(value is not None for value in values):
        for k, place in enumerate(step.outputs):
            found.fixed[place] = _later(step, values, k)
        return
    if all(operand is None for operand in operands):
        return
    shapes = [expression.avals[place].shape for place in step.inputs]
    results = [expression.avals[place].shape for place in step.outputs]
    if step.name in ("scan", "cond", *_WHOLE_CALLS):
        made = _CONTROL.get(step.name, _whole)(step, operands, values, count)
        for place, one, value in zip(step.outputs, made.reach, made.fixed, strict=True):
            found.reach[place], found.fixed[place] = one, value
        return
    rule = _rule_of(step.name)
    reaches = None if rule is None else rule(Flow(step, operands, values, shapes, results))
    if reaches is None:
        reaches = [_everywhere(operands, shape) for shape in results]
    for place, one, shape in zip(step.outputs, reaches, results, strict=True):
        if one is not None and one.any():
            found.reach[place] = np.broadcast_to(one, (*shape, count))


def _later(step: Step, values: Sequence[Fixed | None], k: int) -> Fixed:
    def compute() -> Any:
        with jax.ensure_compile_time_eval():
            given = [jnp.asarray(value.value) for value in values if value is not None]
            return np.asarray(step.apply(given)[k])

    return Fixed(compute)


def _everywhere(operands: Sequence[Reach], shape: tuple[int, ...]) -> Reach:
    """Every element depends on all that any operand depends on."""
    one: Reach = None
    for operand in operands:
        if operand is not None:
            labels = np.logical_or.reduce(operand.reshape(-1, operand.shape[-1]), axis=0)
            one = labels if one is None else np.logical_or(one, labels)
    return None if one is None else np.broadcast_to(one, (*shape, one.size))


def _union(reaches: Sequence[Reach]) -> Reach:
    one: Reach = None
    for other in reaches:
        if other is not None:
            one = other if one is None else one | other
    return one


# --- rules: the reach of the results, or None where a rule does not apply ---


class Flow(NamedTuple):
    """A step with the reach of its operands, their values if they are fixed, and all shapes."""

    step: Step
    operands: list[Any]
    values: list[Any]
    shapes: list[tuple[int, ...]]
    results: list[tuple[int, ...]]


def _elementwise(flow: Flow) -> list[Reach]:
    return [_union(flow.operands)] * len(flow.results)


def _reduction(flow: Flow) -> list[Reach]:
    return [flow.operands[0].any(axis=tuple(flow.step.params["axes"]))]


def _cumulative(flow: Flow) -> list[Reach]:
    axis, one = flow.step.params["axis"], flow.operands[0]
    one = np.flip(one, axis) if flow.step.params["reverse"] else one
    one = np.logical_or.accumulate(one, axis=axis)
    return [np.flip(one, axis) if flow.step.params["reverse"] else one]


def _sort(flow: Flow) -> list[Reach]:
    one = _union(flow.operands)
    assert one is not None
    axis = flow.step.params["dimension"]
    return [np.broadcast_to(one.any(axis=axis, keepdims=True), one.shape)] * len(flow.results)


def _dot(flow: Flow) -> list[Reach]:
    (contracted, batched) = flow.step.params["dimension_numbers"]
    free = [
        [d for d in range(len(shape)) if d not in contracted[k] and d not in batched[k]]
        for k, shape in enumerate(flow.shapes)
    ]
    num_batch = len(batched[0])
    made: Reach = None
    for k, operand in enumerate(flow.operands):
        if operand is None:
            continue
        one = operand.any(axis=tuple(contracted[k]))
        kept = [d for d in range(len(flow.shapes[k])) if d not in contracted[k]]
        order = [kept.index(d) for d in (*batched[k], *free[k])]
        one = one.transpose(*order, len(order))
        before = 0 if k == 0 else len(free[0])
        after = 0 if k == 1 else len(free[1])
        one = np.expand_dims(one, tuple(range(num_batch, num_batch + before)))
        place = num_batch + before + len(free[k])
        one = np.expand_dims(one, tuple(range(place, place + after)))
        made = one if made is None else made | one
    return [made]


def _moved(flow: Flow) -> list[Reach] | None:
    """Steps that only move elements: what NumPy does to the reach itself."""
    params, one = flow.step.params, flow.operands[0]
    count = next(operand.shape[-1] for operand in flow.operands if operand is not None)
    if one is None and flow.step.name not in ("concatenate", "stack"):
        return None
    if flow.step.name == "reshape" and params.get("dimensions") is None:
        return [one.reshape(*flow.results[0], count)]
    if flow.step.name == "squeeze":
        return [one.reshape(*flow.results[0], count)]
    if flow.step.name == "expand_dims":
        return [one.reshape(*flow.results[0], count)]
    if flow.step.name == "transpose":
        return [one.transpose(*params["permutation"], one.ndim - 1)]
    if flow.step.name == "rev":
        return [np.flip(one, tuple(params["dimensions"]))]
    if flow.step.name == "broadcast_in_dim":
        shape = [1] * len(flow.results[0])
        for d, size in zip(params["broadcast_dimensions"], flow.shapes[0], strict=True):
            shape[d] = size
        return [np.broadcast_to(one.reshape(*shape, count), (*flow.results[0], count))]
    if flow.step.name == "slice":
        strides = params["strides"] or (1,) * len(flow.shapes[0])
        bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
        return [one[tuple(slice(*bound) for bound in bounds)]]
    if flow.step.name == "split":
        edges = np.cumsum(params["sizes"])[:-1]
        return list(np.split(one, edges, axis=params["axis"]))
    if flow.step.name == "unstack":
        return list(np.moveaxis(one, params["axis"], 0))
    if flow.step.name in ("concatenate", "stack"):
        filled = [
            np.zeros((*shape, count), bool) if operand is None else operand
            for operand, shape in zip(flow.operands, flow.shapes, strict=True)
        ]
        if flow.step.name == "stack":
            return [np.stack(filled, axis=params["axis"])]
        return [np.concatenate(filled, axis=params["dimension"])]
    return None


def _pad(flow: Flow) -> list[Reach] | None:
    config = flow.step.params["padding_config"]
    if flow.operands[1] is not None or any(low < 0 or high < 0 for low, high, _ in config):
        return None
    made = np.zeros((*flow.results[0], flow.operands[0].shape[-1]), bool)
    inner = tuple(
        slice(low, low + (size - 1) * (gap + 1) + 1, gap + 1)
        for (low, _, gap), size in zip(config, flow.shapes[0], strict=True)
    )
    made[inner] = flow.operands[0]
    return [made]


def _dynamic_slice(flow: Flow) -> list[Reach]:
    one, sizes = flow.operands[0], flow.step.params["slice_sizes"]
    made = _everywhere(flow.operands[1:], flow.results[0])
    if one is None:
        return [made]
    for d, (size, whole, start) in enumerate(
        zip(sizes, flow.shapes[0], flow.values[1:], strict=True)
    ):
        if size == whole:
            continue
        if start is None:
            one = np.broadcast_to(one.any(axis=d, keepdims=True), one.shape)
            one = np.take(one, range(size), axis=d)
        else:
            first = int(np.clip(int(start.value), 0, whole - size))
            one = np.take(one, range(first, first + size), axis=d)
    return [_union([one, made])]


def _dynamic_update_slice(flow: Flow) -> list[Reach] | None:
    if any(value is None for value in flow.values[2:]):
        return None
    count = next(operand.shape[-1] for operand in flow.operands if operand is not None)
    made = (
        np.zeros((*flow.shapes[0], count), bool)
        if flow.operands[0] is None
        else flow.operands[0].copy()
    )
    starts = [
        int(np.clip(int(value.value), 0, whole - size))
        for value, whole, size in zip(flow.values[2:], flow.shapes[0], flow.shapes[1], strict=True)
    ]
    inner = tuple(slice(a, a + size) for a, size in zip(starts, flow.shapes[1], strict=True))
    made[inner] = False if flow.operands[1] is None else flow.operands[1]
    return [made]


def _gather(flow: Flow) -> list[Reach]:
    numbers, sizes = flow.step.params["dimension_numbers"], flow.step.params["slice_sizes"]
    shape = flow.results[0]
    offsets = tuple(numbers.offset_dims)
    batch = [d for d in range(len(shape)) if d not in offsets]
    made: Reach = None
    if flow.operands[1] is not None:
        rows = flow.operands[1].any(axis=-2)
        made = np.expand_dims(rows, offsets)
        made = np.broadcast_to(made, (*shape, rows.shape[-1]))
    one = flow.operands[0]
    if one is None:
        return [made]
    if flow.values[1] is not None:
        return [
            _union([_gathered(flow.step, one, flow.values[1].value, flow.shapes[0], shape), made])
        ]
    indexed = tuple(numbers.collapsed_slice_dims)
    index_batch = tuple(numbers.start_indices_batching_dims)
    operand_batch = tuple(numbers.operand_batching_dims)
    places, window = {}, iter(offsets)
    for d, size in enumerate(sizes):
        if d in operand_batch:
            places[d] = batch[index_batch[operand_batch.index(d)]]
        elif d not in indexed:
            offset = next(window)
            if size == flow.shapes[0][d]:
                places[d] = offset
    one = one.any(axis=tuple(d for d in range(len(sizes)) if d not in places))
    order = sorted(range(len(places)), key=lambda k: list(places.values())[k])
    one = one.transpose(*order, len(order))
    one = np.expand_dims(one, tuple(d for d in range(len(shape)) if d not in places.values()))
    return [_union([np.broadcast_to(one, (*shape, one.shape[-1])), made])]


def _gathered(
    step: Any, one: np.ndarray, indices: np.ndarray, shape: tuple[int, ...], result: tuple
) -> np.ndarray:
    """The reach of elements whose places are known."""
    ids = np.arange(1, 1 + math.prod(shape), dtype=np.int32).reshape(shape)
    params = {**step.params, "fill_value": 0}
    with jax.ensure_compile_time_eval():
        operands = jnp.asarray(ids), jnp.asarray(indices)
        places = np.asarray(step.equation.primitive.bind(*operands, **params))
    flat = one.reshape(-1, one.shape[-1])
    return np.concatenate([np.zeros_like(flat[:1]), flat])[places].reshape(*result, -1)


def _scatter(flow: Flow) -> list[Reach] | None:
    """Elements that are put into places which are known."""
    if flow.values[1] is None:
        return None
    count = next(operand.shape[-1] for operand in flow.operands if operand is not None)
    sizes = [math.prod(flow.shapes[0]), math.prod(flow.shapes[2])]
    flat = [
        np.zeros((size, count), bool) if operand is None else operand.reshape(size, count)
        for operand, size in zip((flow.operands[0], flow.operands[2]), sizes, strict=True)
    ]
    ids = np.arange(sum(sizes), dtype=np.int32)
    inputs = (
        ids[: sizes[0]].reshape(flow.shapes[0]),
        flow.values[1].value,
        ids[sizes[0] :].reshape(flow.shapes[2]),
    )
    with jax.ensure_compile_time_eval():
        places = np.asarray(flow.step.apply([jnp.asarray(one) for one in inputs])[0])
    return [np.concatenate(flat)[places]]


def _rule_of(name: str) -> Callable | None:
    if name in _ELEMENTWISE:
        return _elementwise
    if name in _REDUCTIONS:
        return _reduction
    return _cumulative if name in _CUMULATIVE else _RULES.get(name)


_RULES: dict[str, Callable] = {
    "sort": _sort,
    "dot_general": _dot,
    "pad": _pad,
    "gather": _gather,
    "scatter": _scatter,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    **dict.fromkeys(
        ("reshape", "squeeze", "expand_dims", "transpose", "rev", "broadcast_in_dim", "slice"),
        _moved,
    ),
    **dict.fromkeys(("split", "concatenate", "stack", "unstack"), _moved),
}


# --- calls and loops ---


def _whole(step: Step, operands: list[Reach], values: list, count: int) -> Reached:
    inner = inner_of(step.equation)
    if inner is None:
        shapes = [variable.aval.shape for variable in step.equation.outvars]
        return Reached([_everywhere(operands, shape) for shape in shapes], [None] * len(shapes))
    return _inside(inner, operands, values, count)


def _inside(closed: Any, operands: Sequence[Reach], values: Sequence, count: int) -> Reached:
    expression = Expression(closed)
    found = reached(expression, operands, values, count)
    places = expression.outputs
    return Reached([found.reach[k] for k in places], [found.fixed[k] for k in places])


def _cond(step: Step, operands: list[Reach], values: list, count: int) -> Reached:
    found = [_inside(branch, operands[1:], values[1:], count) for branch in step.params["branches"]]
    made = []
    for k, variable in enumerate(step.equation.outvars):
        choice = _everywhere(operands[:1], variable.aval.shape)
        made.append(_union([choice, *(one.reach[k] for one in found)]))
    return Reached(made, [None] * len(made))


def _scan(step: Step, operands: list[Reach], values: list, count: int) -> Reached:
    """Follows a loop step by step."""
    params = step.params
    expression = Expression(params["jaxpr"])
    num_consts, num_carry, length = params["num_consts"], params["num_carry"], params["length"]
    first, last = num_consts, num_consts + num_carry
    carry, carried = list(operands[first:last]), list(values[first:last])
    num_stacked = len(expression.outputs) - num_carry
    stacked: list[list[Reach]] = [[None] * length for _ in range(num_stacked)]
    for time in reversed(range(length)) if params["reverse"] else range(length):
        rows = [None if one is None else one[time] for one in operands[last:]]
        fixed = [_row(value, time) for value in values[last:]]
        found = reached(
            expression,
            [*operands[:first], *carry, *rows],
            [*values[:first], *carried, *fixed],
            count,
        )
        made = [found.reach[place] for place in expression.outputs]
        carry = made[:num_carry]
        carried = [found.fixed[place] for place in expression.outputs[:num_carry]]
        for k, one in enumerate(made[num_carry:]):
            stacked[k][time] = one
    results = carry
    shapes = [variable.aval.shape for variable in step.equation.outvars[num_carry:]]
    for rows, shape in zip(stacked, shapes, strict=True):
        if all(row is None for row in rows):
            results.append(None)
            continue
        nothing = np.zeros((*shape[1:], count), bool)
        results.append(np.stack([nothing if row is None else row for row in rows]))
    return Reached(results, [*carried, *[None] * num_stacked])


def _row(value: Fixed | None, time: int) -> Fixed | None:
    return None if value is None else Fixed(lambda: value.value[time])


_CONTROL = {"scan": _scan, "cond": _cond}
