"""Parameters of tests, the expensive ones marked slow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def product(*axes: Iterable[Any], slow: Callable[..., bool]) -> list[Any]:
    """All combinations of the axes' values; those are marked for which `slow(*values)` holds."""
    return [
        pytest.param(
            *values,
            id="-".join(map(str, values)),
            marks=[pytest.mark.slow] if slow(*values) else [],
        )
        for values in itertools.product(*axes)
    ]
