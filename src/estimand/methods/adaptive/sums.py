"""Sums over draws that are not kept: all that estimates and their errors need of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Sums(NamedTuple):
    """For every replicate how many draws there were, and sums over them.

    Weights are relative to those of the draws that are kept: a row for each replicate, a column for
    each part of the plan. `products` are those of all pairs of controls, `moments` those of weights
    and controls, and `largest` is the largest weight.
    """

    counts: Any
    controls: Any
    products: Any
    weights: Any
    squares: Any
    moments: Any
    largest: Any

    def __add__(self, other: Sums) -> Sums:  # type: ignore[override]
        added = Sums(*(mine + yours for mine, yours in zip(self, other, strict=True)))
        return added._replace(largest=np.maximum(self.largest, other.largest))

    @property
    def size(self) -> int:
        """How many draws there were."""
        return int(np.sum(self.counts))

    def of_controls(self, num_controls: int) -> Sums:
        """The same without the columns that fill up the controls."""
        return self._replace(
            controls=self.controls[:, :num_controls],
            products=self.products[:, :num_controls, :num_controls],
            moments=self.moments[:, :, :num_controls],
        )


class Streamed(NamedTuple):
    """Sums of the weights of one part, replicate by replicate."""

    counts: np.ndarray
    controls: np.ndarray
    weights: np.ndarray
    moments: np.ndarray

    def about(self, value: float, center: np.ndarray) -> np.ndarray:
        """Sums of products of weights less a value and of controls less their center."""
        own = self.moments - value * self.controls
        return own - (self.weights - value * self.counts)[:, None] * center
