"""Narrow modes of the posterior and narrow pieces of the target."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import ndtr
from scipy.stats import ncx2, norm

from problems.adversarial.program import Adversarial
from problems.adversarial.second.integrals import (
    adaptive_means,
    integral,
    legendre,
    means,
    trapezoid,
)


def narrow_mode_five():
    x = numpyro.sample("x", dist.Uniform(-6.0, 6.0).expand([5]))
    wide = jnp.log(0.7) + dist.Normal(0.0, 0.6).log_prob(x).sum()
    narrow = jnp.log(0.3) + dist.Normal(2.0, 0.02).log_prob(x).sum()
    numpyro.factor("likelihood", jnp.logaddexp(wide, narrow))
    return x[0] > 1.5


def narrow_mode_five_check():
    wide, narrow = legendre([-6, -3, 0, 1.5]), legendre([1.5, 1.8, 1.9, 2, 2.1, 2.2, 6])

    def part(rule):
        w = integral(lambda x: norm.pdf(x, 0, 0.6), rule)
        return 0.7 * w + 0.3 * integral(lambda x: norm.pdf(x, 2, 0.02), rule)

    above, below = part(narrow), part(wide)
    return [above / (above + below)]


def needle_in_a_field():
    x = numpyro.sample("x", dist.Uniform(-20.0, 20.0).expand([2]))
    wide = jnp.log(0.7) + dist.Normal(-5.0, 2.0).log_prob(x).sum()
    narrow = jnp.log(0.3) + dist.Normal(15.0, 0.05).log_prob(x).sum()
    numpyro.factor("likelihood", jnp.logaddexp(wide, narrow))
    return x[1]


def needle_in_a_field_check():
    rule = legendre([-20, -15, -10, -5, 0, 5, 14, 14.7, 15, 15.3, 20], 60)
    wide, narrow = (lambda x: norm.pdf(x, -5, 2)), (lambda x: norm.pdf(x, 15, 0.05))
    top = 0.7 * integral(lambda x: x * wide(x), rule) * integral(wide, rule)
    top += 0.3 * integral(lambda x: x * narrow(x), rule) * integral(narrow, rule)
    return [top / (0.7 * integral(wide, rule) ** 2 + 0.3 * integral(narrow, rule) ** 2)]


TIMES = np.arange(24.0)
SIGNAL = np.round(64 * (np.cos(1.3 * TIMES) + np.random.default_rng(7).normal(0, 2.2, 24))) / 64


def spectral_line(t, y):
    frequency = numpyro.sample("frequency", dist.Uniform(0.0, 3.0))
    numpyro.sample("y", dist.Normal(jnp.cos(frequency * t), 1.5), obs=y)
    return {"above": frequency > 2.0, "mean": frequency}


def spectral_log_density(w):
    residual = SIGNAL[:, None] - np.cos(np.atleast_1d(w) * TIMES[:, None])
    return -np.sum(residual**2, axis=0) / 4.5


SPECTRAL_TARGETS = [lambda w: w > 2.0, lambda w: w]


def spectral_line_truth():
    return means(spectral_log_density, SPECTRAL_TARGETS, legendre(np.linspace(0, 3, 61), 20))


def spectral_line_check():
    def scalar(w):
        return spectral_log_density(w)[0]

    return adaptive_means(scalar, SPECTRAL_TARGETS, [0, 0.5, 1, 1.5, 2, 2.5, 3])


def small_ball():
    x = numpyro.sample("x", dist.Normal(jnp.zeros(3), 1.0))
    distance = jnp.sqrt(jnp.sum((x - jnp.array([2.0, 1.0, -1.0])) ** 2))
    return distance < 0.05


def small_ball_check():
    # The angular average of exp(-c.s) over a sphere is sinh(|c| s) / (|c| s).
    c = np.sqrt(6.0)

    def shell(s):
        return 4 * np.pi * s**2 * np.exp(-3 - s**2 / 2) * np.sinh(c * s) / (c * s)

    return [integral(shell, legendre([0, 0.05])) / (2 * np.pi) ** 1.5]


def resonance_bump():
    energy = numpyro.sample("energy", dist.Normal(0.0, 1.0))
    background = energy**2
    return background + 4e4 * jnp.exp(-0.5 * ((energy - 2.5) / 0.001) ** 2)


def resonance_bump_truth():
    spread = np.sqrt(1 + 1e-6)
    return [1 + 4e4 * 0.001 * np.sqrt(2 * np.pi) * norm.pdf(2.5, 0, spread)]


def resonance_bump_check():
    x, w = legendre(2.5 + 0.001 * np.array([-9, -3, 0, 3, 9]))
    bump = 4e4 * np.sum(w * norm.pdf(x) * np.exp(-0.5 * ((x - 2.5) / 0.001) ** 2))
    return [integral(lambda z: z * z * norm.pdf(z), trapezoid(-12, 12)) + bump]


SQUARES = np.array([1.0, 2.25, 0.5, 4.0])


def unknown_signs(y):
    with numpyro.plate("charges", y.size):
        charge = numpyro.sample("charge", dist.Normal(0.3, 1.0))
        numpyro.sample("y", dist.Normal(charge**2, 0.05), obs=y)
    return jnp.all(charge > 0.0)


def sign_log_density(x, y):
    return -0.5 * (x - 0.3) ** 2 - 200 * (x * x - y) ** 2


def unknown_signs_truth():
    def positive(y: float) -> float:
        rule = legendre(np.linspace(-3, 3, 121), 24)
        return means(lambda x: sign_log_density(x, y), [lambda x: x > 0], rule)[0]

    return [float(np.prod([positive(y) for y in SQUARES]))]


def unknown_signs_check():
    # In s = x^2 both signs share the likelihood; the prior decides between them.
    def positive(y: float) -> float:
        s, w = trapezoid(y - 0.45, y + 0.45, 4001)
        shared = w * np.exp(-200 * (s - y) ** 2) / np.sqrt(s)
        up, down = (np.sum(shared * norm.pdf(d * np.sqrt(s), 0.3)) for d in (1, -1))
        return up / (up + down)

    return [float(np.prod([positive(y) for y in SQUARES]))]


def phase_ambiguity():
    """A phase measured to a thirtieth of a cycle and a coarse range."""
    distance = numpyro.sample("distance", dist.Uniform(0.0, 20.0))
    numpyro.sample("coarse", dist.Normal(distance, 2.0), obs=7.5)
    numpyro.sample("cosine", dist.Normal(jnp.cos(2 * jnp.pi * distance), 0.02), obs=0.75)
    numpyro.sample("sine", dist.Normal(jnp.sin(2 * jnp.pi * distance), 0.02), obs=0.65625)
    return {"far": distance > 12.0, "mean": distance}


def phase_log_density(x):
    fine = (np.cos(2 * np.pi * x) - 0.75) ** 2 + (np.sin(2 * np.pi * x) - 0.65625) ** 2
    return -((x - 7.5) ** 2) / 8 - fine / 8e-4


def phase_ambiguity_truth():
    rule = legendre(np.linspace(0, 20, 401), 60)
    return means(phase_log_density, [lambda x: x > 12, lambda x: x], rule)


def phase_ambiguity_check():
    # Up to a constant, the fine part is exp(k cos(2 pi (x - c))): one peak in every cycle.
    k = np.hypot(0.75, 0.65625) / 4e-4
    c = np.arctan2(0.65625, 0.75) / (2 * np.pi)
    d, w = trapezoid(-0.05, 0.05, 3001)
    x = (c + np.arange(20))[:, None] + d
    mass = w * np.exp(k * (np.cos(2 * np.pi * d) - 1) - (x - 7.5) ** 2 / 8)
    return [np.sum(mass * (x > 12)) / mass.sum(), np.sum(mass * x) / mass.sum()]


PROGRAMS = [
    Adversarial(
        "narrow_mode_five",
        "needles",
        narrow_mode_five,
        (),
        lambda: [0.7 * ndtr(-2.5) + 0.3],
        narrow_mode_five_check,
        "Weights of a normal mixture; quadrature of each component on both sides.",
    ),
    Adversarial(
        "needle_in_a_field",
        "needles",
        needle_in_a_field,
        (),
        lambda: [0.7 * -5 + 0.3 * 15],
        needle_in_a_field_check,
        "Means of a normal mixture; quadrature on the square.",
    ),
    Adversarial(
        "spectral_line",
        "needles",
        spectral_line,
        (TIMES, SIGNAL),
        spectral_line_truth,
        spectral_line_check,
        "Gauss-Legendre in 60 panels; adaptive quadrature.",
        True,
    ),
    Adversarial(
        "small_ball",
        "needles",
        small_ball,
        (),
        lambda: [ncx2.cdf(0.0025, 3, 6.0)],
        small_ball_check,
        "Noncentral chi-square distribution; radial integral.",
        True,
    ),
    Adversarial(
        "resonance_bump",
        "needles",
        resonance_bump,
        (),
        resonance_bump_truth,
        resonance_bump_check,
        "Product of two normal densities in closed form; quadrature of the bump.",
    ),
    Adversarial(
        "unknown_signs",
        "needles",
        unknown_signs,
        (SQUARES,),
        unknown_signs_truth,
        unknown_signs_check,
        "Quadrature in each charge; quadrature in its square.",
    ),
    Adversarial(
        "phase_ambiguity",
        "needles",
        phase_ambiguity,
        (),
        phase_ambiguity_truth,
        phase_ambiguity_check,
        "Gauss-Legendre in 400 panels; one von Mises peak in every cycle.",
    ),
]
