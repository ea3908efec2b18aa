"""The estimates of many data sets: a mapping by name, a table, and a folder of records."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimand import record as records
from estimand.estimate import Estimate, load
from estimand.many.datasets import Name
from estimand.methods import LANE
from estimand.record import Contents, RecordError
from estimand.settings import checked_names
from estimand.view import Summary, Table, estimate_text

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import Dataset

INDEX, TABLE = "index.json", "table.csv"
FORMAT = 1
# Data sets that are printed, and failed ones that are named.
MAX_PRINTED, MAX_NAMED = 10, 20
ERROR = "error"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Estimates(Mapping[Name, Estimate]):
    """The estimates of many data sets by name, in the order in which the data sets were given.

    `records` has an `Estimate` for every data set that has one. `errors` says of the others what
    went wrong, and `unfinished` names those that Ctrl-C came before.

    Examples:
        >>> estimates = ep.estimate_many(program, {"low": 1.0, "high": 2.0, "wrong": "2"})
        >>> print(estimates)
        E[program] of 3 data sets by Auto(): 2 ok, 1 error
        ...
        >>> estimates["high"].status.name, list(estimates.failed)
        ('ok', ['wrong'])
    """

    program: str
    method: str
    records: dict[Name, Estimate] = dataclasses.field(repr=False)
    errors: dict[Name, str] = dataclasses.field(default_factory=dict)
    unfinished: tuple[Name, ...] = ()
    seconds: float = 0.0

    def __getitem__(self, name: Name) -> Estimate:
        if name in self.records:
            return self.records[name]
        if name in self.errors:
            raise KeyError(f"data set {name!r} has no estimate: {self.errors[name]}")
        if name in self.unfinished:
            raise KeyError(f"data set {name!r} was not reached before Ctrl-C.")
        raise KeyError(f"there is no data set {name!r}.")

    def __iter__(self) -> Iterator[Name]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def failed(self) -> dict[Name, str]:
        """Why data sets have no estimate, or one that is not `ok`, by name."""
        refused = {
            name: f"{estimate.status.name}: {_finding(estimate)}"
            for name, estimate in self.records.items()
            if not estimate.status
        }
        return refused | self.errors

    @property
    def on_their_own(self) -> tuple[Name, ...]:
        """The data sets that were run on their own; the notes of their estimates say why."""
        return tuple(
            name
            for name, estimate in self.records.items()
            if any(output.route != LANE for output in estimate.outputs)
        )

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The table: one row for every output of every data set, the failed ones included."""
        return [row for name in (*self.records, *self.errors) for row in self._rows_of(name)]

    def _rows_of(self, name: Name) -> Iterator[dict[str, Any]]:
        if name in self.errors:
            yield {"name": name, "status": ERROR, "message": self.errors[name]}
            return
        for row in records.rows_of(self.records[name]):
            yield {"name": name, **row}

    def __str__(self) -> str:
        return self.summary().plain()

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def summary(self) -> Summary:
        """The first data sets as a table, how many have which status, and which have failed.

        Examples:
            >>> estimates = ep.estimate_many(program, [1.0, 2.0])
            >>> print(estimates.summary())
            E[program] of 2 data sets by Auto(): 2 ok
            ...
        """
        counts = Counter(estimate.status.name for estimate in self.records.values())
        counts[ERROR] += len(self.errors)
        counts["unfinished"] += len(self.unfinished)
        order = sorted(counts, key=lambda name: (name != "ok", -counts[name]))
        known = ", ".join(f"{counts[name]:,} {name}" for name in order if counts[name])
        total = len(self.records) + len(self.errors) + len(self.unfinished)
        title = f"E[{self.program}] of {total:,} data sets by {self.method}: {known or 'none'}"
        shown = [name for name, _ in zip(self.records, range(MAX_PRINTED), strict=False)]
        rows = [row for name in shown for row in self._printed(name)]
        header = ("data set", "output", "estimate", "95 % interval", "status")
        lines = []
        if len(self.records) > len(shown):
            lines.append(f"and {len(self.records) - len(shown):,} more, in rows and to_dataframe()")
        failed = list(self.failed.items())
        lines += [f"{name!r} failed: {reason}" for name, reason in failed[:MAX_NAMED]]
        if len(failed) > MAX_NAMED:
            lines.append(f"and {len(failed) - MAX_NAMED:,} more that failed, in failed")
        alone = len(self.on_their_own)
        lines.append(f"{alone:,} of them run on their own; {self.seconds:.1f} s")
        return Summary([Table(title, header, tuple(rows))], lines)

    def _printed(self, name: Name) -> list[tuple[str, ...]]:
        estimate = self.records[name]
        each = zip(estimate.names, estimate.outputs, estimate.bounds(), strict=True)
        return [
            (
                str(name) if number == 0 else "",
                label,
                estimate_text(output),
                f"[{low:.4g}, {high:.4g}]",
                output.status.name,
            )
            for number, (label, output, (low, high)) in enumerate(each)
        ]

    def to_dataframe(self) -> DataFrame:
        """`rows` as a pandas DataFrame. Needs pandas.

        Examples:
            >>> table = ep.estimate_many(program, {"low": 1.0, "high": 2.0}).to_dataframe()
            >>> table["status"].tolist()
            ['ok', 'ok']
        """
        return records.to_dataframe(self.rows)

    def to_dataset(self) -> Dataset:
        """Values, errors, intervals and statuses as an xarray Dataset, by data set and output.

        Data sets without an estimate are left out. Needs xarray:
        ``pip install 'estimand[arviz]'``.

        Examples:
            >>> table = ep.estimate_many(program, {"low": 1.0, "high": 2.0}).to_dataset()
            >>> dict(table.sizes)
            {'dataset': 2, 'output': 1}
        """
        try:
            import xarray as xr
        except ImportError as error:
            raise ImportError("to_dataset needs xarray: pip install 'estimand[arviz]'") from error
        columns = ("value", "standard_error", "low", "high", "status")
        rows = [list(self._rows_of(name)) for name in self.records]
        tables = {column: [[row[column] for row in each] for each in rows] for column in columns}
        labels = next(iter(self.records.values())).names if rows else []
        return xr.Dataset(
            {name: (("dataset", "output"), table) for name, table in tables.items() if rows},
            coords={"dataset": list(self.records), "output": labels},
        )

    def save(self, folder: str | os.PathLike) -> None:
        """Saves every record as a file of a folder, with the table and an index.

        Args:
            folder: is made if there is none; files of the same names in it are replaced.

        Examples:
            >>> estimates = ep.estimate_many(program, {"low": 1.0, "high": 2.0})
            >>> estimates.save("estimates")
            >>> ep.load_many("estimates")["low"].value == estimates["low"].value
            True
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        files = {name: _file_name(number, name) for number, name in enumerate(self.records)}
        for name, estimate in self.records.items():
            estimate.save(place / files[name])
        records.write_atomically(place / TABLE, _csv(self.rows).encode())
        index = {
            "format": FORMAT,
            "program": self.program,
            "method": self.method,
            "seconds": self.seconds,
            "records": [{"name": name, "file": file} for name, file in files.items()],
            "errors": [{"name": name, "message": text} for name, text in self.errors.items()],
            "unfinished": list(self.unfinished),
        }
        text = json.dumps(index, indent=1, ensure_ascii=False)
        records.write_atomically(place / INDEX, text.encode())


@checked_names
def load_many(folder: str | os.PathLike) -> Estimates:
    """Reads the estimates that `Estimates.save` wrote. The program is not needed.

    Args:
        folder: the folder.

    Raises:
        RecordError: if the folder has no index, or the index or a record is damaged.

    Examples:
        >>> ep.estimate_many(program, [1.0, 2.0]).save("estimates")
        >>> len(ep.load_many("estimates"))
        2
    """
    place = Path(folder)
    try:
        index = json.loads((place / INDEX).read_text())
    except FileNotFoundError as error:
        raise RecordError(f"{place} has no {INDEX}: it is no folder of estimates.") from error
    except ValueError as error:
        raise RecordError(f"{place / INDEX} is damaged: {error}") from error
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise RecordError(f"{place / INDEX} is not of format {FORMAT}.")
    try:
        found = {item["name"]: load(place / Path(item["file"]).name) for item in index["records"]}
        return Estimates(
            program=index["program"],
            method=index["method"],
            records=found,
            errors={item["name"]: item["message"] for item in index["errors"]},
            unfinished=tuple(index["unfinished"]),
            seconds=float(index["seconds"]),
        )
    except (KeyError, TypeError) as error:
        raise RecordError(f"{place / INDEX} is damaged: {error!r}") from error


def without_draws(estimate: Estimate) -> Estimate:
    """The same with its numbers alone: no draws, but the summaries of its parts."""
    contents = Contents(estimate.parts, (), estimate.paths)
    outputs = records.with_parts(estimate.outputs, contents.parts)
    return dataclasses.replace(
        estimate,
        run=records.without_draws(estimate.run)._replace(outputs=outputs),
        density=None,
        contents=contents,
    )


def _finding(estimate: Estimate) -> str:
    """What is said of the worst output."""
    worst = max(estimate.outputs, key=lambda output: output.status.severity)
    most = [finding for finding in worst.findings if finding.status is worst.status]
    return str(most[0]) if most else worst.status.value


def _file_name(number: int, name: Name) -> str:
    """A name that every file system takes."""
    return f"{number:05d}-{re.sub(r'[^A-Za-z0-9_.-]+', '_', str(name))[:60]}.est"


def _csv(rows: list[dict[str, Any]]) -> str:
    columns = dict.fromkeys(column for row in rows for column in row)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(columns) or ["name"], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
