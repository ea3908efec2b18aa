"""Coverage of the default method's 95 % intervals, and how often it says ok, over many seeds.

A run whose status is not `ok` does not count as covered or uncovered; it is counted apart.
"""

import math
import sys
import time
from pathlib import Path

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from measure import arguments, show
from scipy.stats import binomtest
from truths import PROBLEMS

import estimand as ep

NAMES = (
    "figure1",
    "cancellation",
    "horse_kicks",
    "half_line",
    "simplex",
    "hierarchical",
    "posterior_predictive",
    "banana",
    "sir",
    "rp22",
)


def cover(name, runs):
    problem = PROBLEMS[name]
    expectation = ep.expectation(problem.model)(*problem.args)
    covered, trusted, errors, costs = 0, 0, [], []
    started = time.perf_counter()
    for seed in range(runs):
        result = ep.estimate_expectation(expectation, rng_key=seed, throw=False)
        low, high = result.interval(0.95)
        trusted += result.status is ep.Status.ok
        covered += result.status is ep.Status.ok and low <= problem.value <= high
        errors.append((result.value / problem.value - 1) ** 2)
        costs.append(result.num_evaluations + 3 * result.num_gradients)
    return {
        "problem": name,
        "runs": runs,
        "ok": trusted,
        "covered": covered,
        "coverage": covered / max(trusted, 1),
        "p_value": float(binomtest(covered, trusted, 0.95).pvalue) if trusted else math.nan,
        "median_rse": float(np.median(errors)),
        "median_cost": float(np.median(costs)),
        "seconds_per_run": (time.perf_counter() - started) / runs,
    }


def main(argv=None):
    quick = arguments(argv, __doc__).quick
    rows = []
    for name in NAMES:
        rows.append(cover(name, 20 if quick else 100))
        print(rows[-1], flush=True)
    show("Coverage of the default method's 95 % intervals", list(rows[0]), map(dict.values, rows))
    return rows


if __name__ == "__main__":
    main()
