"""The record of the peers as medians and as tables: on the terminal, or in Markdown."""

import math
import statistics
from pathlib import Path

from benchmarks.measure import parser, read_results, show
from benchmarks.peers.table import OURS, PROBLEMS

ASKED = 1e-4
# Beyond this squared error the median run saw nothing, and 1/N no longer holds.
UNSEEN = 0.25
NO_MASS = 1e-6
PAGE = Path(__file__).parents[2] / "docs" / "peers.md"
MARKS = "<!-- from the record -->", "<!-- end -->"
COLUMNS = (
    *("peer", "runs", "failed", "RSE", "evaluations", "cold s", "warm s"),
    *("evaluations for 1 %", "warm s for 1 %"),
)


def summary(row, truth):
    """Medians, and what 1 % needs."""
    runs = row["runs"]
    done = [run for run in runs if run["value"] is not None]
    if not done:
        return None
    squares = [((run["value"] - truth) / truth) ** 2 for run in done]
    failures = len(runs) - len(done)
    rse = statistics.median([*squares, *[math.inf] * failures])
    cost = statistics.median(run["cost"] for run in done)
    cold, *others = (run["cpu_seconds"] for run in done)
    warm = statistics.median(others) if others else None
    if warm is not None and "compiling" in row:
        cold = row["compiling"]["cpu_seconds"] + warm
    found = {
        "runs": len(runs),
        "rse": rse if math.isfinite(rse) else None,
        "cost": cost,
        "cold_seconds": cold,
        "warm_seconds": warm,
        "failures": failures,
    }
    is_ours = row["peer"] in OURS
    if statistics.median(abs(run["value"]) for run in done) < NO_MASS * abs(truth):
        return found | {"needs": "never"}
    if not rse < UNSEEN:
        return found | {"needs": "unknown"}
    factor = max(rse / ASKED, 1.0 if is_ours else 0.0)
    needs = {"cost": cost * factor, "is_measured": is_ours and factor == 1.0}
    if warm is not None:
        needs |= {
            "warm_seconds": warm * factor,
            "cold_seconds": max(0.0, cold - warm) + warm * factor,
        }
    return found | {"needs": needs}


def cells(row):
    """A row of the table."""
    found, trouble = row["summary"], row.get("trouble") or row.get("refusal")
    name = row["peer"] + (" *" if row.get("limited_by") == "seconds" else "")
    if not found:
        return [name, trouble or _first_note(row), *[""] * (len(COLUMNS) - 2)]
    needs, warm = found["needs"], found["warm_seconds"]
    if isinstance(needs, str):
        last = [needs, needs]
    else:
        mark = "" if needs["is_measured"] else "~"
        last = [mark + _short(needs["cost"]), _short(needs.get("warm_seconds"), mark)]
    return [
        name,
        f"{found['runs']}{', then ' + trouble if trouble else ''}",
        str(found["failures"]),
        _short(found["rse"]),
        _short(found["cost"]),
        _short(found["cold_seconds"]),
        _short(warm),
        *last,
    ]


def _short(number, mark=""):
    if number is None:
        return "–"
    return mark + (f"{number:.2g}" if 0.01 <= number < 1000 else f"{number:.1e}")


def _first_note(row):
    return next((run["note"] for run in row["runs"] if run.get("note")), "nothing")


def show_table(rows):
    for problem in PROBLEMS:
        found = [row for row in rows if row["problem"] == problem]
        if found:
            show(problem, COLUMNS, map(cells, found))
    print("Versions:", versions(rows))


def versions(rows):
    found = {}
    for row in rows:
        found |= row.get("versions", {})
    return ", ".join(f"{name} {version}" for name, version in sorted(found.items()))


def markdown(rows):
    """A table for each problem."""
    parts = []
    for problem in PROBLEMS:
        found = [cells(row) for row in rows if row["problem"] == problem if "refusal" not in row]
        if not found:
            continue
        table = [COLUMNS, ["---"] * len(COLUMNS), *found]
        parts.append("\n".join([f"### {problem}", "", *(f"| {' | '.join(r)} |" for r in table)]))
    return "\n\n".join([*parts, f"Versions: {versions(rows)}."])


def better(rows, measure):
    """For each problem the peers that need less of a measure for 1 % than estimand's best row.

    `measure` is "cost" or "warm_seconds". Each entry is a line: ours, then who needs less.
    """
    found = []
    for problem in PROBLEMS:
        needs = {row["peer"]: _needed(row, measure) for row in rows if row["problem"] == problem}
        ours = {peer: needs.pop(peer) for peer in OURS if needs.get(peer) is not None}
        if not ours:
            continue
        best = min(ours, key=ours.get)
        less = [
            f"{peer} ~{_short(value)}"
            for peer, value in sorted(needs.items(), key=lambda item: item[1] or math.inf)
            if value is not None and value < ours[best]
        ]
        found.append([problem, f"{best} {_short(ours[best])}", ", ".join(less) or "none"])
    return found


def _needed(row, measure):
    needs = (row["summary"] or {}).get("needs")
    return needs.get(measure) if isinstance(needs, dict) else None


def page(rows):
    """What docs/peers.md has between its marks."""
    parts = [markdown(rows)]
    for measure, title in (("cost", "evaluations"), ("warm_seconds", "warm seconds")):
        table = [["problem", "estimand", f"needs fewer {title} for 1 %"], ["---"] * 3]
        lines = [f"| {' | '.join(line)} |" for line in table + better(rows, measure)]
        parts.append("\n".join([f"### Who needs fewer {title}", "", *lines]))
    return "\n\n".join(parts)


def main(argv=None):
    options = parser(__doc__)
    options.add_argument("--write", action="store_true", help="into docs/peers.md, not here")
    chosen = options.parse_args(argv)
    text = page(read_results("peers", chosen.quick) or [])
    if not chosen.write:
        print(text)
        return
    before, rest = PAGE.read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
