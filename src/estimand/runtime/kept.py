"""Compiled code by model, of which the last few are kept in memory."""

from __future__ import annotations

import collections
import functools
import inspect
import threading
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

from estimand.runtime.compilation import compiling
from estimand.runtime.devices import has_accelerator
from estimand.runtime.executables import Shelf

# Compiled code of a model takes some 30 MB.
NUM_KEPT_MODELS = 16

_OPTIMISATION = "xla_backend_optimization_level"
# XLA's newer way of generating code for fused operations takes twice as long to compile, and the
# code is no faster (the moves of eight schools: 2.8 and 1.4 s of a processor, 10.9 and 9.0 ms).
# JAX 0.11 has no other way any more.
_PLAIN_FUSIONS: dict[str, Any] = (
    {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}
)

_lock = threading.Lock()


class _Compiled:
    """A function of one model, with the code for every kind of arguments that it has seen.

    Args:
        function: what `jax.jit` gave.
        shelf: its executables on disk.
    """

    def __init__(self, function: Callable, shelf: Shelf):
        self.function, self.shelf = function, shelf
        self._codes: dict[Hashable, Callable] = {}
        self._first = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        signature = _signature(args)
        if signature not in self._codes:
            # Threads that come at the same time wait for the one that compiles.
            with self._first:
                if signature not in self._codes:
                    with compiling():
                        code, result = self.shelf.first(args) or self._by_jax(args)
                    self._codes[signature] = code
                    return result
        return self._codes[signature](*args)

    def _by_jax(self, args: tuple) -> tuple[Callable, Any]:
        return self.function, self.function(*args)


def _signature(args: tuple) -> Hashable:
    """What code is compiled for: structure, shapes and types of the arguments."""
    leaves, structure = jax.tree.flatten(args)
    return structure, tuple(
        (leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False))
        if isinstance(leaf, np.ndarray | np.generic | jax.Array)
        else leaf
        for leaf in leaves
    )


_kept: collections.OrderedDict[Hashable, dict[Callable, _Compiled]] = collections.OrderedDict()


def compiled_per_model(
    function: Callable | None = None,
    *,
    static_argnums: tuple[int, ...] = (),
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
    static_argnums: tuple[int, ...],
    optimisation: int | None,
) -> _Compiled:
    with _lock:
        functions = _kept.setdefault(model, {})
        _kept.move_to_end(model)
        while len(_kept) > NUM_KEPT_MODELS:
            _kept.popitem(last=False)
        if function not in functions:
            options = compiler_options(optimisation)
            compiled = jax.jit(
                _copy(function), static_argnums=static_argnums, compiler_options=options
            )
            name = f"{function.__module__}.{function.__qualname__}"
            functions[function] = _Compiled(
                compiled, Shelf(compiled, name, static_argnums, options)
            )
        return functions[function]


def compiler_options(optimisation: int | None) -> dict[str, Any] | None:
    """What `jax.jit` is given for a level of optimisation, which is one of CPUs."""
    is_default = optimisation is None or has_accelerator()
    return None if is_default else {_OPTIMISATION: optimisation, **_PLAIN_FUSIONS}


def _copy(function: Callable) -> Callable:
    """Another function object that does the same: JAX keeps what it compiles by these."""

    @functools.wraps(function)
    def copied(*args: Any) -> Any:
        return function(*args)

    return copied
