"""Figures and tables of a study, from its record alone. Needs matplotlib."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np

mpl.use("agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.study import GRADIENT_COST

TABI, ANIS, MCMC, DEFAULT = "TABI + AnIS", "AnIS", "MCMC", "default"
# The paper's colours, in shades that are distinguishable with any colour vision.
COLOURS = {TABI: "#0072b2", ANIS: "#d55e00", MCMC: "#009e73", DEFAULT: "#1a1a1a"}
OTHER = "#7f3c8d"
MARKERS = {TABI: "", ANIS: "", MCMC: "s", DEFAULT: "D"}
NAMES = {
    TABI: "TABI + AnIS (the paper's method)",
    ANIS: "AnIS, self-normalised",
    MCMC: "MCMC",
    DEFAULT: "default method of this library",
}
FIRST_COST = 6
COST = "cost in the paper's unit (particles of AnIS)"
ERROR = "relative squared error"
# Larger errors are outside of the picture: with a few particles they can be anything.
MAX_ERROR = 1e3
EVALUATIONS = "evaluations in all, a gradient counting as 3"

Point = dict[str, Any]
Measure = Callable[[Point], float]


class Group(NamedTuple):
    """The points of all runs of a line at one cost."""

    size: int
    points: list[Point]
    runs: list[dict]

    def quartiles(self, measure: Measure) -> np.ndarray:
        """The 25, 50 and 75 % quantiles."""
        values = [measure(point) for point in self.points]
        return np.quantile([np.inf if v is None else v for v in values], [0.25, 0.5, 0.75])


def groups(record: dict, label: str) -> list[Group]:
    """The points of a line at growing cost: of a larger run only what smaller runs do not reach."""
    found: dict[float, Group] = {}
    reached = 0.0
    for size in sorted({run["size"] for run in record["runs"] if run["line"] == label}):
        new: dict[float, Group] = {}
        for run in record["runs"]:
            if (run["line"], run["size"]) != (label, size):
                continue
            for point in run["points"]:
                key = float(f"{point['cost'] or size:.6g}")
                if key > reached:
                    group = new.setdefault(key, Group(size, [], []))
                    group.points.append(point)
                    group.runs.append(run)
        found |= new
        reached = max(found)
    return [found[key] for key in sorted(found)]


def evaluations(point: Point) -> float:
    """All evaluations, a gradient counting as 3."""
    return point["evaluations"] + GRADIENT_COST * point["gradients"]


def seconds(point: Point) -> float:
    return point["seconds"]


def rse(record: dict, label: str) -> Measure:
    """The relative squared error of a point."""
    truth = record["truths"][label]

    def measure(point: Point) -> float:
        return np.inf if point["value"] is None else (point["value"] / truth - 1) ** 2

    return measure


def paper_cost(record: dict) -> Measure:
    """The paper's cost; for the default method by evaluations of all kinds, as TABI makes them."""
    last = groups(record, TABI)[-1].points[0]
    per_particle = evaluations(last) / last["cost"]

    def measure(point: Point) -> float:
        return point["cost"] or evaluations(point) / per_particle

    return measure


def ess(point: Point) -> float:
    """The paper's effective sample size: the smaller of those for Z1 and Z2."""
    return min(ess_z1(point), ess_z2(point))


def ess_z1(point: Point) -> float:
    return _ess_of(point["ess_z1"])


def ess_z2(point: Point) -> float:
    return _ess_of(point["ess_z2"])


def _ess_of(value: float | None) -> float:
    """Where no particle has any weight a logarithmic axis shows ½; nothing where it is unknown."""
    return np.nan if value is None else max(value, 0.5)


# --- figures ---


def canvas(num_panels: int, height: float = 3.4) -> tuple[Figure, Any]:
    figure, axes = plt.subplots(
        1, num_panels, figsize=(4.6 * num_panels, height), layout="constrained", squeeze=False
    )
    for ax in axes[0]:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, linewidth=0.6)
    return figure, axes[0]


def curve(
    ax: Axes, record: dict, line: str, x: Measure, y: Measure, *, skip: int = 0, **style: Any
) -> None:
    """Medians as a line, and the band between the quartiles, against the median cost."""
    found = groups(record, line)[skip:]
    if not found:
        return
    across = np.array([group.quartiles(x)[1] for group in found])
    low, middle, high = np.array([group.quartiles(y) for group in found]).T
    colour = COLOURS.get(line, OTHER)
    own: dict[str, Any] = {
        "marker": MARKERS.get(line, ""),
        "markersize": 4,
        "label": NAMES.get(line, line),
    }
    ax.plot(across, middle, color=colour, **own | style)
    if len(found) > 1:
        ax.fill_between(across, low, high, color=colour, alpha=0.18, linewidth=0)
    else:
        reach = [middle - low, high - middle]
        ax.errorbar(across, middle, reach, color=colour, capsize=3, linewidth=1)


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _finish(figure: Figure, axes: Sequence[Axes], path: Path) -> None:
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    save(figure, path)


def _logarithmic(ax: Axes, x: str, y: str, x_from: float | None = None) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if y == ERROR:
        ax.set_ylim(top=min(ax.get_ylim()[1], MAX_ERROR))
    if x_from is not None:
        ax.set_xlim(left=x_from)


def error_and_ess(record: dict, path: Path, lines: Sequence[str] = tuple(COLOURS)) -> None:
    """The paper's figures 3 and 4: RSE and ESS against its cost."""
    figure, axes = canvas(2)
    x = paper_cost(record)
    for label in lines:
        curve(axes[0], record, label, x, rse(record, label))
        curve(axes[1], record, label, x, ess)
    _logarithmic(axes[0], COST, ERROR, FIRST_COST)
    _logarithmic(axes[1], COST, "effective sample size", FIRST_COST)
    _finish(figure, axes, path)


def error_and_cost(record: dict, path: Path, lines: Sequence[str] = tuple(COLOURS)) -> None:
    """The same errors against evaluations of all kinds, and against seconds."""
    figure, axes = canvas(2)
    for label in lines:
        # Of the first few particles of a run nothing is known about the time they would take.
        curve(axes[0], record, label, evaluations, rse(record, label), skip=_small(record, label))
        curve(axes[1], record, label, seconds, rse(record, label), skip=_small(record, label))
    _logarithmic(axes[0], EVALUATIONS, ERROR)
    _logarithmic(axes[1], "seconds, without compilation", ERROR)
    _finish(figure, axes, path)


def _small(record: dict, label: str) -> int:
    """How many groups have fewer than ten particles."""
    return sum((group.points[0]["cost"] or 10) < 10 for group in groups(record, label))


def ess_parts(record: dict, path: Path, lines: Sequence[str] = (TABI, ANIS)) -> None:
    """The effective sample sizes for Z1 and for Z2, each on its own."""
    figure, axes = canvas(1, 3.8)
    x = paper_cost(record)
    for label in lines:
        for measure, part, dashes in ((ess_z1, "Z1", "--"), (ess_z2, "Z2", "-")):
            name = f"{label}, {part}"
            curve(axes[0], record, label, x, measure, linestyle=dashes, label=name)
    _logarithmic(axes[0], COST, "effective sample size", FIRST_COST)
    _finish(figure, axes, path)


def standard(record: dict, folder: Path) -> None:
    """The figures that every experiment has."""
    error_and_ess(record, folder / "error_and_ess.png")
    error_and_cost(record, folder / "error_and_cost.png")
    ess_parts(record, folder / "ess_parts.png")


# --- tables ---

HEADER = (
    "method",
    "runs",
    "truth",
    "estimate (median)",
    "RSE, quartiles",
    "ESS Z1",
    "ESS Z2",
    "evaluations",
    "gradients",
    "seconds",
    "on",
    "95 % interval covers",
)


def table(record: dict) -> str:
    """A row for each line at each of its sizes, as Markdown."""
    rows = [HEADER, ("---",) * len(HEADER)]
    for label in record["truths"]:
        last = {group.size: group for group in groups(record, label)}
        rows += [_row(record, label, group) for group in last.values()]
    title = f"{record['title']} ({record['mode']})"
    return f"### {title}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(record: dict, label: str, group: Group) -> tuple[str, ...]:
    def median(key: str, form: str = ".3g") -> str:
        values = [point[key] for point in group.points if point[key] is not None]
        return format(float(np.median(values)), form) if values else "–"

    truth, points = record["truths"][label], group.points
    ends = [(p["low"], p["high"]) for p in points if None not in (p["low"], p["high"])]
    covered = sum(low <= truth <= high for low, high in ends)
    cost = points[0]["cost"]
    size = f"asked error 1/{group.size}" if cost is None else f"cost {cost:,.0f}"
    return (
        f"{label}, {size}",
        str(len(points)),
        f"{truth:.6g}",
        median("value", ".6g"),
        " / ".join(f"{q:.2g}" for q in group.quartiles(rse(record, label))),
        median("ess_z1"),
        median("ess_z2"),
        median("evaluations", ",.0f"),
        median("gradients", ",.0f"),
        median("seconds"),
        " and ".join(sorted({_device(record, run) for run in group.runs})),
        (f"{covered} of {len(ends)}" if ends else "–") + _statuses(group.runs),
    )


def _device(record: dict, run: dict) -> str:
    environment = record["environments"][run["environment"]]
    device = environment["device"]
    return f"{environment['cpu_count']} cores" if device == "cpu" else device


def _statuses(runs: list[dict]) -> str:
    """How many runs report that they cannot be trusted, and why."""
    counts = Counter(run.get("status", "ok") for run in runs)
    return "".join(f"; {counts[name]} {name}" for name in sorted(counts) if name != "ok")
