"""Squared error of the default method against the paper's TABI + AnIS at equal evaluations.

Default settings of the default method; the paper's settings (facts of its appendix) for AnIS, with
as many particles as the default method's cost allows. A gradient counts as three evaluations.
"""

import dataclasses
import sys
from pathlib import Path

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from measure import arguments, show
from truths import PROBLEMS

import estimand as ep

PAPER = {
    "posterior_predictive": ep.AnIS(
        num_temperatures=100, num_steps=5, kernel=ep.RandomWalk(scale=0.5**0.5)
    ),
    "banana": ep.AnIS(schedule=ep.geometric(200), kernel=ep.RandomWalk(scale=1.0)),
    "sir": ep.AnIS(
        schedule=ep.geometric(100), num_steps=10, kernel=ep.HMC(step_size=0.05, num_leapfrog=10)
    ),
}


def cost(result):
    return result.num_evaluations + 3 * result.num_gradients


def compare(name, runs):
    problem = PROBLEMS[name]
    expectation = ep.expectation(problem.model)(*problem.args)

    def errors(method):
        results = [
            ep.estimate_expectation(expectation, method, rng_key=seed, throw=False)
            for seed in range(runs)
        ]
        squares = [(result.value / problem.value - 1) ** 2 for result in results]
        return float(np.median(squares)), float(np.median([cost(result) for result in results]))

    default_error, default_cost = errors(None)
    one = dataclasses.replace(PAPER[name], num_samples=2)
    negative = one if np.isfinite(problem.log_z1_minus) else ep.SKIP
    pair = ep.estimate_expectation(
        expectation, ep.TABI(normaliser=one, positive=one, negative=negative), throw=False
    )
    count = max(2, round(2 * default_cost / cost(pair)))
    sized = dataclasses.replace(PAPER[name], num_samples=count)
    negative = sized if np.isfinite(problem.log_z1_minus) else ep.SKIP
    paper_error, paper_cost = errors(ep.TABI(normaliser=sized, positive=sized, negative=negative))
    return {
        "problem": name,
        "runs": runs,
        "default median RSE": default_error,
        "cost": default_cost,
        "paper median RSE": paper_error,
        "paper cost": paper_cost,
        "particles per Z": count,
        "ratio": paper_error / default_error,
    }


def main(argv=None):
    quick = arguments(argv, __doc__).quick
    rows = [compare(name, 5 if quick else 20) for name in PAPER]
    show("Relative squared error at equal evaluations", list(rows[0]), map(dict.values, rows))
    return rows


if __name__ == "__main__":
    main()
