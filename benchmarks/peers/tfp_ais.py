"""TensorFlow Probability's annealed importance sampling on its JAX substrate, for γf and γ.

Temperatures and moves as in the example of its documentation: 1,000 linear steps of HMC with step
size 0.2 and two leapfrog steps.
"""

import functools

import jax
import numpy as np
import tensorflow_probability.substrates.jax as tfp

from benchmarks.peers.density import Density
from benchmarks.peers.protocol import Outcome, Peer, log_mean_exp, ratio

NUM_TEMPERATURES, STEP_SIZE, NUM_LEAPFROG = 1_000, 0.2, 2


def _kernel(log_density):
    return tfp.mcmc.HamiltonianMonteCarlo(
        target_log_prob_fn=log_density, step_size=STEP_SIZE, num_leapfrog_steps=NUM_LEAPFROG
    )


def prepare(problem):
    density = Density(problem)

    @functools.partial(jax.jit, static_argnums=(1, 2))
    def weights(rng_key, size, sign):
        draw_key, key = jax.random.split(rng_key)

        def log_joint(position):
            return density.log_prior(position) + density.log_likelihood(position, sign)

        _, log_weights, _ = tfp.mcmc.sample_annealed_importance_chain(
            num_steps=NUM_TEMPERATURES,
            proposal_log_prob_fn=jax.vmap(density.log_prior),
            target_log_prob_fn=jax.vmap(log_joint),
            current_state=density.draws(draw_key, size),
            make_kernel_fn=_kernel,
            seed=key,
        )
        return log_weights

    def run(size, seed):
        def evidence(sign):
            key = jax.random.fold_in(jax.random.key(seed), (sign or 0) + 1)
            return log_mean_exp(np.asarray(weights(key, size, sign)).tolist())

        runs = size * NUM_TEMPERATURES * (1 + len(problem.signs))
        return Outcome(ratio(problem, evidence), runs, NUM_LEAPFROG * runs)

    return run


PEERS = {
    "tfp_ais": Peer(
        title="TensorFlow Probability AIS, runs on γf and γ",
        distributions=("tfp-nightly", "jax", "numpyro"),
        counting="chains × temperatures × (2 leapfrog steps and a weight); 3 a gradient",
        prepare=prepare,
        sizes=(2, 8),
    )
}
