"""Costs and net results: an everyday term beside a rare and expensive one."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.stats import gumbel_r, lognorm, norm

from problems.adversarial.program import Adversarial
from problems.adversarial.second.integrals import adaptive, integral, legendre, trapezoid


def warranty_cost():
    use = numpyro.sample("use", dist.Gamma(2.0, 1.0))
    load = numpyro.sample("load", dist.Normal(0.0, 1.0))
    return 20.0 * use + 5e8 * (load > 5.2)


def warranty_cost_check():
    everyday = adaptive(lambda x: 20 * x * x * np.exp(-x), [0, 5, 40, 90])
    return [everyday + 5e8 * integral(norm.pdf, legendre([5.2, 7, 9, 14]))]


def insurer_net_result(premium):
    claims = numpyro.sample("claims", dist.LogNormal(4.0, 0.5))
    quake = numpyro.sample("quake", dist.Normal(0.0, 1.0))
    wind = numpyro.sample("wind", dist.Gumbel(0.0, 1.0))
    return premium - claims - jnp.where(quake > 4.5, 1e6, 0.0) - jnp.where(wind > 18.0, 2e9, 0.0)


def insurer_net_result_truth():
    return [120 - np.exp(4.125) - 1e6 * norm.sf(4.5) + 2e9 * np.expm1(-np.exp(-18.0))]


def insurer_net_result_check():
    claims = integral(lambda z: np.exp(4 + 0.5 * z) * norm.pdf(z), trapezoid(-14, 14))
    quake = integral(norm.pdf, legendre([4.5, 6, 9, 14]))
    wind = adaptive(lambda x: gumbel_r.pdf(x), [18, 25, 40, 60])
    return [120 - claims - 1e6 * quake - 2e9 * wind]


DEFAULT = np.array([0.02, 0.01, 0.005, 1e-3, 1e-5, 1e-8])
EXPOSURE = np.array([1.0, 2.0, 3.0, 10.0, 2e3, 3e6])


def credit_portfolio(thresholds, exposures):
    economy = numpyro.sample("economy", dist.Normal(0.0, 1.0))
    with numpyro.plate("loans", thresholds.size):
        own = numpyro.sample("own", dist.Normal(0.0, 1.0))
    assets = jnp.sqrt(0.3) * economy + jnp.sqrt(0.7) * own
    return jnp.dot((assets < thresholds).astype(float), exposures)


def credit_portfolio_check():
    m, w = trapezoid(-12, 12)
    cut = norm.ppf(DEFAULT)
    default = norm.cdf((cut[:, None] - np.sqrt(0.3) * m) / np.sqrt(0.7))
    return [float(EXPOSURE @ default @ (w * norm.pdf(m)))]


def hedged_position():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    price = 100.0 * jnp.exp(0.2 * x)
    call, put = jnp.maximum(price - 95.0, 0.0), jnp.maximum(95.0 - price, 0.0)
    counterparty_fails = x < -5.0
    return call - put - (price - 95.0) - 1e5 * counterparty_fails


def outbreak_cost():
    reproduction = numpyro.sample("reproduction", dist.LogNormal(jnp.log(0.5), 0.15))
    chain = jnp.minimum(1.0 / jnp.maximum(1.0 - reproduction, 1e-3), 1000.0)
    pandemic = 4e7 * (1.0 - 1.0 / reproduction)
    return jnp.where(reproduction < 1.0, chain, pandemic)


def outbreak_value(r):
    return np.where(r < 1, np.minimum(1 / np.maximum(1 - r, 1e-3), 1e3), 4e7 * (1 - 1 / r))


def outbreak_cost_truth():
    def integrand(z):
        return outbreak_value(0.5 * np.exp(0.15 * z)) * norm.pdf(z)

    kinks = np.log(np.array([0.999, 1.0]) / 0.5) / 0.15
    return [integral(integrand, legendre([-12, -5, 0, 3, *kinks, 6, 8, 13], 100))]


def outbreak_cost_check():
    def integrand(r):
        return float(outbreak_value(r) * lognorm.pdf(r, 0.15, scale=0.5))

    return [adaptive(integrand, [0.05, 0.3, 0.5, 0.8, 0.97, 0.999, 1.0, 1.2, 2, 4])]


OUTCOMES = np.array([0.25, -0.5, 1.0, 0.5, -0.75, 0.75, 1.25, -1.0, 0.0, 0.5, 0.25, 0.25])


def trial_net_benefit(y):
    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    with numpyro.plate("patients", y.size):
        numpyro.sample("y", dist.Normal(effect, 1.0), obs=y)
    return effect - 1e5 * (effect > 1.5)


def trial_net_benefit_truth():
    mean, sd = OUTCOMES.sum() / 13, 13**-0.5
    return [mean - 1e5 * norm.sf(1.5, mean, sd)]


def trial_net_benefit_check():
    def density(x):
        return np.exp(-0.5 * x * x - 0.5 * np.sum((OUTCOMES[:, None] - x) ** 2, axis=0))

    everywhere, beyond = trapezoid(-4, 4), legendre([1.5, 2, 3, 5])
    norm_constant = integral(density, everywhere)
    mean = integral(lambda x: x * density(x), everywhere)
    return [(mean - 1e5 * integral(density, beyond)) / norm_constant]


LINES = np.array([1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3])
SIGMAS = np.array([0.3, 0.5, 0.7, 0.9, 1.2, 1.5, 1.8, 2.1])


def eight_lines_capped(caps, sigmas):
    with numpyro.plate("lines", caps.size):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    losses = jnp.minimum(0.01 * jnp.exp(sigmas * z * 2.0), caps)
    return jnp.sum(losses)


def eight_lines_capped_truth():
    sd = 2 * SIGMAS
    z = np.log(LINES / 0.01) / sd
    return [float(np.sum(0.01 * np.exp(sd**2 / 2) * norm.cdf(z - sd) + LINES * norm.sf(z)))]


def eight_lines_capped_check():
    def line(cap: float, sd: float) -> float:
        kink = np.log(cap / 0.01) / sd
        rule = legendre([-12, -4, 0, min(kink, 11.9), 12, 16], 100)
        return integral(lambda z: np.minimum(0.01 * np.exp(sd * z), cap) * norm.pdf(z), rule)

    return [sum(line(c, s) for c, s in zip(LINES, 2 * SIGMAS, strict=True))]


PROGRAMS = [
    Adversarial(
        "warranty_cost",
        "sums",
        warranty_cost,
        (),
        lambda: [40 + 5e8 * norm.sf(5.2)],
        warranty_cost_check,
        "Gamma mean plus a normal tail in closed form; both again by quadrature.",
        True,
    ),
    Adversarial(
        "insurer_net_result",
        "sums",
        insurer_net_result,
        (120.0,),
        insurer_net_result_truth,
        insurer_net_result_check,
        "Lognormal mean, normal tail and Gumbel tail in closed form; each again by quadrature.",
    ),
    Adversarial(
        "credit_portfolio",
        "sums",
        credit_portfolio,
        (norm.ppf(DEFAULT), EXPOSURE),
        lambda: [float(DEFAULT @ EXPOSURE)],
        credit_portfolio_check,
        "Marginal default probabilities times exposures; integral over the common factor.",
    ),
    Adversarial(
        "hedged_position",
        "sums",
        hedged_position,
        (),
        lambda: [-1e5 * norm.sf(5.0)],
        lambda: [-1e5 * integral(norm.pdf, legendre([-14, -9, -7, -5]))],
        "Put-call parity leaves only the tail, in closed form; the tail by quadrature.",
    ),
    Adversarial(
        "outbreak_cost",
        "sums",
        outbreak_cost,
        (),
        outbreak_cost_truth,
        outbreak_cost_check,
        "Gauss-Legendre in the normal variable; adaptive quadrature in the reproduction number.",
    ),
    Adversarial(
        "trial_net_benefit",
        "sums",
        trial_net_benefit,
        (OUTCOMES,),
        trial_net_benefit_truth,
        trial_net_benefit_check,
        "Conjugate normal posterior; quadrature of likelihood times prior.",
        True,
    ),
    Adversarial(
        "eight_lines_capped",
        "sums",
        eight_lines_capped,
        (LINES, SIGMAS),
        eight_lines_capped_truth,
        eight_lines_capped_check,
        "Limited lognormal means in closed form; Gauss-Legendre split at each cap.",
    ),
]
