"""What the benchmarks share: options, timing, tables, and the records of what ran."""

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def parser(description, *, processes=False):
    """The options that every benchmark has, to which some add their own."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--quick", action="store_true", help="smaller sizes, fewer repetitions")
    if processes:
        found.add_argument("--processes", type=int, default=1, help="processes that share the runs")
    return found


def arguments(argv, description):
    return parser(description).parse_args(argv)


def record_path(name, quick):
    return RESULTS / f"{name}{'-quick' if quick else ''}.json"


def run_child(module, contestant, name, seed, limit):
    """What a fresh process of a benchmark says of one model and seed, or why it said nothing."""
    command = [sys.executable, "-m", module, "--child", contestant, name, str(seed)]
    row = {"contestant": contestant, "model": name, "seed": seed}
    try:
        child = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return row | {"failure": f"more than {limit} s"}
    if child.returncode:
        return row | {"failure": child.stderr.strip().splitlines()[-1:]}
    return row | json.loads(child.stdout.strip().splitlines()[-1])


def write_record(name, quick, taken, results):
    """Writes what a benchmark found, how long it took and what it ran on."""
    RESULTS.mkdir(exist_ok=True)
    record = {
        "benchmark": name,
        "quick": quick,
        "seconds": taken,
        "environment": environment(),
        "results": results,
    }
    record_path(name, quick).write_text(json.dumps(record, indent=1) + "\n")


def read_results(name, quick):
    """The results of an earlier run; None if there was none."""
    path = record_path(name, quick)
    return json.loads(path.read_text())["results"] if path.exists() else None


def seconds(function, *args):
    """Wall-clock seconds of one call, until its arrays are there."""
    import jax

    started = time.perf_counter()
    jax.block_until_ready(function(*args))
    return time.perf_counter() - started


def interleaved(contestants, repetitions):
    """Seconds of each contestant (a dict of functions), taking turns so that noise hits all."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repetitions):
        for name, function in contestants.items():
            taken[name].append(seconds(function))
    return taken


def paired_ratio(numerators, denominators):
    """Median of the ratios of measurements made in the same round."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


@contextlib.contextmanager
def precision(name):
    """Runs its body in "float32" or "float64"."""
    import jax

    with jax.enable_x64(name == "float64"):
        yield


def show(title, columns, rows):
    """Prints a table; columns after the first are right-aligned."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    Console(width=118).print(table)


def _cell(value):
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def environment():
    """Versions, cores and device; nothing that names the machine."""
    import jax

    import estimand

    packages = ("jax", "jaxlib", "numpyro", "numpy")
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
        "estimand": estimand.__version__,
        "cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cpu_count_total": os.cpu_count(),
        "device": jax.devices()[0].device_kind,
    }
