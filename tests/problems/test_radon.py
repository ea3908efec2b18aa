"""The radon model against its truth, and the truth against the published figures."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy import integrate, special

from problems import PROBLEMS
from problems.radon import (
    CODE,
    CODE_SD,
    COUNTIES,
    PAPER,
    Counties,
    Reading,
    Target,
    load,
    log_integral,
    log_integrand,
    radon,
)

PUBLISHED = {
    "code": (False, CODE, Target.smooth, -224.041613331, -241.157314930, 3.68761219e-8),
    "code, sd": (False, CODE_SD, Target.smooth, -224.478550071, -241.659422700, 3.45495045e-8),
    "paper": (False, PAPER, Target.smooth, -224.477965986, -241.536490808, 3.90460225e-8),
    "step": (False, CODE, Target.step, -224.041613331, -239.896109021, 1.30160740e-7),
    "noisy step": (False, CODE, Target.noisy_step, -224.041613331, -241.490309903, 2.64318379e-8),
    "all": (True, CODE, Target.smooth, -1074.426298004, -1114.626031307, 3.47918605e-18),
}


def test_the_data() -> None:
    data, everything = load(), load(None)
    rows = [3, 4, 5, 5, 3, 7, 8, 9, 13, 2, 13, 8, 4, 4, 25, 5, 46, 3, 13, 2]
    assert np.bincount(data.county).tolist() == rows
    assert len(everything.county) == 919
    assert everything.county.max() == 84
    assert set(everything.floor) == {0.0, 1.0}
    with pytest.raises(ValueError, match="ATLANTIS"):
        load([*COUNTIES, "ATLANTIS"])


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_figures(name: str) -> None:
    is_all, reading, target, log_z2, log_z1, value = PUBLISHED[name]
    data = load(None) if is_all else load()
    found = [log_integral(data, t, reading, step=0.6, reach=7.5) for t in (Target.one, target)]
    np.testing.assert_allclose(found, [log_z2, log_z1], rtol=0, atol=1e-8)
    np.testing.assert_allclose(math.exp(found[1] - found[0]), value, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["radon", "radon_step", "radon_85"])
def test_a_finer_grid_changes_nothing(name: str) -> None:
    problem = PROBLEMS[name]
    data = load(None) if name == "radon_85" else load()
    targets = Target.one, Target.step if name == "radon_step" else Target.smooth
    found = [log_integral(data, target, step=0.4, reach=9.0) for target in targets]
    np.testing.assert_allclose(found, [problem.log_z2, problem.log_z1_plus], rtol=0, atol=2e-9)


@pytest.mark.parametrize("reading", [CODE, PAPER])
def test_integrand_is_that_of_the_model(reading: Reading) -> None:
    """Given the outer parameters, intercepts and slopes are Gaussian: Laplace's formula is exact.

    The target is then averaged over the intercepts' own marginals, by adaptive quadrature.
    """
    data, num = load(), len(COUNTIES)

    def log_gamma(effects: jax.Array, outer: jax.Array) -> jax.Array:
        sites = {
            "mu_alpha": outer[0],
            "mu_beta": outer[1],
            "epsilon": jnp.exp(outer[2]),
            "alpha": effects[:num],
            "beta": effects[num:],
        }
        return log_density(radon, tuple(data), {"reading": reading}, sites)[0] + outer[2]

    def factor(mean: float, sd: float) -> float:
        def integrand(z: float) -> float:
            logistic = special.expit(-5 * (math.exp(mean + sd * z) - 4))
            return math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * float(logistic)

        return integrate.quad(integrand, -9, 9, epsabs=0, epsrel=1e-11, limit=200)[0]

    derivatives = jax.jit(lambda *x: (jax.grad(log_gamma)(*x), jax.hessian(log_gamma)(*x)))
    for outer in np.array([[1.3, -0.6, -0.4], [0.9, -0.2, 0.3]]):
        gradient, hessian = map(np.asarray, derivatives(np.zeros(2 * num), outer))
        covariance = np.linalg.inv(-hessian)
        mean, sd = covariance @ gradient, np.sqrt(np.diagonal(covariance))
        log_z2 = float(log_gamma(mean, outer)) - np.linalg.slogdet(-hessian / (2 * math.pi))[1] / 2
        log_f = sum(math.log(factor(*pair)) for pair in zip(mean[:num], sd[:num], strict=True))
        found = [
            float(log_integrand(Counties.of(data), reading, target, outer[None])[0])
            for target in (Target.one, Target.smooth)
        ]
        np.testing.assert_allclose(found, [log_z2, log_z2 + log_f], rtol=0, atol=1e-8)


def test_targets() -> None:
    def target(alpha: float, **options: Any) -> float:
        effects = {"alpha": jnp.full(20, alpha), "beta": jnp.zeros(20)}
        means = {"mu_alpha": 1.0, "mu_beta": 0.0, "epsilon": 1.0}
        with handlers.seed(rng_seed=0), handlers.substitute(data=effects | means):
            return float(radon(*load(), **options))

    np.testing.assert_allclose(target(1.5), special.expit(-5 * (math.exp(1.5) - 4)) ** 20)
    assert target(math.log(3.99), step=True) == 1.0
    assert target(math.log(4.01), step=True) == 0.0
    assert target(3.0) == 0.0
    assert target(3.0, smallest=1e-200) == 1e-200
