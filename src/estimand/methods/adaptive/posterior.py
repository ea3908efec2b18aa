"""Draws of the posterior by chains, in coordinates that suit it, and averages over them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from estimand.density import MAGNITUDE, Density, Terms, has_varying_scales
from estimand.methods.adaptive.draws import Evaluated, Part
from estimand.methods.adaptive.plan import evaluate
from estimand.methods.protocol import Cost
from estimand.runtime import Runtime, run_task
from estimand.sampling import (
    Climbed,
    Drawn,
    Ensemble,
    Particles,
    Warmed,
    Way,
    autocorrelation_size,
    charts_of,
    climb,
    effective_sample_size,
    entropy_of,
    log_mean,
    named_seed,
    prior_positions,
    rank_r_hat,
    spread_of_margins,
    start_anywhere,
    to_posterior,
    warm_up,
)
from estimand.sampling import ensemble as ensembles
from estimand.trust import (
    SAME,
    EffectiveSizes,
    Finding,
    Goal,
    OutputEstimate,
    Status,
    check_goal,
    check_mixing,
    check_size,
    check_tail,
    no_mass,
    thresholds,
    unmet,
    without_value,
)

KINDS = (Climbed, Drawn, Ensemble, Particles, Warmed, Way, Terms)
# Prior draws that are led to the posterior, as multiples of what one call moves: with one a mode of
# half the mass and 0.7 times the width of another, in eight dimensions, was missed with `ok`.
NUM_PRIOR_PIECES = 6
# Rounds of moves of all chains, at first.
NUM_ROUNDS = 20
# Every second state of a chain is evaluated and fitted to.
THINNING = 2
# States that say how far comparisons spread.
NUM_SCALE_DRAWS = 1000
# Starts of chains without prior draws: uniform in unconstrained coordinates, as NumPyro's own.
START_RADIUS = 2.0
NUM_ROUGH_ROUNDS = 16


class Posterior(NamedTuple):
    """Chains in the posterior: their density and coordinates, states, and what these cost.

    `charts` are the coordinates that chains take in turns; `fitted` is the same density in
    those in which mixtures fit best, where each coordinate is standardised or the model's own: a
    scale that goes to 0 leaves a neck in all others, into which tails of a mixture do not reach.
    `states` have axes (moves, islands, chains); `evaluated` has them thinned, chain after chain.
    `margin_scales` says how far comparisons in f spread, None if there are none.
    """

    charts: tuple[Density, ...]
    fitted: Density
    ensemble: Ensemble
    states: np.ndarray
    evaluated: Evaluated
    margin_scales: np.ndarray | None
    warm_r_hat: float
    cost: Cost

    @property
    def density(self) -> Density:
        """In the coordinates of the states."""
        return self.charts[0]

    @property
    def gammas(self) -> tuple[Density, ...]:
        """The charts of γ alone."""
        return tuple(chart.without_outputs() for chart in self.charts)

    @property
    def step_sizes(self) -> tuple[float, ...]:
        return tuple(way.step_size for way in self.ensemble.ways)

    @property
    def num_chains(self) -> int:
        return ensembles.NUM_ISLANDS * ensembles.NUM_CHAINS

    @property
    def chain_numbers(self) -> np.ndarray:
        """For each evaluated state the number of its chain."""
        length = len(self.evaluated.positions) // self.num_chains
        return np.repeat(np.arange(self.num_chains), length)

    def to_fitted(self, points: np.ndarray, runtime: Runtime) -> np.ndarray:
        """Positions of chains in the coordinates of `fitted`."""
        if self.fitted is self.density:
            return points
        return run_task(runtime, ensembles.recoordinated, self.density, self.fitted, points)

    def draws_in(self, density: Density, runtime: Runtime) -> np.ndarray:
        """The thinned states in the coordinates of another density of the same program."""
        arguments = self.density, density, self.evaluated.positions
        return run_task(runtime, ensembles.recoordinated, *arguments)

    def starts(self) -> np.ndarray:
        """All thinned states with axes (islands, states, dimension)."""
        positions = self.evaluated.positions
        return positions.reshape(ensembles.NUM_ISLANDS, -1, positions.shape[-1])


def sample_posterior(density: Density, rng_key: jax.Array, runtime: Runtime) -> Posterior:
    """Chains led into the posterior, and a first run of draws of each."""
    seed = named_seed(entropy_of(rng_key), "posterior")
    dimension = density.dimension
    start = density.standardised()
    if has_varying_scales(density):
        start = density.blended(np.zeros(dimension))
    gamma = start.without_outputs()
    warmed: Warmed = run_task(runtime, find_posterior, gamma, (*seed, 0), kinds=KINDS)
    charts, fitted = charts_of(start, warmed.centredness), start
    if start.model.coordinates.is_blended:
        fitted = start.blended(np.round(warmed.centredness))
    empty = np.zeros((0, ensembles.NUM_ISLANDS, ensembles.NUM_CHAINS, dimension))
    nothing = Evaluated(np.zeros((0, dimension)), *(np.zeros(0) for _ in range(4)))
    cost = Cost(0, warmed.num_gradients)
    posterior = Posterior(
        charts=charts,
        fitted=fitted,
        ensemble=warmed.ensemble,
        states=empty,
        evaluated=nothing,
        margin_scales=None,
        warm_r_hat=warmed.r_hat,
        cost=cost,
    )
    posterior = more_draws(posterior, (*seed, 1), runtime, NUM_ROUNDS)
    if not density.has_comparisons:
        return posterior
    positions = posterior.evaluated.positions
    some = positions[:: max(1, len(positions) // NUM_SCALE_DRAWS)][:NUM_SCALE_DRAWS]
    scales = run_task(runtime, spread_of_margins, charts[0], some)
    return posterior._replace(margin_scales=scales)


def more_draws(
    posterior: Posterior, seed: tuple[int, ...], runtime: Runtime, num_rounds: int
) -> Posterior:
    """The same with further states of every chain."""
    density = posterior.density
    arguments = posterior.gammas, posterior.ensemble, num_rounds, seed
    drawn: Drawn = run_task(runtime, ensembles.draw, *arguments, kinds=KINDS)
    states = np.concatenate([posterior.states, drawn.positions])
    new = drawn.positions[::THINNING]
    rows = new.reshape(-1, new.shape[-1])
    columns = run_task(runtime, evaluate, density, rows)
    known = posterior.evaluated
    chains = posterior.num_chains

    def by_chain(old: np.ndarray, added: np.ndarray) -> np.ndarray:
        moves = added.reshape(len(new), chains, *added.shape[1:]).swapaxes(0, 1)
        if not len(old):
            # Without −1, which arrays without outputs leave open.
            return moves.reshape(added.shape)
        before = old.reshape(chains, -1, *old.shape[1:])
        return np.concatenate([before, moves], axis=1).reshape(-1, *added.shape[1:])

    evaluated = Evaluated(
        *(by_chain(old, added) for old, added in zip(known, [rows, *columns], strict=True))
    )
    cost = posterior.cost + Cost(len(rows), drawn.num_gradients)
    return posterior._replace(
        ensemble=drawn.ensemble, states=states, evaluated=evaluated, cost=cost
    )


# --- tasks ---


def find_posterior(density: Density, seed: tuple[int, ...]) -> Warmed:
    """Chains led into the posterior: by temperatures from the prior, if it can be drawn from."""
    climbed = None
    if not density.layout.improper_sites:
        climbed = from_prior(density, (*seed, 0), NUM_PRIOR_PIECES, is_pooled=True)
    spent = 0 if climbed is None else climbed.num_gradients
    if climbed is not None and np.isfinite(climbed.log_z).any():
        warmed = warm_up(density, climbed.ensemble, (*seed, 1))
    else:
        shape = (ensembles.NUM_ISLANDS, ensembles.NUM_CHAINS, density.dimension)
        rng = np.random.default_rng((*seed, 2))
        starts = rng.uniform(-START_RADIUS, START_RADIUS, shape)
        warmed = warm_up(density, start_anywhere(starts), (*seed, 1), NUM_ROUGH_ROUNDS)
    return warmed._replace(num_gradients=warmed.num_gradients + spent)


def from_prior(
    density: Density, seed: tuple[int, ...], num_pieces: int, is_pooled: bool
) -> Climbed:
    """Prior draws led to the posterior by temperatures."""
    count = num_pieces * ensembles.NUM_CHAINS * ensembles.NUM_MOVES
    positions = prior_positions(density, (*seed, 0), ensembles.NUM_ISLANDS * count)
    positions = np.nan_to_num(positions).reshape(ensembles.NUM_ISLANDS, count, -1)
    return climb(
        (density,),
        positions,
        to_posterior,
        (*seed, 1),
        num_pieces=num_pieces,
        is_pooled=is_pooled,
    )


# --- averages ---


def averages(posterior: Posterior, goal: Goal) -> tuple[OutputEstimate, ...]:
    """The mean of every output over the chains, with the error between chains."""
    evaluated, density = posterior.evaluated, posterior.density
    found = []
    for output in range(density.num_outputs):
        average = _average(
            evaluated.signs[:, output].reshape(posterior.num_chains, -1),
            evaluated.log_sizes[:, output].reshape(posterior.num_chains, -1),
            goal,
        )
        found.append(average.with_findings(_check_terms(posterior, output, average, goal)))
    return tuple(found)


def _check_terms(
    posterior: Posterior, output: int, average: OutputEstimate, goal: Goal
) -> list[Finding]:
    """What the draws of the chains say of the terms of an output, and of its tail."""
    if not math.isfinite(average.standard_error):
        return []
    density, evaluated = posterior.density, posterior.evaluated
    columns = evaluated.signs, evaluated.log_sizes
    count, allowed = len(evaluated.positions), goal.allowed(average)
    centred = Part(MAGNITUDE, output, average.value).log_sizes(*columns)
    centred = np.where(centred < np.inf, centred, -np.inf)
    findings = check_tail(centred, None)
    if effective_sample_size(centred) < thresholds.MIN_ESS:
        farthest = density.farthest(output, average.value)
        what = "f has practically the same value"
        findings += unmet(what, count, farthest, allowed, SAME).findings
    for number, look in enumerate(density.looks, density.first_look):
        if look.output != output:
            continue
        log_sizes = Part(MAGNITUDE, number).log_sizes(*columns)
        log_sizes = np.where(log_sizes < np.inf, log_sizes, -np.inf)
        name = f"the term in {look.text}"
        if not np.isfinite(log_sizes).any():
            findings += unmet(f"{name} is 0", count, density.farthest(number), allowed).findings
        elif thresholds.exp(log_mean(log_sizes)) > allowed:
            findings += check_size(effective_sample_size(log_sizes), None, thresholds.MIN_ESS)
    return findings


def _average(signs: np.ndarray, log_sizes: np.ndarray, goal: Goal) -> OutputEstimate:
    count = len(signs)
    ess = EffectiveSizes(z2=float(signs.size))
    is_there = signs != 0
    if not np.isfinite(log_sizes[is_there]).all() or np.isnan(signs).any():
        bad = int((~np.isfinite(log_sizes) & is_there).sum() + np.isnan(signs).sum())
        detail = f"f is NaN or infinite at {bad:,} of {signs.size:,} draws"
        return without_value(Finding(Status.nan_density, None, detail, "numbers"), ess=ess)
    if not is_there.any():
        finding = no_mass(f"f is 0 at all {signs.size:,} draws of the posterior")
        return without_value(finding, ess=ess, num_draws=signs.size)
    log_top = float(log_sizes[is_there].max())
    values = np.where(is_there, signs * np.exp(np.where(is_there, log_sizes - log_top, 0.0)), 0.0)
    scale = thresholds.exp(log_top)
    mean = float(values.mean())
    if (values == values.flat[0]).all():
        finding = Finding(Status.low_ess, None, "f is the same at all draws", "size")
        return OutputEstimate(scale * mean, math.inf, ess=ess, findings=(finding,))
    between = float(values.mean(axis=1).std(ddof=1)) / math.sqrt(count)
    spread = float(values.std(ddof=1))
    effective = float(np.nan_to_num(autocorrelation_size(values), nan=1.0))
    error = max(between, spread / math.sqrt(max(effective, 1.0)))
    magnitudes = np.abs(values)
    carrying = float(magnitudes.sum() ** 2 / (magnitudes**2).sum())
    estimate = OutputEstimate(
        value=scale * mean,
        standard_error=scale * error,
        degrees=count - 1.0,
        magnitude=scale * float(magnitudes.mean()),
        ess=ess._replace(z1=carrying),
    )
    findings: list[Any] = check_size(
        min((spread / error) ** 2, carrying), None, thresholds.ENOUGH_ESS
    )
    findings += check_mixing(rank_r_hat(values), None, thresholds.MAX_CHAIN_R_HAT)
    findings += _check_drift(values)
    return estimate.with_findings([*findings, *check_goal(estimate, goal)])


def _check_drift(values: np.ndarray) -> list[Finding]:
    """Whether the second half of the chains says something else than the first."""
    half = values.shape[1] // 2
    changes = values[:, half:].mean(axis=1) - values[:, :half].mean(axis=1)
    spread = float(changes.std(ddof=1)) / math.sqrt(changes.size)
    distance = abs(float(changes.mean())) / spread if spread > 0 else 0.0
    if distance <= thresholds.MAX_JOINT_ERRORS:
        return []
    detail = f"the halves of the chains differ by {distance:.1f} standard errors"
    return [Finding(Status.not_converged, None, detail, "drift")]
