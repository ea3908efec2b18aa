"""Other libraries on the same problems, given the evaluations that the default method took.

Each problem with each peer runs in a process of its own: small runs say what the budget pays for,
then come the seeds. A peer gets as many evaluations as the default method took in the median, but
at most its seconds, so slow peers get fewer. A process that goes past --limit is ended, and
what it had stands. The record keeps every run, and what it has is not run again (--again does).

Seconds are of the processor (all threads together), which other work on the machine disturbs less
than those of the wall; the record has both. Cold is a first run in a fresh process, compilation
included, without imports; warm is the median of the later ones. "For 1 %" is a median squared
relative error of 1e-4: for estimand what was measured, for the peers extrapolated as 1/N, marked ~,
which flatters those with a warm-up.
"""

import concurrent.futures
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.measure import parser, read_results, show, write_record
from benchmarks.peers.table import MODULES, OURS, PROBLEMS

ROOT = Path(__file__).parents[2]
RECORD = "peers"
ASKED = 1e-4
# Beyond this squared error a median says what was not seen, and 1/N no longer holds.
UNSEEN = 0.25
NO_MASS = 1e-6


def lines(options, *arguments):
    """What a cell says until it ends or is ended, and how it ended."""
    command = [sys.executable, "-m", "benchmarks.peers.cell", "--limit", options.limit, *arguments]
    path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    process = subprocess.Popen(
        list(map(str, command)),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    output, errors = process.communicate()
    found = [json.loads(line) for line in output.splitlines()]
    if process.returncode == 0:
        return found, None
    if process.returncode < 0:
        return found, f"over the limit of {options.limit} s"
    last = [line for line in errors.strip().splitlines() if line and line[0].isalpha()]
    return found, f"error: {last[-1][:200] if last else process.returncode}"


def cell(options, problem, peer, first):
    """Everything known about one problem with one peer; `first` is what the default method took."""
    row = {"problem": problem, "peer": peer, "runs": [], "load": os.getloadavg()[0]}
    limits = ()
    if first:
        seconds = first["warm_seconds"] or first["cold_seconds"]
        limits = "--budget", first["cost"], "--cpu-seconds", seconds
    _take(row, *lines(options, problem, peer, "--seeds", options.seeds, *limits))
    return row


def _take(row, found, trouble):
    for line in found:
        run = line.pop("run", None)
        row.update(line)
        if run:
            row["runs"].append(run)
    if trouble:
        row["trouble"] = trouble


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


def truths():
    from benchmarks.peers.problems import ALL

    return {name: problem.value for name, problem in ALL.items()}


def main(argv=None):
    options = _options(argv)
    started, rows = time.perf_counter(), read_results(RECORD, options.quick) or []
    truth, lock = truths(), threading.Lock()

    def has(problem, peer):
        return any((row["problem"], row["peer"]) == (problem, peer) for row in rows)

    def do(problem, peer, first=None):
        row = cell(options, problem, peer, first)
        row["summary"] = summary(row, truth[problem])
        with lock:
            rows[:] = [r for r in rows if (r["problem"], r["peer"]) != (problem, peer)] + [row]
            rows.sort(key=lambda r: (PROBLEMS.index(r["problem"]), list(MODULES).index(r["peer"])))
            write_record(RECORD, options.quick, time.perf_counter() - started, rows)
            print(problem, peer, row.get("trouble", ""), row["summary"], flush=True)
        return row

    with concurrent.futures.ThreadPoolExecutor(options.processes) as pool:
        waiting = []
        for problem in options.problems:
            again = options.again and "estimand" in options.peers
            if again or not has(problem, "estimand"):
                do(problem, "estimand")
            first = next(r for r in rows if (r["problem"], r["peer"]) == (problem, "estimand"))
            if not first["summary"]:
                continue
            waiting += [
                pool.submit(do, problem, peer, first["summary"])
                for peer in options.peers
                if peer != "estimand" and (options.again or not has(problem, peer))
            ]
        for future in waiting:
            future.result()
    show_table(rows)
    return rows


def _options(argv):
    found = parser(__doc__, processes=True)
    found.add_argument("--problems", default=",".join(PROBLEMS))
    found.add_argument("--peers", default=",".join(MODULES))
    found.add_argument("--seeds", type=int, help="20 by default, 5 quick")
    found.add_argument("--limit", type=int, help="CPU seconds of a process: 1,800, or 120 quick")
    found.add_argument("--again", action="store_true", help="run what the record has, too")
    options = found.parse_args(argv)
    for name, known in (("problems", PROBLEMS), ("peers", MODULES)):
        chosen = getattr(options, name).split(",")
        if unknown := set(chosen) - set(known):
            found.error(f"no {name[:-1]} {unknown.pop()!r}; there are {', '.join(known)}")
        setattr(options, name, chosen)
    for name, values in (("seeds", (20, 5)), ("limit", (1800, 120))):
        setattr(options, name, getattr(options, name) or values[options.quick])
    return options


COLUMNS = (
    *("peer", "runs", "failed", "RSE", "evaluations", "cold s", "warm s"),
    *("evaluations for 1 %", "warm s for 1 %"),
)


def show_table(rows):
    for problem in PROBLEMS:
        found = [row for row in rows if row["problem"] == problem]
        if found:
            show(problem, COLUMNS, map(cells, found))
    versions = {}
    for row in rows:
        versions |= row.get("versions", {})
    print("Versions:", ", ".join(f"{name} {version}" for name, version in versions.items()))


def cells(row):
    """A row of the table."""
    found, trouble = row.get("summary"), row.get("trouble") or row.get("refusal")
    name = row["peer"] + (" *" if row.get("limited_by") == "seconds" else "")
    if not found:
        return [name, trouble or "nothing", *[""] * (len(COLUMNS) - 2)]
    needs = found["needs"]
    if isinstance(needs, str):
        last = [needs, needs]
    else:
        mark = "" if needs["is_measured"] else "~"
        seconds = needs.get("warm_seconds")
        last = [f"{mark}{needs['cost']:.2g}", "" if seconds is None else f"{mark}{seconds:.2g}"]
    warm = found["warm_seconds"]
    return [
        name,
        f"{found['runs']}{' (time limit)' if trouble else ''}",
        found["failures"],
        "–" if found["rse"] is None else f"{found['rse']:.1e}",
        f"{found['cost']:.2g}",
        f"{found['cold_seconds']:.2g}",
        "" if warm is None else f"{warm:.2g}",
        *last,
    ]


if __name__ == "__main__":
    main()
