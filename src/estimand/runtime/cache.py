"""Compiled code on disk, so that the next process need not compile it again.

It is JAX's own persistent cache, switched on while an estimate is made and no longer, in a folder
of the user's own. The environment variable ``ESTIMAND_CACHE`` names another folder, or is ``off``.
Where the user has set JAX's cache, or switched it off, that is left alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax

VARIABLE = "ESTIMAND_CACHE"
# Bytes that are kept, the most recently used first.
MAX_BYTES = 2**29
# How the names of files end: JAX's own, and those of whole executables.
JAX_KEPT, KEPT = "-cache", "-executable"
_SETTINGS = {
    # Most of our programs compile in less than the second from which on JAX keeps one.
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}

_lock = threading.Lock()
_depth = 0
_before: dict[str, object] = {}
_current: Path | None = None


@contextlib.contextmanager
def cache_on_disk() -> Iterator[None]:
    """Keeps on disk what is compiled in the body, and takes from there what is known."""
    folder = None if _is_users_own() else _folder(os.environ.get(VARIABLE, ""))
    if folder is None:
        yield
        return
    _enter(folder)
    try:
        yield
    finally:
        _leave()


def _is_users_own() -> bool:
    """Whether somebody else has decided about JAX's cache."""
    folder, is_enabled = (
        getattr(jax.config, name)
        for name in ("jax_compilation_cache_dir", "jax_enable_compilation_cache")
    )
    return not is_enabled or (folder is not None and _depth == 0)


def current_folder() -> Path | None:
    """Where compiled code is kept now, if it is."""
    return _current


class Watch:
    """How often JAX's cache had what one thread has asked for."""

    num_hits = 0


_watching = threading.local()


@contextlib.contextmanager
def watched_cache() -> Iterator[Watch]:
    """Counts what JAX's cache gives in the body."""
    _listen()
    _watching.watch = watch = Watch()
    try:
        yield watch
    finally:
        _watching.watch = None


@functools.cache
def _listen() -> None:
    jax.monitoring.register_event_listener(_count)


def _count(event: str, **_: str | int) -> None:
    watch = getattr(_watching, "watch", None)
    if watch is not None and event.endswith("compilation_cache/cache_hits"):
        watch.num_hits += 1


def _enter(folder: Path) -> None:
    global _depth, _current
    with _lock:
        _depth += 1
        if _depth > 1:
            return
        _current = folder
        settings = _SETTINGS | {"jax_compilation_cache_dir": str(folder)}
        for name, value in settings.items():
            _before[name] = getattr(jax.config, name)
            jax.config.update(name, value)


def _leave() -> None:
    global _depth, _current
    with _lock:
        _depth -= 1
        if _depth:
            return
        _current = None
        for name, value in _before.items():
            jax.config.update(name, value)
        # JAX goes on with the folder that it has first used, unless told to look again.
        from jax.experimental.compilation_cache import compilation_cache

        compilation_cache.reset_cache()


@functools.cache
def _folder(wanted: str) -> Path | None:
    """The folder for this machine's code, made and trimmed; None if it cannot be written to."""
    if wanted.lower() in ("off", "0", "none", "false"):
        return None
    root = Path(wanted).expanduser() if wanted else user_folder()
    folder = root / machine()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        trim(root, MAX_BYTES)
    except OSError:
        return None
    # An entry that another process has not finished writing is compiled again.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation")
    return folder


def user_folder() -> Path:
    """Where caches of programs belong on this system."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "estimand"


def machine() -> str:
    """Compiled code is for one kind of processor, and homes are shared between machines."""
    description = [platform.machine(), platform.processor(), jax.__version__]
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text(errors="replace").split("\n\n")[0].splitlines()
        is_fixed = ("model name", "flags", "Features", "CPU part")
        description += [line for line in lines if line.startswith(is_fixed)]
    return hashlib.sha256("\n".join(description).encode()).hexdigest()[:16]


def trim(root: Path, max_bytes: int) -> None:
    """Removes what was not used for the longest time, down to so many bytes."""
    files = []
    for path in (*root.rglob(f"*{JAX_KEPT}"), *root.rglob(f"*{KEPT}")):
        with contextlib.suppress(OSError):
            status = path.stat()
            files.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    excess = sum(size for _, size, _ in files) - max_bytes
    for _, size, path in sorted(files):
        if excess <= 0:
            break
        with contextlib.suppress(OSError):
            path.unlink()
        excess -= size
