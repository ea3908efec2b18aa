"""Compiled code by model, of which the last few are kept."""

from __future__ import annotations

import collections
import functools
import inspect
import threading
from collections.abc import Callable, Hashable
from typing import Any

import jax

# Compiled code of a model takes some 30 MB.
NUM_KEPT_MODELS = 16

_OPTIMISATION = "xla_backend_optimization_level"

_kept: collections.OrderedDict[Hashable, dict[Callable, Callable]] = collections.OrderedDict()
_lock = threading.Lock()


def compiled_per_model(
    function: Callable | None = None,
    *,
    static_argnums: int | tuple[int, ...] = (),
    optimisation: int | None = None,
) -> Any:
    """As `jax.jit`, for a function with an argument `density`; forgets models not used lately.

    `jax.jit` keeps what it has compiled for as long as the function is there. Here every model
    has a compiled function of its own, which goes with it.

    Args:
        function: has a parameter of the name ``density``, with an attribute `compiled_for`: what
            its compiled code is kept by.
        static_argnums: as for `jax.jit`.
        optimisation: XLA's level on a CPU, where 0 compiles in less than half the time, for code
            that runs only a few times, and 1 in four fifths.
    """
    if function is None:
        return functools.partial(
            compiled_per_model, static_argnums=static_argnums, optimisation=optimisation
        )
    place = list(inspect.signature(function).parameters).index("density")

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
            return function(*args)
        compiled = _compiled(function, args[place].compiled_for, static_argnums, optimisation)
        return compiled(*args)

    return call


def _compiled(
    function: Callable,
    model: Hashable,
    static_argnums: int | tuple[int, ...],
    optimisation: int | None,
) -> Callable:
    with _lock:
        functions = _kept.setdefault(model, {})
        _kept.move_to_end(model)
        while len(_kept) > NUM_KEPT_MODELS:
            _kept.popitem(last=False)
        if function not in functions:
            is_default = optimisation is None or jax.default_backend() != "cpu"
            functions[function] = jax.jit(
                _copy(function),
                static_argnums=static_argnums,
                compiler_options=None if is_default else {_OPTIMISATION: optimisation},
            )
        return functions[function]


def _copy(function: Callable) -> Callable:
    """Another function object that does the same: JAX keeps what it compiles by these."""

    @functools.wraps(function)
    def copied(*args: Any) -> Any:
        return function(*args)

    return copied
