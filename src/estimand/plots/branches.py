"""The probabilities of the branches of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from estimand.plots.registry import plot
from estimand.plots.style import (
    ACCENT,
    DENSITIES,
    axes_or_new,
    check_output,
    legend_above,
    tidy,
)
from estimand.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The most probable branches, which have a bar each.
MAX_BARS = 12
# Names of branches that are longer than this are cut off.
MAX_LABEL = 30


def has_branches(record: Record, output: int) -> bool:
    """Whether the program branches; the same for every output, and so shown with the first."""
    return bool(record.branches) and output == 0


@plot(
    caption="The most probable branches: posterior probability with its standard error, and prior "
    "probability (open circles).",
    needs=has_branches,
)
def plot_branches(record: Record, *, output: int = 0, ax: Axes | None = None) -> Axes:
    """The posterior probabilities of the branches of a program, with their standard errors.

    Args:
        record: an estimate of a program that branches.
        output: is not used: all outputs have the same branches.
        ax: axes to draw on; new ones by default.

    Examples:
        >>> @ep.expectation
        ... def coins():
        ...     return numpyro.sample("heads", dist.Binomial(2, 0.5), infer={"branching": True})
        >>> ax = plots.plot_branches(ep.estimate_expectation(coins()))
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['heads=1', 'heads=0', 'heads=2']
    """
    check_output(record, output)
    if not record.branches:
        raise ValueError(f"plot_branches: program {record.program!r} does not branch.")
    shown = record.branches[:MAX_BARS]
    ax = axes_or_new(ax)
    places = np.arange(len(shown))
    probabilities = [branch.probability for branch in shown]
    errors = np.nan_to_num([branch.probability_error for branch in shown], posinf=0.0)
    prior = [branch.prior for branch in shown]
    grey = DENSITIES["gamma2"].colour
    ax.hlines(places, 0, probabilities, color=ACCENT, linewidth=1.5)
    ax.plot(prior, places, "o", color=grey, markerfacecolor="none", label="prior")
    ax.errorbar(probabilities, places, xerr=errors, fmt="o", color=ACCENT, label="posterior")
    ax.set_yticks(places, [_label(branch.text) for branch in shown])
    ax.set_ylim(len(shown) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.set_xlabel("probability of the branch")
    legend_above(ax)
    tidy(ax)
    return ax


def _label(text: str) -> str:
    return text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "…"
