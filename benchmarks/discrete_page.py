"""docs/discrete.md, from the record of `benchmarks.discrete`."""

INTRODUCTION = """# Programs with discrete sites

What the default method answers where [discrete sites are summed out](guides/discrete-sites.md), and
where [programs branch](guides/branching-programs.md). The record is
`benchmarks/results/discrete.json`, made by `python -m benchmarks.run discrete` (NumPyro's
enumeration needs the package `funsor`); this page is made of it by `python -m benchmarks.discrete
--write`. It was made on {cpus} cores with Python {python}, jax {jax} and numpyro {numpyro}, with
other work on the machine: seconds are of a processor, and contestants took turns.
"""

EXAMPLES = """
## NumPyro's enumerated examples

The models of `problems/enumerated/examples.py` are those of NumPyro's examples, on small data.
"Long run" is NUTS on the model that was summed out by hand (8 chains of 3,000 draws) or 1,000,000
weighted prior draws of it, whichever has the smaller error, and "off" how many joint standard
errors the answers are from it, the largest of all runs. Seconds include
compilation and no imports, without a cache on disk, and are medians over seeds; those of NUTS are
of NumPyro's own enumeration on the same model, with four chains of 1,000 warm-up steps and 1,000
draws. (*: NumPyro's enumeration fails on its own second capture-recapture model with these
versions; NUTS ran on the model that was summed out by hand.)

| example | `ok` | answer | long run | off | seconds | NUTS | ratio |
|---|---|---|---|---|---|---|---|
"""

EXACT = """
## Problems with exact answers

Truths are sums over all labels and quadrature (`problems/enumerated/exact.py`, checked in
`tests/problems/test_enumerated.py`); five seeds each. "Off" is the largest distance from the truth
in standard errors; seconds are of one answer, the median over seeds, most of them with compiled
code.

| output | truth | `ok` | off | relative error | seconds |
|---|---|---|---|---|---|
"""

COVERAGE = """
## Coverage

Intervals of those runs that are `ok` and contain the truth, with the p-value of an exact two-sided
binomial test. "Spread" is the root mean square of error over standard error, 1 if errors are right
on average.

| output | runs | `ok` | 50 % | 80 % | 95 % | spread |
|---|---|---|---|---|---|---|
"""

THROUGHPUT = """
## Evaluations per second

Mixtures of normal distributions with labels that are summed out, beside the same as a log-sum-exp
written by hand, and with NumPyro's `MixtureSameFamily`; 4,096 positions at once in double
precision, 60 rounds in turns. Ratios are medians of rounds: above 1 the labels are faster.

| labels × values | | summed out /s | by hand /s | ratio | `MixtureSameFamily` /s | ratio |
|---|---|---|---|---|---|---|
"""

PLAIN = """
## Programs without discrete sites

Processor seconds of binding a program, and of an answer with compiled code, with `enumerate=False`
and without; seven rounds in turns, medians.

| problem | binding | with `False` | ratio | answer | with `False` | ratio |
|---|---|---|---|---|---|---|
"""

BRANCHES = """
## Programs that branch

Against closed forms (`problems/branching.py`); "off" is the largest distance of an output, and of
the probability of a branch with more than 0.1 % of the mass, in standard errors over all runs.
[Other libraries](peers.md#programs-that-branch) has NumPyro's own methods beside it.

| program | `ok` | branches | answers of the first run | truths | off | worst branch | seconds |
|---|---|---|---|---|---|---|---|
"""


def _row(*cells):
    return "| " + " | ".join(cells) + " |\n"


def _examples(table):
    for name, one in table.items():
        value, known = one["value"], one["long run"]
        yield _row(
            name,
            f"{one['ok']} of {one['runs']}",
            f"{value[0]:.4g} ± {value[1]:.1g}" if value else "–",
            f"{known[0]:.4g} ± {known[1]:.1g}" if known else "–",
            f"{max(one['errors off']):.1f}" if one["errors off"] else "–",
            f"{one['seconds']:.1f}" if one["seconds"] else "–",
            f"{one['nuts']:.1f}{'*' if one['nuts by hand'] else ''}" if one["nuts"] else "–",
            f"{one['ratio']:.2f}" if one["ratio"] else "–",
        )


def _exact(table):
    for name, one in table.items():
        yield _row(
            name,
            f"{one['truth']:.6g}",
            f"{one['ok']} of {one['runs']}",
            "–" if one["largest in errors"] is None else f"{one['largest in errors']:.1f}",
            "–" if one["relative error"] is None else f"{one['relative error']:.1e}",
            f"{one['seconds']:.1f}",
        )


def _coverage(table):
    for name, one in table.items():
        shares = [
            f"{100 * count / max(one['ok'], 1):.1f} (p = {one['p'][level]:.2f})"
            for level, count in one["covered"].items()
        ]
        spread = one["error over standard error"]
        yield _row(name, str(one["runs"]), str(one["ok"]), *shares, f"{spread:.2f}")


def _throughput(table):
    for name, row in table.items():
        for what in ("values", "gradients"):
            one = row[what]
            rates = {kind: f"{rate:.3g}" for kind, rate in one["per_second"].items()}
            yield _row(
                name.replace("x", " × "),
                what,
                rates["summed out"],
                rates["by hand"],
                f"{one['ratio_paired']['by hand']:.2f}",
                rates["distribution"],
                f"{one['ratio_paired']['distribution']:.2f}",
            )


def _plain(table):
    for name, row in table.items():
        cells = []
        for what in ("binding", "answer"):
            times = row[what]["seconds"]
            cells += [f"{times['looked for']:.3f}", f"{times['not looked for']:.3f}"]
            cells.append(f"{row[what]['ratio']:.2f}")
        yield _row(name, *cells)


def _branches(rows):
    for name in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == name]
        runs = [row for row in own if "outputs" in row]
        off = max(
            abs(value - truth) / error if error > 0 else 0.0
            for run in runs
            for value, error, truth in run["outputs"].values()
        )
        first = runs[0]["outputs"].items()
        yield _row(
            name,
            f"{sum(run['status'] == 'ok' for run in runs)} of {len(own)}",
            str(runs[0]["num_branches"]),
            ", ".join(f"{output} {value:.6g} ± {error:.1g}" for output, (value, error, _) in first),
            ", ".join(f"{truth:.6g}" for _, (_, _, truth) in first),
            f"{off:.1f}",
            f"{max(run['worst_branch_in_errors'] for run in runs):.1f}",
            f"{sorted(run['seconds'] for run in runs)[len(runs) // 2]:.0f}",
        )


def page(record):
    """The page of the docs."""
    found, made = record["results"]["summary"], record["environment"]
    text = INTRODUCTION.format(
        cpus=made["cpu_count"], python=made["python"], jax=made["jax"], numpyro=made["numpyro"]
    )
    if "note" in record["results"]:
        text += "\n" + record["results"]["note"] + "\n"
    parts = (
        (EXAMPLES, _examples, "examples"),
        (EXACT, _exact, "exact"),
        (COVERAGE, _coverage, "coverage"),
        (THROUGHPUT, _throughput, "throughput"),
        (PLAIN, _plain, "plain"),
        (BRANCHES, _branches, "branches"),
    )
    for head, rows, key in parts:
        if found[key]:
            text += head + "".join(rows(found[key]))
    return text
