"""Adversarial programs: how often `ok` is wrong, and how often a fair program is refused.

Every program of `problems/adversarial` by the default method, with three budgets and several seeds,
each seed in a process of its own. An answer is wrong if it is `ok` and off by more than 4.5
standard errors and by more than the error that was asked for (1 %, and 5 % in more than 12
dimensions); an expectation that does not exist has no right answer. A refusal is needless if a
statistician would be annoyed by it (`is_easy`).

`--half=first` runs the programs that may be looked at while the method is worked on. A finished
seed is added to the journal (build/adversarial.jsonl) at once, and a later call goes on from there;
`--write` makes docs/adversarial.md of the record, results/adversarial.json.
"""

import argparse
import collections
import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
JOURNAL = ROOT / "build" / "adversarial.jsonl"
RECORD = ROOT / "benchmarks" / "results" / "adversarial.json"
PAGE = ROOT / "docs" / "adversarial.md"
# Budgets in evaluations; the first is the default one.
BUDGETS = (8_000_000, 1_000_000, 200_000)
# Above this dimension 5 % is asked for.
MAX_PRECISE_DIMENSION = 12
# Standard errors within which an answer is right.
MAX_ERRORS = 4.5
# Seconds after which a child is stopped, for each run.
LIMIT = 120


# --- the child: one program and one seed, all budgets ---


def ask(name, budgets, seed):
    """A row for every budget, each printed when it is known."""
    import numpy as np

    import estimand as ep
    from problems.adversarial import PROGRAMS

    entry = PROGRAMS[name]
    truths = entry.truths().tolist()
    bound = ep.expectation(entry.model)(*entry.args)
    dimension = sum(int(np.prod(site.shape, dtype=int)) for site in bound.model.sites)
    goal = 0.01 if dimension <= MAX_PRECISE_DIMENSION else 0.05
    for budget in budgets:
        method = ep.Auto(relative_error=goal, max_evaluations=budget)
        began = time.process_time()
        row = {"program": name, "budget": budget, "seed": seed, "goal": goal, "truth": truths}
        try:
            result = ep.estimate_expectation(bound, method, rng_key=seed, throw=False)
        except Exception as error:  # noqa: BLE001 - a crash is a result, too
            outputs = [_nothing(type(error).__name__ + ": " + str(error))] * len(truths)
            result = None
        else:
            outputs = [_plain(output) for output in result.outputs]
        cost = 0 if result is None else result.num_evaluations + 3 * result.num_gradients
        seconds = time.process_time() - began
        row |= {"outputs": outputs, "cost": cost, "seconds": seconds, "dimension": dimension}
        print(json.dumps(row), flush=True)


def _plain(output):
    return {
        "value": output.value,
        "error": output.standard_error,
        "status": output.status.name,
        "route": output.route,
        "findings": [str(finding) for finding in output.findings],
    }


def _nothing(why):
    return {"value": 0.0, "error": math.inf, "status": "failure", "route": "", "findings": [why]}


def run_child(name, budgets, seed):
    """The rows of a fresh process; those that are missing have failed."""
    command = [sys.executable, "-m", "benchmarks.adversarial", "--child", name]
    command += [",".join(map(str, budgets)), str(seed)]
    limit = LIMIT * len(budgets)
    try:
        child = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False
        )
        output, why = child.stdout, (child.stderr.strip().splitlines() or [""])[-1]
    except subprocess.TimeoutExpired as expired:
        output = (expired.stdout or b"").decode()
        why = f"more than {limit} s"
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if len(rows) < len(budgets):
        rows.append({"program": name, "seed": seed, "failure": why})
    return rows


# --- what is right ---


def judged(rows):
    """A verdict for every output of every run."""
    from problems.adversarial import PROGRAMS

    for row in rows:
        entry = PROGRAMS[row["program"]]
        for number, (truth, output) in enumerate(
            zip(row.get("truth", ()), row.get("outputs", ()), strict=True)
        ):
            verdict = {
                "program": row["program"],
                "category": entry.category,
                "budget": row["budget"],
                "seed": row["seed"],
                "output": number,
                "is_easy": entry.is_easy,
                "is_ok": output["status"] == "ok",
            }
            distance = abs(output["value"] - truth)
            is_near = distance <= row["goal"] * abs(truth)
            errors = distance / output["error"] if output["error"] > 0 else math.inf
            is_right = is_near or errors <= MAX_ERRORS or distance == 0
            yield verdict | {
                "exists": not math.isnan(truth),
                "is_right": is_right and not math.isnan(truth),
                "errors": errors,
                "truth": truth,
                "output_row": output,
            }


def counted(verdicts):
    """For both halves and each budget: answers, wrong ones, and needless refusals."""
    table = {}
    for verdict in verdicts:
        half = verdict["program"].split("/")[0]
        key = f"{half}: {verdict['budget']}"
        cell = table.setdefault(key, collections.Counter())
        cell["outputs"] += 1
        cell["ok"] += verdict["is_ok"]
        cell["wrong"] += verdict["is_ok"] and not verdict["is_right"]
        is_fair = verdict["is_easy"] and verdict["exists"]
        cell["easy"] += is_fair
        cell["needless"] += is_fair and not verdict["is_ok"]
    return {key: dict(cell) for key, cell in sorted(table.items())}


# --- the page ---


INTRODUCTION = """# Adversarial programs

{count} programs that are meant to break the default method (`problems/adversarial/`): sums with a
rare catastrophe, needles, unions, strata, heavy tails, edges, ties, loops, large numbers, and so
on. They were written without knowledge of the methods, each with its truth by two ways. The first
set was looked at while the method was worked on, the second was not.

"Wrong" counts outputs with status `ok` that are more than 4.5 standard errors and more than the
requested error (1 %, and 5 % in more than 12 dimensions) off; "needless" counts refusals of outputs
of programs that a statistician would call easy or fair. The record is
`benchmarks/results/adversarial.json`, made by `python -m benchmarks.run adversarial`; this page is
made of it by `python -m benchmarks.adversarial --write`.

"""


def page(record):
    """The page of the docs, from the record."""
    from problems.adversarial import CATEGORIES, PROGRAMS

    rows = record["runs"]
    verdicts = list(judged(rows))
    lines = ["| set | budget | outputs | `ok` | wrong `ok` | easy | needless refusals |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for key, cell in counted(verdicts).items():
        half, _, budget = key.partition(": ")
        wrong = f"{cell['wrong']} ({100 * cell['wrong'] / max(cell['ok'], 1):.1f} %)"
        needless = f"{cell['needless']} ({100 * cell['needless'] / max(cell['easy'], 1):.0f} %)"
        shown = [half, f"{int(budget):,}", cell["outputs"], cell["ok"], wrong, cell["easy"]]
        lines.append("| " + " | ".join(map(str, [*shown, needless])) + " |")
    lines += ["", "At the default budget, by category:", ""]
    lines += [
        "| category | programs | `ok` and right | wrong `ok` | refused |",
        "|---|---|---|---|---|",
    ]
    usual = [v for v in verdicts if v["budget"] == BUDGETS[0]]
    for category, text in CATEGORIES.items():
        own = [v for v in usual if v["category"] == category]
        right = sum(v["is_ok"] and v["is_right"] for v in own)
        wrong = sum(v["is_ok"] and not v["is_right"] for v in own)
        programs = sum(entry.category == category for entry in PROGRAMS.values())
        cells = [text, programs, right, wrong, len(own) - right - wrong]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "## Wrong", "", *_listed(v for v in verdicts if v["is_ok"] and not v["is_right"])]
    refused = (v for v in usual if not v["is_ok"])
    lines += ["", "## Refused at the default budget", "", *_listed(refused)]
    failures = [f"- `{row['program']}`: {row['failure']}" for row in rows if "failure" in row]
    if failures:
        lines += ["", "## Not finished", "", *failures]
    head = INTRODUCTION.format(count=len(PROGRAMS))
    if "note" in record:
        head += record["note"] + "\n\n"
    return head + "\n".join(lines) + "\n"


def _listed(verdicts):
    """A line for each program, with the first of its verdicts and how many there are."""
    groups = collections.defaultdict(list)
    for verdict in verdicts:
        groups[verdict["program"]].append(verdict)
    lines = []
    for name, own in groups.items():
        row, first = own[0]["output_row"], own[0]
        why = row["findings"][0] if row["findings"] else row["route"]
        mark = " (easy)" if first["is_easy"] else ""
        truth = f"{first['truth']:.5g}" if first["exists"] else "does not exist"
        lines.append(
            f"- `{name}`{mark}, {len(own)} outputs: {row['value']:.5g} ± {row['error']:.2g} at "
            f"{first['budget']:,} evaluations, the truth {truth}; {row['status']}: {why}"
        )
    return lines or ["None."]


# --- the table ---


def main(arguments=()):
    from problems.adversarial import PROGRAMS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, the first set")
    parser.add_argument("--half", choices=("first", "second", "both"), default="both")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--budgets", type=int, default=len(BUDGETS), help="so many of the three")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--programs", default="", help="some of them, separated by commas")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--write", action="store_true", help="docs/adversarial.md; runs nothing")
    options = parser.parse_args(list(arguments))
    if options.write:
        PAGE.write_text(page(json.loads(RECORD.read_text())["results"]))
        return None
    half, seeds = ("first", 1) if options.quick else (options.half, options.seeds)
    names = options.programs.split(",") if options.programs else list(PROGRAMS)
    names = [name for name in names if half == "both" or name.startswith(half)]
    options.journal.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    if options.journal.exists():
        rows = [json.loads(line) for line in options.journal.read_text().splitlines()]
    known = {(row["program"], row["seed"]) for row in rows}
    first = options.first_seed
    jobs = [(name, seed) for seed in range(first, first + seeds) for name in names]
    deadline = time.monotonic() + 60 * options.minutes

    def run(job):
        if time.monotonic() > deadline:
            return []
        name, seed = job
        found = run_child(name, BUDGETS[: options.budgets], seed)
        with options.journal.open("a") as journal:
            journal.writelines(json.dumps(row) + "\n" for row in found)
        return found

    with ThreadPoolExecutor(options.processes) as pool:
        for found in pool.map(run, (job for job in jobs if job not in known)):
            rows += found
    rows = [row for row in rows if row["program"] in names]
    verdicts = list(judged(rows))
    table = counted(verdicts)
    for key, row in table.items():
        print(key, row)
    for title, chosen in (
        ("WRONG", [v for v in verdicts if v["is_ok"] and not v["is_right"]]),
        ("REFUSED", [v for v in verdicts if not v["is_ok"]]),
    ):
        print(title)
        print("\n".join(_listed(chosen)))
    print("\n".join(str(row) for row in rows if "failure" in row))
    return {"runs": rows, "counts": table}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        name, budgets, seed = sys.argv[2:]
        ask(name, tuple(map(int, budgets.split(","))), int(seed))
    else:
        main(sys.argv[1:])
