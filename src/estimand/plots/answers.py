"""Plots of decisions, and of rows that are left out."""

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
    ax.set_xlabel("row")
    ax.set_ylabel(f"log p({loo.site}[row] | the others)")
    legend_above(ax)
    tidy(ax)
    return ax
