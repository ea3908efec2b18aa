"""One number of an answer, with its error, its interval and its status."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from estimand.estimate import Estimate
from estimand.trust import Finding, OutputEstimate, Status, most_severe
from estimand.view import estimate_text


class Quantity(NamedTuple):
    """One number of an answer, with its error, its 95 % interval and its status."""

    value: float
    standard_error: float
    interval: tuple[float, float]
    findings: tuple[Finding, ...] = ()

    @classmethod
    def each(cls, estimate: Estimate) -> list[Quantity]:
        """Every output of an estimate; those that are constants by their expression are exact."""
        found = [
            cls(output.value, output.standard_error, interval, output.findings)
            for output, interval in zip(estimate.outputs, estimate.bounds(), strict=True)
        ]
        if estimate.density is None:
            return found
        low, high = estimate.density.bounds.low, estimate.density.bounds.high
        return [
            cls(float(low[k]), 0.0, (float(low[k]), float(low[k]))) if low[k] == high[k] else own
            for k, own in enumerate(found)
        ]

    @property
    def is_exact(self) -> bool:
        return self.standard_error == 0 and self.interval[0] == self.interval[1]

    @property
    def status(self) -> Status:
        return most_severe(self.findings)

    @property
    def text(self) -> str:
        """The number with its error, or what there is in its place."""
        if self.is_exact:
            return f"{self.value:.6g} exactly"
        if not math.isfinite(self.standard_error):
            low, high = self.interval
            is_bounded = low == 0 and math.isfinite(high)
            return f"below {high:.2g}" if is_bounded else "none found"
        return estimate_text(OutputEstimate(self.value, self.standard_error))

    def __str__(self) -> str:
        return self.text if self.status else f"{self.text} ({self.status.name})"

    def __repr__(self) -> str:
        return str(self)


def columns(what: str, quantity: Quantity | None) -> dict[str, Any]:
    """A number as columns of a table, whose names begin with what it is."""
    if quantity is None:
        return {}
    low, high = quantity.interval
    return {
        what: quantity.value,
        f"{what}_error": quantity.standard_error,
        f"{what}_low": low,
        f"{what}_high": high,
        f"{what}_status": quantity.status.name,
    }
