"""Numbers that single precision cannot hold, and data that contradict the prior."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import ndtr, xlog1py, xlogy
from scipy.stats import beta, gamma, norm

from problems.adversarial.program import Adversarial
from problems.adversarial.second.integrals import (
    adaptive,
    adaptive_means,
    integral,
    legendre,
    means,
    trapezoid,
)


def fifty_million_photons(count):
    rate = numpyro.sample("rate", dist.Gamma(4.0, 1e-7))
    numpyro.sample("count", dist.Poisson(rate), obs=count)
    return rate > 50_010_000.0


def fifty_million_photons_check():
    # Log density relative to the count, without cancellation: n (log(1 + d) - d), d = rate / n - 1.
    n = 50_000_126 / (1 + 1e-7)

    def density(d: float) -> float:
        return np.exp(50_000_126 * (np.log1p(d) - d) if abs(d) > 1e-3 else series(d))

    def series(d: float) -> float:
        terms = [(-1) ** (k + 1) * d**k / k for k in range(2, 9)]
        return 50_000_126 * sum(terms)

    s = 50_000_126**-0.5
    cut = 50_010_000 / n - 1
    beyond = adaptive(density, [cut, cut + 2 * s, cut + 5 * s, cut + 10 * s])
    return [beyond / adaptive(density, [-10 * s, -3 * s, 0, cut, cut + 3 * s, cut + 10 * s])]


def two_landing_pages(buyers, visitors):
    with numpyro.plate("pages", 2):
        rate = numpyro.sample("rate", dist.Beta(1.0, 1.0))
        numpyro.sample("buyers", dist.Binomial(visitors, rate), obs=buyers)
    return rate[1] > rate[0]


BUYERS, VISITORS = np.array([400_000, 401_000]), 20_000_000


def landing(i: int):
    return beta(1 + BUYERS[i], 1 + VISITORS - BUYERS[i])


def two_landing_pages_truth():
    first, second = landing(0), landing(1)
    rule = legendre(0.02 + 3.2e-5 * np.linspace(-9, 9, 19), 20)
    return [integral(lambda p: first.pdf(p) * second.sf(p), rule)]


def two_landing_pages_check():
    # The other arm as the outer one, in log odds, with the density from the likelihood.
    mean = 401_001 / 20_000_002
    centre, sd = np.log(mean / (1 - mean)), 1 / np.sqrt(20e6 * mean * (1 - mean))
    v, w = trapezoid(centre - 10 * sd, centre + 10 * sd, 801)
    p = 1 / (1 + np.exp(-v))
    logs = xlogy(401_001, p) + xlog1py(19_599_001, -p)
    mass = w * np.exp(logs - logs.max())
    return [float(mass @ landing(0).cdf(p) / mass.sum())]


WEIGHTS = 1e6 + np.array([0.5, -0.25, 1.0, 0.75, 0.0, -0.5, 1.25, 0.5, 0.25, -1.0, 0.75, 0.5])


def reference_mass(y):
    """A mass of one tonne in grams, weighed to a gram."""
    mass = numpyro.sample("mass", dist.Normal(1e6, 10.0))
    with numpyro.plate("weighings", y.size):
        numpyro.sample("y", dist.Normal(mass, 1.0), obs=y)
    return {"excess": mass - 1e6, "heavy": mass > 1e6 + 1.0}


def reference_mass_truth():
    shift = WEIGHTS - 1e6
    precision = 0.01 + shift.size
    mean = shift.sum() / precision
    return [mean, norm.sf(1.0, mean, precision**-0.5)]


def reference_mass_check():
    shift = WEIGHTS - 1e6

    def log_density(d):
        return -(d**2) / 200 - 0.5 * np.sum((shift - d) ** 2)

    return adaptive_means(log_density, [lambda d: d, lambda d: d > 1], [-3, 0, 0.5, 1, 2, 4])


YEARS = np.arange(2001.0, 2021.0)
LEVELS = np.round(64 * (3 + 0.05 * (YEARS - 2010) + 0.5 * np.sin(YEARS * YEARS))) / 64


def trend_in_years(year, y):
    """Nobody centred the years, so intercept and slope lie on a very thin ridge."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1000.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 10.0))
    with numpyro.plate("years", year.size):
        numpyro.sample("y", dist.Normal(intercept + slope * year, 0.5), obs=y)
    return {"falling": slope < 0.0, "forecast": intercept + slope * 2030.0}


def trend_outputs(mean, covariance):
    return [norm.cdf(0.0, mean[1], np.sqrt(covariance[1, 1])), mean[0] + 2030 * mean[1]]


def trend_in_years_truth():
    # Centred: the intercept at 2010 and the slope have a prior with covariance.
    shift = np.array([[1.0, 2010.0], [0.0, 1.0]])
    prior = shift @ np.diag([1e6, 100.0]) @ shift.T
    design = np.stack([np.ones(20), YEARS - 2010], axis=1)
    covariance = np.linalg.inv(np.linalg.inv(prior) + design.T @ design / 0.25)
    centred = covariance @ design.T @ LEVELS / 0.25
    sd = np.sqrt(covariance[1, 1])
    return [norm.cdf(0.0, centred[1], sd), centred[0] + 20 * centred[1]]


def trend_in_years_check():
    # One year after another (a Kalman filter), in the coordinates of the model.
    mean, covariance = np.zeros(2), np.diag([1e6, 100.0])
    for year, y in zip(YEARS, LEVELS, strict=True):
        row = np.array([1.0, year])
        gain = covariance @ row / (row @ covariance @ row + 0.25)
        mean = mean + gain * (y - row @ mean)
        keep = np.eye(2) - np.outer(gain, row)
        covariance = keep @ covariance @ keep.T + 0.25 * np.outer(gain, gain)
    return trend_outputs(mean, covariance)


def failure_of_a_sure_thing():
    """One minus a probability that rounds to one."""
    score = numpyro.sample("score", dist.Normal(18.0, 1.0))
    return 1.0 - jax.nn.sigmoid(score)


def failure_of_a_sure_thing_truth():
    return [sum((-1) ** (k + 1) * np.exp(-18 * k + 0.5 * k * k) for k in (1, 2, 3))]


def failure_of_a_sure_thing_check():
    def integrand(z):
        return norm.pdf(z) / (1 + np.exp(18 + z))

    return [integral(integrand, trapezoid(-14, 12))]


def thirty_sigma(reading):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("reading", dist.Normal(x, 1.0), obs=reading)
    return {"low": x < 12.0, "mean": x}


def thirty_sigma_check():
    rule = legendre([5, 9, 12, 14, 16, 18, 25], 40)
    return means(lambda x: -0.5 * x**2 - 0.5 * (x - 30) ** 2, [lambda x: x < 12, lambda x: x], rule)


POSITION = np.array([12.5, -340.25, 2047.0])


def needle_in_a_hangar(fix):
    position = numpyro.sample("position", dist.Uniform(-1e4, 1e4).expand([3]))
    numpyro.sample("fix", dist.StudentT(4.0, position, 0.125), obs=fix)
    return {"distance": jnp.sqrt(jnp.sum((position - fix) ** 2)) > 1.0, "north": position[1]}


def needle_in_a_hangar_truth():
    """Mass of three t variables outside a ball, slice by slice."""
    u, w = legendre([0, 1], 120)
    radius = 8.0

    def inside() -> float:
        # Cube of the density over a ball: x = 8 u, then a disc by nested scaled intervals.
        x = radius * u
        half_y = np.sqrt(radius**2 - x**2)
        y = half_y[:, None] * u
        half_z = np.sqrt(np.maximum(half_y[:, None] ** 2 - y**2, 0))
        z_mass = student_cdf(half_z) - 0.5
        inner = np.sum(w * half_y[:, None] * student_pdf(y) * z_mass, axis=1)
        return 8 * float(np.sum(w * radius * student_pdf(x) * inner))

    return [1 - inside(), -340.25]


def student_pdf(x):
    return 0.375 * (1 + x**2 / 4) ** -2.5


def student_cdf(x):
    s = x / np.sqrt(4 + x**2)
    return 0.5 + 0.75 * (s - s**3 / 3)


def needle_in_a_hangar_check():
    # Spherical coordinates in one octant.
    r, wr = legendre([0, 1, 2, 4, 8], 40)
    a, wa = legendre([0, np.pi / 4, np.pi / 2], 40)
    theta, phi, w = np.repeat(a, 80), np.tile(a, 80), np.outer(wa, wa).ravel() * 1.0
    direction = np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)])
    density = np.prod(student_pdf(r[:, None, None] * direction), axis=1)
    return [1 - 8 * float(np.sum(wr * r**2 * (density @ (w * np.sin(theta))))), -340.25]


def two_laboratories(values):
    constant = numpyro.sample("constant", dist.Normal(0.0, 10.0))
    numpyro.sample("values", dist.StudentT(3.0, constant, 0.25), obs=values)
    return {"between": jnp.abs(constant) < 2.0, "second": constant > 0.0}


LABORATORIES = np.array([-6.0, 6.5])


def laboratories_log_density(c):
    z = (LABORATORIES[:, None] - np.atleast_1d(c)) / 0.25
    return -(np.atleast_1d(c) ** 2) / 200 - 2 * np.log1p(z**2 / 3).sum(axis=0)


LABORATORY_TARGETS = [lambda c: np.abs(c) < 2, lambda c: c > 0]


def two_laboratories_truth():
    rule = legendre([-60, -20, -9, -7, -6, -5, -2, 0, 2, 5.5, 6.5, 7.5, 10, 20, 60], 80)
    return means(laboratories_log_density, LABORATORY_TARGETS, rule)


def two_laboratories_check():
    pieces = [-70, -10, -6.5, -6, -5.5, -2, 0, 2, 6, 6.5, 7, 12, 70]
    return adaptive_means(lambda c: laboratories_log_density(c)[0], LABORATORY_TARGETS, pieces)


def outlying_channel(y):
    """Eight channels agree to a thousandth of the prior; one is forty prior units away."""
    with numpyro.plate("channels", y.size):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(level, 0.0078125), obs=y)
    return {"product": level[0] * level[7], "tail": level[7] > 40.03125}


CHANNELS = np.array([0.5, 0.5078125, 0.5, 0.4921875, 0.5, 0.5, 0.5078125, 40.0])


def outlying_channel_truth():
    shrink = 1 / (1 + 2.0**-14)
    sd = np.sqrt(2.0**-14 * shrink)
    return [0.5 * 40 * shrink**2, norm.sf(40.03125, 40 * shrink, sd)]


def outlying_channel_check():
    def log_density(x, y):
        return -0.5 * (x**2 - y**2) - 8192 * (x - y) ** 2

    def moments(y: float, targets):
        edges = [y - 0.09, y - 0.04, y, y + 0.03125, y + 0.06, y + 0.1]
        return means(lambda x: log_density(x, y), targets, legendre(edges, 60))

    last, tail = moments(40.0, [lambda x: x, lambda x: x > 40.03125])
    return [moments(0.5, [lambda x: x])[0] * last, tail]


PROGRAMS = [
    Adversarial(
        "fifty_million_photons",
        "precision",
        fifty_million_photons,
        (50_000_123,),
        lambda: [gamma.sf(50_010_000.0, 50_000_127, scale=1 / (1 + 1e-7))],
        fifty_million_photons_check,
        "Gamma posterior; quadrature of the density relative to its mode.",
    ),
    Adversarial(
        "two_landing_pages",
        "precision",
        two_landing_pages,
        (BUYERS, VISITORS),
        two_landing_pages_truth,
        two_landing_pages_check,
        "Integral over the first rate; over the second, in log odds.",
        True,
    ),
    Adversarial(
        "reference_mass",
        "precision",
        reference_mass,
        (WEIGHTS,),
        reference_mass_truth,
        reference_mass_check,
        "Conjugate normal posterior; adaptive quadrature of the shift.",
    ),
    Adversarial(
        "trend_in_years",
        "precision",
        trend_in_years,
        (YEARS, LEVELS),
        trend_in_years_truth,
        trend_in_years_check,
        "Conjugate regression in centred years; Kalman filter in raw years.",
        True,
    ),
    Adversarial(
        "failure_of_a_sure_thing",
        "precision",
        failure_of_a_sure_thing,
        (),
        failure_of_a_sure_thing_truth,
        failure_of_a_sure_thing_check,
        "Lognormal moments of a geometric series; trapezoid.",
    ),
    Adversarial(
        "thirty_sigma",
        "conflict",
        thirty_sigma,
        (30.0,),
        lambda: [float(ndtr(-3 * np.sqrt(2))), 15.0],
        thirty_sigma_check,
        "Conjugate normal posterior; quadrature.",
        True,
    ),
    Adversarial(
        "needle_in_a_hangar",
        "conflict",
        needle_in_a_hangar,
        (POSITION,),
        needle_in_a_hangar_truth,
        needle_in_a_hangar_check,
        "Ball in Cartesian coordinates; in spherical coordinates.",
        True,
        1e-5,
    ),
    Adversarial(
        "two_laboratories",
        "conflict",
        two_laboratories,
        (LABORATORIES,),
        two_laboratories_truth,
        two_laboratories_check,
        "Gauss-Legendre; adaptive quadrature.",
        True,
    ),
    Adversarial(
        "outlying_channel",
        "conflict",
        outlying_channel,
        (CHANNELS,),
        outlying_channel_truth,
        outlying_channel_check,
        "Independent conjugate posteriors; quadrature in each channel.",
    ),
]
