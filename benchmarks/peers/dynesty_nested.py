"""Nested sampling by dynesty: averaged, and as the ratio of the evidences of γf and γ."""

import dynesty
import jax
import numpy as np

from benchmarks.peers.density import Density
from benchmarks.peers.protocol import Peer, average_and_ratio


class Sampler:
    """Static nested sampling of one density with dynesty's default bounds and moves."""

    def __init__(self, density, sign):
        self.dimension = density.dimension
        values = jax.jit(lambda cube: density.terms(density.from_cube(cube), sign)[0])
        self._log_likelihood = lambda cube: float(values(cube))
        self._targets = jax.jit(
            jax.vmap(lambda cube: density.problem.target(density.terms(density.from_cube(cube))[1]))
        )

    def run(self, size, seed):
        """The log evidence, the average of f, and the calls of the likelihood."""
        sampler = dynesty.NestedSampler(
            self._log_likelihood,
            _same,
            self.dimension,
            nlive=size,
            rstate=np.random.default_rng(seed),
        )
        sampler.run_nested(print_progress=False)
        found = sampler.results
        values = np.asarray(self._targets(found.samples_u))
        average = float(np.sum(found.importance_weights() * values))
        return float(found.logz[-1]), average, int(np.sum(found.ncall))


def _same(cube):
    return cube


average, ratio_of_runs = average_and_ratio(lambda problem, sign: Sampler(Density(problem), sign))


def _peer(title, prepare):
    return Peer(
        title=title,
        distributions=("dynesty", "jax", "numpyro"),
        counting="dynesty's ncall",
        prepare=prepare,
        sizes=(50, 100),
    )


PEERS = {
    "dynesty": _peer("dynesty, weighted average", average),
    "dynesty_ratio": _peer("dynesty, evidences of γf and γ", ratio_of_runs),
}
