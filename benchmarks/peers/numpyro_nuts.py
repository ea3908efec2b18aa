"""NumPyro's NUTS and the average of f over its draws."""

import functools

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS

from benchmarks.peers.protocol import Outcome, Peer

NUM_WARMUP, NUM_CHAINS = 1_000, 4


def prepare(problem):
    targets = jax.jit(jax.vmap(problem.target))

    @functools.cache
    def sampler(size):
        return MCMC(
            NUTS(problem.bound()),
            num_warmup=NUM_WARMUP,
            num_samples=size,
            num_chains=NUM_CHAINS,
            chain_method="vectorized",
            progress_bar=False,
        )

    def run(size, seed):
        mcmc = sampler(size)
        warmup_key, key = jax.random.split(jax.random.key(seed))
        mcmc.warmup(warmup_key, extra_fields=("num_steps",), collect_warmup=True)
        steps = int(mcmc.get_extra_fields()["num_steps"].sum())
        mcmc.run(key, extra_fields=("num_steps",))
        steps += int(mcmc.get_extra_fields()["num_steps"].sum())
        draws = mcmc.get_samples()
        values = targets({name: draws[name] for name in problem.sites})
        return Outcome(float(np.mean(values)), 0, steps)

    return run


PEERS = {
    "numpyro_nuts": Peer(
        title="NumPyro NUTS, 4 vectorised chains, averaged",
        distributions=("numpyro", "jax"),
        counting="num_steps of every draw, 1,000 of warm-up for each chain included; 3 a gradient",
        prepare=prepare,
        sizes=(100, 400),
    )
}
