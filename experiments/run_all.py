"""Every experiment, two at a time: python -m experiments.run_all [--quick].

Each runs in its own process, which can be interrupted and resumes where it stopped when it is
started again. A quick run writes to build/experiments, with one table of all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from experiments.study import ROOT

# The longest first, so that no core waits for it at the end.
NAMES = ("radon", "sir", "gaussian", "banana")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="minutes instead of hours")
    options = parser.parse_args(argv)
    started = time.perf_counter()
    flags = ["--quick"] if options.quick else []

    def run(name: str) -> None:
        command = [sys.executable, "-m", f"experiments.{name}.run", *flags]
        subprocess.run(command, cwd=ROOT, check=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, NAMES))
    if options.quick:
        folder = ROOT / "build" / "experiments"
        tables = [(folder / name / "results" / "quick.md").read_text() for name in NAMES]
        (folder / "table.md").write_text("\n".join(tables))
        print("\n".join(tables))
        print(f"Table in {folder / 'table.md'}, figures in the folders beside it.")
    print(f"{time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()
