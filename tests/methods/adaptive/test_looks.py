"""Looks: what is rare and large in a sum is found, or its absence is not called `ok`."""

from __future__ import annotations

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
from estimand.density import MAGNITUDE, Density
from estimand.methods.adaptive import Part
from estimand.trust import Goal, OutputEstimate, check_magnitude, unmet
from tests.stats import assert_estimate


def normals(count: int) -> Any:
    return numpyro.sample("x", dist.Normal(0.0, 1.0).expand([count]).to_event(1))


def catastrophe(wrap: Callable) -> Any:
    x = normals(8)
    return wrap(lambda: 1.0 + 2.5e9 * jnp.all(x > 1.5))


def rare_cost(wrap: Callable) -> Any:
    x = normals(4)
    return wrap(lambda: 1.0 + 1e6 * (jnp.sum(x) > 9.5))


def exponential(wrap: Callable) -> Any:
    x = normals(5)
    return wrap(lambda: 1.0 + jnp.exp(7.0 / math.sqrt(5.0) * jnp.sum(x) - 24.5))


def jackpot(wrap: Callable) -> Any:
    numbers = dist.DiscreteUniform(0, 29).expand([5]).to_event(1)
    k = numpyro.sample("k", numbers)
    return wrap(lambda: 1e7 * jnp.all(k == 7) - 1.0)


HEIGHT = math.exp(0.5 * 1.25 / (1 + 1e-6)) * (1 + 1e-6) / 1e-6


def spike(wrap: Callable) -> Any:
    x = normals(2)
    return wrap(lambda: 1.0 + HEIGHT * jnp.exp(-jnp.sum((x - jnp.array([1.0, -0.5])) ** 2) / 2e-6))


SUMS: dict[Callable, float] = {
    catastrophe: 1.99203327,
    rare_cost: 2.01708324,
    exponential: 2.0,
    jackpot: -0.588477366,
    spike: 2.0,
}


def plainly(f: Callable) -> Any:
    return f()


def in_a_loop(f: Callable) -> Any:
    return jax.lax.fori_loop(0, 1, lambda _, total: total + f(), 0.0)


def bound(sum_of: Callable, wrap: Callable) -> ep.Expectation:
    def program() -> Any:
        return sum_of(wrap)

    return ep.expectation(program, enumerate=False)()


@pytest.mark.parametrize("sum_of", SUMS)
def test_rare_and_large_terms_are_found(sum_of: Callable, seed: int) -> None:
    method = ep.Auto(relative_error=0.002)
    result = ep.estimate_expectation(bound(sum_of, plainly), method, rng_key=seed)
    assert result.status
    assert_estimate(result.value, result.standard_error, SUMS[sum_of], degrees=15)
    assert abs(result.value / SUMS[sum_of] - 1) < 0.01


@pytest.mark.parametrize("sum_of", SUMS)
def test_terms_that_a_loop_hides_are_found_or_not_ok(sum_of: Callable, seed: int) -> None:
    result = ep.estimate_expectation(bound(sum_of, in_a_loop), rng_key=seed, throw=False)
    truth = SUMS[sum_of]
    is_right = abs(result.value - truth) <= max(4.5 * result.standard_error, 0.01 * abs(truth))
    assert is_right or not result.status


def test_a_term_that_was_never_met_is_named(seed: int) -> None:
    """Islands, which do not look for terms, cannot make it `ok` again."""
    result = ep.estimate_expectation(bound(jackpot, in_a_loop), rng_key=seed, throw=False)
    assert result.status is ep.Status.not_converged
    assert any("no bound" in str(finding) for finding in result.findings[0])


def test_a_needle_beside_a_broad_mode_is_found_by_its_term(seed: int) -> None:
    """A third of the mass within 0.05 of a point, in six dimensions."""

    @ep.expectation
    def program() -> Any:
        x = normals(6)
        broad = math.log(2 / 3) + jnp.sum(dist.Normal(-0.5, 0.5).log_prob(x))
        needle = math.log(1 / 3) + jnp.sum(dist.Normal(1.0, 0.05).log_prob(x))
        numpyro.factor("data", jnp.logaddexp(broad, needle))
        return x[0]

    # Products of the prior with either Gaussian, in closed form for one coordinate.
    log_z = [6 * (-0.25 / (2 * 1.25) - 0.5 * math.log(1.25)) + math.log(2 / 3)]
    log_z += [6 * (-1.0 / (2 * 1.0025) - 0.5 * math.log(1.0025)) + math.log(1 / 3)]
    shares = np.exp(np.array(log_z) - np.logaddexp(log_z[0], log_z[1]))
    truth = float(shares @ np.array([-0.5 / 1.25, 1.0 / 1.0025]))
    result = ep.estimate_expectation(program(), rng_key=seed)
    assert_estimate(result.value, result.standard_error, truth, degrees=15)


def test_ordinary_sums_cost_no_further_scouts(seed: int) -> None:
    """Terms that the scouts of the parts have seen are not explored again."""

    def model(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 3.0).expand([3]).to_event(1))
        with numpyro.plate("rows", 3):
            numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x

    y = np.array([1.0, 2.0, -1.0])
    parts = ep.expectation(lambda y: jnp.sum(model(y) ** 2))(y)
    alone = ep.expectation(lambda y: model(y)[0] ** 2)(y)
    first, second = (
        ep.estimate_expectation(bound, ep.AdaptiveIS(), rng_key=seed).num_evaluations
        for bound in (parts, alone)
    )
    assert first < 1.2 * second


def test_magnitudes_are_measured_from_their_centre() -> None:
    density = Density.of(bound(rare_cost, plainly)).with_looks()
    position = jnp.array([3.0, 3.0, 3.0, 3.0])
    for centre, expected in ((0.0, 1e6 + 1), (1.0, 1e6), (2e6, 1e6 - 1), (-1.0, 1e6 + 2)):
        found = density.magnitude(0, centre).terms(position).log_target
        np.testing.assert_allclose(found, math.log(expected), rtol=1e-12)
    signs, logs = np.array([[1.0], [-1.0], [0.0]]), np.log(np.array([[3.0], [2.0], [1.0]]))
    logs[2] = -np.inf
    distances = Part(MAGNITUDE, 0, 3.0).log_sizes(signs, logs)
    np.testing.assert_allclose(distances, [-np.inf, math.log(5.0), math.log(3.0)])


def test_what_no_draw_has_met_is_bounded() -> None:
    small = unmet("the term is 0", 3e5, 10.0, goal=1e-3)
    assert not small.findings
    assert 0 < small.error < 1e-3
    large = unmet("the term is 0", 3e5, 1e4, goal=1e-3)
    assert large.findings[0].detail == (
        "the term is 0 at nearly all draws: too few of the rare draws at which it differs were "
        "seen, and these could change the answer by up to 0.1"
    )
    assert large.findings[0].status is ep.Status.not_converged
    assert "up to" in large.findings[0].detail
    assert "no bound" in unmet("the term is 0", 3e5, math.inf, goal=1e-3).findings[0].detail


def test_an_estimate_must_not_have_less_than_draws_that_did_not_suffice() -> None:
    weak = OutputEstimate(2.0, 0.4, magnitude=2.0)
    assert not check_magnitude(OutputEstimate(1.7, 0.01, magnitude=1.7), weak)
    assert check_magnitude(OutputEstimate(1.0, 0.01, magnitude=1.0), weak)
    single = OutputEstimate(50.0, 50.0, magnitude=50.0)
    assert check_magnitude(OutputEstimate(1.0, 0.01, magnitude=1.0), single)


def test_an_absolute_error_is_enough(seed: int) -> None:
    """The mean of a symmetric f of size 14 is 0: no relative error is small there."""

    @ep.expectation
    def program() -> Any:
        return 14.0 * jnp.sin(3.0 * numpyro.sample("x", dist.Normal(0.0, 1.0)))

    method = ep.Auto(absolute_error=0.05)
    result = ep.estimate_expectation(program(), method, rng_key=seed)
    assert result.status
    assert abs(result.value) < 5 * result.standard_error
    assert Goal(0.01, 0.05).allowed(OutputEstimate(0.0, 0.01, magnitude=1.0)) == 0.05
    with pytest.raises(ValueError, match="absolute_error"):
        ep.Auto(absolute_error=-1.0)


def test_a_high_precision_uses_the_budget(seed: int) -> None:
    @ep.expectation
    def program() -> Any:
        return numpyro.sample("x", dist.Normal(0.0, 1.0)) > 2.0

    method = ep.AdaptiveIS(relative_error=1e-9, max_evaluations=1_000_000)
    result = ep.estimate_expectation(program(), method, rng_key=seed, throw=False)
    assert result.num_evaluations > 500_000
