"""What a method runs in: tasks, memory, progress, interruption, clock, and what is known so far.

A method asks the runtime to run tasks and never calls heavy code itself. So the same method runs
with or without a checkpoint, under a time limit, with a bar, and stops at Ctrl-C.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from estimand.runtime.compilation import compile_seconds, with_this_clock
from estimand.runtime.interruption import Interruption
from estimand.runtime.journal import Journal
from estimand.runtime.precision import with_this_precision
from estimand.runtime.progress import Listener, Progress, ignore

# How often Ctrl-C is looked for while tasks run in threads.
POLL_SECONDS = 0.2
# From so many cores on, several tasks run at a time, if one of them takes so many seconds: shorter
# ones are Python's more than XLA's, and wait for each other. Eight schools on 16 cores took 9.3 s
# in threads and 7.6 s on one core.
MIN_CORES, MIN_SECONDS = 4, 0.25


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_threads() -> int:
    """How many tasks run at a time: XLA has threads of its own, for which half the cores stay."""
    return num_cores() // 2 if num_cores() >= MIN_CORES else 1


class Task(NamedTuple):
    """A piece of work: a module-level function and its arguments, never a closure.

    The arguments are pytrees of arrays, settings and keys, so that a task can be sent elsewhere.
    What it gives depends on them alone: numbers and arrays in tuples, lists and named tuples,
    whose classes are `kinds`.
    """

    function: Callable
    arguments: tuple
    kinds: tuple[type, ...] = ()

    @property
    def label(self) -> str:
        return self.function.__qualname__

    def __call__(self) -> Any:
        return self.function(*self.arguments)


# How the pieces of the task that runs in this thread are run; nothing where it runs them itself.
_place = threading.local()


def spread(pieces: Sequence[Task]) -> list[Any]:
    """What the pieces of a task give, in their order, run wherever its runtime has them run.

    A task that the host drives (moves at one temperature after another, say) stays where it is, and
    hands out what is expensive. How it is cut must not depend on where it runs: code that is
    compiled for other shapes may differ in the last bits.
    """
    run = getattr(_place, "run", None)
    if len(pieces) == 1:
        return [pieces[0]()]
    return _in_threads(pieces) if run is None else run(pieces)


def _in_threads(pieces: Sequence[Task]) -> list[Any]:
    """What pieces give, one on each core at a time; the first alone, because it is compiled.

    XLA runs the code of one piece on one core: a logistic regression on 100,000 rows took twice as
    long on two cores without these threads.
    """
    first = pieces[0]()
    with ThreadPoolExecutor(num_cores()) as pool:
        runs = [with_this_precision(with_this_clock(piece.__call__)) for piece in pieces[1:]]
        return [first, *(future.result() for future in [pool.submit(run) for run in runs])]


@contextlib.contextmanager
def spreading(run: Callable[[Sequence[Task]], list[Any]]) -> Iterator[None]:
    """A context in which `run` runs the pieces of tasks."""
    before = getattr(_place, "run", None)
    _place.run = run
    try:
        yield
    finally:
        _place.run = before


class OutOfTimeError(Exception):
    """The time of a run is up, and something is known already."""


class Runtime(Protocol):
    """What a method needs of the place that it runs in."""

    def map(self, tasks: Sequence[Task]) -> list[Any]:
        """What independent tasks give, in their order; remembered if there is a checkpoint."""

    def clock(self) -> float:
        """Seconds from a fixed moment; a run that goes on from a checkpoint has the same ones."""

    def compile_seconds(self) -> float:
        """Seconds of tracing and compilation so far."""

    def report(self, progress: Progress) -> None:
        """Tells whoever waits what is being done."""

    def offer(self, make: Callable[[], Any]) -> None:
        """Offers the result as far as it is known; it is made only if the run ends early."""

    def until(self, deadline: float, *, aside: bool = False) -> Runtime:
        """The same place, which raises `OutOfTimeError` at the first task after a deadline.

        Never before something was offered: a time limit cannot take away the first answer. What is
        offered `aside` stays there, because something better is known outside.
        """

    @property
    def offered(self) -> Callable[[], Any] | None:
        """The last offer."""


class LocalRuntime:
    """Runs tasks in this process, on machines with many cores several at a time.

    Args:
        journal: remembers what tasks gave, for a run that is cut off and goes on.
        listener: is told of the progress.
        interruption: whether Ctrl-C was pressed.
        num_threads: how many tasks run at a time; by default half as many as there are cores, and
            one at a time on fewer than four.
    """

    def __init__(
        self,
        *,
        journal: Journal | None = None,
        listener: Listener = ignore,
        interruption: Interruption | None = None,
        num_threads: int | None = None,
    ):
        self._journal, self._listener, self._interruption = journal, listener, interruption
        self._num_threads = default_threads() if num_threads is None else num_threads
        self._deadline = math.inf
        self._outer: LocalRuntime | None = None
        self._is_aside = False
        self.offered: Callable[[], Any] | None = None

    def map(self, tasks: Sequence[Task]) -> list[Any]:
        return list(self.results(tasks))

    def results(self, tasks: Sequence[Task]) -> Generator[Any, None, None]:
        """As `map`, one after the other as soon as they are there."""
        for number, task in enumerate(tasks):
            is_known = self._journal is not None and self._journal.knows_next
            began, compiled = time.monotonic(), compile_seconds()
            result = self._remembered(task, functools.partial(self._run, task))
            seconds = time.monotonic() - began - (compile_seconds() - compiled)
            yield result
            if seconds > MIN_SECONDS and not is_known and self._num_threads > 1:
                yield from self._results_of_threads(tasks[number + 1 :], self._num_threads)
                return

    def _run(self, task: Task) -> Any:
        """What a task gives, in this process."""
        return task()

    def _results_of_threads(
        self, tasks: Sequence[Task], num_threads: int
    ) -> Generator[Any, None, None]:
        pool = ThreadPoolExecutor(num_threads)
        try:
            futures = [
                pool.submit(
                    with_this_precision(with_this_clock(functools.partial(self._run, task)))
                )
                for task in tasks
            ]
            for task, future in zip(tasks, futures, strict=True):
                yield self._remembered(task, functools.partial(self._awaited, future))
        except BaseException:
            self._leave_threads()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _leave_threads(self) -> None:
        """Called when the run ends while tasks are still under way in threads."""

    def _remembered(self, task: Task, compute: Callable[[], Any]) -> Any:
        self._check()
        if self._journal is None:
            return compute()
        return self._journal.remember(task.label, compute, task.kinds)

    def _awaited(self, future: Future) -> Any:
        while True:
            try:
                return future.result(timeout=POLL_SECONDS)
            except TimeoutError:
                if future.done():
                    raise
                self._check_interruption()

    def _check(self) -> None:
        self._check_interruption()
        if math.isfinite(self._deadline) and self._has_offer and self.clock() >= self._deadline:
            raise OutOfTimeError

    def _check_interruption(self) -> None:
        if self._interruption is not None:
            self._interruption.check()

    @property
    def _has_offer(self) -> bool:
        return self.offered is not None or (self._outer is not None and self._outer._has_offer)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said in the end of where the tasks were run."""
        return ()

    def clock(self) -> float:
        journal = self._journal
        if journal is None:
            return time.monotonic()
        return journal.remember("clock", lambda: journal.seconds)

    def compile_seconds(self) -> float:
        if self._journal is None:
            return compile_seconds()
        return self._journal.remember("compile seconds", compile_seconds)

    def report(self, progress: Progress) -> None:
        self._listener(progress)

    def offer(self, make: Callable[[], Any]) -> None:
        self.offered = make
        if self._outer is not None and not self._is_aside:
            self._outer.offer(make)

    def until(self, deadline: float, *, aside: bool = False) -> LocalRuntime:
        inner = copy.copy(self)
        inner._deadline = min(deadline, self._deadline)
        inner._outer, inner._is_aside, inner.offered = self, aside, None
        return inner


def run_task(runtime: Runtime, function: Callable, *arguments: Any, kinds: tuple = ()) -> Any:
    """What one task gives."""
    return runtime.map([Task(function, arguments, kinds)])[0]
