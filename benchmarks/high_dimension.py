"""High dimension by default: radon in all 85 counties, and 500 groups with a closed form.

Radon has 173 dimensions and is asked for to 5 %; the groups have 501 and are asked for to 1 %. NUTS
and an average over its draws are shown for comparison.
"""

import numpy as np

import estimand as ep
from benchmarks.measure import parser, show
from benchmarks.runs import summary, workers

CASES = {
    "radon_85": (173, ep.Auto(relative_error=0.05)),
    "groups_500": (501, ep.Auto(relative_error=0.01)),
}


def measure(over_seeds, name, runs):
    dimension, method = CASES[name]
    asked = method.relative_error
    for label, chosen in (("default", method), ("NUTS average", ep.PosteriorMCMC())):
        found = over_seeds(name, runs, chosen)
        errors = np.abs([item["error"][0] for item in found])
        trusted = [item["status"][0] == "ok" for item in found]
        yield {
            "problem": name,
            "dimension": dimension,
            "method": label,
            "asked": asked,
            "median_error": float(np.median(errors)),
            "largest_error": float(errors.max()),
            "within_asked": int((errors <= asked).sum()),
            "covered_95": sum(
                item["covered"][0.95][0] for item, ok in zip(found, trusted, strict=True) if ok
            ),
            "statuses": sorted({item["status"][0] for item in found}),
            **summary(found),
        }


def main(argv=None):
    options = parser(__doc__, processes=True).parse_args(argv)
    with workers(options.processes) as over_seeds:
        rows = []
        for name in CASES:
            for row in measure(over_seeds, name, 2 if options.quick else 3):
                rows.append(row)
                print(row, flush=True)
    columns = ("problem", "method", "asked", "median error", "largest", "runs", "ok", "covered")
    show(
        "High dimension",
        (*columns, "cost", "seconds"),
        (
            (
                f"{row['problem']}, D = {row['dimension']}",
                row["method"],
                row["asked"],
                row["median_error"],
                row["largest_error"],
                row["runs"],
                row["ok"],
                row["covered_95"],
                row["median_cost"],
                row["median_seconds"],
            )
            for row in rows
        ),
    )
    return rows


if __name__ == "__main__":
    main()
