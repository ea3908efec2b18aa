"""PyMC's NUTS and SMC, and nutpie on the same models.

Chains run one after another in one process: JAX, which SIR needs, does not survive a fork.
"""

import logging

import jax
import numpy as np
import pymc as pm

from benchmarks.peers.protocol import Outcome, Peer, log_mean_exp, ratio
from benchmarks.peers.pymc_models import build

NUM_WARMUP, NUM_CHAINS, NUM_SMC_CHAINS = 1_000, 4, 2

logging.getLogger("pymc").setLevel(logging.ERROR)


def _averaged(problem):
    targets = jax.jit(jax.vmap(problem.target))

    def average(posterior):
        draws = {name: posterior[name].values for name in problem.sites}
        flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in draws.items()}
        return float(np.mean(targets(flat)))

    return average


def nuts(problem):
    model, average = build(problem), _averaged(problem)

    def run(size, seed):
        with model:
            trace = pm.sample(
                draws=size,
                tune=NUM_WARMUP,
                chains=NUM_CHAINS,
                cores=1,
                random_seed=seed,
                progressbar=False,
                compute_convergence_checks=False,
                discard_tuned_samples=False,
            )
        return Outcome(average(trace.posterior), 0, _steps(trace))

    return run


def _steps(trace):
    groups = trace.sample_stats, trace.warmup_sample_stats
    return int(sum(group["n_steps"].values.sum() for group in groups))


class CountedIMH(pm.smc.IMH):
    """The default kernel of `sample_smc`, which does not say how many moves its stages took."""

    total = 0

    def _initialize_kernel(self):
        super()._initialize_kernel()
        CountedIMH.total += self.draws

    def mutate(self):
        super().mutate()
        CountedIMH.total += self.draws * (self.n_steps - 1)


def sampled_by_smc(model, size, seed, chains=NUM_SMC_CHAINS):
    """The log evidence of each chain, the draws, and the evaluations."""
    CountedIMH.total = 0
    with model:
        trace = pm.sample_smc(
            draws=size,
            kernel=CountedIMH,
            chains=chains,
            cores=1,
            random_seed=seed,
            progressbar=False,
            compute_convergence_checks=False,
        )
    by_chain = trace.sample_stats["log_marginal_likelihood"].values
    # Numbers by stage, or in one object where chains have different numbers of stages.
    stages = [np.concatenate([np.ravel(stage) for stage in chain]) for chain in by_chain]
    return [float(chain[-1]) for chain in stages], trace.posterior, CountedIMH.total


def smc(problem):
    model, average = build(problem), _averaged(problem)

    def run(size, seed):
        _, posterior, used = sampled_by_smc(model, size, seed)
        return Outcome(average(posterior), used)

    return run


def smc_ratio(problem):
    models = {sign: build(problem, sign) for sign in (None, *problem.signs)}

    def run(size, seed):
        total = []

        def evidence(sign):
            if not models[sign].observed_RVs + models[sign].potentials:
                return 0.0
            first = 10 * seed + NUM_SMC_CHAINS * ((sign or 0) + 1)
            seeds = [first + chain for chain in range(NUM_SMC_CHAINS)]
            log_evidences, _, used = sampled_by_smc(models[sign], size, seeds)
            total.append(used)
            return log_mean_exp(log_evidences)

        return Outcome(ratio(problem, evidence), sum(total))

    return run


def nutpie_nuts(problem):
    import nutpie

    options = {"backend": "jax", "gradient_backend": "jax"} if problem.name == "sir" else {}
    compiled, average = nutpie.compile_pymc_model(build(problem), **options), _averaged(problem)

    def run(size, seed):
        trace = nutpie.sample(
            compiled,
            draws=size,
            tune=NUM_WARMUP,
            chains=NUM_CHAINS,
            seed=seed,
            progress_bar=False,
            save_warmup=True,
        )
        return Outcome(average(trace.posterior), 0, _steps(trace))

    return run


_NUTS_COUNT = "n_steps of every draw, 1,000 of warm-up for each chain included; 3 a gradient"
_SMC_COUNT = "draws × (1 + moves of each stage)"


def _peer(title, counting, prepare, library="pytensor"):
    return Peer(
        title=title,
        distributions=("pymc", library),
        counting=counting,
        prepare=prepare,
        sizes=(100, 400),
    )


PEERS = {
    "pymc_nuts": _peer("PyMC NUTS, 4 chains, averaged", _NUTS_COUNT, nuts),
    "pymc_smc": _peer("PyMC sample_smc, averaged", _SMC_COUNT, smc),
    "pymc_smc_ratio": _peer("PyMC sample_smc, runs on γf and γ", _SMC_COUNT, smc_ratio),
    "nutpie": _peer("nutpie, 4 chains, averaged", _NUTS_COUNT, nutpie_nuts, "nutpie"),
}
