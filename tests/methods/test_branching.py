"""Sums over branches: right against closed forms, honest about what is missing."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.density import Density
from estimand.methods import Run
from estimand.runtime import Runtime
from estimand.trust import Parts, Status
from problems.branching import BRANCHING, BRANCHING_PROBLEMS, BranchingProblem
from tests.stats import assert_coverage, assert_estimate

pytestmark = pytest.mark.usefixtures("relaxed_ranks")

PRIOR = ep.TABI(ep.ImportanceSampling(num_samples=2000))
# By the spread of 16 replicates.
DEGREES = 15
ROUNDING = 1e-9


def estimate(problem: BranchingProblem, method: Any = None, seed: int = 0) -> ep.Estimate:
    program = ep.expectation(problem.model)(*problem.args)
    return ep.estimate_expectation(program, method, rng_key=seed, throw=False)


def assert_right(result: ep.Estimate, problem: BranchingProblem) -> None:
    assert result.status.name == "ok", str(result)
    for name, truth in problem.value.items():
        error = math.hypot(result.standard_error[name], ROUNDING)
        assert_estimate(result.value[name], error, truth, degrees=DEGREES)
    truths = {tuple(branch.values.items()): branch for branch in problem.branches}
    for branch in result.branches:
        truth_of_branch = truths[tuple(branch.values.items())]
        probability = problem.probabilities[tuple(branch.values.items())]
        error = math.hypot(branch.log_z2_error, ROUNDING)
        assert_estimate(branch.log_z2, error, truth_of_branch.log_z2, degrees=DEGREES)
        error = math.hypot(branch.probability_error, ROUNDING)
        assert_estimate(branch.probability, error, probability, degrees=DEGREES)
        for name, truth in truth_of_branch.value.items():
            error = math.hypot(branch.standard_error[name], ROUNDING)
            assert_estimate(branch.value[name], error, truth, degrees=DEGREES)


@functools.cache
def two_models(seed: int) -> ep.Estimate:
    return estimate(BRANCHING_PROBLEMS["two_models"], seed=seed)


def test_numpyros_own_example(seed: int) -> None:
    result = two_models(seed)
    assert_right(result, BRANCHING_PROBLEMS["two_models"])
    assert BRANCHING_PROBLEMS["two_models"].value == pytest.approx(
        {"mean": 0.331285077, "first": 0.5374298}, abs=1e-7
    )
    assert [branch.values for branch in result.branches] == [{"model1": 0}, {"model1": 1}]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["polynomial", "components", "walk", "learning_walk"])
def test_programs_with_closed_forms(name: str, seed: int) -> None:
    assert_right(estimate(BRANCHING_PROBLEMS[name], seed=seed), BRANCHING_PROBLEMS[name])


def test_a_walk_that_may_take_any_time(seed: int) -> None:
    """Every branch is exact, and what was not run has a bound that is part of the error."""
    problem = BRANCHING_PROBLEMS["walk"]
    result = estimate(problem, ep.Auto(relative_error=0.2), seed)
    assert_right(result, problem)
    left = 1 - sum(branch.prior for branch in result.branches)
    assert left > 0
    assert f"those that were not run have {left:.2g} of the prior mass" in result.run.notes[0]
    assert abs(result.value["steps"] - problem.value["steps"]) <= 2 * result.standard_error["steps"]


@pytest.mark.slow
def test_coverage(seed: int) -> None:
    problem = BRANCHING_PROBLEMS["two_models"]
    results = [two_models(1000 * seed + number) for number in range(200)]
    assert all(result.status for result in results)
    for name, truth in problem.value.items():
        ends = [result.interval() for result in results]
        lows, highs = [low[name] for low, _ in ends], [high[name] for _, high in ends]
        assert_coverage(lows, highs, truth, 0.95)


def test_other_methods(seed: int) -> None:
    problem = BRANCHING_PROBLEMS["two_models"]
    for method in (PRIOR, ep.SelfNormalised(ep.ImportanceSampling(num_samples=2000))):
        assert_right(estimate(problem, method, seed), problem)


def test_branches_have_keys_of_their_own() -> None:
    def program() -> Any:
        numpyro.sample("m", dist.Bernoulli(0.5), infer=BRANCHING)
        x = numpyro.sample("x", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(x, 1), obs=1.0)
        return x

    first, second = ep.estimate_expectation(ep.expectation(program)(), PRIOR).branches
    assert first.log_z2 != second.log_z2


def test_the_same_key_gives_the_same_result() -> None:
    problem = BRANCHING_PROBLEMS["two_models"]
    one, two, other = (estimate(problem, PRIOR, seed) for seed in (0, 0, 1))
    assert one.value == two.value
    assert one.value != other.value


def test_the_budget_goes_where_the_error_is() -> None:
    """One branch is sure of f, and has a tenth of the probability; the other is not."""

    def program() -> Any:
        m = numpyro.sample("m", dist.Bernoulli(0.9), infer=BRANCHING)
        x = numpyro.sample("x", dist.Normal(0, 1))
        y = numpyro.sample("y", dist.Normal(0, 1))
        return jnp.sqrt(jnp.abs(x * y)) if m else 1.0

    method = ep.AdaptiveIS(relative_error=2e-5, max_evaluations=1_000_000)
    result = ep.estimate_expectation(ep.expectation(program)(), method, throw=False)
    costs = {branch.values["m"]: branch.cost for branch in result.branches}
    assert costs[1] > 3 * costs[0]
    root = 2**0.25 * math.gamma(0.75) / math.sqrt(math.pi)
    truth = 0.1 + 0.9 * root**2
    assert_estimate(result.value, result.standard_error, truth, degrees=DEGREES)


# --- what speaks against a sum ---


def test_a_branch_without_mass_does_not_spoil_the_sum() -> None:
    def program() -> Any:
        m = numpyro.sample("m", dist.Bernoulli(0.5), infer=BRANCHING)
        x = numpyro.sample("x", dist.Normal(0, 1))
        numpyro.factor("possible", jnp.where(x > -50, 0.0 if m else -jnp.inf, -jnp.inf))
        return x**2

    result = ep.estimate_expectation(ep.expectation(program)())
    assert_estimate(result.value, result.standard_error, 1.0, degrees=DEGREES)
    impossible = result.branches[1]
    assert impossible.status is Status.no_mass_found
    assert impossible.probability == 0


def test_a_branch_that_is_not_a_number_does() -> None:
    def program() -> Any:
        m = numpyro.sample("m", dist.Bernoulli(0.5), infer=BRANCHING)
        x = numpyro.sample("x", dist.Normal(0, 1))
        numpyro.factor("wrong", 0.0 if m else jnp.log(-jnp.abs(x)))
        return x**2

    result = ep.estimate_expectation(ep.expectation(program)(), throw=False)
    assert result.status is Status.nan_density
    assert "branch m=0: " in str(result)


def test_an_event_that_one_branch_rules_out() -> None:
    def program() -> Any:
        m = numpyro.sample("m", dist.Bernoulli(0.5), infer=BRANCHING)
        x = numpyro.sample("x", dist.Normal(0, 1))
        return (x > 1) & (m == 1)

    result = ep.estimate_expectation(ep.expectation(program)())
    truth = 0.5 * float(jax.scipy.stats.norm.sf(1.0))
    assert_estimate(result.value, result.standard_error, truth, degrees=DEGREES)
    never = next(branch for branch in result.branches if branch.values["m"] == 0)
    assert (never.value, never.standard_error) == (0.0, 0.0)


def hidden(x: Any) -> Any:
    """An event far out, which no comparison shows."""
    return jax.lax.fori_loop(0, 1, lambda _, is_there: x > 300.0, False)


def test_an_event_that_no_branch_has() -> None:
    def program() -> Any:
        numpyro.sample("m", dist.Bernoulli(0.5), infer=BRANCHING)
        x = numpyro.sample("x", dist.Normal(0, 1))
        return hidden(x)

    result = ep.estimate_expectation(ep.expectation(program)(), PRIOR, throw=False)
    assert result.status is Status.no_mass_found
    assert result.standard_error == math.inf


def test_an_event_that_no_branch_can_have() -> None:
    def program() -> Any:
        numpyro.sample("m", dist.Bernoulli(0.5), infer=BRANCHING)
        x = numpyro.sample("x", dist.Normal(0, 1))
        return jnp.sin(x) > 2

    result = ep.estimate_expectation(ep.expectation(program)(), PRIOR)
    assert (result.value, result.interval()) == (0.0, (0.0, 0.0))


def test_branches_that_were_not_run_count_against_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("estimand.methods.branching.survey.MAX_BRANCHES", 3)
    monkeypatch.setattr("estimand.methods.branching.survey.MAX_FOUND", 3)

    def program() -> Any:
        return numpyro.sample("k", dist.Geometric(0.3), infer=BRANCHING)

    result = ep.estimate_expectation(ep.expectation(program)(), throw=False)
    assert result.status is Status.not_converged
    assert "branches with 0.34 of the prior mass were not run" in str(result)
    assert len(result.branches) == 3


def test_a_rare_branch_may_be_all_of_the_expectation() -> None:
    """One in a million, and there f is e^x: 1 without it, and 5e15 with it."""

    def program() -> Any:
        kind = numpyro.sample(
            "kind", dist.Categorical(jnp.array([0.999, 0.000999, 0.000001])), infer=BRANCHING
        )
        x = numpyro.sample("x", dist.Normal(0.0, [1.0, 3.0, 10.0][kind]))
        return jnp.exp(x) if kind == 2 else x**2

    result = ep.estimate_expectation(ep.expectation(program)(), throw=False)
    assert result.status.name == "ok", str(result)
    assert len(result.branches) == 3
    truth = 0.999 + 0.000999 * 9 + 1e-6 * math.exp(50)
    assert_estimate(result.value, result.standard_error, truth, degrees=DEGREES)


def test_data_far_from_the_prior_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search goes on while the likelihood rises: 12 is 5 standard deviations from 2."""

    def program() -> Any:
        k = numpyro.sample("k", dist.Poisson(2.0), infer=BRANCHING)
        numpyro.sample("y", dist.Normal(k, 0.2), obs=12.0)
        return k

    method = ep.TABI(ep.ImportanceSampling(num_samples=2))
    monkeypatch.setattr("estimand.methods.branching.survey.MAX_FOUND", 4)
    result = ep.estimate_expectation(ep.expectation(program)(), method)
    assert result.value == pytest.approx(12.0, abs=1e-3)


def test_time_is_up() -> None:
    result = estimate(BRANCHING_PROBLEMS["polynomial"], ep.Auto(max_seconds=1e-3))
    assert result.status is Status.interrupted
    assert len(result.branches) < 6


def test_a_budget_that_is_too_small_is_refused() -> None:
    with pytest.raises(ep.ProgramError, match="max_evaluations=100 is too small"):
        estimate(BRANCHING_PROBLEMS["two_models"], ep.Auto(max_evaluations=100))


# --- evidence ---


@pytest.mark.parametrize("method", [ep.PosteriorMCMC(), ep.PosteriorBridge()])
def test_methods_without_evidence_are_refused(method: Any) -> None:
    with pytest.raises(ep.ProgramError, match=f"which {type(method).__name__} does not give"):
        estimate(BRANCHING_PROBLEMS["two_models"], method)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class WithoutEvidence(ep.Auto):
    """As if every output came from averages over chains."""

    def run_within(self, rng_key: jax.Array, density: Density, runtime: Runtime) -> Run:
        run = super().run_within(rng_key, density, runtime)
        outputs = tuple(output._replace(parts=Parts(), route="chains") for output in run.outputs)
        return run._replace(outputs=outputs)


@pytest.mark.slow
def test_evidence_is_estimated_where_a_route_gives_none(seed: int) -> None:
    problem = BRANCHING_PROBLEMS["two_models"]
    program = ep.expectation(problem.model)()["mean"]
    result = ep.estimate_expectation(program, WithoutEvidence(), rng_key=seed)
    assert "the evidence by BridgeSampling, because chains gives none" in str(result)
    assert_estimate(result.value, result.standard_error, problem.value["mean"], degrees=DEGREES)
