"""What travels to the workers of an executor, and what they do with it.

Tasks travel as bytes, because arrays are made in the precision of the estimate, and an executor
opens what it carries in threads of its own. What all tasks of a run share, the program and its
data, is a parcel of its own that a worker is sent once and keeps: it has the same model then from
task to task, traces it once and compiles it once.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import io
import multiprocessing
import os
import pickle
import signal
import socket
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from estimand.runtime.blas import one_blas_thread
from estimand.runtime.cache import cache_on_disk, machine
from estimand.runtime.compilation import CompilationClock
from estimand.runtime.precision import in_precision
from estimand.runtime.runtime import Task

# Bytes of an array from which on it is a parcel.
MIN_ARRAY_BYTES = 2**14
# Parcels of a message that are sent along unasked; with more a worker says what it lacks.
MAX_UNASKED_BYTES = 2**16
# Parcels that the client has at hand, and bytes of all that a worker keeps: those used last.
MAX_PARCELS = 32
MAX_KEPT_BYTES = 2**30


class SentOnce:
    """Mixed into what stays the same for a whole run: a worker is sent it once and keeps it."""


class SendingError(TypeError):
    """Something that cannot be sent to another process; the message says what."""


class Message(NamedTuple):
    """Tasks as bytes, and the parcels that they refer to, by digest."""

    content: bytes
    parcels: dict[str, bytes]

    @property
    def unasked(self) -> dict[str, bytes]:
        """The parcels that are sent along at first: all, or none if they are large."""
        is_small = sum(map(len, self.parcels.values())) <= MAX_UNASKED_BYTES
        return self.parcels if is_small else {}


class Reply(NamedTuple):
    """What a worker answers: results or an error, as bytes; neither if it lacks parcels."""

    worker: Worker
    results: bytes | None = None
    error: bytes | None = None
    seconds: float = 0.0
    """Of running, without compilation."""


class Worker(NamedTuple):
    """A process that runs tasks; `kind` is equal where code gives the same numbers to the bit."""

    host: str
    process: int
    kind: str

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone; False where that cannot be seen from here."""
        if self.host != socket.gethostname() or os.name != "posix":
            return False
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


@functools.cache
def this_worker() -> Worker:
    """The process that this is."""
    settings = [machine(), jax.default_backend(), os.environ.get("XLA_FLAGS", "")]
    kind = hashlib.sha256(repr(settings).encode()).hexdigest()
    return Worker(socket.gethostname(), os.getpid(), kind)


# --- sending ---


def require_cloudpickle() -> Any:
    """The module that pickles programs; an ImportError that says how to install it."""
    try:
        import cloudpickle
    except ImportError as error:
        raise ImportError(
            "executor: programs are sent to workers by cloudpickle: "
            "pip install 'estimand[executors]'."
        ) from error
    return cloudpickle


class _Parcel(NamedTuple):
    """Something that is sent once, as bytes, and itself: so that no other one gets its id."""

    item: Any
    digest: str
    message: Message


class Sender:
    """Packs the tasks of one run."""

    def __init__(self) -> None:
        self._cloudpickle = require_cloudpickle()
        self._known: collections.OrderedDict[int, _Parcel] = collections.OrderedDict()
        self._lock = threading.RLock()

    def packed(self, value: Any) -> Message:
        """A value as bytes, without its parcels.

        Raises:
            SendingError: if it cannot be pickled.
        """
        with self._lock:
            try:
                return self._packed(value, None)
            except Exception as error:
                raise SendingError(f"{type(error).__name__}: {error}") from error

    def _packed(self, value: Any, root: Any) -> Message:
        needed: dict[str, bytes] = {}

        def parcel_of(item: Any) -> str | None:
            if item is root or not _is_parcel(item):
                return None
            parcel = self._known.pop(id(item), None)
            if parcel is None:
                message = self._packed(item, item)
                digest = hashlib.sha256(message.content).hexdigest()
                parcel = _Parcel(item, digest, message)
            self._known[id(item)] = parcel
            if len(self._known) > MAX_PARCELS:
                self._known.popitem(last=False)
            needed.update(parcel.message.parcels)
            needed[parcel.digest] = parcel.message.content
            return parcel.digest

        class Pickler(self._cloudpickle.Pickler):  # type: ignore[name-defined]
            def persistent_id(self, item: Any) -> str | None:
                return parcel_of(item)

        file = io.BytesIO()
        Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
        return Message(file.getvalue(), needed)


def _is_parcel(item: Any) -> bool:
    if isinstance(item, jax.Array):
        is_key = jax.numpy.issubdtype(item.dtype, jax.dtypes.prng_key)
        return not is_key and item.nbytes >= MIN_ARRAY_BYTES
    return isinstance(item, SentOnce)


def opened(reply: bytes) -> Any:
    """What a worker has packed."""
    return pickle.loads(reply)


# --- in a worker ---


class _LackingError(Exception):
    """A parcel that this worker was never sent, or has not kept."""


class _Kept:
    """The parcels of this process, opened; those not used for the longest time go first."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._items: collections.OrderedDict[tuple, tuple[Any, int]] = collections.OrderedDict()

    def opened(self, content: bytes, parcels: Mapping[str, bytes], precision: str) -> Any:
        """A message's content, with parcels from here or from those that came with it."""

        def parcel(digest: str) -> Any:
            place = digest, precision
            if place not in self._items:
                if digest not in parcels:
                    raise _LackingError(digest)
                item = self.opened(parcels[digest], parcels, precision)
                self._items[place] = item, len(parcels[digest])
                self._trim()
            self._items.move_to_end(place)
            return self._items[place][0]

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, digest: str) -> Any:
                return parcel(digest)

        with self._lock:
            return Unpickler(io.BytesIO(content)).load()

    def _trim(self) -> None:
        while len(self._items) > 1 and self._num_bytes > MAX_KEPT_BYTES:
            self._items.popitem(last=False)

    @property
    def _num_bytes(self) -> int:
        return sum(size for _, size in self._items.values())


_kept = _Kept()


def perform(content: bytes, parcels: dict[str, bytes], precision: str) -> Reply:
    """Runs the tasks of a message. This is all that an executor is ever asked to call."""
    _leave_interruptions_to_client()
    worker = this_worker()
    with (
        in_precision(precision),
        one_blas_thread(),
        cache_on_disk(),
        CompilationClock() as clock,
    ):
        try:
            tasks: Sequence[Task] = _kept.opened(content, parcels, precision)
        except _LackingError:
            return Reply(worker)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            problem = RuntimeError(
                f"executor: a worker cannot load the program: {type(error).__name__}: {error}. "
                "Workers need the same modules as this process: install them there."
            )
            return Reply(worker, error=_packed_error(problem))
        began = time.perf_counter()
        try:
            results = [jax.block_until_ready(task()) for task in tasks]
            packed = pickle.dumps(results, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001
            return Reply(worker, error=_packed_error(error))
        seconds = time.perf_counter() - began - clock.seconds
    return Reply(worker, packed, seconds=max(seconds, 0.0))


def _leave_interruptions_to_client() -> None:
    """Ctrl-C reaches every process of a terminal; a child ends when its parent says so."""
    is_child = multiprocessing.parent_process() is not None
    if is_child and threading.current_thread() is threading.main_thread():
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _packed_error(error: Exception) -> bytes:
    """An error as bytes, with where it happened; another kind where it cannot be pickled."""
    lines = "".join(traceback.format_exception(error))
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)
    except Exception:  # noqa: BLE001
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"in a worker:\n{lines}")
    return pickle.dumps(error)
