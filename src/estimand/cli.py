"""The command line: ``estimand run``, ``refine``, ``show``, ``report``, and further questions.

Results go to stdout, progress to stderr. Exit codes: 0 for an estimate that can be used, 1 for one
that cannot be trusted, 2 for wrong usage.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import importlib.util
import inspect
import json
import math
import multiprocessing
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from estimand.answers import compare as compare_models
from estimand.answers import decide as make_decision
from estimand.answers import distribution as distribution_of
from estimand.answers import leave_one_out as predict_each_row
from estimand.answers import quantile as quantile_of
from estimand.answers import shortfall as shortfall_of
from estimand.estimate import (
    Estimate,
    EstimationError,
    default_method,
    estimate_expectation,
    load,
)
from estimand.estimators import AnIS
from estimand.many import estimate_many
from estimand.methods import METHODS, TABI, Auto, Method, PosteriorMCMC, method_of
from estimand.model import (
    Bound,
    ConditionalProgram,
    ExpectationProgram,
    ProgramError,
    SimulatorProgram,
)
from estimand.model import bind as bind_program
from estimand.record import MergeError, RecordError
from estimand.runtime import PRECISIONS, CheckpointError, in_precision
from estimand.settings import known_names
from estimand.view import Summary, Table, estimate_text

Program = ExpectationProgram | ConditionalProgram | SimulatorProgram

STARTERS = Path(__file__).parent / "starters"
NOT_TRUSTED = 1


class InputError(click.ClickException):
    """What is wrong with a program, its data or a record; how the command was written is right."""

    exit_code = 2


class NoFileError(InputError):
    """A file that is not there, said in one line."""

    def __init__(self, path: Path | str):
        super().__init__(f"there is no file {path}.")


def _say(text: str) -> None:
    click.echo(text, err=True)


# --- input ---


def load_program(spec: str) -> Program | Bound:
    """The program that ``file.py:name`` names; only that file is imported."""
    found = _Named.of(spec)
    program, file, name = getattr(found.module, found.name, None), found.file, found.name
    known = [key for key, value in vars(found.module).items() if isinstance(value, Program | Bound)]
    if isinstance(program, Program | Bound):
        return program
    if inspect.isfunction(program):
        raise InputError(
            f"{name!r} in {file} is a plain function: write @ep.expectation in a line of its own "
            f"above `def {name}`, line {program.__code__.co_firstlineno}, and let it return the "
            "quantity of interest."
        )
    if program is None:
        raise InputError(f"{file} has no {name!r}. {known_names(name, known)}")
    raise InputError(f"{name!r} in {file} is no expectation program. {known_names(name, known)}")


class _Named(NamedTuple):
    """A file that was imported, and the name of something in it."""

    module: types.ModuleType
    file: str
    name: str

    @classmethod
    def of(cls, spec: str) -> _Named:
        """What ``file.py:name`` says."""
        file, _, name = spec.rpartition(":")
        if not file or not name:
            raise click.UsageError(
                f"{spec!r} does not name a program: write the file and the function, as in "
                "model.py:program."
            )
        path = Path(file)
        if not path.is_file():
            raise NoFileError(file)
        module_spec = importlib.util.spec_from_file_location(path.stem, path)
        if module_spec is None or module_spec.loader is None:
            raise InputError(f"{file} is not a Python file.")
        module = importlib.util.module_from_spec(module_spec)
        # The file's own imports work as in `python file.py`, but hide no installed library.
        sys.path.append(str(path.parent.resolve()))
        try:
            module_spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise InputError(f"{file} cannot be imported: {_why(error)}") from error
        return cls(module, file, name)


def _why(error: BaseException) -> str:
    """Why a file cannot be imported; NumPyro has no words for a model that is called there."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame.name for frame in frames if "numpyro" not in frame.filename]
    is_numpyro = isinstance(error, AssertionError) and len(own) < len(frames)
    if not is_numpyro or own[-1] == "<module>":
        return traceback.format_exception_only(error)[-1].strip()
    return (
        f"it calls {own[-1]!r}, a plain function with sites. Write @ep.expectation in a line of "
        f"its own above `def {own[-1]}`."
    )


def load_studies(spec: str, names: tuple[str, ...]) -> dict[str, Callable]:
    """Functions in the file of a program, by name."""
    found = _Named.of(spec)
    studies = {}
    for name in names:
        study = getattr(found.module, name, None)
        if not callable(study):
            raise click.UsageError(f"--study {name}: {found.file} has no function of that name.")
        studies[name] = study
    return studies


def read_data(path: Path) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments from a JSON, CSV, NPZ or NPY file."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise click.UsageError(
            f"data {path}: the ending must be one of {', '.join(_READERS)}; it is {path.suffix!r}."
        )
    if not path.is_file():
        raise NoFileError(path)
    try:
        value = reader(path)
    except (ValueError, OSError) as error:
        raise InputError(f"data {path}: {error}") from error
    return ([], value) if isinstance(value, dict) else ([value], {})


def _read_json(path: Path) -> Any:
    def array(value: Any) -> Any:
        if isinstance(value, list):
            numbers = np.asarray(value)
            if numbers.dtype.kind not in "biuf":
                raise ValueError("a list has entries that are not numbers, or ragged rows")
            return numbers
        if isinstance(value, dict):
            return {key: array(item) for key, item in value.items()}
        return value

    value = json.loads(path.read_text())
    if not isinstance(value, dict | list):
        raise ValueError("expected an object of arguments by name, or one list")
    return array(value)


class _Text(NamedTuple):
    """A column that is not of numbers, and why: an error only if the program asks for it."""

    why: str


def _read_csv(path: Path) -> dict[str, np.ndarray | _Text]:
    header, rows = _read_cells(path)
    columns: dict[str, np.ndarray | _Text] = {}
    for place, name in enumerate(header):
        columns[name], bad = _numbers([row[place] for row in rows])
        if bad:
            why = _not_a_number(name, bad[0], rows[bad[0]][place])
            columns[name] = _Text(f"data {path}: {why}")
    return columns


def _read_cells(path: Path) -> tuple[list[str], list[list[str]]]:
    """The names of columns, and the rows as text."""
    with path.open(newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    if len(rows) < 2:
        raise ValueError("expected a row of column names and then rows of numbers")
    header = [name.strip() for name in rows[0]]
    for line, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise ValueError(f"row {line} has {len(row)} cells; the header has {len(header)}")
    return header, rows[1:]


def _numbers(cells: list[str]) -> tuple[np.ndarray, list[int]]:
    """A column of text as numbers, and the places of cells that are none."""
    numbers, bad = np.full(len(cells), math.nan), []
    for place, cell in enumerate(cells):
        try:
            numbers[place] = float(cell)
        except ValueError:
            bad.append(place)
    is_whole = np.isfinite(numbers).all() and (numbers == np.round(numbers)).all()
    return (numbers.astype(int) if is_whole and "." not in cells[0] else numbers), bad


def _not_a_number(column: str, place: int, cell: str) -> str:
    return f"row {place + 2}, column {column!r}: {cell!r} is not a number"


def _read_numpy(path: Path) -> Any:
    if path.suffix.lower() == ".npy":
        return np.load(path, allow_pickle=False)
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


_READERS: dict[str, Callable[[Path], Any]] = {
    ".json": _read_json,
    ".csv": _read_csv,
    ".npz": _read_numpy,
    ".npy": _read_numpy,
}


def bind(spec: str, data: Path | None, *, needs_output: bool = True) -> Bound:
    """The program bound to its data, with everything checked that can be."""
    program = load_program(spec)
    if isinstance(program, Bound):
        if data is not None:
            raise click.UsageError(f"{spec} has its data already; leave out --data.")
        return program
    positional, named = ([], {}) if data is None else read_data(data)
    signature = program.signature
    if data is not None and data.suffix.lower() == ".csv":
        named = _wanted_columns(signature, named)
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        given = ", ".join(named) or ("one array" if positional else "nothing")
        raise InputError(
            f"{spec} takes the arguments {signature}, and --data gives {given}: {error}."
        ) from error
    if needs_output or type(program) is not ExpectationProgram:
        return program(*positional, **named)
    return bind_program(program, tuple(positional), named, needs_output=False)


def _wanted_columns(
    signature: inspect.Signature, columns: dict[str, Any], *, is_quiet: bool = False
) -> dict[str, Any]:
    """The columns that the program has arguments for; a table may have more."""
    parameters = signature.parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    unused = [] if takes_all else [name for name in columns if name not in parameters]
    if unused and len(unused) < len(columns):
        if not is_quiet:
            _say(f"columns without an argument of that name are left out: {', '.join(unused)}")
        columns = {name: column for name, column in columns.items() if name in parameters}
    for column in columns.values():
        if isinstance(column, _Text):
            raise InputError(column.why)
    return columns


class _DataSets(NamedTuple):
    """Data sets by name, and what was wrong with those that could not be read."""

    sets: dict[str, Any]
    errors: dict[str | int, str]


def read_folder(folder: Path, signature: inspect.Signature) -> _DataSets:
    """A data set from each file, by the file's name without its ending."""
    found = _DataSets({}, {})
    files = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in _READERS]
    for path in files:
        if path.stem in found.sets or path.stem in found.errors:
            raise click.UsageError(f"data {folder}: two files have the name {path.stem!r}.")
        try:
            positional, named = read_data(path)
        except click.ClickException as error:
            found.errors[path.stem] = error.message
            continue
        if path.suffix.lower() == ".csv":
            named = _wanted_columns(signature, named, is_quiet=True)
        found.sets[path.stem] = tuple(positional) or named
    if not files:
        raise click.UsageError(f"data {folder}: no file ends in {', '.join(_READERS)}.")
    return found


def read_groups(path: Path, group_by: str, signature: inspect.Signature) -> _DataSets:
    """A data set from the rows of a CSV table that have the same entry in a column."""
    try:
        header, rows = _read_cells(path)
    except (ValueError, OSError) as error:
        raise InputError(f"data {path}: {error}") from error
    if group_by not in header:
        raise click.UsageError(f"--group-by {group_by}: {path} has the columns {header}.")
    names = [row[header.index(group_by)].strip() for row in rows]
    others = {name: place for place, name in enumerate(header) if name != group_by}
    columns: dict[str, np.ndarray] = {}
    errors: dict[str | int, str] = {}
    for column, place in _wanted_columns(signature, others).items():
        columns[column], bad = _numbers([row[place] for row in rows])
        for row in reversed(bad):
            errors[names[row]] = _not_a_number(column, row, rows[row][place])
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows_of.setdefault(name, []).append(row)
    sets = {
        name: {column: numbers[own] for column, numbers in columns.items()}
        for name, own in rows_of.items()
        if name not in errors
    }
    return _DataSets(sets, errors)


def _check_output(path: Path | None, option: str) -> None:
    if path is not None and not path.parent.is_dir():
        raise click.UsageError(f"{option} {path}: there is no folder {path.parent}.")
    if path is not None and path.is_dir():
        raise click.UsageError(f"{option} {path} is a folder.")


def _check_plots(wanted: bool) -> None:
    if wanted and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("a report needs matplotlib: pip install 'estimand[plots]'")


def _load(path: Path) -> Estimate:
    if not path.exists():
        raise NoFileError(path)
    try:
        return load(path)
    except (RecordError, OSError) as error:
        raise InputError(str(error)) from error


# --- output ---


def _show(result: Estimate, as_json: bool) -> None:
    click.echo(result.to_json() if as_json else str(result.summary()))


def _exit_code(result: Estimate) -> int:
    return 0 if result.status else NOT_TRUSTED


def _estimate(
    expectation: Bound,
    method: Method,
    seed: int,
    precision: str,
    checkpoint: Path | None = None,
    executor: Executor | None = None,
) -> Estimate:
    try:
        return estimate_expectation(
            expectation,
            method,
            rng_key=seed,
            throw=False,
            precision=precision,
            checkpoint=checkpoint,
            executor=executor,
        )
    except (ProgramError, CheckpointError, RecordError, ImportError) as error:
        raise InputError(str(error)) from error
    except Exception as error:
        # A crash must not look like an estimate that was made and is not trusted.
        traceback.print_exc()
        raise InputError(f"the estimation failed: {error}") from error


@contextlib.contextmanager
def _executor(num_workers: int | None, address: str | None) -> Iterator[Executor | None]:
    """Processes of this machine, workers of a Dask cluster, or nothing."""
    if num_workers is not None and address is not None:
        raise click.UsageError(
            "--workers starts processes here, and --dask uses a cluster's: give one."
        )
    if num_workers is not None:
        pool = ProcessPoolExecutor(
            num_workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=signal.signal,
            # Ctrl-C is this process's to obey.
            initargs=(signal.SIGINT, signal.SIG_IGN),
        )
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)
        return
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise click.UsageError("--dask needs Dask: pip install 'estimand[dask]'") from error
    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--dask {address}: there is no scheduler there: {error}") from error
    with client:
        yield client.get_executor()


class _Commands(click.Group):
    """Commands in the order in which one meets them."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Their first sentences, wrapped where click would cut them off."""
        rows = [
            (name, self.commands[name].get_short_help_str(limit=1000))
            for name in self.list_commands(context)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def list_commands(self, _context: click.Context) -> list[str]:
        first = ["example", "run", "refine", "show", "report", "merge"]
        return [
            *first,
            "quantile",
            "shortfall",
            "distribution",
            "decide",
            "leave-one-out",
            "compare",
            "compare-methods",
        ]


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="estimand", prog_name="estimand")
def main() -> None:
    """Estimate the expectation of what a NumPyro program returns.

    \b
    Three commands to a first result:
      estimand example tail-probability
      estimand run tail_probability.py:program --output result.est
      estimand report result.est

    A program is a NumPyro model with @ep.expectation above it, whose return value is the quantity
    of interest. The first command writes one to start from.

    Results go to stdout and progress to stderr. Exit codes: 0, the estimate can be used; 1, it
    cannot be trusted, and the output says why; 2, wrong usage.
    """


_program = click.argument("program", metavar="FILE.py:PROGRAM")
_data = click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Arguments of the program by name: a JSON object, CSV columns, or the arrays of an NPZ. "
    "A folder for `run` has a file for each of many data sets.",
)
_seed = click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="The random key."
)
_relative_error = click.option(
    "--relative-error",
    type=click.FloatRange(0, min_open=True),
    help="Standard error to reach, relative to the value; 0.01 by default, 0.05 for simulators.",
)
_absolute_error = click.option(
    "--absolute-error",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="A standard error that is small enough, whatever the value is.",
)
_max_evaluations = click.option(
    "--max-evaluations",
    type=click.IntRange(1),
    help="Densities that may be evaluated, a gradient counting as 3; 8,000,000 by default, and "
    "1,000 calls of a simulator.",
)
_max_seconds = click.option(
    "--max-seconds",
    type=click.FloatRange(0, min_open=True),
    default=math.inf,
    show_default=True,
    help="Time limit; when it is reached, what is known by then is returned.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
_precision = click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="double",
    show_default=True,
    help="What to compute in: 64 or 32 bits.",
)


def _of_a_program(command: Callable) -> Callable:
    """The options of a command that estimates: which program, how precisely, how long."""
    errors = (_relative_error, _absolute_error)
    options = (_program, _data, *errors, _max_evaluations, _max_seconds, _seed, _precision)
    for option in reversed(options):
        command = option(command)
    return command


_method = click.option(
    "--method",
    "method_text",
    metavar="METHOD",
    help=f"How to estimate: {', '.join(METHODS)}; with settings as in Python: "
    "'TABI(AnIS(num_samples=1000))'. By default Auto, and Economical for simulators.",
)


def _read_method(text: str) -> Method:
    try:
        return method_of(text)
    except ValueError as error:
        raise click.UsageError(f"--method: {str(error).rstrip('.')}.") from error


class _Limits(NamedTuple):
    """How precise an estimate shall be, and what it may cost; None where nothing was said."""

    relative_error: float | None
    absolute_error: float
    max_evaluations: int | None
    max_seconds: float

    @property
    def given(self) -> dict[str, Any]:
        """What was said."""
        unsaid = {"absolute_error": 0.0, "max_seconds": math.inf}
        return {
            name: value
            for name, value in self._asdict().items()
            if value is not None and value != unsaid.get(name)
        }

    def of(self, kind: Callable[..., Any]) -> Any:
        """A method of this kind, with its own defaults."""
        return kind(**self.given)

    def on(self, method: Any) -> Any:
        """A method with these limits, which it must have settings for."""
        known = {field.name for field in dataclasses.fields(method)}
        for name in self.given:
            if name not in known:
                option = name.replace("_", "-")
                raise click.UsageError(
                    f"--{option} is no setting of {type(method).__name__}: write its own settings "
                    "with --method."
                )
        return dataclasses.replace(method, **self.given)


_report = click.option(
    "--report", type=click.Path(path_type=Path), help="Write an HTML report here."
)
_record = click.argument("record", type=click.Path(path_type=Path, dir_okay=False))


@main.command()
@_of_a_program
@_method
@click.option(
    "--group-by",
    metavar="COLUMN",
    help="Take the rows of a CSV table that have the same entry in this column for a data set.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Save the record to this file; those of many data sets to this folder.",
)
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="Save the work here as it is done: after a crash the same command resumes from it.",
)
@_report
@click.option(
    "--sensitivity",
    is_flag=True,
    help="Also say how the estimate depends on arguments, constants of the program and rows of "
    "data.",
)
@click.option(
    "--reliability",
    is_flag=True,
    help="Also search the design points of events, and say how important every site is there.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Processes that expensive tasks are run in; the result is the same.",
)
@click.option(
    "--dask",
    metavar="ADDRESS",
    help="The scheduler of a Dask cluster that expensive tasks are run by, as tcp://host:8786.",
)
@_json
def run(
    program: str,
    data: Path | None,
    relative_error: float | None,
    absolute_error: float,
    max_evaluations: int | None,
    max_seconds: float,
    seed: int,
    precision: str,
    method_text: str | None,
    group_by: str | None,
    output: Path | None,
    checkpoint: Path | None,
    report: Path | None,
    sensitivity: bool,
    reliability: bool,
    workers: int | None,
    dask: str | None,
    as_json: bool,
) -> None:
    """Estimate a program's expectation, for one data set or for each of many.

    \b
    Examples:
      estimand run model.py:program
      estimand run model.py:program --data data.csv --relative-error 0.001
      estimand run model.py:program --seed 1 --output 1.est --report 1.html
      estimand run model.py:program --checkpoint run.est
      estimand run model.py:program --method 'TABI(AnIS(num_samples=1000))'
      estimand run model.py:program --workers 8
      estimand run model.py:program --json | jq .outputs[0].value
      estimand run model.py:program --data folder --output estimates
      estimand run model.py:program --data table.csv --group-by clinic
    """
    limits = _Limits(relative_error, absolute_error, max_evaluations, max_seconds)
    if group_by is not None or (data is not None and data.is_dir()):
        if checkpoint is not None or report is not None or sensitivity or reliability:
            raise click.UsageError(
                "--checkpoint, --report, --sensitivity and --reliability are for one data set: "
                "leave them out."
            )
        if method_text is not None and not isinstance(_read_method(method_text), Auto):
            raise click.UsageError("--method for many data sets must be Auto.")
        many = _read_many(program, data, group_by)
        with _executor(workers, dask) as executor:
            method = limits.on(Auto() if method_text is None else _read_method(method_text))
            _run_many(many, method, seed, precision, output, executor, as_json)
        return
    _check_output(output, "--output")
    _check_output(checkpoint, "--checkpoint")
    _check_output(report, "--report")
    _check_plots(report is not None)
    chosen = None if method_text is None else _read_method(method_text)
    expectation = _bound(program, data, precision)
    events = expectation.output.is_indicator if expectation.output is not None else ()
    if reliability and not any(events):
        raise click.UsageError("--reliability: no output is an event, as margin < 0 is.")
    method = limits.of(default_method(expectation)) if chosen is None else limits.on(chosen)
    _say(repr(expectation))
    started = time.perf_counter()
    _say(f"estimating with {method!r}, seed {seed} …")
    with _executor(workers, dask) as executor:
        result = _estimate(expectation, method, seed, precision, checkpoint, executor)
    _say(f"done in {time.perf_counter() - started:.1f} s")
    if output is not None:
        result.save(output)
        _say(f"record saved: {output}")
    if sensitivity:
        _add_sensitivity(result)
    if reliability:
        _add_reliability(result)
    if report is not None:
        result.to_html(report)
        _say(f"report written: {report}")
    _show(result, as_json)
    sys.exit(_exit_code(result))


def _add_sensitivity(result: Estimate) -> None:
    """Works out the sensitivity of every output, so that it is shown with the estimate."""
    for number in range(len(result.outputs)):
        try:
            found = result.sensitivity(number, throw=False)
        except (ProgramError, ValueError) as error:
            raise InputError(f"--sensitivity: {error}") from error
        _say(found.verdict)


def _add_reliability(result: Estimate) -> None:
    """Works out the reliability view of every event, so that it is shown with the estimate."""
    for number, is_event in enumerate(result.are_indicators):
        if is_event:
            result.reliability(number)


@main.command()
@_of_a_program
@click.option(
    "--actions",
    required=True,
    metavar="A,B,…",
    help="Actions, with commas between them: numbers, or text. The program's first argument takes "
    "them.",
)
@click.option("--argument", help="The argument that takes the action, if it is not the first one.")
@click.option(
    "--study",
    "study_names",
    metavar="FUNCTION",
    multiple=True,
    help="Also say what the data of a study would be worth: a function in the program's file that "
    "draws them given the sites; repeat it.",
)
@_report
@_json
def decide(
    program: str,
    data: Path | None,
    relative_error: float | None,
    absolute_error: float,
    max_evaluations: int | None,
    max_seconds: float,
    seed: int,
    precision: str,
    actions: str,
    argument: str | None,
    study_names: tuple[str, ...],
    report: Path | None,
    as_json: bool,
) -> None:
    """Choose the action of the largest expected utility, which the program returns.

    \b
    Example:
      estimand decide insurance.py:utility --actions 0,1000,5000 --data data.csv
    """
    _check_output(report, "--report")
    _check_plots(report is not None)
    loaded = load_program(program)
    if not isinstance(loaded, ExpectationProgram):
        raise click.UsageError(
            f"{program} takes no action: give a program with an argument for it."
        )
    positional, named = ([], {}) if data is None else read_data(data)
    if data is not None and data.suffix.lower() == ".csv":
        named = _wanted_columns(loaded.signature, named)
    limits = _Limits(relative_error, absolute_error, max_evaluations, max_seconds)
    settings = [_setting(text.strip()) for text in actions.split(",")]
    method = limits.of(Auto)
    started = time.perf_counter()
    _say(repr(loaded))
    _say(f"deciding among {len(settings)} actions with {method!r}, seed {seed} …")
    try:
        choose = make_decision(
            loaded,
            settings,
            argument=argument,
            study=load_studies(program, study_names) or None,
            method=method,
            rng_key=seed,
            throw=False,
            precision=precision,
        )
        decision = choose(*positional, **named)
    except (ProgramError, TypeError, ValueError) as error:
        raise InputError(str(error)) from error
    _say(f"done in {time.perf_counter() - started:.1f} s")
    if report is not None:
        decision.to_html(report)
        _say(f"report written: {report}")
    if as_json:
        rows = _plain(decision.rows)
        studies = _plain([study.row for study in decision.studies.values()])
        content = {"actions": rows, "studies": studies} if studies else rows
        click.echo(json.dumps(content, indent=2, allow_nan=False))
    else:
        click.echo(str(decision.summary()))
    sys.exit(0 if decision.status else NOT_TRUSTED)


def _setting(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


class _Many(NamedTuple):
    """A program and the data sets that it is to be called with."""

    program: ExpectationProgram
    data: _DataSets


def _read_many(spec: str, data: Path | None, group_by: str | None) -> _Many:
    program = load_program(spec)
    if isinstance(program, Bound):
        raise click.UsageError(f"{spec} has its data already; leave out --data.")
    if not isinstance(program, ExpectationProgram):
        kind = "a simulator" if isinstance(program, SimulatorProgram) else "conditional"
        raise click.UsageError(f"{spec} is {kind}: estimate one data set at a time.")
    if data is None:
        raise click.UsageError("--group-by needs a table: give it with --data.")
    signature = program.signature
    if group_by is None:
        return _Many(program, read_folder(data, signature))
    if not data.is_file() or data.suffix.lower() != ".csv":
        raise click.UsageError(f"--group-by needs a CSV table; --data is {data}.")
    return _Many(program, read_groups(data, group_by, signature))


def _run_many(
    many: _Many,
    method: Auto,
    seed: int,
    precision: str,
    output: Path | None,
    executor: Executor | None,
    as_json: bool,
) -> None:
    """Prints, and saves where that is wanted, the estimates of many data sets."""
    if output is not None and output.exists() and not output.is_dir():
        raise click.UsageError(f"--output {output} is a file; many data sets need a folder.")
    program, (sets, unread) = many
    total = len(sets) + len(unread)
    _say(f"{program!r}: {total:,} data sets with {method!r}, seed {seed} …")
    estimates = estimate_many(
        program, sets, method, rng_key=seed, precision=precision, executor=executor
    )
    estimates = dataclasses.replace(estimates, errors=unread | estimates.errors)
    if output is not None:
        estimates.save(output)
        _say(f"records saved: {output}")
    if as_json:
        click.echo(json.dumps(_plain(estimates.rows), indent=2, allow_nan=False))
    else:
        click.echo(str(estimates.summary()))
    sys.exit(NOT_TRUSTED if estimates.failed or estimates.unfinished else 0)


def _plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as JSON takes them: numbers that are not finite as text."""

    def plain(value: Any) -> Any:
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return [{key: plain(value) for key, value in row.items()} for row in rows]


def _bound(program: str, data: Path | None, precision: str, *, needs_output: bool = True) -> Bound:
    try:
        with in_precision(precision):
            return bind(program, data, needs_output=needs_output)
    except click.ClickException:
        raise
    except ProgramError as error:
        raise InputError(str(error)) from error
    except Exception as error:
        last = traceback.format_exception_only(error)[0].strip()
        raise InputError(f"{program} fails with its data: {last}") from error


@main.command()
@_record
@_program
@_data
@click.option(
    "--relative-error",
    type=click.FloatRange(0, min_open=True),
    required=True,
    help="Standard error to reach, relative to the value.",
)
@click.option(
    "--max-evaluations",
    type=click.IntRange(1),
    help="Densities that may be evaluated further, a gradient counting as 3.",
)
@_method
@click.option(
    "--output", type=click.Path(path_type=Path), help="The refined record; by default RECORD."
)
@_json
def refine(
    record: Path,
    program: str,
    data: Path | None,
    relative_error: float,
    max_evaluations: int | None,
    method_text: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Go on with a saved record until its error is small enough; nothing is thrown away.

    \b
    Example:
      estimand refine result.est model.py:program --relative-error 0.001
    """
    path = record if output is None else output
    _check_output(path, "--output")
    known = _load(record)
    method = _read_method(known.method if method_text is None else method_text)
    expectation = _bound(program, data, known.precision)
    try:
        result = known.refine(
            relative_error=relative_error,
            max_evaluations=math.inf if max_evaluations is None else max_evaluations,
            expectation=expectation,
            method=method,
        )
    except EstimationError as error:
        result = error.estimate
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    result.save(path)
    _say(f"record saved: {path}")
    _show(result, as_json)
    sys.exit(_exit_code(result))


@main.command()
@_record
@_json
def show(record: Path, as_json: bool) -> None:
    """Show a saved record; the program is not needed."""
    result = _load(record)
    _show(result, as_json)
    sys.exit(_exit_code(result))


@main.command()
@_record
@click.option(
    "--output", type=click.Path(path_type=Path), help="The page; by default RECORD with .html."
)
def report(record: Path, output: Path | None) -> None:
    """Write an HTML report of a saved record: one page, nothing outside it."""
    path = record.with_suffix(".html") if output is None else output
    _check_output(path, "--output")
    _check_plots(True)
    result = _load(record)
    result.to_html(path)
    _say(f"report written: {path}")
    sys.exit(_exit_code(result))


@main.command()
@click.argument("records", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--output", required=True, type=click.Path(path_type=Path), help="The merged record.")
@_json
def merge(records: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Merge records of the same program, data and method from different seeds.

    \b
    On several machines at once:
      estimand run model.py:program --seed 1 --output 1.est
      estimand run model.py:program --seed 2 --output 2.est
      estimand merge 1.est 2.est --output both.est
    """
    _check_output(output, "--output")
    results = [_load(path) for path in records]
    try:
        result = results[0].merge(*results[1:])
    except MergeError as error:
        raise click.UsageError(str(error)) from error
    result.save(output)
    _say(f"merged record saved: {output}")
    _show(result, as_json)
    sys.exit(_exit_code(result))


@main.command("compare-methods")
@_of_a_program
@_json
def compare_methods(
    program: str,
    data: Path | None,
    relative_error: float | None,
    absolute_error: float,
    max_evaluations: int | None,
    max_seconds: float,
    seed: int,
    precision: str,
    as_json: bool,
) -> None:
    """Estimate by the default method, the paper's, and averaged NUTS draws, side by side.

    The exit code is that of the default method.
    """
    expectation = _bound(program, data, precision)
    limits = _Limits(relative_error, absolute_error, max_evaluations, max_seconds)
    methods: dict[str, Method] = {
        "default": limits.of(default_method(expectation)),
        "paper: TABI + AnIS": TABI(AnIS(num_samples=1000, num_temperatures=100)),
        "NUTS, averaged": PosteriorMCMC(),
    }
    rows: list[tuple[str, ...]] = []
    results: dict[str, Estimate] = {}
    for name, method in methods.items():
        _say(f"{name} …")
        try:
            result = _estimate(expectation, method, seed, precision)
        except InputError as error:
            if name == "default":
                raise
            _say(f"{name}: {error.message}")
            continue
        results[name] = result
        rows.extend(_comparison_rows(name, result))
    if as_json:
        content = {name: result.to_dict() for name, result in results.items()}
        click.echo(json.dumps(content, indent=2, allow_nan=False))
    else:
        header = ("method", "output", "estimate", "95 % interval", "status", "cost", "seconds")
        click.echo(str(Summary([Table(f"E[{expectation.name}]", header, tuple(rows))], [])))
    sys.exit(_exit_code(results["default"]))


def _comparison_rows(name: str, result: Estimate) -> list[tuple[str, ...]]:
    seconds = f"{result.compile_seconds + result.run_seconds:.1f}"
    rows = zip(result.names, result.outputs, result.bounds(), strict=True)
    return [
        (
            name if number == 0 else "",
            label,
            estimate_text(output),
            f"[{low:.4g}, {high:.4g}]",
            output.status.name,
            f"{result.cost:,}" if number == 0 else "",
            seconds if number == 0 else "",
        )
        for number, (label, output, (low, high)) in enumerate(rows)
    ]


# --- further questions ---


def _answer(ask: Callable[[], Any], report: Path | None, as_json: bool) -> None:
    """Prints an answer, writes its report if that is wanted, and ends with its exit code."""
    _check_output(report, "--report")
    _check_plots(report is not None)
    try:
        answer = ask()
    except (ProgramError, TypeError, ValueError, ImportError) as error:
        raise InputError(str(error)) from error
    except Exception as error:
        traceback.print_exc()
        raise InputError(f"the estimation failed: {error}") from error
    if report is not None:
        answer.to_html(report)
        _say(f"report written: {report}")
    text = json.dumps(answer.to_dict(), indent=2, allow_nan=False) if as_json else str(answer)
    click.echo(text)
    sys.exit(0 if answer.status else NOT_TRUSTED)


class _Asked(NamedTuple):
    """A program with its data, and what an answer is asked for with."""

    expectation: Bound
    settings: dict[str, Any]

    @classmethod
    def of(
        cls,
        program: str,
        data: Path | None,
        limits: _Limits,
        seed: int,
        precision: str,
        output: str | None = None,
    ) -> _Asked:
        expectation: Any = _bound(program, data, precision)
        if output is not None:
            try:
                expectation = expectation[output]
            except (KeyError, TypeError) as error:
                raise click.UsageError(f"--output-name {output}: {error}") from error
        method = limits.of(Auto)
        _say(repr(expectation))
        settings = {"method": method, "rng_key": seed, "precision": precision, "throw": False}
        return cls(expectation, settings)


_output_name = click.option(
    "--output-name",
    metavar="NAME",
    help="Which output of a program with several: its name in the dict that is returned.",
)


@main.command()
@_of_a_program
@_output_name
@click.option(
    "--level", "levels", type=float, multiple=True, help="Such as 0.5 or 0.999999; repeat it."
)
@click.option(
    "--tail-probability",
    "tails",
    type=float,
    multiple=True,
    help="Probability of the upper tail instead of a level, such as 1e-6; repeat it.",
)
@_report
@_json
def quantile(
    program: str,
    data: Path | None,
    relative_error: float | None,
    absolute_error: float,
    max_evaluations: int | None,
    max_seconds: float,
    seed: int,
    precision: str,
    output_name: str | None,
    levels: tuple[float, ...],
    tails: tuple[float, ...],
    report: Path | None,
    as_json: bool,
) -> None:
    """Quantiles of what a program returns, however far out.

    \b
    Example:
      estimand quantile model.py:program --level 0.5 --level 0.999999
    """
    limits = _Limits(relative_error, absolute_error, max_evaluations, max_seconds)
    asked = _Asked.of(program, data, limits, seed, precision, output_name)
    levels_or_none, tails_or_none = list(levels) or None, list(tails) or None

    def ask() -> Any:
        return quantile_of(
            asked.expectation, levels_or_none, tail_probability=tails_or_none, **asked.settings
        )

    _answer(ask, report, as_json)


@main.command()
@_of_a_program
@_output_name
@click.option("--tail-probability", type=float, required=True, help="The share of cases.")
@click.option("--lower", is_flag=True, help="The smallest values instead of the largest ones.")
@_report
@_json
def shortfall(
    program: str,
    data: Path | None,
    relative_error: float | None,
    absolute_error: float,
    max_evaluations: int | None,
    max_seconds: float,
    seed: int,
    precision: str,
    output_name: str | None,
    tail_probability: float,
    lower: bool,
    report: Path | None,
    as_json: bool,
) -> None:
    """The mean of what a program returns in the worst share of all cases.

    \b
    Example:
      estimand shortfall model.py:program --tail-probability 0.001
    """
    limits = _Limits(relative_error, absolute_error, max_evaluations, max_seconds)
    asked = _Asked.of(program, data, limits, seed, precision, output_name)

    def ask() -> Any:
        return shortfall_of(asked.expectation, tail_probability, lower=lower, **asked.settings)

    _answer(ask, report, as_json)


@main.command()
@_of_a_program
@_output_name
@click.option("--at", "grid", type=float, multiple=True, required=True, help="A point; repeat it.")
@_report
@_json
def distribution(
    program: str,
    data: Path | None,
    relative_error: float | None,
    absolute_error: float,
    max_evaluations: int | None,
    max_seconds: float,
    seed: int,
    precision: str,
    output_name: str | None,
    grid: tuple[float, ...],
    report: Path | None,
    as_json: bool,
) -> None:
    """The probabilities that what a program returns is above some numbers, or at most them.

    \b
    Example:
      estimand distribution model.py:program --at -2 --at 0 --at 6
    """
    limits = _Limits(relative_error, absolute_error, max_evaluations, max_seconds)
    asked = _Asked.of(program, data, limits, seed, precision, output_name)

    def ask() -> Any:
        return distribution_of(asked.expectation, sorted(grid), **asked.settings)

    _answer(ask, report, as_json)


@main.command("leave-one-out")
@_of_a_program
@click.option(
    "--site", help="The observed site whose rows are left out, if the program has several."
)
@_report
@_json
def leave_one_out(
    program: str,
    data: Path | None,
    relative_error: float | None,
    absolute_error: float,
    max_evaluations: int | None,
    max_seconds: float,
    seed: int,
    precision: str,
    site: str | None,
    report: Path | None,
    as_json: bool,
) -> None:
    """How well each row of data is predicted by the others.

    What the program returns does not matter. The limits are those of the posterior, and of each
    exploration of the posterior without some rows.

    \b
    Example:
      estimand leave-one-out model.py:program --data data.csv
    """
    limits = _Limits(relative_error, absolute_error, max_evaluations, max_seconds)
    asked = _Asked.of(program, data, limits, seed, precision)

    def ask() -> Any:
        return predict_each_row(asked.expectation, site=site, **asked.settings)

    _answer(ask, report, as_json)


@main.command()
@click.argument("programs", nargs=-1, required=True, metavar="FILE.py:PROGRAM …")
@_data
@click.option(
    "--prior", multiple=True, type=float, help="Prior probability of each program, in their order."
)
@click.option("--average", is_flag=True, help="Also average the programs' expectations.")
@_relative_error
@_max_evaluations
@_seed
@_precision
@_report
@_json
def compare(
    programs: tuple[str, ...],
    data: Path | None,
    prior: tuple[float, ...],
    average: bool,
    relative_error: float | None,
    max_evaluations: int | None,
    seed: int,
    precision: str,
    report: Path | None,
    as_json: bool,
) -> None:
    """Compare models of the same data by their evidence.

    \b
    Example:
      estimand compare linear.py:program quadratic.py:program --data data.csv --report page.html
    """
    if prior and len(prior) != len(programs):
        raise click.UsageError(
            f"--prior: give one for each of the {len(programs)} programs; there are {len(prior)}."
        )
    if len(set(programs)) < len(programs):
        raise click.UsageError("a program is named twice.")
    models = {name: _bound(name, data, precision, needs_output=average) for name in programs}
    limits = _Limits(relative_error, 0.0, max_evaluations, math.inf)

    def ask() -> Any:
        return compare_models(
            models,
            prior=dict(zip(programs, prior, strict=True)) if prior else None,
            average=average,
            rng_key=seed,
            method=limits.of(Auto),
            precision=precision,
            throw=False,
        )

    _answer(ask, report, as_json)


def starters() -> dict[str, Path]:
    """The starter files by name."""
    return {path.stem.replace("_", "-"): path for path in sorted(STARTERS.glob("*.py"))}


@main.command()
@click.argument("name", type=click.Choice(list(starters())), required=False)
@click.option(
    "--output", type=click.Path(path_type=Path), help="The file; by default NAME.py here."
)
def example(name: str | None, output: Path | None) -> None:
    """Write a commented program to start from; without NAME, list them."""
    if name is None:
        for known, path in starters().items():
            first = path.read_text().split('"""')[1].splitlines()[0]
            click.echo(f"{known:18} {first}")
        return
    source = starters()[name]
    path = Path(source.name) if output is None else output
    _check_output(path, "--output")
    if path.exists():
        raise click.UsageError(f"{path} exists already; name another file with --output.")
    path.write_text(source.read_text())
    click.echo(path)
    _say(f"written. Run it: estimand run {path}:program")
