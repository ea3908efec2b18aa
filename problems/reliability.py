"""Failures of systems in the plane: rare events with one or several limit states."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from scipy import stats

from problems.problem import Problem, problem_of, quad


def four_branch() -> Any:
    """Failure of a series system with four limit states."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    total, difference = (x[0] + x[1]) / math.sqrt(2), x[0] - x[1]
    bowl = 3.0 + 0.1 * difference**2
    edge = 7.0 / math.sqrt(2)
    curved = jnp.minimum(bowl - total, bowl + total)
    straight = jnp.minimum(difference + edge, edge - difference)
    return jnp.minimum(curved, straight) < 0.0


def rp22() -> Any:
    """Failure beyond one parabola."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    return 2.5 - (x[0] + x[1]) / math.sqrt(2) + 0.1 * (x[0] - x[1]) ** 2 < 0.0


def problems() -> list[Problem]:
    """Four branches and RP22."""
    # With s, d = (x1 +- x2) / sqrt(2) the limit states are |s| = 3 + d^2/5, |d| = 7/2 for the
    # four branches and s = 5/2 + d^2/5 for RP22.
    pdf, sf = stats.norm.pdf, stats.norm.sf
    curved = quad(lambda d: float(4 * pdf(d) * sf(3 + 0.2 * d**2)), 0.0, 3.5, 1.0)
    how = "rotated: one coordinate in closed form, the other by adaptive quadrature"
    return [
        problem_of(
            "four_branch",
            four_branch,
            (),
            plus=curved + 2 * float(sf(3.5)),
            minus=0.0,
            log_z2=0.0,
            how=how,
            tags="continuous vector rare event",
        ),
        problem_of(
            "rp22",
            rp22,
            (),
            plus=quad(lambda d: float(2 * pdf(d) * sf(2.5 + 0.2 * d**2)), 0.0, 12.0, 1.0, 3.0),
            minus=0.0,
            log_z2=0.0,
            how=how,
            tags="continuous vector rare event",
        ),
    ]
