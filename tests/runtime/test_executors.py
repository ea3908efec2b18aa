"""Executors: the bits of one process on any of them, workers that die, errors, Ctrl-C, files."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.model import ProgramError
from estimand.runtime import (
    ExecutorRuntime,
    Interruption,
    LocalRuntime,
    OutOfTimeError,
    Progress,
    Task,
    WorkersLostError,
    executors,
    journal,
    parcels,
    spread,
)
from estimand.sampling import rows_at_a_time
from problems import radon
from tests.same import assert_same_outputs

pytest.importorskip("cloudpickle")

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def _everything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is done in no time, and each task in a message of its own."""
    for name in ("MIN_SECONDS", "MIN_SECONDS_AT_FIRST", "MESSAGE_SECONDS"):
        monkeypatch.setattr(executors, name, 0.0)


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, mp_context=SPAWN) as pool:
        yield pool


@pytest.fixture
def threads() -> Iterator[Executor]:
    """An executor that is started at once; what it runs is pickled as for any other."""
    with ThreadPoolExecutor(2) as pool:
        yield pool


# --- programs ---


def slow_mean(x: jax.Array) -> jax.Array:
    """Expensive by its expression, which does not tell that the loop ends after two rounds."""

    def once_more(carry: tuple) -> tuple:
        return carry[0] + 1, jnp.sin(carry[1] + x)

    start = jnp.int32(0), jnp.zeros(2000, x.dtype)
    return jnp.mean(jax.lax.while_loop(lambda carry: carry[0] < 2, once_more, start)[1])


@ep.expectation
def expensive(y: Any) -> Any:
    """Explored by scouts: prior draws seldom come near the data."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x + 1e-3 * slow_mean(x), 0.02), obs=y)
    return jnp.exp(x)


@ep.expectation
def cheap(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return {"cube": x**3, "tail": x > 3.5}


SMALL = ep.AdaptiveIS(max_evaluations=50_000)


def estimated(program: Any, **settings: Any) -> ep.Estimate:
    return ep.estimate_expectation(program(1.5), SMALL, throw=False, **settings)


def assert_same(one: ep.Estimate, other: ep.Estimate) -> None:
    assert_same_outputs(one.outputs, other.outputs)
    assert one.num_evaluations == other.num_evaluations


def num_sent(estimate: ep.Estimate) -> int:
    """How many tasks the notes say were run by the executor."""
    notes = [note for note in estimate.run.notes if " tasks were run by " in note]
    return int(notes[0].split()[0].replace(",", "")) if notes else 0


# --- the same bits ---


@pytest.mark.usefixtures("_everything_is_sent")
def test_spawned_processes_give_the_bits_of_one_process(pool: Executor) -> None:
    serial, spawned = estimated(expensive), estimated(expensive, executor=pool)
    assert_same(serial, spawned)
    assert num_sent(spawned) > 100
    assert f"{num_sent(spawned):,} tasks were run by ProcessPoolExecutor" in spawned.run.notes
    assert not any("differ" in note or "lost" in note for note in spawned.run.notes)


@pytest.mark.usefixtures("_everything_is_sent")
@pytest.mark.parametrize("program", [expensive, cheap])
def test_any_executor_gives_the_bits_of_one_process(program: Any, threads: Executor) -> None:
    result = estimated(program, executor=threads)
    assert_same(estimated(program), result)
    assert num_sent(result) > 5


def test_what_takes_too_little_time_is_not_sent(
    threads: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "MIN_SECONDS", 1000.0)
    result = estimated(cheap, executor=threads)
    assert_same(estimated(cheap), result)
    assert "ThreadPoolExecutor was not used: no task takes long enough to be sent" in (
        result.run.notes
    )


@pytest.mark.usefixtures("_everything_is_sent")
def test_single_precision_travels(threads: Executor) -> None:
    result = estimated(cheap, executor=threads, precision="single")
    assert_same(estimated(cheap, precision="single"), result)
    assert num_sent(result) > 5


@pytest.mark.usefixtures("_everything_is_sent")
def test_further_runs_are_tasks(threads: Executor) -> None:
    first = estimated(cheap)
    goal = 0.6 * first.outputs[0].standard_error / abs(first.outputs[0].value)
    settings: dict[str, Any] = {"relative_error": goal, "max_runs": 3, "throw": False}
    serial, spread_out = first.refine(**settings), first.refine(**settings, executor=threads)
    assert_same(serial, spread_out)
    assert serial.provenance.keys == spread_out.provenance.keys
    assert len(serial.provenance.keys) > 2
    assert num_sent(spread_out) > 0
    limited = {**settings, "max_evaluations": 1.5 * first.cost}
    one, other = first.refine(**limited), first.refine(**limited, executor=threads)
    assert len(one.provenance.keys) == len(other.provenance.keys) == 2
    assert_same(one, other)


@pytest.mark.usefixtures("_everything_is_sent")
def test_evidence_of_a_fitted_mixture(threads: Executor) -> None:
    one = ep.log_evidence(expensive(1.5), SMALL)
    other = ep.log_evidence(expensive(1.5), SMALL, executor=threads)
    assert float(one.log_z) == float(other.log_z)
    np.testing.assert_array_equal(one.log_weights, other.log_weights)
    with pytest.raises(TypeError, match="log_evidence: AnIS runs in one piece"):
        ep.log_evidence(expensive(1.5), ep.AnIS(), executor=threads)


# --- how it is cut ---


def test_only_expensive_evaluations_are_cut_and_not_by_the_clock() -> None:
    with jax.enable_x64(True):
        dear, plain = (ep.Density.of(program(1.5)) for program in (expensive, cheap))
        assert rows_at_a_time(plain, 4096) == 4096
        rows = rows_at_a_time(dear, 4096)
        assert 1 <= rows < 1024
        assert rows_at_a_time(dear, 500, num_evaluations=20) < rows
        assert dear.work.num_numbers > 1e5
        assert dear.without_outputs().work.num_numbers > 1e5


def test_work_is_counted_by_the_expression() -> None:
    def work(function: Any) -> Any:
        @ep.expectation
        def program() -> Any:
            return function(numpyro.sample("x", dist.Normal(0.0, 1.0)))

        return ep.Density.of(program()).work.num_numbers

    def loop(x: jax.Array, length: int) -> jax.Array:
        return jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=length)[0]

    def called(x: jax.Array, method: str) -> jax.Array:
        shape = jax.ShapeDtypeStruct((), x.dtype)
        return jax.pure_callback(lambda x: x, shape, x, vmap_method=method)

    assert 900 <= work(lambda x: loop(x, 1000)) - work(lambda x: loop(x, 10)) <= 1100
    assert work(lambda x: jnp.sum((jnp.ones((50, 40)) * x) @ jnp.ones((40, 30)))) > 50 * 40 * 30
    assert work(lambda x: called(x, "sequential")) > 1e6
    assert 1e5 <= work(lambda x: called(x, "expand_dims")) < 1e6
    branches = work(lambda x: jax.lax.cond(x > 0, lambda y: loop(y, 500), jnp.sin, x))
    assert 500 <= branches < 1000


# --- tasks ---


def squared(number: int) -> tuple[int, int]:
    return number**2, os.getpid()


def failing(number: int) -> int:
    if number == 3:
        raise ValueError("number 3 will not do")
    return number


def killed_once(number: int, marker: str) -> int:
    """The second task kills its process, the first time that it runs."""
    if number == 2 and not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2


def always_killed(number: int, client: int) -> int:
    if os.getpid() != client:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def napping(number: int) -> int:
    time.sleep(0.05)
    return number


def doubled_in_pieces(number: int) -> list[int]:
    return spread([Task(napping, (number + k,)) for k in range(4)])


def picked(array: jax.Array, number: int) -> float:
    return float(array[number])


def tasks_of(function: Any, count: int, *arguments: Any) -> list[Task]:
    return [Task(function, (number, *arguments)) for number in range(count)]


@contextlib.contextmanager
def running(executor: Executor, **settings: Any) -> Iterator[ExecutorRuntime]:
    runtime = ExecutorRuntime(executor, **settings)
    try:
        yield runtime
    finally:
        runtime.close()


@pytest.mark.usefixtures("_everything_is_sent")
def test_all_but_the_first_run_elsewhere(pool: Executor) -> None:
    with running(pool) as runtime:
        squares, processes = zip(*runtime.map(tasks_of(squared, 50)), strict=True)
    assert squares == tuple(k**2 for k in range(50))
    assert processes[0] == os.getpid()
    assert os.getpid() not in processes[1:]
    assert runtime.notes == ("49 tasks were run by ProcessPoolExecutor",)


@pytest.mark.usefixtures("_everything_is_sent")
def test_a_task_that_drives_others_stays_and_its_pieces_go(pool: Executor) -> None:
    tasks = tasks_of(doubled_in_pieces, 6)
    with running(pool) as runtime:
        assert runtime.map(tasks) == LocalRuntime().map(tasks)
        # The very first piece is timed here.
        assert runtime.notes == ("23 tasks were run by ProcessPoolExecutor",)


@pytest.mark.usefixtures("_everything_is_sent")
def test_an_error_of_a_task_is_raised_as_it_is(pool: Executor) -> None:
    with running(pool) as runtime, pytest.raises(ValueError, match="number 3") as caught:
        runtime.map(tasks_of(failing, 6))
    assert "in a worker" in caught.value.__notes__[0]
    assert "failing" in caught.value.__notes__[0]


@pytest.mark.usefixtures("_everything_is_sent")
def test_tasks_of_a_killed_worker_run_again(tmp_path: Path) -> None:
    with (
        ProcessPoolExecutor(2, mp_context=SPAWN) as own,
        running(own) as runtime,
    ):
        results = runtime.map(tasks_of(killed_once, 12, str(tmp_path / "killed")))
        assert results == [k**2 for k in range(12)]
        assert "ProcessPoolExecutor lost a worker: its unfinished tasks were run again in new " in (
            " ".join(runtime.notes)
        )
        # The processes that took their place are there for the rest of the run.
        assert [square for square, _ in runtime.map(tasks_of(squared, 4))] == [0, 1, 4, 9]


@pytest.mark.slow
@pytest.mark.usefixtures("_everything_is_sent")
def test_workers_that_are_always_killed_end_the_run() -> None:
    with (
        ProcessPoolExecutor(2, mp_context=SPAWN) as own,
        running(own) as runtime,
        pytest.raises(WorkersLostError, match=r"always_killed.*enough memory"),
    ):
        runtime.map(tasks_of(always_killed, 4, os.getpid()))


class Breaking(ThreadPoolExecutor):
    """Breaks after some tasks."""

    def __init__(self, count: int):
        super().__init__(1)
        self.count = count

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future:
        self.count -= 1
        if self.count < 0:
            raise executors.BrokenExecutor("gone")
        return super().submit(function, *args, **kwargs)


@pytest.mark.usefixtures("_everything_is_sent")
def test_the_rest_of_a_broken_executor_runs_here() -> None:
    with Breaking(5) as breaking, running(breaking) as runtime:
        assert [square for square, _ in runtime.map(tasks_of(squared, 20))] == [
            k**2 for k in range(20)
        ]
        assert runtime.notes == (
            "5 tasks were run by Breaking",
            "Breaking lost a worker: its unfinished tasks were run again in this process",
        )


@pytest.mark.usefixtures("_everything_is_sent")
def test_an_executor_that_is_shut_down_says_so(threads: Executor) -> None:
    threads.shutdown()
    with running(threads) as runtime, pytest.raises(RuntimeError, match="after shutdown"):
        runtime.map(tasks_of(squared, 4))


def test_what_is_no_executor_is_refused() -> None:
    with pytest.raises(TypeError, match=r"executor: expected .* Dask client it is client.get_exec"):
        estimated(cheap, executor=4)


def test_forked_processes_are_refused() -> None:
    with (
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as forked,
        pytest.raises(ValueError, match=r"forked.*get_context\('spawn'\)"),
    ):
        estimated(cheap, executor=forked)


def test_a_program_that_cannot_be_pickled_is_refused_before_any_work(threads: Executor) -> None:
    lock, traced = threading.Lock(), []

    @ep.expectation
    def locked(y: Any) -> Any:
        with lock:
            traced.append(1)
            return numpyro.sample("x", dist.Normal(y, 1.0))

    bound = locked(1.0)
    before = len(traced)
    with pytest.raises(ProgramError, match=r"executor: program 'locked' cannot be sent .*lock"):
        ep.estimate_expectation(bound, executor=threads)
    # Tracing for the record's digest evaluates nothing.
    assert len(traced) <= before + 1


# --- what travels ---


class Recording(ThreadPoolExecutor):
    """Keeps what it was asked to send."""

    def __init__(self) -> None:
        super().__init__(1)
        self.sizes: list[tuple[int, int]] = []

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future:
        content, sent, _ = args
        pickle.dumps((function, args))
        self.sizes.append((len(content), sum(map(len, sent.values()))))
        return super().submit(function, *args, **kwargs)


@pytest.mark.usefixtures("_everything_is_sent")
def test_large_data_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcels, "_kept", parcels._Kept())
    array = jnp.arange(100_000.0)
    with Recording() as executor, running(executor) as runtime:
        found = runtime.map([Task(picked, (array, number)) for number in range(20)])
    assert found == list(range(20))
    with_data = [sent for _, sent in executor.sizes if sent]
    assert max(with_data) > array.nbytes
    # Those that were waiting when the first worker asked, and no others.
    assert len(with_data) <= 19
    assert all(content < 2000 for content, _ in executor.sizes)
    assert len(executor.sizes) == 19 + len(with_data)


@pytest.mark.usefixtures("_everything_is_sent")
def test_a_worker_that_knows_the_data_is_not_sent_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parcels, "_kept", parcels._Kept())
    array = jnp.arange(100_000.0)
    with Recording() as executor, running(executor) as runtime:
        for _ in range(5):
            runtime.map([Task(picked, (array, number)) for number in range(3)])
    # Of the first round, in which two messages wait for the one worker.
    assert 1 <= len([sent for _, sent in executor.sizes if sent]) <= 2


@pytest.mark.usefixtures("_everything_is_sent")
def test_a_program_is_compiled_once_by_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has one model for all tasks, also where a callback tells it from all others."""
    traces: list[int] = []
    monkeypatch.setattr(parcels, "_kept", parcels._Kept())
    opened = parcels._kept.opened

    def counted(*arguments: Any) -> Any:
        tasks = opened(*arguments)
        if isinstance(tasks, list):
            traces.extend(id(task.arguments[0].model.program) for task in tasks)
        return tasks

    monkeypatch.setattr(parcels._kept, "opened", counted)
    density = ep.Density.of(cheap(1.5))
    variants = [density, density.standardised(), density.part("gamma1_plus"), density.with_looks()]
    with ThreadPoolExecutor(1) as executor, running(executor) as runtime:
        runtime.map([Task(dimension_of, (variant,)) for variant in variants])
    assert len(traces) == 3
    assert len(set(traces)) == 1


def dimension_of(density: ep.Density) -> int:
    return density.dimension


# --- Ctrl-C, time, checkpoints, progress ---


@pytest.mark.usefixtures("_everything_is_sent", "usual_ctrl_c")
def test_ctrl_c_cancels_what_is_pending(threads: Executor) -> None:
    with Interruption() as interruption, running(threads, interruption=interruption) as runtime:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            runtime.map(tasks_of(napping, 400))
        assert time.monotonic() - began < 5.0


@pytest.mark.usefixtures("_everything_is_sent", "usual_ctrl_c")
def test_ctrl_c_gives_what_is_known(threads: Executor) -> None:
    """Pressed as soon as draws are integrated, wherever the run then is."""
    seen: list[str] = []

    def listen(progress: Progress) -> None:
        if progress.stage.startswith("integrating") and not seen:
            seen.append(progress.stage)
        elif seen and len(seen) < 2:
            seen.append(progress.stage)
            os.kill(os.getpid(), signal.SIGINT)

    from estimand import estimate as estimates
    from estimand.record import Question, as_key, provenance_of

    question = Question(expensive(1.5), SMALL)
    with jax.enable_x64(True), Interruption() as interruption:
        maker = estimates._Maker(question, listen, interruption, threads)
        key = as_key(0)
        result = maker.made(key, provenance_of(*question, key))
    assert result.status.name in ("interrupted", "ok")
    assert np.isfinite(result.value)


@pytest.mark.usefixtures("_everything_is_sent")
def test_a_time_limit_ends_at_the_next_result(threads: Executor) -> None:
    with running(threads) as runtime:
        limited = runtime.until(runtime.clock() + 0.3)
        limited.offer(lambda: None)
        with pytest.raises(OutOfTimeError):
            limited.map(tasks_of(napping, 400))


@pytest.mark.usefixtures("_everything_is_sent")
@pytest.mark.parametrize("first_is_serial", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_checkpoint_goes_on_anywhere(
    tmp_path: Path, threads: Executor, first_is_serial: bool
) -> None:
    """What one process began is finished by an executor, and the other way round."""
    path = tmp_path / "run.est"
    executor_of = {True: None, False: threads}

    class EnoughError(Exception):
        pass

    remembered = journal.Journal.remember
    count = 0

    def stopped(book: Any, *args: Any) -> Any:
        nonlocal count
        count += 1
        if count == 9:
            raise EnoughError
        return remembered(book, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal.Journal, "remember", stopped)
        with pytest.raises(EnoughError):
            estimated(expensive, checkpoint=path, executor=executor_of[first_is_serial])
    other = estimated(expensive, checkpoint=path, executor=executor_of[not first_is_serial])
    assert_same(estimated(expensive), other)


@pytest.mark.usefixtures("_everything_is_sent")
def test_progress_says_how_many_tasks_were_run(threads: Executor) -> None:
    stages: list[str] = []
    with running(threads, listener=lambda progress: stages.append(progress.stage)) as runtime:
        runtime.report(Progress("squaring"))
        runtime.map(tasks_of(squared, 5))
    assert stages[0] == "squaring"
    assert stages[-1] == "squaring (4 tasks run by workers)"


# --- other executors ---


@pytest.mark.slow
@pytest.mark.usefixtures("_everything_is_sent")
def test_eight_processes_and_a_killed_one_give_the_same_bits() -> None:
    serial = estimated(expensive)
    with ProcessPoolExecutor(8, mp_context=SPAWN) as many:
        timer = threading.Timer(25.0, lambda: os.kill(next(iter(many._processes)), signal.SIGKILL))
        timer.start()
        for _ in range(20):
            result = estimated(expensive, executor=many)
            assert_same(serial, result)
            if any("lost a worker" in note for note in result.run.notes):
                return
    pytest.fail("no worker was lost while an estimate was made")


def radon_estimate(executor: Executor | None = None) -> ep.Estimate:
    problem = radon.problems()[0]
    return ep.estimate_expectation(
        ep.expectation(problem.model)(*problem.args), throw=False, executor=executor
    )


@pytest.mark.slow
@pytest.mark.usefixtures("_everything_is_sent")
@pytest.mark.filterwarnings("ignore")
def test_dask_gives_the_bits_of_one_process_also_if_a_worker_is_killed() -> None:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    serial = radon_estimate()
    with (
        distributed.LocalCluster(
            n_workers=4, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        executor = client.get_executor()
        whole = radon_estimate(executor)
        assert_same(serial, whole)
        assert num_sent(whole) > 10
        victims = []

        def kill() -> None:
            victims.append(next(iter(client.run(os.getpid).values())))
            os.kill(victims[0], signal.SIGKILL)

        timer = threading.Timer(2.0, kill)
        timer.start()
        shot = radon_estimate(executor)
        assert victims
        assert_same(serial, shot)
        assert any("a worker has ended during the run" in note for note in shot.run.notes)


@pytest.mark.slow
@pytest.mark.usefixtures("_everything_is_sent")
@pytest.mark.filterwarnings("ignore")
def test_loky_gives_the_bits_of_one_process() -> None:
    loky = pytest.importorskip("loky", reason="loky is not installed")
    executor = loky.get_reusable_executor(max_workers=2)
    try:
        result = estimated(expensive, executor=executor)
    finally:
        executor.shutdown()
    assert_same(estimated(expensive), result)
    assert num_sent(result) > 100
