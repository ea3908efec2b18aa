"""The tail of the weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from estimand.plots.contents import has_posterior_weights, parts_of
from estimand.plots.registry import plot
from estimand.plots.style import (
    DENSITIES,
    add_title,
    axes_or_new,
    check_output,
    legend_above,
    tidy,
)
from estimand.record import PartSummary, Record
from estimand.trust import thresholds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LIMIT = f"{100 * thresholds.MAX_WEIGHT_SHARE:g}\N{NO-BREAK SPACE}%"


@plot(
    caption=f"The tail of the weights. Where Pareto k is above {thresholds.MAX_PARETO_K}, no draw "
    f"may hold more than {LIMIT} (dotted line).",
    needs=has_posterior_weights,
)
def plot_weights(record: Record, *, output: int = 0, ax: Axes | None = None) -> Axes:
    """The share of all weight that the largest weights hold: their tail.

    A line that bends upwards to the left is a tail in which a few draws decide. Where Pareto k is
    above 0.7, no draw may hold more than 0.2 % of the weight (dotted).

    Args:
        record: an estimate.
        output: the number of the output, if the program has several.
        ax: axes to draw on; new ones by default.

    Examples:
        >>> ax = plots.plot_weights(result)
        >>> ax.get_xlabel()
        'rank of the weight'
    """
    check_output(record, output)
    parts = parts_of(record, output)
    if not parts:
        raise ValueError(f"plot_weights: {record.method} keeps no weights.")
    ax = axes_or_new(ax)
    for part in parts:
        _draw_tail(ax, part)
    ax.axhline(
        thresholds.MAX_WEIGHT_SHARE, color=ax.xaxis.label.get_color(), linestyle=":", linewidth=1.5
    )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("rank of the weight")
    ax.set_ylabel("share of the total weight")
    add_title(ax, record, output)
    # The margins of weights that fall to nothing would be many decades wide.
    largest = max(float(np.nanmax(_shares(part), initial=0.0)) for part in parts)
    ax.set_ylim(max(ax.get_ylim()[0], 1e-9), max(2 * largest, 0.03))
    legend_above(ax)
    tidy(ax)
    return ax


def _draw_tail(ax: Axes, part: PartSummary) -> None:
    style = DENSITIES[part.name]
    shares = _shares(part)
    ranks = np.arange(1, shares.size + 1)
    ax.plot(ranks, shares, style.line, color=style.colour, label=_label(part))


def _shares(part: PartSummary) -> np.ndarray:
    """What the largest weights have of the sum of all."""
    return np.exp(part.largest - part.log_z) / part.num_samples


def _label(part: PartSummary) -> str:
    constant = DENSITIES[part.name].constant
    label = f"{constant}: {part.ess:,.0f} effective of {part.num_samples:,}"
    if math.isfinite(part.pareto_k):
        label += f", Pareto k {part.pareto_k:.2f}"
    return label
