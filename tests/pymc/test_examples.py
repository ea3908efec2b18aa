"""Models as PyMC's documentation shows them, with a quantity of interest; and the radon model."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special
from scipy import stats as laws

import estimand as ep
from problems import eight_schools, radon
from problems.problem import panels
from tests import stats

pm = pytest.importorskip("pymc")


def assert_right(output: Any, truth: float) -> None:
    """One output of an estimate is trusted, and right."""
    assert output.status, output
    stats.assert_estimate(output.value, output.standard_error, truth, degrees=output.degrees)


# --- "Introductory overview of PyMC": linear regression ---


def test_linear_regression() -> None:
    rng = np.random.default_rng(8927)
    x1, x2 = rng.standard_normal(100), rng.standard_normal(100) * 0.2
    y = 1 + 1 * x1 + 2.5 * x2 + rng.normal(size=100)
    with pm.Model() as basic_model:
        alpha = pm.Normal("alpha", mu=0, sigma=10)
        beta = pm.Normal("beta", mu=0, sigma=10, shape=2)
        sigma = pm.HalfNormal("sigma", sigma=1)
        mu = alpha + beta[0] * x1 + beta[1] * x2
        pm.Normal("Y_obs", mu=mu, sigma=sigma, observed=y)
    result = ep.estimate_expectation(ep.from_pymc(basic_model, (beta[1], beta[1] < 0.5)))

    # Given sigma the coefficients are normal; sigma by quadrature.
    design = np.stack([np.ones(100), x1, x2], axis=1)

    def given(sigma: float) -> tuple[float, float, float]:
        precision = design.T @ design / sigma**2 + np.eye(3) / 100
        mean = np.linalg.solve(precision, design.T @ y / sigma**2)
        covariance = sigma**2 * np.eye(100) + 100 * design @ design.T
        log_z = laws.multivariate_normal.logpdf(y, np.zeros(100), covariance)
        sd = np.sqrt(np.linalg.inv(precision)[2, 2])
        return log_z + laws.halfnorm.logpdf(sigma), mean[2], laws.norm.cdf(0.5, mean[2], sd)

    nodes, weights = panels((0.5, 0.8, 1.0, 1.2, 1.5, 2.0), 20)
    log_z, means, chances = np.array([given(node) for node in nodes]).T
    mass = weights * np.exp(log_z - log_z.max())
    assert_right(result.outputs[0], mass @ means / mass.sum())
    assert_right(result.outputs[1], mass @ chances / mass.sum())


# --- "Introductory overview of PyMC": coal mining disasters, two years of which are missing ---

# fmt: off
DISASTERS = np.array([
    4, 5, 4, 0, 1, 4, 3, 4, 0, 6, 3, 3, 4, 0, 2, 6, 3, 3, 5, 4, 5, 3, 1, 4, 4, 1, 5, 5, 3, 4, 2, 5,
    2, 2, 3, 4, 2, 1, 3, np.nan, 2, 1, 1, 1, 1, 3, 0, 0, 1, 0, 1, 1, 0, 0, 3, 1, 0, 3, 2, 2, 0, 1,
    1, 1, 0, 1, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 1, 1, 0, 2, 3, 3, 1, np.nan, 2, 1, 1, 1, 1, 2, 4, 2,
    0, 0, 1, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1,
])
# fmt: on
YEARS = np.arange(1851, 1962)


@pytest.mark.filterwarnings("ignore:.*contains missing values", "ignore:invalid value encountered")
def test_coal_mining_disasters() -> None:
    with pm.Model() as disaster_model:
        switchpoint = pm.DiscreteUniform("switchpoint", lower=YEARS.min(), upper=YEARS.max())
        early_rate = pm.Exponential("early_rate", 1.0)
        late_rate = pm.Exponential("late_rate", 1.0)
        rate = pm.math.switch(switchpoint >= YEARS, early_rate, late_rate)
        pm.Poisson("disasters", rate, observed=DISASTERS)
    asked = {"switch": switchpoint <= 1885, "early": early_rate > 4}
    result = ep.estimate_expectation(ep.from_pymc(disaster_model, asked))

    is_known = ~np.isnan(DISASTERS)
    log_z, chances = [], []
    for year in YEARS:
        rates = [
            (1 + DISASTERS[mask].sum(), 1 + mask.sum())
            for mask in (is_known & (year >= YEARS), is_known & (year < YEARS))
        ]
        log_z.append(sum(special.gammaln(shape) - shape * np.log(rate) for shape, rate in rates))
        chances.append(laws.gamma.sf(4, rates[0][0], scale=1 / rates[0][1]))
    mass = special.softmax(log_z)
    truths = {"early": mass @ chances, "switch": mass[YEARS <= 1885].sum()}
    for output, label in zip(result.outputs, result.output.labels, strict=True):
        assert_right(output, truths[label])


# --- "Diagnosing biased inference with divergences": eight schools, non-centred ---


def test_eight_schools() -> None:
    with pm.Model(coords={"school": list("ABCDEFGH")}) as non_centered_eight:
        mu = pm.Normal("mu", mu=0, sigma=5)
        tau = pm.HalfCauchy("tau", beta=5)
        theta_tilde = pm.Normal("theta_t", mu=0, sigma=1, dims="school")
        theta = pm.Deterministic("theta", mu + tau * theta_tilde, dims="school")
        pm.Normal(
            "obs",
            mu=theta,
            sigma=eight_schools.ERRORS,
            observed=eight_schools.EFFECTS,
            dims="school",
        )
    result = ep.estimate_expectation(ep.from_pymc(non_centered_eight, theta[0] > 28))
    [problem] = eight_schools.problems()
    assert isinstance(problem.value, tuple)
    assert_right(result.outputs[0], problem.value[2])
    posterior = result.to_datatree()["posterior"]
    assert posterior["theta"].dims == ("chain", "draw", "school")
    assert list(posterior.coords["school"].values) == list("ABCDEFGH")


# --- "Introduction to Bayesian A/B testing": conversions ---


def test_conversions() -> None:
    trials, successes = [1000, 1000], [40, 70]
    with pm.Model() as model:
        p = pm.Beta("p", alpha=1, beta=1, shape=2)
        pm.Binomial("y", n=trials, p=p, observed=successes)
        pm.Deterministic("reluplift_b", p[1] / p[0] - 1)
    result = ep.estimate_expectation(ep.from_pymc(model, (p[0] > p[1], "reluplift_b")))
    first, second = laws.beta(41, 961), laws.beta(71, 931)
    chance = integrate.quad(lambda x: first.sf(x) * second.pdf(x), 0.02, 0.15)[0]
    assert_right(result.outputs[0], chance)
    # E[1/p] of a beta distribution is (a + b − 1)/(a − 1).
    assert_right(result.outputs[1], second.mean() * 1001 / 40 - 1)


# --- "Bayesian estimation supersedes the t-test" ---

# fmt: off
DRUG = np.array([
    101, 100, 102, 104, 102, 97, 105, 105, 98, 101, 100, 123, 105, 103, 100, 95, 102, 106, 109, 102,
    82, 102, 100, 102, 102, 101, 102, 102, 103, 103, 97, 97, 103, 101, 97, 104, 96, 103, 124, 101,
    101, 100, 101, 101, 104, 100, 101,
])
PLACEBO = np.array([
    99, 101, 100, 101, 102, 100, 97, 101, 104, 101, 102, 102, 100, 105, 88, 101, 100, 104, 100, 100,
    100, 101, 102, 103, 97, 101, 101, 100, 101, 99, 101, 100, 100, 101, 100, 99, 101, 100, 102, 99,
    100, 99,
])
# fmt: on


def test_two_groups() -> None:
    together = np.concatenate([DRUG, PLACEBO])
    centre, spread, low, high = together.mean(), 2 * together.std(ddof=1), 0.1, 10
    with pm.Model() as model:
        group1_mean = pm.Normal("group1_mean", mu=centre, sigma=spread)
        group2_mean = pm.Normal("group2_mean", mu=centre, sigma=spread)
        group1_std = pm.Uniform("group1_std", lower=low, upper=high)
        group2_std = pm.Uniform("group2_std", lower=low, upper=high)
        nu = pm.Deterministic("nu", pm.Exponential("nu_minus_one", 1 / 29.0) + 1)
        pm.StudentT("drug", nu=nu, mu=group1_mean, lam=group1_std**-2, observed=DRUG)
        pm.StudentT("placebo", nu=nu, mu=group2_mean, lam=group2_std**-2, observed=PLACEBO)
        pm.Deterministic("difference of means", group1_mean - group2_mean)
    asked = {"difference": "difference of means", "tail": group1_mean > 103}
    result = ep.estimate_expectation(ep.from_pymc(model, asked))

    # Given nu the groups are independent: a sum over a grid of each, and one over nu.
    means, mean_weights = panels((97, 99, 100, 101, 102, 103, 104, 106), 8)
    spreads, spread_weights = panels((0.1, 0.5, 1.0, 1.5, 2.5, 4.0, 10.0), 8)

    def group(nu: float, y: np.ndarray) -> np.ndarray:
        """The mass of each mean."""
        residuals = (y - means[:, None, None]) / spreads[:, None]
        log_l = (laws.t.logpdf(residuals, nu) - np.log(spreads[:, None])).sum(axis=-1)
        mass = np.exp(log_l + 110) @ spread_weights / (high - low)
        return mass * mean_weights * laws.norm.pdf(means, centre, spread)

    sums = np.zeros(3)
    for extra, weight in zip(*panels((0, 0.5, 1, 2, 4, 10, 40, 200), 6), strict=True):
        one, two = group(extra + 1, DRUG), group(extra + 1, PLACEBO)
        prior = weight * laws.expon.pdf(extra, scale=29)
        difference = (one @ means) * two.sum() - one.sum() * (two @ means)
        tail = one[means > 103].sum() * two.sum()
        sums += prior * np.array([difference, tail, one.sum() * two.sum()])
    assert_right(result.outputs[0], sums[0] / sums[2])
    assert_right(result.outputs[1], sums[1] / sums[2])


# --- the radon model ---


def radon_model() -> Any:
    """The model of the paper's section 5.3, whose residual parameter is a variance."""
    data = radon.load()
    with pm.Model(coords={"county": radon.COUNTIES}) as model:
        mu_alpha = pm.Normal("mu_alpha", 0.0, 10.0)
        mu_beta = pm.Normal("mu_beta", 0.0, 10.0)
        alpha = pm.Normal("alpha", mu_alpha, np.exp(-2.1), dims="county")
        beta = pm.Normal("beta", mu_beta, np.exp(-1.5), dims="county")
        epsilon = pm.HalfCauchy("epsilon", 5.0)
        mean = alpha[data.county] + beta[data.county] * data.floor
        pm.Normal("log_radon", mean, pm.math.sqrt(epsilon), observed=data.log_radon)
    return model


@pytest.mark.slow
def test_radon() -> None:
    def all_below(v: dict[str, jax.Array]) -> jax.Array:
        level = jnp.exp(v["alpha"])
        return jnp.exp(jnp.sum(jax.nn.log_sigmoid(-radon.SHARPNESS * (level - radon.LIMIT))))

    result = ep.estimate_expectation(ep.from_pymc(radon_model(), all_below))
    assert_right(result.outputs[0], radon.EXPECTATION)
