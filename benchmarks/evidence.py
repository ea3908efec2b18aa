"""Evidence beside other libraries: the default method, our bridge sampling, dynesty, PyMC's SMC.

Every contestant states the model in its own way, and says log Z with its error.
Dynesty has 500 live points, PyMC's SMC 2,000 draws in four chains: their defaults. Seconds are wall
time, the first run with its compilation apart from the median of the others. The rows of a peer
that is not asked for, or not installed, stay as they were: `make evidence` runs all of them in the
environment of the peers.
"""

import math
import statistics
import time

import numpy as np
from scipy import stats

import estimand as ep
from benchmarks.measure import parser, read_results, write_record
from problems import evidence as known

RECORD = "evidence"
DRAWS, CHAINS = 2_000, 4


def _shells(x):
    radii = [np.sqrt((x[0] - side) ** 2 + np.sum(x[1:] ** 2)) for side in (3.5, -3.5)]
    return np.logaddexp(*stats.norm.logpdf(radii, 2.0, 0.1))


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


# The NumPyro model with its arguments, the truth, and log likelihood and prior transform.
PROBLEMS = {
    "pine": (
        known.pine,
        (known.STRENGTH, known.DENSITY),
        known.PINE_LOG_Z[0],
        3,
        _pine,
        _pine_prior,
    ),
    "shells_2": (known.shells, (2,), known.SHELLS_LOG_Z[2], 2, _shells, _cube),
    "shells_10": (known.shells, (10,), known.SHELLS_LOG_Z[10], 10, _shells, _cube),
}


def default(problem, seed):
    model, args, *_ = PROBLEMS[problem]
    found = ep.log_evidence(model, model_args=args, rng_key=seed, throw=False)
    return found.log_z, found.standard_error, found.status.name


def bridge(problem, seed):
    model, args, *_ = PROBLEMS[problem]
    found = ep.log_evidence(model, ep.BridgeSampling(), model_args=args, rng_key=seed)
    return float(found.log_z), found.standard_error, found.status.name


def dynesty(problem, seed):
    from dynesty import NestedSampler

    *_, dimension, log_likelihood, transform = PROBLEMS[problem]
    rng = np.random.default_rng(seed)
    sampler = NestedSampler(log_likelihood, transform, dimension, rstate=rng)
    sampler.run_nested(print_progress=False)
    return float(sampler.results.logz[-1]), float(sampler.results.logzerr[-1]), ""


def pymc(problem, seed):
    import pymc as pm

    with _pymc_model(pm, problem):
        trace = pm.sample_smc(DRAWS, chains=CHAINS, cores=1, random_seed=seed, progressbar=False)
    values = [row[-1] for row in trace.sample_stats["log_marginal_likelihood"].values]
    values = np.asarray([np.ravel(value)[-1] for value in values], float)
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(CHAINS)), ""


def _pymc_model(pm, problem):
    import pytensor.tensor as pt

    with pm.Model() as model:
        if problem == "pine":
            precision = pm.Gamma("precision", 3.0, 2 * 300.0**2)
            level = pm.Normal("level", 3000.0, tau=0.06 * precision)
            slope = pm.Normal("slope", 185.0, tau=6.0 * precision)
            mean = level + slope * (known.DENSITY - known.DENSITY.mean())
            pm.Normal("strength", mean, tau=precision, observed=known.STRENGTH)
        else:
            x = pm.Uniform("x", -6.0, 6.0, shape=PROBLEMS[problem][3])
            sides = [pt.sqrt((x[0] - side) ** 2 + pt.sum(x[1:] ** 2)) for side in (3.5, -3.5)]
            logs = [pm.logp(pm.Normal.dist(2.0, 0.1), radius) for radius in sides]
            pm.Potential("shells", pt.logaddexp(*logs))
    return model


PEERS = {"default": default, "BridgeSampling": bridge, "dynesty": dynesty, "PyMC SMC": pymc}


def cell(problem, peer, seeds):
    """Errors of a contestant on one problem, and how long it took."""
    truth = PROBLEMS[problem][2]
    runs, seconds = [], []
    for seed in range(seeds):
        started = time.perf_counter()
        runs.append(PEERS[peer](problem, seed))
        seconds.append(time.perf_counter() - started)
    errors = [log_z - truth for log_z, *_ in runs]
    return {
        "problem": problem,
        "peer": peer,
        "runs": runs,
        "root_mean_square": math.sqrt(statistics.fmean(error**2 for error in errors)),
        "reported": statistics.median(run[1] for run in runs),
        "first_seconds": seconds[0],
        "seconds": statistics.median(seconds[1:] or seconds),
    }


def main(argv=None):
    options = parser(__doc__)
    options.add_argument("--peers", default=",".join(PEERS))
    options = options.parse_args(argv)
    started, chosen = time.perf_counter(), options.peers.split(",")
    earlier = read_results(RECORD, options.quick) or []
    rows = [row for row in earlier if row["peer"] not in chosen]
    for problem in PROBLEMS:
        for peer in chosen:
            try:
                row = cell(problem, peer, 3 if options.quick else 10)
            except ImportError as error:
                print(f"{peer} is not installed: {error}")
                rows += [r for r in earlier if (r["problem"], r["peer"]) == (problem, peer)]
                continue
            rows.append(row)
            print(
                f"{problem:10} {peer:15} error {row['root_mean_square']:.2g}, reported "
                f"{row['reported']:.2g}; {row['first_seconds']:.1f} s first, "
                f"{row['seconds']:.1f} s then",
                flush=True,
            )
            write_record(RECORD, options.quick, time.perf_counter() - started, rows)
    write_record(RECORD, options.quick, time.perf_counter() - started, rows)
    return rows


if __name__ == "__main__":
    main()
