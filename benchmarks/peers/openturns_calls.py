"""What OpenTURNS says of the limit states with about 1,000 calls, over seeds.

FORM and SORM search for one design point and take what calls they need; they start at the mean, and
where that fails half a standard deviation beside it. Subset simulation and cross-entropy importance
sampling in standard space have as many calls for each level or step as make about 1,000 together,
which is learned from a run before the others: a user would have to guess it.
"""

import json
import math
import platform
import time
from pathlib import Path

import numpy as np
import openturns as ot

from problems.limit_states import COMPARED, HELD_OUT

BUDGET, NUM_SEEDS = 1000, 20
RESULTS = Path(__file__).parents[1] / "results" / "openturns_calls.json"
FAMILIES = {
    "normal": ot.Normal,
    "lognormal": lambda location, scale: ot.LogNormal(location, scale, 0.0),
    "gumbel": lambda location, scale: ot.Gumbel(scale, location),
    "uniform": ot.Uniform,
    "exponential": lambda mean, _: ot.Exponential(1.0 / mean),
}


def event_of(problem):
    """The failure as OpenTURNS has it, and the function that counts calls."""
    function = ot.PythonFunction(
        problem.dimension, 1, func_sample=lambda x: problem.margin(np.asarray(x))[:, None].tolist()
    )
    counted = ot.MemoizeFunction(function)
    counted.disableCache()
    inputs = ot.JointDistribution(
        [FAMILIES[item.family](*item.parameters) for item in problem.marginals]
    )
    vector = ot.CompositeRandomVector(counted, ot.RandomVector(inputs))
    return ot.ThresholdEvent(vector, ot.Less(), 0.0), inputs, counted


def solver_from(start):
    solver = ot.AbdoRackwitz()
    solver.setMaximumCallsNumber(BUDGET)
    solver.setStartingPoint(start)
    return solver


def form(event, start, _size):
    return ot.FORM(solver_from(start), event)


def sorm(event, start, _size):
    return ot.SORM(solver_from(start), event)


def subset(event, _start, size):
    method = ot.SubsetSampling(event)
    method.setConditionalProbability(0.1)
    method.setBlockSize(1)
    method.setMaximumOuterSampling(size)
    return method


def cross_entropy(event, _start, size):
    method = ot.StandardSpaceCrossEntropyImportanceSampling(event, 0.1)
    method.setMaximumOuterSampling(size)
    method.setBlockSize(1)
    return method


def probability(name, result):
    if name == "form":
        return result.getEventProbability()
    if name == "sorm":
        return result.getEventProbabilityBreitung()
    return result.getProbabilityEstimate()


def run(problem, name, method, seed, size):
    for shift in (0.0, 0.5):
        ot.RandomGenerator.SetSeed(seed)
        event, inputs, counted = event_of(problem)
        start = inputs.getMean() + shift * inputs.getStandardDeviation()
        try:
            algorithm = method(event, start, size)
            algorithm.run()
            found = probability(name, algorithm.getResult())
        except Exception as error:  # noqa: BLE001 - whatever it cannot do counts as a failure
            failure = {"failure": str(error)[:100], "calls": counted.getEvaluationCallsNumber()}
            continue
        return {
            "error": found / problem.probability - 1,
            "calls": counted.getEvaluationCallsNumber(),
        }
    return failure


def size_for(problem, name, method):
    """Points of a level or step that make about the budget."""
    guess = BUDGET // 4
    calls = run(problem, name, method, 999, guess)["calls"]
    return max(20, int(guess * BUDGET / max(calls, guess)))


METHODS = {"form": form, "sorm": sorm, "subset": subset, "cross_entropy": cross_entropy}


def main():
    ot.Log.Show(ot.Log.NONE)
    started, rows = time.perf_counter(), []
    for key, problem in (COMPARED | HELD_OUT).items():
        row = {"problem": key}
        for name, method in METHODS.items():
            seeds, size = 1, 0
            if name not in ("form", "sorm"):
                seeds, size = NUM_SEEDS, size_for(problem, name, method)
            runs = [run(problem, name, method, seed, size) for seed in range(seeds)]
            errors = [abs(item["error"]) if "error" in item else math.inf for item in runs]
            row[name] = {
                "median_error": float(np.median(errors)),
                "median_calls": float(np.median([item["calls"] for item in runs])),
                "failures": [item["failure"] for item in runs if "failure" in item][:1],
                "runs": len(runs),
            }
        rows.append(row)
        print(row, flush=True)
    record = {
        "benchmark": "openturns_calls",
        "seconds": time.perf_counter() - started,
        "environment": {
            "python": platform.python_version(),
            "openturns": ot.__version__,
            "numpy": np.__version__,
        },
        "results": rows,
    }
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
