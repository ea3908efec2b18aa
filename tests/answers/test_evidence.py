"""Evidence by the default method, and models compared by it."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import integrate, stats

import estimand as ep
from problems import evidence as known
from tests.stats import assert_coverage, assert_estimate


def assert_log_z(evidence: ep.LogEvidence, truth: float) -> None:
    """The truths have six digits behind the point."""
    assert evidence.status, evidence
    error = math.hypot(evidence.standard_error, 1e-6)
    assert_estimate(evidence.log_z, error, truth, degrees=evidence.degrees)


@ep.expectation
def conjugate(y: float, sd: float = 1.0) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, sd))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return {"x": x, "tail": x > 2.0}


def log_conjugate(y: float, sd: float = 1.0) -> float:
    return float(stats.norm.logpdf(y, 0.0, math.sqrt(1 + sd**2)))


# --- truths of the problems ---


def test_the_pine_truths_are_those_of_the_conjugate_model() -> None:
    for x, truth in zip((known.DENSITY, known.ADJUSTED_DENSITY), known.PINE_LOG_Z, strict=True):
        assert known.log_pine_evidence(known.STRENGTH, x) == pytest.approx(truth, abs=1e-5)


def test_the_truth_of_the_eggbox() -> None:
    """Averages over the unit cell of both signs, by the trapezoid rule, exact for waves."""
    cos = np.cos(np.arange(4096) * 2 * np.pi / 4096)
    shift = 243.0
    inner = np.exp((2 + np.outer(cos, cos)) ** 5 - shift).mean()
    assert math.log(inner) + shift == pytest.approx(known.EGGBOX_LOG_Z, abs=1e-5)


def test_the_truth_of_the_shells() -> None:
    """In the plane of the axis, which the cube cuts at 2.5, and the distance from it."""
    along = np.linspace(-3.0, 2.5, 1001)[:, None]
    away = (np.arange(1000)[None] + 0.5) * 3.2 / 1000
    for dimension, truth in known.SHELLS_LOG_Z.items():
        n = dimension - 1
        log_sphere = math.log(2) + n / 2 * math.log(math.pi) - math.lgamma(n / 2)
        log_shell = stats.norm.logpdf(np.hypot(along, away), 2.0, 0.1)
        values = np.exp(log_shell + (n - 1) * np.log(away) + log_sphere - dimension * 2.2)
        integral = integrate.trapezoid(values.sum(axis=1) * 3.2 / 1000, along[:, 0])
        log_z = math.log(2 * integral) + dimension * (2.2 - math.log(12.0))
        assert log_z == pytest.approx(truth, abs=2e-6)


# --- log_evidence ---


def test_evidence_needs_no_estimator() -> None:
    evidence = ep.log_evidence(conjugate(2.0))
    assert_log_z(evidence, log_conjugate(2.0))
    assert evidence.standard_error < 1e-3
    assert "ok" in str(evidence)
    assert evidence.to_dict()["status"] == "ok"
    low, high = evidence.interval()
    assert low < evidence.log_z < high


def test_the_same_key_gives_the_same_evidence() -> None:
    one, other = (ep.log_evidence(conjugate(2.0), rng_key=3) for _ in range(2))
    assert one.log_z == other.log_z
    assert ep.log_evidence(conjugate(2.0), rng_key=4).log_z != one.log_z


def test_evidence_of_models_that_are_hard() -> None:
    assert_log_z(ep.log_evidence(known.correlated), known.CORRELATED_LOG_Z)
    for dimension in (2, 10):
        evidence = ep.log_evidence(known.shells, model_args=(dimension,))
        assert_log_z(evidence, known.SHELLS_LOG_Z[dimension])


@pytest.mark.slow
def test_evidence_of_shells_in_30_dimensions_and_of_the_eggbox() -> None:
    for dimension in (5, 20, 30):
        evidence = ep.log_evidence(known.shells, model_args=(dimension,))
        assert_log_z(evidence, known.SHELLS_LOG_Z[dimension])
    assert_log_z(ep.log_evidence(known.eggbox), known.EGGBOX_LOG_Z)


def test_evidence_of_a_program_that_branches() -> None:
    @ep.expectation
    def branching() -> Any:
        m = numpyro.sample("m", dist.Bernoulli(0.5), infer={"branching": True})
        a = numpyro.sample("a", dist.Normal(float(m), 1.0))
        numpyro.sample("y", dist.Normal(a, 1.0), obs=0.2)
        return a

    evidence = ep.log_evidence(branching())
    truth = np.logaddexp(*(stats.norm.logpdf(0.2, m, math.sqrt(2)) for m in (0, 1)))
    assert_log_z(evidence, float(truth) - math.log(2))


def test_evidence_of_discrete_sites_and_of_none() -> None:
    def counts(y: Any) -> None:
        label = numpyro.sample("label", dist.Categorical(probs=jnp.array([0.3, 0.7])))
        numpyro.sample("y", dist.Poisson(jnp.array([2.0, 8.0])[label]), obs=y)

    evidence = ep.log_evidence(counts, model_args=(np.array(5.0),))
    truth = math.log(0.3 * stats.poisson.pmf(5, 2.0) + 0.7 * stats.poisson.pmf(5, 8.0))
    assert_log_z(evidence, truth)

    def nothing(y: Any) -> None:
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    evidence = ep.log_evidence(nothing, model_args=(np.array(1.5),))
    assert evidence.log_z == pytest.approx(stats.norm.logpdf(1.5))


def test_evidence_that_does_not_exist_is_refused() -> None:
    def divergent() -> None:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("growth", 0.45 * x**2 + 0.1 * x**2)

    with pytest.raises(ep.EstimationError) as error:
        ep.log_evidence(divergent, method=ep.Auto(max_evaluations=200_000))
    assert not error.value.estimate.status
    assert error.value.estimate.findings

    def improper(y: Any) -> None:
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)

    with pytest.raises(ep.ProgramError, match="prior of site 'x'"):
        ep.log_evidence(improper, model_args=(np.array(1.0),))


def test_wrong_questions_are_refused() -> None:
    with pytest.raises(TypeError, match="estimator or a method"):
        ep.log_evidence(conjugate(2.0), ep.AnIS(), method=ep.Auto())
    with pytest.raises(TypeError, match="must be Auto"):
        ep.log_evidence(conjugate(2.0), method=ep.TABI(ep.AnIS()))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a program called with its data"):
        ep.log_evidence(3.0)  # type: ignore[arg-type]


@pytest.mark.slow
def test_intervals_of_evidence_cover() -> None:
    """Shells in two dimensions, where the mixture is far from exact."""
    runs = [ep.log_evidence(known.shells, model_args=(2,), rng_key=key) for key in range(200)]
    assert all(run.status for run in runs)
    low, high = zip(*(run.interval() for run in runs), strict=True)
    truth = known.SHELLS_LOG_Z[2]
    assert_coverage(low, high, truth, at_least=0.95)


# --- compare ---


@pytest.fixture(scope="module")
def comparison() -> ep.Comparison:
    models = {
        "wide": conjugate(2.0, 3.0),
        "narrow": conjugate(2.0, 1.0),
        "narrow again": conjugate(2.0, 1.0),
    }
    prior = {"wide": 2.0, "narrow": 1.0, "narrow again": 1.0}
    return ep.compare(models, prior=prior, average=True)


def test_a_model_against_itself_is_exactly_even(comparison: ep.Comparison) -> None:
    one, other = comparison.models["narrow"], comparison.models["narrow again"]
    assert (other.log_bayes_factor, other.log_bayes_factor_error) == (0.0, 0.0)
    assert one.evidence is other.evidence
    assert one.probability == other.probability
    alone = ep.compare({"x": conjugate(2.0), "y": conjugate(2.0)})
    assert alone.models["x"].probability == 0.5
    assert alone.models["x"].probability_error == 0.0


def test_probabilities_and_averages(comparison: ep.Comparison) -> None:
    narrow, wide = log_conjugate(2.0), log_conjugate(2.0, 3.0)
    share = 1 / (1 + math.exp(wide - narrow))
    rows = comparison.models
    assert_estimate(rows["wide"].probability, rows["wide"].probability_error, 1 - share)
    assert_estimate(rows["narrow"].probability, rows["narrow"].probability_error, share / 2)
    factor = rows["wide"].log_bayes_factor, rows["wide"].log_bayes_factor_error
    assert_estimate(*factor, wide - narrow)
    assert math.fsum(row.probability for row in rows.values()) == pytest.approx(1.0)
    assert comparison.best == "narrow"
    mean, tail = comparison.average
    means = {"narrow": 1.0, "wide": 1.8}
    sds = {"narrow": math.sqrt(0.5), "wide": math.sqrt(0.9)}
    truth = share * means["narrow"] + (1 - share) * means["wide"]
    assert_estimate(mean.value, mean.standard_error, truth)
    tails = {name: stats.norm.sf(2.0, means[name], sds[name]) for name in means}
    truth = share * tails["narrow"] + (1 - share) * tails["wide"]
    assert_estimate(tail.value, tail.standard_error, truth)


def test_a_comparison_can_be_read(comparison: ep.Comparison) -> None:
    pytest.importorskip("pandas")
    text = str(comparison)
    assert "Models by their evidence" in text
    assert "over models" in text
    assert list(comparison.to_dataframe().index) == list(comparison.models)
    assert comparison.to_dict()["models"][0]["model"] == "narrow"
    assert "<table>" in comparison._repr_html_()


def test_a_row_does_not_depend_on_the_others(comparison: ep.Comparison) -> None:
    alone = ep.compare({"any name": conjugate(2.0, 3.0)})
    assert alone.models["any name"].evidence.log_z == comparison.models["wide"].evidence.log_z


def test_a_model_that_cannot_be_trusted_is_refused_on_its_own() -> None:
    def divergent() -> None:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("growth", 0.55 * x**2)

    models: dict[str, Any] = {
        "good": conjugate(2.0),
        "other": conjugate(2.0, 3.0),
        "bad": divergent,
    }
    few = ep.Auto(max_evaluations=200_000)
    with pytest.raises(ep.EstimationError):
        ep.compare(models, method=few)
    found = ep.compare(models, method=few, throw=False)
    assert list(found.refused) == ["bad"]
    assert math.isnan(found.models["bad"].probability)
    share = 1 / (1 + math.exp(log_conjugate(2.0, 3.0) - log_conjugate(2.0)))
    good = found.models["good"]
    assert_estimate(good.probability, good.probability_error, share)
    assert "among the other models" in str(found)


def test_wrong_comparisons_are_refused() -> None:
    models = {"a": conjugate(2.0), "b": conjugate(2.0, 3.0)}
    with pytest.raises(TypeError, match="must be a dict"):
        ep.compare([conjugate(2.0)])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prior must have a number"):
        ep.compare(models, prior={"a": 1.0})
    with pytest.raises(ValueError, match="must be positive"):
        ep.compare(models, prior={"a": 1.0, "b": 0.0})
    with pytest.raises(TypeError, match="have none"):
        ep.compare({"a": known.correlated}, average=True)
    with pytest.raises(TypeError, match="same structure"):
        ep.compare({"a": conjugate(2.0), "b": conjugate(2.0)["x"]}, average=True)


def test_radiata_pine(rng_key: jax.Array) -> None:
    program = ep.expectation(known.pine)
    found = ep.compare(
        {
            "density": program(known.STRENGTH, known.DENSITY),
            "adjusted": program(known.STRENGTH, known.ADJUSTED_DENSITY),
        },
        rng_key=rng_key,
    )
    for name, truth in zip(("density", "adjusted"), known.PINE_LOG_Z, strict=True):
        assert_log_z(found.models[name].evidence, truth)
    row = found.models["density"]
    error = math.hypot(row.log_bayes_factor_error, 1e-5)
    assert_estimate(row.log_bayes_factor, error, -8.42368)


# --- terms of a density ---


def two_widths() -> None:
    """A wide mode, and one of a twentieth of its width in four dimensions with 27 % of the mass."""
    x = numpyro.sample("x", dist.Normal(0.0, 3.0).expand([4]).to_event(1))
    wide, narrow = (dist.Normal(-2.0, 1.0), dist.Normal(3.0, 0.05))
    both = (jnp.sum(mode.log_prob(x)) for mode in (wide, narrow))
    numpyro.factor("modes", jnp.logaddexp(*both))


def test_each_term_of_a_density_is_explored() -> None:
    wide, narrow = (
        4 * stats.norm.logpdf(mean, 0.0, math.hypot(3.0, sd))
        for mean, sd in ((-2.0, 1.0), (3.0, 0.05))
    )
    truth = float(np.logaddexp(wide, narrow))

    @ep.expectation
    def program() -> Any:
        two_widths()
        return 0.0

    for asked in (two_widths, program()):
        assert_log_z(ep.log_evidence(asked), truth)
