"""A runtime whose expensive tasks are run by any `concurrent.futures.Executor`.

What a run gives does not depend on the executor, on how many workers it has, or on whether one of
them dies: how tasks are cut, and their random numbers, follow from the program and the key alone.
By the clock is only decided whether a task is worth sending.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from typing import Any, NamedTuple

import jax

from estimand.runtime.compilation import compile_seconds
from estimand.runtime.parcels import Reply, Sender, Worker, opened, perform, this_worker
from estimand.runtime.precision import this_precision
from estimand.runtime.progress import Progress
from estimand.runtime.runtime import POLL_SECONDS, LocalRuntime, Task, spreading

# Tasks are sent together until a message has so many seconds of work: sending one takes about 3 ms.
MESSAGE_SECONDS = 0.25
# Fewer seconds of independent work are done here.
MIN_SECONDS = 0.5
# A worker traces and loads the code first, so that this much work of a kind is done here before.
MIN_SECONDS_AT_FIRST = 2.0
# Bytes of messages that wait for a worker.
MAX_WAITING_BYTES = 2**28
# Tasks that are driven from here at a time while workers run their pieces. They wait for most of
# the time; more of them fill the gaps that each leaves between its rounds of pieces.
NUM_DRIVERS = 16
# How often in a row workers may end abruptly before any work is finished.
MAX_BREAKS = 3


class WorkersLostError(RuntimeError):
    """Workers that end abruptly again and again."""


class _StoppedError(Exception):
    """The run ends, and this thread with it."""


class _Group(NamedTuple):
    """Some of the tasks of a request, which are numbered from `first` on, for one message.

    `has_parcels` if a worker has asked for what the tasks share.
    """

    first: int
    tasks: Sequence[Task]
    has_parcels: bool = False


class _Pending(NamedTuple):
    """A group that an executor was given, in so many bytes."""

    executor: Executor
    group: _Group
    num_bytes: int


class _Request(NamedTuple):
    """Groups that wait to be sent, those that were sent, and results by number."""

    waiting: collections.deque[_Group]
    pending: dict[Future, _Pending]
    finished: dict[int, Any]


class ExecutorRuntime(LocalRuntime):
    """Runs what is expensive by an executor, and the rest in this process.

    Tasks that drive others (`spread`) run here, in threads, and their pieces at the workers. After
    a `ProcessPoolExecutor` has lost a process, another one with the same settings takes its place.
    Other executors that break are left, and the rest is run here. The notes say so.

    Args:
        executor: where tasks are run; it is not shut down.
        settings: those of `LocalRuntime`.
    """

    def __init__(self, executor: Executor, **settings: Any):
        super().__init__(**settings, num_threads=1)
        self._workers = _Workers(executor)

    @property
    def notes(self) -> tuple[str, ...]:
        return self._workers.notes

    def require_sendable(self, value: Any) -> None:
        """Raises `SendingError` unless workers can be sent something."""
        self._workers.sender.packed(value)

    def close(self) -> None:
        """Ends the processes that took the place of others."""
        self._workers.close()

    def report(self, progress: Progress) -> None:
        self._workers.progress = progress
        super().report(progress)

    # --- tasks ---

    def results(self, tasks: Sequence[Task]) -> Generator[Any, None, None]:
        for number, task in enumerate(tasks):
            rest = tasks[number:]
            is_known = self._journal is not None and self._journal.knows_next
            if not is_known and len(rest) > 1:
                if self._workers.is_driver(task):
                    yield from self._results_of_threads(rest, NUM_DRIVERS)
                    return
                if self._workers.is_worth_sending(rest):
                    yield from self._results_of_workers(rest)
                    return
            yield self._remembered(task, functools.partial(self._run, task))

    def _results_of_workers(self, tasks: Sequence[Task]) -> Generator[Any, None, None]:
        with contextlib.closing(self._sent(tasks)) as results:
            for task in tasks:
                yield self._remembered(task, functools.partial(next, results))

    def _results_of_threads(
        self, tasks: Sequence[Task], num_threads: int
    ) -> Generator[Any, None, None]:
        try:
            yield from super()._results_of_threads(tasks, num_threads)
        finally:
            self._workers.is_stopping.clear()

    def _leave_threads(self) -> None:
        self._workers.is_stopping.set()

    def _run(self, task: Task) -> Any:
        def run(pieces: Sequence[Task]) -> list[Any]:
            return self._run_pieces(task, pieces)

        with spreading(run):
            return self._workers.timed(task)

    def _run_pieces(self, driver: Task, pieces: Sequence[Task]) -> list[Any]:
        results: list[Any] = []
        for number, piece in enumerate(pieces):
            rest = pieces[number:]
            if self._workers.is_worth_sending(rest):
                self._workers.note_driver(driver)
                with contextlib.closing(self._sent(rest)) as others:
                    return results + list(others)
            self._check_here()
            results.append(self._workers.timed(piece))
        return results

    def _check_here(self) -> None:
        """Raises in the main thread after Ctrl-C, and in others when the run ends."""
        if threading.current_thread() is self._workers.owner:
            self._check_interruption()
        elif self._workers.is_stopping.is_set():
            raise _StoppedError

    # --- messages ---

    def _sent(self, tasks: Sequence[Task]) -> Generator[Any, None, None]:
        """What independent tasks give at the workers, in their order; left early, it cancels."""
        request = _Request(collections.deque(self._workers.groups(tasks)), {}, {})
        try:
            for number in range(len(tasks)):
                while number not in request.finished:
                    self._submit(request)
                    self._collect(request)
                yield request.finished.pop(number)
        finally:
            for future in request.pending:
                future.cancel()

    def _submit(self, request: _Request) -> None:
        """Sends what waits, up to a number of bytes; runs it here if there is no executor left."""
        waiting, pending = request.waiting, request.pending
        num_bytes = sum(item.num_bytes for item in pending.values())
        while waiting and (not pending or num_bytes < MAX_WAITING_BYTES):
            group = waiting.popleft()
            executor = self._workers.executor
            if executor is None:
                for number, task in enumerate(group.tasks, group.first):
                    self._check_here()
                    request.finished[number] = self._workers.timed(task)
                continue
            content, parcels = self._workers.packed(group)
            try:
                future = executor.submit(perform, content, parcels, this_precision())
            except BrokenExecutor:
                waiting.appendleft(group)
                self._workers.replace(executor, group.tasks[0])
                continue
            size = len(content) + sum(map(len, parcels.values()))
            num_bytes += size
            pending[future] = _Pending(executor, group, size)

    def _collect(self, request: _Request) -> None:
        """Takes over what workers have finished; what was lost with a worker waits again."""
        waiting, pending = request.waiting, request.pending
        if not pending:
            return
        done, _ = concurrent.futures.wait(
            pending, POLL_SECONDS, return_when=concurrent.futures.FIRST_COMPLETED
        )
        self._check_here()
        for future in done:
            executor, group, _ = pending.pop(future)
            try:
                reply: Reply = future.result()
            except BrokenExecutor:
                waiting.appendleft(group)
                self._workers.replace(executor, group.tasks[0])
                continue
            self._workers.meet(reply.worker)
            if reply.error is not None:
                raise opened(reply.error)
            if reply.results is None:
                waiting.appendleft(group._replace(has_parcels=True))
                continue
            request.finished.update(enumerate(opened(reply.results), group.first))
            self._workers.finished(group.tasks, reply.seconds)
        if done and (progress := self._workers.progress) is not None:
            stage = f"{progress.stage} ({self._workers.num_sent:,} tasks run by workers)"
            self._listener(progress._replace(stage=stage))


class _Workers:
    """An executor, what has been sent to it, and how long tasks take; shared by all threads."""

    def __init__(self, executor: Executor):
        _require_usable(executor)
        self.executor: Executor | None = executor
        self.sender = Sender()
        self.owner = threading.current_thread()
        self.is_stopping = threading.Event()
        self.progress: Progress | None = None
        self.num_sent = 0
        self._given = executor
        self._lock = threading.RLock()
        self._met: set[Worker] = set()
        self._lost: set[Worker] = set()
        # By the label of a task: seconds that one takes, and that all have taken here.
        self._seconds: dict[str, float] = {}
        self._seconds_here: dict[str, float] = collections.defaultdict(float)
        self._was_sent: set[str] = set()
        self._drivers: set[str] = set()
        self._num_breaks = self._num_breaks_in_a_row = 0

    # --- what is worth sending ---

    def timed(self, task: Task) -> Any:
        """What a task gives here; how long it took is remembered."""
        began, compiled = time.perf_counter(), compile_seconds()
        result = jax.block_until_ready(task())
        seconds = time.perf_counter() - began - (compile_seconds() - compiled)
        with self._lock:
            self._seconds[task.label] = seconds
            self._seconds_here[task.label] += seconds
        return result

    def is_worth_sending(self, tasks: Sequence[Task]) -> bool:
        """Whether several tasks of one kind are enough work, as far as is known."""
        label = tasks[0].label
        if self.executor is None or len(tasks) < 2 or label not in self._seconds:
            return False
        seconds = len(tasks) * self._seconds[label]
        if seconds < MIN_SECONDS:
            return False
        if any(task.function is not tasks[0].function for task in tasks):
            return False
        here = self._seconds_here[label] + seconds
        return label in self._was_sent or here >= MIN_SECONDS_AT_FIRST

    def is_driver(self, task: Task) -> bool:
        """Whether the pieces of such a task have been sent, so that it is to stay here itself."""
        return task.label in self._drivers

    def note_driver(self, task: Task) -> None:
        with self._lock:
            self._drivers.add(task.label)

    def groups(self, tasks: Sequence[Task]) -> list[_Group]:
        """Tasks of one kind in groups of about as much work as a message should have."""
        seconds = self._seconds[tasks[0].label]
        size = max(1, int(MESSAGE_SECONDS / max(seconds, 1e-6)))
        with self._lock:
            self._was_sent.add(tasks[0].label)
        return [_Group(first, tasks[first : first + size]) for first in range(0, len(tasks), size)]

    def packed(self, group: _Group) -> tuple[bytes, dict[str, bytes]]:
        """A group as bytes, and the parcels that go with it."""
        message = self.sender.packed([Task(*task[:2]) for task in group.tasks])
        return message.content, message.parcels if group.has_parcels else message.unasked

    def finished(self, tasks: Sequence[Task], seconds: float) -> None:
        with self._lock:
            self.num_sent += len(tasks)
            self._seconds[tasks[0].label] = seconds / len(tasks)
            self._num_breaks_in_a_row = 0

    # --- who is there ---

    def meet(self, worker: Worker) -> None:
        with self._lock:
            self._met.add(worker)

    def replace(self, broken: Executor, task: Task) -> None:
        """Puts another executor in the place of a broken one, or none."""
        with self._lock:
            if self.executor is not broken:
                return  # Another thread has done it.
            self._num_breaks += 1
            self._num_breaks_in_a_row += 1
            if self._num_breaks_in_a_row >= MAX_BREAKS:
                raise WorkersLostError(
                    f"executor: its workers ended abruptly {MAX_BREAKS} times in a row, before "
                    f"any had finished a task ({task.label}). Is there enough memory for each of "
                    "them? Scripts that start processes need `if __name__ == '__main__':` around "
                    "what they do."
                )
            if broken is not self._given:
                broken.shutdown(wait=False)
            self.executor = _again(broken)

    @property
    def notes(self) -> tuple[str, ...]:
        name = type(self._given).__name__
        if not self.num_sent:
            return (f"{name} was not used: no task takes long enough to be sent",)
        notes = [f"{self.num_sent:,} tasks were run by {name}"]
        lost = sum(worker.has_ended for worker in self._met)
        if self._num_breaks:
            how = "in this process" if self.executor is None else "in new processes"
            notes.append(f"{name} lost a worker: its unfinished tasks were run again {how}")
        elif lost:
            what = "a worker has" if lost == 1 else f"{lost} workers have"
            notes.append(f"{what} ended during the run: what was unfinished there was run again")
        if any(worker.kind != this_worker().kind for worker in self._met):
            notes.append(
                "workers differ from this machine in processor, backend, version of JAX or "
                "XLA_FLAGS: last digits may differ from those of a run in one process"
            )
        return tuple(notes)

    def close(self) -> None:
        if self.executor is not None and self.executor is not self._given:
            self.executor.shutdown(wait=False, cancel_futures=True)


def _require_usable(executor: Any) -> None:
    if not isinstance(executor, Executor):
        raise TypeError(
            f"executor: expected a concurrent.futures.Executor, got {executor!r}. Of a Dask client "
            "it is client.get_executor()."
        )
    context = getattr(executor, "_mp_context", None)
    if isinstance(executor, ProcessPoolExecutor) and context is not None:
        # A context without a method of its own has the system's default one.
        method = context.get_start_method()
        if method == "fork":
            raise ValueError(
                "executor: its processes would be forked from this one, and JAX's threads do not "
                "survive that. Give it mp_context=multiprocessing.get_context('spawn')."
            )


def _again(broken: Executor) -> Executor | None:
    """A new executor with the settings of a broken one, where these are known."""
    if type(broken) is not ProcessPoolExecutor:
        return None
    settings: Any = broken
    return ProcessPoolExecutor(
        settings._max_workers,
        mp_context=settings._mp_context,
        initializer=settings._initializer,
        initargs=settings._initargs,
        max_tasks_per_child=settings._max_tasks_per_child,
    )
