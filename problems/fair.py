"""Programs that a person would call fair, and that were refused, crashed or took minutes once.

Each has a truth by a closed form or quadrature. The default method is to answer them, or to say in
words that a statistician accepts why not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import integrate, special, stats

from problems.problem import panels


class Fair(NamedTuple):
    """A NumPyro program, its data, and the truth of each output in JAX's order."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    truth: Callable[[], list[float]]


def _rule(low: float, high: float, edges: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes in panels of equal width."""
    return panels(tuple(np.linspace(low, high, edges).tolist()), nodes)


# --- shells ---


def gaussian_shell(radius, width):
    """A posterior on a thin shell in ten dimensions."""
    x = numpyro.sample("x", dist.Uniform(-6.0, 6.0).expand([10]).to_event(1))
    distance = jnp.sqrt(jnp.sum(x**2))
    numpyro.factor("shell", -0.5 * ((distance - radius) / width) ** 2)
    return {"inside": distance < radius - width, "squared": x[0] ** 2}


def gaussian_shell_truth() -> list[float]:
    r, weights = _rule(1.0, 3.0, 21, 40)
    density = weights * r**9 * np.exp(-0.5 * ((r - 2.0) / 0.1) ** 2)
    inside_r, inside_weights = _rule(1.0, 1.9, 21, 40)
    inside = inside_weights * inside_r**9 * np.exp(-0.5 * ((inside_r - 2.0) / 0.1) ** 2)
    mean = float((density * r**2).sum() / density.sum()) / 10
    return [float(inside.sum() / density.sum()), mean]


def thin_shell_event():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    return jnp.abs(jnp.sqrt(jnp.sum(x**2)) - 6.0) < 0.01


def thin_shell_event_truth() -> list[float]:
    return [float(stats.chi(5).sf(5.99) - stats.chi(5).sf(6.01))]


# --- labels ---


def table_of_labels(table):
    k = numpyro.sample("k", dist.Categorical(probs=jnp.full(len(table), 1 / len(table))))
    numpyro.factor("t", jnp.asarray(table)[k])
    return {"last": k == len(table) - 1, "mean": k * 1.0}


def _log_table(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=count)


def _labels_truth(count: int) -> list[float]:
    weights = np.exp(_log_table(count))
    return [
        float(weights[-1] / weights.sum()),
        float(np.average(np.arange(count), weights=weights)),
    ]


def ninety_heads():
    return numpyro.sample("heads", dist.Binomial(100, 0.5)) >= 90


# --- edges ---


def rates_at_the_edges():
    rate = numpyro.sample("rate", dist.Beta(0.1, 0.1))
    return {"inside": (rate > 0.4) & (rate < 0.6), "mean": rate}


def sparse_shares():
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.full(4, 0.1)))
    return {"first": shares[0], "most": jnp.max(shares) > 0.99}


def sparse_shares_truth() -> list[float]:
    """At most one share is above a half, so P(max > 0.99) is four times that of one."""
    return [0.25, 4 * float(stats.beta(0.1, 0.3).sf(0.99))]


def correlation_with_a_pole(y):
    """An output that is not a number at r = ±1 beside one that is."""
    r = numpyro.sample("r", dist.Uniform(-1.0, 1.0))
    numpyro.sample("y", dist.Normal(r, 0.5), obs=y)
    return {"mean": r, "root": 1.0 / (1.0 - r**2)}


def correlation_with_a_pole_truth() -> list[float]:
    """The second mean does not exist: a simple pole where the density does not vanish."""
    posterior = stats.truncnorm((-1 - 0.2) / 0.5, (1 - 0.2) / 0.5, 0.2, 0.5)
    return [float(posterior.mean()), math.nan]


# --- hierarchies, time series, heavy tails ---


def scale_of_groups(y):
    """P(τ > 20) of a half-Cauchy scale over five groups."""
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("groups", len(y)):
        effect = numpyro.sample("effect", dist.Normal(0.0, tau))
        numpyro.sample("y", dist.Normal(effect, 1.0), obs=y)
    return tau > 20.0


GROUPS = np.array([2.1, -1.3, 0.4, 3.0, -2.2])


def scale_of_groups_truth() -> list[float]:
    def density(tau: Any) -> Any:
        logs = stats.norm(0.0, np.sqrt(1 + tau**2)).logpdf(GROUPS[:, None]).sum(axis=0)
        return np.exp(logs) * stats.halfcauchy(scale=5.0).pdf(tau)

    def mass(low: float) -> float:
        """Over τ = low + t/(1 − t)."""
        t, weights = _rule(0.0, 1.0, 41, 40)
        return float((weights * density(low + t / (1 - t)) / (1 - t) ** 2).sum())

    return [mass(20.0) / mass(0.0)]


def local_level(y, drift, noise):
    """A random walk of 200 states with known variances, observed with noise."""
    steps = numpyro.sample("steps", dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1))
    level = drift * jnp.cumsum(steps)
    numpyro.sample("y", dist.Normal(level, noise).to_event(1), obs=y)
    return {"end": level[-1], "high": level[-1] > 3.0}


LEVELS = np.cumsum(np.random.default_rng(200).normal(0.0, 0.1, 200))
READINGS = LEVELS + np.random.default_rng(201).normal(0.0, 1.0, 200)


def local_level_truth() -> list[float]:
    """By Kalman's filter."""
    mean, variance = 0.0, 0.0
    for reading in READINGS:
        variance += 0.01
        gain = variance / (variance + 1.0)
        mean, variance = mean + gain * (reading - mean), (1 - gain) * variance
    return [mean, float(stats.norm(mean, math.sqrt(variance)).sf(3.0))]


def power_of_t():
    return jnp.abs(numpyro.sample("x", dist.StudentT(3.0, 0.0, 1.0))) ** 2.5


def power_of_t_truth() -> list[float]:
    logs = 1.25 * math.log(3) + special.gammaln(1.75) + special.gammaln(0.25)
    return [math.exp(logs - 0.5 * math.log(math.pi) - special.gammaln(1.5))]


def funnel_ends():
    v = numpyro.sample("v", dist.Normal(0.0, 3.0))
    x = numpyro.sample("x", dist.Normal(0.0, jnp.exp(v / 2)).expand([9]).to_event(1))
    return {"neck": (v < -6.0) & (jnp.abs(x[0]) < 0.1), "mouth": jnp.max(jnp.abs(x)) > 100.0}


def funnel_ends_truth() -> list[float]:
    def neck(v: float) -> float:
        return stats.norm(0, 3).pdf(v) * special.erf(0.1 / math.exp(v / 2) / math.sqrt(2))

    def mouth(v: float) -> float:
        inside = special.erf(100.0 / math.exp(v / 2) / math.sqrt(2))
        return stats.norm(0, 3).pdf(v) * -math.expm1(9 * math.log(inside)) if inside > 0 else 0.0

    low = integrate.quad(neck, -30.0, -6.0, epsabs=0, epsrel=1e-10, limit=200)[0]
    edges = (0.0, 4.0, 6.0, 8.0, 10.0, 14.0, 30.0)
    pieces = itertools.pairwise(edges)
    high = sum(integrate.quad(mouth, *ends, epsabs=0, epsrel=1e-10)[0] for ends in pieces)
    return [high, low]


# --- many rows ---


def long_logistic(x, successes, trials):
    """A logistic regression on so many rows; P of a coefficient far out."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Binomial(trials, logits=x @ weights), obs=successes)
    return {"slope": weights[0], "far": weights[0] > 0.55}


def _binary_rows() -> tuple[np.ndarray, np.ndarray, int]:
    """Of 100,000 rows; half have only the first covariate, half only the second."""
    rng = np.random.default_rng(5)
    x = np.zeros((100_000, 2))
    x[:50_000, 0] = x[50_000:, 1] = 1.0
    chances = special.expit(x @ np.array([0.5, -0.5]))
    return x, (rng.random(100_000) < chances).astype(float), 1


def long_logistic_truth() -> list[float]:
    """The first weight alone decides about the first half of the rows."""
    y = _binary_rows()[1]
    count, total = float(y[:50_000].sum()), 50_000
    w, weights = _rule(0.3, 0.8, 51, 30)
    logs = stats.norm(0, 2).logpdf(w) + count * w - total * np.log1p(np.exp(w))
    far_w, far_weights = _rule(0.55, 0.8, 51, 30)
    far = stats.norm(0, 2).logpdf(far_w) + count * far_w - total * np.log1p(np.exp(far_w))
    top = logs.max()
    density, tail = weights * np.exp(logs - top), far_weights * np.exp(far - top)
    return [float(tail.sum() / density.sum()), float((density * w).sum() / density.sum())]


# --- rounding ---


def coarse_reading():
    """An instrument that shows quarters, and a reading that is rare."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    return jnp.round(4.0 * x) == 15.0


FAIR = {
    "gaussian_shell": Fair(gaussian_shell, (2.0, 0.1), gaussian_shell_truth),
    "thin_shell_event": Fair(thin_shell_event, (), thin_shell_event_truth),
    "labels_500": Fair(table_of_labels, (_log_table(500),), lambda: _labels_truth(500)),
    "labels_50000": Fair(table_of_labels, (_log_table(50_000),), lambda: _labels_truth(50_000)),
    "ninety_heads": Fair(ninety_heads, (), lambda: [float(stats.binom(100, 0.5).sf(89))]),
    "rates_at_the_edges": Fair(
        rates_at_the_edges,
        (),
        lambda: [float(stats.beta(0.1, 0.1).cdf(0.6) - stats.beta(0.1, 0.1).cdf(0.4)), 0.5],
    ),
    "sparse_shares": Fair(sparse_shares, (), sparse_shares_truth),
    "correlation_with_a_pole": Fair(correlation_with_a_pole, (0.2,), correlation_with_a_pole_truth),
    "scale_of_groups": Fair(scale_of_groups, (GROUPS,), scale_of_groups_truth),
    "local_level": Fair(local_level, (READINGS, 0.1, 1.0), local_level_truth),
    "power_of_t": Fair(power_of_t, (), power_of_t_truth),
    "funnel_ends": Fair(funnel_ends, (), funnel_ends_truth),
    "coarse_reading": Fair(
        coarse_reading, (), lambda: [float(stats.norm.sf(3.625) - stats.norm.sf(3.875))]
    ),
    "long_logistic": Fair(long_logistic, _binary_rows(), long_logistic_truth),
}
