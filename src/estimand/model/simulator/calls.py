"""Calls of a simulator: batches out, values back, one point's failure kept from the others."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from estimand.model.layout import ProgramError
from estimand.model.simulator.store import Memory, Store, keys_of
from estimand.runtime import SentOnce

# Pieces that each worker of an executor gets of a batch: more of them even out how long they take.
PIECES_PER_WORKER = 2


class SimulatorError(RuntimeError):
    """A simulator that cannot be used as it is; the message says what to do.

    Examples:
        >>> broken = ep.from_simulator(
        ...     lambda points: points["y"],
        ...     prior={"x": dist.Normal(0, 1)},
        ...     f=lambda sites, g: g,
        ... )
        >>> try:
        ...     ep.estimate_expectation(broken())
        ... except ep.SimulatorError as error:
        ...     print(str(error).splitlines()[0])
        simulate fails at every point; the first failure: KeyError: 'y'
    """


class Called(NamedTuple):
    """What points gave: a row of numbers for each, NaN where a call failed, and why it did."""

    values: np.ndarray
    errors: tuple[str | None, ...]

    def packed(self) -> tuple[np.ndarray, np.ndarray]:
        """The same as arrays, which a checkpoint can keep."""
        text = json.dumps(self.errors).encode()
        return self.values, np.frombuffer(text, np.uint8)

    @classmethod
    def unpacked(cls, values: np.ndarray, text: np.ndarray) -> Called:
        return cls(np.asarray(values), tuple(json.loads(np.asarray(text).tobytes())))


class Shapes(NamedTuple):
    """Names and shapes of what goes in or comes out; a single output has the name ''."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def split(self, rows: Any) -> list[Any]:
        """Arrays with these shapes behind the first axis, from rows of numbers."""
        ends = np.cumsum(self.sizes)
        return [
            rows[:, end - size : end].reshape((len(rows), *shape))
            for end, size, shape in zip(ends, self.sizes, self.shapes, strict=True)
        ]

    def by_name(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(self.names, self.split(rows), strict=True))


class Job(NamedTuple):
    """How a user's function is called; all that a worker needs."""

    function: Callable
    inputs: Shapes
    outputs: Shapes
    is_per_point: bool

    def run(self, rows: np.ndarray) -> tuple[np.ndarray, list[str | None]]:
        """Values and errors of some points; a batch that fails is tried again point by point.

        The function is given copies: it may work in its arguments.
        """
        if not self.is_per_point:
            points = self.inputs.by_name(rows.copy())
            if len(rows) == 1:
                return self._alone(points)
            try:
                found = self.function(points)
            except Exception:  # noqa: BLE001 - some point's, and the others can be had
                found = None
            if found is not None:
                return self._checked(found, len(rows)), [None] * len(rows)
        pieces = [self._alone(self.inputs.by_name(row[None].copy())) for row in rows]
        return (
            np.concatenate([values for values, _ in pieces]),
            [error for _, errors in pieces for error in errors],
        )

    def _alone(self, points: dict[str, np.ndarray]) -> tuple[np.ndarray, list[str | None]]:
        given = points
        if self.is_per_point:
            given = {name: array[0][()] for name, array in points.items()}
        try:
            found = self.function(given)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this point's
            return np.full((1, self.outputs.size), math.nan), [f"{type(error).__name__}: {error}"]
        if self.is_per_point:
            if isinstance(found, Mapping):
                found = {name: np.asarray(value)[None] for name, value in found.items()}
            else:
                found = np.asarray(found)[None]
        return self._checked(found, 1), [None]

    def _checked(self, found: Any, count: int) -> np.ndarray:
        """What the function gave, as rows of numbers; a SimulatorError if it is something else."""
        if self.outputs.names == ("",):
            items = {"": found}
            if isinstance(found, Mapping):
                raise SimulatorError(
                    "simulate gave a dict, and one array was declared: say which arrays are in "
                    f"it, as in outputs={ {name: np.shape(v)[1:] for name, v in found.items()} }."
                )
        else:
            if not isinstance(found, Mapping) or set(found) != set(self.outputs.names):
                given = sorted(found) if isinstance(found, Mapping) else type(found).__name__
                raise SimulatorError(
                    f"simulate must give a dict with {list(self.outputs.names)}, as declared by "
                    f"outputs=; it gave {given}."
                )
            items = dict(found)
        columns = []
        for name, shape in zip(self.outputs.names, self.outputs.shapes, strict=True):
            columns.append(self._column(name, items[name], (count, *shape)))
        return np.concatenate(columns, axis=1)

    def _column(self, name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
        what = f"simulate's output {name!r}" if name else "what simulate gives"
        try:
            array = np.asarray(value, float)
        except (TypeError, ValueError) as error:
            raise SimulatorError(f"{what} is not an array of real numbers: {error}.") from error
        if array.shape != shape:
            points = "1 point" if shape[0] == 1 else f"{shape[0]} points"
            hint = "the first axis is that of the points"
            if self.is_per_point:
                array, shape = array[0], shape[1:]
                points, hint = "a point", "per_point=True means one point at a time"
            raise SimulatorError(
                f"{what} has shape {array.shape} for {points}, and {shape} was expected ({hint}). "
                "Declare the shape for one point with outputs=."
            )
        return array.reshape(shape[0], -1)


def run_job(job: Job, rows: np.ndarray) -> tuple[np.ndarray, list[str | None]]:
    """What a worker does."""
    return job.run(rows)


class Simulator(SentOnce):
    """A user's function with what it is called by, and the file in which every call is kept."""

    def __init__(self, job: Job, executor: Executor | None, path: Path | None):
        self.job, self.executor = job, executor
        self.memory: Memory | None = None if path is None else Store(path, job.inputs, job.outputs)
        self.num_calls = 0
        self.failures: list[str] = []
        self._lock = threading.RLock()
        _require_executor(executor, job)

    def __getstate__(self) -> dict[str, Any]:
        # Neither pools nor open files travel: a worker calls the function itself.
        return self.__dict__ | {"executor": None, "memory": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def pieces(self, count: int) -> list[slice]:
        """How a batch is cut so that a run can be stopped in between without losing much."""
        size = count
        if self.executor is not None:
            size = PIECES_PER_WORKER * self._num_workers
        elif self.job.is_per_point:
            size = 1
        return [slice(start, start + size) for start in range(0, count, max(size, 1))]

    @property
    def _num_workers(self) -> int:
        return getattr(self.executor, "_max_workers", None) or 8

    def remember(self) -> None:
        """Keeps every call from now on, so that none is made twice."""
        if self.memory is None:
            self.memory = Memory()

    def call(self, rows: np.ndarray) -> Called:
        """What points give; those that are remembered are not simulated again."""
        rows = np.ascontiguousarray(rows, float)
        with self._lock:
            if self.memory is None:
                return self._simulated(rows)
            keys = keys_of(rows)
            fresh = {key: place for place, key in enumerate(keys) if self.memory.get(key) is None}
            if fresh:
                self._simulated(rows[sorted(fresh.values())])
            known = [self.memory.get(key) for key in keys]
        return Called(
            np.stack([item.values for item in known if item is not None]),
            tuple(item.error for item in known if item is not None),
        )

    def again(self, row: np.ndarray) -> np.ndarray:
        """What a point gives if it is simulated once more."""
        self.num_calls += 1
        return self.job.run(row[None])[0][0]

    def _simulated(self, rows: np.ndarray) -> Called:
        values, errors = [], []
        for some, found in self._results(rows):
            self.num_calls += len(some)
            values.append(found[0])
            errors += found[1]
            if self.memory is not None:
                self.memory.add(some, *found)
            self._note_failures(some, *found)
        if self.num_calls == len(rows) and all(errors) and len(rows) > 1:
            raise SimulatorError(f"simulate fails at every point; the first failure: {errors[0]}")
        return Called(np.concatenate(values), tuple(errors))

    def _results(
        self, rows: np.ndarray
    ) -> Iterator[tuple[np.ndarray, tuple[np.ndarray, list[str | None]]]]:
        if self.executor is None:
            step = 1 if self.job.is_per_point and self.memory is not None else len(rows)
            for start in range(0, len(rows), step):
                some = rows[start : start + step]
                yield some, self.job.run(some)
            return
        count = math.ceil(len(rows) / (PIECES_PER_WORKER * self._num_workers))
        pieces = [rows[start : start + count] for start in range(0, len(rows), count)]
        futures = [self.executor.submit(run_job, self.job, some) for some in pieces]
        try:
            for some, future in zip(pieces, futures, strict=True):
                yield some, future.result()
        finally:
            for future in futures:
                future.cancel()

    def _note_failures(
        self, rows: np.ndarray, values: np.ndarray, errors: Sequence[str | None]
    ) -> None:
        is_bad = ~np.isfinite(values).all(axis=1)
        for place in map(int, np.flatnonzero(is_bad)):
            if len(self.failures) < MAX_FAILURES:
                self.failures.append(self.told(rows[place], values[place], errors[place]))

    def told(self, row: np.ndarray, values: np.ndarray, error: str | None) -> str:
        """A failure in words, with its point."""
        given = np.array2string(values[0] if values.size == 1 else values, threshold=4)
        return f"{f'gave {given}' if error is None else error} at {self.point_text(row)}"

    def point_text(self, row: np.ndarray) -> str:
        """A point by the names of its sites."""
        points = self.job.inputs.by_name(row[None])
        return ", ".join(
            f"{name}={np.array2string(array[0], precision=8, threshold=8)}"
            for name, array in points.items()
        )


# Failures that are told one by one.
MAX_FAILURES = 100


def _require_executor(executor: Any, job: Job) -> None:
    if executor is None:
        return
    if not isinstance(executor, Executor):
        raise TypeError(
            f"from_simulator: executor must be a concurrent.futures.Executor; it is {executor!r}. "
            "Of a Dask client it is client.get_executor()."
        )
    if isinstance(executor, ProcessPoolExecutor):
        try:
            ForkingPickler.dumps(job)
        except Exception as error:
            raise ProgramError(
                f"from_simulator: simulate cannot be sent to the processes of the executor "
                f"({error}). Define it at the top level of a module, not inside a function or as a "
                "lambda; or give a ThreadPoolExecutor, which is right for executables and for "
                "compiled code that releases Python's lock."
            ) from error
