"""What the default method costs for the error that is requested, and how precise it then is.

Each problem with several requested errors, from a rough answer to a precise one, and once with an
error that nothing reaches and a budget of a million evaluations. Costs are in evaluations, a
gradient counting as three. The prior draws of the net are not counted: the notes of each result
have them.
"""

import estimand as ep
from benchmarks.measure import show
from benchmarks.runs import over_problems, summary

GOALS = (0.1, 0.05, 0.01, 0.001)
UNREACHABLE = ep.Auto(relative_error=1e-9, max_evaluations=1_000_000)
METHODS = {f"{goal:g}": ep.Auto(relative_error=goal) for goal in GOALS} | {"1e6": UNREACHABLE}
PROBLEMS = (
    "posterior_predictive",
    "banana",
    "sir",
    "four_branch",
    "rp22",
    "normal_tail",
    "eight_schools_means",
    "radon",
)


def rows_of(over_seeds, name, num_seeds):
    for asked, method in METHODS.items():
        runs = over_seeds(name, num_seeds, method)
        within = [abs(item["error"][0]) <= 3 * item["standard_error"][0] for item in runs]
        yield {"problem": name, "asked": asked, **summary(runs), "within three errors": sum(within)}


def main(argv=None):
    rows = over_problems("price", argv, __doc__, PROBLEMS, (20, 3), rows_of)
    names = ("runs", "ok", "median_cost", "median_seconds", "median_rse", "within three errors")
    show(
        "What a requested error costs",
        ("problem", "asked", *names),
        ((row["problem"], row["asked"], *(row[name] for name in names)) for row in rows),
    )
    return rows


if __name__ == "__main__":
    main()
