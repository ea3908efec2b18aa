"""Many rows of data, and posteriors that live in many dimensions because of them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit
from scipy.stats import norm

from problems.adversarial.program import Adversarial
from problems.adversarial.second.integrals import (
    Array,
    Rule,
    legendre,
    means,
    product,
    trapezoid,
)


def sixty_fourths(values) -> Array:
    """Rounded, so that single precision holds the data exactly."""
    return np.round(64 * np.asarray(values)) / 64


def regression_data() -> tuple[Array, Array]:
    rng = np.random.default_rng(11)
    x = sixty_fourths(rng.normal(0, 1, 20_000))
    return x, sixty_fourths(1.5 + 0.25 * x + rng.normal(0, 2, 20_000))


def long_regression(x, y):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 10.0))
    with numpyro.plate("rows", x.size):
        numpyro.sample("y", dist.Normal(intercept + slope * x, 2.0), obs=y)
    return {"intercept": intercept, "slope": slope, "steep": slope > 0.33}


def regression_outputs(mean: Array, covariance: Array) -> list[float]:
    return [mean[0], mean[1], norm.sf(0.33, mean[1], np.sqrt(covariance[1, 1]))]


def long_regression_truth():
    x, y = regression_data()
    design = np.stack([np.ones_like(x), x], axis=1)
    precision = design.T @ design / 4 + np.eye(2) / 100
    return regression_outputs(
        np.linalg.solve(precision, design.T @ y / 4), np.linalg.inv(precision)
    )


def long_regression_check():
    # The prior as two more rows, and a triangular factorisation instead of normal equations.
    x, y = regression_data()
    design = np.vstack([np.stack([np.ones_like(x), x], axis=1) / 2, np.eye(2) / 10])
    q, r = np.linalg.qr(design)
    inverse = np.linalg.inv(r)
    return regression_outputs(inverse @ (q.T @ np.append(y / 2, [0.0, 0.0])), inverse @ inverse.T)


def poisson_data() -> tuple[Array, Array]:
    rng = np.random.default_rng(5)
    x = np.repeat(np.arange(10.0) / 8, 500)
    return x, rng.poisson(np.exp(-0.5 + 0.4 * x))


def poisson_regression(x, y):
    a = numpyro.sample("a", dist.Normal(0.0, 5.0))
    b = numpyro.sample("b", dist.Normal(0.0, 5.0))
    with numpyro.plate("rows", x.size):
        numpyro.sample("y", dist.Poisson(jnp.exp(a + b * x)), obs=y)
    return {"rate": jnp.exp(a + 2.0 * b), "weak": b < 0.25}


def screening_data() -> tuple[Array, Array]:
    """About forty cases among ten thousand people."""
    rng = np.random.default_rng(3)
    x = np.repeat(np.arange(-5.0, 5.0) / 4, 1000)
    return x, (rng.random(x.size) < expit(-6.0 + 0.8 * x)).astype(int)


def screening_logistic(x, y):
    a = numpyro.sample("a", dist.Normal(0.0, 5.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.5))
    with numpyro.plate("people", x.size):
        numpyro.sample("y", dist.Bernoulli(logits=a + b * x), obs=y)
    return {"odds_ratio": jnp.exp(b), "protective": b < 0.0}


def newton(log_density, start: Array) -> tuple[Array, Array]:
    """Mode and Cholesky factor of the inverse curvature, by finite differences."""
    point, h = start, 1e-3
    for _ in range(60):
        e = h * np.eye(2)
        f = {
            (i, j): float(log_density(*(point + i * e[0] + j * e[1])))
            for i in (-1, 0, 1)
            for j in (-1, 0, 1)
        }
        slope = np.array([f[1, 0] - f[-1, 0], f[0, 1] - f[0, -1]]) / (2 * h)
        cross = (f[1, 1] - f[1, -1] - f[-1, 1] + f[-1, -1]) / 4
        curve = np.array([f[1, 0] + f[-1, 0] - 2 * f[0, 0], f[0, 1] + f[0, -1] - 2 * f[0, 0]])
        hessian = (np.diag(curve) + np.array([[0, cross], [cross, 0]])) / h**2
        point = point - np.clip(np.linalg.solve(hessian, slope), -1, 1)
    return point, np.linalg.cholesky(np.linalg.inv(-hessian))


def grouped(data: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    """Levels of x, the number of rows and the sum of y at each level."""
    x, y = data
    level, index = np.unique(x, return_inverse=True)
    return level, np.bincount(index).astype(float), np.bincount(index, weights=y)


def poisson_log_density(a, b):
    x, n, y = (v[:, None] for v in grouped(poisson_data()))
    eta = np.ravel(a) + np.ravel(b) * x
    prior = (np.ravel(a) ** 2 + np.ravel(b) ** 2) / 50
    return (np.sum(y * eta - n * np.exp(eta), axis=0) - prior).squeeze()


def screening_log_density(a, b):
    x, n, y = (v[:, None] for v in grouped(screening_data()))
    eta = np.ravel(a) + np.ravel(b) * x
    prior = np.ravel(a) ** 2 / 50 + np.ravel(b) ** 2 / 12.5
    return (np.sum(y * eta - n * np.logaddexp(0, eta), axis=0) - prior).squeeze()


def conditional_rule(mode: Array, root: Array, cut: float) -> Rule:
    """Gauss-Legendre in b, split at `cut`, and in a around its conditional centre."""
    sd = np.sqrt(np.sum(root**2, axis=1))
    edges = np.unique([*(mode[1] + sd[1] * np.array([-10, -5, 0, 5, 10])), cut])
    slope = root[0] @ root[1] / sd[1] ** 2
    spread = np.sqrt(sd[0] ** 2 - slope**2 * sd[1] ** 2)
    b, u, w = product(legendre(edges, 30), legendre([-9, -3, 3, 9], 24))
    return mode[0] + slope * (b - mode[1]) + spread * u, b, w * spread


def glm(log_density, targets, cut: float, start: Array) -> list[float]:
    return means(log_density, targets, conditional_rule(*newton(log_density, start), cut))


def glm_check(log_density, targets, cut: float, start: Array) -> list[float]:
    """Triangular standardisation: b from its own axis, a given b; trapezoid up to the cut."""
    mode, _ = newton(log_density, start)
    flipped, _ = newton(lambda b, a: log_density(a, b), mode[::-1])
    _, root = newton(lambda b, a: log_density(a, b), flipped)
    rest = trapezoid(-9, 9, 91)
    split = (cut - mode[1]) / root[0, 0]
    whole = product(trapezoid(-10, 10, 241), rest)
    part = product(legendre([-12, split - 4, split - 1, split], 40), rest)

    def points(rule: Rule) -> Rule:
        v, u, w = rule
        return mode[0] + root[1, 0] * v + root[1, 1] * u, mode[1] + root[0, 0] * v, w

    smooth = means(log_density, targets[:1], points(whole))
    top = log_density(*mode)
    below, everywhere = (
        float(np.sum(w * np.exp(log_density(a, b) - top)))
        for a, b, w in (points(part), points(whole))
    )
    return [*smooth, below / everywhere]


POISSON = (
    poisson_log_density, [lambda a, b: np.exp(a + 2 * b), lambda _, b: b < 0.25],
    0.25, np.array([-0.5, 0.4]),
)  # fmt: skip
SCREENING = (
    screening_log_density, [lambda _, b: np.exp(b), lambda _, b: b < 0],
    0.0, np.array([-6.0, 0.8]),
)  # fmt: skip


def survival_data() -> tuple[Array, Array]:
    rng = np.random.default_rng(2)
    life = 6 * rng.weibull(1.4, 400)
    leave = rng.uniform(1, 8, 400)
    return np.maximum(sixty_fourths(np.minimum(life, leave)), 1 / 64), (life < leave).astype(float)


def censored_weibull(time, died):
    shape = numpyro.sample("shape", dist.LogNormal(0.0, 0.5))
    rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
    log_hazard = jnp.log(rate) + jnp.log(shape) + (shape - 1.0) * jnp.log(time)
    numpyro.factor("patients", jnp.sum(died * log_hazard - rate * time**shape))
    return {"constant": shape < 1.1, "five_years": jnp.exp(-rate * 5.0**shape)}


def weibull_parts(shape):
    time, died = survival_data()
    total = 1 + np.sum(time[:, None] ** shape, axis=0)
    logs = died.sum() * np.log(shape) + (shape - 1) * np.sum(died * np.log(time))
    return total, logs - np.log(shape) - 2 * np.log(shape) ** 2, 1 + died.sum()


def censored_weibull_truth():
    def log_density(k):
        total, logs, count = weibull_parts(k)
        return logs - count * np.log(total)

    def survive(k):
        total, _, count = weibull_parts(k)
        return np.exp(-count * np.log1p(5**k / total))

    rule = legendre([0.8, 1.0, 1.1, 1.3, 1.5, 1.8, 2.3], 60)
    return means(log_density, [lambda k: k < 1.1, survive], rule)


def censored_weibull_check():
    # In two dimensions: log shape, and the rate relative to its conditional mean.
    k_rule = legendre(np.log([0.85, 1.0, 1.1, 1.25, 1.45, 1.7, 2.2]), 30)
    g_rule = legendre([-0.6, -0.3, 0, 0.3, 0.6], 24)
    total, logs, count = weibull_parts(np.exp(k_rule[0]))
    shape, weight, size = np.exp(k_rule[0])[:, None], k_rule[1][:, None], total[:, None]
    rate = count / size * np.exp(g_rule[0])
    log_mass = (logs + k_rule[0])[:, None] + count * np.log(rate) - rate * size
    mass = weight * g_rule[1] * np.exp(log_mass - log_mass.max())
    survive = np.sum(mass * np.exp(-rate * 5**shape))
    return [np.sum(mass * (shape < 1.1)) / mass.sum(), survive / mass.sum()]


ERRORS = 0.25 + np.arange(40) % 5 / 4
EFFECTS = sixty_fourths(np.random.default_rng(8).normal(0.5, np.sqrt(0.16 + ERRORS**2)))


def forty_hospitals(y, error):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("hospitals", y.size):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        effect = mean + spread * z
        numpyro.sample("y", dist.Normal(effect, error), obs=y)
    return {"first": effect[0], "homogeneous": spread < 0.1, "spread": spread}


def hospital_parts(t):
    """For each spread: log density, and the conditional mean and precision of the mean."""
    weight = 1 / (ERRORS[:, None] ** 2 + t**2)
    precision = 0.04 + weight.sum(axis=0)
    centre = (weight * EFFECTS[:, None]).sum(axis=0) / precision
    logs = 0.5 * np.log(weight).sum(axis=0) - 0.5 * np.log(precision) - 0.5 * t**2
    logs += 0.5 * precision * centre**2 - 0.5 * (weight * EFFECTS[:, None] ** 2).sum(axis=0)
    return logs, centre, precision


def first_hospital(mean, t):
    shrink = t**2 / (t**2 + ERRORS[0] ** 2)
    return mean + shrink * (EFFECTS[0] - mean)


def forty_hospitals_truth():
    rule = legendre([0, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0], 60)
    return means(
        lambda t: hospital_parts(t)[0],
        [lambda t: first_hospital(hospital_parts(t)[1], t), lambda t: t < 0.1, lambda t: t],
        rule,
    )


def forty_hospitals_check():
    def log_density(m, t):
        variance = ERRORS[:, None] ** 2 + t**2
        rows = np.log(variance) + (EFFECTS[:, None] - m) ** 2 / variance
        return -0.5 * rows.sum(axis=0) - m**2 / 50 - 0.5 * t**2

    rule = product(trapezoid(-1, 2, 101), legendre([0, 0.1, 0.2, 0.5, 0.8, 1.5, 3], 24))
    return means(log_density, [first_hospital, lambda _, t: t < 0.1, lambda _, t: t], rule)


PROGRAMS = [
    Adversarial(
        "long_regression",
        "rows",
        long_regression,
        regression_data(),
        long_regression_truth,
        long_regression_check,
        "Normal equations; triangular factorisation of the rows.",
        True,
    ),
    Adversarial(
        "poisson_regression",
        "rows",
        poisson_regression,
        poisson_data(),
        lambda: glm(*POISSON),
        lambda: glm_check(*POISSON),
        "Gauss-Legendre in b and a given b; trapezoid in standardised coordinates.",
        True,
    ),
    Adversarial(
        "screening_logistic",
        "rows",
        screening_logistic,
        screening_data(),
        lambda: glm(*SCREENING),
        lambda: glm_check(*SCREENING),
        "Gauss-Legendre in b and a given b; trapezoid in standardised coordinates.",
        True,
    ),
    Adversarial(
        "censored_weibull",
        "rows",
        censored_weibull,
        survival_data(),
        censored_weibull_truth,
        censored_weibull_check,
        "Integral over the shape with the rate in closed form; two-dimensional quadrature.",
        True,
    ),
    Adversarial(
        "forty_hospitals",
        "rows",
        forty_hospitals,
        (EFFECTS, ERRORS),
        forty_hospitals_truth,
        forty_hospitals_check,
        "Integral over the spread; two-dimensional integral over mean and spread.",
        True,
    ),
]
