"""Errors of anything that is computed from means of draws, by independent replicates of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from estimand.trust.evidence import Evidence
from estimand.trust.outputs import Variance, joint_degrees

# Batches of independent draws that stand for replicates where a method has none of its own.
NUM_BATCHES = 16


def has_islands(evidence: Evidence) -> bool:
    """Whether the evidence is that of independent islands."""
    return evidence.trace is not None and np.ndim(evidence.trace.betas) == 2


def replicates_of(evidence: Evidence) -> np.ndarray | None:
    """For every draw the number of the independent replicate that it belongs to.

    None where draws may depend on each other and nothing says which ones do not.
    """
    count = np.size(evidence.log_weights)
    if evidence.replicate is not None:
        return np.asarray(evidence.replicate)
    if has_islands(evidence):
        assert evidence.trace is not None
        num_islands = np.shape(evidence.trace.betas)[0]
        return np.repeat(np.arange(num_islands), count // num_islands)
    log_weights = np.asarray(evidence.log_weights, float)
    if count < 2 * NUM_BATCHES or (log_weights == log_weights[0]).all():
        return None
    return np.arange(count) * NUM_BATCHES // count


class Jackknifed(NamedTuple):
    """A function of means, with its standard error and the degrees of freedom of that."""

    value: np.ndarray
    standard_error: np.ndarray
    degrees: float


def jackknife(function: Callable[..., np.ndarray], *groups: np.ndarray) -> Jackknifed:
    """A smooth function of means over replicates, by leaving out one replicate after the other.

    Args:
        function: takes the mean of each group along its first axis, and gives an array.
        groups: each has a row for every replicate of its own, independent of the other groups.
    """
    means = [group.mean(axis=0) for group in groups]
    value = np.asarray(function(*means))
    variances = []
    for k, group in enumerate(groups):
        count = len(group)
        without = (count * means[k] - group) / (count - 1)
        found = np.asarray([function(*means[:k], row, *means[k + 1 :]) for row in without])
        variances.append((count - 1) ** 2 / count * found.var(axis=0, ddof=1))
    each = [
        Variance(float(np.mean(variance)), len(group) - 1.0)
        for variance, group in zip(variances, groups, strict=True)
    ]
    return Jackknifed(value, np.sqrt(sum(variances)), joint_degrees(each))
