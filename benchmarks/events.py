"""Squared error on rare events: the default method, subset simulation and plain Monte Carlo.

Equal evaluations: the peers get what the default method's runs cost in the median, a gradient
counting as three. Subset simulation (subset_simulation.py) is given the limit state as a function;
the default method sees the program alone. Radon has data: there subset simulation starts its chains
at NUTS draws of the posterior, and plain Monte Carlo is NUTS and the average over its draws, both
with their warm-up counted. A squared relative error of 1 mostly means that no draw hit the event.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import estimand as ep
from benchmarks.measure import show
from benchmarks.runs import cost, over_problems, summary
from benchmarks.subset_simulation import SIZE_UNIT, SubsetSimulation
from estimand.methods import Run
from estimand.runtime import run_task
from estimand.trust import EffectiveSizes, OutputEstimate, no_mass
from problems.known import known
from problems.radon import LIMIT

NUM_WARMUP = 500
BATCH = 10_000


def normal_tail(sites):
    return sites["x"] - 4.5


def four_branch(sites):
    first, second = sites["x"]
    total, difference = (first + second) / math.sqrt(2), first - second
    curved = jnp.abs(total) - 0.1 * difference**2 - 3.0
    return jnp.maximum(curved, jnp.abs(difference) - 7 / math.sqrt(2))


def rp22(sites):
    first, second = sites["x"]
    return (first + second) / math.sqrt(2) - 0.1 * (first - second) ** 2 - 2.5


def radon_step(sites):
    return math.log(LIMIT) - sites["alpha"].max()


class Event(NamedTuple):
    """How far a problem's event is from happening, as its limit state; and whether it has data."""

    margin: Callable
    has_data: bool = False


EVENTS = {
    "normal_tail": Event(normal_tail),
    "four_branch": Event(four_branch),
    "rp22": Event(rp22),
    "radon_step": Event(radon_step, has_data=True),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PriorMonteCarlo:
    """The average over independent prior draws, one evaluation each: for programs without data."""

    num_samples: int

    def check(self, density):
        density.require_prior("PriorMonteCarlo")

    def run(self, rng_key, density, runtime):
        drawn = run_task(runtime, _prior_outputs, rng_key, density, self.num_samples)
        values = np.asarray(drawn, float)
        output = OutputEstimate(
            value=float(values.mean()),
            standard_error=float(values.std()) / math.sqrt(values.size) or math.inf,
            ess=EffectiveSizes(z1=float(values.sum()), z2=float(values.size)),
            findings=() if values.any() else (no_mass("no draw of the prior is in the event"),),
        )
        return Run((output,), self.num_samples, 0)


@functools.partial(jax.jit, static_argnums=2)
def _prior_outputs(rng_key, density, num_samples):
    def one(key):
        return density.evaluate(density.model.draw(key, density.arrays))[1].sign[0]

    return jax.lax.map(one, jax.random.split(rng_key, num_samples), batch_size=BATCH)


def subset(event, size):
    return SubsetSimulation(
        margin=event.margin, num_samples=size, num_warmup=NUM_WARMUP if event.has_data else 0
    )


def monte_carlo(event, size):
    if event.has_data:
        return ep.PosteriorMCMC(num_samples=size, num_warmup=NUM_WARMUP, num_chains=8)
    return PriorMonteCarlo(num_samples=size)


def affordable(name, make, budget, unit):
    """The size for a budget, extrapolated from the costs of two small runs of one seed."""
    sizes = 10 * unit, 40 * unit
    small, large = (
        cost(ep.estimate_expectation(known(name).expectation, make(size), throw=False))
        for size in sizes
    )
    size = sizes[0] + (budget - small) * (sizes[1] - sizes[0]) / (large - small)
    return max(1, round(size / unit)) * unit


def rows_of(over_seeds, name, num_seeds):
    event = EVENTS[name]
    default = summary(over_seeds(name, num_seeds))
    row = {"problem": name, "probability": float(known(name).values[0]), "default": default}
    for peer, make, unit in (
        ("subset_simulation", subset, SIZE_UNIT),
        ("monte_carlo", monte_carlo, 10),
    ):
        size = affordable(name, lambda n, make=make: make(event, n), default["median_cost"], unit)
        found = summary(over_seeds(name, num_seeds, make(event, size)))
        ratio = found["median_rse"] / default["median_rse"]
        row[peer] = found | {"num_samples": size, "ratio_to_default": ratio}
    yield row


def main(argv=None):
    rows = over_problems("events", argv, __doc__, EVENTS, (20, 5), rows_of)
    show(
        "Median squared relative error on rare events at equal evaluations",
        (
            *("problem", "probability", "runs", "ok", "default RSE", "cost"),
            *("subset RSE", "cost", "/ default", "Monte Carlo RSE", "cost", "/ default"),
        ),
        map(_cells, rows),
    )
    return rows


def _cells(row):
    default = row["default"]
    cells = [
        row["problem"],
        f"{row['probability']:.3g}",
        default["runs"],
        default["ok"],
        default["median_rse"],
        default["median_cost"],
    ]
    for peer in (row["subset_simulation"], row["monte_carlo"]):
        cells += [peer["median_rse"], peer["median_cost"], peer["ratio_to_default"]]
    return cells


if __name__ == "__main__":
    main()
