"""python -m benchmarks.run: writes results/<name>.json (results/<name>-quick.json with --quick).

Options that are not this script's go to the benchmarks, as NAME=VALUE: coverage --processes=2.
"""

import argparse
import time

from benchmarks import (
    accelerator,
    accuracy,
    adversarial,
    cold_start,
    coverage,
    dimension,
    discrete,
    doors,
    events,
    evidence,
    gradient_mode,
    high_dimension,
    lifting,
    many,
    missed_modes,
    people,
    price,
    rows,
    scaling,
    throughput,
    wide,
)
from benchmarks.measure import write_record
from benchmarks.peers import branches, sweep

BENCHMARKS = {
    "accelerator": accelerator.main,
    "accuracy": accuracy.main,
    "adversarial": adversarial.main,
    "coverage": coverage.main,
    "dimension": dimension.main,
    "high_dimension": high_dimension.main,
    "wide": wide.main,
    "events": events.main,
    "evidence": evidence.main,
    "peers": sweep.main,
    "branches": branches.main,
    "discrete": discrete.main,
    "doors": doors.main,
    "many": many.main,
    "missed_modes": missed_modes.main,
    "cold_start": cold_start.main,
    "people": people.main,
    "price": price.main,
    "rows": rows.main,
    "scaling": scaling.main,
    "throughput": throughput.main,
    "lifting": lifting.main,
    "gradient_mode": gradient_mode.main,
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer repetitions")
    options, others = parser.parse_known_args()
    for name in options.names:
        if name not in BENCHMARKS:
            parser.error(f"no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    for name in options.names or BENCHMARKS:
        started = time.perf_counter()
        results = BENCHMARKS[name]((["--quick"] if options.quick else []) + others)
        write_record(name, options.quick, time.perf_counter() - started, results)


if __name__ == "__main__":
    main()
