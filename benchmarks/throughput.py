"""AnIS against a bare loop: evaluations per second, warm, and their ratio.

The bare loop (bare.py) is annealed importance sampling written by hand for the one model: the same
number of density or gradient evaluations, the same random draws, jitted and vmapped, without
NumPyro. Both must come out within 0.5 of the true log Z1. A ratio of 1 says that the library costs
nothing; the target is 0.7. Compilation is excluded and reported separately.
"""

import functools
import statistics
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

import estimand as ep
from benchmarks import bare
from benchmarks.measure import arguments, interleaved, paired_ratio, precision, show
from estimand.runtime.compilation import CompilationClock
from problems import gaussian, sir


class Case(NamedTuple):
    name: str
    model: Any
    data: np.ndarray
    log_z1: float
    estimator: ep.AnIS
    make_bare: Any
    make_move: Any
    repetitions: int


def cases(quick):
    y = gaussian.data(10)
    for count in (1000, 10_000):
        yield Case(
            f"random walk, Gaussian D=10, {count:,} particles",
            gaussian.posterior_predictive,
            y,
            gaussian.log_z1(10),
            ep.AnIS(
                num_samples=count,
                num_temperatures=100,
                kernel=ep.RandomWalk(scale=0.5),
                num_steps=5,
            ),
            bare.gaussian,
            functools.partial(bare.random_walk, scale=0.5, num_steps=5),
            5 if quick else 15,
        )
    count = 200 if quick else 1000
    yield Case(
        f"HMC, SIR, {count:,} particles",
        sir.sir,
        sir.DATA,
        sir.LOG_Z1,
        ep.AnIS(
            num_samples=count,
            schedule=ep.geometric(10),
            kernel=ep.HMC(step_size=0.05, num_leapfrog=10),
            num_steps=10,
        ),
        bare.sir,
        functools.partial(bare.hamiltonian, step_size=0.05, num_leapfrog=10, num_steps=10),
        3 if quick else 5,
    )


def measure(case):
    """Both contestants on one case, in the precision that is set."""
    density = ep.Density.of(ep.expectation(case.model)(case.data)).part("gamma1_plus")
    key = jax.random.key(0)
    check_same_density(density, case)

    @jax.jit
    def bare_loop(keys, y, betas):
        return bare.anneal(keys, y, betas, case.make_bare, case.make_move)

    keys = jax.random.split(key, case.estimator.num_samples)
    betas = jnp.asarray(case.estimator.betas)
    contestants = {
        "estimand": lambda: case.estimator.estimate(key, density),
        "bare": lambda: bare_loop(keys, jnp.asarray(case.data), betas),
    }
    compile_seconds, results = {}, {}
    for name, function in contestants.items():
        with CompilationClock() as clock:
            results[name] = jax.block_until_ready(function())
        compile_seconds[name] = clock.seconds
    evidence = results["estimand"]
    log_z = {
        "estimand": float(evidence.log_z),
        "bare": float(logsumexp(results["bare"]) - np.log(results["bare"].size)),
        "truth": case.log_z1,
    }
    for name in contestants:
        if not abs(log_z[name] - case.log_z1) < 0.5:
            raise RuntimeError(f"{case.name}: {name} got log Z1 wrong: {log_z}")
    # Our first evaluation of each particle and theirs, the prior draw, is counted on both sides.
    evaluations = evidence.num_evaluations + evidence.num_gradients
    taken = interleaved(contestants, case.repetitions)
    return {
        "evaluations": evaluations,
        "per_second": {name: evaluations / min(times) for name, times in taken.items()},
        "ratio_of_best": min(taken["bare"]) / min(taken["estimand"]),
        "ratio_paired": paired_ratio(taken["bare"], taken["estimand"]),
        "median_seconds": {name: statistics.median(times) for name, times in taken.items()},
        "compile_seconds": compile_seconds,
        "log_z1": log_z,
        "seconds": taken,
    }


def check_same_density(density, case):
    """The handwritten density must be the program's own."""
    positions, _ = jax.vmap(density.draw_prior)(jax.random.split(jax.random.key(1), 20))
    ours = jax.vmap(density.terms)(positions)
    log_prior, log_weight = jax.vmap(case.make_bare(jnp.asarray(case.data)).terms)(positions)
    seen = jnp.isfinite(ours.log_weight)  # f itself may underflow
    tolerance = 1e-7 if positions.dtype == jnp.float64 else 1e-3
    np.testing.assert_allclose(log_prior, ours.log_prior, rtol=tolerance)
    np.testing.assert_allclose(log_weight[seen], ours.log_weight[seen], rtol=tolerance)


def main(argv=None):
    options = arguments(argv, __doc__)
    results, rows = {}, []
    for case in cases(options.quick):
        for dtype in ("float32", "float64"):
            with precision(dtype):
                found = measure(case)
            results[f"{case.name}, {dtype}"] = found
            rows.append(
                (
                    f"{case.name}, {dtype}",
                    found["per_second"]["estimand"],
                    found["per_second"]["bare"],
                    found["ratio_of_best"],
                    found["ratio_paired"],
                    *found["compile_seconds"].values(),
                )
            )
    rates = ("ours /s", "bare /s", "ratio of best", "paired ratio")
    columns = ("case", *rates, "ours compile s", "bare compile s")
    show("AnIS throughput against a bare loop (target: ratio 0.7)", columns, rows)
    return {"precision": "both", "target_ratio": 0.7, "cases": results}


if __name__ == "__main__":
    main()
