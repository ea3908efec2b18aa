"""Estimates that start from chains of the posterior: averages, ladders, mixtures, and doubts."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats as laws

import estimand as ep
from estimand.methods.adaptive import Ladder, Part, by_ladders
from estimand.methods.adaptive.draws import GAMMA2, Draws, Evaluated
from estimand.methods.adaptive.numbers import largest_nan_share
from estimand.methods.adaptive.posterior import _average
from estimand.trust import Goal
from tests.stats import assert_coverage, assert_estimate

DIMENSION = 14


@ep.expectation
def groups(y: Any) -> Any:
    """Known scales, so that all is Gaussian; one group, and its being far out."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    theta = numpyro.sample("theta", dist.Normal(mu, 0.5).expand([DIMENSION - 1]).to_event(1))
    numpyro.sample("y", dist.Normal(theta, 0.3).to_event(1), obs=y)
    return jnp.stack([theta[0], 1.0 * (theta[0] > 2.2), 1.0 * (theta[0] > 2.9)])


Y = np.linspace(1.5, -0.5, DIMENSION - 1)


def first_group() -> tuple[float, float]:
    """Mean and standard deviation of the first group in the posterior."""
    count = DIMENSION - 1
    prior = np.ones((count, count)) + 0.25 * np.eye(count)
    gain = prior @ np.linalg.inv(prior + 0.09 * np.eye(count))
    return float((gain @ Y)[0]), math.sqrt((prior - gain @ prior)[0, 0])


@pytest.mark.slow
def test_a_hierarchy_is_right_in_bulk_and_tails() -> None:
    mean, sd = first_group()
    truths = (mean, laws.norm.sf(2.2, mean, sd), laws.norm.sf(2.9, mean, sd))
    result = ep.estimate_expectation(groups(Y))
    for output, truth in zip(result.outputs, truths, strict=True):
        assert output.route == "a mixture fitted to chains of the posterior"
        assert_estimate(output.value, output.standard_error, truth, degrees=output.degrees)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1.0, 0.8])
def test_two_modes_that_chains_do_not_cross(width: float) -> None:
    """Both hold half of the mass, and one may be narrower: right, or not `ok`."""

    @ep.expectation
    def two() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 5.0).expand([13]).to_event(1))
        logs = [
            dist.Normal(centre, scale).to_event(1).log_prob(x)
            for centre, scale in ((2.0 * jnp.ones(13), 0.5), (-2.0 * jnp.ones(13), 0.5 * width))
        ]
        numpyro.factor("modes", jnp.logaddexp(*logs))
        return 1.0 * (x[0] > 0)

    def log_mass(centre: float, scale: float) -> float:
        variance = 25.0 + scale**2
        return float(13 * laws.norm.logpdf(centre, 0.0, math.sqrt(variance)))

    one, other = log_mass(2.0, 0.5), log_mass(-2.0, 0.5 * width)
    truth = 1 / (1 + math.exp(other - one))
    result = ep.estimate_expectation(two(), throw=False)
    if result.status:
        output = result.outputs[0]
        assert_estimate(output.value, output.standard_error, truth, degrees=output.degrees)


@pytest.mark.usefixtures("relaxed_ranks")
def test_a_small_component_of_the_prior_is_found(seed: int) -> None:
    """It has a thousandth of the mass and all of the event, and no chain would get there."""

    @ep.expectation
    def program() -> Any:
        shares = dist.Categorical(probs=jnp.array([0.999, 0.001]))
        means = jnp.array([[-2.0], [2.0]]) * jnp.ones((2, 20))
        law = dist.MixtureSameFamily(shares, dist.Normal(means, 0.5).to_event(1))
        return numpyro.sample("x", law)[0] > 2.5

    result = ep.estimate_expectation(program(), rng_key=seed)
    truth = 0.001 * laws.norm.sf(1.0)
    assert_estimate(result.value, result.standard_error, truth, degrees=result.outputs[0].degrees)


def test_averages_cover(seed: int) -> None:
    """Of autocorrelated chains, by the error between them."""
    rng = np.random.default_rng(seed)
    lower, upper = [], []
    for _ in range(200):
        values = np.empty((64, 50))
        state = rng.standard_normal(64)
        for step in range(50):
            state = 0.7 * state + math.sqrt(1 - 0.49) * rng.standard_normal(64)
            values[:, step] = state
        shifted = values + 3.0
        found = _average(np.sign(shifted), np.log(np.abs(shifted)), Goal(1.0))
        half = laws.t.ppf(0.975, found.degrees) * found.standard_error
        lower.append(found.value - half)
        upper.append(found.value + half)
    # The error is the larger of two, so that intervals cover a little more than they say.
    assert_coverage(np.array(lower), np.array(upper), 3.0, 0.96)


def test_averages_that_drift_or_disagree_are_not_trusted(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steady = 5.0 + rng.standard_normal((64, 100))
    drifting = steady + np.linspace(0.0, 1.0, 100)
    apart = steady + np.where(np.arange(64) < 32, 0.0, 3.0)[:, None]
    statuses = {
        name: _average(np.sign(values), np.log(np.abs(values)), Goal(0.05)).findings
        for name, values in {"steady": steady, "drifting": drifting, "apart": apart}.items()
    }
    assert not statuses["steady"]
    assert "drift" in {finding.check for finding in statuses["drifting"]}
    assert "mixing" in {finding.check for finding in statuses["apart"]}


def test_ladders_that_hardly_move_are_not_trusted(seed: int) -> None:
    rng = np.random.default_rng(seed)
    log_z = math.log(1e-6) + 0.02 * rng.standard_normal((2, 8))
    part = Part(1, 0)
    moving = {part: tuple(Ladder(row, 0.2, 1) for row in log_z)}
    stiff = {part: tuple(Ladder(row, 0.9, 1) for row in log_z)}
    found = by_ladders(moving, 0, Goal(0.05))
    assert found is not None
    assert found.status
    assert abs(found.value - 1e-6) < 5 * found.standard_error
    doubted = by_ladders(stiff, 0, Goal(0.05))
    assert doubted is not None
    assert doubted.status is ep.Status.not_converged
    assert by_ladders({}, 0, Goal(0.05)) is None


@pytest.mark.parametrize(("edge", "is_harmless"), [(6.0, True), (1.0, False)])
def test_places_without_numbers_matter_where_mass_is_around(
    edge: float, is_harmless: bool, seed: int
) -> None:
    """A posterior N(0, 1) under a prior of scale 10, cut off by NaN at an edge."""
    rng = np.random.default_rng(seed)
    x = 10 * rng.standard_normal((4096, 1))
    log_likelihood = np.where(x[:, 0] > edge, np.nan, -0.5 * x[:, 0] ** 2)
    log_prior = laws.norm.logpdf(x[:, 0], 0.0, 10.0)
    flat = np.ones((4096, 1))
    draws = Draws.from_prior(Evaluated(x, log_prior, log_likelihood, flat, 0 * flat), 4)
    share = largest_nan_share(draws, GAMMA2, draws.weights(GAMMA2).log_mean)
    assert (share < 1e-3) is is_harmless


@pytest.mark.slow
def test_a_program_without_numbers_far_out_is_answered() -> None:
    """As NumPyro's samplers do: a place that only a wide prior allows is impossible."""

    @ep.expectation
    def cut() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 10.0))
        numpyro.factor("cut", -0.5 * x**2 + 0 * jnp.log(6.0 - x))
        return x**2

    result = ep.estimate_expectation(cut())
    output = result.outputs[0]
    assert_estimate(output.value, output.standard_error, 100 / 101, degrees=output.degrees)
    assert any("27 % of the prior" in note for note in result.run.notes)


def test_same_key_same_result() -> None:
    method = ep.Auto(max_evaluations=2_000_000)
    one, other = (
        ep.estimate_expectation(groups(Y), method, rng_key=jax.random.key(3), throw=False)
        for _ in range(2)
    )
    assert [output.value for output in one.outputs] == [output.value for output in other.outputs]


@pytest.mark.slow
def test_averages_that_nothing_has_checked_are_interrupted() -> None:
    """A time limit leaves what the chains say, and does not call it `ok`."""
    result = ep.estimate_expectation(groups(Y), ep.Auto(max_seconds=1e-3), throw=False)
    assert {status.name for status in result.statuses} == {"interrupted"}
    assert abs(result.outputs[0].value - first_group()[0]) < 0.1
