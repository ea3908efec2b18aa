"""Rare-event methods of OpenTURNS, which are given the limit state and a normal prior."""

import numpy as np
import openturns as ot

from benchmarks.peers.protocol import Outcome, Peer

BLOCK = 100


def _prepare(problem, algorithm):
    function = ot.PythonFunction(
        2, 1, func_sample=lambda x: problem.margin(np.asarray(x))[:, None].tolist()
    )

    def run(size, seed):
        ot.RandomGenerator.SetSeed(seed)
        counted = ot.MemoizeFunction(function)
        counted.disableCache()
        before = counted.getEvaluationCallsNumber()
        normal = ot.RandomVector(ot.Normal(2))
        event = ot.ThresholdEvent(ot.CompositeRandomVector(counted, normal), ot.Greater(), 0.0)
        method = algorithm(event, size)
        method.run()
        used = counted.getEvaluationCallsNumber() - before
        return Outcome(method.getResult().getProbabilityEstimate(), int(used))

    return run


def _subset(event, size):
    """`size` blocks of 100 for each level."""
    method = ot.SubsetSampling(event)
    method.setBlockSize(BLOCK)
    method.setMaximumOuterSampling(size)
    return method


def _directional(event, size):
    """`size` orthogonal pairs of directions, a root search along each."""
    method = ot.DirectionalSampling(event)
    method.setRootStrategy(ot.SafeAndSlow())
    method.setSamplingStrategy(ot.OrthogonalDirection())
    method.setBlockSize(1)
    method.setMaximumOuterSampling(size)
    method.setMaximumCoefficientOfVariation(0.0)
    return method


def _refusal(problem):
    return None if problem.margin else "only for events without data"


def _peer(title, algorithm):
    return Peer(
        title=title,
        distributions=("openturns",),
        counting="calls of the limit state",
        prepare=lambda problem: _prepare(problem, algorithm),
        sizes=(10, 40),
        refusal=_refusal,
    )


PEERS = {
    "openturns_subset": _peer("OpenTURNS subset simulation", _subset),
    "openturns_directional": _peer("OpenTURNS directional sampling", _directional),
}
