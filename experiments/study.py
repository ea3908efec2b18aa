"""What the experiments share: the paper's methods as lines of a plot, and the record of their runs.

A line is a method at growing sizes on a program whose expectation is known. Its runs are kept in one
JSON file, which is written as a whole after every call, so that a study that was cut off goes on
where it stopped. Plots and tables are drawn from that file alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import infer

import estimand as ep
from benchmarks.measure import environment
from estimand.density import Density

ROOT = Path(__file__).parents[1]
NUM_POINTS = 24
# Half the width of a 95 % interval, in standard errors.
REACH = 1.959964
# A gradient counts as this many evaluations where both are added up.
GRADIENT_COST = 3


class Arm(Protocol):
    """A method of the comparison."""

    def run(self, expectation: ep.Expectation, size: int, seeds: Sequence[int]) -> list[dict]:
        """One run for each seed, as plain numbers."""


# --- annealed importance sampling: the paper's method and its first baseline ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class Annealed:
    """TABI with `AnIS` for each Z, or one set of `AnIS` particles for all of them.

    The size is the number of particles in all. Particles are independent: several runs are made in
    one call, and the first particles of a run show what a smaller one would have said.

    Args:
        estimator: the settings of the paper.
        num_parts: densities that share the particles: 2, or 3 for a target of both signs. 1 is
            the self-normalised baseline.
    """

    estimator: ep.AnIS
    num_parts: int = 2

    def run(self, expectation: ep.Expectation, size: int, seeds: Sequence[int]) -> list[dict]:
        each = size // self.num_parts
        estimator = dataclasses.replace(self.estimator, num_samples=each * len(seeds))
        is_joint = self.num_parts == 1
        method = ep.SelfNormalised(estimator) if is_joint else ep.TABI(estimator)
        result = ep.estimate_expectation(expectation, method, rng_key=seeds[0], throw=False)
        evidence = dict(result.evidence)
        log_weights = {name: np.asarray(part.log_weights) for name, part in evidence.items()}
        if is_joint:
            log_weights |= _log_products(result.density, evidence["gamma2"])
        elif len(evidence) != self.num_parts:
            raise ValueError(f"{len(evidence)} densities have mass; num_parts={self.num_parts}.")
        counts = [
            sum(np.asarray(getattr(part, kind), np.int64) for part in evidence.values())
            for kind in ("evaluations", "gradients")
        ]
        runs = []
        for number, seed in enumerate(seeds):
            own = slice(number * each, (number + 1) * each)
            seconds = result.run_seconds / len(seeds)
            points = _prefixes(
                {name: log_weight[own] for name, log_weight in log_weights.items()},
                [count[own] for count in counts],
                is_joint=is_joint,
            )
            for point in points:
                share = point.pop("particles") / each
                point |= {"cost": size * share, "seconds": seconds * share}
            runs.append({"seed": seed, "compile_seconds": result.compile_seconds, "points": points})
        return runs


@jax.jit
def _outputs(density: Density, positions: jax.Array) -> jax.Array:
    return jax.lax.map(density.outputs, positions, batch_size=min(10_000, positions.shape[0]))


def _log_products(density: Density, evidence: Any) -> dict[str, np.ndarray]:
    """Log weights of the posterior's particles as if they were the target's: log w|f| by sign."""
    f = np.asarray(_outputs(density, evidence.positions))[:, 0]
    with np.errstate(divide="ignore"):
        logs = np.asarray(evidence.log_weights) + np.log(np.abs(f))
    parts = {"gamma1_plus": f > 0, "gamma1_minus": f < 0}
    return {name: np.where(is_in, logs, -np.inf) for name, is_in in parts.items() if is_in.any()}


def _prefixes(
    log_weights: dict[str, np.ndarray], counts: list[np.ndarray], *, is_joint: bool
) -> list[dict]:
    """What the first particles say, for growing numbers of them."""
    scale = log_weights["gamma2"].max()
    weights = {name: np.exp(values - scale) for name, values in log_weights.items()}
    size = weights["gamma2"].size
    own = {name: np.exp(values - values.max()) for name, values in log_weights.items()}
    sums = {name: (np.cumsum(w), np.cumsum(w**2)) for name, w in own.items()}
    spent = [np.cumsum(count) for count in counts]
    points = []
    for n in np.unique(np.geomspace(1, size, NUM_POINTS).round().astype(int)).tolist():
        first = {name: w[:n] for name, w in weights.items()}
        value, error = weighted_estimate(first, is_joint=is_joint)
        low, high = interval(value, error, is_log_scale=not is_joint and len(weights) == 2)
        with np.errstate(invalid="ignore"):
            ess = {name: float(s[n - 1] ** 2 / q[n - 1]) for name, (s, q) in sums.items()}
        points.append(
            {
                "particles": n,
                "value": value,
                "low": low,
                "high": high,
                "evaluations": int(spent[0][n - 1]),
                "gradients": int(spent[1][n - 1]),
                "ess_z1": min((e for name, e in ess.items() if name != "gamma2"), default=0.0),
                "ess_z2": ess["gamma2"],
            }
        )
    return points


def weighted_estimate(weights: dict[str, np.ndarray], *, is_joint: bool) -> tuple[float, float]:
    """(Z1⁺ − Z1⁻) / Z2 from weights, and its standard error.

    Args:
        weights: by density, all on one scale.
        is_joint: the same particles stand behind all of them; otherwise independent ones.
    """
    zero = np.zeros_like(weights["gamma2"])
    z2, plus, minus = (weights.get(f"gamma{part}", zero) for part in ("2", "1_plus", "1_minus"))
    mean = z2.mean()
    if not mean > 0:
        return math.nan, math.nan
    value = (plus.mean() - minus.mean()) / mean
    if is_joint:
        variance = np.sum((plus - minus - value * z2) ** 2) / z2.size**2
    elif z2.size == 1:
        variance = math.inf
    else:
        variances = [np.var(w, ddof=1) / w.size for w in (plus, minus, z2)]
        variance = variances[0] + variances[1] + value**2 * variances[2]
    return float(value), float(math.sqrt(variance) / mean)


def interval(value: float, error: float, *, is_log_scale: bool) -> tuple[float, float]:
    """A 95 % interval, as the library gives it."""
    if is_log_scale and value > 0:
        factor = math.exp(min(REACH * error / value, 700.0))
        return value / factor, value * factor
    return value - REACH * error, value + REACH * error


# --- Markov chains: the paper's second baseline ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chains:
    """Posterior draws by MCMC, then the average of the return value.

    The size is the paper's cost: that many particles make as many likelihood evaluations, by the
    paper's count, as the draws do.

    Args:
        draws_per_particle: draws that the paper equates with one particle.
        kernel: None for NumPyro's NUTS with its adaptation, or a kernel of the library.
        num_samples: draws of each chain that are kept.
        num_warmup: draws of each chain before those.
    """

    draws_per_particle: int
    kernel: Any = None
    num_samples: int = 9000
    num_warmup: int = 1000

    def run(self, expectation: ep.Expectation, size: int, seeds: Sequence[int]) -> list[dict]:
        length = self.num_samples + self.num_warmup
        num_chains = max(1, size * self.draws_per_particle // length)
        if self.kernel is not None:
            return [self._by_kernel(expectation, num_chains, seed) for seed in seeds]
        started = time.perf_counter()
        f, gradients = self._nuts(expectation, num_chains * len(seeds), seeds[0])
        seconds = (time.perf_counter() - started) / len(seeds)
        runs = []
        for number, seed in enumerate(seeds):
            own = slice(number * num_chains, (number + 1) * num_chains)
            points = []
            for n in np.unique(np.geomspace(1, num_chains, 8).round().astype(int)).tolist():
                values = f[own][:n]
                value = float(values.mean())
                error = chain_error(values)
                spent = values.size, int(gradients[own][:n].sum())
                points.append(self._point(n, value, error, _share_that_counts(values), spent))
            for point in points:
                point["seconds"] = seconds * point["cost"] / points[-1]["cost"]
            runs.append({"seed": seed, "points": points})
        return runs

    def _point(
        self, num_chains: int, value: float, error: float, ess: float, spent: tuple[int, int]
    ) -> dict:
        low, high = interval(value, error, is_log_scale=False)
        length = self.num_samples + self.num_warmup
        return {
            "cost": num_chains * length / self.draws_per_particle,
            "value": value,
            "low": low,
            "high": high,
            "evaluations": spent[0],
            "gradients": spent[1],
            "ess_z1": ess,
            "ess_z2": float(num_chains * self.num_samples),
        }

    def _by_kernel(self, expectation: ep.Expectation, num_chains: int, seed: int) -> dict:
        method = ep.PosteriorMCMC(
            num_samples=self.num_samples,
            num_warmup=self.num_warmup,
            num_chains=num_chains,
            kernel=self.kernel,
        )
        result = ep.estimate_expectation(expectation, method, rng_key=seed, throw=False)
        point = self._point(
            num_chains,
            float(result.value),
            float(result.standard_error),
            float(result.ess["Z1"]),
            (result.num_evaluations, result.num_gradients),
        )
        point["seconds"] = result.run_seconds
        return {"seed": seed, "compile_seconds": result.compile_seconds, "points": [point]}

    def _nuts(self, expectation: ep.Expectation, num_chains: int, seed: int) -> tuple:
        """f of every chain and draw, and the gradients of every chain."""
        mcmc = infer.MCMC(
            infer.NUTS(expectation.gamma2),
            num_warmup=self.num_warmup,
            num_samples=self.num_samples,
            num_chains=num_chains,
            chain_method="vectorized",
            progress_bar=False,
        )
        extra = ("num_steps",)
        mcmc.warmup(jax.random.key(seed), collect_warmup=True, extra_fields=extra)
        steps = [np.asarray(mcmc.get_extra_fields(group_by_chain=True)["num_steps"])]
        mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=extra)
        steps.append(np.asarray(mcmc.get_extra_fields(group_by_chain=True)["num_steps"]))
        draws = mcmc.get_samples(group_by_chain=True)
        f = np.asarray(_outputs_at(Density.of(expectation), draws))[:, :, 0]
        return f, sum(step.astype(np.int64).sum(axis=1) for step in steps)


@jax.jit
def _outputs_at(density: Density, draws: dict[str, jax.Array]) -> jax.Array:
    return jax.lax.map(jax.vmap(density.outputs_at), draws)


def chain_error(f: np.ndarray) -> float:
    """Standard error of the mean of (chains, draws), from the chains' own means.

    With fewer than four chains each is cut into ten stretches, which stand for chains.
    """
    if len(f) < 4:
        f = f[:, : f.shape[1] // 10 * 10].reshape(10 * len(f), -1)
    means = f.mean(axis=1)
    return float(means.std(ddof=1) / math.sqrt(means.size))


def _share_that_counts(f: np.ndarray) -> float:
    """(Σf)² / Σf², the paper's upper bound on the effective sample size for Z1."""
    scaled = f / (np.abs(f).max() or 1.0)
    squares = float((scaled**2).sum())
    return float(scaled.sum() ** 2 / squares) if squares > 0 else 0.0


# --- the default method of this library ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class Default:
    """`Auto`; a size of 100 asks for a relative error of 1/100."""

    def run(self, expectation: ep.Expectation, size: int, seeds: Sequence[int]) -> list[dict]:
        method = ep.Auto(relative_error=1 / size, max_evaluations=max(4_000_000, 16_000 * size))
        return [self._run(expectation, method, seed) for seed in seeds]

    def _run(self, expectation: ep.Expectation, method: ep.Auto, seed: int) -> dict:
        result = ep.estimate_expectation(expectation, method, rng_key=seed, throw=False)
        low, high = (float(end) for end in result.interval(0.95))
        point = {
            "cost": None,
            "value": float(result.value),
            "low": low,
            "high": high,
            "evaluations": result.num_evaluations,
            "gradients": result.num_gradients,
            "ess_z1": float(result.ess["Z1"]),
            "ess_z2": float(result.ess["Z2"]),
            "seconds": result.run_seconds,
        }
        return {
            "seed": seed,
            "status": result.status.name,
            "compile_seconds": result.compile_seconds,
            "points": [point],
        }


# --- studies ---


class Line(NamedTuple):
    """An arm on a program. `plans` says for each mode how many runs there are of which size."""

    arm: Arm
    expectation: Callable[[], ep.Expectation]
    truth: float
    plans: dict[str, dict[int, int]]
    at_once: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """An experiment: its lines by label, and what else its figures need.

    Args:
        name: the folder.
        title: what is estimated.
        lines: by the label that they have in figures and tables.
        extras: further data by name, made by a function of the mode when they are not there yet.
        draw: draws the figures of a record into a folder.
    """

    name: str
    title: str
    lines: dict[str, Line]
    extras: dict[str, Callable[[str], Any]] = dataclasses.field(default_factory=dict)
    draw: Callable[[dict, Path], None]

    @property
    def folder(self) -> Path:
        return ROOT / "experiments" / self.name

    def run(
        self, mode: str, path: Path, labels: Sequence[str] | None = None, at_once: int | None = None
    ) -> dict:
        """Makes the runs that the record does not have yet."""
        record = self._begin(mode, path)
        for label, line in self.lines.items():
            if labels is not None and label not in labels:
                continue
            for size, num_runs in line.plans.get(mode, {}).items():
                done = {
                    r["seed"] for r in record["runs"] if (r["line"], r["size"]) == (label, size)
                }
                seeds = [seed for seed in range(num_runs) if seed not in done]
                step = at_once or line.at_once
                for start in range(0, len(seeds), step):
                    chunk = seeds[start : start + step]
                    runs = line.arm.run(line.expectation(), size, chunk)
                    where = record["environments"].index(_here())
                    about = {"line": label, "size": size, "environment": where}
                    record["runs"] += [about | {"at_once": len(chunk)} | run for run in runs]
                    write(path, record)
                    print(f"{self.name}: {label}, size {size}, runs {chunk}", flush=True)
        for name, make in self.extras.items():
            if name not in record["extras"] and (labels is None or name in labels):
                record["extras"][name] = make(mode)
                write(path, record)
        return record

    def _begin(self, mode: str, path: Path) -> dict:
        record = read(path)
        if record is None:
            record = {"environments": [], "runs": [], "extras": {}}
        truths = {label: line.truth for label, line in self.lines.items()}
        record |= {"study": self.name, "title": self.title, "mode": mode, "truths": truths}
        if _here() not in record["environments"]:
            record["environments"].append(_here())
        return record

    def main(self, argv: Sequence[str] | None = None) -> dict:
        """Runs as the command line asks, then draws the figures and prints the table."""
        from experiments import figures

        parser = argparse.ArgumentParser(description=self.title)
        parser.add_argument("--quick", dest="mode", action="store_const", const="quick")
        parser.add_argument("--smoke", dest="mode", action="store_const", const="smoke")
        parser.add_argument("--out", type=Path, help="a folder for results and figures")
        parser.add_argument("--lines", help="some of " + ", ".join([*self.lines, *self.extras]))
        parser.add_argument("--at-once", type=int, help="runs made in one call")
        parser.add_argument("--no-figures", action="store_true")
        options = parser.parse_args(argv)
        jax.config.update("jax_enable_x64", True)
        mode = options.mode or "full"
        default = self.folder if mode == "full" else ROOT / "build" / "experiments" / self.name
        folder = options.out or default
        labels = options.lines.split(",") if options.lines else None
        started = time.perf_counter()
        record = self.run(mode, folder / "results" / f"{mode}.json", labels, options.at_once)
        if not options.no_figures:
            (folder / "figures").mkdir(parents=True, exist_ok=True)
            self.draw(record, folder / "figures")
            text = figures.table(record)
            (folder / "results" / f"{mode}.md").write_text(text + "\n")
            print(f"{text}\n\n{self.name}: {time.perf_counter() - started:.0f} s", flush=True)
        return record


def write(path: Path, record: dict) -> None:
    """Writes a record as a whole or not at all; numbers keep nine digits, NaN and inf are null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = ",\n  ".join(json.dumps(_short(run)) for run in record["runs"])
    rest = {key: value for key, value in record.items() if key != "runs"}
    text = json.dumps(_short(rest), indent=1)[:-2] + f',\n "runs": [\n  {runs}\n ]\n}}\n'
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def read(path: Path) -> dict | None:
    """A record, or None if there is none yet."""
    return json.loads(path.read_text()) if path.exists() else None


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_short(item) for item in value]
    if not isinstance(value, float):
        return value
    return float(f"{value:.9g}") if math.isfinite(value) else None


@functools.cache
def _here() -> dict:
    return environment() | {"precision": str(jnp.result_type(float))}
