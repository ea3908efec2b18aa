"""Squared error of the default method against the paper's TABI + AnIS at equal evaluations.

Default settings of the default method; the paper's settings (facts of its appendix) for AnIS, with
as many particles as the default method's cost allows. A gradient counts as three evaluations.
"""

import dataclasses

import estimand as ep
from benchmarks.measure import parser, show
from benchmarks.runs import cost, summary, workers
from problems.known import known

PAPER = {
    "posterior_predictive": ep.AnIS(
        num_temperatures=100, num_steps=5, kernel=ep.RandomWalk(scale=0.5**0.5)
    ),
    "banana": ep.AnIS(schedule=ep.geometric(200), kernel=ep.RandomWalk(scale=1.0)),
    "sir": ep.AnIS(
        schedule=ep.geometric(100), num_steps=10, kernel=ep.HMC(step_size=0.05, num_leapfrog=10)
    ),
    "radon": ep.AnIS(schedule=ep.geometric(200), kernel=ep.NUTS(step_size=0.044)),
}
SIGNED = ("banana",)


def tabi(estimator, num_samples, is_signed):
    """The paper's method with so many particles for each Z, and Z1⁻ only where there is one."""
    sized = dataclasses.replace(estimator, num_samples=num_samples)
    return ep.TABI(normaliser=sized, positive=sized, negative=sized if is_signed else ep.SKIP)


def affordable(name, estimator, budget, is_signed=False):
    """Particles for each Z that the budget pays for, from the cost of two; two at least."""
    pair = ep.estimate_expectation(
        known(name).expectation, tabi(estimator, 2, is_signed), throw=False
    )
    return max(2, round(2 * budget / cost(pair)))


def compare(over_seeds, name, runs):
    default = summary(over_seeds(name, runs))
    is_signed = name in SIGNED
    count = affordable(name, PAPER[name], default["median_cost"], is_signed)
    paper = summary(over_seeds(name, runs, tabi(PAPER[name], count, is_signed)))
    return {
        "problem": name,
        "runs": runs,
        "default median RSE": default["median_rse"],
        "cost": default["median_cost"],
        "seconds": default["median_seconds"],
        "ok": default["ok"],
        "paper median RSE": paper["median_rse"],
        "paper cost": paper["median_cost"],
        "particles per Z": count,
        "ratio": paper["median_rse"] / default["median_rse"],
    }


def main(argv=None):
    options = parser(__doc__, processes=True).parse_args(argv)
    with workers(options.processes) as over_seeds:
        rows = [compare(over_seeds, name, 5 if options.quick else 20) for name in PAPER]
    show("Relative squared error at equal evaluations", list(rows[0]), map(dict.values, rows))
    return rows


if __name__ == "__main__":
    main()
