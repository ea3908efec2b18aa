"""The same four problems through every door: log densities, answers and cost side by side.

PyMC needs the environment of `make test-pymc`: .venv-pymc/bin/python -m benchmarks.run doors.
Without it that door is left out. `--write` makes the table in docs/performance.md.
"""

import importlib.util
import re
import time

import jax
import numpy as np

import estimand as ep
from benchmarks.measure import ROOT, parser, read_results, show
from problems.doors import DOORS, STATED

NUM_POINTS = 1000
PAGE = ROOT / "docs" / "performance.md"
MARK = "<!-- doors -->"


def log_densities(bound, values):
    """Log prior and log likelihood at given values of the sites, in one sum."""
    found = jax.jit(jax.vmap(lambda v: bound.model.assess(v, bound.arrays)))(values)
    return np.asarray(found.log_prior + found.log_likelihood)


def difference(reference, bound, door):
    """The largest difference from the NumPyro program at prior draws, relative to 1 + |log γ|.

    A prior transform has no density of the parameters: there the likelihoods are compared.
    """
    keys = jax.random.split(jax.random.key(0), NUM_POINTS)
    source = bound if door == "prior_transform" else reference
    model, data = source.model, source.arrays
    positions = jax.jit(jax.vmap(lambda key: model.draw(key, data)))(keys)
    values = jax.jit(jax.vmap(lambda u: model.values(u, data)))(positions)
    if door == "prior_transform":
        values.pop("cube")
        likelihood = jax.jit(jax.vmap(lambda u: model.evaluate(u, data).log_likelihood))(positions)
        found = np.asarray(likelihood)
        other = reference.model
        exact = jax.jit(jax.vmap(lambda v: other.assess(v, reference.arrays).log_likelihood))(
            values
        )
        exact = np.asarray(exact)
    else:
        exact, found = log_densities(reference, values), log_densities(bound, values)
    is_finite = np.isfinite(exact)
    assert (is_finite == np.isfinite(found)).all()
    return float(np.max(np.abs(found - exact)[is_finite] / (1 + np.abs(exact[is_finite]))))


def measure(problem, door):
    stated = STATED[problem]
    started = time.process_time()
    bound = stated.by_door[door]()
    bind_seconds = time.process_time() - started
    runs = []
    for seed in (0, 1):
        started = time.process_time()
        result = ep.estimate_expectation(stated.by_door[door](), rng_key=seed, throw=False)
        runs.append((result, time.process_time() - started))
    first, again = runs
    with jax.enable_x64(True):
        gap = difference(stated.by_door["numpyro"](), bound, door)
    return {
        "problem": problem,
        "door": door,
        "log_density_difference": gap,
        "bind_seconds": bind_seconds,
        "first_seconds": first[1],
        "again_seconds": again[1],
        "values": [result.value for result, _ in runs],
        "standard_errors": [result.standard_error for result, _ in runs],
        "scores": [(result.value - stated.truth) / result.standard_error for result, _ in runs],
        "statuses": [result.status.name for result, _ in runs],
        "num_evaluations": [result.num_evaluations for result, _ in runs],
        "num_gradients": [result.num_gradients for result, _ in runs],
    }


def rows_of(results):
    for row in results:
        yield (
            row["problem"],
            row["door"],
            f"{row['log_density_difference']:.0e}",
            f"{row['values'][0]:.5g} ± {row['standard_errors'][0]:.1g}",
            ", ".join(dict.fromkeys(row["statuses"])),
            ", ".join(f"{score:+.1f}" for score in row["scores"]),
            f"{row['num_evaluations'][0]:,} + {row['num_gradients'][0]:,}",
            f"{row['bind_seconds']:.1f}",
            f"{row['first_seconds']:.1f}",
            f"{row['again_seconds']:.1f}",
        )


COLUMNS = (
    "problem",
    "door",
    "difference of log densities",
    "estimate",
    "status",
    "scores of two seeds",
    "evaluations + gradients",
    "binding, s",
    "first, s",
    "again, s",
)


def write_page():
    """Puts the table of the record between the marks of the page."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows_of(read_results("doors", False))]
    text, count = re.subn(
        f"{MARK}.*{MARK}",
        lambda _: "\n".join([MARK, "", *lines, "", MARK]),
        PAGE.read_text(),
        flags=re.DOTALL,
    )
    assert count == 1, f"{PAGE} has no place for the table"
    PAGE.write_text(text)


def main(argv=None):
    options = parser(__doc__)
    options.add_argument("--write", action="store_true", help="write the table from the record")
    options = options.parse_args(argv)
    if options.write:
        write_page()
        return None
    doors = [door for door in DOORS if door != "pymc" or importlib.util.find_spec("pymc")]
    problems = list(STATED)[:2] if options.quick else list(STATED)
    results = []
    for problem in problems:
        for door in doors:
            results.append(measure(problem, door))
            print(results[-1], flush=True)
    show("Doors", COLUMNS, rows_of(results))
    return results


if __name__ == "__main__":
    main()
