"""Where a program fails while it is traced: the line, and what is known there."""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np
import numpyro

from estimand.model.layout import ProgramError

# Errors that the text of a program gives rise to.
OWN = (ArithmeticError, AttributeError, IndexError, KeyError, NameError, TypeError, ValueError)
# Code that is not the user's.
_LIBRARIES = (
    *(str(Path(module.__file__ or "").parent) for module in (jax, np, numpyro)),
    str(Path(__file__).parents[2]),
)
# Arrays that are named with their shapes.
MAX_SHAPES = 8
# Keys that are named where another one was asked for.
MAX_KEYS = 20


def explained(program: str, error: Exception) -> Exception:
    """The error of a program, with the line that it comes from; as it is if that is not known."""
    if isinstance(error, ProgramError) or not isinstance(error, OWN):
        return error
    found = _place(error)
    if found is None:
        return error
    frame, number = found
    file = frame.f_code.co_filename
    line = linecache.getline(file, number).strip()
    text = f", `{line}`" if line else ""
    what = str(error).strip().splitlines()
    words = f"{type(error).__name__}: {what[0]}" if what else type(error).__name__
    message = f"program {program!r} fails in line {number} of {Path(file).name}{text}: {words}"
    shapes = _shapes(frame)
    known = f" The shapes there are {shapes}." if shapes else ""
    return ProgramError(f"{message.rstrip('.')}. {_remedy(frame, error)}{known}")


def _remedy(frame: FrameType, error: Exception) -> str:
    """What to do: mostly it is in the line."""
    for name, value in frame.f_locals.items():
        if isinstance(error, TypeError) and isinstance(value, list) and "'list'" in str(error):
            return f"{name!r} is a list: pass an array, as np.asarray({name})."
        if isinstance(error, KeyError) and isinstance(value, dict) and error.args[0] not in value:
            return f"{name!r} has {', '.join(map(repr, [*value][:MAX_KEYS])) or 'no keys'}."
    return "Fix that line."


def _place(error: Exception) -> tuple[FrameType, int] | None:
    """The innermost frame of the user's own code, and its line."""
    own = [
        (frame, number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith((*_LIBRARIES, "<"))
    ]
    return own[-1] if own else None


def _shapes(frame: FrameType) -> str:
    """The arrays that a frame knows, as ``X (5, 4), b (3,)``."""

    def is_array(value: Any) -> bool:
        return isinstance(value, np.ndarray | jax.Array) and value.ndim > 0

    known = [f"{name} {value.shape}" for name, value in frame.f_locals.items() if is_array(value)]
    return ", ".join(known[:MAX_SHAPES])
