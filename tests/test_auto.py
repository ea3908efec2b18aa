"""The default method: right where it says ok, and the route it took is told."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from truths import IMPROPER, PROBLEMS

import estimand as ep


def bound(name: str) -> ep.Expectation:
    problem = PROBLEMS[name]
    return ep.expectation(problem.model)(*problem.args)


def funnel() -> Any:
    """A centred hierarchy: no mixture of Gaussians covers its neck.

    E[f] with f = 1{log_scale < -2} is the prior's own, because there are no data.
    """
    log_scale = numpyro.sample("log_scale", dist.Normal(0.0, 2.0))
    numpyro.sample("x", dist.Normal(0.0, jnp.exp(log_scale)).expand([6]).to_event(1))
    return log_scale < -2.0


FUNNEL_TRUTH = 0.5 * math.erfc(1 / math.sqrt(2))


def test_default_takes_the_mixture_where_it_fits() -> None:
    result = ep.estimate_expectation(bound("figure1"))
    assert result.method == "Auto()"
    assert result.run.notes == ()
    assert abs(result.value - 2.5) < 5 * result.standard_error < 0.0125


def test_discrete_sites_go_to_islands() -> None:
    result = ep.estimate_expectation(bound("branching"))
    assert "site 'm' is discrete" in result.run.notes[0]
    assert "site 'm' is discrete" in str(result)
    value = PROBLEMS["branching"].value
    assert isinstance(value, float)
    assert abs(result.value - value) < 5 * result.standard_error


@pytest.mark.slow
def test_a_funnel_is_not_trusted_to_the_mixture() -> None:
    """Eight schools, centred: outputs the mixture gets wrong go to islands, which are right."""
    problem, expectation = PROBLEMS["eight_schools"], bound("eight_schools")
    assert isinstance(problem.value, tuple)
    for seed in range(3):
        result = ep.estimate_expectation(expectation, rng_key=seed, throw=False)
        assert result.run.notes
        assert "islands of SMC" in str(result)
        for value, error, truth, status in zip(
            result.value, result.standard_error, problem.value, result.statuses, strict=True
        ):
            if status in (ep.Status.ok, ep.Status.not_converged):
                assert abs(value - truth) < 5 * error


@pytest.mark.slow
def test_funnel_prior() -> None:
    result = ep.estimate_expectation(ep.expectation(funnel)(), throw=False)
    assert abs(result.value - FUNNEL_TRUTH) < 5 * result.standard_error
    assert result.standard_error < 0.1 * FUNNEL_TRUTH


@pytest.mark.slow
@pytest.mark.parametrize("name", IMPROPER)
def test_expectations_that_do_not_exist_are_not_ok(name: str) -> None:
    result = ep.estimate_expectation(ep.expectation(IMPROPER[name])(), throw=False)
    assert not result.status


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sir", "rosenbrock", "four_branch", "rp22"])
def test_one_percent_by_default(name: str) -> None:
    """Second modes, thin ridges and failure regions that some prior draws meet."""
    result = ep.estimate_expectation(bound(name), throw=False)
    for value, error, truth, status in zip(
        np.ravel(result.value),
        np.ravel(result.standard_error),
        np.ravel(PROBLEMS[name].value),
        result.statuses,
        strict=True,
    ):
        assert status in (ep.Status.ok, ep.Status.not_converged)
        assert abs(value - truth) < 5 * error
        assert error < 0.03 * abs(truth)


def test_no_retry_for_what_no_route_mends() -> None:
    result = ep.estimate_expectation(bound("normal_tail"), throw=False)
    assert result.status is ep.Status.no_mass_found
    assert result.run.notes == ()
    assert result.num_evaluations < 10_000


def test_improper_prior_is_refused() -> None:
    @ep.expectation
    def flat() -> Any:
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=0.0)
        return x

    with pytest.raises(ep.ProgramError, match="'x' of program 'flat' is improper"):
        ep.estimate_expectation(flat())


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"relative_error": -1.0}, "relative_error"), ({"max_evaluations": 0}, "max_evaluations")],
)
def test_bad_settings_are_refused(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        ep.Auto(**settings)


@pytest.mark.slow
def test_a_hundred_dimensions() -> None:
    """Beyond the mixture: bridge sampling of NUTS chains, E about 1e-46."""
    problem = PROBLEMS["posterior_predictive"]
    expectation = ep.expectation(problem.model)(np.full(100, 0.35))
    result = ep.estimate_expectation(expectation, throw=False)
    assert "bridge sampling" in result.run.notes[0]
    truth = 1.27610307e-46
    assert abs(result.value - truth) < 5 * result.standard_error
    assert result.standard_error < 0.05 * truth
