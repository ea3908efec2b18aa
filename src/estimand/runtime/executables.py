"""Whole executables on disk, by what they were compiled from.

JAX's persistent cache spares the next process the compiler. Where one can tell without tracing what
a function is compiled from, this spares it the tracing, too, which takes as long as the estimate
for a small model. A file's name is a digest of all that the code depends on: the program's
expression, shapes and types, settings, this library's source, versions, JAX's settings and the
machine. What cannot be told is left to JAX's cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import importlib
import json
import os
import stat
import tempfile
import time
import zlib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable

from estimand.runtime.cache import KEPT, current_folder, watched_cache
from estimand.runtime.compilation import note_loaded
from estimand.runtime.devices import has_accelerator

_PACKAGE = __name__.split(".")[0]
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = {kind.__name__: kind for kind in (tuple, list, dict)}
# Functions of LAPACK are made known to XLA when JAX lowers a call of one, and not by loading code.
_LAPACK = "lapack_"
_OTHER_CALLS = "custom_call @"
# Variables of the environment that XLA and JAX read when they compile.
_VARIABLES = ("XLA_FLAGS", "PJRT_NPROC", "JAX_PLATFORMS")


class UntoldError(Exception):
    """One cannot tell what something is compiled from."""


# --- what code is compiled from ---


def told(value: Any) -> str:
    """The content of a static value as text: equal for equal values, and for no others.

    Raises:
        UntoldError: if it holds something whose content is not known.
    """
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if type(value) in _PLAIN or isinstance(value, enum.Enum | np.dtype):
        return f"{kind}:{value!r}"
    if isinstance(value, type):
        return f"type:{value.__module__}.{value.__qualname__}"
    if isinstance(value, tuple | list):
        return f"{kind}({','.join(map(told, value))})"
    if isinstance(value, jax.tree_util.PyTreeDef):
        return _told_structure(value)
    if hasattr(value, "compared_by"):
        return f"{kind}:{told(value.compared_by)}"
    if dataclasses.is_dataclass(value) and _is_own(type(value)):
        fields = [field.name for field in dataclasses.fields(value) if field.compare]
        return f"{kind}({','.join(told(getattr(value, name)) for name in fields)})"
    raise UntoldError(kind)


def _told_structure(structure: Any) -> str:
    node = structure.node_data()
    if node is None:
        return "*"
    kind, static = node
    return f"{told(kind)}:{told(static)}({','.join(map(_told_structure, structure.children()))})"


def _told_array(leaf: Any) -> str:
    if not isinstance(leaf, np.ndarray | np.generic | jax.Array):
        raise UntoldError(type(leaf).__name__)
    return f"{leaf.shape}{leaf.dtype}{getattr(leaf, 'weak_type', False)}"


def _is_own(kind: type) -> bool:
    return kind.__module__.split(".")[0] == _PACKAGE


@functools.cache
def _surroundings() -> str:
    """Source, versions and machine, which do not change while a process runs."""
    root, source = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        source.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    versions = [metadata.version(name) for name in ("jax", "jaxlib", "numpyro", "numpy")]
    devices = [(device.platform, device.device_kind, device.id) for device in jax.devices()]
    return repr((source.hexdigest(), versions, devices, os.cpu_count()))


def _settings() -> str:
    """JAX's settings as they are in this thread, but for where things are kept."""
    settings = [
        (name, getattr(jax.config, name, value))
        for name, value in jax.config.values.items()
        if "cache" not in name
    ]
    return repr((settings, [os.environ.get(name) for name in _VARIABLES]))


# --- files ---


class Shelf:
    """The executables of one function that is compiled ahead of its calls.

    Args:
        function: what `jax.jit` gave.
        name: of the function, with its module.
        static: the places of its static arguments.
        options: of the compiler.
    """

    def __init__(self, function: Any, name: str, static: tuple[int, ...], options: Any):
        self.function, self.name, self.static = function, name, static
        self.options = repr(options)

    def first(self, args: tuple) -> tuple[Callable, Any] | None:
        """Code for such arguments, from disk or compiled and put there, and what it gives.

        None if it cannot be kept.
        """
        folder = current_folder()
        if folder is None or has_accelerator() or not _is_private(folder):
            return None
        try:
            path = folder / f"{self._digest(args)}{KEPT}"
        except UntoldError:
            return None
        given, started = self._dynamic(args), time.perf_counter()
        try:
            code = _loaded(path, given)
            note_loaded(started)
            # What is wrong with code may be seen only when it runs.
            result = jax.block_until_ready(code(*given))
        except Exception:  # noqa: BLE001 - whatever is wrong with the file: it is made again
            code = self._compiled(path, args)
            result = code(*given)
        return lambda *others: code(*self._dynamic(others)), result

    def _compiled(self, path: Path, args: tuple) -> Any:
        lowered = self.function.lower(*args)
        with watched_cache() as watch:
            code = lowered.compile()
        # XLA writes code that came from JAX's cache without all of its functions.
        if not watch.num_hits:
            with contextlib.suppress(Exception):
                _write(path, code, lowered.as_text())
        return code

    def _dynamic(self, args: tuple) -> tuple:
        return tuple(arg for place, arg in enumerate(args) if place not in self.static)

    def _digest(self, args: tuple) -> str:
        leaves, structure = jax.tree.flatten(self._dynamic(args))
        pieces = [
            self.name,
            self.options,
            *(told(args[place]) for place in self.static),
            _told_structure(structure),
            *map(_told_array, leaves),
            _surroundings(),
            _settings(),
        ]
        return hashlib.sha256("\x1f".join(pieces).encode()).hexdigest()


def _is_private(folder: Path) -> bool:
    """Whether nobody else can put code there."""
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    is_closed = not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid == os.getuid() and is_closed


def _write(path: Path, code: Any, text: str) -> None:
    """Puts code on disk, as a whole or not at all, if another process can load it."""
    calls = text.split(_OTHER_CALLS)[1:]
    if not all(call.startswith(_LAPACK) for call in calls):
        return
    payload, _, results = serialize_executable.serialize(code)
    payload = zlib.compress(payload, 1)
    head = {
        "results": _written(results),
        "needs_lapack": bool(calls),
        "digest": hashlib.sha256(payload).hexdigest(),
    }
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(json.dumps(head).encode() + b"\n" + payload)
            file.close()
            Path(file.name).replace(path)
        finally:
            Path(file.name).unlink(missing_ok=True)


def _loaded(path: Path, args: tuple) -> Any:
    """The code in a file. Raises whatever there is to raise if it is not there, or not whole."""
    head, _, payload = path.read_bytes().partition(b"\n")
    facts = json.loads(head)
    if hashlib.sha256(payload).hexdigest() != facts["digest"]:
        raise ValueError(f"{path} is damaged")
    if facts["needs_lapack"]:
        _make_lapack_known()
    results = jax.tree.structure(_read(facts["results"]))
    arguments = jax.tree.structure((args, {}))
    os.utime(path)
    return serialize_executable.deserialize_and_load(zlib.decompress(payload), arguments, results)


@functools.cache
def _make_lapack_known() -> None:
    jax.jit(jax.numpy.linalg.cholesky).lower(np.eye(1))


def _written(structure: Any) -> Any:
    """A structure of results as plain data: containers, and this library's named tuples."""
    node = structure.node_data()
    if node is None:
        return "*"
    kind, keys = node
    if kind is type(None):
        return None
    name = (
        kind.__name__ if kind in _CONTAINERS.values() else f"{kind.__module__}:{kind.__qualname__}"
    )
    if ":" in name and not (_is_own(kind) and issubclass(kind, tuple)):
        raise UntoldError(name)
    return [name, keys, [_written(child) for child in structure.children()]]


def _read(written: Any) -> Any:
    if not isinstance(written, list):
        return written
    name, keys, children = written
    items = [_read(child) for child in children]
    if name == "dict":
        return dict(zip(keys, items, strict=True))
    if name in _CONTAINERS:
        return _CONTAINERS[name](items)
    module, _, qualified = name.partition(":")
    home: Any = importlib.import_module(module)
    kind = functools.reduce(getattr, qualified.split("."), home)
    return kind(*items)
