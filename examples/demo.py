"""The main job: two expectations, estimated target-aware and by averaging posterior draws.

The first is the paper's figure 1; both methods get it right. The second is a tail probability,
where averaging posterior draws has nothing to average.
"""

import math

import numpyro
import numpyro.distributions as dist
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import estimand as ep


@ep.expectation
def cube(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x**3


@ep.expectation
def tail(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x > 3.2


TAIL_TRUTH = 0.5 * math.erfc((3.2 - 0.0) / math.sqrt(0.5) / math.sqrt(2))

# Most prior draws are outside the event, so the particles are redrawn until they start inside it.
ANNEALED = ep.AnIS(num_samples=2000, num_temperatures=50, redraw=True)
NUTS = ep.PosteriorMCMC(num_samples=2500, num_warmup=500, num_chains=4)


def main() -> None:
    cases = [
        ("E[x³ | y = 2]  (figure 1)", cube(2.0), 2.5),
        ("P(x > 3.2 | y = 0)", tail(0.0), TAIL_TRUTH),
    ]
    table = Table(title="Expectation programming against averaging posterior draws")
    for column in ("quantity", "method", "estimate", "95 % interval", "status", "evaluations", "s"):
        table.add_column(column, justify="left" if column in ("quantity", "method") else "right")
    for name, expectation, truth in cases:
        for method_name, method in (("TABI + AnIS", ep.TABI(ANNEALED)), ("NUTS, averaged", NUTS)):
            result = ep.estimate_expectation(expectation, method, rng_key=0, throw=False)
            low, high = result.interval()
            is_empty = result.status is ep.Status.no_mass_found
            number = f"{result.value:.4g} ± {result.standard_error:.1g}"
            table.add_row(
                escape(name),
                method_name,
                "none" if is_empty else number,
                f"({low:.3g}, {high:.3g})",
                result.status.name,
                f"{result.num_evaluations + result.num_gradients:,}",
                f"{result.compile_seconds + result.run_seconds:.1f}",
            )
        table.add_row(escape(name), "truth", f"{truth:.4g}", end_section=True)
    Console(width=118).print(table)


if __name__ == "__main__":
    main()
