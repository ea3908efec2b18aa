"""What is said about an estimate that cannot be trusted: one cause, and code that is right."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.trust import SAME, UNMET, Finding, Status
from estimand.view.remedies import message, with_more, with_setting
from problems import IMPROPER

# Every status with every check that gives it.
FOUND = {
    Status.low_ess: ("size", "precision", "numbers", "branches"),
    Status.not_converged: (
        *("goal", "exploration", UNMET, SAME, "path", "branches", "mixing", "drift"),
    ),
    Status.heavy_tailed: ("tail",),
    Status.unresolved: ("range", "resolution"),
    Status.replicates_disagree: ("validation", "agreement", "merge"),
    Status.underflow: ("numbers",),
    Status.no_mass_found: ("mass",),
    Status.interrupted: ("time", "interruption"),
    Status.nan_density: ("numbers",),
}
METHODS = [
    "Auto()",
    "Auto(relative_error=0.001, max_evaluations=1000000, max_seconds=2.0)",
    "AdaptiveIS()",
    "Economical()",
    "TABI(AnIS())",
    "TABI(AnIS(num_samples=1000, kernel=HMC(step_size=0.2)))",
    "TABI(normaliser=SMC(num_islands=4), positive=AnIS(), negative=AnIS())",
    "SelfNormalised(ImportanceSampling(num_samples=500))",
    "PosteriorMCMC(num_chains=8)",
    "PosteriorBridge()",
]


@ep.expectation
def cube(y: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x**3


@functools.cache
def estimate(method: ep.Auto) -> ep.Estimate:
    return ep.estimate_expectation(cube(2.0), method, throw=False)


def with_finding(method: str, finding: Finding, **changes: Any) -> ep.Estimate:
    result = estimate(ep.Auto())
    (output,) = result.outputs
    run = result.run._replace(outputs=(output._replace(findings=(finding,), **changes),))
    return dataclasses.replace(result, run=run, method=method)


CASES = [(status, check) for status, checks in FOUND.items() for check in checks]


@pytest.mark.parametrize(("status", "check"), CASES)
def test_every_finding_has_one_cause_and_a_remedy(status: Status, check: str) -> None:
    for method, part, lack in itertools.product(METHODS, (None, "Z1_plus", "Z2"), (0.0, 7.0)):
        shown = with_finding(method, Finding(status, part, "detail", check, lack))
        text = message(shown)
        assert text.startswith(status.value + " ")
        assert len(text) > len(status.value) + 20
        assert text.endswith((".", "`"))
        # "a or b" leaves it to the reader to find out which.
        assert not re.search(r"\bor\b", re.sub(r"`[^`]*`", "", text).replace("Markov", "")), text
        assert str(shown).splitlines()[-1] == f"  {text}"
        assert text in shown.diagnoses[0].verdict


def test_all_checks_of_the_library_are_here() -> None:
    assert set(FOUND) == {status for status in Status if not status}


def codes_of(text: str) -> list[str]:
    return re.findall(r"`([^`]*)`", text)


@pytest.mark.parametrize(("status", "check"), CASES)
def test_the_code_of_a_remedy_can_be_typed(status: Status, check: str) -> None:
    known = {name: getattr(ep, name) for name in ep.__all__} | {"ep": ep, "jnp": jnp}
    for method, lack in itertools.product(METHODS, (0.0, 7.0)):
        for code in codes_of(message(with_finding(method, Finding(status, None, "", check, lack)))):
            compile(code.removeprefix("return "), "remedy", "eval")
            if code.startswith(tuple(name for name in ep.__all__ if name[0].isupper())):
                made = eval(code, known)
                assert repr(made).split("(")[0] in code


def test_a_hopeless_lack_of_draws_asks_whether_the_expectation_exists() -> None:
    few = Finding(Status.low_ess, "Z1_plus", "detail", "precision", 1e3)
    budget = "Auto(max_evaluations=1000)"  # used up
    assert "may not exist" in message(with_finding(budget, few))
    assert "may not exist" not in message(with_finding(budget, few._replace(lack=7.0)))
    assert "may not exist" not in message(with_finding(budget, few._replace(part="Z2")))
    assert "should settle it" in message(with_finding("TABI(AnIS())", few._replace(lack=7.0)))
    assert "may settle it" in message(with_finding("TABI(AnIS())", few))


def test_an_error_that_no_budget_reaches_is_said_to_be_one() -> None:
    """It said that 0 more evaluations should settle it, and to allow 0."""
    far = Finding(Status.not_converged, None, "detail", "goal", 1e17)
    for method in ("Auto(relative_error=1e-12)", "TABI(AnIS())"):
        said = message(with_finding(method, far))
        assert "out of reach" in said
        (code,) = codes_of(said)
        assert "relative_error=0.0" in code


def test_an_error_as_large_as_the_value_asks_whether_the_expectation_exists() -> None:
    """It advised to ask for an error of 200,000 %."""
    far = Finding(Status.not_converged, None, "detail", "goal", 1e17)
    said = message(with_finding("Auto(relative_error=1e-12)", far, standard_error=1e4))
    assert "may not exist" in said
    assert "relative_error" not in said


def test_settings_are_put_where_they_belong() -> None:
    assert with_more("TABI(AnIS())", 3) == "TABI(AnIS(num_samples=3_000))"
    assert (
        with_more("TABI(AnIS(num_samples=40, kernel=HMC(step_size=0.2)))", 10)
        == "TABI(AnIS(num_samples=400, kernel=HMC(step_size=0.2)))"
    )
    assert with_more("PosteriorMCMC(num_chains=8)", 2) == (
        "PosteriorMCMC(num_samples=2_000, num_chains=8)"
    )
    assert with_setting("Auto()", "Auto", "max_seconds", "5") == "Auto(max_seconds=5)"
    assert with_setting("Auto(max_seconds=2.5)", "Auto", "max_seconds", "5") == (
        "Auto(max_seconds=5)"
    )


@pytest.mark.parametrize("relative_error", [1e-4, 2e-5])
def test_following_the_advice_reaches_the_error(relative_error: float) -> None:
    """The budget that is named is enough."""
    method = ep.Auto(relative_error=relative_error, max_evaluations=60_000)
    weak = estimate(method)
    assert weak.status is Status.not_converged
    (code,) = codes_of(message(weak))
    assert f"relative_error={relative_error}" in code
    again = ep.estimate_expectation(cube(2.0), eval(code, {"Auto": ep.Auto}))
    assert again.standard_error <= 1.5 * relative_error * again.value


def test_following_the_advice_gives_enough_draws() -> None:
    @ep.expectation
    def event() -> Any:
        return numpyro.sample("x", dist.Normal(0.0, 1.0)) > 0

    method = ep.TABI(ep.ImportanceSampling(num_samples=60))
    weak = ep.estimate_expectation(event(), method, throw=False)
    assert weak.status is Status.low_ess
    (code,) = codes_of(message(weak))
    more = eval(code, {name: getattr(ep, name) for name in ("TABI", "ImportanceSampling")})
    assert ep.estimate_expectation(event(), more).status


@pytest.mark.parametrize("name", IMPROPER)
def test_an_expectation_that_does_not_exist_is_said_to_be_one_first(name: str) -> None:
    expectation = ep.expectation(IMPROPER[name])()
    for method in (ep.Auto(), ep.TABI(ep.ImportanceSampling(num_samples=20_000))):
        result = ep.estimate_expectation(expectation, method, throw=False)
        if result.status is Status.low_ess:
            continue  # too few draws to see the tail
        text = message(result).removeprefix(result.status.value).strip()
        assert text.startswith(("The expectation may not exist", "The expectation does not exist"))
    with pytest.raises(ep.EstimationError, match="not exist"):
        ep.estimate_expectation(expectation)


def test_a_heavy_tail_of_the_posterior_or_of_an_event_is_no_such_thing() -> None:
    @ep.expectation
    def event() -> Any:
        return numpyro.sample("x", dist.Cauchy(0.0, 1.0)) > 1

    result = ep.estimate_expectation(event())
    (output,) = result.outputs
    tail = Finding(Status.heavy_tailed, "Z1_plus", "Pareto k 1.2", "tail")
    shown = dataclasses.replace(
        result, run=result.run._replace(outputs=(output._replace(findings=(tail,)),))
    )
    assert "may not exist" not in message(shown)
    assert "may not exist" not in message(with_finding("TABI(AnIS())", tail._replace(part="Z2")))


def test_the_message_is_the_one_of_the_worst_output() -> None:
    @ep.expectation
    def program() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        return {"fine": x**2, "broken": jnp.log(x)}

    result = ep.estimate_expectation(program(), throw=False)
    assert result.statuses[0] is Status.ok
    assert message(result, 0) == Status.ok.value
    assert message(result) == message(result, 1)
    assert "jnp.log(jnp.maximum(x" in message(result)
    assert result.diagnostics["message"] == message(result)
