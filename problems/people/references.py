"""The answers of the table, by means other than the library's.

    python -m problems.people.references --only eight_schools pumps --write

For each model: long NUTS (vectorised chains, float64, a non-centred twin of the model where the
centred one mixes badly), then several independent runs of multilevel splitting. A run spreads the
draws over many particles and moves them by HMC in coordinates that are whitened by the particles
themselves, until no coordinate is correlated with its start; the levels are quantiles of the
quantity that the events compare with a number, and the moves bounce off the level. Half of the
runs move for longer, and both halves must agree. The first level is the posterior itself and gives
the ordinary and the common answer, which are compared with those of NUTS. Models of few dimensions
are integrated on a grid instead. The quantity and its thresholds are read from the program's jaxpr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.extend import core as jex
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS, init_to_median
from numpyro.infer.reparam import LocScaleReparam, Reparam
from numpyro.infer.util import initialize_model

from problems.people import MODELS, PeopleModel, exact

FILE = pathlib.Path(__file__).with_name("references.json")

# Twins that mix better ---------------------------------------------------------------------------


class Whitened(Reparam):
    """A multivariate normal, or a random walk, as a linear map of independent normals."""

    def __call__(self, name: str, fn: Any, _: Any) -> Any:
        fn, shape, event_dim = self._unwrap(fn)
        base = dist.Normal(0.0, 1.0).expand(shape + fn.event_shape).to_event(event_dim)
        z = numpyro.sample(f"{name}_base", base)
        if isinstance(fn, dist.GaussianRandomWalk):
            return None, jnp.asarray(fn.scale)[..., None] * jnp.cumsum(z, axis=-1)
        return None, fn.loc + jnp.einsum("...ij,...j->...i", fn.scale_tril, z)


def stochastic_volatility_twin(returns: Any) -> Any:
    """The volatilities as a function of independent normals."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    phi = numpyro.sample("phi", dist.Uniform(-1.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([returns.shape[0]]).to_event(1))

    def step(h: Any, z: Any) -> Any:
        h = phi * h + sigma * z
        return h, h

    first = sigma / jnp.sqrt(1 - phi**2) * z[0]
    rest = jax.lax.scan(step, first, z[1:])[1]
    h = mu + jnp.concatenate([first[None], rest])
    numpyro.sample("returns", dist.Normal(0.0, jnp.exp(h / 2)).to_event(1), obs=returns)
    sites = {"mu": mu, "phi": phi, "sigma": sigma, "h": h}
    return _answers("stochastic_volatility", sites, returns)


def horseshoe_regression_twin(x: Any, y: Any) -> Any:
    """The slopes integrated out, but for the one in question; the others at their means."""
    overall = numpyro.sample("overall", dist.HalfCauchy(1.0))
    local = numpyro.sample("local", dist.HalfCauchy(1.0).expand([10]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    e = numpyro.sample("e", dist.Normal(0.0, 1.0))
    scales = overall * local
    b = scales * (x.T @ y) / sigma**2
    factor = jnp.linalg.cholesky(jnp.eye(10) + scales * (x.T @ x) * scales[:, None] / sigma**2)
    half = jax.scipy.linalg.solve_triangular(factor, b, lower=True)
    log_det = jnp.sum(jnp.log(jnp.diag(factor)))
    fit = 0.5 * half @ half - 0.5 * y @ y / sigma**2
    numpyro.factor("y", fit - log_det - y.shape[0] * jnp.log(sigma))
    mean = jax.scipy.linalg.cho_solve((factor, True), b)
    unit = jax.scipy.linalg.solve_triangular(factor, jnp.eye(10)[7], lower=True)
    beta = scales * mean.at[7].add(jnp.sqrt(unit @ unit) * e)
    sites = {"overall": overall, "local": local, "sigma": sigma, "beta": beta}
    return _answers("horseshoe_regression", sites, x, y)


def errors_in_variables_twin(x: Any, y: Any) -> Any:
    """The true values integrated out."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 10.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(1.0))
    share = spread**2 / (spread**2 + 0.16)
    true = mean + share * (x - mean)
    sd = jnp.sqrt(sigma**2 + slope**2 * share * 0.16)
    numpyro.factor("x", jnp.sum(dist.Normal(mean, jnp.sqrt(spread**2 + 0.16)).log_prob(x)))
    numpyro.factor("y", jnp.sum(dist.Normal(intercept + slope * true, sd).log_prob(y)))
    sites = {"intercept": intercept, "slope": slope, "sigma": sigma, "mean": mean}
    return _answers("errors_in_variables", sites | {"spread": spread, "true": true}, x, y)


def _answers(name: str, sites: dict[str, Any], *args: Any) -> Any:
    """What the program itself returns at these values."""
    return handlers.block(handlers.substitute(MODELS[name].model, sites))(*args)


_FREE = LocScaleReparam(0.0)
TWINS: dict[str, dict[str, Reparam]] = {
    "eight_schools": {"theta": _FREE},
    "horseshoe_regression": {"beta": _FREE},
    "spline_regression": {"steps": _FREE},
    "baseball_logit": {"alpha": _FREE},
    "dyes": {"batch": _FREE},
    "bradley_terry": {"strength": _FREE},
    "radon": {"alpha": _FREE},
    "varying_slopes": {"effect": Whitened()},
    "hierarchical_linear": {"b": _FREE},
    "seeds": {"effect": _FREE},
    "funnel_with_data": {"x": _FREE},
    "frailty": {"effect": _FREE},
    "local_level": {"steps": _FREE},
    "local_linear_trend": {"slope": Whitened(), "steps": _FREE},
    "random_walk_counts": {"path": Whitened()},
    "gp_binomial": {"f": Whitened()},
}


def twin_of(entry: PeopleModel) -> Callable[..., Any]:
    by_hand = globals().get(f"{entry.name}_twin")
    if by_hand is not None:
        return by_hand
    return handlers.reparam(entry.model, config=TWINS.get(entry.name, {}))


# The quantity behind the events ------------------------------------------------------------------


def _producers(jaxpr: Any) -> dict[Any, Any]:
    return {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}


def questions(program: Callable[..., Any], x: Any) -> tuple[Callable[..., Any], Any]:
    """A function x -> (ordinary, s) and (common, rare), the events being s > common, s > rare.

    Where the program says s < c, the function returns -s and the thresholds are -c.
    """
    closed = jax.make_jaxpr(program)(x)
    jaxpr = closed.jaxpr
    made = _producers(jaxpr)
    eqn = made[jaxpr.outvars[0]]
    while eqn.primitive.name not in ("stack", "concatenate"):
        eqn = made[eqn.invars[0]]
    parts = list(eqn.invars)
    events = []
    for var in parts[1:]:
        while made[var].primitive.name not in ("gt", "lt"):
            candidates = [v for v in made[var].invars if not isinstance(v, jex.Literal)]
            var = candidates[-1]
        events.append(made[var])
    side = 1.0 if events[0].primitive.name == "gt" else -1.0
    thresholds = tuple(side * float(event.invars[1].val) for event in events)
    pruned = jex.ClosedJaxpr(
        jaxpr.replace(
            outvars=[parts[0], events[0].invars[0]],
            eqns=jaxpr.eqns,
            debug_info=jaxpr.debug_info.with_unknown_names() if jaxpr.debug_info else None,
        ),
        closed.consts,
    )
    run = jex.jaxpr_as_fun(pruned)

    def function(x: Any) -> tuple[Any, Any]:
        ordinary, s = run(x)
        return jnp.reshape(ordinary, ()), side * jnp.reshape(s, ())

    return function, thresholds


# NUTS --------------------------------------------------------------------------------------------


# Loops are slow on a GPU: this many steps of a model's scan become one.
UNROLL = {"garch": 8, "hidden_markov": 8, "arma": 8, "stochastic_volatility": 8}
UNROLL |= {"predator_prey": 2, "epidemic": 3}


@contextlib.contextmanager
def unrolled(steps: int) -> Iterator[None]:
    """Within it, the outermost loops of a model take so many steps at once."""
    plain = jax.lax.scan

    def scan(f: Any, init: Any, xs: Any = None, length: Any = None, **options: Any) -> Any:
        return plain(f, init, xs, length, **({"unroll": steps} | options))

    jax.lax.scan = scan  # type: ignore[assignment]
    try:
        yield
    finally:
        jax.lax.scan = plain


class Target:
    """A model (or its twin) as a density over a vector, with its questions."""

    def __init__(self, entry: PeopleModel) -> None:
        self.entry, self.model = entry, twin_of(entry)
        info = initialize_model(jax.random.key(1), self.model, model_args=entry.args)
        start, unravel = ravel_pytree(info.param_info.z)
        self.start, self.unravel = start, unravel

        def energy(x: Any) -> Any:
            with unrolled(UNROLL.get(entry.name, 1)):
                return info.potential_fn(unravel(x))

        def program(x: Any) -> Any:
            with unrolled(UNROLL.get(entry.name, 1)):
                sites = info.postprocess_fn(unravel(x))
                return handlers.seed(handlers.substitute(self.model, sites), 0)(*entry.args)

        self.energy = energy

        self.program = program
        self.ask, (self.common, self.rare) = questions(program, start)


def nuts(target: Target, seed: int, chains: int, warmup: int, draws: int) -> Any:
    """Draws as vectors [chain, draw, dimension], and what they say."""
    keys = jax.random.split(jax.random.key(seed), chains)
    begin = init_to_median(num_samples=15)
    info = initialize_model(keys, target.model, init_strategy=begin, model_args=target.entry.args)
    first = jax.vmap(lambda tree: ravel_pytree(tree)[0])(info.param_info.z)
    kernel = NUTS(potential_fn=target.energy, dense_mass=True, target_accept_prob=0.9)
    mcmc = MCMC(
        kernel,
        num_warmup=warmup,
        num_samples=draws,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(seed + 1), init_params=first, extra_fields=("diverging",))
    x = mcmc.get_samples(group_by_chain=True)
    ordinary, s = (np.asarray(v) for v in jax.jit(jax.vmap(jax.vmap(target.ask)))(x))
    x = np.asarray(x)
    every = np.concatenate([x, ordinary[..., None], s[..., None]], axis=-1)
    event = 1.0 * (s > target.common)
    ess = float(effective_sample_size(ordinary))
    event_ess = float(effective_sample_size(event)) if event.any() else 0.0
    said = {
        "ordinary": float(ordinary.mean()),
        "ordinary_se": float(ordinary.std() / math.sqrt(ess)),
        "ordinary_sd": float(ordinary.std()),
        "common": float(event.mean()),
        "common_se": float(event.std() / math.sqrt(max(event_ess, 1.0))),
        "rhat": float(np.max(split_gelman_rubin(every))),
        "ess": ess,
        "min_ess": float(np.min(effective_sample_size(every))),
        "divergences": int(mcmc.get_extra_fields()["diverging"].sum()),
        "draws": int(ordinary.size),
    }
    return x, said


# Splitting ---------------------------------------------------------------------------------------


def make_moves(target: Target, num_moves: int, num_steps: int) -> Callable[..., Any]:
    """Some HMC moves of all the particles above a level, which they bounce off."""

    def one(key: Any, u: Any, level: Any, step: Any, mean: Any, scale: Any) -> Any:
        def energy(u: Any) -> Any:
            return target.energy(mean + scale @ u)

        def margin(u: Any) -> Any:
            ordinary, s = target.ask(mean + scale @ u)
            return s, ordinary

        force = jax.value_and_grad(energy)
        above = jax.value_and_grad(margin, has_aux=True)

        def move(carry: Any, key: Any) -> Any:
            u, value, slope, s, ordinary = carry
            k1, k2, k3 = jax.random.split(key, 3)
            p = jax.random.normal(k1, u.shape)
            e = step * jax.random.uniform(k2, (), minval=0.5, maxval=1.3)

            def leap(carry: Any, _: Any) -> Any:
                q, p, slope, inside, *_rest = carry
                p = jnp.where(inside, p - 0.5 * e * slope, p)
                q = q + e * p
                value, slope = force(q)
                (s, ordinary), normal = above(q)
                inside = s > level
                normal = normal / (jnp.linalg.norm(normal) + 1e-300)
                bounced = p - 2 * (p @ normal) * normal
                p = jnp.where(inside, p - 0.5 * e * slope, bounced)
                return (q, p, slope, inside, value, s, ordinary), None

            start = (u, p, slope, jnp.array(True), value, s, ordinary)
            (q, p2, slope2, inside, value2, s2, ordinary2), _ = jax.lax.scan(
                leap, start, None, length=num_steps
            )
            change = value - value2 + 0.5 * (p @ p - p2 @ p2)
            ok = inside & (jnp.log(jax.random.uniform(k3)) < change)
            new = (q, value2, slope2, s2, ordinary2)
            old = (u, value, slope, s, ordinary)
            kept = jax.tree.map(lambda a, b: jnp.where(ok, a, b), new, old)
            return kept, ok

        value, slope = force(u)
        s, ordinary = margin(u)
        carry = (u, value, slope, s, ordinary)
        carry, ok = jax.lax.scan(move, carry, jax.random.split(key, num_moves))
        u, _, _, s, ordinary = carry
        return u, s, ordinary, ok.mean()

    @jax.jit
    def sweep(key: Any, u: Any, level: Any, step: Any, mean: Any, scale: Any) -> Any:
        keys = jax.random.split(key, u.shape[0])
        u, s, ordinary, ok = jax.vmap(one, (0, 0, None, None, None, None))(
            keys, u, level, step, mean, scale
        )
        return u, s, ordinary, ok.mean()

    return sweep


def _correlation(a: Any, b: Any) -> float:
    a, b = a - a.mean(0), b - b.mean(0)
    scale = jnp.sqrt((a**2).mean(0) * (b**2).mean(0)) + 1e-300
    return float(jnp.max(jnp.abs((a * b).mean(0) / scale)))


def split(
    target: Target,
    sweep: Callable[..., Any],
    draws: np.ndarray,
    seed: int,
    particles: int,
    remaining: float,
    most: int,
    keep: int,
    explore: bool,
    deadline: float,
) -> dict[str, Any]:
    """One run of multilevel splitting, from draws of the posterior."""
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    flat = draws.reshape(-1, draws.shape[-1])
    x = jnp.asarray(flat[rng.choice(len(flat), particles)])
    level, log_p, step, path = -np.inf, 0.0, 0.3, []
    said: dict[str, Any] = {"seed": seed, "remaining": remaining}
    levels = []
    for number in range(40):
        mean = x.mean(0)
        covariance = jnp.cov(x.T).reshape(len(mean), len(mean))
        scale = jnp.linalg.cholesky(covariance + 1e-10 * jnp.diag(jnp.diag(covariance)))
        u = jax.scipy.linalg.solve_triangular(scale, (x - mean).T, lower=True).T
        start, worst = u, 1.0
        for count in range(1, most + 1):
            key, now = jax.random.split(key)
            u, s, ordinary, ok = sweep(now, u, level, step, mean, scale)
            step = float(np.clip(step * np.exp(np.clip(float(ok) - 0.7, -0.4, 0.3)), 1e-3, 0.6))
            squares = jnp.concatenate([start, start**2], 1), jnp.concatenate([u, u**2], 1)
            worst = _correlation(*squares)
            if worst < remaining and count >= 3:
                break
        goal = target.rare if not explore else np.inf
        following = min(float(jnp.quantile(s, 0.8)), goal)
        above, first, second, kept_s = [], [], [], []
        for _ in range(keep * (3 if number == 0 else 1)):
            key, now = jax.random.split(key)
            u, s, ordinary, ok = sweep(now, u, level, step, mean, scale)
            above.append(float((s > following).mean()))
            first.append(float(ordinary.mean()))
            second.append(float((s > target.common).mean()))
            kept_s.append(np.asarray(s))
        if number == 0:
            pool = np.concatenate(kept_s)
            said |= {"ordinary": float(np.mean(first)), "common": float(np.mean(second))}
            said["sd"] = float(ordinary.std())
            at = [0.5, 0.97, 0.98, 0.985, 0.99, 0.993, 0.995, 0.997]
            said["quantiles"] = [float(v) for v in np.quantile(pool, at)]
        if explore and log_p < math.log(2e-5):
            pool = np.sort(np.concatenate(kept_s))
            share = np.exp(np.linspace(np.log(0.2), 0.0, 9))
            levels += [
                (float(np.quantile(pool, 1 - q)), (log_p + math.log(q)) / math.log(10))
                for q in share[::-1]
            ]
        log_p += math.log(max(float(np.mean(above)), 1e-300))
        path.append([following, log_p / math.log(10), count, round(worst, 3), round(step, 3)])
        x = mean + u @ scale.T
        if (not explore and following >= goal) or (explore and log_p < math.log(2e-7)):
            break
        if time.time() > deadline:
            said["late"] = True
            break
        level = following
        good = np.flatnonzero(np.asarray(s) > level)
        x = x[jnp.asarray(good[rng.integers(0, len(good), particles)])]
    said |= {"rare": math.exp(log_p), "path": path, "levels": levels}
    return said


def compute(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Everything about one model."""
    begun = time.time()
    entry = MODELS[name]
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        target = Target(entry)
        draws, said = nuts(target, options.seed, options.chains, options.warmup, options.draws)
    out: dict[str, Any] = {"name": name, "nuts": said, "dimension": int(draws.shape[-1])}
    out["thresholds"] = [target.common, target.rare]
    ready = time.time()
    out["nuts_s"] = ready - begun
    runs: list[dict[str, Any]] = []
    out["runs"] = runs
    sweep = make_moves(target, 5, options.steps)
    for number in range(options.runs):
        longer = number % 2
        run = split(
            target,
            sweep,
            draws,
            options.seed + 100 + number,
            options.particles,
            (0.1, 0.03)[longer],
            options.most * (1 + longer),
            options.keep,
            options.explore,
            ready + 2 * options.seconds,
        )
        run["s"] = time.time() - begun
        runs.append(run)
        if options.out:
            path = pathlib.Path(options.out) / f"{name}.json"
            path.write_text(json.dumps(out))
        if (time.time() - ready) * (number + 2) / (number + 1) > options.seconds:
            break
    return out


def _answer(values: list[float], floor: float, how: str) -> dict[str, Any]:
    spread = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return {
        "value": float(np.mean(values)),
        "standard_error": max(spread, floor),
        "how": how,
    }


def by_quadrature(name: str) -> dict[str, Any] | None:
    """The entry of a model whose answers a grid gives, with the change from a coarser grid."""
    target = Target(MODELS[name])
    results = exact.answers(target)
    if results is None:
        return None
    how, fine, coarse = results
    return {
        key: {"value": a, "standard_error": max(abs(a - b), 1e-6 * abs(a)), "how": how}
        for key, a, b in zip(("ordinary", "common", "rare"), fine, coarse, strict=True)
    }


def summarise(out: dict[str, Any], particles: int, keep: int) -> dict[str, Any]:
    """The entry of `references.json`: means over the runs, and errors from their spread.

    An error is never below what the same number of independent draws would have.
    """
    runs = [run for run in out["runs"] if not run.get("late")]
    said, count = out["nuts"], len(runs)
    size = particles * keep * count
    common = float(np.mean([run["common"] for run in runs]))
    rare = float(np.mean([run["rare"] for run in runs]))
    worst = max(row[3] for run in runs for row in run["path"])
    slow = 2.0 if worst > 0.3 else 1.0  # chains that keep some memory are worth less
    floors = (
        said["ordinary_sd"] / math.sqrt(3 * size),
        math.sqrt(common * (1 - common) / (3 * size)),
        slow * rare * math.sqrt(8.0 * len(runs[0]["path"]) / size),
    )
    times = "one run" if count == 1 else f"{count} runs"
    first = (
        f"{times} of {particles:,} HMC chains from {said['draws']:,} NUTS draws "
        f"(R-hat {said['rhat']:.3f}; NUTS alone: "
    )
    how = {
        "ordinary": first + f"{said['ordinary']:.5g} ± {said['ordinary_se']:.2g})",
        "common": first + f"{said['common']:.4g} ± {said['common_se']:.2g})",
        "rare": f"multilevel splitting, {times} of {particles:,} particles, HMC moves in "
        f"whitened coordinates until no coordinate correlates with its start by more than "
        f"{worst:.2f} at any level" + "; half of the runs move for longer" * (count > 1),
    }
    return {
        key: _answer([run[key] for run in runs], floor, how[key])
        for key, floor in zip(("ordinary", "common", "rare"), floors, strict=True)
    }


def write(entries: dict[str, Any]) -> None:
    """Add entries to `references.json`."""
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    known |= entries
    ordered = {name: known[name] for name in MODELS if name in known}
    FILE.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--chains", type=int, default=16)
    parser.add_argument("--warmup", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--particles", type=int, default=32768)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--most", type=int, default=30)
    parser.add_argument("--keep", type=int, default=4)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--explore", action="store_true", help="go down to 2e-7, for thresholds")
    parser.add_argument("--out", default="", help="a folder for one file per model")
    parser.add_argument("--sample", action="store_true", help="sample even where a grid would do")
    parser.add_argument("--write", action="store_true", help="write references.json")
    parser.add_argument("--collect", default="", help="lines of such files, instead of computing")
    options = parser.parse_args()
    numpyro.enable_x64()
    if options.collect:
        lines = pathlib.Path(options.collect).read_text().splitlines()
        found: dict[str, Any] = {}
        for out in (json.loads(line) for line in lines if line):
            if out["name"] in found:
                found[out["name"]]["runs"] += out["runs"]
            else:
                found[out["name"]] = out
        options.only = list(found)
    for name in options.only:
        entry = None if options.sample else by_quadrature(name)
        if entry is None:
            out = found[name] if options.collect else compute(name, options)
            entry = summarise(out, options.particles, options.keep)
        print(name, json.dumps(entry, ensure_ascii=False), flush=True)
        if options.write:
            write({name: entry})


if __name__ == "__main__":
    main()
