"""Does the default method notice when it has missed a mode?

γf in ten dimensions has two modes of equal mass, four prior standard deviations from the middle on
either side. Where one is narrower (widths 0.3 and 0.2) it has little mass at high temperatures, and
a part of the runs finds the wide mode only, or weighs the two wrongly. A run has missed if its
error is over 20 %; at least 95 % of such runs should not say `ok`, and at most 10 % of the others
should not. On SIR, whose second mode carries 97 % of the expectation, no run may miss it
and say `ok`. The default method's scouts miss neither; with a twentieth of their particles about
half of the runs miss one of two equal modes. So few scouts are trusted in no case, whatever they
find.
"""

import estimand as ep
from benchmarks.measure import show
from benchmarks.runs import over_problems, summary

MISS = 0.2
FEW = ep.AdaptiveIS(scout=ep.SMC(num_particles=100, num_steps=20, num_islands=2))
# By name: the problem and the method, the default one if None.
CASES = {
    "unequal_modes_10": ("unequal_modes_10", None),
    "equal_modes_10": ("equal_modes_10", None),
    "equal_modes_10_few_particles": ("equal_modes_10", FEW),
    "unequal_modes_10_few_particles": ("unequal_modes_10", FEW),
    "sir": ("sir", None),
}


def rows_of(over_seeds, name, num_seeds):
    problem, method = CASES[name]
    runs = over_seeds(problem, num_seeds, method)
    missed = [item for item in runs if not abs(item["error"][0]) <= MISS]
    found = [item for item in runs if abs(item["error"][0]) <= MISS]

    def not_ok(items):
        return sum(item["status"][0] != "ok" for item in items)

    yield {
        "problem": name,
        **summary(runs),
        "missed": len(missed),
        "missed_not_ok": not_ok(missed),
        "found": len(found),
        "found_not_ok": not_ok(found),
        "silent_seeds": [item["seed"] for item in missed if item["status"][0] == "ok"],
        "silent_errors": [item["error"][0] for item in missed if item["status"][0] == "ok"],
    }


def main(argv=None):
    rows = over_problems("missed_modes", argv, __doc__, CASES, (200, 20), rows_of)
    show(
        "Missed modes",
        ("problem", "runs", "missed", "of these not ok", "found", "of these not ok", "cost"),
        (
            (
                row["problem"],
                row["runs"],
                row["missed"],
                row["missed_not_ok"],
                row["found"],
                row["found_not_ok"],
                row["median_cost"],
            )
            for row in rows
        ),
    )
    return rows


if __name__ == "__main__":
    main()
