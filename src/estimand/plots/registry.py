"""The registry of plots: a report shows every registered plot that a record has the numbers for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from estimand.record import Record

Draw = TypeVar("Draw", bound=Callable[..., Any])
Needs: TypeAlias = Callable[[Record, int], bool]


class Panels(NamedTuple):
    """The grid of axes that a plot draws on in a report."""

    rows: int = 1
    columns: int = 1
    share_x: bool = False


Grid: TypeAlias = Panels | tuple[int, int]


class RegisteredPlot(NamedTuple):
    """A plot function with what a report needs to know about it."""

    function: Callable[..., Any]
    caption: str
    needs: Needs
    panels: Grid | Callable[[Record, int], Grid]
    axes_keyword: str

    @property
    def name(self) -> str:
        """The name of the function, under which the plot is registered."""
        return self.function.__name__

    def panels_for(self, record: Record, output: int) -> Panels:
        """The axes that the plot draws on for one output of a record."""
        grid = self.panels(record, output) if callable(self.panels) else self.panels
        return Panels(*grid)

    def draw(self, record: Record, output: int, axes: Any) -> None:
        """Draws one output of a record on the given axes."""
        self.function(record, output=output, **{self.axes_keyword: axes})


_PLOTS: dict[str, RegisteredPlot] = {}


def always(_record: Record, _output: int) -> bool:
    """The `needs` of a plot that every record has the numbers for."""
    return True


def plot(
    *,
    caption: str,
    needs: Needs = always,
    panels: Grid | Callable[[Record, int], Grid] = (1, 1),
) -> Callable[[Draw], Draw]:
    """Registers a function as a plot, so that reports show it.

    Reports show plots in the order in which they were registered. The function is returned
    unchanged. It takes a record and the keyword arguments `output` and `ax`, or `axes` if it
    draws on several axes.

    Args:
        caption: the text below the plot.
        needs: a function of the record and the number of the output that says whether the record
            has the numbers for this plot; by default the plot is always shown.
        panels: rows and columns of axes to draw on, such as ``(3, 1)``, or a function of the
            record and the number of the output that returns them. ``Panels(3, 1, share_x=True)``
            gives the rows a common x-axis. More than one panel arrives as an array, as from
            ``plt.subplots``.

    Raises:
        TypeError: if the function does not take these arguments.
        ValueError: if a plot of the same name is registered already.
    """

    def register(function: Draw) -> Draw:
        name = function.__name__
        if name in _PLOTS:
            raise ValueError(
                f"A plot named {name!r} is registered already; choose another name, "
                f"or call estimand.plots.unregister({name!r}) first."
            )
        _PLOTS[name] = RegisteredPlot(function, caption, needs, panels, _axes_keyword(function))
        return function

    return register


def unregister(name: str) -> None:
    """Removes a plot from later reports; the function itself still works.

    Args:
        name: the name of the plot function.

    Raises:
        ValueError: if no plot has this name.
    """
    if name not in _PLOTS:
        raise ValueError(f"No plot is named {name!r}; the plots are {list(_PLOTS)}.")
    del _PLOTS[name]


def registered_plots() -> tuple[RegisteredPlot, ...]:
    """Every plot, in the order in which they were registered."""
    return tuple(_PLOTS.values())


def _axes_keyword(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    for keyword in ("axes", "ax"):
        if keyword in signature.parameters and "output" in signature.parameters:
            return keyword
    raise TypeError(
        f"{function.__name__}{signature} cannot be registered as a plot: "
        "it must take a record and the keyword arguments `output` and `ax` (or `axes`)."
    )
