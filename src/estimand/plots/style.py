"""What the plots share: colours, names and axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from estimand.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend


class DensityStyle(NamedTuple):
    """How the plots show one density, and the name of its normalising constant."""

    label: str
    constant: str
    colour: str
    line: str


# In the order in which they are drawn. People with any colour vision can tell these colours apart
# (Okabe and Ito 2008).
DENSITIES = {
    "gamma2": DensityStyle("posterior γ", "Z2", "#6f7c88", "-"),
    "gamma1_plus": DensityStyle("γ·f⁺", "Z1_plus", "#d55e00", "-"),
    "gamma1_minus": DensityStyle("γ·f⁻", "Z1_minus", "#0072b2", "--"),
}
ACCENT = "#00795c"
TRUTH = "#8a2be2"
PALETTE = ("#00795c", "#d55e00", "#0072b2", "#cc79a7", "#e69f00", "#56b4e9", "#5f6b76")

COST_LABEL = "cost (evaluations, a gradient counting as 3)"
# A legend with a label longer than this has one column.
LONG_LABEL = 30
# Characters that title and legend may have beside each other, and points between them if not.
MAX_LINE = 52
TITLE_PAD, ROW_HEIGHT = 6.0, 13.0
# From this ratio of the largest to the smallest number on, an axis is logarithmic.
MIN_DECADE = 20.0
LARGE = 1000.0


def pyplot() -> Any:
    """``matplotlib.pyplot``, which is imported only when a plot is drawn."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'estimand[plots]'") from error
    return plt


def axes_or_new(ax: Axes | None) -> Axes:
    """The given axes, or those of a new picture."""
    if ax is not None:
        return ax
    return pyplot().subplots(layout="constrained")[1]


def check_output(record: Record, output: int) -> None:
    """Raises if the record has no output of this number."""
    if not 0 <= output < record.output.size:
        raise ValueError(f"output must be from 0 to {record.output.size - 1}; it is {output}.")


def expectation_name(record: Record, output: int) -> str:
    """The expectation as it is written in titles and labels."""
    return f"E[{record.names[output]}]"


def add_title(ax: Axes, record: Record, output: int) -> None:
    """Writes the expectation above the axes, on the left."""
    ax.set_title(expectation_name(record, output), loc="left", fontsize="medium")


def tidy(ax: Axes) -> None:
    """Leaves a light grid and two spines."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)


def legend_above(ax: Axes) -> None:
    """Adds a legend that covers neither a line nor the axis's own factor, nor the title."""
    labels = ax.get_legend_handles_labels()[1]
    if not labels:
        return
    columns = 1 if max(map(len, labels)) > LONG_LABEL else 2
    ax.legend(
        frameon=False,
        ncols=columns,
        fontsize="small",
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        borderaxespad=0.2,
    )
    title = ax.get_title(loc="left")
    rows = -(-len(labels) // columns)
    width = len(title) + sum(len(label) + 6 for label in labels[:columns])
    if title and width > MAX_LINE:
        ax.set_title(title, loc="left", fontsize="medium", pad=TITLE_PAD + ROW_HEIGHT * rows)


def log_axis(ax: Axes, name: str, values: np.ndarray) -> None:
    """A logarithmic axis whose labels do not collide; a linear one for less than a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axis = ax.xaxis if name == "x" else ax.yaxis
    known = values[np.isfinite(values) & (values > 0)]
    if not known.size or known.max() >= MIN_DECADE * known.min():
        (ax.set_xscale if name == "x" else ax.set_yscale)("log")
        axis.set_major_locator(LogLocator(numticks=6))
        axis.set_minor_formatter(NullFormatter())
    elif known.max() >= LARGE:
        axis.set_major_locator(MaxNLocator(3))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def make_legend_solid(legend: Legend) -> None:
    """Undoes the transparency that lines and points have in the plot itself."""
    for line in legend.get_lines():
        line.set_alpha(1.0)
