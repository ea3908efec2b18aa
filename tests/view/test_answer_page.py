"""The reports of answers: complete, in order, and honest about refusals."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from matplotlib.patches import Rectangle

import estimand as ep
from estimand import plots
from estimand.view.glossary import OF_ANSWERS
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


@ep.expectation
def stakes(stake: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.5, 1.0))
    return stake * x


@ep.expectation
def rows(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x


def trial(sites: Any) -> None:
    numpyro.sample("outcome", dist.Normal(sites["x"], 1.0))


@functools.cache
def comparison() -> ep.Comparison:
    return ep.compare({"<narrow>": narrow(2.0), "wide": wide(2.0)}, average=True)


ANSWERS: dict[str, Callable[[], Any]] = {
    "comparison": comparison,
    "quantile": lambda: ep.quantile(narrow(2.0), [0.1, 0.5, 1 - 1e-6]),
    "shortfall": lambda: ep.shortfall(narrow(2.0), 1e-3),
    "distribution": lambda: ep.distribution(narrow(2.0), [0.0, 1.0, 5.0]),
    "decision": lambda: ep.decide(stakes, [0.0, 1.0], study=trial)(),
    "leave-one-out": lambda: ep.leave_one_out(rows(jnp.array([0.1, -0.4, 2.0]))),
}


@functools.cache
def page_of(name: str) -> str:
    return ANSWERS[name]().to_html()


@pytest.mark.parametrize("name", ANSWERS)
def test_the_page_is_complete_and_self_contained(name: str) -> None:
    page = page_of(name)
    parsed = _Tags(page)
    assert parsed.open == []
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([\w-]+)', page)) <= set(ids)
    assert not [tag for tag, _ in parsed.tags if tag in ("script", "iframe", "object", "img")]
    for _, attributes in parsed.tags:
        for key, value in attributes.items():
            if key in ("src", "href", "xlink:href"):
                assert value is not None
                assert value.startswith(("#", "data:"))


@pytest.mark.parametrize("name", ANSWERS)
def test_a_page_says_what_was_asked_and_how_it_was_made(name: str) -> None:
    page = page_of(name)
    assert page.count('<p class="number">') == 1
    assert '<span class="badge good">ok</span>' in page
    assert "<svg" in page
    assert "float64" in page
    assert "@ep.expectation" in page
    assert "What the checks found" not in page


def test_answers_come_with_their_numbers() -> None:
    quantiles = ep.quantile(narrow(2.0), [0.5, 1 - 1e-6])
    assert f'<p class="number">{quantiles.tails[1].text}</p>' in quantiles.to_html()
    decision = ep.decide(stakes, [0.0, 1.0], study=trial)()
    page = decision.to_html()
    assert f'<p class="number">{decision.best.name}</p>' in page
    assert "def trial(sites" in page
    assert page.count("<figure") == 2
    loo = ep.leave_one_out(rows(jnp.linspace(-1.0, 1.0, 12)))
    # All rows, where the summary has those that are predicted worst.
    assert loo.to_html().count("<tr>") == 13
    assert "2 more rows" in str(loo)


def test_a_page_says_what_its_words_mean_and_no_others() -> None:
    def words_of(name: str) -> set[str]:
        [found] = re.findall(r'<dl class="words">(.*?)</dl>', page_of(name), re.DOTALL)
        return set(re.findall("<dt>(.*?)</dt>", found))

    decision = words_of("decision")
    assert decision == set(OF_ANSWERS) | {"95 % interval", "status"}
    assert "Pareto k" in words_of("leave-one-out")
    assert not words_of("quantile") & set(OF_ANSWERS)


def test_a_page_names_what_cannot_be_trusted() -> None:
    @ep.expectation
    def gapped() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        return jnp.where(x > 0.0, x + 10.0, x)

    page = ep.quantile(gapped(), 0.5, throw=False).to_html()
    assert 'badge bad">' in page
    assert "What the checks found" in page
    assert "hardly any mass" in page


def test_the_answer_comes_first_and_everything_is_there() -> None:
    found, page = comparison(), page_of("comparison")
    body = page[page.index("<body>") :]
    places = [body.index(text) for text in ('class="number"', 'class="verdict', "<svg", "<table")]
    assert places == sorted(places)
    best = found.models[found.best]
    assert f"probability {best.probability:.4g}</p>" in body
    assert body.count("<figure") == 2
    for words in ("log Bayes factor", "over models", "How each evidence was obtained", "def wide"):
        assert words in body
    assert "&lt;narrow&gt;" in body
    assert "<narrow>" not in page


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


def test_plots_of_tails() -> None:
    quantiles = ep.quantile(narrow(2.0), [0.01, 1 - 1e-6])
    ax = plots.plot_quantiles(quantiles)
    points = [line for line in ax.get_lines() if line.get_marker() == "o"]
    places = np.asarray([np.ravel(line.get_xydata()) for line in points], float)
    expected = [(tail.value, tail.tail_probability) for tail in reversed(quantiles.tails)]
    np.testing.assert_allclose(places, np.asarray(expected, float))
    shortfall = ep.shortfall(narrow(2.0), 1e-3, lower=True)
    ax = plots.plot_shortfall(shortfall)
    begin, mean = (float(np.ravel(line.get_xdata())[0]) for line in ax.get_lines())
    assert (begin, mean) == (shortfall.quantile.value, shortfall.value)
    values, edges, _ = ax.patches[0].get_data()  # type: ignore[attr-defined]
    assert edges[-1] == begin
    assert float(np.sum(values * np.diff(edges))) == pytest.approx(1.0, abs=0.01)


def test_plots_of_a_comparison() -> None:
    ax = plots.plot_comparison(comparison())
    assert [text.get_text() for text in ax.get_yticklabels()] == list(comparison().models)
    widths = [bar.get_width() for bar in ax.patches if isinstance(bar, Rectangle)]
    assert widths == pytest.approx([row.probability for row in comparison().models.values()])
    ax = plots.plot_average(comparison())
    assert ax.get_yticklabels()[-1].get_text() == "over models"
    with pytest.raises(ValueError, match="average=True"):
        plots.plot_average(ep.compare({"one": narrow(1.0)}))
