"""What a peer is: a way to estimate a problem's expectation with a size that sets its cost."""

import math
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.peers.problems import Problem

GRADIENT_COST = 3
# Where f is exactly 0, densities of γf have this factor instead, as the paper's radon code does:
# tempering by libraries gives NaN for log f = −inf.
LOG_SMALLEST = math.log(1e-200)


class Outcome(NamedTuple):
    """One run: its estimate, and how many densities and gradients it evaluated."""

    value: float
    num_evaluations: int
    num_gradients: int = 0
    note: str = ""

    @property
    def cost(self):
        return self.num_evaluations + GRADIENT_COST * self.num_gradients


Run = Callable[[int, int], Outcome]


def _always(_):
    return None


class Peer(NamedTuple):
    """How to use one library.

    Args:
        title: what is run, in words.
        distributions: names on PyPI, whose versions are recorded.
        counting: how evaluations are counted.
        prepare: gives run(size, seed) for a problem; what it does counts into the first run.
        sizes: two small sizes whose costs tell what a budget pays for, the first the least; None
            where the peer decides itself.
        refusal: says why a problem is not for this peer; None if it is.
    """

    title: str
    distributions: tuple[str, ...]
    counting: str
    prepare: Callable[[Problem], Run]
    sizes: tuple[int, int] | None
    refusal: Callable[[Problem], str | None] = _always


def ratio(problem, evidence):
    """E from log evidences: evidence(None) of γ, evidence(±1) of γ·max(±f, 0)."""
    log_z2 = evidence(None)
    return sum(sign * _exp(evidence(sign) - log_z2) for sign in problem.signs)


def average_and_ratio(sampler_of):
    """The two ways to use a sampler that gives log Z, the average of f, and its evaluations.

    `sampler_of(problem, sign)` prepares one for γ (sign None) or γ·max(±f, 0), with a method
    run(size, seed). The first way averages f over γ; the second has a run for each evidence.
    """

    def average(problem):
        sampler = sampler_of(problem, None)

        def run(size, seed):
            _, value, *spent = sampler.run(size, seed)
            return Outcome(value, *spent)

        return run

    def ratio_of_runs(problem):
        samplers = {sign: sampler_of(problem, sign) for sign in (None, *problem.signs)}

        def run(size, seed):
            spent = []

            def evidence(sign):
                log_z, _, *used = samplers[sign].run(size, 10 * seed + (sign or 0) + 1)
                spent.append(used)
                return log_z

            return Outcome(ratio(problem, evidence), *map(sum, zip(*spent, strict=True)))

        return run

    return average, ratio_of_runs


def _exp(value):
    return math.exp(value) if value < 700 else math.inf


def log_mean_exp(values):
    top = max(values)
    if not math.isfinite(top):
        return top
    return top + math.log(sum(math.exp(value - top) for value in values) / len(values))
