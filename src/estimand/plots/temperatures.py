"""The way from the prior to each density."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from estimand.plots.contents import has_temperatures, tempered_parts_of
from estimand.plots.registry import Panels, plot
from estimand.plots.style import (
    DENSITIES,
    add_title,
    check_output,
    make_legend_solid,
    pyplot,
    tidy,
)
from estimand.record import PartSummary, Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Steps are marked with dots if there are no more than this many.
MAX_MARKED = 12
LINE_WIDTH = 1.5


class _Quantity(NamedTuple):
    """What one panel shows: a field of the parts, and its label."""

    field: str
    label: str


QUANTITIES = (
    _Quantity("betas", "inverse temperature β"),
    _Quantity("acceptance", "acceptance rate"),
    _Quantity("effective", "effective share"),
)
PANELS = Panels(len(QUANTITIES), 1, share_x=True)


@plot(
    caption="On the way from the prior to each target: temperature, acceptance, and the share of "
    "particles that still count.",
    needs=has_temperatures,
    panels=PANELS,
)
def plot_temperatures(record: Record, *, output: int = 0, axes: Any = None) -> np.ndarray:
    """Inverse temperature, acceptance and effective share along the way from prior to target.

    Only annealed and sequential methods have such a way. The effective share is kept with
    ``AnIS(keep_path=True)``.

    Args:
        record: an estimate.
        output: the number of the output, if the program has several.
        axes: three axes to draw on; new ones by default.

    Examples:
        >>> method = ep.TABI(ep.AnIS(num_temperatures=20, keep_path=True))
        >>> annealed = ep.estimate_expectation(program(2.0), method)
        >>> [ax.get_ylabel() for ax in plots.plot_temperatures(annealed)]
        ['inverse temperature β', 'acceptance rate', 'effective share']
    """
    check_output(record, output)
    parts = tempered_parts_of(record, output)
    if not parts:
        raise ValueError(f"plot_temperatures: {record.method} goes through no temperatures.")
    axes = _new_axes() if axes is None else np.asarray(axes)
    for ax, quantity in zip(axes, QUANTITIES, strict=True):
        _draw_quantity(ax, quantity, parts)
    add_title(axes[0], record, output)
    _add_legend(axes[0])
    axes[-1].set_xlabel("step")
    axes[-1].locator_params(axis="x", integer=True)
    return axes


def _new_axes() -> np.ndarray:
    _, axes = pyplot().subplots(
        PANELS.rows, PANELS.columns, sharex=True, layout="constrained", figsize=(6.4, 6.4)
    )
    return axes


def _draw_quantity(ax: Axes, quantity: _Quantity, parts: list[PartSummary]) -> None:
    for part in parts:
        _draw_islands(ax, part, getattr(part, quantity.field))
    if not any(np.isfinite(getattr(part, quantity.field)).any() for part in parts):
        words = "not kept by this method; AnIS keeps it with keep_path=True"
        ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", color="grey")
    ax.set_ylabel(quantity.label)
    ax.set_ylim(-0.03, 1.05)
    tidy(ax)


def _draw_islands(ax: Axes, part: PartSummary, islands: np.ndarray) -> None:
    """Draws a line for each island, thin ones if there are several; the first has the label."""
    style = DENSITIES[part.name]
    is_single = len(islands) == 1
    for number, values in enumerate(islands):
        steps, is_known = np.arange(values.size), np.isfinite(values)
        ax.plot(
            steps[is_known],
            values[is_known],
            style.line,
            marker="." if is_known.sum() <= MAX_MARKED else "",
            color=style.colour,
            alpha=1.0 if is_single else 0.4,
            linewidth=LINE_WIDTH if is_single else 0.8,
            label=style.constant if number == 0 else None,
        )


def _add_legend(ax: Axes) -> None:
    legend = ax.legend(frameon=False)
    make_legend_solid(legend)
    for line in legend.get_lines():
        line.set_linewidth(LINE_WIDTH)
