"""The default method on an accelerator and on the processor beside it.

Each problem runs in a process of its own on each device: a first answer to the error asked for with
compilation, the same with other keys, how precise twenty seconds are, and how many evaluations a
second the stages make. Run it on a machine that has both:

    python -m benchmarks.run accelerator --platforms=cpu,cuda
"""

import json
import logging
import math
import os
import subprocess
import sys
import time

import numpy as np

from benchmarks.measure import ROOT, parser, read_results, show, write_record

# The relative error asked for: in 100 dimensions nothing reaches 0.01 %.
GOALS = {
    "posterior_predictive": 1e-4,
    "banana": 1e-4,
    "sir": 1e-4,
    "radon": 1e-4,
    "counts_100": 0.05,
}
SECONDS = 20
NUM_KEYS = 2
LIMIT = 400


class StageClock(logging.Handler):
    """Seconds and evaluations of each stage, from what the library logs."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.stages, self.last = {}, None

    def emit(self, record):
        if record.msg.startswith("%s; %s so far"):
            stage, spent = record.args[0], int(record.args[1].split()[0].replace(",", ""))
            self.begin(stage, spent)

    def begin(self, stage, spent):
        now = time.perf_counter()
        if self.last is not None:
            name, since, before = self.last
            seconds, evaluations = self.stages.get(name, (0.0, 0))
            self.stages[name] = (seconds + now - since, evaluations + spent - before)
        self.last = (stage.split(" ")[0], now, spent)


def asked(name):
    """The bound program of a problem and its truth, NaN where it is not known exactly."""
    if name == "counts_100":
        from benchmarks import wide

        model, data = wide.program(name)
        import estimand as ep

        return ep.expectation(model)(*data)[1], math.nan
    from problems.known import known

    problem = known(name)
    return problem.expectation, float(problem.values[0])


def call(bound, truth, method, key):
    """One estimate as plain numbers."""
    import estimand as ep

    clock, logger = StageClock(), logging.getLogger("estimand")
    logger.addHandler(clock)
    logger.setLevel(logging.DEBUG)
    started = time.perf_counter()
    result = ep.estimate_expectation(bound, method, rng_key=key, throw=False)
    taken = time.perf_counter() - started
    clock.begin("end", result.num_evaluations + 3 * result.num_gradients)
    logger.removeHandler(clock)
    value, error = float(np.ravel(result.value)[0]), float(np.ravel(result.standard_error)[0])
    return {
        "seconds": taken,
        "status": result.statuses[0].name,
        "value": value,
        "relative_error": error / abs(value) if value else math.inf,
        "z": (value - truth) / error if error > 0 else math.nan,
        "evaluations": result.num_evaluations,
        "gradients": result.num_gradients,
        "stages": clock.stages,
        "notes": list(result.run.notes),
    }


def child(name, seconds):
    import jax

    import estimand as ep

    bound, truth = asked(name)
    goal = GOALS[name]
    precise = ep.Auto(relative_error=goal, max_evaluations=10**9, max_seconds=2 * seconds)
    endless = ep.Auto(relative_error=1e-12, max_evaluations=10**11, max_seconds=seconds)
    device = jax.devices()[0].device_kind
    found = {"device": device, "goal": goal, "cold": call(bound, truth, precise, 0)}
    found["warm"] = [call(bound, truth, precise, 1 + key) for key in range(NUM_KEYS)]
    found["timed"] = call(bound, truth, endless, 100)
    print(json.dumps(found))


def run_child(name, platform, seconds):
    command = [sys.executable, "-m", "benchmarks.accelerator", "--child", name, str(seconds)]
    environment = os.environ | {"JAX_PLATFORMS": platform, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    row = {"problem": name, "platform": platform}
    try:
        run = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return row | {"failure": f"more than {LIMIT} s"}
    if run.returncode:
        return row | {"failure": run.stderr.strip().splitlines()[-3:]}
    return row | json.loads(run.stdout.strip().splitlines()[-1])


def precision_per_second(run):
    """Of a run of fixed time: 1 over relative variance and seconds."""
    return 1 / (run["relative_error"] ** 2 * run["seconds"])


def main(argv=None):
    options_parser = parser(__doc__)
    options_parser.add_argument("--problems", default=",".join(GOALS))
    options_parser.add_argument("--platforms", default="cpu,cuda")
    options = options_parser.parse_args(argv)
    seconds = SECONDS // 4 if options.quick else SECONDS
    started, rows = time.perf_counter(), read_results("accelerator", options.quick) or []
    for name in options.problems.split(","):
        for platform in options.platforms.split(","):
            row = run_child(name, platform, seconds)
            key = (name, platform)
            rows = [old for old in rows if (old["problem"], old["platform"]) != key] + [row]
            write_record("accelerator", options.quick, time.perf_counter() - started, rows)
            print(json.dumps(row)[:1500], flush=True)
    show(
        f"To the error asked for, and what {seconds} s give",
        (
            "problem",
            "device",
            "asked",
            "first, s",
            "again, s",
            "evaluations",
            "error",
            "precision / s",
        ),
        (
            (
                row["problem"],
                row["device"],
                row["goal"],
                row["cold"]["seconds"],
                float(np.median([run["seconds"] for run in row["warm"]])),
                row["warm"][0]["evaluations"],
                row["timed"]["relative_error"],
                precision_per_second(row["timed"]),
            )
            for row in rows
            if "failure" not in row
        ),
    )
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], float(sys.argv[3]))
    else:
        main()
