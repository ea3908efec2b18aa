"""What must not change an answer: scales, names, the order of data, coordinates, precision.

Where the same draws must be made the answer is the same up to rounding; where they need not be,
both answers are compared with the truth.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpyro import handlers
from numpyro.infer.reparam import LocScaleReparam

import estimand as ep
from problems import PROBLEMS
from tests.stats import assert_estimate

Y = np.array([0.8, -0.3, 1.9, 0.4, 1.1])
# The posterior of the mean of Y under N(0, 1).
MEAN, VARIANCE = float(Y.sum() / 6), 1 / 6

IMPORTANCE = ep.ImportanceSampling(num_samples=400)
ANNEALED = ep.AnIS(num_samples=60, num_temperatures=5, kernel=ep.RandomWalk(scale=0.7))
METHODS = {
    "TABI": ep.TABI(IMPORTANCE),
    "TABI by annealing": ep.TABI(ANNEALED),
    "TABI by SMC": ep.TABI(ep.SMC(num_particles=200, num_steps=2)),
    "self-normalised": ep.SelfNormalised(IMPORTANCE),
}


@pytest.fixture(autouse=True)
def relaxed_ranks() -> Iterator[None]:
    """NumPyro's own distributions promote ranks in batches."""
    with jax.numpy_rank_promotion("allow"):
        yield


@functools.cache
def program_of(model: Callable) -> ep.ExpectationProgram:
    """One program for each model, so that what is compiled serves every example."""
    return ep.expectation(model)


def estimate(model: Callable, *args: Any, method: Any = None, key: int = 0) -> ep.Estimate:
    return ep.estimate_expectation(
        program_of(model)(*args), method, rng_key=key, throw=False, progress_bar=False
    )


def assert_same(
    one: ep.Estimate, other: ep.Estimate, factor: float = 1.0, shift: float = 0.0
) -> None:
    """The other estimate is factor · one + shift with its error, up to rounding."""
    value, error = float(one.value), float(one.standard_error)
    np.testing.assert_allclose(
        other.value, factor * value + shift, rtol=1e-8, atol=1e-9 * abs(factor * value)
    )
    np.testing.assert_allclose(other.standard_error, abs(factor) * error, rtol=1e-6)
    assert one.status is other.status


def assert_right(result: ep.Estimate, truth: float) -> None:
    """The estimate is ok and agrees with the truth by its own error."""
    output = result.outputs[0]
    assert result.status is ep.Status.ok, str(result)
    assert_estimate(output.value, output.standard_error, truth, degrees=output.degrees)


# Scales of f -------------------------------------------------------------------------------------


def scaled(y: Any, factor: float, shift: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return factor * x**2 + shift


SECOND_MOMENT = MEAN**2 + VARIANCE


@given(factor=st.floats(-1e3, 1e3), shift=st.floats(-1e3, 1e3))
def test_self_normalised_is_linear(factor: float, shift: float) -> None:
    assume(abs(factor) > 1e-3)
    method = METHODS["self-normalised"]
    one = estimate(scaled, Y, 1.0, 0.0, method=method)
    other = estimate(scaled, Y, factor, shift, method=method)
    size = abs(factor) * SECOND_MOMENT + abs(shift)
    expected = factor * one.value + shift
    np.testing.assert_allclose(other.value, expected, rtol=1e-9, atol=1e-9 * size)
    error = abs(factor) * one.standard_error
    np.testing.assert_allclose(other.standard_error, error, rtol=1e-6, atol=1e-9 * size)


@pytest.mark.parametrize("name", METHODS)
@given(exponent=st.integers(-280, 280))
@settings(max_examples=10)
def test_units_of_the_target(name: str, exponent: int) -> None:
    """Dollars or cents, or far beyond what squares of f could hold."""
    one = estimate(scaled, Y, 1.0, 0.0, method=METHODS[name])
    other = estimate(scaled, Y, 10.0**exponent, 0.0, method=METHODS[name])
    assert_same(one, other, factor=10.0**exponent)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "shift"), [(-3.7, 1.2), (1e-250, 0.0), (1e250, 0.0), (2.0, 50.0)]
)
def test_default_is_linear(factor: float, shift: float) -> None:
    assert_right(estimate(scaled, Y, factor, shift), factor * SECOND_MOMENT + shift)


@pytest.mark.slow
@given(constant=st.floats(-1e6, 1e6))
@settings(max_examples=5)
def test_a_constant_is_its_own_expectation(constant: float) -> None:
    method = ep.AdaptiveIS(max_evaluations=50_000)
    assume(constant == 0.0 or abs(constant) > 1e-6)
    result = estimate(scaled, Y, 0.0, constant, method=method)
    np.testing.assert_allclose(result.value, constant, rtol=1e-9)


@pytest.mark.parametrize("name", ["TABI", "self-normalised"])
def test_outputs_by_position_and_by_name(name: str) -> None:
    """A tuple, a dict and an array of the same outputs."""

    def outputs(wrap: Callable) -> Callable:
        def model(y: Any) -> Any:
            x = numpyro.sample("x", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(x, 1.0).expand([5]).to_event(1), obs=y)
            return wrap(x**2, jnp.exp(x))

        return model

    wraps = (lambda a, b: (a, b), lambda a, b: {"a": a, "b": b}, lambda a, b: jnp.stack([a, b]))
    results = [estimate(outputs(wrap), Y, method=METHODS[name]) for wrap in wraps]
    values = [np.asarray(jax.tree.leaves(result.value)).ravel() for result in results]
    np.testing.assert_allclose(values[1], values[0], rtol=1e-12)
    np.testing.assert_allclose(values[2], values[0], rtol=1e-12)


# Names and order ---------------------------------------------------------------------------------

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@pytest.mark.slow
@given(first=names, second=names, observed=names)
@settings(max_examples=5)
def test_names_of_sites(first: str, second: str, observed: str) -> None:
    assume(len({first, second, observed}) == 3)

    def model(first: str, second: str, observed: str) -> Callable:
        def named(y: Any) -> Any:
            x = numpyro.sample(first, dist.Normal(0.0, 1.0))
            s = numpyro.sample(second, dist.Gamma(2.0, 1.0))
            numpyro.sample(observed, dist.Normal(x, s).expand([5]).to_event(1), obs=y)
            return x * s

        return named

    method = METHODS["TABI"]
    one = estimate(model("x", "s", "y"), Y, method=method)
    other = estimate(model(first, second, observed), Y, method=method)
    assert_same(one, other)
    assert set(other.samples()) == {first, second}
    str(other.summary())


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@given(order=st.permutations(range(len(Y))))
@settings(max_examples=10)
def test_order_of_data(name: str, order: list[int]) -> None:
    one = estimate(scaled, Y, 1.0, 0.0, method=METHODS[name])
    assert_same(one, estimate(scaled, Y[np.array(order)], 1.0, 0.0, method=METHODS[name]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [
        pytest.param(IMPORTANCE, id="importance"),
        pytest.param(ANNEALED, id="annealing"),
    ],
)
@given(size=st.integers(1, 500))
@settings(max_examples=3)
def test_one_batch_or_many(estimator: Any, size: int) -> None:
    many = dataclasses.replace(estimator, batch_size=size)
    one = estimate(scaled, Y, 1.0, 0.0, method=ep.TABI(estimator))
    assert_same(one, estimate(scaled, Y, 1.0, 0.0, method=ep.TABI(many)))


# Other models of the same thing ------------------------------------------------------------------

EXTRAS: dict[str, Any] = {
    "normal": dist.Normal(3.0, 5.0),
    "gamma": dist.Gamma(0.5, 2.0),
    "simplex": dist.Dirichlet(jnp.ones(3)),
    "cauchy": dist.Cauchy(0.0, 1.0),
    "switch": dist.Bernoulli(0.3),
}


def with_extra(law: Any) -> Callable:
    def model(y: Any) -> Any:
        value = scaled(y, 1.0, 0.0)
        numpyro.sample("extra", law)
        return value

    return model


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_irrelevant_latent_changes_no_draw(extra: str) -> None:
    one = estimate(scaled, Y, 1.0, 0.0, method=METHODS["TABI"])
    assert_same(one, estimate(with_extra(EXTRAS[extra]), Y, method=METHODS["TABI"]))


@pytest.mark.slow
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_irrelevant_latent_by_default(extra: str) -> None:
    assert_right(estimate(with_extra(EXTRAS[extra]), Y), SECOND_MOMENT)


def hierarchy(y: Any) -> Any:
    """Group means with known scales: all Gaussian, so that the answer is known."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with numpyro.plate("groups", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, 0.7))
        numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)
    return theta[2] > 2.0


def _hierarchy_truth() -> float:
    prior = 4.0 + 0.49 * np.eye(5)
    gain = np.linalg.solve(prior + np.eye(5), prior[2])
    mean, variance = gain @ Y, prior[2, 2] - gain @ prior[2]
    return 0.5 * math.erfc((2.0 - mean) / math.sqrt(2 * variance))


def reparametrised(centered: float) -> Callable:
    return handlers.reparam(hierarchy, config={"theta": LocScaleReparam(centered=centered)})


@pytest.mark.parametrize("centered", [0.0, pytest.param(0.25, marks=pytest.mark.slow)])
def test_reparametrisation_leaves_prior_draws_as_they_are(centered: float) -> None:
    """LocScaleReparam makes the same normal draws and shifts them another way."""
    one = estimate(hierarchy, Y, method=METHODS["TABI"])
    assert one.value > 0
    assert_same(one, estimate(reparametrised(centered), Y, method=METHODS["TABI"]))


@pytest.mark.slow
@pytest.mark.parametrize("centered", [None, 0.0, 0.5])
def test_reparametrisation_by_default(centered: float | None) -> None:
    model = hierarchy if centered is None else reparametrised(centered)
    assert_right(estimate(model, Y), _hierarchy_truth())


# Precision and methods ---------------------------------------------------------------------------

CONTINUOUS = ("figure1", "horse_kicks", "bounded", "half_line", "simplex", "dependent", "banana")


@functools.cache
def density_of(name: str, is_double: bool) -> ep.Density:
    problem = PROBLEMS[name]
    return ep.Density.of(program_of(problem.model)(*problem.args)).part("gamma1_plus")


@jax.jit
def _terms(density: ep.Density, position: jax.Array) -> Any:
    return density.terms(position)


def terms(name: str, seed: int, is_double: bool) -> list[float]:
    with jax.enable_x64(is_double):
        density = density_of(name, is_double)
        position = np.random.default_rng(seed).normal(size=density.dimension)
        return [float(term) for term in _terms(density, jnp.asarray(position, float))]


@pytest.mark.parametrize("name", CONTINUOUS)
@given(seed=st.integers(0, 2**31 - 1))
@settings(max_examples=5)
def test_densities_in_single_and_double_precision(name: str, seed: int) -> None:
    single, double = (terms(name, seed, is_double) for is_double in (False, True))
    np.testing.assert_allclose(single, double, rtol=2e-4, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("name", ["figure1", "horse_kicks", "dependent"])
def test_default_in_single_and_double_precision(name: str, precision: str) -> None:
    problem = PROBLEMS[name]
    assert isinstance(problem.value, float)
    expectation = program_of(problem.model)(*problem.args)
    result = ep.estimate_expectation(expectation, throw=False, precision=precision)
    assert_right(result, problem.value)


@pytest.mark.slow
def test_target_aware_and_plain_agree_on_an_easy_target() -> None:
    """Both against the truth, for data of the same shape."""
    shifts = np.linspace(-1.5, 1.5, 4)
    for number, shift in enumerate(shifts):
        mean = float((Y + shift).sum() / 6)
        for method in (
            None,
            ep.TABI(ep.ImportanceSampling(num_samples=20_000)),
            ep.SelfNormalised(ep.ImportanceSampling(num_samples=20_000)),
        ):
            result = estimate(scaled, Y + shift, 1.0, 0.0, method=method, key=number)
            assert_right(result, mean**2 + VARIANCE)
