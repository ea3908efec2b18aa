"""The report of models that were compared: complete, in order, and honest about refusals."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest
from matplotlib.patches import Rectangle

import estimand as ep
from estimand import plots
from tests.view.test_report import _Tags


@ep.expectation
def narrow(y: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x


@ep.expectation
def wide(y: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 3.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x


@functools.cache
def comparison() -> ep.Comparison:
    return ep.compare({"<narrow>": narrow(2.0), "wide": wide(2.0)}, average=True)


@functools.cache
def page() -> str:
    return comparison().to_html()


def test_the_page_is_complete_and_self_contained() -> None:
    parsed = _Tags(page())
    assert parsed.open == []
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([\w-]+)', page())) <= set(ids)
    assert not [tag for tag, _ in parsed.tags if tag in ("script", "iframe", "object", "img")]
    for _, attributes in parsed.tags:
        for key, value in attributes.items():
            if key in ("src", "href", "xlink:href"):
                assert value is not None
                assert value.startswith(("#", "data:"))


def test_the_answer_comes_first_and_everything_is_there() -> None:
    found = comparison()
    body = page()[page().index("<body>") :]
    places = [body.index(text) for text in ('class="number"', 'class="verdict', "<svg", "<table")]
    assert places == sorted(places)
    best = found.models[found.best]
    assert f"probability {best.probability:.4g}</p>" in body
    assert body.count("<figure") == 2
    for words in ("log Bayes factor", "over models", "How each evidence was obtained", "def wide"):
        assert words in body
    assert "&lt;narrow&gt;" in body
    assert "<narrow>" not in page()


def test_a_model_that_is_refused_is_named(tmp_path: Path) -> None:
    @ep.expectation
    def impossible(y: float) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("never", jnp.where(x > 1e9, 0.0, -jnp.inf))
        return x + y

    found = ep.compare({"narrow": narrow(2.0), "impossible": impossible(2.0)}, throw=False)
    path = tmp_path / "page.html"
    written = found.to_html(path)
    assert path.read_text() == written
    assert "impossible cannot be trusted" in written
    assert 'badge bad">' in written
    alone = ep.compare({"impossible": impossible(2.0)}, throw=False).to_html()
    assert '<p class="number">no model can be trusted</p>' in alone


def test_plots_of_a_comparison() -> None:
    ax = plots.plot_comparison(comparison())
    assert [text.get_text() for text in ax.get_yticklabels()] == list(comparison().models)
    widths = [bar.get_width() for bar in ax.patches if isinstance(bar, Rectangle)]
    assert widths == pytest.approx([row.probability for row in comparison().models.values()])
    ax = plots.plot_average(comparison())
    assert ax.get_yticklabels()[-1].get_text() == "over models"
    with pytest.raises(ValueError, match="average=True"):
        plots.plot_average(ep.compare({"one": narrow(1.0)}))
