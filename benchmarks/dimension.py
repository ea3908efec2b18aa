"""The Gaussian problem from 2 to 100 dimensions: cost, error, and evaluations for a 1 % error.

Four things for each dimension: the default method as it is; the default method asked for 1 %; the
evaluations at which the error of its first route, `AdaptiveIS`, passes 1 % (the root of the median
squared error, interpolated over budgets), because where the problem is easy the default does far
better than asked; and the paper's TABI + AnIS at as many evaluations as the default took.
`python -m benchmarks.dimension --plot` draws docs/images/dimension.png from the record alone.
"""

import math

import numpy as np

import estimand as ep
from benchmarks.accuracy import PAPER, affordable, tabi
from benchmarks.measure import ROOT, parser, read_results, show
from benchmarks.runs import summary, workers

ASKED = 0.01
DIMENSIONS = (2, 5, 10, 25, 50, 100)
# With an error that cannot be reached, the budget alone decides.
BUDGETS = (20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 4_000_000)
UNREACHABLE = 1e-9
FIGURE = ROOT / "docs" / "images" / "dimension.png"


def budgeted(over_seeds, name, runs, budgets):
    """Cost and error for each budget, until the error is well below what is asked."""
    points = []
    for budget in budgets:
        method = ep.AdaptiveIS(relative_error=UNREACHABLE, max_evaluations=budget)
        found = summary(over_seeds(name, runs, method))
        error = math.sqrt(found["median_rse"])
        points.append({"budget": budget, "cost": found["median_cost"], "error": error})
        if error < ASKED / 2:
            break
    return points


def needed(points):
    """Evaluations for the asked error, log-linear between budgets.

    The cheapest run's cost, as an upper bound, if that already has it; None if none has it.
    """
    previous = None
    for point in points:
        if point["error"] <= ASKED:
            if previous is None:
                return {"evaluations": point["cost"], "is_bound": True}
            xs, ys = np.log([[p["error"], p["cost"]] for p in (point, previous)]).T
            return {
                "evaluations": float(np.exp(np.interp(math.log(ASKED), xs, ys))),
                "is_bound": False,
            }
        previous = point
    return None


def measure(over_seeds, dimension, runs, budgets):
    name = f"gaussian_{dimension}"
    default = summary(over_seeds(name, runs))
    asking = ep.Auto(relative_error=ASKED)
    asked = default if asking == ep.Auto() else summary(over_seeds(name, runs, asking))
    points = budgeted(over_seeds, name, runs, budgets)
    estimator = PAPER["posterior_predictive"]
    particles = affordable(name, estimator, default["median_cost"])
    paper = summary(over_seeds(name, runs, tabi(estimator, particles, is_signed=False)))
    return {
        "dimension": dimension,
        "default": default,
        "asked_1_percent": asked,
        "budgets": points,
        "needed_for_1_percent": needed(points),
        "paper": paper | {"particles": particles},
    }


def plot(results, path):
    """Evaluations for 1 %, and squared error at equal evaluations, against the dimension."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.8), layout="constrained")
    dimensions = [row["dimension"] for row in results]
    left.plot(
        dimensions,
        [row["asked_1_percent"]["median_cost"] for row in results],
        "s--",
        label="spent when asked for 1 %",
    )
    reached = [row for row in results if row["needed_for_1_percent"]]
    left.plot(
        [row["dimension"] for row in reached],
        [row["needed_for_1_percent"]["evaluations"] for row in reached],
        "o-",
        label="needed for 1 %",
    )
    bounds = [row for row in reached if row["needed_for_1_percent"]["is_bound"]]
    left.plot(
        [row["dimension"] for row in bounds],
        [row["needed_for_1_percent"]["evaluations"] for row in bounds],
        "v",
        color="black",
        label="upper bound: the least budget has it",
    )
    left.set(ylabel="evaluations (a gradient counts as 3)", title="Evaluations for a 1 % error")
    for key, style, label in (
        ("default", "o-", "default method"),
        ("paper", "x:", "the paper's TABI + AnIS at equal evaluations"),
    ):
        errors = [row[key]["median_rse"] for row in results]
        right.plot(dimensions, errors, style, label=label)
    right.set(ylabel="median relative squared error", title="Error")
    right.axhline(ASKED**2, color="grey", linewidth=0.8)
    right.annotate("1 %", (dimensions[-1], ASKED**2), ha="right", va="top", color="grey")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="dimension")
        axes.set_xticks(dimensions, labels=map(str, dimensions), minor=False)
        axes.minorticks_off()
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main(argv=None):
    options_parser = parser(__doc__, processes=True)
    options_parser.add_argument("--plot", action="store_true", help="draw the record, run nothing")
    options = options_parser.parse_args(argv)
    if options.plot:
        results = read_results("dimension", options.quick)
        if results is None:
            options_parser.error("there is no record to draw: run the benchmark first")
        plot(results, FIGURE)
        return results
    dimensions, budgets = (
        (DIMENSIONS[::2], BUDGETS[::3]) if options.quick else (DIMENSIONS, BUDGETS)
    )
    with workers(options.processes) as over_seeds:
        rows = []
        for dimension in dimensions:
            rows.append(measure(over_seeds, dimension, 5 if options.quick else 20, budgets))
            print(rows[-1], flush=True)
    show(
        "Gaussian problem: default method, 1 % asked, and TABI + AnIS at equal evaluations",
        ("D", "RSE", "cost", "seconds", "ok", "1 %: RSE", "cost", "needed for 1 %", "paper RSE"),
        (
            (
                row["dimension"],
                row["default"]["median_rse"],
                row["default"]["median_cost"],
                row["default"]["median_seconds"],
                f"{row['default']['ok']}/{row['default']['runs']}",
                row["asked_1_percent"]["median_rse"],
                row["asked_1_percent"]["median_cost"],
                _needed_cell(row["needed_for_1_percent"]),
                row["paper"]["median_rse"],
            )
            for row in rows
        ),
    )
    return rows


def _needed_cell(found):
    if found is None:
        return "not reached"
    return f"{'≤ ' if found['is_bound'] else ''}{found['evaluations']:,.0f}"


if __name__ == "__main__":
    main()
