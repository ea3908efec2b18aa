"""Quantiles and shortfalls: what lies far out, and how probable it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from estimand.plots.style import ACCENT, PALETTE, axes_or_new, legend_above, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# How far the line through a quantile goes: probabilities this many times larger and smaller.
REACH = 10.0
# The share of the worst cases that a picture of them leaves out because they are so far away.
CUT = 0.005
NUM_BINS = 40


def plot_quantiles(quantiles: Any, *, ax: Axes | None = None) -> Axes:
    """Each quantile with its 95 % interval, at the probability beyond it.

    The lines say how that probability falls around a quantile. Quantiles whose status is not `ok`
    are hollow.

    Args:
        quantiles: what ``ep.quantile(…)`` gave.
        ax: axes to draw on; new ones by default.

    Examples:
        >>> quantiles = ep.quantile(program(2.0), [0.5, 1 - 1e-6])
        >>> plots.plot_quantiles(quantiles).get_yscale()
        'log'
    """
    ax = axes_or_new(ax)
    for sign, colour, name in ((1, PALETTE[1], "P(f > t)"), (-1, ACCENT, "P(f ≤ t)")):
        known = [x for x in quantiles.tails if x.sign == sign and np.isfinite(x.value)]
        for number, tail in enumerate(known):
            probabilities = tail.tail.value * np.exp(-tail.curve.depths)
            ratio = probabilities / tail.tail_probability
            is_near = (ratio > 1 / REACH) & (ratio < REACH) & (probabilities <= 1)
            values = sign * tail.curve.values
            ax.plot(values[is_near], probabilities[is_near], color=colour, linewidth=1.2)
            spans = np.abs(np.subtract(tail.interval(), tail.value))[:, None]
            ax.errorbar(
                [tail.value],
                [tail.tail_probability],
                xerr=np.where(np.isfinite(spans), spans, 0.0),
                fmt="o",
                color=colour,
                fillstyle="full" if tail.status else "none",
                capsize=3,
                label=None if number else name,
            )
    ax.set_yscale("log")
    ax.set_xlabel("t")
    ax.set_ylabel("probability")
    legend_above(ax)
    tidy(ax)
    return ax


def plot_shortfall(shortfall: Any, *, ax: Axes | None = None) -> Axes:
    """The values in the worst share of cases, with the quantile where they begin and their mean.

    Args:
        shortfall: what ``ep.shortfall(…)`` gave.
        ax: axes to draw on; new ones by default.

    Examples:
        >>> plots.plot_shortfall(ep.shortfall(program(2.0), 0.01)).get_ylabel()
        'density'
    """
    ax = axes_or_new(ax)
    edge = shortfall.quantile
    is_worse = edge.beyond.values >= edge.sign * edge.value
    values, weights = edge.sign * edge.beyond.values[is_worse], edge.beyond.weights[is_worse]
    if values.size > 1:
        farthest = np.searchsorted(weights.cumsum(), (1 - CUT) * weights.sum())
        end = float(values[min(int(farthest), values.size - 1)])
        ends = min(edge.value, end), max(edge.value, end)
        heights, places = np.histogram(values, NUM_BINS, ends, weights=weights)
        heights /= weights.sum() * np.diff(places)
        ax.stairs(heights, places, fill=True, color=ACCENT, alpha=0.35)
    for value, style, name in ((edge.value, "--", "they begin"), (shortfall.value, "-", "mean")):
        if np.isfinite(value):
            ax.axvline(value, color=PALETTE[1], linestyle=style, label=f"{name}: {value:.5g}")
    ax.set_xlabel(f"value in {shortfall.cases}")
    ax.set_ylabel("density")
    legend_above(ax)
    tidy(ax)
    return ax
