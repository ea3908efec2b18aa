"""An executable as a simulator."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Characters of an executable's complaint that are told.
MAX_TOLD = 300


@dataclasses.dataclass(frozen=True)
class Command:
    """An executable that simulates one point: JSON in, JSON out, or files of your own.

    It is run in an empty folder of its own, which is removed afterwards. By default it reads the
    point from standard input, as a JSON object by name, and writes a number, a list or an object to
    standard output. An exit code other than 0, a time-out and an output that cannot be read fail
    that point alone, and the message has the exit code and the end of standard error. Use it with
    ``per_point=True``; a `ThreadPoolExecutor` runs several at a time.

    Args:
        command: the executable and its arguments.
        write: called with the point and the folder, to write input files; standard input is then
            empty.
        read: called with the folder and what was written to standard output; it gives the outputs.
        timeout: seconds after which a run is given up.

    Examples:
        >>> import sys
        >>> code = "import json, sys; x = json.load(sys.stdin)['x']; print(3.0 - x)"
        >>> margin = ep.Command([sys.executable, "-c", code])
        >>> margin({"x": 1.0})
        2.0
    """

    command: Sequence[str]
    write: Callable[[dict[str, Any], Path], Any] | None = None
    read: Callable[[Path, str], Any] | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.command, str) or not all(
            isinstance(word, str | Path) for word in self.command
        ):
            raise TypeError(
                f"Command: expected a list of words, such as ['./solver', '--quiet']; got "
                f"{self.command!r}."
            )
        object.__setattr__(self, "command", tuple(map(str, self.command)))

    @property
    def __name__(self) -> str:
        return Path(self.command[0]).name

    def __call__(self, point: dict[str, Any]) -> Any:
        with tempfile.TemporaryDirectory(prefix="estimand-") as name:
            folder = Path(name)
            text = ""
            if self.write is None:
                text = json.dumps({key: np.asarray(value).tolist() for key, value in point.items()})
            else:
                self.write(point, folder)
            printed = self._run(text, folder)
            return _parsed(printed) if self.read is None else self.read(folder, printed)

    def _run(self, text: str, folder: Path) -> str:
        program = self.command[0]
        # A path is meant from where the caller is, not from the run's own folder.
        if "/" in program:
            program = str(Path(program).absolute())
        try:
            done = subprocess.run(
                [program, *self.command[1:]],
                input=text,
                capture_output=True,
                text=True,
                cwd=folder,
                timeout=self.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{self.command[0]} took more than {self.timeout:g} s") from error
        if done.returncode:
            complaint = done.stderr.strip()[-MAX_TOLD:] or "nothing on standard error"
            raise RuntimeError(
                f"{self.command[0]} ended with exit code {done.returncode}: {complaint}"
            )
        return done.stdout


def _parsed(printed: str) -> Any:
    try:
        return json.loads(printed)
    except ValueError as error:
        raise RuntimeError(
            f"what it printed is not JSON: {printed.strip()[:MAX_TOLD]!r}"
        ) from error
