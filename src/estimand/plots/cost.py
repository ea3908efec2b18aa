"""Error against cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from estimand.plots.contents import has_path
from estimand.plots.registry import plot
from estimand.plots.style import (
    ACCENT,
    COST_LABEL,
    PALETTE,
    axes_or_new,
    check_output,
    expectation_name,
    legend_above,
    log_axis,
    tidy,
)
from estimand.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Names of methods that are longer than this are cut off in the legend.
MAX_LABEL = 40


@plot(caption="Error against cost; dotted, the rate of independent draws.", needs=has_path)
def plot_cost(*records: Record, output: int = 0, ax: Axes | None = None) -> Axes:
    """Standard error against cost; several records in one plot.

    The axes are logarithmic where there is more than a decade to show.

    The dotted line is the rate of independent draws, cost to the power −½.

    Args:
        records: one estimate, or several to compare.
        output: the number of the output, if the program has several.
        ax: axes to draw on; new ones by default.

    Examples:
        >>> ax = plots.plot_cost(result)
        >>> ax.get_ylabel()
        'standard error of E[program]'
    """
    if not records:
        raise ValueError("plot_cost: give at least one estimate.")
    ax = axes_or_new(ax)
    palette = PALETTE if len(records) > 1 else (ACCENT,)
    for number, record in enumerate(records):
        check_output(record, output)
        _draw_record(ax, record, output, palette[number % len(palette)])
    paths = [record.paths[output] for record in records]
    log_axis(ax, "x", np.concatenate([path.cost for path in paths]))
    log_axis(ax, "y", np.concatenate([path.standard_error for path in paths]))
    ax.set_xlabel(COST_LABEL)
    ax.set_ylabel(f"standard error of {expectation_name(records[0], output)}")
    if len(records) > 1:
        legend_above(ax)
    tidy(ax)
    return ax


def _draw_record(ax: Axes, record: Record, output: int, colour: str) -> None:
    path = record.paths[output]
    is_drawn = np.isfinite(path.standard_error) & (path.standard_error > 0)
    if not is_drawn.any():
        return
    cost, error = path.cost[is_drawn], path.standard_error[is_drawn]
    ax.plot(cost, error, color=colour)
    ax.plot(cost[-1], error[-1], "o", color=colour, label=_method_label(record))
    first = cost[0] if cost[0] < cost[-1] else cost[-1] / 4
    reference = np.asarray([first, cost[-1]])
    rate = error[-1] * np.sqrt(cost[-1] / reference)
    ax.plot(reference, rate, ":", color=colour, alpha=0.7)


def _method_label(record: Record) -> str:
    if len(record.method) <= MAX_LABEL:
        return record.method
    return record.method[: MAX_LABEL - 1] + "…"
