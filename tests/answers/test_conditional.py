"""Expectations given a condition, against closed forms."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import estimand as ep
from tests.stats import assert_coverage, assert_estimate

# Given y = 2 it is N(1, ½): this is exceeded with probability 1e-8.
EDGE = 1 + math.sqrt(0.5) * float(stats.norm.isf(1e-8))
MEAN_BEYOND = 1 + math.sqrt(0.5) * float(stats.norm.pdf(stats.norm.isf(1e-8))) / 1e-8


def prior() -> Any:
    return numpyro.sample("x", dist.Normal(0.0, 1.0))


def with_data(y: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return {"x": x, "sum": x + w, "high": w > 1.0}


beyond = ep.expect(with_data, given=lambda sites: sites["x"] > EDGE)


def assert_value(estimate: ep.Estimate, truth: float, number: int = 0) -> None:
    output = estimate.outputs[number]
    assert output.status, estimate
    assert_estimate(output.value, output.standard_error, truth, degrees=output.degrees)


def test_a_normal_beyond_six() -> None:
    program = ep.expect(prior, lambda sites: sites["x"], given=lambda sites: sites["x"] > 6.0)
    found = ep.estimate_expectation(program())
    assert_value(found, float(stats.norm.pdf(6) / stats.norm.sf(6)))
    assert found.log_z["Z2"] == pytest.approx(math.log(stats.norm.sf(6)), abs=0.05)
    assert found.samples("posterior")["x"].min() > 6.0


def test_data_and_a_condition_of_probability_1e_8(tmp_path: Path) -> None:
    found = ep.estimate_expectation(beyond(2.0))
    assert found.output.labels == ("high", "sum", "x")
    for number, truth in enumerate((float(stats.norm.sf(1)), MEAN_BEYOND, MEAN_BEYOND)):
        assert_value(found, truth, number)
    assert found.output.is_indicator == (True, False, False)
    other = ep.estimate_expectation(beyond(2.0), rng_key=1)
    assert_value(found.merge(other), MEAN_BEYOND, 2)
    found.save(tmp_path / "beyond.est")
    assert ep.load(tmp_path / "beyond.est").value == found.value
    assert "Z2" in str(found.summary())


def test_the_evidence_is_that_of_data_and_condition() -> None:
    evidence = ep.log_evidence(beyond(2.0))
    truth = float(stats.norm.logpdf(2.0, 0.0, math.sqrt(2))) + math.log(1e-8)
    assert_estimate(evidence.log_z, evidence.standard_error, truth, degrees=evidence.degrees)


def test_a_condition_on_a_sum_in_twenty_dimensions() -> None:
    def many() -> None:
        numpyro.sample("x", dist.Normal(0.0, 1.0).expand([20]).to_event(1))

    edge = 6 * math.sqrt(20)
    program = ep.expect(
        many, lambda sites: sites["x"][0], given=lambda sites: jnp.sum(sites["x"]) > edge
    )
    truth = float(stats.norm.pdf(6) / stats.norm.sf(6)) / math.sqrt(20)
    assert_value(ep.estimate_expectation(program()), truth)


def test_discrete_sites() -> None:
    def counted() -> None:
        rate = numpyro.sample("rate", dist.Gamma(3.0, 1.0))
        numpyro.sample("count", dist.Poisson(rate))

    program = ep.expect(counted, lambda s: s["count"], given=lambda s: s["count"] > 20)
    counts = np.arange(21, 400)
    masses = stats.nbinom.pmf(counts, 3, 0.5)
    assert_value(ep.estimate_expectation(program()), float(counts @ masses / masses.sum()))

    def labelled() -> None:
        label = numpyro.sample("label", dist.Categorical(probs=jnp.array([0.9, 0.0999, 1e-4])))
        numpyro.sample("x", dist.Normal(jnp.array([0.0, 2.0, 7.0])[label], 1.0))

    rare = ep.expect(labelled, lambda s: s["label"] == 2, given=lambda s: s["x"] > 6.0)
    masses = np.array([0.9, 0.0999, 1e-4]) * stats.norm.sf([6.0, 4.0, -1.0])
    assert_value(ep.estimate_expectation(rare()), float(masses[2] / masses.sum()))
    # A condition on a label that is summed out.
    given = ep.expect(labelled, lambda s: s["x"], given=lambda s: s["label"] == 2)
    assert_value(ep.estimate_expectation(given()), 7.0)


def test_other_methods_take_a_condition_that_is_not_rare() -> None:
    program = ep.expect(prior, lambda sites: sites["x"], given=lambda sites: sites["x"] > 0.0)
    sampler = ep.ImportanceSampling(num_samples=20_000)
    for method in (ep.TABI(sampler), ep.SelfNormalised(sampler), ep.PosteriorMCMC()):
        found = ep.estimate_expectation(program(), method)
        assert_value(found, math.sqrt(2 / math.pi))


def test_what_is_not_a_number_given_a_condition_is_named() -> None:
    program = ep.expect(prior, lambda s: jnp.log(s["x"] - 1.0), given=lambda s: s["x"] < 2.0)
    method = ep.TABI(ep.ImportanceSampling(num_samples=200))
    found = ep.estimate_expectation(program(), method, throw=False)
    assert "the return value is NaN or +inf at" in found.findings[0][0].detail


def test_a_condition_that_is_impossible_is_refused() -> None:
    program = ep.expect(prior, lambda sites: sites["x"], given=lambda sites: sites["x"] ** 2 < -1)
    found = ep.estimate_expectation(program(), ep.Auto(max_evaluations=200_000), throw=False)
    assert found.status is ep.Status.no_mass_found


def test_what_is_0_by_its_expression_is_exact_given_a_condition() -> None:
    program = ep.expect(prior, lambda sites: 0.0 * sites["x"], given=lambda sites: sites["x"] > 1.0)
    found = ep.estimate_expectation(program())
    assert (found.value, found.interval()) == (0.0, (0.0, 0.0))


def test_wrong_conditions_are_refused() -> None:
    with pytest.raises(ep.ProgramError, match="must return one bool"):
        ep.expect(prior, lambda sites: sites["x"], given=lambda sites: sites["x"])()
    with pytest.raises(TypeError, match="given must be a function"):
        ep.expect(prior, lambda sites: sites["x"], given=True)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="f is missing"):
        ep.expect(prior)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="call it first"):
        ep.estimate_expectation(beyond)  # type: ignore[arg-type]
    assert "conditional" in repr(beyond)
    assert repr(beyond(2.0)).startswith("<conditional expectation of with_data: 3 outputs")


@pytest.mark.slow
def test_intervals_given_a_rare_condition_cover() -> None:
    bound = ep.expect(with_data, lambda s: s["x"], given=lambda s: s["x"] > EDGE)(2.0)
    runs = [ep.estimate_expectation(bound, rng_key=key) for key in range(200)]
    low, high = zip(*(run.interval() for run in runs), strict=True)
    assert_coverage(low, high, MEAN_BEYOND, 0.95)
