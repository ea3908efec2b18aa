"""Ctrl-C: methods offer what they know so far, and whoever started them may take it.

Nobody collects by default, and then offering costs nothing.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any


class Offers:
    """The last offer: a function that gives the result as far as it is known, or None."""

    def __init__(self) -> None:
        self.last: Callable[[], Any] | None = None


_offers: contextvars.ContextVar[Offers | None] = contextvars.ContextVar(
    "estimand_offers", default=None
)


def offer(make: Callable[[], Any]) -> None:
    """Offers the result so far, if somebody collects; it is made only if it is asked for."""
    offers = _offers.get()
    if offers is not None:
        offers.last = make


@contextlib.contextmanager
def collecting() -> Iterator[Offers]:
    """What is offered in the body is kept."""
    offers = Offers()
    token = _offers.set(offers)
    try:
        yield offers
    finally:
        _offers.reset(token)


@contextlib.contextmanager
def offering_nothing() -> Iterator[None]:
    """What is offered in the body is not taken, because there is something better already."""
    token = _offers.set(None)
    try:
        yield
    finally:
        _offers.reset(token)
