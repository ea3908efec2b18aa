"""Numbers that single precision cannot hold, and models with thousands of rows."""

from __future__ import annotations

from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import special, stats

from problems.adversarial.first.integrals import (
    even_rule,
    gauss_rule,
    integral,
    normal_log_density,
    normal_tail,
    posterior_means,
)
from problems.adversarial.program import Adversarial


def survey_mark(origin):
    position = numpyro.sample("position", dist.Normal(origin, 1e-3))
    return position > origin + 2e-3


def many_photons(count):
    rate = numpyro.sample("rate", dist.Gamma(1.0, 1e-7))
    numpyro.sample("count", dist.Poisson(rate), obs=count)
    return rate > 20_010_000.0


PHOTONS = 20_000_003


def photons_check() -> Iterable[float]:
    """In relative units around the mode, where the logarithm is expanded without cancellation."""
    sd = 1 / np.sqrt(PHOTONS)
    mode = PHOTONS / (1 + 1e-7)
    cut = 20_010_000.0 / mode - 1
    edges = np.sort(np.append(sd * np.linspace(-10, 10, 41), cut))

    def log_density(v):
        series = sum((-1) ** k * v ** (k + 2) / (k + 2) for k in range(8))
        return -PHOTONS * series

    return posterior_means(gauss_rule(edges), log_density, lambda v: v > cut)


def any_of_a_million(exposures):
    log_p = numpyro.sample("log_p", dist.Normal(-20, 1))
    return 1 - (1 - jnp.exp(log_p)) ** exposures


def million_truth() -> Iterable[float]:
    rule = gauss_rule(np.linspace(-32, -8, 40))
    return [
        integral(
            rule,
            lambda u: np.exp(normal_log_density(u, -20, 1)) * -np.expm1(1e6 * np.log1p(-np.exp(u))),
        )
    ]


def million_check() -> Iterable[float]:
    """The binomial series with lognormal moments: asymptotic, so cut at its smallest terms."""
    total, ways = 0.0, 1.0
    for k in range(1, 7):
        ways *= (1e6 - k + 1) / k
        total -= (-1) ** k * ways * np.exp(-20 * k + k**2 / 2)
    return [total]


def solvency(assets, liabilities):
    owned = numpyro.sample("owned", dist.Normal(assets, 5.0))
    owed = numpyro.sample("owed", dist.Normal(liabilities, 5.0))
    return {"insolvent": owned < owed, "net": owned - owed}


def solvency_check() -> Iterable[float]:
    """Quadrature over the assets, measured from the liabilities."""
    rule = gauss_rule(np.linspace(-40, 80, 60))
    density = np.exp(normal_log_density(rule[0], 20, 5))
    insolvent = integral(rule, lambda x: density * stats.norm.sf(x / 5))
    return [insolvent, integral(rule, lambda x: density * x)]


def survives_the_dose(dose):
    sensitivity = numpyro.sample("sensitivity", dist.Normal(0, 1))
    return jnp.exp(sensitivity - dose)


_RNG = np.random.default_rng(20)
LINE_X = _RNG.normal(0, 1, 20_000).astype(np.float32)
LINE_Y = (2 + 0.3 * LINE_X + _RNG.normal(0, 1, 20_000)).astype(np.float32)


def long_regression(x, y):
    intercept = numpyro.sample("intercept", dist.Normal(0, 10))
    slope = numpyro.sample("slope", dist.Normal(0, 10))
    with numpyro.plate("rows", x.size):
        numpyro.sample("y", dist.Normal(intercept + slope * x, 1.0), obs=y)
    return {"at_three": intercept + 3 * slope, "slope": slope}


def long_regression_truth() -> Iterable[float]:
    design = np.stack([np.ones(20_000), LINE_X.astype(float)], axis=1)
    a, b = np.linalg.solve(design.T @ design + 0.01 * np.eye(2), design.T @ LINE_Y.astype(float))
    return [a + 3 * b, b]


def long_regression_check() -> Iterable[float]:
    """Least squares with two more rows for the prior."""
    design = np.stack([np.ones(20_000), LINE_X.astype(float)], axis=1)
    rows = np.concatenate([design, 0.1 * np.eye(2)])
    a, b = np.linalg.lstsq(rows, np.append(LINE_Y.astype(float), [0, 0]), rcond=None)[0]
    return [a + 3 * b, b]


VISITORS = 15_000
CLICKS_A = (_RNG.uniform(size=VISITORS) < 0.052).astype(np.int32)
CLICKS_B = (_RNG.uniform(size=VISITORS) < 0.056).astype(np.int32)


def which_page(clicks_a, clicks_b):
    a = numpyro.sample("a", dist.Beta(1, 1))
    b = numpyro.sample("b", dist.Beta(1, 1))
    with numpyro.plate("visitors", clicks_a.size):
        numpyro.sample("clicks_a", dist.Bernoulli(a), obs=clicks_a)
        numpyro.sample("clicks_b", dist.Bernoulli(b), obs=clicks_b)
    return {"a_wins": a > b, "lift": b / a - 1}


def page_counts():
    a, b = CLICKS_A.sum(), CLICKS_B.sum()
    return 1 + a, 1 + VISITORS - a, 1 + b, 1 + VISITORS - b


def which_page_truth() -> Iterable[float]:
    """The finite sum for integer parameters, and moments of beta variables."""
    a1, a2, b1, b2 = page_counts()
    i = np.arange(a1)
    logs = (
        special.betaln(b1 + i, b2 + a2)
        - np.log(a2 + i)
        - special.betaln(1 + i, a2)
        - special.betaln(b1, b2)
    )
    lift = b1 / (b1 + b2) * (a1 + a2 - 1) / (a1 - 1) - 1
    return [np.exp(logs).sum(), lift]


def which_page_check() -> Iterable[float]:
    a1, a2, b1, b2 = page_counts()
    rule = gauss_rule(np.linspace(0.03, 0.08, 60))
    wins = integral(rule, lambda p: stats.beta.pdf(p, a1, a2) * stats.beta.cdf(p, b1, b2))
    inverse = integral(rule, lambda p: stats.beta.pdf(p, a1, a2) / p)
    mean = integral(rule, lambda p: stats.beta.pdf(p, b1, b2) * p)
    return [wins, mean * inverse - 1]


EXPOSURE = _RNG.uniform(0.1, 1, 30_000).astype(np.float32)
CLAIMS = _RNG.poisson(0.1 * EXPOSURE).astype(np.int32)


def claim_frequency(exposure, claims):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 20.0))
    with numpyro.plate("policies", exposure.size):
        numpyro.sample("claims", dist.Poisson(rate * exposure), obs=claims)
    return {"rate": rate, "underpriced": rate > 0.112}


def claim_frequency_truth() -> Iterable[float]:
    shape, rate = 2 + CLAIMS.sum(), 20 + EXPOSURE.astype(float).sum()
    return [shape / rate, stats.gamma.sf(0.112, shape, scale=1 / rate)]


def claim_frequency_check() -> Iterable[float]:
    shape, rate = 2 + CLAIMS.sum(), 20 + EXPOSURE.astype(float).sum()
    rule = gauss_rule(np.concatenate([np.linspace(0.07, 0.112, 40), np.linspace(0.112, 0.15, 40)]))
    return posterior_means(
        rule, lambda r: (shape - 1) * np.log(r) - rate * r, lambda r: r, lambda r: r > 0.112
    )


LIFETIMES = _RNG.exponential(1500, 8_000)
FOLLOW_UP = np.minimum(LIFETIMES, 100.0).astype(np.float32)
FAILED = LIFETIMES < 100


def mean_time_to_failure(time, failed):
    rate = numpyro.sample("rate", dist.LogNormal(-7, 1))
    unit = dist.Exponential(rate)
    with numpyro.plate("units", time.size):
        numpyro.factor("y", jnp.where(failed, unit.log_prob(time), -rate * time))
    return 1 / rate


def mean_time(rule):
    events, hours = FAILED.sum(), FOLLOW_UP.astype(float).sum()
    return posterior_means(
        rule,
        lambda u: events * u - hours * np.exp(u) + normal_log_density(u, -7, 1),
        lambda u: np.exp(-u),
    )


PROGRAMS = [
    Adversarial(
        "survey_mark_far_from_the_origin",
        "precision",
        survey_mark,
        (1e7,),
        lambda: [stats.norm.sf(2)],
        lambda: [normal_tail(2.0)],
        "A normal tail two deviations out; the same by quadrature.",
    ),
    Adversarial(
        "twenty_million_photons",
        "precision",
        many_photons,
        (PHOTONS,),
        lambda: [special.gammaincc(PHOTONS + 1.0, 20_010_000.0 * (1 + 1e-7))],
        photons_check,
        "The gamma posterior; quadrature in relative units around the mode.",
        is_easy=True,
        tolerance=1e-5,
    ),
    Adversarial(
        "any_of_a_million_exposures",
        "precision",
        any_of_a_million,
        (1e6,),
        million_truth,
        million_check,
        "Quadrature with log1p and expm1; the binomial series with lognormal moments.",
    ),
    Adversarial(
        "assets_less_liabilities",
        "precision",
        solvency,
        (2_000_000_020.0, 2_000_000_000.0),
        lambda: [stats.norm.sf(20, 0, np.sqrt(50)), 20.0],
        solvency_check,
        "The difference of two normals; quadrature over one of them.",
    ),
    Adversarial(
        "surviving_fraction_of_a_dose",
        "precision",
        survives_the_dose,
        (120.0,),
        lambda: [np.exp(-119.5)],
        lambda: [
            integral(
                gauss_rule(np.linspace(-12, 14, 40)),
                lambda x: np.exp(normal_log_density(x) + x - 120),
            )
        ],
        "The moment generating function of a normal; quadrature.",
    ),
    Adversarial(
        "regression_on_twenty_thousand_rows",
        "rows",
        long_regression,
        (LINE_X, LINE_Y),
        long_regression_truth,
        long_regression_check,
        "The normal equations; least squares with rows for the prior.",
        is_easy=True,
    ),
    Adversarial(
        "which_page_wins",
        "rows",
        which_page,
        (CLICKS_A, CLICKS_B),
        which_page_truth,
        which_page_check,
        "A finite sum and beta moments; quadrature.",
        is_easy=True,
    ),
    Adversarial(
        "claim_frequency_of_a_book",
        "rows",
        claim_frequency,
        (EXPOSURE, CLAIMS),
        claim_frequency_truth,
        claim_frequency_check,
        "The gamma posterior; quadrature of the likelihood.",
        is_easy=True,
    ),
    Adversarial(
        "mean_time_to_failure_with_censoring",
        "rows",
        mean_time_to_failure,
        (FOLLOW_UP, FAILED),
        lambda: mean_time(gauss_rule(np.linspace(-8.5, -6, 40))),
        lambda: mean_time(even_rule(-8.5, -6, 4001)),
        "Gauss quadrature over the log rate; the trapezoid rule.",
        is_easy=True,
    ),
]
