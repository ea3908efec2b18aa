"""Derivatives of an expectation by the arrays of its density, from the draws of an estimate.

With E = (Z1⁺ − Z1⁻)/Z2 and Z = ∫ density, d log Z / dθ is the mean of ∂ log density / ∂θ, the
score, under that density: means over draws that the estimate has already. Where a comparison moves
with θ, the score of γf misses what crosses its boundary: there ∂f/∂θ is that of f with a softened
comparison, extrapolated from two widths to none.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density, margins
from estimand.record import quantile
from estimand.runtime import compiled_per_model
from estimand.sampling import CHUNK, in_chunks, vmapped
from estimand.trust import (
    Evidence,
    Finding,
    OutputEstimate,
    Status,
    check_size,
    jackknife,
    most_severe,
    replicates_of,
    thresholds,
)

# How wide the narrower of two softened comparisons is, relative to the spread of its margin under
# γ|f|; the other one is twice as wide.
WIDTH = 0.1
# Share of what the extrapolation to no width changes that counts as an error.
BIAS_SHARE = 0.1
# Numbers of scores that are in memory at a time.
MAX_NUMBERS = 4_000_000
# Draws at which it is seen whether a comparison moves with an array.
NUM_SEEN = 64
_HIDDEN = Finding(
    Status.not_converged,
    None,
    "the return value may jump as this moves, in a loop, a branch or a rounding that shows no "
    "comparison, and the derivative misses that: compare outside of it, as with ep.event(margin)",
    "jumps",
)
_INSIDE = Finding(
    Status.not_converged,
    None,
    "a comparison in the return value moves with this, and the method has no draws on the other "
    "side of it: estimate by Auto or AdaptiveIS",
    "jumps",
)
_SIGNS = {"normaliser": 0, "plus": 1, "minus": -1}


@dataclasses.dataclass(frozen=True, eq=False)
class Derivative:
    """A derivative of an expectation, by every element of an array.

    `at` is what the array is; `interval` are the ends of 95 % intervals. `findings` has an entry
    for every element: what speaks against its derivative. An element for which there are too few
    draws, or whose comparison is hidden, has the value NaN.

    Examples:
        >>> derivative = result.sensitivity()["y"]
        >>> low, high = derivative.interval
        >>> bool(low < 2.25 < high)
        True
    """

    name: str
    at: np.ndarray
    value: np.ndarray
    standard_error: np.ndarray
    degrees: float
    findings: tuple[tuple[Finding, ...], ...]

    @property
    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        reach = quantile(0.975, self.degrees) * self.standard_error
        return self.value - reach, self.value + reach

    @property
    def statuses(self) -> tuple[Status, ...]:
        """The status of each element."""
        return tuple(most_severe(found) for found in self.findings)

    @property
    def status(self) -> Status:
        """The most severe status of any element."""
        return most_severe(finding for found in self.findings for finding in found)


class _Part(NamedTuple):
    """The draws of one part of an output. The weights of γ are relative to Z2, those of γf± to the
    larger of Z1⁺ and Z1⁻."""

    sign: int
    positions: np.ndarray
    log_weights: np.ndarray
    replicate: np.ndarray
    least: float
    log_scale: float
    relative_variance: float

    @property
    def weights(self) -> np.ndarray:
        return np.exp(self.log_weights)


def derivatives(
    density: Density, output: OutputEstimate, number: int, wanted: Sequence[tuple[str, int]]
) -> list[Derivative]:
    """Derivatives of E[f] of one output by some of the density's arrays.

    Args:
        density: evaluates as that of the estimate, in plain coordinates.
        output: the estimate, with all of its draws.
        number: of the output.
        wanted: names and places of arrays of floating-point numbers.

    Raises:
        ValueError: if the estimate has no independent draws.
    """
    parts, log_scale = _parts(output)
    density = density.part("gamma2", number)
    asked = _Asked.of(density, number, tuple(place for _, place in wanted))
    is_moving = _is_moving(asked, parts)
    if is_moving.any() and _are_shared(parts):
        asked = asked.softened(parts)
    sums = _summed(asked, parts, is_moving)
    found = jackknife(sums.formula, *sums.groups)
    value, narrow = found.value
    bias = BIAS_SHARE * np.abs(value - narrow)
    error = np.sqrt(found.standard_error[0] ** 2 + bias**2 + sums.excess(parts, value))
    against = _findings(output, parts, sums, error)
    scale, results, start = thresholds.exp(log_scale), [], 0
    for name, place in wanted:
        at = np.asarray(density.arrays[place], float)
        own = slice(start, start + at.size)
        start += at.size
        slope, spread = (scale * array[own].reshape(at.shape) for array in (value, error))
        findings = against[own]
        is_weak = np.asarray([_is_weak(output, each) for each in findings]).reshape(at.shape)
        slope, spread = np.where(is_weak, np.nan, slope), np.where(is_weak, np.inf, spread)
        missed = _missed(asked, place, is_moving[own])
        if missed is not None:
            slope, spread = np.full(at.shape, np.nan), np.full(at.shape, np.inf)
            findings = [(*each, missed) for each in findings]
        results.append(Derivative(name, at, slope, spread, found.degrees, tuple(findings)))
    return results


def _is_weak(output: OutputEstimate, findings: tuple[Finding, ...]) -> bool:
    """Whether too few draws stand behind a derivative, where the estimate itself has enough."""
    return any(item.check == "size" and item not in output.findings for item in findings)


def _missed(asked: _Asked, place: int, is_moving: np.ndarray) -> Finding | None:
    """Why the derivative by an array cannot be known, if there is a reason."""
    if asked.density.may_jump(place):
        return _HIDDEN
    return _INSIDE if is_moving.any() and asked.density.scales is None else None


def _parts(output: OutputEstimate) -> tuple[list[_Part], float]:
    """The parts with mass, γ first, and the logarithm of max(Z1⁺, Z1⁻)/Z2."""
    log_top = max(_finite(output.parts.log_z(field)) for field in ("plus", "minus"))
    log_z2 = output.parts.log_z("normaliser")
    found = []
    for field, sign in _SIGNS.items():
        evidence = getattr(output.parts, field)
        if not isinstance(evidence, Evidence) or not math.isfinite(evidence.log_z):
            continue
        replicate = replicates_of(evidence)
        if replicate is None:
            raise ValueError(f"the draws of {field} have no independent replicates")
        log_weights = np.asarray(evidence.log_weights, float)
        log_weights = log_weights - (log_top if sign else log_z2)
        least = thresholds.MIN_ESS if evidence.replicate is None else thresholds.ENOUGH_ESS
        found.append(
            _Part(
                sign,
                np.asarray(evidence.positions),
                log_weights,
                replicate,
                least,
                log_top - log_z2,
                float(evidence.relative_variance),
            )
        )
    if len(found) < 2 or found[0].sign:
        raise ValueError("no draws of the estimate are there")
    return found, log_top - log_z2


def _are_shared(parts: list[_Part]) -> bool:
    """Whether all parts have the same draws."""
    return all(part.positions is parts[0].positions for part in parts)


def _all_weights(parts: list[_Part]) -> np.ndarray:
    return np.sum([part.weights for part in parts], axis=0)


def _finite(number: float) -> float:
    return number if math.isfinite(number) else -math.inf


class _Asked(NamedTuple):
    """What is differentiated, and by which arrays."""

    density: Density
    number: int
    places: tuple[int, ...]
    is_forward: bool

    @classmethod
    def of(cls, density: Density, number: int, places: tuple[int, ...]) -> _Asked:
        position = jax.ShapeDtypeStruct((density.dimension,), jnp.result_type(float))
        asked = cls(density, number, places, False)
        try:
            jax.eval_shape(functools.partial(_score, asked), position)
        except (TypeError, ValueError):
            # A while loop has no reverse mode.
            return asked._replace(is_forward=True)
        return asked

    @property
    def size(self) -> int:
        """How many numbers the derivatives are by."""
        return sum(int(np.size(self.density.arrays[place])) for place in self.places)

    def softened(self, parts: list[_Part]) -> _Asked:
        """With two soft versions of every output, by how far the margins spread under γ|f|."""
        weights = _all_weights(parts[1:])
        is_there = np.flatnonzero(weights > 0)
        seen = in_chunks(functools.partial(margins, self.density), parts[0].positions[is_there])
        share = weights[is_there] / weights[is_there].sum()
        seen = np.where(np.isfinite(seen), seen, 0.0)
        spread = np.sqrt(np.maximum(share @ seen**2 - (share @ seen) ** 2, 0.0))
        return self._replace(density=self.density.softened(spread, (WIDTH, 2 * WIDTH)))


class _Score(NamedTuple):
    """Signs and logarithms of γ, f, and softened f where asked, and slopes of the logarithms."""

    sign: jax.Array
    log: jax.Array
    slope: jax.Array


def _score(asked: _Asked, position: jax.Array) -> _Score:
    density, number = asked.density, asked.number

    def logs(chosen: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        arrays = list(density.arrays)
        for place, array in zip(asked.places, chosen, strict=True):
            arrays[place] = array
        here = dataclasses.replace(density, arrays=tuple(arrays))
        terms, outputs = here.evaluate(position)
        signs, sizes = [jnp.ones(()), outputs.sign[number]], [outputs.log_abs[number]]
        if density.scales is not None:
            soft = here.softened_outputs(position)
            signs += list(soft.sign[:, number])
            sizes += list(soft.log_abs[:, number])
        log = jnp.stack([terms.log_prior + terms.log_likelihood, *sizes])
        return log, (jnp.stack(signs), log)

    chosen = tuple(density.arrays[place] for place in asked.places)
    jacobian = jax.jacfwd if asked.is_forward else jax.jacrev
    slopes, (sign, log) = jacobian(logs, has_aux=True)(chosen)
    return _Score(sign, log, jnp.concatenate([s.reshape(log.size, -1) for s in slopes], axis=1))


@compiled_per_model(static_argnums=(2, 3, 4))
def _scores(
    density: Density, positions: jax.Array, number: int, places: tuple[int, ...], is_forward: bool
) -> _Score:
    asked = _Asked(density, number, places, is_forward)
    return vmapped(functools.partial(_score, asked), positions)


@compiled_per_model(static_argnums=(2,))
def _margin_slopes(
    density: Density, positions: jax.Array, places: tuple[int, ...]
) -> tuple[jax.Array, ...]:
    """For every element of some arrays whether a comparison moves with it at any position."""

    def seen(chosen: tuple[jax.Array, ...], position: jax.Array) -> jax.Array:
        arrays = list(density.arrays)
        for place, array in zip(places, chosen, strict=True):
            arrays[place] = array
        return dataclasses.replace(density, arrays=tuple(arrays)).margins(position)

    chosen = tuple(density.arrays[place] for place in places)
    slopes = jax.vmap(lambda position: jax.jacfwd(seen)(chosen, position))(positions)
    return tuple(jnp.any(slope != 0, axis=(0, 1)).ravel() for slope in slopes)


def _is_moving(asked: _Asked, parts: list[_Part]) -> np.ndarray:
    """For every element whether a comparison in f moves with it."""
    if not asked.density.has_comparisons:
        return np.zeros(asked.size, bool)
    heaviest = np.argsort(_all_weights(parts[1:] if _are_shared(parts) else parts[-1:]))[-NUM_SEEN:]
    rows = np.asarray(parts[-1].positions)[heaviest]
    return np.concatenate(_margin_slopes(asked.density, jnp.asarray(rows), asked.places))


# --- sums over draws ---


class _Sums(NamedTuple):
    """Means of weights and of weighted scores by replicate, a column for each; and what there is
    to judge them by.

    The columns of a part are its weight and its weighted scores. Where f was softened, those of
    the two softened versions come last.
    """

    signs: list[int]
    groups: list[np.ndarray]
    size: int
    is_soft: bool
    totals: list[np.ndarray]
    squares: list[np.ndarray]
    num_invalid: int

    def formula(self, *means: np.ndarray) -> np.ndarray:
        """The derivatives, relative to max(Z1⁺, Z1⁻)/Z2; also as the narrower version has them."""
        columns = np.concatenate(means)
        width = 1 + self.size
        count = len(self.signs)
        each = columns[: count * width].reshape(count, width)
        z2, score = each[0, 0], each[0, 1:]
        signs = np.asarray(self.signs[1:], float)
        z1, scores = signs @ each[1:, 0], signs @ each[1:, 1:]
        tops = [scores, scores]
        if self.is_soft:
            narrow, wide = columns[count * width :].reshape(2, self.size)
            tops = [scores + (4 * narrow - wide) / 3, scores + narrow]
        return np.stack([top / z2 - z1 * score / z2**2 for top in tops])

    def excess(self, parts: list[_Part], value: np.ndarray) -> np.ndarray:
        """Variance of the derivatives by what the estimate's own errors have in addition.

        These know of mass that explorations found beyond the reach of the draws, and of heavy draws
        that a spread between replicates shows too late.
        """
        means = np.concatenate([group.mean(axis=0) for group in self.groups])
        width = 1 + self.size
        each = means[: len(parts) * width].reshape(len(parts), width)
        z2, score = each[0, 0], each[0, 1:]
        total = np.zeros(self.size)
        for number, part in enumerate(parts):
            z, scores = each[number, 0], each[number, 1:]
            place = number * width if len(self.groups) == 1 else 0
            weights = self.groups[0 if len(self.groups) == 1 else number][:, place]
            own = weights.var(ddof=1) / weights.size / z**2
            size = value
            if part.sign and len(parts) > 2 and not self.is_soft:
                size = scores / z2 - z * score / z2**2
            total += max(part.relative_variance - own, 0.0) * size**2
        return total

    def effective(self, part: int) -> np.ndarray:
        """Effective draws of a part's weighted scores, for every element."""
        with np.errstate(invalid="ignore", divide="ignore"):
            sizes = self.totals[part] ** 2 / self.squares[part]
        return np.where(self.squares[part] > 0, sizes, np.inf)


def _summed(asked: _Asked, parts: list[_Part], is_moving: np.ndarray) -> _Sums:
    """Goes through the draws of each part, those in common once."""
    is_shared = _are_shared(parts)
    sets = [parts] if is_shared else [[part] for part in parts]
    found = [_sums_of_set(asked, some, is_moving) for some in sets]
    return _Sums(
        signs=[part.sign for part in parts],
        groups=[one.means for one in found],
        size=asked.size,
        is_soft=asked.density.scales is not None,
        totals=[total for one in found for total in one.totals],
        squares=[square for one in found for square in one.squares],
        num_invalid=sum(one.num_invalid for one in found),
    )


class _SetSums(NamedTuple):
    """The same of draws that some parts have in common."""

    means: np.ndarray
    totals: list[np.ndarray]
    squares: list[np.ndarray]
    num_invalid: int


def _sums_of_set(asked: _Asked, parts: list[_Part], is_moving: np.ndarray) -> _SetSums:
    size, is_soft = asked.size, asked.density.scales is not None
    positions, replicate = np.asarray(parts[0].positions), parts[0].replicate
    num_replicates = int(replicate.max()) + 1
    rows = np.flatnonzero(_all_weights(parts) > 0)
    width = len(parts) * (1 + size) + (2 * size if is_soft else 0)
    sums = np.zeros((num_replicates, width))
    totals, squares = ([np.zeros(size) for _ in parts] for _ in range(2))
    num_invalid = 0
    chunk = max(16, min(CHUNK, int(MAX_NUMBERS // ((4 if is_soft else 2) * size))))
    for start in range(0, len(rows), chunk):
        some = rows[start : start + chunk]
        padded = np.concatenate([some, np.repeat(some[:1], chunk - len(some))])
        arguments = (jnp.asarray(positions[padded]), asked.number, asked.places, asked.is_forward)
        score = _Score(*map(np.asarray, _scores(asked.density, *arguments)))  # type: ignore[arg-type]
        score = _Score(*(array[: len(some)] for array in score))
        pieces = []
        for k, part in enumerate(parts):
            weights = part.weights[some]
            slopes = score.slope[:, 0]
            if part.sign:
                slopes = slopes + np.where(is_moving, 0.0, score.slope[:, 1])
            is_there = weights > 0
            is_finite = np.isfinite(slopes).all(axis=1)
            num_invalid += int((is_there & ~is_finite).sum())
            weighted = np.where((is_there & is_finite)[:, None], weights[:, None] * slopes, 0.0)
            totals[k] += np.abs(weighted).sum(axis=0)
            squares[k] += (weighted**2).sum(axis=0)
            pieces += [weights[:, None], weighted]
        if is_soft:
            pieces += _soft_pieces(parts, some, score, is_moving)
        np.add.at(sums, replicate[some], np.concatenate(pieces, axis=1))
    counts = np.bincount(replicate, minlength=num_replicates)
    return _SetSums(sums / counts[:, None], totals, squares, num_invalid)


def _soft_pieces(
    parts: list[_Part], some: np.ndarray, score: _Score, is_moving: np.ndarray
) -> list[np.ndarray]:
    """γ/q · ∂f/∂θ of both softened versions of f, relative to the larger of Z1⁺ and Z1⁻."""
    log_ratio = parts[0].log_weights[some] - parts[0].log_scale
    pieces = []
    for k in (2, 3):
        weights = score.sign[:, k] * np.exp(log_ratio + score.log[:, k])
        slopes = np.where(is_moving, score.slope[:, k], 0.0)
        is_there = (weights != 0)[:, None] & np.isfinite(slopes)
        pieces.append(np.where(is_there, weights[:, None] * slopes, 0.0))
    return pieces


# --- what speaks against them ---


def _findings(
    output: OutputEstimate, parts: list[_Part], sums: _Sums, error: np.ndarray
) -> list[tuple[Finding, ...]]:
    """For every element: what speaks against the estimate itself, and too few effective draws."""
    common = list(output.findings)
    if sums.num_invalid:
        detail = f"the derivative of the density is not a number at {sums.num_invalid:,} draws"
        common.append(Finding(Status.nan_density, None, detail, "numbers"))
    found = []
    sizes = [sums.effective(k) for k in range(len(parts))]
    counts = [part.log_weights.size for part in parts]
    for element in range(sums.size):
        own = []
        for part, size, total, count in zip(parts, sizes, sums.totals, counts, strict=True):
            # A part whose score hardly adds to the derivative may have few draws.
            if total[element] / count > thresholds.MATTERS * error[element]:
                name = {0: "Z2", 1: "Z1_plus", -1: "Z1_minus"}[part.sign]
                own += check_size(float(size[element]), name, part.least)
        if not np.isfinite(error[element]):
            own.append(Finding(Status.low_ess, None, "no error is known", "numbers"))
        found.append((*common, *own))
    return found
