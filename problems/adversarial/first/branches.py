"""Programs in which a switch, a regime or a mixture decides what the rest looks like."""

from __future__ import annotations

from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.stats import norm
from scipy import special, stats

from problems.adversarial.first.integrals import (
    even_rule,
    gauss_rule,
    integral,
    normal_log_density,
    normal_tail,
    posterior_means,
    product_rule,
)
from problems.adversarial.program import Adversarial

READINGS = np.array([26.1, 24.9])


def broken_sensor(y):
    temperature = numpyro.sample("temperature", dist.Normal(20, 5))
    broken = numpyro.sample("broken", dist.Bernoulli(0.02))
    with numpyro.plate("readings", y.size):
        numpyro.sample("y", dist.Normal(temperature, jnp.where(broken, 8.0, 0.2)), obs=y)
    return {"broken": broken, "temperature": temperature}


def broken_truth() -> Iterable[float]:
    evidence, means = [], []
    for weight, noise in ((0.98, 0.2), (0.02, 8.0)):
        covariance = 25 + noise**2 * np.eye(2)
        evidence.append(weight * stats.multivariate_normal.pdf(READINGS, [20, 20], covariance))
        means.append(20 + 25 * np.ones(2) @ np.linalg.solve(covariance, READINGS - 20))
    return [evidence[1] / sum(evidence), np.dot(evidence, means) / sum(evidence)]


def broken_check() -> Iterable[float]:
    rule = gauss_rule(
        np.concatenate(
            [np.linspace(-30, 24, 40), np.linspace(24, 27, 60)[1:], np.linspace(27, 70, 40)[1:]]
        )
    )
    masses, moments = [], []
    for weight, noise in ((0.98, 0.2), (0.02, 8.0)):

        def density(t, weight=weight, noise=noise):
            likelihood = sum(normal_log_density(y, t, noise) for y in READINGS)
            return weight * np.exp(normal_log_density(t, 20, 5) + likelihood)

        masses.append(integral(rule, density))
        moments.append(integral(rule, lambda t, d=density: t * d(t)))
    return [masses[1] / sum(masses), sum(moments) / sum(masses)]


REGIMES = np.array([0.9, 0.0989, 0.001, 0.0001])
VOLATILITY = np.array([0.01, 0.02, 0.06, 0.3])


def crash(regimes, volatility):
    regime = numpyro.sample("regime", dist.Categorical(regimes))
    change = numpyro.sample("change", dist.Normal(0, jnp.asarray(volatility)[regime]))
    return change < -0.5


ROWS_X = np.linspace(-2, 2, 20)
ROWS_Y = (1 + 2 * ROWS_X + 0.5 * np.sin(17 * np.arange(20))).round(3)
ROWS_Y[[4, 11, 17]] = [12.0, -9.5, -14.0]


def robust_line(x, y):
    intercept = numpyro.sample("intercept", dist.Normal(0, 10))
    slope = numpyro.sample("slope", dist.Normal(0, 10))
    good = jnp.log(0.9) + norm.logpdf(y, intercept + slope * x, 0.5)
    bad = jnp.log(0.1) + norm.logpdf(y, 0.0, 10.0)
    numpyro.factor("rows", jnp.sum(jnp.logaddexp(good, bad)))
    return slope


def robust_mean(rule):
    def log_density(point):
        a, b = point
        total = normal_log_density(a, 0, 10) + normal_log_density(b, 0, 10)
        for x, y in zip(ROWS_X, ROWS_Y, strict=True):
            good = np.log(0.9) + normal_log_density(y, a + b * x, 0.5)
            total = total + np.logaddexp(good, np.log(0.1) + normal_log_density(y, 0, 10))
        return total

    return posterior_means(rule, log_density, lambda point: point[1])


def hurdle_claim(policies, claims):
    frequency = numpyro.sample("frequency", dist.Beta(1, 30))
    numpyro.sample("claims", dist.Binomial(policies, frequency), obs=claims)
    happens = numpyro.sample("happens", dist.Bernoulli(frequency))
    severity = numpyro.sample("severity", dist.LogNormal(8, 1.5))
    return happens * jnp.maximum(severity - 20000.0, 0.0)


def hurdle_truth() -> Iterable[float]:
    score = (np.log(20000) - 8) / 1.5
    excess = np.exp(8 + 1.125) * stats.norm.sf(score - 1.5) - 20000 * stats.norm.sf(score)
    return [7 / 231 * excess]


def hurdle_check() -> Iterable[float]:
    excess = integral(
        gauss_rule(np.linspace(np.log(20000), 26, 30)),
        lambda u: np.exp(normal_log_density(u, 8, 1.5)) * (np.exp(u) - 20000),
    )
    frequency = posterior_means(
        gauss_rule(np.linspace(0, 1, 60)[:-1]),
        lambda p: special.xlogy(6, p) + (29 + 194) * np.log1p(-p),
        lambda p: p,
    )
    return [frequency[0] * excess]


PROGRAMS = [
    Adversarial(
        "broken_sensor",
        "strata",
        broken_sensor,
        (READINGS,),
        broken_truth,
        broken_check,
        "Evidences of the two states in closed form; quadrature over the temperature.",
        is_easy=True,
    ),
    Adversarial(
        "crash_in_a_rare_regime",
        "strata",
        crash,
        (REGIMES, VOLATILITY),
        lambda: [float(REGIMES @ stats.norm.cdf(-0.5 / VOLATILITY))],
        lambda: [sum(p * normal_tail(0.5, 0, v) for p, v in zip(REGIMES, VOLATILITY, strict=True))],
        "The sum over regimes of normal tails; the tails by quadrature.",
    ),
    Adversarial(
        "line_with_outliers",
        "strata",
        robust_line,
        (ROWS_X, ROWS_Y),
        lambda: robust_mean(
            product_rule(
                gauss_rule(np.linspace(-1.5, 3.5, 11), 16),
                gauss_rule(np.linspace(-0.5, 4.5, 11), 16),
            )
        ),
        lambda: robust_mean(product_rule(even_rule(-2, 4, 181), even_rule(-1, 5, 181))),
        "Two-dimensional Gauss quadrature; the trapezoid rule on a wider square.",
        is_easy=True,
    ),
    Adversarial(
        "claim_behind_a_hurdle",
        "strata",
        hurdle_claim,
        (200, 6),
        hurdle_truth,
        hurdle_check,
        "The beta mean times the lognormal stop-loss premium; both by quadrature.",
        is_easy=True,
    ),
]
