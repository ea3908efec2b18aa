"""Draws every picture in docs/images anew: the demo's report in a browser, and each plot.

Run it as ``python -m docs.pictures`` in the root of the repository. Needs Chromium for the report.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

import estimand as ep
from estimand import plots
from examples.demo import DATA, METHODS, TAIL_TRUTH, cube, tail
from tests.browser import browser

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


def shrink(path: Path) -> None:
    """Few colours: these are drawings, not photographs."""
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(240, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)


def main() -> None:
    plt.switch_backend("agg")
    rare = ep.estimate_expectation(tail(DATA))
    path = ep.TABI(ep.AnIS(num_samples=1000, num_temperatures=100, keep_path=True))
    annealed = ep.estimate_expectation(cube(2.0), path)
    paper = ep.estimate_expectation(tail(DATA), METHODS["paper: TABI + AnIS"])
    islands = ep.estimate_expectation(tail(DATA), ep.TABI(ep.SMC(num_islands=8)), throw=False)
    draw_report(rare)
    draw_plots(rare, annealed, [paper, islands])
    for picture in sorted(IMAGES.glob("*.png")):
        shrink(picture)
        print(f"{picture.name}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
