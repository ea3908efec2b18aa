"""What an event hangs on: the importance of every site at its design points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from estimand.plots.registry import plot
from estimand.plots.style import PALETTE, axes_or_new, check_output, legend_above, tidy
from estimand.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Design points that have a bar.
MAX_BARS = 8


def _has_points(record: Record, output: int) -> bool:
    known = record.reliabilities.get(output)
    return known is not None and bool(known.design_points)


@plot(
    caption="What the event hangs on: importance at its design points, the most likely points of "
    "its branches.",
    needs=_has_points,
)
def plot_reliability(record: Record, *, output: int = 0, ax: Axes | None = None) -> Axes:
    """The importance of the sites at every design point of an event, as bars of shares.

    Reports show it once ``record.reliability()`` was called.

    Args:
        record: an estimate whose reliability was asked for.
        output: the number of the output, if the program has several.
        ax: axes to draw on; new ones by default.

    Examples:
        >>> event = ep.expect(program.model, lambda sites: sites["x"] > 4)
        >>> result = ep.estimate_expectation(event(2.0))
        >>> reliability = result.reliability()
        >>> plots.plot_reliability(result).get_xlabel()
        'importance'
    """
    check_output(record, output)
    if not _has_points(record, output):
        raise ValueError(
            f"plot_reliability: no design points of output {output} are known: call "
            f"reliability({output}) of the estimate first."
        )
    known = record.reliabilities[output]
    points = known.design_points[:MAX_BARS]
    ax = axes_or_new(ax)
    places, left = np.arange(len(points)), np.zeros(len(points))
    for colour, (label, importance) in zip(PALETTE, known.ranked(len(PALETTE)), strict=False):
        shares = importance[: len(points)]
        ax.barh(places, shares, left=left, color=colour, label=label, height=0.6)
        left += shares
    labels = [f"{number}: {100 * point.share:.0f} %" for number, point in enumerate(points, 1)]
    ax.set_yticks(places, labels)
    ax.set_ylabel("design point: share")
    ax.set_ylim(len(points) - 0.5, -0.5)
    ax.set_xlim(0, 1)
    ax.set_xlabel("importance")
    legend_above(ax)
    tidy(ax)
    return ax
