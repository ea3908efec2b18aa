"""Plots of decisions, of models that are compared, and of rows that are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from estimand.plots.style import ACCENT, PALETTE, axes_or_new, legend_above, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_decision(decision: Any, *, ax: Axes | None = None) -> Axes:
    """The expected utility of every action, with 95 % intervals; the best one stands out.

    Actions that are settings of a number are drawn along it.

    Args:
        decision: what ``ep.decide(…)(data)`` gave.
        ax: axes to draw on; new ones by default.

    Examples:
        >>> stake = ep.decide(program, [0.0, 1.0], utility=lambda v, stake: stake * v["x"])
        >>> plots.plot_decision(stake(2.0)).get_ylabel()
        'expected utility'
    """
    ax = axes_or_new(ax)
    actions = decision.actions
    settings = [action.setting for action in actions]
    has_scale = all(isinstance(x, int | float) and not isinstance(x, bool) for x in settings)
    places = np.asarray(settings if has_scale else range(len(actions)), float)
    values = np.asarray([action.utility.value for action in actions])
    low, high = np.asarray([action.utility.interval for action in actions]).T
    spans = np.abs(np.stack([values - low, high - values]))
    spans = np.where(np.isfinite(spans), spans, 0.0)
    if has_scale:
        order = np.argsort(places)
        ax.plot(places[order], values[order], color=ACCENT, alpha=0.5)
    ax.errorbar(places, values, spans, fmt="o", color=ACCENT)
    best = actions.index(decision.best)
    label = f"best: {decision.best.name}"
    ax.plot(places[best], values[best], "o", color=PALETTE[1], markersize=10, label=label)
    if not has_scale:
        ax.set_xticks(places, [action.name for action in actions])
        ax.margins(x=0.2)
    ax.set_xlabel("action")
    ax.set_ylabel("expected utility")
    legend_above(ax)
    tidy(ax)
    return ax


def plot_leave_one_out(loo: Any, *, ax: Axes | None = None) -> Axes:
    """The log predictive density of every row given the others.

    Rows for which the posterior without them was explored stand out; their intervals are seldom
    wider than the dots.

    Args:
        loo: what ``ep.leave_one_out(…)`` gave.
        ax: axes to draw on; new ones by default.

    Examples:
        >>> @ep.expectation
        ... def regression(y):
        ...     x = numpyro.sample("x", dist.Normal(0, 1))
        ...     numpyro.sample("y", dist.Normal(x, 1).expand([3]), obs=y)
        ...     return x
        >>> loo = ep.leave_one_out(regression(jnp.array([0.1, -0.4, 2.0])))
        >>> plots.plot_leave_one_out(loo).get_xlabel()
        'row'
    """
    ax = axes_or_new(ax)
    from matplotlib.ticker import MaxNLocator

    for is_explored, colour, text in (
        (False, ACCENT, "by draws of the posterior"),
        (True, PALETTE[1], "the posterior without it was explored"),
    ):
        rows = [
            row
            for row in loo.rows
            if row.is_explored == is_explored and np.isfinite(row.standard_error)
        ]
        if rows:
            reach = [row.interval[1] - row.elpd for row in rows]
            ax.errorbar(
                [row.index for row in rows],
                [row.elpd for row in rows],
                reach,
                fmt="o",
                markersize=4,
                color=colour,
                label=text,
            )
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("row")
    ax.set_ylabel(f"log p({loo.site}[row] | the others)")
    legend_above(ax)
    tidy(ax)
    return ax


def plot_studies(decision: Any, *, ax: Axes | None = None) -> Axes:
    """What the data of each study are worth, with 95 % intervals, beside perfect information.

    Args:
        decision: what ``ep.decide(…, study=…)(data)`` gave.
        ax: axes to draw on; new ones by default.

    Examples:
        >>> def trial(sites):
        ...     numpyro.sample("outcome", dist.Normal(sites["x"], 1.0))
        >>> utility = lambda sites, stake: stake * (sites["x"] - 0.5)
        >>> decision = ep.decide(program, [0.0, 1.0], utility=utility, study=trial)(2.0)
        >>> plots.plot_studies(decision).get_xlabel()
        'study'
    """
    if not decision.studies:
        raise ValueError("plot_studies: the decision has no studies: ask for them with study=.")
    ax = axes_or_new(ax)
    names = list(decision.studies)
    values = np.asarray([study.value for study in decision.studies.values()])
    low, high = np.asarray([study.interval for study in decision.studies.values()]).T
    spans = np.abs(np.stack([values - low, high - values]))
    ax.errorbar(range(len(names)), values, np.nan_to_num(spans), fmt="o", color=ACCENT)
    ax.axhline(decision.evpi.value, color=PALETTE[1], linestyle="--", label="perfect information")
    ax.set_xticks(range(len(names)), names)
    ax.margins(x=0.2)
    ax.set_ylim(bottom=0.0)
    ax.set_xlabel("study")
    ax.set_ylabel("value of its data")
    legend_above(ax)
    tidy(ax)
    return ax


def plot_comparison(comparison: Any, *, ax: Axes | None = None) -> Axes:
    """The probability of each model given the data, with 95 % intervals; the best one on top.

    Models that cannot be trusted have no bar.

    Args:
        comparison: what ``ep.compare(…)`` gave.
        ax: axes to draw on; new ones by default.

    Examples:
        >>> comparison = ep.compare({"one": program(2.0), "other": program(3.0)})
        >>> plots.plot_comparison(comparison).get_xlabel()
        'probability of the model'
    """
    ax = axes_or_new(ax)
    rows = list(comparison.models.values())
    values = np.nan_to_num([row.probability for row in rows])
    reach = 1.96 * np.nan_to_num([row.probability_error for row in rows])
    _bars(ax, [row.name for row in rows], values, reach)
    ax.set_xlim(0.0, 1.0)
    ax.set_xlabel("probability of the model")
    return ax


def plot_average(comparison: Any, *, output: int = 0, ax: Axes | None = None) -> Axes:
    """An expectation under each model and over all of them, with 95 % intervals.

    Args:
        comparison: what ``ep.compare(…, average=True)`` gave.
        output: the number of the output, if the programs have several.
        ax: axes to draw on; new ones by default.

    Examples:
        >>> both = {"one": program(2.0), "other": program(3.0)}
        >>> plots.plot_average(ep.compare(both, average=True)).get_xlabel()
        'expectation'
    """
    if not comparison.average:
        raise ValueError("plot_average: there is no average: compare with average=True.")
    ax = axes_or_new(ax)
    names = list(comparison.estimates)
    each = [comparison.estimates[name].outputs[output] for name in names]
    each.append(comparison.average[output])
    places = np.arange(len(each))[::-1]
    reach = 1.96 * np.nan_to_num([item.standard_error for item in each], posinf=0.0)
    ax.errorbar([item.value for item in each], places, xerr=reach, fmt="o", color=ACCENT)
    ax.plot(each[-1].value, places[-1], "o", color=PALETTE[1], markersize=9)
    ax.set_yticks(places, [*names, "over models"])
    label = comparison.output.labels[output] if comparison.output is not None else ""
    ax.set_xlabel(label or "expectation")
    ax.margins(y=0.2)
    tidy(ax)
    return ax


def _bars(ax: Axes, names: list[str], values: np.ndarray, reach: np.ndarray) -> None:
    places = np.arange(len(names))[::-1]
    ax.barh(places, values, xerr=reach, color=ACCENT, alpha=0.75, height=0.6)
    ax.set_yticks(places, names)
    tidy(ax)
