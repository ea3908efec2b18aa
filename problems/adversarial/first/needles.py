"""Narrow modes of a posterior, and targets that live on a sliver of the space."""

from __future__ import annotations

from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.stats import norm
from scipy import stats

from problems.adversarial.first.integrals import (
    even_rule,
    gauss_rule,
    integral,
    normal_log_density,
    posterior_means,
    product_rule,
    tanh_sinh_rule,
)
from problems.adversarial.program import Adversarial

NEEDLE = np.array([6.0, -4.0])


def needle_in_a_box(centre):
    x = numpyro.sample("x", dist.Uniform(-10, 10).expand([2]).to_event(1))
    broad = jnp.log(0.7) + norm.logpdf(x).sum()
    narrow = jnp.log(0.3) + norm.logpdf(x, centre, 0.02).sum()
    numpyro.factor("evidence", jnp.logaddexp(broad, narrow))
    return x[0]


def needle_in_a_box_check() -> Iterable[float]:
    """Each component on its own grid, since the broad one is smooth and the narrow one is not."""
    total = moment = 0.0
    for weight, centre, sd, half in ((0.7, (0, 0), 1.0, 9.5), (0.3, NEEDLE, 0.02, 0.2)):
        rule = product_rule(*(even_rule(c - half, c + half, 201) for c in centre))
        density = lambda p, c=centre, s=sd: np.exp(  # noqa: E731
            normal_log_density(p[0], c[0], s) + normal_log_density(p[1], c[1], s)
        )
        total += weight * integral(rule, density)
        moment += weight * integral(rule, lambda p, d=density: p[0] * d(p))
    return [moment / total]


def needle_in_six(sd):
    x = numpyro.sample("x", dist.Normal(0, 3).expand([6]).to_event(1))
    broad = jnp.log(0.4) + norm.logpdf(x, 0.0, 1.0).sum()
    narrow = jnp.log(0.6) + norm.logpdf(x, 2.0, sd).sum()
    numpyro.factor("evidence", jnp.logaddexp(broad, narrow))
    return x[0] > 1.5


def needle_in_six_truth() -> Iterable[float]:
    broad = 0.4 * stats.norm.pdf(0, 0, np.sqrt(10)) ** 6
    narrow = 0.6 * stats.norm.pdf(2, 0, np.sqrt(9 + 0.05**2)) ** 6
    shrunk, spread = 2 * 9 / (9 + 0.05**2), 0.05 * 3 / np.sqrt(9 + 0.05**2)
    above = stats.norm.sf(1.5, shrunk, spread)
    return [(broad * stats.norm.sf(1.5, 0, np.sqrt(0.9)) + narrow * above) / (broad + narrow)]


def needle_in_six_check() -> Iterable[float]:
    def one_axis(centre, sd, low):
        start = max(low, centre - 12 * sd)
        rule = gauss_rule(np.linspace(start, centre + 12 * sd, 40))
        return integral(
            rule, lambda x: np.exp(normal_log_density(x, 0, 3) + normal_log_density(x, centre, sd))
        )

    parts = [
        (w, one_axis(c, s, -np.inf), one_axis(c, s, 1.5))
        for w, c, s in ((0.4, 0.0, 1.0), (0.6, 2.0, 0.05))
    ]
    total = sum(w * whole**6 for w, whole, _ in parts)
    return [sum(w * whole**5 * part for w, whole, part in parts) / total]


def barely_there_bonus(centre):
    x = numpyro.sample("x", dist.Normal(0, 1))
    return 1 + 1e4 * jnp.exp(-0.5 * ((x - centre) / 1e-3) ** 2)


def bonus_check() -> Iterable[float]:
    rule = gauss_rule(2.345 + 1e-3 * np.linspace(-12, 12, 25))
    spike = integral(
        rule, lambda x: np.exp(normal_log_density(x) - 0.5 * ((x - 2.345) / 1e-3) ** 2)
    )
    return [1 + 1e4 * spike]


def resonance(damping):
    frequency = numpyro.sample("frequency", dist.Uniform(0.5, 1.5))
    return 1 / ((1 - frequency**2) ** 2 + (damping * frequency) ** 2)


def resonance_truth() -> Iterable[float]:
    """Partial fractions over the four complex roots of the denominator."""
    denominator = np.array([1, 0, 1e-6 - 2, 0, 1])
    roots = np.roots(denominator)
    slopes = np.polyval(np.polyder(denominator), roots)
    return [float(np.sum((np.log(1.5 - roots) - np.log(0.5 - roots)) / slopes).real)]


def resonance_check() -> Iterable[float]:
    offsets = np.concatenate([[0], np.geomspace(1e-5, 0.5, 60)])
    edges = np.concatenate([1 - offsets[::-1], 1 + offsets[1:]])
    return [integral(gauss_rule(edges), lambda w: 1 / ((1 - w**2) ** 2 + (1e-3 * w) ** 2))]


_RNG = np.random.default_rng(7)
TIMES = np.sort(_RNG.uniform(0, 6, 40)).round(3)
SIGNAL = (np.sin(2 * np.pi * 7.3 * TIMES) + _RNG.normal(0, 1.5, 40)).round(3)


def unknown_frequency(times, signal):
    frequency = numpyro.sample("frequency", dist.Uniform(0, 20))
    with numpyro.plate("times", times.size):
        wave = jnp.sin(2 * jnp.pi * frequency * times)
        numpyro.sample("signal", dist.Normal(wave, 1.5), obs=signal)
    return frequency


def frequency_mean(rule):
    def log_density(frequency):
        waves = np.sin(2 * np.pi * frequency[:, None] * TIMES)
        return -0.5 * np.sum((SIGNAL - waves) ** 2, axis=1) / 1.5**2

    return posterior_means(rule, log_density, lambda frequency: frequency)


EFFECTS = np.array([0.02, 0.31, -0.06, 0.11, -0.15, 0.01, -0.52, 0.09])


def real_effects(y):
    slab = dist.MixtureSameFamily(
        dist.Categorical(jnp.array([0.5, 0.5])), dist.Normal(0, jnp.array([0.001, 1.0]))
    )
    with numpyro.plate("effects", y.size):
        effect = numpyro.sample("effect", slab)
        numpyro.sample("y", dist.Normal(effect, 0.05), obs=y)
    return jnp.sum(jnp.abs(effect) > 0.01)


def real_effects_truth() -> Iterable[float]:
    total = 0.0
    for y in EFFECTS:
        evidence, outside = [], []
        for scale in (0.001, 1.0):
            variance = scale**2 + 0.05**2
            mean, sd = y * scale**2 / variance, scale * 0.05 / np.sqrt(variance)
            evidence.append(stats.norm.pdf(y, 0, np.sqrt(variance)))
            outside.append(stats.norm.sf(0.01, mean, sd) + stats.norm.cdf(-0.01, mean, sd))
        total += np.dot(evidence, outside) / sum(evidence)
    return [total]


def real_effects_check() -> Iterable[float]:
    steps = np.concatenate([[0], np.geomspace(1e-4, 0.01, 15), np.geomspace(0.01, 3, 60)[1:]])
    rule = gauss_rule(np.concatenate([-steps[::-1], steps[1:]]))
    total = 0.0
    for y in EFFECTS:
        total += posterior_means(
            rule,
            lambda x, y=y: (
                np.logaddexp(normal_log_density(x, 0, 0.001), normal_log_density(x, 0, 1))
                + normal_log_density(y, x, 0.05)
            ),
            lambda x: np.abs(x) > 0.01,
        )[0]
    return [total]


PROGRAMS = [
    Adversarial(
        "needle_in_a_box",
        "needles",
        needle_in_a_box,
        (NEEDLE,),
        lambda: [0.3 * 6.0],
        needle_in_a_box_check,
        "The mean of the mixture, whose mass outside the box is below 1e-20; quadrature per mode.",
    ),
    Adversarial(
        "needle_in_six_dimensions",
        "needles",
        needle_in_six,
        (0.05,),
        needle_in_six_truth,
        needle_in_six_check,
        "Products of Gaussians in closed form; quadrature per axis and mode.",
    ),
    Adversarial(
        "barely_there_bonus",
        "needles",
        barely_there_bonus,
        (2.345,),
        lambda: [1 + 1e4 * 1e-3 * np.sqrt(2 * np.pi) * stats.norm.pdf(2.345, 0, np.sqrt(1 + 1e-6))],
        bonus_check,
        "The convolution of two Gaussians; quadrature around the spike.",
    ),
    Adversarial(
        "resonance_peak",
        "needles",
        resonance,
        (1e-3,),
        resonance_truth,
        resonance_check,
        "Partial fractions over the complex roots; graded quadrature around the peak.",
    ),
    Adversarial(
        "unknown_frequency",
        "needles",
        unknown_frequency,
        (TIMES, SIGNAL),
        lambda: frequency_mean(gauss_rule(np.linspace(0, 20, 401), 20)),
        lambda: frequency_mean(tanh_sinh_rule(np.linspace(0, 20, 401), 1 / 8)),
        "Gauss quadrature of the periodogram-like posterior; the tanh-sinh rule.",
    ),
    Adversarial(
        "spike_and_slab_effects",
        "needles",
        real_effects,
        (EFFECTS,),
        real_effects_truth,
        real_effects_check,
        "Conjugate mixtures for each effect; quadrature for each effect.",
        is_easy=True,
    ),
]
