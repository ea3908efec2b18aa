"""Programs that differ in numbers share compiled code, and never each other's answers."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.record.provenance import provenance_of
from estimand.runtime import CompilationClock

POSITION = 0.7
FACTOR = 2.0


@jax.jit
def outputs_of(density: ep.Density, position: jax.Array) -> tuple[jax.Array, jax.Array]:
    signed = density.evaluate(position)[1]
    return density.outputs(position), signed.sign * jnp.exp(signed.log_abs)


def output_and_compilations(program: Any, *args: Any) -> tuple[float, int]:
    """The return value at x = POSITION, by compiled code, and how much of it was compiled."""
    with CompilationClock() as clock:
        plain, lifted = outputs_of(ep.Density.of(program(*args)), jnp.array([POSITION]))
    np.testing.assert_allclose(plain, lifted, rtol=1e-5)
    return float(plain[0]), clock.num_compilations


def sample_x() -> Any:
    return numpyro.sample("x", dist.Normal(0.0, 1.0))


def scaled(c: Any) -> Callable:
    def model() -> Any:
        return sample_x() * c

    return model


def nested(c: Any) -> Callable:
    def inner(x: Any) -> Any:
        return x * c

    def model() -> Any:
        return inner(sample_x())

    return model


def by_default(c: Any) -> Callable:
    def model(factor: Any = c) -> Any:
        return sample_x() * factor

    return model


def of_factor(factor: Any) -> Any:
    return sample_x() * factor


def in_dict(c: Any) -> Callable:
    options = {"factor": (c, "name")}

    def model() -> Any:
        return sample_x() * options["factor"][0]

    return model


@pytest.mark.parametrize(
    "make", [scaled, nested, by_default, functools.partial(functools.partial, of_factor), in_dict]
)
@pytest.mark.parametrize("kind", [float, np.float32, np.array, jnp.array])
def test_programs_with_other_constants_share_code(make: Callable, kind: Callable) -> None:
    output_and_compilations(ep.expectation(make(kind(2.0))))
    for c in (3.0, -1.5, 0.0):
        value, compilations = output_and_compilations(ep.expectation(make(kind(c))))
        np.testing.assert_allclose(value, POSITION * c, rtol=1e-6)
        assert compilations == 0


def test_targets_share_code() -> None:
    def target(c: float) -> Callable:
        return lambda sites: sites["x"] + c

    output_and_compilations(ep.expect(scaled(2.0), target(1.0)))
    value, compilations = output_and_compilations(ep.expect(scaled(2.0), target(5.0)))
    np.testing.assert_allclose(value, POSITION + 5.0, rtol=1e-6)
    assert compilations == 0


def test_integers_are_compiled_in() -> None:
    for c in (2, 3):
        value, compilations = output_and_compilations(ep.expectation(scaled(c)))
        np.testing.assert_allclose(value, POSITION * c, rtol=1e-6)
        assert compilations > 0


def with_control_flow(c: float) -> Any:
    return sample_x() * (c if c > 1 else -c)


def with_math(c: float) -> Any:
    return sample_x() * math.sqrt(c)


def with_type(c: Any) -> Any:
    return sample_x() * (c if isinstance(c, float) else 2 * c)


def with_handled_error(c: Any) -> Any:
    try:
        factor = float(c)
    except TypeError:
        factor = 100.0
    return sample_x() * factor


def with_digits(c: Any) -> Any:
    return sample_x() * ((c + 1e8) - 1e8)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (with_control_flow, lambda c: c if c > 1 else -c),
        (with_math, math.sqrt),
        (with_type, lambda c: c),
        (with_handled_error, lambda c: c),
        (with_digits, lambda c: (c + 1e8) - 1e8),
    ],
)
def test_constants_that_python_needs_are_compiled_in(
    function: Callable, expected: Callable
) -> None:
    for c in (0.5, 3.0):
        value, _ = output_and_compilations(ep.expectation(functools.partial(function, c)))
        np.testing.assert_allclose(value, POSITION * expected(c), rtol=1e-6)


def test_each_constant_is_judged_on_its_own() -> None:
    def make(c: float, width: float) -> Callable:
        return lambda: (sample_x() + c) * math.sqrt(width)

    output_and_compilations(ep.expectation(make(1.0, 4.0)))
    value, compilations = output_and_compilations(ep.expectation(make(2.0, 4.0)))
    np.testing.assert_allclose(value, (POSITION + 2.0) * 2.0, rtol=1e-6)
    assert compilations == 0
    value, _ = output_and_compilations(ep.expectation(make(2.0, 9.0)))
    np.testing.assert_allclose(value, (POSITION + 2.0) * 3.0, rtol=1e-6)


@dataclasses.dataclass
class Options:
    c: float

    def model(self) -> Any:
        return sample_x() * self.c


def uses_global() -> Any:
    return sample_x() * FACTOR


def test_what_changes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(2.0)
    values, array, known = [2.0, 1], np.array(2.0), {"c": 2.0}
    programs = {
        "attribute": ep.expectation(options.model),
        "global": ep.expectation(uses_global),
        "list": ep.expectation(lambda: sample_x() * values[0]),
        "array": ep.expectation(lambda: sample_x() * array),
        "dict": ep.expectation(lambda: sample_x() * known["c"]),
    }
    for program in programs.values():
        assert output_and_compilations(program)[0] == pytest.approx(2 * POSITION)
    options.c, values[0], known["c"] = 5.0, 5.0, 5.0
    array[...] = 5.0
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    for name, program in programs.items():
        assert output_and_compilations(program)[0] == pytest.approx(5 * POSITION), name
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert output_and_compilations(programs["global"])[0] == pytest.approx(2 * POSITION)


def test_what_is_bound_keeps_its_constants() -> None:
    values, array = [2.0, 3.0], np.array([2.0, 3.0])
    bound = [
        ep.expectation(lambda: sample_x() * values[0] + values[1])(),
        ep.expectation(lambda: sample_x() * array[0] + array[1])(),
    ]
    values[:] = [7, 8.0, 9.0]
    array[...] = 9.0
    for expectation in bound:
        value, _ = outputs_of(ep.Density.of(expectation), jnp.array([POSITION]))
        np.testing.assert_allclose(value, POSITION * 2.0 + 3.0, rtol=1e-6)


def test_distributions_of_other_classes_do_not_share() -> None:
    """Their traces may be the same where their coordinates are not."""
    transform = dist.transforms.ExpTransform()

    def make(distribution: Any) -> Any:
        return ep.expectation(lambda: numpyro.sample("x", distribution))()

    one = make(dist.LogNormal(0.0, 1.0))
    other = make(dist.TransformedDistribution(dist.Normal(0.0, 1.0), transform))
    assert one.model != other.model


def test_own_derivatives_do_not_share() -> None:
    def make(slope: float) -> Any:
        @jax.custom_jvp
        def double(x: Any) -> Any:
            return 2.0 * x

        double.defjvps(lambda tangent, _ans, _x: slope * tangent)
        return ep.expectation(lambda: double(sample_x()))()

    assert make(2.0).model != make(3.0).model


@pytest.mark.parametrize(("c", "sign"), [(2.0, 1), (-2.0, -1)])
def test_signs_know_constants_and_data(c: float, sign: int) -> None:
    def make(c: float) -> Callable:
        return lambda: c * sample_x() ** 2

    density = ep.Density.of(ep.expectation(make(c))())
    assert len(density.arrays) == 1
    assert density.known_signs.tolist() == [sign]
    by_argument = ep.expectation(lambda c: c * sample_x() ** 2)
    assert ep.Density.of(by_argument(c)).known_signs.tolist() == [sign]


def test_comparisons_know_constants() -> None:
    """A floor below all values is no plateau, as if it was written as a number."""

    def make(floor: float) -> Callable:
        return lambda: jnp.maximum(jnp.exp(sample_x()), floor)

    for floor in (-1.0, 1e-12, 0.5):
        density = ep.Density.of(ep.expectation(make(floor))())
        assert density.has_comparisons == (floor == 0.5)


def test_constants_are_in_the_provenance() -> None:
    def digest(c: float) -> str:
        expectation = ep.expectation(scaled(c))()
        return provenance_of(expectation, ep.Auto(), jax.random.key(0)).program_digest

    assert digest(2.0) == digest(2.0)
    assert digest(2.0) != digest(3.0)
