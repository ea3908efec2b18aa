"""The radon model of the paper's section 5.3: its data, the NumPyro program, and the truth.

Given the means of intercepts and slopes and the residual scale, the counties are independent; each
slope integrates out in closed form, which leaves the intercept Gaussian, and the target a product
of one-dimensional integrals. The outer three parameters go on a trapezoidal grid in coordinates in
which the integrand is about a standard normal density: there the rule converges faster than any
power of the step. `python -m problems.radon` prints the truth of every reading of the model.
"""

from __future__ import annotations

import csv
import dataclasses
import enum
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpy.typing import NDArray
from scipy import optimize, special

from problems.problem import Problem

Array = NDArray[np.float64]
Function = Callable[[Array], Array]

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


def radon_step(county: np.ndarray, floor: np.ndarray, log_radon: np.ndarray) -> Any:
    """Every county below the limit, as an indicator."""
    return radon(county, floor, log_radon, step=True)


# The truth ---------------------------------------------------------------------------------------

# What `main` prints: the authors' code, the hard step in place of the smooth target, and the smooth
# target of all 85 counties.
EXPECTATION, HARD_STEP, ALL_COUNTIES = 3.68761219e-8, 1.30160740e-7, 3.47918605e-18

PRIOR_SD = 10.0
RESIDUAL_SCALE = 5.0
# Grid points evaluated at once.
CHUNK = 500


class Target(enum.Enum):
    """The function whose expectation is taken, of every county's intercept."""

    one = "1, which gives Z2"
    smooth = "product of logistic functions"
    step = "all levels below the limit"
    noisy_step = "all levels, with residual noise, below the limit"


class Counties(NamedTuple):
    """Sufficient statistics of each county's houses on floors 0 and 1, shape (2, counties)."""

    num_houses: Array
    mean: Array
    squares: Array

    @staticmethod
    def of(data: Data) -> Counties:
        shape = (2, int(data.county.max()) + 1)
        count, total, squares = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        cell = data.floor.astype(int), data.county
        np.add.at(count, cell, 1.0)
        np.add.at(total, cell, data.log_radon)
        mean = total / np.maximum(count, 1.0)
        np.add.at(squares, cell, (data.log_radon - mean[cell]) ** 2)
        return Counties(count, mean, squares)


def log_integrand(counties: Counties, reading: Reading, target: Target, outer: Array) -> Array:
    """log of γ·f integrated over intercepts and slopes.

    Args:
        counties: the data.
        reading: which of the published readings of the model.
        target: which f.
        outer: mean of the intercepts, mean of the slopes and log ε, shape (n, 3). The density is
            with respect to these.
    """
    mu_alpha, mu_beta, log_epsilon = (column[:, None] for column in outer.T)
    epsilon = np.exp(log_epsilon)
    variance = epsilon if reading.is_variance else epsilon**2
    log_z = -0.5 * ((mu_alpha**2 + mu_beta**2) / PRIOR_SD**2) - math.log(2 * math.pi * PRIOR_SD**2)
    log_z = log_z + np.log(2 / (math.pi * RESIDUAL_SCALE)) + log_epsilon
    log_z = log_z - np.log1p((epsilon / RESIDUAL_SCALE) ** 2)

    # The intercept's prior and what each floor says about it, as Gaussian factors.
    precision = np.full((len(outer), counties.mean.shape[1]), 1 / reading.intercept_sd**2)
    weighted = precision * mu_alpha
    quadratic = precision * mu_alpha**2
    log_scale = 0.5 * np.log(precision)
    for floor, (count, mean, squares) in enumerate(zip(*counties, strict=True)):
        offset, spread = (mu_beta, reading.slope_sd**2) if floor else (0.0, 0.0)
        has = count > 0
        safe = np.maximum(count, 1.0)
        p = has / (variance / safe + spread)
        residual = mean - offset
        precision, weighted = precision + p, weighted + p * residual
        quadratic = quadratic + p * residual**2
        within = -0.5 * (count * np.log(2 * math.pi * variance) + squares / variance)
        within = within + 0.5 * np.log(2 * math.pi * variance / safe) * has
        log_scale = log_scale + within + 0.5 * np.log(np.where(has, p / (2 * math.pi), 1.0))
    centre = weighted / precision
    log_county = log_scale - 0.5 * np.log(precision) - 0.5 * (quadratic - precision * centre**2)
    log_county = log_county + _log_mean_target(target, centre, 1 / precision, variance)
    return log_z[:, 0] + log_county.sum(axis=1)


def _log_mean_target(target: Target, mean: Array, variance: Array, noise: Array) -> Array:
    """log of one county's factor of f, averaged over its intercept ~ N(mean, variance)."""
    edge = math.log(LIMIT)
    if target is Target.one:
        return np.zeros_like(mean)
    if target is Target.step:
        return special.log_ndtr((edge - mean) / np.sqrt(variance))
    if target is Target.noisy_step:
        return special.log_ndtr((edge - mean) / np.sqrt(variance + noise))
    # Further down than up: where the mean is above the edge the target pulls the mass down.
    total, sd, width = np.zeros_like(mean), np.sqrt(variance), 0.25
    for node in np.arange(-14.0, 9.0 + width, width):
        level = np.exp(mean + sd * node)
        total += math.exp(-0.5 * node**2) * special.expit(-SHARPNESS * (level - LIMIT))
    with np.errstate(divide="ignore"):
        return np.log(total * width / math.sqrt(2 * math.pi))


def log_integral(
    data: Data, target: Target, reading: Reading = CODE, *, step: float = 0.5, reach: float = 8.0
) -> float:
    """log ∫ γ·f over all parameters.

    Args:
        data: the houses.
        target: which f.
        reading: which of the published readings of the model.
        step: distance of the grid's points, in standard deviations of the integrand.
        reach: half the width of the grid, in the same unit.
    """
    counties = Counties.of(data)

    def log_f(outer: Array) -> Array:
        return log_integrand(counties, reading, target, outer)

    mode, root = _mode(log_f)
    axis = np.arange(-round(reach / step), round(reach / step) + 1) * step
    grid = np.array(list(itertools.product(axis, repeat=3)))
    grid = mode + grid @ root.T
    logs = [log_f(grid[start : start + CHUNK]) for start in range(0, len(grid), CHUNK)]
    total = special.logsumexp(np.concatenate(logs))
    return float(total + 3 * math.log(step) + np.linalg.slogdet(root)[1])


def _mode(log_f: Function) -> tuple[Array, Array]:
    """The maximum, and a square root of the inverse Hessian there."""

    def minus(x: Array) -> float:
        return -float(log_f(x[None])[0])

    start = np.array([1.0, -0.5, 0.0])
    mode = optimize.minimize(minus, start, method="Nelder-Mead", options={"xatol": 1e-5}).x
    h = 1e-3
    steps = h * np.eye(3)
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    corners = [[mode + signs @ [a, b] for a in steps] for b in steps]
    values = log_f(np.reshape(corners, (-1, 3))).reshape(3, 3, 4)
    hessian = values @ [-1.0, 1.0, 1.0, -1.0] / (4 * h**2)
    return mode, np.linalg.cholesky(np.linalg.inv((hessian + hessian.T) / 2))


ROWS = {
    "20 counties, smooth": (False, CODE, Target.smooth),
    "the same, ε as standard deviation": (False, CODE_SD, Target.smooth),
    "the same, paper's standard deviations": (False, PAPER, Target.smooth),
    "20 counties, hard step": (False, CODE, Target.step),
    "20 counties, hard step with noise": (False, CODE, Target.noisy_step),
    "85 counties, smooth": (True, CODE, Target.smooth),
}


def _radon(
    name: str, model: Callable[..., Any], data: Data, log_z2: float, log_z1: float, tags: str
) -> Problem:
    return Problem(
        name=name,
        model=model,
        args=tuple(data),
        value=math.exp(log_z1 - log_z2),
        log_z2=log_z2,
        log_z1_plus=log_z1,
        log_z1_minus=-math.inf,
        how="counties in closed form and by one-dimensional "
        "quadrature, the other three parameters by the trapezoidal rule",
        tags=frozenset(tags.split()),
    )


def problems() -> list[Problem]:
    """The paper's target, the same as an indicator, and all 85 counties."""
    data, log_z2, tags = load(), -224.0416133308, "continuous half-line vector rare"
    return [
        _radon("radon", radon, data, log_z2, -241.1573149301, f"{tags} gradient"),
        _radon("radon_step", radon_step, data, log_z2, -239.8961090214, f"{tags} event"),
        _radon(
            "radon_85",
            radon,
            load(None),
            -1074.4262980040,
            -1114.6260313070,
            f"{tags} gradient",
        ),
    ]


def main() -> None:
    """Prints log Z2, log Z1 and E of every reading."""
    for name, (is_all, reading, target) in ROWS.items():
        data = load(None) if is_all else load()
        log_z2 = log_integral(data, Target.one, reading)
        log_z1 = log_integral(data, target, reading)
        print(f"{name:40} {log_z2:16.9f} {log_z1:16.9f} {math.exp(log_z1 - log_z2):.8e}")


if __name__ == "__main__":
    main()
