"""From nothing to an answer: figure 1's E[x³ | y = 2] in a fresh Python process.

Our explicit TABI + AnIS and our default method against NumPyro's NUTS with an average over its
draws. Every run is a separate process, without a persistent compilation cache, and the
contestants take turns. Seconds are split into imports, compilation (tracing, lowering and XLA, as
jax.monitoring reports them, merged where they nest), the rest of the work, and the process itself.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONTESTANTS = ("nuts", "explicit", "default")
PARTS = ("import", "compile", "run", "total")


# --- the child: one contestant, one run; it prints its seconds as JSON ---


def child(contestant):
    started = time.perf_counter()
    work = _nuts if contestant == "nuts" else _estimand
    estimate = work(contestant)  # imports everything
    imported = time.perf_counter()

    import jax  # loaded above

    intervals = []

    def record(event, duration_secs, **_):
        if event.startswith("/jax/core/compile/"):
            now = time.perf_counter()
            intervals.append((now - duration_secs, now))

    jax.monitoring.register_event_duration_secs_listener(record)
    worked_from = time.perf_counter()
    figures = estimate()
    worked = time.perf_counter() - worked_from
    compiled = merged_length(intervals)
    report = {"import": imported - started, "compile": compiled, "run": worked - compiled}
    print(json.dumps(report | figures))


def _estimand(contestant):
    import estimand as ep
    from problems.figure1 import figure1

    def estimate():
        program = ep.expectation(figure1)(2.0)
        if contestant == "explicit":
            method = ep.TABI(ep.AnIS(num_samples=1000, num_temperatures=100))
            result = ep.estimate_expectation(program, method, throw=False)
        else:
            result = ep.estimate_expectation(program, throw=False)
        return {
            "value": result.value,
            "standard_error": result.standard_error,
            "status": result.status.name,
            "reported_compile": result.compile_seconds,
        }

    return estimate


def _nuts(_):
    import jax
    from numpyro.infer import MCMC, NUTS

    from problems.figure1 import figure1

    def estimate():
        mcmc = MCMC(NUTS(figure1), num_warmup=500, num_samples=1000, progress_bar=False)
        mcmc.run(jax.random.key(0), 2.0)
        return {"value": float((mcmc.get_samples()["x"] ** 3).mean())}

    return estimate


def merged_length(intervals):
    """Length of the union of intervals: traces nest, and none may count twice."""
    total, covered_until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, covered_until))
        covered_until = max(covered_until, end)
    return total


# --- the parent ---


def run_child(contestant):
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    environment["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    command = [sys.executable, "-m", "benchmarks.cold_start", "--child", contestant]
    started = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    total = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"the {contestant} process failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1]) | {"total": total}


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--child"]:
        return child(argv[1])
    from benchmarks.measure import arguments, paired_ratio, show

    options = arguments(argv, __doc__)
    for contestant in CONTESTANTS:
        run_child(contestant)  # not counted: fills the disk cache and writes bytecode
    runs = {contestant: [] for contestant in CONTESTANTS}
    for _ in range(3 if options.quick else 7):
        for contestant in CONTESTANTS:
            runs[contestant].append(run_child(contestant))

    totals = {name: [run["total"] for run in runs[name]] for name in CONTESTANTS}
    figures, rows = {}, []
    for name in CONTESTANTS:
        figures[name] = {part: statistics.median(run[part] for run in runs[name]) for part in PARTS}
        figures[name]["total_over_nuts"] = paired_ratio(totals[name], totals["nuts"])
        figures[name]["value"] = runs[name][0]["value"]
        rows.append((name, *figures[name].values()))
    columns = ("contestant", *(f"{part} s" for part in PARTS), "total / NUTS", "estimate of 2.5")
    show("Cold start, figure 1: medians of fresh processes", columns, rows)
    return {"precision": "float32", "medians": figures, "runs": runs}


if __name__ == "__main__":
    main()
