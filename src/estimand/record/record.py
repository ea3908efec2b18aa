"""The record of an estimation: its figures, and what it keeps of the run for a later look.

A record must be enough on its own for every diagnostic, plot and report. The draws of a run can be
many; a record keeps a bounded number of them for each density, in the model's own coordinates and
with weights that make them stand for all.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density
from estimand.methods.protocol import CONFIDENCE, Figures, Run, worst
from estimand.model.program import PARTS, Output
from estimand.record.provenance import Origin
from estimand.sampling.weights import log_mean, pareto_k
from estimand.trust.evidence import Evidence
from estimand.trust.status import Status

# Draws that a record keeps of each density, and numbers that it keeps in all.
MAX_DRAWS = 5000
MAX_NUMBERS = 4_000_000
# The largest weights of each density that a record keeps, from which the tail is judged.
MAX_LARGEST = 4096
# Batches of independent draws that stand for replicates where a method has none of its own.
NUM_BATCHES = 16
NUM_PATH_POINTS = 40
FIRST_SHARE = 1 / 128
# A gradient counts as this many evaluations.
GRADIENT_COST = 3
_CHUNK = 1000


class PartSummary(NamedTuple):
    """What is known of one density, γ2 (whose `output` is −1) or γ1± of one output.

    `largest` are the largest log weights in falling order; `replicate_log_z` the estimates of
    independent islands, or of batches of draws; `betas`, `acceptance` and `effective` (the share
    of effective particles) have a row for each island, and NaN where nothing is known.
    """

    name: str
    output: int
    log_z: float
    relative_variance: float
    ess: float
    pareto_k: float
    status: Status
    num_samples: int
    largest: np.ndarray
    replicate_log_z: np.ndarray
    betas: np.ndarray
    acceptance: np.ndarray
    effective: np.ndarray


class Draws(NamedTuple):
    """Weighted draws of one density: values by site, and every output there."""

    name: str
    output: int
    log_weights: np.ndarray
    outputs: np.ndarray
    sites: dict[str, np.ndarray]

    @property
    def weights(self) -> np.ndarray:
        """Weights that add up to 1."""
        weights = np.exp(self.log_weights - self.log_weights.max())
        return weights / weights.sum()


class Path(NamedTuple):
    """How the estimate of one output settled: what the first draws said, at their cost."""

    cost: np.ndarray
    value: np.ndarray
    standard_error: np.ndarray


class Contents(NamedTuple):
    """What a record keeps of a run besides its figures."""

    parts: tuple[PartSummary, ...]
    draws: tuple[Draws, ...]
    paths: tuple[Path, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """An estimate as plain data. `Estimate` adds what one can do with it.

    `contents` is there in a record that was loaded or merged. In a fresh one `density` stands in
    its place, and parts, draws and paths are worked out when they are first asked for.
    """

    program: str
    method: str
    output: Output
    run: Run
    compile_seconds: float
    run_seconds: float
    origin: Origin = dataclasses.field(default_factory=Origin)
    density: Density | None = dataclasses.field(default=None, repr=False)
    contents: Contents | None = dataclasses.field(default=None, repr=False)

    def structured(self, get: Callable[[Figures], Any]) -> Any:
        """One number of every output, in the structure of the program's return value."""
        return self.output.unflatten(np.asarray([get(figures) for figures in self.run.figures]))

    @property
    def value(self) -> Any:
        """The estimate, in the structure of the program's return value."""
        return self.structured(lambda figures: figures.value)

    @property
    def standard_error(self) -> Any:
        """The standard error of every output."""
        return self.structured(lambda figures: figures.standard_error)

    def interval(self, level: float = CONFIDENCE) -> tuple[Any, Any]:
        """Confidence interval; on the log scale where f has one sign and the method is TABI.

        Args:
            level: the probability with which such an interval has the truth in it.

        Examples:
            >>> low, high = result.interval(0.99)
            >>> low < 2.5 < high
            True
        """
        low, high = np.asarray(self.bounds(level), float).T
        return self.output.unflatten(low), self.output.unflatten(high)

    def bounds(self, level: float = CONFIDENCE) -> list[tuple[float, float]]:
        """The confidence intervals of the outputs one by one."""
        if not 0 < level < 1:
            raise ValueError(f"interval: level must be between 0 and 1; it is {level}.")
        return [
            confidence_interval(figures, is_indicator, level)
            for figures, is_indicator in zip(self.run.figures, self._indicators(), strict=True)
        ]

    def _indicators(self) -> Iterator[bool]:
        for shape, flag in zip(self.output.shapes, self.output.is_indicator, strict=True):
            yield from [flag] * math.prod(shape)

    @property
    def names(self) -> list[str]:
        """A short name for every output: its place in the return value, or the program's name."""
        return [_short_name(label) or self.program for label in self.output.labels]

    @property
    def status(self) -> Status:
        """The worst status of any output; `statuses` has one for each."""
        return worst(list(self.statuses))

    @property
    def statuses(self) -> tuple[Status, ...]:
        """The status of each output."""
        return tuple(figures.status for figures in self.run.figures)

    @property
    def log_z(self) -> dict[str, Any]:
        """log Z1_plus and Z1_minus of every output, and log Z2; NaN where not estimated."""
        return {
            "Z1_plus": self.structured(lambda figures: figures.log_z1_plus),
            "Z1_minus": self.structured(lambda figures: figures.log_z1_minus),
            "Z2": self.run.log_z2,
        }

    @property
    def ess(self) -> dict[str, Any]:
        """Effective sample sizes as the paper's section 5 defines them for the method."""
        return {
            "Z1": self.structured(lambda figures: figures.ess_z1),
            "Z1_plus": self.structured(lambda figures: figures.ess_z1_plus),
            "Z1_minus": self.structured(lambda figures: figures.ess_z1_minus),
            "Z2": self.run.ess_z2,
            "min": self.structured(lambda figures: min(figures.ess_z1, self.run.ess_z2)),
        }

    @property
    def num_evaluations(self) -> int:
        """Densities evaluated without gradient."""
        return self.run.num_evaluations

    @property
    def num_gradients(self) -> int:
        """Densities evaluated with gradient."""
        return self.run.num_gradients

    @property
    def cost(self) -> int:
        """Evaluations, a gradient counting as 3."""
        return self.run.num_evaluations + GRADIENT_COST * self.run.num_gradients

    @property
    def evidence(self) -> tuple[tuple[str, Evidence], ...]:
        """Every normalising constant that was estimated, by the name of its density.

        With all weights and positions, and so only in the session that made them: a record that
        was loaded or merged has `parts` and `draws` instead.
        """
        return self.run.evidence

    @functools.cached_property
    def parts(self) -> tuple[PartSummary, ...]:
        """A summary of every density that the figures rest on."""
        if self.contents is not None:
            return self.contents.parts
        return tuple(_summarise(*item) for item in used_evidence(self.run))

    @functools.cached_property
    def draws(self) -> tuple[Draws, ...]:
        """Weighted draws of every density for which the method keeps them."""
        if self.contents is not None:
            return self.contents.draws
        return () if self.density is None else _kept_draws(self.run, self.density)

    @functools.cached_property
    def paths(self) -> tuple[Path, ...]:
        """How the estimate of every output settled."""
        if self.contents is not None:
            return self.contents.paths
        return tuple(_path(self, number) for number in range(len(self.run.figures)))

    def part(self, name: str, output: int = 0) -> PartSummary | None:
        """The summary of one density, or None if the method has none."""
        return _find(self.parts, name, output)

    def draws_of(self, name: str, output: int = 0) -> Draws | None:
        """The draws of one density, or None if the method has none."""
        return _find(self.draws, name, output)


def _find(items: tuple, name: str, output: int) -> Any:
    wanted = (name, -1 if name == "gamma2" else output)
    return next((item for item in items if (item.name, item.output) == wanted), None)


def _short_name(label: str) -> str:
    """``['a'][0]`` as ``a[0]``."""
    return re.sub(r"^\['([^']*)'\]", r"\1", label)


def confidence_interval(figures: Figures, is_indicator: bool, level: float) -> tuple[float, float]:
    """The ends of the interval of one output."""
    if figures.status is Status.underflow:
        return -figures.upper_bound, figures.upper_bound
    if not math.isfinite(figures.standard_error):
        return (0.0, min(figures.upper_bound, 1.0)) if is_indicator else (-math.inf, math.inf)
    reach = quantile(0.5 + level / 2, figures.degrees) * figures.standard_error
    if figures.is_log_scale and figures.value != 0:
        factor = math.exp(min(reach / abs(figures.value), 700.0))
        ends = (figures.value / factor, figures.value * factor)
        return min(ends), max(ends)
    return figures.value - reach, figures.value + reach


def quantile(probability: float, degrees: float) -> float:
    """Quantile of the normal law, or of Student's t where an error comes from few replicates."""
    if math.isinf(degrees):
        return statistics.NormalDist().inv_cdf(probability)
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


# --- from a fresh run ---


def used_evidence(run: Run) -> list[tuple[str, int, Evidence]]:
    """The evidence that each figure rests on, with the number of its output.

    A method may have tried more than one route: the evidence of a part is the one whose log Z is
    nearest to the figure's own. It need not be equal where an error was regressed out.
    """
    used = []
    for name in ("gamma2", "gamma1_plus", "gamma1_minus"):
        found = [evidence for label, evidence in run.evidence if label == name]
        if name == "gamma2":
            wanted = [run.log_z2]
        else:
            wanted = [getattr(item, f"log_z1_{name.split('_')[1]}") for item in run.figures]
        for output, log_z in enumerate(wanted):
            # With one route, evidence comes in the order of the outputs.
            own = found if len(found) != len(wanted) else found[output : output + 1]
            known = [evidence for evidence in own if math.isfinite(evidence.log_z)]
            if math.isfinite(log_z) and known:
                best = min(known, key=lambda e: abs(float(e.log_z) - log_z))
                used.append((name, -1 if name == "gamma2" else output, best))
    return used


def _summarise(name: str, output: int, evidence: Evidence) -> PartSummary:
    log_weights = np.asarray(evidence.log_weights, float)
    betas, acceptance, effective = _temperature_path(evidence)
    return PartSummary(
        name=name,
        output=output,
        log_z=float(evidence.log_z),
        relative_variance=float(evidence.relative_variance),
        ess=evidence.ess,
        pareto_k=pareto_k(log_weights),
        status=evidence.status,
        num_samples=log_weights.size,
        largest=np.sort(log_weights)[::-1][:MAX_LARGEST],
        replicate_log_z=_replicates(evidence),
        betas=betas,
        acceptance=acceptance,
        effective=effective,
    )


def _temperature_path(evidence: Evidence) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inverse temperatures, acceptance and share of effective particles, a row for each island."""
    trace = evidence.trace
    if trace is None:
        nothing = np.zeros((0, 0))
        return nothing, nothing, nothing
    betas = np.atleast_2d(np.asarray(trace.betas, float))
    acceptance = np.atleast_2d(np.asarray(trace.acceptance_rate, float))
    effective = np.full(betas.shape, np.nan)
    if trace.log_weights is not None:
        path = np.asarray(trace.log_weights, float)
        path = path if path.shape[-1] == betas.shape[-1] - 1 else path.T
        tops = np.exp(path - path.max(axis=0, keepdims=True))
        effective[0, 1:] = tops.sum(axis=0) ** 2 / (tops**2).sum(axis=0) / path.shape[0]
    # A kernel that does not move at the first or at the last temperature has no acceptance there.
    missing = betas.shape[1] - acceptance.shape[1]
    first = (missing + 1) // 2
    pad = ((0, 0), (first, missing - first))
    acceptance = np.pad(acceptance, pad, constant_values=np.nan)
    known = ~np.isnan(betas).all(axis=0)
    return betas[:, known], acceptance[:, known], effective[:, known]


def _replicates(evidence: Evidence) -> np.ndarray:
    """log Z of independent islands, or of batches of the draws; empty if all weights agree."""
    log_weights = independent_log_weights(evidence)
    if log_weights.size < 2:
        return np.zeros(0)
    batches = np.array_split(log_weights, min(NUM_BATCHES, log_weights.size))
    if evidence.trace is not None and np.ndim(evidence.trace.betas) == 2:
        return log_weights
    return np.asarray([log_mean(batch) for batch in batches])


def independent_log_weights(evidence: Evidence) -> np.ndarray:
    """Log weights of independent pieces: of islands if there are any, else of the draws.

    Particles of one island, and draws that a Markov chain gave, have equal weights, which say
    nothing of the error.
    """
    log_weights = np.asarray(evidence.log_weights, float)
    if evidence.trace is not None and np.ndim(evidence.trace.betas) == 2:
        islands = np.shape(evidence.trace.betas)[0]
        return log_weights.reshape(islands, -1)[:, 0]
    if (log_weights == log_weights[0]).all():
        return log_weights[:1]
    return log_weights


# --- draws ---


def thin(
    log_weights: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """At most `count` of some weighted draws, with new weights that keep every mean unbiased.

    A draw of weight w stays with probability min(1, w/c) and has then weight max(w, c), where c
    makes the expected number of draws `count`: heavy draws stay as they are (Fearnhead and
    Clifford 2003). Gives indices and log weights.
    """
    alive = np.flatnonzero(log_weights > -np.inf)
    kept = np.asarray(log_weights, float)[alive]
    if alive.size <= count:
        return alive, kept
    weights = np.sort(np.exp(kept - kept.max()))
    # With the m heaviest kept for certain the others share the remaining count − m places.
    below = np.cumsum(weights)
    heavy = np.arange(count)
    threshold = below[weights.size - 1 - heavy] / (count - heavy)
    heaviest_of_rest = weights[weights.size - 1 - heavy]
    certain = int(np.argmax(heaviest_of_rest <= threshold * (1 + 1e-12)))
    cut = threshold[certain]
    ratios = np.exp(kept - kept.max()) / cut
    edges = np.floor(np.cumsum(np.minimum(ratios, 1.0)) + rng.uniform())
    chosen = np.flatnonzero(np.diff(edges, prepend=0.0) > 0)[:count]
    return alive[chosen], np.maximum(kept[chosen], math.log(cut) + kept.max())


def resample(log_weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of equally weighted draws, by systematic resampling, in random order."""
    weights = np.exp(log_weights - np.max(log_weights))
    edges = np.cumsum(weights) / weights.sum()
    points = (np.arange(count) + rng.uniform()) / count
    return rng.permutation(np.minimum(np.searchsorted(edges, points), weights.size - 1))


def _kept_draws(run: Run, density: Density) -> tuple[Draws, ...]:
    used = used_evidence(run)
    width = max(1, density.dimension + density.num_outputs)
    count = max(100, min(MAX_DRAWS, MAX_NUMBERS // (width * max(1, len(used)))))
    result = []
    for name, output, evidence in used:
        # Seeded, so that a record is the same however often it is made.
        rng = np.random.default_rng([PARTS.index(name), output + 1])
        indices, log_weights = thin(np.asarray(evidence.log_weights, float), count, rng)
        positions = np.asarray(evidence.positions)[indices]
        sites, outputs = _describe(density.part("gamma2"), positions)
        result.append(Draws(name, output, log_weights, outputs, sites))
    return tuple(result)


def _describe(density: Density, positions: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Values of the sites and outputs at positions, in chunks of one compiled size."""
    count = len(positions)
    padded = np.concatenate([positions, np.repeat(positions[:1], -count % _CHUNK, axis=0)])
    pieces = [
        jax.tree.map(np.asarray, _values(density, jnp.asarray(padded[start : start + _CHUNK])))
        for start in range(0, len(padded), _CHUNK)
    ]
    sites, outputs = jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *pieces)
    return sites, np.asarray(outputs, float)


@jax.jit
def _values(density: Density, positions: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    return jax.vmap(lambda u: (density.constrain(u), density.outputs(u)))(positions)


# --- how an estimate settled ---


def _path(record: Record, output: int) -> Path:
    """The estimate from growing shares of the draws of every part.

    Errors are those of independent draws, scaled so that the last one is the reported error.
    """
    figures = record.run.figures[output]
    last = Path(
        np.asarray([float(record.cost)]),
        np.asarray([figures.value]),
        np.asarray([figures.standard_error]),
    )
    used = {
        name: evidence
        for name, number, evidence in used_evidence(record.run)
        if number in (-1, output)
    }
    if "gamma2" not in used or len(used) == 1 or not math.isfinite(figures.standard_error):
        return last
    used["gamma2"] = _own_normaliser(record.run, figures)
    log_weights = {name: independent_log_weights(evidence) for name, evidence in used.items()}
    # A part whose weights all agree is taken as it is at the end.
    varying = [weights.size for weights in log_weights.values() if weights.size > 1]
    smallest = min(varying, default=0)
    if smallest < 4:
        return last
    own = float(sum(e.num_evaluations + GRADIENT_COST * e.num_gradients for e in used.values()))
    own = min(own or smallest, record.cost)
    sizes = np.geomspace(max(4.0, FIRST_SHARE * smallest), smallest, NUM_PATH_POINTS)
    shares = np.unique(np.round(sizes)) / smallest
    is_shared = len(varying) == len(used) and _are_shared(list(used.values()))
    value, error = _settling(log_weights, shares, is_shared)
    if not error[-1] > 0:
        return last
    scale = math.exp(min(_log_scale(log_weights), 700.0))
    value, error = value * scale, error * scale
    share = figures.standard_error / error[-1]
    if not math.isclose(value[-1], figures.value, rel_tol=1e-5):
        # Some of the draws' error was regressed out of the estimate, and so out of its path.
        value = figures.value + (value - value[-1]) * min(1.0, share)
    return Path(record.cost - own + shares * own, value, error * share)


def _own_normaliser(run: Run, figures: Figures) -> Evidence:
    """The estimate of Z2 that a figure was divided by, of several routes' estimates."""

    def distance(evidence: Evidence) -> float:
        plus, minus = (
            np.exp(log_z - float(evidence.log_z)) if np.isfinite(log_z) else 0.0
            for log_z in (figures.log_z1_plus, figures.log_z1_minus)
        )
        return abs(float(plus - minus) - figures.value)

    return min((e for name, e in run.evidence if name == "gamma2"), key=distance)


def _are_shared(evidence: list[Evidence]) -> bool:
    """Whether every part was estimated from the same draws."""
    first = np.asarray(evidence[0].positions)
    return all(
        np.shape(item.positions) == first.shape and np.array_equal(item.positions, first)
        for item in evidence[1:]
    )


def _log_scale(log_weights: dict[str, np.ndarray]) -> float:
    tops = [log_mean(log_weights[name]) for name in log_weights if name != "gamma2"]
    return max(tops) - log_mean(log_weights["gamma2"])


def _settling(
    log_weights: dict[str, np.ndarray], shares: np.ndarray, is_shared: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Value and unscaled error from the first draws, both relative to the largest part."""
    log_z2 = log_mean(log_weights["gamma2"])
    log_top = log_z2 + _log_scale(log_weights)
    signs = {"gamma1_plus": 1.0, "gamma1_minus": -1.0}
    sums: dict[str, np.ndarray] = {}
    weights, counts = {}, {}
    for name, logs in log_weights.items():
        weights[name] = np.exp(logs - (log_z2 if name == "gamma2" else log_top))
        counts[name] = np.maximum(np.ceil(shares * logs.size).astype(int), 1)
        sums[name] = np.cumsum(weights[name])[counts[name] - 1] / counts[name]
    with np.errstate(divide="ignore", invalid="ignore"):
        value = sum(sign * sums[name] for name, sign in signs.items() if name in sums)
        value = value / sums["gamma2"]
        if is_shared:
            signed = sum(sign * weights[name] for name, sign in signs.items() if name in weights)
            residual = signed - value[-1] * weights["gamma2"]
            count = counts["gamma2"]
            variance = _prefix_variance(residual, count) / count
        else:
            variance = value[-1] ** 2 * (
                _prefix_variance(weights["gamma2"], counts["gamma2"]) / counts["gamma2"]
            )
            for name in signs.keys() & weights.keys():
                variance = variance + _prefix_variance(weights[name], counts[name]) / counts[name]
    return value, np.sqrt(np.maximum(variance, 0.0))


def _prefix_variance(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    means = np.cumsum(values)[counts - 1] / counts
    squares = np.cumsum(values**2)[counts - 1] / counts
    return np.maximum(squares - means**2, 0.0)
