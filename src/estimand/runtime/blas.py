"""One thread for BLAS while an estimate is made.

The matrices here have up to some hundred rows. Divided among threads, a product or a factorisation
has to wait for the last of them, and with other work on the machine that is most of the time: a
Cholesky factor in 200 dimensions took 410 ms with two threads and 4 ms with one, on two busy cores.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any


def one_blas_thread() -> AbstractContextManager:
    """A context in which NumPy's linear algebra runs in the thread that calls it."""
    return _controller().limit(limits=1, user_api="blas")


@functools.cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
