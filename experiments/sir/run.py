"""The epidemic of the paper's 5.2 and appendices: python -m experiments.sir.run."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
from numpyro import infer

import estimand as ep
from experiments import figures
from experiments.figures import ANIS, DEFAULT, MCMC, TABI
from experiments.study import Annealed, Chains, Default, Line, Study
from problems.sir import DATA, EXPECTATION, sir

# The kernel moves in the model's own coordinates, as in the authors' code: prior draws beyond the
# bounds are drawn again.
PAPER = ep.AnIS(
    schedule=ep.geometric(100),
    num_steps=10,
    kernel=ep.HMC(step_size=0.05, num_leapfrog=10),
    redraw=True,
)


@functools.cache
def in_own_coordinates() -> ep.Expectation:
    return ep.expectation(sir)(DATA, is_bounded=False)


@functools.cache
def expectation() -> ep.Expectation:
    return ep.expectation(sir)(DATA)


def line(arm, full, quick, smoke, at_once=1, program=expectation):
    plans = {"full": full, "quick": quick, "smoke": smoke}
    return Line(arm, program, EXPECTATION, plans, at_once)


def annealed(num_parts):
    arm = Annealed(estimator=PAPER, num_parts=num_parts)
    return line(arm, {10_000: 10}, {200: 5}, {4: 1}, 5, in_own_coordinates)


def samples(mode: str) -> dict:
    """(β, i₀) of particles and draws: where each method looks."""
    num = {"full": 200, "quick": 100, "smoke": 4}[mode]
    estimator = dataclasses.replace(PAPER, num_samples=num)
    result = ep.estimate_expectation(in_own_coordinates(), ep.TABI(estimator), throw=False)
    found = {}
    for name, evidence in result.evidence:
        sites = jax.vmap(result.density.constrain)(evidence.positions)
        found[name] = _pairs(sites["beta"], sites["i0"])
    mcmc = infer.MCMC(
        infer.NUTS(expectation().gamma2),
        num_warmup=5 * num,
        num_samples=num,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.warmup(jax.random.key(0), collect_warmup=True)
    burn_in = mcmc.get_samples()
    mcmc.run(mcmc.post_warmup_state.rng_key)
    draws = mcmc.get_samples()
    found["burn_in"] = _pairs(burn_in["beta"], burn_in["i0"])
    found["mcmc"] = _pairs(draws["beta"], draws["i0"])
    return found


def _pairs(beta: jax.Array, i0: jax.Array, most: int = 1000) -> list[list[float]]:
    pairs = np.column_stack([beta, i0])[:: max(1, len(beta) // most)]
    return [[round(float(b), 4), round(float(i), 3)] for b, i in pairs]


def draw(record: dict, folder: Path) -> None:
    figures.standard(record, folder)
    found = record["extras"]["samples"]
    panels = {
        "MCMC": [("mcmc", figures.COLOURS[MCMC])],
        "MCMC with burn-in (black)": [("burn_in", "black"), ("mcmc", figures.COLOURS[MCMC])],
        "AnIS: particles for Z2": [("gamma2", figures.COLOURS[ANIS])],
        "TABI + AnIS: particles for Z1": [("gamma1_plus", figures.COLOURS[TABI])],
    }
    figure, axes = figures.canvas(4, 3.2)
    for ax, (title, layers) in zip(axes, panels.items(), strict=True):
        for name, colour in layers:
            ax.scatter(*zip(*found[name], strict=True), s=7, alpha=0.4, color=colour, linewidth=0)
        ax.set(title=title, xlabel="β", ylabel="I₀ / 10", xlim=(0, 2.3), ylim=(0, 60))
    figures.save(figure, folder / "samples.png")


STUDY = Study(
    name="sir",
    title="SIR epidemic, expected cost",
    lines={
        TABI: annealed(2),
        ANIS: annealed(1),
        MCMC: line(Chains(draws_per_particle=100), {100: 10, 1000: 5}, {100: 5}, {}, 10),
        DEFAULT: line(Default(), {100: 5}, {100: 5}, {}),
    },
    extras={"samples": samples},
    draw=draw,
)

if __name__ == "__main__":
    STUDY.main()
