"""Progress of long work: methods report what they do, and a bar shows it."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

_log = logging.getLogger("estimand")


class Progress(NamedTuple):
    """What is being done, what of the budget is spent, and the estimate so far.

    `num_programs` says how many programs are compiled in all; 0 if nobody knows.
    """

    stage: str
    spent: int = 0
    budget: int = 0
    estimate: str = ""
    num_programs: int = 0


Listener = Callable[[Progress], None]


def ignore(_progress: Progress) -> None:
    """A listener that shows nothing."""


class Teller:
    """A listener that passes progress on, and says when what comes next is compiled first."""

    def __init__(self, listener: Listener):
        self._listener, self._last, self._number = listener, Progress("starting"), 0

    def __call__(self, progress: Progress) -> None:
        if progress.stage != self._last.stage:
            spent = f"{progress.spent:,} of {progress.budget:,} evaluations"
            _log.debug(
                "%s; %s so far; %s", progress.stage, spent, progress.estimate or "no estimate"
            )
        self._last = progress
        self._listener(progress)

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """The context of a compilation."""
        self._number += 1
        total = max(self._last.num_programs, self._number)
        of_total = f" of {total}" if self._last.num_programs else ""
        stage = f"compiling ({self._number}{of_total}), then {self._last.stage}"
        _log.debug("%s", stage)
        self._listener(self._last._replace(stage=stage))
        try:
            yield
        finally:
            self._listener(self._last)


@contextlib.contextmanager
def bar(is_wanted: bool | None, name: str = "") -> Iterator[Listener]:
    """A listener that shows a line on standard error: what is estimated, the stage, the estimate.

    None shows it where standard error is a terminal and rich is installed.
    """
    if is_wanted is None:
        is_wanted = sys.stderr.isatty() and _has_rich()
    if not is_wanted:
        yield ignore
        return
    try:
        from rich.console import Console
        from rich.progress import Progress as Display
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError as error:
        raise ImportError(
            "progress_bar=True needs rich: pip install 'estimand[rich]', or leave it out."
        ) from error
    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[name]}"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.fields[spent]}"),
        TextColumn("[bold]{task.fields[estimate]}"),
    )
    with Display(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task("starting", total=None, name=name, spent="", estimate="")

        def show(progress: Progress) -> None:
            display.update(
                task,
                description=progress.stage,
                spent=f"{progress.spent:,} evaluations" if progress.spent else "",
                estimate=progress.estimate,
            )

        yield show


def _has_rich() -> bool:
    import importlib.util

    return importlib.util.find_spec("rich") is not None
