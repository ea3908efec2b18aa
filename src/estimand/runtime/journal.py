"""The journal of a run: what its tasks gave, so that a run that was cut off can go on.

Methods are deterministic for a key and work on the host between few heavy tasks. What those gave is
kept here; a run that starts again goes through the same steps with the same numbers.

A journal is one file that only grows: a line of text, then frames of a length, a checksum and a
body. The checksums form a chain, so that no frame fits in another place. A tail that is cut off or
altered is not believed, and computed again. There is no pickle in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

NAME = b"estimand-journal "
MAGIC = NAME + b"1\n"
_START = hashlib.sha256(MAGIC).digest()
_LENGTH, _CHECKSUM = 8, 32
_DESCRIBED = {
    "program": "another program or changed source",
    "data": "other data",
    "method": "another method or other settings",
}


class CheckpointError(ValueError):
    """A checkpoint file that this run cannot go on from; the message says why.

    Examples:
        >>> result = ep.estimate_expectation(program(2.0), checkpoint="run.est")
        >>> try:
        ...     ep.estimate_expectation(program(3.0), checkpoint="run.est")
        ... except ep.CheckpointError as error:
        ...     print("other data")
        other data
    """


class _Entry(NamedTuple):
    label: str
    offset: int
    length: int


@contextlib.contextmanager
def writing(path: str | os.PathLike, fingerprint: dict[str, str]) -> Iterator[Journal]:
    """The journal in a file, open in the body.

    Raises:
        CheckpointError: if the file is of a run with another fingerprint, or no journal.
    """
    journal = Journal(Path(path), fingerprint)
    try:
        yield journal
    finally:
        journal.close()


class Journal:
    """An open journal: where the run stands, and where in the file its entries are.

    An entry is found by its place: its number among those of the call that it was made in.
    """

    def __init__(self, path: Path, fingerprint: dict[str, str]):
        self._path, self._opened = path, time.monotonic()
        self._outer: tuple[int, ...] = ()
        self._count = 0
        self._entries: dict[tuple[int, ...], _Entry] = {}
        self._seconds_before = 0.0
        header = json.dumps(fingerprint, sort_keys=True).encode()
        start, self._chain = _framed(_START, header)
        if not path.parent.is_dir():
            raise FileNotFoundError(f"checkpoint {path}: there is no folder {path.parent}.")
        with contextlib.ExitStack() as stack:
            # Closed where anything below fails.
            self._file = stack.enter_context(path.open("a+b"))
            _lock(self._file, path)
            self._file.seek(0)
            found = self._file.read(len(MAGIC + start))
            if found != MAGIC + start:
                if not (MAGIC + start).startswith(found):
                    _refuse(path, fingerprint)
                self._file.truncate(0)
                self._write(MAGIC + start)
                _settle_folder(path.parent)
            self._read(len(MAGIC + start))
            stack.pop_all()

    @property
    def seconds(self) -> float:
        """How long the run has taken, with what it took before it was cut off."""
        return self._seconds_before + time.monotonic() - self._opened

    @property
    def num_entries(self) -> int:
        return len(self._entries)

    @property
    def knows_next(self) -> bool:
        """Whether what is remembered next is in the file already."""
        return (*self._outer, self._count) in self._entries

    def remember(self, label: str, compute: Callable[[], Any], kinds: tuple[type, ...] = ()) -> Any:
        """What `compute` gives, or gave when the journal's run was here before.

        Args:
            label: says what is computed; it is checked when the entry is read.
            compute: gives numbers and arrays, in tuples, lists and named tuples. It must depend
                on nothing but the run's own inputs, and may itself remember.
            kinds: the classes of the named tuples in the value.
        """
        place = (*self._outer, self._count)
        self._count += 1
        entry = self._entries.get(place)
        if entry is not None:
            if entry.label != label:
                raise CheckpointError(
                    f"checkpoint {self._path}: it has {entry.label!r} where this run has "
                    f"{label!r}. It was written by other code; delete it to start again."
                )
            self._file.seek(entry.offset)
            return _decoded(self._file.read(entry.length), kinds)
        outer, count = self._outer, self._count
        self._outer, self._count = place, 0
        try:
            value = compute()
        finally:
            self._outer, self._count = outer, count
        body = _encoded(place, label, self.seconds, value, kinds)
        frame, chain = _framed(self._chain, body)
        self._write(frame)
        self._chain = chain
        end = self._file.seek(0, os.SEEK_END)
        self._entries[place] = _Entry(label, end - len(body), len(body))
        # What was written, not what was computed: a run that goes on has nothing else.
        return _decoded(body, kinds)

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self, offset: int) -> None:
        """Finds the entries, up to the first that is not whole, and cuts off the rest."""
        self._file.seek(offset)
        size = os.fstat(self._file.fileno()).st_size
        while body := _next_body(self._file, self._chain, size):
            end = self._file.tell()
            self._chain = _checksum(self._chain, body)
            head = json.loads(body.partition(b"\n")[0])
            entry = _Entry(head["label"], end - len(body), len(body))
            self._entries[tuple(head["place"])] = entry
            self._seconds_before = float(head["seconds"])
            offset = end
        if offset < size:
            self._file.truncate(offset)
        self._file.seek(0, os.SEEK_END)


def require_same(
    path: str | os.PathLike, found: dict[str, str], fingerprint: dict[str, str]
) -> None:
    """Raises, with what differs, unless a file's run is the one that is about to start."""
    differences = [
        _DESCRIBED.get(name)
        or f"{name} {found.get(name, 'unknown')} instead of {fingerprint.get(name, 'none')}"
        for name in fingerprint | found
        if found.get(name) != fingerprint.get(name)
    ]
    if differences:
        raise CheckpointError(
            f"checkpoint {path} belongs to another run: it has {'; '.join(differences)}. Give "
            "another file, or delete this one to start again."
        )


def _refuse(path: Path, fingerprint: dict[str, str]) -> None:
    with path.open("rb") as file:
        line = file.readline(100)
        if not line.startswith(NAME):
            raise CheckpointError(
                f"checkpoint {path}: there is a file of that name which is neither a checkpoint "
                "nor a record of estimand; it is not changed. Give another name."
            )
        if line != MAGIC:
            raise CheckpointError(
                f"checkpoint {path} was written by another version of estimand: continue with that "
                "one, or delete the file to start again."
            )
        header = _next_body(file, _START, os.fstat(file.fileno()).st_size)
    if header is not None:
        require_same(path, json.loads(header), fingerprint)
    raise CheckpointError(
        f"checkpoint {path} is damaged at its start, so its run cannot be identified: "
        "delete it to start again."
    )


# --- frames ---


def _checksum(chain: bytes, body: bytes) -> bytes:
    return hashlib.sha256(chain + body).digest()


def _framed(chain: bytes, body: bytes) -> tuple[bytes, bytes]:
    """A frame, and the checksum that the next one is chained to."""
    checksum = _checksum(chain, body)
    return len(body).to_bytes(_LENGTH, "little") + checksum + body, checksum


def _next_body(file: BinaryIO, chain: bytes, size: int) -> bytes | None:
    """The body of the frame that the file stands at; None if it is not whole."""
    length, checksum = file.read(_LENGTH), file.read(_CHECKSUM)
    count = int.from_bytes(length, "little")
    if len(checksum) < _CHECKSUM or count > size - file.tell():
        return None
    body = file.read(count)
    return body if _checksum(chain, body) == checksum else None


def _lock(file: BinaryIO, path: Path) -> None:
    """Keeps other processes from the same file, where the system has such locks."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CheckpointError(
            f"checkpoint {path} is being written by another process; wait for it, or give another "
            "file."
        ) from None
    except OSError:
        return  # A file system without locks.


def _settle_folder(folder: Path) -> None:
    """Makes a new file's name as lasting as its contents."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# --- values ---


def _encoded(
    place: tuple[int, ...], label: str, seconds: float, value: Any, kinds: tuple[type, ...]
) -> bytes:
    """A line of JSON, and after it the bytes of the arrays."""
    arrays: list[np.ndarray] = []

    def described(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, bool | int) and type(value) in (bool, int):
            return {"is": "plain", "value": value}
        if type(value) is float:
            return {"is": "float", "value": value.hex()}
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            if jnp.issubdtype(value.dtype, jax.dtypes.extended) or value.dtype == object:
                raise TypeError(f"checkpoint: {label} has an array of {value.dtype}.")
            kind = "jax" if isinstance(value, jax.Array) else "numpy"
            array = np.asarray(value)
            arrays.append(array)
            kind = "number" if isinstance(value, np.generic) else kind
            return {"is": kind, "dtype": array.dtype.name, "shape": array.shape}
        if type(value) in (tuple, list) or type(value) in kinds:
            return {"is": type(value).__name__, "items": [described(item) for item in value]}
        raise TypeError(f"checkpoint: {label} gave a {type(value).__name__}, which is not kept.")

    structure = described(value)
    head = {"place": place, "label": label, "seconds": seconds, "value": structure}
    return b"".join([json.dumps(head).encode(), b"\n", *(array.tobytes() for array in arrays)])


def _decoded(body: bytes, kinds: tuple[type, ...]) -> Any:
    line, _, rest = body.partition(b"\n")
    makers: dict[str, Any] = {kind.__name__: kind for kind in kinds}
    offset = 0

    def made(item: Any) -> Any:
        nonlocal offset
        if item is None:
            return None
        kind = item["is"]
        if kind == "plain":
            return item["value"]
        if kind == "float":
            return float.fromhex(item["value"])
        if kind in ("jax", "numpy", "number"):
            dtype, shape = jnp.dtype(item["dtype"]), tuple(item["shape"])
            count = math.prod(shape)
            array = np.frombuffer(rest, dtype, count, offset).reshape(shape).copy()
            offset += count * dtype.itemsize
            return jnp.asarray(array) if kind == "jax" else array[()] if kind == "number" else array
        items = [made(child) for child in item["items"]]
        if kind in ("tuple", "list"):
            return items if kind == "list" else tuple(items)
        return makers[kind](*items)

    return made(json.loads(line)["value"])
