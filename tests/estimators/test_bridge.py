"""Bridge sampling: known evidences, errors of the right size, existing draws."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import estimand as ep
from problems import PROBLEMS


def bound(name: str) -> ep.Expectation:
    problem = PROBLEMS[name]
    return ep.expectation(problem.model)(*problem.args)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["half_line", "simplex"])
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_existing_draws(rng_key: jax.Array) -> None:
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


def test_chains_that_disagree_are_not_ok(rng_key: jax.Array) -> None:
    draws = {"x": jnp.stack([jnp.zeros(500), jnp.full(500, 3.0)])}
    draws["x"] += 0.1 * jax.random.normal(rng_key, (2, 500))
    evidence = ep.log_evidence(bound("figure1"), ep.BridgeSampling(draws=draws))
    assert not evidence.status


def test_refusals() -> None:
    with pytest.raises(ValueError, match="at least 100"):
        ep.BridgeSampling(num_samples=10)
    problem = PROBLEMS["branching"]
    drawn = ep.expectation(problem.model, enumerate=False)(*problem.args)
    with pytest.raises(ep.ProgramError, match="'m'"):
        ep.log_evidence(drawn, ep.BridgeSampling())


def test_a_part_without_mass_is_reported() -> None:
    sampler = ep.BridgeSampling(num_samples=200, num_warmup=200)
    density = ep.Density.of(bound("posterior_predictive_2d")).part("gamma1_minus")
    evidence = sampler.estimate(jax.random.key(0), density)
    assert evidence.status is ep.Status.no_mass_found
