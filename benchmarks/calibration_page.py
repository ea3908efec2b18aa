"""docs/calibration.md from the record: tables, and every cell that fails with its reason."""

import json
import math
from typing import NamedTuple

from benchmarks.calibration_cells import BUDGETS, CELLS, LEVELS, METHODS, Cell, cells
from benchmarks.calibration_summary import FAILURE_RATE, failures, pooled, tests_of
from benchmarks.measure import ROOT

PAGE = ROOT / "docs" / "calibration.md"
MARKS = "<!-- from the record -->", "<!-- end -->"
KINDS = {
    "false trust": "runs with status `ok` that are wrong, by test more than 1 % of them",
    "short": "intervals that cover too seldom",
    "wide": "intervals that cover too often",
    "biased": "estimates Ẑ whose mean is not Z",
    "error": "runs that end in an exception",
}


class Reason(NamedTuple):
    """Why cells of a kind fail; no problems or methods named means all of them."""

    kind: str
    text: str
    methods: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def explains(self, kind, row):
        return (
            kind == self.kind
            and (not self.methods or row["method"] in self.methods)
            and (not self.problems or row["problem"] in self.problems)
        )


_MODES = ("equal_modes_10", "unequal_modes_10")
_TEXTS = (
    (
        "Runs that lost the narrow mode, or in which hardly any particle found it: what no "
        "particle has seen is in no error. The other runs of these cells say `low_ess`, or are "
        "right. Islands see more of it (`num_islands`), and the default method looks again with "
        "fresh scouts.",
        ("TABI(SMC)", "TABI(SMC), standard"),
        ("unequal_modes_10",),
    ),
    (
        "One run in each of these cells, whose eight islands agree by chance or have all missed "
        "the same mode. The cell's other runs say `low_ess`, or are right.",
        ("TABI(SMC), islands",),
        (*_MODES, "drawn_kicks", "eight_schools"),
    ),
    (
        "A bridge knows the modes that its chains have visited, and no other. With two equal modes "
        "chains disagree, and all runs but one in each cell say so; beside a broad mode with the "
        "larger volume a narrow one is never visited.",
        ("TABI(BridgeSampling)",),
        _MODES,
    ),
)
REASONS = tuple(Reason(kind, *about) for kind in ("false trust", "short") for about in _TEXTS)


def reason_of(kind, row):
    """The first that explains a failure, or None."""
    return next((item for item in REASONS if item.explains(kind, row)), None)


def unexplained(rows):
    """Failures that no reason explains, as (kind, row)."""
    found = ((kind, row) for row, kinds in failures(rows) for kind in kinds)
    return [(kind, row) for kind, row in found if reason_of(kind, row) is None]


# --- tables ---


def _table(columns, rows):
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _share(count, of, digits=1):
    return f"{100 * count / of:.{digits}f}" if of else "–"


def _number(value):
    return f"{value:.2f}" if math.isfinite(value) else "–"


def _figures(total):
    """What the tables say of one row or of several added up."""
    ok = total["ok"]
    return [
        f"{total['runs']:,}",
        _share(ok, total["runs"]),
        *(_share(count, ok) for count in total["covered"].values()),
        _number(total.get("reported_over_empirical", math.nan)),
        _share(total["wrong_ok"], ok, 2),
        _share(total["right_not_ok"], total["right"]),
    ]


COLUMNS = (
    *("runs", "`ok` %", *(f"{level:.0%}" for level in LEVELS)),
    *("reported / empirical", "false trust %", "needless refusal %"),
)


def by_method(rows):
    lines = [[f"`{m}`", budget, *_figures(total)] for m, budget, total in pooled(rows)]
    return _table(["method", "budget", *COLUMNS], lines)


def of_method(rows, method):
    lines = []
    for row in rows:
        if row["method"] == method and "runs" in row:
            output = f"[{row['output']}]" if _has_outputs(rows, row["problem"]) else ""
            lines.append([f"{row['problem']}{output}", row["budget"], *_figures(row)])
    return _table(["problem", "budget", *COLUMNS], lines)


def _has_outputs(rows, problem):
    return any(row["problem"] == problem and row.get("output", 0) > 0 for row in rows)


# --- words ---


def _name(rows, row):
    output = f"[{row['output']}]" if _has_outputs(rows, row["problem"]) and "output" in row else ""
    return f"{row['problem']}{output}"


def _listed(rows, found):
    """Cells by method and problem, with the budgets at which they fail."""
    methods = {}
    for row in found:
        methods.setdefault(row["method"], []).append(row)
    return "\n".join(f"  - `{name}`: {_problems(rows, mine)}" for name, mine in methods.items())


def _problems(rows, found):
    """Cells of one method by problem, with their budgets where these are not all."""
    names = {}
    for row in found:
        names.setdefault(_name(rows, row), []).append(row["budget"])
    return ", ".join(
        name if len(budgets) == len(BUDGETS) else f"{name} ({', '.join(budgets)})"
        for name, budgets in names.items()
    )


def failing(rows):
    """Every failure under its reason, by kind."""
    found = list(failures(rows))
    parts = []
    for kind, title in KINDS.items():
        mine = [row for row, kinds in found if kind in kinds]
        if not mine:
            parts.append(f"### {kind.capitalize()}: none\n\nNo cell has {title}.")
            continue
        groups = {}
        for row in mine:
            groups.setdefault(reason_of(kind, row), []).append(row)
        lines = [f"### {kind.capitalize()}: {len(mine)}\n\n{title[0].upper()}{title[1:]}.\n"]
        for reason, group in groups.items():
            text = reason.text if reason else "Not explained."
            lines.append(f"- {text}\n\n{_listed(rows, group)}\n")
        parts.append("\n".join(lines).rstrip())
    return "\n\n".join(parts)


def not_run(record):
    rows = record["results"]
    lines = [f"- {name}: {why}." for name, why in record["left_out"].items()]
    slow = [row for row in rows if "slow" in row]
    if slow:
        lines.append(f"- Too slow for {record['fewest_runs']} runs:\n\n{_listed(rows, slow)}\n")
    refused = [row for row in rows if "refused" in row]
    if refused:
        lines.append(f"- Refused by the method, with an error:\n\n{_listed(rows, refused)}\n")
    found = _by_cell(rows)
    for name in METHODS:
        wanted = [cell for cell in cells([name], CELLS) if cell.problem not in record["left_out"]]
        there, missing = (
            [cell._asdict() for cell in wanted if (cell in found) == is_there]
            for is_there in (True, False)
        )
        if missing:
            only = len(there) < len(missing)
            said = _problems(rows, there if only else missing)
            lines.append(f"- `{name}`: {'only ' if only else 'not '}{said or 'none'}.")
    return "\n".join(lines).rstrip()


def _by_cell(rows):
    return {Cell(row["method"], row["problem"], row["budget"]) for row in rows}


def _machines(record):
    said = []
    for item in record["environments"]:
        names = ("python", "jax", "numpyro", "numpy")
        versions = ", ".join(f"{name} {item[name]}" for name in names)
        said.append(f"{item['cpu_count']} cores, {item['device']} ({versions})")
    return "; ".join(said)


def page(record):
    """What docs/calibration.md has between its marks."""
    rows = record["results"]
    tests = sum(1 for row in rows for _ in tests_of(row))
    done, failed = _by_cell(rows), _by_cell([row for row, _ in failures(rows)])
    wanted = [cell for cell in cells(METHODS, CELLS) if cell.problem not in record["left_out"]]
    runs = sum(row["runs"] for row in rows if row.get("output") == 0)
    intro = (
        f"{len(done):,} of {len(wanted):,} cells were reached, with {runs:,} runs; {tests:,} tests "
        f"share a false-alarm rate of {FAILURE_RATE:.0%}. {len(failed)} cells fail. Run on "
        f"{_machines(record)}; {record['seconds'] / 60:.0f} minutes of one core."
    )
    return "\n\n".join(
        [
            intro,
            "## By method and budget",
            by_method(rows),
            "## The default method, by problem",
            of_method(rows, "Auto"),
            "## What fails, and why",
            failing(rows),
            "## What was not run",
            not_run(record),
        ]
    )


def write_page(path):
    """Writes the page from a record."""
    text = page(json.loads(path.read_text()))
    before, rest = PAGE.read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")
