"""Progress of long work: methods say what they do, and whoever shows it listens.

Nobody listens by default, and then saying costs nothing.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Progress(NamedTuple):
    """What is being done, what of the budget is spent, and the estimate so far."""

    stage: str
    spent: int = 0
    budget: int = 0
    estimate: str = ""


_listener: contextvars.ContextVar[Callable[[Progress], None] | None] = contextvars.ContextVar(
    "estimand_progress", default=None
)


def say(progress: Progress) -> None:
    """Tells the listener, if there is one."""
    listener = _listener.get()
    if listener is not None:
        listener(progress)


@contextlib.contextmanager
def listening(listener: Callable[[Progress], None]) -> Iterator[None]:
    """Everything said in the body reaches the listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextlib.contextmanager
def bar(is_wanted: bool | None) -> Iterator[None]:
    """A bar on standard error with the stage and the estimate so far.

    None shows it where standard error is a terminal and rich is installed.
    """
    if is_wanted is None:
        is_wanted = sys.stderr.isatty() and _has_rich()
    if not is_wanted:
        yield
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Display
    except ImportError as error:
        raise ImportError(
            "progress_bar=True needs rich: pip install 'estimand[rich]', or leave it out."
        ) from error
    columns = (
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        TextColumn("[bold]{task.fields[estimate]}"),
    )
    with Display(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task("starting", total=None, estimate="")

        def show(progress: Progress) -> None:
            display.update(
                task,
                description=progress.stage,
                completed=progress.spent,
                total=progress.budget or None,
                estimate=progress.estimate,
            )

        with listening(show):
            yield


def _has_rich() -> bool:
    import importlib.util

    return importlib.util.find_spec("rich") is not None
