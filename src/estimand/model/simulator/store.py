"""A file in which every call of a simulator is kept: a line of JSON for each point.

It only grows, can be read and edited by hand, and a last line that was cut off is left out. Numbers
are written with all their digits; points are the same if they are so to about ten of them.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from estimand.model.layout import ProgramError

if TYPE_CHECKING:
    from estimand.model.simulator.calls import Shapes

KIND = "estimand-evaluations 1"


class Kept(NamedTuple):
    """What a point gave."""

    values: np.ndarray
    error: str | None


class Memory:
    """The evaluations of a session."""

    def __init__(self) -> None:
        self._known: dict[bytes, Kept] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: bytes) -> Kept | None:
        return self._known.get(key)

    def add(self, rows: np.ndarray, values: np.ndarray, errors: list[str | None]) -> None:
        """Keeps what points gave."""
        for key, found, error in zip(keys_of(rows), values, errors, strict=True):
            self._known[key] = Kept(found, error)


class Store(Memory):
    """The evaluations in a file, which is made when the first one is added."""

    def __init__(self, path: Path, inputs: Shapes, outputs: Shapes):
        super().__init__()
        self.path = path
        self._num_outputs = outputs.size
        self._header = {
            "kind": KIND,
            "inputs": {n: list(s) for n, s in zip(inputs.names, inputs.shapes, strict=True)},
            "outputs": {n: list(s) for n, s in zip(outputs.names, outputs.shapes, strict=True)},
        }
        if not path.parent.is_dir():
            raise FileNotFoundError(f"evaluations={str(path)!r}: there is no such folder.")
        if path.exists() and path.stat().st_size:
            self._read()

    def add(self, rows: np.ndarray, values: np.ndarray, errors: list[str | None]) -> None:
        """Keeps what points gave, on disk before it returns."""
        super().add(rows, values, errors)
        is_new = not self.path.exists() or not self.path.stat().st_size
        lines = [json.dumps(self._header)] if is_new else []
        for row, found, error in zip(rows, values, errors, strict=True):
            item: dict[str, Any] = {"point": [_written(x) for x in row]}
            if error is None:
                item["values"] = [_written(x) for x in found]
            else:
                item["error"] = error
            lines.append(json.dumps(item))
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> None:
        text = self.path.read_text(encoding="utf-8")
        lines = text.split("\n")
        header = _parsed(lines[0])
        if not isinstance(header, dict) or header.get("kind") != KIND:
            raise ProgramError(
                f"evaluations={str(self.path)!r}: there is a file of that name which has no "
                "evaluations of a simulator; it is not changed. Give another name."
            )
        if header != self._header:
            raise ProgramError(
                f"evaluations={str(self.path)!r} are of another simulator: inputs "
                f"{header.get('inputs')} and outputs {header.get('outputs')}, and this one has "
                f"{self._header['inputs']} and {self._header['outputs']}. Give another file."
            )
        for line in lines[1:]:
            item = _parsed(line)
            if not isinstance(item, dict) or "point" not in item:
                continue
            row = np.asarray([float(x) for x in item["point"]])
            error = item.get("error")
            blank = [math.nan] * self._num_outputs
            values = np.asarray([float(x) for x in item.get("values", blank)])
            self._known[keys_of(row[None])[0]] = Kept(values, error)
        if not text.endswith("\n"):
            # A line that was cut off; the next one must not be joined to it.
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n")


def keys_of(rows: np.ndarray) -> list[bytes]:
    """What points are found by: their numbers to 36 bits, since coordinates that go to and fro
    between transforms lose the last ones."""
    mantissas, exponents = np.frexp(np.asarray(rows, float))
    rounded = np.round(mantissas * 2.0**36).astype(np.int64)
    columns = np.concatenate([rounded, exponents.astype(np.int64)], axis=1)
    return [row.tobytes() for row in columns]


def _written(number: float) -> float | str:
    """JSON has no NaN and no infinity."""
    return float(number) if math.isfinite(number) else str(float(number))


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
