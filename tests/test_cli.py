"""The command line: what it prints where, its exit codes, and that bad input costs no work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats

import estimand as ep
from estimand.model import Expectation

pytest.importorskip("click")

from click.testing import CliRunner

from estimand import cli

ROWS = """
import numpyro
import numpyro.distributions as dist
import estimand as ep

@ep.expectation
def program(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x
"""

MODEL = """
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import estimand as ep

@ep.expectation
def program(y, scale=1.0):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, scale), obs=y)
    return x**3

@ep.expectation
def nothing():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    return jax.lax.fori_loop(0, 1, lambda _, is_there: x > 300.0, False)

@ep.expectation
def exceeds():
    return numpyro.sample("x", dist.Normal(0.0, 1.0)) > 1.0

@ep.expectation
def table(a, b):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x * a, 1.0).to_event(1), obs=b)
    return x

@ep.expectation
def gain(stake, y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return stake * x - 0.3 * stake**2

def study(sites):
    numpyro.sample("outcome", dist.Normal(sites["x"], 1.0))

bound = program(2.0)

def plain():
    pass
"""

SILENT = """
import numpyro
import numpyro.distributions as dist
import estimand as ep

def model():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=2.0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its data, and two records of it."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "model.py").write_text(MODEL)
    (folder / "data.json").write_text('{"y": 2.0}')
    for seed in (1, 2):
        result = invoke(
            folder,
            *("run", "model.py:program", "--data", "data.json", "--max-evaluations", "200000"),
            *("--seed", str(seed), "--output", f"{seed}.est"),
        )
        assert result.exit_code == 0, result.output
        assert f"record saved: {seed}.est" in result.stderr
        assert "E[program]" in result.stdout
        assert "saved" not in result.stdout
    return folder


def invoke(folder: Path, *arguments: str) -> Any:
    """Runs a command in a folder, in this process."""
    before, path = os.getcwd(), list(sys.path)
    os.chdir(folder)
    try:
        return CliRunner().invoke(cli.main, list(arguments))
    finally:
        os.chdir(before)
        sys.path[:] = path


def test_help_teaches() -> None:
    for command in ((), *((name,) for name in cli.main.commands)):
        result = CliRunner().invoke(cli.main, [*command, "--help"])
        assert result.exit_code == 0
        assert "Usage:" in result.stdout
    result = CliRunner().invoke(cli.main, ["--help"])
    assert "estimand example tail-probability" in result.stdout
    assert "Exit codes" in result.stdout
    assert set(cli.main.commands) == set(cli.main.list_commands(None))  # type: ignore[arg-type]


@pytest.mark.usefixtures("relaxed_ranks")
@pytest.mark.parametrize("name", ["tail-probability", "regression"])
def test_starters_are_answered(name: str, tmp_path: Path) -> None:
    made = invoke(tmp_path, "example", name)
    assert made.exit_code == 0, made.output
    result = invoke(tmp_path, "run", f"{name.replace('-', '_')}.py:program")
    assert result.exit_code == 0, result.output
    assert "ok" in result.stdout


def test_saved_records_are_right_and_can_be_shown(folder: Path) -> None:
    record = ep.load(folder / "1.est")
    assert abs(record.value - 2.5) < 5 * record.standard_error
    assert "def program(y, scale=1.0)" in record.provenance.source
    shown = invoke(folder, "show", "1.est")
    assert shown.exit_code == 0
    assert shown.stdout.strip() == record.summary().plain()
    as_json = invoke(folder, "show", "1.est", "--json")
    assert json.loads(as_json.stdout) == record.to_dict()


def test_merge_and_its_refusals(folder: Path) -> None:
    result = invoke(folder, "merge", "1.est", "2.est", "--output", "both.est", "--json")
    assert result.exit_code == 0
    merged = ep.load(folder / "both.est")
    assert json.loads(result.stdout) == merged.to_dict()
    assert len(merged.provenance.keys) == 2
    result = invoke(folder, "merge", "1.est", "1.est", "--output", "no.est")
    assert result.exit_code == 2
    assert "same random key" in result.stderr
    assert not (folder / "no.est").exists()
    (folder / "bad.est").write_bytes((folder / "1.est").read_bytes()[:-9])
    for command in (["show", "bad.est"], ["report", "bad.est"], ["show", "model.py"]):
        result = invoke(folder, *command)
        assert result.exit_code == 2
        assert "damaged" in result.stderr or "not a record" in result.stderr


def test_a_run_with_a_checkpoint_ends_as_a_record(folder: Path) -> None:
    command = ["run", "model.py:bound", "--max-evaluations", "50000", "--checkpoint", "run.est"]
    first = invoke(folder, *command, "--json")
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout) == ep.load(folder / "run.est").to_dict()
    assert invoke(folder, *command, "--json").stdout == first.stdout
    result = invoke(folder, *command, "--seed", "1")
    assert result.exit_code == 2
    assert "belongs to another run: it has key" in result.stderr
    result = invoke(folder, "run", "model.py:bound", "--checkpoint", "model.py")
    assert result.exit_code == 2
    assert "is not changed" in result.stderr
    assert (folder / "model.py").read_text() == MODEL


def test_report_of_a_record(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    result = invoke(folder, "report", "1.est", "--output", "page.html")
    assert result.exit_code == 0
    assert "<svg" in (folder / "page.html").read_text()
    assert result.stdout == ""
    assert "page.html" in result.stderr


def test_run_prints_json_alone_and_fails_on_no_mass(folder: Path) -> None:
    result = invoke(
        folder, "run", "model.py:nothing", "--max-evaluations", "20000", "--json", "--seed", "3"
    )
    assert result.exit_code == 1
    assert json.loads(result.stdout)["status"] == "no_mass_found"
    assert "estimating" in result.stderr


@pytest.mark.slow
def test_precision(folder: Path) -> None:
    command = ["run", "model.py:bound", "--max-evaluations", "50000", "--json"]
    with jax.enable_x64(False):
        results = [invoke(folder, *command, *more) for more in ([], ["--precision", "single"])]
    found = [json.loads(result.stdout) for result in results]
    versions = [content["provenance"]["versions"]["precision"] for content in found]
    assert versions == ["float64", "float32"]
    assert "computed in single precision" in found[1]["notes"]
    assert invoke(folder, *command, "--precision", "half").exit_code == 2


def test_decide_names_the_best_action(folder: Path) -> None:
    command = ("decide", "model.py:gain", "--actions", "0, 1,2", "--data", "data.json")
    result = invoke(folder, *command, "--report", "page.html")
    assert result.exit_code == 0, result.output
    assert "Decision by gain" in (folder / "page.html").read_text()
    assert "deciding among 3 actions with Auto(), seed 0" in result.stderr
    assert "done in" in result.stderr
    assert "is the best action" in result.stdout or "cannot be told apart" in result.stdout
    rows = json.loads(invoke(folder, *command, "--json").stdout)
    assert [row["setting"] for row in rows] == [0.0, 1.0, 2.0]
    assert abs(rows[1]["utility"] - 0.7) < 0.02
    found = json.loads(invoke(folder, *command, "--json", "--study", "study").stdout)
    assert [row["setting"] for row in found["actions"]] == [0.0, 1.0, 2.0]
    [study] = found["studies"]
    assert (study["name"], study["value_status"]) == ("study", "ok")
    assert study["value_low"] < study["value"] < study["value_high"]
    for arguments, words in {
        ("model.py:gain", "--actions", "1,2", "--study", "absent"): "no function of that name",
        ("model.py:gain", "--actions", "1,2", "--study", "nothing"): "must be a function of",
        ("model.py:gain", "--actions", "1"): "two actions at least",
        ("model.py:bound", "--actions", "1,2"): "takes no action",
        ("model.py:gain", "--actions", "1,2", "--argument", "z"): "no argument 'z'",
    }.items():
        refused = invoke(folder, "decide", *arguments, "--data", "data.json")
        assert refused.exit_code == 2
        assert words in refused.stderr


def test_run_shows_sensitivities(folder: Path) -> None:
    command = ("run", "model.py:program", "--data", "data.json", "--sensitivity")
    result = invoke(folder, *command, "--report", "sensitive.html")
    assert result.exit_code == 0, result.output
    assert "Derivatives of E[program]" in result.stdout
    assert "x.scale" in result.stdout
    assert "a prior of power 1.1" in result.stderr
    assert "What moves the expectation" in (folder / "sensitive.html").read_text()


def test_run_shows_the_reliability_of_events(folder: Path) -> None:
    command = ("run", "model.py:exceeds", "--reliability", "--report", "event.html")
    result = invoke(folder, *command)
    assert result.exit_code == 0, result.output
    assert "Reliability index" in result.stdout
    assert "Design points of exceeds" in result.stdout
    assert "importance of x" in result.stdout
    assert "What the event hangs on" in (folder / "event.html").read_text()
    refused = invoke(folder, "run", "model.py:bound", "--reliability")
    assert refused.exit_code == 2
    assert "no output is an event" in refused.stderr


def test_compare_methods_shows_three_methods_side_by_side(folder: Path) -> None:
    result = invoke(
        folder, "compare-methods", "model.py:bound", "--max-evaluations", "200000", "--json"
    )
    assert result.exit_code == 0
    read = json.loads(result.stdout)
    assert list(read) == ["default", "paper: TABI + AnIS", "NUTS, averaged"]
    for name, record in read.items():
        output = record["outputs"][0]
        assert abs(output["value"] - 2.5) < 6 * output["standard_error"], name
    result = invoke(folder, "compare-methods", "model.py:bound", "--max-evaluations", "200000")
    assert [line.split("  ")[0] for line in result.stdout.splitlines()[4:7]] == list(read)


def test_models_are_compared(folder: Path) -> None:
    programs = ["model.py:bound", "model.py:program"]
    wrong = invoke(folder, "compare", *programs, "--prior", "1")
    assert wrong.exit_code == 2
    assert "one for each of the 2 programs" in wrong.stderr
    result = invoke(
        folder, "compare", "model.py:bound", "--json", "--seed", "1", "--report", "page.html"
    )
    assert result.exit_code == 0
    assert (folder / "page.html").read_text().startswith("<!doctype html>")
    [row] = json.loads(result.stdout)["models"]
    assert abs(row["log_z"] + 2.2655121) < 6 * row["log_z_error"] + 1e-6
    assert row["probability"] == 1.0


def test_tails_on_the_command_line(folder: Path) -> None:
    asked = ["model.py:bound", "--json"]
    levels = ("--level", "0.5", "--level", "0.999")
    result = invoke(folder, "quantile", *asked, *levels, "--report", "page.html")
    assert result.exit_code == 0
    assert "Quantiles of program" in (folder / "page.html").read_text()
    median, far = json.loads(result.stdout)["quantiles"]
    assert median["interval"][0] < 1.0 < median["interval"][1]
    assert far["interval"][0] < 32.313137 < far["interval"][1]
    result = invoke(folder, "shortfall", *asked, "--tail-probability", "0.001")
    assert json.loads(result.stdout)["value"] > 32.4
    result = invoke(folder, "distribution", *asked, "--at", "27", "--at", "1")
    below, above = json.loads(result.stdout)["points"]
    assert (below["t"], above["t"]) == (1.0, 27.0)
    assert abs(above["survival"] - 2.339e-3) < 6 * above["standard_error"] + 1e-5
    assert invoke(folder, "quantile", "model.py:bound").exit_code == 2
    assert invoke(folder, "quantile", "model.py:bound", "--level", "2").exit_code == 2
    nowhere = invoke(folder, "quantile", *asked, *levels, "--report", "none/page.html")
    assert (nowhere.exit_code, nowhere.stdout) == (2, "")


def test_rows_are_left_out(folder: Path) -> None:
    command = ("leave-one-out", "rows.py:program", "--data", "y.json", "--report", "page.html")
    (folder / "y.json").write_text('{"y": [0.3, -0.4, 1.1]}')
    (folder / "rows.py").write_text(ROWS)
    result = invoke(folder, *command)
    assert result.exit_code == 0, result.output
    assert "ELPD" in result.stdout
    assert "ELPD" in (folder / "page.html").read_text()
    found = json.loads(invoke(folder, *command, "--site", "y", "--json").stdout)
    assert [row["row"] for row in found["rows"]] == [0, 1, 2]
    # Given the other two, y is normal with mean (sum of the others) / 3 and variance 4 / 3.
    first = stats.norm.logpdf(0.3, (-0.4 + 1.1) / 3, (4 / 3) ** 0.5)
    assert abs(found["rows"][0]["elpd"] - first) < 6 * found["rows"][0]["standard_error"] + 1e-6
    assert found["elpd"] == pytest.approx(sum(row["elpd"] for row in found["rows"]))
    for arguments, words in {
        ("rows.py:program", "--data", "y.json", "--site", "z"): "z",
        ("model.py:nothing",): "observed",
    }.items():
        refused = invoke(folder, "leave-one-out", *arguments)
        assert refused.exit_code == 2
        assert words in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model.py"], "does not name a program"),
        (["none.py:program"], "no file none.py"),
        (["model.py:progam"], "has no 'progam'. Did you mean 'program'? Known: program, nothing"),
        (["model.py:plain"], "write @ep.expectation in a line of its own above `def plain`, line"),
        (["model.py:jnp"], "'jnp' in model.py is no expectation program. Known: program"),
        (["model.py:program"], "missing a required argument: 'y'"),
        (["model.py:program", "--data", "none.json"], "there is no file none.json"),
        (["model.py:program", "--data", "model.py"], "must be one of .json, .csv"),
        (["model.py:program", "--data", "extra.json"], "unexpected keyword argument 'z'"),
        (["model.py:program", "--data", "broken.json"], "broken.json"),
        (["model.py:program", "--data", "words.json"], "not numbers"),
        (["model.py:bound", "--data", "data.json"], "has its data already"),
        (["model.py:table", "--data", "text.csv"], "row 3, column 'b': 'x' is not a number"),
        (["model.py:table", "--data", "ragged.csv"], "row 2 has 1 cells; the header has 2"),
        (["model.py:table", "--data", "shapes.json"], "do not fit together"),
        (["model.py:bound", "--output", "none/r.est"], "no folder none"),
        (["model.py:bound", "--report", "."], "is a folder"),
        (["model.py:bound", "--relative-error", "0"], "relative-error"),
        (["model.py:bound", "--seed", "-1"], "seed"),
        (["crash.py:program"], "cannot be imported: ZeroDivisionError"),
        (["called.py:model"], "its own above `def model`."),
    ],
)
def test_bad_input_is_refused_before_any_work(
    arguments: list[str], words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "extra.json": '{"y": 2.0, "z": 1.0}',
        "broken.json": "{",
        "words.json": '{"y": ["a", "b"]}',
        "text.csv": "a,b\n1,2\n3,x\n",
        "ragged.csv": "a,b\n1\n",
        "shapes.json": '{"a": [1.0, 2.0], "b": [1.0, 2.0, 3.0]}',
        "crash.py": "1 / 0",
        "called.py": f"{SILENT}\nmodel()",
    }.items():
        (folder / name).write_text(text)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("work was started")

    monkeypatch.setattr(cli, "estimate_expectation", refuse)
    result = invoke(folder, "run", *arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert result.stdout == ""


def test_errors_of_a_program_come_without_the_usage(folder: Path) -> None:
    (folder / "silent.py").write_text(f"{SILENT}\nprogram = ep.expectation(model)")
    for arguments, words in {
        ("run", "silent.py:program"): "end the program with `return`",
        ("compare", "silent.py:program", "--average"): "end the program with `return`",
        ("decide", "model.py:gain", "--actions", "1,2", "--argument", "z"): "no argument 'z'",
        ("run", "model.py:plain"): "a plain function",
    }.items():
        result = invoke(folder, *arguments)
        assert result.exit_code == 2
        assert words in result.stderr
        assert "Usage" not in result.stderr
    assert "Usage" in invoke(folder, "run", "model.py:bound", "--data", "data.json").stderr


def test_models_without_a_return_value_are_compared(folder: Path) -> None:
    (folder / "silent.py").write_text(f"{SILENT}\nprogram = ep.expectation(model)")
    result = invoke(folder, "compare", "silent.py:program", "--json")
    assert result.exit_code == 0, result.output
    [row] = json.loads(result.stdout)["models"]
    assert abs(row["log_z"] + 2.2655121) < 6 * row["log_z_error"] + 1e-6


def test_a_crash_is_not_an_untrusted_estimate(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(cli, "estimate_expectation", crash)
    result = invoke(folder, "run", "model.py:bound")
    assert result.exit_code == 2
    assert "out of memory" in result.stderr


def test_data_files_of_every_kind(folder: Path) -> None:
    (folder / "t.csv").write_text("a, b,note,arm\n1,0.5,1,left\n2,1.5,2,right\n")
    np.savez(folder / "t.npz", a=np.array([1, 2]), b=np.array([0.5, 1.5]))
    (folder / "t.json").write_text('{"a": [1, 2], "b": [0.5, 1.5]}')
    before = os.getcwd()
    os.chdir(folder)
    try:
        bound = [
            cli.bind("model.py:table", Path(f"t.{ending}")) for ending in ("csv", "npz", "json")
        ]
        positional = cli.read_data(_numpy_file(folder / "one.npy"))
    finally:
        os.chdir(before)
    for expectation in bound:
        assert isinstance(expectation, Expectation)
        args, kwargs = expectation.data.arguments(expectation.data.arrays)
        assert args == ()
        np.testing.assert_array_equal(kwargs["a"], [1, 2])
        np.testing.assert_array_equal(kwargs["b"], [0.5, 1.5])
        assert np.asarray(kwargs["a"]).dtype.kind == "i"
    np.testing.assert_array_equal(positional[0][0], [1.0, 2.0])
    np.save(folder / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(cli.InputError, match="allow_pickle"):
        cli.read_data(folder / "objects.npy")


def _numpy_file(path: Path) -> Path:
    np.save(path, np.array([1.0, 2.0]))
    return path


def test_examples_are_written_once_and_bind(tmp_path: Path) -> None:
    listed = invoke(tmp_path, "example")
    assert listed.exit_code == 0
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    assert {"tail-probability", "regression", "epidemic"} <= set(names)
    for name in names:
        result = invoke(tmp_path, "example", name)
        assert result.exit_code == 0
        file = result.stdout.strip()
        assert file == f"{name.replace('-', '_')}.py"
        text = (tmp_path / file).read_text()
        assert f"estimand run {file}:program" in text
        again = invoke(tmp_path, "example", name)
        assert again.exit_code == 2
        assert "exists already" in again.stderr
        assert (tmp_path / file).read_text() == text
        expectation = cli.bind(f"{tmp_path / file}:program", None)
        assert expectation.output is not None
    assert invoke(tmp_path, "example", "cooking").exit_code == 2


@pytest.mark.slow
def test_the_commands_of_the_help(tmp_path: Path) -> None:
    """As they are written down, each in a process of its own."""
    pytest.importorskip("matplotlib")
    text = CliRunner().invoke(cli.main, ["--help"]).stdout
    lines = [line for line in text.splitlines() if line.startswith("    estimand ")]
    assert len(lines) >= 3
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    for line in lines:
        code = "from estimand.cli import main; main()"
        subprocess.run(
            [sys.executable, "-c", code, *line.split()[1:]],
            cwd=tmp_path,
            check=True,
            env=environment,
            capture_output=True,
        )
    made = {"result.est", "result.html", "tail_probability.py"}
    assert set(os.listdir(tmp_path)) == made
    record = ep.load(tmp_path / "result.est")
    assert record.status is ep.Status.ok
    assert record.value == pytest.approx(1.26965e-5, rel=0.01)  # by quadrature


# --- workers ---

SIMULATOR = """
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import estimand as ep

def simulated(position):
    angle, speed = np.asarray(position)
    for _ in range(600):
        speed = 0.99 * speed - 0.05 * np.sin(angle)
        angle = angle + 0.05 * speed
    return np.asarray(angle, np.asarray(position).dtype)

@ep.expectation
def program():
    x = numpyro.sample("x", dist.Normal(0, 1).expand([2]).to_event(1))
    end = jax.pure_callback(
        simulated, jax.ShapeDtypeStruct((), x.dtype), x, vmap_method="sequential"
    )
    numpyro.sample("y", dist.Normal(end, 1.0), obs=0.5)
    return x[1] ** 2
"""
OF_SIMULATOR = ("run", "simulator.py:program", "--max-evaluations", "63000", "--json")


def started(folder: Path, *arguments: str) -> subprocess.Popen:
    """The command in a process of its own, with a group of processes of its own."""
    (folder / "simulator.py").write_text(SIMULATOR)
    command = [sys.executable, "-c", "from estimand.cli import main; main()", *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, text=True, start_new_session=True, **pipes)


def outputs_of(process: subprocess.Popen) -> tuple[Any, list[str]]:
    out, error = process.communicate(timeout=300)
    assert process.returncode in (0, 1), error
    record = json.loads(out)
    return record["outputs"], record["notes"]


def test_two_places_to_run_are_refused(folder: Path) -> None:
    result = invoke(folder, "run", "model.py:bound", "--workers", "2", "--dask", "tcp://nowhere:1")
    assert result.exit_code == 2
    assert "give one" in result.stderr


@pytest.mark.slow
def test_workers_give_the_bits_of_one_process(folder: Path) -> None:
    outputs, _ = outputs_of(started(folder, *OF_SIMULATOR))
    by_workers, notes = outputs_of(started(folder, *OF_SIMULATOR, "--workers", "2"))
    assert by_workers == outputs
    assert any("tasks were run by ProcessPoolExecutor" in note for note in notes)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_gives_the_bits_of_one_process(folder: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    outputs, _ = outputs_of(started(folder, *OF_SIMULATOR))
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        by_workers, notes = outputs_of(started(folder, *OF_SIMULATOR, "--dask", address))
    assert by_workers == outputs
    assert any("tasks were run by ClientExecutor" in note for note in notes)


@pytest.mark.slow
def test_ctrl_c_reaches_all_processes_and_gives_what_is_known(folder: Path) -> None:
    """As in a terminal, where the workers get it, too."""
    endless = ("--relative-error", "1e-6", "--max-evaluations", "2000000")
    process = started(folder, *OF_SIMULATOR, *endless, "--workers", "2")
    time.sleep(30)
    os.killpg(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 1, error
    record = json.loads(out)
    assert record["outputs"][0]["status"] == "interrupted"
    assert record["outputs"][0]["value"] > 0
    assert "Traceback" not in error


SIMULATOR = """
import jax.numpy as jnp
import numpyro.distributions as dist
import estimand as ep

def margin(points):
    return 3.0 - points["x"]

program = ep.from_simulator(
    margin,
    prior={"x": dist.Normal(0.0, 1.0)},
    likelihood=lambda sites, g, y: dist.Normal(g, 10.0).log_prob(y),
    f=lambda sites, g: g < 0,
)
"""


def test_simulators_are_asked_a_thousand_times_at_the_most(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SIMULATOR)
    (tmp_path / "data.json").write_text('{"y": 3.0}')
    result = invoke(tmp_path, "run", "model.py:program", "--data", "data.json", "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["method"] == "Economical()"
    # The posterior is N(0, 1/1.01).
    assert abs(content["outputs"][0]["value"] / 1.2851e-03 - 1) < 0.1
    wrong = invoke(tmp_path, "run", "model.py:program")
    assert wrong.exit_code == 2
    assert "(y)" in wrong.stderr


# --- methods, refining, and what a newcomer types ---


def test_a_method_is_named_as_in_python(folder: Path) -> None:
    method = "TABI(AnIS(num_samples=2000, kernel=HMC(step_size=0.2)))"
    result = invoke(
        folder, "run", "model.py:bound", "--method", method, "--json", "--output", "tabi.est"
    )
    assert result.exit_code in (0, 1), result.output
    assert ep.load(folder / "tabi.est").method == method
    chains = invoke(folder, "run", "model.py:bound", "--method", "PosteriorMCMC", "--json")
    assert json.loads(chains.stdout)["method"] == "PosteriorMCMC()"


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("nuts", "'nuts' is no method. Did you mean 'PosteriorMCMC'? Known: Auto, AdaptiveIS,"),
        ("NUTS()", "Did you mean 'PosteriorMCMC'?"),
        ("AnIS()", "'AnIS' is no method. Known: Auto"),
        ("PosteriorMCM()", "Did you mean 'PosteriorMCMC'?"),
        ("TABI(Anis())", "'Anis' is no estimator and no kernel. Did you mean 'AnIS'?"),
        ("Auto(max_evals=9)", "no setting 'max_evals'. Did you mean 'max_evaluations'?"),
        ("__import__('os').system('true')", "is no method"),
        ("TABI(__import__('os').system('true'))", "is no estimator"),
        ("TABI(AnIS(num_samples=-1))", "num_samples"),
        ("TABI(AnIS(samples=1))", "samples"),
        ("TABI", "no estimator"),
        ("Auto(", "is not written as Python"),
    ],
)
def test_what_is_no_method_is_refused_before_any_work(
    folder: Path, method: str, words: str
) -> None:
    result = invoke(folder, "run", "model.py:bound", "--method", method)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


def test_limits_go_to_the_method_that_has_them(folder: Path) -> None:
    result = invoke(
        folder, *("run", "model.py:bound", "--method", "AdaptiveIS", "--relative-error", "0.05")
    )
    assert "AdaptiveIS(relative_error=0.05)" in result.stderr
    result = invoke(
        folder, *("run", "model.py:bound", "--method", "TABI(AnIS())", "--max-seconds", "9")
    )
    assert result.exit_code == 2
    assert "--max-seconds is no setting of TABI" in result.stderr


def test_a_record_is_refined(folder: Path) -> None:
    made = invoke(folder, "run", "model.py:bound", "--output", "weak.est")
    assert made.exit_code == 0, made.output
    before = ep.load(folder / "weak.est")
    goal = 0.6 * before.standard_error / before.value
    result = invoke(
        folder, *("refine", "weak.est", "model.py:bound", "--relative-error", f"{goal:.3g}")
    )
    assert result.exit_code == 0, result.output
    after = ep.load(folder / "weak.est")
    assert len(after.provenance.keys) > 1
    assert after.standard_error < before.standard_error
    other = invoke(folder, "refine", "weak.est", "model.py:nothing", "--relative-error", "0.1")
    assert other.exit_code == 2
    assert "belongs to another program" in other.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("show", "missing.est"),
        ("report", "missing.est"),
        ("merge", "missing.est", "--output", "x.est"),
        ("refine", "missing.est", "model.py:bound", "--relative-error", "0.1"),
        ("run", "missing.py:program"),
        ("run", "model.py:program", "--data", "missing.json"),
    ],
    ids=lambda command: command[0],
)
def test_a_missing_file_is_said_in_one_line(folder: Path, command: tuple[str, ...]) -> None:
    result = invoke(folder, *command)
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("Error: there is no file missing.")


def test_help_is_not_cut_off() -> None:
    for columns in (60, 80, 120):
        result = CliRunner().invoke(cli.main, ["--help"], terminal_width=columns)
        assert "..." not in result.stdout.replace("[ARGS]...", "")
        for command in cli.main.commands.values():
            assert command.help is not None
            first = " ".join(command.help.split("\n\n")[0].split(". ")[0].split())
            assert first.rstrip(".") in " ".join(result.stdout.split())


def test_the_shell_completes_commands_options_and_starters() -> None:
    from click.shell_completion import BashComplete

    complete = BashComplete(cli.main, {}, "estimand", "_ESTIMAND_COMPLETE")
    assert "_ESTIMAND_COMPLETE=bash_complete" in complete.source()

    def completed(*words: str) -> set[str]:
        return {str(item.value) for item in complete.get_completions(list(words[:-1]), words[-1])}

    assert completed("re") == {"refine", "report"}
    assert "--relative-error" in completed("run", "--rel")
    assert completed("example", "tail") == {"tail-probability"}


def test_the_version_needs_no_extra(tmp_path: Path) -> None:
    code = (
        "import sys; "
        "[sys.modules.__setitem__(name, None) for name in ('rich', 'matplotlib', 'pandas')]; "
        "from estimand.cli import main; main(['--version'])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, f"estimand, version {ep.__version__}\n")
