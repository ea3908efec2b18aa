"""Runs the benchmarks and writes results/<name>.json (results/<name>-quick.json with --quick)."""

import argparse
import json
import pathlib
import time

import accuracy
import cold_start
import coverage
import gradient_mode
import throughput
from measure import environment

BENCHMARKS = {
    "accuracy": accuracy.main,
    "coverage": coverage.main,
    "cold_start": cold_start.main,
    "throughput": throughput.main,
    "gradient_mode": gradient_mode.main,
}
RESULTS = pathlib.Path(__file__).parent / "results"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer repetitions")
    options = parser.parse_args()
    for name in options.names:
        if name not in BENCHMARKS:
            parser.error(f"no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    RESULTS.mkdir(exist_ok=True)
    for name in options.names or BENCHMARKS:
        started = time.perf_counter()
        results = BENCHMARKS[name](["--quick"] if options.quick else [])
        record = {
            "benchmark": name,
            "quick": options.quick,
            "seconds": time.perf_counter() - started,
            "environment": environment(),
            "results": results,
        }
        path = RESULTS / f"{name}{'-quick' if options.quick else ''}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
