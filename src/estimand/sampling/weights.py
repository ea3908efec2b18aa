"""What a set of weights says: effective sample size, mean, tail."""

from __future__ import annotations

import math
import sys

import jax
import numpy as np


def total(counts: jax.Array) -> int:
    """The sum of counts, which may be beyond 32 bits, as a Python integer."""
    return int(np.asarray(counts).sum(dtype=np.int64))


def effective_sample_size(log_weights: np.ndarray) -> float:
    """(Σw)² / Σw² of weights given by their logarithms; 0 when all are zero."""
    log_weights = np.asarray(log_weights, float)
    if log_weights.size == 0 or not np.max(log_weights) > -np.inf:
        return 0.0
    weights = np.exp(log_weights - np.max(log_weights))
    return float(weights.sum() ** 2 / (weights**2).sum())


def log_mean(log_values: np.ndarray) -> float:
    """log of the mean of numbers given by their logarithms."""
    top = log_values.max(initial=-np.inf)
    if not top > -np.inf:
        return -math.inf
    return float(top + np.log(np.mean(np.exp(log_values - top))))


def pareto_k(log_weights: np.ndarray) -> float:
    """Tail index of the weights: the shape of a generalised Pareto fitted to the largest.

    The estimate of Zhang and Stephens (2009) with the weak prior at ½ and the tail length
    min(n/5, 3√n) of Vehtari et al. (2024). NaN when there are too few weights to say.
    """
    log_weights = np.sort(np.asarray(log_weights, float))
    tail = min(log_weights.size // 5, math.ceil(3 * math.sqrt(log_weights.size)))
    if tail < 5 or not log_weights[-tail - 1] > -np.inf:
        return math.nan
    weights = np.exp(log_weights[-tail - 1 :] - log_weights[-1])
    excess = weights[1:] - weights[0]
    if not excess[0] > 0:
        excess = excess[excess > 0]
        if excess.size < 5:
            return -math.inf
    return _generalised_pareto_shape(excess)


def _generalised_pareto_shape(excess: np.ndarray) -> float:
    size = excess.size
    grid = 30 + math.isqrt(size)
    quartile = excess[int(size / 4 + 0.5) - 1]
    steps = 1 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))
    if not quartile > sys.float_info.min / excess[-1]:
        return math.inf  # Weights that differ by more than all numbers do.
    theta = steps / (3 * quartile) + 1 / excess[-1]
    shapes = np.mean(np.log1p(-theta[:, None] * excess), axis=1)
    # Where theta is 0 the law is an exponential one, whose scale is the mean.
    scales = np.full(theta.size, excess.mean())
    np.divide(-shapes, theta, out=scales, where=theta != 0)
    log_likelihood = size * (-np.log(scales) - shapes - 1)
    posterior = np.exp(log_likelihood - log_likelihood.max())
    mean_theta = np.sum(theta * posterior) / posterior.sum()
    shape = np.mean(np.log1p(-mean_theta * excess))
    return float((size * shape + 5.0) / (size + 10.0))


def relative_weights(log_weights: np.ndarray, mean: float | None = None) -> np.ndarray:
    """Weights divided by their mean, the log of which may be known already."""
    mean = log_mean(log_weights) if mean is None else mean
    return np.exp(log_weights - mean) if mean > -np.inf else np.zeros(log_weights.size)
