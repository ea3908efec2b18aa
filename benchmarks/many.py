"""Many data sets: `estimate_many` beside separate calls.

A logistic regression and a hierarchy, each with 1,000 data sets of equal shape of which three are
corrupt. Processor seconds of one call of `estimate_many`, compilation included and apart, are
compared with 1,000 times the median of separate warm calls of `estimate_expectation`. Twenty of
these are made in turns with pieces of the many, so that both meet the same load of the machine.
Where both say `ok`, their differences are given in joint standard errors. The hierarchy has a
closed form, and the coverage of its intervals is counted.
"""

import math
import statistics
import time

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import estimand as ep
from benchmarks.measure import arguments, show
from problems.many import schools, schools_truth

NUM_ROWS, NUM_COEFFICIENTS = 100, 5
# Data sets by number that are corrupt, each in its own way.
CORRUPT = {"nan": 7, "infinite": 123, "wrong shape": 301}


@ep.expectation
def logistic(x, y):
    """P(success at the first two covariates) of a logistic regression."""
    b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([NUM_COEFFICIENTS]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)
    return jax.nn.sigmoid(b[0] + b[1])


def logistic_data(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(NUM_ROWS, NUM_COEFFICIENTS))
    x[:, 0] = 1.0
    chance = 1 / (1 + np.exp(-x @ rng.normal(size=NUM_COEFFICIENTS)))
    return x, (rng.random(NUM_ROWS) < chance).astype(float)


def schools_data(seed):
    rng = np.random.default_rng(seed)
    spread = abs(rng.normal(0.0, 8.0))
    return (rng.normal(0.0, 5.0) + spread * rng.normal(size=8) + 10.0 * rng.normal(size=8),)


MODELS = {
    "logistic regression": (logistic, logistic_data, None),
    "hierarchy": (schools, schools_data, schools_truth),
}


def corrupted(kind, data):
    *others, y = (array.copy() for array in data)
    if kind == "wrong shape":
        return (*others, y[:-1])
    y[3] = math.nan if kind == "nan" else math.inf
    return (*others, y)


def data_sets(make, count):
    """By name; the corrupt ones are those whose name says so."""
    kinds = {number % count: kind for kind, number in CORRUPT.items()}
    sets = {}
    for number in range(count):
        kind = kinds.get(number)
        name = f"{number}" if kind is None else f"{number}, {kind}"
        sets[name] = make(number) if kind is None else corrupted(kind, make(number))
    return sets


def timed(function):
    began = time.process_time()
    return function(), time.process_time() - began


def compare(name, count, num_single):
    program, make, truth = MODELS[name]
    sets = data_sets(make, count)
    names = [key for key in sets if "," not in key]
    chosen = names[:: max(1, len(names) // num_single)][:num_single]
    # Compiled by data sets that are not among the thousand.
    _, first_many = timed(lambda: ep.estimate_many(program, [make(-1 % 2**32)]))
    _, first_single = timed(lambda: ep.estimate_expectation(program(*make(2**31)), throw=False))
    pieces = np.array_split(np.array(list(sets), dtype=object), num_single)
    finished, errors, singles, spent_many, spent_singles = {}, {}, {}, 0.0, []
    alone = 0
    for piece, single in zip(pieces, chosen, strict=False):
        some = {key: sets[key] for key in piece}
        estimates, seconds = timed(lambda some=some: ep.estimate_many(program, some, draws=False))
        spent_many += seconds
        finished |= estimates.records
        errors |= estimates.errors
        alone += len(estimates.on_their_own)
        singles[single], seconds = timed(
            lambda single=single: ep.estimate_expectation(
                program(*sets[single]), rng_key=1, throw=False
            )
        )
        spent_singles.append(seconds)
    return {
        "model": name,
        "data_sets": count,
        "seconds_many": spent_many,
        "first_call_many": first_many,
        "first_call_single": first_single,
        "seconds_single": statistics.median(spent_singles),
        "share": spent_many / (count * statistics.median(spent_singles)),
        "share_with_compilation": (spent_many + first_many)
        / (count * statistics.median(spent_singles)),
        "run_on_their_own": alone,
        "ok": sum(bool(estimate.status) for estimate in finished.values()),
        "failed": sorted(
            [key for key, estimate in finished.items() if not estimate.status] + list(errors)
        ),
        **agreement(finished, singles),
        **({} if truth is None else accuracy(finished, sets, truth)),
    }


def agreement(finished, singles):
    """Differences from separate calls, in joint standard errors."""
    scores = []
    statuses = []
    for key, single in singles.items():
        many = finished[key]
        statuses.append([many.status.name, single.status.name])
        if many.status and single.status:
            error = math.hypot(many.standard_error, single.standard_error)
            scores.append((many.value - single.value) / error)
    return {
        "singles": len(singles),
        "same_status": sum(a == b for a, b in statuses),
        "rms_difference": math.sqrt(statistics.fmean(score**2 for score in scores)),
        "largest_difference": max(map(abs, scores)),
    }


def accuracy(finished, sets, truth):
    """Errors in standard errors, and how many intervals cover the truth."""
    ok = {key: estimate for key, estimate in finished.items() if estimate.status}
    truths = {key: truth(sets[key][0]) for key in ok}
    scores = [(ok[key].value - truths[key]) / ok[key].standard_error for key in ok]
    covered = {}
    for level in (0.5, 0.8, 0.95, 0.99):
        ends = {key: estimate.interval(level) for key, estimate in ok.items()}
        covered[str(level)] = sum(low <= truths[key] <= high for key, (low, high) in ends.items())
    return {
        "covered": covered,
        "rms_error": math.sqrt(statistics.fmean(score**2 for score in scores)),
        "largest_error": max(map(abs, scores)),
    }


def main(argv=None):
    options = arguments(argv, __doc__)
    count, num_single = (64, 4) if options.quick else (1000, 20)
    results = []
    for name in MODELS:
        row = compare(name, count, num_single)
        results.append(row)
        print(row, flush=True)
    columns = ("model", "many, s", "one, s", "share", "with compilation", "on their own", "ok")
    keys = ("model", "seconds_many", "seconds_single", "share", "share_with_compilation")
    keys = (*keys, "run_on_their_own", "ok")
    show("Many data sets", columns, [[row[key] for key in keys] for row in results])
    return results


if __name__ == "__main__":
    main()
