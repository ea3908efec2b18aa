"""Branches, ties and rounding: a step or a discrete site decides what the rest looks like."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import ndtr
from scipy.stats import lognorm, norm

from problems.adversarial.program import Adversarial
from problems.adversarial.second.integrals import (
    adaptive_means,
    integral,
    legendre,
    means,
    trapezoid,
)


def sensor_works_or_not(reading):
    works = numpyro.sample("works", dist.Bernoulli(0.9))
    temperature = numpyro.sample("temperature", dist.Normal(20.0, 3.0))
    centre, scale = jnp.where(works, temperature, 0.0), jnp.where(works, 0.5, 30.0)
    numpyro.sample("reading", dist.Normal(centre, scale), obs=reading)
    return {"temperature": temperature, "works": works}


def sensor_truth():
    good = 0.9 * norm.pdf(34.0, 20, np.sqrt(9.25))
    bad = 0.1 * norm.pdf(34.0, 0, 30)
    works = good / (good + bad)
    return [works * (20 + 14 * 9 / 9.25) + (1 - works) * 20, works]


def sensor_check():
    def density(x):
        good = 0.9 * norm.pdf(34.0, x, 0.5)
        return norm.pdf(x, 20, 3) * np.array([good, np.full_like(x, 0.1 * norm.pdf(34.0, 0, 30))])

    x, w = trapezoid(-10, 60, 7001)
    mass = w * density(x)
    return [np.sum(mass * x) / mass.sum(), mass[0].sum() / mass.sum()]


STORM = np.array([0.9, 0.0999, 0.0001])
SIZE = np.array([0.0, 2.0, 11.0])


def storm_damage(probabilities, sizes):
    kind = numpyro.sample("kind", dist.Categorical(probs=probabilities))
    return numpyro.sample("damage", dist.LogNormal(jnp.asarray(sizes)[kind], 0.7))


def storm_damage_check():
    rule = trapezoid(-10, 10)
    mean = [integral(lambda z, m=m: np.exp(m + 0.7 * z) * norm.pdf(z), rule) for m in SIZE]
    return [float(STORM @ mean)]


POINTS = np.array([0.5, 0.25, 1.0, 0.75, 9.0, 0.5, 8.5, 1.25, 0.0, 0.75, -7.0, 0.5])


def contaminated_mean(y):
    centre = numpyro.sample("centre", dist.Normal(0.0, 10.0))
    good = jnp.log(0.8) + dist.Normal(centre, 0.5).log_prob(y)
    bad = jnp.log(0.2) + dist.Normal(0.0, 8.0).log_prob(y)
    numpyro.factor("rows", jnp.logaddexp(good, bad).sum())
    return {"above": centre > 1.2, "mean": centre}


def contaminated_log_density(x):
    y = POINTS[:, None]
    row = 0.8 * norm.pdf(y, np.atleast_1d(x), 0.5) + 0.2 * norm.pdf(y, 0, 8)
    return norm.logpdf(np.atleast_1d(x), 0, 10) + np.log(row).sum(axis=0)


def contaminated_mean_truth():
    rule = legendre([-40, -9, -5, -2, 0, 0.5, 1.2, 2, 4, 7, 10, 40], 80)
    return means(contaminated_log_density, [lambda x: x > 1.2, lambda x: x], rule)


def contaminated_mean_check():
    # Expand the product over which rows are good: 2^12 conjugate normal posteriors.
    good = ((np.arange(4096)[:, None] >> np.arange(12)) & 1).astype(bool)
    count, total = good.sum(axis=1), (good * POINTS).sum(axis=1)
    precision = 0.01 + count / 0.25
    mean, square = total / 0.25 / precision, (good * POINTS**2).sum(axis=1) / 0.25
    logs = np.where(good, np.log(0.8 / 0.5), np.log(0.2 / 8) - POINTS**2 / 128).sum(axis=1)
    logs += 0.5 * (mean**2 * precision - square - np.log(precision))
    mass = np.exp(logs - logs.max())
    tail = ndtr((mean - 1.2) * np.sqrt(precision))
    return [float(mass @ tail / mass.sum()), float(mass @ mean / mass.sum())]


def crash_regime(vix):
    crash = numpyro.sample("crash", dist.Bernoulli(0.02))
    numpyro.sample("vix", dist.Normal(jnp.where(crash, 45.0, 15.0), 5.0), obs=vix)
    change = numpyro.sample(
        "change", dist.Normal(jnp.where(crash, -0.1, 0.001), jnp.where(crash, 0.08, 0.01))
    )
    return jnp.where(change < -0.25, 1e4, 1.0) * jnp.abs(change)


def absolute_normal(mean: float, sd: float, high: float) -> float:
    """Mean of |x| for x below `high` <= 0."""
    z = (high - mean) / sd
    return sd * norm.pdf(z) - mean * norm.cdf(z)


def crash_regime_truth():
    odds = 0.02 / 0.98 * np.exp((100 - 400) / 50)
    weight = np.array([odds, 1.0]) / (1 + odds)

    def mean(m: float, s: float) -> float:
        absolute = 2 * absolute_normal(m, s, 0.0) + m
        return absolute + (1e4 - 1) * absolute_normal(m, s, -0.25)

    return [float(weight @ [mean(-0.1, 0.08), mean(0.001, 0.01)])]


def crash_regime_check():
    priors = np.array([0.02 * norm.pdf(25.0, 45, 5), 0.98 * norm.pdf(25.0, 15, 5)])

    def mean(m: float, s: float) -> float:
        def part(x):
            return np.abs(x) * norm.pdf(x, m, s) * np.where(x < -0.25, 1e4, 1.0)

        return integral(part, legendre([-1.2, -0.6, -0.25, -0.05, 0, 0.05, 0.2, 0.8], 100))

    return [float(priors @ [mean(-0.1, 0.08), mean(0.001, 0.01)] / priors.sum())]


def rounded_reading():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    return jnp.round(10.0 * x) == 37.0


def whole_invoices():
    hours = numpyro.sample("hours", dist.LogNormal(0.0, 1.0))
    return jnp.floor(hours)


def whole_invoices_check():
    whole = np.arange(2.0, 6001.0)
    rule = legendre([0, 0.05, 0.2, 0.5, 1, *whole], 12)
    fraction = integral(lambda x: (x - np.floor(x)) * lognorm.pdf(x, 1.0), rule)
    return [np.exp(0.5) - fraction]


def shared_birthday():
    with numpyro.plate("people", 10):
        day = numpyro.sample("day", dist.DiscreteUniform(0, 364))
    return jnp.any(jnp.diff(jnp.sort(day)) == 0)


def shared_birthday_check():
    # Number of different days seen so far, person by person.
    seen = np.zeros(12)
    seen[0] = 1.0
    for _ in range(10):
        stay = seen * np.arange(12) / 365
        move = seen * (365 - np.arange(12)) / 365
        seen = stay + np.append(0.0, move[:-1])
    return [float(seen[1:10].sum())]


PRESSURES = np.array([120.0, 130.0, 120.0, 125.0, 140.0, 120.0, 110.0, 130.0, 135.0, 120.0])


def heaped_blood_pressure(y):
    mean = numpyro.sample("mean", dist.Normal(120.0, 20.0))
    high = dist.Normal(mean, 10.0).cdf(y + 2.5)
    low = dist.Normal(mean, 10.0).cdf(y - 2.5)
    numpyro.factor("rounded", jnp.log(high - low).sum())
    return {"hypertensive": mean > 135.0, "mean": mean}


def heaped_log_density(m):
    m = np.atleast_1d(m)
    cells = ndtr((PRESSURES[:, None] + 2.5 - m) / 10) - ndtr((PRESSURES[:, None] - 2.5 - m) / 10)
    return norm.logpdf(m, 120, 20) + np.log(cells).sum(axis=0)


HEAPED = [lambda m: m > 135, lambda m: m]


PROGRAMS = [
    Adversarial(
        "sensor_works_or_not",
        "strata",
        sensor_works_or_not,
        (34.0,),
        sensor_truth,
        sensor_check,
        "Two conjugate normal branches; quadrature over the temperature.",
        True,
    ),
    Adversarial(
        "storm_damage",
        "strata",
        storm_damage,
        (STORM, SIZE),
        lambda: [float(STORM @ np.exp(SIZE + 0.245))],
        storm_damage_check,
        "Lognormal means by kind; the same by quadrature.",
        True,
    ),
    Adversarial(
        "contaminated_mean",
        "strata",
        contaminated_mean,
        (POINTS,),
        contaminated_mean_truth,
        contaminated_mean_check,
        "One-dimensional quadrature; sum over all 4096 sets of good rows.",
        True,
    ),
    Adversarial(
        "crash_regime",
        "strata",
        crash_regime,
        (25.0,),
        crash_regime_truth,
        crash_regime_check,
        "Partial normal means in each regime; quadrature in each regime.",
    ),
    Adversarial(
        "rounded_reading",
        "ties",
        rounded_reading,
        (),
        lambda: [norm.sf(3.65) - norm.sf(3.75)],
        lambda: [integral(norm.pdf, legendre([3.65, 3.75]))],
        "Difference of two normal tails; quadrature over the cell.",
        True,
    ),
    Adversarial(
        "whole_invoices",
        "ties",
        whole_invoices,
        (),
        lambda: [float(np.sum(lognorm.sf(np.arange(1, 200_000), 1.0)))],
        whole_invoices_check,
        "Sum of survival probabilities; mean less the mean fractional part, cell by cell.",
        True,
    ),
    Adversarial(
        "shared_birthday",
        "ties",
        shared_birthday,
        (),
        lambda: [1 - float(np.prod(1 - np.arange(10) / 365))],
        shared_birthday_check,
        "Complement of a product; chain of the number of different days.",
        True,
    ),
    Adversarial(
        "heaped_blood_pressure",
        "ties",
        heaped_blood_pressure,
        (PRESSURES,),
        lambda: means(heaped_log_density, HEAPED, legendre([60, 100, 115, 125, 135, 145, 180])),
        lambda: adaptive_means(
            lambda m: heaped_log_density(m)[0], HEAPED, [70, 110, 120, 128, 135, 142, 170]
        ),
        "Gauss-Legendre and adaptive quadrature on other intervals.",
        True,
    ),
]
