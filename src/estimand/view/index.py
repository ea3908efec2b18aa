"""The reliability index of an event."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from estimand.record import Record


class Index(NamedTuple):
    """β with its standard error and its interval."""

    value: float
    standard_error: float
    interval: tuple[float, float]


def index_of(record: Record, output: int) -> Index:
    """β = −Φ⁻¹(P) of one output, whose interval is that of P."""
    normal = statistics.NormalDist()
    estimate, (low, high) = record.outputs[output], record.bounds()[output]

    def beta(probability: float) -> float:
        if 0 < probability < 1:
            return -normal.inv_cdf(probability)
        return math.inf if probability <= 0 else -math.inf

    value = beta(estimate.value)
    slope = normal.pdf(value) if math.isfinite(value) else 0.0
    error = estimate.standard_error / slope if slope > 0 else math.inf
    return Index(value, error, (beta(high), beta(low)))
