"""What moves an expectation: the largest effects of what its program was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from estimand.plots.registry import plot
from estimand.plots.style import ACCENT, axes_or_new, check_output, expectation_name, tidy
from estimand.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Bars that are drawn.
MAX_BARS = 12


def _is_known(record: Record, output: int) -> bool:
    return output in record.sensitivities


class _Bar(NamedTuple):
    label: str
    effect: float
    error: float


@plot(
    caption="What moves the expectation: relative derivatives, in per cent for each per cent of a "
    "number, with 95 % intervals.",
    needs=_is_known,
)
def plot_sensitivity(record: Record, *, output: int = 0, ax: Axes | None = None) -> Axes:
    """The largest relative effects of arguments, constants and powers, as bars with intervals.

    Reports show it once ``record.sensitivity()`` was called.

    Args:
        record: an estimate whose sensitivity was asked for.
        output: the number of the output, if the program has several.
        ax: axes to draw on; new ones by default.

    Examples:
        >>> found = result.sensitivity()
        >>> ax = plots.plot_sensitivity(result)
        >>> ax.get_xlabel()
        '% of E[program] for each % of a number'
    """
    check_output(record, output)
    if not _is_known(record, output):
        raise ValueError(
            f"plot_sensitivity: the sensitivity of output {output} is not known yet: call "
            f"sensitivity({output}) of the estimate first."
        )
    ax = axes_or_new(ax)
    bars = _bars(record, output)
    places = np.arange(len(bars))[::-1]
    ax.barh(
        places,
        [bar.effect for bar in bars],
        xerr=[bar.error for bar in bars],
        color=ACCENT,
        alpha=0.75,
        height=0.6,
    )
    ax.set_yticks(places, [bar.label for bar in bars])
    ax.axvline(0.0, color="grey", linewidth=0.8)
    ax.set_xlabel(f"% of {expectation_name(record, output)} for each % of a number")
    tidy(ax)
    return ax


def _bars(record: Record, output: int) -> list[_Bar]:
    """The largest effects of numbers that are not 0, of which there is a per cent."""
    found = record.sensitivities[output]
    bars = []
    for kind in (found.arguments, found.constants, found.powers):
        for item in kind.values():
            low, high = item.interval
            for index in np.ndindex(item.at.shape):
                if not item.at[index] or not np.isfinite(item.standard_error[index]):
                    continue
                share = item.at[index] / found.value
                place = f"[{', '.join(map(str, index))}]" if item.at.size > 1 else ""
                reach = abs(share) * (high[index] - low[index]) / 2
                bars.append(_Bar(item.name + place, share * item.value[index], reach))
    return sorted(bars, key=lambda bar: -abs(bar.effect))[:MAX_BARS]
