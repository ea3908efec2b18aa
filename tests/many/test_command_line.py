"""Many data sets on the command line: folders, and tables with a grouping column."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import estimand as ep
from estimand.cli import main

PROGRAM = """
import numpyro
import numpyro.distributions as dist

import estimand as ep


@ep.expectation
def program(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)
    return slope
"""

TABLE = """x,y,clinic,note
0.0,0.1,north,a
1.0,1.2,north,b
0.0,0.3,south,a
1.0,0.9,south,c
0.0,0.5,west,c
1.0,none,west,c
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(PROGRAM)
    Path("table.csv").write_text(TABLE)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", "model.py:program", *arguments])


def truth(y: list[float]) -> float:
    return y[1] / (1.0 + 0.25)


def test_groups_of_a_table() -> None:
    outcome = run("--data", "table.csv", "--group-by", "clinic", "--output", "clinics")
    assert outcome.exit_code == 1, outcome.output
    assert "2 ok, 1 error" in outcome.output
    assert "'west' failed: row 7, column 'y': 'none' is not a number" in outcome.output
    estimates = ep.load_many("clinics")
    assert list(estimates) == ["north", "south"]
    found = estimates["south"]
    assert abs(found.value - truth([0.3, 0.9])) < 5 * found.standard_error


def test_files_of_a_folder() -> None:
    folder = Path("sets")
    folder.mkdir()
    (folder / "a.json").write_text('{"x": [0.0, 1.0], "y": [0.1, 1.2]}')
    (folder / "b.csv").write_text("x,y,other\n0.0,0.3,1\n1.0,0.9,2\n")
    np.savez(folder / "c.npz", x=np.array([0.0, 1.0]), y=np.array([0.0, 2.0]))
    (folder / "notes.txt").write_text("not data")
    outcome = run("--data", "sets", "--json")
    assert outcome.exit_code == 0, outcome.output
    rows = {row["name"]: row for row in json.loads(outcome.stdout)}
    assert list(rows) == ["a", "b", "c"]
    assert abs(rows["c"]["value"] - truth([0.0, 2.0])) < 5 * rows["c"]["standard_error"]
    (folder / "d.json").write_text("{")
    outcome = run("--data", "sets")
    assert outcome.exit_code == 1
    assert "'d' failed: data sets/d.json" in outcome.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--group-by", "clinic"), "--group-by needs a table"),
        (("--data", "table.csv", "--group-by", "town"), "has the columns"),
        (("--data", "model.py", "--group-by", "town"), "needs a CSV table"),
        (("--data", ".", "--report", "a.html"), "are for one data set"),
        (("--data", "empty"), "no file ends in"),
        (("--data", "table.csv", "--group-by", "clinic", "--output", "model.py"), "need a folder"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], message: str) -> None:
    Path("empty").mkdir()
    outcome = run(*arguments)
    assert outcome.exit_code == 2
    assert message in " ".join(outcome.output.split())


def test_files_of_one_name_are_refused() -> None:
    folder = Path("sets")
    folder.mkdir()
    for ending in ("json", "csv"):
        (folder / f"a.{ending}").write_text("x,y\n1.0,1.0\n" if ending == "csv" else '{"x": [1.0]}')
    outcome = run("--data", "sets")
    assert outcome.exit_code == 2
    assert "two files have the name 'a'" in outcome.output
