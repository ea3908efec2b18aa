"""The radon model of the paper's section 5.3: its data, and the NumPyro program."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

# The counties that the authors' code keeps.
COUNTIES = (
    "BIG STONE",
    "CHIPPEWA",
    "HUBBARD",
    "JACKSON",
    "KITTSON",
    "KOOCHICHING",
    "LYON",
    "MARSHALL",
    "MCLEOD",
    "MILLE LACS",
    "MOWER",
    "OTTER TAIL",
    "PIPESTONE",
    "SIBLEY",
    "STEARNS",
    "WADENA",
    "WASHINGTON",
    "WATONWAN",
    "WRIGHT",
    "YELLOW MEDICINE",
)
LIMIT = 4.0
SHARPNESS = 5.0


class Data(NamedTuple):
    """One entry per house; `county` counts from 0 in the order of the names."""

    county: np.ndarray
    floor: np.ndarray
    log_radon: np.ndarray


def load(counties: Sequence[str] | None = COUNTIES) -> Data:
    """The houses in these counties, or all 919 in all 85 counties if None."""
    with (Path(__file__).parent / "radon.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = sorted({row["county"] for row in rows}) if counties is None else list(counties)
    index = {name: number for number, name in enumerate(names)}
    kept = [row for row in rows if row["county"] in index]
    missing = index.keys() - {row["county"] for row in kept}
    if missing:
        raise ValueError(f"radon.csv has no county {', '.join(sorted(missing))}.")
    return Data(
        np.array([index[row["county"]] for row in kept]),
        np.array([float(row["floor"]) for row in kept]),
        np.array([float(row["log_radon"]) for row in kept]),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """What paper and code disagree about.

    Args:
        intercept_sd: standard deviation of the counties' intercepts about their mean.
        slope_sd: the same of the slopes.
        is_variance: the residual parameter is a variance; otherwise a standard deviation.
    """

    intercept_sd: float = math.exp(-2.1)
    slope_sd: float = math.exp(-1.5)
    is_variance: bool = True


CODE = Reading()
CODE_SD = Reading(is_variance=False)
PAPER = Reading(intercept_sd=0.12, slope_sd=0.22, is_variance=False)


def radon(
    county: np.ndarray,
    floor: np.ndarray,
    log_radon: np.ndarray,
    *,
    step: bool = False,
    smallest: float = 0.0,
    reading: Reading = CODE,
) -> Any:
    """Whether every county's radon level on floor 0 is below the limit.

    Args:
        county: number of each house's county.
        floor: 0 or 1.
        log_radon: logarithm of the measured activity.
        step: an indicator, instead of the paper's product of logistic functions.
        smallest: lower bound of the smooth target; the authors' code has 1e-200 here, against
            underflow.
        reading: which of the published readings of the model.
    """
    num_counties = int(county.max()) + 1
    mu_alpha = numpyro.sample("mu_alpha", dist.Normal(0.0, 10.0))
    mu_beta = numpyro.sample("mu_beta", dist.Normal(0.0, 10.0))
    with numpyro.plate("counties", num_counties):
        alpha = numpyro.sample("alpha", dist.Normal(mu_alpha, reading.intercept_sd))
        beta = numpyro.sample("beta", dist.Normal(mu_beta, reading.slope_sd))
    epsilon = numpyro.sample("epsilon", dist.HalfCauchy(5.0))
    sd = jnp.sqrt(epsilon) if reading.is_variance else epsilon
    with numpyro.plate("houses", len(log_radon)):
        mean = alpha[county] + beta[county] * floor
        numpyro.sample("log_radon", dist.Normal(mean, sd), obs=log_radon)
    level = jnp.exp(alpha)
    if step:
        return jnp.all(level < LIMIT)
    target = jnp.exp(jnp.sum(jax.nn.log_sigmoid(-SHARPNESS * (level - LIMIT))))
    return jnp.maximum(target, smallest) if smallest else target
