"""The paper's figure 1: powers of a normal mean, given one observation.

SciPy is imported where it is used: `benchmarks/cold_start.py` measures this model's imports.
"""

from __future__ import annotations

import math
from typing import Any

import numpyro
import numpyro.distributions as dist

from problems.problem import Problem, normal_part, problem_of


def figure1(y: float) -> Any:
    """The cube of a normal mean; with y = 2 the expectation is 2.5."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x**3


def three_outputs(y: float) -> Any:
    """Three moments of a normal mean at once."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x, x**2, x**3


_CONJUGATE = "closed form: the posterior is N(y/2, 1/2), parts by truncated normal moments"


def _figure1(name: str, y: float) -> Problem:
    from scipy import stats

    m, sd = y / 2, math.sqrt(0.5)
    return problem_of(
        name,
        figure1,
        (y,),
        plus=normal_part(3, m, sd),
        minus=normal_part(3, -m, sd),
        value=m**3 + 1.5 * m,
        log_z2=float(stats.norm.logpdf(y, 0, math.sqrt(2))),
        how=_CONJUGATE,
        tags="continuous signed gradient",
    )


def _three_outputs(y: float) -> Problem:
    from scipy import stats

    m, sd = y / 2, math.sqrt(0.5)
    return problem_of(
        "three_outputs",
        three_outputs,
        (y,),
        plus=(normal_part(1, m, sd), m**2 + 0.5, normal_part(3, m, sd)),
        minus=(normal_part(1, -m, sd), 0.0, normal_part(3, -m, sd)),
        value=(m, m**2 + 0.5, m**3 + 1.5 * m),
        log_z2=float(stats.norm.logpdf(y, 0, math.sqrt(2))),
        how=_CONJUGATE,
        tags="continuous signed multiple gradient",
    )


def problems() -> list[Problem]:
    """Both signs, one of them, and expectations at and near zero."""
    return [
        _figure1("figure1", 2.0),
        _figure1("figure1_y3", 3.0),
        _figure1("figure1_zero", 0.0),
        _figure1("cancellation", 0.01),
        _three_outputs(3.0),
    ]
