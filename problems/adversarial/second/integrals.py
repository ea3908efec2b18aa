"""Quadrature rules that the truths share: Gauss-Legendre, trapezoid, adaptive, and killed walks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import integrate

Array = NDArray[Any]
Rule = tuple[Array, ...]


def legendre(pieces: ArrayLike, nodes: int = 64) -> Rule:
    """Gauss-Legendre points and weights on each interval between neighbouring `pieces`."""
    unit, weight = np.polynomial.legendre.leggauss(nodes)
    edges = np.asarray(pieces, float)
    half = np.diff(edges)[:, None] / 2
    middle = (edges[1:] + edges[:-1])[:, None] / 2
    return (middle + half * unit).ravel(), (half * weight).ravel()


def trapezoid(low: float, high: float, nodes: int = 2001) -> Rule:
    """Equal weights: very accurate for smooth functions that vanish at both ends."""
    points = np.linspace(low, high, nodes)
    return points, np.full(nodes, points[1] - points[0])


def product(first: Rule, second: Rule) -> Rule:
    """The tensor product of two one-dimensional rules, as flat arrays x, y, weight."""
    x, y = np.meshgrid(first[0], second[0], indexing="ij")
    return x.ravel(), y.ravel(), np.outer(first[1], second[1]).ravel()


def integral(function: Callable[..., Any], rule: Rule) -> float:
    *points, weights = rule
    return float(np.sum(weights * function(*points)))


def adaptive(function: Callable[[float], float], pieces: Sequence[float]) -> float:
    """Sum of adaptive integrals over the intervals between neighbouring `pieces`."""
    return sum(
        integrate.quad(function, low, high, epsabs=0.0, epsrel=1e-11, limit=400)[0]
        for low, high in pairwise(pieces)
    )


def means(
    log_density: Callable[..., Any], targets: Sequence[Callable[..., Any]], rule: Rule
) -> list[float]:
    """Posterior means of `targets` under an unnormalised density."""
    *points, weights = rule
    logs = log_density(*points)
    mass = weights * np.exp(logs - np.max(logs))
    return [float(np.sum(mass * target(*points)) / np.sum(mass)) for target in targets]


def adaptive_means(
    log_density: Callable[..., Any],
    targets: Sequence[Callable[..., Any]],
    pieces: Sequence[float],
) -> list[float]:
    """The same as `means`, in one dimension, by adaptive quadrature."""
    top = max(float(log_density(x)) for x in np.linspace(pieces[0], pieces[-1], 4003)[1:-1])

    def mass(x: float) -> float:
        return float(np.exp(log_density(x) - top))

    norm = adaptive(mass, pieces)

    def mean(target: Callable[..., Any]) -> float:
        return adaptive(lambda x: mass(x) * float(target(x)), pieces) / norm

    return [mean(target) for target in targets]


def forward_walk(
    step: Callable[[Array], Array], start: float, count: int, rule: Rule
) -> tuple[Rule, Array]:
    """Density, at the rule's points, of a walk after `count` steps that never left the rule."""
    points, weights = rule
    density = step(points - start)
    kernel = step(points[:, None] - points[None, :]) * weights[None, :]
    for _ in range(count - 1):
        density = kernel @ density
    return rule, density


def backward_walk(
    step: Callable[[Array], Array],
    value: Callable[[Array], Array],
    start: float,
    count: int,
    rule: Rule,
) -> float:
    """Mean of `value` at the end of a walk that stays in the rule, from the last step backwards."""
    points, weights = rule
    future = value(points)
    kernel = step(points[None, :] - points[:, None]) * weights[None, :]
    for _ in range(count - 1):
        future = kernel @ future
    return float(np.sum(weights * step(points - start) * future))


def nan() -> list[float]:
    """The mean does not exist."""
    return [np.nan]
