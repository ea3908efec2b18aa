"""A record's DataTree used with ArviZ: its plots and its summary."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from problems.figure1 import figure1

cube = ep.expectation(figure1)


@ep.expectation
def mixed(y: float) -> Any:
    scale = numpyro.sample("scale", dist.Exponential(1.0))
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
    numpyro.sample("y", dist.Normal(share[0], scale), obs=y)
    return {"scale": scale, "tail": scale > 3.0}


@functools.cache
def tree_of(program: str) -> Any:
    expectation = {"cube": cube(2.0), "mixed": mixed(0.5)}[program]
    method = ep.TABI(ep.ImportanceSampling(num_samples=5000))
    return ep.estimate_expectation(expectation, method, throw=False).to_datatree()


@pytest.fixture
def arviz_plots() -> Iterator[Any]:
    """ArviZ's plots, without a screen.

    The release for Python 3.11 takes ``matplotlib.style.core`` for an attribute, which it is in
    Matplotlib 3.11 only after it has been imported.
    """
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("matplotlib.style.core")
        yield importlib.import_module("arviz_plots")
    plt.close("all")


def drawn(collection: Any) -> Any:
    """The figure of an ArviZ plot, drawn."""
    figure = collection.viz["figure"].item()
    figure.canvas.draw()
    return figure


def curve_of(figure: Any) -> np.ndarray:
    """The one line of many points."""
    (line,) = (line for line in figure.axes[0].get_lines() if len(line.get_xdata()) > 100)
    return np.asarray(line.get_xydata())


def test_each_density_has_a_plot_where_it_is(arviz_plots: Any) -> None:
    """γ is N(1, ½), γf⁺ is above 0 and γf⁻ below."""
    curves = {
        group: curve_of(drawn(arviz_plots.plot_dist(tree_of("cube"), group=group, kind="ecdf")))
        for group in ("posterior", "target_plus", "target_minus")
    }
    x, share = curves["posterior"].T
    assert np.interp(0.5, share, x) == pytest.approx(1.0, abs=0.1)
    assert curves["target_plus"][:, 0].min() > 0 > curves["target_minus"][:, 0].max()


def test_sites_of_every_shape_are_plotted(arviz_plots: Any) -> None:
    """One panel for each of the four numbers: a scalar and a vector of three."""
    tree = tree_of("mixed")
    for plot in (arviz_plots.plot_dist, arviz_plots.plot_ess):
        figure = drawn(plot(tree))
        assert sum(ax.has_data() for ax in figure.axes) == 4
    pairs = drawn(arviz_plots.plot_pair(tree))
    assert sum(ax.has_data() for ax in pairs.axes) == 4 + 6


def test_the_forest_shows_the_posteriors_quantiles(arviz_plots: Any) -> None:
    figure = drawn(arviz_plots.plot_forest(tree_of("cube"), ci_probs=[0.5, 0.9], ci_kind="eti"))
    lines = [np.asarray(line.get_xdata(), float) for ax in figure.axes for line in ax.get_lines()]
    ends = sorted({(line.min(), line.max()) for line in lines if np.ptp(line) > 0})
    half, wide = 0.6745 * np.sqrt(0.5), 1.6449 * np.sqrt(0.5)
    np.testing.assert_allclose(ends, [(1 - wide, 1 + wide), (1 - half, 1 + half)], atol=0.12)


def test_summary() -> None:
    import arviz_stats

    table = arviz_stats.summary(tree_of("cube"), round_to="none")
    assert table.loc["x", "mean"] == pytest.approx(1.0, abs=0.05)
    assert table.loc["x", "sd"] == pytest.approx(np.sqrt(0.5), abs=0.05)
    several = arviz_stats.summary(tree_of("mixed"), group="target_plus_0", round_to="none")
    assert list(several.index) == ["scale", "share[0]", "share[1]", "share[2]"]
