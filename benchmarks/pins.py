"""Results of every method to the last bit: a refactoring changes none, or says which and why.

    python benchmarks/pins.py write before.json      # on the old tree
    python benchmarks/pins.py compare before.json    # on the new one, on the same machine

The bits depend on the processor and on the versions of the libraries, so the file is not kept.
"""

import json
import math
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import estimand as ep


@ep.expectation
def cube(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x**3


@ep.expectation
def moments(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return {"mean": x, "square": x**2, "tail": x > 3.0}


@ep.expectation
def far_out():
    return numpyro.sample("x", dist.Normal(0.0, 1.0)) > 4.5


@ep.expectation
def branching(y):
    m = numpyro.sample("m", dist.Bernoulli(0.5))
    a = numpyro.sample("a", dist.Normal(m, 1.0))
    numpyro.sample("y", dist.Normal(a, 1.0), obs=y)
    return a


@ep.expectation
def predictive(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([y.size]).to_event(1))
    numpyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=y)
    return jnp.exp(dist.Normal(x, math.sqrt(0.5)).to_event(1).log_prob(-y))


@ep.expectation
def counts():
    probabilities = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
    return numpyro.sample("counts", dist.Multinomial(4, probabilities))[0]


@ep.expectation
def funnel():
    log_scale = numpyro.sample("log_scale", dist.Normal(0.0, 2.0))
    numpyro.sample("x", dist.Normal(0.0, jnp.exp(log_scale)).expand([6]).to_event(1))
    return log_scale < -2.0


def guide(y):
    numpyro.sample("x", dist.Normal(y / 2, 1.0))


DRAWS = {"x": 1 + math.sqrt(0.5) * np.random.default_rng(0).normal(size=(4, 500))}
DATA = np.full(10, 3.5 / math.sqrt(10))
ANNEALED = {"num_samples": 200, "num_temperatures": 20}


def checkpointed():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.est"
        method = ep.AdaptiveIS(max_evaluations=30_000)
        return ep.estimate_expectation(cube(2.0), method, checkpoint=path, throw=False)


def merged():
    method = ep.TABI(ep.AnIS(**ANNEALED))
    pieces = [
        ep.estimate_expectation(moments(2.0), method, rng_key=k, throw=False) for k in range(3)
    ]
    return pieces[0].merge(*pieces[1:])


def refined():
    method = ep.TABI(ep.AnIS(**ANNEALED))
    first = ep.estimate_expectation(cube(2.0), method, throw=False)
    return first.refine(relative_error=0.02, throw=False, max_runs=5)


def by(method, expectation):
    return lambda: ep.estimate_expectation(expectation, method, throw=False)


PINS = {
    "Auto, signed": by(ep.Auto(), cube(2.0)),
    "Auto, three outputs": by(ep.Auto(), moments(2.0)),
    "Auto, event": by(ep.Auto(), far_out()),
    "Auto, integers": by(ep.Auto(max_evaluations=200_000), branching(0.2)),
    "Auto, ten dimensions": by(ep.Auto(), predictive(DATA)),
    "Auto, multinomial": by(ep.Auto(max_evaluations=200_000), counts()),
    "Auto, funnel": by(ep.Auto(max_evaluations=1_000_000), funnel()),
    "AdaptiveIS": by(ep.AdaptiveIS(max_evaluations=100_000), cube(0.01)),
    "AdaptiveIS, plain coordinates": by(
        ep.AdaptiveIS(max_evaluations=200_000, standardise=False), predictive(DATA[:4])
    ),
    "TABI(AnIS(RandomWalk))": by(ep.TABI(ep.AnIS(**ANNEALED)), moments(2.0)),
    "TABI(AnIS(HMC))": by(ep.TABI(ep.AnIS(**ANNEALED, kernel=ep.HMC())), cube(2.0)),
    "TABI(AnIS(MALA))": by(ep.TABI(ep.AnIS(**ANNEALED, kernel=ep.MALA())), cube(2.0)),
    "TABI(AnIS(NUTS))": by(ep.TABI(ep.AnIS(**ANNEALED, kernel=ep.NUTS())), cube(2.0)),
    "TABI(AnIS(redraw))": by(ep.TABI(ep.AnIS(**ANNEALED, redraw=True)), moments(2.0)),
    "TABI(SMC)": by(ep.TABI(ep.SMC(num_particles=500)), moments(2.0)),
    "TABI(SMC), islands": by(ep.TABI(ep.SMC(num_particles=500, num_islands=8)), cube(2.0)),
    "TABI(SMC), discrete": by(ep.TABI(ep.SMC(num_particles=500)), branching(0.2)),
    "TABI(BridgeSampling)": by(
        ep.TABI(ep.BridgeSampling(num_samples=300, num_warmup=300)), predictive(DATA[:4])
    ),
    "TABI(AdaptiveIS)": by(ep.TABI(ep.AdaptiveIS(max_evaluations=50_000)), cube(2.0)),
    "TABI(ImportanceSampling)": by(ep.TABI(ep.ImportanceSampling()), moments(2.0)),
    "TABI(ImportanceSampling), guide": by(
        ep.TABI(ep.ImportanceSampling(proposal=guide)), cube(2.0)
    ),
    "SelfNormalised(AnIS)": by(ep.SelfNormalised(ep.AnIS(**ANNEALED)), moments(2.0)),
    "PosteriorMCMC": by(ep.PosteriorMCMC(num_samples=200, num_warmup=200), moments(2.0)),
    "PosteriorMCMC, kernel": by(
        ep.PosteriorMCMC(num_samples=200, kernel=ep.RandomWalk(scale=1.0)), moments(2.0)
    ),
    "PosteriorBridge, draws": by(
        ep.PosteriorBridge(draws=DRAWS, num_islands=4, num_particles=500), cube(2.0)
    ),
    "PosteriorBridge": by(
        ep.PosteriorBridge(num_samples=200, num_warmup=200, num_particles=500),
        predictive(DATA[:8]),
    ),
    "checkpoint": checkpointed,
    "merge": merged,
    "refine": refined,
}


def pinned(result):
    """All numbers of a result, floats as hexadecimals."""
    log_z = {name: np.ravel(jax.tree.leaves(value)) for name, value in result.log_z.items()}
    samples = {}
    for part in ("posterior", "gamma1_plus", "gamma1_minus"):
        try:
            drawn = result.samples(part, num_samples=50)
        except ValueError:
            continue
        samples[part] = float(sum(np.asarray(values, float).sum() for values in drawn.values()))
    return {
        "value": _hexed(jax.tree.leaves(result.value)),
        "standard_error": _hexed(jax.tree.leaves(result.standard_error)),
        "interval": _hexed(np.ravel(result.bounds())),
        "statuses": [status.name for status in result.statuses],
        "log_z": {name: _hexed(values) for name, values in log_z.items()},
        "ess": {name: _hexed(np.ravel(jax.tree.leaves(x))) for name, x in result.ess.items()},
        "cost": [result.num_evaluations, result.num_gradients],
        "samples": {name: value.hex() for name, value in samples.items()},
    }


def _hexed(values):
    return [float(value).hex() for value in values]


def main():
    action, path = sys.argv[1], Path(sys.argv[2])
    names = sys.argv[3:] or list(PINS)
    before = json.loads(path.read_text()) if path.exists() else {}
    if action == "write":
        for name in names:
            before[name] = pinned(PINS[name]())
            print(name, before[name]["statuses"], flush=True)
            path.write_text(json.dumps(before, indent=1))
        return
    changed = False
    for name in names:
        now = pinned(PINS[name]())
        different = [field for field in now if now[field] != before[name][field]]
        changed |= bool(different)
        print(f"{name}: {'changed: ' + ', '.join(different) if different else 'equal'}", flush=True)
        for field in different:
            print(f"    {field}: {_shown(before[name][field])} -> {_shown(now[field])}")
    sys.exit(changed)


def _shown(value):
    if isinstance(value, dict):
        return {name: _shown(item) for name, item in value.items()}
    if isinstance(value, str) and ("0x" in value or value in ("nan", "inf", "-inf")):
        return f"{float.fromhex(value):.12g}"
    return [_shown(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
