"""Outputs of two runs that must be the same: their parts hold arrays, which `==` cannot compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from estimand.trust import OutputEstimate, Parts


def assert_same_outputs(first: Sequence[OutputEstimate], second: Sequence[OutputEstimate]) -> None:
    """Every number, word and finding of the outputs is the same, bit by bit; NaN equals NaN."""
    for one, other in zip(first, second, strict=True):
        assert repr(one._replace(parts=Parts())) == repr(other._replace(parts=Parts()))
        for name, part in one.parts._asdict().items():
            assert_same_part(part, getattr(other.parts, name))


def assert_same_part(one: Any, other: Any) -> None:
    """The same number and the same weights."""
    assert (one is None) == (other is None)
    if one is None:
        return
    for name in ("log_z", "relative_variance"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    weights = "log_weights" if hasattr(one, "log_weights") else "largest"
    np.testing.assert_array_equal(getattr(one, weights), getattr(other, weights))
