"""Methods: how estimates of normalising constants become an estimate of an expectation.

`TABI` estimates each constant on its own; `SelfNormalised` is the baseline that takes one set of
weighted posterior samples for numerator and denominator. A method says `Figures` of every output.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from estimand.density import Density
from estimand.evidence import (
    MAX_PARETO_K,
    MIN_ESS,
    Estimator,
    Evidence,
    Status,
    effective_sample_size,
    log_mean,
    pareto_k,
    remembered,
)
from estimand.journal import remember

CONFIDENCE = 0.95
# Independent routes that are farther apart than this many joint errors disagree.
MAX_JOINT_ERRORS = 4.0
LOG_MAX = math.log(sys.float_info.max) - 1
LOG_MIN = math.log(sys.float_info.min)


class Figures(NamedTuple):
    """What a method says of one output."""

    value: float
    standard_error: float
    status: Status
    ess_z1: float
    is_log_scale: bool = False
    upper_bound: float = math.inf
    degrees: float = math.inf
    magnitude: float = math.nan
    log_z1_plus: float = math.nan
    log_z1_minus: float = math.nan
    ess_z1_plus: float = math.nan
    ess_z1_minus: float = math.nan


class Run(NamedTuple):
    """What a method says of all outputs, and what it cost."""

    figures: tuple[Figures, ...]
    num_evaluations: int
    num_gradients: int
    ess_z2: float
    log_z2: float = math.nan
    evidence: tuple[tuple[str, Evidence], ...] = ()
    notes: tuple[str, ...] = ()

    def without_false_trust(self) -> Run:
        """The same with no output `ok` whose value or error is no number."""
        return self._replace(figures=tuple(_doubted(item) for item in self.figures))


def _doubted(figures: Figures) -> Figures:
    if figures.status is not Status.ok or math.isfinite(figures.standard_error + figures.value):
        return figures
    is_number = math.isfinite(figures.value)
    status = Status.low_ess if is_number else Status.nan_density
    return figures._replace(status=status, standard_error=math.inf)


def in_plain_coordinates(run: Run, density: Density) -> Run:
    """The same run with positions as the density in plain coordinates has them."""
    moved: dict[int, jax.Array] = {}
    evidence = []
    for name, item in run.evidence:
        key = id(item.positions)
        if key not in moved:
            moved[key] = density.in_plain_coordinates(item.positions)
        evidence.append((name, item._replace(positions=moved[key])))
    return run._replace(evidence=tuple(evidence))


class Method(Protocol):
    """What `estimate_expectation` needs of a method."""

    def check(self, density: Density) -> None:
        """Raises, before any work, if the method cannot take this program."""

    def run(self, rng_key: jax.Array, density: Density) -> Run: ...


class _Skip:
    def __repr__(self) -> str:
        return "SKIP"


SKIP = _Skip()
"""In the place of an estimator: asserts that this part of the target is zero."""


@dataclasses.dataclass(frozen=True, repr=False)
class TABI:
    """Target-aware estimation: E[f] = (Z1⁺ − Z1⁻) / Z2, each Z estimated on its own.

    A part that the return expression itself rules out, such as the negative one of ``x**2``, is
    not estimated.

    Args:
        estimator: for all three, where no other one is named.
        normaliser: the estimator of Z2.
        positive: the estimator of Z1⁺, or `SKIP` if f ≤ 0.
        negative: the estimator of Z1⁻, or `SKIP` if f ≥ 0.

    Examples:
        >>> method = ep.TABI(ep.AnIS(num_samples=1000, num_temperatures=20))
        >>> result = ep.estimate_expectation(program(2.0), method)
        >>> abs(result.value - 2.5) < 4 * result.standard_error
        True
        >>> prior = ep.ImportanceSampling()
        >>> ep.TABI(ep.AnIS(), normaliser=prior)  # of any kinds mixed
        TABI(normaliser=ImportanceSampling(), positive=AnIS(), negative=AnIS())
    """

    estimator: dataclasses.InitVar[Estimator | None] = None
    _: dataclasses.KW_ONLY
    normaliser: Estimator | None = None
    positive: Estimator | _Skip | None = None
    negative: Estimator | _Skip | None = None

    def __post_init__(self, estimator: Estimator | None) -> None:
        if isinstance(estimator, _Skip) or isinstance(self.normaliser, _Skip):
            raise ValueError("TABI: Z2 cannot be skipped; it is what the result is divided by.")
        for name in ("normaliser", "positive", "negative"):
            if getattr(self, name) is None:
                if estimator is None:
                    raise ValueError(
                        f"TABI: no estimator for {name}. Give one estimator for all parts, as in "
                        "TABI(AnIS()), or normaliser=, positive= and negative=."
                    )
                object.__setattr__(self, name, estimator)
            chosen = getattr(self, name)
            if not (isinstance(chosen, _Skip) or hasattr(chosen, "estimate")):
                raise TypeError(f"TABI: {name} must be an estimator or SKIP; it is {chosen!r}.")
        if isinstance(self.positive, _Skip) and isinstance(self.negative, _Skip):
            raise ValueError("TABI: with both parts skipped nothing is left to estimate.")

    def __repr__(self) -> str:
        if self.normaliser == self.positive == self.negative:
            return f"TABI({self.normaliser!r})"
        return (
            f"TABI(normaliser={self.normaliser!r}, positive={self.positive!r}, "
            f"negative={self.negative!r})"
        )

    def _estimators(self) -> dict[str, Any]:
        return {"gamma1_plus": self.positive, "gamma1_minus": self.negative}

    def check(self, density: Density) -> None:
        for estimator in (self.normaliser, self.positive, self.negative):
            if not isinstance(estimator, _Skip):
                assert estimator is not None
                estimator.check(density)

    def run(
        self, rng_key: jax.Array, density: Density, outputs: Sequence[int] | None = None
    ) -> Run:
        """Figures of all outputs, or of some of them."""
        assert self.normaliser is not None
        outputs = range(density.num_outputs) if outputs is None else outputs
        known = density.known_signs
        keys = jax.random.split(rng_key, 1 + 2 * density.num_outputs)
        z2 = remembered(self.normaliser, keys[0], density.part("gamma2"))
        evidence, figures = [("gamma2", z2)], []
        for output in outputs:
            parts: dict[str, Evidence | None] = {}
            for number, (name, estimator) in enumerate(self._estimators().items()):
                is_absent = known[output] == (-1, 1)[number]
                if isinstance(estimator, _Skip) or is_absent:
                    parts[name] = None
                    continue
                key = keys[1 + 2 * output + number]
                parts[name] = remembered(estimator, key, density.part(name, output))
                evidence.append((name, parts[name]))  # type: ignore[arg-type]
            figures.append(combine(parts["gamma1_plus"], parts["gamma1_minus"], z2))
        evidence = jax.block_until_ready(evidence)
        return Run(
            figures=tuple(figures),
            num_evaluations=sum(item.num_evaluations for _, item in evidence),
            num_gradients=sum(item.num_gradients for _, item in evidence),
            ess_z2=z2.ess,
            log_z2=float(z2.log_z),
            evidence=tuple(evidence),
        )


def combine(plus: Evidence | None, minus: Evidence | None, z2: Evidence) -> Figures:
    """(Z1⁺ − Z1⁻) / Z2 from independent parts, with its standard error and status."""
    parts = [part for part in (plus, minus) if part is not None]
    with_mass = [part for part in parts if np.isfinite(part.log_z)]
    log_plus = -math.inf if plus is None else float(plus.log_z)
    log_minus = -math.inf if minus is None else float(minus.log_z)
    figures = Figures(
        value=0.0,
        standard_error=math.inf,
        status=Status.no_mass_found,
        ess_z1=min((part.ess for part in with_mass), default=0.0),
        log_z1_plus=log_plus,
        log_z1_minus=log_minus,
        ess_z1_plus=math.nan if plus is None else plus.ess,
        ess_z1_minus=math.nan if minus is None else minus.ess,
    )
    if any(part.num_invalid for part in (*parts, z2)):
        figures = figures._replace(status=Status.nan_density)
    if not with_mass or not np.isfinite(z2.log_z):
        return figures

    # Relative to the larger part, so that no scale of f overflows.
    log_scale = max(log_plus, log_minus)
    if log_scale - float(z2.log_z) < LOG_MIN:
        return below_the_smallest_number(log_plus, log_minus)
    sizes = [math.exp(float(part.log_z) - log_scale) for part in with_mass]
    relative = math.exp(log_plus - log_scale) - math.exp(log_minus - log_scale)
    # What each part adds to the variance, and the degrees of freedom of its error.
    pieces = [
        (size**2 * variance if math.isfinite(variance) else math.inf, float(part.degrees))
        for size, part in zip((relative, *sizes), (z2, *with_mass), strict=True)
        for variance in (float(part.relative_variance),)
    ]
    error = math.sqrt(sum(variance for variance, _ in pieces))
    # An untrusted part does not matter while the other parts' error dwarfs all of it; one without
    # an error does, and it dwarfs nothing.
    finite = [variance if math.isfinite(variance) else 0.0 for variance, _ in pieces]
    material = [
        part
        for number, (size, part) in enumerate(zip(sizes, with_mass, strict=True), 1)
        if size**2 > 0.25 * (sum(finite) - finite[number]) or math.isinf(pieces[number][0])
    ]
    statuses = [part.status for part in (z2, *material)]
    scale = float(np.exp(np.minimum(log_scale - float(z2.log_z), LOG_MAX)))
    return figures._replace(
        value=relative * scale,
        standard_error=error * scale,
        magnitude=sum(sizes) * scale,
        status=figures.status if figures.status is Status.nan_density else worst(statuses),
        is_log_scale=len(with_mass) == 1,
        degrees=_joint_degrees(pieces),
    )


def _joint_degrees(pieces: list[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of variances that have their own (Satterthwaite)."""
    total = sum(variance for variance, _ in pieces)
    spread = sum(variance**2 / degrees for variance, degrees in pieces)
    return total**2 / spread if 0 < spread < math.inf else math.inf


def below_the_smallest_number(log_z1_plus: float, log_z1_minus: float) -> Figures:
    """Figures of an expectation that floating point cannot hold: never 0 ± 0."""
    return Figures(
        value=0.0,
        standard_error=math.inf,
        status=Status.underflow,
        ess_z1=0.0,
        upper_bound=sys.float_info.min,
        log_z1_plus=log_z1_plus,
        log_z1_minus=log_z1_minus,
    )


_GRAVITY = (
    Status.ok,
    Status.low_ess,
    Status.not_converged,
    Status.heavy_tailed,
    Status.unresolved,
    Status.replicates_disagree,
    Status.underflow,
    Status.no_mass_found,
    Status.nan_density,
)


def gravity(status: Status) -> int:
    """How grave a status is; 0 is `ok`."""
    return _GRAVITY.index(status)


def worst(statuses: list[Status]) -> Status:
    """The gravest of several statuses."""
    return max(statuses, key=gravity)


INTERRUPTED = "interrupted: this was known by then"


def cut_off(run: Run) -> Run:
    """A run that was interrupted: its figures are those by then, and not to be trusted."""
    figures = tuple(
        item._replace(status=worst([item.status, Status.not_converged])) for item in run.figures
    )
    return run._replace(figures=figures, notes=(*run.notes, INTERRUPTED))


@dataclasses.dataclass(frozen=True, repr=False)
class SelfNormalised:
    """One set of weighted posterior samples for numerator and denominator: Σwf / Σw.

    The paper's "AnIS" baseline when the estimator is `AnIS`. It does not look at the target.

    Args:
        estimator: gives the weighted samples of the posterior.

    Examples:
        >>> method = ep.SelfNormalised(ep.AnIS(num_samples=1000, num_temperatures=20))
        >>> result = ep.estimate_expectation(program(2.0), method)
        >>> abs(result.value - 2.5) < 4 * result.standard_error
        True
    """

    estimator: Estimator

    def __post_init__(self) -> None:
        if not hasattr(self.estimator, "estimate"):
            raise TypeError(
                f"SelfNormalised: expected an estimator such as AnIS(); got {self.estimator!r}."
            )

    def __repr__(self) -> str:
        return f"SelfNormalised({self.estimator!r})"

    def check(self, density: Density) -> None:
        self.estimator.check(density)

    def run(self, rng_key: jax.Array, density: Density) -> Run:
        density = density.part("gamma2")
        evidence = jax.block_until_ready(remembered(self.estimator, rng_key, density))
        log_weights = np.asarray(evidence.log_weights, float)
        found = remember("outputs", lambda: _outputs(density, evidence.positions))
        outputs = np.asarray(found, float)
        return Run(
            figures=tuple(_weighted_figures(log_weights, f, evidence) for f in outputs.T),
            num_evaluations=evidence.num_evaluations + log_weights.size,
            num_gradients=evidence.num_gradients,
            ess_z2=evidence.ess,
            log_z2=float(evidence.log_z),
            evidence=(("gamma2", evidence),),
        )


@jax.jit
def _outputs(density: Density, positions: jax.Array) -> jax.Array:
    return jax.lax.map(density.outputs, positions, batch_size=min(10_000, positions.shape[0]))


def _weighted_figures(log_weights: np.ndarray, f: np.ndarray, evidence: Evidence) -> Figures:
    if not np.isfinite(evidence.log_z):
        return Figures(0.0, math.inf, evidence.status, 0.0)
    weights = np.exp(log_weights - float(evidence.log_z)) / log_weights.size
    weights = weights / weights.sum()
    f = np.where(weights > 0, f, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_wf = log_weights + np.log(np.abs(f))
    log_parts = [np.where(sign * f > 0, log_wf, -np.inf) for sign in (1, -1)]
    log_z1 = [log_mean(part) for part in log_parts]
    products = weights * (f / (np.abs(f).max() or 1.0))
    squares = (products**2).sum()
    figures = Figures(
        value=0.0,
        standard_error=math.inf,
        status=evidence.status if evidence.status is not Status.ok else Status.no_mass_found,
        ess_z1=float(products.sum() ** 2 / squares) if squares > 0 else 0.0,
        upper_bound=rule_of_three(evidence.ess),
        log_z1_plus=log_z1[0],
        log_z1_minus=log_z1[1],
        ess_z1_plus=effective_sample_size(log_parts[0]),
        ess_z1_minus=effective_sample_size(log_parts[1]),
    )
    if not np.isfinite(f).all():
        return figures._replace(status=Status.nan_density)
    if not f.any():
        return figures
    scale = np.abs(f).max()
    mean = float(weights @ (f / scale))
    error = math.sqrt(float(np.sum((weights * (f / scale - mean)) ** 2)))
    statuses = [evidence.status]
    effective = effective_sample_size(log_wf)
    statuses.append(Status.ok if effective >= MIN_ESS else Status.low_ess)
    if pareto_k(log_wf) > MAX_PARETO_K:
        statuses.append(Status.heavy_tailed)
    return figures._replace(
        value=mean * scale, standard_error=error * scale, status=worst(statuses)
    )


def joint_errors(first: Figures, second: Figures) -> float:
    """How far two independent estimates of one output are apart, in joint standard errors."""
    error = math.hypot(first.standard_error, second.standard_error)
    distance = abs(first.value - second.value)
    return distance / error if error > 0 else (0.0 if distance == 0 else math.inf)


def rule_of_three(num_effective: float) -> float:
    """Upper bound on a probability after no hit in so many independent draws."""
    return 1 - (1 - CONFIDENCE) ** (1 / max(num_effective, 1.0))
