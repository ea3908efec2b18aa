"""The runtime: tasks in order, what is remembered of them, offers, deadlines and the clock."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimand.runtime import (
    CheckpointError,
    CompilationClock,
    Interruption,
    LocalRuntime,
    OutOfTimeError,
    Progress,
    Task,
    journal,
    run_task,
)

FINGERPRINT = {"program": "p", "key": "k"}
CALLS: list[Any] = []


class Pair(NamedTuple):
    left: Any
    right: Any


def double(number: int) -> int:
    CALLS.append(number)
    return 2 * number


def triple(number: int) -> int:
    CALLS.append(number)
    return 3 * number


def pair(number: int) -> Pair:
    CALLS.append(number)
    return Pair(np.full(number, 0.1), jnp.arange(number))


@pytest.fixture(autouse=True)
def _fresh_calls() -> None:
    CALLS.clear()


@contextlib.contextmanager
def remembering(path: Path) -> Iterator[LocalRuntime]:
    with journal.writing(path / "a.est", FINGERPRINT) as book:
        yield LocalRuntime(journal=book)


# --- tasks ---


def test_tasks_run_in_order_and_give_their_results() -> None:
    tasks = [Task(double, (3,)), Task(triple, (1,)), Task(double, (2,))]
    assert LocalRuntime().map(tasks) == [6, 3, 4]
    assert CALLS == [3, 1, 2]
    assert LocalRuntime().map([]) == []
    assert run_task(LocalRuntime(), double, 5) == 10


def test_without_a_journal_nothing_is_kept() -> None:
    runtime = LocalRuntime()
    value = object()
    assert run_task(runtime, lambda: value) is value
    assert [run_task(runtime, double, 1) for _ in range(2)] == [2, 2]
    assert CALLS == [1, 1]
    assert 0 <= runtime.clock() - time.monotonic() + 1e-3 < 10


def test_with_a_journal_tasks_are_remembered_and_not_run_again(tmp_path: Path) -> None:
    tasks = [Task(double, (3,)), Task(pair, (4,), (Pair,)), Task(double, (3,))]
    for _ in range(2):
        with remembering(tmp_path) as runtime:
            first, second, third = runtime.map(tasks)
        assert (first, third) == (6, 6)
        assert type(second) is Pair
        np.testing.assert_array_equal(second.left, np.full(4, 0.1))
        np.testing.assert_array_equal(second.right, np.arange(4))
        assert isinstance(second.right, jax.Array)
    assert CALLS == [3, 4, 3]


def test_a_run_that_was_cut_off_goes_on_at_the_task_after_the_last(tmp_path: Path) -> None:
    with remembering(tmp_path) as runtime:
        runtime.map([Task(double, (1,)), Task(double, (2,))])
    with remembering(tmp_path) as runtime:
        assert runtime.map([Task(double, (k,)) for k in (1, 2, 3)]) == [2, 4, 6]
    assert CALLS == [1, 2, 3]


def test_the_label_of_another_function_is_refused(tmp_path: Path) -> None:
    assert Task(double, (1,)).label == "double"
    with remembering(tmp_path) as runtime:
        run_task(runtime, double, 1)
    with (
        remembering(tmp_path) as runtime,
        pytest.raises(CheckpointError, match="'double' where this run has 'triple'"),
    ):
        run_task(runtime, triple, 1)
    assert CALLS == [1]


def test_a_task_inside_of_a_task_is_remembered_too(tmp_path: Path) -> None:
    """The outer one is stopped between its two inner ones; the first is not run again."""
    is_stopped = True

    def outer(runtime: LocalRuntime) -> int:
        first = run_task(runtime, double, 1)
        if is_stopped:
            raise KeyboardInterrupt
        return first + run_task(runtime, double, 10)

    with remembering(tmp_path) as runtime, pytest.raises(KeyboardInterrupt):
        run_task(runtime, outer, runtime)
    is_stopped = False
    for _ in range(2):
        with remembering(tmp_path) as runtime:
            assert run_task(runtime, outer, runtime) == 22
    assert CALLS == [1, 10]


def test_what_is_reported_is_heard() -> None:
    heard: list[Progress] = []
    runtime = LocalRuntime(listener=heard.append)
    runtime.report(Progress("first"))
    runtime.until(1.0).report(Progress("second", 3, 10, "1 ± 2"))
    assert heard == [Progress("first"), Progress("second", 3, 10, "1 ± 2")]


def test_nobody_listens_by_default(capfd: pytest.CaptureFixture) -> None:
    LocalRuntime().report(Progress("unheard"))
    assert capfd.readouterr() == ("", "")


# --- interruption ---


def test_an_interruption_is_obeyed_before_the_next_task() -> None:
    interruption = Interruption()

    def press() -> int:
        interruption.is_requested = True
        return 7

    runtime = LocalRuntime(interruption=interruption)
    inner = runtime.until(1e9)
    with pytest.raises(KeyboardInterrupt):
        inner.map([Task(double, (1,)), Task(press, ()), Task(double, (2,))])
    assert CALLS == [1]
    # Once: whoever has caught it can go on.
    assert runtime.map([Task(double, (3,))]) == [6]


def test_a_task_that_is_interrupted_is_not_remembered(tmp_path: Path) -> None:
    """A journal has whole tasks only: what was under way runs again."""

    def stopped() -> int:
        raise KeyboardInterrupt

    with remembering(tmp_path) as runtime, pytest.raises(KeyboardInterrupt):
        runtime.map([Task(double, (1,)), Task(stopped, ())])
    with remembering(tmp_path) as runtime:
        assert runtime.map([Task(double, (1,)), Task(double, (2,))]) == [2, 4]
    assert CALLS == [1, 2]


# --- offers and deadlines ---


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of day, to be set by the test."""
    moment = [100.0]
    monkeypatch.setattr(journal.time, "monotonic", lambda: moment[0])
    return moment


def test_time_is_up_only_after_something_was_offered(now: list[float]) -> None:
    runtime = LocalRuntime()
    limited = runtime.until(110.0)
    assert run_task(limited, double, 1) == 2
    now[0] = 120.0
    assert run_task(limited, double, 2) == 4
    limited.offer(lambda: "known")
    with pytest.raises(OutOfTimeError):
        run_task(limited, double, 3)
    assert CALLS == [1, 2]
    assert limited.offered is not None
    assert limited.offered() == "known"


def test_a_deadline_is_kept_to_the_moment(now: list[float]) -> None:
    limited = LocalRuntime().until(110.0)
    limited.offer(lambda: None)
    now[0] = 109.999
    assert run_task(limited, double, 1) == 2
    now[0] = 110.0
    with pytest.raises(OutOfTimeError):
        run_task(limited, double, 2)


def test_a_task_that_has_begun_is_finished(now: list[float]) -> None:
    def slow() -> int:
        now[0] += 50.0
        return 1

    limited = LocalRuntime().until(110.0)
    limited.offer(lambda: None)
    with pytest.raises(OutOfTimeError):
        limited.map([Task(slow, ()), Task(double, (1,))])
    assert now == [150.0]
    assert CALLS == []


def test_an_inner_deadline_is_never_later_than_the_outer_one(now: list[float]) -> None:
    runtime = LocalRuntime()
    outer = runtime.until(110.0)
    later, sooner = outer.until(1000.0), outer.until(105.0)
    runtime.offer(lambda: "known outside")
    now[0] = 107.0
    with pytest.raises(OutOfTimeError):
        run_task(sooner, double, 1)
    assert run_task(later, double, 2) == 4
    assert run_task(outer, double, 3) == 6
    now[0] = 111.0
    for limited in (later, outer):
        with pytest.raises(OutOfTimeError):
            run_task(limited, double, 4)
    # The place without a deadline has none.
    assert run_task(runtime, double, 5) == 10


def test_what_is_offered_inside_is_offered_outside() -> None:
    runtime = LocalRuntime()
    inner = runtime.until(1e9).until(1e9)
    assert inner.offered is runtime.offered is None
    inner.offer(lambda: 1)
    assert runtime.offered is not None
    assert runtime.offered() == 1
    inner.offer(lambda: 2)
    assert runtime.offered() == 2


def test_what_is_offered_aside_stays_there(now: list[float]) -> None:
    runtime = LocalRuntime()
    runtime.offer(lambda: "better")
    aside = runtime.until(110.0, aside=True)
    inner = aside.until(110.0)
    inner.offer(lambda: "worse")
    assert runtime.offered is not None
    assert runtime.offered() == "better"
    assert aside.offered is not None
    assert aside.offered() == "worse"
    now[0] = 120.0
    with pytest.raises(OutOfTimeError):
        run_task(aside, double, 1)


def test_an_offer_is_made_only_if_it_is_asked_for() -> None:
    made: list[int] = []
    runtime = LocalRuntime()
    for number in range(3):
        runtime.offer(lambda number=number: made.append(number))  # type: ignore[misc]
    assert made == []
    assert runtime.offered is not None
    runtime.offered()
    assert made == [2]


# --- clocks ---


def test_the_clock_goes_on_and_repeats(tmp_path: Path, now: list[float]) -> None:
    def run(*steps: float) -> list[float]:
        with remembering(tmp_path) as runtime:
            seen = []
            for step in steps:
                now[0] += step
                seen.append(runtime.clock())
        return seen

    assert run(1.0, 2.0) == [1.0, 3.0]
    now[0] = 7.0
    assert run(50.0, 0.0, 5.0) == [1.0, 3.0, 58.0]


def test_decisions_by_time_are_replayed(tmp_path: Path, now: list[float]) -> None:
    """Where the time was up, it is so again, although reading is fast."""

    def run(seconds: float) -> bool:
        with remembering(tmp_path) as runtime:
            limited = runtime.until(10.0)
            limited.offer(lambda: None)
            now[0] += seconds
            try:
                run_task(limited, double, 1)
            except OutOfTimeError:
                return True
            return False

    assert run(11.0)
    assert run(0.0)
    assert CALLS == []


def test_seconds_of_compilation_are_replayed(tmp_path: Path) -> None:
    def run(seconds: float) -> list[float]:
        with CompilationClock() as clock, remembering(tmp_path) as runtime:
            clock.intervals.append((0.0, seconds))
            return [runtime.compile_seconds()]

    assert run(3.5) == [3.5]
    assert run(0.25) == [3.5]


def test_seconds_of_compilation_without_a_journal_are_those_of_the_clock() -> None:
    assert LocalRuntime().compile_seconds() == 0.0
    with CompilationClock() as clock:
        clock.intervals.append((1.0, 3.0))
        assert LocalRuntime().compile_seconds() == 2.0


# --- threads ---


def slowly(number: int) -> int:
    time.sleep(0.3 + 0.05 * (3 - number))
    return double(number)


def where(number: int) -> str:
    time.sleep(0.3 if number else 0.0)
    return threading.current_thread().name


def test_tasks_run_in_threads_once_one_of_them_is_long() -> None:
    names = LocalRuntime(num_threads=2).map([Task(where, (number,)) for number in (0, 0, 1, 1, 1)])
    here = threading.current_thread().name
    assert names[:3] == [here] * 3
    assert here not in names[3:]
    assert LocalRuntime(num_threads=1).map([Task(where, (1,))] * 3) == [here] * 3


def failing(number: int) -> int:
    raise ValueError(f"task {number}")


def compiled(number: int) -> float:
    return float(jax.jit(lambda x: x * 1.25 + number)(1.0))


def test_threads_give_results_in_order() -> None:
    runtime = LocalRuntime(num_threads=3)
    assert runtime.map([Task(slowly, (number,)) for number in range(4)]) == [0, 2, 4, 6]
    assert runtime.until(1e9)._num_threads == 3


def test_what_threads_raise_is_raised() -> None:
    tasks = [Task(slowly, (1,)), Task(failing, (2,)), Task(slowly, (0,))]
    with pytest.raises(ValueError, match="task 2"):
        LocalRuntime(num_threads=2).map(tasks)


def test_compilations_in_threads_count() -> None:
    with CompilationClock() as clock:
        tasks = [Task(compiled, (k,)) for k in (0, 1)]
        values = list(LocalRuntime(num_threads=2)._results_of_threads(tasks, 2))
    assert values == [1.25, 2.25]
    assert clock.num_compilations == 2


def test_threads_are_remembered_in_order(tmp_path: Path) -> None:
    tasks = [Task(slowly, (number,)) for number in range(3)]
    with journal.writing(tmp_path / "a.est", FINGERPRINT) as book:
        assert LocalRuntime(journal=book, num_threads=3).map(tasks) == [0, 2, 4]
    CALLS.clear()
    with journal.writing(tmp_path / "a.est", FINGERPRINT) as book:
        runtime = LocalRuntime(journal=book, num_threads=3)
        assert runtime.map(tasks) == [0, 2, 4]
        assert CALLS == []
        assert runtime.map([Task(double, (5,)), Task(double, (6,))]) == [10, 12]


def test_ctrl_c_ends_tasks_in_threads() -> None:
    interruption = Interruption()

    def press(_number: int) -> int:
        interruption.is_requested = True
        time.sleep(0.5)
        return 0

    runtime = LocalRuntime(interruption=interruption, num_threads=2)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        runtime.map([Task(press, (number,)) for number in range(8)])
    assert time.monotonic() - started < 3
