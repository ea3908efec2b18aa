"""Programs that branch, beside NumPyro's DCC and SDVI at the same number of evaluations.

The default method decides itself how much it spends; the others get as much, a gradient counting as
3, in equal shares for all branches that they find. The errors are the root mean squares over seeds
of the probability of each branch (the largest is shown) and of every output, as multiples of its
truth, with standard errors. A peer that cannot run a program has its message in place of numbers.

    python -m benchmarks.peers.branches --quick
    python -m benchmarks.peers.branches --write  # the table of docs/peers.md, from the record
"""

import functools
import math
import tempfile
import time
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.contrib.stochastic_support import DCC, SDVI
from numpyro.handlers import condition, substitute
from numpyro.infer import MCMC

from benchmarks.measure import ROOT, parser, read_results, show, write_record
from benchmarks.peers.default import sum_over_branches
from benchmarks.peers.protocol import GRADIENT_COST
from problems.branching import BRANCHING_PROBLEMS

RECORD = "branches"
PAGE = ROOT / "docs" / "peers.md"
BEGIN, END = "<!-- branches, from the record -->", "<!-- end of branches -->"
# `learning_walk` can be asked for, too: it takes the peers far longer than the others.
PROBLEMS = ("two_models", "polynomial", "components", "walk")
NUM_SEEDS, NUM_QUICK_SEEDS = 10, 3
# Prior draws that find the branches; not counted. The walks have infinitely many: there it is
# NumPyro's default.
NUM_SEARCHES = 100
NUM_WALK_SEARCHES = 1_000
NUM_WARMUP = 500
# Draws that size a run, and the share of a budget that SDVI has for its ELBO and for averages.
NUM_PILOT = 200
ELBO_SHARE = 0.05


def _branch_key(values):
    """How NumPyro names a branch."""
    return ",".join(str(value) for value in values.values())


def _num_searches(problem):
    return NUM_WALK_SEARCHES if "walk" in problem.name else NUM_SEARCHES


def averages(problem, values, draws):
    """The mean of every output over draws of a branch."""

    @jax.jit
    @jax.vmap
    def outputs(sample):
        model = substitute(condition(problem.model, data=values), data=sample)
        return {name: jnp.asarray(f, float) for name, f in model(*problem.args).items()}

    return {name: float(np.mean(f)) for name, f in outputs(draws).items()}


def combined(problem, weights, means):
    """Probabilities by branch, in the problem's order, and the outputs."""
    keys = [_branch_key(branch.values) for branch in problem.branches]
    shares = [float(weights.get(key, 0.0)) for key in keys]
    outputs = {
        name: math.fsum(
            share * means[key][name]
            for key, share in zip(keys, shares, strict=True)
            if key in means
        )
        for name in problem.value
    }
    return shares, outputs


class CountingDCC(DCC):
    """DCC that counts the leapfrog steps of its chains."""

    num_gradients = 0

    def _run_inference(self, rng_key, branching_trace, *args, **kwargs):
        line = condition(self.model, data=branching_trace)
        mcmc = MCMC(self.kernel_cls(line), **self.mcmc_kwargs)
        warmup_key, rng_key = jax.random.split(rng_key)
        fields = ("num_steps",)
        mcmc.warmup(warmup_key, *args, extra_fields=fields, collect_warmup=True, **kwargs)
        self.num_gradients += int(mcmc.get_extra_fields()["num_steps"].sum())
        mcmc.run(rng_key, *args, extra_fields=fields, **kwargs)
        self.num_gradients += int(mcmc.get_extra_fields()["num_steps"].sum())
        return mcmc.get_samples()


def _dcc(problem, seed, size):
    settings = {"num_warmup": NUM_WARMUP, "num_samples": size, "progress_bar": False}
    dcc = CountingDCC(problem.model, mcmc_kwargs=settings, num_slp_samples=_num_searches(problem))
    result = dcc.run(jax.random.key(seed), *problem.args)
    values = {_branch_key(branch.values): branch.values for branch in problem.branches}
    means = {key: averages(problem, values[key], draws) for key, draws in result.samples.items()}
    cost = GRADIENT_COST * dcc.num_gradients + size * len(result.samples)
    return *combined(problem, result.slp_weights, means), cost


@functools.cache
def _dcc_size(name, budget):
    """Draws for a budget, by what a small run costs."""
    costs = [_dcc(BRANCHING_PROBLEMS[name], 10_000, size)[2] for size in (NUM_PILOT, 2 * NUM_PILOT)]
    per_draw = max((costs[1] - costs[0]) / NUM_PILOT, 1.0)
    return max(NUM_PILOT, int(NUM_PILOT + (budget - costs[0]) / per_draw))


def dcc(problem, seed, budget):
    return _dcc(problem, seed, _dcc_size(problem.name, budget))


class SharingSDVI(SDVI):
    """SDVI that gives every branch that it finds the same share of a budget."""

    budget = 0

    def _find_slps(self, rng_key, *args, **kwargs):
        found = super()._find_slps(rng_key, *args, **kwargs)
        per_branch = self.budget / len(found)
        self.combine_elbo_particles = int(ELBO_SHARE * per_branch)
        self.svi_num_steps = int((per_branch - self.combine_elbo_particles) / GRADIENT_COST)
        return found


def sdvi(problem, seed, budget):
    method = SharingSDVI(
        problem.model,
        numpyro.optim.Adam(step_size=0.001),
        num_slp_samples=_num_searches(problem),
    )
    method.budget = budget
    result = method.run(jax.random.key(seed), *problem.args)
    values = {_branch_key(branch.values): branch.values for branch in problem.branches}
    means = {}
    for number, (key, (guide, parameters)) in enumerate(result.guides.items()):
        draws = guide.sample_posterior(
            jax.random.fold_in(jax.random.key(seed), number), parameters, sample_shape=(10_000,)
        )
        means[key] = averages(problem, values[key], draws)
    per_branch = GRADIENT_COST * method.svi_num_steps + method.combine_elbo_particles
    cost = len(result.guides) * per_branch
    return *combined(problem, result.slp_weights, means), cost


def _root_mean_square(errors):
    """Over seeds, with its standard error."""
    squares = np.asarray(errors) ** 2
    found = math.sqrt(squares.mean())
    spread = squares.std(ddof=1) / math.sqrt(squares.size) if squares.size > 1 else math.inf
    return [found, float(spread / (2 * found)) if found else 0.0]


def errors(problem, found):
    """Root mean squares over seeds: of the worst branch, and of every output relative to it."""
    shares = np.asarray([run["probabilities"] for run in found])
    off = shares - list(problem.probabilities.values())
    worst = int((off**2).mean(axis=0).argmax())
    relative = {
        name: _root_mean_square([run["outputs"][name] / truth - 1 for run in found])
        for name, truth in problem.value.items()
    }
    return _root_mean_square(off[:, worst]), relative


def _timed(function, *args):
    started = time.perf_counter()
    shares, outputs, cost = function(*args)
    seconds = time.perf_counter() - started
    return {"probabilities": shares, "outputs": outputs, "cost": int(cost), "seconds": seconds}


def _row(problem, peer, runs):
    worst, relative = errors(problem, runs)
    found = {"probability_error": worst, "relative_errors": relative, "runs": runs}
    return {"problem": problem.name, "peer": peer} | found


def _row_of_peer(problem, peer, seeds, budget):
    """What a peer finds, or the message with which it ends."""
    try:
        runs = []
        for seed in seeds:
            runs.append(_timed(peer, problem, seed, budget))
            # Every branch of every run has compiled functions of its own, which pile up.
            jax.clear_caches()
    except Exception as error:  # noqa: BLE001 - whatever it is, it stands in the table
        last = traceback.extract_tb(error.__traceback__)[-1]
        failure = f"{type(error).__name__}: {error}".strip().rstrip(":")
        where = f"{Path(last.filename).name}, {last.name}: {last.line}"
        return {"problem": problem.name, "peer": peer.__name__, "failure": failure, "where": where}
    return _row(problem, peer.__name__, runs)


def main(argv=None):
    found = parser(__doc__)
    found.add_argument("--problems", default=",".join(PROBLEMS))
    found.add_argument("--peers", default="dcc,sdvi", help="beside the default method")
    found.add_argument("--seeds", type=int, help="how many, in place of 10, or 3 with --quick")
    found.add_argument("--write", action="store_true", help="write the table, and run nothing")
    options = found.parse_args(argv)
    if options.write:
        return write_page(read_results(RECORD, options.quick))
    jax.config.update("jax_enable_x64", True)
    with tempfile.TemporaryDirectory() as folder:
        # Every run of a peer compiles again what it compiled for the seed before.
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        rows = _run(options)
    show("Programs that branch", _COLUMNS, map(_cells, rows))
    return rows


def _run(options):
    seeds = range(options.seeds or (NUM_QUICK_SEEDS if options.quick else NUM_SEEDS))
    started, chosen = time.perf_counter(), options.problems.split(",")
    earlier = read_results(RECORD, options.quick) or []
    peers = {"dcc": dcc, "sdvi": sdvi}
    wanted = [peers[name] for name in options.peers.split(",")]
    again = {"estimand", *options.peers.split(",")}
    rows = [row for row in earlier if row["problem"] not in chosen or row["peer"] not in again]
    for name in chosen:
        problem = BRANCHING_PROBLEMS[name]
        ours = [_timed(sum_over_branches, problem, seed) for seed in seeds]
        budget = int(np.median([run["cost"] for run in ours]))
        rows.append(_row(problem, "estimand", ours))
        for peer in wanted:
            rows.append(_row_of_peer(problem, peer, seeds, budget))
            write_record(RECORD, options.quick, time.perf_counter() - started, rows)
    return rows


_COLUMNS = (
    "problem",
    "peer",
    "seeds",
    "branches",
    "error of P(branch)",
    "errors of outputs",
    "evaluations",
    "seconds",
)


def _cells(row):
    if "failure" in row:
        return row["problem"], row["peer"], "–", "–", "–", row["failure"], "–", "–"
    outputs = ", ".join(f"{name} {_text(found)}" for name, found in row["relative_errors"].items())
    runs = row["runs"]
    cost, seconds = (float(np.median([run[key] for run in runs])) for key in ("cost", "seconds"))
    counts = {sum(share > 0 for share in run["probabilities"]) for run in runs}
    branches = "–".join(map(str, sorted({min(counts), max(counts)})))
    worst = _text(row["probability_error"])
    seeds = str(len(runs))
    return row["problem"], row["peer"], seeds, branches, worst, outputs, cost, seconds


def write_page(rows):
    """The table of the documentation, between its marks."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + " --- |" * len(_COLUMNS)]
    order = {name: number for number, name in enumerate(BRANCHING_PROBLEMS)}
    peers = ("estimand", "dcc", "sdvi")
    for row in sorted(rows, key=lambda row: (order[row["problem"]], peers.index(row["peer"]))):
        *texts, cost, seconds = _cells(row)
        numbers = [x if isinstance(x, str) else f"{x:.2g}" for x in (cost, seconds)]
        lines.append("| " + " | ".join([*texts, *numbers]) + " |")
    PAGE.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]))


def _text(found):
    is_the_same = found[1] < 1e-9 * found[0]
    return f"{found[0]:.1e} always" if is_the_same else f"{found[0]:.1e} ± {found[1]:.0e}"


if __name__ == "__main__":
    main()
