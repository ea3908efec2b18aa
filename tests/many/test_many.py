"""Many data sets: right one by one, independent of each other, and each reported by name."""

from __future__ import annotations

import contextlib
import math
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from scipy import stats

import estimand as ep
from estimand.many import entry
from estimand.methods import LANE, Outcome
from estimand.record import RecordError
from estimand.runtime import Progress
from problems import many as programs
from tests.runtime.test_compilation import Steps
from tests.stats import ALPHA, assert_coverage


def assert_right(estimates: ep.Estimates, truths: np.ndarray, *, most_alone: float) -> None:
    """All are `ok`, intervals cover as often as they say, and none is far off."""
    assert not estimates.failed
    assert len(estimates.on_their_own) <= most_alone * len(estimates)
    for level in (0.5, 0.95):
        low, high = np.array([estimate.interval(level) for estimate in estimates.values()]).T
        # One truth for all: the intervals of the errors.
        assert_coverage(low - truths, high - truths, 0.0, level)
    values = np.array([estimate.value for estimate in estimates.values()])
    errors = np.array([estimate.standard_error for estimate in estimates.values()])
    assert (2 * stats.t.sf(np.abs(values - truths) / errors, 15) >= ALPHA).all()


def data(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 1.5, count)


@pytest.fixture(scope="module")
def cubes() -> ep.Estimates:
    y = data(1, 40)
    return ep.estimate_many(programs.cube, {f"set {k}": value for k, value in enumerate(y)})


def test_outputs_of_both_signs(cubes: ep.Estimates) -> None:
    assert_right(cubes, programs.cubes(data(1, 40)), most_alone=0.2)
    assert {estimate.outputs[0].route for estimate in cubes.values()} >= {LANE}


def test_no_data_set_changes_another(cubes: ep.Estimates) -> None:
    """Not by its presence, its place, or the chunk that it is in: to the last bit."""
    y = data(1, 40)
    others = {f"set {k}": y[k] for k in (38, 3, 20)}
    again = ep.estimate_many(programs.cube, others | {"bad": math.nan})
    for name in others:
        assert again[name].value == cubes[name].value
        assert again[name].standard_error == cubes[name].standard_error
    assert list(again.failed) == ["bad"]


def test_another_key_gives_another_result(cubes: ep.Estimates) -> None:
    again = ep.estimate_many(programs.cube, {"set 3": data(1, 40)[3]}, rng_key=1)
    assert again["set 3"].value != cubes["set 3"].value


def test_records_are_as_from_a_single_call(cubes: ep.Estimates, tmp_path: Path) -> None:
    estimate = cubes["set 5"]
    assert estimate.num_evaluations > 1000
    assert estimate.samples()["x"].shape == (1000, 2)
    assert "All checks passed" in str(estimate)
    assert estimate.diagnoses[0].verdict.startswith("The estimate can be used")
    estimate.save(tmp_path / "one.est")
    assert ep.load(tmp_path / "one.est").value == estimate.value
    single = ep.estimate_expectation(programs.cube(data(1, 40)[5]), rng_key=7)
    assert estimate.provenance.data_digest == single.provenance.data_digest
    assert estimate.provenance.program_digest == single.provenance.program_digest


def test_rare_events() -> None:
    y = np.linspace(-1.0, 3.0, 24)
    truths = programs.tails(y)
    assert truths.min() < 1e-12
    assert_right(ep.estimate_many(programs.beyond, list(y)), truths, most_alone=0.2)


def test_signs_that_follow_from_the_data() -> None:
    """f is never negative for some data, and never positive for others."""

    @ep.expectation
    def scaled(factor: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        return factor * x**2

    factors = [2.0, -3.0, 0.5]
    estimates = ep.estimate_many(scaled, factors)
    assert not estimates.on_their_own
    for estimate, factor in zip(estimates.values(), factors, strict=True):
        assert abs(estimate.value - factor) < 5 * estimate.standard_error


# --- what is wrong with one says nothing of the others ---


@ep.expectation
def line(x: Any, y: Any) -> Any:
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)
    return slope


def line_truth(x: np.ndarray, y: np.ndarray) -> float:
    return float((x @ y) / (x @ x + 0.25))


def test_bad_data_sets_are_reported_by_name() -> None:
    x, y = np.arange(6.0), np.arange(6.0) + 0.5
    sets = {
        "good": (x, y),
        "by name": {"x": x, "y": y + 1},
        "longer": (np.arange(8.0), np.arange(8.0)),
        "nan": (x, np.where(x == 2, np.nan, y)),
        "short": (x, y[1:]),
        "text": (x, np.array(list("abcdef"))),
        "missing": (x, None),
        "alone": x,
    }
    estimates = ep.estimate_many(line, sets)
    assert set(estimates.failed) == {"nan", "short", "text", "missing", "alone"}
    assert set(estimates.errors) == set(estimates.failed)
    assert "shape" in estimates.errors["short"]
    assert "contain NaN" in estimates.errors["nan"]
    for name, (a, b) in {"good": (x, y), "longer": (np.arange(8.0),) * 2}.items():
        found = estimates[name]
        assert abs(found.value - line_truth(a, b)) < 5 * found.standard_error
    with pytest.raises(KeyError, match="'short' has no estimate: ProgramError"):
        estimates["short"]
    with pytest.raises(KeyError, match="there is no data set 'other'"):
        estimates["other"]
    text = str(estimates)
    assert "of 8 data sets by Auto(): 3 ok, 5 error" in text
    assert "'text' failed: ProgramError" in text


def test_impossible_data_are_refused_although_their_density_is_a_number() -> None:
    @ep.expectation
    def coin(y: Any) -> Any:
        logit = numpyro.sample("logit", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Bernoulli(logits=logit).expand([3]).to_event(1), obs=y)
        return logit

    sets = {"good": np.array([0.0, 1.0, 1.0]), "bad": np.array([0.0, 2.0, 1.0])}
    estimates = ep.estimate_many(coin, sets)
    assert list(estimates) == ["good"]
    assert "outside of its support" in estimates.errors["bad"]


@pytest.fixture
def _second_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass over all data sets does not trust the one in the second place."""
    run_lane = entry.run_lane

    def doubting(*arguments: Any) -> Any:
        outcomes = run_lane(*arguments)
        outcomes[1:2] = [Outcome(None, "too good to be true")] * len(outcomes[1:2])
        return outcomes

    monkeypatch.setattr(entry, "run_lane", doubting)


@pytest.mark.usefixtures("_second_is_handed_over")
def test_what_is_not_trusted_is_run_on_its_own() -> None:
    estimates = ep.estimate_many(programs.cube, {"a": 1.0, "b": 2.0})
    assert estimates.on_their_own == ("b",)
    assert any(note.endswith("too good to be true") for note in estimates["b"].run.notes)
    assert estimates["b"].outputs[0].route == "a small mixture"
    truth = programs.cubes(np.array([2.0]))[0]
    assert abs(estimates["b"].value - truth) < 5 * estimates["b"].standard_error


@pytest.mark.usefixtures("_second_is_handed_over")
def test_a_program_that_fails_on_its_own_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: Any) -> Any:
        raise RuntimeError("no more disk")

    monkeypatch.setattr(entry, "single_run", fails)
    estimates = ep.estimate_many(programs.cube, {"good": 1.0, "bad": 2.0})
    assert estimates.failed == {"bad": "RuntimeError: no more disk"}
    assert estimates["good"].status


def test_a_pass_that_raises_is_made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    run_lane = entry.run_lane

    def failing(densities: Any, *others: Any) -> Any:
        if any(float(density.arrays[0]) == 2.0 for density in densities):
            raise FloatingPointError("too much")
        return run_lane(densities, *others)

    before = ep.estimate_many(programs.cube, {"a": 1.0})
    monkeypatch.setattr(entry, "run_lane", failing)
    estimates = ep.estimate_many(programs.cube, {"a": 1.0, "b": 2.0})
    assert estimates.on_their_own == ("b",)
    assert any("FloatingPointError: too much" in note for note in estimates["b"].run.notes)
    assert estimates["a"].value == before["a"].value


def test_shapes_are_compiled_once_each() -> None:
    rng = np.random.default_rng(0)

    def sets(size: int) -> list[tuple]:
        return [(rng.normal(size=size), rng.normal(size=size)) for _ in range(3)]

    ep.estimate_many(line, sets(5))
    with Steps() as steps:
        estimates = ep.estimate_many(line, sets(5))
        assert not steps.compiled
        estimates = ep.estimate_many(line, [*sets(7), *sets(5), *sets(7)])
    assert not estimates.failed
    assert steps.compiled["jit(_move)"] <= 1
    assert steps.compiled["jit(_evaluate)"] <= 1


def test_programs_that_the_pass_does_not_suit_are_run_one_by_one() -> None:
    @ep.expectation
    def branching(y: Any) -> Any:
        k = numpyro.sample("k", dist.Bernoulli(0.5), infer={"branching": True})
        x = numpyro.sample("x", dist.Normal(0.0, 1.0 + float(k)))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x

    estimates = ep.estimate_many(branching, [1.0])
    assert estimates.on_their_own == (0,)
    assert any("the program branches" in note for note in estimates[0].run.notes)


def test_padded_and_masked_data() -> None:
    @ep.expectation
    def padded(x: Any, y: Any, is_there: Any) -> Any:
        slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
        with handlers.mask(mask=is_there):
            numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)
        return slope

    rng = np.random.default_rng(3)
    sets, truths = {}, []
    for count in (3, 5, 8):
        x, y = rng.normal(size=(2, 8))
        is_there = np.arange(8) < count
        sets[f"{count} rows"] = {"x": x, "y": y, "is_there": is_there}
        truths.append(line_truth(x[is_there], y[is_there]))
    estimates = ep.estimate_many(padded, sets)
    for estimate, truth in zip(estimates.values(), truths, strict=True):
        assert abs(estimate.value - truth) < 5 * estimate.standard_error


# --- how it is called, and what comes back ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((programs.cube(1.0), [1.0]), "has its data already"),
        ((print, [1.0]), "expected an expectation program"),
        ((programs.cube, 3.0), "must be a mapping"),
        ((programs.cube, "data"), "must be a mapping"),
        ((programs.cube, {1.5: 2.0}), "names of data sets"),
        ((programs.cube, [1.0], ep.TABI(ep.AnIS())), "must be Auto"),
    ],
)
def test_wrong_calls_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ep.estimate_many(*arguments)


def test_nothing_to_do() -> None:
    estimates = ep.estimate_many(programs.cube, {})
    assert len(estimates) == 0
    assert "of 0 data sets" in str(estimates)
    assert estimates.to_dataset().sizes == {"dataset": 0, "output": 0}


def test_generators_and_single_numbers(cubes: ep.Estimates) -> None:
    estimates = ep.estimate_many(programs.cube, (value for value in data(1, 3)), draws=False)
    assert list(estimates) == [0, 1, 2]
    assert not estimates[0].draws
    assert estimates[0].parts
    assert str(estimates[0].summary())
    assert estimates[0].value != cubes["set 0"].value  # another name, another key


def test_a_small_budget_is_kept() -> None:
    method = ep.Auto(relative_error=0.1, max_evaluations=100_000)
    estimates = ep.estimate_many(programs.cube, [1.0], method)
    assert estimates.on_their_own == (0,)
    assert any("max_evaluations is below" in note for note in estimates[0].run.notes)


def test_tables_and_folders(tmp_path: Path) -> None:
    estimates = ep.estimate_many(programs.cube, {"a/b": 1.0, "ä": 2.0, "bad": "1"})
    table = estimates.to_dataframe()
    assert table["status"].tolist() == ["ok", "ok", "error"]
    dataset = estimates.to_dataset()
    assert float(dataset["value"].sel(dataset="ä").squeeze()) == estimates["ä"].value
    folder = tmp_path / "new" / "folder"
    estimates.save(folder)
    assert (folder / "table.csv").read_text().splitlines()[1].startswith("a/b,")
    loaded = ep.load_many(folder)
    assert list(loaded) == list(estimates)
    assert loaded.failed == estimates.failed
    assert loaded["a/b"].value == estimates["a/b"].value
    assert str(loaded) == str(estimates)
    (folder / "index.json").write_text("{")
    with pytest.raises(RecordError, match="damaged"):
        ep.load_many(folder)
    with pytest.raises(RecordError, match="no index"):
        ep.load_many(tmp_path)


@pytest.mark.usefixtures("usual_ctrl_c")
def test_ctrl_c_gives_what_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "CHUNK", 4)
    passes = []
    run_lane = entry.run_lane

    def pressed(*arguments: Any) -> Any:
        passes.append(arguments)
        if len(passes) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return run_lane(*arguments)

    monkeypatch.setattr(entry, "run_lane", pressed)
    estimates = ep.estimate_many(programs.cube, list(data(1, 10)))
    assert list(estimates) == [0, 1, 2, 3]
    assert estimates.unfinished == (4, 5, 6, 7, 8, 9)
    assert "6 unfinished" in str(estimates)
    with pytest.raises(KeyError, match="before Ctrl-C"):
        estimates[7]


@pytest.mark.usefixtures("_second_is_handed_over")
def test_progress_counts_data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "CHUNK", 3)
    seen: list[Progress] = []
    monkeypatch.setattr(entry, "bar", lambda _wanted: contextlib.nullcontext(seen.append))
    ep.estimate_many(programs.cube, [1.0, 1.5, 2.0, 2.5])
    stages = [progress.stage for progress in seen]
    assert stages[:2] == ["0 of 4 data sets", "2 of 4 data sets"]
    assert any(stage.startswith("3 of 4 data sets; 1 on its own: ") for stage in stages)


def test_an_executor_runs_what_is_run_on_its_own() -> None:
    method = ep.Auto(relative_error=0.1, max_evaluations=100_000)
    sets = {"a": 1.0, "b": 2.0, "c": 1.5, "bad": np.inf}
    here = ep.estimate_many(programs.cube, sets, method)
    with ThreadPoolExecutor(2) as threads:
        there = ep.estimate_many(programs.cube, sets, method, executor=threads)
    assert there.on_their_own == ("a", "b", "c")
    assert there.failed == here.failed
    assert [each.value for each in there.values()] == [each.value for each in here.values()]


# --- over many data sets ---


@pytest.mark.slow
def test_coverage_over_many_data_sets() -> None:
    y = data(2, 200)
    assert_right(ep.estimate_many(programs.cube, list(y)), programs.cubes(y), most_alone=0.05)
    assert_right(ep.estimate_many(programs.beyond, list(y)), programs.tails(y), most_alone=0.05)


@pytest.mark.slow
def test_two_modes_are_found_or_handed_over() -> None:
    rng = np.random.default_rng(4)
    y, tilt = np.abs(rng.normal(0.0, 2.0, 40)) + 1.0, rng.normal(0.0, 4.0, 40)
    sets = [{"y": a, "tilt": b} for a, b in zip(y.tolist(), tilt.tolist(), strict=True)]
    truths = np.array([programs.two_modes_truth(*pair) for pair in zip(y, tilt, strict=True)])
    assert_right(ep.estimate_many(programs.two_modes, sets), truths, most_alone=0.2)


@pytest.mark.slow
def test_hierarchies() -> None:
    rng = np.random.default_rng(5)
    spread = np.abs(rng.normal(0.0, 8.0, (30, 1)))
    y = 5 * rng.normal(size=(30, 1)) + spread * rng.normal(size=(30, 8))
    y += 10 * rng.normal(size=(30, 8))
    truths = np.array([programs.schools_truth(row) for row in y])
    assert_right(ep.estimate_many(programs.schools, list(y)), truths, most_alone=0.2)


@pytest.mark.slow
def test_posteriors_far_from_the_prior() -> None:
    @ep.expectation
    def far(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
        numpyro.sample("y", dist.Normal(x, 0.05).to_event(1), obs=y)
        return jax.numpy.exp(x[0])

    y = np.random.default_rng(6).normal(0.0, 5.0, (50, 4))
    variance = 1 / (1 + 400)
    truths = np.exp(variance * 400 * y[:, 0] + variance / 2)
    assert_right(ep.estimate_many(far, list(y)), truths, most_alone=0.1)
