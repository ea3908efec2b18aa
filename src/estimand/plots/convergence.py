"""How the estimate settled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from estimand.plots.contents import IntervalPath, interval_path
from estimand.plots.registry import plot
from estimand.plots.style import (
    ACCENT,
    COST_LABEL,
    TRUTH,
    axes_or_new,
    check_output,
    expectation_name,
    legend_above,
    tidy,
)
from estimand.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# From this ratio of the last cost to the first on, the axis of costs is logarithmic.
WIDE_RANGE = 20.0


@plot(caption="How the estimate settled as more of the draws were counted.")
def plot_convergence(
    record: Record, *, output: int = 0, truth: float | None = None, ax: Axes | None = None
) -> Axes:
    """The estimate from growing shares of the draws, with its 95 % interval.

    Args:
        record: an estimate.
        output: the number of the output, if the program has several.
        truth: the exact value, if it is known, drawn as a line.
        ax: axes to draw on; new ones by default.

    Examples:
        >>> ax = plots.plot_convergence(result, truth=2.5)
        >>> ax.get_ylabel()
        'E[program]'
    """
    check_output(record, output)
    ax = axes_or_new(ax)
    path = interval_path(record, output)
    _draw_estimate(ax, path)
    if truth is not None:
        ax.axhline(truth, color=TRUTH, linestyle="--", label=f"truth, {truth:.6g}")
    _scale_cost(ax, path.cost)
    if len(path.cost) > 2:
        _focus(ax, path, truth)
    ax.set_xlabel(COST_LABEL)
    ax.set_ylabel(expectation_name(record, output))
    legend_above(ax)
    tidy(ax)
    return ax


def _draw_estimate(ax: Axes, path: IntervalPath) -> None:
    label = "estimate, 95 % interval"
    if len(path.cost) > 1:
        ax.fill_between(path.cost, path.low, path.high, color=ACCENT, alpha=0.2, linewidth=0)
        ax.plot(path.cost, path.value, color=ACCENT, label=label)
    elif np.isfinite([path.low, path.high]).all():
        reach = np.abs([path.low - path.value, path.high - path.value])
        ax.errorbar(path.cost, path.value, reach, fmt="o", capsize=4, color=ACCENT, label=label)
    else:
        ax.text(0.5, 0.5, "no mass found", transform=ax.transAxes, ha="center", va="center")


def _scale_cost(ax: Axes, cost: np.ndarray) -> None:
    if cost[-1] > WIDE_RANGE * cost[0]:
        ax.set_xscale("log")
    else:
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.locator_params(axis="x", nbins=6)


def _focus(ax: Axes, path: IntervalPath, truth: float | None) -> None:
    """Sets limits that show how the estimate settles, not how wild the first few draws were."""
    start = len(path.value) // 4
    low, high = path.low[start:].min(), path.high[start:].max()
    if truth is not None:
        low, high = min(low, truth), max(high, truth)
    if math.isfinite(low) and math.isfinite(high) and high > low:
        margin = 0.08 * (high - low)
        ax.set_ylim(low - margin, high + margin)
