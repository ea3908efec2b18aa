"""Every rule of scaled numbers and of events, against float64 and boolean logic, and its mutants.

A number is given to a rule once as it is and once as mantissa · exp(scale), with a scale that is
drawn anew for every element. Sign and log-magnitude of the result must be those of the same
primitive in extended precision.
"""

from __future__ import annotations

import functools
import itertools
import math
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from estimand.target import scaled
from estimand.target.scaled import EVENT_RULES, NUMBER_RULES, SOURCES, Event, Scaled

TOLERANCE = 1e-9
NUM_NUMBERS = 400


class Numbers(NamedTuple):
    """How the operands of a rule are drawn, and its results in extended precision.

    `size` is the magnitude that rounding errors are relative to.
    """

    exact: Callable[..., Any]
    num_operands: int = 1
    shape: tuple[int, ...] = (NUM_NUMBERS,)
    low: float = -math.inf
    largest: float = 40.0
    params: tuple[tuple[str, Any], ...] = ()
    size: Callable[..., Any] | None = None


def _sizes(*values: Any) -> Any:
    return functools.reduce(np.add, map(np.abs, values))


def _running(function: Callable) -> Callable:
    return lambda x: function(x, axis=1)


def _running_back(function: Callable) -> Callable:
    return lambda x: function(x[:, ::-1], axis=1)[:, ::-1]


def _erfc(x: Any) -> Any:
    return special.erfc(np.asarray(x, float)).astype(np.longdouble)


def _dot_sizes(x: Any, y: Any) -> Any:
    return np.abs(x) @ np.abs(y)


GRID = (40, 6)
FORWARD = (("axis", 1), ("reverse", False))
BACKWARD = (("axis", 1), ("reverse", True))
AXES = (("axes", (1,)),)
DOT = (("dimension_numbers", (((1,), (0,)), ((), ()))),)
CASES: dict[str, list[Numbers]] = {
    "exp": [Numbers(np.exp, largest=700.0)],
    "exp2": [Numbers(np.exp2, largest=1000.0)],
    "logistic": [Numbers(lambda x: 1 / (1 + np.exp(-x)), largest=700.0)],
    "erfc": [Numbers(_erfc, largest=20.0)],
    "expm1": [Numbers(np.expm1)],
    "log1p": [Numbers(np.log1p, low=-0.9)],
    "mul": [Numbers(np.multiply, 2)],
    "div": [Numbers(np.divide, 2)],
    "add": [Numbers(np.add, 2, size=_sizes)],
    "add_any": [Numbers(np.add, 2, size=_sizes)],
    "sub": [Numbers(np.subtract, 2, size=_sizes)],
    "neg": [Numbers(np.negative)],
    "abs": [Numbers(np.abs)],
    "sign": [Numbers(np.sign)],
    "square": [Numbers(np.square)],
    "integer_pow": [
        Numbers(functools.partial(lambda x, y: x**y, y=y), params=(("y", y),))
        for y in (-3, -2, 2, 3, 7)
    ],
    "pow": [Numbers(np.power, 2, low=1e-3, largest=8.0)],
    "sqrt": [Numbers(np.sqrt, low=0.0)],
    "rsqrt": [Numbers(lambda x: 1 / np.sqrt(x), low=1e-3)],
    "cbrt": [Numbers(np.cbrt)],
    "max": [Numbers(np.maximum, 2)],
    "min": [Numbers(np.minimum, 2)],
    "reduce_sum": [
        Numbers(lambda x: x.sum(1), shape=GRID, params=AXES, size=lambda x: np.abs(x).sum(1))
    ],
    "reduce_prod": [Numbers(lambda x: x.prod(1), shape=GRID, params=AXES)],
    "reduce_max": [Numbers(lambda x: x.max(1), shape=GRID, params=AXES)],
    "reduce_min": [Numbers(lambda x: x.min(1), shape=GRID, params=AXES)],
    "cumsum": [
        Numbers(running, shape=GRID, params=params, size=lambda x, f=running: f(np.abs(x)))
        for running, params in (
            (_running(np.cumsum), FORWARD),
            (_running_back(np.cumsum), BACKWARD),
        )
    ],
    "cumprod": [
        Numbers(direction(np.cumprod), shape=GRID, params=params)
        for direction, params in ((_running, FORWARD), (_running_back, BACKWARD))
    ],
    "dot_general": [Numbers(np.matmul, 2, shape=(6, 6), params=DOT, size=_dot_sizes, largest=9.0)],
}


def _drawn(numbers: Numbers, rng: np.random.Generator) -> np.ndarray:
    """Numbers of both signs and of all sizes up to the largest; 0, 1 and −1 among them."""
    sizes = numbers.largest * np.exp(-5 * rng.exponential(0.3, numbers.shape))
    values = np.where(rng.random(numbers.shape) < 0.5, sizes, -sizes)
    marks = rng.choice([0.0, 1.0, -1.0], numbers.shape)
    values = np.where(rng.random(numbers.shape) < 0.1, marks, values)
    values[0] = 0.0
    return np.where(values < numbers.low, np.maximum(sizes, numbers.low), values)


def _forms(values: np.ndarray, name: str, rng: np.random.Generator) -> list[Scaled]:
    """A number as it is, and with scales; those that read plain values get these alone."""
    plain = Scaled(jnp.asarray(values))
    if name in SOURCES:
        return [plain]
    scales = rng.choice([0.0, 3.0, -40.0, 200.0, -300.0], values.shape) + rng.normal(
        size=values.shape
    )
    return [plain, Scaled(jnp.asarray(values * np.exp(-scales)), jnp.asarray(scales))]


class Checks(NamedTuple):
    """What a rule is given, and what it must give."""

    operands: tuple[Scaled, ...]
    params: dict
    exact: np.ndarray
    size: np.ndarray


@functools.cache
def checks_of(name: str, seed: int) -> list[Checks]:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    found = []
    for numbers in CASES[name]:
        values = [_drawn(numbers, rng) for _ in range(numbers.num_operands)]
        precise = [x.astype(np.longdouble) for x in values]
        with np.errstate(all="ignore"):
            exact = np.asarray(numbers.exact(*precise))
            size = np.abs(exact) if numbers.size is None else numbers.size(*precise)
        forms = [_forms(x, name, rng) for x in values]
        for operands in itertools.product(*forms):
            found.append(Checks(operands, dict(numbers.params), exact, size))
    return found


def wrong_numbers(name: str, rule: Callable[..., Scaled | None], seed: int) -> str:
    """Where sign or log-magnitude of a rule's results are wrong; nothing if they are right."""
    for check in checks_of(name, seed):
        number = rule(*check.operands, **check.params)
        assert number is not None
        log_abs = np.asarray(scaled.log_abs(number))
        sign = np.where(log_abs == -np.inf, 0.0, np.sign(np.asarray(number.mantissa)))
        with np.errstate(all="ignore"):
            exact_log = np.log(np.abs(check.exact)).astype(float)
            log_size = np.log(check.size).astype(float)
            lost = check.size / np.abs(check.exact)
            tolerance = TOLERANCE * lost * np.maximum(1.0, np.abs(exact_log))
            is_off = np.abs(log_abs - exact_log) > tolerance
        is_off |= (sign != np.sign(check.exact)) & (lost < 1e-3 / TOLERANCE)
        is_wrong = np.select(
            [check.exact == 0, np.isinf(exact_log)],
            [log_abs > log_size + math.log(TOLERANCE), log_abs != exact_log],
            is_off,
        ).astype(bool)
        if np.any(is_wrong):
            place = tuple(np.argwhere(is_wrong)[0])
            return f"{name}: {sign[place]}, {log_abs[place]} instead of {check.exact[place]}"
    return ""


def test_every_rule_has_numbers() -> None:
    assert set(CASES) == set(NUMBER_RULES)


@pytest.mark.parametrize("name", sorted(NUMBER_RULES))
def test_sign_and_magnitude_are_exact(name: str, seed: int) -> None:
    assert wrong_numbers(name, NUMBER_RULES[name], seed) == ""


def _negated(number: Scaled) -> Scaled:
    return number._replace(mantissa=-number.mantissa)


def _grown(number: Scaled) -> Scaled:
    return number.times_exp(jnp.full_like(number.mantissa, 1e-6))


def _without_scale(number: Scaled) -> Scaled:
    return Scaled(number.mantissa + (0.0 if number.log_scale is not None else 1e-6))


def _without_zeros(number: Scaled) -> Scaled:
    return number._replace(mantissa=jnp.where(number.mantissa == 0, 1e-3, number.mantissa))


MUTATIONS = {
    "negated": _negated,
    "grown": _grown,
    "without scale": _without_scale,
    "without zeros": _without_zeros,
}
# Results of these are never 0, so that a mutant which has no zeros is right.
NEVER_ZERO = {"exp", "exp2", "logistic", "erfc", "rsqrt", "pow"}


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("name", sorted(NUMBER_RULES))
def test_mutants_of_numbers_are_found(name: str, mutation: str, seed: int) -> None:
    def mutant(*operands: Scaled, **params: Any) -> Scaled:
        number = NUMBER_RULES[name](*operands, **params)
        assert number is not None
        return MUTATIONS[mutation](number)

    is_equivalent = mutation == "without zeros" and name in NEVER_ZERO
    assert bool(wrong_numbers(name, mutant, seed)) != is_equivalent


# Rules that confuse one thing.
BROKEN: dict[tuple[str, str], Callable[..., Scaled]] = {
    ("max", "by magnitude"): lambda a, b, **_: scaled.chosen(
        scaled.log_abs(b) > scaled.log_abs(a), a, b
    ),
    ("min", "is max"): scaled._extreme(1),
    ("sub", "is add"): lambda a, b, **_: scaled.plus(a, b),
    ("div", "keeps the scale"): lambda a, b, **_: scaled.divided(a, Scaled(b.mantissa)),
    ("integer_pow", "is even"): lambda a, y, **_: scaled.power(
        a._replace(mantissa=jnp.abs(a.mantissa)), jnp.asarray(float(y))
    ),
    ("cumsum", "never in reverse"): lambda a, axis, **_: scaled.cumulative(
        a, scaled.plus, axis, False
    ),
    ("cumprod", "never in reverse"): lambda a, axis, **_: scaled.cumulative(
        a, scaled.times, axis, False
    ),
    ("reduce_max", "is min"): lambda a, axes, **_: scaled.extremum(a, axes, -1),
    ("dot_general", "transposed"): lambda a, b, **_: (
        scaled.dot(a, b, (((0,), (0,)), ((), ()))) or a
    ),
}


@pytest.mark.parametrize(("name", "how"), BROKEN)
def test_broken_rules_of_numbers_are_found(name: str, how: str, seed: int) -> None:
    assert wrong_numbers(name, BROKEN[name, how], seed)


# Events -------------------------------------------------------------------------------------------

TRUTHS = np.array(list(itertools.product([False, True], repeat=4)))
LOGIC: dict[str, tuple[int, dict, Callable[..., Any]]] = {
    "and": (2, {}, np.logical_and),
    "or": (2, {}, np.logical_or),
    "xor": (2, {}, np.logical_xor),
    "not": (1, {}, np.logical_not),
    "reduce_and": (1, {"axes": (1,)}, lambda x: x.all(1)),
    "reduce_or": (1, {"axes": (1,)}, lambda x: x.any(1)),
}


def is_logical(name: str, rule: Callable[..., Event]) -> bool:
    """Whether a rule is boolean logic for events that are certain."""
    count, params, logic = LOGIC[name]
    values = (TRUTHS, TRUTHS[:, ::-1])[:count]
    event = rule(*(Event.certain(jnp.asarray(x), jnp.float64) for x in values), **params)
    expected = Event.certain(jnp.asarray(logic(*values)), jnp.float64)
    return all(np.array_equal(ours, theirs) for ours, theirs in zip(event, expected, strict=True))


def test_every_rule_has_logic() -> None:
    assert set(LOGIC) == set(EVENT_RULES)


@pytest.mark.parametrize("name", sorted(EVENT_RULES))
def test_certain_events_follow_logic(name: str) -> None:
    assert is_logical(name, EVENT_RULES[name])


@pytest.mark.parametrize("name", sorted(EVENT_RULES))
def test_mutants_of_events_are_found(name: str) -> None:
    rule = EVENT_RULES[name]
    mutants: list[Callable[[Event], Event]] = [
        Event.negated,
        lambda event: event._replace(log_true=event.log_false),
        lambda event: event._replace(log_false=event.log_true),
        lambda event: event._replace(log_false=event.log_false - 1e-12),
    ]
    for mutant in mutants:
        assert not is_logical(name, lambda *events, f=mutant, **params: f(rule(*events, **params)))
    others = [other for other in EVENT_RULES if LOGIC[other][:2] == LOGIC[name][:2]]
    assert [other for other in others if is_logical(name, EVENT_RULES[other])] == [name]


@pytest.mark.parametrize("name", sorted(EVENT_RULES))
def test_independent_events_have_the_share_of_their_outcomes(name: str, seed: int) -> None:
    """By enumeration of all outcomes of up to four events."""
    count, params, logic = LOGIC[name]
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    width = 4 if params else 1
    chances = rng.uniform(0.05, 0.95, (count, 1, width))
    events = [Event(jnp.log(p), jnp.log1p(-p)) for p in map(jnp.asarray, chances)]
    total = 0.0
    for outcome in itertools.product([False, True], repeat=count * width):
        values = np.array(outcome).reshape(count, 1, width)
        if logic(*values).ravel()[0]:
            total += float(np.prod(np.where(values, chances, 1 - chances)))
    event = EVENT_RULES[name](*events, **params)
    np.testing.assert_allclose(jnp.exp(event.log_true).ravel(), [total], rtol=1e-12)
    np.testing.assert_allclose(jnp.exp(event.log_false).ravel(), [1 - total], rtol=1e-12)
