"""Bound programs with known answers, by name: the table's, and families in any dimension."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import estimand as ep
from problems import gaussian
from problems.eight_schools import eight_schools_means
from problems.table import PROBLEMS


class Known(NamedTuple):
    """A bound program; the truth of each output, and E|f| of each.

    `log_z` has log Z2, and log Z1⁺ and log Z1⁻ of the first output; NaN where it is not known.
    """

    expectation: Any
    values: np.ndarray
    magnitudes: np.ndarray
    log_z: tuple[float, float, float] = (math.nan,) * 3

    @property
    def scales(self):
        """What errors are relative to: the truth, or E|f| where the truth is 0."""
        return np.where(self.values != 0, np.abs(self.values), self.magnitudes)


@functools.cache
def known(name):
    """The problem of this name; the same object each time, so that nothing compiles again."""
    if name in PROBLEMS:
        return _tabled(PROBLEMS[name])
    family, _, size = name.rpartition("_")
    return FAMILIES[family](int(size)) if size.isdigit() else OTHERS[name]()


def _tabled(problem, model=None, outputs=slice(None)):
    values = np.atleast_1d(problem.value)
    parts = [np.atleast_1d(part) for part in (problem.log_z1_plus, problem.log_z1_minus)]
    magnitudes = sum(np.exp(part - problem.log_z2) for part in parts)
    expectation = ep.expectation(model or problem.model)(*problem.args)
    log_z = (problem.log_z2, *(float(part[0]) for part in parts))
    return Known(expectation, values[outputs], magnitudes[outputs], log_z)


def _single(model, args, value):
    return Known(ep.expectation(model)(*args), np.array([value]), np.array([abs(value)]))


# --- the smooth targets of problems that also have events ---


def _eight_schools_means():
    return _tabled(PROBLEMS["eight_schools"], eight_schools_means, slice(2))


# --- a kink ---


def normal_excess():
    """By how much a standard normal variable exceeds 3."""
    return jnp.maximum(numpyro.sample("x", dist.Normal(0.0, 1.0)) - 3.0, 0.0)


def _normal_excess():
    density = math.exp(-4.5) / math.sqrt(2 * math.pi)
    return _single(normal_excess, (), density - 1.5 * math.erfc(3 / math.sqrt(2)))


# --- a Gaussian in any dimension ---


def _gaussian(dimension):
    """The paper's first problem: E = N(−y; y/2, I), with |y| = 3.5."""
    arguments = (gaussian.data(dimension),)
    return _single(gaussian.posterior_predictive, arguments, gaussian.expectation(dimension))


# --- many groups ---

MEAN_SD, GROUP_SD, NOISE_SD = 2.0, 1.0, 1.0


def groups(group, y, new, new_sd, num_groups):
    """How likely is a new measurement of the average effect of all groups?"""
    mu = numpyro.sample("mu", dist.Normal(0.0, MEAN_SD))
    with numpyro.plate("groups", num_groups):
        theta = numpyro.sample("theta", dist.Normal(mu, GROUP_SD))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(theta[group], NOISE_SD), obs=y)
    return jnp.exp(dist.Normal(jnp.mean(theta), new_sd).log_prob(new))


def groups_data(num_groups):
    """One to five rows for each group."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(num_groups), 1 + np.arange(num_groups) % 5)
    effects = 0.7 + GROUP_SD * rng.normal(size=num_groups)
    return group, effects[group] + NOISE_SD * rng.normal(size=len(group))


def groups_posterior(group, y, num_groups):
    """Mean and variance of the average effect given the data, in closed form."""
    counts = np.bincount(group, minlength=num_groups)
    sums = np.bincount(group, weights=y, minlength=num_groups)
    prior = np.full((num_groups, num_groups), MEAN_SD**2) + GROUP_SD**2 * np.eye(num_groups)
    covariance = np.linalg.inv(np.linalg.inv(prior) + np.diag(counts) / NOISE_SD**2)
    mean = covariance @ sums / NOISE_SD**2
    return mean.mean(), covariance.mean()


def _groups(num_groups):
    """The new measurement is five posterior standard deviations off, with half of one of noise.

    What matters lies four standard deviations out, where one posterior draw in 30,000 comes.
    """
    group, y = groups_data(num_groups)
    mean, variance = groups_posterior(group, y, num_groups)
    new, new_sd = mean + 5 * math.sqrt(variance), math.sqrt(variance) / 2
    total = variance + new_sd**2
    value = math.exp(-0.5 * (new - mean) ** 2 / total) / math.sqrt(2 * math.pi * total)
    return _single(groups, (group, y, new, new_sd, num_groups), value)


# --- two modes at a distance ---

MODE_DISTANCE = 4.0


def two_modes(centre, widths):
    """Two Gaussian bumps, at centre and at −centre, that carry half of the expectation each."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([len(centre)]).to_event(1))
    logs = []
    for number, sign in enumerate((1.0, -1.0)):
        width = widths[number]
        bump = dist.Normal(sign * centre, width).log_prob(x)
        # Its average over the prior, N(centre; 0, 1 + width²), in each coordinate.
        average = dist.Normal(0.0, jnp.sqrt(1.0 + width**2)).log_prob(centre)
        logs.append(jnp.sum(bump - average))
    return 0.5 * (jnp.exp(logs[0]) + jnp.exp(logs[1]))


def _two_modes(widths, dimension):
    centre = np.full(dimension, MODE_DISTANCE / math.sqrt(dimension))
    return _single(two_modes, (centre, np.array(widths)), 1.0)


FAMILIES: dict[str, Callable[[int], Known]] = {
    "gaussian": _gaussian,
    "groups": _groups,
    "equal_modes": functools.partial(_two_modes, (0.3, 0.3)),
    "unequal_modes": functools.partial(_two_modes, (0.3, 0.2)),
}
OTHERS: dict[str, Callable[[], Known]] = {
    "eight_schools_means": _eight_schools_means,
    "normal_excess": _normal_excess,
}
