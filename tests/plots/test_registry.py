"""The registry: a plot of one's own is in every report that has the numbers for it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import pytest

import estimand as ep
from estimand import plots
from estimand.plots import Panels, plot, registered_plots, unregister
from estimand.record import Record
from problems.figure1 import figure1

pytest.importorskip("matplotlib")

OWN = [
    "plot_origin",
    "plot_convergence",
    "plot_weights",
    "plot_cost",
    "plot_temperatures",
    "plot_branches",
    "plot_sensitivity",
    "plot_reliability",
]


@functools.cache
def estimate() -> ep.Estimate:
    method = ep.TABI(ep.ImportanceSampling(num_samples=300))
    return ep.estimate_expectation(ep.expectation(figure1)(2.0), method, throw=False)


def names() -> list[str]:
    return [entry.name for entry in registered_plots()]


@pytest.fixture(autouse=True)
def _registry_as_it_was() -> Iterator[None]:
    before = names()
    yield
    for name in set(names()) - set(before):
        unregister(name)
    assert names() == before


def test_the_librarys_own_plots_are_registered_in_order() -> None:
    assert names() == OWN
    for entry in registered_plots():
        assert entry.function is getattr(plots, entry.name)
        assert entry.caption


def test_a_plot_of_ones_own_is_in_the_report() -> None:
    drawn: list[tuple[int, Any]] = []

    def has_numbers(record: Record, output: int) -> bool:
        return record.outputs[output].value > 0

    @plot(caption="mine <&>", needs=has_numbers, panels=(2, 1))
    def plot_mine(record: ep.Estimate, *, output: int = 0, axes: Any = None) -> Any:
        drawn.append((output, axes.shape))
        axes[0].plot([record.value], [0.0], "o")
        return axes

    assert names() == [*OWN, "plot_mine"]
    page = estimate().to_html()
    assert drawn == [(0, (2,))]
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert captions[-1] == "mine &lt;&amp;&gt;"
    unregister("plot_mine")
    assert names() == OWN
    assert "mine &lt;" not in estimate().to_html()


def test_a_plot_is_left_out_where_the_record_has_no_numbers_for_it() -> None:
    @plot(caption="never", needs=lambda record, output: False)
    def plot_never(record: ep.Estimate, *, output: int = 0, ax: Any = None) -> Any:
        pytest.fail("it was drawn")

    assert "never" not in estimate().to_html()


def test_panels_may_depend_on_the_record() -> None:
    def grid(record: Record, output: int) -> tuple[int, int]:
        return len(record.parts), 2

    @plot(caption="parts", panels=grid)
    def plot_parts(record: ep.Estimate, *, output: int = 0, axes: Any = None) -> Any:
        return axes

    assert registered_plots()[-1].panels_for(estimate(), 0) == Panels(3, 2)


def test_what_is_no_plot_is_refused() -> None:
    with pytest.raises(TypeError, match="`output` and `ax`"):

        @plot(caption="no axes")
        def plot_wrong(record: ep.Estimate, *, output: int = 0) -> None: ...

    with pytest.raises(ValueError, match=r"'plot_cost' is registered already"):
        plot(caption="again")(plots.plot_cost)
    with pytest.raises(ValueError, match="No plot is named 'plot_nothing'"):
        unregister("plot_nothing")
