"""Numbers beyond floating-point range, and events with a probability: the arithmetic of targets.

A `Scaled` number is mantissa · exp(log_scale). Its mantissa keeps sign, zeros and cancellation as
plain arithmetic has them, so that derivatives are right at zeros too; its scale keeps what would
under- or overflow. Every rule divides by magnitudes that carry no derivative, which leaves value
and derivative of the number unchanged.

`NUMBER_RULES` and `EVENT_RULES` say, for each JAX primitive, what it does to such operands.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# A product of more plain factors than this is scaled: float32 ends at 1e±38.
MAX_DEGREE = 4
# Above this argument erfc is a continued fraction, which then has converged to rounding.
_ERFC_SPLIT, _ERFC_TERMS = 4.0, 24
# A scaled matrix product is expanded into its terms up to this many of them.
_MAX_TERMS = 1 << 20


class Scaled(NamedTuple):
    """mantissa · exp(log_scale); no log_scale means 0. `degree` counts factors in the mantissa."""

    mantissa: jax.Array
    log_scale: jax.Array | None = None
    degree: int = 1

    @property
    def scale(self) -> jax.Array:
        return jnp.zeros_like(self.mantissa) if self.log_scale is None else self.log_scale

    def value(self) -> jax.Array:
        """As a plain number, which may under- or overflow."""
        if self.log_scale is None:
            return self.mantissa
        return self.mantissa * jnp.exp(self.log_scale)

    def normalised(self) -> Scaled:
        """The same number with mantissa −1, 0 or 1 (infinite and NaN ones stay)."""
        size = lax.stop_gradient(jnp.abs(self.mantissa))
        size = jnp.where((size > 0) & (size < jnp.inf), size, 1.0).astype(size.dtype)
        return Scaled(self.mantissa / size, self.scale + jnp.log(size), 0)

    def bounded(self) -> Scaled:
        """The same number with a mantissa that further factors cannot push out of range."""
        return self.normalised() if self.degree > MAX_DEGREE else self

    def map(self, function: Callable[[jax.Array], jax.Array]) -> Scaled:
        """Applies a function that moves elements to mantissa and scale."""
        scale = None if self.log_scale is None else function(self.log_scale)
        return Scaled(function(self.mantissa), scale, self.degree)

    def times_exp(self, exponent: jax.Array) -> Scaled:
        """The number times exp(exponent)."""
        scale = exponent if self.log_scale is None else self.log_scale + exponent
        return Scaled(self.mantissa, scale, self.degree)


class Event(NamedTuple):
    """A boolean with a probability."""

    log_true: jax.Array
    log_false: jax.Array

    def negated(self) -> Event:
        return Event(self.log_false, self.log_true)

    def map(self, function: Callable[[jax.Array], jax.Array]) -> Event:
        return Event(function(self.log_true), function(self.log_false))

    @classmethod
    def certain(cls, value: jax.Array, dtype: Any) -> Event:
        """An event that is known to be true or false."""
        zero, never = jnp.zeros((), dtype), jnp.full((), -jnp.inf, dtype)
        return cls(jnp.where(value, zero, never), jnp.where(value, never, zero))

    @classmethod
    def likely(cls, logit: jax.Array) -> Event:
        """An event of probability logistic(logit)."""
        return cls(jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(-logit))


# Arithmetic ---------------------------------------------------------------------------------------


def times(a: Scaled, b: Scaled) -> Scaled:
    """a · b."""
    a, b = a.bounded(), b.bounded()
    product = Scaled(a.mantissa * b.mantissa, a.log_scale, a.degree + b.degree)
    return (product if b.log_scale is None else product.times_exp(b.log_scale)).bounded()


def divided(a: Scaled, b: Scaled) -> Scaled:
    """a / b."""
    a, b = a.bounded(), b.bounded()
    quotient = Scaled(a.mantissa / b.mantissa, a.log_scale, a.degree + b.degree)
    return (quotient if b.log_scale is None else quotient.times_exp(-b.log_scale)).bounded()


def negated(a: Scaled) -> Scaled:
    """−a."""
    return a._replace(mantissa=-a.mantissa)


def plus(a: Scaled, b: Scaled) -> Scaled:
    """a + b, relative to the larger of them.

    Written so that numbers which nearly cancel, as in 1 − exp(−h), keep the digits of their scale.
    """
    if a.log_scale is None and b.log_scale is None:
        return Scaled(a.mantissa + b.mantissa, None, max(a.degree, b.degree))
    a, b = a.normalised(), b.normalised()
    shift = _common(jnp.maximum(_magnitude(a), _magnitude(b)))
    close = jnp.abs(a.scale - b.scale) < 0.5
    near = (a.mantissa + b.mantissa) + (_excess(a, shift) + _excess(b, shift))
    return Scaled(jnp.where(close, near, _relative(a, shift) + _relative(b, shift)), shift)


def total(a: Scaled, axes: tuple[int, ...]) -> Scaled:
    """The sum over axes."""
    if a.log_scale is None:
        return Scaled(jnp.sum(a.mantissa, axes), None, a.degree)
    a = a.normalised()
    magnitude = jnp.max(_magnitude(a), axes, keepdims=True, initial=-jnp.inf)
    shift = _common(magnitude)
    return Scaled(jnp.sum(_relative(a, shift), axes), jnp.squeeze(shift, axes))


def product(a: Scaled, axes: tuple[int, ...]) -> Scaled:
    """The product over axes."""
    a = a.normalised()
    return Scaled(jnp.prod(a.mantissa, axes), jnp.sum(a.scale, axes), 0)


def _magnitude(a: Scaled) -> jax.Array:
    """log of a normalised number's absolute value, without derivative."""
    zero = a.mantissa == 0
    return lax.stop_gradient(jnp.where(zero, -jnp.inf, a.scale).astype(a.scale.dtype))


def _common(magnitude: jax.Array) -> jax.Array:
    return jnp.where(jnp.isfinite(magnitude), magnitude, 0.0).astype(magnitude.dtype)


def _relative(a: Scaled, shift: jax.Array) -> jax.Array:
    """A normalised number over exp(shift), where shift is at least its magnitude."""
    return a.mantissa * jnp.exp(_exponent(a, shift))


def _excess(a: Scaled, shift: jax.Array) -> jax.Array:
    """What a normalised number over exp(shift) has more than its mantissa."""
    finite = jnp.where(jnp.isfinite(a.mantissa), a.mantissa, 0.0).astype(a.mantissa.dtype)
    return finite * jnp.expm1(_exponent(a, shift))


def _exponent(a: Scaled, shift: jax.Array) -> jax.Array:
    # Only zeros exceed the shift, and theirs must stay finite: 0 · exp(∞) is NaN.
    limit = 0.5 * math.log(float(jnp.finfo(shift.dtype).max))
    relative = a.scale - shift
    return jnp.where(a.mantissa == 0, jnp.minimum(relative, limit), relative)


def greater(a: Scaled, b: Scaled) -> jax.Array:
    """Whether a > b; right also where both are out of range."""
    if a.log_scale is None and b.log_scale is None:
        return a.mantissa > b.mantissa
    one, other = jnp.sign(a.mantissa), jnp.sign(b.mantissa)
    # Not by normalised mantissas: compiled, x/|x| is 1 only up to rounding.
    log_one, log_other = log_abs(a), log_abs(b)
    is_larger = jnp.where(one > 0, log_one > log_other, log_one < log_other)
    return jnp.where(one == other, is_larger, one > other)


def chosen(which: jax.Array, *cases: Scaled) -> Scaled:
    """select_n of numbers."""
    degree = max(case.degree for case in cases)
    mantissa = lax.select_n(which, *(case.mantissa for case in cases))
    if all(case.log_scale is None for case in cases):
        return Scaled(mantissa, None, degree)
    return Scaled(mantissa, lax.select_n(which, *(case.scale for case in cases)), degree)


def mixed(event: Event, which: jax.Array, otherwise: Scaled, then: Scaled) -> Scaled:
    """The mean of two branches; where one is not a number (a guarded branch), the choice."""
    usable = _is_usable(otherwise) & _is_usable(then)

    def safe(a: Scaled) -> Scaled:
        return a.map(lambda x: jnp.where(usable, x, jnp.zeros((), x.dtype)))

    mean = plus(
        safe(otherwise).times_exp(event.log_false),
        safe(then).times_exp(event.log_true),
    )
    return chosen(usable, chosen(which, otherwise, then), mean)


def _is_usable(a: Scaled) -> jax.Array:
    finite = jnp.isfinite(a.mantissa)
    return finite if a.log_scale is None else finite & (a.log_scale < jnp.inf)


def log_abs(a: Scaled) -> jax.Array:
    """log|a|; −inf, with derivative 0, where a is 0."""
    zero = a.mantissa == 0
    magnitude = jnp.log(jnp.abs(jnp.where(zero, jnp.ones_like(a.mantissa), a.mantissa)))
    if a.log_scale is not None:
        magnitude = magnitude + a.log_scale
    return jnp.where(zero, -jnp.inf, magnitude).astype(magnitude.dtype)


# Softened maximum ---------------------------------------------------------------------------------


def softened_maximum(x: Scaled, bound: Scaled, width: jax.Array, *, is_negative: bool) -> Scaled:
    """A smooth max(x, bound) that tends to it as width → 0.

    It leads towards x > bound from everywhere and keeps the sign of the maximum where that is
    known: a softened relu is a softplus, positive and exponentially small far below.
    """
    if is_negative:
        return negated(_softened_minimum_of_positive(negated(x), negated(bound), width))
    excess = plus(x, negated(bound)).value() / width
    ramp = log1p(Scaled(jnp.ones_like(excess), excess))
    return plus(bound, times(Scaled(width), ramp))


def _softened_minimum_of_positive(x: Scaled, bound: Scaled, width: jax.Array) -> Scaled:
    power = 1 + bound.value() / width
    logs = jnp.stack(jnp.broadcast_arrays(-power * log_abs(x), -power * log_abs(bound)))
    log_minimum = -jax.nn.logsumexp(logs, axis=0) / power
    return Scaled(jnp.ones_like(log_minimum), log_minimum, 0)


# Functions ----------------------------------------------------------------------------------------


def exponential(x: jax.Array) -> Scaled:
    """exp(x)."""
    return Scaled(jnp.ones_like(x), x, 0)


def logistic(x: jax.Array) -> Scaled:
    """1 / (1 + exp(−x))."""
    return exponential(jax.nn.log_sigmoid(x))


def erfc(x: jax.Array) -> Scaled:
    """erfc(x), for large x by Laplace's continued fraction times exp(−x²)."""
    is_large = x > _ERFC_SPLIT
    large = jnp.where(is_large, x, _ERFC_SPLIT)
    fraction = large
    for k in range(_ERFC_TERMS, 0, -1):
        fraction = large + (0.5 * k) / fraction
    near = lax.erfc(jnp.where(is_large, 0.0, x).astype(x.dtype))
    mantissa = jnp.where(is_large, 1 / (fraction * math.sqrt(math.pi)), near)
    return Scaled(mantissa, jnp.where(is_large, -large * large, 0.0).astype(x.dtype))


def expm1(a: Scaled) -> Scaled:
    """exp(a) − 1."""
    value = a.value()
    is_large = value > 1
    large, small = jnp.where(is_large, value, 1.0), jnp.where(is_large, 0.5, value)
    big = Scaled(-jnp.expm1(-large), large)
    return chosen(is_large, _times_ratio(a, small, jnp.expm1, 0.5, ~is_large), big)


def log1p(a: Scaled) -> Scaled:
    """log(1 + a)."""
    # Beyond 1/eps the logarithm is that of a itself; capped, exp has no infinite derivative there.
    limit = -math.log(float(jnp.finfo(a.mantissa.dtype).eps))
    if a.log_scale is not None:
        a = a.normalised()
        value = a.mantissa * jnp.exp(jnp.minimum(a.scale, limit + 1))
    else:
        value = a.mantissa
    is_large = value > math.exp(limit)
    small = jnp.where(is_large, 0.5, value)
    big = Scaled(jnp.where(is_large, log_abs(a), 1.0))
    return chosen(is_large, _times_ratio(a, small, jnp.log1p, -0.5, ~is_large), big)


def _times_ratio(
    a: Scaled, value: jax.Array, function: Callable, curvature: float, where: jax.Array
) -> Scaled:
    """function(a) as a · (function(a)/a), for a function that is a + curvature·a² near 0."""
    is_tiny = jnp.abs(value) < math.sqrt(float(jnp.finfo(value.dtype).eps))
    away = jnp.where(is_tiny, 1.0, value)
    ratio = jnp.where(is_tiny, 1 + curvature * value, function(away) / away)
    safe = a.map(lambda x: jnp.where(where, x, jnp.zeros((), x.dtype)))
    return times(safe, Scaled(ratio, None, 0))


def power(a: Scaled, exponent: jax.Array) -> Scaled:
    """a to a plain power."""
    a = a.normalised()
    return Scaled(jnp.power(a.mantissa, exponent), a.scale * exponent, 0)


def integer_power(a: Scaled, exponent: int) -> Scaled:
    """a to a whole power."""
    a = a.normalised()
    return Scaled(lax.integer_pow(a.mantissa, exponent), a.scale * exponent, 0)


def root(a: Scaled, function: Callable, exponent: float) -> Scaled:
    """A power for which JAX has a function of its own."""
    a = a.normalised()
    return Scaled(function(a.mantissa), a.scale * exponent, 0)


def cumulative(a: Scaled, combine: Callable, axis: int, reverse: bool) -> Scaled:
    """Running sums or products."""
    a = a.normalised()

    def step(x: tuple, y: tuple) -> tuple:
        result = combine(Scaled(x[0], x[1], 0), Scaled(y[0], y[1], 0)).normalised()
        return result.mantissa, result.scale

    mantissa, scale = lax.associative_scan(step, (a.mantissa, a.scale), reverse, axis)
    return Scaled(mantissa, scale)


def extremum(a: Scaled, axes: tuple[int, ...], sign: int) -> Scaled:
    """The largest (sign 1) or smallest (sign −1) element over axes."""
    if a.log_scale is None:
        reduce = jnp.max if sign > 0 else jnp.min
        return Scaled(reduce(a.mantissa, axes), None, a.degree)
    last = tuple(range(-len(axes), 0))

    def flat(x: jax.Array) -> jax.Array:
        moved = jnp.moveaxis(x, axes, last)
        return moved.reshape(*moved.shape[: moved.ndim - len(axes)], -1)

    signs = sign * jnp.sign(flat(a.mantissa))
    best = jnp.max(signs, -1, keepdims=True)
    order = jnp.where(best == 0, jnp.zeros_like(signs), best * flat(log_abs(a)))
    index = jnp.argmax(jnp.where(signs == best, order, -jnp.inf), -1, keepdims=True)
    return a.map(lambda x: jnp.take_along_axis(flat(x), index, -1)[..., 0])


def dot(a: Scaled, b: Scaled, dimension_numbers: Any) -> Scaled | None:
    """A matrix product, term by term; None where that has too many terms."""
    (contract_a, contract_b), (batch_a, batch_b) = dimension_numbers
    shapes = a.mantissa.shape, b.mantissa.shape
    free_a, free_b = (
        [i for i in range(len(shape)) if i not in (*contract, *batch)]
        for shape, contract, batch in zip(
            shapes, (contract_a, contract_b), (batch_a, batch_b), strict=True
        )
    )
    num_terms = math.prod(shapes[0]) * math.prod(shapes[1][i] for i in free_b)
    if num_terms > _MAX_TERMS:
        return None
    batch, left, right = len(batch_a), len(free_a), len(free_b)

    def first(x: jax.Array) -> jax.Array:
        moved = jnp.transpose(x, (*batch_a, *free_a, *contract_a))
        return jnp.expand_dims(moved, tuple(range(batch + left, batch + left + right)))

    def second(x: jax.Array) -> jax.Array:
        moved = jnp.transpose(x, (*batch_b, *free_b, *contract_b))
        return jnp.expand_dims(moved, tuple(range(batch, batch + left)))

    terms = times(a.map(first), b.map(second))
    ndim = terms.mantissa.ndim
    return total(terms, tuple(range(ndim - len(contract_a), ndim)))


# Events -------------------------------------------------------------------------------------------


def both(a: Event, b: Event) -> Event:
    """Whether both of two independent events happen."""
    return Event(a.log_true + b.log_true, jnp.logaddexp(a.log_false, a.log_true + b.log_false))


def either(a: Event, b: Event) -> Event:
    """Whether at least one of two independent events happens."""
    return both(a.negated(), b.negated()).negated()


def exclusive(a: Event, b: Event) -> Event:
    """Whether just one of two independent events happens."""
    differ = jnp.logaddexp(a.log_true + b.log_false, a.log_false + b.log_true)
    agree = jnp.logaddexp(a.log_true + b.log_true, a.log_false + b.log_false)
    return Event(differ, agree)


def every(a: Event, axes: tuple[int, ...]) -> Event:
    """Whether all elements are true; the first false one splits its complement."""
    last = tuple(range(-len(axes), 0))

    def flat(x: jax.Array) -> jax.Array:
        moved = jnp.moveaxis(x, axes, last)
        return moved.reshape(*moved.shape[: moved.ndim - len(axes)], -1)

    log_true, log_false = flat(a.log_true), flat(a.log_false)
    running = jnp.cumsum(log_true, -1)
    before = jnp.concatenate([jnp.zeros_like(running[..., :1]), running[..., :-1]], -1)
    return Event(jnp.sum(log_true, -1), jax.nn.logsumexp(before + log_false, axis=-1))


def some(a: Event, axes: tuple[int, ...]) -> Event:
    """Whether at least one element is true."""
    return every(a.negated(), axes).negated()


# Rules of primitives ------------------------------------------------------------------------------


def _extreme(sign: int) -> Callable[..., Scaled]:
    def rule(a: Scaled, b: Scaled, **_: Any) -> Scaled:
        a, b = broadcast(a, b)
        return chosen(greater(b, a) if sign > 0 else greater(a, b), a, b)

    return rule


def broadcast(*numbers: Scaled) -> list[Scaled]:
    """Numbers in their common shape."""
    shape = np.broadcast_shapes(*(number.mantissa.shape for number in numbers))
    return [number.map(functools.partial(jnp.broadcast_to, shape=shape)) for number in numbers]


def _power_rule(a: Scaled, b: Scaled, **_: Any) -> Scaled:
    return power(a, b.value())


# Rules that read plain values and make a scale.
SOURCES: dict[str, Callable[..., Scaled]] = {
    "exp": lambda a, **_: exponential(a.value()),
    "exp2": lambda a, **_: exponential(a.value() * math.log(2)),
    "logistic": lambda a, **_: logistic(a.value()),
    "erfc": lambda a, **_: erfc(a.value()),
}
# Rules of scaled operands; those with degree make a scale of many plain factors as well.
NUMBER_RULES: dict[str, Callable[..., Scaled | None]] = {
    **SOURCES,
    "expm1": lambda a, **_: expm1(a),
    "log1p": lambda a, **_: log1p(a),
    "mul": lambda a, b, **_: times(a, b),
    "div": lambda a, b, **_: divided(a, b),
    "add": lambda a, b, **_: plus(a, b),
    "add_any": lambda a, b, **_: plus(a, b),
    "sub": lambda a, b, **_: plus(a, negated(b)),
    "neg": lambda a, **_: negated(a),
    "abs": lambda a, **_: a._replace(mantissa=jnp.abs(a.mantissa)),
    "sign": lambda a, **_: Scaled(jnp.sign(a.mantissa)),
    "square": lambda a, **_: times(a, a),
    "integer_pow": lambda a, y, **_: integer_power(a, y),
    "pow": _power_rule,
    "sqrt": lambda a, **_: root(a, jnp.sqrt, 0.5),
    "rsqrt": lambda a, **_: root(a, lax.rsqrt, -0.5),
    "cbrt": lambda a, **_: root(a, jnp.cbrt, 1 / 3),
    "max": _extreme(1),
    "min": _extreme(-1),
    "reduce_sum": lambda a, axes, **_: total(a, axes),
    "reduce_prod": lambda a, axes, **_: product(a, axes),
    "reduce_max": lambda a, axes, **_: extremum(a, axes, 1),
    "reduce_min": lambda a, axes, **_: extremum(a, axes, -1),
    "cumsum": lambda a, axis, reverse, **_: cumulative(a, plus, axis, reverse),
    "cumprod": lambda a, axis, reverse, **_: cumulative(a, times, axis, reverse),
    "dot_general": lambda a, b, dimension_numbers, **_: dot(a, b, dimension_numbers),
}
EVENT_RULES: dict[str, Callable[..., Event]] = {
    "and": lambda a, b, **_: both(a, b),
    "or": lambda a, b, **_: either(a, b),
    "xor": lambda a, b, **_: exclusive(a, b),
    "not": lambda a, **_: a.negated(),
    "reduce_and": lambda a, axes, **_: every(a, axes),
    "reduce_or": lambda a, axes, **_: some(a, axes),
}
# Primitives that only move elements, by how many leading operands hold the elements.
STRUCTURAL: dict[str, int | None] = {
    "reshape": 1,
    "broadcast_in_dim": 1,
    "squeeze": 1,
    "expand_dims": 1,
    "transpose": 1,
    "slice": 1,
    "rev": 1,
    "copy": 1,
    "copy_p": 1,
    "stop_gradient": 1,
    "dynamic_slice": 1,
    "gather": 1,
    "dynamic_update_slice": 2,
    "concatenate": None,
    "stack": None,
    "unstack": 1,
    "split": 1,
    "tile": 1,
}
