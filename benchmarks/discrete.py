"""Programs with discrete sites that are summed out, and programs that branch.

Every run is a process of its own, without a cache on disk. In parts, of which `--parts` chooses:

- `examples`: NumPyro's enumerated examples by the default method, in turns with NUTS and
  enumeration on the same model (four chains of 1,000 warm-up steps and 1,000 draws): processor
  seconds, imports not counted and compilation included. Answers are compared with a long run of
  NUTS on the model that was summed out by hand, or with weighted prior draws of it, whichever has
  the smaller error.
- `exact`: problems with exact answers, with several seeds in one process.
- `coverage`: 50, 80 and 95 % intervals over 200 seeds of three of them.
- `throughput`: evaluations per second of a mixture, summed out and by hand, in turns.
- `plain`: programs without discrete sites, with and without a look for such sites, in turns.
- `branches`: programs that branch, against closed forms.

A finished run is added to the journal (build/discrete.jsonl) at once, and a later call goes on from
there; `--write` makes docs/discrete.md of the record, results/discrete.json. NumPyro's enumeration
needs the package funsor.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path

from benchmarks.measure import RESULTS, ROOT, paired_ratio, run_child, seconds

JOURNAL = ROOT / "build" / "discrete.jsonl"
PAGE = ROOT / "docs" / "discrete.md"
LEVELS = (0.5, 0.8, 0.95)
COVERED = ("two_components", "hidden_states", "abundance")
NUM_SEEDS = 200
# Seeds of one process.
CHUNK = 50
PLAIN = ("banana", "figure1", "posterior_predictive")
MIXTURES = ((30, 2), (30, 3), (300, 3))
# Seconds after which a child is stopped.
LIMIT = 1500


# --- children: each prints what it found as JSON ---


def ask(name, seed):
    """The default method's answer to an example."""
    import estimand as ep
    from problems.enumerated.examples import EXAMPLES

    example = EXAMPLES[name]
    began = time.process_time()
    program = ep.expectation(example.model)
    result = ep.estimate_expectation(program(*example.args), rng_key=seed, throw=False)
    taken = time.process_time() - began
    return {
        "value": float(result.value),
        "error": float(result.standard_error),
        "status": result.status.name,
        "findings": [str(item) for output in result.outputs for item in output.findings],
        "cost": result.cost,
        "seconds": taken,
    }


def by_nuts(name, seed):
    """Processor seconds of NUTS on an example, which sums out the same sites.

    On the model that was summed out by hand where NumPyro's enumeration fails, as numpyro 0.22.0
    with funsor 0.4.8 does on its own second capture-recapture model.
    """
    from problems.enumerated.examples import EXAMPLES

    example, is_by_hand = EXAMPLES[name], False
    began = time.process_time()
    try:
        _sampled(example.model, example.args, seed, 4, 1000, 1000)
    except AssertionError:
        is_by_hand, began = True, time.process_time()
        _sampled(example.by_hand, example.args, seed, 4, 1000, 1000)
    return {"seconds": time.process_time() - began, "is_by_hand": is_by_hand}


def by_hand(name, seed):
    """A long run of NUTS on the model that was summed out by hand, in double precision."""
    import jax
    import numpy as np
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
    from numpyro.handlers import seed as seeded
    from numpyro.handlers import substitute

    from problems.enumerated.examples import EXAMPLES

    jax.config.update("jax_enable_x64", True)
    example = EXAMPLES[name]
    draws = _sampled(example.by_hand, example.args, seed, 8, 500, 3000)

    @jax.jit
    @jax.vmap
    def outputs(sites):
        return 1.0 * substitute(seeded(example.by_hand, 0), data=sites)(*example.args)

    flat = {site: values.reshape(-1, *values.shape[2:]) for site, values in draws.items()}
    found = np.asarray(outputs(flat)).reshape(8, -1)
    size = float(effective_sample_size(found))
    return {
        "value": float(found.mean()),
        "error": float(found.std() / math.sqrt(size)),
        "effective_size": size,
        "r_hat": float(split_gelman_rubin(found)),
    }


def from_prior(name, seed):
    """Prior draws of the model that was summed out by hand, weighted by the likelihood."""
    import jax
    import numpy as np
    from numpyro import handlers

    from problems.enumerated.examples import EXAMPLES

    jax.config.update("jax_enable_x64", True)
    example = EXAMPLES[name]

    @jax.jit
    @jax.vmap
    def weighted(key):
        with handlers.trace() as sites, handlers.seed(rng_seed=key):
            value = 1.0 * example.by_hand(*example.args)
        observed = [site for site in sites.values() if site.get("is_observed")]
        return value, sum(site["fn"].log_prob(site["value"]).sum() for site in observed)

    keys = jax.random.split(jax.random.key(seed), (20, 50_000))
    values, log_weights = (np.stack(one) for one in zip(*map(weighted, keys), strict=True))
    weights = np.exp(log_weights - log_weights.max())
    tops, totals = (weights * values).mean(axis=1), weights.mean(axis=1)
    value = tops.sum() / totals.sum()
    residuals = (tops - value * totals) / totals.mean()
    return {"value": float(value), "error": float(residuals.std(ddof=1) / math.sqrt(len(keys)))}


def _sampled(model, args, seed, num_chains, num_warmup, num_samples):
    import jax
    from numpyro.infer import MCMC, NUTS

    mcmc = MCMC(
        NUTS(model),
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized" if num_samples > 1000 else "sequential",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(seed), *args)
    return jax.block_until_ready(mcmc.get_samples(group_by_chain=True))


def over_seeds(name, first, count):
    """The default method on a problem with exact answers."""
    import numpy as np

    import estimand as ep
    from problems.enumerated.exact import EXACT

    problem = EXACT[name]
    truth = problem.truth()
    expectation = ep.expectation(problem.model)(*problem.args)
    runs = []
    for seed in range(first, first + count):
        began = time.process_time()
        result = ep.estimate_expectation(expectation, rng_key=seed, throw=False)
        taken = time.process_time() - began
        values = np.array([output.value for output in result.outputs])
        errors = np.array([output.standard_error for output in result.outputs])
        inside = {}
        for level in LEVELS:
            low, high = (
                np.concatenate([np.ravel(end) for end in _leaves(ends)])
                for ends in result.interval(level)
            )
            # An exact answer is as near to the truth as that is to itself.
            slack = 1e-9 * np.abs(truth)
            inside[f"{level:.0%}"] = ((low - slack <= truth) & (truth <= high + slack)).tolist()
        runs.append(
            {
                "seed": seed,
                "values": values.tolist(),
                "errors": errors.tolist(),
                "status": [status.name for status in result.statuses],
                "covered": inside,
                "cost": result.cost,
                "seconds": taken,
            }
        )
    return {"truth": truth.tolist(), "runs": runs}


def _leaves(tree):
    import jax

    return jax.tree.leaves(tree)


def several(name, seed):
    return over_seeds(name, 5 * seed, 5)


def many(name, chunk):
    return over_seeds(name, CHUNK * chunk, CHUNK)


def mixtures(num_rows, num_components):
    """A mixture with labels, the same summed out by hand, and as NumPyro's own distribution."""
    import jax.numpy as jnp
    import numpy as np
    import numpyro
    import numpyro.distributions as dist
    from jax.scipy.special import logsumexp

    rng = np.random.default_rng(0)
    y = rng.normal(3.0 * rng.integers(num_components, size=num_rows), 1.0)

    def sites():
        shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(num_components)))
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
        with numpyro.plate("components", num_components):
            locs = numpyro.sample("locs", dist.Normal(0.0, 5.0))
        return shares, scale, locs

    def summed_out(y):
        shares, scale, locs = sites()
        with numpyro.plate("rows", num_rows):
            z = numpyro.sample("z", dist.Categorical(shares), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Normal(locs[z], scale), obs=y)
        return locs[0]

    def by_hand(y):
        shares, scale, locs = sites()
        rows = jnp.log(shares)[:, None] + dist.Normal(locs[:, None], scale).log_prob(y)
        numpyro.factor("y", jnp.sum(logsumexp(rows, axis=0)))
        return locs[0]

    def as_distribution(y):
        shares, scale, locs = sites()
        law = dist.MixtureSameFamily(dist.Categorical(shares), dist.Normal(locs, scale))
        with numpyro.plate("rows", num_rows):
            numpyro.sample("y", law, obs=y)
        return locs[0]

    models = {"summed out": summed_out, "by hand": by_hand, "distribution": as_distribution}
    return models, y


def throughput(name, seed):
    """Evaluations and gradients per second of all, in turns; 4,096 positions at once."""
    import jax
    import jax.numpy as jnp

    import estimand as ep

    jax.config.update("jax_enable_x64", True)
    size, found = 4096, {}
    models, y = mixtures(*(int(part) for part in name.split("x")))
    contestants = {}
    for kind, model in models.items():
        density = ep.Density.of(ep.expectation(model)(y))

        def total(position, density=density):
            terms = density.model.evaluate(position, density.arrays)
            return terms.log_prior + terms.log_likelihood

        keys = jax.random.split(jax.random.key(seed), size)
        positions = jax.vmap(lambda key, d=density: d.model.draw(key, d.arrays))(keys)
        contestants[kind] = {
            "values": (jax.jit(jax.vmap(total)), positions),
            "gradients": (jax.jit(jax.vmap(jax.grad(total))), positions),
        }
    for what in ("values", "gradients"):
        pairs = {kind: contestants[kind][what] for kind in models}
        results = [jax.block_until_ready(function(at)) for function, at in pairs.values()]
        for other in results[1:]:
            assert jnp.allclose(results[0], other, rtol=1e-6, atol=1e-6)
        taken = {kind: [] for kind in pairs}
        for _ in range(60):
            for kind, (function, at) in pairs.items():
                taken[kind].append(seconds(function, at))
        found[what] = {
            "per_second": {kind: size / min(times) for kind, times in taken.items()},
            "ratio_paired": {
                kind: paired_ratio(times, taken["summed out"])
                for kind, times in taken.items()
                if kind != "summed out"
            },
        }
    return found


def plain(name, seed):
    """Binding a program and a warm answer, with and without a look for discrete sites."""
    import estimand as ep
    from problems import PROBLEMS

    problem = PROBLEMS[name]
    programs = {
        "looked for": ep.expectation(problem.model),
        "not looked for": ep.expectation(problem.model, enumerate=False),
    }
    taken = {"binding": {kind: [] for kind in programs}, "answer": {kind: [] for kind in programs}}
    for number in range(8):
        for kind, program in programs.items():
            began = time.process_time()
            bound = program(*problem.args)
            ep.Density.of(bound)
            between = time.process_time()
            ep.estimate_expectation(bound, rng_key=seed, throw=False)
            if number:
                taken["binding"][kind].append(between - began)
                taken["answer"][kind].append(time.process_time() - between)
    return {
        what: {
            "seconds": {kind: statistics.median(times) for kind, times in one.items()},
            "ratio": paired_ratio(one["looked for"], one["not looked for"]),
        }
        for what, one in taken.items()
    }


def branches(name, seed):
    """The default method on a program that branches, against closed forms."""
    import estimand as ep
    from problems.branching import BRANCHING_PROBLEMS

    problem = BRANCHING_PROBLEMS[name]
    began = time.process_time()
    program = ep.expectation(problem.model)
    result = ep.estimate_expectation(program(*problem.args), rng_key=seed, throw=False)
    taken = time.process_time() - began
    shares = {
        tuple(branch.values.items()): (branch.probability, branch.probability_error)
        for branch in result.branches
    }
    likely = {key: share for key, share in problem.probabilities.items() if share > 1e-3}
    off = [
        abs(shares[key][0] - share) / shares[key][1] if key in shares else math.inf
        for key, share in likely.items()
        if key not in shares or shares[key][1] > 0
    ]
    return {
        "status": result.status.name,
        "outputs": {
            output: [float(value), float(result.standard_error[output]), problem.value[output]]
            for output, value in result.value.items()
        },
        "num_branches": len(result.branches),
        "worst_branch_in_errors": max(off, default=0.0),
        "first_branch": [*next(iter(shares.values())), max(problem.probabilities.values())],
        "cost": result.cost,
        "seconds": taken,
    }


CHILDREN = {
    "default": ask,
    "nuts": by_nuts,
    "by hand": by_hand,
    "prior": from_prior,
    "exact": several,
    "coverage": many,
    "throughput": throughput,
    "plain": plain,
    "branches": branches,
}


def jobs_of(parts, is_quick):
    """Contestants, names and seeds, in the order in which they run."""
    from problems.branching import BRANCHING_PROBLEMS
    from problems.enumerated.exact import EXACT
    from problems.enumerated.examples import EXAMPLES

    seeds = range(1 if is_quick else 2)
    examples = [
        [(contestant, name, seed) for name in EXAMPLES for contestant in ("nuts", "default")]
        for seed in seeds
    ]
    if not is_quick:
        examples.insert(1, [(kind, name, 0) for name in EXAMPLES for kind in ("by hand", "prior")])
    found = {
        "examples": [job for jobs in examples for job in jobs],
        "exact": [("exact", name, 0) for name in EXACT],
        "throughput": [("throughput", f"{rows}x{count}", 0) for rows, count in MIXTURES],
        "plain": [("plain", name, 0) for name in PLAIN],
        "branches": [("branches", name, seed) for seed in seeds for name in BRANCHING_PROBLEMS],
        "coverage": [
            ("coverage", name, chunk)
            for chunk in range(1 if is_quick else NUM_SEEDS // CHUNK)
            for name in COVERED
        ],
    }
    return [job for part in parts for job in found[part]]


# --- what was found ---


def examples_table(rows):
    """For each example: statuses, distance from the long run, and seconds beside NUTS."""
    names = list(dict.fromkeys(row["model"] for row in rows if row["contestant"] == "default"))
    table = {}
    for name in names:
        own = [row for row in rows if row["model"] == name]
        runs = [row for row in own if row["contestant"] == "default"]
        nuts = [row for row in own if row["contestant"] == "nuts" and "seconds" in row]
        known = [row for row in own if row["contestant"] in ("by hand", "prior") and "value" in row]
        known.sort(key=lambda row: row["error"])
        answered = [row for row in runs if row.get("status") == "ok"]
        ours = [row["seconds"] for row in runs if "seconds" in row]
        theirs = [row["seconds"] for row in nuts]
        table[name] = {
            "runs": len(runs),
            "ok": len(answered),
            "value": [answered[0]["value"], answered[0]["error"]] if answered else None,
            "long run": [known[0]["value"], known[0]["error"]] if known else None,
            "errors off": [
                abs(row["value"] - known[0]["value"]) / math.hypot(row["error"], known[0]["error"])
                for row in answered
                if known
            ],
            "seconds": statistics.median(ours) if ours else None,
            "nuts": statistics.median(theirs) if theirs else None,
            "nuts by hand": any(row.get("is_by_hand") for row in nuts),
            "ratio": statistics.median(ours) / statistics.median(theirs)
            if ours and theirs
            else None,
            "why not": [
                row.get("failure", row.get("findings")) for row in runs if row not in answered
            ],
        }
    return table


def seeds_table(rows, contestant):
    """For each output of each problem: how many are ok, covered, and how far off."""
    from scipy.stats import binomtest

    table = {}
    for name in dict.fromkeys(row["model"] for row in rows if row["contestant"] == contestant):
        own = [row for row in rows if row["model"] == name and row["contestant"] == contestant]
        runs = [run for row in own for run in row.get("runs", [])]
        if not runs:
            continue
        truth = next(row["truth"] for row in own if "truth" in row)
        for number, known in enumerate(truth):
            trusted = [run for run in runs if run["status"][number] == "ok"]
            off = [_off(run, number, known) for run in trusted]
            covered = {
                level: sum(run["covered"][level][number] for run in trusted)
                for level in runs[0]["covered"]
            }
            table[f"{name}[{number}]"] = {
                "truth": known,
                "runs": len(runs),
                "ok": len(trusted),
                "largest in errors": max(off, default=None),
                "error over standard error": math.sqrt(sum(x * x for x in off) / len(off))
                if off
                else None,
                "relative error": statistics.median(
                    run["errors"][number] / abs(known) for run in trusted
                )
                if trusted
                else None,
                "covered": covered,
                "p": {
                    level: float(
                        binomtest(count, len(trusted), float(level.strip("%")) / 100).pvalue
                    )
                    for level, count in covered.items()
                    if trusted
                },
                "seconds": statistics.median(run["seconds"] for run in runs),
            }
    return table


def _off(run, number, truth):
    distance = abs(run["values"][number] - truth)
    if distance <= 1e-9 * abs(truth):
        return 0.0
    error = run["errors"][number]
    return distance / error if error > 0 else math.inf


def summary(rows):
    """The tables of all parts."""
    found = {
        "examples": examples_table(rows),
        "exact": seeds_table(rows, "exact"),
        "coverage": seeds_table(rows, "coverage"),
    }
    for part in ("throughput", "plain"):
        found[part] = {row["model"]: row for row in rows if row["contestant"] == part}
    found["branches"] = [row for row in rows if row["contestant"] == "branches"]
    return found


def main(arguments=None):
    parts = ("examples", "exact", "throughput", "plain", "branches", "coverage")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed, no long runs")
    parser.add_argument("--parts", default=",".join(parts), help="some of them, by commas")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--write", action="store_true", help="docs/discrete.md; runs nothing")
    options = parser.parse_args(list(arguments or ()))
    if options.write:
        from benchmarks.discrete_page import page

        record = json.loads((RESULTS / "discrete.json").read_text())
        PAGE.write_text(page(record))
        return None
    os.environ["ESTIMAND_CACHE"] = "off"
    options.journal.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    if options.journal.exists():
        rows = [json.loads(line) for line in options.journal.read_text().splitlines()]
    known = {(row["contestant"], row["model"], row["seed"]) for row in rows}
    deadline = time.monotonic() + 60 * options.minutes
    for job in jobs_of(options.parts.split(","), options.quick):
        if job in known or time.monotonic() > deadline:
            continue
        row = run_child("benchmarks.discrete", *job, LIMIT)
        print(json.dumps(row)[:300], flush=True)
        with options.journal.open("a") as journal:
            journal.write(json.dumps(row) + "\n")
        rows.append(row)
    return {"summary": summary(rows), "runs": rows}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        contestant, name, seed = sys.argv[2:]
        print(json.dumps(CHILDREN[contestant](name, int(seed))))
    else:
        main(sys.argv[1:])
