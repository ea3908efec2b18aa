"""Exploring by ascents: right where it is said to be, and modes that ended alone are told."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import estimand as ep
from estimand.density import Density
from estimand.methods import auto
from estimand.methods.adaptive.ascents import climb_modes, lonely_share
from estimand.sampling import Mode, find_mode
from problems.known import known
from tests.stats import assert_coverage, assert_estimate

METHOD = ep.AdaptiveIS(max_evaluations=120_000, scout=ep.Ascents())
ROWS, NOISE = 40, 1.5
rng = np.random.default_rng(4)
INPUTS = rng.standard_normal((ROWS, 3))
OUTPUTS = INPUTS @ np.array([1.0, -0.5, 2.0]) + NOISE * rng.standard_normal(ROWS)


def regression(x, y, threshold):
    """The mean of a coefficient, and whether another one is large."""
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 10.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ slopes, NOISE), obs=y)
    return jnp.stack([slopes[0], (slopes[2] > threshold) * 1.0])


def posterior_of_slopes() -> tuple[np.ndarray, np.ndarray]:
    precision = INPUTS.T @ INPUTS / NOISE**2 + np.eye(3) / 100
    covariance = np.linalg.inv(precision)
    return covariance @ INPUTS.T @ OUTPUTS / NOISE**2, covariance


MEAN, COVARIANCE = posterior_of_slopes()
THRESHOLD = float(MEAN[2] + 4.0 * np.sqrt(COVARIANCE[2, 2]))
TRUTHS = [float(MEAN[0]), float(stats.norm.sf(4.0))]
BOUND = ep.expectation(regression)(INPUTS, OUTPUTS, THRESHOLD)


def test_a_regression_with_a_wide_prior() -> None:
    result = ep.estimate_expectation(BOUND, METHOD, rng_key=3)
    assert result.status is ep.Status.ok
    for output, truth in zip(result.outputs, TRUTHS, strict=True):
        assert_estimate(output.value, output.standard_error, truth)
    assert result.num_evaluations + 3 * result.num_gradients <= METHOD.max_evaluations


@pytest.mark.slow
def test_intervals_cover() -> None:
    results = [ep.estimate_expectation(BOUND, METHOD, rng_key=k, throw=False) for k in range(200)]
    assert all(result.statuses[0] and result.statuses[1] for result in results)
    low, high = (
        np.stack(ends) for ends in zip(*(result.interval() for result in results), strict=True)
    )
    for number, truth in enumerate(TRUTHS):
        assert_coverage(low[:, number], high[:, number], truth, at_least=0.95)


def two_modes(distance):
    """Two modes of equal mass; whether it is the right one."""
    x = numpyro.sample("x", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    log_densities = [-0.5 * jnp.sum(((x - sign * distance) / 0.3) ** 2) for sign in (1.0, -1.0)]
    numpyro.factor("modes", jnp.logaddexp(*log_densities))
    return (x[0] > 0) * 1.0


def test_both_of_two_modes_are_found() -> None:
    result = ep.estimate_expectation(ep.expectation(two_modes)(4.0), METHOD)
    assert_estimate(result.value, result.standard_error, 0.5)


def rough(amplitude):
    """A hundred modes."""
    x = numpyro.sample("x", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    numpyro.factor("waves", amplitude * jnp.sum(jnp.cos(6.0 * x)))
    return x[0] ** 2


def test_modes_that_one_ascent_has_found_speak_against_all() -> None:
    result = ep.estimate_expectation(ep.expectation(rough)(8.0), METHOD, throw=False)
    assert not result.status
    assert any("ascents ended where no other one did" in str(f) for f in result.findings)


def mode_at(*position: float, is_found: bool = True) -> Mode:
    return Mode(np.asarray(position), np.eye(len(position)), 0.0, is_found, 3)


def test_lonely_ends_are_counted() -> None:
    ends = [mode_at(0.0), mode_at(1e-3), mode_at(5.0), mode_at(0.0, is_found=False)]
    assert lonely_share(ends) == 0.5
    assert lonely_share(ends[:2]) == 0.0


def test_climbs_come_to_the_edge_of_an_event() -> None:
    density = Density.of(BOUND).part("gamma1_plus", 1).softened(np.array([1.0]), (1.0, 0.1, 0.01))
    start = find_mode(Density.of(BOUND).part("gamma2", 0), np.zeros(3)).position
    np.testing.assert_allclose(start, MEAN, rtol=1e-6)
    modes = climb_modes(density, start, (1 / 3, 2 / 3, 1.0))
    assert all(mode.is_found for mode in modes)
    assert abs(modes[-1].position[2] - THRESHOLD) < 0.1


def test_what_has_no_second_derivatives_is_refused() -> None:
    def counted():
        k = numpyro.sample("k", dist.Poisson(3.0))
        return k * 1.0

    with pytest.raises(ep.ProgramError, match="Ascents"):
        ep.estimate_expectation(ep.expectation(counted)(), METHOD)
    with pytest.raises(ValueError, match="num_ascents"):
        ep.Ascents(num_ascents=0)


def test_the_default_method_takes_them_where_evaluations_are_expensive() -> None:
    x = np.random.default_rng(1).standard_normal((12_000, 3))
    y = x @ np.ones(3) + NOISE * np.random.default_rng(2).standard_normal(12_000)
    bound = ep.expectation(regression)(x, y, 1.06)
    assert Density.of(bound).work.num_numbers > auto.MIN_VERY_EXPENSIVE
    result = ep.estimate_expectation(bound)
    assert {output.route for output in result.outputs} == {"a mixture by ascents"}
    assert result.num_evaluations < 120_000


def test_more_dimensions_than_there_are_quasi_random_points_for() -> None:
    problem = known("gaussian_50")
    method = ep.AdaptiveIS(scout=ep.Ascents())
    result = ep.estimate_expectation(problem.expectation, method)
    assert_estimate(result.value, result.standard_error, problem.values[0], degrees=15)
