"""Refining: an estimate continues with fresh keys until its error is small enough."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.record.provenance import describe_key, fresh_key
from problems import PROBLEMS
from tests.stats import assert_coverage, assert_mean

ROUGH = ep.TABI(ep.ImportanceSampling(num_samples=1000))


@ep.expectation
def shifted(y: float, is_square: bool = False) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x**2 if is_square else {"linear": 2.0 + x, "square": x**2}


def estimate(rng_key: int = 0, method: Any = ROUGH) -> ep.Estimate:
    return ep.estimate_expectation(shifted(1.0), method, rng_key=rng_key, throw=False)


TRUTH = {"linear": 2.5, "square": 0.75}


def test_continues_until_the_error_is_reached() -> None:
    first = estimate()
    refined = first.refine(relative_error=0.01)
    assert refined.status is ep.Status.ok
    for name, truth in TRUTH.items():
        assert refined.standard_error[name] <= 0.01 * refined.value[name]
        assert abs(refined.value[name] - truth) < 5 * refined.standard_error[name]
    assert max(first.standard_error[name] / first.value[name] for name in TRUTH) > 0.02
    # Nothing is thrown away, and no more is spent than is needed.
    assert set(first.provenance.keys) < set(refined.provenance.keys)
    runs = len(refined.provenance.keys)
    assert refined.num_evaluations == runs * first.num_evaluations
    needed = max((first.standard_error[n] / (0.01 * first.value[n])) ** 2 for n in TRUTH)
    assert 0.5 * needed < runs < 2.5 * needed


def test_is_the_merge_of_separate_runs() -> None:
    first = estimate(3)
    refined = first.refine(relative_error=1e-6, max_runs=3, throw=False)
    keys, others = list(first.provenance.keys), []
    for _ in range(3):
        key, text = fresh_key(keys)
        others.append(ep.estimate_expectation(shifted(1.0), ROUGH, rng_key=key, throw=False))
        keys.append(text)
        assert others[-1].provenance.keys == (text,)
    merged = first.merge(*others)
    assert refined.provenance.keys == merged.provenance.keys
    assert refined.value == merged.value
    assert refined.standard_error == merged.standard_error
    with pytest.raises(ep.MergeError, match="same random key"):
        refined.merge(first)


def test_continues_again_with_other_keys() -> None:
    first = estimate()
    twice = first.refine(relative_error=1e-6, max_runs=2, throw=False)
    twice = twice.refine(relative_error=1e-6, max_runs=2, throw=False)
    assert len(set(twice.provenance.keys)) == 5


def test_fresh_keys_are_not_used_by_any_run() -> None:
    key = jax.random.key(7)
    keys = [describe_key(key)]
    for _ in range(20):
        keys.append(fresh_key(keys)[1])
    assert len(set(keys)) == 21
    used = {describe_key(child) for child in jax.random.split(key, 100)}
    used |= {describe_key(jax.random.fold_in(key, number)) for number in range(100)}
    assert not used & set(keys)
    assert fresh_key(keys)[1] == fresh_key(keys[::-1])[1]


def test_a_precise_estimate_is_returned_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    first = estimate()
    monkeypatch.setattr(ep.TABI, "run", lambda *_: pytest.fail("it ran again"))
    assert first.refine(relative_error=0.5) is first


def test_stops_at_its_limits_and_says_so() -> None:
    first = estimate()
    refined = first.refine(relative_error=1e-6, max_runs=2, throw=False)
    assert len(refined.provenance.keys) == 3
    assert refined.status is ep.Status.not_converged
    limit = 2.5 * first.cost
    refined = first.refine(relative_error=1e-6, max_evaluations=limit, throw=False)
    assert refined.cost - first.cost <= limit
    assert len(refined.provenance.keys) == 3
    with pytest.raises(ep.EstimationError) as caught:
        first.refine(relative_error=1e-6, max_evaluations=1)
    assert caught.value.estimate.value == first.value
    assert caught.value.estimate.status is ep.Status.not_converged


@pytest.mark.slow
def test_an_error_that_the_method_did_not_reach_is_reached() -> None:
    """The runs' own `not_converged` is of the error that they were asked for."""
    method = ep.AdaptiveIS(relative_error=1e-6, max_evaluations=50_000)
    first = estimate(0, method)
    assert first.status is ep.Status.not_converged
    goal = max(first.standard_error[n] / first.value[n] for n in TRUTH)
    assert first.refine(relative_error=2 * goal).status is ep.Status.ok
    refined = first.refine(relative_error=0.7 * goal)
    assert refined.status is ep.Status.ok
    assert len(refined.provenance.keys) > 1
    for name, truth in TRUTH.items():
        assert abs(refined.value[name] - truth) < 5 * refined.standard_error[name]


def test_chains_that_disagree_are_not_fixed() -> None:
    method = ep.PosteriorMCMC(num_samples=100, num_warmup=1, kernel=ep.RandomWalk(scale=0.01))
    first = estimate(0, method)
    assert first.status is ep.Status.not_converged
    assert first.refine(relative_error=10.0, max_runs=2, throw=False).status is first.status


def test_few_draws_are_not_taken_for_precise() -> None:
    method = ep.TABI(ep.ImportanceSampling(num_samples=150))
    first = ep.estimate_expectation(shifted(1.0, is_square=True), method, throw=False)
    assert first.status is ep.Status.low_ess
    refined = first.refine(relative_error=10.0)
    assert refined.status is ep.Status.ok
    assert len(refined.provenance.keys) > 2


def test_a_nan_is_not_refined(monkeypatch: pytest.MonkeyPatch) -> None:
    @ep.expectation
    def broken() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        return jax.numpy.sqrt(x)

    first = ep.estimate_expectation(broken(), ROUGH, throw=False)
    assert first.status is ep.Status.nan_density
    monkeypatch.setattr(ep.TABI, "run", lambda *_: pytest.fail("it ran again"))
    assert first.refine(relative_error=1e-6, throw=False).status is ep.Status.nan_density


def test_a_loaded_record_needs_its_program(tmp_path: Path) -> None:
    first = estimate()
    first.save(tmp_path / "a.est")
    loaded = ep.load(tmp_path / "a.est")
    with pytest.raises(ValueError, match=r"refine\(expectation=shifted\(data\)"):
        loaded.refine(relative_error=0.01)
    goal: Any = {"relative_error": 0.01}
    problem = PROBLEMS["figure1"]
    other = ep.expectation(problem.model)(*problem.args)
    for changes, words in (
        ({"expectation": other, "method": ROUGH}, "another program"),
        ({"expectation": shifted(2.0), "method": ROUGH}, "another data"),
        ({"expectation": shifted(1.0)}, "another method: give method=TABI"),
    ):
        with pytest.raises(ValueError, match=words):
            loaded.refine(**goal, **changes)
    with pytest.raises(TypeError, match="bound expectation"):
        loaded.refine(**goal, expectation=shifted)  # type: ignore[arg-type]
    refined = loaded.refine(**goal, expectation=shifted(1.0), method=ROUGH)
    assert refined.value == first.refine(**goal).value
    assert refined.refine(**goal) is refined


def test_wrong_arguments_are_named() -> None:
    first = estimate()
    with pytest.raises(ValueError, match="relative_error must be positive"):
        first.refine(relative_error=0.0)
    with pytest.raises(ValueError, match="max_runs must be"):
        first.refine(relative_error=0.1, max_runs=0)
    with pytest.raises(ValueError, match="max_evaluations must be"):
        first.refine(relative_error=0.1, max_evaluations=0)


@pytest.mark.slow
def test_intervals_of_refined_estimates_cover(seed: int) -> None:
    lower, upper, values = [], [], []
    for number in range(200):
        refined = estimate(1000 * seed + number).refine(relative_error=0.025, throw=False)
        low, high = refined.interval()
        lower.append(low["square"])
        upper.append(high["square"])
        values.append(refined.value["square"])
        assert len(refined.provenance.keys) > 1
    assert_coverage(lower, upper, TRUTH["square"], 0.95)
    assert_mean(values, TRUTH["square"])
    assert math.isclose(np.std(values), 0.025 * TRUTH["square"], rel_tol=0.4)
