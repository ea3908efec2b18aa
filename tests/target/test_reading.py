"""Reading a return expression, against extended precision, JAX's own derivatives and by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.scipy.special import log_ndtr, logsumexp, ndtr
from jax.scipy.stats import norm
from scipy import special

import estimand as ep
from estimand.target.reading import Reading, SignedLog, read
from estimand.target.scaled import Scaled

EPS = float(np.finfo(float).eps)
X = jnp.array([0.3, -1.2, 2.0])


def reading_of(function: Callable, x: Any = X) -> Reading:
    """Reads a function of one array whose result is taken as a vector of floats."""

    def pair(position: jax.Array) -> tuple[None, jax.Array]:
        value = jnp.ravel(function(position))
        return None, value.astype(jnp.result_type(float)) if value.dtype != jnp.float32 else value

    return read(pair, x)


def lifted(function: Callable, x: Any = X) -> SignedLog:
    return reading_of(function, x).lifted(x)[1]


def softened(function: Callable, softness: Any, x: Any = X) -> SignedLog:
    reading = reading_of(function, x)
    return reading.softened(softness, jnp.ones(reading.num_margins), x)[1]


def log_gradient(function: Callable, x: Any = X) -> jax.Array:
    reading = reading_of(function, x)
    return jax.grad(lambda u: jnp.sum(reading.lifted(u)[1].log_abs))(x)


def soft_gradient(function: Callable, softness: float, x: Any) -> jax.Array:
    reading = reading_of(function, x)
    scales = jnp.ones(reading.num_margins)
    return jax.grad(lambda u: jnp.sum(reading.softened(softness, scales, u)[1].log_abs))(x)


# Random expressions, against extended precision ---------------------------------------------------


class Checked(NamedTuple):
    """A number in extended precision, and what rounding to float64 may make of it."""

    value: np.longdouble
    error: np.longdouble

    @classmethod
    def of(cls, value: Any, error: Any) -> Checked:
        size = abs(value)
        assume(size == 0 or 1e-4000 < size < 1e4000)
        rounding = 8 * EPS * size * (1 + abs(np.log(size))) if size else 0
        return cls(np.longdouble(value), np.longdouble(error + rounding))

    @property
    def is_plain(self) -> bool:
        return bool(self.value == 0 or 1e-290 < abs(self.value) < 1e290)


def slope_rule(function: Callable, slope: Callable) -> Callable[[Checked], Checked]:
    def rule(a: Checked) -> Checked:
        return Checked.of(function(a.value), abs(slope(a.value)) * a.error)

    return rule


def plain_only(rule: Callable) -> Callable[[Checked], Checked]:
    """A function that reads its argument's plain value, which must have one."""

    def guarded(a: Checked) -> Checked:
        assume(a.is_plain and abs(a.value) < 4000)
        return rule(a)

    return guarded


def logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x)) if x > 0 else np.exp(x) / (1 + np.exp(x))


UNARY: dict[str, tuple[Callable, Callable[[Checked], Checked]]] = {
    "neg": (jnp.negative, slope_rule(np.negative, np.ones_like)),
    "exp": (jnp.exp, plain_only(slope_rule(np.exp, np.exp))),
    "exp2": (jnp.exp2, plain_only(slope_rule(np.exp2, np.exp2))),
    "sigmoid": (jax.nn.sigmoid, plain_only(slope_rule(logistic, logistic))),
    "expm1": (jnp.expm1, plain_only(slope_rule(np.expm1, np.exp))),
    "square": (jnp.square, slope_rule(np.square, lambda x: 2 * x)),
    "cube": (lambda x: x**3, slope_rule(lambda x: x**3, lambda x: 3 * x**2)),
    "seventh": (lambda x: x**7, slope_rule(lambda x: x**7, lambda x: 7 * x**6)),
    "abs": (jnp.abs, slope_rule(abs, np.ones_like)),
    "relu": (jax.nn.relu, slope_rule(lambda x: max(x, 0 * x), np.ones_like)),
    "log1p": (
        lambda x: jnp.log1p(jnp.abs(x)),
        slope_rule(lambda x: np.log1p(abs(x)), lambda x: 1 / (1 + abs(x))),
    ),
    "sum": (lambda x: jnp.sum(jnp.stack([x, 2 * x, x])), slope_rule(lambda x: 4 * x, lambda x: 4)),
    "cumulate": (
        lambda x: jnp.cumprod(jnp.cumsum(jnp.stack([x, x])))[1],
        slope_rule(lambda x: 2 * x**2, lambda x: 4 * x),
    ),
}
UNARY_OF_POSITIVE: dict[str, tuple[Callable, Callable[[Checked], Checked]]] = {
    "sqrt": (
        lambda x: jnp.sqrt(jnp.abs(x)),
        slope_rule(lambda x: np.sqrt(abs(x)), lambda x: 1 / np.sqrt(abs(x))),
    ),
    "rsqrt": (
        lambda x: lax.rsqrt(jnp.abs(x)),
        slope_rule(lambda x: 1 / np.sqrt(abs(x)), lambda x: abs(x) ** np.longdouble(-1.5)),
    ),
    "log": (
        lambda x: jnp.log(jnp.abs(x)),
        slope_rule(lambda x: np.log(abs(x)), lambda x: 1 / x),
    ),
    "power": (
        lambda x: jnp.abs(x) ** 2.5,
        slope_rule(
            lambda x: abs(x) ** np.longdouble(2.5), lambda x: 2.5 * abs(x) ** np.longdouble(1.5)
        ),
    ),
}
BINARY: dict[str, tuple[Callable, Callable[[Checked, Checked], Checked]]] = {
    "add": (jnp.add, lambda a, b: Checked.of(a.value + b.value, a.error + b.error)),
    "sub": (jnp.subtract, lambda a, b: Checked.of(a.value - b.value, a.error + b.error)),
    "mul": (
        jnp.multiply,
        lambda a, b: Checked.of(a.value * b.value, abs(a.value) * b.error + abs(b.value) * a.error),
    ),
    "dot": (
        lambda a, b: jnp.stack([a, b]) @ jnp.stack([b, a]),
        lambda a, b: Checked.of(
            2 * a.value * b.value, 2 * abs(a.value) * b.error + 2 * abs(b.value) * a.error
        ),
    ),
    "max": (jnp.maximum, lambda a, b: Checked.of(max(a.value, b.value), max(a.error, b.error))),
    "min": (jnp.minimum, lambda a, b: Checked.of(min(a.value, b.value), max(a.error, b.error))),
    "top": (
        lambda a, b: jnp.max(jnp.stack([a, b])),
        lambda a, b: Checked.of(max(a.value, b.value), max(a.error, b.error)),
    ),
    "prod": (
        lambda a, b: jnp.prod(jnp.stack([a, b, a])),
        lambda a, b: Checked.of(
            a.value**2 * b.value,
            a.value**2 * b.error + 2 * abs(a.value * b.value) * a.error,
        ),
    ),
}


def quotient(a: Checked, b: Checked) -> Checked:
    assume(b.value != 0)
    value = a.value / b.value
    return Checked.of(value, (a.error + abs(value) * b.error) / abs(b.value))


leaves = st.one_of(
    st.tuples(st.just("x"), st.integers(0, 2)),
    st.tuples(st.just("constant"), st.sampled_from([-300.0, -2.0, -1.0, 0.0, 0.5, 1.0, 40.0])),
)
trees: st.SearchStrategy = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from([*UNARY, *UNARY_OF_POSITIVE]), inner),
        st.tuples(st.sampled_from([*BINARY, "div"]), inner, inner),
        st.tuples(st.just("where"), st.integers(0, 2), inner, inner),
    ),
    max_leaves=8,
)
points = st.tuples(*[st.sampled_from([-30.0, -3.7, -1.1, -0.2, 0.4, 1.3, 2.9, 17.0])] * 3)


def traced(tree: tuple, x: jax.Array) -> jax.Array:
    name = tree[0]
    if name == "x":
        return x[tree[1]]
    if name == "constant":
        return jnp.asarray(tree[1])
    if name == "where":
        return jnp.where(x[tree[1]] > 0.1, traced(tree[2], x), traced(tree[3], x))
    operands = [traced(inner, x) for inner in tree[1:]]
    if name == "div":
        return operands[0] / operands[1]
    table: dict = UNARY | UNARY_OF_POSITIVE | BINARY
    return table[name][0](*operands)


def checked(tree: tuple, x: tuple) -> Checked:
    name = tree[0]
    if name == "x":
        return Checked(np.longdouble(x[tree[1]]), np.longdouble(0))
    if name == "constant":
        return Checked(np.longdouble(tree[1]), np.longdouble(0))
    if name == "where":
        return checked(tree[2] if x[tree[1]] > 0.1 else tree[3], x)
    operands = [checked(inner, x) for inner in tree[1:]]
    if name == "div":
        return quotient(*operands)
    if name in UNARY_OF_POSITIVE:
        assume(operands[0].value != 0)
        return UNARY_OF_POSITIVE[name][1](operands[0])
    table: dict = UNARY | BINARY
    return table[name][1](*operands)


@settings(max_examples=100)
@given(trees, points)
def test_lifted_value_is_that_of_extended_precision(tree: tuple, point: tuple) -> None:
    with np.errstate(all="ignore"):
        truth = checked(tree, point)
    x = jnp.array(point)
    sign, log_abs = (float(part[0]) for part in lifted(lambda u: traced(tree, u), x))
    if truth.value == 0 and truth.error == 0:
        assert (sign, log_abs) == (0, -math.inf)
        return
    relative = truth.error / abs(truth.value) if truth.value else np.longdouble(1)
    assume(relative < 1e-3)
    assert sign == np.sign(truth.value)
    assert abs(log_abs - np.log(abs(truth.value))) <= 4 * relative + 1e-15


@settings(max_examples=30)
@given(trees, points)
def test_gradient_of_the_logarithm_is_that_of_the_plain_value(tree: tuple, point: tuple) -> None:
    with np.errstate(all="ignore"):
        truth = checked(tree, point)
    assume(1e-100 < abs(truth.value) < 1e100 and truth.error < 1e-12 * abs(truth.value))
    x = jnp.array(point)
    plain = jax.grad(lambda u: jnp.log(jnp.abs(traced(tree, u))))(x)
    assume(bool(jnp.all(jnp.isfinite(plain))))
    ours = log_gradient(lambda u: traced(tree, u), x)
    size = float(jnp.max(jnp.abs(plain)))
    np.testing.assert_allclose(ours, plain, rtol=1e-7, atol=1e-9 * max(size, 1.0))


@settings(max_examples=30)
@given(trees, points)
def test_known_signs_and_jit_agree_with_values(tree: tuple, point: tuple) -> None:
    x = jnp.array(point)
    reading = reading_of(lambda u: traced(tree, u), x)
    value = reading.evaluate(x)[1]
    np.testing.assert_array_equal(value, traced(tree, x)[None])
    assert not np.any(reading.known_signs * np.nan_to_num(value) < 0)
    sign = reading.lifted(x)[1].sign
    assert not np.any(reading.known_signs * np.nan_to_num(sign) < 0)
    assert_softness_zero_is_exact(reading, x)


def assert_softness_zero_is_exact(reading: Reading, x: Any) -> None:
    scales = jnp.ones(reading.num_margins)
    for hard, soft in zip(reading.lifted(x)[1], reading.softened(0.0, scales, x)[1], strict=True):
        np.testing.assert_array_equal(hard, soft)


# Under- and overflow ------------------------------------------------------------------------------


def test_product_of_many_probabilities() -> None:
    x = jnp.linspace(-4.0, 3.0, 400)
    exact = np.sum(special.log_expit(np.asarray(x)))
    for shift, truth in ((0.0, exact), (8.0, np.sum(special.log_expit(np.asarray(x) - 8)))):

        def f(u: jax.Array, shift: float = shift) -> jax.Array:
            return jnp.prod(jax.nn.sigmoid(u - shift))

        sign, log_abs = lifted(f, x)
        assert sign[0] == 1
        np.testing.assert_allclose(log_abs[0], truth, rtol=1e-14)
        expected = special.expit(shift - np.asarray(x))
        np.testing.assert_allclose(log_gradient(f, x), expected, rtol=1e-12)
    assert f(x) == 0.0
    assert truth < math.log(1e-300) * 3


def test_a_loop_written_out_is_a_long_chain() -> None:
    x = jnp.linspace(-4.0, 3.0, 600)

    def f(u: jax.Array) -> jax.Array:
        value = jnp.asarray(1.0)
        for i in range(600):
            value = value * u[i] * jnp.exp(-(u[i] ** 2))
        return value

    truth = np.sum(np.log(np.abs(x)) - np.asarray(x) ** 2)
    sign, log_abs = lifted(f, x)
    np.testing.assert_allclose(log_abs[0], truth, rtol=1e-13)
    assert sign[0] == np.prod(np.sign(x))


@pytest.mark.parametrize("scale", [1.0, 1.5, 30.0])
def test_gaussian_density_in_float32(scale: float) -> None:
    x = jnp.asarray(np.linspace(-1, 1, 100) * scale, jnp.float32)

    def f(u: jax.Array) -> jax.Array:
        return jnp.exp(jnp.sum(-0.5 * u**2 - 0.5 * jnp.log(2 * jnp.float32(jnp.pi))))

    sign, log_abs = lifted(f, x)
    truth = np.sum(-0.5 * np.asarray(x, float) ** 2 - 0.5 * math.log(2 * math.pi))
    assert log_abs.dtype == jnp.float32
    assert truth < math.log(1e-46)
    assert f(x) == 0.0
    assert sign[0] == 1
    np.testing.assert_allclose(log_abs[0], truth, rtol=1e-6)
    np.testing.assert_allclose(log_gradient(f, x), -x, rtol=1e-6)


def test_normal_cdf_far_in_the_tail() -> None:
    x = jnp.array([-60.0, -39.0, -8.0, -5.5, -1.0, 0.0, 2.0, 9.0])
    np.testing.assert_allclose(lifted(ndtr, x).log_abs, special.log_ndtr(x), rtol=1e-13, atol=1e-16)
    expected = np.exp(-0.5 * np.asarray(x) ** 2 - special.log_ndtr(x)) / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(log_gradient(ndtr, x), expected, rtol=1e-12)
    assert not reading_of(ndtr, x).has_comparisons


def test_logarithm_of_what_underflows() -> None:
    x = jnp.full(300, -5.0)

    def f(u: jax.Array) -> jax.Array:
        return jnp.sqrt(-jnp.log(jnp.prod(jax.nn.sigmoid(u))))

    truth = 0.5 * math.log(-300 * float(special.log_expit(-5.0)))
    np.testing.assert_allclose(lifted(f, x).log_abs, [truth], rtol=1e-14)


def test_sums_keep_what_they_are_started_with() -> None:
    value = lifted(lambda x: 0.0 + jnp.exp(-1000 - x) - 0.0)
    np.testing.assert_allclose(value.log_abs, -1000 - X, rtol=1e-15)
    running = lifted(lambda x: jnp.cumsum(jnp.exp(jnp.array([-2000.0, -1000.0, 0.0]) + 0 * x)))
    np.testing.assert_allclose(running.log_abs, [-2000.0, -1000.0, 0.0], atol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_complements_of_probabilities_near_one(dtype: Any) -> None:
    x = jnp.array([10.0, 40.0, 80.0], dtype)
    tolerance = 16 * float(jnp.finfo(dtype).eps)
    value = lifted(lambda u: 1 - jax.nn.sigmoid(u), x)
    np.testing.assert_allclose(value.log_abs, special.log_expit(-x), rtol=tolerance)
    gradient = log_gradient(lambda u: 1 - jax.nn.sigmoid(u), x)
    np.testing.assert_allclose(gradient, -special.expit(x), rtol=tolerance)
    hazard = lifted(lambda u: 1 - jnp.exp(-u), jnp.exp(-x))
    np.testing.assert_allclose(hazard.log_abs, np.log(-np.expm1(-np.exp(-x))), rtol=tolerance)


@pytest.mark.parametrize(
    ("f", "sign", "log_abs"),
    [
        (jnp.maximum, 1.0, -900.0),
        (jnp.maximum, -1.0, -1000.0),
        (jnp.minimum, 1.0, -1000.0),
        (jnp.minimum, -1.0, -900.0),
    ],
)
def test_larger_of_two_numbers_out_of_range(f: Callable, sign: float, log_abs: float) -> None:
    x = jnp.array([-900.0, -1000.0])
    value = lifted(lambda u: f(sign * jnp.exp(u[0]), sign * jnp.exp(u[1])), x)
    np.testing.assert_array_equal(jnp.concatenate(value), [sign, log_abs])


def test_infinite_values_stay_infinite() -> None:
    x = jnp.array([math.inf, 1.0, -math.inf])
    value = lifted(lambda u: u + jnp.exp(u - 3), x)
    np.testing.assert_array_equal(value.sign, [1, 1, -1])
    np.testing.assert_allclose(value.log_abs, [math.inf, math.log1p(math.exp(-2)), math.inf])
    assert np.all(np.isnan(lifted(lambda u: u * jnp.exp(u), jnp.full(1, math.nan)).log_abs))


def test_matrix_product_of_unaligned_scales() -> None:
    a = jnp.array([[0.0, -2000.0], [-1500.0, 3.0]])

    def f(u: jax.Array) -> jax.Array:
        return jnp.exp(u) @ jnp.exp(-1000 - u)

    expected = logsumexp(a[:, :, None] - 1000 - a[None], axis=1)
    np.testing.assert_allclose(lifted(f, a).log_abs, jnp.ravel(expected), rtol=1e-14)


def test_gradient_is_right_where_a_term_is_zero() -> None:
    x = jnp.array([0.0, -1.0])
    gradient = log_gradient(lambda u: u[0] + jnp.exp(u[1]), x)
    np.testing.assert_allclose(gradient, [math.e, 1.0], rtol=1e-14)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jnp.exp(-900 * x**2) - jnp.exp(-1000 * x**2),
        lambda x: jnp.exp(800 * x) / jnp.exp(900 * x),
        lambda x: jnp.sqrt(jnp.exp(-2000 * x)) * x,
        lambda x: lax.rsqrt(jnp.exp(2000 * x)),
        lambda x: jnp.exp(-900.0 + x)[jnp.array([0, 2])],
        lambda x: jnp.max(jnp.exp(-900.0 + x)),
        lambda x: -jnp.min(-jnp.exp(-900.0 + x)),
        lambda x: jnp.concatenate([x, jnp.exp(1000 * x)]),
        lambda x: jax.nn.softplus(x - 1000),
        lambda x: jnp.where(x > 0, jnp.exp(-900 * x), 1 - jnp.exp(900 * x)),
        lambda x: jax.checkpoint(lambda u: jnp.exp(-900 * u))(x),
        lambda x: jnp.linalg.norm(jnp.exp(-900 + x)),
        lambda x: jax.nn.softmax(1000 * x),
        lambda x: jnp.mean(jnp.exp(-900 + x)) ** 2,
        lambda x: jnp.exp(log_ndtr(x - 50)),
        lambda x: -jnp.expm1(-jnp.exp(x - 900)),
    ],
)
def test_transformations_agree(f: Callable) -> None:
    reading = reading_of(f)
    batch = jnp.stack([X, 2 * X, -X])

    def log_total(x: jax.Array) -> tuple[jax.Array, SignedLog]:
        value = reading.lifted(x)[1]
        return jnp.sum(value.log_abs), value

    together = jax.jit(jax.vmap(log_total))(batch)
    assert reading.needs_lifting
    assert np.all(np.isfinite(together[1].log_abs))
    one = reading.lifted(X)[1]
    np.testing.assert_allclose(together[1].log_abs[0], one.log_abs, rtol=1e-13)
    np.testing.assert_array_equal(together[1].sign[0], one.sign)

    @jax.jit
    def derivatives(x: jax.Array) -> tuple:
        steps = 1e-6 * jnp.eye(3)
        above, below = (jax.vmap(log_total)(x[None] + s * steps)[0] for s in (1, -1))
        reverse = jax.grad(log_total, has_aux=True)(x)[0]
        return reverse, jax.jacfwd(log_total, has_aux=True)(x)[0], (above - below) / 2e-6

    reverse, forward, central = derivatives(X)
    np.testing.assert_allclose(reverse, forward, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(reverse, central, rtol=1e-5, atol=1e-4)


# What needs no lifting ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "f", [lambda x: x, lambda x: x**3, lambda x: x[0] * x[1] + 2, lambda x: x > 1, jnp.std]
)
def test_plain_expressions_stay_plain(f: Callable) -> None:
    reading = reading_of(f)
    assert not reading.needs_lifting
    plain = jax.make_jaxpr(lambda x: SignedLog.of(Scaled(reading.evaluate(x)[1])))(X)
    ours = jax.make_jaxpr(lambda x: reading.lifted(x)[1])(X)
    assert str(plain) == str(ours)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: lax.cond(x[0] > 0, jnp.exp, jnp.negative, x),
        lambda x: lax.scan(lambda c, u: (c * jax.nn.sigmoid(u), c), x[0], x)[0],
        lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1],
        lambda x: jnp.sort(jnp.exp(x)),
        lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((3,), float), x),
    ],
)
def test_control_flow_falls_back_to_plain_values(f: Callable) -> None:
    reading = reading_of(f)
    sign, log_abs = reading.lifted(X)[1]
    np.testing.assert_allclose(sign * jnp.exp(log_abs), jnp.ravel(f(X)), rtol=1e-14)
    assert_softness_zero_is_exact(reading, X)


def test_the_rest_of_the_program_is_evaluated_exactly() -> None:
    """Softening changes the outputs and nothing else of the program."""

    def f(x: jax.Array, y: jax.Array) -> tuple[dict, jax.Array]:
        level = jax.nn.relu(x - 1)
        return {"fit": jnp.sum(level * y), "root": jnp.sqrt(level)}, jnp.exp(-level * y)

    y = jnp.array([1.0, 2.0, 3.0])
    reading = read(f, X, y)
    scales = jnp.ones(reading.num_margins)
    for result in (
        reading.lifted(X, y),
        reading.softened(0.7, scales, X, y),
        reading.margins(X, y),
    ):
        jax.tree.map(np.testing.assert_array_equal, result[0], f(X, y)[0])
    np.testing.assert_array_equal(reading.margins(X, y)[1], X - 1)
    assert not np.allclose(reading.softened(0.7, scales, X, y)[1].log_abs, -f(X, y)[0]["root"])


def test_whole_calls_keep_their_derivative() -> None:
    @jax.custom_jvp
    def marked(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    marked.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 7.0 * tangents[0]))
    gradient = log_gradient(lambda x: jnp.exp(marked(x)))
    np.testing.assert_allclose(gradient, 7.0)


# Known signs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("f", "sign"),
    [
        (lambda x: x**2, 1),
        (lambda x: x * x, 1),
        (lambda x: x @ x, 1),
        (lambda x: -jnp.square(x), -1),
        (lambda x: x**3, 0),
        (jnp.exp, 1),
        (jnp.abs, 1),
        (jax.nn.relu, 1),
        (jax.nn.softplus, 1),
        (jax.nn.sigmoid, 1),
        (lambda x: 1 - jax.nn.sigmoid(x), 1),
        (lambda x: jnp.prod(jax.nn.sigmoid(x)), 1),
        (lambda x: 1 - jnp.prod(jax.nn.sigmoid(x)), 1),
        (lambda x: x > 1, 1),
        (lambda x: jnp.mean(x > 1), 1),
        (lambda x: (x > 1) * 2.0 - 1, 0),
        (lambda x: jnp.all(x > 1) & (x[0] < 3), 1),
        (lambda x: jnp.exp(dist.Normal(0, 1).log_prob(x)), 1),
        (lambda x: dist.Normal(0, 1).log_prob(x), -1),
        (lambda x: dist.Normal(0, 0.1).log_prob(x), 0),
        (ndtr, 1),
        (lambda x: log_ndtr(x) * 0 - 1, -1),
        (jnp.std, 1),
        (jnp.linalg.norm, 1),
        (jax.nn.softmax, 1),
        (lambda x: jnp.maximum(x, 0) - jnp.minimum(x, 0), 1),
        (lambda x: jnp.clip(x, 0, 1), 1),
        (lambda x: jnp.clip(x, -2, -1), -1),
        (lambda x: jnp.where(x > 0, jnp.exp(x), 0.0), 1),
        (lambda x: jnp.where(x > 0, x, 0.0), 1),
        (lambda x: jnp.where(x > 0, x, 0.1 * x), 0),
        (lambda x: jnp.where(x < 1, x - 1, jnp.exp(x)), 0),
        (lambda x: jnp.where(jnp.abs(x) < 1, 1 + x, jnp.exp(x)), 1),
        (lambda x: jnp.where(jnp.abs(x) < 1, 0.5 + x, jnp.exp(x)), 0),
        (lambda x: jnp.where(x > 0, jnp.sum(x), 0.0), 0),
        (lambda x: jnp.where(x > -jnp.abs(x[::-1]), 1.0, -x), 1),
        (lambda x: jnp.where(x > -jnp.sqrt(x[::-1]), 1.0, -x), 0),
        (lambda x: (lambda root: jnp.where(root < 2, 2 - root, 1.0))(jnp.sqrt(x)), 1),
        (lambda x: lax.erf(0.3 + x) - 0.9, 0),
        (lambda x: lax.erf(x), 0),
        (lambda x: lax.erf(x**2), 1),
        (lambda x: norm.cdf(x) - 0.9, 0),
        (norm.cdf, 1),
        (lambda x: 1 - norm.cdf(x), 1),
        (lambda x: norm.cdf(x**2) - 0.4, 1),
        (norm.logcdf, -1),
        (lambda x: jax.nn.sigmoid(x) - 0.9, 0),
        (lambda x: jax.nn.sigmoid(x**2) - 0.5, 1),
        (lambda x: jnp.tanh(x) - 0.5, 0),
        (lambda x: 1 - jnp.tanh(x), 1),
        (lambda x: lax.erfc(x) - 1, 0),
        (lax.erfc, 1),
        (lambda x: lax.erfc(x**2) - 1, -1),
        (lambda x: jnp.sin(x) - 0.5, 0),
        (lambda x: jnp.sin(jax.nn.sigmoid(x)), 1),
        (lambda x: jnp.cos(jnp.tanh(x)) - 0.5, 1),
        (lambda x: jnp.abs(x) - 1, 0),
        (jnp.sqrt, 1),
        (lambda x: jnp.maximum(x, 0), 1),
        (lambda x: jax.nn.softplus(x[0] * x[1] + x[1] * x[2]), 1),
        (lambda x: jnp.round(x) - 0.5, 0),
        (lambda x: 1 / jnp.exp(x), 1),
        (lambda x: 1 / -jnp.minimum(x, 0), 0),
        (lambda x: jnp.arctan(1 / -jnp.minimum(x, 0)), 0),
        (lambda x: jnp.where(jnp.sqrt(x) >= 0, 1.0, -1.0), 0),
        (lambda x: jnp.where(jnp.isnan(jnp.log(x)), -1.0, 1.0), 0),
        (lambda x: jnp.where(jnp.isnan(x), -1.0, 1.0), 1),
        (lambda x: jnp.sum(jnp.array([1e8, 1.0, -1e8]) + 0 * x, dtype=jnp.float32), 0),
        (lambda x: jnp.where(x > 0, x**2, jnp.nan), 1),
        (lambda x: jnp.full(3, -2.0) * jnp.exp(x), -1),
        (lambda x: jnp.sqrt(x) + jnp.cosh(x) + 1 + jnp.sin(x), 1),
        (lambda x: 1 - jnp.mean(x > 1), 0),
        (logsumexp, 0),
    ],
)
def test_known_signs(f: Callable, sign: int) -> None:
    reading = reading_of(f)
    assert np.all(reading.known_signs == sign)
    for x in jax.random.normal(jax.random.key(0), (20, 3)) * 3:
        assert not np.any(np.nan_to_num(reading.evaluate(x)[1]) * sign < 0)


@pytest.mark.parametrize(
    ("f", "sign"),
    [
        (ndtr, 1),
        (lambda x: 1 - ndtr(x), 1),
        (lambda x: ndtr(x) - 0.9, 0),
        (jax.nn.softplus, 1),
        (jax.nn.softmax, 1),
        (lambda x: 1 - jax.nn.sigmoid(x), 1),
        (lambda x: lax.erf(0.3 + x) - 0.9, 0),
        (lambda x: 1 + lax.erf(x), 0),
    ],
)
def test_known_signs_in_float32(f: Callable, sign: int) -> None:
    """The last one is −1.2e-7 where XLA's erf is below −1."""
    reading = reading_of(f, X.astype(jnp.float32))
    assert np.all(reading.known_signs == sign)


def test_known_signs_of_each_output() -> None:
    reading = reading_of(
        lambda x: jnp.concatenate([x[:1], x[:1] ** 2, -jnp.exp(x[1:]), jnp.zeros(1)])
    )
    assert reading.known_signs.tolist() == [0, 1, -1, -1, 1]


# Softened comparisons -----------------------------------------------------------------------------

EVENTS: dict[str, Callable] = {
    "greater": lambda x: x > 3,
    "less": lambda x: x < -40,
    "all": lambda x: jnp.all(x > 3),
    "any": lambda x: jnp.any(x > 3),
    "and": lambda x: (x > 3) & (x < 5),
    "or": lambda x: (x > 3) | (x < -40),
    "not": lambda x: ~(x <= 3),
    "overlapping": lambda x: (x > 3) | (x > 5),
    "xor": lambda x: (x > 3) ^ (x > 5),
    "count": lambda x: (x > 3).sum() >= 2,
    "share": lambda x: jnp.mean(x > 3) > 0.5,
    "norm": lambda x: jnp.linalg.norm(x) > 100,
    "abs": lambda x: jnp.abs(x) > 100,
    "relu": lambda x: jax.nn.relu(x - 3),
    "maximum": lambda x: jnp.maximum(x - 3, 0),
    "minimum": lambda x: -jnp.minimum(3 - x, 0),
    "clip": lambda x: jnp.clip(x - 3, 0, 1),
    "lax clamp": lambda x: lax.clamp(0.0, x - 3, 1.0),
    "where": lambda x: jnp.where(x > 3, x**2, 0.0),
    "guarded": lambda x: jnp.where(x > 3, jnp.sqrt(jnp.where(x > 3, x - 3, 1.0)), 0.0),
    "product": lambda x: (x > 3) * jnp.exp(-x),
    "event": lambda x: ep.event(x - 3),
    "selected events": lambda x: jnp.where(x > 0, x > 3, False),
    "reordered": lambda x: jnp.all(jnp.stack([x > 3, x < 5])[:, :2]),
    "in a jit": lambda x: jax.jit(lambda u: jnp.exp(-u) * (u > 3))(x),
}


@pytest.mark.parametrize("name", EVENTS)
def test_softened_events_lead_into_the_event(name: str) -> None:
    f, x = EVENTS[name], jnp.array([-2.0, -1.7, -1.5])
    reading = reading_of(f, x)
    scales = jnp.ones(reading.num_margins)
    assert reading.has_comparisons
    assert np.all(reading.known_signs == 1)
    assert np.all(reading.evaluate(x)[1] == 0)

    def log_soft(u: jax.Array, softness: jax.Array) -> tuple[jax.Array, SignedLog]:
        soft = reading.softened(softness, scales, u)[1]
        return jnp.sum(soft.log_abs), soft

    at = jax.jit(jax.vmap(jax.grad(log_soft, has_aux=True), (None, 0)))
    gradients, soft = at(x, jnp.array([0.0, 0.2, 1.0, 5.0]))
    assert np.all(soft.log_abs[0] == -math.inf)
    assert np.all(gradients[0] == 0)
    assert np.all(soft.sign[1:] == 1)
    assert np.all(np.isfinite(soft.log_abs[1:]))
    assert np.all(np.isfinite(gradients))
    assert np.all(np.any(gradients[1:] != 0, axis=1))


@pytest.mark.parametrize("name", EVENTS)
def test_softened_values_tend_to_the_exact_ones(name: str, rng_key: jax.Array) -> None:
    reading = reading_of(EVENTS[name])
    scales = jnp.ones(reading.num_margins)

    def log_soft(x: jax.Array, softness: jax.Array) -> tuple[jax.Array, SignedLog]:
        soft = reading.softened(softness, scales, x)[1]
        return jnp.sum(soft.log_abs), soft

    softness = jnp.array([0.0, 1e-5, 0.5])
    x = jax.random.normal(rng_key, (50, 3)) * 3 + 3
    gradient = jax.vmap(jax.grad(log_soft, has_aux=True), (None, 0))
    gradients, soft = jax.jit(jax.vmap(gradient, (0, None)))(x, softness)
    exact, margins = jax.jit(jax.vmap(lambda u: (reading.evaluate(u)[1], reading.margins(u)[1])))(x)
    clear = np.min(np.abs(margins), axis=1) > 1e-3
    assert np.sum(clear) > 40
    value = soft.sign * jnp.exp(soft.log_abs)
    np.testing.assert_allclose(value[:, 0], exact, rtol=1e-14)
    np.testing.assert_allclose(value[clear, 1], exact[clear], rtol=1e-4, atol=1e-4)
    assert not np.any(np.isnan(gradients))


def test_softened_relu_far_outside() -> None:
    x = jnp.array([-20.0])
    soft = softened(EVENTS["relu"], 0.5, x)
    np.testing.assert_allclose(soft.log_abs, -46.0 + math.log(0.5), rtol=1e-14)
    np.testing.assert_allclose(soft_gradient(EVENTS["relu"], 0.5, x), 2.0, rtol=1e-14)
    far = soft_gradient(EVENTS["all"], 1e-3, jnp.full(3, -1e4))
    np.testing.assert_allclose(far, 1e3, rtol=1e-12)


def test_softened_events_have_the_probabilities_of_independent_ones() -> None:
    x = jnp.array([2.0, 4.0, 3.5])
    p, q = (special.expit((np.asarray(x) - 3) / 0.5), special.expit((5 - np.asarray(x)) / 0.5))
    expected = {
        "greater": p,
        "all": [p.prod()],
        "any": [1 - (1 - p).prod()],
        "and": p * q,
        "xor": p * q + (1 - p) * (1 - q),
        "not": p,
        "overlapping": 1 - (1 - p) * q,
        "product": p * np.exp(-np.asarray(x)),
        "where": p * np.asarray(x) ** 2,
    }
    for name, value in expected.items():
        soft = softened(EVENTS[name], 0.5, x)
        np.testing.assert_allclose(jnp.exp(soft.log_abs), value, rtol=1e-12, err_msg=name)


def test_each_comparison_has_its_scale() -> None:
    x = jnp.array([1.0, 2.0])
    reading = reading_of(lambda u: (u[0] > 3) & (u[1] > 30), x)
    np.testing.assert_array_equal(reading.margins(x)[1], [-2.0, -28.0])
    soft = reading.softened(0.5, jnp.array([1.0, 10.0]), x)[1]
    expected = special.log_expit(-4.0) + special.log_expit(-5.6)
    np.testing.assert_allclose(soft.log_abs, [expected], rtol=1e-14)


def test_guarded_branches_are_chosen_not_mixed() -> None:
    def f(x: jax.Array) -> jax.Array:
        return jnp.where(x > 0, jnp.log(x), -3.0) ** 2

    soft = softened(f, 2.0, jnp.array([-1.0, 2.0]))
    np.testing.assert_allclose(soft.log_abs[0], math.log(9.0), rtol=1e-14)
    assert np.isfinite(soft.log_abs[1])


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jnp.exp(x),
        jax.nn.softplus,
        lambda x: logsumexp(x),
        ndtr,
        log_ndtr,
        jnp.std,
        lambda x: jnp.max(x),
        lambda x: jnp.maximum(x[0], x[1]),
        lambda x: jnp.abs(x),
        lambda x: x == 0,
        lambda x: jnp.clip(jax.nn.sigmoid(x), 1e-38, 1 - 1e-7),
        lambda x: x[jnp.array([0, -1])],
        lambda x: lax.cond(x[0] > 0, jnp.exp, jnp.negative, x),
        lambda x: dist.Normal(0, 1).log_prob(x),
        lambda x: jnp.exp(dist.Gamma(2.0, 3.0).log_prob(jnp.exp(x))),
        lambda x: jnp.where(x > 0, x, jnp.nan),
        lambda x: jnp.median(x),
        lambda x: x**2 > -1,
    ],
)
def test_what_has_no_comparison_to_soften(f: Callable) -> None:
    reading = reading_of(f)
    assert not reading.has_comparisons
    np.testing.assert_array_equal(
        reading.softened(1.0, jnp.zeros(0), X)[1].log_abs, reading.lifted(X)[1].log_abs
    )


def test_comparisons_of_data_stay_hard() -> None:
    reading = read(lambda x, y: (None, jnp.where(y > 0, x, 2 * x)), X, X)
    assert not reading.has_comparisons


# Refusals, and the public function ----------------------------------------------------------------


def test_event_is_a_positive_margin() -> None:
    np.testing.assert_array_equal(ep.event(X), X > 0)
    assert ep.event(1.0).dtype == bool


@pytest.mark.parametrize("margin", [X > 0, jnp.arange(3), X + 1j])
def test_event_refuses_what_is_not_a_margin(margin: jax.Array) -> None:
    with pytest.raises(TypeError, match="event: margin must be a real floating-point array"):
        ep.event(margin)


def test_read_refuses_outputs_that_are_not_a_vector() -> None:
    with pytest.raises(TypeError, match="vector of floating-point outputs"):
        read(lambda x: (None, x[0]), X)


def test_reading_refuses_other_arguments() -> None:
    reading = reading_of(jnp.exp)
    with pytest.raises(TypeError, match=r"shape \(3,\); this one has \(2,\)"):
        reading.lifted(X[:2])
    with pytest.raises(TypeError, match="was read with arguments"):
        reading.lifted(X, X)


def test_larger_ones_are_chosen_in_compiled_code() -> None:
    """Divided by itself a number is 1 only up to rounding there."""

    def f(x: jax.Array) -> jax.Array:
        rate = jnp.exp(x[0])
        chain = jnp.minimum(1.0 / jnp.maximum(1.0 - rate, 1e-3), 1000.0)
        return jnp.where(rate < 1.0, chain, 4e7 * (1.0 - 1.0 / rate))

    reading = read(lambda x: (None, f(x)[None]), jax.ShapeDtypeStruct((1,), float))
    points = jnp.linspace(-1.2, 0.3, 5000)[:, None]
    found = jax.jit(jax.vmap(reading.lifted))(points)[1]
    values = found.sign[:, 0] * jnp.exp(found.log_abs[:, 0])
    np.testing.assert_allclose(values, jax.vmap(f)(points), rtol=1e-9)


def test_comparisons_of_integers_have_margins() -> None:
    """Half-way between the integers is the edge; equal ones are half a step inside."""
    reading = reading_of(lambda x: jnp.round(x).astype(int) > 3)
    np.testing.assert_allclose(reading.margins(jnp.array([2.0, 4.0, 6.0]))[1], [-1.5, 0.5, 2.5])
    reading = reading_of(lambda x: jnp.round(x).astype(int) == 3)
    np.testing.assert_allclose(reading.margins(jnp.array([2.0, 3.0, 6.0]))[1], [-0.5, 0.5, -2.5])


@pytest.mark.parametrize(
    ("f", "margins"),
    [
        (lambda x: jnp.round(x) == 3.0, [-0.5, 0.5, -2.5]),
        (lambda x: jnp.floor(x) - 1 != 2.0, [0.5, -0.5, 2.5]),
        (lambda x: 2 * jnp.ceil(x) == 6 * jnp.floor(1 + 0 * x), [-1.5, 0.5, -5.5]),
    ],
)
def test_equalities_of_rounded_numbers_have_margins(f: Callable, margins: list[float]) -> None:
    reading = reading_of(f)
    np.testing.assert_allclose(reading.margins(jnp.array([2.0, 3.0, 6.0]))[1], margins)


@pytest.mark.parametrize(
    "f", [lambda x: x == 3.0, lambda x: jnp.round(x) == x, lambda x: jnp.isnan(x)]
)
def test_equalities_of_other_numbers_are_left_alone(f: Callable) -> None:
    assert not reading_of(f).has_comparisons


@pytest.mark.parametrize(
    ("f", "zeros"),
    [
        (lambda x: x[:, None] > x[None], np.eye(3)),
        (lambda x: x[:, None] - x[None], np.eye(3)),
        (lambda x: x[:2] < x[1:], np.zeros(2)),
        (lambda x: x[:2] != jnp.stack([x[0], x[2]]), [1, 0]),
        (lambda x: jnp.reshape(x, (1, 3)) > jnp.concatenate([x[1:], x[:1]])[None], np.zeros(3)),
        (lambda x: x[None] > jnp.roll(x, 1)[:, None], np.roll(np.eye(3), 1, axis=0)),
    ],
)
def test_elements_that_are_compared_with_themselves(f: Callable, zeros: Any) -> None:
    bounds = reading_of(f).bounds_with({})
    is_zero = (bounds.low == 0) & (bounds.high == 0)
    np.testing.assert_array_equal(is_zero, np.ravel(zeros))
