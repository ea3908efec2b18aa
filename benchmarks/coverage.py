"""Coverage of the default method's intervals, and how often it says ok, over many seeds.

A run whose status is not `ok` does not count as covered or uncovered; it is counted separately.
Errors are relative to the truth, or to E|f| where the truth is 0. The record is written after each
problem: `--resume` keeps the problems that an interrupted run has finished, and `--problems` runs
only those named and keeps the rest of the record.
"""

import math

import numpy as np
from scipy.stats import binomtest

from benchmarks.measure import show
from benchmarks.runs import LEVELS, over_problems, summary
from problems.known import known

PROBLEMS = (
    "figure1",
    "figure1_zero",
    "cancellation",
    "horse_kicks",
    "drawn_kicks",
    "half_line",
    "simplex",
    "hierarchical",
    "posterior_predictive",
    "banana",
    "rosenbrock",
    "eight_schools_means",
    "sir",
    "rp22",
    "normal_tail",
    "normal_excess",
    "four_branch",
)


def rows_of(over_seeds, name, num_seeds):
    """One row for each output."""
    runs = over_seeds(name, num_seeds)
    for output in range(len(known(name).values)):
        trusted = [item for item in runs if item["status"][output] == "ok"]
        covered = {
            level: sum(item["covered"][level][output] for item in trusted) for level in LEVELS
        }
        wrong = [abs(item["error"][output]) for item in trusted]
        yield {
            "problem": name,
            "output": output,
            **summary(runs, output),
            "covered": {f"{level:.0%}": count for level, count in covered.items()},
            "p_value": {
                f"{level:.0%}": _p_value(count, len(trusted), level)
                for level, count in covered.items()
            },
            "largest_error_with_ok": max(wrong, default=None),
            "error_over_standard_error": _spread(trusted, output),
        }


def _p_value(covered, trusted, level):
    """By an exact two-sided binomial test; None without a run to test."""
    return float(binomtest(covered, trusted, level).pvalue) if trusted else None


def _spread(runs, output):
    """Root mean square of error over standard error: 1 if the errors are right on average."""
    if not runs:
        return None
    ratios = [item["error"][output] / item["standard_error"][output] for item in runs]
    return math.sqrt(float(np.mean(np.square(ratios))))


def table(rows):
    for row in rows:
        shares = (count / row["ok"] if row["ok"] else math.nan for count in row["covered"].values())
        yield (
            f"{row['problem']}[{row['output']}]",
            row["runs"],
            row["ok"],
            *shares,
            math.nan if row["p_value"]["95%"] is None else row["p_value"]["95%"],
            row["median_rse"],
            row["median_cost"],
            row["median_seconds"],
        )


def main(argv=None):
    rows = over_problems("coverage", argv, __doc__, PROBLEMS, (200, 20), rows_of)
    columns = ("problem", "runs", "ok", *(f"{level:.0%}" for level in LEVELS))
    columns += ("p(95%)", "median RSE", "cost", "seconds")
    show("Coverage of the default method's intervals", columns, table(rows))
    return rows


if __name__ == "__main__":
    main()
