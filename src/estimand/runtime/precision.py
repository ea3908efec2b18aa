"""The precision that numbers are computed in: that of the estimate, not JAX's global switch.

JAX's switch is set for a scope and a thread. Outside of it the user's settings hold.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Double precision has 53 significant bits, single precision has 24.
PRECISIONS = ("double", "single")


def in_precision(precision: str) -> AbstractContextManager:
    """A context in which JAX computes in ``"double"`` or ``"single"`` precision."""
    if precision != this_precision():
        _keep_constants_apart()
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


@functools.cache
def _keep_constants_apart() -> None:
    """Fixes JAX where it mixes up the NumPy arrays that functions refer to in two precisions.

    JAX 0.10 keeps what it has made of such an array for as long as anything compiled uses it, and
    takes that in the other precision, too: a wrong type that does not compile, or fewer digits.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import dtypes, literals
        from jax._src.lib import weakref_lru_cache

        array = np.zeros(1)
        with jax.enable_x64(True):
            double = dtypes.canonicalize_value(array)
        with jax.enable_x64(False):
            if dtypes.canonicalize_value(array).dtype != double.dtype:
                return

        def made(array: np.ndarray) -> Any:
            dtype = jax.dtypes.canonicalize_dtype(array.dtype)
            return literals.TypedNdArray(np.asarray(array, dtype))

        kept = {
            precision: weakref_lru_cache.weak_key_weak_value_cache(made) for precision in PRECISIONS
        }
        dtypes.register_canonicalize_value_handler(
            np.ndarray, lambda array: kept[this_precision()](array)
        )
