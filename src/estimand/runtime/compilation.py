"""Compile time apart from run time, as JAX itself reports it; and the threads that XLA has."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax

# XLA may wait forever where as many batched calls of LAPACK (Cholesky factors, triangular solves)
# run at once as it has threads: each waits for work that it has queued behind the others. On two
# cores two are enough, as in the log density and the target of a Gaussian process.
MIN_THREADS = 4
if (os.cpu_count() or 1) < MIN_THREADS:
    os.environ.setdefault("PJRT_NPROC", str(MIN_THREADS))

_PREFIX = "/jax/core/compile/"
_active = threading.local()


class CompilationClock:
    """Context manager that collects the seconds spent tracing, lowering and compiling.

    Traces nest, so the events' intervals are merged before they are added up. `between` is called
    after every step of tracing, lowering and compiling; what it raises ends the work there.
    `compiling` gives a context in which code that is not known yet is called for the first time.
    """

    def __init__(
        self,
        between: Callable[[], None] | None = None,
        compiling: Callable[[], AbstractContextManager] = contextlib.nullcontext,
    ):
        self.between, self.compiling = between, compiling

    def __enter__(self) -> CompilationClock:
        _listen()
        self.intervals: list[tuple[float, float]] = []
        self.num_compilations = 0
        self._outer = getattr(_active, "clock", None)
        _active.clock = self
        return self

    def __exit__(self, *exception: Any) -> None:
        _active.clock = self._outer
        if self._outer is not None:
            self._outer.intervals.extend(self.intervals)
            self._outer.num_compilations += self.num_compilations

    @property
    def seconds(self) -> float:
        total, covered_until = 0.0, -float("inf")
        for start, end in sorted(self.intervals):
            total += max(0.0, end - max(start, covered_until))
            covered_until = max(covered_until, end)
        return total


def compiling() -> AbstractContextManager:
    """The context in which code is compiled, by the clock that runs in this thread."""
    clock = getattr(_active, "clock", None)
    return contextlib.nullcontext() if clock is None else clock.compiling()


def note_loaded(started: float) -> None:
    """Counts code that was loaded since then as a program, and its time as that of compilation."""
    clock = getattr(_active, "clock", None)
    if clock is not None:
        clock.intervals.append((started, time.perf_counter()))
        clock.num_compilations += 1


def with_this_clock(function: Callable[[], Any]) -> Callable[[], Any]:
    """A function for another thread, whose compilations count for the clock of this one."""
    clock = getattr(_active, "clock", None)

    def run() -> Any:
        _active.clock = clock
        try:
            return function()
        finally:
            _active.clock = None

    return run


def compile_seconds() -> float:
    """Seconds of compilation so far, by the clock that runs in this thread; 0 without one."""
    clock = getattr(_active, "clock", None)
    return 0.0 if clock is None else clock.seconds


def _record(event: str, duration_secs: float, **_: str | int) -> None:
    clock = getattr(_active, "clock", None)
    if clock is None or not event.startswith(_PREFIX):
        return
    end = time.perf_counter()
    clock.intervals.append((end - duration_secs, end))
    if event.endswith("backend_compile_duration"):
        clock.num_compilations += 1
    if clock.between is not None:
        clock.between()


_listening = False
_lock = threading.Lock()


def _listen() -> None:
    global _listening
    with _lock:
        if not _listening:
            jax.monitoring.register_event_duration_secs_listener(_record)
            _listening = True
