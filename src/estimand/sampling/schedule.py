"""Annealing schedules: inverse temperatures from 0 (the prior) to 1 (the target)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from estimand.settings import checked_names


@checked_names
def linear(num_temperatures: int) -> tuple[float, ...]:
    """Evenly spaced inverse temperatures.

    Args:
        num_temperatures: steps from the prior to the target.

    Examples:
        >>> ep.linear(4)
        (0.0, 0.25, 0.5, 0.75, 1.0)
    """
    return tuple(np.linspace(0.0, 1.0, num_temperatures + 1).tolist())


@checked_names
def geometric(num_temperatures: int, ratio: float = 1000.0) -> tuple[float, ...]:
    """The paper's schedule: fine steps near the prior, coarse ones near the target.

    Args:
        num_temperatures: steps from the prior to the target.
        ratio: of the last step to the first, roughly.

    Examples:
        >>> [round(beta, 4) for beta in ep.geometric(3)]
        [0.0, 0.009, 0.0991, 1.0]
    """
    betas = (np.geomspace(1.0, ratio + 1.0, num_temperatures + 1) - 1.0) / ratio
    return (0.0, *betas[1:-1].tolist(), 1.0)


def validated(schedule: Iterable[float]) -> tuple[float, ...]:
    """A schedule as a tuple; raises unless it increases strictly from 0 to 1."""
    betas = tuple(float(beta) for beta in schedule)
    if len(betas) < 2 or betas[0] != 0.0 or betas[-1] != 1.0:
        raise ValueError(f"schedule must start at 0 and end at 1; it is {_shown(betas)}.")
    for i in range(1, len(betas)):
        if not betas[i] > betas[i - 1]:
            raise ValueError(
                f"schedule must increase strictly from 0 to 1; entry {i} is {betas[i]} "
                f"after {betas[i - 1]}."
            )
    return betas


def _shown(betas: tuple[float, ...]) -> str:
    return str(betas) if len(betas) <= 6 else f"({betas[0]}, …, {betas[-1]})"
