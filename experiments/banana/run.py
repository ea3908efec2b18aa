"""The banana (the paper's appendix N): python -m experiments.banana.run."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

import estimand as ep
from experiments import figures
from experiments.figures import ANIS, DEFAULT, MCMC, TABI
from experiments.study import Annealed, Chains, Default, Line, Study
from problems import banana

PAPER = ep.AnIS(schedule=ep.geometric(200), kernel=ep.RandomWalk(scale=1.0))


@functools.cache
def expectation() -> ep.Expectation:
    return ep.expectation(banana.banana)()


def line(arm, full, quick, smoke):
    plans = {"full": full, "quick": quick, "smoke": smoke}
    return Line(arm, expectation, banana.EXPECTATION, plans)


def density(_: str) -> dict:
    """The density on a grid, and where the target is cut."""
    x1, x2 = np.linspace(-15, 15, 91), np.linspace(-15, 10, 76)
    log_gamma = banana.log_gamma(x1[:, None], x2) - banana.LOG_Z2
    values = [[float(f"{v:.3g}") for v in row] for row in np.exp(log_gamma.T)]
    return {"x1": x1.tolist(), "x2": x2.tolist(), "density": values, "cut": -5.0}


def draw(record: dict, folder: Path) -> None:
    figures.error_and_ess(record, folder / "error_and_ess.png")
    figures.error_and_cost(record, folder / "error_and_cost.png")
    found = record["extras"]["density"]
    figure, axes = figures.canvas(2)
    mesh = axes[0].pcolormesh(found["x1"], found["x2"], found["density"], cmap="viridis")
    axes[0].axhline(found["cut"], color="white", linestyle="--", linewidth=1)
    axes[0].text(0, found["cut"] - 0.4, "f = (x₁ − 2)³ below", color="white", ha="center", va="top")
    axes[0].set(xlabel="x₁", ylabel="x₂", title="posterior density")
    axes[0].grid(visible=False)
    figure.colorbar(mesh, ax=axes[0])
    x = figures.paper_cost(record)
    for label in (TABI, ANIS, DEFAULT):
        name = label.split(",")[0]
        figures.curve(axes[1], record, label, x, figures.rse(record, label), label=name)
    axes[1].set(xscale="log", yscale="log", xlabel=figures.COST, ylabel="relative squared error")
    axes[1].set_xlim(left=figures.FIRST_COST)
    axes[1].legend(frameon=False)
    figures.save(figure, folder / "density_and_error.png")


STUDY = Study(
    name="banana",
    title="Banana, a target of both signs",
    lines={
        TABI: line(Annealed(estimator=PAPER, num_parts=3), {30_000: 20}, {3000: 10}, {9: 2}),
        ANIS: line(Annealed(estimator=PAPER, num_parts=1), {30_000: 20}, {3000: 10}, {9: 2}),
        MCMC: line(
            Chains(draws_per_particle=200, kernel=ep.RandomWalk(scale=1.0)),
            {300: 20, 3000: 20, 30_000: 20},
            {300: 10, 3000: 10},
            {},
        ),
        DEFAULT: line(Default(), {100: 20, 1000: 10}, {100: 10}, {}),
    },
    extras={"density": density},
    draw=draw,
)

if __name__ == "__main__":
    STUDY.main()
