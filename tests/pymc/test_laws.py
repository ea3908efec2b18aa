"""PyMC's distributions as priors: their densities, draws and coordinates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import estimand as ep
from tests import stats

pm = pytest.importorskip("pymc")

NUM_DRAWS = 4000

# Two of a family: draws of the first are weighed by the density of the second, which is narrower.
LAWS: dict[str, tuple[Callable[[str], Any], Callable[[str], Any]]] = {
    "Normal": (lambda n: pm.Normal(n, 0, 2), lambda n: pm.Normal(n, 0.5, 1.1)),
    "Normal vector": (
        lambda n: pm.Normal(n, [0, 1], 2, shape=2),
        lambda n: pm.Normal(n, [0.5, 1], [1.1, 1.5], shape=2),
    ),
    "HalfNormal": (lambda n: pm.HalfNormal(n, 2), lambda n: pm.HalfNormal(n, 1.1)),
    "LogNormal": (lambda n: pm.LogNormal(n, 0, 1), lambda n: pm.LogNormal(n, 0.2, 0.6)),
    "Uniform": (lambda n: pm.Uniform(n, -1, 3), lambda n: pm.Uniform(n, 0, 2)),
    "StudentT": (
        lambda n: pm.StudentT(n, 3, mu=0, sigma=2),
        lambda n: pm.StudentT(n, 5, mu=0.2, sigma=1),
    ),
    "Cauchy": (lambda n: pm.Cauchy(n, 0, 2), lambda n: pm.Cauchy(n, 0.2, 1)),
    "HalfCauchy": (lambda n: pm.HalfCauchy(n, 2), lambda n: pm.HalfCauchy(n, 1)),
    "Laplace": (lambda n: pm.Laplace(n, 0, 2), lambda n: pm.Laplace(n, 0.2, 1)),
    "Logistic": (lambda n: pm.Logistic(n, 0, 2), lambda n: pm.Logistic(n, 0.2, 1)),
    "Gumbel": (lambda n: pm.Gumbel(n, 0, 2), lambda n: pm.Gumbel(n, 0.2, 1.5)),
    "Exponential": (lambda n: pm.Exponential(n, 0.5), lambda n: pm.Exponential(n, 0.9)),
    "Exponential by scale": (
        lambda n: pm.Exponential(n, scale=2.5),
        lambda n: pm.Exponential(n, scale=2.0),
    ),
    "Gamma": (lambda n: pm.Gamma(n, 2, 0.75), lambda n: pm.Gamma(n, 2.5, 1.1)),
    "Gamma by moments": (
        lambda n: pm.Gamma(n, mu=2.0, sigma=1.5),
        lambda n: pm.Gamma(n, mu=2.0, sigma=1.2),
    ),
    "InverseGamma": (lambda n: pm.InverseGamma(n, 2, 3), lambda n: pm.InverseGamma(n, 3, 4)),
    "Weibull": (lambda n: pm.Weibull(n, 1.5, 3), lambda n: pm.Weibull(n, 2, 2.5)),
    "Beta": (lambda n: pm.Beta(n, 1.5, 2), lambda n: pm.Beta(n, 3, 3)),
    "TruncatedNormal": (
        lambda n: pm.TruncatedNormal(n, mu=2, sigma=1.5, lower=0),
        lambda n: pm.TruncatedNormal(n, mu=2.2, sigma=1.2, lower=0),
    ),
    "TruncatedNormal, two sides": (
        lambda n: pm.TruncatedNormal(n, mu=2, sigma=1.5, lower=0, upper=4),
        lambda n: pm.TruncatedNormal(n, mu=2.2, sigma=1.2, lower=0, upper=4),
    ),
    "Dirichlet": (
        lambda n: pm.Dirichlet(n, np.array([1.0, 1.5, 2.0])),
        lambda n: pm.Dirichlet(n, np.array([2.0, 2.5, 3.0])),
    ),
    "MvNormal": (
        lambda n: pm.MvNormal(n, np.zeros(2), cov=np.array([[2.0, 0.5], [0.5, 1.0]])),
        lambda n: pm.MvNormal(n, np.ones(2) * 0.2, chol=np.array([[1.0, 0.0], [0.3, 0.6]])),
    ),
    "Bernoulli": (lambda n: pm.Bernoulli(n, 0.3), lambda n: pm.Bernoulli(n, 0.6)),
    "Bernoulli by logit": (
        lambda n: pm.Bernoulli(n, logit_p=0.3),
        lambda n: pm.Bernoulli(n, logit_p=0.6),
    ),
    "Binomial": (lambda n: pm.Binomial(n, 5, 0.4), lambda n: pm.Binomial(n, 5, 0.5)),
    "Poisson": (lambda n: pm.Poisson(n, 3.0), lambda n: pm.Poisson(n, 2.5)),
    "Categorical": (
        lambda n: pm.Categorical(n, [0.2, 0.3, 0.5]),
        lambda n: pm.Categorical(n, [0.5, 0.4, 0.1]),
    ),
    "DiscreteUniform": (
        lambda n: pm.DiscreteUniform(n, 0, 6),
        lambda n: pm.DiscreteUniform(n, 2, 5),
    ),
    # Those that PyTensor draws, in PyMC's own coordinates.
    "HalfStudentT": (lambda n: pm.HalfStudentT(n, 3, 2), lambda n: pm.HalfStudentT(n, 5, 1.5)),
    "Kumaraswamy": (lambda n: pm.Kumaraswamy(n, 1.5, 2), lambda n: pm.Kumaraswamy(n, 2, 2.5)),
    "AsymmetricLaplace": (
        lambda n: pm.AsymmetricLaplace(n, kappa=1.5, mu=0, b=0.7),
        lambda n: pm.AsymmetricLaplace(n, kappa=1.5, mu=0, b=1),
    ),
    "Pareto": (lambda n: pm.Pareto(n, 1.5, 2), lambda n: pm.Pareto(n, 2.5, 2)),
    # PyMC's density is not normalised: its constant, which depends on eta, has the wrong sign.
    "LKJCholeskyCov": (
        lambda n: pm.LKJCholeskyCov(
            n, eta=1.5, n=2, sd_dist=pm.Exponential.dist(0.7), compute_corr=False
        ),
        lambda n: pm.LKJCholeskyCov(
            n, eta=1.5, n=2, sd_dist=pm.Exponential.dist(1.0), compute_corr=False
        ),
    ),
    "GaussianRandomWalk": (
        lambda n: pm.GaussianRandomWalk(n, sigma=1.5, init_dist=pm.Normal.dist(0, 2), steps=3),
        lambda n: pm.GaussianRandomWalk(n, sigma=1.2, init_dist=pm.Normal.dist(0, 1.5), steps=3),
    ),
    "AR": (
        lambda n: pm.AR(
            n, rho=[0.1, 0.6], sigma=1.5, constant=True, init_dist=pm.Normal.dist(0, 2), steps=3
        ),
        lambda n: pm.AR(
            n, rho=[0.1, 0.5], sigma=1.2, constant=True, init_dist=pm.Normal.dist(0, 1.5), steps=3
        ),
    ),
    "ZeroSumNormal": (
        lambda n: pm.ZeroSumNormal(n, sigma=2, shape=3),
        lambda n: pm.ZeroSumNormal(n, sigma=1.5, shape=3),
    ),
    "Truncated": (
        lambda n: pm.Truncated(n, pm.Exponential.dist(0.7), upper=3),
        lambda n: pm.Truncated(n, pm.Exponential.dist(1.0), upper=3),
    ),
}


def bound(make: Callable[[str], Any]) -> tuple[Any, ep.Expectation]:
    with pm.Model() as model:
        make("x")
    return model, ep.from_pymc(model, lambda v: jnp.sum(v["x"]), enumerate=False)


@pytest.mark.parametrize("name", LAWS)
def test_draws_and_densities(name: str, seed: int) -> None:
    """The density is PyMC's, and draws have that density: the mean of q/p over them is 1."""
    (model, wide), (_, narrow) = (bound(make) for make in LAWS[name])
    keys = jax.random.split(jax.random.key(seed), NUM_DRAWS)
    positions = jax.vmap(lambda key: wide.model.draw(key, wide.arrays))(keys)
    values = jax.vmap(lambda u: wide.model.values(u, wide.arrays)["x"])(positions)

    def log_prior(expectation: ep.Expectation) -> np.ndarray:
        model, data = expectation.model, expectation.arrays
        return np.asarray(jax.vmap(lambda x: model.assess({"x": x}, data).log_prior)(values))

    ours = log_prior(wide)
    theirs = pymc_log_density(model, np.asarray(values[:100]))
    np.testing.assert_allclose(ours[:100], theirs, rtol=2e-6, atol=2e-6)
    stats.assert_mean(np.exp(log_prior(narrow) - ours), 1.0)


def pymc_log_density(model: Any, values: np.ndarray) -> np.ndarray:
    """PyMC's own, without a Jacobian, in PyTensor's own backend."""
    from pymc.model.transform.conditioning import remove_value_transforms

    plain = remove_value_transforms(model)
    function = plain.compile_logp(jacobian=False, mode="FAST_COMPILE")
    return np.array([function({"x": value}) for value in values])


@pytest.mark.parametrize("name", ["Gamma", "Dirichlet", "LKJCholeskyCov", "HalfStudentT", "Pareto"])
def test_coordinates_have_their_jacobian(name: str, seed: int) -> None:
    _, expectation = bound(LAWS[name][0])
    model = expectation.model
    position = model.draw(jax.random.key(seed), ())
    values = model.values(position, ())
    again = model.assess(values, ())
    np.testing.assert_allclose(again.position, position, rtol=1e-6, atol=1e-9)
    jacobian = jax.jacfwd(lambda u: jnp.ravel(model.values(u, ())["x"])[: position.size])(position)
    _, log_volume = np.linalg.slogdet(np.asarray(jacobian))
    difference = model.evaluate(position, ()).log_prior - again.log_prior
    np.testing.assert_allclose(difference, log_volume, rtol=1e-6, atol=1e-7)
