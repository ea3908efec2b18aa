"""Other libraries on the same problems, given the evaluations that the default method took.

Each problem with each peer runs in its own process: small runs determine the size that the budget
pays for, then come the seeds. A peer gets as many evaluations as the default method took in the
median, but at most its seconds, so slow peers get fewer. A process that exceeds --limit is stopped,
and its results so far are kept. The record keeps every run; what it has is not run again without
--again.

Seconds are CPU time (all threads together), which other work on the machine disturbs less than wall
time; the record has both. Cold is a first run in a fresh process, compilation
included, without imports; warm is the median of the later ones. "For 1 %" is a median squared
relative error of 1e-4: for estimand what was measured, for the peers extrapolated as 1/N, marked ~,
which flatters those with a warm-up. `python -m benchmarks.peers.summary` prints the record as
Markdown.
"""

import concurrent.futures
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.measure import parser, read_results, write_record
from benchmarks.peers.summary import show_table, summary
from benchmarks.peers.table import MODULES, PROBLEMS

ROOT = Path(__file__).parents[2]
RECORD = "peers"


def lines(options, *arguments):
    """What a cell prints until it ends or is stopped, and how it ended."""
    command = [sys.executable, "-m", "benchmarks.peers.cell", "--limit", options.limit, *arguments]
    path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    process = subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [json.loads(line) for line in process.stdout.splitlines()]
    if process.returncode == 0:
        return found, None
    if process.returncode < 0:
        return found, f"over the limit of {options.limit} s"
    said = [line for line in process.stderr.splitlines() if line[:1].isalpha()]
    return found, f"error: {said[-1][:200] if said else process.returncode}"


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


def truths():
    from benchmarks.peers.problems import ALL

    return {name: problem.value for name, problem in ALL.items()}


def main(argv=None):
    options = _options(argv)
    started, truth, lock = time.perf_counter(), truths(), threading.Lock()
    earlier = read_results(RECORD, options.quick) or []
    found = {(row["problem"], row["peer"]): row for row in earlier}
    kept = set() if options.again else set(found)

    def rows():
        order = [(problem, peer) for problem in PROBLEMS for peer in MODULES]
        return [found[key] for key in order if key in found]

    def do(problem, peer, first=None):
        row = cell(options, problem, peer, first)
        row["summary"] = summary(row, truth[problem])
        with lock:
            found[problem, peer] = row
            write_record(RECORD, options.quick, time.perf_counter() - started, rows())
            print(problem, peer, row.get("trouble", ""), row["summary"], flush=True)

    def wait(futures):
        for future in list(futures):
            future.result()

    with concurrent.futures.ThreadPoolExecutor(options.processes) as pool:
        firsts = [(problem, "estimand") for problem in options.problems]
        wait(pool.submit(do, *key) for key in firsts if key not in kept)
        wait(
            pool.submit(do, problem, peer, found[problem, "estimand"]["summary"])
            for problem in options.problems
            if found[problem, "estimand"]["summary"]
            for peer in options.peers
            if peer != "estimand" and (problem, peer) not in kept
        )
    show_table(rows())
    return rows()


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


if __name__ == "__main__":
    main()
