"""Draws that a user brings along: the mixture is fitted to them, too, and trusts nobody."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal

import estimand as ep
from tests.stats import assert_estimate

WIDTH = 1e-4


def with_needle(width):
    """Half of the mass in a needle that no exploration from the prior comes upon."""
    x = numpyro.sample("x", dist.Normal(0.0, 3.0).expand([4]).to_event(1))
    wide = dist.Normal(-1.0, 1.0).log_prob(x).sum()
    narrow = dist.Normal(1.0, width).log_prob(x).sum()
    prior = dist.Normal(0.0, 3.0).log_prob(x).sum()
    numpyro.factor("modes", jnp.logaddexp(wide, narrow) - prior)
    return (jnp.abs(x - 1.0).max() < 0.1) * 1.0


NEEDLE = ep.expectation(with_needle)(WIDTH)


def test_a_needle_that_draws_know_of_is_weighed() -> None:
    around = dist.Normal(1.0, 2 * WIDTH).expand([4]).to_event(1)
    draws = {"x": around.sample(jax.random.key(0), (1, 2000))}
    result = ep.estimate_expectation(NEEDLE, ep.Auto(draws=draws))
    side = dist.Normal(-1.0, 1.0)
    chance = float(side.cdf(1.1) - side.cdf(0.9)) ** 4
    assert_estimate(result.value, result.standard_error, 0.5 * (1.0 + chance))


def gaussian(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x, 0.5), obs=y)
    return (x[0] > 3.0) * 1.0


DATA = jnp.array([1.0, -0.5])
BOUND = ep.expectation(gaussian)(DATA)
TRUTH = float(1 - dist.Normal(0.8, jnp.sqrt(0.2)).cdf(3.0))


def test_a_guide() -> None:
    guide = AutoMultivariateNormal(gaussian)
    svi = SVI(gaussian, guide, numpyro.optim.Adam(0.05), Trace_ELBO())
    fitted = svi.run(jax.random.key(0), 200, DATA, progress_bar=False)
    with jax.numpy_rank_promotion("allow"):
        draws = guide.sample_posterior(jax.random.key(1), fitted.params, sample_shape=(1, 1000))
    result = ep.estimate_expectation(BOUND, ep.Auto(draws=draws))
    assert_estimate(result.value, result.standard_error, TRUTH)


def test_draws_from_nowhere_do_no_harm() -> None:
    draws = {"x": np.full((2, 500, 2), 40.0) + np.random.default_rng(0).random((2, 500, 2))}
    result = ep.estimate_expectation(BOUND, ep.AdaptiveIS(draws=draws))
    assert result.status is ep.Status.ok
    assert_estimate(result.value, result.standard_error, TRUTH)


@pytest.mark.parametrize("method", [ep.Auto, ep.AdaptiveIS])
def test_draws_without_a_site_are_refused(method) -> None:
    with pytest.raises(ep.ProgramError, match="no entry for site 'x'"):
        ep.estimate_expectation(BOUND, method(draws={"z": np.zeros((1, 5, 2))}))
    with pytest.raises(ep.ProgramError, match="chains, draws"):
        ep.estimate_expectation(BOUND, method(draws={"x": np.zeros((5, 2))}))


def test_draws_are_shown_by_their_shapes() -> None:
    method = ep.Auto(draws={"x": np.zeros((1, 500, 2))})
    assert repr(method) == "Auto(draws={'x': array of shape (1, 500, 2)})"
