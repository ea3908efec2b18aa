"""Several outputs at once, of very different size and rarity."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import gammaincc, ndtr
from scipy.stats import gamma, norm

from problems.adversarial.program import Adversarial
from problems.adversarial.second.integrals import integral, legendre

LEVELS = np.arange(50) / 8.0


def exceedance_curve(levels):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    return x > levels


SHIFTS = np.array([0.0, -1.0, 1.0, -2.0, 0.5, -4.0, -6.0, -9.0, 2.0, -12.0, 0.0, -15.0])
READING = 1.0


def state_probabilities(logits, reading):
    """Which of twelve states, from one half down to one in a hundred million."""
    state = numpyro.sample("state", dist.Categorical(logits=logits))
    numpyro.sample("reading", dist.Normal(state / 4.0, 0.5), obs=reading)
    return jax.nn.one_hot(state, 12)


def state_probabilities_truth():
    logs = SHIFTS - 2 * (READING - np.arange(12) / 4) ** 2
    mass = np.exp(logs - logs.max())
    return list(mass / mass.sum())


def state_probabilities_check():
    weight = np.exp(SHIFTS) * norm.pdf(READING, np.arange(12) / 4, 0.5)
    return [1 / float(np.sum(weight / own)) for own in weight]


def symmetric_moments():
    """Odd moments of a symmetric posterior are 0; even ones grow quickly."""
    x = numpyro.sample("x", dist.Laplace(0.0, 1.0))
    return x ** jnp.arange(1, 7)


def symmetric_moments_check():
    def even(k: int) -> float:
        return integral(lambda x: x**k * np.exp(-x), legendre([0, 5, 15, 40, 100], 60))

    return [0.0, even(2), 0.0, even(4), 0.0, even(6)]


def reactor_report(inspections):
    """One everyday number, two rare ones, and the product of a common and a rare one."""
    wear = numpyro.sample("wear", dist.Gamma(2.0, 2.0))
    with numpyro.plate("inspections", inspections.size):
        numpyro.sample("y", dist.Poisson(wear), obs=inspections)
    load = numpyro.sample("load", dist.Gumbel(0.0, 1.0))
    shock = numpyro.sample("shock", dist.Exponential(1.0))
    return {
        "cost": 10.0 * wear + 1e6 * (shock > 14.0),
        "double": (load > 5.0) & (shock > 5.0),
        "leak": wear > 3.0,
        "overload": load > 12.0,
        "wear": wear,
    }


INSPECTIONS = np.array([1, 0, 2, 1, 1, 0])


def reactor_report_truth():
    wear = gamma(7, scale=1 / 8)
    over = [-np.expm1(-np.exp(-level)) for level in (5.0, 12.0)]
    cost = 8.75 + 1e6 * np.exp(-14.0)
    return [cost, over[0] * np.exp(-5.0), wear.sf(3.0), over[1], 0.875]


def reactor_report_check():
    def density(x):
        return x * np.exp(-2 * x) * np.exp(-6 * x) * x**5

    bottom = integral(density, legendre([0, 1, 3, 8], 60))
    mean = integral(lambda x: x * density(x), legendre([0, 1, 3, 8], 60)) / bottom
    leak = integral(density, legendre([3, 5, 8], 60)) / bottom

    def load(low: float) -> float:
        rule = legendre(low + np.array([0, 3, 10, 40]), 60)
        return integral(lambda x: np.exp(-x - np.exp(-x)), rule)

    def shock(low: float) -> float:
        return integral(lambda x: np.exp(-x), legendre(low + np.array([0, 3, 10, 40]), 60))

    return [10 * mean + 1e6 * shock(14), load(5) * shock(5), leak, load(12), mean]


PROGRAMS = [
    Adversarial(
        "exceedance_curve",
        "outputs",
        exceedance_curve,
        (LEVELS,),
        lambda: list(ndtr(-LEVELS)),
        lambda: list(0.5 * gammaincc(0.5, LEVELS**2 / 2)),
        "Normal tails; incomplete gamma functions.",
        True,
    ),
    Adversarial(
        "state_probabilities",
        "outputs",
        state_probabilities,
        (SHIFTS, READING),
        state_probabilities_truth,
        state_probabilities_check,
        "Bayes' rule; reciprocal sums of the odds.",
        True,
    ),
    Adversarial(
        "symmetric_moments",
        "outputs",
        symmetric_moments,
        (),
        lambda: [0.0, 2.0, 0.0, 24.0, 0.0, 720.0],
        symmetric_moments_check,
        "Factorials; quadrature of the even moments, symmetry of the odd ones.",
        True,
    ),
    Adversarial(
        "reactor_report",
        "outputs",
        reactor_report,
        (INSPECTIONS,),
        reactor_report_truth,
        reactor_report_check,
        "Gamma, Gumbel and exponential tails in closed form; quadrature.",
    ),
]
