"""What OpenTURNS says of the limit states with about 1,000 calls, over seeds.

FORM and SORM search for one design point and take what calls they need. Subset simulation and
cross-entropy importance sampling in standard space have as many calls for each level or step as
make about 1,000 together, given the levels that the probability needs: a budget that a user would
have to guess.
"""

import json
import math
import platform
import time
from pathlib import Path

import numpy as np
import openturns as ot

from problems.limit_states import LIMIT_STATES

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


def form(event, inputs, _levels):
    solver = ot.AbdoRackwitz()
    solver.setMaximumCallsNumber(BUDGET)
    solver.setStartingPoint(inputs.getMean())
    return ot.FORM(solver, event)


def sorm(event, inputs, _levels):
    solver = ot.AbdoRackwitz()
    solver.setMaximumCallsNumber(BUDGET)
    solver.setStartingPoint(inputs.getMean())
    return ot.SORM(solver, event)


def subset(event, _inputs, levels):
    method = ot.SubsetSampling(event)
    method.setConditionalProbability(0.1)
    method.setBlockSize(10)
    method.setMaximumOuterSampling(int(BUDGET / (1 + 0.9 * (levels - 1)) / 10))
    return method


def cross_entropy(event, _inputs, levels):
    method = ot.StandardSpaceCrossEntropyImportanceSampling(event, 0.1)
    method.setMaximumOuterSampling(int(BUDGET / (levels + 1)))
    method.setBlockSize(1)
    return method


def probability(name, result):
    if name == "form":
        return result.getEventProbability()
    if name == "sorm":
        return result.getEventProbabilityBreitung()
    return result.getProbabilityEstimate()


def run(problem, name, method, seed):
    ot.RandomGenerator.SetSeed(seed)
    event, inputs, counted = event_of(problem)
    levels = max(1, math.ceil(-math.log10(problem.probability)))
    algorithm = method(event, inputs, levels)
    try:
        algorithm.run()
        found = probability(name, algorithm.getResult())
    except Exception as error:  # noqa: BLE001 - whatever it cannot do counts as a failure
        return {"failure": str(error)[:100], "calls": counted.getEvaluationCallsNumber()}
    calls = counted.getEvaluationCallsNumber()
    return {"error": found / problem.probability - 1, "calls": calls}


METHODS = {"form": form, "sorm": sorm, "subset": subset, "cross_entropy": cross_entropy}


def main():
    ot.Log.Show(ot.Log.NONE)
    started, rows = time.perf_counter(), []
    for key, problem in LIMIT_STATES.items():
        row = {"problem": key}
        for name, method in METHODS.items():
            seeds = 1 if name in ("form", "sorm") else NUM_SEEDS
            runs = [run(problem, name, method, seed) for seed in range(seeds)]
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
