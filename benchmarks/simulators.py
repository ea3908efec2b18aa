"""Failure probabilities with at most 1,000 calls of the limit state: Economical, and OpenTURNS.

`python -m benchmarks.simulators` runs Economical over seeds; what OpenTURNS does with as many calls
is run by `python -m benchmarks.peers.openturns_calls` where that is installed; it needs nothing
but OpenTURNS and NumPy. With --write both go into docs/simulators.md.
"""

import json
import time
from pathlib import Path

import numpy as np

from benchmarks.measure import parser, read_results, write_record
from problems.limit_states import COMPARED, FRESH, HELD_OUT, HOSTILE, LIMIT_STATES

NAME = "simulators"
BUDGET = 1000
SEEDS = {"compared": 10, "held out": 5, "fresh": 5, "hostile": 3}
GROUPS = {"compared": COMPARED, "held out": HELD_OUT, "fresh": FRESH, "hostile": HOSTILE}
PAGE = Path(__file__).parents[1] / "docs" / "simulators.md"
START, END = "<!-- table -->", "<!-- end of the table -->"
PEERS = {
    "FORM": "form",
    "SORM": "sorm",
    "subset": "subset",
    "cross-entropy": "cross_entropy",
}


def run(name, seed, budget=BUDGET):
    """One run as plain numbers."""
    import estimand as ep

    problem = LIMIT_STATES[name]
    bound = problem.program()()
    started = time.process_time()
    result = ep.estimate_expectation(
        bound, ep.Economical(max_evaluations=budget), rng_key=seed, throw=False
    )
    low, high = result.interval()
    return {
        "seed": seed,
        "error": result.value / problem.probability - 1,
        "standard_error": result.standard_error / problem.probability,
        "is_covered": bool(low <= problem.probability <= high),
        "status": result.status.name,
        "calls": bound.simulator.num_calls,
        "processor_seconds": time.process_time() - started,
    }


def summary(problem, group, runs):
    """What a table shows of the runs of one problem; wrong is beyond three standard errors."""
    fine = [item for item in runs if item["status"] == "ok"]
    wrong = [item for item in fine if abs(item["error"]) > 3 * item["standard_error"]]
    return {
        "problem": problem,
        "group": group,
        "runs": len(runs),
        "ok": len(fine),
        "wrong": len(wrong),
        "covered": sum(item["is_covered"] for item in fine),
        "median_error": float(np.median([abs(item["error"]) for item in runs])),
        "largest_ok_error": max((abs(item["error"]) for item in fine), default=0.0),
        "median_calls": float(np.median([item["calls"] for item in runs])),
        "median_seconds": float(np.median([item["processor_seconds"] for item in runs])),
        "every": runs,
    }


def main(argv=None):
    options_parser = parser(__doc__)
    options_parser.add_argument("--problems", help=f"some of {','.join(LIMIT_STATES)}")
    options_parser.add_argument("--seeds", type=int, help=f"{SEEDS} by default, 2 quick")
    options_parser.add_argument("--resume", action="store_true", help="keep what is in the record")
    options_parser.add_argument("--write", action="store_true", help="only write the page")
    options = options_parser.parse_args(argv)
    rows = read_results(NAME, options.quick) or []
    if options.write:
        write_page(rows)
        return rows
    names = options.problems.split(",") if options.problems else list(LIMIT_STATES)
    if not (options.resume or options.problems):
        rows = []
    started = time.perf_counter()
    for name in names:
        if options.resume and any(row["problem"] == name for row in rows):
            continue
        group = next(group for group, some in GROUPS.items() if name in some)
        seeds = options.seeds or (2 if options.quick else SEEDS[group])
        row = summary(name, group, [run(name, seed) for seed in range(seeds)])
        rows = [item for item in rows if item["problem"] != name] + [row]
        rows.sort(key=lambda item: list(LIMIT_STATES).index(item["problem"]))
        write_record(NAME, options.quick, time.perf_counter() - started, rows)
        print({key: value for key, value in row.items() if key != "every"}, flush=True)
    return rows


def write_page(rows):
    """Puts the table into the documentation."""
    path = Path(__file__).parent / "results" / "openturns_calls.json"
    others = {row["problem"]: row for row in json.loads(path.read_text())["results"]}
    text = PAGE.read_text()
    start, end = text.index(START) + len(START), text.index(END)
    PAGE.write_text(text[:start] + "\n" + "\n".join(_table(rows, others)) + "\n" + text[end:])


def _table(rows, others):
    titles = ["problem", "d", "probability", "ok", "wrong", "calls", "error", *PEERS]
    for group in GROUPS:
        yield f"\n**{group.capitalize()}**\n"
        yield "| " + " | ".join(titles) + " |"
        yield "|---" * len(titles) + "|"
        for row in rows:
            if row["group"] == group:
                yield "| " + " | ".join(_cells(row, others.get(row["problem"]))) + " |"


def _cells(row, other):
    problem = LIMIT_STATES[row["problem"]]
    yield row["problem"]
    yield str(problem.dimension)
    yield f"{problem.probability:.4g}"
    yield f"{row['ok']} of {row['runs']}"
    yield str(row["wrong"])
    yield f"{row['median_calls']:.0f}"
    yield _percent(row["median_error"])
    for name in PEERS.values():
        found = None if other is None else other.get(name)
        if found is None:
            yield "–"
        else:
            yield f"{_percent(found['median_error'])} ({found['median_calls']:.0f})"


def _percent(share):
    if not np.isfinite(share):
        return "fails"
    return f"{100 * share:.2g} %" if share < 1 else f"{share:.1g} ×"


if __name__ == "__main__":
    main()
