"""The documentation: every block of code and every command runs, every link leads somewhere."""

from __future__ import annotations

import doctest
import functools
import inspect
import json
import re
import shlex
import subprocess
import sys
import time
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpyro
import numpyro.distributions as dist
import pytest
from click.testing import CliRunner

import estimand as ep
from docs import printed
from estimand import cli, plots
from estimand.view.glossary import OF_ANSWERS, WORDS
from tests.browser import CHROMIUM, browser

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
)


# --- docstrings ---

PUBLIC = {name: getattr(ep, name) for name in ep.__all__ if name != "SKIP"} | {
    f"plots.{name}": function for name, function in vars(plots).items() if name.startswith("plot_")
}
# Each has an example that runs, except for parts of answers, which their functions show.
PARTS = {"Action", "ComparedModel", "Decision", "LeaveOneOut", "Prediction", "Quantile", "Quantity"}
MAIN = [name for name in PUBLIC if name not in {*PARTS, "Ascents"}]
SLOW = {"PosteriorBridge", "SMC", "IndependentT"}
# Functions and settings, whose arguments are described. The library makes the other classes.
SETTINGS = ("estimand.methods", "estimand.estimators", "estimand.kernels")
MADE_BY_USERS = [
    name
    for name in MAIN
    if not inspect.isclass(PUBLIC[name])
    or PUBLIC[name].__module__.startswith(SETTINGS)
    or name == "Command"
]
METHODS_OF_ESTIMATE = [
    name
    for name, function in inspect.getmembers(ep.Estimate, inspect.isfunction)
    if not name.startswith("_") and name not in ("bounds", "structured", "part", "draws_of")
]
METHODS_OF_ESTIMATES = ["summary", "to_dataframe", "to_dataset", "save"]


@ep.expectation
def program(y: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(x, 1), obs=y)
    return x**3


@functools.cache
def result() -> ep.Estimate:
    return ep.estimate_expectation(program(2.0))


def examples_of(name: str) -> list[doctest.DocTest]:
    owner, _, method = name.rpartition(".")
    is_method = owner in ("Estimate", "Estimates")
    found = getattr(PUBLIC[owner], method) if is_method else PUBLIC[name]
    return [
        test for test in doctest.DocTestFinder(recurse=False).find(found, name) if test.examples
    ]


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in MAIN),
        *(f"Estimate.{method}" for method in METHODS_OF_ESTIMATE),
        *(f"Estimates.{method}" for method in METHODS_OF_ESTIMATES),
    ],
)
def test_examples_in_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a namespace that has the program and the result of the reference's first lines."""
    if name == "from_pymc":
        pytest.importorskip("pymc")
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    tests = examples_of(name)
    assert tests, f"{name} has no example"
    known = {"dist": dist, "ep": ep, "jax": jax, "jnp": jnp, "json": json, "numpyro": numpyro}
    for test in tests:
        assert test.docstring is not None
        test.globs = known | {"plots": plots, "program": program}
        if "result" in test.docstring:
            test.globs["result"] = result()
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        assert runner.run(test).failed == 0
    plt.close("all")


def parameters_of(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("name", PUBLIC)
def test_docstrings_name_every_argument(name: str) -> None:
    found = PUBLIC[name]
    text = inspect.getdoc(found)
    assert text
    if name in MADE_BY_USERS:
        section = text.split("Args:")[1]
        for parameter in parameters_of(found):
            assert re.search(rf"^ +\*?{parameter}: ", section, re.MULTILINE), (name, parameter)


@pytest.mark.parametrize("method", METHODS_OF_ESTIMATE)
def test_methods_of_estimates_name_every_argument(method: str) -> None:
    function = getattr(ep.Estimate, method)
    text = inspect.getdoc(function)
    assert text
    for parameter in parameters_of(function):
        assert re.search(rf"^ +{parameter}: ", text, re.MULTILINE), parameter


def test_the_reference_has_every_public_name() -> None:
    pages = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    shown = re.findall(r"^::: estimand\.([\w.]+)$", pages, re.MULTILINE)
    assert sorted(shown) == sorted([*PUBLIC, "SKIP"])


def test_the_glossary_has_the_words_of_reports() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    found = re.findall(r"^## (.+)\n\n(.+)$", page, re.MULTILINE)
    assert dict(found) == WORDS | OF_ANSWERS


def test_every_status_is_in_troubleshooting() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    statuses = page.split("## By status")[1].split("## By message")[0]
    assert re.findall(r"^### (\w+)$", statuses, re.MULTILINE) == [
        status.name for status in ep.Status if not status
    ]


# --- code and commands in pages ---


def blocks_of(page: str) -> list[printed.Block]:
    return printed.blocks_of((ROOT / page).read_text())


def pages_with(language: str) -> list[str]:
    return [page for page in PAGES if any(block.language == language for block in blocks_of(page))]


def test_outline_sees_words_and_not_numbers() -> None:
    outline = printed.outline
    assert outline("a  -1.5e-06 ± 2\n──\nok") == outline("a 3 ± 1,000.5\n\n ok") == "a # ± # ok"
    assert outline("1 ok") != outline("1 low_ess")


def test_what_a_page_shows_is_compared_with_what_is_printed() -> None:
    """Words exactly, estimates to their errors, errors and costs roughly, times not at all."""

    def agrees(other: str) -> bool:
        return not printed.disagreements("-1.5e-06 ± 2e-08 ok; 31,760 evaluations, 2.5 s", other)

    assert agrees("-1.45e-06 ± 1.5e-08 ok; 31,000 evaluations, 0.1 s")
    assert not agrees("-1.5e-06 ± 2e-08 ok after 31,760 evaluations, 2.5 s")
    assert not agrees("-1.3e-06 ± 2e-08 ok; 31,760 evaluations, 2.5 s")
    assert not agrees("-1.5e-06 ± 5e-08 ok; 31,760 evaluations, 2.5 s")
    assert not agrees("-1.5e-06 ± 2e-08 ok; 80,000 evaluations, 2.5 s")


# Guides on how to extend the library, each with a complete example, and the lines it may have.
EXTENDING = [page for page in PAGES if "/adding-" in page]
MAX_EXAMPLE = 60


@pytest.mark.parametrize("page", EXTENDING)
def test_examples_of_extensions_are_short(page: str) -> None:
    lines = [
        line
        for block in blocks_of(page)
        if block.language == "python"
        for line in block.text.splitlines()
    ]
    assert 0 < len(lines) <= MAX_EXAMPLE


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if page in EXTENDING else pytest.mark.slow)
        for page in pages_with("python")
    ],
)
def test_code_in_pages_runs(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Block after block, and what is shown as printed is what is printed."""
    if "import pymc" in (ROOT / page).read_text():
        pytest.importorskip("pymc")
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    with jax.numpy_rank_promotion("allow"):  # JAX as readers have it
        results = printed.run(blocks_of(page), page)
    for block, said in results:
        assert printed.disagreements(said, block.text) == []
    plt.close("all")


def commands_of(page: str) -> list[list[str]]:
    text = "\n".join(block.text for block in blocks_of(page) if block.language == "sh")
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("page", pages_with("sh"))
def test_commands_in_pages_exist(page: str) -> None:
    """What installs and builds is there under that name; the rest is our own command line."""
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for command, *arguments in commands_of(page):
        if command == "make":
            assert set(arguments) <= set(targets)
        elif command == "pip":
            action, what = arguments
            assert action == "install"
            extra = re.fullmatch(rf"(?:{project['name']}|\.)(?:\[(.+)\])?", what)
            assert extra, what
            assert extra[1] is None or extra[1] in project["optional-dependencies"]
        else:
            assert command == "estimand"
            assert arguments[0] in cli.main.commands


def test_what_is_named_in_passing_exists() -> None:
    """Make targets in prose, and extras wherever the code or the prose names one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    makefile = (ROOT / "Makefile").read_text()
    pages = "\n".join((ROOT / page).read_text() for page in PAGES)
    sources = "\n".join(path.read_text() for path in (ROOT / "src" / "estimand").rglob("*.py"))
    targets = set(re.findall(r"`make ([\w-]+)`", pages))
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for extra in set(re.findall(r"estimand\[(\w+)\]", pages + sources)):
        assert extra in project["optional-dependencies"]


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("sh"))
def test_commands_in_pages_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, in one folder, with the files that the page shows."""
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(page):
        if block.title:
            Path(block.title).write_text(block.text)
    ours = [arguments for command, *arguments in commands_of(page) if command == "estimand"]
    if not ours:
        pytest.skip("shows how to install or to build, and no command")
    for arguments in ours:
        outcome = CliRunner().invoke(cli.main, arguments)
        assert outcome.exit_code == 0, (arguments, outcome.output)
    for record in Path().glob("*.est"):
        assert ep.load(record).status is ep.Status.ok


# --- links and the site ---


def prose(page: Path) -> str:
    """A page without its code."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors_of(page: Path) -> set[str]:
    """The places of a page, as they are named by GitHub and by the site."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings
    }


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        path = page.parent / file if file else page
        if file.startswith("gallery/"):  # made by docs/examples.py
            path = (page.parent / file).with_suffix(".py")
            if path.stem == "index" or path.exists():
                continue
        if not path.exists() or (anchor and anchor not in anchors_of(path)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    assert broken_links(ROOT / page) == []


def test_broken_links_are_seen(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# Big title: γ\n")
    page = tmp_path / "a.md"
    page.write_text("[](b.md) [](b.md#big-title-γ) [](b.md#small) [](c.md) [](#here)\n# Here\n")
    assert broken_links(page) == ["b.md#small", "c.md"]


def test_every_picture_is_shown_and_small() -> None:
    text = "\n".join((ROOT / page).read_text() for page in PAGES)
    for picture in (ROOT / "docs" / "images").glob("*.png"):
        assert f"images/{picture.name})" in text
        assert picture.stat().st_size < 150_000


class _Assets(HTMLParser):
    """What a page loads by itself."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag in ("script", "img", "iframe", "source") and known.get("src"):
            self.found.append(str(known["src"]))
        if tag == "link" and known.get("rel") not in ("canonical", "prev", "next"):
            self.found.append(str(known["href"]))


def found_by_searching(word: str, site: Path) -> str:
    """The results in a page that is opened from its folder, without a server."""
    with browser(site / ".profile") as page:
        page.resize(1300, 900)
        page.open((site / "index.html").as_uri())
        page.evaluate(
            "(() => {const field = document.querySelector('.md-search__input'); field.focus();"
            f"field.value = '{word}';"
            "field.dispatchEvent(new Event('keyup', {bubbles: true}))})()"
        )
        results = "document.querySelector('.md-search-result__list').textContent"
        deadline = time.monotonic() + 30
        while not (found := page.evaluate(results).strip()) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert page.named("Runtime.exceptionThrown") == []
    return found


def test_the_site_builds_and_asks_for_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strictly: a broken link or anchor, or a name that is not there, is an error."""
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    monkeypatch.setenv("ESTIMAND_GALLERY", "off")  # tests/test_gallery.py runs them
    # Without --quiet, which hides warnings from strict mode, too.
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        check=True,
    )
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        assets = _Assets(page.read_text()).found
        assert assets
        assert not [asset for asset in assets if re.match(r"(https?:)?//", asset)]
    if CHROMIUM is not None:
        assert "shortfall" in found_by_searching("shortfall", tmp_path)
    reference = (tmp_path / "reference" / "results.html").read_text()
    for method in METHODS_OF_ESTIMATE:
        assert f'id="estimand.Estimate.{method}"' in reference
