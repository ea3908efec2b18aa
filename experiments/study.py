"""What the experiments share: the paper's methods as lines of a plot, and the record of their runs.

A line is a method at growing sizes on a program whose expectation is known. The runs of a study are
kept in one JSON file, which is written as a whole after every call, so that an interrupted study
resumes where it stopped. Figures and tables are drawn from that file alone.
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
from estimand.record.parts import DENSITY_NAMES

ROOT = Path(__file__).parents[1]
NUM_POINTS = 24
NUM_STRETCHES = 10
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
        particles = self.particles(expectation, size, seeds)
        return self.runs_of(particles, size, seeds)

    def particles(self, expectation: ep.Expectation, size: int, seeds: Sequence[int]) -> Particles:
        """The particles of all runs."""
        count = size // self.num_parts * len(seeds)
        estimator = dataclasses.replace(self.estimator, num_samples=count)
        is_joint = self.num_parts == 1
        method = ep.SelfNormalised(estimator) if is_joint else ep.TABI(estimator)
        result = ep.estimate_expectation(expectation, method, rng_key=seeds[0], throw=False)
        evidence = dict(result.evidence) if is_joint else _estimated(result)
        if not is_joint and len(evidence) != self.num_parts:
            raise ValueError(f"{len(evidence)} densities estimated; num_parts={self.num_parts}.")
        log_weights = {name: np.asarray(part.log_weights) for name, part in evidence.items()}
        evaluations, gradients = (
            np.sum(
                [np.asarray(getattr(part, kind), np.int64) for part in evidence.values()], axis=0
            )
            for kind in ("evaluations", "gradients")
        )
        seconds = result.compile_seconds, result.run_seconds
        return Particles(log_weights, evaluations, gradients, *seconds)

    def runs_of(self, particles: Particles, size: int, seeds: Sequence[int]) -> list[dict]:
        """What each run says, and what its first particles say."""
        each = size // self.num_parts
        seconds = particles.run_seconds / len(seeds)
        runs = []
        for number, seed in enumerate(seeds):
            own = slice(number * each, (number + 1) * each)
            points = _prefixes(
                {name: values[own] for name, values in particles.log_weights.items()},
                particles.evaluations[own],
                particles.gradients[own],
                is_joint=self.num_parts == 1,
            )
            for point in points:
                share = point.pop("particles") / each
                point |= {"cost": size * share, "seconds": seconds * share}
            about = {"seed": seed, "compile_seconds": particles.compile_seconds}
            runs.append(about | {"points": points})
        return runs


class Particles(NamedTuple):
    """Log weights by density, and what each particle cost in all its densities together."""

    log_weights: dict[str, np.ndarray]
    evaluations: np.ndarray
    gradients: np.ndarray
    compile_seconds: float
    run_seconds: float


def _estimated(result: ep.Estimate) -> dict[str, ep.Evidence]:
    """The evidence of every density, also of one in which no particle has mass."""
    parts = result.outputs[0].parts
    found = {name: getattr(parts, field) for field, name in DENSITY_NAMES.items()}
    return {name: part for name, part in found.items() if part is not None}


def _prefixes(
    log_weights: dict[str, np.ndarray],
    evaluations: np.ndarray,
    gradients: np.ndarray,
    *,
    is_joint: bool,
) -> list[dict]:
    """What the first particles say, for growing numbers of them."""
    scale = log_weights["gamma2"].max()
    weights = {name: np.exp(values - scale) for name, values in log_weights.items()}
    own = {name: np.exp(values - max(values.max(), -1e300)) for name, values in log_weights.items()}
    sums = {name: (np.cumsum(w), np.cumsum(w**2)) for name, w in own.items()}
    points = []
    size = evaluations.size
    for n in np.unique(np.geomspace(1, size, NUM_POINTS).round().astype(int)).tolist():
        first = {name: w[:n] for name, w in weights.items()}
        value, error = weighted_estimate(first, is_joint=is_joint)
        low, high = interval(value, error, is_log_scale=not is_joint and len(weights) == 2)
        ess = {name: float(s[n - 1] ** 2 / (q[n - 1] or 1.0)) for name, (s, q) in sums.items()}
        points.append(
            {
                "particles": n,
                "value": value,
                "low": low,
                "high": high,
                "evaluations": int(evaluations[:n].sum()),
                "gradients": int(gradients[:n].sum()),
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
        stretches = self.stretches(expectation, num_chains * len(seeds), seeds[0])
        return self.runs_of(stretches, seeds, time.perf_counter() - started)

    def runs_of(self, stretches: Stretches, seeds: Sequence[int], seconds: float) -> list[dict]:
        """What each run says."""
        n = len(stretches.gradients) // len(seeds)
        runs = []
        for number, seed in enumerate(seeds):
            own = Stretches(*(item[number * n : (number + 1) * n] for item in stretches))
            value = float(own.sums.sum()) / (n * self.num_samples)
            spent = n * self.num_samples, int(own.gradients.sum())
            point = self._point(n, value, own.error(self.num_samples), own.ess, spent)
            point["seconds"] = seconds / len(seeds)
            runs.append({"seed": seed, "points": [point]})
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

    def stretches(self, expectation: ep.Expectation, num_chains: int, seed: int) -> Stretches:
        """NUTS chains, and what is kept of them."""
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
        f = f.reshape(num_chains, NUM_STRETCHES, -1)
        gradients = sum(step.astype(np.int64).sum(axis=1) for step in steps)
        return Stretches(f.sum(axis=2), (f**2).sum(axis=2), np.asarray(gradients))


@jax.jit
def _outputs_at(density: Density, draws: dict[str, jax.Array]) -> jax.Array:
    def one(values: dict[str, jax.Array]) -> jax.Array:
        return density.model.assess(values, density.arrays).outputs

    return jax.lax.map(jax.vmap(one), draws)


class Stretches(NamedTuple):
    """Sums of f and of f² over stretches of each chain, shape (chains, 10); gradients by chain."""

    sums: np.ndarray
    squares: np.ndarray
    gradients: np.ndarray

    @property
    def ess(self) -> float:
        """(Σf)² / Σf², the paper's upper bound on the effective sample size for Z1."""
        squares = float(self.squares.sum())
        return float(self.sums.sum()) ** 2 / squares if squares > 0 else 0.0

    def error(self, num_samples: int) -> float:
        """Standard error of the mean from the chains' own means; of stretches below 4 chains."""
        is_few = len(self.sums) < 4
        means = self.sums.ravel() if is_few else self.sums.mean(axis=1)
        means = means * NUM_STRETCHES / num_samples
        return float(means.std(ddof=1) / math.sqrt(means.size))


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

    @property
    def figures(self) -> Path:
        """Where the figures of the full runs are: the documentation shows them."""
        return ROOT / "docs" / "images" / "experiments" / self.name

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
            drawn = self.figures if folder == self.folder else folder / "figures"
            drawn.mkdir(parents=True, exist_ok=True)
            self.draw(record, drawn)
            text = figures.table(record)
            (folder / "results" / f"{mode}.md").write_text(text + "\n")
            print(f"{text}\n\n{self.name}: {time.perf_counter() - started:.0f} s", flush=True)
        return record


def write(path: Path, record: dict) -> None:
    """Writes a record as a whole or not at all; NaN and infinities are null."""
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


# Figures about a run keep this many digits; estimates, intervals and truths keep all.
DIGITS = 6
_BRIEF = ("seconds", "compile_seconds", "ess_z1", "ess_z2", "cost")


def _short(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _short(item, key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_short(item, name) for item in value]
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}") if name in _BRIEF else value


@functools.cache
def _here() -> dict:
    return environment() | {"precision": str(jnp.result_type(float))}
