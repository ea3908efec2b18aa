"""Calibration: every method on every problem with a known answer, at three budgets.

Each cell is a method, a problem and a budget. It is run with the seeds 0, 1, 2, … until the cell's
CPU time is used up, at most as many as it asks for, or three times as long for 20 runs; a cell with
fewer than five is left out, and the record says so. A finished cell is added to the journal
(build/calibration.jsonl) at once, and a later run resumes from there; --fresh starts again. The
record, results/calibration.json, is computed from the journal, and `--write` writes
docs/calibration.md from the record.
"""

import contextlib
import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed

from benchmarks.calibration_cells import BUDGETS, CELLS, METHODS, Cell, batches, cells, measured
from benchmarks.calibration_page import write_page
from benchmarks.calibration_summary import show_summary, write_record
from benchmarks.measure import RESULTS, ROOT, environment, parser

JOURNAL = ROOT / "build" / "calibration.jsonl"
QUICK = ("figure1", "rp22")


def _one_thread():
    """Cells run side by side, each on a single thread."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ.setdefault("XLA_FLAGS", flags)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        number = (multiprocessing.current_process()._identity or (0,))[0]
        os.sched_setaffinity(0, {cores[number % len(cores)]})


def _task(batch, journal, about, options):
    """Runs some cells, each of which is in the journal, by one write, as soon as it is finished."""
    import jax

    for cell in batch:
        row = measured(cell, *limits(cell, options)) | {"environment": about}
        with journal.open("ab", buffering=0) as file:
            file.write(f"\n{json.dumps(row)}\n".encode())
        print(*cell, len(row["runs"]), flush=True)
    # A process runs many problems.
    jax.clear_caches()


def read_journal(path):
    """Finished cells by name, the latest of each."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        # An interruption may have truncated a line.
        with contextlib.suppress(json.JSONDecodeError):
            row = json.loads(line)
            found[Cell(row["method"], row["problem"], row["budget"])] = row
    return found


def run_cells(wanted, journal, options):
    """Runs the cells that the journal does not have with these settings, and adds them to it."""
    kept = read_journal(journal)
    done = {cell for cell, row in kept.items() if row["settings"] == repr(cell.settings)}
    todo = batches(cell for cell in wanted if cell not in done)
    journal.parent.mkdir(parents=True, exist_ok=True)
    ends = 60 * options.minutes if options.minutes else None
    _one_thread()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, spawn) as pool:
        tasks = [pool.submit(_task, batch, journal, environment(), options) for batch in todo]
        try:
            for number, task in enumerate(as_completed(tasks, ends)):
                task.result()
                print(f"{number + 1} of {len(todo)} batches", flush=True)
        except (TimeoutError, KeyboardInterrupt):
            print("stopped: what is finished is in the journal", flush=True)
            for process in list(pool._processes.values()):
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)


def limits(cell, options):
    """Seeds and seconds of a cell."""
    method = METHODS[cell.method]
    seeds, seconds = method.seeds, method.seconds * options.scale
    return (min(seeds, 40), seconds / 8) if options.quick else (seeds, seconds)


def main(argv=None):
    found = parser(__doc__, processes=True)
    found.add_argument("--methods", help="some of them, separated by semicolons")
    found.add_argument("--problems", help=f"some of {','.join(CELLS)}")
    found.add_argument("--budgets", help=f"some of {','.join(BUDGETS)}")
    found.add_argument("--journal", help="another file than build/calibration.jsonl")
    found.add_argument("--minutes", type=float, help="stop after so many")
    found.add_argument("--scale", type=float, default=1.0, help="times the seconds of every cell")
    found.add_argument("--fresh", action="store_true", help="forget the journal")
    found.add_argument("--write", action="store_true", help="docs/calibration.md; runs nothing")
    options = found.parse_args(argv)
    if options.write:
        return write_page(RESULTS / "calibration.json")
    quick = "-quick" * options.quick
    journal = JOURNAL.with_stem(f"calibration{quick}")
    if options.journal:
        journal = ROOT / options.journal
    if options.fresh:
        journal.unlink(missing_ok=True)
    problems = QUICK if options.quick else CELLS
    if options.problems:
        problems = options.problems.split(",")
    methods = options.methods.split(";") if options.methods else list(METHODS)
    budgets = BUDGETS[:1] if options.quick else BUDGETS
    if options.budgets:
        budgets = options.budgets.split(",")
    for names, there_are in ((problems, CELLS), (methods, METHODS), (budgets, BUDGETS)):
        for name in names:
            if name not in there_are:
                found.error(f"no {name!r}; there are {', '.join(there_are)}")
    run_cells(cells(methods, problems, budgets), journal, options)
    path = RESULTS / f"calibration{quick}.json"
    record = write_record(path, read_journal(journal).values())
    show_summary(record)
    return record


if __name__ == "__main__":
    main()
