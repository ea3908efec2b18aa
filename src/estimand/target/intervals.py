"""Bounds of every element of a JAX expression, from the expression alone.

An interval is a pair of NumPy arrays (low, high), of the variable's shape or one for all its
elements. Bounds hold for the rounded results: they are widened where rounding may cross them.
NaN is in no interval: bounds say where a value is if it is a number, and those of a constant NaN
are crossed, +inf and −inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Larger arrays have one interval for all their elements.
_MAX_ELEMENTS = 4096


class Interval(NamedTuple):
    """Lowest and highest values."""

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def between(cls, low: Any, high: Any) -> Interval:
        return cls(np.asarray(low, float), np.asarray(high, float))

    def hull(self) -> Interval:
        """One interval for all elements."""
        if not self.low.size or not self.high.size:
            return ANY
        return Interval(self.low.min(), self.high.max())

    @property
    def sign(self) -> np.ndarray:
        """1 where no element is negative, −1 where none is positive, 0 where unknown."""
        return np.where(self.low >= 0, 1, np.where(self.high <= 0, -1, 0))


ANY = Interval.between(-np.inf, np.inf)
TRUTH = Interval.between(0, 1)


def of_constant(value: Any) -> Interval:
    """The interval of a known array."""
    dtype = jnp.result_type(value)
    is_real = any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))
    if not is_real or isinstance(value, jax.core.Tracer) or not np.size(value):
        return of_dtype(dtype)
    array = np.asarray(value).astype(float)
    unknown = np.isnan(array)
    bounds = Interval(np.where(unknown, np.inf, array), np.where(unknown, -np.inf, array))
    return bounds if array.size <= _MAX_ELEMENTS else bounds.hull()


def of_dtype(dtype: Any) -> Interval:
    """What an unknown value of a dtype is between."""
    if dtype == jnp.bool_:
        return TRUTH
    if jnp.issubdtype(dtype, jnp.unsignedinteger):
        return Interval.between(0, np.inf)
    return ANY


def of_equation(
    name: str, params: dict, operands: list[Interval], avals: list, out: Any, is_same: bool
) -> Interval:
    """The interval of an equation's result; `is_same` says that both its operands are one."""
    rule = _RULES.get(name)
    default = of_dtype(out.dtype)
    if rule is None or not operands or jnp.issubdtype(out.dtype, jnp.complexfloating):
        return default
    if is_same and name in _OF_SAME:
        rule = _OF_SAME[name]
    with np.errstate(all="ignore"):
        low, high = rule(operands, params, avals, out)
        low = np.where(np.isnan(low), default.low, low)
        high = np.where(np.isnan(high), default.high, high)
        if jnp.issubdtype(out.dtype, jnp.floating):
            low, high = _outward(low, high, out.dtype)
        elif jnp.issubdtype(out.dtype, jnp.integer):
            limits = jnp.iinfo(out.dtype)
            wraps = (low < int(limits.min)) | (high > int(limits.max))
            low, high = np.where(wraps, default.low, low), np.where(wraps, default.high, high)
    bounds = Interval(np.asarray(low, float), np.asarray(high, float))
    if math.prod(out.shape) > _MAX_ELEMENTS or not _fits(bounds, out.shape):
        return bounds.hull()
    return bounds


def moved(
    name: str, params: dict, numbers: list[np.ndarray], avals: list, out: Any
) -> np.ndarray | None:
    """What a primitive that only moves elements makes of arrays; None if these are too large."""
    operands = [Interval(number, number) for number in numbers]
    low, high = _RULES[name](operands, params, avals, out)
    return low if low.shape == tuple(out.shape) and np.array_equal(low, high) else None


def _fits(bounds: Interval, shape: tuple[int, ...]) -> bool:
    return all(not bound.ndim or bound.shape == shape for bound in bounds)


def _outward(low: np.ndarray, high: np.ndarray, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Bounds that no correctly rounded result crosses: representable ones, or a step further."""
    eps = float(jnp.finfo(dtype).eps)
    rounded_low, rounded_high = low.astype(dtype).astype(float), high.astype(dtype).astype(float)
    return (
        np.where(rounded_low == low, low, low - eps * np.abs(low)),
        np.where(rounded_high == high, high, high + eps * np.abs(high)),
    )


def _rule_of_monotone(function: Callable) -> Callable:
    """Bounds of an increasing function that is rounded correctly, or only at exact values."""

    def rule(operands: list[Interval], *_: Any) -> Interval:
        (a,) = operands
        return Interval(function(a.low), function(a.high))

    return rule


def _rule_of_range(low: float, high: float) -> Callable:
    return lambda *_: Interval.between(low, high)


def _add(operands: list[Interval], *_: Any) -> Interval:
    a, b = operands
    return Interval(a.low + b.low, a.high + b.high)


def _sub(operands: list[Interval], *_: Any) -> Interval:
    a, b = operands
    return Interval(a.low - b.high, a.high - b.low)


def _product(a: Interval, b: Interval) -> Interval:
    corners = [x * y for x in a for y in b]
    # A bound that is infinite stands for finite values, and those times 0 are 0.
    corners = [np.where(np.isnan(corner), 0.0, corner) for corner in corners]
    return Interval(np.minimum.reduce(corners), np.maximum.reduce(corners))


def _mul(operands: list[Interval], *_: Any) -> Interval:
    return _product(*operands)


def _div(operands: list[Interval], *_: Any) -> Interval:
    a, b = operands
    positive, negative = b.low >= 0, b.high <= 0
    low = np.where(positive | negative, 1 / np.where(b.high == 0, -0.0, b.high), -np.inf)
    high = np.where(positive | negative, 1 / np.where(b.low == 0, 0.0, b.low), np.inf)
    bounds = _product(a, Interval(low, high))
    eps = 1e-6
    return Interval(bounds.low - eps * np.abs(bounds.low), bounds.high + eps * np.abs(bounds.high))


def _neg(operands: list[Interval], *_: Any) -> Interval:
    (a,) = operands
    return Interval(-a.high, -a.low)


def _abs(operands: list[Interval], *_: Any) -> Interval:
    (a,) = operands
    low = np.maximum(np.maximum(a.low, -a.high), 0.0)
    return Interval(low, np.maximum(np.abs(a.low), np.abs(a.high)))


def _square(operands: list[Interval], *_: Any) -> Interval:
    low, high = _abs(operands[:1])
    return Interval(low**2, high**2)


def _integer_pow(operands: list[Interval], params: dict, *_: Any) -> Interval:
    exponent = params["y"]
    if exponent < 0:
        return Interval.between(*((0, np.inf) if exponent % 2 == 0 else _reciprocal(operands[0])))
    low, high = _abs(operands) if exponent % 2 == 0 else operands[0]
    return _loose(Interval(low**exponent, high**exponent))


def _reciprocal(a: Interval) -> tuple[Any, Any]:
    return np.where(a.low >= 0, 0, -np.inf), np.where(a.high <= 0, 0, np.inf)


def _pow(operands: list[Interval], *_: Any) -> Interval:
    base, _exponent = operands
    return Interval(np.where(base.low >= 0, 0.0, -np.inf), np.full_like(base.high, np.inf))


def _loose(a: Interval) -> Interval:
    """Widened for functions that are not rounded correctly; 0 and ±1 are exact in them."""
    eps = 1e-5
    low = np.where(np.isin(a.low, (-1, 0, 1)), a.low, a.low - eps * np.abs(a.low))
    high = np.where(np.isin(a.high, (-1, 0, 1)), a.high, a.high + eps * np.abs(a.high))
    return Interval(low, high)


def _rule_of_function(function: Callable) -> Callable:
    monotone = _rule_of_monotone(function)
    return lambda operands, *_: _loose(monotone(operands))


def _max(operands: list[Interval], *_: Any) -> Interval:
    return Interval(*(np.maximum(x, y) for x, y in zip(*operands, strict=True)))


def _min(operands: list[Interval], *_: Any) -> Interval:
    return Interval(*(np.minimum(x, y) for x, y in zip(*operands, strict=True)))


def _clamp(operands: list[Interval], *_: Any) -> Interval:
    low, a, high = operands
    return _min([_max([low, a]), high])


def _select(operands: list[Interval], *_: Any) -> Interval:
    which, *cases = operands
    low: Any = np.inf
    high: Any = -np.inf
    for index, case in enumerate(cases):
        possible = (which.low <= index) & (index <= which.high)
        low = np.where(possible, np.minimum(low, case.low), low)
        high = np.where(possible, np.maximum(high, case.high), high)
    return Interval(low, high)


def _rule_of_comparison(name: str) -> Callable:
    def rule(operands: list[Interval], *_: Any) -> Interval:
        a, b = operands if name in ("gt", "ge") else operands[::-1]
        strict = name in ("gt", "lt")
        always = a.low > b.high if strict else a.low >= b.high
        never = a.high <= b.low if strict else a.high < b.low
        both = always & never
        return Interval(np.where(always & ~both, 1.0, 0.0), np.where(never & ~both, 0.0, 1.0))

    return rule


def _not(operands: list[Interval], _params: Any, _avals: Any, out: Any) -> Interval:
    (a,) = operands
    return Interval(1 - a.high, 1 - a.low) if out.dtype == jnp.bool_ else ANY


def _rule_of_logic(combine: Callable) -> Callable:
    def rule(operands: list[Interval], _params: Any, _avals: Any, out: Any) -> Interval:
        if out.dtype != jnp.bool_:
            return of_dtype(out.dtype)
        return Interval(*(combine(x, y) for x, y in zip(*operands, strict=True)))

    return rule


def _convert(operands: list[Interval], _params: Any, avals: list, out: Any) -> Interval:
    (a,) = operands
    if jnp.issubdtype(out.dtype, jnp.floating) or avals[0].dtype == jnp.bool_:
        return a
    if out.dtype == jnp.bool_:
        return TRUTH
    # A number too large for an integer wraps or saturates.
    limit = float(jnp.iinfo(out.dtype).max)
    inside = (a.low >= -limit) & (a.high <= limit)
    return Interval(np.where(inside, np.trunc(a.low), -np.inf), np.where(inside, a.high, np.inf))


def _sum(operands: list[Interval], params: dict, avals: list, *_: Any) -> Interval:
    (a,) = operands
    axes = params["axes"]
    count = math.prod(avals[0].shape[axis] for axis in axes)
    if a.low.ndim and a.high.ndim:
        low, high = a.low.sum(axes), a.high.sum(axes)
    else:
        hull = a.hull()
        low, high = count * hull.low, count * hull.high
    return _summed(low, high, count)


def _summed(low: Any, high: Any, count: int) -> Interval:
    """Sums of small integers are exact; others may round once for each term."""
    eps = 1e-6 * count
    exact = (np.abs(np.stack([low, high])) < 2**24) & (np.trunc([low, high]) == [low, high])
    return Interval(
        np.where(exact[0], low, low - eps * np.abs(low)),
        np.where(exact[1], high, high + eps * np.abs(high)),
    )


def _cumsum(operands: list[Interval], params: dict, avals: list, *_: Any) -> Interval:
    a = operands[0].hull()
    count = avals[0].shape[params["axis"]]
    return _summed(np.minimum(a.low, count * a.low), np.maximum(a.high, count * a.high), count)


def _prod(operands: list[Interval], *_: Any) -> Interval:
    """Products of numbers within [−1, 1] stay there, and of positive ones are positive."""
    a = operands[0].hull()
    high = 1.0 if a.low >= -1 and a.high <= 1 else np.inf
    return Interval.between(0.0 if a.low >= 0 else -high, high)


def _dot(operands: list[Interval], *_: Any) -> Interval:
    term = _product(operands[0].hull(), operands[1].hull())
    low = np.where(term.low >= 0, 0.0, -np.inf)
    return Interval(low, np.where(term.high <= 0, 0.0, np.inf))


def _square_dot(operands: list[Interval], params: dict, avals: list, *_: Any) -> Interval:
    """A vector times itself; a matrix product has terms that are no squares."""
    (contract, other), (batch, _) = params["dimension_numbers"]
    if tuple(contract) == tuple(other) and len(contract) + len(batch) == len(avals[0].shape):
        return Interval.between(0, np.inf)
    return _dot(operands)


def _rule_of_reduction(function: Callable) -> Callable:
    def rule(operands: list[Interval], params: dict, *_: Any) -> Interval:
        (a,) = operands
        if not a.low.ndim or not a.high.ndim:
            return a.hull()
        return Interval(function(a.low, axis=params["axes"]), function(a.high, axis=params["axes"]))

    return rule


def _sign(operands: list[Interval], *_: Any) -> Interval:
    return Interval(np.sign(operands[0].low), np.sign(operands[0].high))


def _rule_of_movement(move: Callable) -> Callable:
    """Rules of primitives that move elements, in NumPy."""

    def rule(operands: list[Interval], params: dict, avals: list, out: Any) -> Interval:
        if any(math.prod(aval.shape) > _MAX_ELEMENTS for aval in (*avals, out)):
            return _hull_of_all(operands)
        full = [
            [np.broadcast_to(bound, aval.shape) for bound in a]
            for a, aval in zip(operands, avals, strict=True)
        ]
        return Interval(*(move([a[k] for a in full], params, out) for k in (0, 1)))

    return rule


def _hull_of_all(operands: list[Interval], *_: Any) -> Interval:
    hulls = [a.hull() for a in operands]
    return Interval(np.min([a.low for a in hulls], axis=0), np.max([a.high for a in hulls], axis=0))


def _hull_of_first(operands: list[Interval], *_: Any) -> Interval:
    return operands[0].hull()


def _gather(operands: list[Interval], params: dict, *_: Any) -> Interval:
    if "FILL" in str(params["mode"]).upper() and params["fill_value"] not in (None, 0):
        return ANY
    return _hull_of_all([operands[0], Interval.between(0, 0)])


def _broadcast(arrays: list, params: dict, out: Any) -> np.ndarray:
    shape = [1] * len(out.shape)
    for place, size in zip(params["broadcast_dimensions"], arrays[0].shape, strict=True):
        shape[place] = size
    return np.broadcast_to(arrays[0].reshape(shape), out.shape)


def _slice(arrays: list, params: dict, _out: Any) -> np.ndarray:
    strides = params["strides"] or (1,) * arrays[0].ndim
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return arrays[0][tuple(slice(*bound) for bound in bounds)]


_RULES: dict[str, Callable] = {
    "add": _add,
    "add_any": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "abs": _abs,
    "square": _square,
    "integer_pow": _integer_pow,
    "pow": _pow,
    "max": _max,
    "min": _min,
    "clamp": _clamp,
    "select_n": _select,
    "sign": _sign,
    "exp": _rule_of_function(np.exp),
    "exp2": _rule_of_function(np.exp2),
    "expm1": _rule_of_function(np.expm1),
    "log": _rule_of_function(lambda x: np.log(np.maximum(x, 0))),
    "log1p": _rule_of_function(lambda x: np.log1p(np.maximum(x, -1))),
    "sqrt": _rule_of_function(lambda x: np.sqrt(np.maximum(x, 0))),
    "cbrt": _rule_of_function(np.cbrt),
    "floor": _rule_of_monotone(np.floor),
    "ceil": _rule_of_monotone(np.ceil),
    "round": _rule_of_monotone(np.round),
    "tanh": _rule_of_function(np.tanh),
    "sinh": _rule_of_function(np.sinh),
    "atan": _rule_of_function(np.arctan),
    "asinh": _rule_of_function(np.arcsinh),
    "rsqrt": _rule_of_range(0, np.inf),
    "cosh": _rule_of_range(0.99999, np.inf),
    "acosh": _rule_of_range(0, np.inf),
    "acos": _rule_of_range(0, 3.1416),
    "logistic": _rule_of_range(0, 1),
    "erf": lambda operands, *_: _sign(operands),
    "erfc": _rule_of_range(0, 2),
    "sin": _rule_of_range(-1, 1),
    "cos": _rule_of_range(-1, 1),
    "bessel_i0e": _rule_of_range(0, np.inf),
    "igamma": _rule_of_range(0, np.inf),
    "igammac": _rule_of_range(0, np.inf),
    "regularized_incomplete_beta": _rule_of_range(0, np.inf),
    "gt": _rule_of_comparison("gt"),
    "ge": _rule_of_comparison("ge"),
    "lt": _rule_of_comparison("lt"),
    "le": _rule_of_comparison("le"),
    "eq": _rule_of_range(0, 1),
    "ne": _rule_of_range(0, 1),
    "is_finite": _rule_of_range(0, 1),
    "and": _rule_of_logic(np.minimum),
    "or": _rule_of_logic(np.maximum),
    "not": _not,
    "convert_element_type": _convert,
    "reduce_sum": _sum,
    "reduce_prod": _prod,
    "reduce_max": _rule_of_reduction(np.max),
    "reduce_min": _rule_of_reduction(np.min),
    "reduce_and": _rule_of_reduction(np.min),
    "reduce_or": _rule_of_reduction(np.max),
    "cumsum": _cumsum,
    "cumprod": _prod,
    "cummax": _hull_of_first,
    "cummin": _hull_of_first,
    "dot_general": _dot,
    "sort": _hull_of_all,
    "rev": _hull_of_first,
    "dynamic_slice": _hull_of_first,
    "dynamic_update_slice": lambda operands, *_: _hull_of_all(operands[:2]),
    "gather": _gather,
    "copy": _hull_of_first,
    "copy_p": _hull_of_first,
    "stop_gradient": lambda operands, *_: operands[0],
    "reduce_precision": _hull_of_first,
    "reshape": _rule_of_movement(lambda arrays, _, out: arrays[0].reshape(out.shape)),
    "squeeze": _rule_of_movement(lambda arrays, _, out: arrays[0].reshape(out.shape)),
    "expand_dims": _rule_of_movement(lambda arrays, _, out: arrays[0].reshape(out.shape)),
    "transpose": _rule_of_movement(
        lambda arrays, params, _: arrays[0].transpose(params["permutation"])
    ),
    "concatenate": _rule_of_movement(
        lambda arrays, params, _: np.concatenate(arrays, params["dimension"])
    ),
    "broadcast_in_dim": _rule_of_movement(_broadcast),
    "slice": _rule_of_movement(_slice),
    "stack": _rule_of_movement(lambda arrays, params, _: np.stack(arrays, params["axis"])),
    "unstack": _hull_of_first,
    "split": _hull_of_first,
    "tile": _hull_of_first,
}
# x·x is a square; NaN is in no interval, so that x ≠ x is never seen.
_OF_SAME: dict[str, Callable] = {
    "mul": _square,
    "sub": _rule_of_range(0, 0),
    "ne": _rule_of_range(0, 0),
    "eq": _rule_of_range(1, 1),
    "dot_general": _square_dot,
}
