"""Tables of a record and its diagnosis, for terminals, notebooks, pages and plain text."""

from __future__ import annotations

import html
import math
import sys
from typing import Any, NamedTuple

from estimand.record import Record
from estimand.trust import Status
from estimand.view.diagnosis import Diagnosis, PartDiagnosis, PlainSampling, percent, rounded
from estimand.view.index import index_of
from estimand.view.text import cost_text, estimate_text, finding_lines, names_text

# Outputs whose parts have rows of their own; of more there is a row for each, and no other.
MAX_DETAILED = 4
# Branches that have a row, and outputs that have a column, in the table of branches.
MAX_BRANCHES, MAX_BRANCH_OUTPUTS = 20, 4
# Events of smaller probability have a reliability index in the summary.
RARE = 0.01


class Table(NamedTuple):
    """A table of texts; the first column is aligned left, the others right."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Summary:
    """Tables and sentences about a record, for terminals, notebooks and plain text."""

    def __init__(self, tables: list[Table], lines: list[str]):
        self.tables = tables
        self.lines = lines

    def __str__(self) -> str:
        if sys.stdout.isatty():
            try:
                return self._in_colour()
            except ImportError:
                pass
        return self.plain()

    __repr__ = __str__

    def plain(self) -> str:
        """The summary without colour, for files and pipes."""
        pieces = []
        for table in self.tables:
            rows = [table.header, *table.rows]
            widths = [max(len(row[k]) for row in rows) for k in range(len(table.header))]
            lines = [
                "  ".join(
                    cell.rjust(width) if k else cell.ljust(width)
                    for k, (cell, width) in enumerate(zip(row, widths, strict=True))
                ).rstrip()
                for row in rows
            ]
            rule = "─" * max(map(len, lines))
            pieces.append("\n".join([table.title, rule, lines[0], rule, *lines[1:]]))
        return "\n\n".join([*pieces, *(["\n".join(self.lines)] if self.lines else [])])

    def _in_colour(self) -> str:
        from rich.console import Console

        console = Console(force_terminal=True)
        with console.capture() as capture:
            console.print(self)
        return capture.get().rstrip("\n")

    def __rich_console__(self, _console: Any, _options: Any) -> Any:
        from rich import box
        from rich.markup import escape
        from rich.table import Table as RichTable

        for table in self.tables:
            rich = RichTable(title=escape(table.title), box=box.SIMPLE_HEAD, title_justify="left")
            for number, column in enumerate(table.header):
                rich.add_column(escape(column), justify="right" if number else "left")
            for row in table.rows:
                rich.add_row(*map(escape, row))
            yield rich
        for line in self.lines:
            yield escape(line)

    def _repr_html_(self) -> str:
        return "\n".join(
            [table_html(table) for table in self.tables]
            + [f"<p>{html.escape(line)}</p>" for line in self.lines]
        )


class Summarised:
    """What is printed, and shown in a notebook, as its summary."""

    def summary(self) -> Summary:
        raise TypeError(f"{type(self).__name__} has no summary")

    def __str__(self) -> str:
        return str(self.summary())

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


def table_html(table: Table) -> str:
    """A table as HTML, every text escaped."""

    def row(cells: tuple[str, ...], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    head, body = row(table.header, "th"), "".join(row(cells, "td") for cells in table.rows)
    return (
        f"<table><caption>{html.escape(table.title)}</caption>"
        f"<thead>{head}</thead><tbody>{body}</tbody></table>"
    )


def summarise(record: Record, diagnoses: tuple[Diagnosis, ...]) -> Summary:
    """The estimate, its parts and its verdict as tables; of many outputs a row for each."""
    is_short = len(diagnoses) <= MAX_DETAILED
    tables = [_output_table(record, diagnoses, is_short)]
    if record.branches:
        tables.append(_branch_table(record))
    if events := _events(record):
        title = "Reliability index β = −Φ⁻¹(P)"
        tables.append(Table(title, ("event", "β", "95 % interval"), events))
    briefs = [known.brief() for known in record.reliabilities.values()]
    tables += [brief for brief in briefs if brief is not None]
    if is_short:
        tables += _detail_tables(record.names, diagnoses)
    for known in record.sensitivities.values():
        tables.extend(known.summary().tables)
    return Summary(tables, _lines(record, diagnoses))


def _output_table(record: Record, diagnoses: tuple[Diagnosis, ...], is_short: bool) -> Table:
    header = ["output", "estimate", "95 % interval", "relative error", "cancellation", "status"]
    rows = [
        [
            name,
            estimate_text(output),
            f"[{low:.6g}, {high:.6g}]",
            percent(diagnosis.relative_error),
            _number(diagnosis.cancellation),
            output.status.name,
        ]
        for name, output, diagnosis, (low, high) in zip(
            record.names, record.outputs, diagnoses, record.bounds(), strict=True
        )
    ]
    if not is_short:
        header[-2:-1] = ["ESS", "plain draws' error"]
        for row, diagnosis in zip(rows, diagnoses, strict=True):
            sizes = [part.ess for part in diagnosis.parts if math.isfinite(part.ess)]
            row[-2:-1] = [f"{min(sizes):,.0f}" if sizes else "–", _gain_text(diagnosis.gain)]
    title = f"E[{record.program}] by {record.method}"
    return Table(title, tuple(header), tuple(map(tuple, rows)))


def _gain_text(gain: float) -> str:
    if math.isnan(gain):
        return "–"
    return f"{rounded(gain)} times" if math.isfinite(gain) else "none meets it"


def _detail_tables(names: list[str], diagnoses: tuple[Diagnosis, ...]) -> list[Table]:
    """Parts, the ways to them, and what plain draws would have said."""
    tables = []
    labelled = [
        (f"{name if len(names) > 1 else ''} {part.name}".strip(), part)
        for name, diagnosis in zip(names, diagnoses, strict=True)
        for part in diagnosis.parts
    ]
    if parts := tuple(_part_row(label, part) for label, part in labelled):
        columns = (
            "part",
            "log Z",
            "ESS",
            "of",
            "Pareto k",
            "largest weight",
            "share of error",
            "replicates",
            "deviation",
        )
        tables.append(Table("Normalising constants", columns, parts))
    ways = tuple(
        (
            label,
            str(part.num_temperatures),
            f"{percent(part.acceptance[0])} to {percent(part.acceptance[1])}",
        )
        for label, part in labelled
        if part.num_temperatures
    )
    if ways:
        tables.append(
            Table("From the prior to each target", ("part", "temperatures", "acceptance"), ways)
        )
    plain = tuple(
        (name, f"{diagnosis.plain.num_draws:,}", *_plain_cells(diagnosis.plain))
        for name, diagnosis in zip(names, diagnoses, strict=True)
        if diagnosis.plain is not None
    )
    if plain:
        title = "What averaging plain posterior draws would have said"
        tables.append(Table(title, ("output", "draws", "that reach f ≠ 0", "average"), plain))
    return tables


def _events(record: Record) -> tuple[tuple[str, ...], ...]:
    """A row for every event whose probability is small, or whose reliability was asked for, where
    it can be trusted."""
    rows = []
    for number, (name, is_event) in enumerate(
        zip(record.names, record.are_indicators, strict=True)
    ):
        output = record.outputs[number]
        is_shown = output.value < RARE or number in record.reliabilities
        if is_event and output.status and is_shown:
            index = index_of(record, number)
            low, high = index.interval
            number_text = f"{index.value:.5g} ± {index.standard_error:.2g}"
            rows.append((name, number_text, f"[{low:.5g}, {high:.5g}]"))
    return tuple(rows)


def _branch_table(record: Record) -> Table:
    """The most probable branches; the last row stands for all others."""
    names = record.names[:MAX_BRANCH_OUTPUTS]
    header = ("branch", "prior", "probability", "log Z2", *(f"E[{name}]" for name in names))
    rows = []
    for branch in record.branches[:MAX_BRANCHES]:
        values, errors = (
            record.output.ravel(structure) for structure in (branch.value, branch.standard_error)
        )
        numbers = [
            f"{value:.5g} ± {error:.2g}" if math.isfinite(error) else "–"
            for value, error in zip(values, errors, strict=True)
        ]
        rows.append(
            (
                branch.text,
                f"{branch.prior:.4g}",
                f"{branch.probability:.5g} ± {branch.probability_error:.2g}",
                f"{branch.log_z2:.5g} ± {branch.log_z2_error:.2g}",
                *numbers[:MAX_BRANCH_OUTPUTS],
                branch.status.name,
            )
        )
    if others := record.branches[MAX_BRANCHES:]:
        prior = f"{sum(branch.prior for branch in others):.4g}"
        probability = f"{sum(branch.probability for branch in others):.3g}"
        empty = [""] * (len(names) + 1)
        rows.append((f"{len(others)} others", prior, probability, *empty, ""))
    return Table("Branches", (*header, "status"), tuple(rows))


def _lines(record: Record, diagnoses: tuple[Diagnosis, ...]) -> list[str]:
    notes = [known.note for known in record.reliabilities.values() if known.note]
    lines = [cost_text(record), *record.run.notes, *notes]
    if len(diagnoses) <= MAX_DETAILED:
        for name, diagnosis in zip(record.names, diagnoses, strict=True):
            prefix = f"{name}: " if len(diagnoses) > 1 else ""
            lines.append(f"{prefix}{diagnosis.verdict} {diagnosis.advice}".rstrip())
        return lines
    for status in Status:
        names = [
            name
            for name, output in zip(record.names, record.outputs, strict=True)
            if output.status is status
        ]
        if names:
            lines.append(
                f"{status.name}, {len(names)} outputs: {names_text(names)}. {status.value}"
            )
    return [*lines, *finding_lines(record)]


def _plain_cells(plain: PlainSampling) -> tuple[str, str]:
    return f"{plain.num_hits:,}", f"{plain.value:.4g} ± {plain.standard_error:.2g}"


def _part_row(label: str, part: PartDiagnosis) -> tuple[str, ...]:
    return (
        label,
        f"{part.log_z:.5g} ± {part.standard_error:.2g}",
        f"{part.ess:,.0f}",
        f"{part.num_samples:,}",
        _number(part.pareto_k),
        _share(part.largest_share),
        _share(part.error_share),
        str(part.num_replicates) if part.num_replicates else "–",
        percent(part.deviation) if math.isfinite(part.deviation) else "–",
    )


def _share(share: float) -> str:
    if not math.isfinite(share):
        return "–"
    return percent(share) if share >= 1e-4 else "< 0.01 %"


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "–"
