"""Every code listing of the paper, translated; figure and appendix are named at each.

Reichelt, Goliński, Ong, Rainforth: Expectation Programming (UAI 2022).
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density

import estimand as ep
from problems import PROBLEMS

STANDARD_ERRORS = 5.0


def assert_agrees(value: float, standard_error: float, truth: Any, *, at_most: float) -> None:
    """The value is within five standard errors, and those are small enough to tell."""
    assert standard_error <= at_most, f"no power: standard error {standard_error:.3g}"
    distance = abs(value - truth) / standard_error
    assert distance <= STANDARD_ERRORS, (
        f"{value:.8g} ± {standard_error:.3g} is {distance:.2f} standard errors from {truth:.8g}"
    )


# Figure 1 and appendix D -------------------------------------------------------------------------


@ep.expectation
def expt_prog(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(x, 1), obs=y)
    return x**3


def test_figure_1(rng_key: jax.Array) -> None:
    result = ep.estimate_expectation(
        expt_prog(2), ep.TABI(ep.AnIS(num_samples=100)), rng_key=rng_key, throw=False
    )
    expct_estimate, diagnostics = result
    assert expct_estimate == result.value
    error = diagnostics["standard_error"]
    assert error == result.standard_error
    assert_agrees(expct_estimate, error, PROBLEMS["figure1"].value, at_most=1.0)
    assert diagnostics["status"] is result.status
    assert diagnostics["num_evaluations"] == 3 * 100 * 100


TRACES = [-3.7, -1.0, -1e-3, 0.0, 1e-200, 1e-3, 0.1, 1.0, 2.2, 41.5]


@pytest.mark.parametrize("x", TRACES)
@pytest.mark.parametrize("sign", [1, -1])
def test_appendix_d_densities_to_the_last_digit(x: float, sign: int) -> None:
    """The three models have densities γ·max(f, 0), γ·max(−f, 0) and γ."""
    expectation = expt_prog(2.0)
    params = {"x": jnp.asarray(x)}
    by_hand = dist.Normal(0, 1).log_prob(x) + dist.Normal(x, 1).log_prob(2.0)
    gamma2, _ = log_density(expectation.gamma2, (), {}, params)
    assert float(gamma2) == float(by_hand)
    model = expectation.gamma1_plus if sign > 0 else expectation.gamma1_minus
    signed, _ = log_density(model, (), {}, params)
    f = sign * params["x"] ** 3
    # 1e-200 cubed is 0 in floating point, and so belongs to neither side.
    if f > 0:
        assert float(signed) == float(gamma2 + jnp.log(f))
    else:
        assert float(signed) == -math.inf


@pytest.mark.parametrize("part", ["gamma1_plus", "gamma1_minus", "gamma2"])
def test_appendix_d_models_still_return_f(part: str) -> None:
    with numpyro.handlers.substitute(data={"x": jnp.asarray(-1.7)}):
        assert float(getattr(expt_prog(2.0), part)()) == float(jnp.asarray(-1.7) ** 3)


@pytest.mark.parametrize("part", ["gamma1_plus", "gamma1_minus"])
@pytest.mark.parametrize("x", TRACES)
def test_appendix_d_prior_ignores_the_added_factor(part: str, x: float) -> None:
    """The paper's context check: what is added for f is no part of the prior."""
    density = ep.Density.of(expt_prog(2.0))
    position = jnp.asarray([x])
    log_prior = density.part(part).terms(position).log_prior
    assert float(log_prior) == float(density.part("gamma2").terms(position).log_prior)
    assert float(log_prior) == float(dist.Normal(0, 1).log_prob(x))


# Appendix C --------------------------------------------------------------------------------------


@ep.expectation
def model_with_default(y: Any = 2.0) -> Any:
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(x, 1), obs=y)
    return x**3


@pytest.mark.slow
def test_appendix_c(rng_key: jax.Array) -> None:
    """Posterior samples, then f (by hand); and the return values of the program on the samples."""
    hand_key, program_key = jax.random.split(rng_key)
    mcmc = MCMC(
        NUTS(model_with_default.model), num_warmup=500, num_samples=1000, progress_bar=False
    )
    mcmc.run(hand_key)
    f = np.asarray(mcmc.get_samples()["x"]) ** 3
    by_hand = f.mean()
    hand_error = f.std(ddof=1) / math.sqrt(effective_sample_size(f[None]))
    assert_agrees(by_hand, hand_error, 2.5, at_most=0.5)

    method = ep.PosteriorMCMC(num_samples=1000, num_warmup=500, num_chains=2)
    result = ep.estimate_expectation(model_with_default(), method, rng_key=program_key)
    assert_agrees(result.value, result.standard_error, 2.5, at_most=0.5)
    both = math.hypot(hand_error, result.standard_error)
    assert_agrees(result.value - by_hand, both, 0.0, at_most=0.5)


# Appendix E --------------------------------------------------------------------------------------


@ep.expectation
def square(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(x, 1), obs=y)
    return x**2


def test_appendix_e_a_part_that_is_skipped(rng_key: jax.Array) -> None:
    estimator = ep.AnIS(num_samples=1000)
    method = ep.TABI(normaliser=estimator, positive=estimator, negative=ep.SKIP)
    result = ep.estimate_expectation(square(2), method, rng_key=rng_key)
    assert_agrees(result.value, result.standard_error, 1.5, at_most=0.15)
    assert [name for name, _ in result.evidence] == ["gamma2", "gamma1_plus"]
    assert result.num_evaluations == 2 * 1000 * 100
    assert result.log_z["Z1_minus"] == -math.inf


def test_appendix_e_the_other_part_skipped(rng_key: jax.Array) -> None:
    """The case of f ≤ 0, by estimators of different kinds."""
    negated = ep.expect(square, lambda sites: -sites["return"])
    method = ep.TABI(
        normaliser=ep.ImportanceSampling(num_samples=20_000),
        positive=ep.SKIP,
        negative=ep.AnIS(num_samples=1000),
    )
    result = ep.estimate_expectation(negated(2), method, rng_key=rng_key)
    assert_agrees(result.value, result.standard_error, -1.5, at_most=0.15)
    assert result.log_z["Z1_plus"] == -math.inf


# Appendix I --------------------------------------------------------------------------------------


@ep.expectation
def three_moments(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(x, 1), obs=y)
    return x, x**2, x**3


MOMENTS = (1.5, 2.75, 5.625)
MOMENT_ERRORS = (0.2, 0.4, 1.0)


@pytest.mark.slow
def test_appendix_i_each_on_its_own(rng_key: jax.Array) -> None:
    e1, e2, e3 = three_moments(3.0)
    method = ep.TABI(ep.AnIS(num_samples=1000))
    keys = jax.random.split(rng_key, 3)
    for e, key, truth, at_most in zip((e1, e2, e3), keys, MOMENTS, MOMENT_ERRORS, strict=True):
        value, diagnostics = ep.estimate_expectation(e, method, rng_key=key, throw=False)
        assert isinstance(value, float)
        assert_agrees(value, diagnostics["standard_error"], truth, at_most=at_most)


def test_appendix_i_all_at_once(rng_key: jax.Array) -> None:
    method = ep.TABI(ep.AnIS(num_samples=1000))
    result = ep.estimate_expectation(three_moments(3.0), method, rng_key=rng_key, throw=False)
    assert isinstance(result.value, tuple)
    columns = zip(result.value, result.standard_error, MOMENTS, MOMENT_ERRORS, strict=True)
    for value, error, truth, at_most in columns:
        assert_agrees(value, error, truth, at_most=at_most)
    names = [name for name, _ in result.evidence]
    # The second moment is known to have no negative part.
    signed = ["gamma1_plus", "gamma1_minus"]
    assert names == ["gamma2", *signed, "gamma1_plus", *signed]
    z2 = result.evidence[0][1]
    assert result.log_z["Z2"] == (float(z2.log_z),) * 3
    for k in range(3):
        plus, minus = (math.exp(result.log_z[part][k]) for part in ("Z1_plus", "Z1_minus"))
        ratio = (plus - minus) / math.exp(result.log_z["Z2"][k])
        assert result.value[k] == pytest.approx(ratio, rel=1e-12)


# Appendix J --------------------------------------------------------------------------------------


@ep.expectation
def posterior_predictive(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(jnp.zeros(len(y)), 1.0).to_event(1))
    numpyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=y)
    return jnp.exp(dist.Normal(x, math.sqrt(0.5)).to_event(1).log_prob(-y))


@ep.expectation
def posterior_predictive_as_printed(y: Any) -> Any:
    identity = jnp.eye(len(y))
    x = numpyro.sample("x", dist.MultivariateNormal(jnp.zeros(len(y)), identity))
    numpyro.sample("y", dist.MultivariateNormal(x, identity), obs=y)
    return jnp.exp(dist.MultivariateNormal(x, 0.5 * identity).log_prob(-y))


Y10 = np.full(10, 3.5 / math.sqrt(10))


def test_appendix_j_is_one_density_in_either_notation(rng_key: jax.Array) -> None:
    densities = [
        ep.Density.of(program(Y10)).part("gamma1_plus")
        for program in (posterior_predictive, posterior_predictive_as_printed)
    ]
    for position in jax.random.normal(rng_key, (3, 10)):
        first, second = (np.asarray(density.terms(position)) for density in densities)
        np.testing.assert_allclose(first, second, rtol=1e-12)


@pytest.mark.slow
def test_appendix_j(rng_key: jax.Array) -> None:
    kernel = ep.HMC(step_size=0.3, num_leapfrog=5)
    method = ep.TABI(ep.AnIS(num_samples=1000, num_temperatures=50, kernel=kernel))
    result = ep.estimate_expectation(posterior_predictive(Y10), method, rng_key=rng_key)
    assert_agrees(result.value, result.standard_error, 1.0567684272e-10, at_most=1e-11)


# Appendix N --------------------------------------------------------------------------------------


def banana_density(x1: Any, x2: Any) -> Any:
    return -0.5 * (0.03 * x1**2 + (x2 / 2 + 0.03 * (x1**2 - 100)) ** 2)


def banana_f(x1: Any, x2: Any) -> Any:
    cond = 1 / (1 + jnp.exp(50 * (x2 + 5)))
    return cond * (x1 - 2) ** 3


@ep.expectation
def banana() -> Any:
    x1 = numpyro.sample("x1", dist.Normal(0, 4))
    x2 = numpyro.sample("x2", dist.Normal(0, 4))
    numpyro.factor("banana_density", banana_density(x1, x2))
    return banana_f(x1, x2)


@pytest.mark.slow
def test_appendix_n(rng_key: jax.Array) -> None:
    """Signed, and precise enough to tell the sign."""
    method = ep.TABI(
        ep.AnIS(num_samples=10_000, schedule=ep.geometric(200), kernel=ep.RandomWalk(scale=2.0))
    )
    result = ep.estimate_expectation(banana(), method, rng_key=rng_key, throw=False)
    truth = PROBLEMS["banana"].value
    assert_agrees(result.value, result.standard_error, truth, at_most=0.015)
    assert result.log_z["Z1_plus"] < result.log_z["Z1_minus"]
