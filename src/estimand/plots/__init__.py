"""Plots of a record: a registry, and a file for each plot.

Each plot is a function of the record and returns its axes. `plot` registers a plot, also one of
your own, and reports show every registered plot that a record has the numbers for. Plots need
Matplotlib: ``pip install 'estimand[plots]'``.
"""

# isort: off
# The order of these imports is the order of the plots in a report.
from estimand.plots.origin import plot_origin
from estimand.plots.convergence import plot_convergence
from estimand.plots.weights import plot_weights
from estimand.plots.cost import plot_cost
from estimand.plots.temperatures import plot_temperatures
from estimand.plots.branches import plot_branches
from estimand.plots.sensitivity import plot_sensitivity
from estimand.plots.reliability import plot_reliability

# isort: on
from estimand.plots.answers import (
    plot_average,
    plot_comparison,
    plot_decision,
    plot_leave_one_out,
    plot_studies,
)
from estimand.plots.distribution import plot_distribution
from estimand.plots.registry import Panels, RegisteredPlot, plot, registered_plots, unregister
from estimand.plots.tails import plot_quantiles, plot_shortfall

__all__ = [
    "Panels",
    "RegisteredPlot",
    "plot",
    "plot_average",
    "plot_branches",
    "plot_comparison",
    "plot_convergence",
    "plot_cost",
    "plot_decision",
    "plot_distribution",
    "plot_leave_one_out",
    "plot_origin",
    "plot_quantiles",
    "plot_reliability",
    "plot_sensitivity",
    "plot_shortfall",
    "plot_studies",
    "plot_temperatures",
    "plot_weights",
    "registered_plots",
    "unregister",
]
