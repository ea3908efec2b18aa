"""Draws every picture in docs/images anew: the demo's report in a browser, and each plot.

Run it as ``make pictures``, or as ``python -m docs.pictures`` in the root of the repository. Needs
Chromium for the report.
"""

import re
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from matplotlib.figure import Figure
from numpyro.infer import MCMC, NUTS
from PIL import Image

import estimand as ep
from estimand import plots
from estimand.plots.style import PALETTE
from examples.demo import DATA, METHODS, TAIL_TRUTH, cube, tail
from tests.browser import browser, need_browser

IMAGES = Path(__file__).parent / "images"
PAGE_WIDTH, PHONE_WIDTH = 960, 390


def draw_report(result: ep.Estimate) -> None:
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder) / "profile") as page:
        path = Path(folder) / "report.html"
        result.to_html(path)
        page.send("Emulation.setScrollbarsHidden", hidden=True)
        for name, scheme, width in (
            ("report-light", "light", PAGE_WIDTH),
            ("report-dark", "dark", PAGE_WIDTH),
            ("report-phone", "light", PHONE_WIDTH),
        ):
            page.prefer(scheme)
            page.resize(width, 900)
            page.open(path.as_uri())
            page.screenshot(IMAGES / f"{name}.png")
            if name == "report-light":
                figures = "document.querySelectorAll('figure')[1].getBoundingClientRect().bottom"
                bottom = int(page.evaluate(figures)) + 16
                with Image.open(IMAGES / f"{name}.png") as picture:
                    picture.crop((0, 0, PAGE_WIDTH, bottom)).save(IMAGES / "report.png")


def draw_problem() -> None:
    """The picture of the landing page: where NUTS draws, and where the answer is."""
    options = {"chain_method": "vectorized", "progress_bar": False}
    chains = MCMC(NUTS(tail.model), num_warmup=500, num_samples=1000, num_chains=4, **options)
    chains.run(jax.random.key(0), DATA)
    x = np.asarray(chains.get_samples()["x"])
    assert x.max() < 1
    figure, ax = plt.subplots(layout="constrained", figsize=(7, 2.8))
    grid = np.linspace(-0.9, 1.9, 800)
    density = np.exp(-10.5 * grid**2) * np.sqrt(10.5 / np.pi)
    ax.plot(grid, density, color=PALETTE[6])
    ax.fill_between(grid, density, color=PALETTE[6], alpha=0.2)
    ax.text(0.0, 1.95, "the posterior", ha="center", color=PALETTE[6])
    target = np.where(grid > 1, density / TAIL_TRUTH, 0.0) / 12
    ax.fill_between(grid, target, color=PALETTE[1], alpha=0.35)
    ax.text(1.08, 1.3, "where P(x > 1) comes from\n(enlarged 36,000 times)", color=PALETTE[1])
    ax.plot(x, np.full(x.shape, -0.12), "|", color="black", alpha=0.3, markersize=9)
    ax.text(0.8, -0.12, "4,000 draws of NUTS, none above 1", va="center", color="black")
    ax.set(xlabel="x", ylim=(-0.25, 2.3), yticks=[])
    ax.spines[["top", "left", "right"]].set_visible(False)
    figure.savefig(IMAGES / "problem.png", dpi=128)  # letters that can be read on a phone


def draw_plots(rare: ep.Estimate, annealed: ep.Estimate, others: list[ep.Estimate]) -> None:
    figures = {
        "origin": plots.plot_origin(rare),
        "convergence": plots.plot_convergence(rare, truth=TAIL_TRUTH),
        "weights": plots.plot_weights(rare),
        "temperatures": plots.plot_temperatures(annealed)[0],
        "cost": plots.plot_cost(rare, *others),
    }
    for name, ax in figures.items():
        figure = ax.get_figure()
        assert isinstance(figure, Figure)
        figure.savefig(IMAGES / f"plot-{name}.png", dpi=110)


def code_of(guide: str) -> dict[str, Any]:
    """What the code of a guide has made."""
    text = (IMAGES.parent / "guides" / f"{guide}.md").read_text()
    made: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(block, made)
    return made


def draw_answers() -> None:
    """Pictures of the guides to further questions, from the code of these guides."""
    tails = code_of("tails")
    tails["left"].get_figure().savefig(IMAGES / "distribution.png", dpi=100)
    figure = code_of("given-a-condition")["fig"]
    figure.set_size_inches(6, 3.2)
    figure.savefig(IMAGES / "given.png", dpi=100, bbox_inches="tight")
    ax = plots.plot_reliability(code_of("reliability")["result"])
    figure = ax.get_figure()
    figure.set_size_inches(6, 2.6)
    figure.savefig(IMAGES / "reliability.png", dpi=100)
    draw_comparison(code_of("comparing-models")["comparison"])


def draw_comparison(comparison: ep.Comparison) -> None:
    figure, (left, right) = plt.subplots(1, 2, layout="constrained", figsize=(9, 2.8))
    names = list(comparison.models)
    rows = list(comparison.models.values())
    left.barh(
        names, [row.probability for row in rows], xerr=[row.probability_error for row in rows]
    )
    left.set_xlabel("probability of the model")
    estimates = [comparison.estimates[name].outputs[0] for name in names]
    values = [*(output.value for output in estimates), comparison.average[0].value]
    right.plot(values, [*names, "over models"], "o")
    right.set_xlabel("expected response at a dose of 4")
    for ax in (left, right):
        ax.invert_yaxis()
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(IMAGES / "comparison.png", dpi=100)


def draw_decisions() -> None:
    """The pictures of the guides on decisions, sensitivities and leave-one-out."""

    @ep.expectation
    def insured(deductible: float) -> Any:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        size = numpyro.sample("size", dist.Exponential(1.0))
        loss = jnp.where(z > 3.5, 1e6 * size, 0.0)
        return -(400.0 * jnp.exp(-deductible / 4e5) + jnp.minimum(loss, deductible))

    @ep.expectation
    def overload(y: np.ndarray, limit: float) -> Any:
        load = numpyro.sample("load", dist.Normal(2.0, 1.0))
        with numpyro.plate("days", y.size):
            numpyro.sample("y", dist.Normal(load, 1.0), obs=y)
        return load > limit

    @ep.expectation
    def line(x: np.ndarray, y: np.ndarray) -> Any:
        a, b = (numpyro.sample(name, dist.Normal(0.0, 3.0)) for name in "ab")
        with numpyro.plate("rows", y.size):
            numpyro.sample("y", dist.Normal(a + b * x, 0.3), obs=y)
        return b

    result = ep.estimate_expectation(overload(np.array([2.4, 1.9, 3.8]), 5.0))
    result.sensitivity()
    x = np.linspace(-1.0, 1.0, 25)
    y = 0.5 + x + 0.3 * np.random.default_rng(0).normal(size=25)
    y[-1] = 4.0
    figures = {
        "studies": code_of("decisions")["ax"],
        "decision": plots.plot_decision(ep.decide(insured, np.array([0.0, 3e5, 1e6, 3e6]))()),
        "sensitivity": plots.plot_sensitivity(result),
        "leave-one-out": plots.plot_leave_one_out(ep.leave_one_out(line(x, y))),
    }
    for name, ax in figures.items():
        figure = ax.get_figure()
        assert isinstance(figure, Figure)
        figure.savefig(IMAGES / f"{name}.png", dpi=110)


def shrink(path: Path) -> None:
    """Few colours: these are drawings, not photographs."""
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(240, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)


def main() -> None:
    need_browser()
    start = time.time()
    plt.switch_backend("agg")
    rare = ep.estimate_expectation(tail(DATA))
    path = ep.TABI(ep.AnIS(num_samples=1000, num_temperatures=100, keep_path=True))
    annealed = ep.estimate_expectation(cube(2.0), path)
    paper = ep.estimate_expectation(tail(DATA), METHODS["paper: TABI + AnIS"])
    islands = ep.estimate_expectation(tail(DATA), ep.TABI(ep.SMC(num_islands=8)), throw=False)
    draw_problem()
    draw_answers()
    draw_report(rare)
    draw_plots(rare, annealed, [paper, islands])
    draw_decisions()
    for picture in sorted(IMAGES.glob("*.png")):
        if picture.stat().st_mtime < start:
            continue  # drawn elsewhere
        shrink(picture)
        print(f"{picture.name}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
