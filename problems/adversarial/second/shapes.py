"""Correlation, curvature, funnels, shells, simplexes; ten and more dimensions."""

from __future__ import annotations

from fractions import Fraction
from math import comb, factorial

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import betainc, betaln, log_ndtr, logsumexp, ndtr, ndtri
from scipy.stats import beta, norm

from problems.adversarial.program import Adversarial
from problems.adversarial.second.integrals import (
    adaptive,
    integral,
    legendre,
    means,
    product,
    trapezoid,
)


def thin_shell_ten():
    x = numpyro.sample("x", dist.Uniform(-8.0, 8.0).expand([10]))
    radius = jnp.sqrt(jnp.sum(x**2))
    numpyro.factor("shell", -0.5 * ((radius - 4.0) / 0.05) ** 2)
    return {"cap": x[0] > 2.5, "square": x[1] ** 2}


def thin_shell_ten_truth():
    def log_density(r):
        return 9 * np.log(r) - 200 * (r - 4) ** 2

    def cap(r):
        return 0.5 * betainc(4.5, 0.5, 1 - (2.5 / r) ** 2)

    rule = trapezoid(3.2, 4.8, 2001)
    return means(log_density, [cap, lambda r: r**2 / 10], rule)


def thin_shell_ten_check():
    # One coordinate t and the length s of the other nine; then t = r cos(a), s = r sin(a).
    def log_density(a, r):
        return 8 * np.log(np.sin(a)) + 9 * np.log(r) - 200 * (r - 4) ** 2

    rest = legendre([3.4, 3.8, 4, 4.2, 4.6], 24)
    everywhere = product(legendre([0, 1, 2, np.pi], 40), rest)
    # The edge of the cap is at cos(a) = 2.5 / r, so scale the angle by it.
    u, r, w = product(legendre([0, 1], 60), rest)
    limit = np.arccos(2.5 / r)
    top = np.sum(w * limit * np.exp(log_density(u * limit, r)))
    bottom = integral(lambda a, r: np.exp(log_density(a, r)), everywhere)
    square = means(log_density, [lambda a, r: (r * np.cos(a)) ** 2], everywhere)
    return [top / bottom, square[0]]


def funnel_nine():
    v = numpyro.sample("v", dist.Normal(0.0, 3.0))
    with numpyro.plate("leaves", 9):
        x = numpyro.sample("x", dist.Normal(0.0, jnp.exp(v / 2.0)))
    return {"mouth": jnp.max(jnp.abs(x)) > 300.0, "neck": jnp.max(jnp.abs(x)) < 0.01}


def funnel_truth():
    def mouth(v):
        return -np.expm1(9 * np.log1p(-2 * ndtr(-300 * np.exp(-v / 2))))

    def neck(v):
        return (1 - 2 * ndtr(-0.01 * np.exp(-v / 2))) ** 9

    rule = trapezoid(-36, 36, 4001)
    density = [lambda v, f=f: norm.pdf(v, 0, 3) * f(v) for f in (mouth, neck)]
    return [integral(f, rule) for f in density]


def funnel_check():
    # Integrate over the largest absolute leaf, measured in leaf units, instead of over v.
    def density(u):
        m = np.exp(u)
        return 9 * (2 * ndtr(m) - 1) ** 8 * 2 * norm.pdf(m) * m

    rule = legendre([-12, -6, -3, -1, 0, 0.7, 1.3, 2.5], 60)
    mouth = integral(lambda u: density(u) * ndtr(-2 * (np.log(300) - u) / 3), rule)
    neck = integral(lambda u: density(u) * ndtr(2 * (np.log(0.01) - u) / 3), rule)
    return [mouth, neck]


def crossed_ridges():
    x = numpyro.sample("x", dist.Uniform(-5.0, 5.0))
    y = numpyro.sample("y", dist.Uniform(-5.0, 5.0))
    rising, falling = -0.5 * ((x - y) / 0.02) ** 2, -0.5 * ((x + y) / 0.02) ** 2
    numpyro.factor("ridges", jnp.logaddexp(rising, jnp.log(0.25) + falling))
    return x * y


def crossed_ridges_truth():
    # By symmetry each ridge has the same mass and the opposite mean: 0.75 / 1.25 of one mean.
    def inner(x):
        # Mass and first moment of y, normal around x with sd 0.02, within (-5, 5).
        low, high = (-5 - x) / 0.02, (5 - x) / 0.02
        mass = ndtr(high) - ndtr(low)
        return x, mass, x * mass + 0.02 * (norm.pdf(low) - norm.pdf(high))

    rule = legendre([-5, -4.95, -4.9, -4.8, 0, 4.8, 4.9, 4.95, 5], 60)
    x, mass, first = inner(rule[0])
    return [0.6 * float(np.sum(rule[1] * x * first) / np.sum(rule[1] * mass))]


def crossed_ridges_check():
    # Rotated: d = x - y, s = x + y with |s| < 10 - |d|; x y = (s^2 - d^2) / 4.
    def mass(d):
        return np.exp(-0.5 * (d / 0.02) ** 2)

    rule = legendre([0, 0.05, 0.1, 0.2, 0.4], 60)
    bottom = integral(lambda d: mass(d) * 2 * (10 - d), rule)
    top = integral(lambda d: mass(d) * 2 * ((10 - d) ** 3 / 3 - d**2 * (10 - d)) / 4, rule)
    return [0.6 * top / bottom]


def equicorrelated_thirty(covariance):
    x = numpyro.sample("x", dist.MultivariateNormal(jnp.zeros(30), covariance))
    return {"all": jnp.all(x > 1.0), "any": jnp.any(x > 4.5)}


COVARIANCE = 0.2 * np.eye(30) + 0.8


def conditional_all(m):
    return ndtr((np.sqrt(0.8) * m - 1) / np.sqrt(0.2)) ** 30


def conditional_any(m):
    return -np.expm1(30 * log_ndtr((4.5 - np.sqrt(0.8) * m) / np.sqrt(0.2)))


def equicorrelated_thirty_truth():
    m, w = trapezoid(-9, 9, 4001)
    mass = w * norm.pdf(m)
    return [float(mass @ conditional_all(m)), float(mass @ conditional_any(m))]


def equicorrelated_thirty_check():
    # Upper tail of the common factor as the integration variable.
    def mean(f):
        return adaptive(lambda u: float(f(-ndtri(np.exp(u))) * np.exp(u)), [-50, -20, -9, -4, 0])

    return [mean(conditional_all), mean(conditional_any)]


def sparse_topics():
    share = numpyro.sample("share", dist.Dirichlet(0.1 * jnp.ones(10)))
    return {"dominant": jnp.max(share) > 0.9, "squares": jnp.sum(share**2)}


def sparse_topics_check():
    # One share is Beta(0.1, 0.9): t = p^0.1 and its complement's power remove the singularities.
    scale = np.exp(-betaln(0.1, 0.9))

    def upper(s):
        return scale / 0.9 * (1 - s ** (1 / 0.9)) ** -0.9

    def lower(t):
        return scale / 0.1 * t**20 * (1 - t**10) ** -0.1

    dominant = 10 * integral(upper, legendre([0, 0.05, 0.1**0.9], 60))
    cut = 0.5**0.1
    square = integral(lower, legendre([0, 0.6, 0.8, cut], 60))
    near_one = integral(
        lambda s: (1 - s ** (1 / 0.9)) ** 2 * upper(s), legendre([0, 0.1, 0.5**0.9], 100)
    )
    return [dominant, 10 * (square + near_one)]


def correlation_prior():
    factor = numpyro.sample("factor", dist.LKJCholesky(4, 1.5))
    correlation = factor @ factor.T
    return {"high": correlation[0, 1] > 0.9, "last": correlation[2, 3] ** 2}


def correlation_prior_check():
    def density(r):
        return (1 - r**2) ** 1.5

    bottom = integral(density, legendre([-1, 0, 1], 200))
    angle = legendre([0, np.arccos(0.9)], 60)
    top = integral(lambda a: np.sin(a) ** 4, angle)
    square = integral(lambda r: r**2 * density(r), legendre([-1, 0, 1], 200))
    return [top / bottom, square / bottom]


def forty_uniforms():
    x = numpyro.sample("x", dist.Uniform(0.0, 1.0).expand([40]))
    return jnp.sum(x) > 29.0


def forty_uniforms_truth():
    low = 11
    terms = (Fraction((-1) ** k * comb(40, k) * (low - k) ** 40) for k in range(low + 1))
    return [float(sum(terms) / factorial(40))]


def forty_uniforms_check():
    # Exponential tilting: a smooth Fourier integral around the saddle point.
    theta = 3.1

    def log_moment(s):
        return np.log((np.exp(s) - 1) / s)

    t, w = trapezoid(-60, 60, 60001)
    s = theta + 1j * t
    return [float(np.real(np.sum(w * np.exp(40 * log_moment(s) - 29 * s) / s)) / (2 * np.pi))]


def imperfect_test(positive, tested):
    """Prevalence from a test with uncertain sensitivity and specificity."""
    prevalence = numpyro.sample("prevalence", dist.Beta(1.0, 1.0))
    sensitivity = numpyro.sample("sensitivity", dist.Beta(18.0, 3.0))
    specificity = numpyro.sample("specificity", dist.Beta(40.0, 2.0))
    p = prevalence * sensitivity + (1.0 - prevalence) * (1.0 - specificity)
    numpyro.sample("positive", dist.Binomial(tested, p), obs=positive)
    return {"high": prevalence > 0.3, "mean": prevalence}


def imperfect_test_truth():
    # Expand both powers: i true positives, j false negatives; every integral is a beta function.
    i, j = np.meshgrid(np.arange(13), np.arange(69), indexing="ij")
    logs = np.log([[float(comb(12, a)) * comb(68, b) for b in range(69)] for a in range(13)])
    logs = logs + betaln(18 + i, 3 + j) + betaln(40 + 68 - j, 2 + 12 - i)
    logs += betaln(1 + i + j, 81 - i - j)
    mass = np.exp(logs - logsumexp(logs))
    a, b = 1 + i + j, 81 - i - j
    return [float(np.sum(mass * beta.sf(0.3, a, b))), float(np.sum(mass * a / 82))]


def imperfect_test_check():
    x, y, w = product(
        legendre([0, 0.1, 0.2, 0.3, 0.5, 1], 24), legendre([0.2, 0.6, 0.8, 0.9, 1], 20)
    )
    z, v = legendre([0.5, 0.8, 0.9, 0.95, 1], 20)
    p = (x * y)[:, None] + (1 - x)[:, None] * (1 - z)
    logs = 12 * np.log(p) + 68 * np.log1p(-p) + 39 * np.log(z) + np.log1p(-z)
    inner = np.exp(logs - logs.max()) @ v
    mass = w * inner * y**17 * (1 - y) ** 2
    return [mass[x > 0.3].sum() / mass.sum(), float(mass @ x / mass.sum())]


SCORES = np.array([4.0, 0.5, -0.25, 1.0, -0.75, 0.25])


def horseshoe_six(y):
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    with numpyro.plate("effects", y.size):
        local = numpyro.sample("local", dist.HalfCauchy(1.0))
        effect = numpyro.sample("effect", dist.Normal(0.0, scale * local))
        numpyro.sample("y", dist.Normal(effect, 1.0), obs=y)
    return effect[0]


def horseshoe(outer, local, local_density, outer_density):
    """Mean of the first effect: local scales integrated out one by one for each common scale."""
    (t, wt), (u, wu) = outer, local
    variance = 1 + np.outer(t, u) ** 2
    weight = wu * local_density(u)
    likelihood = [(norm.pdf(y / np.sqrt(variance)) / np.sqrt(variance)) @ weight for y in SCORES]
    first = norm.pdf(4 / np.sqrt(variance)) / np.sqrt(variance) * 4 * (1 - 1 / variance)
    mass = wt * outer_density(t) * np.prod(likelihood, axis=0)
    return float(np.sum(mass * (first @ weight) / likelihood[0]) / mass.sum())


def horseshoe_six_truth():
    v, w = trapezoid(-22, 22, 1201)
    scale = (np.exp(v), w * np.exp(v))
    return [horseshoe(scale, scale, lambda u: 1 / (1 + u**2), lambda t: 1 / (1 + t**2))]


def horseshoe_six_check():
    # Tangent of an angle, with the angle graded towards both ends.
    a, w = legendre(np.pi / 2 * np.array([0, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1]), 50)
    scale = (np.tan(a), w)
    return [horseshoe(scale, scale, np.ones_like, np.ones_like)]


PROGRAMS = [
    Adversarial(
        "thin_shell_ten",
        "shapes",
        thin_shell_ten,
        (),
        thin_shell_ten_truth,
        thin_shell_ten_check,
        "Radial integral with the area of a cap; polar integral over angle and radius.",
    ),
    Adversarial(
        "funnel_nine",
        "shapes",
        funnel_nine,
        (),
        funnel_truth,
        funnel_check,
        "Integral over the funnel's scale; over the largest standardised leaf.",
        True,
    ),
    Adversarial(
        "crossed_ridges",
        "shapes",
        crossed_ridges,
        (),
        crossed_ridges_truth,
        crossed_ridges_check,
        "Integral along x with y in closed form; rotated coordinates.",
    ),
    Adversarial(
        "equicorrelated_thirty",
        "shapes",
        equicorrelated_thirty,
        (COVARIANCE,),
        equicorrelated_thirty_truth,
        equicorrelated_thirty_check,
        "Integral over the common factor; over its tail probability.",
    ),
    Adversarial(
        "sparse_topics",
        "shapes",
        sparse_topics,
        (),
        lambda: [10 * beta.sf(0.9, 0.1, 0.9), 10 * 0.1 * 1.1 / 2],
        sparse_topics_check,
        "Beta margins of the Dirichlet; quadrature after power substitutions.",
        True,
    ),
    Adversarial(
        "correlation_prior",
        "shapes",
        correlation_prior,
        (),
        lambda: [beta.sf(0.95, 2.5, 2.5), 1 / 6],
        correlation_prior_check,
        "Beta margins of the LKJ prior; quadrature of the same density.",
        True,
    ),
    Adversarial(
        "forty_uniforms",
        "shapes",
        forty_uniforms,
        (),
        forty_uniforms_truth,
        forty_uniforms_check,
        "Irwin-Hall distribution in exact fractions; tilted Fourier integral.",
        True,
    ),
    Adversarial(
        "imperfect_test",
        "shapes",
        imperfect_test,
        (12, 80),
        imperfect_test_truth,
        imperfect_test_check,
        "Expansion into beta functions; three-dimensional Gauss-Legendre.",
        True,
    ),
    Adversarial(
        "horseshoe_six",
        "shapes",
        horseshoe_six,
        (SCORES,),
        horseshoe_six_truth,
        horseshoe_six_check,
        "Nested trapezoid in the logarithms; nested Gauss-Legendre in the arctangents.",
    ),
]
