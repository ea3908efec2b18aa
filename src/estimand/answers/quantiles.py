"""Quantiles of a return value, however far out, and its expectation beyond one of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand import record as records
from estimand.answers.evidence import auto_for
from estimand.answers.tail import Beyond, ValuesOf
from estimand.density import Density
from estimand.estimate import Estimate, EstimationError, estimate_expectation
from estimand.methods import Auto
from estimand.model import Bound, BranchingExpectation, Derived, Expectation
from estimand.runtime import require_precision
from estimand.sampling import named_key
from estimand.trust import (
    Finding,
    OutputEstimate,
    Status,
    check_size,
    most_severe,
    no_mass,
    thresholds,
    worst,
)
from estimand.view import Summarised, Summary, Table

# Rounds of thresholds, at the most: each comes closer, and one that is close enough is the last.
MAX_ROUNDS = 15
# Before the last round, an error of this size will do.
ROUGH_ERROR = 0.05
# And so many evaluations for up to three parts.
ROUGH_BUDGET = 250_000
# By how much the logarithm of the probability beyond the threshold before the last one may be off.
CLOSE = 0.3
# The last threshold is put before the quantile, by so many relative errors and at most so much:
# draws beyond it show the way.
LEADING_ERRORS, MAX_LEAD = 2.0, 0.05
# It may turn out to be so far behind it, where the draws' quantiles are continued to the left.
BEHIND = 0.03
# Standard errors between a probability and the wanted one for which a value is said to be exact.
CERTAIN = thresholds.MAX_JOINT_ERRORS
# Effective draws beyond a threshold that the next one is taken from.
MIN_DRAWS = 50.0


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Quantile:
    """One quantile of a return value: the smallest number t with P(f ≤ t) ≥ level.

    Its error is that of `tail`, the probability beyond `threshold`, over the density there. The
    interval is that of the tail probability, inverted. An atom of a discrete distribution
    `is_exact`: its interval is the atom itself. `atoms` are those that it may be.
    """

    level: float
    tail_probability: float
    value: float
    standard_error: float
    is_exact: bool
    tail: OutputEstimate
    beyond: Beyond = dataclasses.field(repr=False)
    sign: int = 1
    findings: tuple[Finding, ...] = ()
    atoms: tuple[float, ...] = ()

    @property
    def status(self) -> Status:
        return most_severe(self.findings)

    @property
    def threshold(self) -> float:
        """The number whose tail probability was estimated."""
        return self.sign * self.beyond.threshold

    def interval(self, level: float = thresholds.CONFIDENCE) -> tuple[float, float]:
        """Confidence interval; a single number if the quantile is known to be that."""
        if not 0 < level < 1:
            raise ValueError(f"interval: level must be between 0 and 1; it is {level}.")
        if self.atoms:
            return min(self.atoms), max(self.atoms)
        if not math.isfinite(self.standard_error):
            return -math.inf, math.inf
        reach = records.quantile(0.5 + level / 2, self.tail.degrees) * _log_error(self)
        depth = _depth(self.tail, self.tail_probability)
        low, high = (self.sign * self.beyond.reach(depth + side * reach) for side in (-1, 1))
        return min(low, high), max(low, high)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Quantiles(Summarised):
    """Quantiles of a program's return value at some levels.

    `value` and `standard_error` are a number each if there was one level, and else arrays. `tails`
    has a `Quantile` for each level, and `estimate` the last estimate of the tail probabilities.

    Examples:
        >>> quantile = ep.quantile(program(2.0), 1 - 1e-6)
        >>> low, high = quantile.interval()
        >>> low < 82.95 < high
        True
    """

    program: str
    tails: tuple[Quantile, ...]
    is_single: bool
    num_evaluations: int
    num_gradients: int
    estimate: Estimate | None = dataclasses.field(default=None, repr=False)

    @property
    def value(self) -> Any:
        return self._shaped([tail.value for tail in self.tails])

    @property
    def standard_error(self) -> Any:
        return self._shaped([tail.standard_error for tail in self.tails])

    @property
    def levels(self) -> Any:
        return self._shaped([tail.level for tail in self.tails])

    @property
    def status(self) -> Status:
        """The most severe status of any level."""
        return worst(tail.status for tail in self.tails)

    def interval(self, level: float = thresholds.CONFIDENCE) -> tuple[Any, Any]:
        """Confidence intervals."""
        low, high = zip(*(tail.interval(level) for tail in self.tails), strict=True)
        return self._shaped(low), self._shaped(high)

    def _shaped(self, numbers: Sequence[float]) -> Any:
        return numbers[0] if self.is_single else np.asarray(numbers)

    def summary(self) -> Summary:
        """A table with a row for each level."""
        rows = []
        for tail in self.tails:
            low, high = tail.interval()
            number = f"{tail.value:.6g}"
            number += " exactly" if tail.is_exact else f" ± {tail.standard_error:.2g}"
            rows.append(
                (
                    f"{tail.level:.10g}",
                    f"{tail.tail_probability:.4g} {'above' if tail.sign > 0 else 'below'}",
                    number,
                    f"[{low:.6g}, {high:.6g}]",
                    tail.status.name,
                )
            )
        header = ("level", "tail", "quantile", "95 % interval", "status")
        lines = [
            f"level {tail.level:.10g}: {finding.status.name}: {finding}"
            for tail in self.tails
            for finding in tail.findings
        ]
        cost = f"{self.num_evaluations:,} evaluations, {self.num_gradients:,} gradients"
        table = Table(f"Quantiles of {self.program}", header, tuple(rows))
        return Summary([table], [cost, *lines, self.status.value])

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain data; those that are not finite are strings, as in JSON."""
        return records.plain_numbers(
            {
                "program": self.program,
                "status": self.status.name,
                "quantiles": [
                    {
                        "level": tail.level,
                        "tail_probability": tail.tail_probability,
                        "value": tail.value,
                        "standard_error": tail.standard_error,
                        "interval": tail.interval(),
                        "is_exact": tail.is_exact,
                        "status": tail.status.name,
                        "findings": [str(finding) for finding in tail.findings],
                    }
                    for tail in self.tails
                ],
                "num_evaluations": self.num_evaluations,
                "num_gradients": self.num_gradients,
            }
        )


def quantile(
    expectation: Bound,
    levels: float | Sequence[float] | np.ndarray | None = None,
    *,
    tail_probability: float | Sequence[float] | None = None,
    rng_key: int | jax.Array = 0,
    method: Auto | None = None,
    throw: bool = True,
    precision: str = "double",
    progress_bar: bool | None = None,
    executor: Executor | None = None,
) -> Quantiles:
    """Quantiles of a bound program's return value under its posterior, however far out.

    The probability of being beyond a threshold is an expectation, which is estimated where it has
    its mass. Thresholds move out until the probability beyond them is the wanted one; the interval
    of the last one is inverted. All levels share each exploration.

    Args:
        expectation: a program called with its data that returns one number; of one with several,
            take one as ``program(data)["name"]``.
        levels: numbers between 0 and 1, or one. Those below ½ are estimated by the lower tail.
        tail_probability: probabilities of the upper tail instead, which have no digits to lose:
            1e-20 stands for the level 1 − 1e-20.
        rng_key: an int or a JAX key.
        method: `Auto`, whose `relative_error` is that of the tail probabilities. Limits of
            evaluations and time are those of each round of thresholds.
        throw: raise `EstimationError` if the status is not `ok`.
        precision: as in `estimate_expectation`.
        progress_bar: as in `estimate_expectation`.
        executor: as in `estimate_expectation`.

    Raises:
        EstimationError: if a status is not `ok`, unless ``throw=False``.

    Examples:
        >>> quantiles = ep.quantile(program(2.0), [0.5, 1 - 1e-6])
        >>> [round(float(value)) for value in quantiles.value]
        [1, 83]
    """
    asked, is_single = _asked(levels, tail_probability)
    base = require_scalar("quantile", expectation)
    require_precision("quantile", precision)
    method = auto_for("quantile", method)
    search = _Search(
        base,
        [level[1:] for level in asked],
        method,
        records.as_key(rng_key),
        {"precision": precision, "progress_bar": progress_bar, "executor": executor},
    )
    tails = search.run()
    found = Quantiles(
        program=base.name,
        tails=tuple(
            dataclasses.replace(tail, level=level)
            for tail, (level, *_) in zip(tails, asked, strict=True)
        ),
        is_single=is_single,
        num_evaluations=search.num_evaluations,
        num_gradients=search.num_gradients,
        estimate=search.last,
    )
    if throw and not found.status:
        raise EstimationError(found)
    return found


class _Asked(NamedTuple):
    """A level, and the tail that it is estimated by: its probability, and 1 or −1 for its side."""

    level: float
    probability: float
    sign: int


def _asked(levels: Any, tail_probability: Any) -> tuple[list[_Asked], bool]:
    if (levels is None) == (tail_probability is None):
        raise TypeError("quantile: give levels or tail_probability=.")
    numbers = np.asarray(levels if tail_probability is None else tail_probability, float)
    name = "levels" if tail_probability is None else "tail_probability"
    if numbers.ndim > 1 or not numbers.size or not ((numbers > 0) & (numbers < 1)).all():
        raise ValueError(f"quantile: {name} must be between 0 and 1; got {numbers.tolist()}.")
    asked = []
    for number in map(float, numbers.ravel()):
        upper = 1 - number if tail_probability is None else number
        level = number if tail_probability is None else 1 - number
        is_lower = level < 0.5
        asked.append(_Asked(level, level if is_lower else upper, -1 if is_lower else 1))
    return asked, numbers.ndim == 0


def require_scalar(owner: str, expectation: Any) -> Expectation:
    """A bound program with one number as its return value; others are refused."""
    if not isinstance(expectation, Bound):
        raise TypeError(f"{owner}: expected a program called with its data, got {expectation!r}.")
    if isinstance(expectation, BranchingExpectation):
        raise TypeError(
            f"{owner}: program {expectation.name!r} branches, and its tails are those of its "
            "branches: take one, as in expectation.branch({...})."
        )
    if not isinstance(expectation, Expectation):
        raise TypeError(f"{owner}: program {expectation.name!r} is not a NumPyro program.")
    if expectation.output is None or expectation.output.size != 1:
        size = 0 if expectation.output is None else expectation.output.size
        raise TypeError(
            f"{owner}: program {expectation.name!r} has {size} outputs, and a distribution is of "
            f"one number: take one, as in {owner}(expectation['name'], …)."
        )
    return expectation


def _depth(tail: OutputEstimate, probability: float) -> float:
    """By how much the logarithm of a tail probability is above the wanted one."""
    return math.log(tail.value) - math.log(probability)


def _log_error(found: Quantile) -> float:
    """Standard error of the log tail probability at the quantile, draws beyond included."""
    local = found.beyond.log_error(_depth(found.tail, found.tail_probability))
    return math.hypot(found.tail.standard_error / found.tail.value, local)


# --- the search ---


def beyond_thresholds(numbers: Any, value: Any) -> jax.Array:
    """Whether the return value, with a sign, is beyond each of some thresholds."""
    number = jnp.asarray(value, float).reshape(())
    return numbers["signs"] * number > numbers["thresholds"]


def always(_numbers: Any, _value: Any) -> float:
    """1, for explorations of γ itself."""
    return 1.0


class _Search:
    """Thresholds on their way to the quantiles, all of them in one program."""

    def __init__(
        self,
        base: Expectation,
        tails: Sequence[tuple[float, int]],
        method: Auto,
        rng_key: jax.Array,
        settings: dict[str, Any],
    ):
        self.base, self.method, self.rng_key, self.settings = base, method, rng_key, settings
        self.events = Derived(base, f"tail of {base.name}", beyond_thresholds)
        self.values = ValuesOf(base)
        lead = min(LEADING_ERRORS * method.relative_error, MAX_LEAD)
        self.levels = [_Level(probability, sign, lead) for probability, sign in tails]
        self.num_evaluations = self.num_gradients = 0
        self.last: Estimate | None = None

    def run(self) -> list[Quantile]:
        """The quantiles, or what is known of them after the last round."""
        self._begin()
        for number in range(MAX_ROUNDS):
            if all(level.failure is not None for level in self.levels):
                break
            is_last = all(level.is_close(CLOSE) for level in self.levels)
            self._round(number, is_rough=not is_last)
            if is_last and all(level.is_close(BEHIND) for level in self.levels):
                break
        return [level.found() for level in self.levels]

    def _begin(self) -> None:
        """The first thresholds, from draws of the posterior."""
        one = Derived(self.base, f"posterior of {self.base.name}", always)()
        estimate = self._estimated(one, "posterior", is_rough=True)
        values, weights = self.values.at(estimate, "gamma2", 0)
        for level in self.levels:
            level.begin(Beyond.of(-math.inf, level.sign * values, weights), estimate)

    def _round(self, number: int, *, is_rough: bool) -> None:
        """The probabilities beyond the present thresholds, and the next ones."""
        pairs = [level.asked() for level in self.levels]
        size = max(map(len, pairs))
        rows = [pair + pair[-1:] * (size - len(pair)) for pair in pairs]
        signs = np.repeat([level.sign for level in self.levels], size).astype(float)
        numbers = {"signs": signs, "thresholds": np.asarray(rows, float).ravel()}
        estimate = self._estimated(self.events(numbers), f"round {number}", is_rough=is_rough)
        self.last = estimate
        for place, level in enumerate(self.levels):
            for column, threshold in enumerate(pairs[place]):
                output = place * size + column
                values, weights = self.values.at(estimate, "gamma1_plus", output)
                sample = Beyond.of(threshold, level.sign * values, weights)
                level.take(estimate.outputs[output], sample)
            level.advance()

    def _estimated(self, expectation: Bound, name: str, *, is_rough: bool) -> Estimate:
        method = self._roughly(expectation) if is_rough else self.method
        key = named_key(self.rng_key, "quantile", name)
        estimate = estimate_expectation(
            expectation, method, rng_key=key, throw=False, **self.settings
        )
        if any(
            finding.check == "interruption" and "Ctrl-C" in finding.detail
            for findings in estimate.findings
            for finding in findings
        ):
            raise KeyboardInterrupt
        self.num_evaluations += estimate.num_evaluations
        self.num_gradients += estimate.num_gradients
        return estimate

    def _roughly(self, expectation: Bound) -> Auto:
        """The method at a smaller size, which is enough to find the way."""
        density, method = Density.of(expectation), self.method
        parts = max(1.0, (1 + density.num_outputs) / 3)
        budget = max(int(ROUGH_BUDGET * parts), method.enough_evaluations(density))
        return dataclasses.replace(
            method,
            relative_error=max(method.relative_error, ROUGH_ERROR),
            max_evaluations=min(method.max_evaluations, budget),
        )


class _Known(NamedTuple):
    """The probability beyond a threshold, and draws from there."""

    tail: OutputEstimate
    beyond: Beyond

    def depth(self, probability: float) -> float:
        return _depth(self.tail, probability)

    @property
    def threshold(self) -> float:
        return self.beyond.threshold


class _Level:
    """One quantile on its way, with the sign of f such that it is in the upper tail."""

    def __init__(self, probability: float, sign: int, lead: float):
        self.probability, self.sign, self.lead = probability, sign, lead
        self.next: float | None = None
        self.atom: float | None = None
        self.sides: tuple[float, float] = (math.nan, math.nan)
        self.known: list[_Known] = []
        self.latest: list[_Known] = []
        self.low, self.high = -math.inf, math.inf
        self.seen = self.atoms = np.zeros(0)
        self.failure: Finding | None = None

    def begin(self, sample: Beyond, estimate: Estimate) -> None:
        if sample.size < MIN_DRAWS:
            findings = [finding for own in estimate.findings for finding in own]
            own = check_size(sample.size, "Z2", MIN_DRAWS)
            self.failure = max([*findings, *own], key=lambda item: item.status.severity)
            self.next = 0.0
            return
        depth = -math.log(self.probability)
        self.low = sample.reach(min(depth, sample.farthest))
        self._aim(sample, depth)

    def asked(self) -> list[float]:
        """The thresholds to be estimated: both sides of an atom, or one."""
        if self.atom is not None:
            return list(self.sides)
        assert self.next is not None
        return [self.next]

    def take(self, tail: OutputEstimate, sample: Beyond) -> None:
        """What was found of one threshold."""
        self.latest.append(_Known(tail, sample))

    def is_close(self, behind: float) -> bool:
        """Whether the latest thresholds are close to the quantile, and not so far behind it."""
        if self.failure is not None:
            return True
        if not self.known:
            return False
        if self.atom is not None:
            return len(self.known) == 2 and self._is_between()
        return len(self.known) == 1 and -behind <= self.known[0].depth(self.probability) <= CLOSE

    def _is_between(self) -> bool:
        left, right = self.known
        return left.tail.value > self.probability >= right.tail.value

    def advance(self) -> None:
        """The next thresholds, by the latest ones."""
        if self.failure is not None:
            self.latest = []
            return
        usable = [item for item in self.latest if _is_usable(item)]
        is_complete = len(usable) == len(self.latest)
        if not is_complete and self.atom is not None:
            # Nothing beyond the right side: all of the tail is at the atom, or before it.
            is_complete = _is_usable(self.latest[0])
        latest, self.latest = self.latest, []
        if not is_complete:
            self._retreat(latest[0])
            return
        self.known = latest
        for item in usable:
            depth = item.depth(self.probability)
            if depth > CLOSE:
                self.low = max(self.low, item.threshold)
            elif depth < -CLOSE:
                self.high = min(self.high, item.threshold)
        self._next(usable)

    def _next(self, usable: list[_Known]) -> None:
        if self.atom is not None and self._is_between():
            return
        above = [item for item in usable if item.depth(self.probability) > 0]
        best = above[-1] if above else usable[0]
        self._aim(best.beyond, best.depth(self.probability))

    def _aim(self, sample: Beyond, depth: float) -> None:
        """The threshold at which the probability has fallen by a factor e^depth."""
        self.seen = np.union1d(self.seen, sample.values)
        self.atoms = np.union1d(self.atoms, sample.values[sample.is_atom])
        self.next, self.atom = self._within(sample.reach(depth - self.lead)), None
        place = sample.place(depth)
        if 0 < depth <= math.log(max(sample.size / MIN_DRAWS, 1.0)):
            candidate = sample.values[place]
        else:
            # Behind it, or too far before: the last value that was met before the next threshold.
            candidate = max(self.seen[self.seen <= self.next], default=math.nan)
        if candidate in self.atoms:
            self._take_atom(float(candidate))

    def _within(self, aim: float) -> float:
        """A threshold between those that are known to be before the quantile and behind it."""
        if self.low < aim < self.high or not math.isfinite(self.low + self.high):
            return aim
        return (self.low + self.high) / 2

    def _take_atom(self, atom: float) -> None:
        """Thresholds halfway to the values on both sides of an atom."""
        self.atom = atom
        below, above = self.seen[self.seen < atom], self.seen[self.seen > atom]
        gap = abs(atom) or 1.0
        if below.size or above.size:
            gap = min([*(atom - below[-1:]), *(above[:1] - atom)])
        before = float(below[-1]) if below.size else atom - gap
        after = float(above[0]) if above.size else atom + gap
        self.sides = (atom + before) / 2, (atom + after) / 2

    def _retreat(self, failed: _Known) -> None:
        """Halfway back to where something was found."""
        self.atom = None
        self.high = min(self.high, failed.threshold)
        if math.isfinite(self.low) and self.low < self.high:
            self.next = (self.low + self.high) / 2
            return
        findings = failed.tail.findings or (no_mass("nothing is known beyond it"),)
        self.failure = max(findings, key=lambda item: item.status.severity)

    # --- what it comes to ---

    def found(self) -> Quantile:
        if self.failure is not None or not self.known:
            finding = self.failure or no_mass("no threshold was found")
            return self._unknown((finding,))
        if self.atom is not None:
            return self._at_atom()
        [known] = self.known
        depth = known.depth(self.probability)
        findings = known.tail.findings
        if not -BEHIND <= depth <= CLOSE:
            detail = f"the thresholds did not settle in {MAX_ROUNDS} rounds"
            findings += (Finding(Status.not_converged, None, detail, "rounds"),)
        found = Quantile(
            level=math.nan,
            tail_probability=self.probability,
            value=self.sign * known.beyond.reach(depth),
            standard_error=math.inf,
            is_exact=False,
            tail=known.tail,
            beyond=known.beyond,
            sign=self.sign,
            findings=findings,
        )
        reach = _log_error(found)
        ends = [known.beyond.reach(depth + side * reach) for side in (-1, 1)]
        return dataclasses.replace(found, standard_error=(ends[1] - ends[0]) / 2)

    def _at_atom(self) -> Quantile:
        """The atom, if the probabilities on both sides of it tell that it is the quantile."""
        assert self.atom is not None
        left, right = self.known
        findings, atoms = list(left.tail.findings), [self.atom]
        if not _is_usable(right):
            # All that matters of the right side is that there is next to nothing.
            is_small = right.tail.upper_bound < self.probability
            findings += [] if is_small else right.tail.findings
        else:
            findings += right.tail.findings
        for item, side in ((left, 1), (right, -1)):
            if not _is_usable(item):
                continue
            distance = side * (item.tail.value - self.probability)
            if distance < CERTAIN * item.tail.standard_error:
                detail = (
                    f"P(f {'>' if self.sign > 0 else '<'} {self.sign * item.threshold:.6g}) is "
                    f"{item.tail.value:.4g} ± {item.tail.standard_error:.1g}, too close to "
                    f"{self.probability:.4g} to tell on which side of it the quantile is: ask for "
                    "a smaller relative_error"
                )
                findings.append(Finding(Status.not_converged, None, detail, "atom"))
                atoms.append(2 * item.threshold - self.atom)
        is_exact = not findings
        return Quantile(
            level=math.nan,
            tail_probability=self.probability,
            value=self.sign * self.atom,
            standard_error=0.0 if is_exact else math.inf,
            is_exact=is_exact,
            tail=left.tail,
            beyond=left.beyond,
            sign=self.sign,
            findings=tuple(findings),
            atoms=tuple(self.sign * atom for atom in atoms),
        )

    def _unknown(self, findings: tuple[Finding, ...]) -> Quantile:
        empty = Beyond(math.nan, np.zeros(0), np.zeros(0), 0.0)
        return Quantile(
            level=math.nan,
            tail_probability=self.probability,
            value=math.nan,
            standard_error=math.inf,
            is_exact=False,
            tail=OutputEstimate(math.nan, math.inf),
            beyond=empty,
            sign=self.sign,
            findings=findings,
        )


def _is_usable(known: _Known) -> bool:
    """Whether there is a number, and draws to go on from."""
    tail = known.tail
    is_number = math.isfinite(tail.standard_error) and tail.value > 0
    return is_number and known.beyond.values.size > 0


# --- the expectation beyond a quantile ---


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Shortfall:
    """The mean of a return value in the worst share of cases, and the quantile where these begin.

    Examples:
        >>> shortfall = ep.shortfall(program(2.0), 0.01)
        >>> shortfall.value > shortfall.quantile.value
        True
    """

    program: str
    tail_probability: float
    value: float
    standard_error: float
    quantile: Quantile
    excess: OutputEstimate
    findings: tuple[Finding, ...]
    num_evaluations: int
    num_gradients: int

    @property
    def status(self) -> Status:
        return most_severe(self.findings)

    def interval(self, level: float = thresholds.CONFIDENCE) -> tuple[float, float]:
        """Confidence interval."""
        if not 0 < level < 1:
            raise ValueError(f"interval: level must be between 0 and 1; it is {level}.")
        reach = records.quantile(0.5 + level / 2, self.excess.degrees) * self.standard_error
        return self.value - reach, self.value + reach

    def __str__(self) -> str:
        low, high = self.interval()
        sign = "above" if self.quantile.sign > 0 else "below"
        lines = [
            f"Mean of {self.program} in the {self.tail_probability:g} of cases farthest {sign}",
            f"  {self.value:.6g} ± {self.standard_error:.2g}   95 % interval [{low:.6g}, "
            f"{high:.6g}]   {self.status.name}",
            f"  they begin at {self.quantile.value:.6g} ± {self.quantile.standard_error:.2g}",
            f"  {self.num_evaluations:,} evaluations, {self.num_gradients:,} gradients",
            *(f"  {finding.status.name}: {finding}" for finding in self.findings),
            f"  {self.status.value}",
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain data; those that are not finite are strings, as in JSON."""
        return records.plain_numbers(
            {
                "program": self.program,
                "tail_probability": self.tail_probability,
                "value": self.value,
                "standard_error": self.standard_error,
                "interval": self.interval(),
                "quantile": self.quantile.value,
                "quantile_error": self.quantile.standard_error,
                "status": self.status.name,
                "findings": [str(finding) for finding in self.findings],
                "num_evaluations": self.num_evaluations,
                "num_gradients": self.num_gradients,
            }
        )


def shortfall(
    expectation: Bound,
    tail_probability: float,
    *,
    lower: bool = False,
    rng_key: int | jax.Array = 0,
    method: Auto | None = None,
    throw: bool = True,
    precision: str = "double",
    progress_bar: bool | None = None,
    executor: Executor | None = None,
) -> Shortfall:
    """The expected shortfall: the mean of a return value in the worst share of all cases.

    With q the quantile at 1 − p it is q + E[(f − q)⁺]/p, also called the conditional value at risk:
    E[f | f > q] where f has no atom at q. An error of q changes it in the second order only.

    Args:
        expectation: a program called with its data that returns one number, a loss.
        tail_probability: p, the share of the largest values.
        lower: the share of the smallest values instead.
        rng_key: as in `quantile`, and so are those that follow.
        method: as in `quantile`.
        throw: raise `EstimationError` if the status is not `ok`.
        precision: as in `estimate_expectation`.
        progress_bar: as in `estimate_expectation`.
        executor: as in `estimate_expectation`.

    Raises:
        EstimationError: if the status is not `ok`, unless ``throw=False``.

    Examples:
        >>> shortfall = ep.shortfall(program(2.0), 1e-6)
        >>> round(shortfall.value)
        91
    """
    if not 0 < tail_probability < 1:
        raise ValueError(
            f"shortfall: tail_probability must be between 0 and 1; it is {tail_probability}."
        )
    base = require_scalar("shortfall", expectation)
    require_precision("shortfall", precision)
    key, sign = records.as_key(rng_key), -1 if lower else 1
    settings: dict[str, Any] = {
        "precision": precision,
        "progress_bar": progress_bar,
        "executor": executor,
    }
    method = auto_for("shortfall", method)
    search = _Search(base, [(tail_probability, sign)], method, key, settings)
    [edge] = search.run()
    level = tail_probability if lower else 1 - tail_probability
    edge = dataclasses.replace(edge, level=level)
    excess = OutputEstimate(math.nan, math.inf)
    spent = search.num_evaluations, search.num_gradients
    if math.isfinite(edge.value):
        question = Derived(base, f"{base.name} beyond its quantile", excess_over)
        estimate = estimate_expectation(
            question({"sign": float(sign), "threshold": sign * edge.value}),
            method,
            rng_key=named_key(key, "shortfall"),
            throw=False,
            **settings,
        )
        [excess] = estimate.outputs
        spent = spent[0] + estimate.num_evaluations, spent[1] + estimate.num_gradients
    found = Shortfall(
        program=base.name,
        tail_probability=tail_probability,
        value=edge.value + sign * excess.value / tail_probability,
        standard_error=excess.standard_error / tail_probability + _second_order(edge),
        quantile=edge,
        excess=excess,
        findings=(*edge.findings, *excess.findings),
        num_evaluations=spent[0],
        num_gradients=spent[1],
    )
    if throw and not found.status:
        raise EstimationError(found)
    return found


def excess_over(numbers: Any, value: Any) -> jax.Array:
    """By how much the return value, with a sign, is beyond a threshold."""
    number = jnp.asarray(value, float).reshape(())
    return jnp.maximum(numbers["sign"] * number - numbers["threshold"], 0.0)


def _second_order(edge: Quantile) -> float:
    """How much too large the shortfall is on average because of the quantile's error."""
    if edge.is_exact or not math.isfinite(edge.standard_error):
        return 0.0
    return edge.standard_error**2 / (2 * edge.beyond.scale())
