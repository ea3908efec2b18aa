"""Failures, breaches and claims that can come about in several ways."""

from __future__ import annotations

import itertools
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
    normal_posterior,
    normal_tail,
    tanh_sinh_rule,
)
from problems.adversarial.program import Adversarial

BOLTS = np.linspace(4.0, 6.0, 20)


def any_bolt(limits):
    with numpyro.plate("bolts", limits.size):
        load = numpyro.sample("load", dist.Normal(0, 1))
    return jnp.any(load > limits)


def bolts_check() -> Iterable[float]:
    """Inclusion and exclusion: the alternating sum of elementary symmetric polynomials."""
    symmetric = np.zeros(BOLTS.size + 1)
    symmetric[0] = 1
    for limit in BOLTS:
        symmetric[1:] = symmetric[1:] + normal_tail(limit) * symmetric[:-1]
    signs = (-1.0) ** np.arange(BOLTS.size)
    return [float(np.sum(signs * symmetric[1:]))]


DIAMETERS = np.array([10.02, 10.05, 9.98, 10.04, 10.06])


def out_of_tolerance(y):
    mu = numpyro.sample("mu", dist.Normal(10, 1))
    with numpyro.plate("parts", y.size):
        numpyro.sample("y", dist.Normal(mu, 0.05), obs=y)
    part = numpyro.sample("part", dist.Normal(mu, 0.05))
    return (part > 10.25) | (part < 9.82)


def tolerance_truth() -> Iterable[float]:
    mean, sd = normal_posterior(DIAMETERS, 10, 1, 0.05)
    sd = np.hypot(sd, 0.05)
    return [stats.norm.sf(10.25, mean, sd) + stats.norm.cdf(9.82, mean, sd)]


def tolerance_check() -> Iterable[float]:
    mean, sd = normal_posterior(DIAMETERS, 10, 1, 0.05)
    rule = gauss_rule(mean + sd * np.linspace(-12, 12, 25))
    upper = lambda mu: special.erfc((10.25 - mu) / 0.05 / np.sqrt(2)) / 2  # noqa: E731
    lower = lambda mu: special.erfc((mu - 9.82) / 0.05 / np.sqrt(2)) / 2  # noqa: E731
    return [
        integral(
            rule, lambda mu: np.exp(normal_log_density(mu, mean, sd)) * (upper(mu) + lower(mu))
        )
    ]


def product_too_large(limit):
    x = numpyro.sample("x", dist.Normal(0, 1))
    y = numpyro.sample("y", dist.Normal(0, 1))
    return jnp.abs(x * y) > limit


def product_truth() -> Iterable[float]:
    rule = gauss_rule(np.linspace(14, 70, 30))
    return [2 / np.pi * integral(rule, special.k0)]


def product_check() -> Iterable[float]:
    rule = gauss_rule(np.linspace(1e-3, 14, 60))
    inside = integral(rule, lambda x: 4 * np.exp(normal_log_density(x)) * stats.norm.sf(14 / x))
    return [
        inside
        + integral(
            gauss_rule(np.linspace(14, 30, 10)),
            lambda x: 4 * np.exp(normal_log_density(x)) * stats.norm.sf(14 / x),
        )
    ]


EDGES = np.array([3.2, 2.8, 3.5, 3.0, 2.6])
PATHS = ((0, 3), (1, 4), (0, 2, 4), (1, 2, 3))


def bridge_network(limits):
    with numpyro.plate("edges", 5):
        load = numpyro.sample("load", dist.Normal(0, 1))
    up = load < limits
    paths = [jnp.all(up[jnp.array(path)]) for path in PATHS]
    return ~jnp.any(jnp.array(paths))


def bridge_truth() -> Iterable[float]:
    down = stats.norm.sf(EDGES)
    total = 0.0
    for state in itertools.product([False, True], repeat=5):
        if not any(all(state[edge] for edge in path) for path in PATHS):
            total += np.prod(np.where(state, 1 - down, down))
    return [total]


def bridge_check() -> Iterable[float]:
    """Condition on the bridge: two parallel pairs in series, or two series pairs in parallel."""
    q = np.array([normal_tail(limit) for limit in EDGES])
    closed = q[0] * q[1] + q[3] * q[4] - q[0] * q[1] * q[3] * q[4]
    left, right = q[0] + q[3] - q[0] * q[3], q[1] + q[4] - q[1] * q[4]
    return [(1 - q[2]) * closed + q[2] * left * right]


ANGLES = 2 * np.pi * np.arange(12) / 12
RADII = np.linspace(3.2, 4.6, 12)
CENTRES = np.stack([RADII * np.cos(ANGLES), RADII * np.sin(ANGLES)], axis=1)


def any_disc(centres):
    x = numpyro.sample("x", dist.Normal(0, 1).expand([2]).to_event(1))
    return jnp.any(jnp.sum((x - centres) ** 2, axis=-1) < 0.3**2)


def discs_check() -> Iterable[float]:
    """Polar coordinates around each centre; the angle integrates to a Bessel function."""
    rule = gauss_rule([0, 0.1, 0.2, 0.3])
    return [
        sum(
            integral(rule, lambda r, c=c: r * np.exp(-0.5 * (r - c) ** 2) * special.i0e(r * c))
            for c in RADII
        )
    ]


def any_large_score(limit):
    z = numpyro.sample("z", dist.Normal(0, 1).expand([15]).to_event(1))
    return jnp.max(jnp.abs(z)) > limit


def two_lines(limit):
    motor = numpyro.sample("motor", dist.LogNormal(2, 1))
    liability = numpyro.sample("liability", dist.LogNormal(0, 1.5))
    return motor + liability > limit


def single_big_jump(mean, sd, other_mean, other_sd, rule_of):
    """P(first + second > 500), integrating over the first on the log scale."""
    top = np.log(500)
    edges = np.concatenate([np.linspace(mean - 10 * sd, top - 0.1, 40), [top - 0.01, top]])
    inside = integral(
        rule_of(edges),
        lambda u: (
            np.exp(normal_log_density(u, mean, sd))
            * stats.norm.sf(np.log(np.maximum(500 - np.exp(u), 1e-300)), other_mean, other_sd)
        ),
    )
    return [inside + stats.norm.sf(top, mean, sd)]


PROGRAMS = [
    Adversarial(
        "twenty_bolts",
        "unions",
        any_bolt,
        (BOLTS,),
        lambda: [-np.expm1(np.sum(np.log1p(-stats.norm.sf(BOLTS))))],
        bolts_check,
        "One minus the product of survivals; inclusion and exclusion with tails by quadrature.",
    ),
    Adversarial(
        "part_out_of_tolerance",
        "unions",
        out_of_tolerance,
        (DIAMETERS,),
        tolerance_truth,
        tolerance_check,
        "Two tails of the normal predictive; quadrature over the posterior of the mean.",
        is_easy=True,
    ),
    Adversarial(
        "product_of_two_normals",
        "unions",
        product_too_large,
        (14.0,),
        product_truth,
        product_check,
        "The Bessel density of the product; quadrature over one factor.",
        is_easy=True,
        tolerance=1e-7,
    ),
    Adversarial(
        "bridge_network_down",
        "unions",
        bridge_network,
        (EDGES,),
        bridge_truth,
        bridge_check,
        "Enumeration of the 32 states; factoring on the bridge edge.",
    ),
    Adversarial(
        "twelve_small_discs",
        "unions",
        any_disc,
        (CENTRES,),
        lambda: [float(np.sum(stats.ncx2.cdf(0.09, 2, RADII**2)))],
        discs_check,
        "Noncentral chi-square probabilities of disjoint discs; Bessel quadrature in polar form.",
    ),
    Adversarial(
        "any_of_fifteen_scores_beyond_five",
        "unions",
        any_large_score,
        (5.0,),
        lambda: [-np.expm1(15 * np.log1p(-2 * stats.norm.sf(5)))],
        lambda: [stats.binom.sf(0, 15, special.erfc(5 / np.sqrt(2)))],
        "One minus the product of survivals; a binomial survival function.",
        is_easy=True,
    ),
    Adversarial(
        "two_lines_of_business",
        "unions",
        two_lines,
        (500.0,),
        lambda: single_big_jump(2, 1, 0, 1.5, gauss_rule),
        lambda: single_big_jump(0, 1.5, 2, 1, tanh_sinh_rule),
        "The convolution, integrated over one line by Gauss; over the other by tanh-sinh.",
        is_easy=True,
        tolerance=1e-5,
    ),
]
