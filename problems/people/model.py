"""What an entry of the table holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class PeopleModel(NamedTuple):
    """A plain NumPyro program whose return value is an ordinary, a common and a rare question."""

    name: str
    title: str
    family: str
    model: Callable[..., Any]
    args: tuple[Any, ...]
    dimension: int
