"""Every rule of the interval analysis, by random points of random intervals, and its mutants.

For each primitive there are cases: a JAX function that consists of it. Its operands get random
intervals, points are drawn inside of them, and JAX's results must lie within the bounds that the
rule gives. A rule that is slightly wrong, a mutant, must be found out by the same points.
"""

from __future__ import annotations

import functools
import itertools
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core

from estimand.target import intervals
from estimand.target.intervals import Interval

NUM_ROUNDS, NUM_POINTS = 24, 48
WIDE = (32,)
FLOATS = ("float32", "float64")


class Operand(NamedTuple):
    """Shape and dtype of an operand; `values` are all that it takes, if these are few.

    `largest` is as far as it goes: XLA's incomplete gamma function takes time in proportion.
    """

    dtype: str = "float64"
    shape: tuple[int, ...] = WIDE
    values: tuple[float, ...] | None = None
    largest: float = math.inf


class Case(NamedTuple):
    """A function that consists of one primitive; `primitive` if the rule has another name."""

    name: str
    function: Callable
    operands: tuple[Operand, ...]
    is_same: bool = False
    primitive: str | None = None


# Cases of every rule ------------------------------------------------------------------------------


def elementwise(
    name: str, function: Callable, count: int = 1, dtypes: tuple[str, ...] = FLOATS
) -> Iterator[Case]:
    for dtype in dtypes:
        yield Case(name, function, (Operand(dtype),) * count)


def shaped(
    name: str,
    function: Callable,
    *shapes: tuple[int, ...],
    dtypes: tuple[str, ...] = FLOATS,
    primitive: str | None = None,
) -> Iterator[Case]:
    for dtype in dtypes:
        operands = tuple(Operand(dtype, shape) for shape in shapes)
        yield Case(name, function, operands, primitive=primitive)


def cases() -> Iterator[Case]:
    yield from _arithmetic()
    yield from _functions()
    yield from _choices()
    yield from _reductions()
    yield from _movements()
    yield from _of_same()


def _arithmetic() -> Iterator[Case]:
    numbers = (*FLOATS, "int32", "int64", "uint32", "bfloat16")
    yield from elementwise("add", lax.add, 2, numbers)
    yield from shaped("add_any", lax.add, WIDE, WIDE, primitive="add")
    yield from elementwise("sub", lax.sub, 2, numbers)
    for dtype in FLOATS:
        zero = Operand(dtype, values=(0.0,))
        yield Case("sub", lax.sub, (Operand(dtype), zero))
        yield Case("max", lax.max, (zero, zero))
    yield from elementwise("mul", lax.mul, 2, numbers)
    yield from elementwise("div", lax.div, 2, (*FLOATS, "int32", "int64"))
    for divisor in (3.0, 49.0, -41.0):
        yield from elementwise("div", lambda x, c=divisor: x / c)
        yield from elementwise("div", lambda x, c=divisor: c / x)
    yield from elementwise("neg", lax.neg, 1, (*FLOATS, "int32", "int64"))
    yield from elementwise("abs", lax.abs, 1, (*FLOATS, "int32", "int64"))
    yield from elementwise("square", lax.square, 1, (*FLOATS, "int32"))
    for exponent in (-3, -2, 2, 3, 200):
        yield from elementwise("integer_pow", lambda x, y=exponent: lax.integer_pow(x, y))
    for exponent in (2, 3):
        yield from elementwise(
            "integer_pow", lambda x, y=exponent: lax.integer_pow(x, y), 1, ("int32", "int64")
        )
    yield from elementwise("pow", lax.pow, 2)
    for dtype in FLOATS:
        whole = Operand(dtype, values=(-3.0, -2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0))
        yield Case("pow", lax.pow, (Operand(dtype), whole))
        yield Case("pow", lambda x, y: lax.pow(x, y), (Operand(dtype), Operand("int32")))


def _functions() -> Iterator[Case]:
    for name, function in {
        "exp": lax.exp,
        "exp2": lax.exp2,
        "expm1": lax.expm1,
        "log": lax.log,
        "log1p": lax.log1p,
        "sqrt": lax.sqrt,
        "cbrt": lax.cbrt,
        "floor": lax.floor,
        "ceil": lax.ceil,
        "tanh": lax.tanh,
        "sinh": lax.sinh,
        "atan": lax.atan,
        "asinh": lax.asinh,
        "rsqrt": lax.rsqrt,
        "cosh": lax.cosh,
        "acosh": lax.acosh,
        "acos": lax.acos,
        "logistic": lax.logistic,
        "erf": lax.erf,
        "erfc": lax.erfc,
        "sin": lax.sin,
        "cos": lax.cos,
        "bessel_i0e": lax.bessel_i0e,
        "is_finite": lax.is_finite,
    }.items():
        yield from elementwise(name, function)
    saturated = Operand("float32", values=tuple(np.linspace(3.82, 3.8325, 400).tolist()))
    yield Case("erf", lax.erf, (saturated,))
    for name in ("exp", "tanh", "logistic"):
        yield from elementwise(name, getattr(lax, name), 1, ("bfloat16", "float16"))
    for method in lax.RoundingMethod:
        yield from elementwise("round", lambda x, m=method: lax.round(x, m))
    yield from elementwise("sign", lax.sign, 1, (*FLOATS, "int32"))
    for dtype in FLOATS:
        one = Operand(dtype, (12,), largest=300.0)
        yield Case("igamma", lax.igamma, (one, one))
        yield Case("igammac", lax.igammac, (one, one))
        yield Case("regularized_incomplete_beta", lax.betainc, (one, one, one))
    a, x = (Operand("float32", (12,), values) for values in ((1e3, 2.0**24 - 1), (2.0**24,)))
    yield Case("igamma", lax.igamma, (a, x))
    large, near_one = (
        Operand("float32", (12,), (75758.164,)),
        Operand("float32", (12,), (0.9999882,)),
    )
    small = Operand("float32", (12,), (0.06646409, 0.5))
    yield Case("regularized_incomplete_beta", lax.betainc, (large, small, near_one))
    for bits in ((5, 10), (8, 7), (4, 3), (11, 52), (8, 23)):
        yield from elementwise("reduce_precision", lambda x, b=bits: lax.reduce_precision(x, *b))


def _choices() -> Iterator[Case]:
    ordered = (*FLOATS, "int32", "int64")
    yield from elementwise("max", lax.max, 2, ordered)
    yield from elementwise("min", lax.min, 2, ordered)
    yield from elementwise("clamp", lax.clamp, 3, ordered)
    for dtype in FLOATS:
        yield Case("clamp", lax.clamp, (Operand(dtype, ()), Operand(dtype), Operand(dtype, ())))
        truth, number = Operand("bool"), Operand(dtype)
        yield Case("select_n", lax.select_n, (truth, number, number))
        yield Case("select_n", lax.select_n, (Operand("bool", ()), number, number))
        which = Operand("int32", values=(0, 1, 2))
        yield Case("select_n", lax.select_n, (which, number, number, number))
    for name in ("gt", "ge", "lt", "le", "eq", "ne"):
        yield from elementwise(name, getattr(lax, name), 2, ordered)
    for name, function in {"and": lax.bitwise_and, "or": lax.bitwise_or}.items():
        yield from elementwise(name, function, 2, ("bool", "int32", "uint32"))
    yield from elementwise("not", lax.bitwise_not, 1, ("bool", "int32", "uint32"))
    kinds = (*FLOATS, "int32", "int64", "uint64", "bool", "int8")
    pairs = ((old, new) for old in kinds for new in kinds if old != new)
    for old, new in pairs:
        if old in FLOATS or new in FLOATS or {old, new} & {"int32", "uint64"}:
            convert = functools.partial(lax.convert_element_type, new_dtype=new)
            yield Case("convert_element_type", convert, (Operand(old, (16,)),))


def _reductions() -> Iterator[Case]:
    numbers = (*FLOATS, "int32", "int64")
    for name, function, dtypes in (
        ("reduce_sum", lax.reduce_sum, (*numbers, "bfloat16")),
        ("reduce_prod", lax.reduce_prod, numbers),
        ("reduce_max", lax.reduce_max, numbers),
        ("reduce_min", lax.reduce_min, numbers),
        ("reduce_and", lax.reduce_and, ("bool", "int32")),
        ("reduce_or", lax.reduce_or, ("bool", "int32")),
    ):
        for shape, axes in (((5, 3), (0,)), ((2, 3), (0, 1)), ((4, 0), (1,)), ((1, 4), (0,))):
            reduce = functools.partial(function, axes=axes)
            yield from shaped(name, reduce, shape, dtypes=dtypes)
    yield from shaped("reduce_sum", functools.partial(lax.reduce_sum, axes=(0,)), (300, 2))
    for reverse in (False, True):
        for name in ("cumsum", "cumprod", "cummax", "cummin"):
            function = functools.partial(getattr(lax, name), axis=1, reverse=reverse)
            yield from shaped(name, function, (2, 5), dtypes=numbers)
    for numbers_of in ((((1,), (0,)), ((), ())), (((1,), (1,)), ((0,), (0,)))):
        dot = functools.partial(lax.dot_general, dimension_numbers=numbers_of)
        yield from shaped("dot_general", dot, (3, 3), (3, 3), dtypes=(*FLOATS, "int32"))
    empty = functools.partial(lax.dot_general, dimension_numbers=(((1,), (0,)), ((), ())))
    yield from shaped("dot_general", empty, (3, 0), (0, 2))


def _movements() -> Iterator[Case]:
    movements: dict[str, Callable] = {
        "rev": lambda x: lax.rev(x, (0, 1)),
        "copy": lax.copy_p.bind,
        "stop_gradient": lax.stop_gradient,
        "reshape": lambda x: lax.reshape(x, (3, 4)),
        "squeeze": lambda x: lax.squeeze(x, (2,)),
        "transpose": lambda x: lax.transpose(x, (1, 2, 0)),
        "broadcast_in_dim": lambda x: lax.broadcast_in_dim(x, (2, 4, 3, 1), (1, 2, 3)),
        "slice": lambda x: lax.slice(x, (1, 0, 0), (4, 3, 1), (2, 1, 1)),
        "split": lambda x: lax.split(x, (1, 3)),
        "tile": lambda x: lax.tile(x, (1, 2, 1)),
        "unstack": jnp.unstack,
    }
    for name, function in movements.items():
        yield from shaped(name, function, (4, 3, 1))
    yield from shaped("copy_p", lax.copy_p.bind, (4,), primitive="copy")
    expand = functools.partial(lax.expand_dims, dimensions=(1,))
    yield from shaped("expand_dims", expand, (4,), primitive="broadcast_in_dim")
    yield from shaped("concatenate", lambda x, y: lax.concatenate([x, y], 0), (4, 2), (3, 2))
    yield from shaped("stack", lambda x, y: jnp.stack([x, y], 1), (4,), (4,))
    yield from shaped("sort", lax.sort, (4,), dtypes=(*FLOATS, "int32"))
    yield from shaped("sort", lambda x, y: lax.sort((x, y), num_keys=1), (4,), (4,))
    places = Operand("int32", (), tuple(range(-3, 8)))
    indices = Operand("int32", (3, 1), tuple(range(-3, 8)))
    numbers = lax.GatherDimensionNumbers((), (0,), (0,))
    for dtype in ("float32", "int32", "uint32", "bool"):
        source = Operand(dtype, (5,))
        slice_of = functools.partial(lax.dynamic_slice, slice_sizes=(3,))
        yield Case("dynamic_slice", lambda x, i, f=slice_of: f(x, (i,)), (source, places))
        update = Operand(dtype, (2,))
        yield Case(
            "dynamic_update_slice",
            lambda x, u, i: lax.dynamic_update_slice(x, u, (i,)),
            (source, update, places),
        )
        fills = (None, 0, 1) if dtype == "bool" else (None, 0, 7)
        for mode, fill in (("clip", None), *(("fill", fill) for fill in fills)):
            take = functools.partial(
                lax.gather, dimension_numbers=numbers, slice_sizes=(1,), mode=mode, fill_value=fill
            )
            yield Case("gather", take, (source, indices))


def _of_same() -> Iterator[Case]:
    for dtype in (*FLOATS, "int32"):
        wide = (Operand(dtype),)
        yield Case("mul", lambda x: lax.mul(x, x), wide, is_same=True)
        yield Case("sub", lambda x: lax.sub(x, x), wide, is_same=True)
        for name in ("gt", "ge", "lt", "le", "eq", "ne"):
            compare = getattr(lax, name)
            yield Case(name, lambda x, compare=compare: compare(x, x), wide, is_same=True)
        for shape, numbers in (
            ((4,), (((0,), (0,)), ((), ()))),
            ((3, 3), (((1,), (1,)), ((0,), (0,)))),
            ((3, 3), (((1,), (0,)), ((), ()))),
            ((2, 2, 3), (((2,), (2,)), ((0, 1), (1, 0)))),
        ):
            dot = functools.partial(_dot_of_same, numbers)
            yield Case("dot_general", dot, (Operand(dtype, shape),), is_same=True)


def _dot_of_same(numbers: Any, x: jax.Array) -> jax.Array:
    return lax.dot_general(x, x, dimension_numbers=numbers)


CASES = tuple(cases())


# Random intervals and points ----------------------------------------------------------------------


def _limits(dtype: str) -> tuple[float, float]:
    """The smallest normal and the largest number."""
    return float(jnp.finfo(dtype).tiny), float(jnp.finfo(dtype).max)


def _marks(dtype: str) -> np.ndarray:
    """Numbers at which functions change: in both signs, out to where they saturate."""
    tiny, largest = _limits(dtype)
    eps = float(jnp.finfo(dtype).eps)
    sizes = [
        0.0, tiny / 8, tiny, 4 * tiny, eps / 4, eps, 1e-4, 0.1, 0.5, 1 - eps, 1.0, 1 + eps, 1.5,
        2.5, np.pi / 2, 3.0, np.pi, 4.0, 5.0, 9.0, 17.0, 26.0, 38.0, 87.0, 88.5, 89.0, 104.0,
        300.0, 708.5, 709.5, 745.0, 1e4, 2.0**24, 2.0**31, 2.0**53, 2.0**63, 1e20, largest / 4,
        largest, np.inf,
    ]  # fmt: skip
    with np.errstate(over="ignore"):
        return np.concatenate([np.negative(sizes), sizes]).astype(dtype)


def _random_floats(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Of all sizes, most of them moderate."""
    exponents = rng.choice([0.5, 1.0, 3.0, 12.0, 300.0], shape, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    with np.errstate(over="ignore"):
        sizes = np.exp(exponents * rng.normal(size=shape))
        values = np.where(rng.random(shape) < 0.5, sizes, -sizes).astype(dtype)
    marks = rng.choice(_marks(dtype), shape)
    return np.where(rng.random(shape) < 0.35, marks, values)


def _random_integers(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    limits = jnp.iinfo(dtype)
    sizes = rng.choice([3, 50, 2**16, 2**31, 2**62], shape)
    values = rng.integers(-sizes, sizes, endpoint=True).astype(object)
    ends = [limits.min, limits.min + 1, limits.max - 1, limits.max, 2**53, 2**53 + 1, 0]
    values = np.where(rng.random(shape) < 0.2, rng.choice(np.array(ends, object), shape), values)
    return np.asarray(np.clip(values, limits.min, limits.max)).astype(dtype)


def _random_values(rng: np.random.Generator, operand: Operand, shape: tuple[int, ...]) -> Any:
    if operand.values is not None:
        return rng.choice(np.array(operand.values, operand.dtype), shape)
    if operand.dtype == "bool":
        return rng.random(shape) < 0.5
    if jnp.issubdtype(operand.dtype, jnp.integer):
        return _random_integers(rng, operand.dtype, shape)
    drawn = _random_floats(rng, operand.dtype, shape)
    return np.clip(drawn, -operand.largest, operand.largest).astype(operand.dtype)


def _random_ends(rng: np.random.Generator, operand: Operand, shape: tuple[int, ...]) -> tuple:
    """Lowest and highest values: of all widths, also none, often with one sign."""
    dtype = operand.dtype
    one, other = (_random_values(rng, operand, shape) for _ in range(2))
    if jnp.issubdtype(dtype, jnp.floating) and operand.values is None:
        with np.errstate(all="ignore"):
            near = (one * (1 + 10 ** rng.uniform(-8, 0, shape))).astype(dtype)
            near = np.clip(near, -operand.largest, operand.largest).astype(dtype)
            step = np.nextafter(one, near)
        kind = rng.random(shape)
        other = np.select([kind < 0.3, kind < 0.4], [near, step], other)
        other = np.where(rng.random(shape) < 0.3, np.copysign(other, one), other).astype(dtype)
    other = np.where(rng.random(shape) < 0.15, one, other)
    return np.minimum(one, other), np.maximum(one, other)


def _points(
    rng: np.random.Generator, operand: Operand, low: np.ndarray, high: np.ndarray, bounds: Interval
) -> np.ndarray:
    """Values between low and high: the ends often, what is next to them, and all in between."""
    shape = (NUM_POINTS, *operand.shape)
    if operand.values is not None:
        within = np.array(operand.values, operand.dtype)
        drawn = rng.choice(within, shape)
        drawn = np.where((drawn >= low) & (drawn <= high), drawn, low)
        return _with_signs_of_zeros(rng, drawn, bounds)
    if operand.dtype == "bool" or jnp.issubdtype(operand.dtype, jnp.integer):
        drawn = np.clip(_random_values(rng, operand, shape), low, high)
        share = rng.random(shape)
        between = low.astype(object) + (share * (high.astype(float) - low.astype(float))).astype(
            object
        )
        between = np.asarray(np.clip(between, low.astype(object), high.astype(object))).astype(
            operand.dtype
        )
        return _one_of(rng, drawn, between, low, high)
    dtype = operand.dtype
    largest = _limits(dtype)[1]
    first, last = (np.clip(x.astype(float), -largest, largest) for x in (low, high))
    share = rng.random(shape)
    linear = first * (1 - share) + last * share
    same_sign = np.sign(first) * np.sign(last) > 0
    sizes = [np.log(np.where(same_sign, np.abs(x), 1.0)) for x in (first, last)]
    with np.errstate(over="ignore"):
        geometric = np.sign(first) * np.exp(sizes[0] * (1 - share) + sizes[1] * share)
        is_geometric = same_sign & (rng.random(shape) < 0.5)
        between = np.where(is_geometric, geometric, linear).astype(dtype)
    marks = rng.choice(_marks(dtype), shape)
    with np.errstate(all="ignore"):
        inner = np.nextafter(low, high), np.nextafter(high, low)
    drawn = np.clip(_one_of(rng, between, marks, low, high, *inner), low, high).astype(dtype)
    is_nan = bounds.has_nan & (rng.random(shape) < 0.1)
    drawn = _with_signs_of_zeros(rng, drawn, bounds)
    return np.where(is_nan, np.nan, drawn).astype(dtype)


def _with_signs_of_zeros(
    rng: np.random.Generator, drawn: np.ndarray, bounds: Interval
) -> np.ndarray:
    is_minus = (rng.random(drawn.shape) < 0.5) & bounds.has_minus_zero
    zeros = np.where(is_minus, -0.0, 0.0).astype(drawn.dtype)
    return np.where(drawn == 0, zeros, drawn)


def _one_of(rng: np.random.Generator, *choices: np.ndarray) -> np.ndarray:
    full = np.broadcast_arrays(*choices)
    return np.choose(rng.integers(len(full), size=full[0].shape), full)


def _random_operand(
    rng: np.random.Generator, operand: Operand, theme: str, is_first: bool
) -> tuple[Interval, np.ndarray]:
    """An interval, with bounds for each element or for all of them, and points inside.

    In the first round zeros may be −0 and nothing is NaN.
    """
    is_float = jnp.issubdtype(operand.dtype, jnp.floating)
    low, high = _random_ends(rng, operand, operand.shape)
    if rng.random() < 0.4 and low.size:
        low, high = _random_ends(rng, operand, ())
    if is_float and operand.values is None:
        low, high = _with_theme(low, high, theme, operand)
    chances = (0.0, 1.0) if is_first else (0.25, 0.5)
    has_nan, has_minus_zero = (bool(flag) for flag in is_float & (rng.random(2) < chances))
    ends = [intervals.of_constant(x) for x in (low, high)] if low.size else [intervals.ANY] * 2
    bounds = Interval(ends[0].low, ends[1].high, has_nan, has_minus_zero)
    if low.size and rng.random() < 0.2:
        bounds = bounds._replace(low=bounds.low.min())
    elif low.size and rng.random() < 0.2:
        bounds = bounds._replace(high=bounds.high.max())
    bounds = bounds._replace(has_minus_zero=has_minus_zero and bounds.touches_zero)
    return bounds, _points(rng, operand, low, high, bounds)


# What all operands of a round have in common, with how often.
THEMES = {"none": 0.6, "from 0": 0.2, "to 0": 0.05, "unbounded": 0.15}


def _with_theme(low: np.ndarray, high: np.ndarray, theme: str, operand: Operand) -> tuple:
    size, zero = np.maximum(np.abs(low), np.abs(high)), np.zeros_like(low)
    edge = np.full_like(low, operand.largest)
    themes = {"from 0": (zero, size), "to 0": (-size, zero), "unbounded": (-edge, edge)}
    return themes.get(theme, (low, high))


class Sample(NamedTuple):
    """Intervals of the operands of a case, and JAX's results at points inside of them."""

    bounds: list[list[Interval]]
    points: list[np.ndarray]
    results: list[np.ndarray]


class Equation(NamedTuple):
    """The one equation of a case; operands are places among the arguments, or constants."""

    params: dict
    operands: list[Any]
    avals: list[Any]
    outs: list[Any]


@functools.cache
def equation_of(case: Case) -> Equation:
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in case.operands]
    jaxpr = jax.make_jaxpr(case.function)(*structs).jaxpr
    while jaxpr.eqns[0].primitive.name in ("jit", "pjit"):
        jaxpr = jaxpr.eqns[0].params["jaxpr"].jaxpr
    name = case.primitive or case.name
    (equation,) = (equation for equation in jaxpr.eqns if equation.primitive.name == name)

    def operand(atom: Any) -> Interval | int:
        if isinstance(atom, core.Literal):
            return intervals.of_constant(np.asarray(atom.val, jnp.result_type(atom.aval)))
        is_argument = atom in jaxpr.invars
        return jaxpr.invars.index(atom) if is_argument else intervals.of_dtype(atom.aval.dtype)

    operands = [operand(atom) for atom in equation.invars]
    avals = [atom.aval for atom in equation.invars]
    return Equation(equation.params, operands, avals, [atom.aval for atom in equation.outvars])


@functools.cache
def sample_of(case: Case, seed: int) -> Sample:
    place = cases_of(case.name, is_same=case.is_same).index(case)
    rng = np.random.default_rng([seed, place, zlib.crc32(case.name.encode())])
    themes = ["from 0", *rng.choice(list(THEMES), NUM_ROUNDS - 1, p=list(THEMES.values()))]
    drawn = [
        [_random_operand(rng, a, theme, is_first=not k) for a in case.operands]
        for k, theme in enumerate(themes)
    ]
    points = [
        np.concatenate([operands[k][1] for operands in drawn]) for k in range(len(case.operands))
    ]
    results = jax.jit(jax.vmap(case.function))(*points)
    results = results if isinstance(results, (list, tuple)) else [results]
    bounds = [[interval for interval, _ in operands] for operands in drawn]
    return Sample(bounds, points, [np.asarray(result) for result in results])


def violations(case: Case, seed: int) -> Iterator[str]:
    """What is wrong with the bounds of a case, one line for each round with an error."""
    sample, equation = sample_of(case, seed), equation_of(case)
    for number, bounds in enumerate(sample.bounds):
        operands = [bounds[a] if isinstance(a, int) else a for a in equation.operands]
        part = slice(number * NUM_POINTS, (number + 1) * NUM_POINTS)
        for result, out in zip(sample.results, equation.outs, strict=True):
            interval = intervals.of_equation(
                case.name, equation.params, operands, equation.avals, out, case.is_same
            )
            is_wrong = _is_outside(result[part], interval)
            if np.any(is_wrong):
                place = tuple(np.argwhere(is_wrong)[0])
                is_alike = all(p.shape == result.shape for p in sample.points)
                points = [p[part][place if is_alike else place[0]] for p in sample.points]
                yield (
                    f"{case.name} of {points} is {result[part][place]!r} within {interval}, "
                    f"where the operands are within {operands}"
                )


def _is_outside(result: np.ndarray, interval: Interval) -> np.ndarray:
    if not jnp.issubdtype(result.dtype, jnp.floating):
        exact = result.astype(np.longdouble)
        return (exact < interval.low) | (exact > interval.high)
    number = result.astype(float)
    is_nan = np.isnan(number)
    is_minus_zero = (number == 0) & np.signbit(number)
    return (
        (~is_nan & ((number < interval.low) | (number > interval.high)))
        | (is_nan & (not interval.has_nan))
        | (is_minus_zero & (not interval.has_minus_zero))
    )


def cases_of(name: str, *, is_same: bool = False) -> list[Case]:
    return [case for case in CASES if case.name == name and case.is_same == is_same]


# Rules and mutants --------------------------------------------------------------------------------

NAMES = sorted(intervals._RULES)
NAMES_OF_SAME = sorted(intervals._OF_SAME)


def found_by(name: str, seed: int, *, is_same: bool = False) -> Iterator[str]:
    return itertools.chain.from_iterable(
        violations(case, seed) for case in cases_of(name, is_same=is_same)
    )


def is_found(name: str, seed: int, *, is_same: bool = False) -> bool:
    return next(found_by(name, seed, is_same=is_same), None) is not None


def test_every_rule_has_cases() -> None:
    assert {case.name for case in CASES if not case.is_same} == set(NAMES)
    assert {case.name for case in CASES if case.is_same} == set(NAMES_OF_SAME)


@pytest.mark.parametrize("name", NAMES)
def test_results_are_within_bounds(name: str, seed: int) -> None:
    found = list(found_by(name, seed))
    assert not found, "\n".join(found[:5])


@pytest.mark.parametrize("name", NAMES_OF_SAME)
def test_results_of_one_operand_twice_are_within_bounds(name: str, seed: int) -> None:
    found = list(found_by(name, seed, is_same=True))
    assert not found, "\n".join(found[:5])


def _step(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """A tenth of the width of an interval, or of its end where it has no width or is infinite."""
    width = high - low
    end = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high, 0.0))
    return np.where(np.isfinite(width) & (width > 0), 0.1 * width, 0.1 * (1 + np.abs(end)))


def _raised(low: np.ndarray, high: np.ndarray) -> tuple[Any, Any]:
    return np.where(np.isfinite(low), low, -1.0) + _step(low, high), high


def _lowered(low: np.ndarray, high: np.ndarray) -> tuple[Any, Any]:
    return low, np.where(np.isfinite(high), high, 1.0) - _step(low, high)


def _swapped(low: np.ndarray, high: np.ndarray) -> tuple[Any, Any]:
    return high, low


MUTATIONS = {"raised": _raised, "lowered": _lowered, "swapped": _swapped}
# Mutants that are right as well.
EQUIVALENT = {
    ("sub", "swapped"): "x − x is 0, an interval without width",
    ("gt", "swapped"): "x > x is false, whatever x is",
    ("lt", "swapped"): "and so is x < x",
}


def mutant_of(rule: Callable, mutation: str) -> Callable:
    def mutant(*args: Any) -> Interval:
        low, high = (np.asarray(bound, float) for bound in rule(*args)[:2])
        return Interval(*MUTATIONS[mutation](low, high))

    return mutant


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_mutants_are_found(
    name: str, mutation: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = mutant_of(intervals._RULES[name], mutation)
    monkeypatch.setitem(intervals._RULES, name, mutant)
    assert is_found(name, seed)


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("name", NAMES_OF_SAME)
def test_mutants_of_one_operand_twice_are_found(
    name: str, mutation: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = mutant_of(intervals._OF_SAME[name], mutation)
    monkeypatch.setitem(intervals._OF_SAME, name, mutant)
    assert is_found(name, seed, is_same=True) != ((name, mutation) in EQUIVALENT)


# Rules that were once there, or that forget a case.


def _span(operands: list[Interval], *_: Any) -> Interval:
    return Interval(operands[0].low, operands[0].high)


def _signs(operands: list[Interval], *_: Any) -> Interval:
    return Interval(np.sign(operands[0].low), np.sign(operands[0].high))


def _half_to_even(operands: list[Interval], *_: Any) -> Interval:
    return Interval(np.round(operands[0].low), np.round(operands[0].high))


def _truncated_low(operands: list[Interval], *_: Any) -> Interval:
    return Interval(np.trunc(operands[0].low), operands[0].high)


def _naive_quotient(operands: list[Interval], *_: Any) -> Interval:
    a, b = operands
    is_known = (b.low >= 0) | (b.high <= 0)
    low = np.where(is_known, 1 / np.where(b.high == 0, -0.0, b.high), -np.inf)
    high = np.where(is_known, 1 / np.where(b.low == 0, 0.0, b.low), np.inf)
    corners = [
        np.nan_to_num(x * y, posinf=np.inf, neginf=-np.inf) for x in a[:2] for y in (low, high)
    ]
    return Interval(np.minimum.reduce(corners), np.maximum.reduce(corners))


def _naive_sum(operands: list[Interval], params: dict, avals: list, *_: Any) -> Interval:
    """Takes sums that are small and whole for exact, whatever their terms are."""
    a, axes = operands[0], params["axes"]
    low, high = (np.broadcast_to(bound, avals[0].shape).sum(axes) for bound in a[:2])
    return Interval(low, high)


def _naive_comparison(operands: list[Interval], *_: Any) -> Interval:
    """Greater, for numbers alone."""
    a, b = operands
    return Interval(np.where(a.low > b.high, 1.0, 0.0), np.where(a.high <= b.low, 0.0, 1.0))


def _naive_odd_power(operands: list[Interval], params: dict, *_: Any) -> Interval:
    (a,) = operands
    if params["y"] < 0 and params["y"] % 2:
        return Interval(np.where(a.low >= 0, 0, -np.inf), np.where(a.high <= 0, 0, np.inf))
    return intervals.ANY


def _plain_product(operands: list[Interval], *_: Any) -> Interval:
    """Without rounding, and with NaN where a bound is infinite."""
    a, b = operands
    corners = [np.nan_to_num(x * y) for x in a[:2] for y in b[:2]]
    return Interval(np.minimum.reduce(corners), np.maximum.reduce(corners))


def _positive_base(operands: list[Interval], *_: Any) -> Interval:
    low = np.where(operands[0].low >= 0, 0.0, -np.inf)
    return Interval(low, np.asarray(np.inf))


def _unclipped(operands: list[Interval], *_: Any) -> Interval:
    low, a, high = operands
    return Interval(np.maximum(low.low, a.low), np.minimum(a.high, high.high))


def _always(low: float, high: float) -> Callable:
    return lambda *_: Interval.between(low, high)


BROKEN: dict[tuple[str, str], Callable] = {
    ("erf", "the sign of the operand"): _signs,
    ("erf", "within 1 in float32 as well"): intervals._rule_of_function(
        np.vectorize(math.erf, otypes=[float]), (0, 0), within=(-1, 1)
    ),
    ("round", "half to even"): _half_to_even,
    ("convert_element_type", "truncates one end"): _truncated_low,
    ("div", "forgets −0"): _naive_quotient,
    ("reduce_sum", "exact if whole"): _naive_sum,
    ("gt", "forgets NaN"): _naive_comparison,
    ("integer_pow", "forgets −0"): _naive_odd_power,
    ("pow", "forgets −0"): _positive_base,
    ("mul", "forgets rounding"): _plain_product,
    ("rsqrt", "forgets −0"): _always(0, np.inf),
    ("cbrt", "right sign at tiny numbers"): intervals._rule_of_function(np.cbrt, (0, 0)),
    ("igamma", "right at large a"): _always(0, np.inf),
    ("igammac", "never rounds below 0"): _always(0, np.inf),
    ("regularized_incomplete_beta", "right at large a"): _always(0, np.inf),
    ("reduce_precision", "keeps all digits"): _span,
    ("reduce_max", "forgets that there may be none"): intervals._hull_of_first,
    ("reduce_and", "forgets bits"): intervals._rule_of_reduction(np.min, lambda _: 1.0),
    ("gather", "forgets what fills"): intervals._hull_of_first,
    ("clamp", "forgets an order"): _unclipped,
    ("cosh", "at least 1.5"): _always(1.5, np.inf),
    ("sin", "positive"): _always(0, 1),
}
BROKEN_OF_SAME: dict[tuple[str, str], Callable] = {
    ("ne", "forgets NaN"): _always(0, 0),
    ("eq", "forgets NaN"): _always(1, 1),
    ("mul", "takes signs apart"): intervals._mul,
    ("dot_general", "takes any product for a square"): _always(0, np.inf),
}


@pytest.mark.parametrize(("name", "how"), BROKEN)
def test_broken_rules_are_found(
    name: str, how: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(intervals._RULES, name, BROKEN[name, how])
    assert is_found(name, seed)


@pytest.mark.parametrize("name", sorted(intervals._MAKES_NAN))
def test_forgotten_nans_are_found(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(intervals._MAKES_NAN, name)
    assert is_found(name, seed)


CAN_BE_MINUS_ZERO = sorted(
    name for name, rule in intervals._IS_MINUS_ZERO.items() if rule is not intervals._never
)


# They may be −0, but start from +0 as XLA compiles them here.
STARTS_FROM_ZERO = {"cumsum", "dot_general"}


@pytest.mark.parametrize("name", CAN_BE_MINUS_ZERO)
def test_forgotten_minus_zeros_are_found(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(intervals._IS_MINUS_ZERO, name, intervals._never)
    assert is_found(name, seed) or name in STARTS_FROM_ZERO
