"""Quadrature rules as points and weights, posterior means under a rule, and Gaussian algebra."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rule = tuple[Array, Array]


def gauss_rule(edges: Sequence[float] | Array, nodes: int = 40) -> Rule:
    """Gauss-Legendre points and weights on each interval between neighbouring edges."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    low, high = np.asarray(edges, float)[:-1, None], np.asarray(edges, float)[1:, None]
    half = (high - low) / 2
    return (low + half * (x + 1)).ravel(), (half * w).ravel()


def tanh_sinh_rule(edges: Sequence[float] | Array, step: float = 1 / 32) -> Rule:
    """Double-exponential points and weights on each interval between neighbouring edges."""
    t = np.arange(-3.2, 3.2 + step / 2, step)
    x = np.tanh(np.pi / 2 * np.sinh(t))
    w = step * np.pi / 2 * np.cosh(t) / np.cosh(np.pi / 2 * np.sinh(t)) ** 2
    low, high = np.asarray(edges, float)[:-1, None], np.asarray(edges, float)[1:, None]
    half = (high - low) / 2
    return (low + half * (x + 1)).ravel(), (half * w).ravel()


def even_rule(low: float, high: float, points: int) -> Rule:
    """The trapezoid rule: spectrally accurate for smooth densities that vanish at both ends."""
    x = np.linspace(low, high, points)
    w = np.full(points, (high - low) / (points - 1))
    w[[0, -1]] /= 2
    return x, w


def product_rule(first: Rule, second: Rule) -> tuple[tuple[Array, Array], Array]:
    """All pairs of points of two rules, with the products of their weights."""
    x, y = np.meshgrid(first[0], second[0], indexing="ij")
    return (x.ravel(), y.ravel()), np.outer(first[1], second[1]).ravel()


def integral(rule: tuple[Any, Array], function: Callable[..., Any]) -> float:
    """The sum of the weights times the function at the points of a rule."""
    return float(np.sum(rule[1] * function(rule[0])))


def posterior_means(
    rule: tuple[Any, Array],
    log_density: Callable[..., Any],
    *targets: Callable[..., Any],
) -> list[float]:
    """The mean of each target under an unnormalised log density."""
    points, weights = rule
    logs = log_density(points)
    mass = weights * np.exp(logs - np.max(logs))
    total = np.sum(mass)
    return [float(np.sum(mass * target(points)) / total) for target in targets]


def normal_posterior(
    y: Any, prior_mean: float, prior_sd: float, noise_sd: float
) -> tuple[float, float]:
    """The mean and standard deviation of a normal location, given rows with known noise."""
    y = np.asarray(y, float)
    precision = prior_sd**-2 + y.size * noise_sd**-2
    return (prior_mean * prior_sd**-2 + y.sum() * noise_sd**-2) / precision, precision**-0.5


def gaussian_posterior(
    prior_mean: Array, prior_cov: Array, design: Array, noise_cov: Array, y: Array
) -> tuple[Array, Array]:
    """The mean and covariance of x ~ N(prior), given y = design x + N(0, noise)."""
    gain = prior_cov @ design.T @ np.linalg.inv(design @ prior_cov @ design.T + noise_cov)
    mean = prior_mean + gain @ (y - design @ prior_mean)
    return mean, prior_cov - gain @ design @ prior_cov


def normal_log_density(x: Any, mean: Any = 0.0, sd: Any = 1.0) -> Any:
    """The logarithm of the normal density, by hand."""
    return -0.5 * ((x - mean) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi)


def normal_tail(threshold: float, mean: float = 0.0, sd: float = 1.0) -> float:
    """P(x > threshold) for a normal x, by quadrature of its density."""
    start = (threshold - mean) / sd
    if start < 0:
        return 1.0 - normal_tail(-start)
    rule = gauss_rule(np.linspace(start, start + 12, 13))
    return integral(rule, lambda z: np.exp(normal_log_density(z)))
