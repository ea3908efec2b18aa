"""Expected costs and nets: an everyday amount plus a rare and enormous one."""

from __future__ import annotations

from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats

from problems.adversarial.first.integrals import (
    gauss_rule,
    integral,
    normal_log_density,
    normal_posterior,
    normal_tail,
    posterior_means,
    tanh_sinh_rule,
)
from problems.adversarial.program import Adversarial

WEAR = np.array([0.3, -0.2, 0.5, 0.1])


def operating_cost(y):
    wear = numpyro.sample("wear", dist.Normal(0, 1))
    with numpyro.plate("inspections", y.size):
        numpyro.sample("y", dist.Normal(wear, 1), obs=y)
    return 120 + 15 * wear + 1e9 * (wear > 2.6)


def operating_truth() -> Iterable[float]:
    mean, sd = normal_posterior(WEAR, 0, 1, 1)
    return [120 + 15 * mean + 1e9 * stats.norm.sf(2.6, mean, sd)]


def operating_check() -> Iterable[float]:
    rule = gauss_rule(np.concatenate([np.linspace(-8, 2.6, 30), np.linspace(2.6, 8, 30)[1:]]))
    return posterior_means(
        rule,
        lambda x: -0.5 * x**2 - 0.5 * sum((x - y) ** 2 for y in WEAR),
        lambda x: 120 + 15 * x + 1e9 * (x > 2.6),
    )


def insurer_net(premium):
    fire = numpyro.sample("fire", dist.Normal(0, 1))
    flood = numpyro.sample("flood", dist.Normal(0, 1))
    attritional = 20 * jnp.abs(fire)
    large = jnp.where(fire > 4.2, 2e6, 0.0) + jnp.where(flood > 5.1, 5e7, 0.0)
    return premium - attritional - large


def insurer_net_truth() -> Iterable[float]:
    large = 2e6 * stats.norm.sf(4.2) + 5e7 * stats.norm.sf(5.1)
    return [60 - 20 * np.sqrt(2 / np.pi) - large]


def insurer_net_check() -> Iterable[float]:
    everyday = 2 * integral(
        gauss_rule(np.linspace(0, 12, 13)), lambda x: 20 * x * np.exp(normal_log_density(x))
    )
    return [60 - everyday - 2e6 * normal_tail(4.2) - 5e7 * normal_tail(5.1)]


LOG_CLAIMS = np.array([6.1, 7.4, 8.3, 5.9, 7.0, 9.1, 6.6, 7.7])


def excess_of_loss(log_claims):
    mu = numpyro.sample("mu", dist.Normal(7, 2))
    with numpyro.plate("claims", log_claims.size):
        numpyro.sample("log_claims", dist.Normal(mu, 1.2), obs=log_claims)
    loss = numpyro.sample("loss", dist.LogNormal(mu, 1.2))
    return jnp.minimum(loss, 5000.0) + 0.1 * jnp.clip(loss - 1e6, 0.0, 1e7)


def limited_mean(limit, mean, sd):
    """E[min(loss, limit)] of a lognormal loss."""
    score = (np.log(limit) - mean) / sd
    below = np.exp(mean + sd**2 / 2) * stats.norm.cdf(score - sd)
    return below + limit * stats.norm.sf(score)


def excess_truth() -> Iterable[float]:
    mean, sd = normal_posterior(LOG_CLAIMS, 7, 2, 1.2)
    sd = np.hypot(sd, 1.2)
    layer = limited_mean(1.1e7, mean, sd) - limited_mean(1e6, mean, sd)
    return [limited_mean(5000, mean, sd) + 0.1 * layer]


def excess_check() -> Iterable[float]:
    mean, sd = normal_posterior(LOG_CLAIMS, 7, 2, 1.2)
    sd = np.hypot(sd, 1.2)
    cuts = np.log([5000, 1e6, 1.1e7])
    edges = np.sort(np.concatenate([np.linspace(mean - 10 * sd, mean + 13 * sd, 40), cuts]))
    return [
        integral(
            gauss_rule(edges),
            lambda x: (
                np.exp(normal_log_density(x, mean, sd))
                * (np.minimum(np.exp(x), 5000) + 0.1 * np.clip(np.exp(x) - 1e6, 0, 1e7))
            ),
        )
    ]


LIMITS = np.array([0.5, 2.0, 3.0, 4.0, 5.0, 5.8])
PRICES = np.array([1e1, 1e2, 2e3, 1e5, 1e7, 1e9])


def component_costs(limits, prices):
    with numpyro.plate("components", limits.size):
        stress = numpyro.sample("stress", dist.Normal(0, 1))
    return jnp.dot(stress > limits, prices)


LEVEE = 12.0


def levee_damage(levee):
    level = numpyro.sample("level", dist.Gumbel(4, 0.7))
    return 3 * level + jnp.where(level > levee, 1e6 * (level - levee) ** 2, 0.0)


def levee_truth() -> Iterable[float]:
    excess = integral(
        gauss_rule(np.linspace(LEVEE, LEVEE + 40, 41)),
        lambda x: 2 * (x - LEVEE) * -np.expm1(-np.exp(-(x - 4) / 0.7)),
    )
    return [3 * (4 + 0.7 * np.euler_gamma) + 1e6 * excess]


def levee_check() -> Iterable[float]:
    rule = tanh_sinh_rule([-2, 2, 4, 6, 9, LEVEE, 16, 24, 50])
    return [
        integral(
            rule,
            lambda x: (
                stats.gumbel_r.pdf(x, 4, 0.7)
                * (3 * x + np.where(x > LEVEE, 1e6 * (x - LEVEE) ** 2, 0))
            ),
        )
    ]


YEARS = np.array([2, 1, 3, 2, 0, 4, 2, 1, 3, 2, 2, 1, 3, 2, 2, 3, 1, 2, 2])


def underwriting_result(counts):
    rate = numpyro.sample("rate", dist.Gamma(2, 1))
    with numpyro.plate("years", counts.size):
        numpyro.sample("counts", dist.Poisson(rate), obs=counts)
    return 195.0 - 100.0 * rate


def underwriting_truth() -> Iterable[float]:
    return [195 - 100 * (2 + YEARS.sum()) / (1 + YEARS.size)]


def underwriting_check() -> Iterable[float]:
    total, n = YEARS.sum(), YEARS.size
    return posterior_means(
        gauss_rule(np.linspace(1e-12, 12, 60)),
        lambda x: (1 + total) * np.log(x) - (1 + n) * x,
        lambda x: 195 - 100 * x,
    )


def rogue_trade(probability):
    desk = numpyro.sample("desk", dist.Normal(5, 2))
    rogue = numpyro.sample("rogue", dist.Bernoulli(probability))
    loss = numpyro.sample("loss", dist.LogNormal(18, 1))
    return desk + rogue * loss


def rogue_check() -> Iterable[float]:
    severity = integral(
        gauss_rule(np.linspace(6, 32, 40)), lambda x: np.exp(x + normal_log_density(x, 18, 1))
    )
    return [5 + 2e-7 * severity]


PROGRAMS = [
    Adversarial(
        "operating_cost_with_meltdown",
        "sums",
        operating_cost,
        (WEAR,),
        operating_truth,
        operating_check,
        "The conjugate normal posterior and its tail; quadrature of likelihood times prior.",
    ),
    Adversarial(
        "insurer_net_of_two_perils",
        "sums",
        insurer_net,
        (60.0,),
        insurer_net_truth,
        insurer_net_check,
        "Normal tails and the folded normal mean; the same by quadrature.",
    ),
    Adversarial(
        "excess_of_loss_treaty",
        "sums",
        excess_of_loss,
        (LOG_CLAIMS,),
        excess_truth,
        excess_check,
        "Limited expected values of the lognormal predictive; quadrature of the payment itself.",
        is_easy=True,
    ),
    Adversarial(
        "component_costs_in_a_dot",
        "sums",
        component_costs,
        (LIMITS, PRICES),
        lambda: [float(PRICES @ stats.norm.sf(LIMITS))],
        lambda: [sum(p * normal_tail(t) for p, t in zip(PRICES, LIMITS, strict=True))],
        "The sum of price times normal tail; each tail by quadrature.",
    ),
    Adversarial(
        "levee_damage",
        "sums",
        levee_damage,
        (LEVEE,),
        levee_truth,
        levee_check,
        "The Gumbel mean and an integral of the survival function; quadrature of density times f.",
        is_easy=True,
    ),
    Adversarial(
        "underwriting_result_near_zero",
        "sums",
        underwriting_result,
        (YEARS,),
        underwriting_truth,
        underwriting_check,
        "The mean of the gamma posterior; quadrature of likelihood times prior.",
        is_easy=True,
    ),
    Adversarial(
        "rogue_trade",
        "sums",
        rogue_trade,
        (2e-7,),
        lambda: [5 + 2e-7 * np.exp(18.5)],
        rogue_check,
        "Products of independent means; the lognormal mean by quadrature.",
    ),
]
