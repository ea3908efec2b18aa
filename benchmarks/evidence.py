"""Evidence beside other libraries: the default method, our bridge sampling, dynesty, PyMC's SMC.

Every contestant states the model in its own way, and says log Z with its error.
Dynesty has 500 live points, PyMC's SMC 2,000 draws in four chains: their defaults; its log Z is the
logarithm of the mean of the chains' Z, with the error that their spread gives. A gradient counts as
3 evaluations. Seconds are wall time, the first run with its compilation and without a cache on
disk apart from the median of the others. The rows of a peer that is not asked for, or not
installed, stay as they were: `make evidence` runs all of them in the environment of the peers.

    python -m benchmarks.evidence --write  # the table of docs/peers.md, from the record
"""

import math
import os
import statistics
import tempfile
import time

import numpy as np
from scipy import stats

import estimand as ep
from benchmarks.measure import ROOT, parser, read_results, write_record
from benchmarks.peers.protocol import GRADIENT_COST, log_mean_exp
from problems import evidence as known

RECORD = "evidence"
PAGE = ROOT / "docs" / "peers.md"
BEGIN, END = "<!-- evidence, from the record -->", "<!-- end of evidence -->"
DRAWS, CHAINS = 2_000, 4
NUM_SEEDS, NUM_QUICK_SEEDS = 10, 3


def _shells(x):
    radii = [np.sqrt((x[0] - side) ** 2 + np.sum(x[1:] ** 2)) for side in (3.5, -3.5)]
    return np.logaddexp(*stats.norm.logpdf(radii, 2.0, 0.1))


def _eggs(x):
    return (2.0 + np.prod(np.cos(x / 2))) ** 5


def _pine(x):
    precision, level, slope = x
    centred = known.DENSITY - known.DENSITY.mean()
    mean = level + slope * centred
    return stats.norm.logpdf(known.STRENGTH, mean, 1 / math.sqrt(precision)).sum()


def _pine_prior(u):
    precision = stats.gamma.ppf(u[0], 3.0, scale=1 / (2 * 300.0**2))
    scale = 1 / math.sqrt(precision)
    level = stats.norm.ppf(u[1], 3000.0, scale / math.sqrt(0.06))
    return np.array([precision, level, stats.norm.ppf(u[2], 185.0, scale / math.sqrt(6.0))])


def _cube(u):
    return 12 * u - 6


def _box(u):
    return 10 * math.pi * u


# The NumPyro model, its arguments, the truth, the dimension, log likelihood and prior transform.
PROBLEMS = {
    "pine": (
        known.pine,
        (known.STRENGTH, known.DENSITY),
        known.PINE_LOG_Z[0],
        3,
        _pine,
        _pine_prior,
    ),
    "eggbox": (known.eggbox, (), known.EGGBOX_LOG_Z, 2, _eggs, _box),
    "shells_2": (known.shells, (2,), known.SHELLS_LOG_Z[2], 2, _shells, _cube),
    "shells_10": (known.shells, (10,), known.SHELLS_LOG_Z[10], 10, _shells, _cube),
    "shells_30": (known.shells, (30,), known.SHELLS_LOG_Z[30], 30, _shells, _cube),
}


def default(problem, seed):
    model, args, *_ = PROBLEMS[problem]
    found = ep.log_evidence(model, model_args=args, rng_key=seed, throw=False)
    return _ours(found)


def bridge(problem, seed):
    model, args, *_ = PROBLEMS[problem]
    return _ours(ep.log_evidence(model, ep.BridgeSampling(), model_args=args, rng_key=seed))


def _ours(found):
    cost = found.num_evaluations + GRADIENT_COST * found.num_gradients
    return _run(found.log_z, found.standard_error, cost, found.status.name)


def dynesty(problem, seed):
    from dynesty import NestedSampler

    *_, dimension, log_likelihood, transform = PROBLEMS[problem]
    rng = np.random.default_rng(seed)
    sampler = NestedSampler(log_likelihood, transform, dimension, rstate=rng)
    sampler.run_nested(print_progress=False)
    found = sampler.results
    return _run(found.logz[-1], found.logzerr[-1], np.sum(found.ncall))


def pymc(problem, seed):
    import pymc as pm

    from benchmarks.peers.pymc_samplers import sampled_by_smc

    model = _pymc_model(pm, problem)
    log_zs, _, cost = sampled_by_smc(model, DRAWS, seed, CHAINS)
    log_z = log_mean_exp(log_zs)
    error = np.std(np.exp(np.asarray(log_zs) - log_z), ddof=1) / math.sqrt(CHAINS)
    return _run(log_z, error, cost)


def _pymc_model(pm, problem):
    import pytensor.tensor as pt

    with pm.Model() as model:
        if problem == "pine":
            precision = pm.Gamma("precision", 3.0, 2 * 300.0**2)
            level = pm.Normal("level", 3000.0, tau=0.06 * precision)
            slope = pm.Normal("slope", 185.0, tau=6.0 * precision)
            mean = level + slope * (known.DENSITY - known.DENSITY.mean())
            pm.Normal("strength", mean, tau=precision, observed=known.STRENGTH)
        elif problem == "eggbox":
            x = pm.Uniform("x", 0.0, 10 * math.pi, shape=2)
            pm.Potential("eggs", (2.0 + pt.prod(pt.cos(x / 2))) ** 5)
        else:
            x = pm.Uniform("x", -6.0, 6.0, shape=PROBLEMS[problem][3])
            sides = [pt.sqrt((x[0] - side) ** 2 + pt.sum(x[1:] ** 2)) for side in (3.5, -3.5)]
            logs = [pm.logp(pm.Normal.dist(2.0, 0.1), radius) for radius in sides]
            pm.Potential("shells", pt.logaddexp(*logs))
    return model


def _run(log_z, error, cost, status=None):
    return {"log_z": float(log_z), "error": float(error), "cost": int(cost), "status": status}


PEERS = {"default": default, "BridgeSampling": bridge, "dynesty": dynesty, "PyMC SMC": pymc}


def cell(problem, peer, seeds):
    """Errors of a contestant on one problem, and how long it took."""
    truth = PROBLEMS[problem][2]
    runs, seconds = [], []
    for seed in range(seeds):
        started = time.perf_counter()
        runs.append(PEERS[peer](problem, seed))
        seconds.append(time.perf_counter() - started)
    return {
        "problem": problem,
        "peer": peer,
        "runs": runs,
        "root_mean_square": math.sqrt(
            statistics.fmean((run["log_z"] - truth) ** 2 for run in runs)
        ),
        "reported": statistics.median(run["error"] for run in runs),
        "cost": statistics.median(run["cost"] for run in runs),
        "first_seconds": seconds[0],
        "seconds": statistics.median(seconds[1:] or seconds),
    }


def main(argv=None):
    options = parser(__doc__)
    options.add_argument("--peers", default=",".join(PEERS))
    options.add_argument("--problems", default=",".join(PROBLEMS))
    options.add_argument("--write", action="store_true", help="write the table, and run nothing")
    options = options.parse_args(argv)
    earlier = read_results(RECORD, options.quick) or []
    if options.write:
        return write_page(earlier)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"ESTIMAND_CACHE": "off", "PYTENSOR_FLAGS": f"base_compiledir={folder}"}
        return _measured(options, earlier)


def _measured(options, earlier):
    started = time.perf_counter()
    rows = {(row["problem"], row["peer"]): row for row in earlier}
    for problem in options.problems.split(","):
        for peer in options.peers.split(","):
            try:
                row = cell(problem, peer, NUM_QUICK_SEEDS if options.quick else NUM_SEEDS)
            except ImportError as error:
                print(f"{peer} is not installed: {error}; its rows stay as they were")
                continue
            rows[problem, peer] = row
            print(" | ".join(_cells(row)), flush=True)
            write_record(RECORD, options.quick, time.perf_counter() - started, [*rows.values()])
    return [*rows.values()]


_COLUMNS = (
    "problem",
    "by",
    "runs",
    "`ok`",
    "error of log Z",
    "reported",
    "evaluations",
    "first s",
    "then s",
)


def _cells(row):
    statuses = [run["status"] for run in row["runs"]]
    return (
        row["problem"],
        row["peer"],
        str(len(statuses)),
        "–" if None in statuses else str(statuses.count("ok")),
        f"{row['root_mean_square']:.2g}",
        f"{row['reported']:.2g}" if math.isfinite(row["reported"]) else "none",
        f"{row['cost']:.2g}",
        *(f"{row[key]:.1f}" for key in ("first_seconds", "seconds")),
    )


def write_page(rows):
    """The table of the documentation, between its marks."""
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    order = [(problem, peer) for problem in PROBLEMS for peer in PEERS]
    ordered = sorted(rows, key=lambda row: order.index((row["problem"], row["peer"])))
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + " --- |" * len(_COLUMNS)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in ordered]
    PAGE.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]))


if __name__ == "__main__":
    main()
