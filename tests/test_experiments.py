"""The experiments: what they compute from weights, and that each of them still runs."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import estimand as ep
from experiments import figures
from experiments.study import Annealed, Chains, Default, Line, Stretches, Study, read
from problems import gaussian
from problems.banana import banana
from problems.gaussian import data, posterior_predictive

NAMES = ("banana", "gaussian", "sir", "radon")


# --- what is computed from weights and chains ---


def bound(is_signed: bool) -> ep.Expectation:
    return ep.expectation(banana)() if is_signed else ep.expectation(posterior_predictive)(data(3))


@pytest.mark.parametrize("is_signed", [False, True])
@pytest.mark.parametrize("is_joint", [False, True])
def test_the_last_particles_say_what_the_library_says(is_signed: bool, is_joint: bool) -> None:
    expectation = bound(is_signed)
    estimator = ep.AnIS(num_temperatures=5, kernel=ep.RandomWalk(scale=1.0))
    num_parts = 1 if is_joint else 2 + is_signed
    arm = Annealed(estimator=estimator, num_parts=num_parts)
    point = arm.run(expectation, 60 * num_parts, [7])[0]["points"][-1]
    sized = dataclasses.replace(estimator, num_samples=60)
    method = ep.SelfNormalised(sized) if is_joint else ep.TABI(sized)
    result = ep.estimate_expectation(expectation, method, rng_key=7, throw=False)
    np.testing.assert_allclose(point["value"], result.value, rtol=1e-10)
    np.testing.assert_allclose([point["low"], point["high"]], result.interval(0.95), rtol=1e-6)
    np.testing.assert_allclose(point["ess_z2"], result.ess["Z2"], rtol=1e-10)
    parts = [result.ess[f"Z1_{sign}"] for sign in ("plus", "minus")]
    np.testing.assert_allclose(point["ess_z1"], np.nanmin(parts[: 1 + is_signed]), rtol=1e-10)
    assert point["gradients"] == result.num_gradients == 0
    # The baseline evaluates f once more at each of its particles, where the paper does not count.
    assert point["evaluations"] == result.num_evaluations - 60 * is_joint
    assert point["cost"] == 60 * num_parts


def test_runs_made_at_once_are_different() -> None:
    arm = Annealed(estimator=ep.AnIS(num_temperatures=5))
    runs = arm.run(bound(False), 40, [0, 1, 2])
    assert [run["seed"] for run in runs] == [0, 1, 2]
    assert len({run["points"][-1]["value"] for run in runs}) == 3
    assert [point["cost"] for point in runs[0]["points"]][-1] == 40


def test_a_wrong_number_of_parts_is_refused() -> None:
    arm = Annealed(estimator=ep.AnIS(num_temperatures=5), num_parts=3)
    with pytest.raises(ValueError, match="num_parts=3"):
        arm.run(bound(False), 30, [0])


@pytest.mark.parametrize(
    "kernel", [pytest.param(None, marks=pytest.mark.slow), ep.RandomWalk(scale=1.0)]
)
def test_chains(kernel: Any) -> None:
    arm = Chains(draws_per_particle=100, kernel=kernel, num_samples=200, num_warmup=100)
    runs = arm.run(ep.expectation(posterior_predictive)(data(1)), 12, [0, 1])
    values = [run["points"][0]["value"] for run in runs]
    assert len(set(values)) == 2
    for run in runs:
        point = run["points"][0]
        assert point["cost"] == 12
        assert point["ess_z2"] == 4 * 200
        assert 1 <= point["ess_z1"] <= 800
        assert point["low"] < point["value"] < point["high"]
        assert (point["gradients"] > 0) == (kernel is None)


def test_errors_of_chains() -> None:
    f = np.random.default_rng(0).normal(1.0, 1.0, (50, 10, 20))
    found = Stretches(f.sum(axis=2), (f**2).sum(axis=2), np.ones(50))
    means = f.reshape(50, -1).mean(axis=1)
    np.testing.assert_allclose(found.error(200), means.std(ddof=1) / math.sqrt(50))
    np.testing.assert_allclose(found.ess, f.sum() ** 2 / (f**2).sum())
    few = Stretches(*(item[:2] for item in found))
    stretches = f[:2].mean(axis=2).ravel()
    np.testing.assert_allclose(few.error(200), stretches.std(ddof=1) / math.sqrt(20))


# --- records, figures and tables ---


@dataclasses.dataclass
class Counted:
    """An arm that says how often it was asked."""

    calls: int = 0

    def run(self, _: Any, size: int, seeds: Sequence[int]) -> list[dict]:
        self.calls += 1
        about = {"low": 0.9, "high": math.inf, "gradients": 0, "ess_z1": 1.0, "ess_z2": 2.0}
        return [
            {
                "seed": seed,
                "points": [
                    about | {"cost": c, "value": 1 + 0.1 * seed, "evaluations": c, "seconds": 0.1}
                    for c in (size // 2, size)
                ],
            }
            for seed in seeds
        ]


def study_of(arm: Counted, plan: dict[int, int]) -> Study:
    line = Line(arm, lambda: bound(False), 1.0, {"smoke": plan}, at_once=2)
    return Study(name="none", title="t", lines={"TABI + AnIS": line}, draw=lambda *_: None)


def test_a_study_resumes_where_it_stopped(tmp_path: Path) -> None:
    arm, path = Counted(), tmp_path / "smoke.json"
    study_of(arm, {10: 3}).run("smoke", path)
    assert arm.calls == 2
    study_of(arm, {10: 3}).run("smoke", path)
    assert arm.calls == 2
    record = study_of(arm, {10: 4, 100: 1}).run("smoke", path)
    assert arm.calls == 4
    assert read(path) == json.loads(json.dumps(record).replace("Infinity", "null"))
    assert sorted((run["size"], run["seed"]) for run in record["runs"]) == [
        (10, 0),
        (10, 1),
        (10, 2),
        (10, 3),
        (100, 0),
    ]


def test_groups_and_table(tmp_path: Path) -> None:
    path = tmp_path / "smoke.json"
    study_of(Counted(), {10: 3, 12: 2}).run("smoke", path)
    record = read(path)
    assert record is not None
    groups = figures.groups(record, "TABI + AnIS")
    # Of the larger runs only the point beyond the smaller ones is taken.
    assert [(g.points[0]["cost"], len(g.points)) for g in groups] == [(5, 3), (10, 3), (12, 2)]
    error = figures.rse(record, "TABI + AnIS")
    np.testing.assert_allclose(groups[1].quartiles(error), [0.005, 0.01, 0.025])
    rows = figures.table(record).splitlines()
    assert "cost 10 | 3 | 1 | 1.1 | 0.005 / 0.01 / 0.025" in rows[4]
    assert rows[4].endswith("| – |"), "an interval without end is none"


def test_the_default_method_as_an_arm() -> None:
    run = Default().run(ep.expectation(posterior_predictive)(data(1)), 100, [0])[0]
    assert run["status"] == "ok"
    assert abs(run["points"][0]["value"] / gaussian.expectation(1) - 1) < 0.05


@pytest.mark.parametrize("name", NAMES)
def test_committed_figures_are_those_of_the_record(name: str) -> None:
    study = importlib.import_module(f"experiments.{name}.run").STUDY
    record = read(study.folder / "results" / "full.json")
    assert record is not None
    assert {run["line"] for run in record["runs"]} == set(study.lines)
    assert set(record["extras"]) == set(study.extras)
    for label, line in study.lines.items():
        np.testing.assert_allclose(record["truths"][label], line.truth)
        for size, num_runs in line.plans["full"].items():
            runs = [r for r in record["runs"] if (r["line"], r["size"]) == (label, size)]
            assert len(runs) == num_runs, (label, size)
    table = (study.folder / "results" / "full.md").read_text()
    assert table == figures.table(record) + "\n"


@pytest.mark.parametrize(
    "name", ["banana", *(pytest.param(n, marks=pytest.mark.slow) for n in NAMES[1:])]
)
def test_every_experiment_runs(name: str, tmp_path: Path) -> None:
    study = importlib.import_module(f"experiments.{name}.run").STUDY
    record = study.main(["--smoke", "--out", str(tmp_path)])
    assert record["runs"]
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    committed = {path.name for path in study.figures.iterdir()}
    assert drawn == committed
    assert (tmp_path / "results" / "smoke.md").read_text().startswith(f"### {study.title} (smoke)")
