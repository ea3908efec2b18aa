"""Forward against reverse mode: gradients per second and seconds of compilation, by dimension.

1,000 particles, vmapped, in a jitted loop whose next position depends on the last gradient, as in a
leapfrog integrator. The mode is forced through `estimand.density`; what a choice by dimension (and
by whether the program has a loop) would lose against the better mode is worked out at the end.
"""

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params

import estimand as ep
import estimand.density
from benchmarks.measure import arguments, interleaved, paired_ratio, precision, seconds, show
from estimand.runtime.compilation import CompilationClock
from problems import gaussian, shapes, sir

NUM_PARTICLES = 1000
LIMITS = {"forward": 10**9, "reverse": 0}
THRESHOLDS = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64)


class Case(NamedTuple):
    family: str
    model: Any
    args: tuple


def cases(quick):
    for dimension in (1, 4, 16, 64) if quick else (1, 2, 4, 8, 16, 32, 64):
        y = gaussian.data(dimension)
        yield Case("Gaussian", gaussian.posterior_predictive, (y,))
    yield Case("SIR", sir.sir, (sir.DATA,))
    for num_groups in (4, 21) if quick else (4, 11, 21):
        data = shapes.hierarchical_data(num_groups)
        yield Case("hierarchical", shapes.hierarchical_regression, (*data, num_groups))
    for dimension in (2, 8, 32) if quick else (2, 4, 8, 16, 32):
        yield Case("recursion", shapes.recursion, shapes.recursion_data(dimension))
        yield Case("ODE", shapes.epidemic, (shapes.epidemic_data(), dimension))


def has_loop(density):
    """Whether the program's density contains a scan or a while loop."""

    def search(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name in ("scan", "while"):
                return True
            if any(search(inner) for inner in jaxprs_in_params(equation.params)):
                return True
        return False

    position = jnp.zeros(density.dimension)
    return search(jax.make_jaxpr(density.terms)(position).jaxpr)


def gradient_loop(density):
    """A jitted function of positions and a number of gradients for each of them."""
    point = estimand.density.PathPoint(jnp.asarray(0.5), jnp.asarray(0.5))

    @jax.jit
    def run(density, positions, count):
        def gradient(position):
            # The step is too small to move anything, but the compiler cannot know that.
            return position + 1e-12 * density.value_and_gradient(position, point)[2]

        return jax.lax.fori_loop(0, count, lambda _, u: jax.vmap(gradient)(u), positions)

    return lambda positions, count: run(density, positions, count)


def compiled(density, positions, mode, repetitions):
    """The loop with the mode forced, and the least of its compile times."""
    limit = LIMITS[mode]
    estimand.density.FORWARD_MODE_DIMENSIONS = {"straight": limit, "with loops": limit}
    estimand.density._gradient_mode.cache_clear()
    chosen = estimand.density.gradient_mode(density)
    if chosen != mode:
        raise RuntimeError(f"{mode} mode was asked for, and {chosen} mode was taken")
    taken = []
    for _ in range(repetitions):
        loop = gradient_loop(density)
        with CompilationClock() as clock:
            jax.block_until_ready(loop(positions, 1))
        taken.append(clock.seconds)
    return loop, min(taken)


def measure(case, quick):
    density = ep.Density.of(ep.expectation(case.model)(*case.args)).part("gamma1_plus")
    keys = jax.random.split(jax.random.key(0), NUM_PARTICLES)
    positions, _ = jax.jit(jax.vmap(density.draw_prior))(keys)
    limits = estimand.density.FORWARD_MODE_DIMENSIONS
    contestants, counts, compile_seconds = {}, {}, {}
    try:
        for mode in LIMITS:
            loop, compile_seconds[mode] = compiled(density, positions, mode, 1 if quick else 2)
            least = min(seconds(loop, positions, 10) for _ in range(3)) / 10
            counts[mode] = max(1, min(10_000, round((0.05 if quick else 0.1) / least)))
            contestants[mode] = lambda loop=loop, count=counts[mode]: loop(positions, count)
    finally:
        estimand.density.FORWARD_MODE_DIMENSIONS = limits
        estimand.density._gradient_mode.cache_clear()
    taken = interleaved(contestants, 5 if quick else 7)
    each = {mode: [t / counts[mode] for t in times] for mode, times in taken.items()}
    return {
        "family": case.family,
        "dimension": density.layout.num_continuous,
        "has_loop": has_loop(density),
        "per_second": {mode: NUM_PARTICLES / min(times) for mode, times in each.items()},
        "forward_over_reverse": min(each["reverse"]) / min(each["forward"]),
        "forward_over_reverse_paired": paired_ratio(each["reverse"], each["forward"]),
        "compile_seconds": compile_seconds,
    }


# --- what a rule would lose ---


def rules(measured):
    """For pairs of thresholds (without and with a loop): speed lost against the better mode.

    Forward mode is taken up to the threshold. The loss is best rate over chosen rate, 1 at best.
    """
    found = []
    for plain, loop in itertools.product(THRESHOLDS, THRESHOLDS):
        losses = []
        for item in measured:
            is_forward = item["dimension"] <= (loop if item["has_loop"] else plain)
            gain = item["forward_over_reverse"]
            losses.append(max(1.0, 1 / gain if is_forward else gain))
        mean = math.exp(sum(map(math.log, losses)) / len(losses))
        found.append({"plain": plain, "loop": loop, "worst": max(losses), "mean": mean})
    return sorted(found, key=lambda rule: (rule["worst"], rule["mean"]))


def main(argv=None):
    options = arguments(argv, __doc__)
    results, rows = [], []
    for dtype in ("float32",) if options.quick else ("float32", "float64"):
        for case in cases(options.quick):
            with precision(dtype):
                found = measure(case, options.quick) | {"precision": dtype}
            results.append(found)
            rows.append(
                (
                    f"{found['family']}, {dtype}",
                    found["dimension"],
                    "yes" if found["has_loop"] else "no",
                    *found["per_second"].values(),
                    found["forward_over_reverse"],
                    *found["compile_seconds"].values(),
                )
            )
    modes = ("forward /s", "reverse /s", "forward / reverse", "compile fwd s", "compile rev s")
    show("Gradients, 1,000 particles", ("case", "D", "loop", *modes), rows)

    ranked = rules(results)
    single = [rule for rule in ranked if rule["plain"] == rule["loop"]]
    columns = ("threshold", "worst loss", "mean loss")
    show(
        "One threshold: slowdown against the better mode",
        columns,
        [(f"D ≤ {r['plain']}", r["worst"], r["mean"]) for r in single],
    )
    show(
        "Thresholds without and with a loop in the program: the best ten",
        columns,
        [(f"D ≤ {r['plain']}, loop D ≤ {r['loop']}", r["worst"], r["mean"]) for r in ranked[:10]],
    )
    return {
        "precision": "by case",
        "num_particles": NUM_PARTICLES,
        "cases": results,
        "rules": ranked,
    }


if __name__ == "__main__":
    main()
