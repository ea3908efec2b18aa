"""What an entry of the table holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CATEGORIES = {
    "sums": "sums and nets: an ordinary term hides a rare, large one",
    "unions": "events and targets that come about in several ways",
    "needles": "narrow modes of the posterior or narrow pieces of the target",
    "strata": "branches: a discrete site or a mixture decides what the rest looks like",
    "tails": "heavy tails, ratios, exponentials; means that do not exist",
    "edges": "mass at the edge of a support; rates near 0 and 1",
    "ties": "steps, ties, rounding, equality",
    "order": "sorted, maximal and argmax outputs",
    "loops": "targets and densities that are computed in a loop",
    "precision": "numbers that single precision cannot hold",
    "rows": "many rows of data",
    "outputs": "several outputs, up to fifty",
    "conflict": "data that contradict the prior or each other",
    "discrete": "discrete and mixed sites",
    "shapes": "correlation, curvature, funnels, shells, ten and more dimensions",
}


class Adversarial(NamedTuple):
    """A plain NumPyro program, the truth of each of its outputs, and the same by a second way.

    `truth` and `check` return a number for each output, in the order in which JAX flattens the
    return value; NaN where the mean does not exist. They must agree to `tolerance`, relative to
    the truth. `is_easy`: a statistician would be annoyed by a refusal.
    """

    name: str
    category: str
    model: Callable[..., Any]
    args: tuple[Any, ...]
    truth: Callable[[], Iterable[float]]
    check: Callable[[], Iterable[float]]
    how: str
    is_easy: bool = False
    tolerance: float = 1e-6

    def truths(self) -> NDArray[np.float64]:
        return np.array([float(value) for value in self.truth()])

    def disagreement(self) -> float:
        """The largest relative difference between the two ways; infinite if only one is NaN."""
        first, second = self.truths(), np.array([float(value) for value in self.check()])
        if first.shape != second.shape or np.any(np.isnan(first) != np.isnan(second)):
            return math.inf
        known = ~np.isnan(first)
        scale = np.maximum(np.abs(first[known]), np.finfo(float).tiny)
        return float(np.max(np.abs(first[known] - second[known]) / scale, initial=0.0))
