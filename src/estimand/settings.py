"""What all settings share: a short repr, and checks whose errors name setting and remedy.

The arguments of the public functions are checked in the same words.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")
# What an estimate is limited by: settings of the method, and not arguments beside it.
# What users of other libraries call it.
ALIASES = {"seed": "rng_key", "random_seed": "rng_key", "random_state": "rng_key", "key": "rng_key"}
LIMITS = ("relative_error", "absolute_error", "max_evaluations", "max_seconds")


class _InitSignature:
    """The signature of `__init__`, which users are shown; that of `__new__` would hide it."""

    def __get__(self, _instance: Any, owner: type) -> inspect.Signature:
        _, *parameters = inspect.signature(owner.__init__).parameters.values()  # type: ignore[misc]
        return inspect.Signature(parameters)


class Settings:
    """Base of the frozen dataclasses that users configure; shows only what is not default."""

    __signature__ = _InitSignature()

    def __new__(cls, *_args: Any, **named: Any) -> Any:
        known = inspect.signature(cls).parameters
        for name in named:
            if name not in known:
                names = known_names(name, known)
                raise TypeError(f"{cls.__name__} has no setting {name!r}. {names}")
        return super().__new__(cls)

    def __repr__(self) -> str:
        shown = [
            f"{field.name}={_shown(getattr(self, field.name))}"
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def known_names(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: which one may be meant, and all names."""
    known = list(known)
    near = _near(name, known)
    guess = f"Did you mean {near!r}? " if near else ""
    return f"{guess}Known: {', '.join(known) or 'none'}."


def checked_names(function: Callable[P, R]) -> Callable[P, R]:
    """Answers an unknown argument of a public function with what may be meant."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def called(*args: P.args, **named: P.kwargs) -> R:
        for name in named:
            if name not in known:
                limit = _near(name, LIMITS) if "method" in known else None
                meant = f"Give it to the method: method=ep.Auto({limit}=…)."
                remedy = meant if limit else known_names(name, known)
                raise TypeError(f"{function.__name__} has no argument {name!r}. {remedy}")
        return function(*args, **named)

    return called


def _near(name: str, known: Iterable[str]) -> str | None:
    names = {one.lower(): one for one in known}
    if (meant := ALIASES.get(name.lower())) in names:
        return meant
    near = difflib.get_close_matches(name.lower(), names, n=1)
    return names[near[0]] if near else None


def _shown(value: Any) -> str:
    """As repr, but for dicts of arrays, of which the shapes are enough."""
    if isinstance(value, Mapping) and all(hasattr(item, "shape") for item in value.values()):
        arrays = [f"{name!r}: array of shape {item.shape}" for name, item in value.items()]
        return f"{{{', '.join(arrays)}}}"
    return repr(value)


def require_count(owner: str, name: str, value: Any) -> None:
    """Raises unless a setting is a positive integer."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        is_whole = isinstance(value, float) and value >= 1 and value.is_integer()
        remedy = f" Write {int(value):_}." if is_whole else ""
        raise ValueError(f"{owner}: {name} must be a positive integer; it is {value!r}.{remedy}")


def require_share(owner: str, name: str, value: Any) -> None:
    """Raises unless a setting is between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{owner}: {name} must be between 0 and 1; it is {value}.")


def require_positive(owner: str, name: str, values: np.ndarray) -> None:
    """Raises unless every number of a setting is positive and finite."""
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"{owner}: {name} must be positive and finite; it is {values}.")


def freeze_scale(settings: Any, field: str, *, by_site: bool = False) -> None:
    """Checks a field and stores it as plain values: a number, a tuple, or (site, scale) pairs."""
    owner, value = type(settings).__name__, getattr(settings, field)
    if by_site and isinstance(value, Mapping):
        value = tuple(value.items())
    if by_site and isinstance(value, tuple) and value and isinstance(value[0], tuple):
        scales = [(name, np.asarray(scale, float)) for name, scale in value]
        for name, scale in scales:
            require_positive(owner, f"{field}[{name!r}]", scale)
        object.__setattr__(settings, field, tuple((name, _tupled(s)) for name, s in scales))
        return
    array = np.asarray(value, float)
    require_positive(owner, field, array)
    if array.ndim > 1:
        raise ValueError(f"{owner}: {field} must be a number or one number per temperature.")
    object.__setattr__(settings, field, _tupled(array))


def freeze_matrix(settings: Any, field: str) -> None:
    """Checks a field that holds a metric and stores it as nested tuples."""
    value = getattr(settings, field)
    if value is None:
        return
    array = np.asarray(value, float)
    if not np.isfinite(array).all() or array.ndim not in (1, 2, 3):
        raise ValueError(
            f"{type(settings).__name__}: {field} must be a finite vector, matrix, or one of them "
            f"per temperature; its shape is {array.shape}."
        )
    object.__setattr__(settings, field, _tupled(array))


def _tupled(array: np.ndarray) -> Any:
    return tuple(map(_tupled, array)) if array.ndim else float(array)
