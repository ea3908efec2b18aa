"""The precision that numbers are computed in: that of the estimate, not JAX's global switch.

JAX's switch is set for a scope and a thread. Outside of it the user's settings hold.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp

# Double precision has 53 significant bits, single precision has 24.
PRECISIONS = ("double", "single")


def in_precision(precision: str) -> AbstractContextManager:
    """A context in which JAX computes in ``"double"`` or ``"single"`` precision."""
    return jax.enable_x64(precision == "double")


def require_precision(owner: str, precision: Any) -> None:
    """Raises unless an argument names a precision."""
    if precision not in PRECISIONS:
        raise ValueError(f'{owner}: precision must be "double" or "single"; it is {precision!r}.')


def this_precision() -> str:
    """The precision that JAX computes in here."""
    return "double" if jnp.result_type(float) == jnp.float64 else "single"


def with_this_precision(function: Callable[[], Any]) -> Callable[[], Any]:
    """A function for another thread, which computes there as it would in this one."""
    precision = this_precision()

    def run() -> Any:
        with in_precision(precision):
            return function()

    return run
