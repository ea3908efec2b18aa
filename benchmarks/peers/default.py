"""Estimand: the default method as it is, and with a small budget."""

import estimand as ep
from benchmarks.peers.protocol import Outcome, Peer

SMALL = 50_000


def _prepare(problem, method):
    expectation = ep.expectation(problem.model)(*problem.args)

    def run(_, seed):
        result = ep.estimate_expectation(expectation, method, rng_key=seed, throw=False)
        return Outcome(
            float(result.value), result.num_evaluations, result.num_gradients, result.status.name
        )

    return run


def sum_over_branches(problem, seed):
    """Probabilities of the branches of a program, its outputs, and what they cost."""
    program = ep.expectation(problem.model)(*problem.args)
    result = ep.estimate_expectation(program, rng_key=seed, throw=False)
    found = {tuple(branch.values.items()): branch.probability for branch in result.branches}
    shares = [found.get(values, 0.0) for values in problem.probabilities]
    return shares, dict(result.value), result.cost


def _peer(title, method=None):
    return Peer(
        title=title,
        distributions=("estimand", "jax", "numpyro"),
        counting="its own record",
        prepare=lambda problem: _prepare(problem, method),
        sizes=None,
    )


PEERS = {
    "estimand": _peer("the default method, which asks for 1 %"),
    "estimand_small": _peer(
        f"AdaptiveIS with {SMALL:,} evaluations at the most", ep.AdaptiveIS(max_evaluations=SMALL)
    ),
}
