"""Runs of a method over many seeds, in this process or in several."""

import contextlib
import functools
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

import jax
import numpy as np

import estimand as ep
from benchmarks.measure import parser, read_results, write_record
from problems.known import known

jax.config.update("jax_enable_x64", True)

LEVELS = (0.5, 0.8, 0.95, 0.99)


def cost(result):
    """Evaluations, a gradient counting as three."""
    return result.num_evaluations + 3 * result.num_gradients


def run(name, seed, method=None):
    """One run of a method (the default one if None) as plain numbers; lists are by output."""
    problem = known(name)
    started = time.perf_counter()
    result = ep.estimate_expectation(problem.expectation, method, rng_key=seed, throw=False)
    taken = time.perf_counter() - started
    values = _flat(result.value)
    covered = {}
    for level in LEVELS:
        low, high = map(_flat, result.interval(level))
        covered[level] = ((low <= problem.values) & (problem.values <= high)).tolist()
    return {
        "seed": seed,
        "error": ((values - problem.values) / problem.scales).tolist(),
        "standard_error": (_flat(result.standard_error) / problem.scales).tolist(),
        "status": [status.name for status in result.statuses],
        "covered": covered,
        "cost": cost(result),
        "seconds": taken,
        "run_seconds": result.run_seconds,
    }


def _flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@contextlib.contextmanager
def workers(count):
    """Gives over_seeds(name, num_seeds, method=None) -> list of runs, on so many processes."""
    if count == 1:
        yield functools.partial(_over_seeds, map)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=spawn) as executor:
        yield functools.partial(_over_seeds, executor.map)


def _over_seeds(mapping, name, num_seeds, method=None):
    return list(mapping(functools.partial(run, name, method=method), range(num_seeds)))


def summary(runs, output=0):
    """Medians over runs, and the share of them with status ok, for one output."""
    errors = np.array([item["error"][output] for item in runs])
    return {
        "runs": len(runs),
        "ok": sum(item["status"][output] == "ok" for item in runs),
        "median_rse": float(np.median(errors**2)),
        "median_cost": float(np.median([item["cost"] for item in runs])),
        "median_seconds": float(np.median([item["seconds"] for item in runs])),
    }


def over_problems(record, argv, description, problems, seeds, rows_of):
    """Runs many seeds of each problem, as the command line asks, and writes the record as it goes.

    `seeds` are the numbers of them in a full and in a quick run; `rows_of(over_seeds, name,
    num_seeds)` gives what is kept of a problem.
    """
    options_parser = parser(description, processes=True)
    options_parser.add_argument("--problems", help=f"some of {','.join(problems)}")
    options_parser.add_argument("--resume", action="store_true", help="keep what is in the record")
    options_parser.add_argument("--seeds", type=int, help="{} by default, {} quick".format(*seeds))
    options = options_parser.parse_args(argv)
    names = options.problems.split(",") if options.problems else list(problems)
    for name in names:
        if name not in problems:
            options_parser.error(f"no problem {name!r}; there are {', '.join(problems)}")
    num_seeds = options.seeds or seeds[options.quick]
    started, rows = time.perf_counter(), []
    if options.resume or options.problems:
        rows = read_results(record, options.quick) or []
    with workers(options.processes) as over_seeds:
        for name in names:
            if options.resume and any(row["problem"] == name for row in rows):
                continue
            found = list(rows_of(over_seeds, name, num_seeds))
            rows = [row for row in rows if row["problem"] != name] + found
            rows.sort(key=lambda row: list(problems).index(row["problem"]))
            write_record(record, options.quick, time.perf_counter() - started, rows)
            print(found, flush=True)
    return rows
