"""Several outputs at once, and data that contradict the prior or each other."""

from __future__ import annotations

from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats

from problems.adversarial.first.integrals import (
    even_rule,
    gauss_rule,
    integral,
    normal_log_density,
    normal_tail,
    posterior_means,
)
from problems.adversarial.program import Adversarial

CURVE = np.exp(8 + 1.5 * np.linspace(0, 7, 50))


def exceedance_curve(limits):
    loss = numpyro.sample("loss", dist.LogNormal(8, 1.5))
    return loss > limits


def ten_moments(y):
    x = numpyro.sample("x", dist.Normal(0, 2))
    numpyro.sample("y", dist.Normal(x, 1), obs=y)
    return x ** jnp.arange(1, 11)


MOMENT_MEAN, MOMENT_VAR = 0.8 * 0.9, 0.8


def ten_moments_truth() -> Iterable[float]:
    moments = [1.0, MOMENT_MEAN]
    for k in range(2, 11):
        moments.append(MOMENT_MEAN * moments[-1] + (k - 1) * MOMENT_VAR * moments[-2])
    return moments[1:]


def ten_moments_check() -> Iterable[float]:
    return posterior_means(
        gauss_rule(np.linspace(-16, 16, 60)),
        lambda x: normal_log_density(x, 0, 2) + normal_log_density(0.9, x, 1),
        *(lambda x, k=k: x**k for k in range(1, 11)),
    )


ATTACHMENTS = np.array([1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 5e6])
EXHAUSTIONS = np.array([2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 5e6, 2e7])


def tower_of_layers(attachments, exhaustions):
    loss = numpyro.sample("loss", dist.Pareto(1e4, 2.0))
    return jnp.clip(loss - attachments, 0.0, exhaustions - attachments)


def tower_check() -> Iterable[float]:
    """The mean payment on the scale of u = log(loss / 10,000), which is exponential."""
    values = []
    for low, high in zip(ATTACHMENTS, EXHAUSTIONS, strict=True):
        a, b = np.log(low / 1e4), np.log(high / 1e4)
        inside = integral(
            gauss_rule([a, b]), lambda u, low=low: 2 * np.exp(-2 * u) * (1e4 * np.exp(u) - low)
        )
        values.append(inside + (high - low) * np.exp(-2 * b))
    return values


BRANDS = np.array([0.3, 0.9, 1.4, 2.6])


def pairwise_wins(y):
    with numpyro.plate("brands", y.size):
        taste = numpyro.sample("taste", dist.Normal(0, 3))
        numpyro.sample("y", dist.Normal(taste, 0.4), obs=y)
    return taste[:, None] > taste


def pairwise_truth() -> Iterable[float]:
    shrink = 9 / (9 + 0.16)
    sd = np.sqrt(2 * shrink * 0.16)
    gaps = shrink * (BRANDS[:, None] - BRANDS)
    return np.where(np.eye(4, dtype=bool), 0, stats.norm.cdf(gaps / sd)).ravel()


def pairwise_check() -> Iterable[float]:
    shrink = 9 / (9 + 0.16)
    mean, sd = shrink * BRANDS, np.sqrt(shrink * 0.16)
    rule = gauss_rule(np.linspace(-5, 9, 60))
    values = []
    for i in range(4):
        for j in range(4):
            if i == j:
                values.append(0.0)
                continue
            values.append(
                integral(
                    rule,
                    lambda x, i=i, j=j: (
                        np.exp(normal_log_density(x, mean[i], sd)) * stats.norm.cdf(x, mean[j], sd)
                    ),
                )
            )
    return values


def risk_report(y):
    log_loss = numpyro.sample("log_loss", dist.Normal(10, 2))
    numpyro.sample("y", dist.Normal(log_loss, 0.7), obs=y)
    loss = jnp.exp(log_loss)
    return {
        "capital_call": jnp.where(loss > 5e6, 1e9, 0.0),
        "expected": loss,
        "over_a_million": loss > 1e6,
        "small": loss < 1e4,
    }


def risk_report_truth() -> Iterable[float]:
    weight = 1 / 4 + 1 / 0.49
    mean, sd = (10 / 4 + 10.8 / 0.49) / weight, weight**-0.5
    tail = lambda limit: stats.norm.sf(np.log(limit), mean, sd)  # noqa: E731
    return [1e9 * tail(5e6), np.exp(mean + sd**2 / 2), tail(1e6), 1 - tail(1e4)]


def risk_report_check() -> Iterable[float]:
    cuts = np.log([1e4, 1e6, 5e6])
    return posterior_means(
        gauss_rule(np.sort(np.concatenate([np.linspace(2, 20, 60), cuts]))),
        lambda u: normal_log_density(u, 10, 2) + normal_log_density(10.8, u, 0.7),
        lambda u: 1e9 * (u > cuts[2]),
        np.exp,
        lambda u: u > cuts[1],
        lambda u: u < cuts[0],
    )


def thirty_sigma(y):
    level = numpyro.sample("level", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(level, 0.1), obs=y)
    return {"level": level, "over": level > 30.0}


def thirty_sigma_check() -> Iterable[float]:
    return posterior_means(
        gauss_rule(np.concatenate([np.linspace(28, 30, 60), np.linspace(30, 31.5, 30)])),
        lambda x: normal_log_density(x) + normal_log_density(30, x, 0.1),
        lambda x: x,
        lambda x: x > 30,
    )


SURVEYS, WIDTHS = np.array([-10.0, 10.0]), np.array([0.5, 0.7])


def two_surveys(y, widths):
    effect = numpyro.sample("effect", dist.Normal(0, 20))
    with numpyro.plate("surveys", 2):
        numpyro.sample("y", dist.StudentT(2.0, effect, widths), obs=y)
    return effect > 0


def two_surveys_mean(rule):
    def log_density(x):
        scores = (SURVEYS[:, None] - x) / WIDTHS[:, None]
        return normal_log_density(x, 0, 20) - 1.5 * np.log1p(scores**2 / 2).sum(axis=0)

    return posterior_means(rule, log_density, lambda x: x > 0)


def two_surveys_check() -> Iterable[float]:
    """Tangent substitution around each survey on its own half line."""
    rules = []
    for side, (centre, width) in zip((-1, 1), zip(SURVEYS, WIDTHS, strict=True), strict=True):
        ends = np.sort(np.arctan([(0 - centre) / width, side * 150 / width]))
        angle, weight = gauss_rule(np.linspace(ends[0], ends[1], 80))
        rules.append((centre + width * np.tan(angle), weight * width / np.cos(angle) ** 2))
    return two_surveys_mean(
        (np.concatenate([r[0] for r in rules]), np.concatenate([r[1] for r in rules]))
    )


DESIGN = np.stack([np.ones(12), np.linspace(-1, 1, 12), np.cos(np.arange(12.0))], axis=1)
RESPONSE = np.array([3.1, 2.7, 2.2, 2.5, 2.9, 3.6, 4.1, 4.0, 3.7, 3.6, 4.2, 4.9])


def vague_regression(design, y):
    weights = numpyro.sample("weights", dist.Normal(0, 1e6).expand([3]).to_event(1))
    with numpyro.plate("rows", y.size):
        numpyro.sample("y", dist.Normal(jnp.asarray(design) @ weights, 0.5), obs=y)
    return {"negative": weights[1] < 0, "slope": weights[1]}


def vague_truth() -> Iterable[float]:
    covariance = np.linalg.inv(DESIGN.T @ DESIGN / 0.25 + 1e-12 * np.eye(3))
    mean = covariance @ DESIGN.T @ RESPONSE / 0.25
    return [stats.norm.cdf(0, mean[1], np.sqrt(covariance[1, 1])), mean[1]]


def vague_check() -> Iterable[float]:
    """Triangular factors of the rows with three more for the prior, slope last."""
    order = [0, 2, 1]
    rows = np.concatenate([DESIGN[:, order] / 0.5, 1e-6 * np.eye(3)])
    q, r = np.linalg.qr(rows)
    slope = (q.T @ np.append(RESPONSE / 0.5, [0, 0, 0]))[2] / r[2, 2]
    return [normal_tail(slope * abs(r[2, 2])), slope]


def surprised_rate(count):
    rate = numpyro.sample("rate", dist.LogNormal(-10, 0.5))
    numpyro.sample("count", dist.Poisson(rate), obs=count)
    return rate


def surprised_mean(rule):
    return posterior_means(
        rule, lambda u: normal_log_density(u, -10, 0.5) + 20 * u - np.exp(u), np.exp
    )


PROGRAMS = [
    Adversarial(
        "exceedance_curve_of_fifty",
        "outputs",
        exceedance_curve,
        (CURVE,),
        lambda: stats.norm.sf(np.linspace(0, 7, 50)),
        lambda: [normal_tail(score) for score in np.linspace(0, 7, 50)],
        "Normal tails from 0.5 to 1e-12; each by quadrature.",
    ),
    Adversarial(
        "ten_moments",
        "outputs",
        ten_moments,
        (0.9,),
        ten_moments_truth,
        ten_moments_check,
        "The recursion of normal moments; quadrature.",
        is_easy=True,
    ),
    Adversarial(
        "tower_of_layers",
        "outputs",
        tower_of_layers,
        (ATTACHMENTS, EXHAUSTIONS),
        lambda: 1e8 * (1 / ATTACHMENTS - 1 / EXHAUSTIONS),
        tower_check,
        "The integral of the Pareto survival function; quadrature of the payment on a log scale.",
        is_easy=True,
    ),
    Adversarial(
        "pairwise_wins",
        "outputs",
        pairwise_wins,
        (BRANDS,),
        pairwise_truth,
        pairwise_check,
        "Differences of normals, and zeros on the diagonal; quadrature over one of the two.",
        is_easy=True,
    ),
    Adversarial(
        "risk_report",
        "outputs",
        risk_report,
        (10.8,),
        risk_report_truth,
        risk_report_check,
        "The normal posterior of the log loss; quadrature.",
        is_easy=True,
    ),
    Adversarial(
        "thirty_sigma",
        "conflict",
        thirty_sigma,
        (30.0,),
        lambda: [30 / 1.01, stats.norm.sf(30, 30 / 1.01, np.sqrt(0.01 / 1.01))],
        thirty_sigma_check,
        "The conjugate normal posterior; quadrature.",
        is_easy=True,
    ),
    Adversarial(
        "two_surveys_disagree",
        "conflict",
        two_surveys,
        (SURVEYS, WIDTHS),
        lambda: two_surveys_mean(
            gauss_rule(np.concatenate([np.linspace(-140, 0, 300), np.linspace(0, 140, 300)[1:]]))
        ),
        two_surveys_check,
        "Gauss quadrature of the bimodal posterior; the same after a tangent substitution.",
    ),
    Adversarial(
        "vague_regression",
        "conflict",
        vague_regression,
        (DESIGN, RESPONSE),
        vague_truth,
        vague_check,
        "The normal equations; a triangular factorisation and a tail by quadrature.",
        is_easy=True,
    ),
    Adversarial(
        "prior_rate_far_below_the_count",
        "conflict",
        surprised_rate,
        (20,),
        lambda: surprised_mean(gauss_rule(np.linspace(-13, 5, 60))),
        lambda: surprised_mean(even_rule(-14, 5, 3001)),
        "Gauss quadrature over the log rate; the trapezoid rule.",
    ),
]
