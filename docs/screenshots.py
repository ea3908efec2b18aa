"""Pictures of the site and of reports as readers see them, to be looked at.

Run it as ``make screenshots``, which builds the site first, or as ``python -m docs.screenshots``
with a site in build/site. Writes to build/screenshots: each page at the width of a desktop and of a
phone, light and dark, and reports as they are printed. Needs Chromium, and pdftoppm for printed
pages.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpyro
import numpyro.distributions as dist

import estimand as ep
from examples.demo import DATA, tail
from tests.browser import Page, browser, need_browser

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"
SHOTS = ROOT / "build" / "screenshots"
WIDTHS = {"desktop": 1300, "phone": 390}
SCHEMES = ("light", "dark")
PAGES = {
    "landing": "index.html",
    "tutorial": "tutorial.html",
    "gallery": "gallery/index.html",
    "example": "gallery/value_at_risk.html",
    "reference": "reference/answers.html",
}
# A whole page may be too long to look at.
MAX_HEIGHT = 6000


@ep.expectation
def twelve() -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    return {f"P(x > {k / 4:g})": x > k / 4 for k in range(12)}


def shoot(page: Page, url: str, name: str) -> None:
    """At every width and in every scheme; says what is wider than the screen."""
    for place, width in WIDTHS.items():
        for scheme in SCHEMES:
            page.prefer(scheme)
            page.resize(width, 900)
            page.open(url)
            page.screenshot(SHOTS / f"{name}-{place}-{scheme}.png", MAX_HEIGHT)
        wide = page.evaluate("document.documentElement.scrollWidth")
        cut = page.evaluate(
            "[...document.querySelectorAll('pre > code')].filter("
            "code => code.scrollWidth > code.clientWidth + 1).length"
        )
        said = f", {wide - width} pixels too wide" if wide > width else ""
        said += f", {cut} blocks of code to be scrolled" if cut else ""
        print(f"{name} at {width} pixels{said}", flush=True)


def pictures_of(pdf: Path) -> None:
    """A picture of each page."""
    if not shutil.which("pdftoppm"):
        print(f"{pdf} has no pictures: they need pdftoppm (apt-get install poppler-utils)")
        return
    command = ["pdftoppm", "-png", "-r", "70", pdf, pdf.with_suffix("")]
    subprocess.run(command, check=True)


def main() -> None:
    need_browser()
    if not (SITE / "index.html").exists():
        sys.exit("There is no site in build/site: run `make docs`, or `make screenshots`.")
    shutil.rmtree(SHOTS, ignore_errors=True)
    SHOTS.mkdir(parents=True)
    reports = {
        "report-1": ep.estimate_expectation(tail(DATA)),
        "report-12": ep.estimate_expectation(twelve()),
    }
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder) / "profile") as page:
        page.send("Emulation.setScrollbarsHidden", hidden=True)
        for name, place in PAGES.items():
            shoot(page, (SITE / place).as_uri(), name)
        for name, result in reports.items():
            path = Path(folder) / f"{name}.html"
            result.to_html(path)
            shoot(page, path.as_uri(), name)
            page.prefer("dark")  # paper is light all the same
            page.open(path.as_uri())
            page.pdf(SHOTS / f"{name}-printed.pdf")
            pictures_of(SHOTS / f"{name}-printed.pdf")
    print(f"{len(list(SHOTS.glob('*.png')))} pictures in {SHOTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
