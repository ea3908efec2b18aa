"""Diagnostics from the record alone, the verdict, and the tables."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.trust import Finding, Status, thresholds
from estimand.view.diagnosis import (
    _compare_replicates,
    diagnose,
    percent,
    plain_sampling,
    posterior_sample,
)
from estimand.view.remedies import message
from estimand.view.tables import Summary, Table
from problems import PROBLEMS
from problems.figure1 import figure1
from tests.stats import assert_proportion

cube = ep.expectation(figure1)
DATA = np.linspace(-1.5, 1.5, 20)
TAIL = 0.5 * math.erfc(math.sqrt(21 / 2))


@ep.expectation
def tail(y: np.ndarray) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0).expand([20]).to_event(1), obs=y)
    return x > 1.0


@functools.cache
def estimate(name: str) -> ep.Estimate:
    method: Any = ep.TABI(ep.AnIS(num_samples=500, num_temperatures=20))
    if name.endswith("adaptive"):
        method = ep.AdaptiveIS(max_evaluations=50_000)
    expectation = cube(2.0) if name.startswith("cube") else tail(DATA)
    return ep.estimate_expectation(expectation, method, throw=False)


def test_parts_add_up_to_the_error() -> None:
    """The pieces of the variance, put together again, give the reported standard error."""
    result = estimate("cube")
    (diagnosis,) = result.diagnoses
    assert [part.name for part in diagnosis.parts] == ["Z1_plus", "Z1_minus", "Z2"]
    z = {part.name: math.exp(part.log_z) for part in diagnosis.parts}
    v = {part.name: part.standard_error**2 for part in diagnosis.parts}
    pieces = {
        "Z1_plus": (z["Z1_plus"] / z["Z2"]) ** 2 * v["Z1_plus"],
        "Z1_minus": (z["Z1_minus"] / z["Z2"]) ** 2 * v["Z1_minus"],
        "Z2": result.value**2 * v["Z2"],
    }
    assert math.sqrt(sum(pieces.values())) == pytest.approx(result.standard_error)
    for part in diagnosis.parts:
        share = pieces[part.name] / result.standard_error**2
        assert part.error_share == pytest.approx(share)
    expected = (z["Z1_plus"] - z["Z1_minus"]) / (z["Z1_plus"] + z["Z1_minus"])
    assert diagnosis.cancellation == pytest.approx(expected)
    assert diagnosis.relative_error == pytest.approx(result.standard_error / result.value)
    assert {part.ess for part in diagnosis.parts} == {
        result.ess[name] for name in ("Z1_plus", "Z1_minus", "Z2")
    }


def test_replicates_show_an_outlier() -> None:
    assert _compare_replicates(np.zeros(16)) == (0.0, 0.0)
    rng = np.random.default_rng(0)
    log_z = rng.normal(0.0, 0.01, 64)
    deviation, farthest = _compare_replicates(log_z)
    assert deviation == pytest.approx(0.01, rel=0.3)
    assert farthest < thresholds.FAR
    log_z[3] = 0.5
    assert _compare_replicates(log_z).farthest > thresholds.FAR
    assert math.isnan(_compare_replicates(np.zeros(0)).deviation)


def test_the_posterior_is_put_together_from_all_draws() -> None:
    """Exact posterior moments, of an ordinary f and of an event of probability 2e-6."""
    f, mass = posterior_sample(estimate("cube adaptive"), 0)
    assert mass.sum() == pytest.approx(1.0, rel=0.05)
    mass = mass / mass.sum()
    assert mass @ f == pytest.approx(2.5, rel=0.05)
    assert mass @ f**2 == pytest.approx(21.625, rel=0.1)
    f, mass = posterior_sample(estimate("tail adaptive"), 0)
    assert mass @ (f != 0) / mass.sum() == pytest.approx(TAIL, rel=0.05)


def test_plain_sampling_says_what_posterior_draws_say() -> None:
    plain = plain_sampling(estimate("cube adaptive"), 0)
    assert plain is not None
    result = estimate("cube adaptive")
    assert plain.num_draws == plain.num_hits == result.num_evaluations
    truth = math.sqrt((21.625 - 2.5**2) / plain.num_draws)
    assert plain.true_error == pytest.approx(truth, rel=0.05)
    assert plain.standard_error == pytest.approx(truth, rel=0.2)
    assert abs(plain.value - result.value) < 5 * truth
    rare = estimate("tail")
    plain = plain_sampling(rare, 0)
    assert plain is not None
    assert (plain.num_draws, plain.num_hits) == (rare.num_evaluations, 0)
    assert (plain.value, plain.standard_error) == (0.0, 0.0)
    assert plain.true_error == pytest.approx(math.sqrt(TAIL / plain.num_draws), rel=0.5)
    assert str(plain) == f"0 of {rare.num_evaluations:,} draws reached the target"
    likely = dataclasses.replace(rare, run=rare.run._replace(num_evaluations=10**9))
    plain = plain_sampling(likely, 0)
    assert plain is not None
    assert plain.num_hits == pytest.approx(10**9 * TAIL, rel=0.5)
    assert "of 1,000,000,000 draws reached the target" in str(plain)


def test_plain_hits_follow_the_probability() -> None:
    """Of an event of probability ½: as many hits as a binomial gives."""

    @ep.expectation
    def coin() -> Any:
        return numpyro.sample("x", dist.Normal(0.0, 1.0)) > 0

    sampler = ep.ImportanceSampling(num_samples=4000)
    result = ep.estimate_expectation(coin(), ep.TABI(sampler))
    plain = plain_sampling(result, 0)
    assert plain is not None
    # The draws of γ and γf⁺ are those of 8,000 independent prior draws, of which 4,000 decide.
    assert_proportion(plain.num_hits * 4000 // plain.num_draws, 4000, 0.5)


def test_verdicts_say_what_to_do() -> None:
    (usable,) = estimate("cube adaptive").diagnoses
    assert usable.verdict == (
        "The estimate can be used: all checks passed, and its relative error is "
        f"{percent(usable.relative_error)}."
    )
    assert "times the error" in usable.advice
    (rare,) = estimate("tail").diagnoses
    assert "none of them reaches the target" in rare.advice or "effective draws" in rare.advice
    poor = ep.estimate_expectation(
        cube(2.0), ep.TABI(ep.AnIS(num_samples=30, num_temperatures=3)), throw=False
    )
    (diagnosis,) = poor.diagnoses
    assert diagnosis.verdict.startswith("The estimate cannot be trusted (")
    assert poor.status.value in diagnosis.verdict
    worst = min(diagnosis.parts, key=lambda part: part.ess)
    assert f"{worst.name} rests on {worst.ess:.0f} effective draws of 30" in diagnosis.advice

    @ep.expectation
    def cancels() -> Any:
        return numpyro.sample("x", dist.Normal(0.01, 1.0))

    method = ep.TABI(ep.ImportanceSampling(num_samples=200_000))
    (diagnosis,) = ep.estimate_expectation(cancels(), method, throw=False).diagnoses
    assert "nearly cancel" in diagnosis.advice
    problem = PROBLEMS["normal_tail"]
    nothing = ep.estimate_expectation(
        ep.expectation(problem.model)(*problem.args),
        ep.TABI(ep.AnIS(num_samples=50, num_temperatures=3)),
        throw=False,
    )
    (diagnosis,) = nothing.diagnoses
    assert math.isnan(diagnosis.cancellation)
    assert diagnosis.relative_error == math.inf
    assert "no mass found" in nothing.summary().plain()


def test_findings_are_shown_wherever_the_estimate_is() -> None:
    """The most severe first in the verdict; and in the words of each finding."""
    result = estimate("cube")
    findings = (
        Finding(Status.low_ess, "Z2", "ESS 12; 50 needed", "size"),
        Finding(Status.heavy_tailed, "Z1_plus", "Pareto k 1.20 <&>", "tail"),
        Finding(Status.not_converged, None, "relative error 9 %; 1 % requested", "goal"),
    )
    (output,) = result.outputs
    run = result.run._replace(outputs=(output._replace(findings=findings),))
    shown = dataclasses.replace(result, run=run)
    (diagnosis,) = shown.diagnoses
    assert diagnosis.verdict == (
        "The estimate cannot be trusted (Z1_plus: Pareto k 1.20 <&>; relative error 9 %; 1 % "
        f"requested; Z2: ESS 12; 50 needed). {message(shown)}"
    )
    assert diagnosis.verdict in shown.summary().plain()
    for line in (
        "  low_ess: Z2: ESS 12; 50 needed",
        "  heavy_tailed: Z1_plus: Pareto k 1.20 <&>",
        "  not_converged: relative error 9 %; 1 % requested",
        f"  {message(shown)}",
    ):
        assert line in str(shown).splitlines()
    assert shown.diagnostics["findings"] == (findings,)
    assert "Pareto k 1.20 &lt;&amp;&gt;" in shown._repr_html_()
    bare = dataclasses.replace(
        result, run=result.run._replace(outputs=(output._replace(findings=()),))
    )
    assert str(bare).splitlines()[-1] == "  All checks passed."
    assert not any(status.name in str(bare) for status in Status if not status)


def test_a_program_without_latent_sites_has_a_diagnosis() -> None:
    @ep.expectation
    def constant(y: float) -> Any:
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)
        return 0.3

    method = ep.TABI(ep.ImportanceSampling(num_samples=100))
    result = ep.estimate_expectation(constant(0.5), method, throw=False)
    (diagnosis,) = result.diagnoses
    assert diagnosis.plain is not None
    assert diagnosis.plain.value == pytest.approx(0.3)
    assert diagnosis.plain.standard_error == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(ValueError, match="no latent site"):
        result.to_datatree()


def test_a_kernel_that_does_not_move_is_named() -> None:
    method = ep.TABI(
        ep.AnIS(num_samples=40, num_temperatures=5, kernel=ep.RandomWalk(scale=1000.0))
    )
    result = ep.estimate_expectation(tail(DATA), method, throw=False)
    (diagnosis,) = result.diagnoses
    assert diagnosis.parts[-1].num_temperatures == 6
    assert diagnosis.parts[-1].acceptance[1] < 0.05
    assert "take a smaller step" in diagnosis.advice
    assert "From the prior to each target" in result.summary().plain()
    (healthy,) = estimate("cube").diagnoses
    low, high = healthy.parts[0].acceptance
    assert 0.1 < low < high < 1


def test_targets_that_are_nan_somewhere_have_a_diagnosis() -> None:
    @ep.expectation
    def program() -> Any:
        return jnp.log(numpyro.sample("x", dist.Normal(0.0, 1.0)))

    for method in (
        ep.TABI(ep.ImportanceSampling(num_samples=500)),
        ep.AdaptiveIS(max_evaluations=20_000),
    ):
        result = ep.estimate_expectation(program(), method, throw=False)
        assert result.status is ep.Status.nan_density
        (diagnosis,) = result.diagnoses
        assert "Fix the program" in diagnosis.verdict
        assert "nan_density" in result.summary().plain()


def test_records_without_draws_have_a_diagnosis_too() -> None:
    method = ep.PosteriorMCMC(num_samples=500, kernel=ep.RandomWalk(scale=1.0))
    result = ep.estimate_expectation(cube(2.0), method, throw=False)
    (diagnosis,) = result.diagnoses
    assert diagnosis.plain is None
    assert diagnosis.parts == ()
    assert "PosteriorMCMC" in result.summary().plain()


def test_loaded_and_merged_records_have_the_same_diagnosis(tmp_path: Path) -> None:
    result = estimate("cube")
    result.save(tmp_path / "r.est")
    loaded = ep.load(tmp_path / "r.est")
    assert repr(diagnose(loaded)) == repr(diagnose(result))
    assert loaded.summary().plain() == result.summary().plain()
    other = ep.estimate_expectation(
        cube(2.0), ep.TABI(ep.AnIS(num_samples=500, num_temperatures=20)), rng_key=1, throw=False
    )
    (merged,) = result.merge(other).diagnoses
    assert merged.parts[0].num_samples == 1000
    assert merged.parts[0].num_replicates == 32


def test_tables_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (("a & <b>", "1"), ("['x']", "22"))
    summary = Summary([Table("title [bold]", ("name", "n"), rows)], ["a < b"])
    plain = summary.plain()
    assert str(summary) == plain
    assert "a & <b>   1\n['x']    22" in plain
    page = summary._repr_html_()
    assert "a &amp; &lt;b&gt;" in page
    assert "<b>" not in page
    assert "a &lt; b" in page
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    coloured = str(summary)
    assert "\x1b[" in coloured
    assert "title [bold]" in coloured
    assert "['x']" in coloured
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert str(summary) == plain


def test_notebooks_show_the_tables() -> None:
    page = estimate("cube")._repr_html_()
    assert "<table>" in page
    assert "E[figure1]" in page
    assert "Pareto k" in page


def test_the_largest_weight_is_beside_pareto_k() -> None:
    result = estimate("cube")
    part = result.diagnoses[0].parts[0]
    assert part.name == "Z1_plus"
    [table] = [one for one in result.summary().tables if one.title == "Normalising constants"]
    place = table.header.index("Pareto k")
    assert table.header[place + 1] == "largest weight"
    assert table.rows[0][place + 1] == percent(part.largest_share)
    assert table.rows[0][place + 1] in result.to_html()


def test_a_cancelling_estimate_that_did_not_converge_says_why() -> None:
    @ep.expectation
    def odd() -> Any:
        return numpyro.sample("x", dist.Normal(0.0, 1.0))

    result = ep.estimate_expectation(odd(), ep.AdaptiveIS(max_evaluations=50_000), throw=False)
    (diagnosis,) = result.diagnoses
    assert diagnosis.cancellation < 0.01
    assert "nearly cancel" in diagnosis.advice
