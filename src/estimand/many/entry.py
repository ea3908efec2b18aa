"""`estimate_many`: a pass over all data sets at once, and on its own what that does not settle."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from concurrent.futures import Executor
from typing import Any, NamedTuple

import jax

from estimand import record as records
from estimand.density import Density
from estimand.estimate import Estimate, further_run, runtime_for, single_run
from estimand.many.datasets import (
    Binder,
    DataSet,
    Entrant,
    Group,
    Name,
    check_data_sets,
    data_sets,
    number_of,
)
from estimand.many.estimates import Estimates, without_draws
from estimand.methods import Auto, Method, Outcome, Run, run_lane
from estimand.model import Bound, ExpectationProgram
from estimand.record import Question
from estimand.runtime import (
    CompilationClock,
    Interruption,
    Listener,
    LocalRuntime,
    Progress,
    Runtime,
    Task,
    bar,
    cache_on_disk,
    in_precision,
    one_blas_thread,
    require_precision,
    this_precision,
    warn_of_wrong_code,
)
from estimand.settings import checked_names
from estimand.trust import Goal, checked

# Data sets in one pass: their draws are in memory at the same time. Not measured; with more of
# them little is gained, and Ctrl-C waits longer.
CHUNK = 32
# The pass takes no budget; with less than this a data set is run on its own, within its budget.
MIN_BUDGET = 500_000


@checked_names
def estimate_many(
    program: ExpectationProgram,
    datasets: Any,
    method: Auto | None = None,
    *,
    rng_key: int | jax.Array = 0,
    precision: str = "double",
    progress_bar: bool | None = None,
    draws: bool = True,
    executor: Executor | None = None,
) -> Estimates:
    """Estimates one program's expectation for each of many data sets.

    Data sets whose arrays have the same shapes are compiled once and explored, drawn and evaluated
    together. A data set that does not pass all checks there, or that cannot be part of it, is run
    again on its own by the default method, and its notes say why. What is wrong with one data set
    says nothing of the others: nothing is raised for it, and `failed` of the result names it.

    Args:
        program: an expectation program, which is called with each data set.
        datasets: a mapping from names (text or integers) to data sets, or a sequence or a
            generator of them, which are named by their places. A data set is a tuple of
            arguments, a dict of arguments by name, or the only argument.
        method: `Auto`, with the error to reach; its budget and time limit are those of a data
            set that is run on its own.
        rng_key: an int or a JAX key. Every data set has a key that follows from this one and its
            name, so that its result does not depend on the others, nor on their order.
        precision: as in `estimate_expectation`.
        progress_bar: as in `estimate_expectation`.
        draws: keep the weighted draws of every data set, for samples and plots: a third of a
            megabyte each, as a rule. False keeps the numbers.
        executor: where data sets that are run on their own are run side by side, as in
            `estimate_expectation`.

    Ctrl-C gives what is finished; `unfinished` of the result names the rest.

    Returns:
        The estimates by name.

    Examples:
        >>> estimates = ep.estimate_many(program, {"low": 1.0, "high": 2.0})
        >>> [(name, estimate.status.name) for name, estimate in estimates.items()]
        [('low', 'ok'), ('high', 'ok')]
        >>> estimates.failed
        {}
    """
    if not isinstance(program, ExpectationProgram):
        if isinstance(program, Bound):
            raise TypeError(
                f"estimate_many: {program!r} has its data already: give the program itself."
            )
        raise TypeError(f"estimate_many: expected an expectation program, got {program!r}.")
    method = Auto() if method is None else method
    if not isinstance(method, Auto):
        raise TypeError(
            f"estimate_many: the method must be Auto(...); it is {method!r}. For another one call "
            "estimate_expectation with each data set."
        )
    check_data_sets(datasets)
    require_precision("estimate_many", precision)
    started = time.perf_counter()
    with (
        in_precision(precision),
        bar(progress_bar) as listener,
        Interruption() as interruption,
    ):
        warn_of_wrong_code()
        key = records.as_key(rng_key)
        work = _Work(program, method, key, number_of(datasets), listener, interruption, draws)
        with contextlib.suppress(KeyboardInterrupt), one_blas_thread(), cache_on_disk():
            work.run(datasets, executor)
    return work.estimates(datasets, time.perf_counter() - started)


class _Waiting(NamedTuple):
    """A data set that is to be run on its own, and why."""

    entrant: Entrant
    reason: str


class _Work:
    """All data sets on their way: what is finished, what failed, and what waits."""

    def __init__(
        self,
        program: ExpectationProgram,
        method: Auto,
        rng_key: jax.Array,
        total: float,
        listener: Listener,
        interruption: Interruption,
        keeps_draws: bool,
    ):
        self.program, self.method, self.total = program, method, total
        self.listener, self.interruption, self.keeps_draws = listener, interruption, keeps_draws
        self.binder = Binder(program, rng_key)
        self.names: list[Name] = []
        self.finished: dict[Name, Estimate] = {}
        self.errors: dict[Name, str] = {}
        self.waiting: list[_Waiting] = []

    def run(self, datasets: Any, executor: Executor | None) -> None:
        """The pass over all groups, as soon as they are full; then the rest one by one."""
        for data in data_sets(datasets):
            self.interruption.check()
            group = self._bound(data)
            if group is not None and len(group.waiting) == CHUNK:
                self._pass_over(group)
        for group in self.binder.groups:
            if group.waiting:
                self._pass_over(group)
        if executor is None:
            self._run_here()
        else:
            self._run_elsewhere(executor)

    def _bound(self, data: DataSet) -> Group | None:
        self.names.append(data.name)
        try:
            return self.binder.add(data)
        except KeyboardInterrupt:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a program does with wrong data
            self.errors[data.name] = _message(error)
            return None

    def _pass_over(self, group: Group) -> None:
        """One pass over the data sets that wait in a group."""
        entrants, group.waiting = group.waiting, []
        reason = group.reason
        if not reason and self.method.max_evaluations < MIN_BUDGET:
            reason = f"max_evaluations is below {MIN_BUDGET:,}"
        if reason:
            self.waiting += [_Waiting(entrant, reason) for entrant in entrants]
            return
        self._report("")
        runtime = LocalRuntime(interruption=self.interruption)
        started = time.perf_counter()
        densities = [group.density_of(entrant) for entrant in entrants]
        with CompilationClock(self.interruption.check) as clock:
            keys = [entrant.key for entrant in entrants]
            outcomes = _outcomes(densities, keys, self.method.goal, runtime)
        seconds = time.perf_counter() - started
        shares = clock.seconds / len(entrants), (seconds - clock.seconds) / len(entrants)
        for entrant, density, outcome in zip(entrants, densities, outcomes, strict=True):
            run, reason = outcome
            if run is not None:
                run = run._replace(outputs=checked(run.outputs, density))
                bad = [output for output in run.outputs if not output.status]
                reason = f"{bad[0].status.name}: {bad[0].findings[-1]}" if bad else ""
            if run is None or reason:
                self.waiting.append(_Waiting(entrant, reason))
            else:
                run = run.with_notes(*group.first.notes)
                self._finish(entrant, self._estimate(entrant, run, density, shares))

    def _estimate(self, entrant: Entrant, run: Run, density: Density, seconds: tuple) -> Estimate:
        expectation = entrant.expectation
        assert expectation.output is not None
        if this_precision() == "single":
            run = run.with_notes("computed in single precision")
        return Estimate(
            program=expectation.name,
            method=repr(self.method),
            output=expectation.output,
            run=run,
            compile_seconds=seconds[0],
            run_seconds=seconds[1],
            provenance=records.provenance_of(expectation, self.method, entrant.key),
            density=density,
            question=Question(expectation, self.method),
        )

    # --- one by one ---

    def _run_here(self) -> None:
        for entrant, reason in self.waiting:
            name = entrant.name

            def listen(progress: Progress, name: Name = name) -> None:
                self._report(f"{name!r} on its own: {progress.stage}")

            try:
                estimate = single_run(
                    entrant.expectation, self.method, entrant.key, listen, self.interruption
                )
            except Exception as error:  # noqa: BLE001 - as in `_bound`
                self.errors[name] = _message(error)
            else:
                self._finish(entrant, _noted(estimate, reason))

    def _run_elsewhere(self, executor: Executor) -> None:
        if not self.waiting:
            return
        settings: dict[str, Any] = {"listener": self.listener, "interruption": self.interruption}
        first = self.waiting[0].entrant.expectation
        with runtime_for(executor, first, **settings) as runtime:
            tasks = [
                Task(run_alone, (item.entrant.expectation, self.method, item.entrant.key))
                for item in self.waiting
            ]
            with contextlib.closing(runtime.results(tasks)) as results:
                for (entrant, reason), found in zip(self.waiting, results, strict=True):
                    if isinstance(found, str):
                        self.errors[entrant.name] = found
                        continue
                    question = Question(entrant.expectation, self.method)
                    estimate = dataclasses.replace(found, question=question)
                    self._finish(entrant, _noted(estimate, reason))

    # --- what is known ---

    def _finish(self, entrant: Entrant, estimate: Estimate) -> None:
        kept = estimate if self.keeps_draws else without_draws(estimate)
        self.finished[entrant.name] = kept

    def _report(self, more: str) -> None:
        done = len(self.finished) + len(self.errors)
        of_all = f" of {int(self.total):,}" if math.isfinite(self.total) else ""
        stage = f"{done:,}{of_all} data sets" + (f"; {more}" if more else "")
        budget = int(self.total) if math.isfinite(self.total) else 0
        self.listener(Progress(stage, done, budget))

    def estimates(self, datasets: Any, seconds: float) -> Estimates:
        """What is finished, in the order of the data sets."""
        known = self.names
        if math.isfinite(self.total):
            known = list(datasets) if hasattr(datasets, "keys") else list(range(len(datasets)))
        return Estimates(
            program=self.program.name,
            method=repr(self.method),
            records={name: self.finished[name] for name in known if name in self.finished},
            errors={name: self.errors[name] for name in known if name in self.errors},
            unfinished=tuple(
                name for name in known if name not in self.finished and name not in self.errors
            ),
            seconds=seconds,
        )


def _outcomes(
    densities: list[Density], keys: list[jax.Array], goal: Goal, runtime: Runtime
) -> list[Outcome]:
    """What the pass says; if it raises, of one data set after the other, and why of some not."""
    try:
        return run_lane(densities, keys, goal, runtime)
    except Exception as error:  # noqa: BLE001 - the default method may do what the pass cannot
        if len(densities) == 1:
            return [Outcome(None, _message(error))]
    pairs = zip(densities, keys, strict=True)
    return [_outcomes([density], [key], goal, runtime)[0] for density, key in pairs]


def run_alone(expectation: Bound, method: Method, key: jax.Array) -> Estimate | str:
    """A task: one data set on its own; what went wrong, in words, if it raises."""
    try:
        return further_run(expectation, method, key)
    except Exception as error:  # noqa: BLE001 - one data set must not end the others
        return _message(error)


def _noted(estimate: Estimate, reason: str) -> Estimate:
    note = f"run on its own, after the pass over all data sets: {reason}"
    return dataclasses.replace(estimate, run=estimate.run.with_notes(note))


def _message(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
