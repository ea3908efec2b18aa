"""Where a record comes from: key, source, versions, and digests of program, data and method.

The digests decide whether two records may be merged. They see the program's text and what it
refers to (closures, module constants, helper functions), the data and the method's settings.
Libraries are seen by name only: their versions are in the record.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import hashlib
import itertools
import platform
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from estimand.model import (
    Axes,
    Bound,
    ConditionalExpectation,
    Expectation,
    SimulatorExpectation,
    named_arrays,
    source_text,
)

_INSTALLED = tuple(
    sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")
)
MAX_DEPTH = 20
# Arguments that are described, and how many numbers of each.
MAX_NAMED, MAX_NUMBERS = 20, 5
_FURTHER = 0x65737469


@dataclasses.dataclass(frozen=True, kw_only=True)
class Provenance:
    """What is known of the making of a record; empty for one that was made by hand.

    `keys` are the random keys of the run, several if records were merged. `data` has what the
    arguments of the program looked like, by name. `axes` name the dimensions of sites, where a
    model has such names.
    """

    keys: tuple[str, ...] = ()
    program_digest: str = ""
    data_digest: str = ""
    method_digest: str = ""
    source: str = ""
    created: str = ""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    data: dict[str, str] = dataclasses.field(default_factory=dict)
    axes: Axes | None = None


def provenance_of(bound: Bound, method: Any, rng_key: jax.Array) -> Provenance:
    """The provenance of an estimation that is about to start."""
    identity = bound.identity()
    return Provenance(
        keys=(describe_key(rng_key),),
        program_digest=digest(identity.program),
        data_digest=digest(identity.data),
        method_digest=digest(method),
        source=identity.source,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions=_versions(),
        data=_looks(bound),
        axes=bound.axes,
    )


def fingerprint(provenance: Provenance) -> dict[str, str]:
    """What must be equal for one run to go on where another was cut off."""
    return {
        "program": provenance.program_digest,
        "data": provenance.data_digest,
        "method": provenance.method_digest,
        "key": " ".join(provenance.keys),
        **provenance.versions,
    }


def as_key(rng_key: int | jax.Array) -> jax.Array:
    """A JAX key from an int or a key."""
    if isinstance(rng_key, bool) or not isinstance(rng_key, int | np.integer | jax.Array):
        raise TypeError(f"rng_key must be an int or a JAX key; it is {rng_key!r}.")
    if isinstance(rng_key, jax.Array):
        if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key) and rng_key.shape == ():
            return rng_key
        if rng_key.dtype == jnp.uint32 and rng_key.ndim == 1:
            return jax.random.wrap_key_data(rng_key)
        raise TypeError(f"rng_key must be an int or a JAX key, and one only; it is {rng_key!r}.")
    generator = getattr(jax.config, "jax_default_prng_impl")  # noqa: B009 - not in its stubs
    if 0 <= rng_key < 2**31 and generator == "threefry2x32":
        # What jax.random.key gives, which would compile a program for it.
        return jax.random.wrap_key_data(np.array([0, rng_key], np.uint32))  # type: ignore[arg-type]
    return jax.random.key(rng_key)


def generator_of(rng_key: int | jax.Array) -> np.random.Generator:
    """NumPy's generator from an int or a JAX key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(as_key(rng_key))).tolist())


def fresh_key(keys: Iterable[str]) -> tuple[jax.Array, str]:
    """A key for a further run, and its text; the same for the same keys so far, and new.

    Runs split their keys, and small numbers folded into a key can give those same ones: the
    constant keeps the new key apart from all that a run has used.
    """
    known = sorted(keys)
    base = jax.random.fold_in(_read_key(known[0]), _FURTHER)
    for number in itertools.count(len(known)):
        key = jax.random.fold_in(base, number)
        if (text := describe_key(key)) not in known:
            break
    return key, text


def _read_key(text: str) -> jax.Array:
    implementation, _, numbers = text.partition(":")
    data = np.asarray([int(number) for number in numbers.split(",")], np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(data), impl=implementation)


def describe_key(rng_key: jax.Array) -> str:
    """A JAX key as text, such as ``threefry2x32:0,1``."""
    numbers = np.asarray(jax.random.key_data(rng_key)).ravel()
    return f"{jax.random.key_impl(rng_key)}:{','.join(map(str, numbers))}"


@functools.cache
def _installed_versions() -> tuple[tuple[str, str], ...]:
    names = ("estimand", "jax", "numpyro", "numpy")
    found = [("python", platform.python_version())]
    for name in names:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(found)


def _versions() -> dict[str, str]:
    return dict(_installed_versions()) | {
        "precision": str(jnp.result_type(float)),
        "device": jax.devices()[0].platform,
    }


# --- what data look like ---


def _looks(bound: Bound) -> dict[str, str]:
    """The arrays among the arguments by name: type, shape and the first numbers."""
    if isinstance(bound, ConditionalExpectation):
        bound = bound.joint
    if isinstance(bound, SimulatorExpectation):
        bound = bound.given
    if not isinstance(bound, Expectation):
        return {}
    named = {
        name + "".join(f"[{key}]" for key in keys): bound.data.numbers[place]
        for (name, *keys), place in named_arrays(bound)
    }
    return {name: _look(np.asarray(array)) for name, array in [*named.items()][:MAX_NAMED]}


def _look(array: np.ndarray) -> str:
    first = ", ".join(f"{number:.6g}" for number in array.ravel()[:MAX_NUMBERS])
    if array.ndim == 0:
        return f"{first} ({array.dtype})"
    more = ", …" if array.size > MAX_NUMBERS else ""
    return f"{array.dtype} of shape {array.shape}: {first}{more}"


# --- digests ---


def digest(*values: Any) -> str:
    """SHA-256 of values by their content: numbers, arrays, settings and functions."""
    hasher = hashlib.sha256()
    _feed(hasher.update, values, (), {})
    return hasher.hexdigest()


def _feed(
    update: Callable[[bytes], Any], value: Any, outer: tuple, functions: dict[int, Any]
) -> None:
    """Feeds a value's content to a hash; `outer` holds what contains it, to end cycles."""

    def say(*words: Any) -> None:
        update(("\x1f".join(map(str, words)) + "\x1e").encode())

    def each(label: str, items: Any) -> None:
        say(label)
        for item in items:
            _feed(update, item, (*outer, value), functions)
        say("end")

    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | enum.Enum):
        say(kind, repr(value))
    elif isinstance(value, type):
        say("type", value.__module__, value.__qualname__)
    elif isinstance(value, types.ModuleType):
        say("module", value.__name__)
    elif isinstance(value, jax.core.Tracer):
        # Left behind in a list that the model appends to; it has no value.
        say("traced", value.shape, value.dtype)
    elif isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        say("key", describe_key(value))
    elif isinstance(value, jax.Array | np.ndarray | np.generic) or _is_column(value):
        array = np.asarray(value)
        say("array", array.dtype.str, array.shape)
        update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    elif any(value is other for other in outer) or len(outer) > MAX_DEPTH:
        say("within", kind)
    elif isinstance(value, tuple | list):
        each(kind, value)
    elif isinstance(value, dict):
        each(kind, [item for key in sorted(value, key=repr) for item in (key, value[key])])
    elif isinstance(value, set | frozenset):
        each(kind, sorted(value, key=repr))
    elif isinstance(value, functools.partial):
        each(kind, (value.func, value.args, value.keywords))
    elif isinstance(value, types.FunctionType):
        if id(value) in functions:
            say("function again", value.__qualname__)
        else:
            functions[id(value)] = value
            each("function", _function_pieces(value))
    elif dataclasses.is_dataclass(value):
        each(kind, [getattr(value, field.name) for field in dataclasses.fields(value)])
    elif not jax.tree_util.all_leaves([value]):
        each(kind, jax.tree.leaves(value))
    elif getattr(value, "__qualname__", None) or _is_installed(type(value).__module__):
        # An object of a library's own: a logger or a lock has no content that matters here.
        say(kind, getattr(value, "__qualname__", ""))
    else:
        each(kind, (dict(getattr(value, "__dict__", {})),))


def _is_column(value: Any) -> bool:
    """A table or column of pandas, polars and the like."""
    return hasattr(value, "__array__") and hasattr(value, "shape") and hasattr(value, "to_numpy")


def _is_installed(module: str) -> bool:
    """Whether a module belongs to Python or to a library other than this one."""
    if module.split(".")[0] == "estimand":
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return module != "__main__" and (file is None or file.startswith(_INSTALLED))


def _function_pieces(function: types.FunctionType) -> list[Any]:
    file, package = function.__code__.co_filename, (function.__module__ or "").split(".")[0]
    if file.startswith((*_INSTALLED, "<frozen")) or package == "estimand":
        return [function.__module__, function.__qualname__]
    text = source_text(function)
    if text.endswith("no source is known\n"):
        text = repr(_code_pieces(function.__code__))
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # the cell is not filled yet
            cells.append("empty")
    names = sorted(_names(function.__code__) & function.__globals__.keys())
    referred = [(name, function.__globals__[name]) for name in names]
    return [text, function.__defaults__, function.__kwdefaults__, cells, referred]


def _names(code: types.CodeType) -> set[str]:
    nested = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*map(_names, nested))


def _code_pieces(code: types.CodeType) -> tuple:
    consts = [_code_pieces(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return (code.co_code.hex(), consts, code.co_names, code.co_varnames)
