"""One problem with one peer, in its own process: prints a line of JSON for each result.

Small runs find the size that the budget pays for; then come the runs of all seeds.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import math
import resource
import sys
import time
import warnings

from benchmarks.peers.table import MODULES

PILOT_SEED = 1_000_000


class Clock:
    """Wall-clock and CPU seconds since it was last read (compilers included)."""

    def __init__(self):
        self._last = self._now()

    def read(self):
        now = self._now()
        wall, cpu = (after - before for after, before in zip(now, self._last, strict=True))
        self._last = now
        return {"seconds": wall, "cpu_seconds": cpu}

    @staticmethod
    def _now():
        own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
        return time.perf_counter(), cpu


def say(**known):
    print(json.dumps(known), file=sys.__stdout__, flush=True)


def affordable(run, sizes, budget, cpu_seconds, clock):
    """The size for a cost, or for seconds where these end first; from three small runs.

    The first run compiles, and with it what a fresh process takes is known; the last is warm.
    """
    taken, costs = [], []
    for number, size in enumerate((*sizes, sizes[1])):
        costs.append(max(1, run(size, PILOT_SEED + number).cost))
        taken.append(clock.read())
    reached = min(budget, costs[2] * cpu_seconds / taken[2]["cpu_seconds"])
    slope = max((costs[1] - costs[0]) / (sizes[1] - sizes[0]), costs[0] / sizes[0] / 10)
    size = max(sizes[0], round(sizes[0] + (reached - costs[0]) / slope))
    limited_by = "evaluations" if reached == budget else "seconds"
    say(size=size, limited_by=limited_by, compiling=taken[0], pilot_costs=costs)
    return size


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problem")
    parser.add_argument("peer", choices=MODULES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--budget", type=float, default=1e5, help="evaluations of a run")
    parser.add_argument("--cpu-seconds", type=float, default=10.0, help="of a run at the most")
    parser.add_argument("--limit", type=int, default=3_600, help="CPU seconds of the process")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (options.limit, options.limit))
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        work(options)


def work(options):
    peer = importlib.import_module(f"benchmarks.peers.{MODULES[options.peer]}").PEERS[options.peer]
    from benchmarks.peers.problems import ALL

    problem = ALL[options.problem]
    versions = {name: importlib.metadata.version(name) for name in peer.distributions}
    say(title=peer.title, counting=peer.counting, versions=versions)
    if refusal := peer.refusal(problem):
        say(refusal=refusal)
        return
    clock = Clock()
    run, size = peer.prepare(problem), None
    if peer.sizes:
        size = affordable(run, peer.sizes, options.budget, options.cpu_seconds, clock)
    for seed in range(options.seeds):
        say(run={"seed": seed} | attempt(run, size, seed) | clock.read())


def attempt(run, size, seed):
    """A run as plain numbers; one that raises is a failed one."""
    try:
        outcome = run(size, seed)
    except Exception as error:  # noqa: BLE001
        return {"value": None, "cost": None, "note": f"{type(error).__name__}: {error}"[:200]}
    value = outcome.value if math.isfinite(outcome.value) else None
    return {"cost": outcome.cost} | outcome._asdict() | {"value": value}


if __name__ == "__main__":
    main()
