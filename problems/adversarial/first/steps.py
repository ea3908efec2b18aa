"""Mass at the edge of a support, and targets with steps, ties, rounding or equality."""

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
    posterior_means,
)
from problems.adversarial.program import Adversarial


def zero_defects(trials):
    rate = numpyro.sample("rate", dist.Beta(1, 1))
    numpyro.sample("defects", dist.Binomial(trials, rate), obs=0)
    return {"bad": rate > 0.001, "rate": rate}


def zero_defects_check() -> Iterable[float]:
    rule = gauss_rule(
        np.concatenate([np.linspace(0, 0.001, 20), np.geomspace(0.001, 0.05, 40)[1:]])
    )
    return posterior_means(rule, lambda p: 5000 * np.log1p(-p), lambda p: p > 0.001, lambda p: p)


def all_successes(trials):
    rate = numpyro.sample("rate", dist.Beta(0.5, 0.5))
    numpyro.sample("successes", dist.Binomial(trials, rate), obs=trials)
    return {"failure": 1 - rate, "poor": rate < 0.85}


def all_successes_check() -> Iterable[float]:
    """With failure rate q = s**2, which removes the singularity at zero."""
    cut = np.sqrt(0.15)
    rule = gauss_rule(
        np.concatenate([np.linspace(0, cut, 30), np.linspace(cut, 1 - 1e-12, 30)[1:]])
    )
    return posterior_means(
        rule,
        lambda s: 49.5 * np.log1p(-(s**2)),
        lambda s: s**2,
        lambda s: s**2 > 0.15,
    )


def delay_near_zero(y):
    delay = numpyro.sample("delay", dist.Exponential(1.0))
    numpyro.sample("y", dist.Normal(delay, 1.0), obs=y)
    return delay


def delay_truth() -> Iterable[float]:
    """A normal with mean -9 and unit scale, cut at zero: the inverse Mills ratio."""
    return [-9 + np.sqrt(2 / np.pi) / special.erfcx(9 / np.sqrt(2))]


def largest_serial(largest, n):
    total = numpyro.sample("total", dist.Uniform(0, 10))
    numpyro.factor("draws", jnp.where(total >= largest, -n * jnp.log(total), -jnp.inf))
    return total


def largest_serial_truth() -> Iterable[float]:
    ratio = (10 / 4.2) ** -199.0
    return [4.2 * 199 / 198 * (1 - (10 / 4.2) ** -198.0) / (1 - ratio)]


def sparse_shares(counts):
    share = numpyro.sample("share", dist.Dirichlet(jnp.full(6, 0.05)))
    numpyro.sample("counts", dist.Multinomial(total_count=5, probs=share), obs=counts)
    return {"dominant": share[0] > 0.9, "squares": jnp.sum(share**2)}


SHARES = np.array([4, 1, 0, 0, 0, 0])


def sparse_truth() -> Iterable[float]:
    a = SHARES + 0.05
    total = a.sum()
    return [stats.beta.sf(0.9, a[0], total - a[0]), np.sum(a * (a + 1)) / (total * (total + 1))]


def sparse_check() -> Iterable[float]:
    """Each share is a beta variable; x = s**20 at zero and 1 - x = s**2 at one."""
    a = SHARES + 0.05
    rest = a.sum() - a
    dominant = integral(
        gauss_rule([0, np.sqrt(0.1)]),
        lambda s: 2 * s * (1 - s**2) ** (a[0] - 1) * s ** (2 * rest[0] - 2),
    ) / special.beta(a[0], rest[0])
    squares = 0.0
    for left, right in zip(a, rest, strict=True):
        low = integral(
            gauss_rule(np.linspace(0, 0.5**0.05, 20)),
            lambda s, p=left, q=right: 20 * s ** (20 * (p + 2) - 1) * (1 - s**20) ** (q - 1),
        )
        high = integral(
            gauss_rule(np.linspace(0, 0.5**0.05, 20)),
            lambda s, p=left, q=right: 20 * (1 - s**20) ** (p + 1) * s ** (20 * q - 1),
        )
        squares += (low + high) / special.beta(left, right)
    return [dominant, squares]


def at_the_cap(cap):
    with numpyro.plate("storms", 3):
        storm = numpyro.sample("storm", dist.Gamma(2.0, 0.5))
    paid = jnp.minimum(jnp.sum(storm), cap)
    return paid == cap


HEAPED = np.array([30, 40, 40, 50, 30, 40, 60, 40, 50, 30])


def heaped_ages(ages):
    mu = numpyro.sample("mu", dist.Normal(40, 20))
    upper, lower = norm.cdf(ages + 5.0, mu, 9.0), norm.cdf(ages - 5.0, mu, 9.0)
    numpyro.factor("ages", jnp.sum(jnp.log(upper - lower)))
    return mu


def heaped_mean(rule):
    def log_density(mu):
        scores = special.erf((HEAPED[:, None] + 5 - mu) / 9 / np.sqrt(2))
        scores = scores - special.erf((HEAPED[:, None] - 5 - mu) / 9 / np.sqrt(2))
        return normal_log_density(mu, 40, 20) + np.log(scores).sum(axis=0)

    return posterior_means(rule, log_density, lambda mu: mu)


def tied_match(home, away):
    home_goals = numpyro.sample("home_goals", dist.Poisson(home))
    away_goals = numpyro.sample("away_goals", dist.Poisson(away))
    return home_goals == away_goals


PROGRAMS = [
    Adversarial(
        "zero_defects_in_five_thousand",
        "edges",
        zero_defects,
        (5000,),
        lambda: [stats.beta.sf(0.001, 1, 5001), 1 / 5002],
        zero_defects_check,
        "The beta posterior; quadrature of the likelihood.",
        is_easy=True,
    ),
    Adversarial(
        "fifty_successes_of_fifty",
        "edges",
        all_successes,
        (50,),
        lambda: [0.5 / 51, stats.beta.cdf(0.85, 50.5, 0.5)],
        all_successes_check,
        "The beta posterior; quadrature in the square root of the failure rate.",
        is_easy=True,
    ),
    Adversarial(
        "delay_pressed_against_zero",
        "edges",
        delay_near_zero,
        (-8.0,),
        delay_truth,
        lambda: posterior_means(
            gauss_rule(np.linspace(0, 12, 40)), lambda x: -x - 0.5 * (x + 8) ** 2, lambda x: x
        ),
        "The inverse Mills ratio; quadrature of the posterior.",
        is_easy=True,
    ),
    Adversarial(
        "largest_serial_number",
        "edges",
        largest_serial,
        (4.2, 200),
        largest_serial_truth,
        lambda: posterior_means(
            gauss_rule(np.linspace(4.2, 10, 400)), lambda x: -200 * np.log(x), lambda x: x
        ),
        "The truncated Pareto posterior in closed form; quadrature.",
        is_easy=True,
    ),
    Adversarial(
        "sparse_market_shares",
        "edges",
        sparse_shares,
        (SHARES,),
        sparse_truth,
        sparse_check,
        "Dirichlet moments and a beta tail; quadrature of the beta margins.",
    ),
    Adversarial(
        "payment_equal_to_the_cap",
        "ties",
        at_the_cap,
        (50.0,),
        lambda: [stats.gamma.sf(50.0, 6, scale=2)],
        lambda: [stats.poisson.cdf(5, 25.0)],
        "The survival function of a gamma sum; the Poisson duality.",
    ),
    Adversarial(
        "heaped_ages",
        "ties",
        heaped_ages,
        (HEAPED,),
        lambda: heaped_mean(gauss_rule(np.linspace(10, 75, 40))),
        lambda: heaped_mean(even_rule(5, 80, 2001)),
        "Gauss quadrature of the grouped likelihood; the trapezoid rule.",
        is_easy=True,
    ),
    Adversarial(
        "tied_match",
        "ties",
        tied_match,
        (1.6, 1.1),
        lambda: [np.exp(-2.7) * special.iv(0, 2 * np.sqrt(1.6 * 1.1))],
        lambda: [
            float(stats.poisson.pmf(np.arange(60), 1.6) @ stats.poisson.pmf(np.arange(60), 1.1))
        ],
        "The Skellam probability of zero; the sum over the common score.",
        is_easy=True,
    ),
]
