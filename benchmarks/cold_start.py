"""From nothing to an answer: fresh Python processes, processor seconds, in turns with NUTS.

Every run is a process of its own that imports the library (the imports of the problem's own module
are not counted), answers a first time and then, with the compiled code, three times more. The
default method takes turns with NumPyro's NUTS (500 warm-up steps, 1,000 draws, one chain) on the
same model. Processor seconds are those of all threads; wall-clock seconds stand beside them.

Four tables: six problems and figure 1 without a cache on disk; the same with a cache that an
earlier process has filled; 1, 5 and 20 outputs; and programs made in a loop, each with another
constant, against one program that has it as an argument.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
NUM_WARM = 3
PROBLEMS = {
    "figure 1": "figure1:figure1",
    "banana": "banana:banana",
    "four-branch": "reliability:four_branch",
    "Gaussian, 10-d": "gaussian:posterior_predictive",
    "SIR": "sir:sir",
    "radon, 43-d": "radon:radon",
    "eight schools, 5 outputs": "eight_schools:eight_schools",
}


# --- the child: one contestant, one problem; it prints its seconds as JSON ---


def child(contestant, problem):
    started = clock()
    import numpyro  # noqa: F401

    if contestant != "nuts":
        import estimand  # noqa: F401
    else:
        from numpyro.infer import MCMC, NUTS  # noqa: F401
    imported = clock()
    answer = CONTESTANTS[contestant](problem)
    began = clock()
    figures = answer()
    cold = clock()
    warm = []
    for _ in range(NUM_WARM):
        before = clock()
        answer()
        warm.append(since(before))
    report = {
        "import": since(started, imported),
        "cold": [a + b for a, b in zip(since(started, imported), since(began, cold), strict=True)],
        "warm": [statistics.median(column) for column in zip(*warm, strict=True)],
    }
    print(json.dumps(report | figures))


def clock():
    """Processor and wall-clock seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, time.perf_counter()


def since(before, now=None):
    return [b - a for a, b in zip(before, clock() if now is None else now, strict=True)]


def model_of(problem):
    """A model and its data by name."""
    import importlib

    module_name, _, name = PROBLEMS[problem].partition(":")
    module = importlib.import_module(f"problems.{module_name}")
    return getattr(module, name), _data(problem, module)


def _data(problem, module):
    if problem == "figure 1":
        return (2.0,)
    if problem == "Gaussian, 10-d":
        return (module.data(),)
    if problem == "SIR":
        return (module.DATA,)
    if problem == "radon, 43-d":
        return tuple(module.load()[:3])
    if problem.startswith("eight schools"):
        return module.EFFECTS, module.ERRORS
    return ()


def _estimand(problem):
    import estimand as ep
    from estimand.runtime import CompilationClock

    model, data = model_of(problem)
    program = ep.expectation(model)

    def answer():
        with CompilationClock() as compiling:
            result = ep.estimate_expectation(program(*data), throw=False)
        return {
            "programs": compiling.num_compilations,
            "evaluations": result.num_evaluations,
            "status": result.status.name,
        }

    return answer


def _outputs(count):
    """Eight schools' effects and their events: up to 24 outputs of one model."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    import estimand as ep
    from estimand.runtime import CompilationClock
    from problems.eight_schools import EFFECTS, ERRORS

    @ep.expectation
    def several(y, sigma):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfNormal(5.0))
        with numpyro.plate("schools", len(y)):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("y", dist.Normal(theta, sigma), obs=y)
        events = [theta > 15.0, theta < -5.0]
        return jnp.concatenate([theta**2, *(event * 1.0 for event in events)])[: int(count)]

    def answer():
        with CompilationClock() as compiling:
            result = ep.estimate_expectation(several(EFFECTS, ERRORS), throw=False)
        return {"programs": compiling.num_compilations, "status": result.status.name}

    return answer


def _loop(kind):
    """P(x > c | y = 2) for ten c: a closure for each, or one program with c as its argument."""
    import numpyro
    import numpyro.distributions as dist

    import estimand as ep

    def made(c):
        def program(y):
            x = numpyro.sample("x", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
            return x > c

        return ep.expectation(program)

    @ep.expectation
    def one(y, c):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x > c

    def memory():
        pages = Path("/proc/self/statm")
        return int(pages.read_text().split()[1]) * 4096 / 2**20 if pages.exists() else 0.0

    def answer():
        sizes = []
        for number in range(10):
            c = 2.0 + 0.3 * number
            bound = made(c)(2.0) if kind == "closures" else one(2.0, c)
            ep.estimate_expectation(bound, throw=False)
            sizes.append(memory())
        return {"memory_after_two": sizes[1], "memory_after_ten": sizes[-1]}

    return answer


def _nuts(problem):
    import jax
    from numpyro.infer import MCMC, NUTS

    model, data = model_of(problem)
    mcmc = MCMC(NUTS(model), num_warmup=500, num_samples=1000, progress_bar=False)

    def answer():
        mcmc.run(jax.random.key(0), *data)
        jax.block_until_ready(mcmc.get_samples())
        return {}

    return answer


CONTESTANTS = {"nuts": _nuts, "default": _estimand, "outputs": _outputs, "loop": _loop}


# --- the parent ---


def run_child(contestant, problem, cache=None):
    # Bytecode as an installed library has it.
    unwanted = ("JAX_COMPILATION_CACHE", "PYTHONDONTWRITEBYTECODE")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
    environment["ESTIMAND_CACHE"] = "off" if cache is None else str(cache)
    command = [sys.executable, "-m", "benchmarks.cold_start", "--child", contestant, str(problem)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{contestant} on {problem} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def medians(runs, part):
    """Median processor and wall-clock seconds."""
    return [statistics.median(column) for column in zip(*(run[part] for run in runs), strict=True)]


def cold_table(problems, repetitions, cache=None):
    """The default method in turns with NUTS; with a cache, in processes after the first."""
    from benchmarks.measure import show

    rows, figures = [], {}
    for problem in problems:
        if cache is not None:
            run_child("default", problem, cache)
        runs = {"nuts": [], "default": []}
        for _ in range(repetitions):
            runs["nuts"].append(run_child("nuts", problem))
            runs["default"].append(run_child("default", problem, cache))
        nuts, ours = (medians(runs[name], "cold") for name in ("nuts", "default"))
        nuts_warm, warm = (medians(runs[name], "warm") for name in ("nuts", "default"))
        last = runs["default"][-1]
        figures[problem] = {
            "nuts": {"cold": nuts, "warm": nuts_warm, "import": medians(runs["nuts"], "import")},
            "default": {"cold": ours, "warm": warm, "import": medians(runs["default"], "import")},
            "cold_over_nuts": ours[0] / nuts[0],
            "programs": last["programs"],
            "evaluations": last["evaluations"],
            "status": last["status"],
        }
        rows.append((problem, nuts[0], ours[0], ours[0] / nuts[0], nuts[1], ours[1], nuts_warm[0],
                     warm[0], last["programs"], last["status"]))  # fmt: skip
    columns = ("problem", "NUTS cold", "ours cold", "ratio", "NUTS wall", "ours wall", "NUTS warm",
               "ours warm", "programs", "status")  # fmt: skip
    title = "without a cache on disk" if cache is None else "with a cache that is filled"
    show(f"First answers {title}: processor seconds, medians of {repetitions}", columns, rows)
    return figures


def outputs_table(counts):
    from benchmarks.measure import show

    runs = {count: run_child("outputs", count) for count in counts}
    rows = [
        (count, run["cold"][0], run["warm"][0], run["programs"], run["status"])
        for count, run in runs.items()
    ]
    columns = ("outputs", "cold", "warm", "programs", "status")
    show("Several outputs of one model: processor seconds", columns, rows)
    return runs


def loop_table():
    from benchmarks.measure import show

    runs = {kind: run_child("loop", kind) for kind in ("arguments", "closures")}
    ratio = runs["closures"]["cold"][0] / runs["arguments"]["cold"][0]
    rows = [
        (kind, run["cold"][0], run["warm"][0], run["memory_after_two"], run["memory_after_ten"])
        for kind, run in runs.items()
    ]
    columns = ("ten programs with", "first ten", "next ten", "MiB after two", "MiB after ten")
    show(f"Ten thresholds: processor seconds; ratio {ratio:.2f}", columns, rows)
    return runs | {"ratio": ratio}


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--child"]:
        return child(*argv[1:])
    from benchmarks.measure import arguments

    options = arguments(argv, __doc__)
    repetitions = 1 if options.quick else 3
    for name in ("nuts", "default"):
        run_child(name, "figure 1")  # not counted: fills the disk cache and writes bytecode
    with tempfile.TemporaryDirectory() as cache:
        return {
            "cold": cold_table(PROBLEMS, repetitions),
            "cached": cold_table(PROBLEMS, repetitions, cache),
            "outputs": outputs_table((1, 5, 20)),
            "loop": loop_table(),
        }


if __name__ == "__main__":
    main()
