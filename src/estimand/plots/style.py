"""What the plots share: colours, names and axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

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
    """Adds a legend that covers neither a line nor the axis's own factor."""
    labels = ax.get_legend_handles_labels()[1]
    if labels:
        ax.legend(
            frameon=False,
            ncols=1 if max(map(len, labels)) > LONG_LABEL else 2,
            fontsize="small",
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            borderaxespad=0.2,
        )


def make_legend_solid(legend: Legend) -> None:
    """Undoes the transparency that lines and points have in the plot itself."""
    for line in legend.get_lines():
        line.set_alpha(1.0)
