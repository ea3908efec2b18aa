"""Where the expectation comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from estimand.plots.contents import by_coordinate, coordinates, draws_of, has_draws
from estimand.plots.registry import Panels, plot
from estimand.plots.style import (
    DENSITIES,
    add_title,
    axes_or_new,
    check_output,
    expectation_name,
    legend_above,
    make_legend_solid,
    pyplot,
    tidy,
)
from estimand.record import KeptDraws, Record, resample

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Coordinates beyond this many are left out of a corner plot unless they are named.
MAX_CORNER = 4
NUM_BINS = 45


class _Points(NamedTuple):
    """Points of one density: all of them with their weights, and equally weighted ones."""

    name: str
    weighted: np.ndarray
    weights: np.ndarray
    equal: np.ndarray


def _corner_panels(record: Record, _output: int) -> Panels:
    size = min(len(coordinates(record)), MAX_CORNER)
    return Panels(size, size) if size > 2 else Panels()


@plot(
    caption="Where the expectation comes from: draws of the posterior, and of the densities of the "
    "positive and the negative part of the target.",
    needs=has_draws,
    panels=_corner_panels,
)
def plot_origin(
    record: Record,
    sites: str | Sequence[str] | None = None,
    *,
    output: int = 0,
    num_samples: int = 2000,
    axes: Any = None,
) -> Any:
    """Where the expectation comes from: posterior draws against draws of γ·f⁺ and γ·f⁻.

    One coordinate gives histograms, two a scatter plot, more a corner plot.

    Args:
        record: an estimate.
        sites: the sites to show, such as ``"x"``, ``["a", "b"]`` or elements ``"w[2]"``; by
            default the first coordinates of the program, four at most.
        output: the number of the output, if the program has several.
        num_samples: equally weighted draws of each density.
        axes: axes to draw on: one for one or two coordinates, a square array for more.

    Returns:
        The axes, or an array of them for a corner plot.

    Examples:
        >>> ax = plots.plot_origin(result)
        >>> ax.get_xlabel()
        'x'
    """
    check_output(record, output)
    groups = draws_of(record, output)
    if not groups:
        raise ValueError(f"plot_origin: {record.method} keeps no draws.")
    names = _chosen(sites, coordinates(record))
    densities = [_points(draws, names, num_samples) for draws in groups]
    if len(names) > 2:
        return _corner(densities, names, expectation_name(record, output), axes)
    ax = axes_or_new(axes)
    if len(names) == 1:
        _histograms(ax, densities, 0)
        ax.set_ylabel("probability density")
    else:
        _scatter(ax, densities, 0, 1)
        ax.set_ylabel(names[1])
    ax.set_xlabel(names[0])
    add_title(ax, record, output)
    legend_above(ax)
    if len(names) == 2:
        _enlarge_legend(ax)
    tidy(ax)
    return ax


def _chosen(sites: str | Sequence[str] | None, known: list[str]) -> list[str]:
    if not known:
        raise ValueError("plot_origin: the program has no latent site.")
    if sites is None:
        return known[:MAX_CORNER]
    names = []
    for site in [sites] if isinstance(sites, str) else sites:
        matches = [name for name in known if name == site or name.startswith(f"{site}[")]
        if not matches:
            raise ValueError(f"plot_origin: there is no site {site!r}; there are {known}.")
        names.extend(matches)
    return names


def _points(draws: KeptDraws, names: list[str], num_samples: int) -> _Points:
    columns = by_coordinate(draws)
    # In a program that branches, a density may have no mass where a site is.
    absent = np.full(draws.log_weights.size, np.nan)
    points = np.stack([columns.get(name, absent) for name in names], axis=1)
    chosen = resample(draws.log_weights, num_samples, np.random.default_rng(0))
    return _Points(draws.name, points, draws.weights, points[chosen])


def _corner(densities: list[_Points], names: list[str], title: str, axes: Any) -> np.ndarray:
    axes = _new_corner_axes(len(names)) if axes is None else np.asarray(axes)
    for row in range(len(names)):
        for column in range(len(names)):
            if column > row:
                axes[row, column].set_axis_off()
            else:
                _corner_cell(axes, densities, names, row, column)
    handles, texts = axes[0, 0].get_legend_handles_labels()
    axes[0, 1].legend(handles, texts, loc="upper left", frameon=False, title=title)
    return axes


def _new_corner_axes(size: int) -> np.ndarray:
    side = max(6.4, 1.8 * size)
    return pyplot().subplots(size, size, layout="constrained", figsize=(side, side))[1]


def _corner_cell(
    axes: np.ndarray, densities: list[_Points], names: list[str], row: int, column: int
) -> None:
    ax = axes[row, column]
    is_bottom = row == len(names) - 1
    is_left = column == 0 and row > 0
    if column == row:
        _histograms(ax, densities, row)
        ax.set_yticks([])
    else:
        _scatter(ax, densities, column, row)
        ax.sharex(axes[column, column])
    tidy(ax)
    ax.tick_params(labelsize="small", labelbottom=is_bottom, labelleft=is_left)
    if is_bottom:
        ax.set_xlabel(names[column])
    if is_left:
        ax.set_ylabel(names[row])


def _histograms(ax: Axes, densities: list[_Points], column: int) -> None:
    everything = np.concatenate([points.equal[:, column] for points in densities])
    everything = everything[np.isfinite(everything)]
    if not everything.size:
        return
    low, high = np.quantile(everything, [0.001, 0.999])
    if not high > low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, NUM_BINS + 1)
    for points in densities:
        style = DENSITIES[points.name]
        is_there = np.isfinite(points.weighted[:, column])
        if not is_there.any():
            continue
        heights, _ = np.histogram(
            points.weighted[is_there, column], edges, weights=points.weights[is_there], density=True
        )
        ax.stairs(heights, edges, fill=True, color=style.colour, alpha=0.35)
        ax.stairs(heights, edges, color=style.colour, label=style.label)


def _scatter(ax: Axes, densities: list[_Points], x: int, y: int) -> None:
    for points in densities:
        style = DENSITIES[points.name]
        ax.plot(
            points.equal[:, x],
            points.equal[:, y],
            ".",
            color=style.colour,
            alpha=0.4,
            markersize=4,
            markeredgewidth=0,
            label=style.label,
            rasterized=True,
        )


def _enlarge_legend(ax: Axes) -> None:
    """Makes the small transparent dots of a scatter plot easy to see in its legend."""
    legend = ax.get_legend()
    assert legend is not None
    make_legend_solid(legend)
    for line in legend.get_lines():
        line.set_markersize(8)
