"""BlackJAX's adaptive tempered SMC: averaged, and as the ratio of runs on γ and γf.

Moves are tuned from the particles (`inner_kernel_tuning`): a random walk with their covariance up
to four dimensions, HMC with their variances as inverse mass matrix above.
"""

import functools

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.smc import extend_params, resampling
from blackjax.smc.tuning.from_particles import (
    inverse_mass_matrix_from_particles,
    particles_covariance_matrix,
)

from benchmarks.peers.density import Density
from benchmarks.peers.protocol import Peer, average_and_ratio

TARGET_ESS = 0.5
MAX_WALK_DIMENSION, NUM_WALKS = 4, 10
NUM_HMC, NUM_LEAPFROG = 2, 10
MAX_STAGES = 300


def _walk(rng_key, state, logdensity_fn, covariance):
    factor = jnp.linalg.cholesky(covariance)

    def propose(key, position):
        return position + factor @ jax.random.normal(key, position.shape)

    # additive_step_random_walk compiles a kernel for each proposal; rmh takes it as a parameter.
    return blackjax.rmh.build_kernel()(rng_key, state, logdensity_fn, propose)


class Sampler:
    """Tempered SMC of one density, prior times exp of a log-likelihood."""

    def __init__(self, density, sign):
        self.density = density
        self.is_walk = density.dimension <= MAX_WALK_DIMENSION
        self.num_moves = NUM_WALKS if self.is_walk else NUM_HMC
        algorithm = blackjax.inner_kernel_tuning(
            smc_algorithm=blackjax.adaptive_tempered_smc,
            logprior_fn=density.log_prior,
            loglikelihood_fn=functools.partial(density.log_likelihood, sign=sign),
            mcmc_step_fn=_walk if self.is_walk else blackjax.hmc.build_kernel(),
            mcmc_init_fn=blackjax.rmh.init if self.is_walk else blackjax.hmc.init,
            resampling_fn=resampling.systematic,
            mcmc_parameter_update_fn=lambda _, state, __: self._tuned(state.particles),
            initial_parameter_value=self._tuned(density.draws(jax.random.key(0), 1_000)),
            num_mcmc_steps=self.num_moves,
            target_ess=TARGET_ESS,
        )
        self._init, self._step = algorithm.init, jax.jit(algorithm.step)
        self._targets = jax.jit(jax.vmap(density.target))

    def _tuned(self, particles):
        dimension = self.density.dimension
        if self.is_walk:
            jitter = 1e-9 * jnp.eye(dimension)
            covariance = 2.38**2 / dimension * particles_covariance_matrix(particles) + jitter
            return extend_params({"covariance": covariance})
        return extend_params(
            {
                "inverse_mass_matrix": inverse_mass_matrix_from_particles(particles),
                "step_size": 0.5 * dimension**-0.25,
                "num_integration_steps": NUM_LEAPFROG,
            }
        )

    def run(self, size, seed):
        """The log evidence, the average of f, and the evaluations and gradients."""
        draw_key, key = jax.random.split(jax.random.key(seed))
        state = self._init(self.density.draws(draw_key, size))
        log_z, stages = 0.0, 0
        while state.sampler_state.tempering_param < 1:
            key, step_key = jax.random.split(key)
            state, info = self._step(step_key, state)
            log_z += float(info.log_likelihood_increment)
            stages += 1
            if stages == MAX_STAGES or not np.isfinite(log_z):
                return np.nan, np.nan, *self._spent(size, stages)
        final = state.sampler_state
        value = float(jnp.sum(final.weights * self._targets(final.particles)))
        return log_z, value, *self._spent(size, stages)

    def _spent(self, size, stages):
        """A stage starts each chain, moves it, and takes likelihoods for its step and weights."""
        if self.is_walk:
            return size * stages * (1 + self.num_moves + 2), 0
        return size * stages * 2, size * stages * (1 + self.num_moves * NUM_LEAPFROG)


average, ratio_of_runs = average_and_ratio(lambda problem, sign: Sampler(Density(problem), sign))


def _peer(title, prepare):
    return Peer(
        title=title,
        distributions=("blackjax", "jax", "numpyro"),
        counting="particles × temperatures × (start, moves, step and weights); 3 a gradient",
        prepare=prepare,
        sizes=(50, 200),
    )


PEERS = {
    "blackjax_smc": _peer("BlackJAX adaptive tempered SMC, averaged", average),
    "blackjax_smc_ratio": _peer("BlackJAX adaptive tempered SMC, runs on γf and γ", ratio_of_runs),
}
