"""Bounds of every element of a JAX expression, from the expression alone.

An interval is a pair of NumPy arrays (low, high), of the variable's shape or one for all its
elements. Bounds hold for the rounded results: they are widened where rounding may cross them, and
numbers below the smallest normal one may count as 0, as they do on most devices. A bound that is
infinite says that the value may be infinite.

NaN is in no interval: bounds say where a value is if it is a number, and those of a constant NaN
are crossed, +inf and −inf. Whether a value may be NaN is said apart, because what is compared
with NaN is false, a number again; and so is whether it may be −0, whose reciprocal is −inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Larger arrays have one interval for all their elements.
MAX_ELEMENTS = 4096
# Integers up to here are exact in the float64 that bounds are kept in.
_MAX_EXACT = 2.0**53
# Relative error that is allowed for where a function is not rounded correctly.
_TOLERANCE = {"float64": 1e-9, "float32": 3e-5}
# Division by a constant may be multiplication by its rounded reciprocal.
_DIVISION_ULPS = 4
# Further from 0 a sine is only known to be between −1 and 1.
_MAX_ANGLE = 1e4
# Gamma and beta functions of larger parameters may have any result.
_MAX_SHAPE = 1e6
_KNOWN_FLOATS = ("float64", "float32", "float16", "bfloat16")


class Interval(NamedTuple):
    """Lowest and highest values, and whether any element may be NaN or −0."""

    low: np.ndarray
    high: np.ndarray
    has_nan: bool = False
    has_minus_zero: bool = True

    @classmethod
    def between(cls, low: Any, high: Any) -> Interval:
        return cls(np.asarray(low, float), np.asarray(high, float))

    def hull(self) -> Interval:
        """One interval for all elements."""
        if not self.low.size or not self.high.size:
            return ANY
        return self._replace(low=self.low.min(), high=self.high.max())

    @property
    def sign(self) -> np.ndarray:
        """1 where no element is negative, −1 where none is positive, 0 where unknown."""
        return np.where(self.low >= 0, 1, np.where(self.high <= 0, -1, 0))

    @property
    def touches_zero(self) -> bool:
        """Whether any element may be 0."""
        return bool(np.any((self.low <= 0) & (self.high >= 0)))

    @property
    def is_bounded(self) -> bool:
        """Whether no element may be infinite."""
        return bool(np.all(self.low > -np.inf) and np.all(self.high < np.inf))

    @property
    def size(self) -> np.ndarray:
        """The largest absolute value."""
        return np.maximum(np.abs(self.low), np.abs(self.high))


ANY = Interval(np.asarray(-np.inf), np.asarray(np.inf), has_nan=True)
TRUTH = Interval(np.asarray(0.0), np.asarray(1.0), has_minus_zero=False)


def of_constant(value: Any) -> Interval:
    """The interval of a known array."""
    dtype = jnp.result_type(value)
    is_real = any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))
    if not is_real or isinstance(value, jax.core.Tracer) or not np.size(value):
        return of_dtype(dtype)
    array = np.asarray(value).astype(float)
    unknown = np.isnan(array)
    low, high = np.where(unknown, np.inf, array), np.where(unknown, -np.inf, array)
    if not jnp.issubdtype(dtype, jnp.floating):
        is_exact = np.abs(array) < _MAX_EXACT
        low, high = _down(low, is_exact), _up(high, is_exact)
    is_minus_zero = np.signbit(array) & (np.abs(array) < _tiny(dtype))
    bounds = Interval(low, high, bool(unknown.any()), bool(is_minus_zero.any()))
    return bounds if array.size <= MAX_ELEMENTS else bounds.hull()


def of_dtype(dtype: Any) -> Interval:
    """What an unknown value of a dtype is between."""
    if dtype == jnp.bool_:
        return TRUTH
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        low, high = np.asarray(float(limits.min)), np.asarray(float(limits.max))
        return Interval(low, high, has_minus_zero=False)
    return ANY


def of_variable(dtype: Any) -> Interval:
    """As `of_dtype`, for what varies: a coordinate, which is a finite number."""
    if str(dtype) not in _KNOWN_FLOATS:
        return of_dtype(dtype)
    largest = float(jnp.finfo(dtype).max)
    return Interval.between(-largest, largest)


def of_equation(
    name: str,
    params: dict,
    operands: list[Interval],
    avals: list,
    out: Any,
    is_same: bool | np.ndarray = False,
) -> Interval:
    """The interval of an equation's result; `is_same` says where both its operands are one."""
    rule = _RULES.get(name)
    default = of_dtype(out.dtype)
    is_float = jnp.issubdtype(out.dtype, jnp.floating)
    is_known = str(out.dtype) in _KNOWN_FLOATS or default is not ANY
    if rule is None or not operands or not is_known:
        return default
    has_same = bool(np.any(is_same)) and name in _OF_SAME
    is_all_same = has_same and bool(np.all(is_same))
    if is_all_same:
        rule = _OF_SAME[name]
    with np.errstate(all="ignore"):
        operands = [_flushed(a, aval.dtype) for a, aval in zip(operands, avals, strict=True)]
        low, high = rule(operands, params, avals, out)[:2]
        if has_same and not is_all_same:
            own = _OF_SAME[name](operands, params, avals, out)
            low, high = np.where(is_same, own.low, low), np.where(is_same, own.high, high)
        low = np.where(np.isnan(low), default.low, low)
        high = np.where(np.isnan(high), default.high, high)
        if is_float:
            low, high = _outward(low, high, out.dtype)
        elif name not in _PICKS and jnp.issubdtype(out.dtype, jnp.integer):
            wraps = (low < default.low) | (high >= float(jnp.iinfo(out.dtype).max) + 1)
            low, high = np.where(wraps, default.low, low), np.where(wraps, default.high, high)
        bounds = Interval(np.asarray(low, float), np.asarray(high, float))
        bounds = bounds._replace(
            has_nan=is_float and _has_nan(name, params, operands, avals, out),
            has_minus_zero=is_float
            and _has_minus_zero(name, params, operands, bounds, is_all_same),
        )
    if math.prod(out.shape) > MAX_ELEMENTS or not _fits(bounds, out.shape):
        return bounds.hull()
    return bounds


def moved(
    name: str, params: dict, numbers: list[np.ndarray], avals: list, out: Any
) -> np.ndarray | None:
    """What a primitive that only moves elements makes of arrays; None if these are too large."""
    operands = [Interval(number, number) for number in numbers]
    found = _RULES[name](operands, params, avals, out)
    is_whole = found.low.shape == tuple(out.shape) and np.array_equal(found.low, found.high)
    return found.low if is_whole else None


def _fits(bounds: Interval, shape: tuple[int, ...]) -> bool:
    return all(not bound.ndim or bound.shape == shape for bound in bounds[:2])


# Rounding -----------------------------------------------------------------------------------------


def _tiny(dtype: Any) -> float:
    """The smallest normal number; 0 for integers."""
    return float(jnp.finfo(dtype).tiny) if jnp.issubdtype(dtype, jnp.floating) else 0.0


def _flushed(a: Interval, dtype: Any) -> Interval:
    """With 0 where a number is so small that it may count as 0; both bounds in one shape."""
    tiny = _tiny(dtype)
    low = np.where((a.low > 0) & (a.low < tiny), 0.0, a.low)
    high = np.where((a.high < 0) & (a.high > -tiny), 0.0, a.high)
    if low.shape != high.shape:
        low, high = np.broadcast_arrays(low, high)
    has_minus_zero = a.has_minus_zero or bool(tiny and np.any((low < 0) & (high >= 0)))
    return Interval(low, high, a.has_nan, has_minus_zero)


def _outward(low: np.ndarray, high: np.ndarray, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """The nearest numbers of a dtype that lie outside; they bound unrounded results as well."""
    if dtype != np.float64:
        down, up = low.astype(dtype), high.astype(dtype)
        down = np.where(down.astype(float) > low, np.nextafter(down, _infinite(-1, dtype)), down)
        up = np.where(up.astype(float) < high, np.nextafter(up, _infinite(1, dtype)), up)
        low, high = down.astype(float), up.astype(float)
    bounds = _flushed(Interval(low, high), dtype)
    return bounds.low, bounds.high


def _infinite(sign: int, dtype: Any) -> np.ndarray:
    return np.asarray(sign * np.inf).astype(dtype)


def _down(value: np.ndarray, is_exact: Any) -> np.ndarray:
    """A lower bound from a float64 result: the step below it where it is not exact.

    What underflows to +0 is positive.
    """
    is_low = is_exact | ((value == 0) & ~np.signbit(value))
    return np.where(is_low, value, np.nextafter(value, -np.inf))


def _up(value: np.ndarray, is_exact: Any) -> np.ndarray:
    """As `_down`, an upper bound."""
    return -_down(-value, is_exact)


def _tolerance(dtype: Any) -> float:
    return _TOLERANCE.get(str(dtype), 8 * float(jnp.finfo(dtype).eps))


def _loose(low: Any, high: Any, tolerance: Any) -> Interval:
    """Widened by a relative error."""
    return Interval(low - tolerance * np.abs(low), high + tolerance * np.abs(high))


# Arithmetic ---------------------------------------------------------------------------------------


def _spread(corners: list[tuple[np.ndarray, Any]]) -> Interval:
    """Bounds from float64 results at the corners of a box, each with whether it is exact.

    A bound that is infinite stands for finite values, too, and those times 0 are 0.
    """
    known = [(np.where(np.isnan(x), 0.0, x), is_exact | np.isnan(x)) for x, is_exact in corners]
    low = np.minimum.reduce([_down(*corner) for corner in known])
    return Interval(low, np.maximum.reduce([_up(*corner) for corner in known]))


def _sum_of_two(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A float64 sum, and whether it is exact."""
    total = x + y
    part = total - x
    error = (x - (total - part)) + (y - part)
    return total, (error == 0) | np.isinf(x) | np.isinf(y)


def _add(operands: list[Interval], *_: Any) -> Interval:
    a, b = operands
    return Interval(_down(*_sum_of_two(a.low, b.low)), _up(*_sum_of_two(a.high, b.high)))


def _sub(operands: list[Interval], *_: Any) -> Interval:
    a, b = operands
    return _add([a, _neg([b])])


def _product_of_two(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A float64 product, and whether it is surely exact."""
    is_plain = [np.isin(np.abs(z), (0, 1, np.inf)) for z in (x, y)]
    is_short = [(z.astype(np.float32).astype(float) == z) & (np.abs(z) > 1e-37) for z in (x, y)]
    return x * y, is_plain[0] | is_plain[1] | (is_short[0] & is_short[1])


def _product(a: Interval, b: Interval) -> Interval:
    return _spread([_product_of_two(x, y) for x in a[:2] for y in b[:2]])


def _mul(operands: list[Interval], *_: Any) -> Interval:
    a, b = operands
    return _product(a, b)


def _div(operands: list[Interval], _params: Any, _avals: Any, out: Any) -> Interval:
    a, b = operands
    if not jnp.issubdtype(out.dtype, jnp.floating):
        return _integer_div(a, b)
    quotients = [
        (x / np.where(y == 0, 0.0, y), _is_plain_quotient(x, y)) for x in a[:2] for y in b[:2]
    ]
    low, high = _spread(quotients)[:2]
    low, high = _loose(low, high, _DIVISION_ULPS * float(jnp.finfo(out.dtype).eps))[:2]
    is_known = _is_positive(b) | (b.high < 0)
    return Interval(np.where(is_known, low, -np.inf), np.where(is_known, high, np.inf))


def _is_plain_quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x == 0) | (y == 0) | np.isinf(x) | np.isinf(y)


def _is_positive(a: Interval) -> np.ndarray:
    """Whether a reciprocal is never negative."""
    return (a.low > 0) | ((a.low >= 0) & (not a.has_minus_zero))


def _integer_div(a: Interval, b: Interval) -> Interval:
    """Rounded towards 0; by 0 it is anything."""
    quotients = [x / y for x in a[:2] for y in b[:2]]
    error = np.where(a.size < _MAX_EXACT / 8, 0.0, 1 + 1e-15 * a.size)
    is_known = (b.low > 0) | (b.high < 0)
    low = np.trunc(np.minimum.reduce(quotients)) - error
    high = np.trunc(np.maximum.reduce(quotients)) + error
    return Interval(np.where(is_known, low, np.nan), np.where(is_known, high, np.nan))


def _neg(operands: list[Interval], *_: Any) -> Interval:
    (a,) = operands
    return Interval(-a.high, -a.low)


def _abs(operands: list[Interval], *_: Any) -> Interval:
    (a,) = operands
    return Interval(np.maximum(np.maximum(a.low, -a.high), 0.0), a.size)


def _square(operands: list[Interval], *_: Any) -> Interval:
    size = _abs(operands[:1])
    low, high = (_product_of_two(x, x) for x in size[:2])
    return Interval(_down(*low), _up(*high))


def _integer_pow(operands: list[Interval], params: dict, _avals: Any, out: Any) -> Interval:
    """Powers by repeated multiplication, each of which rounds; those of 0 and ±1 are exact."""
    (a,) = operands
    exponent = params["y"]
    if exponent < 0:
        is_even = exponent % 2 == 0
        low = np.where(is_even | _is_positive(a), 0.0, -np.inf)
        return Interval(low, np.where(not is_even and a.high < 0, 0.0, np.inf))
    base = _abs(operands) if exponent % 2 == 0 else a
    low, high = (bound**exponent for bound in base[:2])
    low, high = _down(low, low != 0), _up(high, high != 0)
    if jnp.issubdtype(out.dtype, jnp.floating):
        tolerance = 4.0 * exponent * float(jnp.finfo(out.dtype).eps)
    else:
        tolerance = np.where(np.maximum(abs(low), abs(high)) < _MAX_EXACT, 0.0, 1e-12)
    bounds = _loose(low, high, tolerance)
    return _pinned(bounds, *base[:2], ((-1, -1), (0, 0), (1, 1))) if exponent else bounds


def _pow(operands: list[Interval], *_: Any) -> Interval:
    base, exponent = operands
    is_even = (exponent.low == exponent.high) & (exponent.low % 2 == 0)
    is_root = (base.low >= 0) & (exponent.low >= 0)
    is_positive = is_even | is_root | _is_positive(base)
    return Interval(np.where(is_positive, 0.0, -np.inf), np.asarray(np.inf))


# Functions ----------------------------------------------------------------------------------------


def _pinned(
    bounds: Interval, first: Any, last: Any, pins: tuple, is_decreasing: bool = False
) -> Any:
    """Bounds of a monotone function from `first` to `last` that knows some results exactly."""
    low, high = bounds[:2]
    for x, y in pins:
        is_above, is_below = (first <= x, last >= x) if is_decreasing else (first >= x, last <= x)
        low, high = np.where(is_above & (low < y), y, low), np.where(is_below & (high > y), y, high)
    return Interval(low, high)


def _rule_of_function(
    function: Callable,
    *pins: tuple[float, float],
    within: tuple[float, float] = (-np.inf, np.inf),
    is_decreasing: bool = False,
) -> Callable:
    """Bounds of a monotone function that is not rounded correctly.

    Args:
        function: in float64.
        pins: arguments with their results, which no other result crosses.
        within: the range, which no result leaves.
        is_decreasing: whether it falls.
    """

    def rule(operands: list[Interval], _params: Any, _avals: Any, out: Any) -> Interval:
        (a,) = operands
        first, last = (a.high, a.low) if is_decreasing else (a.low, a.high)
        bounds = _loose(function(first), function(last), _tolerance(out.dtype))
        low, high = _pinned(bounds, first, last, pins, is_decreasing)[:2]
        return Interval(np.maximum(low, within[0]), np.minimum(high, within[1]))

    return rule


def _rule_of_monotone(function: Callable) -> Callable:
    """Bounds of an increasing function that is exact."""

    def rule(operands: list[Interval], *_: Any) -> Interval:
        (a,) = operands
        return Interval(function(a.low), function(a.high))

    return rule


def _rule_of_range(low: float, high: float) -> Callable:
    return lambda *_: Interval.between(low, high)


def _rule_of_wave(function: Callable, crest: float) -> Callable:
    """Bounds of a sine whose maximum is at `crest`."""

    def rule(operands: list[Interval], _params: Any, _avals: Any, out: Any) -> Interval:
        (a,) = operands
        slack = _tolerance(out.dtype) * (1 + a.size)

        def reaches(place: float) -> np.ndarray:
            first, last = ((bound - place) / (2 * np.pi) for bound in a[:2])
            return np.floor(last + slack) >= np.ceil(first - slack)

        values = function(a.low), function(a.high)
        is_far = ~(a.size < _MAX_ANGLE)
        low = np.where(is_far | reaches(crest + np.pi), -1.0, np.minimum(*values) - slack)
        high = np.where(is_far | reaches(crest), 1.0, np.maximum(*values) + slack)
        return Interval(np.maximum(low, -1.0), np.minimum(high, 1.0))

    return rule


def _sin(operands: list[Interval], *rest: Any) -> Interval:
    (a,) = operands
    low, high = _rule_of_wave(np.sin, np.pi / 2)(operands, *rest)[:2]
    low = np.where((a.low >= 0) & (a.high <= 3), np.maximum(low, 0.0), low)
    return Interval(low, np.where((a.low >= -3) & (a.high <= 0), np.minimum(high, 0.0), high))


def _logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


_erf_in_float64, _erfc_in_float64 = (
    np.vectorize(function, otypes=[float]) for function in (math.erf, math.erfc)
)


def _erf(operands: list[Interval], _params: Any, _avals: Any, out: Any) -> Interval:
    """In float64 between −1 and 1; XLA's polynomial of other dtypes goes a little beyond."""
    edge = 1.0 if out.dtype == np.float64 else 1 + 8 * float(jnp.finfo(out.dtype).eps)
    rule = _rule_of_function(_erf_in_float64, (0, 0), within=(-edge, edge))
    return rule(operands, _params, _avals, out)


def _cosh(operands: list[Interval], _params: Any, _avals: Any, out: Any) -> Interval:
    low, high = _abs(operands)[:2]
    return _loose(np.cosh(low), np.cosh(high), _tolerance(out.dtype))


def _rsqrt(operands: list[Interval], *rest: Any) -> Interval:
    (a,) = operands
    bounds = _rule_of_function(
        lambda x: 1 / np.sqrt(np.maximum(x, 0)), within=(0, np.inf), is_decreasing=True
    )(operands, *rest)
    has_minus_zero = a.has_minus_zero & (a.low <= 0) & (a.high >= 0)
    return bounds._replace(low=np.where(has_minus_zero, -np.inf, bounds.low))


def _cbrt(operands: list[Interval], *rest: Any) -> Interval:
    """Its sign is lost below the smallest normal number, where XLA's may have the wrong one."""
    low, high = _rule_of_function(np.cbrt)(operands, *rest)[:2]
    slack = 4 * np.cbrt(_tiny(rest[-1].dtype))
    return Interval(
        np.where((low >= 0) & (low < slack), -slack, low),
        np.where((high <= 0) & (high > -slack), slack, high),
    )


def _leaves_digits(a: Interval, dtype: Any, share: float) -> np.ndarray:
    """Whether a parameter of a gamma or beta function is small enough for XLA's algorithm."""
    return a.high <= min(share / float(jnp.finfo(dtype).eps), _MAX_SHAPE)


def _igamma(operands: list[Interval], _params: Any, _avals: Any, out: Any) -> Interval:
    is_safe = _leaves_digits(operands[0], out.dtype, 1e-2)
    return Interval(np.where(is_safe, 0.0, -np.inf), np.asarray(np.inf))


def _igammac(operands: list[Interval], *rest: Any) -> Interval:
    """For small a it is 1 − igamma(a, x), which rounds below 0."""
    bounds = _igamma(operands, *rest)
    return bounds._replace(low=np.where(operands[0].low < 0.01, -np.inf, bounds.low))


def _incomplete_beta(operands: list[Interval], _params: Any, _avals: Any, out: Any) -> Interval:
    """For small b it is 1 − its complement, which rounds below 0."""
    a, b, _ = operands
    are_small = [_leaves_digits(x, out.dtype, 1e-4) for x in (a, b)]
    is_safe = are_small[0] & are_small[1] & (b.low >= 0.1)
    return Interval(np.where(is_safe, 0.0, -np.inf), np.asarray(np.inf))


def _round(operands: list[Interval], params: dict, *_: Any) -> Interval:
    def away_from_zero(x: np.ndarray) -> np.ndarray:
        whole = np.trunc(x)
        return np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), whole)

    is_even = params["rounding_method"] == jax.lax.RoundingMethod.TO_NEAREST_EVEN
    return _rule_of_monotone(np.round if is_even else away_from_zero)(operands)


def _reduce_precision(operands: list[Interval], params: dict, *_: Any) -> Interval:
    (a,) = operands
    step = 2.0 ** -params["mantissa_bits"]
    top = 2 ** (params["exponent_bits"] - 1) - 1
    largest, smallest = (2 - step) * 2.0**top, 2.0 ** (1 - top)
    slack = [step * np.maximum(np.abs(bound), smallest) for bound in a[:2]]
    low, high = a.low - slack[0], a.high + slack[1]
    low = np.where((a.low >= 0) & (low < smallest), 0.0, np.where(low < -largest, -np.inf, low))
    high = np.where((a.high <= 0) & (high > -smallest), 0.0, np.where(high > largest, np.inf, high))
    return Interval(np.minimum(low, largest), np.maximum(high, -largest))


# Choices ------------------------------------------------------------------------------------------


def _max(operands: list[Interval], *_: Any) -> Interval:
    a, b = operands
    return Interval(np.maximum(a.low, b.low), np.maximum(a.high, b.high))


def _min(operands: list[Interval], *_: Any) -> Interval:
    a, b = operands
    return Interval(np.minimum(a.low, b.low), np.minimum(a.high, b.high))


def _clamp(operands: list[Interval], *_: Any) -> Interval:
    low, a, high = operands
    return _min([_max([low, a]), high])


def _select(operands: list[Interval], *_: Any) -> Interval:
    which, *cases = operands
    last = len(cases) - 1
    low: Any = np.inf
    high: Any = -np.inf
    for index, case in enumerate(cases):
        is_possible = (np.clip(which.low, 0, last) <= index) & (
            index <= np.clip(which.high, 0, last)
        )
        low = np.where(is_possible, np.minimum(low, case.low), low)
        high = np.where(is_possible, np.maximum(high, case.high), high)
    return Interval(low, high)


def _rule_of_comparison(name: str) -> Callable:
    """What is compared with NaN is false."""

    def rule(operands: list[Interval], *_: Any) -> Interval:
        a, b = operands if name in ("gt", "ge") else operands[::-1]
        is_strict = name in ("gt", "lt")
        always = a.low > b.high if is_strict else a.low >= b.high
        never = a.high <= b.low if is_strict else a.high < b.low
        is_sure = always & ~never & (not (a.has_nan or b.has_nan))
        return Interval(np.where(is_sure, 1.0, 0.0), np.where(never & ~always, 0.0, 1.0))

    return rule


def _same_ne(operands: list[Interval], *_: Any) -> Interval:
    return TRUTH if operands[0].has_nan else Interval.between(0, 0)


def _same_eq(operands: list[Interval], *_: Any) -> Interval:
    return TRUTH if operands[0].has_nan else Interval.between(1, 1)


def _not(operands: list[Interval], _params: Any, _avals: Any, out: Any) -> Interval:
    (a,) = operands
    return Interval(1 - a.high, 1 - a.low) if out.dtype == jnp.bool_ else of_dtype(out.dtype)


def _rule_of_logic(combine: Callable) -> Callable:
    def rule(operands: list[Interval], _params: Any, _avals: Any, out: Any) -> Interval:
        if out.dtype != jnp.bool_:
            return of_dtype(out.dtype)
        a, b = operands
        return Interval(combine(a.low, b.low), combine(a.high, b.high))

    return rule


def _convert(operands: list[Interval], _params: Any, avals: list, out: Any) -> Interval:
    (a,) = operands
    if jnp.issubdtype(out.dtype, jnp.floating) or avals[0].dtype == jnp.bool_:
        return a
    limits = of_dtype(out.dtype)
    if out.dtype == jnp.bool_ or a.has_nan:
        return limits
    # A number too large for an integer wraps or saturates.
    low, high = np.trunc(a.low), np.trunc(a.high)
    is_inside = (low >= limits.low) & (high < float(jnp.iinfo(out.dtype).max) + 1)
    is_kept = is_inside | ((a.low >= limits.low) & (a.high <= limits.high) & _is_integer(avals[0]))
    return Interval(np.where(is_kept, low, limits.low), np.where(is_kept, high, limits.high))


def _is_integer(aval: Any) -> bool:
    return bool(jnp.issubdtype(aval.dtype, jnp.integer))


# Reductions ---------------------------------------------------------------------------------------


def _sum(operands: list[Interval], params: dict, avals: list, out: Any) -> Interval:
    (a,) = operands
    axes = params["axes"]
    count = math.prod(avals[0].shape[axis] for axis in axes)
    if a.low.ndim and a.high.ndim:
        low = _least_sum(a.low, axes, 1, count, out.dtype)
        return Interval(low, -_least_sum(-a.high, axes, 1, count, out.dtype))
    low, high = a.hull()[:2]
    return Interval(
        _least_sum(low, (), count, count, out.dtype),
        -_least_sum(-high, (), count, count, out.dtype),
    )


def _least_sum(
    terms: np.ndarray, axes: tuple[int, ...], repeats: int, count: int, dtype: Any
) -> np.ndarray:
    """A bound below all sums of `count` terms, of which each bounds one, in any order.

    Rounding keeps order, so that the sum is least if every term is. Sums of few whole numbers are
    exact; other ones may round once for each term, relative to the sum of their magnitudes.
    """
    if not count:
        return np.zeros(())
    total, size = repeats * terms.sum(axes), repeats * np.abs(terms).sum(axes)
    is_float = jnp.issubdtype(dtype, jnp.floating)
    eps = float(jnp.finfo(dtype).eps) if is_float else float(np.finfo(float).eps)
    is_whole = np.all(np.trunc(terms) == terms, axes) & (size * eps < 1)
    error = np.where(is_whole | (count == 1), 0.0, 2 * count * eps * size)
    if is_float:
        error = np.where(size + error < float(jnp.finfo(dtype).max), error, np.inf)
    is_positive = np.all(terms >= 0, axes)
    return np.where(is_positive, np.fmax(total - error, 0.0), total - error)


def _cumsum(operands: list[Interval], params: dict, avals: list, out: Any) -> Interval:
    low, high = operands[0].hull()[:2]
    count = avals[0].shape[params["axis"]]
    least, most = (_least_sum(x, (), count, count, out.dtype) for x in (low, -high))
    return Interval(np.where(low >= 0, low, least), np.where(high <= 0, high, -most))


def _prod(operands: list[Interval], *_: Any) -> Interval:
    """Products of numbers within [−1, 1] stay there, and of positive ones are positive."""
    a = operands[0].hull()
    high = 1.0 if a.low >= -1 and a.high <= 1 else np.inf
    return Interval.between(0.0 if a.low >= 0 else -high, high)


def _dot(operands: list[Interval], *_: Any) -> Interval:
    """Signs alone: how exact matrix products are depends on the device."""
    term = _product(operands[0].hull(), operands[1].hull())
    low = np.where(term.low >= 0, 0.0, -np.inf)
    return Interval(low, np.where(term.high <= 0, 0.0, np.inf))


def _square_dot(operands: list[Interval], params: dict, avals: list, *_: Any) -> Interval:
    """A vector times itself; a matrix product has terms that are no squares."""
    (contract, other), (batch, other_batch) = params["dimension_numbers"]
    is_aligned = tuple(contract) == tuple(other) and tuple(batch) == tuple(other_batch)
    if is_aligned and len(contract) + len(batch) == len(avals[0].shape):
        return Interval.between(0, np.inf)
    return _dot(operands)


def _rule_of_reduction(function: Callable, of_none: Callable[[Any], Any]) -> Callable:
    """Largest and smallest elements; what they are among NaNs depends on how XLA compiles them."""

    def rule(operands: list[Interval], params: dict, avals: list, out: Any) -> Interval:
        (a,) = operands
        axes = params["axes"]
        if not math.prod(avals[0].shape[axis] for axis in axes):
            return of_constant(np.asarray(of_none(out.dtype), out.dtype))
        if a.has_nan:
            return of_dtype(out.dtype)
        if not a.low.ndim or not a.high.ndim:
            return a.hull()
        return Interval(function(a.low, axis=axes), function(a.high, axis=axes))

    return rule


def _cumulative_extreme(operands: list[Interval], _params: Any, _avals: Any, out: Any) -> Interval:
    return of_dtype(out.dtype) if operands[0].has_nan else operands[0].hull()


def _lowest(dtype: Any) -> Any:
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    return jnp.iinfo(dtype).min if is_integer else of_dtype(dtype).low


def _highest(dtype: Any) -> Any:
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    return jnp.iinfo(dtype).max if is_integer else of_dtype(dtype).high


def _rule_of_quantifier(function: Callable, of_none: float) -> Callable:
    reduction = _rule_of_reduction(function, lambda _: of_none)

    def rule(operands: list[Interval], params: dict, avals: list, out: Any) -> Interval:
        is_truth = out.dtype == jnp.bool_
        return reduction(operands, params, avals, out) if is_truth else of_dtype(out.dtype)

    return rule


# Movements ----------------------------------------------------------------------------------------


def _rule_of_movement(move: Callable) -> Callable:
    """Rules of primitives that move elements, in NumPy."""

    def rule(operands: list[Interval], params: dict, avals: list, out: Any) -> Interval:
        if any(math.prod(aval.shape) > MAX_ELEMENTS for aval in (*avals, out)):
            return _hull_of_all(operands)
        full = [
            [np.broadcast_to(bound, aval.shape) for bound in a[:2]]
            for a, aval in zip(operands, avals, strict=True)
        ]
        return Interval(*(move([a[k] for a in full], params, out) for k in (0, 1)))

    return rule


def _hull_of_all(operands: list[Interval], *_: Any) -> Interval:
    hulls = [a.hull() for a in operands]
    return Interval(np.min([a.low for a in hulls], axis=0), np.max([a.high for a in hulls], axis=0))


def _hull_of_first(operands: list[Interval], *_: Any) -> Interval:
    return operands[0].hull()


def _hull_of_two(operands: list[Interval], *_: Any) -> Interval:
    return _hull_of_all(operands[:2])


def _first(operands: list[Interval], *_: Any) -> Interval:
    return operands[0]


def _fill_value(params: dict, dtype: Any) -> Any:
    """What a gather gives for elements that are out of bounds; None if those next to them."""
    if "FILL" not in str(params["mode"]).upper():
        return None
    value = params["fill_value"]
    if value is not None or jnp.issubdtype(dtype, jnp.inexact):
        return np.nan if value is None else value
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        return limits.max if jnp.issubdtype(dtype, jnp.unsignedinteger) else limits.min
    return 1


def _gather(operands: list[Interval], params: dict, avals: Any, out: Any) -> Interval:
    fill = _fill_value(params, out.dtype)
    table, places = operands
    is_known = places.low.shape == avals[1].shape and np.array_equal(places.low, places.high)
    if is_known and table.low.ndim and table.high.ndim and math.prod(out.shape) <= MAX_ELEMENTS:
        ids = 1 + np.arange(table.low.size, dtype=np.int32).reshape(avals[0].shape)
        with jax.ensure_compile_time_eval():
            where = jnp.asarray(places.low).astype(avals[1].dtype)
            taken = jax.lax.gather_p.bind(jnp.asarray(ids), where, **{**params, "fill_value": 0})
        outside = 0.0 if fill is None else fill
        ends = (np.append(outside, end.ravel())[np.asarray(taken)] for end in table[:2])
        return Interval(*ends)
    return operands[0].hull() if fill is None else _hull_of_all([operands[0], of_constant(fill)])


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
    "sign": _rule_of_monotone(np.sign),
    "exp": _rule_of_function(np.exp, (0, 1), within=(0, np.inf)),
    "exp2": _rule_of_function(np.exp2, (0, 1), within=(0, np.inf)),
    "expm1": _rule_of_function(np.expm1, (0, 0), within=(-1, np.inf)),
    "log": _rule_of_function(lambda x: np.log(np.maximum(x, 0)), (1, 0)),
    "log1p": _rule_of_function(lambda x: np.log1p(np.maximum(x, -1)), (0, 0)),
    "sqrt": _rule_of_function(lambda x: np.sqrt(np.maximum(x, 0)), (1, 1), within=(0, np.inf)),
    "cbrt": _cbrt,
    "floor": _rule_of_monotone(np.floor),
    "ceil": _rule_of_monotone(np.ceil),
    "round": _round,
    "tanh": _rule_of_function(np.tanh, (0, 0), within=(-1, 1)),
    "sinh": _rule_of_function(np.sinh, (0, 0)),
    "atan": _rule_of_function(np.arctan, (0, 0)),
    "asinh": _rule_of_function(np.arcsinh, (0, 0)),
    "rsqrt": _rsqrt,
    "cosh": _cosh,
    "acosh": _rule_of_range(0, np.inf),
    "acos": _rule_of_range(0, 3.1416),
    "logistic": _rule_of_function(_logistic, (0, 0.5), within=(0, 1)),
    "erf": _erf,
    "erfc": _rule_of_function(_erfc_in_float64, (0, 1), within=(0, 2), is_decreasing=True),
    "sin": _sin,
    "cos": _rule_of_wave(np.cos, 0.0),
    "bessel_i0e": _rule_of_range(0, np.inf),
    "igamma": _igamma,
    "igammac": _igammac,
    "regularized_incomplete_beta": _incomplete_beta,
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
    "reduce_max": _rule_of_reduction(np.max, _lowest),
    "reduce_min": _rule_of_reduction(np.min, _highest),
    "reduce_and": _rule_of_quantifier(np.min, 1.0),
    "reduce_or": _rule_of_quantifier(np.max, 0.0),
    "cumsum": _cumsum,
    "cumprod": _prod,
    "cummax": _cumulative_extreme,
    "cummin": _cumulative_extreme,
    "dot_general": _dot,
    "sort": _hull_of_all,
    "rev": _hull_of_first,
    "dynamic_slice": _hull_of_first,
    "dynamic_update_slice": _hull_of_two,
    "gather": _gather,
    "copy": _hull_of_first,
    "copy_p": _hull_of_first,
    "stop_gradient": _first,
    "reduce_precision": _reduce_precision,
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
# These move elements, and `moved` does the same to arrays.
MOVEMENTS = (
    "reshape", "squeeze", "expand_dims", "transpose", "concatenate", "broadcast_in_dim", "slice",
    "stack",
)  # fmt: skip
# Those of element by element, where some of the elements may be the same.
PAIRWISE = ("sub", "gt", "lt", "ge", "le", "ne", "eq")
_OF_SAME: dict[str, Callable] = {
    "mul": _square,
    "sub": _rule_of_range(0, 0),
    "gt": _rule_of_range(0, 0),
    "lt": _rule_of_range(0, 0),
    "ge": _same_eq,
    "le": _same_eq,
    "ne": _same_ne,
    "eq": _same_eq,
    "dot_general": _square_dot,
}
# Results of these are elements of their operands, so that integers do not wrap.
_PICKS = {
    "max", "min", "clamp", "select_n", "sign", "reduce_max", "reduce_min", "cummax", "cummin",
    "sort", "rev", "dynamic_slice", "dynamic_update_slice", "gather", "copy", "copy_p",
    "stop_gradient", "reshape", "squeeze", "expand_dims", "transpose", "concatenate",
    "broadcast_in_dim", "slice", "stack", "unstack", "split", "tile", "convert_element_type",
}  # fmt: skip


# NaN and −0 ---------------------------------------------------------------------------------------


def _has_nan(name: str, params: dict, operands: list[Interval], avals: list, out: Any) -> bool:
    makes_nan = _MAKES_NAN.get(name)
    is_from_operand = any(a.has_nan for a in operands)
    return is_from_operand or (makes_nan is not None and makes_nan(operands, params, avals, out))


def _has_minus_zero(
    name: str, params: dict, operands: list[Interval], bounds: Interval, is_same: bool
) -> bool:
    if not bounds.touches_zero or np.any(bounds.low < 0):
        return bounds.touches_zero
    rule = _IS_MINUS_ZERO.get(name)
    if rule is None or (name == "mul" and is_same):
        return rule is None
    return rule(operands, params)


def _is_outside(low: float, high: float) -> Callable:
    """Functions that are NaN outside of their domain."""
    return lambda operands, *_: bool(
        np.any(operands[0].low < low) or np.any(operands[0].high > high)
    )


def _meets_infinity(a: Interval, b: Interval) -> bool:
    """Whether a + b may be inf − inf."""
    return bool(
        np.any((a.low == -np.inf) & (b.high == np.inf))
        or np.any((a.high == np.inf) & (b.low == -np.inf))
    )


def _is_zero_times_infinity(operands: list[Interval], *_: Any) -> bool:
    a, b = operands
    return (a.touches_zero and not b.is_bounded) or (b.touches_zero and not a.is_bounded)


def _is_undefined_quotient(operands: list[Interval], *_: Any) -> bool:
    a, b = operands
    return (a.touches_zero and b.touches_zero) or not (a.is_bounded or b.is_bounded)


def _sum_makes_nan(operands: list[Interval], _params: Any, avals: list, out: Any) -> bool:
    return _overflows_both_ways(operands[0].hull(), math.prod(avals[0].shape), out)


def _overflows_both_ways(term: Interval, count: int, out: Any) -> bool:
    is_one_sided = term.low >= 0 or term.high <= 0
    return bool(not is_one_sided and 2 * count * term.size >= float(jnp.finfo(out.dtype).max))


def _prod_makes_nan(operands: list[Interval], *_: Any) -> bool:
    a = operands[0].hull()
    is_small, is_large = a.size <= 1, a.low >= 1 or a.high <= -1
    return bool(not (is_small or is_large))


def _dot_makes_nan(operands: list[Interval], _params: Any, avals: list, out: Any) -> bool:
    hulls = [a.hull() for a in operands]
    count = math.prod(avals[0].shape)
    term = _product(*hulls)
    return _is_zero_times_infinity(hulls) or _overflows_both_ways(term, count, out)


def _gather_makes_nan(_operands: Any, params: dict, _avals: Any, out: Any) -> bool:
    fill = _fill_value(params, out.dtype)
    return fill is not None and bool(np.isnan(fill))


_MAKES_NAN: dict[str, Callable] = {
    "add": lambda operands, *_: _meets_infinity(*operands),
    "add_any": lambda operands, *_: _meets_infinity(*operands),
    "sub": lambda operands, *_: _meets_infinity(operands[0], _neg(operands[1:])),
    "mul": _is_zero_times_infinity,
    "div": _is_undefined_quotient,
    "pow": _is_outside(0, np.inf),
    "log": _is_outside(0, np.inf),
    "log1p": _is_outside(-1, np.inf),
    "sqrt": _is_outside(0, np.inf),
    "rsqrt": _is_outside(0, np.inf),
    "acosh": _is_outside(1, np.inf),
    "acos": _is_outside(-1, 1),
    "sin": lambda operands, *_: not operands[0].is_bounded,
    "cos": lambda operands, *_: not operands[0].is_bounded,
    "igamma": lambda *_: True,
    "igammac": lambda *_: True,
    "regularized_incomplete_beta": lambda *_: True,
    "reduce_sum": _sum_makes_nan,
    "cumsum": _sum_makes_nan,
    "reduce_prod": _prod_makes_nan,
    "cumprod": _prod_makes_nan,
    "dot_general": _dot_makes_nan,
    "gather": _gather_makes_nan,
}


def _never(*_: Any) -> bool:
    return False


def _as_operand(operands: list[Interval], _params: Any) -> bool:
    return any(a.has_minus_zero for a in operands)


def _minus_zero_times(operands: list[Interval], _params: Any) -> bool:
    is_negative = any(np.any(a.low < 0) for a in operands)
    return is_negative or any(a.has_minus_zero for a in operands)


# Whether a result that is not negative may be −0; any may whose name is not here.
_IS_MINUS_ZERO: dict[str, Callable] = {
    **dict.fromkeys(
        (
            "abs", "square", "exp", "exp2", "logistic", "erfc", "cosh", "acos", "rsqrt",
            "bessel_i0e",
        ),
        _never,
    ),
    **dict.fromkeys(
        (
            "max", "min", "clamp", "select_n", "sqrt", "tanh", "sinh", "atan", "asinh",
            "erf", "expm1", "log1p", "convert_element_type", "reduce_sum", "cumsum", "reduce_max",
            "reduce_min", "cummax", "cummin", "sort", "rev", "dynamic_slice",
            "dynamic_update_slice", "copy", "copy_p", "stop_gradient", "reshape", "squeeze",
            "expand_dims", "transpose", "concatenate", "broadcast_in_dim", "slice", "stack",
            "unstack", "split", "tile",
        ),
        _as_operand,
    ),
    "add": lambda operands, _: all(a.has_minus_zero for a in operands),
    "add_any": lambda operands, _: all(a.has_minus_zero for a in operands),
    "sub": lambda operands, _: operands[0].has_minus_zero and operands[1].touches_zero,
    "mul": _minus_zero_times,
    "div": _minus_zero_times,
    "integer_pow": lambda operands, params: params["y"] % 2 == 1 and operands[0].has_minus_zero,
    "reduce_prod": _minus_zero_times,
    "cumprod": _minus_zero_times,
    "dot_general": _minus_zero_times,
}  # fmt: skip
