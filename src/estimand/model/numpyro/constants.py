"""The numbers that a function holds: in its closure, its defaults and in `functools.partial`.

A loop that makes a program anew with another threshold makes functions that differ in such numbers
alone. Taken out of the function they go into compiled code as arguments, like data, and all of
these programs share it.
"""

from __future__ import annotations

import copy
import dis
import functools
import math
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# More of them are data, and containers with more are not looked into.
MAX_CONSTANTS = 64
_WRITES = ("STORE_DEREF", "DELETE_DEREF")


class Held:
    """Functions as they are now, and the floating-point numbers and arrays that they hold.

    What the functions hold may change later (a list in a closure, an array in place): the numbers
    and the containers around them are copied.
    """

    def __init__(self, functions: tuple):
        found: list[Any] = []

        def take(constant: Any) -> _Place:
            found.append(constant.copy() if isinstance(constant, np.ndarray) else constant)
            return _Place(len(found) - 1)

        template = _exchange(functions, _is_constant, take, ())
        is_usable = len(found) <= MAX_CONSTANTS
        self.constants = found if is_usable else []
        self._template = template if is_usable else functions

    def functions(self, constants: Sequence[Any]) -> tuple:
        """The functions with these numbers in the places of their own."""

        def fill(place: _Place) -> Any:
            return constants[place.number]

        return _exchange(self._template, lambda value: type(value) is _Place, fill, ())


class _Place(NamedTuple):
    """Where a function holds a constant."""

    number: int


def _exchange(value: Any, is_leaf: Callable, replace: Callable, outer: tuple) -> Any:
    """A copy of a value with other leaves; the value itself where nothing changes."""
    if is_leaf(value):
        return replace(value)
    kind = type(value)
    if any(value is other for other in outer):
        return value
    again = functools.partial(_exchange, is_leaf=is_leaf, replace=replace, outer=(*outer, value))
    if kind is types.FunctionType:
        return _exchange_in_function(value, again)
    if kind is functools.partial:
        pieces = (value.func, value.args, value.keywords)
        func, args, keywords = changed = again(pieces)
        return value if changed is pieces else functools.partial(func, *args, **keywords)
    is_record = isinstance(value, tuple) and hasattr(kind, "_make")
    if (kind not in (tuple, list, dict) and not is_record) or len(value) > MAX_CONSTANTS:
        return value
    before = list(value.values()) if kind is dict else list(value)
    items = [again(item) for item in before]
    if _are_same(items, before):
        return value
    if kind is dict:
        return dict(zip(value, items, strict=True))
    return kind._make(items) if is_record else kind(items)


def _exchange_in_function(
    function: types.FunctionType, again: Callable[[Any], Any]
) -> types.FunctionType:
    if _writes_to_closure(function.__code__, set(function.__code__.co_freevars)):
        return function
    cells = function.__closure__ or ()
    pieces = [_Cell.content(cell) for cell in cells]
    held = (pieces, function.__defaults__, function.__kwdefaults__)
    contents, defaults, keyword_defaults = changed = again(held)
    if changed is held:
        return function
    closure = tuple(
        cell if content is before else types.CellType(content)
        for cell, content, before in zip(cells, contents, pieces, strict=True)
    )
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, defaults, closure
    )
    made.__kwdefaults__ = copy.copy(keyword_defaults)
    made.__dict__.update(function.__dict__)
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    return made


class _Cell:
    """What a cell of a closure holds; stands itself for the content of an empty one."""

    @classmethod
    def content(cls, cell: Any) -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return cls


def _are_same(items: list[Any], others: list[Any]) -> bool:
    return all(item is other for item, other in zip(items, others, strict=True))


def _is_constant(value: Any) -> bool:
    # Infinity is an option more often than a number: code may ask if something `is math.inf`.
    if type(value) is float:
        return math.isfinite(value)
    if isinstance(value, jax.core.Tracer):
        return False
    is_array = isinstance(value, jax.Array | np.floating) or type(value) is np.ndarray
    return is_array and bool(jnp.issubdtype(value.dtype, jnp.floating))


@functools.lru_cache(maxsize=1024)
def _writing_names(code: types.CodeType) -> frozenset[str]:
    own = {item.argval for item in dis.get_instructions(code) if item.opname in _WRITES}
    nested = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return frozenset(own.union(*(_writing_names(inner) for inner in nested)))


def _writes_to_closure(code: types.CodeType, free: set[str]) -> bool:
    """Whether a function keeps state in its closure, which a copy would not share."""
    return not free.isdisjoint(_writing_names(code))
