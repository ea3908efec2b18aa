"""The calibration run: what it counts, what fails, that it resumes; its page is current."""

from __future__ import annotations

import argparse
import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import calibration
from benchmarks import calibration_page as pages
from benchmarks import calibration_summary as summary
from benchmarks.calibration_cells import BUDGETS, CELLS, LEFT_OUT, METHODS, Cell, cells, measured
from tests.stats import assert_mean

RECORD = calibration.RESULTS / "calibration.json"
HERE: dict[str, Any] = {"python": "3", "jax": "0", "numpyro": "0", "numpy": "2"}
HERE |= {"cpu_count": 2, "device": "cpu"}


def row_of(errors: Any, reported: Any, statuses: Any, covered: Any, **others: Any) -> dict:
    """A cell of the journal with one output."""
    outputs = zip(errors, reported, statuses, covered, strict=True)
    runs = [{"cost": 10, "log_z": [0.0, 0.0, np.nan], "outputs": [list(item)]} for item in outputs]
    about = {"method": "TABI(AnIS)", "problem": "figure1", "budget": "small", "settings": "none"}
    return about | {"runs": runs, "seconds": 0.1, "environment": HERE} | others


@pytest.fixture
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell counts however few runs it has."""
    monkeypatch.setattr(summary, "FEWEST", 1)


@pytest.mark.usefixtures("few_are_enough")
def test_what_is_counted() -> None:
    # Within the tolerance; far off and trusted; far off and refused; off within its error.
    row = row_of([0.001, 0.5, -0.5, 0.1], [0.0001, 0.1, 0.1, 0.1], ["ok", "ok", "low_ess", "ok"],
                 [0, 0, 0, 3])  # fmt: skip
    (found,) = summary.summaries(row)
    assert found["runs"] == 4
    assert found["ok"] == 3
    assert found["statuses"] == {"ok": 3, "low_ess": 1}
    # The second is one of the wrong; the first is beyond its error, but as close as was asked.
    assert (found["wrong"], found["wrong_ok"]) == (2, 1)
    assert (found["right"], found["right_not_ok"]) == (1, 0)
    assert found["covered"] == {"50%": 0, "80%": 1, "95%": 1, "99%": 1}
    reported = np.sqrt(np.mean(np.square([0.0001, 0.1, 0.1])))
    empirical = np.sqrt(np.mean(np.square([0.001, 0.5, 0.1])))
    assert found["reported_over_empirical"] == pytest.approx(reported / empirical, rel=1e-3)
    (with_no_error,) = summary.summaries(row_of([1.0], [np.inf], ["no_mass_found"], [4]))
    assert with_no_error["wrong"] == with_no_error["ok"] == 0


@pytest.mark.usefixtures("few_are_enough")
def test_cancellation_has_a_floor_of_its_tolerance() -> None:
    row = row_of([0.001, 0.00005], [1e-6, 1e-6], ["ok", "ok"], [0, 0], problem="figure1_zero")
    (found,) = summary.summaries(row)
    # Errors are relative to E|f| there, and the tolerance is 1 % of 1 % of it.
    assert (found["wrong"], found["right"]) == (1, 1)


def test_failures_are_found() -> None:
    rng = np.random.default_rng(0)
    errors = rng.normal(size=300)
    covered = (np.abs(errors)[:, None] < [0.674, 1.2816, 1.96, 2.5758]).sum(axis=1).tolist()
    ok = ["ok"] * 300
    good = row_of(errors, np.ones(300), ok, covered)
    short = row_of(errors, np.ones(300), ok, [max(0, n - 2) for n in covered])
    wide = row_of(errors, np.ones(300), ok, [4] * 300)
    trusted = row_of([0.5] * 5 + [0.0] * 95, [0.1] * 100, ok[:100], [0] * 5 + [3] * 95)
    broken = {"error": "ValueError: x"} | row_of([], [], [], [])
    for row, kind in ((good, None), (short, "short"), (wide, "wide"), (broken, "error")):
        found = [k for _, kinds in summary.failures(list(summary.summaries(row))) for k in kinds]
        assert found == ([kind] if kind else [])
    ((_, kinds),) = summary.failures(list(summary.summaries(trusted)))
    assert "false trust" in kinds


def test_bias_of_z(seed: int) -> None:
    rng = np.random.default_rng(seed)
    near = 1 + 0.1 * rng.normal(size=(300, 3))
    found = summary._of_z(np.log(near * [1.0, 1.05, 0.95]))
    assert found["Z2"]["p"] > 1e-6
    assert max(found["Z1_plus"]["p"], found["Z1_minus"]["p"]) < 1e-6
    # Heavy tails: that Z is too small cannot be shown, that it is too large can.
    wild = np.exp(2 * rng.normal(size=(300, 3)) - 2)
    found = summary._of_z(np.log(wild * [1.0, 0.01, 20.0]))
    assert min(found["Z2"]["p_too_large"], found["Z1_plus"]["p_too_large"]) > 1e-4
    assert found["Z1_minus"]["p_too_large"] < 1e-6
    nothing = summary._of_z(np.full((300, 3), -np.inf))
    assert nothing["Z2"] == {"mean": 0.0, "error": 0.0, "p_too_large": 1.0}


def test_the_e_process_keeps_its_promise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ratios = rng.exponential(size=(2000, 50))
    assert_mean(ratios[:, 0], 1.0)
    values = [summary.too_large(row) for row in ratios]
    assert np.mean(np.array(values) > 20) < 0.08


def test_cells() -> None:
    found = cells(METHODS, CELLS)
    assert len(found) == len(METHODS) * (len(CELLS) - len(LEFT_OUT)) * len(BUDGETS)
    assert all(len(method.settings) == len(BUDGETS) for method in METHODS.values())
    batches = calibration.batches(found)
    assert sorted(cell for batch in batches for cell in batch) == sorted(found)
    largest = max(batches, key=len)
    assert {cell.method for cell in largest} == {"TABI(AdaptiveIS)", "AdaptiveIS", "Auto"}
    assert len({cell.problem for cell in largest}) == 1


def test_runs_of_a_cell() -> None:
    row = measured(Cell("TABI(ImportanceSampling)", "figure1", "small"), 5, 60.0, min_runs=2)
    assert len(row["runs"]) == 5
    assert len({run["outputs"][0][0] for run in row["runs"]}) == 5
    assert np.isfinite(row["runs"][0]["log_z"]).all()
    found = list(summary.summaries(json.loads(json.dumps(row))))
    assert found[0]["runs"] == 5
    refused = measured(Cell("TABI(BridgeSampling)", "branching", "small"), 3, 60.0)
    assert "discrete" in refused["refused"]
    slow = measured(Cell("TABI(ImportanceSampling)", "figure1", "small"), 100, 1e-6)
    assert next(iter(summary.summaries(slow)))["slow"] > 0


@pytest.mark.usefixtures("few_are_enough")
def test_it_resumes_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, made = tmp_path / "journal.jsonl", []

    class Inline:
        """A pool that runs in this process."""

        def __init__(self, *_: Any) -> None: ...
        def __enter__(self) -> Inline:
            return self

        def __exit__(self, *_: Any) -> None: ...
        def submit(self, task: Any, *arguments: Any) -> Future:
            future: Future = Future()
            future.set_result(task(*arguments))
            return future

    def instead(cell: Any, *_: Any) -> dict:
        made.append(cell)
        return row_of([0.1], [0.1], ["ok"], [2], **cell._asdict(), settings=repr(cell.settings))

    monkeypatch.setattr(calibration, "ProcessPoolExecutor", Inline)
    monkeypatch.setattr(calibration, "measured", instead)
    monkeypatch.setattr(calibration, "environment", lambda: HERE)
    options = argparse.Namespace(processes=1, minutes=None, scale=1.0, quick=True)
    wanted = cells(["TABI(AnIS)"], ["figure1", "rp22"])
    calibration.run_cells(wanted[:4], journal, options)
    with journal.open("a") as file:
        file.write('{"method": "TABI(AnIS)", "prob')
    calibration.run_cells(wanted, journal, options)
    assert made == wanted
    assert set(calibration.read_journal(journal)) == set(wanted)
    record = summary.write_record(
        tmp_path / "record.json", calibration.read_journal(journal).values()
    )
    assert json.loads((tmp_path / "record.json").read_text()) == json.loads(json.dumps(record))
    assert len(record["results"]) == len(wanted)
    text = pages.page(record)
    assert "| `TABI(AnIS)` | small | 2 | 100.0 |" in text
    assert "- `TABI(AnIS)`: only figure1, rp22." in text
    assert "- `Auto`: only none." in text


@pytest.mark.slow
def test_a_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "RESULTS", tmp_path)
    record = calibration.main(
        [
            *("--quick", "--problems=figure1", "--methods=TABI(ImportanceSampling);TABI(AnIS)"),
            f"--journal={tmp_path / 'journal.jsonl'}",
        ]
    )
    assert [row["method"] for row in record["results"]] == [
        "TABI(ImportanceSampling)",
        "TABI(AnIS)",
    ]
    assert all(row["runs"] >= 20 for row in record["results"])


def test_the_page_is_that_of_the_record() -> None:
    record = json.loads(RECORD.read_text())
    before, rest = pages.PAGE.read_text().split(pages.MARKS[0])
    assert rest.split(pages.MARKS[1])[0].strip() == pages.page(record)
    assert before.startswith("# Calibration")
    assert {row["method"] for row in record["results"]} == set(METHODS)
    assert pages.unexplained(record["results"]) == []
