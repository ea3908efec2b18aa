"""Evaluations per second with the return expression read, against the plain value's logarithm.

`Density.evaluate` runs the expression that was read at tracing, and gives f as sign and
log-magnitude. The plain contestant traces the same model itself and takes sign and log of the value
of f, which underflows where reading it does not. Both give log prior and log likelihood along with
it, of 10,000 prior draws at once. A ratio of 1 says that reading costs nothing; the target is 0.95.
"""

import statistics
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import estimand as ep
from benchmarks.measure import interleaved, paired_ratio, parser, precision, show
from problems import gaussian
from problems.figure1 import figure1

NUM_POSITIONS = 10_000
CALLS = 20


class Case(NamedTuple):
    name: str
    model: Any
    data: Any


CASES = (
    Case("Gaussian D=10", gaussian.posterior_predictive, gaussian.data(10)),
    Case("figure 1", figure1, np.asarray(2.0)),
)


def lifted(density, position):
    terms, outputs = density.evaluate(position)
    return terms.log_prior, terms.log_likelihood, outputs.sign, outputs.log_abs


def plain(density, position):
    """The model itself, and the logarithm of what it returns."""
    found = density.model.evaluate(position, density.arrays)
    numbers = found.outputs
    is_zero = numbers == 0
    log_abs = jnp.log(jnp.abs(jnp.where(is_zero, 1.0, numbers)))
    log_abs = jnp.where(is_zero, -jnp.inf, log_abs)
    return found.log_prior, found.log_likelihood, jnp.sign(numbers), log_abs


def measure(case, repetitions):
    """Both contestants on one case, in the precision that is set; a time is of several calls."""
    density = ep.Density.of(ep.expectation(case.model)(case.data)).part("gamma1_plus")
    keys = jax.random.split(jax.random.key(0), NUM_POSITIONS)
    positions = jax.jit(jax.vmap(density.draw_prior))(keys)[0]

    def contestant(function):
        run = jax.jit(jax.vmap(function, in_axes=(None, 0)))
        return lambda: [run(density, positions) for _ in range(CALLS)]

    contestants = {"lifted": contestant(lifted), "plain": contestant(plain)}
    check_same(*(jax.block_until_ready(run())[0] for run in contestants.values()))
    taken = interleaved(contestants, repetitions)
    return {
        "per_second": {
            name: CALLS * NUM_POSITIONS / statistics.median(times) for name, times in taken.items()
        },
        "ratio_paired": paired_ratio(taken["plain"], taken["lifted"]),
        "ratio_of_best": min(taken["plain"]) / min(taken["lifted"]),
        "seconds": taken,
    }


def check_same(ours, theirs):
    """The contestants agree where the plain value has not underflowed."""
    is_seen = jnp.isfinite(theirs[3][:, 0])
    tolerance = 1e-9 if theirs[0].dtype == jnp.float64 else 1e-3
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine[is_seen], other[is_seen], rtol=tolerance, atol=tolerance)


def main(argv=None):
    options = parser(__doc__).parse_args(argv)
    results, rows = {}, []
    for case in CASES:
        for dtype in ("float32", "float64"):
            with precision(dtype):
                found = measure(case, 30 if options.quick else 200)
            name = f"{case.name}, {dtype}"
            results[name] = found
            rates = found["per_second"].values()
            rows.append((name, *rates, found["ratio_paired"], found["ratio_of_best"]))
    columns = ("case", "read /s", "plain /s", "paired ratio", "ratio of best")
    show("Evaluations with and without reading the target (target: ratio 0.95)", columns, rows)
    return {"precision": "both", "target_ratio": 0.95, "cases": results}


if __name__ == "__main__":
    main()
