"""From 20 to 500 dimensions: hierarchical logistic regressions and latent Gaussian models.

Both as people write them: groups with their own intercepts, centred; and counts whose log rate is a
random walk. Each has an ordinary expectation and an event of some per cent, of which 1 % and 5 %
are asked for. Answers are compared with long runs of NumPyro's NUTS (8 chains of 1,000 + 16,000
draws) with standard normal effects and steps: as the models are written, such a run was 4 of its
own standard errors off. "Covered" counts 95 % intervals of the joint error. Every run is a process
of its own, with processor seconds beside those of four chains of NUTS on the models as written.
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
DIMENSIONS = (20, 50, 100, 200, 500)
ROWS_PER_GROUP = 5
# Seconds after which a child is stopped.
LIMIT = 550


def logistic(groups, x, y, num_groups, is_standardised=False):
    """Groups with intercepts, and a slope; a typical rate, and a first group far above it."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", num_groups):
        if is_standardised:
            intercepts = mu + tau * numpyro.sample("effects", dist.Normal(0.0, 1.0))
        else:
            intercepts = numpyro.sample("intercepts", dist.Normal(mu, tau))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=intercepts[groups] + slope * x), obs=y)
    ordinary = jax.nn.sigmoid(mu)
    return jnp.stack([ordinary, (intercepts[0] > mu + 2.0) * 1.0])


def counts(y, is_standardised=False):
    """Counts whose log rate is a random walk; the last rate, and whether it is large."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    level = numpyro.sample("level", dist.Normal(1.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(0.5))
    if is_standardised:
        steps = numpyro.sample("steps", dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1))
        walk = scale * jnp.cumsum(steps)
    else:
        walk = numpyro.sample("walk", dist.GaussianRandomWalk(scale, num_steps=len(y)))
    with numpyro.plate("times", len(y)):
        numpyro.sample("y", dist.Poisson(jnp.exp(level + walk)), obs=y)
    last = jnp.exp(level + walk[-1])
    return jnp.stack([last, (last > 2.0 * (y[-1] + 1.0)) * 1.0])


def program(name):
    """A model and its data, by family and dimension."""
    import numpy as np

    family, _, size = name.partition("_")
    rng, dimension = np.random.default_rng(5), int(size)
    if family == "logistic":
        num_groups = dimension - 3
        groups = np.repeat(np.arange(num_groups), ROWS_PER_GROUP)
        x = rng.standard_normal(groups.size)
        logits = 0.3 + 0.8 * rng.standard_normal(num_groups)[groups] + 0.7 * x
        y = (rng.random(groups.size) < 1 / (1 + np.exp(-logits))).astype(float)
        return logistic, (groups, x, y, num_groups)
    steps = 0.15 * rng.standard_normal(dimension - 2)
    return counts, (rng.poisson(np.exp(1.2 + np.cumsum(steps))).astype(float),)


def ask(name, seed):
    """The default method's answers."""
    import estimand as ep

    model, data = program(name)
    began, rows = time.process_time(), []
    for output, goal in ((0, 0.01), (1, 0.05)):

        def one(*args, output=output):
            return model(*args)[output]

        method = ep.Auto(relative_error=goal)
        bound = ep.expectation(one)(*data)
        result = ep.estimate_expectation(bound, method, rng_key=seed, throw=False)
        found = result.outputs[0]
        rows.append(
            {
                "value": found.value,
                "error": found.standard_error,
                "status": found.status.name,
                "route": found.route,
                "findings": [str(finding) for finding in found.findings],
            }
        )
    return {"outputs": rows, "seconds": time.process_time() - began}


def by_nuts(name, seed, *, num_chains=4, num_samples=1000, is_standardised=False):
    """Means of both outputs with their errors, and processor seconds."""
    import jax
    import numpy as np
    import numpyro
    from numpyro.diagnostics import effective_sample_size
    from numpyro.infer import MCMC, NUTS

    def named(*args):
        outputs = model(*args, is_standardised=is_standardised)
        numpyro.deterministic("outputs", outputs)

    model, data = program(name)
    began = time.process_time()
    mcmc = MCMC(
        NUTS(named),
        num_warmup=1000,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(seed), *data)
    values = np.asarray(mcmc.get_samples(group_by_chain=True)["outputs"], float)
    seconds = time.process_time() - began
    sizes = effective_sample_size(values)
    errors = values.std(axis=(0, 1)) / np.sqrt(np.maximum(sizes, 1.0))
    means = values.mean(axis=(0, 1))
    rows = [{"value": v, "error": e} for v, e in zip(means.tolist(), errors.tolist(), strict=True)]
    return {"outputs": rows, "seconds": seconds}


def by_long_nuts(name, seed):
    return by_nuts(name, seed + 100, num_chains=8, num_samples=16_000, is_standardised=True)


CHILDREN = {"default": ask, "nuts": by_nuts, "reference": by_long_nuts}


def summarised(rows):
    """For every model and output: statuses, the largest error, coverage and seconds."""
    table = []
    for name in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == name]
        known = next((row for row in own if row["contestant"] == "reference"), {})
        runs = [row for row in own if row["contestant"] == "default"]
        peers = [row["seconds"] for row in own if row["contestant"] == "nuts" and "seconds" in row]
        for number, question in enumerate(("ordinary", "event")):
            answers = [row["outputs"][number] for row in runs if "outputs" in row]
            good = [answer for answer in answers if answer["status"] == "ok"]
            entry = {"model": name, "question": question, "runs": len(runs), "ok": len(good)}
            if "outputs" in known:
                truth = known["outputs"][number]
                errors = [
                    (a["value"] - truth["value"]) / math.hypot(a["error"], truth["error"])
                    for a in good
                ]
                entry |= {
                    "reference": truth,
                    "covered": sum(abs(error) < 1.96 for error in errors),
                    "farthest": max(map(abs, errors), default=math.nan),
                }
            seconds = [row["seconds"] for row in runs if "seconds" in row]
            entry["seconds"] = sum(seconds) / max(len(seconds), 1)
            entry["NUTS seconds"] = peers[0] if peers else math.nan
            entry["relative error"] = max((a["error"] / abs(a["value"]) for a in good), default=0.0)
            table.append(entry)
    return table


def main(arguments=()):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, up to 50 dimensions")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--journal", type=Path, default=ROOT / "build" / "wide.jsonl")
    options = parser.parse_args(list(arguments))
    sizes, seeds = (DIMENSIONS[:2], 1) if options.quick else (DIMENSIONS, options.seeds)
    names = [f"{family}_{size}" for size in reversed(sizes) for family in ("logistic", "counts")]
    options.journal.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    if options.journal.exists():
        rows = [json.loads(line) for line in options.journal.read_text().splitlines()]
    done = {(row["contestant"], row["model"], row["seed"]) for row in rows}
    jobs = [("reference", name, 0) for name in names] + [("nuts", name, 0) for name in names]
    jobs += [("default", name, seed) for name in names for seed in range(seeds)]

    def run(job):
        row = run_child("benchmarks.wide", *job, LIMIT)
        with options.journal.open("a") as journal:
            journal.write(json.dumps(row) + "\n")
        return row

    with ThreadPoolExecutor(options.processes) as pool:
        rows += list(pool.map(run, (job for job in jobs if job not in done)))
    table = summarised(rows)
    for entry in table:
        print(entry)
    return {"runs": rows, "table": table}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        contestant, name, seed = sys.argv[2:]
        print(json.dumps(CHILDREN[contestant](name, int(seed))))
    else:
        main(sys.argv[1:])
