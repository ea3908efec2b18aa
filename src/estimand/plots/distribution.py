"""A distribution function with its band, and both of its tails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from estimand.plots.style import ACCENT, PALETTE, pyplot, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_distribution(
    distribution: Any, *, axes: Any = None, level: float = 0.95
) -> tuple[Axes, Axes]:
    """P(f ≤ t), and beside it both tails on a logarithmic scale, with bands point by point.

    Points whose status is not `ok` are hollow.

    Args:
        distribution: what `distribution` gave.
        axes: two axes to draw on; new ones by default.
        level: of the bands.

    Examples:
        >>> distribution = ep.distribution(program(2.0), [0.0, 1.0, 8.0, 27.0])
        >>> left, right = plots.plot_distribution(distribution)
        >>> right.get_yscale()
        'log'
    """
    if axes is None:
        axes = pyplot().subplots(1, 2, layout="constrained", figsize=(9, 3.6))[1]
    left, right = axes
    colours = {"P(f ≤ t)": ACCENT, "P(f > t)": PALETTE[1]}
    curves = {
        "P(f ≤ t)": (distribution.cdf, distribution.interval(level)),
        "P(f > t)": (distribution.survival, distribution.survival_interval(level)),
    }
    is_good = np.asarray([bool(status) for status in distribution.statuses])
    for ax, names in ((left, ["P(f ≤ t)"]), (right, list(curves))):
        for name in names:
            values, (low, high) = curves[name]
            _draw_curve(ax, distribution.grid, values, low, high, is_good, colours[name], name)
        ax.set_xlabel("t")
        tidy(ax)
    left.set_ylabel("P(f ≤ t)")
    right.set_yscale("log")
    right.set_ylabel("probability")
    right.legend(frameon=False)
    left.set_title(f"Distribution of {distribution.program}", loc="left", fontsize="medium")
    return left, right


def _draw_curve(
    ax: Axes,
    grid: np.ndarray,
    values: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    is_good: np.ndarray,
    colour: str,
    label: str,
) -> None:
    ax.fill_between(grid, low, high, color=colour, alpha=0.25, linewidth=0)
    ax.plot(grid, values, color=colour, linewidth=1.2, label=label)
    ax.plot(grid[is_good], values[is_good], "o", color=colour, markersize=4)
    ax.plot(grid[~is_good], values[~is_good], "o", color=colour, fillstyle="none")
