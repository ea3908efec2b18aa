"""Plots of a record: each is a function of the record alone and returns its axes.

Needs matplotlib: ``pip install 'estimand[plots]'``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from estimand.methods.protocol import CONFIDENCE, Figures
from estimand.record.record import Draws, Record, confidence_interval, resample
from estimand.view.diagnosis import Z_NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Colours that people with any colour vision tell apart (Okabe and Ito 2008).
COLOURS = {"gamma2": "#6f7c88", "gamma1_plus": "#d55e00", "gamma1_minus": "#0072b2"}
LINES = {"gamma2": "-", "gamma1_plus": "-", "gamma1_minus": "--"}
ACCENT = "#00795c"
TRUTH = "#8a2be2"
PALETTE = ("#00795c", "#d55e00", "#0072b2", "#cc79a7", "#e69f00", "#56b4e9", "#5f6b76")
DENSITIES = {
    "gamma2": "posterior γ",
    "gamma1_plus": "γ·f⁺",
    "gamma1_minus": "γ·f⁻",
}
_ORDER = ("gamma2", "gamma1_plus", "gamma1_minus")
# Sites beyond this many are left out of a corner plot unless they are named.
MAX_CORNER = 4
# From this ratio of costs on they are drawn on a logarithmic axis.
WIDE = 20.0


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    return _pyplot().subplots(layout="constrained")[1]


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'estimand[plots]'") from error
    return plt


def _title(record: Record, output: int) -> str:
    return f"E[{record.names[output]}]"


def _check_output(record: Record, output: int) -> None:
    if not 0 <= output < record.output.size:
        raise ValueError(f"output must be from 0 to {record.output.size - 1}; it is {output}.")


def _tidy(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)


def _legend_above(ax: Axes) -> None:
    """A legend that covers neither a line nor the axis's own factor."""
    labels = ax.get_legend_handles_labels()[1]
    if labels:
        ax.legend(
            frameon=False,
            ncols=1 if max(map(len, labels)) > 30 else 2,
            fontsize="small",
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            borderaxespad=0.2,
        )


# --- how the estimate settled ---


def plot_convergence(
    record: Record, *, output: int = 0, truth: float | None = None, ax: Axes | None = None
) -> Axes:
    """The estimate from growing shares of the draws, with its 95 % interval.

    Args:
        record: an estimate.
        output: the number of the output, if the program has several.
        truth: the exact value, if it is known, as a line.
        ax: axes to draw on; new ones by default.

    Examples:
        >>> ax = plots.plot_convergence(result, truth=2.5)
        >>> ax.get_ylabel()
        'E[program]'
    """
    _check_output(record, output)
    ax = _axes(ax)
    path, figures = record.paths[output], record.run.figures[output]
    ends = np.asarray([_ends(figures, *point) for point in zip(*path[1:], strict=True)])
    if len(path.cost) > 1:
        ax.fill_between(path.cost, *ends.T, color=ACCENT, alpha=0.2, linewidth=0)
        ax.plot(path.cost, path.value, color=ACCENT, label="estimate, 95 % interval")
    elif np.isfinite(ends).all():
        reach = np.abs(ends.T - path.value)
        label = "estimate, 95 % interval"
        ax.errorbar(path.cost, path.value, reach, fmt="o", capsize=4, color=ACCENT, label=label)
    else:
        ax.text(0.5, 0.5, "no mass found", transform=ax.transAxes, ha="center", va="center")
    if truth is not None:
        ax.axhline(truth, color=TRUTH, linestyle="--", label=f"truth, {truth:.6g}")
    if path.cost[-1] > WIDE * path.cost[0]:
        ax.set_xscale("log")
    else:
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.locator_params(axis="x", nbins=6)
    if len(path.cost) > 2:
        _focus(ax, path.value, ends, truth)
    ax.set_xlabel("cost (evaluations, a gradient counting as 3)")
    ax.set_ylabel(_title(record, output))
    _legend_above(ax)
    _tidy(ax)
    return ax


def _ends(figures: Figures, value: float, error: float) -> tuple[float, float]:
    shown = figures._replace(value=float(value), standard_error=float(error), upper_bound=math.inf)
    return confidence_interval(shown, False, CONFIDENCE)


def _focus(ax: Axes, values: np.ndarray, ends: np.ndarray, truth: float | None) -> None:
    """Limits that show how the estimate settles, not how wild the first few draws were."""
    start = len(values) // 4
    low, high = ends[start:, 0].min(), ends[start:, 1].max()
    if truth is not None:
        low, high = min(low, truth), max(high, truth)
    if math.isfinite(low) and math.isfinite(high) and high > low:
        margin = 0.08 * (high - low)
        ax.set_ylim(low - margin, high + margin)


def plot_cost(*records: Record, output: int = 0, ax: Axes | None = None) -> Axes:
    """Standard error against cost, on logarithmic axes; several records side by side.

    The dotted line is the rate of independent draws, cost to the power −½.

    Args:
        records: one estimate, or several to compare.
        output: the number of the output, if the program has several.
        ax: axes to draw on; new ones by default.

    Examples:
        >>> ax = plots.plot_cost(result)
        >>> ax.get_yscale()
        'log'
    """
    if not records:
        raise ValueError("plot_cost: give at least one estimate.")
    ax = _axes(ax)
    palette = PALETTE if len(records) > 1 else (ACCENT,)
    for number, record in enumerate(records):
        _check_output(record, output)
        path, colour = record.paths[output], palette[number % len(palette)]
        keep = np.isfinite(path.standard_error) & (path.standard_error > 0)
        if not keep.any():
            continue
        cost, error = path.cost[keep], path.standard_error[keep]
        label = record.method if len(record.method) < 40 else record.method[:37] + "…"
        ax.plot(cost, error, color=colour)
        ax.plot(cost[-1], error[-1], "o", color=colour, label=label)
        reference = np.asarray([cost[0], cost[-1]]) if cost[0] < cost[-1] else cost[-1] / [4.0, 1.0]
        rate = error[-1] * np.sqrt(cost[-1] / reference)
        ax.plot(reference, rate, ":", color=colour, alpha=0.7)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("cost (evaluations, a gradient counting as 3)")
    ax.set_ylabel(f"standard error of {_title(records[0], output)}")
    if len(records) > 1:
        _legend_above(ax)
    _tidy(ax)
    return ax


# --- weights and temperatures ---


def plot_weights(record: Record, *, output: int = 0, ax: Axes | None = None) -> Axes:
    """The share of all weight that the largest weights hold: their tail.

    The largest weight of a healthy estimate holds well under 1 % (dotted). A line that bends
    upwards to the left is a tail in which a few draws decide.

    Args:
        record: an estimate.
        output: the number of the output, if the program has several.
        ax: axes to draw on; new ones by default.

    Examples:
        >>> ax = plots.plot_weights(result)
        >>> ax.get_xlabel()
        'rank of the weight'
    """
    _check_output(record, output)
    ax = _axes(ax)
    found = [part for name in _ORDER if (part := record.part(name, output)) is not None]
    if not found:
        raise ValueError(f"plot_weights: {record.method} keeps no weights.")
    for part in found:
        shares = np.exp(part.largest - part.log_z) / part.num_samples
        ranks = np.arange(1, shares.size + 1)
        k = f", Pareto k {part.pareto_k:.2f}" if math.isfinite(part.pareto_k) else ""
        label = f"{Z_NAMES[part.name]}: {part.ess:,.0f} effective of {part.num_samples:,}{k}"
        ax.plot(ranks, shares, LINES[part.name], color=COLOURS[part.name], label=label)
    ax.axhline(0.01, color=ax.xaxis.label.get_color(), linestyle=":", linewidth=1.5)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("rank of the weight")
    ax.set_ylabel("share of the total weight")
    ax.set_title(_title(record, output), loc="left", fontsize="medium")
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, 1e-9), max(high, 0.03))
    _legend_above(ax)
    _tidy(ax)
    return ax


def plot_temperatures(record: Record, *, output: int = 0, axes: Any = None) -> np.ndarray:
    """Inverse temperature, acceptance and effective share along the way from prior to target.

    Only annealed and sequential methods have such a way; the effective share is kept with
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
    _check_output(record, output)
    parts = [
        part
        for name in _ORDER
        if (part := record.part(name, output)) is not None and part.betas.size
    ]
    if not parts:
        raise ValueError(f"plot_temperatures: {record.method} goes through no temperatures.")
    if axes is None:
        figure = _pyplot().subplots(3, 1, sharex=True, layout="constrained", figsize=(6.4, 6.4))
        axes = figure[1]
    axes = np.asarray(axes)
    panels = ("betas", "acceptance", "effective")
    names = ("inverse temperature β", "acceptance rate", "effective share")
    for ax, panel, label in zip(axes, panels, names, strict=True):
        for part in parts:
            # Islands are thin lines; the first carries the label.
            for number, row in enumerate(getattr(part, panel)):
                steps, there = np.arange(row.size), np.isfinite(row)
                name = Z_NAMES[part.name] if number == 0 else None
                few = getattr(part, panel).shape[0] == 1
                marker = "." if there.sum() <= 12 else ""
                ax.plot(
                    steps[there],
                    row[there],
                    LINES[part.name],
                    marker=marker,
                    color=COLOURS[part.name],
                    alpha=1.0 if few else 0.4,
                    linewidth=1.5 if few else 0.8,
                    label=name,
                )
        has_line = any(np.isfinite(getattr(part, panel)).any() for part in parts)
        if not has_line:
            words = "not kept by this method; AnIS keeps it with keep_path=True"
            ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", color="grey")
        ax.set_ylabel(label)
        ax.set_ylim(-0.03, 1.05)
        _tidy(ax)
    axes[0].set_title(_title(record, output), loc="left", fontsize="medium")
    legend = axes[0].legend(frameon=False)
    for line in legend.get_lines():
        line.set_alpha(1.0)
        line.set_linewidth(1.5)
    axes[-1].set_xlabel("step")
    axes[-1].locator_params(axis="x", integer=True)
    return axes


# --- where the expectation comes from ---


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
            default the first coordinates of the program, four at the most.
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
    _check_output(record, output)
    groups = [draws for name in _ORDER if (draws := record.draws_of(name, output)) is not None]
    if not groups:
        raise ValueError(f"plot_origin: {record.method} keeps no draws.")
    names = _chosen(sites, coordinates(record))
    clouds = [_cloud(draws, names, num_samples) for draws in groups]
    if len(names) == 1:
        ax = _axes(axes)
        _histograms(ax, clouds, 0)
        ax.set_xlabel(names[0])
        ax.set_ylabel("probability density")
        ax.set_title(_title(record, output), loc="left", fontsize="medium")
        _legend_above(ax)
        _tidy(ax)
        return ax
    if len(names) == 2:
        ax = _axes(axes)
        _scatter(ax, clouds, 0, 1)
        ax.set_xlabel(names[0])
        ax.set_ylabel(names[1])
        ax.set_title(_title(record, output), loc="left", fontsize="medium")
        _legend_above(ax)
        _dark_legend(ax.get_legend())
        _tidy(ax)
        return ax
    return _corner(record, output, names, clouds, axes)


class _Cloud(NamedTuple):
    """Points of one density: all weighted ones, and equally weighted ones."""

    name: str
    points: np.ndarray
    weights: np.ndarray
    equal: np.ndarray


def _cloud(draws: Draws, names: list[str], num_samples: int) -> _Cloud:
    columns = _columns(draws)
    points = np.stack([columns[name] for name in names], axis=1)
    chosen = resample(draws.log_weights, num_samples, np.random.default_rng(0))
    return _Cloud(draws.name, points, draws.weights, points[chosen])


def _corner(
    record: Record, output: int, names: list[str], clouds: list[_Cloud], axes: Any
) -> np.ndarray:
    size = len(names)
    if axes is None:
        side = max(6.4, 1.8 * size)
        axes = _pyplot().subplots(size, size, layout="constrained", figsize=(side, side))[1]
    axes = np.asarray(axes)
    for row in range(size):
        for column in range(size):
            ax = axes[row, column]
            if column > row:
                ax.set_axis_off()
                continue
            if column == row:
                _histograms(ax, clouds, row)
                ax.set_yticks([])
            else:
                _scatter(ax, clouds, column, row)
                ax.sharex(axes[column, column])
            _tidy(ax)
            ax.tick_params(labelsize="small", labelbottom=row == size - 1)
            ax.tick_params(labelleft=column == 0 and row > 0)
            if row == size - 1:
                ax.set_xlabel(names[column])
            if column == 0 and row > 0:
                ax.set_ylabel(names[row])
    handles, texts = axes[0, 0].get_legend_handles_labels()
    axes[0, 1].legend(handles, texts, loc="upper left", frameon=False, title=_title(record, output))
    return axes


def coordinates(record: Record) -> list[str]:
    """The names of the program's coordinates, such as ``x`` and ``w[2]``."""
    return list(_columns(record.draws[0])) if record.draws else []


def _columns(draws: Draws) -> dict[str, np.ndarray]:
    """Draws by coordinate."""
    columns = {}
    for name, values in draws.sites.items():
        for index in np.ndindex(*values.shape[1:]):
            label = f"{name}[{', '.join(map(str, index))}]" if index else name
            columns[label] = np.asarray(values[(slice(None), *index)], float)
    return columns


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


def _histograms(ax: Axes, clouds: list[_Cloud], column: int) -> None:
    everything = np.concatenate([cloud.equal[:, column] for cloud in clouds])
    low, high = np.quantile(everything, [0.001, 0.999])
    if not high > low:
        low, high = low - 0.5, high + 0.5
    bins = np.linspace(low, high, 46)
    for cloud in clouds:
        values, colour = cloud.points[:, column], COLOURS[cloud.name]
        heights, _ = np.histogram(values, bins, weights=cloud.weights, density=True)
        ax.stairs(heights, bins, fill=True, color=colour, alpha=0.35)
        ax.stairs(heights, bins, color=colour, label=DENSITIES[cloud.name])


def _scatter(ax: Axes, clouds: list[_Cloud], x: int, y: int) -> None:
    for cloud in clouds:
        ax.plot(
            cloud.equal[:, x],
            cloud.equal[:, y],
            ".",
            color=COLOURS[cloud.name],
            alpha=0.4,
            markersize=4,
            markeredgewidth=0,
            label=DENSITIES[cloud.name],
            rasterized=True,
        )


def _dark_legend(legend: Any) -> None:
    for line in legend.get_lines():
        line.set_alpha(1.0)
        line.set_markersize(8)
