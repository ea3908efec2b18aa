"""Plots: what they show is what the record says, and loaded records do as well as fresh ones."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.plots.style import log_axis
from problems.figure1 import figure1

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")

plt: Any = importlib.import_module("matplotlib.pyplot")
plots: Any = importlib.import_module("estimand.plots")

cube = ep.expectation(figure1)


@ep.expectation
def several() -> Any:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    w = numpyro.sample("w", dist.Gamma(2.0 * jnp.ones(2), 1.0).to_event(1))
    return {"sum": a + w.sum(), "event": w[0] > 4.0}


METHODS: dict[str, Any] = {
    "annealed": ep.TABI(ep.AnIS(num_samples=300, num_temperatures=10, keep_path=True)),
    "islands": ep.TABI(ep.SMC(num_particles=200, num_steps=10, num_islands=6)),
    "chains": ep.PosteriorMCMC(num_samples=200, kernel=ep.RandomWalk(scale=1.0)),
    "prior": ep.TABI(ep.ImportanceSampling(num_samples=4000)),
}


@functools.cache
def estimate(name: str) -> ep.Estimate:
    program, method = name.split()
    expectation = cube(2.0) if program == "cube" else several()
    return ep.estimate_expectation(expectation, METHODS[method], throw=False)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


def test_convergence_ends_at_the_estimate() -> None:
    result = estimate("cube annealed")
    ax = plots.plot_convergence(result, truth=2.5)
    line, truth = ax.get_lines()
    assert line.get_xydata()[-1] == pytest.approx([result.cost, result.value])
    assert list(truth.get_ydata()) == [2.5, 2.5]
    band = ax.collections[0].get_paths()[0].vertices
    at_end = band[np.isclose(band[:, 0], result.cost), 1]
    assert [at_end.min(), at_end.max()] == pytest.approx(list(result.interval()))
    low, high = ax.get_ylim()
    assert low < result.value < high
    assert "E[figure1]" in ax.get_ylabel()


def test_convergence_of_records_without_a_path() -> None:
    ax = plots.plot_convergence(estimate("cube chains"))
    bars = ax.containers[0]
    assert bars.has_yerr

    @ep.expectation
    def nothing() -> Any:
        return numpyro.sample("x", dist.Normal(0.0, 1.0)) > 30.0

    result = ep.estimate_expectation(nothing(), METHODS["prior"], throw=False)
    ax = plots.plot_convergence(result)
    assert [text.get_text() for text in ax.texts] == ["no mass found"]


@pytest.mark.parametrize(
    ("values", "scale"),
    [([1.0, 100.0], "log"), ([1e5, 1.2e5], "linear"), ([3e-19, 3e-18], "linear")],
)
def test_an_axis_is_logarithmic_where_there_is_more_than_a_decade(
    values: list[float], scale: str
) -> None:
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    log_axis(ax, "x", np.asarray(values))
    log_axis(ax, "y", np.asarray([*values, math.inf, 0.0]))
    assert ax.get_xscale() == ax.get_yscale() == scale


def test_cost_against_error() -> None:
    records = [estimate("cube annealed"), estimate("cube chains"), estimate("cube islands")]
    ax = plots.plot_cost(*records)
    ends = {tuple(line.get_xydata()[-1]) for line in ax.get_lines()}
    for record in records:
        assert any(end == pytest.approx((record.cost, record.standard_error)) for end in ends)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert len(labels) == 3
    assert ax.get_xscale() == "log"
    with pytest.raises(ValueError, match="at least one"):
        plots.plot_cost()


def test_weights_show_the_tail() -> None:
    result = estimate("cube annealed")
    ax = plots.plot_weights(result)
    lines = {line.get_label().split(":")[0]: line for line in ax.get_lines()}
    weights = np.sort(np.exp(np.asarray(dict(result.evidence)["gamma2"].log_weights)))[::-1]
    np.testing.assert_allclose(lines["Z2"].get_ydata(), weights / weights.sum())
    assert {"Z1_plus", "Z1_minus", "Z2"} <= set(lines)
    with pytest.raises(ValueError, match="keeps no weights"):
        plots.plot_weights(estimate("cube chains"))


def test_temperatures() -> None:
    result = estimate("cube annealed")
    axes = plots.plot_temperatures(result)
    assert [len(ax.get_lines()) for ax in axes] == [3, 3, 3]
    betas = axes[0].get_lines()[0].get_ydata()
    np.testing.assert_allclose(betas, np.linspace(0, 1, 11))
    part = result.part("gamma2")
    assert part is not None
    assert axes[2].get_lines()[0].get_ydata()[-1] == pytest.approx(part.ess / 300)
    axes = plots.plot_temperatures(estimate("cube islands"))
    assert len(axes[0].get_lines()) == 3 * 6
    assert "keep_path" in axes[2].texts[0].get_text()
    with pytest.raises(ValueError, match="no temperatures"):
        plots.plot_temperatures(estimate("several prior"))


def test_origin_in_one_two_and_more_dimensions() -> None:
    ax = plots.plot_origin(estimate("cube annealed"))
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["posterior γ", "γ·f⁺", "γ·f⁻"]
    result = estimate("several prior")
    number = result.output.labels.index("event")
    ax = plots.plot_origin(result, "w", output=number)
    clouds = {line.get_label(): line.get_xydata() for line in ax.get_lines()}
    assert (clouds["γ·f⁺"][:, 0] > 4.0).all()
    assert (clouds["posterior γ"][:, 0] > 4.0).mean() == pytest.approx(0.0916, abs=0.03)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("w[0]", "w[1]")
    axes = plots.plot_origin(result, output=number)
    assert axes.shape == (3, 3)
    assert axes[2, 0].get_xlabel() == "a"
    single = plots.plot_origin(result, "w[1]", output=number)
    assert single.get_xlabel() == "w[1]"
    with pytest.raises(ValueError, match=r"no site 'v'; there are \['a', 'w\[0\]', 'w\[1\]'\]"):
        plots.plot_origin(result, ["a", "v"])
    with pytest.raises(ValueError, match="output must be from 0 to 1"):
        plots.plot_origin(result, output=2)
    with pytest.raises(ValueError, match="keeps no draws"):
        plots.plot_origin(estimate("cube chains"))


def test_histograms_are_densities() -> None:
    """Areas of 1, and heights of the exact posterior N(1, 1/2)."""
    result = ep.estimate_expectation(
        cube(2.0), ep.TABI(ep.ImportanceSampling(num_samples=100_000)), throw=False
    )
    ax = plots.plot_origin(result)
    heights, edges, _ = ax.patches[0].get_data()
    assert np.sum(heights * np.diff(edges)) == pytest.approx(1.0)
    centers = (edges[1:] + edges[:-1]) / 2
    exact = np.exp(-((centers - 1.0) ** 2)) / math.sqrt(math.pi)
    assert np.abs(heights - exact).max() < 0.12


def test_given_axes_are_used_and_loaded_records_do(tmp_path: Path) -> None:
    estimate("cube annealed").save(tmp_path / "r.est")
    loaded = ep.load(tmp_path / "r.est")
    for plot in (
        plots.plot_convergence,
        plots.plot_weights,
        plots.plot_cost,
    ):
        figure, ax = plt.subplots()
        assert plot(loaded, ax=ax) is ax
        figure.canvas.draw()
    _, axes = plt.subplots(3)
    assert plots.plot_temperatures(loaded, axes=axes)[0] is axes[0]
    _, ax = plt.subplots()
    assert plots.plot_origin(loaded, axes=ax) is ax
