"""Two expectations by three methods: the default, the paper's, and averaged NUTS draws.

The first is the example of the paper's figure 1, which all three methods get right. The second is a
tail probability, in a region without posterior draws to average. The demo writes a report of it.
"""

import math
from pathlib import Path

import numpy as np
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
    with numpyro.plate("rows", y.size):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x > 1.0


DATA = np.linspace(-1.5, 1.5, 20)  # their mean is 0, so the posterior of x is N(0, 1/21)
TAIL_TRUTH = 0.5 * math.erfc(math.sqrt(21 / 2))

REPORT = Path(__file__).parents[1] / "build" / "demo-report.html"

METHODS = {
    "default": None,
    "paper: TABI + AnIS": ep.TABI(ep.AnIS(num_samples=1000, num_temperatures=100)),
    "NUTS, averaged": ep.PosteriorMCMC(num_samples=2500, num_warmup=500, num_chains=4),
}


def main() -> None:
    cases = [
        ("E[x³ | y = 2]", cube(2.0), 2.5),
        ("P(x > 1 | 20 rows)", tail(DATA), TAIL_TRUTH),
    ]
    table = Table(title="Expectation programming compared with averaging posterior draws")
    for column in ("quantity", "method", "estimate", "95 % interval", "status", "evaluations", "s"):
        table.add_column(column, justify="left" if column in ("quantity", "method") else "right")
    results = {}
    for name, expectation, truth in cases:
        for method_name, method in METHODS.items():
            result = results[expectation.name, method_name] = ep.estimate_expectation(
                expectation, method, throw=False
            )
            low, high = result.interval()
            is_empty = result.status is ep.Status.no_mass_found
            number = f"{result.value:.5g} ± {result.standard_error:.1g}"
            table.add_row(
                escape(name),
                method_name,
                "none" if is_empty else number,
                f"({low:.4g}, {high:.4g})",
                result.status.name,
                f"{result.num_evaluations + result.num_gradients:,}",
                f"{result.compile_seconds + result.run_seconds:.1f}",
            )
        table.add_row(escape(name), "truth", f"{truth:.5g}", end_section=True)
    Console(width=124).print(table)
    REPORT.parent.mkdir(exist_ok=True)
    results["tail", "default"].to_html(REPORT)
    print(f"Report of P(x > 1) by the default method: {REPORT}")


if __name__ == "__main__":
    main()
