"""Events and targets that come about in several ways."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import comb, ive, k0, ndtr
from scipy.stats import gamma, ncx2, norm

from problems.adversarial.program import Adversarial
from problems.adversarial.second.integrals import (
    adaptive,
    integral,
    legendre,
    product,
    trapezoid,
)


def five_redundant_pairs():
    with numpyro.plate("pairs", 5):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    backup = 0.5 * a + jnp.sqrt(0.75) * b
    return jnp.any((a > 2.8) & (backup > 2.8))


def any_of_five(pair: float) -> list[float]:
    return [-np.expm1(5 * np.log1p(-pair))]


def five_redundant_pairs_truth():
    def given(a):
        return norm.pdf(a) * ndtr((0.5 * a - 2.8) / np.sqrt(0.75))

    return any_of_five(integral(given, legendre([2.8, 4, 6, 9, 13])))


def five_redundant_pairs_check():
    def plackett(r: float) -> float:
        return np.exp(-(2.8**2) / (1 + r)) / (2 * np.pi * np.sqrt(1 - r * r))

    return any_of_five(norm.sf(2.8) ** 2 + adaptive(plackett, [0.0, 0.25, 0.5]))


EFFECTS = np.array([0.5, 0.25, -0.25, 1.0, 0.75, 0.5, 0.0, 0.25, 0.5, 1.0, -0.5, 0.0])


def harm_or_large_benefit(y):
    effect = numpyro.sample("effect", dist.StudentT(4.0, 0.0, 1.0))
    with numpyro.plate("sites", y.size):
        numpyro.sample("y", dist.Normal(effect, 0.5), obs=y)
    return (effect < -0.3) | (effect > 1.1)


def harm_density(x):
    data = np.sum((EFFECTS[:, None] - np.atleast_1d(x)) ** 2, axis=0) / 0.5
    return np.exp(-data + 10) * (1 + np.atleast_1d(x) ** 2 / 4) ** -2.5


def harm_or_large_benefit_truth():
    tails = integral(harm_density, legendre([-3, -1, -0.3])) + integral(
        harm_density, legendre([1.1, 2, 4])
    )
    return [tails / integral(harm_density, legendre([-3, -1, 0, 1, 2, 4]))]


def harm_or_large_benefit_check():
    def density(x: float) -> float:
        return float(harm_density(x)[0])

    middle = adaptive(density, [-0.3, 0.3, 0.8, 1.1])
    tails = adaptive(density, [-3, -1, -0.3]) + adaptive(density, [1.1, 2, 4])
    return [tails / (middle + tails)]


ANGLES = 2 * np.pi * np.arange(12) / 12


def ring_of_targets(angle):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    y = numpyro.sample("y", dist.Normal(0.0, 1.0))
    distance = jnp.hypot(x - 5.0 * jnp.cos(angle), y - 5.0 * jnp.sin(angle))
    return jnp.min(distance) < 0.3


def ring_of_targets_check():
    def radial(s):
        # ive is scaled by exp(-5 s), which completes the square
        return s * np.exp(-0.5 * (s - 5) ** 2) * ive(0, 5 * s)

    return [12 * integral(radial, legendre([0, 0.3]))]


def product_of_three():
    with numpyro.plate("factors", 3):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    return jnp.prod(x) > 40.0


def product_of_three_truth():
    def given(z):
        return 2 * k0(z) / np.pi * ndtr(-40 / z)

    return [integral(given, legendre([1e-3, 4, 10, 16, 24, 40, 80], 100))]


def product_of_three_check():
    u, v, w = product(trapezoid(-6, 3, 500), trapezoid(-6, 3, 500))
    logs = 2 * np.log(2) - np.log(2 * np.pi) + u + v - 0.5 * (np.exp(2 * u) + np.exp(2 * v))
    return [float(np.sum(w * np.exp(logs) * ndtr(-40 * np.exp(-u - v))))]


CUTS = np.array([2.5, 3.0, 3.5, 4.0, 4.5, 5.0])


def cost_of_six_modes(cuts, costs):
    with numpyro.plate("modes", cuts.size):
        wear = numpyro.sample("wear", dist.Gamma(3.0, 1.0))
    return jnp.max(jnp.where(wear > 4.0 * cuts, costs, 0.0))


COSTS = 10.0 ** np.arange(6)


def cost_of_six_modes_truth():
    p = gamma.sf(4 * CUTS, 3)
    keep = np.append(np.cumprod((1 - p)[::-1])[::-1][1:], 1.0)
    return [float(np.sum(COSTS * p * keep))]


def cost_of_six_modes_check():
    log_p = -4 * CUTS + np.log1p(4 * CUTS + 8 * CUTS**2)
    states = (np.arange(64)[:, None] >> np.arange(6)) & 1
    logs = np.where(states == 1, log_p, np.log1p(-np.exp(log_p))).sum(axis=1)
    return [float(np.sum(np.exp(logs) * np.max(states * COSTS, axis=1)))]


def two_detectors_coincide():
    """Two of seven arrival times fall within a thousandth of the window."""
    with numpyro.plate("photons", 7):
        t = numpyro.sample("t", dist.Uniform(0.0, 1.0))
    gaps = jnp.diff(jnp.sort(t))
    return jnp.min(gaps) < 0.001


def two_detectors_coincide_check():
    # The gaps are a Dirichlet vector: P(the k named inner gaps all exceed d) = (1 - k d)^7.
    # Inclusion and exclusion over the events "gap i is below d".
    terms = [
        (comb(6, j), sum((-1) ** i * comb(j, i) * (1 - 0.001 * i) ** 7 for i in range(j + 1)))
        for j in range(1, 7)
    ]
    return [sum((-1) ** (j + 1) * c * p for j, (c, p) in enumerate(terms, start=1))]


PROGRAMS = [
    Adversarial(
        "five_redundant_pairs",
        "unions",
        five_redundant_pairs,
        (),
        five_redundant_pairs_truth,
        five_redundant_pairs_check,
        "Bivariate normal corner by conditioning; the same by Plackett's integral over the "
        "correlation.",
    ),
    Adversarial(
        "harm_or_large_benefit",
        "unions",
        harm_or_large_benefit,
        (EFFECTS,),
        harm_or_large_benefit_truth,
        harm_or_large_benefit_check,
        "Gauss-Legendre and adaptive quadrature with the interval split in other ways.",
        True,
    ),
    Adversarial(
        "ring_of_targets",
        "unions",
        ring_of_targets,
        (ANGLES,),
        lambda: [12 * ncx2.cdf(0.09, 2, 25.0)],
        ring_of_targets_check,
        "Noncentral chi-square distribution; radial integral with a Bessel function.",
    ),
    Adversarial(
        "product_of_three",
        "unions",
        product_of_three,
        (),
        product_of_three_truth,
        product_of_three_check,
        "Bessel density of a product of two; two-dimensional trapezoid in logarithms.",
    ),
    Adversarial(
        "cost_of_six_modes",
        "unions",
        cost_of_six_modes,
        (CUTS, COSTS),
        cost_of_six_modes_truth,
        cost_of_six_modes_check,
        "The dearest failed mode, mode by mode; enumeration of the 64 states.",
    ),
    Adversarial(
        "two_detectors_coincide",
        "unions",
        two_detectors_coincide,
        (),
        lambda: [-np.expm1(7 * np.log1p(-0.006))],
        two_detectors_coincide_check,
        "Smallest spacing in closed form; inclusion and exclusion over the spacings.",
        True,
    ),
]
