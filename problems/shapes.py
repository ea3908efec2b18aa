"""Programs of several shapes and sizes, for timing: their answers are not known.

The return value of each is its quantity of interest; `estimand.expectation` makes a program of it.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from problems import sir


def hierarchical_regression(group, x, y, num_groups):
    """Varying intercepts and slopes, as in the radon model: 2·num_groups + 3 dimensions."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    with numpyro.plate("groups", num_groups):
        intercept = numpyro.sample("intercept", dist.Normal(mu[0], 0.12))
        slope = numpyro.sample("slope", dist.Normal(mu[1], 0.22))
    variance = numpyro.sample("variance", dist.HalfCauchy(5.0))
    with numpyro.plate("rows", len(y)):
        mean = intercept[group] + slope[group] * x
        numpyro.sample("y", dist.Normal(mean, jnp.sqrt(variance)), obs=y)
    return jnp.prod(jax.nn.sigmoid(-5.0 * (jnp.exp(intercept) - 4.0)))


def hierarchical_data(num_groups, num_rows=200):
    rng = np.random.default_rng(0)
    group = rng.integers(0, num_groups, num_rows)
    x = rng.integers(0, 2, num_rows).astype(float)
    y = 1.4 - 0.7 * x + 0.12 * rng.normal(size=num_groups)[group] + 0.8 * rng.normal(size=num_rows)
    return group, x, y


def recursion(inputs, y):
    """A damped linear recurrence driven by D weighted inputs, one pass of a scan over the data."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([inputs.shape[1]]).to_event(1))

    def step(state, row):
        state = 0.9 * state + 0.1 * jnp.tanh(row @ weights)
        return state, state

    states = jax.lax.scan(step, jnp.zeros_like(weights[0]), inputs)[1]
    numpyro.sample("y", dist.Normal(states, 0.1).to_event(1), obs=y)
    return jax.nn.sigmoid(10.0 * (states[-1] - 1.0))


def recursion_data(dimension, num_steps=100):
    rng = np.random.default_rng(0)
    return rng.normal(size=(num_steps, dimension)), 0.3 * rng.normal(size=num_steps)


def epidemic(y, dimension):
    """An epidemic of 32 days whose contact rate changes D − 1 times: an ODE with D parameters."""
    prior = dist.Normal(math.log(0.3), 0.2).expand([dimension]).to_event(1)
    log_rates = numpyro.sample("log_rates", prior)
    rates = jnp.exp(log_rates)[np.arange(len(y)) * dimension // len(y)]
    start = (jnp.full_like(rates[0], sir.POPULATION - 100.0), jnp.full_like(rates[0], 100.0))
    mean = jnp.maximum(
        jax.lax.scan(lambda state, beta: sir.day(beta, state), start, rates)[1], 1e-10
    )
    numpyro.sample("y", dist.NegativeBinomial2(mean, 0.5).to_event(1), obs=y)
    return jax.nn.sigmoid(10.0 * (rates[-1] / sir.RECOVERY - 3.0))


def epidemic_data(num_days=32):
    return np.random.default_rng(0).poisson(40.0, num_days)
