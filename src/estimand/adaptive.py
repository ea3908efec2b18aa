"""Explore, fit, integrate: importance sampling from a mixture fitted to every part at once.

Scouts (independent runs of sequential Monte Carlo) find where γ, γf⁺ and γf⁻ have their mass; one
mixture is fitted to all of them; quasi-random draws from the frozen mixture then serve every
normalising constant and every output. The scouts only fit; fresh draws integrate: that keeps the
estimate unbiased and its error visible.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from estimand import mixture as mixtures
from estimand.density import Density, gradient_mode
from estimand.evidence import (
    MAX_PARETO_K,
    Evidence,
    Status,
    effective_sample_size,
    evidence_from_weights,
    log_mean,
    pareto_k,
)
from estimand.laplace import find_mode
from estimand.methods import LOG_MAX, Figures, Run, worst
from estimand.mixture import CHUNK, Mixture
from estimand.settings import Settings, require_count
from estimand.smc import SMC

# Effective draws that every part must have before an error is believed.
MIN_EFFECTIVE = 400.0
MAX_WEIGHT_SHARE = 0.002
PROBE = 4096
PILOT = 8192
MAX_REFITS = 8
MIN_REFIT = 20.0
MIN_LAPLACE_DIMENSION = 7
MAX_WIDE_SCOUTS = 20
# Effective prior draws, at the least, from which a part is fitted without a scout.
ENOUGH_FROM_PRIOR = 100.0
FIRST_ROUND = 8192
MAX_SOBOL_DIMENSION = 40
MIN_GROUP_SHARE = 0.05
PRIOR_SHARE = 0.08
# Components, the heaviest first, that serve as control variates.
MAX_CONTROLS = 48
# Share of a fresh exploration's particles that may weigh more than any draw. On targets that the
# mixture fits it is below 0.001, on a funnel or a missed mode above 0.02.
MAX_EXCEEDANCE = 0.01
# Where the density is NaN the prior must have less mass than this.
MAX_NAN_MASS = 1e-9
# Share of the mass of a part that may lie where numbers end.
MAX_EDGE_MASS = 1e-3
# Where the parts cancel, the error is relative to this share of E|f|.
CANCELLATION_FLOOR = 0.01


class Part(NamedTuple):
    """γ2 (sign 0), or γ1⁺ / γ1⁻ of one output."""

    sign: int
    output: int

    @property
    def name(self) -> str:
        return {0: "gamma2", 1: "gamma1_plus", -1: "gamma1_minus"}[self.sign]


GAMMA2 = Part(0, 0)


# Positions, log prior, log likelihood and outputs.
_Found = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Draws(NamedTuple):
    """Evaluated positions, each serving every part and every output.

    `replicate` numbers the independent quasi-random replicate that a draw belongs to. `controls`
    have mean 0 under the proposal: the components' shares in it less their weights.
    """

    positions: np.ndarray
    log_prior: np.ndarray
    log_likelihood: np.ndarray
    outputs: np.ndarray
    log_proposal: np.ndarray
    replicate: np.ndarray
    controls: np.ndarray

    @staticmethod
    def join(draws: list[Draws]) -> Draws:
        return Draws(*(np.concatenate(pieces) for pieces in zip(*draws, strict=True)))

    def log_weights(self, part: Part) -> np.ndarray:
        """log of a part's density over the proposal's; −inf where it is no number."""
        with np.errstate(invalid="ignore"):
            value = self.log_likelihood + self.log_prior - self.log_proposal
            if part.sign:
                f = part.sign * self.outputs[:, part.output]
                value = value + np.where(f > 0, np.log(np.where(f > 0, f, 1.0)), -np.inf)
        return np.where(value < np.inf, value, -np.inf)

    def nan_mass(self) -> float:
        """Prior mass of the places at which the density or an output is no number."""
        is_bad = ~(self.log_likelihood < np.inf)
        is_bad |= (self.log_likelihood > -np.inf) & ~np.isfinite(self.outputs).all(axis=1)
        ratio = self.log_prior - self.log_proposal
        # A draw whose prior density is no number either is far outside.
        return math.exp(log_mean(np.where(is_bad & np.isfinite(ratio), ratio, -np.inf)))


class Proposal(NamedTuple):
    """The mixture that is drawn from: one group of components per part, and one for the prior."""

    groups: dict[Part, Mixture]
    shares: dict[Part, float]
    prior: Mixture

    @property
    def mixture(self) -> Mixture:
        scales = {part: (1 - PRIOR_SHARE) * self.shares[part] for part in self.groups}
        groups = [group.scaled(scales[part]) for part, group in self.groups.items()]
        return Mixture.join([*groups, self.prior.scaled(PRIOR_SHARE)])

    def evaluated(self, found: _Found, replicate: int) -> Draws:
        """Draws with their density under this proposal and their controls."""
        mixture = self.mixture
        log_proposal, shares = mixtures.log_density_and_shares(mixture, found[0])
        largest = np.argsort(mixture.weights)[-MAX_CONTROLS:]
        controls = (shares - mixture.weights)[:, largest]
        return Draws(*found, log_proposal, np.full(len(found[0]), replicate), controls)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AdaptiveIS(Settings):
    """Importance sampling from a fitted mixture; a method for all parts at once, and an estimator.

    ``estimate_expectation(expectation, AdaptiveIS())`` fits one mixture to all parts and lets
    every draw serve all of them. ``TABI(AdaptiveIS())`` treats each part on its own. It works on
    the host between compiled pieces and cannot itself be jitted.

    Args:
        relative_error: standard error to reach, relative to the value (to Z as an estimator).
        max_evaluations: evaluations that may be spent, a gradient counting as 3.
        num_replicates: independent quasi-random replicates, from which the error is estimated.
        standardise: explore and fit in coordinates in which location-scale priors are standard
            ones; False keeps the model's own.
        scout: the sampler that explores; its islands are the independent scouts. By default five
            of 2,000 particles, 1,000 above 20 dimensions.
    """

    relative_error: float = 0.01
    max_evaluations: int = 1_000_000
    num_replicates: int = 16
    standardise: bool = True
    scout: SMC | None = None

    def __post_init__(self) -> None:
        require_count("AdaptiveIS", "max_evaluations", self.max_evaluations)
        require_count("AdaptiveIS", "num_replicates", self.num_replicates)
        if self.num_replicates < 4:
            raise ValueError("AdaptiveIS: num_replicates must be at least 4 to give an error.")
        if not self.relative_error > 0:
            raise ValueError(
                f"AdaptiveIS: relative_error must be positive; it is {self.relative_error}."
            )

    def check(self, density: Density) -> None:
        density.require_continuous("AdaptiveIS", "continuous sites")
        self.scout_for(density).check(density)

    def scout_for(self, density: Density) -> SMC:
        """The scout, or the default one for the program."""
        if self.scout is not None:
            return self.scout
        size = 2000 if density.dimension <= MAX_WIDE_SCOUTS else 1000
        return SMC(num_particles=size, num_steps=20, num_islands=5)

    def run(self, rng_key: jax.Array, density: Density) -> Run:
        if self.standardise:
            density = density.standardised()
        outputs = range(density.num_outputs)
        parts = [GAMMA2, *(Part(sign, output) for output in outputs for sign in (1, -1))]
        work = _Work(self, rng_key, density, parts)
        draws = work.estimate()
        return Run(
            figures=tuple(_judged(work, draws, output) for output in outputs),
            num_evaluations=work.num_evaluations,
            num_gradients=work.num_gradients,
            ess_z2=0.0 if draws is None else _ess(draws, GAMMA2),
            log_z2=-math.inf if draws is None else log_mean(draws.log_weights(GAMMA2)),
            evidence=tuple((part.name, work.evidence(draws, part)) for part in parts),
        )

    def estimate(self, rng_key: jax.Array, density: Density) -> Evidence:
        self.check(density)
        part = Part(int(density.sign), int(density.output))
        work = _Work(self, rng_key, density, [part])
        evidence: Any = work.evidence(work.estimate(), part)
        if part in work.missed:
            evidence = evidence._replace(relative_variance=jnp.asarray(jnp.inf))
        return evidence._replace(
            evaluations=np.asarray([work.num_evaluations]),
            gradients=np.asarray([work.num_gradients]),
            invalid=np.asarray([int(work.has_nan)]),
        )


class _Work:
    """One estimation under way: what has been fitted and spent so far."""

    def __init__(
        self, settings: AdaptiveIS, rng_key: jax.Array, density: Density, parts: list[Part]
    ):
        self.settings, self.density, self.parts = settings, density, parts
        # A smaller budget shrinks every stage, down to sizes below which no error can be had.
        scale = min(1.0, max(0.05, settings.max_evaluations / 1_000_000))
        pilot = min(max(PILOT, 20 * _num_moments(density.dimension)), 5 * PILOT)
        self.pilot_size, self.round_size = int(pilot * scale), int(FIRST_ROUND * scale)
        scout = settings.scout_for(density)
        chains = max(8, int(scout.num_particles * scale) // scout.num_steps)
        self.scout = dataclasses.replace(
            scout, num_particles=min(chains * scout.num_steps, scout.num_particles)
        )
        host_key, self.key = jax.random.split(rng_key)
        self.rng = np.random.default_rng(np.asarray(jax.random.key_data(host_key)).tolist())
        self.num_evaluations = 0
        self.num_gradients = 0
        self.has_nan = False
        self.groups: dict[Part, Mixture] = {}
        self.scouted: list[Part] = []
        self.missed: set[Part] = set()

    def estimate(self) -> Draws | None:
        """The draws that the estimate is made of; None if no part was found to have mass."""
        self._explore()
        if not any(part.sign for part in self.groups) and self.parts != [GAMMA2]:
            return None
        proposal = self._refine()
        draws = self._integrate(proposal)
        self._validate(proposal, draws)
        self.has_nan |= draws.nan_mass() > MAX_NAN_MASS
        return draws

    @property
    def spent(self) -> int:
        return self.num_evaluations + 3 * self.num_gradients

    def _next_key(self) -> jax.Array:
        self.key, key = jax.random.split(self.key)
        return key

    def _evaluate(self, positions: np.ndarray) -> _Found:
        dtype = jnp.result_type(float)
        count = len(positions)
        self.num_evaluations += count
        padded = np.concatenate([positions, np.repeat(positions[:1], -count % CHUNK, axis=0)])
        pieces = [
            _evaluate(self.density, jnp.asarray(padded[start : start + CHUNK], dtype))
            for start in range(0, len(padded), CHUNK)
        ]
        found = [
            np.concatenate([np.asarray(x, float) for x in column])[:count]
            for column in zip(*pieces, strict=True)
        ]
        return cast(_Found, (positions, *found))

    # --- explore ---

    def _explore(self) -> None:
        keys = jax.random.split(self._next_key(), PROBE)
        drawn = _draw_prior(self.density, keys)
        found = cast(_Found, tuple(np.asarray(x, float) for x in drawn))
        self.num_evaluations += PROBE
        probe = Draws(
            *found,
            log_proposal=found[1],
            replicate=np.zeros(PROBE, int),
            controls=np.zeros((PROBE, 0)),
        )
        self.has_nan |= probe.nan_mass() > 0
        self.prior = mixtures.fit(probe.positions, np.zeros(PROBE), np.arange(PROBE), self.rng)
        enough = max(ENOUGH_FROM_PRIOR, 20 * _num_moments(self.density.dimension))
        for part in self.parts:
            log_weights = probe.log_weights(part)
            if not np.isfinite(log_weights).any():
                continue
            points, chains = probe.positions, np.arange(PROBE)
            if effective_sample_size(log_weights) < enough:
                points, log_weights, chains = self._scout(part)
                self.scouted.append(part)
            if np.isfinite(log_weights).any():
                self.groups[part] = self._fit(part, points, log_weights, chains)

    def _fit(
        self, part: Part, points: np.ndarray, log_weights: np.ndarray, chains: np.ndarray
    ) -> Mixture:
        """A mixture fitted to points, or the curvature at the mode where that fits better."""
        density, rival = self.density.part(part.name, part.output), None
        if density.dimension >= MIN_LAPLACE_DIMENSION and gradient_mode(density) == "reverse":
            start = np.average(points, axis=0, weights=_relative(log_weights))
            mode = find_mode(density, jnp.asarray(start, jnp.result_type(float)))
            # Every step has the cost of a gradient for each column of the second derivatives.
            self.num_gradients += (int(mode.num_steps) + 1) * (1 + 2 * density.dimension)
            if mode.is_found:
                rival = mixtures.gaussian(*(np.asarray(x, float) for x in mode[:2]))
        return mixtures.fit(points, log_weights, chains, self.rng, rival)

    def _scout(self, part: Part) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        evidence = self.scout.estimate(self._next_key(), self.density.part(part.name, part.output))
        self.num_evaluations += evidence.num_evaluations
        self.num_gradients += evidence.num_gradients
        self.has_nan |= evidence.num_invalid > 0
        chains = np.arange(evidence.log_weights.size) // self.scout.num_steps
        return (
            np.asarray(evidence.positions, float),
            np.asarray(evidence.log_weights, float),
            chains,
        )

    # --- fit ---

    def _refine(self) -> Proposal:
        """Refits from pilot draws while that helps, then divides the draws among the parts."""
        proposal = Proposal(
            dict(self.groups), dict.fromkeys(self.groups, 1 / len(self.groups)), self.prior
        )
        pilots, best, best_size = [self._draw(proposal, self.pilot_size, 0)], 0, 0.0
        proposals = [proposal]
        for number in range(MAX_REFITS):
            sizes = {part: _ess(pilots[-1], part) for part in proposal.groups}
            size = min(sizes.values())
            is_better = size > 1.05 * best_size
            if size > best_size:
                best, best_size = number, size
            if not is_better:
                break
            groups = dict(proposal.groups)
            for part, group in proposal.groups.items():
                if sizes[part] > MIN_REFIT:
                    points, log_weights = _pooled(pilots, part)
                    groups[part] = mixtures.refit(group, points, log_weights, self.rng)
            proposal = proposal._replace(groups=groups)
            proposals.append(proposal)
            pilots.append(self._draw(proposal, self.pilot_size, 0))
        proposal = proposals[best]
        return proposal._replace(shares=self._allocate(proposal, pilots[best]))

    def _draw(self, proposal: Proposal, count: int, replicate: int) -> Draws:
        shape = (count, self.density.dimension + 2)
        if self.density.dimension <= MAX_SOBOL_DIMENSION:
            uniforms = mixtures.sobol_uniforms(self.rng, *shape)
        else:
            uniforms = self.rng.random(shape)
        return proposal.evaluated(self._evaluate(proposal.mixture.draw(uniforms)), replicate)

    def _allocate(self, proposal: Proposal, pilot: Draws) -> dict[Part, float]:
        """Shares of the groups that minimise the variance of the pilot's own estimate.

        With h the squared influence of a draw the variance is Σ h/q, convex in the shares; the
        update below is its fixed point.
        """
        influence = sum(x**2 for x in self._influences(pilot))
        log_groups = [
            mixtures.log_density(group, pilot.positions) for group in proposal.groups.values()
        ]
        ratios = np.exp(np.minimum(np.stack(log_groups) - pilot.log_proposal, 500.0))
        log_prior = mixtures.log_density(proposal.prior, pilot.positions)
        prior = PRIOR_SHARE * np.exp(log_prior - pilot.log_proposal)
        shares = np.fromiter(proposal.shares.values(), float)
        for _ in range(30):
            mix = (1 - PRIOR_SHARE) * shares @ ratios + prior
            gains = (ratios * (influence / mix**2)).sum(axis=1)
            shares = shares * np.sqrt(np.maximum(gains, 1e-300))
            shares = shares / shares.sum()
        shares = np.maximum(shares, min(MIN_GROUP_SHARE, 0.5 / shares.size))
        return dict(zip(proposal.groups, (shares / shares.sum()).tolist(), strict=True))

    def _influences(self, draws: Draws) -> list[np.ndarray]:
        """For every output the influence of each draw on the estimate, relative to its scale."""
        if GAMMA2 not in self.parts or len(self.parts) == 1:
            return [_relative(draws.log_weights(self.parts[0])) - 1.0]
        weights = _relative(draws.log_weights(GAMMA2))
        result = []
        for output in range(self.density.num_outputs):
            f = np.where(weights > 0, draws.outputs[:, output], 0.0)
            f = np.where(np.isfinite(f), f, 0.0)
            mean, scale = np.mean(weights * f), np.mean(weights * np.abs(f))
            scale = max(abs(mean), CANCELLATION_FLOOR * scale)
            result.append(weights * (f - mean) / (scale or 1.0))
        return result

    # --- integrate ---

    def _integrate(self, proposal: Proposal) -> Draws:
        """Rounds of replicates, each twice the last, until the error or the budget is reached."""
        replicates, count = range(self.settings.num_replicates), self.round_size
        draws = Draws.join([self._draw(proposal, count, r) for r in replicates])
        while not self._is_precise(draws):
            if self.spent + len(replicates) * count > self.settings.max_evaluations:
                break
            more = [self._draw(proposal, count, r) for r in replicates]
            draws, count = Draws.join([draws, *more]), 2 * count
        return draws

    def _is_precise(self, draws: Draws) -> bool:
        if any(_ess(draws, part) < MIN_EFFECTIVE for part in self.groups):
            return False
        goal = self.settings.relative_error
        if len(self.parts) == 1:
            return math.sqrt(_relative_variance(draws, self.parts[0])) <= goal
        figures = [_figures(draws, output) for output in range(self.density.num_outputs)]
        return all(is_reached(item, goal) for item in figures)

    def _validate(self, proposal: Proposal, draws: Draws) -> None:
        """Explores again, and asks whether the new scouts found what the proposal misses.

        Weights, effective sample sizes and standard errors cannot see a mode that no draw came
        near; a fresh exploration can.
        """
        for part in self.scouted:
            positions, log_weights, _ = self._scout(part)
            if not np.isfinite(log_weights).any():
                continue
            fresh = proposal.evaluated(self._evaluate(positions), 0)
            is_beyond = fresh.log_weights(part) > draws.log_weights(part).max()
            weights = np.exp(log_weights - log_weights.max())
            if np.average(is_beyond, weights=weights) > MAX_EXCEEDANCE:
                self.missed.add(part)

    def evidence(self, draws: Draws | None, part: Part) -> Evidence:
        """The draws as evidence of one part, with the error between replicates."""
        if draws is None:
            log_weights, positions = np.full(2, -np.inf), np.zeros((2, self.density.dimension))
        else:
            log_weights, positions = draws.log_weights(part), draws.positions
        zeros = jnp.zeros(log_weights.size, jnp.int32)
        evidence = evidence_from_weights(
            jnp.asarray(log_weights), jnp.asarray(positions), zeros, zeros, zeros
        )
        if draws is None:
            return evidence
        return evidence._replace(relative_variance=jnp.asarray(_relative_variance(draws, part)))


def _num_moments(dimension: int) -> int:
    """Numbers in a mean and a covariance."""
    return dimension * (dimension + 3) // 2


# --- figures from draws ---


def _ess(draws: Draws, part: Part) -> float:
    return effective_sample_size(draws.log_weights(part))


def _pooled(pilots: list[Draws], part: Part) -> tuple[np.ndarray, np.ndarray]:
    """The points of all pilots with weights of one part, each pilot counting by its ESS."""
    log_weights = [pilot.log_weights(part) for pilot in pilots]
    sizes = [effective_sample_size(weights) for weights in log_weights]
    scaled = [
        weights - log_mean(weights) + math.log(size)
        for weights, size in zip(log_weights, sizes, strict=True)
        if size > 0
    ]
    points = [pilot.positions for pilot, size in zip(pilots, sizes, strict=True) if size > 0]
    return np.concatenate(points), np.concatenate(scaled)


def _relative(log_weights: np.ndarray) -> np.ndarray:
    """Weights divided by their mean."""
    mean = log_mean(log_weights)
    return np.exp(log_weights - mean) if mean > -np.inf else np.zeros(log_weights.size)


class Means(NamedTuple):
    """Means over replicates, with what the controls explain taken out of them."""

    replicate: np.ndarray
    counts: np.ndarray
    controls: np.ndarray
    deviations: np.ndarray
    inverse: np.ndarray

    @classmethod
    def of(cls, draws: Draws) -> Means:
        counts = np.bincount(draws.replicate)
        means = [
            np.bincount(draws.replicate, weights=column) / counts for column in draws.controls.T
        ]
        controls = np.stack(means, axis=1) if means else np.zeros((counts.size, 0))
        deviations = draws.controls - draws.controls.mean(axis=0, dtype=float)
        gram = deviations.T @ deviations
        return cls(draws.replicate, counts, controls, deviations, np.linalg.pinv(gram, 1e-8, True))

    def __call__(self, values: np.ndarray) -> np.ndarray:
        plain = np.bincount(self.replicate, weights=values) / self.counts
        return plain - self.controls @ (self.inverse @ (self.deviations.T @ values))


def _relative_variance(draws: Draws, part: Part) -> float:
    log_weights = draws.log_weights(part)
    means = Means.of(draws)(_relative(log_weights))
    if not means.any():
        return math.inf
    return float(means.var(ddof=1) / means.size) + _rounding(draws, log_weights) ** 2


def _rounding(draws: Draws, log_weights: np.ndarray) -> float:
    """Relative error of a mean weight by rounding: the resolution of the logarithms in it."""
    sizes = abs(draws.log_prior) + abs(draws.log_likelihood) + abs(draws.log_proposal)
    weights = np.where(np.isfinite(sizes), _relative(log_weights), 0.0)
    resolution = float(jnp.finfo(jnp.result_type(float)).eps)
    return resolution * float(np.mean(weights * np.where(weights > 0, sizes, 0.0)))


def _figures(draws: Draws, output: int) -> Figures:
    """Ratio of pooled means for one output, with the error between replicates."""
    parts = [GAMMA2, Part(1, output), Part(-1, output)]
    log_weights = [draws.log_weights(part) for part in parts]
    log_z = [log_mean(weights) for weights in log_weights]
    if log_z[0] == -math.inf or max(log_z[1:]) == -math.inf:
        return Figures(0.0, math.inf, Status.no_mass_found, 0.0)
    # Relative to the larger part, so that no scale of f under- or overflows.
    log_scale = max(log_z[1:])
    means = Means.of(draws)
    z2 = means(np.exp(log_weights[0] - log_z[0]))
    plus, minus = (means(np.exp(weights - log_scale)) for weights in log_weights[1:])
    relative = (plus.mean() - minus.mean()) / z2.mean()
    residuals = plus - minus - relative * z2
    error = float(residuals.std(ddof=1) / math.sqrt(residuals.size))
    rounding = _rounding(draws, log_weights[0]) * (plus.mean() + minus.mean())
    scale = math.exp(min(log_scale - log_z[0], LOG_MAX))
    sizes = [effective_sample_size(weights) for weights in log_weights]
    present = [size for size, part in zip(sizes[1:], log_z[1:], strict=True) if part > -math.inf]
    return Figures(
        value=float(relative * scale),
        standard_error=float(math.hypot(error, rounding) * scale),
        status=Status.ok,
        ess_z1=min(present),
        is_log_scale=len(present) == 1,
        degrees=float(residuals.size - 1),
        magnitude=float((plus.mean() + minus.mean()) * scale),
        log_z1_plus=log_z[1],
        log_z1_minus=log_z[2],
        ess_z1_plus=sizes[1],
        ess_z1_minus=sizes[2],
    )


def is_reached(figures: Figures, goal: float) -> bool:
    """Whether the error is small relative to the value, or to E|f| where the parts cancel."""
    if not math.isfinite(figures.standard_error):
        return False
    scale = max(abs(figures.value), CANCELLATION_FLOOR * figures.magnitude)
    return figures.standard_error <= goal * scale


def _judged(work: _Work, draws: Draws | None, output: int) -> Figures:
    """The figures of an output with the status that all of its parts deserve."""
    if draws is None:
        status = Status.nan_density if work.has_nan else Status.no_mass_found
        return Figures(0.0, math.inf, status, 0.0)
    figures = _figures(draws, output)
    if work.has_nan:
        return figures._replace(status=Status.nan_density)
    if figures.status is not Status.ok:
        return figures
    log_z2 = log_mean(draws.log_weights(GAMMA2))
    statuses = []
    for part in (GAMMA2, Part(1, output), Part(-1, output)):
        log_weights = draws.log_weights(part)
        share = math.exp(min(log_mean(log_weights) - log_z2, 700.0))
        # A part does not matter while the error dwarfs all of it.
        if part == GAMMA2 or share > 0.5 * figures.standard_error:
            statuses.append(_part_status(log_weights, part in work.missed))
            if _mass_at_the_edge(work.density, draws.positions, log_weights) > MAX_EDGE_MASS:
                statuses.append(Status.heavy_tailed)
    if not is_reached(figures, 3 * work.settings.relative_error):
        statuses.append(Status.not_converged)
    return figures._replace(status=worst(statuses))


def _mass_at_the_edge(density: Density, positions: np.ndarray, log_weights: np.ndarray) -> float:
    """Share of the mass where a site's value is about to overflow or underflow.

    A target whose integral diverges looks finite in floating point: it ends where the numbers do.
    """
    limit = 0.8 * math.log(jnp.finfo(jnp.result_type(float)).max)
    is_far = (np.abs(positions[:, density.layout.is_transformed]) > limit).any(axis=1)
    return float(np.average(is_far, weights=_relative(log_weights)))


def _part_status(log_weights: np.ndarray, is_missed: bool) -> Status:
    if is_missed:
        return Status.replicates_disagree
    # A large tail index is harmless while no single draw weighs much.
    largest = math.exp(log_weights.max() - log_mean(log_weights)) / log_weights.size
    if largest > MAX_WEIGHT_SHARE and pareto_k(log_weights) > MAX_PARETO_K:
        return Status.heavy_tailed
    return Status.ok if effective_sample_size(log_weights) >= MIN_EFFECTIVE else Status.low_ess


# --- compiled pieces ---


@jax.jit
def _draw_prior(density: Density, rng_keys: jax.Array) -> tuple:
    def one(key: jax.Array) -> tuple:
        position, terms, outputs = density.draw_with_outputs(key)
        return position, terms.log_prior, terms.log_likelihood, outputs

    return jax.vmap(one)(rng_keys)


@jax.jit
def _evaluate(density: Density, positions: jax.Array) -> tuple:
    def one(position: jax.Array) -> tuple:
        terms, outputs = density.evaluate(position)
        return terms.log_prior, terms.log_likelihood, outputs

    return jax.vmap(one)(positions)
