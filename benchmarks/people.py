"""Models people have: what the default method answers, beside NUTS.

Every model of `problems/people` with its three questions (an ordinary expectation, an event of
about one per cent, one of about one in a million), by the default method with several seeds, each
in a process of its own. Up to 12 dimensions 1 % is asked for; above it 1 % of the expectation and
5 % of the events. An answer is right if it is within 4.5 joint standard errors of the reference, or
within the error that was asked for. Processor seconds stand beside those of NUTS with four chains
of 1,000 warm-up steps and 1,000 draws on the same model.

`--half=seen` runs the models that may be looked at while the method is worked on, `--half=held-out`
those that are kept for the last examination. A finished run is added to the journal
(build/people.jsonl) at once, and a later call goes on from there; `--write` makes docs/models.md of
the record, results/people.json.
"""

import argparse
import json
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.measure import run_child

ROOT = Path(__file__).parents[1]
REFERENCES = ROOT / "problems" / "people" / "references.json"
JOURNAL = ROOT / "build" / "people.jsonl"
RECORD = ROOT / "benchmarks" / "results" / "people.json"
PAGE = ROOT / "docs" / "models.md"
QUESTIONS = ("ordinary", "common", "rare")
# Above this dimension 5 % is asked of events.
MAX_PRECISE_DIMENSION = 12
# Standard errors within which an answer is right.
MAX_ERRORS = 4.5
# Seconds after which a child is stopped.
LIMIT = 300


# --- the child: one model, one seed ---


def ask(name, seed):
    """The default method's answers to the three questions."""
    import estimand as ep
    from problems.people import MODELS

    entry = MODELS[name]
    is_small = entry.dimension <= MAX_PRECISE_DIMENSION
    asked = [(slice(0, 3), 0.01)] if is_small else [(slice(0, 1), 0.01), (slice(1, 3), 0.05)]
    began, rows, evaluations = time.process_time(), [], 0
    for outputs, goal in asked:

        def some(*args, outputs=outputs):
            return entry.model(*args)[outputs]

        program = ep.expectation(some)
        result = ep.estimate_expectation(
            program(*entry.args), ep.Auto(relative_error=goal), rng_key=seed, throw=False
        )
        evaluations += result.num_evaluations + 3 * result.num_gradients
        rows += [
            {
                "value": output.value,
                "error": output.standard_error,
                "status": output.status.name,
                "goal": goal,
                "route": output.route,
                "findings": [str(finding) for finding in output.findings],
            }
            for output in result.outputs
        ]
    seconds = time.process_time() - began
    return {"outputs": rows, "seconds": seconds, "evaluations": evaluations}


def by_nuts(name, seed):
    """Processor seconds of four chains of NUTS, compilation included."""
    import jax
    from numpyro.infer import MCMC, NUTS

    from problems.people import MODELS

    entry = MODELS[name]
    began = time.process_time()
    mcmc = MCMC(
        NUTS(entry.model), num_warmup=1000, num_samples=1000, num_chains=4, progress_bar=False
    )
    mcmc.run(jax.random.key(seed), *entry.args)
    jax.block_until_ready(mcmc.get_samples())
    return {"seconds": time.process_time() - began}


CHILDREN = {"default": ask, "nuts": by_nuts}


# --- what is right ---


def judged(rows):
    """For each run of the default method and each question: answered, right, and how far off."""
    references = json.loads(REFERENCES.read_text())
    found = []
    for row in rows:
        if row["contestant"] != "default":
            continue
        outputs = row.get("outputs") or [None] * 3
        for question, output in zip(QUESTIONS, outputs, strict=True):
            known = references[row["model"]][question]
            verdict = {"model": row["model"], "question": question, "seed": row["seed"]}
            if output is None:
                found.append(verdict | {"is_ok": False, "is_right": False, "why": row["failure"]})
                continue
            distance = abs(output["value"] - known["value"])
            error = math.hypot(output["error"], known["standard_error"])
            is_near = distance <= output["goal"] * abs(known["value"])
            found.append(
                verdict
                | {
                    "is_ok": output["status"] == "ok",
                    "is_right": is_near or distance <= MAX_ERRORS * error,
                    "errors": distance / error if error > 0 else math.inf,
                    "why": [output["status"], *output["findings"]],
                }
            )
    return found


def shares(verdicts, is_held_out):
    """Of every question, in both halves: answered and right, and wrong though `ok`."""
    table = {}
    for half, belongs in (("seen", False), ("held out", True)):
        for question in QUESTIONS:
            own = [
                item
                for item in verdicts
                if item["question"] == question and is_held_out(item["model"]) is belongs
            ]
            if own:
                answered = [item for item in own if item["is_ok"]]
                right = [item for item in answered if item["is_right"]]
                table[f"{half}: {question}"] = {
                    "runs": len(own),
                    "ok and right": len(right) / len(own),
                    "ok and wrong": len(answered) - len(right),
                }
    return table


# --- the page ---


INTRODUCTION = """# Models people have

What the default method answers on {count} models as people write them (`problems/people/`):
NumPyro's examples, textbook and case-study models, with small data. Each has three questions: an
ordinary posterior expectation, an event of about one per cent, and one of about one in a million.
1 % was asked for, and 5 % of the events above {limit} dimensions. A cell says in how many runs the
answer was `ok` and right, of how many; "wrong" are those that were `ok` and more than 4.5 standard
errors and the requested error off. Answers are compared with quadrature or closed forms (24
models), or with long runs of NUTS and multilevel splitting
(`python -m problems.people.references`). Seconds are of a processor, compilation included; those of
NUTS are of four chains of 1,000 warm-up steps and 1,000 draws, which answer the first question
only.

The record is `benchmarks/results/people.json`, made by `python -m benchmarks.run people`; this page
is made of it by `python -m benchmarks.people --write`. Models marked with * are the half that was
not used while the method was worked on.

"""


def page(record):
    """The page of the docs, from the record."""
    from problems.people import MODELS, is_held_out

    rows = record["runs"]
    verdicts = judged(rows)
    lines = ["| | ordinary | 1 in 100 | 1 in 10⁶ | wrong `ok` |", "|---|---|---|---|---|"]
    for half in ("seen", "held out"):
        cells = [record["shares"][f"{half}: {question}"] for question in QUESTIONS]
        answered = [f"{100 * cell['ok and right']:.0f} %" for cell in cells]
        wrong = sum(cell["ok and wrong"] for cell in cells)
        total = sum(cell["runs"] for cell in cells)
        lines.append(f"| {half} | {' | '.join(answered)} | {wrong} of {total} |")
    lines += ["", "| model | dimensions | ordinary | 1 in 100 | 1 in 10⁶ | seconds | NUTS |"]
    lines += ["|---|---|---|---|---|---|---|"]
    reasons = []
    for name, entry in MODELS.items():
        own = [row for row in rows if row["model"] == name]
        runs = [
            row["seconds"] for row in own if row["contestant"] == "default" and "seconds" in row
        ]
        nuts = [row["seconds"] for row in own if row["contestant"] == "nuts" and "seconds" in row]
        cells = []
        for question in QUESTIONS:
            asked = [v for v in verdicts if (v["model"], v["question"]) == (name, question)]
            right = [v for v in asked if v["is_ok"] and v["is_right"]]
            wrong = [v for v in asked if v["is_ok"] and not v["is_right"]]
            note = f", {len(wrong)} wrong" if wrong else ""
            cells.append(f"{len(right)} of {len(asked)}{note}")
            others = [v for v in asked if not v["is_ok"]]
            if others:
                why = others[0]["why"]
                text = why if isinstance(why, str) else ": ".join(why[:2])
                reasons.append(f"- {entry.title}, {question}: {text}.")
        mark = "*" if is_held_out(name) else ""
        times = [f"{sum(item) / len(item):.0f}" if item else "–" for item in (runs, nuts)]
        columns = [f"{entry.title}{mark}", str(entry.dimension), *cells, *times]
        lines.append(f"| {' | '.join(columns)} |")
    lines += ["", "## Not answered", "", "By the first run that was not `ok`:", "", *reasons]
    head = INTRODUCTION.format(count=len(MODELS), limit=MAX_PRECISE_DIMENSION)
    if "note" in record:
        head += record["note"] + "\n\n"
    return head + "\n".join(lines) + "\n"


# --- the table ---


def main(arguments=()):
    from problems.people import MODELS, is_held_out

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, the seen half")
    parser.add_argument("--half", choices=("seen", "held-out", "both"), default="both")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--models", default="", help="some of them, separated by commas")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--no-nuts", action="store_true")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--write", action="store_true", help="docs/models.md; runs nothing")
    options = parser.parse_args(list(arguments))
    if options.write:
        PAGE.write_text(page(json.loads(RECORD.read_text())["results"]))
        return None
    half, seeds = ("seen", 1) if options.quick else (options.half, options.seeds)
    names = [
        name
        for name in (options.models.split(",") if options.models else MODELS)
        if half == "both" or is_held_out(name) == (half == "held-out")
    ]
    options.journal.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    if options.journal.exists():
        rows = [json.loads(line) for line in options.journal.read_text().splitlines()]
    known = {(row["contestant"], row["model"], row["seed"]) for row in rows}
    jobs = [("default", name, seed) for seed in range(seeds) for name in names]
    jobs += [] if options.no_nuts else [("nuts", name, 0) for name in names]
    deadline = time.monotonic() + 60 * options.minutes

    def run(job):
        if time.monotonic() > deadline:
            return None
        row = run_child("benchmarks.people", *job, LIMIT)
        with options.journal.open("a") as journal:
            journal.write(json.dumps(row) + "\n")
        return row

    with ThreadPoolExecutor(options.processes) as pool:
        new = [row for row in pool.map(run, (job for job in jobs if job not in known)) if row]
    rows = [row for row in rows + new if row["model"] in names]
    verdicts = judged(rows)
    table = shares(verdicts, is_held_out)
    for key, row in table.items():
        print(key, row)
    for item in verdicts:
        if not item["is_ok"] or not item["is_right"]:
            print(item["model"], item["question"], item["seed"], item.get("errors"), item["why"])
    return {"runs": rows, "shares": table, "not answered": [v for v in verdicts if not v["is_ok"]]}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        contestant, name, seed = sys.argv[2:]
        print(json.dumps(CHILDREN[contestant](name, int(seed))))
    else:
        main(sys.argv[1:])
