"""The program whose records the tests of results look at."""

from __future__ import annotations

from typing import Any

import numpyro
import numpyro.distributions as dist

import estimand as ep


@ep.expectation
def cube(y: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x**3
