"""Correlation, curvature, funnels, shells, and ten and more dimensions."""

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
    gaussian_posterior,
    integral,
    normal_log_density,
    normal_tail,
    posterior_means,
    product_rule,
    tanh_sinh_rule,
)
from problems.adversarial.program import Adversarial


def shell(radius):
    x = numpyro.sample("x", dist.Normal(0, 5).expand([8]).to_event(1))
    distance = jnp.sqrt(jnp.sum(x**2))
    numpyro.factor("shell", -0.5 * ((distance - radius) / 0.1) ** 2)
    return x[0] > 4


def shell_mean(rule, cap):
    """The radial density; `cap` is the share of a sphere of radius r beyond height 4."""
    return posterior_means(
        rule, lambda r: 7 * np.log(r) - r**2 / 50 - 0.5 * ((r - 5) / 0.1) ** 2, cap
    )


def cap_by_quadrature(r):
    x, w = gauss_rule([0, 0.25, 0.5, 0.75, 1])
    low = 4 / r[:, None]
    heights = low + (1 - low) * x
    share = (1 - low[:, 0]) * ((1 - heights**2) ** 2.5 @ w)
    return share / special.beta(0.5, 3.5)


def funnel(limit):
    v = numpyro.sample("v", dist.Normal(0, 3))
    x = numpyro.sample("x", dist.Normal(0, jnp.exp(v / 2)).expand([9]).to_event(1))
    return x[0] > limit


def funnel_check() -> Iterable[float]:
    rule = gauss_rule(np.linspace(0, 10, 60))
    return [
        integral(
            rule, lambda z: np.exp(normal_log_density(z)) * stats.norm.sf(2 * np.log(30 / z) / 3)
        )
    ]


EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools(y, errors):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", y.size):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, errors), obs=y)
    return {"first": theta[0] > 30, "mu": mu, "tau": tau}


def first_school(mu, tau):
    """P(theta[0] > 30) given mu and tau."""
    weight = tau**2 / (tau**2 + ERRORS[0] ** 2)
    mean, sd = mu + weight * (EFFECTS[0] - mu), ERRORS[0] * np.sqrt(weight)
    return stats.norm.sf((30 - mean) / sd)


def schools_truth() -> Iterable[float]:
    """Integrate mu and theta out exactly for each tau = exp(u)."""
    u, w = gauss_rule(np.linspace(-14, 12, 40), 16)
    logs, first, means = [], [], []
    for value in u:
        tau = np.exp(value)
        noise = np.diag(ERRORS**2)
        names = np.ones((8, 1))
        prior = np.block(
            [[25 * np.ones((1, 1)), 25 * names.T], [25 * names, 25 + tau**2 * np.eye(8)]]
        )
        design = np.hstack([np.zeros((8, 1)), np.eye(8)])
        mean, covariance = gaussian_posterior(np.zeros(9), prior, design, noise, EFFECTS)
        total = 25 + np.diag(tau**2 + ERRORS**2)
        score = EFFECTS @ np.linalg.solve(total, EFFECTS)
        logs.append(-0.5 * (score + np.linalg.slogdet(total)[1]) - np.log1p(tau**2 / 25) + value)
        first.append(stats.norm.sf(30, mean[1], np.sqrt(max(covariance[1, 1], 1e-30))))
        means.append(mean[0])
    return posterior_means(
        (u, w),
        lambda _: np.array(logs),
        lambda _: np.array(first),
        lambda _: np.array(means),
        np.exp,
    )


def schools_check() -> Iterable[float]:
    """Quadrature over mu and the log of tau."""
    rule = product_rule(even_rule(-35, 35, 141), gauss_rule(np.linspace(-14, 10, 30), 12))

    def log_density(point):
        mu, u = point
        tau = np.exp(u)
        total = normal_log_density(mu, 0, 5) - np.log1p(tau**2 / 25) + u
        for y, error in zip(EFFECTS, ERRORS, strict=True):
            total = total + normal_log_density(y, mu, np.hypot(tau, error))
        return total

    return posterior_means(
        rule,
        log_density,
        lambda p: first_school(p[0], np.exp(p[1])),
        lambda p: p[0],
        lambda p: np.exp(p[1]),
    )


def strong_correlation(limit):
    factor = numpyro.sample("factor", dist.LKJCholesky(4, 2.0))
    correlation = factor @ factor.T
    return correlation[0, 1] > limit


_RNG = np.random.default_rng(3)
LEVELS = (np.cumsum(_RNG.normal(0, 0.3, 30)) + _RNG.normal(0, 1, 30)).round(3)


def local_level(y):
    moves = numpyro.sample("moves", dist.Normal(0, 0.3).expand([y.size]).to_event(1))
    level = jnp.cumsum(moves)
    with numpyro.plate("months", y.size):
        numpyro.sample("y", dist.Normal(level, 1.0), obs=y)
    return level[-1] > 1.5


def local_level_truth() -> Iterable[float]:
    n = LEVELS.size
    cumulate = np.tril(np.ones((n, n)))
    mean, covariance = gaussian_posterior(
        np.zeros(n), 0.09 * np.eye(n), cumulate, np.eye(n), LEVELS
    )
    last = np.ones(n)
    return [stats.norm.sf(1.5, last @ mean, np.sqrt(last @ covariance @ last))]


def local_level_check() -> Iterable[float]:
    """The Kalman filter."""
    mean, variance = 0.0, 0.0
    for y in LEVELS:
        variance += 0.09
        gain = variance / (variance + 1)
        mean, variance = mean + gain * (y - mean), (1 - gain) * variance
    return [normal_tail(1.5, mean, np.sqrt(variance))]


LOADING = 0.9


def all_assets_fall(covariance):
    change = numpyro.sample(
        "change", dist.MultivariateNormal(jnp.zeros(20), covariance_matrix=covariance)
    )
    return jnp.max(change) < -3


def all_fall(rule):
    return [
        integral(
            rule,
            lambda m: (
                np.exp(normal_log_density(m))
                * stats.norm.cdf((-3 - np.sqrt(LOADING) * m) / np.sqrt(1 - LOADING)) ** 20
            ),
        )
    ]


def misfit(limit):
    z = numpyro.sample("z", dist.Normal(0, 1).expand([30]).to_event(1))
    return jnp.sum(z**2) > limit


def chi_square_check() -> Iterable[float]:
    """The finite sum for an even number of degrees of freedom."""
    return [float(stats.poisson.cdf(14, 45.0))]


PROGRAMS = [
    Adversarial(
        "gaussian_shell_in_eight",
        "shapes",
        shell,
        (5.0,),
        lambda: shell_mean(
            gauss_rule(np.linspace(4.05, 6.2, 40)),
            lambda r: special.betainc(3.5, 0.5, 1 - (4 / r) ** 2) / 2,
        ),
        lambda: shell_mean(even_rule(4.01, 6.5, 2001), cap_by_quadrature),
        "Radial quadrature with spherical caps by incomplete beta; caps by quadrature.",
    ),
    Adversarial(
        "funnel_with_a_wide_mouth",
        "shapes",
        funnel,
        (30.0,),
        lambda: [
            integral(
                gauss_rule(np.linspace(-36, 36, 80)),
                lambda v: np.exp(normal_log_density(v, 0, 3)) * stats.norm.sf(30 * np.exp(-v / 2)),
            )
        ],
        funnel_check,
        "Quadrature over the log scale; quadrature over the standardised coordinate.",
    ),
    Adversarial(
        "eight_schools",
        "shapes",
        eight_schools,
        (EFFECTS, ERRORS),
        schools_truth,
        schools_check,
        "Gaussian algebra for each tau; two-dimensional quadrature over mu and tau.",
        is_easy=True,
    ),
    Adversarial(
        "strong_correlation_under_lkj",
        "shapes",
        strong_correlation,
        (0.9,),
        lambda: [stats.beta.sf(0.95, 3, 3)],
        lambda: [integral(gauss_rule([0.9, 1]), lambda r: 15 / 16 * (1 - r**2) ** 2)],
        "Each correlation is a scaled beta variable; the integral of its polynomial density.",
        is_easy=True,
    ),
    Adversarial(
        "local_level_of_thirty_months",
        "shapes",
        local_level,
        (LEVELS,),
        local_level_truth,
        local_level_check,
        "Dense Gaussian conditioning; the Kalman filter.",
        is_easy=True,
    ),
    Adversarial(
        "all_twenty_assets_fall",
        "shapes",
        all_assets_fall,
        (LOADING + (1 - LOADING) * np.eye(20),),
        lambda: all_fall(gauss_rule(np.linspace(-12, 6, 60))),
        lambda: all_fall(tanh_sinh_rule(np.linspace(-13, 5, 12))),
        "One-factor quadrature by Gauss; by tanh-sinh.",
    ),
    Adversarial(
        "misfit_of_thirty_scores",
        "shapes",
        misfit,
        (90.0,),
        lambda: [stats.chi2.sf(90, 30)],
        chi_square_check,
        "The chi-square tail; a Poisson sum.",
        is_easy=True,
    ),
]
