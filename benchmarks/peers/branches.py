"""Programs that branch, beside NumPyro's DCC and SDVI at the same number of evaluations.

The default method decides itself how much it spends; the others get as much, a gradient counting as
3, in equal shares for all branches. The errors are the root mean squares over seeds of the
probability of each branch (the largest is shown) and of every output, as multiples of its truth.

    python -m benchmarks.peers.branches --quick
"""

import functools
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.contrib.stochastic_support import DCC, SDVI
from numpyro.handlers import condition, substitute
from numpyro.infer import MCMC

from benchmarks.measure import parser, read_results, show, write_record
from benchmarks.peers.default import sum_over_branches
from benchmarks.peers.protocol import GRADIENT_COST
from problems.branching import BRANCHING_PROBLEMS

RECORD = "branches"
PROBLEMS = ("two_models", "polynomial", "components")
# Prior draws that find the branches; not counted.
NUM_SEARCHES = 100
NUM_WARMUP = 500
# Draws that size a run, and the share of a budget that SDVI has for its ELBO and for averages.
NUM_PILOT = 200
ELBO_SHARE = 0.05


def _branch_key(values):
    """How NumPyro names a branch."""
    return ",".join(str(value) for value in values.values())


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
    dcc = CountingDCC(problem.model, mcmc_kwargs=settings, num_slp_samples=NUM_SEARCHES)
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


def sdvi(problem, seed, budget):
    per_branch = budget / len(problem.branches)
    num_draws = int(ELBO_SHARE * per_branch)
    num_steps = int((per_branch - num_draws) / GRADIENT_COST)
    method = SDVI(
        problem.model,
        numpyro.optim.Adam(step_size=0.001),
        svi_num_steps=num_steps,
        combine_elbo_particles=num_draws,
        num_slp_samples=NUM_SEARCHES,
    )
    result = method.run(jax.random.key(seed), *problem.args)
    values = {_branch_key(branch.values): branch.values for branch in problem.branches}
    means = {}
    for number, (key, (guide, parameters)) in enumerate(result.guides.items()):
        draws = guide.sample_posterior(
            jax.random.fold_in(jax.random.key(seed), number), parameters, sample_shape=(10_000,)
        )
        means[key] = averages(problem, values[key], draws)
    cost = len(result.guides) * (GRADIENT_COST * num_steps + num_draws)
    return *combined(problem, result.slp_weights, means), cost


def errors(problem, found):
    """Root mean squares over seeds: of the worst branch, and of every output relative to it."""
    shares = np.asarray([run["probabilities"] for run in found])
    squares = (shares - list(problem.probabilities.values())) ** 2
    worst = math.sqrt(squares.mean(axis=0).max())
    relative = {
        name: math.sqrt(np.mean([(run["outputs"][name] / truth - 1) ** 2 for run in found]))
        for name, truth in problem.value.items()
    }
    return worst, relative


def _timed(function, *args):
    started = time.perf_counter()
    shares, outputs, cost = function(*args)
    seconds = time.perf_counter() - started
    return {"probabilities": shares, "outputs": outputs, "cost": int(cost), "seconds": seconds}


def main(argv=None):
    found = parser(__doc__)
    found.add_argument("--problems", default=",".join(PROBLEMS))
    options = found.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    seeds, started = range(3 if options.quick else 10), time.perf_counter()
    chosen = options.problems.split(",")
    earlier = read_results(RECORD, options.quick) or []
    rows = [row for row in earlier if row["problem"] not in chosen]
    for name in chosen:
        problem = BRANCHING_PROBLEMS[name]
        ours = [_timed(sum_over_branches, problem, seed) for seed in seeds]
        budget = int(np.median([run["cost"] for run in ours]))
        peers = {"estimand": ours}
        for peer in (dcc, sdvi):
            peers[peer.__name__] = [_timed(peer, problem, seed, budget) for seed in seeds]
        for peer, runs in peers.items():
            worst, relative = errors(problem, runs)
            rows.append(
                {"problem": name, "peer": peer, "probability_error": worst}
                | {
                    "relative_errors": relative,
                    "runs": runs,
                }
            )
            write_record(RECORD, options.quick, time.perf_counter() - started, rows)
    show("Programs that branch", _COLUMNS, map(_cells, rows))
    return rows


_COLUMNS = ("problem", "peer", "error of P(branch)", "errors of outputs", "evaluations", "seconds")


def _cells(row):
    outputs = ", ".join(f"{name} {error:.1e}" for name, error in row["relative_errors"].items())
    cost, seconds = (
        float(np.median([run[key] for run in row["runs"]])) for key in ("cost", "seconds")
    )
    return row["problem"], row["peer"], f"{row['probability_error']:.1e}", outputs, cost, seconds


if __name__ == "__main__":
    main()
