"""Discrete and mixed sites: counts, switches, spins, integer grids."""

from __future__ import annotations

from itertools import combinations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import betainc, betaln, gammaln
from scipy.stats import beta, binom, poisson

from problems.adversarial.program import Adversarial
from problems.adversarial.second.integrals import Array, legendre


def sixty_coins():
    return numpyro.sample("heads", dist.Binomial(60, 0.5)) >= 48


CAUSES = np.array([0.01, 0.02, 0.05, 0.001, 0.1, 0.03, 0.005, 0.2])
LINKS = np.array(
    [
        [0.9, 0.1, 0.0, 0.8, 0.2, 0.0, 0.5, 0.1],
        [0.0, 0.7, 0.4, 0.9, 0.1, 0.3, 0.0, 0.2],
        [0.6, 0.0, 0.5, 0.9, 0.0, 0.1, 0.7, 0.1],
        [0.2, 0.3, 0.0, 0.1, 0.6, 0.8, 0.0, 0.1],
    ]
)
SYMPTOMS = np.array([1, 1, 1, 0])
LEAK = 0.01


def noisy_or_diagnosis(causes, links, symptoms):
    with numpyro.plate("diseases", causes.size):
        disease = numpyro.sample("disease", dist.Bernoulli(causes))
    silent = (1.0 - 0.01) * jnp.prod(1.0 - links * disease, axis=1)
    with numpyro.plate("symptoms", symptoms.size):
        numpyro.sample("symptom", dist.Bernoulli(1.0 - silent), obs=symptoms)
    return disease


def noisy_or_truth():
    state = (np.arange(256)[:, None] >> np.arange(8)) & 1
    silent = (1 - LEAK) * np.prod(1 - LINKS * state[:, None, :], axis=2)
    mass = np.prod(np.where(state == 1, CAUSES, 1 - CAUSES), axis=1)
    mass = mass * np.prod(np.where(SYMPTOMS == 1, 1 - silent, silent), axis=1)
    return list(mass @ state / mass.sum())


def noisy_or_check():
    """Quickscore: inclusion and exclusion over the positive symptoms."""
    positive = np.flatnonzero(SYMPTOMS)
    total, with_disease = 0.0, np.zeros(8)
    for size in range(positive.size + 1):
        for chosen in combinations(positive, size):
            rows = [*chosen, *np.flatnonzero(SYMPTOMS == 0)]
            sign = (-1.0) ** size * (1 - LEAK) ** len(rows)
            present = CAUSES * np.prod(1 - LINKS[rows], axis=0)
            either = present + 1 - CAUSES
            total += sign * np.prod(either)
            with_disease += sign * present * np.prod(either) / either
    return list(with_disease / total)


DISASTERS = np.array([4, 5, 3, 6, 4, 2, 5, 4, 6, 3, 5, 2, 1, 1, 0, 2, 1, 0, 1, 2, 1, 0, 3, 1])


def change_point(counts):
    early = numpyro.sample("early", dist.Gamma(2.0, 1.0))
    late = numpyro.sample("late", dist.Gamma(2.0, 1.0))
    year = numpyro.sample("year", dist.DiscreteUniform(1, 23))
    rate = jnp.where(jnp.arange(counts.size) < year, early, late)
    with numpyro.plate("years", counts.size):
        numpyro.sample("counts", dist.Poisson(rate), obs=counts)
    return {"at_12": year == 12, "drop": early - late, "last": year >= 15}


def change_point_sums():
    year = np.arange(1, 24)
    before = np.cumsum(DISASTERS)[:-1]
    return year, before, DISASTERS.sum() - before


def change_point_truth():
    year, before, after = change_point_sums()
    logs = gammaln(2 + before) + gammaln(2 + after)
    logs -= (2 + before) * np.log(1 + year) + (2 + after) * np.log(25 - year)
    mass = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    drop = (2 + before) / (1 + year) - (2 + after) / (25 - year)
    return [mass[year == 12].sum(), float(mass @ drop), mass[year >= 15].sum()]


def change_point_check():
    rate, w = legendre([1e-9, 1, 3, 6, 10, 20], 60)
    year, before, after = change_point_sums()

    def moments(total: Array, years: Array) -> tuple[Array, Array]:
        logs = (1 + total[:, None]) * np.log(rate) - rate * (1 + years[:, None])
        mass = w * np.exp(logs)
        return mass.sum(axis=1), mass @ rate

    (one, first), (two, second) = moments(before, year), moments(after, 24 - year)
    mass = one * two
    drop = np.sum(first * two - one * second) / mass.sum()
    return [mass[year == 12].sum() / mass.sum(), drop, mass[year >= 15].sum() / mass.sum()]


def ising_ring():
    with numpyro.plate("sites", 12):
        up = numpyro.sample("up", dist.Bernoulli(0.5))
    spin = 2.0 * up - 1.0
    numpyro.factor("bonds", 0.8 * jnp.sum(spin * jnp.roll(spin, 1)) + 0.05 * jnp.sum(spin))
    return {"aligned": jnp.abs(spin.sum()) == 12, "magnetisation": spin.mean()}


def ising_ring_truth():
    spin = 2.0 * ((np.arange(4096)[:, None] >> np.arange(12)) & 1) - 1
    total = spin.sum(axis=1)
    mass = np.exp(0.8 * np.sum(spin * np.roll(spin, 1, axis=1), axis=1) + 0.05 * total)
    return [mass[np.abs(total) == 12].sum() / mass.sum(), float(mass @ total / 12 / mass.sum())]


def ising_ring_check():
    def partition(field: float) -> float:
        matrix = np.exp(np.array([[0.8 + field, -0.8], [-0.8, 0.8 - field]]))
        return float(np.trace(np.linalg.matrix_power(matrix, 12)))

    aligned = 2 * np.exp(9.6) * np.cosh(0.6) / partition(0.05)
    matrix = np.exp(np.array([[0.85, -0.8], [-0.8, 0.75]]))
    power = np.linalg.matrix_power(matrix, 12)
    return [aligned, (power[0, 0] - power[1, 1]) / np.trace(power)]


def capture_recapture(seen):
    total = numpyro.sample("total", dist.Poisson(300.0))
    rate = numpyro.sample("rate", dist.Beta(8.0, 12.0))
    numpyro.sample("seen", dist.Binomial(total, rate), obs=jnp.asarray(seen))
    return {"few": total < 260, "rate": rate}


def capture_recapture_truth():
    n = np.arange(90, 700)
    logs = poisson.logpmf(n, 300) + gammaln(n + 1) - gammaln(n - 89) + betaln(98, 12 + n - 90)
    mass = np.exp(logs - logs.max())
    rate = 98 / (20.0 + n)
    return [mass[n < 260].sum() / mass.sum(), float(mass @ rate / mass.sum())]


def capture_recapture_check():
    # Thinning: given the rate, the seen and the unseen are independent Poisson counts.
    p, w = legendre([1e-6, 0.1, 0.25, 0.35, 0.5, 0.8, 1 - 1e-9], 80)
    mass = w * beta.pdf(p, 8, 12) * poisson.pmf(90, 300 * p)
    few = poisson.cdf(259 - 90, 300 * (1 - p))
    return [float(mass @ few / mass.sum()), float(mass @ p / mass.sum())]


def factor_pair():
    """Which two numbers below 100 have a product near 2021?"""
    a = numpyro.sample("a", dist.DiscreteUniform(2, 99))
    b = numpyro.sample("b", dist.DiscreteUniform(2, 99))
    numpyro.sample("product", dist.Normal(1.0 * a * b, 0.7), obs=2021.0)
    return {"exact": a * b == 2021, "small": a < 30}


def factor_pair_truth():
    a, b = np.meshgrid(np.arange(2, 100), np.arange(2, 100), indexing="ij")
    mass = np.exp(-0.5 * ((a * b - 2021) / 0.7) ** 2)
    return [mass[a * b == 2021].sum() / mass.sum(), mass[a < 30].sum() / mass.sum()]


def factor_pair_check():
    exact = small = total = 0.0
    for n in range(2000, 2043):
        pairs = [a for a in range(2, 100) if n % a == 0 and 2 <= n // a <= 99]
        mass = np.exp(-0.5 * ((n - 2021) / 0.7) ** 2)
        total += mass * len(pairs)
        small += mass * sum(a < 30 for a in pairs)
        exact += mass * len(pairs) * (n == 2021)
    return [exact / total, small / total]


BASIC = np.array([1e-3, 2e-3, 0.01, 0.02, 0.005, 3e-7])


def fault_tree(basic):
    with numpyro.plate("basic", basic.size):
        e = numpyro.sample("e", dist.Bernoulli(basic))
    return ((e[0] & e[1]) | (e[2] & e[3] & e[4]) | e[5]) == 1


def fault_tree_truth():
    p = BASIC
    gates = np.array([p[0] * p[1], p[2] * p[3] * p[4], p[5]])
    return [-np.expm1(np.log1p(-gates).sum())]


def fault_tree_check():
    e = (np.arange(64)[:, None] >> np.arange(6)) & 1
    top = (e[:, 0] & e[:, 1]) | (e[:, 2] & e[:, 3] & e[:, 4]) | e[:, 5]
    return [float(np.sum(top * np.prod(np.where(e == 1, BASIC, 1 - BASIC), axis=1)))]


PROGRAMS = [
    Adversarial(
        "sixty_coins",
        "discrete",
        sixty_coins,
        (),
        lambda: [float(binom.sf(47, 60, 0.5))],
        lambda: [float(betainc(48, 13, 0.5))],
        "Binomial tail; incomplete beta function.",
        True,
    ),
    Adversarial(
        "noisy_or_diagnosis",
        "discrete",
        noisy_or_diagnosis,
        (CAUSES, LINKS, SYMPTOMS),
        noisy_or_truth,
        noisy_or_check,
        "Enumeration of 256 states; inclusion and exclusion over the symptoms.",
        True,
    ),
    Adversarial(
        "change_point",
        "discrete",
        change_point,
        (DISASTERS,),
        change_point_truth,
        change_point_check,
        "Gamma integrals for every year; the same integrals by quadrature.",
        True,
    ),
    Adversarial(
        "ising_ring",
        "discrete",
        ising_ring,
        (),
        ising_ring_truth,
        ising_ring_check,
        "Enumeration of 4096 states; transfer matrix.",
    ),
    Adversarial(
        "capture_recapture",
        "discrete",
        capture_recapture,
        (90,),
        capture_recapture_truth,
        capture_recapture_check,
        "Sum over the total with the rate integrated out; quadrature over the rate.",
        True,
    ),
    Adversarial(
        "factor_pair",
        "discrete",
        factor_pair,
        (),
        factor_pair_truth,
        factor_pair_check,
        "Enumeration of the grid; divisors of each product.",
    ),
    Adversarial(
        "fault_tree",
        "discrete",
        fault_tree,
        (BASIC,),
        fault_tree_truth,
        fault_tree_check,
        "Independent gates in closed form; enumeration of 64 states.",
    ),
]
