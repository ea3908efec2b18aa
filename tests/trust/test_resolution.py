"""Mass that floating point does not resolve never has status `ok`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats as laws

import estimand as ep
from estimand.density import Density
from estimand.trust import Evidence, OutputEstimate, Parts, check_resolution
from tests.parameters import product
from tests.stats import assert_estimate
from tests.trust.helpers import evidence


def of(law: Any, target: Callable[[Any], Any] = lambda x: x) -> ep.Expectation:
    @ep.expectation
    def program() -> Any:
        return target(numpyro.sample("x", law))

    return program()


def successes() -> ep.Expectation:
    """All of ten trials succeed: E[1 − q] = 0.05 / 10.1, and a sixth of the mass has q = 1."""

    @ep.expectation
    def program() -> Any:
        q = numpyro.sample("q", dist.Beta(0.05, 0.05))
        numpyro.sample("k", dist.Binomial(10, q), obs=10)
        return 1 - q

    return program()


QUICK = ep.AdaptiveIS(max_evaluations=100_000)
UNRESOLVED = {
    "a sparse prior": successes(),
    "an infinite mean": of(dist.HalfCauchy(1.0)),
    "a mean that is nearly infinite": of(dist.InverseGamma(1.01, 1.0)),
    "odds of a uniform share": of(dist.Uniform(0.0, 1.0), lambda q: q / (1 - q)),
    "a sparse simplex": of(dist.Dirichlet(jnp.full(3, 0.001))),
    "all mass at 0": of(dist.Gamma(0.001, 0.001)),
}


@pytest.mark.parametrize(
    "name",
    product(UNRESOLVED, slow=lambda name: name not in ("a sparse prior", "an infinite mean")),
)
def test_unresolved(name: str) -> None:
    result = ep.estimate_expectation(UNRESOLVED[name], QUICK, throw=False)
    assert set(result.statuses) == {ep.Status.unresolved}
    assert "floating-point numbers end" in str(result)


@pytest.mark.slow
def test_by_the_default_method() -> None:
    """No other route is tried where none can resolve the mass."""
    result = ep.estimate_expectation(successes(), throw=False)
    assert result.status is ep.Status.unresolved


@pytest.mark.parametrize(
    "estimator",
    [pytest.param(ep.SMC(num_particles=2000), marks=pytest.mark.slow), ep.ImportanceSampling()],
)
def test_by_parts(estimator: Any) -> None:
    result = ep.estimate_expectation(successes(), ep.TABI(estimator), throw=False)
    assert not result.status


RESOLVED = {
    "a prior with infinite density at both edges": (of(dist.Beta(0.5, 0.5)), 0.5),
    "the distance from an edge at 0": (of(dist.Beta(0.05, 1.0)), 0.05 / 1.05),
    "a share that is nearly all": (
        of(dist.Dirichlet(jnp.array([1.0, 0.1])), lambda q: q[0] > 0.99),
        float(laws.beta(1.0, 0.1).sf(0.99)),
    ),
    "a heavy tail": (of(dist.InverseGamma(1.6, 1.0)), 1 / 0.6),
}


@pytest.mark.parametrize("name", RESOLVED)
def test_resolved(name: str) -> None:
    expectation, truth = RESOLVED[name]
    result = ep.estimate_expectation(expectation, QUICK)
    assert_estimate(result.value, result.standard_error, truth, degrees=15)


@pytest.mark.slow
def test_a_target_that_cancels_the_prior_where_numbers_are_coarse() -> None:
    """E[eʳ] of an exponential law is infinite; at r = 10²⁷ the logarithms say −r + r = 0."""
    expectation = of(dist.Exponential(1.0), jnp.exp)
    for key in range(3):
        assert not ep.estimate_expectation(expectation, QUICK, rng_key=key, throw=False).status


def test_in_single_precision() -> None:
    """Uniform on (0, 1): P(q > 1 − 2⁻²⁴) is between two numbers, and E[q] is not affected."""
    result = ep.estimate_expectation(of(dist.Uniform(0.0, 1.0)), QUICK, precision="single")
    assert abs(result.value - 0.5) < 0.005


def test_the_spacing_of_numbers_is_that_of_the_precision() -> None:
    """A Beta(1, 0.3) law has a share of 0.7 % within 2⁻²⁴ of 1, and of 2e-5 within 2⁻⁵³."""

    @ep.expectation
    def program() -> Any:
        return numpyro.sample("x", dist.Beta(1.0, 0.3))

    expectation = program()
    with jax.enable_x64(False):
        double = ep.estimate_expectation(expectation, QUICK)
    assert abs(double.value - 1 / 1.3) < 0.01
    single = ep.estimate_expectation(expectation, QUICK, precision="single", throw=False)
    assert single.status is ep.Status.unresolved


# --- the check by itself ---


def with_lost(count: int, log_z: float = 0.0) -> Evidence:
    """Evidence with so many of its 2,000 equally weighted positions where numbers end."""
    positions = np.zeros((2000, 1))
    positions[:count] = 0.5 * math.log(sys.float_info.max)
    return evidence(log_z, num_samples=2000)._replace(positions=jnp.asarray(positions))


def resolution(*parts: Evidence | None) -> list[ep.Finding]:
    output = OutputEstimate(1.0, 0.01, parts=Parts(*parts))
    return check_resolution(output, Density.of(of(dist.HalfNormal(1.0))))


def test_a_thousandth_of_the_mass_may_be_lost() -> None:
    assert resolution(with_lost(2), None, with_lost(0)) == []
    (finding,) = resolution(with_lost(3), None, with_lost(0))
    assert finding == ep.Finding(
        ep.Status.unresolved,
        "Z1_plus",
        "0.15 % of the mass is where numbers end; at most 0.1 % allowed",
        "range",
    )


def test_values_that_are_their_own_coordinates_end_where_numbers_do() -> None:
    """The mean of a Cauchy distribution, cut off at the largest number, is not one."""
    density = Density.of(of(dist.Normal(0.0, 1.0)))

    def found(largest: float, count: int) -> list[ep.Finding]:
        positions = np.zeros((2000, 1))
        positions[:count] = largest
        part = evidence(0.0, num_samples=2000)._replace(positions=jnp.asarray(positions))
        centre = evidence(0.0, num_samples=2000)._replace(positions=jnp.ones((2000, 1)))
        output = OutputEstimate(1.0, 0.01, parts=Parts(part, None, centre))
        return check_resolution(output, density)

    assert found(-1e60, 200) == found(1e70, 2) == []
    for largest in (1e70, -1e300):
        assert [finding.check for finding in found(largest, 200)] == ["range"]


def test_every_part_that_matters_is_looked_at() -> None:
    found = resolution(with_lost(100), with_lost(200, math.log(0.5)), with_lost(300))
    assert [(finding.part, finding.detail.split(" of")[0]) for finding in found] == [
        ("Z1_plus", "5 %"),
        ("Z1_minus", "10 %"),
        ("Z2", "15 %"),
    ]
    # All of the negative part is less than half of the error of the others, which is one percent.
    assert resolution(with_lost(0), with_lost(200, math.log(0.001)), with_lost(0)) == []
    nothing = evidence(-math.inf, math.inf, log_weights=[-math.inf] * 10)
    assert resolution(with_lost(0), nothing, with_lost(0)) == []
