"""How the estimate of an output settled as more of its draws were counted."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from estimand.density import GRADIENT_COST
from estimand.methods import Run
from estimand.record.parts import DENSITY_NAMES, independent_log_weights
from estimand.sampling import log_mean
from estimand.trust import Evidence, OutputEstimate, thresholds

NUM_PATH_POINTS = 40
FIRST_SHARE = 1 / 128
_SIGNS = {"gamma1_plus": 1.0, "gamma1_minus": -1.0}


class Settling(NamedTuple):
    """How the estimate of one output settled: what the first draws said, at their cost."""

    cost: np.ndarray
    value: np.ndarray
    standard_error: np.ndarray


def settling(run: Run, number: int) -> Settling:
    """The estimate from growing shares of the draws of every part.

    Errors are those of independent draws, scaled so that the last one is the reported error.
    """
    output, cost = run.outputs[number], run.cost.spent
    last = Settling(
        np.asarray([float(cost)]),
        np.asarray([output.value]),
        np.asarray([output.standard_error]),
    )
    used = _evidence(output)
    if "gamma2" not in used or len(used) == 1 or not math.isfinite(output.standard_error):
        return last
    log_weights = {name: independent_log_weights(evidence) for name, evidence in used.items()}
    # A part whose weights all agree is taken as it is at the end.
    varying = [weights.size for weights in log_weights.values() if weights.size > 1]
    smallest = min(varying, default=0)
    if smallest < 4:
        return last
    own = float(sum(e.num_evaluations + GRADIENT_COST * e.num_gradients for e in used.values()))
    own = min(own or smallest, cost)
    sizes = np.geomspace(max(4.0, FIRST_SHARE * smallest), smallest, NUM_PATH_POINTS)
    shares = np.unique(np.round(sizes)) / smallest
    is_shared = len(varying) == len(used) and _are_shared(list(used.values()))
    prefixes = _prefixes(log_weights, shares, is_shared)
    if not prefixes.error[-1] > 0:
        return last
    scale = thresholds.exp(_log_scale(log_weights))
    value, error = prefixes.value * scale, prefixes.error * scale
    share = output.standard_error / error[-1]
    if not math.isclose(value[-1], output.value, rel_tol=1e-5):
        # Some of the draws' error was regressed out of the estimate, and so out of its path.
        value = output.value + (value - value[-1]) * min(1.0, share)
    return Settling(cost - own + shares * own, value, error * share)


def _evidence(output: OutputEstimate) -> dict[str, Evidence]:
    found = {name: getattr(output.parts, field) for field, name in DENSITY_NAMES.items()}
    return {
        name: evidence
        for name, evidence in found.items()
        if isinstance(evidence, Evidence) and math.isfinite(evidence.log_z)
    }


def _are_shared(evidence: list[Evidence]) -> bool:
    """Whether every part was estimated from the same draws."""
    first = np.asarray(evidence[0].positions)
    return all(
        np.shape(item.positions) == first.shape and np.array_equal(item.positions, first)
        for item in evidence[1:]
    )


def _log_scale(log_weights: dict[str, np.ndarray]) -> float:
    tops = [log_mean(log_weights[name]) for name in log_weights if name != "gamma2"]
    return max(tops) - log_mean(log_weights["gamma2"])


class _Prefixes(NamedTuple):
    """Value and unscaled error from the first draws, both relative to the largest part."""

    value: np.ndarray
    error: np.ndarray


def _prefixes(log_weights: dict[str, np.ndarray], shares: np.ndarray, is_shared: bool) -> _Prefixes:
    log_z2 = log_mean(log_weights["gamma2"])
    log_top = log_z2 + _log_scale(log_weights)
    sums: dict[str, np.ndarray] = {}
    weights, counts = {}, {}
    for name, logs in log_weights.items():
        weights[name] = np.exp(logs - (log_z2 if name == "gamma2" else log_top))
        counts[name] = np.maximum(np.ceil(shares * logs.size).astype(int), 1)
        sums[name] = np.cumsum(weights[name])[counts[name] - 1] / counts[name]
    with np.errstate(divide="ignore", invalid="ignore"):
        value = sum(sign * sums[name] for name, sign in _SIGNS.items() if name in sums)
        value = value / sums["gamma2"]
        if is_shared:
            signed = sum(sign * weights[name] for name, sign in _SIGNS.items() if name in weights)
            residual = signed - value[-1] * weights["gamma2"]
            variance = _mean_variance(residual, counts["gamma2"])
        else:
            variance = value[-1] ** 2 * _mean_variance(weights["gamma2"], counts["gamma2"])
            for name in _SIGNS.keys() & weights.keys():
                variance = variance + _mean_variance(weights[name], counts[name])
    return _Prefixes(value, np.sqrt(np.maximum(variance, 0.0)))


def _mean_variance(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The variance of the mean of the first so many values."""
    means = np.cumsum(values)[counts - 1] / counts
    squares = np.cumsum(values**2)[counts - 1] / counts
    return np.maximum(squares - means**2, 0.0) / counts
