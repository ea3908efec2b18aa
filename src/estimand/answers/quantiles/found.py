"""Quantiles of a return value as they were found, with their intervals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from estimand import record as records
from estimand.answers.reported import Reported
from estimand.answers.tail import Beyond, Curve
from estimand.estimate import Estimate
from estimand.trust import (
    Finding,
    OutputEstimate,
    Status,
    most_severe,
    thresholds,
    worst,
)
from estimand.view import Summary, Table


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Quantile:
    """One quantile of a return value: the smallest number t with P(f ≤ t) ≥ level.

    The interval is that of `tail`, the probability beyond `threshold`, inverted by `curve`: all
    numbers at which the probability may be the wanted one, which is all of a gap of the
    distribution beside which the quantile is. The error is such that several of them reach as far
    as that of the probability does. An atom of a discrete distribution `is_exact`: its interval is
    the atom itself. `atoms` are those that it may be.
    """

    level: float
    tail_probability: float
    value: float
    standard_error: float
    is_exact: bool
    tail: OutputEstimate
    curve: Curve = dataclasses.field(repr=False)
    sign: int = 1
    findings: tuple[Finding, ...] = ()
    atoms: tuple[float, ...] = ()

    @property
    def status(self) -> Status:
        return most_severe(self.findings)

    @property
    def beyond(self) -> Beyond:
        """Draws beyond the threshold."""
        return self.curve.beyond

    @property
    def threshold(self) -> float:
        """The number whose tail probability was estimated."""
        return self.sign * self.beyond.threshold

    @property
    def text(self) -> str:
        """The number with its error."""
        number = f"{self.value:.6g}"
        return f"{number} exactly" if self.is_exact else f"{number} ± {self.standard_error:.2g}"

    def interval(self, level: float = thresholds.CONFIDENCE) -> tuple[float, float]:
        """Confidence interval; a single number if the quantile is known to be that."""
        if not 0 < level < 1:
            raise ValueError(f"interval: level must be between 0 and 1; it is {level}.")
        if self.atoms:
            return min(self.atoms), max(self.atoms)
        if not math.isfinite(self.standard_error):
            return -math.inf, math.inf
        reach = records.quantile(0.5 + level / 2, self.tail.degrees) * log_error_of(self)
        depth = depth_of(self.tail, self.tail_probability)
        low, high = (self.sign * self.curve.reach(depth + side * reach) for side in (-1, 1))
        return min(low, high), max(low, high)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Quantiles(Reported):
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
    provenance: records.Provenance = dataclasses.field(repr=False)
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
            rows.append(
                (
                    f"{tail.level:.10g}",
                    f"{tail.tail_probability:.4g} {'above' if tail.sign > 0 else 'below'}",
                    tail.text,
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


def depth_of(tail: OutputEstimate, probability: float) -> float:
    """By how much the logarithm of a tail probability is above the wanted one."""
    return math.log(tail.value) - math.log(probability)


def log_error_of(found: Quantile) -> float:
    """Standard error of the log tail probability at the quantile, draws beyond included."""
    local = found.curve.log_error(depth_of(found.tail, found.tail_probability))
    return math.hypot(found.tail.standard_error / found.tail.value, local)
