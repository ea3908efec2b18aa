"""Ctrl-C: noted at once, obeyed at the next safe point.

Python raises KeyboardInterrupt wherever it happens to be, also inside of callbacks that XLA and JAX
make from C++, which may crash the interpreter. Here the signal only leaves a note. `check` raises
it where nothing can break: between tasks, and between tracing, compiling and running.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interruption:
    """Context manager in whose body Ctrl-C is noted instead of raised.

    Only in the main thread, and only where Ctrl-C has its usual meaning: a handler of somebody
    else's is left alone.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._is_installed = False

    def __enter__(self) -> Interruption:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._is_installed = True
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._is_installed = False

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.is_requested = True

    def check(self) -> None:
        """Raises KeyboardInterrupt, once, if Ctrl-C was pressed."""
        if self.is_requested:
            self.is_requested = False
            raise KeyboardInterrupt
