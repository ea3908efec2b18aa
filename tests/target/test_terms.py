"""The pieces of sums: values, which expressions have them, and that nothing is lost or added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from estimand.target import Reading, read

NUM_INPUTS = 4
POINTS = np.random.default_rng(3).normal(size=(20, NUM_INPUTS))


def read_with_looks(f: Callable, log_density: Callable | None = None) -> Reading:
    def function(x: jax.Array) -> tuple:
        density = jnp.zeros(()) if log_density is None else log_density(x)
        return (jnp.zeros(()), density), jnp.ravel(jnp.asarray(f(x), float))

    struct = jax.ShapeDtypeStruct((NUM_INPUTS,), jnp.result_type(float))
    return read(function, struct, has_looks=True, log_densities=(1,))


def looks_at(reading: Reading, x: np.ndarray) -> np.ndarray:
    outputs = np.asarray(reading.evaluate(jnp.asarray(x))[1])
    return outputs[len(outputs) - len(reading.looks) :]


def one_hot(flag: Any) -> Any:
    return jnp.where(flag, 1.0, 0.0)


SUMS: dict[str, tuple[Callable, Callable]] = {
    "constant + event": (
        lambda x: 1.0 + 1e9 * jnp.all(x > 1.5),
        lambda x: [1e9 * jnp.all(x > 1.5)],
    ),
    "difference": (lambda x: x[0] - x[1], lambda x: [x[0], -x[1]]),
    "common factor": (lambda x: 2.0 * (x[0] + x[1]) / 4.0, lambda x: [x[0] / 2, x[1] / 2]),
    "product of sums": (
        lambda x: (x[0] + 1.0) * (x[1] - 2.0),
        lambda x: [x[0] * x[1], -2.0 * x[0], x[1]],
    ),
    "where": (
        lambda x: jnp.where(x[0] > 0, x[1], 3.0),
        lambda x: [3.0 * one_hot(x[0] <= 0), x[1] * one_hot(x[0] > 0)],
    ),
    "cap": (lambda x: jnp.minimum(x[0], 2.0), lambda x: [jnp.minimum(x[0] - 2.0, 0.0)]),
    "floor": (lambda x: jnp.maximum(x[0], 2.0), lambda x: [jnp.maximum(x[0] - 2.0, 0.0)]),
    "larger of two": (
        lambda x: jnp.maximum(x[0], x[1]),
        lambda x: [x[0] * one_hot(x[0] > x[1]), x[1] * one_hot(x[1] > x[0])],
    ),
    "mean": (lambda x: jnp.mean(x), lambda x: list(x / NUM_INPUTS)),
    "a number beside many": (
        lambda x: jnp.sum(jnp.reshape(x[0] + x[1] * jnp.arange(400.0), (20, 20))),
        lambda x: [400 * x[0], 79_800 * x[1]],
    ),
    "dot": (lambda x: jnp.dot(x, jnp.arange(4.0)), lambda x: list(x * np.arange(4.0))),
    "mean of sums of many": (
        lambda x: jnp.mean(x[0] * jnp.arange(100.0) + 1e6 * (x[1] > jnp.arange(100.0))),
        lambda x: [x[0] * 49.5, 1e6 * jnp.mean(1.0 * (x[1] > np.arange(100.0)))],
    ),
    "scalars in sums of arrays": (
        lambda x: jnp.sum(((2.0 + jnp.ones(100) * x[0]) * x[1])[:, None]),
        lambda x: [200 * x[1], 100 * x[0] * x[1]],
    ),
    "count": (
        lambda x: jnp.sum(x > 1.0),
        lambda x: [one_hot(value > 1.0) for value in x],
    ),
    "union": (
        lambda x: (x[0] > 1) | (x[1] < -1),
        lambda x: [one_hot(x[0] > 1), one_hot(x[1] < -1)],
    ),
    "any": (lambda x: jnp.any(x > 1), lambda x: [one_hot(value > 1) for value in x]),
    "smallest margin": (
        lambda x: jnp.min(jnp.stack([x[0] + 1, 2 - x[1]])) < 0,
        lambda x: [one_hot(x[0] + 1 < 0), one_hot(2 - x[1] < 0)],
    ),
    "outputs": (
        lambda x: jnp.stack([x[0], x[0] + x[1], x[2] ** 2]),
        lambda x: [x[0], x[1]],
    ),
    "broadcast": (
        lambda x: jnp.sum(x[:2, None] * x[None, 2:]),
        lambda x: [x[i] * x[j] for i in (0, 1) for j in (2, 3)],
    ),
}
WHOLE: dict[str, Callable] = {
    "one term": lambda x: 3.0 * x[0],
    "event": lambda x: x[0] > 1,
    "excess": lambda x: jnp.maximum(x[0] - 1.0, 0.0),
    "product": lambda x: x[0] * x[1],
    "power of a sum": lambda x: (x[0] + x[1]) ** 2,
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda _, c: c + x[0] + 1.0, 0.0),
    "guarded": lambda x: jnp.where(x[0] > 0, jnp.log(jnp.where(x[0] > 0, x[0], 1.0)), -jnp.inf),
    # Libraries compute these differently for large and for small arguments.
    "cdf": lambda x: 2.0 * dist.Normal(x[1], 1.0).cdf(x[0]),
    "special function": lambda x: jax.scipy.special.ndtr(x[0]),
}


@pytest.mark.parametrize("name", SUMS)
def test_pieces_are_the_terms(name: str) -> None:
    f, pieces = SUMS[name]
    reading = read_with_looks(f)
    for x in POINTS:
        expected = np.array([float(piece) for piece in pieces(jnp.asarray(x))])
        np.testing.assert_allclose(looks_at(reading, x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", WHOLE)
def test_expressions_without_terms_have_no_looks(name: str) -> None:
    assert read_with_looks(WHOLE[name]).looks == ()


@pytest.mark.parametrize("name", ["cdf", "special function"])
def test_cases_of_a_librarys_function_are_no_comparisons(name: str) -> None:
    assert not read_with_looks(WHOLE[name]).has_comparisons


def test_looks_know_their_output_and_their_line() -> None:
    reading = read_with_looks(lambda x: jnp.stack([x[0] ** 2, x[1] + 1e6 * (x[2] > 3)]))
    assert [look.output for look in reading.looks] == [1, 1]
    assert all("test_terms.py" in look.text for look in reading.looks)


def test_too_many_terms_are_one() -> None:
    reading = read_with_looks(lambda x: jnp.sum(x[0] * jnp.arange(1.0, 20.0)))
    assert reading.looks == ()


def random_expression(rng: np.random.Generator, x: jax.Array, depth: int) -> Any:
    """A tree of sums, products, choices and extremes over numbers and inputs."""
    if depth == 0 or rng.random() < 0.15:
        return x[rng.integers(NUM_INPUTS)] if rng.random() < 0.7 else float(rng.normal())
    one, other = (random_expression(rng, x, depth - 1) for _ in range(2))
    kinds: list[Callable] = [
        lambda: one + other,
        lambda: one - other,
        lambda: one * other,
        lambda: -one,
        lambda: one / 3.0,
        lambda: jnp.where(x[0] > float(rng.normal()), one, other),
        lambda: jnp.maximum(one, other),
        lambda: jnp.minimum(one, 0.7),
        lambda: jnp.sum(jnp.stack([jnp.asarray(one, float), jnp.asarray(other, float)])),
    ]
    return kinds[rng.integers(len(kinds))]()


@pytest.mark.parametrize("number", range(60))
def test_pieces_of_random_sums_add_up(number: int, seed: int) -> None:
    """What the pieces leave of an expression is a constant."""

    def f(x: jax.Array) -> Any:
        return random_expression(np.random.default_rng((seed, number)), x, 4)

    reading = read_with_looks(f)
    if not reading.looks:
        return
    outputs = np.array([np.asarray(reading.evaluate(jnp.asarray(x))[1]) for x in POINTS])
    rest = outputs[:, 0] - outputs[:, 1:].sum(axis=1)
    scale = np.abs(outputs).max()
    np.testing.assert_allclose(rest, rest[0], atol=1e-9 * scale)


DENSITIES: dict[str, tuple[Callable, Callable]] = {
    "logaddexp": (
        lambda x: jnp.logaddexp(3 * x[0], x[1]) + x[2],
        lambda x: [3 * x[0], x[1]],
    ),
    "logsumexp": (
        lambda x: x[3] ** 2 - 1.0 + jax.nn.logsumexp(x[:3] * jnp.array([1.0, 2.0, -1.0])),
        lambda x: list(x[:3] * np.array([1.0, 2.0, -1.0])),
    ),
    "mixture": (
        lambda x: dist.MixtureSameFamily(
            dist.Categorical(probs=jnp.array([0.3, 0.7])), dist.Normal(x[:2], jnp.exp(x[2]))
        ).log_prob(0.4),
        lambda x: [
            np.log(weight) + dist.Normal(x[k], jnp.exp(x[2])).log_prob(0.4)
            for k, weight in enumerate((0.3, 0.7))
        ],
    ),
}


@pytest.mark.parametrize("name", DENSITIES)
def test_terms_of_densities_are_shares(name: str) -> None:
    log_density, terms = DENSITIES[name]
    reading = read_with_looks(lambda x: x[0], log_density)
    assert {look.output for look in reading.looks} == {None}
    for x in POINTS:
        logs = jnp.array([float(term) for term in terms(jnp.asarray(x))])
        np.testing.assert_allclose(looks_at(reading, x), jax.nn.softmax(logs), rtol=1e-10)


def test_densities_of_many_rows_have_no_terms() -> None:
    rows = jnp.linspace(-1.0, 1.0, 5)
    reading = read_with_looks(lambda x: x[0], lambda x: jnp.sum(jnp.logaddexp(x[0] * rows, x[1])))
    assert reading.looks == ()
