"""One quantile on its way: thresholds that come closer to it, from both sides of an atom or not."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from estimand.answers.quantiles.found import Quantile, depth_of, log_error_of
from estimand.answers.tail import Beyond, Curve, Gap
from estimand.estimate import Estimate
from estimand.trust import (
    Finding,
    OutputEstimate,
    Status,
    check_size,
    no_mass,
    thresholds,
)

# Rounds of thresholds, at the most: each comes closer, and one that is close enough is the last.
MAX_ROUNDS = 15
# By how much the logarithm of the probability beyond the threshold before the last one may be off.
CLOSE = 0.3
# The last one may turn out to be so far behind it, where draws from before it show the way.
BEHIND = 0.1
# Standard errors between a probability and the wanted one for which a value is said to be exact.
CERTAIN = thresholds.MAX_JOINT_ERRORS
# Standard errors of the log probability for which one standard error of the quantile, so many
# times, reaches as far.
REACHES = (1.0, 2.0, CERTAIN)
# How many times the lead of the last threshold other draws should go back before it.
BACK = 2.0
# Effective draws beyond a threshold that the next one is taken from.
MIN_DRAWS = 50.0


class Known(NamedTuple):
    """The probability beyond a threshold, and draws from there."""

    tail: OutputEstimate
    beyond: Beyond

    def depth(self, probability: float) -> float:
        return depth_of(self.tail, probability)

    @property
    def threshold(self) -> float:
        return self.beyond.threshold


class Level:
    """One quantile on its way, with the sign of f such that it is in the upper tail."""

    def __init__(self, probability: float, sign: int, lead: float):
        self.probability, self.sign, self.lead = probability, sign, lead
        self.next: float | None = None
        self.atom: float | None = None
        self.sides: tuple[float, float] = (math.nan, math.nan)
        self.samples: list[Beyond] = []
        self.known: list[Known] = []
        self.latest: list[Known] = []
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
        self.samples.append(sample)
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
        self.latest.append(Known(tail, sample))

    def is_close(self, behind: float) -> bool:
        """Whether the latest thresholds are close to the quantile, and not so far behind it."""
        if self.failure is not None:
            return True
        if not self.known:
            return False
        if self.atom is not None:
            return len(self.known) == 2 and self._is_between()
        if len(self.known) != 1 or not -behind <= self.known[0].depth(self.probability) <= CLOSE:
            return False
        return behind != BEHIND or self._is_covered()

    def _is_covered(self) -> bool:
        """Whether draws show what lies on both sides of the quantile."""
        [known] = self.known
        low, _ = self._span(known, self._curve(known.beyond))
        return self._curve(known.beyond).covers(low)

    def _curve(self, beyond: Beyond) -> Curve:
        """With draws from an earlier threshold, the most that go back far enough."""

        def worth(sample: Beyond) -> tuple[bool, float]:
            is_beyond = sample.values > beyond.threshold
            share = float(sample.weights[is_beyond].sum())
            goes_back = 0 < share <= math.exp(-BACK * self.lead)
            return goes_back and share * sample.size >= MIN_DRAWS, share * sample.size

        earlier = [sample for sample in self.samples if sample.threshold < beyond.threshold]
        return Curve.of(beyond, max(earlier, key=worth, default=None))

    def _span(self, known: Known, curve: Curve) -> tuple[float, float]:
        """The depths between which the quantile is for certain."""
        depth = known.depth(self.probability)
        relative = known.tail.standard_error / known.tail.value
        reach = CERTAIN * math.hypot(relative, curve.log_error(depth))
        return depth - reach, depth + reach

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
        self.samples += [item.beyond for item in usable]
        for item in usable:
            depth = item.depth(self.probability)
            if depth > CLOSE:
                self.low = max(self.low, item.threshold)
            elif depth < -CLOSE:
                self.high = min(self.high, item.threshold)
        self._next(usable)

    def _next(self, usable: list[Known]) -> None:
        if self.atom is not None and self._is_between():
            return
        above = [item for item in usable if item.depth(self.probability) > 0]
        best = above[-1] if above else usable[0]
        self._aim(best.beyond, best.depth(self.probability))

    def _aim(self, sample: Beyond, depth: float) -> None:
        """The threshold at which the probability has fallen by a factor e^depth."""
        self.seen = np.union1d(self.seen, sample.values)
        self.atoms = np.union1d(self.atoms, sample.values[sample.is_atom])
        aim = depth - self.lead
        curve = self._curve(sample) if aim < 0 and math.isfinite(sample.threshold) else None
        reach = sample.reach if curve is None or not curve.covers(aim) else curve.reach
        self.next, self.atom = self._within(reach(aim)), None
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

    def _retreat(self, failed: Known) -> None:
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
        curve = self._curve(known.beyond)
        low, high = self._span(known, curve)
        if gap := curve.gap(low, high):
            findings += (self._beside(gap, known, curve),)
        found = Quantile(
            level=math.nan,
            tail_probability=self.probability,
            value=self.sign * curve.reach(depth),
            standard_error=math.inf,
            is_exact=False,
            tail=known.tail,
            curve=curve,
            sign=self.sign,
            findings=findings,
        )
        error, value = log_error_of(found), curve.reach(depth)
        reaches = [
            max(abs(curve.reach(depth + side * number * error) - value) for side in (-1, 1))
            / number
            for number in REACHES
        ]
        return dataclasses.replace(found, standard_error=max(reaches))

    def _beside(self, gap: Gap, known: Known, curve: Curve) -> Finding:
        """The finding that the quantile may be on either side of a gap of the distribution."""
        low, high = sorted(self.sign * end for end in (gap.low, gap.high))
        beyond = known.tail.value * math.exp(-gap.depth)
        error = beyond * math.hypot(
            known.tail.standard_error / known.tail.value, curve.log_error(gap.depth)
        )
        detail = (
            f"between {low:.4g} and {high:.4g} there is hardly any mass, and the quantile could be "
            f"at either end: P(f {'>' if self.sign > 0 else '<'} {(low + high) / 2:.4g}) is "
            f"{beyond:.4g} ± {error:.1g}, too close to {self.probability:.4g}: ask for a smaller "
            "relative_error"
        )
        return Finding(Status.not_converged, None, detail, "gap")

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
            curve=Curve.of(left.beyond),
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
            curve=Curve.of(empty),
            sign=self.sign,
            findings=findings,
        )


def _is_usable(known: Known) -> bool:
    """Whether there is a number, and draws to go on from."""
    tail = known.tail
    is_number = math.isfinite(tail.standard_error) and tail.value > 0
    return is_number and known.beyond.values.size > 0
