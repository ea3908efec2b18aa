"""The report: one self-contained page, checked in a real browser."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.record import Provenance
from tests.browser import CHROMIUM, browser

pytest.importorskip("matplotlib")


@ep.expectation
def program(y: float) -> Any:
    # A remark with markup: <script>alert("&amp;")</script>
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x**3


@ep.expectation
def several() -> Any:
    w = numpyro.sample("w", dist.Gamma(2.0 * jnp.ones(2), 1.0).to_event(1))
    return {f"<{k}>": w[0] > k for k in range(8)}


@functools.cache
def estimate(name: str) -> ep.Estimate:
    annealed = ep.TABI(ep.AnIS(num_samples=300, num_temperatures=10))
    prior = ep.TABI(ep.ImportanceSampling(num_samples=2000))
    chains = ep.PosteriorMCMC(num_samples=200, kernel=ep.RandomWalk(scale=1.0))
    expectation, method = {
        "annealed": (program(2.0), annealed),
        "several": (several(), prior),
        "chains": (program(2.0), chains),
    }[name]
    return ep.estimate_expectation(expectation, method, throw=False)  # type: ignore[arg-type]


@functools.cache
def page_of(name: str) -> str:
    return estimate(name).to_html()


VOID = {"meta", "link", "path", "use", "image", "rect"}


class _Tags(HTMLParser):
    """Every tag with its attributes, and whether each was closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize(
    "name", ["annealed", pytest.param("several", marks=pytest.mark.slow), "chains"]
)
def test_the_page_is_complete_and_self_contained(name: str) -> None:
    page = page_of(name)
    parsed = _Tags(page)
    assert parsed.open == []
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:href="#|url\(#)([\w-]+)', page))
    assert used <= set(ids)
    assert not [tag for tag, _ in parsed.tags if tag in ("script", "iframe", "object", "img")]
    for _, attributes in parsed.tags:
        for key, value in attributes.items():
            assert not key.startswith("on")
            if key in ("src", "href", "xlink:href"):
                assert value is not None
                assert value.startswith(("#", "data:"))


def test_the_number_comes_first() -> None:
    result = estimate("annealed")
    page = page_of("annealed")
    body = page[page.index("<body>") :]
    assert body.index('class="number"') < body.index('class="verdict') < body.index("<svg")
    low, high = result.interval()
    assert f"95 % interval <span>{low:.6g}</span> to <span>{high:.6g}</span>" in body
    for words in ("Normalising constants", "threefry2x32:0,0", "numpyro", "TABI(AnIS("):
        assert words in body
    assert "&lt;script&gt;alert(&quot;&amp;amp;&quot;)&lt;/script&gt;" in body
    assert body.count("<figure") == 5


def test_several_outputs_and_records_without_draws() -> None:
    page = page_of("several")
    assert page.count('class="number"') == page.count("<section") == 8
    assert page.count('<div class="plots">') == 6
    assert re.findall(r'<a href="#(output-\d)">', page) == [f"output-{k}" for k in range(8)]
    assert "&lt;7&gt;" in page
    assert "<7>" not in page
    assert page_of("chains").count("<figure") == 1


def test_nothing_found_is_reported_first() -> None:
    @ep.expectation
    def nothing() -> Any:
        return numpyro.sample("x", dist.Normal(0.0, 1.0)) > 30.0

    method = ep.TABI(ep.ImportanceSampling(num_samples=100))
    page = ep.estimate_expectation(nothing(), method, throw=False).to_html()
    assert '<p class="number">no mass found</p>' in page
    assert 'badge bad">no_mass_found' in page


def test_a_loaded_record_gives_the_same_page(tmp_path: Path) -> None:
    result = estimate("annealed")
    result.save(tmp_path / "r.est")
    path = tmp_path / "report.html"
    page = ep.load(tmp_path / "r.est").to_html(path)
    assert page == page_of("annealed") == path.read_text()
    assert sorted(os.listdir(tmp_path)) == ["r.est", "report.html"]
    by_hand = dataclasses.replace(result, provenance=Provenance())
    assert "no source is known" in by_hand.to_html()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"estimand\[plots\]"):
        estimate("chains").to_html()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs a real browser: apt install chromium")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 390)])
def test_in_a_browser(scheme: str, width: int, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    estimate("annealed").to_html(path)
    with browser(tmp_path / "profile") as page:
        page.prefer(scheme)
        page.resize(width, 900)
        page.open(path.as_uri())
        requests = [event["request"]["url"] for event in page.named("Network.requestWillBeSent")]
        assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
        assert page.named("Log.entryAdded") == []
        assert page.named("Runtime.exceptionThrown") == []
        assert page.named("Runtime.consoleAPICalled") == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        boxes = page.evaluate(
            "[...document.querySelectorAll('figure svg')].map(svg => {"
            "const box = svg.getBoundingClientRect(); return [box.width, box.height]})"
        )
        assert len(boxes) == 5
        assert all(box[0] > 250 and box[1] > 150 for box in boxes)
        texts = page.evaluate("[...document.querySelectorAll('svg text')].map(t => t.textContent)")
        assert "posterior γ" in texts
        colours = page.evaluate(
            "['color', 'backgroundColor'].map(name => getComputedStyle(document.body)[name])"
        )
        ink, paper = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
        assert (ink > paper) == (scheme == "dark")
        label = "getComputedStyle(document.querySelector('svg text')).fill"
        assert page.evaluate(label) == colours[0]
        page.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 20_000


# Pairs of labels in a plot, or in the page around it, that lie upon each other.
OVERLAPS = """
[...document.querySelectorAll('figure svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(
    text => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([one, a], place) => boxes.slice(place + 1).filter(([, b]) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4
  ).map(([other]) => one + ' on ' + other));
})
"""


@ep.expectation
def tiny() -> Any:
    return 1e-12 * (numpyro.sample("x", dist.Normal(0.0, 1.0)) > 1)


@ep.expectation
def scales() -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    z = numpyro.sample("concentration", dist.LogNormal(20.0, 1.0))
    return {"huge": z, "tiny": 1e-12 * x**2, "an event with rather a long name": x > 1}


@ep.expectation
def twelve() -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    return {f"beyond {k / 4}": x > k / 4 for k in range(12)}


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs a real browser: apt install chromium")
@pytest.mark.parametrize("program", [tiny, scales, twelve], ids=lambda program: program.name)
@pytest.mark.parametrize("width", [1300, 390])
def test_labels_do_not_collide(program: Any, width: int, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    ep.estimate_expectation(program(), throw=False).to_html(path)
    with browser(tmp_path / "profile") as page:
        page.resize(width, 900)
        page.open(path.as_uri())
        assert page.evaluate(OVERLAPS) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_data_are_shown_beside_their_digest() -> None:
    @ep.expectation
    def line(x: Any, y: Any, options: dict[str, float]) -> Any:
        slope = numpyro.sample("slope", dist.Normal(0.0, options["scale"]))
        numpyro.sample("y", dist.Normal(slope * x, 1.0).to_event(1), obs=y)
        return slope

    data = np.arange(7.0), np.linspace(0.0, 1.0, 7), {"scale": 2.5}
    result = ep.estimate_expectation(line(*data), ep.TABI(ep.ImportanceSampling()), throw=False)
    assert result.provenance.data == {
        "x": "float64 of shape (7,): 0, 1, 2, 3, 4, …",
        "y": "float64 of shape (7,): 0, 0.166667, 0.333333, 0.5, 0.666667, …",
        "options[scale]": "2.5 (float64)",
    }
    page = result.to_html()
    assert "<dt>data: x</dt><dd>float64 of shape (7,): 0, 1, 2, 3, 4, …</dd>" in page
