"""Derivatives of an expectation by the arrays of its density, from the draws of an estimate.

With E = (Z1⁺ − Z1⁻)/Z2 and Z = ∫ density, d log Z / dθ is the mean of ∂ log density / ∂θ, the
score, under that density: means over draws that the estimate has already. Where a comparison moves
with θ, the score of γf misses what crosses its boundary: there ∂f/∂θ is that of f with a softened
comparison, extrapolated from two widths to none. The widest pair of widths is taken with which all
narrower ones agree; where there is none, or few draws on a side of the boundary, there is no
derivative.
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
from estimand.sensitivity.edges import jumping
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

# How wide the widest softened comparison is, relative to the spread of its margin under γ|f|; each
# further one is half as wide. So many are looked at together, and more where these disagree.
WIDTH = 0.2
NUM_WIDTHS, MAX_WIDTHS = 5, 13
# How wide a softened comparison of counts is: e⁻²⁵ is left of the next count.
COUNT_WIDTH = 0.02
# Pairs of widths beyond the agreeing one that are skipped where comparisons are of comparisons.
FURTHER = 2
# Differences between widths, in their errors, up to which they agree.
AGREED = 2.0
# Effective draws on each side of a boundary from which on its derivative is known.
ENOUGH_BESIDE = 25.0
# A derivative of which few draws speak is as good as 0 if it changes the expectation by less than
# this share where its boundary is moved by the spread of the margin.
NEGLIGIBLE = 1e-3
# Shares that count as an error: of what the extrapolation to no width changes, and of the
# difference from the next narrower pair of widths.
BIAS_SHARE, NEXT_SHARE = 0.1, 0.5
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
_UNSETTLED = Finding(
    Status.not_converged,
    None,
    "a comparison in the return value moves with this, and what crosses its boundary is not the "
    "same for any two widths that the draws can tell apart: take the difference of two estimates, "
    "with this a little larger and smaller, or a margin that has a slope at the boundary",
    "jumps",
)
_ONE_SIDED = Finding(
    Status.low_ess,
    None,
    "a comparison in the return value moves with this, and there are few draws close to its "
    "boundary on one side of it: ask for a smaller error, as with ep.Auto(relative_error=0.001)",
    "size",
)
_EDGE = Finding(
    Status.not_converged,
    None,
    "the density jumps as this moves, at the end of a support or in a step of the likelihood, "
    "where the draws have mass, and the derivative misses what crosses there: take the difference "
    "of two estimates, with this a little larger and smaller",
    "jumps",
)
_HIDDEN_EDGE = Finding(
    Status.not_converged,
    None,
    "the density may jump as this moves, in a loop, a branch or a rounding that shows no "
    "comparison, and the derivative misses that: take the difference of two estimates, with this a "
    "little larger and smaller",
    "jumps",
)
_STOPPED = Finding(
    Status.not_converged,
    None,
    "this passes through `stop_gradient`, which hides it from automatic differentiation: take that "
    "away, or take the difference of two estimates, with this a little larger and smaller",
    "jumps",
)
# What the derivative is 0 of, by JAX's name for it.
_FLAT = {
    **{name: f"`{name}`" for name in ("floor", "ceil", "round", "sign")},
    "convert_element_type": "a cast to whole numbers",
    **dict.fromkeys(("gt", "ge", "lt", "le", "eq", "ne"), "a comparison"),
}
_TIED = Finding(
    Status.not_converged,
    None,
    "a comparison in the return value moves with this, and there one compares numbers that are "
    "equal at some draws, as sums of indicators are: count with integers or booleans, as in "
    "jnp.sum(x > limit) >= 2",
    "jumps",
)
_NOTHING: tuple[Finding, ...] = ()
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
    rates = _rates(asked, parts)
    moving = rates > 0
    is_moving = np.any(moving, axis=0, keepdims=True)[0]
    is_soft = bool(is_moving.any()) and _are_shared(parts)
    if is_soft:
        spread, is_tied = _spread(asked, parts)
        usual = _usual(rates, spread)
        further = FURTHER if asked.density.has_nested else 0
        asked = asked.softened(spread, 0)
    sums = _summed(asked, parts, moving)
    edges = [_NOTHING] * asked.size
    if is_soft:
        while not (crossing := _crossing(sums, is_moving, usual, further)).is_settled and (
            sums.num_widths < MAX_WIDTHS
        ):
            asked = asked.softened(spread, sums.num_widths - 1)
            sums = sums.with_narrower(_summed(asked, parts, moving))
        edges = crossing.findings
        if is_tied:
            edges = [(_TIED,) if moves else _NOTHING for moves in is_moving]
        value, error = crossing.value, crossing.standard_error
        degrees = crossing.degrees
    else:
        found = jackknife(sums.formula, *sums.groups)
        value, error, degrees = found.value[0], found.standard_error[0], found.degrees
    error = np.sqrt(error**2 + sums.excess(parts, value))
    against = _findings(output, parts, sums, error)
    jumps = _jumping(asked, parts)
    edges = [(*own, _EDGE) if jumps[k] else own for k, own in enumerate(edges)]
    scale, results, start = thresholds.exp(log_scale), [], 0
    for name, place in wanted:
        at = np.asarray(density.arrays[place], float)
        own = slice(start, start + at.size)
        start += at.size
        slope, wide = (scale * array[own].reshape(at.shape) for array in (value, error))
        findings = against[own]
        is_weak = np.asarray([_is_weak(output, each) for each in findings]).reshape(at.shape)
        missed = _missed(asked, place, is_moving[own])
        of_all = () if missed is None else (missed,)
        cut = _cut(asked.density.cuts(place, number), np.ravel(wide) == 0)
        missing = [(*of_all, *flat, *each) for flat, each in zip(cut, edges[own], strict=True)]
        is_weak |= np.asarray([bool(each) for each in missing]).reshape(at.shape)
        findings = [(*each, *more) for each, more in zip(findings, missing, strict=True)]
        slope, wide = np.where(is_weak, np.nan, slope), np.where(is_weak, np.inf, wide)
        results.append(Derivative(name, at, slope, wide, degrees, tuple(findings)))
    return results


def _is_weak(output: OutputEstimate, findings: tuple[Finding, ...]) -> bool:
    """Whether too few draws stand behind a derivative, where the estimate itself has enough."""
    return any(item.check == "size" and item not in output.findings for item in findings)


def _jumping(asked: _Asked, parts: list[_Part]) -> np.ndarray:
    """For every element whether γ jumps as it moves, where any part has its draws."""
    density = dataclasses.replace(asked.density, scales=None, softness=None)
    sets = [parts] if _are_shared(parts) else [[part] for part in parts]
    found = np.zeros(asked.size, bool)
    for some in sets:
        positions = np.asarray(some[0].positions)
        found |= jumping(density, asked.places, positions, _all_weights(some))
    return found


def _missed(asked: _Asked, place: int, is_moving: np.ndarray) -> Finding | None:
    """Why the derivative by an array cannot be known, if there is a reason."""
    if asked.density.may_jump(place):
        return _HIDDEN
    if asked.density.has_hidden_edges(place):
        return _HIDDEN_EDGE
    return _INSIDE if is_moving.any() and asked.density.scales is None else None


def _cut(names: set[str], are_zero: np.ndarray) -> list[tuple[Finding, ...]]:
    """For every element of an array why automatic differentiation does not see what it does.

    Args:
        names: of what has the derivative 0 on the way from it.
        are_zero: whether the derivative by an element is 0 exactly.
    """
    if "stop_gradient" in names:
        return [(_STOPPED,)] * are_zero.size
    if not names:
        return [_NOTHING] * are_zero.size
    words = next((words for name, words in _FLAT.items() if name in names), f"`{min(names)}`")
    detail = (
        f"this passes through {words}, whose derivative automatic differentiation takes as 0: take "
        "the difference of two estimates, with this larger and smaller by a step or more"
    )
    found = (Finding(Status.not_converged, None, detail, "jumps"),)
    return [found if is_zero else _NOTHING for is_zero in are_zero]


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
    if not found or found[0].sign:
        raise ValueError("no draws of the estimate are there")
    if len(found) < 2:
        raise ValueError(
            "sensitivity: no draw has met the target, as where it is 0 exactly, and derivatives "
            "are taken at draws of it. Ask at arguments a little beside these."
        )
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
    def num_widths(self) -> int:
        """How many softened versions there are."""
        return 0 if self.density.scales is None else self.density.num_rungs

    @property
    def size(self) -> int:
        """How many numbers the derivatives are by."""
        return sum(int(np.size(self.density.arrays[place])) for place in self.places)

    def softened(self, spread: np.ndarray, first: int) -> _Asked:
        """With soft versions of every output, from one of the widths on."""
        widths = WIDTH * 0.5 ** np.arange(first, first + NUM_WIDTHS)
        scales = np.where(self.density.counts, COUNT_WIDTH / widths[:, None], spread)
        return self._replace(density=self.density.softened(scales, widths.tolist()))


def _spread(asked: _Asked, parts: list[_Part]) -> tuple[np.ndarray, bool]:
    """How far the margins spread under γ|f|, and whether any is 0 at a draw."""
    is_there = np.flatnonzero(_all_weights(parts) > 0)
    weights = _all_weights(parts[1:])[is_there]
    seen = in_chunks(functools.partial(margins, asked.density), parts[0].positions[is_there])
    share = weights / weights.sum()
    is_tied = bool((seen == 0).any())
    seen = np.where(np.isfinite(seen), seen, 0.0)
    return np.sqrt(np.maximum(share @ seen**2 - (share @ seen) ** 2, 0.0)), is_tied


class _Score(NamedTuple):
    """Signs and logarithms of γ, f, and softened f where asked, slopes of the logarithms, and the
    margins of comparisons where asked."""

    sign: jax.Array
    log: jax.Array
    slope: jax.Array
    margins: jax.Array


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
    slope = jnp.concatenate([s.reshape(log.size, -1) for s in slopes], axis=1)
    seen = jnp.zeros(0) if density.scales is None else density.margins(position)
    return _Score(sign, log, slope, seen)


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
    """For every comparison and element of some arrays how fast the one moves with the other, as a
    mean over positions."""

    def seen(chosen: tuple[jax.Array, ...], position: jax.Array) -> jax.Array:
        arrays = list(density.arrays)
        for place, array in zip(places, chosen, strict=True):
            arrays[place] = array
        return dataclasses.replace(density, arrays=tuple(arrays)).margins(position)

    chosen = tuple(density.arrays[place] for place in places)
    slopes = jax.vmap(lambda position: jax.jacfwd(seen)(chosen, position))(positions)
    return tuple(jnp.mean(jnp.abs(slope), axis=0).reshape(slope.shape[1], -1) for slope in slopes)


def _rates(asked: _Asked, parts: list[_Part]) -> np.ndarray:
    """For every comparison in f and every element how fast the one moves with the other."""
    if not asked.density.has_comparisons:
        return np.zeros((0, asked.size))
    heaviest = np.argsort(_all_weights(parts[1:] if _are_shared(parts) else parts[-1:]))[-NUM_SEEN:]
    rows = np.asarray(parts[-1].positions)[heaviest]
    found = _margin_slopes(asked.density, jnp.asarray(rows), asked.places)
    # What is not a number moves, too.
    return np.nan_to_num(np.concatenate(found, axis=1), nan=np.inf)


def _usual(rates: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """The derivative of each element whose boundary, moved by a spread, changes all of E[f]."""
    with np.errstate(invalid="ignore", divide="ignore"):
        each = rates / spread[:, None]
    return np.where((rates > 0) & (spread[:, None] > 0), each, np.inf).min(axis=0, initial=np.inf)


# --- sums over draws ---


class _Sums(NamedTuple):
    """Means of weights and of weighted scores by replicate, a column for each; and what there is
    to judge them by.

    The columns of a part are its weight and its weighted scores. Where f was softened, those of
    the softened versions come last, from wide to narrow, and `beside` has the effective draws of
    each on both sides of the boundary.
    """

    signs: list[int]
    groups: list[np.ndarray]
    size: int
    num_widths: int
    totals: list[np.ndarray]
    squares: list[np.ndarray]
    num_invalid: int
    beside: np.ndarray

    @property
    def is_soft(self) -> bool:
        return self.num_widths > 0

    def with_narrower(self, other: _Sums) -> _Sums:
        """The same with the further widths of other sums, whose widest is the narrowest here."""
        start = len(self.signs) * (1 + self.size) + self.size
        return self._replace(
            groups=[np.concatenate([self.groups[0], other.groups[0][:, start:]], axis=1)],
            num_widths=self.num_widths + other.num_widths - 1,
            beside=np.concatenate([self.beside, other.beside[1:]]),
        )

    def formula(self, *means: np.ndarray) -> np.ndarray:
        """The derivatives, relative to max(Z1⁺, Z1⁻)/Z2. With softened versions: as each has them,
        and after these as each pair of neighbours is extrapolated to no width."""
        columns = np.concatenate(means)
        width = 1 + self.size
        count = len(self.signs)
        each = columns[: count * width].reshape(count, width)
        z2, score = each[0, 0], each[0, 1:]
        signs = np.asarray(self.signs[1:], float)
        z1, scores = signs @ each[1:, 0], signs @ each[1:, 1:]
        within = scores / z2 - z1 * score / z2**2
        if not self.is_soft:
            return within[None]
        soft = columns[count * width :].reshape(self.num_widths, self.size)
        return within + np.concatenate([soft, (4 * soft[1:] - soft[:-1]) / 3]) / z2

    def within(self, *means: np.ndarray) -> np.ndarray:
        """The derivatives without what crosses boundaries."""
        count = len(self.signs) * (1 + self.size)
        bare = self._replace(num_widths=0)
        return bare.formula(np.concatenate(means)[:count])[0]

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


class _Crossing(NamedTuple):
    """Derivatives with what crosses boundaries, and why that of an element is not known."""

    value: np.ndarray
    standard_error: np.ndarray
    degrees: float
    findings: list[tuple[Finding, ...]]
    is_settled: bool


def _crossing(sums: _Sums, is_moving: np.ndarray, usual: np.ndarray, further: int) -> _Crossing:
    """For every element the widest pair of widths with which all narrower pairs agree."""
    count = sums.num_widths
    pairs = [(k, j) for k in range(count - 1) for j in range(k + 1, count - 1)]

    def formula(*means: np.ndarray) -> np.ndarray:
        each = sums.formula(*means)
        narrow, free = each[1:count], each[count:]
        differences = np.stack([free[k] - free[j] for k, j in pairs])
        return np.concatenate([narrow, free, differences, sums.within(*means)[None]])

    found = jackknife(formula, *sums.groups)
    narrow, free, differences = np.split(found.value[:-1], [count - 1, 2 * (count - 1)])
    errors = found.standard_error[2 * (count - 1) : -1]
    agree = np.ones((count - 1, sums.size), bool)
    for (k, _), difference, error in zip(pairs, differences, errors, strict=True):
        agree[k] &= np.abs(difference) <= AGREED * error
    # The narrowest pair agrees with nothing else.
    chosen = np.where(is_moving, np.argmax(agree, axis=0) + further, 0)
    is_agreed = chosen < count - 2
    chosen = np.minimum(chosen, count - 3)
    every = np.arange(sums.size)
    value, own = free[chosen, every], found.standard_error[count - 1 + chosen, every]
    by_width = BIAS_SHARE * (value - narrow[chosen, every])
    by_next = NEXT_SHARE * (value - free[chosen + 1, every])
    error = np.sqrt(own**2 + by_width**2 + by_next**2)
    # With the narrower width of a pair.
    beside = sums.beside[chosen + 1, :, every].min(axis=1)
    least = np.where(np.isfinite(usual), NEGLIGIBLE * usual, 0.0)
    crossed = np.abs(value - found.value[-1]) + AGREED * error
    is_few = is_moving & (beside < ENOUGH_BESIDE)
    is_nothing = is_few & (crossed <= least)
    error = np.where(is_nothing, np.maximum(error, least), error)
    findings: list[tuple[Finding, ...]] = []
    for element in range(sums.size):
        if not is_moving[element] or is_nothing[element]:
            findings.append(_NOTHING)
        elif is_few[element]:
            findings.append((_ONE_SIDED,))
        else:
            findings.append(_NOTHING if is_agreed[element] else (_UNSETTLED,))
    is_open = is_moving & ~is_agreed & ~is_few
    return _Crossing(value, error, found.degrees, findings, not is_open.any())


def _summed(asked: _Asked, parts: list[_Part], moving: np.ndarray) -> _Sums:
    """Goes through the draws of each part, those in common once."""
    is_shared = _are_shared(parts)
    sets = [parts] if is_shared else [[part] for part in parts]
    found = [_sums_of_set(asked, some, moving) for some in sets]
    return _Sums(
        signs=[part.sign for part in parts],
        groups=[one.means for one in found],
        size=asked.size,
        num_widths=asked.num_widths,
        totals=[total for one in found for total in one.totals],
        squares=[square for one in found for square in one.squares],
        num_invalid=sum(one.num_invalid for one in found),
        beside=found[0].beside,
    )


class _SetSums(NamedTuple):
    """The same of draws that some parts have in common."""

    means: np.ndarray
    totals: list[np.ndarray]
    squares: list[np.ndarray]
    num_invalid: int
    beside: np.ndarray


def _sums_of_set(asked: _Asked, parts: list[_Part], moving: np.ndarray) -> _SetSums:
    size, num_widths = asked.size, asked.num_widths
    is_moving = np.any(moving, axis=0, keepdims=True)[0]
    # By width, side and element.
    besides = np.zeros((2, num_widths, 2, size))
    scales = np.asarray(asked.density.scales)[0] if num_widths else np.zeros(0)
    positions, replicate = np.asarray(parts[0].positions), parts[0].replicate
    num_replicates = int(replicate.max()) + 1
    rows = np.flatnonzero(_all_weights(parts) > 0)
    width = len(parts) * (1 + size) + num_widths * size
    sums = np.zeros((num_replicates, width))
    totals, squares = ([np.zeros(size) for _ in parts] for _ in range(2))
    num_invalid = 0
    chunk = max(16, min(CHUNK, int(MAX_NUMBERS // ((2 + num_widths) * size))))
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
        if num_widths:
            soft = _soft_pieces(parts, some, score, is_moving)
            is_beyond = _is_beyond(np.asarray(score.margins), scales, moving)
            for k, piece in enumerate(soft):
                for side in (False, True):
                    sizes = np.where(is_beyond == side, np.abs(piece), 0.0)
                    besides[0, k, int(side)] += sizes.sum(axis=0)
                    besides[1, k, int(side)] += (sizes**2).sum(axis=0)
            pieces += soft
        np.add.at(sums, replicate[some], np.concatenate(pieces, axis=1))
    counts = np.bincount(replicate, minlength=num_replicates)
    with np.errstate(invalid="ignore", divide="ignore"):
        beside = np.where(besides[1] > 0, besides[0] ** 2 / besides[1], 0.0)
    return _SetSums(sums / counts[:, None], totals, squares, num_invalid, beside)


def _is_beyond(seen: np.ndarray, scales: np.ndarray, moving: np.ndarray) -> np.ndarray:
    """For every draw and element on which side of the nearest boundary that moves it is."""
    patterns, places = np.unique(moving, axis=1, return_inverse=True)
    distances = np.abs(seen) / np.where(scales > 0, scales, 1.0)
    found = np.zeros((len(seen), patterns.shape[1]), bool)
    for k, pattern in enumerate(patterns.T):
        if pattern.any():
            nearest = np.where(pattern, distances, np.inf).argmin(axis=1)
            found[:, k] = seen[np.arange(len(seen)), nearest] > 0
    return found[:, np.ravel(places)]


def _soft_pieces(
    parts: list[_Part], some: np.ndarray, score: _Score, is_moving: np.ndarray
) -> list[np.ndarray]:
    """γ/q · ∂f/∂θ of all softened versions of f, relative to the larger of Z1⁺ and Z1⁻."""
    log_ratio = parts[0].log_weights[some] - parts[0].log_scale
    pieces = []
    for k in range(2, score.log.shape[1]):
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
