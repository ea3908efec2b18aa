"""Quantiles of a return value, however far out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import jax
import numpy as np

from estimand import record as records
from estimand.answers.evidence import auto_for
from estimand.answers.quantiles.found import Quantiles
from estimand.answers.quantiles.search import Search, require_scalar
from estimand.answers.reported import provenance_of
from estimand.estimate import EstimationError
from estimand.methods import Auto
from estimand.model import Bound
from estimand.runtime import require_precision
from estimand.settings import checked_names


@checked_names
def quantile(
    expectation: Bound,
    levels: float | Sequence[float] | np.ndarray | None = None,
    *,
    tail_probability: float | Sequence[float] | None = None,
    rng_key: int | jax.Array = 0,
    method: Auto | None = None,
    throw: bool = True,
    precision: str = "double",
    progress_bar: bool | None = None,
    executor: Executor | None = None,
) -> Quantiles:
    """Quantiles of a bound program's return value under its posterior, however far out.

    The probability of being beyond a threshold is an expectation, which is estimated where it has
    its mass. Thresholds move out until the probability beyond them is the wanted one; the interval
    of the last one is inverted. All levels share each exploration.

    Args:
        expectation: a program called with its data that returns one number; of one with several,
            take one as ``program(data)["name"]``.
        levels: numbers between 0 and 1, or one. Those below ½ are estimated by the lower tail.
        tail_probability: probabilities of the upper tail instead, which have no digits to lose:
            1e-20 stands for the level 1 − 1e-20.
        rng_key: an int or a JAX key.
        method: `Auto`, whose `relative_error` is that of the tail probabilities. Limits of
            evaluations and time are those of each round of thresholds.
        throw: raise `EstimationError` if the status is not `ok`.
        precision: as in `estimate_expectation`.
        progress_bar: as in `estimate_expectation`.
        executor: as in `estimate_expectation`.

    Raises:
        EstimationError: if a status is not `ok`, unless ``throw=False``.

    Examples:
        >>> quantiles = ep.quantile(program(2.0), [0.5, 1 - 1e-6])
        >>> [round(float(value)) for value in quantiles.value]
        [1, 83]
    """
    asked, is_single = _asked(levels, tail_probability)
    base = require_scalar("quantile", expectation)
    require_precision("quantile", precision)
    method, key = auto_for("quantile", method), records.as_key(rng_key)
    search = Search(
        base,
        [level[1:] for level in asked],
        method,
        key,
        {"precision": precision, "progress_bar": progress_bar, "executor": executor},
    )
    tails = search.run()
    found = Quantiles(
        program=base.name,
        tails=tuple(
            dataclasses.replace(tail, level=level)
            for tail, (level, *_) in zip(tails, asked, strict=True)
        ),
        is_single=is_single,
        num_evaluations=search.num_evaluations,
        num_gradients=search.num_gradients,
        provenance=provenance_of(base, method, key, precision),
        estimate=search.last,
    )
    if throw and not found.status:
        raise EstimationError(found)
    return found


class _Asked(NamedTuple):
    """A level, and the tail that it is estimated by: its probability, and 1 or −1 for its side."""

    level: float
    probability: float
    sign: int


def _asked(levels: Any, tail_probability: Any) -> tuple[list[_Asked], bool]:
    if (levels is None) == (tail_probability is None):
        raise TypeError("quantile: give levels or tail_probability=.")
    numbers = np.asarray(levels if tail_probability is None else tail_probability, float)
    name = "levels" if tail_probability is None else "tail_probability"
    if numbers.ndim > 1 or not numbers.size or not ((numbers > 0) & (numbers < 1)).all():
        raise ValueError(f"quantile: {name} must be between 0 and 1; got {numbers.tolist()}.")
    asked = []
    for number in map(float, numbers.ravel()):
        upper = 1 - number if tail_probability is None else number
        level = number if tail_probability is None else 1 - number
        is_lower = level < 0.5
        asked.append(_Asked(level, level if is_lower else upper, -1 if is_lower else 1))
    return asked, numbers.ndim == 0
