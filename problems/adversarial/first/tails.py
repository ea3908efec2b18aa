"""Heavy tails, ratios and exponentials, including means that do not exist."""

from __future__ import annotations

import math
from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import special, stats

from problems.adversarial.first.integrals import (
    gauss_rule,
    integral,
    normal_log_density,
    posterior_means,
)
from problems.adversarial.program import Adversarial


def no_mean() -> Iterable[float]:
    return [math.nan]


def absolute_power(power):
    x = numpyro.sample("x", dist.StudentT(4.0, 0.0, 1.0))
    return jnp.abs(x) ** power


def absolute_power_truth() -> Iterable[float]:
    """E|t|^k with 4 degrees of freedom, in gamma functions."""
    k = 3.2
    logs = special.gammaln((k + 1) / 2) + special.gammaln((4 - k) / 2)
    return [4 ** (k / 2) * np.exp(logs) / (np.sqrt(np.pi) * special.gamma(2))]


def absolute_power_check() -> Iterable[float]:
    rule = gauss_rule(np.linspace(-30, 60, 120))
    return [2 * integral(rule, lambda u: np.exp(4.2 * u) * stats.t.pdf(np.exp(u), 4))]


def exponential_of_t(drift):
    log_return = numpyro.sample("log_return", dist.StudentT(5.0, drift, 0.2))
    return jnp.exp(log_return)


def price_over_earnings(price):
    earnings = numpyro.sample("earnings", dist.Normal(1.0, 0.3))
    return price / earnings


def cost_per_unit(shape):
    cost = numpyro.sample("cost", dist.Normal(3.0, 1.0))
    units = numpyro.sample("units", dist.Gamma(shape, 1.0))
    return cost / units


def cost_per_unit_check() -> Iterable[float]:
    """On the scale of log units; the tail to the left decays as exp(u / 2)."""
    rule = gauss_rule(np.linspace(-90, 6, 97))
    inverse = integral(rule, lambda u: np.exp(0.5 * u - np.exp(u))) / special.gamma(1.5)
    return [3 * inverse]


def excess_over_retention(retention):
    loss = numpyro.sample("loss", dist.Pareto(1.0, 1.3))
    return jnp.maximum(loss - retention, 0.0)


def excess_check() -> Iterable[float]:
    """Density times payment on the scale of the log loss, which is exponential."""
    rule = gauss_rule(np.linspace(np.log(1000), 150, 150))
    return [integral(rule, lambda u: 1.3 * np.exp(-1.3 * u) * (np.exp(u) - 1000))]


CLAIMS = np.array([1.2, 3.4, 1.1, 7.9, 2.2, 1.6, 1.3, 20.5, 1.9, 2.8])


def learned_pareto(claims):
    index = numpyro.sample("index", dist.Gamma(2.0, 1.0))
    with numpyro.plate("claims", claims.size):
        numpyro.sample("y", dist.Pareto(1.0, index), obs=claims)
    return numpyro.sample("next_claim", dist.Pareto(1.0, index))


def compounded_growth(rates):
    mu = numpyro.sample("mu", dist.Normal(0.02, 0.05))
    with numpyro.plate("years", rates.size):
        numpyro.sample("rates", dist.Normal(mu, 0.15), obs=rates)
    return jnp.exp(100.0 * mu)


RATES = np.array([0.07, -0.12, 0.21, 0.03, 0.11, -0.05, 0.18, 0.02])


def growth_truth() -> Iterable[float]:
    precision = 0.05**-2 + RATES.size * 0.15**-2
    mean = (0.02 * 0.05**-2 + RATES.sum() * 0.15**-2) / precision
    return [np.exp(100 * mean + 5000 / precision)]


def growth_check() -> Iterable[float]:
    rule = gauss_rule(np.linspace(-0.6, 0.9, 120))
    logs = lambda m: (  # noqa: E731
        normal_log_density(m, 0.02, 0.05) + sum(normal_log_density(r, m, 0.15) for r in RATES)
    )
    return posterior_means(rule, logs, lambda m: np.exp(100 * m))


PROGRAMS = [
    Adversarial(
        "absolute_power_of_t",
        "tails",
        absolute_power,
        (3.2,),
        absolute_power_truth,
        absolute_power_check,
        "Gamma functions; quadrature on the log scale.",
        is_easy=True,
    ),
    Adversarial(
        "exponential_of_student_t",
        "tails",
        exponential_of_t,
        (0.05,),
        no_mean,
        no_mean,
        "A polynomial tail against an exponential: the mean is infinite.",
    ),
    Adversarial(
        "price_over_earnings",
        "tails",
        price_over_earnings,
        (15.0,),
        no_mean,
        no_mean,
        "The density of the denominator is positive at zero: the mean does not exist.",
    ),
    Adversarial(
        "cost_per_unit",
        "tails",
        cost_per_unit,
        (1.5,),
        lambda: [3 / 0.5],
        cost_per_unit_check,
        "E[cost] times E[1/units] = 1/(shape - 1); quadrature on the log scale.",
        is_easy=True,
    ),
    Adversarial(
        "pareto_excess_over_retention",
        "tails",
        excess_over_retention,
        (1000.0,),
        lambda: [1000**-0.3 / 0.3],
        excess_check,
        "The integral of the Pareto survival function; quadrature of the payment on a log scale.",
        is_easy=True,
    ),
    Adversarial(
        "pareto_with_learned_index",
        "tails",
        learned_pareto,
        (CLAIMS,),
        no_mean,
        no_mean,
        "The posterior of the index has mass below one: the predictive mean is infinite.",
    ),
    Adversarial(
        "a_century_of_compounded_growth",
        "tails",
        compounded_growth,
        (RATES,),
        growth_truth,
        growth_check,
        "The moment generating function of the normal posterior; quadrature.",
        is_easy=True,
    ),
]
