"""Logistic regressions on 100 to 100,000 rows: a tail probability, its error and the time it takes.

The truth is another way: importance sampling in NumPy from a Student-t with the curvature at the
mode for the evidence, and for the event from the same one, conditional on a coefficient that is
beyond the threshold by an exponential variable. Every answer is a fresh process without a cache on
disk; seconds are of the wall, with the compilation in them.

    python -m benchmarks.run rows --cases=1000x5,100000x10
"""

import json
import sys
import time

import numpy as np

from benchmarks.measure import parser, run_child

CASES = ("100x5", "1000x5", "10000x5", "100000x10")
# Standard deviations of the posterior by which a coefficient is beyond its mode.
DISTANCE = 3.5
NUM_REFERENCE_DRAWS = 20_000
DEGREES = 12.0
LIMIT = 600


def data_of(case):
    num_rows, num_columns = map(int, case.split("x"))
    rng = np.random.default_rng(3)
    x = rng.standard_normal((num_rows, num_columns))
    slopes = 0.5 * rng.standard_normal(num_columns)
    y = (rng.random(num_rows) < 1 / (1 + np.exp(-x @ slopes))).astype(float)
    return x, y


def mode_of(x, y):
    """The mode under standard normal priors, the covariance there, and a threshold."""
    slopes = np.zeros(x.shape[1])
    for _ in range(50):
        rates = 1 / (1 + np.exp(-x @ slopes))
        precision = (x * (rates * (1 - rates))[:, None]).T @ x + np.eye(slopes.size)
        slopes = slopes + np.linalg.solve(precision, x.T @ (y - rates) - slopes)
    covariance = np.linalg.inv(precision)
    return slopes, covariance, float(slopes[0] + DISTANCE * np.sqrt(covariance[0, 0]))


def log_posterior(x, y, slopes):
    """Of several rows of slopes, up to a constant."""
    found = []
    for some in np.array_split(slopes, max(1, slopes.shape[0] * len(x) // 10_000_000)):
        logits = x @ some.T
        log_likelihood = y @ logits - np.logaddexp(0.0, logits).sum(axis=0)
        found.append(log_likelihood - 0.5 * (some**2).sum(axis=1))
    return np.concatenate(found)


def student(rng, count, scale):
    """Draws of a Student-t with this scale matrix, and their log densities up to a constant."""
    dimension = len(scale)
    normals = rng.standard_normal((count, dimension))
    draws = normals * np.sqrt(DEGREES / rng.chisquare(DEGREES, count))[:, None]
    log_density = -0.5 * (DEGREES + dimension) * np.log1p((draws**2).sum(axis=1) / DEGREES)
    root = np.linalg.cholesky(scale)
    return draws @ root.T, log_density - np.log(np.diag(root)).sum()


def log_student_constant(dimension):
    from math import lgamma, log, pi

    half = 0.5 * (DEGREES + dimension)
    return lgamma(half) - lgamma(0.5 * DEGREES) - 0.5 * dimension * log(DEGREES * pi)


def reference(case, seed):
    """The probability and its standard error."""
    x, y = data_of(case)
    mode, covariance, threshold = mode_of(x, y)
    rng, dimension = np.random.default_rng(100 + seed), len(mode)
    top = log_posterior(x, y, mode[None])[0]

    def mean_weight(draws, log_proposal):
        weights = np.exp(log_posterior(x, y, draws) - top - log_proposal)
        return weights.mean(), weights.std() / np.sqrt(len(weights))

    draws, log_density = student(rng, NUM_REFERENCE_DRAWS, covariance)
    z2 = mean_weight(mode + draws, log_density + log_student_constant(dimension))
    scale = np.sqrt(covariance[0, 0])
    beyond = rng.standard_exponential(NUM_REFERENCE_DRAWS) * scale / DISTANCE
    gain = covariance[1:, 0] / covariance[0, 0]
    rest = covariance[1:, 1:] - np.outer(gain, covariance[0, 1:])
    draws, log_density = student(rng, NUM_REFERENCE_DRAWS, rest)
    first = threshold + beyond
    others = mode[1:] + (first - mode[0])[:, None] * gain + draws
    log_density += log_student_constant(dimension - 1) + np.log(DISTANCE / scale)
    log_density -= beyond * DISTANCE / scale
    z1 = mean_weight(np.column_stack([first, others]), log_density)
    value = z1[0] / z2[0]
    return {"value": value, "error": value * np.hypot(z1[1] / z1[0], z2[1] / z2[0])}


def ask(case, seed):
    import numpyro
    import numpyro.distributions as dist

    import estimand as ep

    @ep.expectation
    def logistic(x, y, threshold):
        prior = dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1)
        slopes = numpyro.sample("slopes", prior)
        numpyro.sample("y", dist.Bernoulli(logits=x @ slopes), obs=y)
        return slopes[0] > threshold

    x, y = data_of(case)
    threshold = mode_of(x, y)[2]
    began, spent = time.perf_counter(), time.process_time()
    result = ep.estimate_expectation(logistic(x, y, threshold), rng_key=seed, throw=False)
    return {
        "value": result.value,
        "error": result.standard_error,
        "status": result.status.name,
        "route": result.outputs[0].route,
        "evaluations": result.num_evaluations,
        "gradients": result.num_gradients,
        "seconds": time.perf_counter() - began,
        "processor seconds": time.process_time() - spent,
    }


CHILDREN = {"reference": reference, "default": ask}


def main(argv=None):
    options = parser(__doc__)
    options.add_argument("--cases", default=",".join(CASES))
    options.add_argument("--seeds", type=int, default=3)
    given = options.parse_args(argv)
    rows = []
    for case in given.cases.split(","):
        truth = run_child("benchmarks.rows", "reference", case, 0, LIMIT)
        for seed in range(1 if given.quick else given.seeds):
            row = run_child("benchmarks.rows", "default", case, seed, LIMIT)
            if "value" in row:
                joint = np.hypot(row["error"], truth["error"])
                row["joint errors off"] = (row["value"] - truth["value"]) / joint
            rows.append(row | {"case": case, "reference": truth})
            print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        contestant, case, seed = sys.argv[2:]
        print(json.dumps(CHILDREN[contestant](case, int(seed))))
    else:
        main(sys.argv[1:])
