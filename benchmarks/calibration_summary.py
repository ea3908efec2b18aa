"""What the runs of a cell say about a method, and which cells fail.

All of it is for one output of one cell. Errors are relative to the truth, or to E|f| where the
truth is 0. A run is

- *wrong* if its error is above `FAR` reported standard errors and above `TOLERANCE` of the scale
  that the library itself takes (the truth, but at least 1 % of E|f|);
- *right* if its error is at most `TOLERANCE` of that scale, whatever it reports.

*False trust* is the share of wrong runs among those with status `ok`; *needless refusal* the share
of right runs whose status is not `ok`. Coverage is of the runs with status `ok`, which are those
that users rely on. Ẑ is judged over all runs: where its runs are near each other by a z-test of the
mean of Ẑ/Z, corrected for skewness; elsewhere only Ẑ that is too large can be shown without
assumptions, by a betting e-process.
"""

import collections
import json
import math

import numpy as np
from scipy.stats import binomtest, norm

from benchmarks.calibration_cells import BUDGETS, CELLS, FEWEST, LEFT_OUT, LEVELS, METHODS
from benchmarks.measure import show
from problems.known import known
from tests.stats import mean_scores

FAR = 4.0
TOLERANCE = 0.01
FLOOR = 0.01
MAX_FALSE_TRUST = 0.01
# A cell is listed for false trust where an exact one-sided test at this level rejects its limit.
FALSE_TRUST_LEVEL = 0.05
# The probability that a calibrated library has any cell that fails by one of the tests.
FAILURE_RATE = 0.01
# Above this spread of Ẑ/Z a z-test of its mean says nothing.
MAX_SPREAD = 0.5
MIN_Z_RUNS = 30
PARTS = ("Z2", "Z1_plus", "Z1_minus")


def summaries(row):
    """A summary for each output of a cell; one without figures where it could not be run."""
    about = {key: row[key] for key in ("method", "problem", "budget", "settings")}
    for reason in ("refused", "error"):
        if reason in row:
            yield about | {reason: " ".join(row[reason].split())}
            return
    runs = row["runs"]
    if len(runs) < FEWEST:
        yield about | {"slow": row["seconds"]}
        return
    for output in range(len(runs[0]["outputs"])):
        found = about | {"output": output} | _of_output(row, output)
        if output == 0:
            found |= {
                "z": _of_z(np.array([run["log_z"] for run in runs], float)),
                "cost": float(np.median([run["cost"] for run in runs])),
                "seconds": row["seconds"],
            }
        yield found


def _of_output(row, output):
    columns = zip(*(run["outputs"][output] for run in row["runs"]), strict=True)
    errors, reported, statuses, covered = map(np.array, columns)
    errors, is_ok = np.abs(errors), statuses == "ok"
    tolerance = TOLERANCE * _scale(row["problem"], output)
    with np.errstate(invalid="ignore"):
        is_right = errors <= tolerance
        is_wrong = ~is_right & (errors > FAR * reported)
    trusted = int(is_ok.sum())
    counts = {
        f"{level:.0%}": int((covered[is_ok] >= len(LEVELS) - number).sum())
        for number, level in enumerate(LEVELS)
    }
    found = {
        "runs": len(errors),
        "ok": trusted,
        "statuses": dict(collections.Counter(statuses.tolist())),
        "covered": counts,
        "wrong": int(is_wrong.sum()),
        "wrong_ok": int((is_wrong & is_ok).sum()),
        "right": int(is_right.sum()),
        "right_not_ok": int((is_right & ~is_ok).sum()),
        "median_error": _digits(np.median(np.nan_to_num(errors, nan=np.inf))),
    }
    if trusted:
        found["p"] = {
            level: _digits(binomtest(count, trusted, float(level[:-1]) / 100).pvalue)
            for level, count in counts.items()
        }
        squares = [np.mean(x[is_ok] ** 2) for x in (reported, errors)]
        if squares[1] > 0:
            found["reported_over_empirical"] = _digits(math.sqrt(squares[0] / squares[1]))
    return found


def _scale(name, output):
    """What a tolerance is relative to, over what the errors are relative to."""
    problem = known(name)
    truth, magnitude = abs(problem.values[output]), problem.magnitudes[output]
    return max(truth, FLOOR * magnitude) / problem.scales[output]


def _of_z(log_ratios):
    found = {}
    for name, column in zip(PARTS, log_ratios.T, strict=True):
        if np.isnan(column).any() or len(column) < MIN_Z_RUNS:
            continue
        # A ratio of e³⁰⁰ is as wrong as any; its square is still a number.
        ratios = np.exp(np.minimum(column, 300.0))
        mean, spread = ratios.mean(), ratios.std(ddof=1)
        found[name] = {"mean": _digits(mean), "error": _digits(spread / math.sqrt(len(ratios)))}
        if 0 < spread <= MAX_SPREAD * mean:
            score = float(mean_scores(ratios, 1.0))
            found[name] |= {"z": _digits(score), "p": _digits(2 * norm.sf(abs(score)))}
        else:
            found[name]["p_too_large"] = _digits(min(1.0, 1 / too_large(ratios)))
    return found


def too_large(ratios):
    """The largest e-value along the way, of bets that the mean is above 1.

    Under a mean of at most 1 it exceeds c with probability at most 1/c, for ratios of any
    distribution on the half-line and any stopping time.
    """
    shares = np.array([0.02, 0.1, 0.3, 1.0])
    with np.errstate(divide="ignore"):
        wealth = np.cumsum(np.log1p(shares[:, None] * (ratios - 1.0)), axis=1)
    return float(np.exp(np.logaddexp.reduce(wealth, axis=0).max() - math.log(len(shares))))


def _digits(number):
    """Four digits, as JSON has them: what is not a number is None."""
    return float(f"{number:.4g}") if math.isfinite(number) else None


# --- which cells fail ---


def tests_of(row):
    """(kind, p-value) of every test that was made on a row."""
    for level, p in row.get("p", {}).items():
        share = row["covered"][level] / row["ok"]
        yield ("short" if share < float(level[:-1]) / 100 else "wide"), p
    for part in row.get("z", {}).values():
        if "p" in part:
            yield "biased", part["p"]
        else:
            yield "biased", part["p_too_large"]


def failures(rows):
    """Pairs of a row and the kinds of failure that it has, in the order of the record.

    Tests share `FAILURE_RATE` evenly. False trust is looked at more closely: each cell has
    `FALSE_TRUST_LEVEL` of its own.
    """
    alpha = FAILURE_RATE / max(1, sum(1 for row in rows for _ in tests_of(row)))
    for row in rows:
        kinds = {kind for kind, p in tests_of(row) if p < alpha}
        if row.get("wrong_ok") and _too_often(row["wrong_ok"], row["ok"]):
            kinds.add("false trust")
        if "error" in row:
            kinds.add("error")
        if kinds:
            yield row, sorted(kinds)


def _too_often(count, of):
    test = binomtest(count, of, MAX_FALSE_TRUST, alternative="greater")
    return test.pvalue < FALSE_TRUST_LEVEL


def pooled(rows):
    """Rows of one method and budget added up, by method and budget."""
    for method in METHODS:
        for budget in BUDGETS:
            mine = [
                row
                for row in rows
                if (row["method"], row["budget"]) == (method, budget) and "runs" in row
            ]
            if mine:
                yield method, budget, _added(mine)


def _added(rows):
    total = {
        key: sum(row[key] for row in rows)
        for key in ("runs", "ok", "wrong", "wrong_ok", "right", "right_not_ok")
    }
    total["covered"] = {
        f"{level:.0%}": sum(row["covered"][f"{level:.0%}"] for row in rows) for level in LEVELS
    }
    ratios = [row["reported_over_empirical"] for row in rows if "reported_over_empirical" in row]
    total["reported_over_empirical"] = float(np.median(ratios)) if ratios else math.nan
    return total


# --- the record ---


def write_record(path, rows):
    """Writes the summaries of all cells, and where they were run; one line for each."""
    order = {name: number for number, name in enumerate((*METHODS, *CELLS, *BUDGETS))}
    rows = sorted(
        (row for row in rows if row["method"] in order and row["problem"] in order),
        key=lambda row: [order[row[key]] for key in ("method", "problem", "budget")],
    )
    environments = []
    for row in rows:
        if row["environment"] not in environments:
            environments.append(row["environment"])
    record = {
        "benchmark": "calibration",
        "environments": environments,
        "fewest_runs": FEWEST,
        "left_out": LEFT_OUT,
        "seconds": sum(
            row.get("first_seconds", 0.0) + row.get("seconds", 0.0) * max(len(row["runs"]) - 1, 0)
            for row in rows
        ),
        "results": [summary for row in rows for summary in summaries(row)],
    }
    lines = ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in record["results"])
    head = json.dumps(record | {"results": None}, indent=1).removesuffix("null\n}")
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{head}[\n{lines}\n]\n}}\n")
    return record


def show_summary(record):
    rows = record["results"]
    columns = ("method", "budget", "runs", "ok", *(f"{level:.0%}" for level in LEVELS))
    show("Calibration", (*columns, "false trust", "needless"), map(_cells, pooled(rows)))
    for row, kinds in failures(rows):
        print(*(row[key] for key in ("method", "problem", "budget")), row.get("output", ""), kinds)


def _cells(item):
    method, budget, total = item
    ok = total["ok"]
    shares = [count / ok if ok else math.nan for count in total["covered"].values()]
    rates = (total["wrong_ok"], ok), (total["right_not_ok"], total["right"])
    return (
        *(method, budget, total["runs"], ok),
        *(f"{share:.3f}" for share in shares),
        *(f"{100 * count / of:.2f} %" if of else "–" for count, of in rates),
    )
