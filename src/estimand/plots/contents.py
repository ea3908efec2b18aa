"""What the plots read from a record."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from estimand.plots.style import DENSITIES
from estimand.record import KeptDraws, PartSummary, Record, confidence_interval
from estimand.trust import thresholds


class IntervalPath(NamedTuple):
    """How an estimate and its 95 % interval settled, at growing cost."""

    cost: np.ndarray
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def interval_path(record: Record, output: int) -> IntervalPath:
    """The estimate and its interval from growing shares of the draws."""
    path, final = record.paths[output], record.outputs[output]
    intervals = []
    for value, error in zip(path.value, path.standard_error, strict=True):
        so_far = final._replace(
            value=float(value), standard_error=float(error), upper_bound=math.inf
        )
        intervals.append(confidence_interval(so_far, False, thresholds.CONFIDENCE))
    low, high = np.asarray(intervals).T
    return IntervalPath(path.cost, path.value, low, high)


def has_path(record: Record, output: int) -> bool:
    """Whether the record says how the estimate settled, not only where it ended."""
    return len(record.paths[output].cost) > 1


def has_posterior_weights(record: Record, output: int) -> bool:
    """Whether the record has the weights of the posterior."""
    return record.part("gamma2", output) is not None


def has_temperatures(record: Record, output: int) -> bool:
    """Whether the method went from the prior to a density through temperatures."""
    return bool(tempered_parts_of(record, output))


def has_draws(record: Record, output: int) -> bool:
    """Whether the record has draws of at least one latent site."""
    return bool(draws_of(record, output) and coordinates(record))


def parts_of(record: Record, output: int) -> list[PartSummary]:
    """The densities that the estimate of an output rests on."""
    found = (record.part(name, output) for name in DENSITIES)
    return [part for part in found if part is not None]


def tempered_parts_of(record: Record, output: int) -> list[PartSummary]:
    """The densities of an output that were reached through temperatures."""
    return [part for part in parts_of(record, output) if part.betas.size]


def draws_of(record: Record, output: int) -> list[KeptDraws]:
    """The draws of the densities of an output."""
    found = (record.draws_of(name, output) for name in DENSITIES)
    return [draws for draws in found if draws is not None]


def coordinates(record: Record) -> list[str]:
    """The names of the program's coordinates, such as ``x`` and ``w[2]``."""
    return list(by_coordinate(record.draws[0])) if record.draws else []


def by_coordinate(draws: KeptDraws) -> dict[str, np.ndarray]:
    """The values of draws, by the name of the coordinate."""
    columns = {}
    for name, values in draws.sites.items():
        for index in np.ndindex(*values.shape[1:]):
            label = f"{name}[{', '.join(map(str, index))}]" if index else name
            columns[label] = np.asarray(values[(slice(None), *index)], float)
    return columns
