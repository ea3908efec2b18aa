"""Bridge sampling: known evidences, errors of the right size, draws that one already has."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS
from stats import assert_coverage
from truths import PROBLEMS

import estimand as ep
from estimand.sampling.bridging import meng_wong


def bound(name: str) -> ep.Expectation:
    problem = PROBLEMS[name]
    return ep.expectation(problem.model)(*problem.args)


@pytest.mark.parametrize("name", ["half_line", pytest.param("simplex", marks=pytest.mark.slow)])
def test_evidence_of_every_part(name: str) -> None:
    problem = PROBLEMS[name]
    sampler = ep.BridgeSampling(num_samples=1000, num_warmup=500)
    result = ep.estimate_expectation(bound(name), ep.TABI(sampler), throw=False)
    truths = {
        "Z1_plus": problem.log_z1_plus,
        "Z1_minus": problem.log_z1_minus,
        "Z2": problem.log_z2,
    }
    for part, item in zip(("Z2", "Z1_plus", "Z1_minus"), result.evidence, strict=True):
        truth = truths[part]
        assert isinstance(truth, float)
        evidence = item[1]
        assert abs(float(evidence.log_z) - truth) < 5 * evidence.standard_error < 0.25
        assert evidence.num_gradients > 4 * 1500


def test_high_dimension() -> None:
    """A linear-Gaussian hierarchy in 101 dimensions, whose evidence is known."""
    y = np.linspace(-2.0, 2.0, 100)

    def model(y: Any) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("groups", 100):
            x = numpyro.sample("x", dist.Normal(mean, 0.5))
            numpyro.sample("y", dist.Normal(x, 1.0), obs=y)

    covariance = 1.25 * np.eye(100) + np.ones((100, 100))
    law = dist.MultivariateNormal(jnp.zeros(100), covariance)
    truth = float(law.log_prob(y))
    evidence = ep.log_evidence(
        model, ep.BridgeSampling(num_samples=1000, num_warmup=500), model_args=(y,)
    )
    assert abs(float(evidence.log_z) - truth) < 5 * evidence.standard_error < 0.5
    assert evidence.status is ep.Status.ok


def test_draws_that_one_already_has(rng_key: jax.Array) -> None:
    problem = PROBLEMS["dependent"]
    mcmc = MCMC(
        NUTS(problem.model),
        num_warmup=500,
        num_samples=1000,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(rng_key, *problem.args)
    sampler = ep.BridgeSampling(draws=mcmc.get_samples(group_by_chain=True))
    evidence = ep.log_evidence(bound("dependent"), sampler)
    assert abs(float(evidence.log_z) - problem.log_z2) < 5 * evidence.standard_error < 0.5
    assert evidence.num_gradients == 0
    with pytest.raises(ep.ProgramError, match="cannot serve another part"):
        ep.estimate_expectation(bound("dependent"), ep.TABI(sampler))
    flat = ep.BridgeSampling(draws=mcmc.get_samples())
    with pytest.raises(ep.ProgramError, match="group_by_chain"):
        ep.log_evidence(bound("dependent"), flat)
    partial = ep.BridgeSampling(draws={"a": mcmc.get_samples(group_by_chain=True)["a"]})
    with pytest.raises(ep.ProgramError, match="no entry for site 'b'"):
        ep.log_evidence(bound("dependent"), partial)


def test_reported_error_covers(seed: int) -> None:
    """Meng and Wong's estimator on independent and on autocorrelated draws of a skewed law."""
    rng = np.random.default_rng(seed)
    for correlation in (0.0, 0.9):
        lows, highs = [], []
        for _ in range(400):
            noise = rng.normal(size=(4, 500))
            states = np.empty_like(noise)
            states[:, 0] = noise[:, 0]
            for t in range(1, 500):
                kept = correlation * states[:, t - 1]
                states[:, t] = kept + np.sqrt(1 - correlation**2) * noise[:, t]
            drawn = 1.3 * states + 0.2
            normal = rng.normal(size=2000)

            def log_ratio(x: np.ndarray) -> np.ndarray:
                return -0.5 * ((x - 0.2) / 1.3) ** 2 - np.log(1.3) + 0.5 * x**2 + 3.0

            log_z, variance = meng_wong(log_ratio(drawn), log_ratio(normal))
            reach = 1.96 * np.sqrt(variance)
            lows.append(log_z - reach)
            highs.append(log_z + reach)
        assert_coverage(lows, highs, 3.0, at_least=0.92)


def test_chains_that_disagree_are_not_ok(rng_key: jax.Array) -> None:
    draws = {"x": jnp.stack([jnp.zeros(500), jnp.full(500, 3.0)])}
    draws["x"] += 0.1 * jax.random.normal(rng_key, (2, 500))
    evidence = ep.log_evidence(bound("figure1"), ep.BridgeSampling(draws=draws))
    assert not evidence.status


def test_refusals() -> None:
    with pytest.raises(ValueError, match="at least 100"):
        ep.BridgeSampling(num_samples=10)
    with pytest.raises(ep.ProgramError, match="'m'"):
        ep.log_evidence(bound("branching"), ep.BridgeSampling())


def test_a_part_without_mass_is_said_to_have_none() -> None:
    sampler = ep.BridgeSampling(num_samples=200, num_warmup=200)
    density = ep.Density.of(bound("posterior_predictive_2d")).part("gamma1_minus")
    evidence = sampler.estimate(jax.random.key(0), density)
    assert evidence.status is ep.Status.no_mass_found


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_chain_that_stands_still() -> None:
    """Draws of N(0, 1), one chain of which did not move; the truth is log Z = 1."""
    rng = np.random.default_rng(0)
    log_drawn = 1.0 + 0.1 * rng.standard_normal((10, 64))
    log_drawn[3] = log_drawn[3, 0]
    log_normal = 1.0 + 0.1 * rng.standard_normal(640)
    log_z, variance = meng_wong(log_drawn, log_normal)
    assert abs(log_z - 1.0) < 0.05
    assert 0 < variance < 0.05
