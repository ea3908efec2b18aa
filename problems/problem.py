"""What a problem with known answers is, and the integrals that several of them need.

SciPy is imported where it is used: `benchmarks/cold_start.py` measures the imports of one model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

Number = float | tuple[float, ...]

TAGS = {
    "continuous": "every latent site is continuous",
    "discrete": "some latent site is discrete",
    "bounded": "some site lives on an interval",
    "half-line": "some site is positive",
    "simplex": "some site lives on a simplex",
    "dependent": "the support of one site depends on another",
    "vector": "some site is not a scalar",
    "signed": "some output has both parts, Z1_plus and Z1_minus",
    "rare": "the posterior has little mass where f matters",
    "event": "some output is an indicator",
    "multiple": "f is a tuple",
    "gradient": "log gamma and log |f| have useful gradients in every site",
}


@dataclass(frozen=True, eq=False)
class Problem:
    """A model and its exact answers. Tuples run over the outputs of f."""

    name: str
    model: Callable[..., Any]
    args: tuple[Any, ...]
    value: Number
    log_z2: float
    log_z1_plus: Number
    log_z1_minus: Number
    how: str
    tags: frozenset[str]


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def problem_of(
    name: str,
    model: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    plus: Number,
    minus: Number,
    log_z2: float,
    how: str,
    tags: str,
    value: Number | None = None,
) -> Problem:
    """Build a problem from the posterior means of max(f, 0) and max(-f, 0)."""
    if isinstance(plus, tuple) and isinstance(minus, tuple):
        difference: Number = tuple(p - m for p, m in zip(plus, minus, strict=True))
        log_plus: Number = tuple(log_z2 + _log(p) for p in plus)
        log_minus: Number = tuple(log_z2 + _log(m) for m in minus)
    else:
        assert isinstance(plus, float)
        assert isinstance(minus, float)
        difference = plus - minus
        log_plus, log_minus = log_z2 + _log(plus), log_z2 + _log(minus)
    value = difference if value is None else value
    labels = frozenset(tags.split())
    return Problem(name, model, args, value, log_z2, log_plus, log_minus, how, labels)


def panels(edges: tuple[float, ...], num_nodes: int) -> tuple[Array, Array]:
    """Nodes and weights of the Gauss-Legendre rule on each panel."""
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    starts, widths = np.array(edges[:-1])[:, None], np.diff(edges)[:, None]
    return (starts + widths * (nodes + 1) / 2).ravel(), (widths / 2 * weights).ravel()


def quad(f: Callable[[float], float], low: float, high: float, *points: float) -> float:
    """Adaptive quadrature that knows where the integrand bends."""
    from scipy import integrate

    edges = [low, *points, high]
    return math.fsum(
        integrate.quad(f, a, b, epsabs=1e-14, epsrel=1e-10)[0] for a, b in itertools.pairwise(edges)
    )


def normal_part(k: int, mean: float, sd: float) -> float:
    """E[x^k 1{x > 0}] for x ~ N(mean, sd^2), by the recursion of truncated moments."""
    from scipy import stats

    below, part = 0.0, float(stats.norm.cdf(mean / sd))
    for order in range(1, k + 1):
        edge = sd * float(stats.norm.pdf(mean / sd)) if order == 1 else 0.0
        below, part = part, mean * part + (order - 1) * sd**2 * below + edge
    return part
