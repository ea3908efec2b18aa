"""Radon (the paper's 5.3, its ESS figure and table 1): python -m experiments.radon.run."""

from __future__ import annotations

import functools

import estimand as ep
from experiments import figures
from experiments.figures import ANIS, DEFAULT, MCMC, TABI
from experiments.study import Annealed, Chains, Default, Line, Study
from problems.radon import EXPECTATION, load, radon

PAPER = ep.AnIS(schedule=ep.geometric(200), kernel=ep.NUTS(step_size=0.044))


@functools.cache
def expectation() -> ep.Expectation:
    return ep.expectation(radon)(*load())


def line(arm, full, quick, smoke, at_once=1):
    plans = {"full": full, "quick": quick, "smoke": smoke}
    return Line(arm, expectation, EXPECTATION, plans, at_once)


def annealed(num_parts, full):
    arm = Annealed(estimator=PAPER, num_parts=num_parts)
    return line(arm, full, {100: 3}, {2: 1}, 3)


STUDY = Study(
    name="radon",
    title="Radon, all counties below the limit",
    lines={
        TABI: annealed(2, {10_000: 5}),
        ANIS: annealed(1, {1000: 10, 10_000: 1}),
        MCMC: line(Chains(draws_per_particle=200), {1000: 5, 10_000: 1}, {50: 3}, {}, 10),
        DEFAULT: line(Default(), {100: 5, 1000: 5}, {100: 3}, {}),
    },
    draw=figures.standard,
)

if __name__ == "__main__":
    STUDY.main()
