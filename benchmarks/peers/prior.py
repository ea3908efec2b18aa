"""Importance sampling from the prior: weights are likelihoods, nothing is tuned."""

import functools

import jax
import jax.numpy as jnp

from benchmarks.peers.density import Density
from benchmarks.peers.protocol import Outcome, Peer

BATCH = 10_000


def prepare(problem):
    density = Density(problem)

    def one(key):
        log_likelihood, sites = density.terms(density.constrain(density.draw(key)))
        sign, log_magnitude = problem.log_target(sites)
        return log_likelihood, sign, log_likelihood + log_magnitude

    @functools.partial(jax.jit, static_argnums=1)
    def estimate(rng_key, size):
        keys = jax.random.split(rng_key, size)
        log_weights, signs, log_products = jax.lax.map(one, keys, batch_size=BATCH)
        top = jnp.max(log_weights)
        top_product = jnp.max(log_products)
        signed = jnp.sum(signs * jnp.exp(log_products - top_product))
        weight = jnp.sum(jnp.exp(log_weights - top))
        found = signed / weight * jnp.exp(top_product - top)
        return jnp.where(jnp.isfinite(top_product), found, 0.0)

    def run(size, seed):
        return Outcome(float(estimate(jax.random.key(seed), size)), size)

    return run


PEERS = {
    "prior": Peer(
        title="importance sampling from the prior",
        distributions=("jax", "numpyro"),
        counting="one evaluation for each draw",
        prepare=prepare,
        sizes=(1_000, 10_000),
    )
}
