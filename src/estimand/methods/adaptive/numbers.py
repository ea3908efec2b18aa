"""Where the density is not a number: whether mass could be there, by what is around.

Programs overflow at absurd values that a wide prior allows, and NumPyro's samplers take such places
as impossible. So do we, where the draws around them have next to no mass.
"""

from __future__ import annotations

import math

import numpy as np

from estimand.methods.adaptive.draws import Draws, Part

NUM_NEIGHBOURS = 5
# Of draws that are no numbers, and of others around them, as many are looked at.
MAX_BAD, MAX_GOOD = 400, 4000


def largest_nan_share(draws: Draws, part: Part, log_z: float) -> float:
    """How much of a part could be where it is not a number, if draws there weighed as those around.

    Args:
        draws: of any proposal.
        part: γ, or γf± of an output.
        log_z: the log of the part's normalising constant, as far as it is known.
    """
    is_bad = draws.is_bad((part.output,) if part.sign else ())
    if not is_bad.any():
        return 0.0
    if not math.isfinite(log_z) or is_bad.all():
        return 1.0
    bad, good = np.flatnonzero(is_bad), np.flatnonzero(~is_bad)
    some = bad[:: math.ceil(bad.size / MAX_BAD)]
    others = good[:: math.ceil(good.size / MAX_GOOD)]
    positions = np.nan_to_num(draws.positions)
    scale = np.subtract(*np.percentile(positions[others], [75, 25], axis=0))
    scale = np.where(scale > 0, scale, 1.0)
    one, other = positions[some] / scale, positions[others] / scale
    squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2 * one @ other.T
    count = min(NUM_NEIGHBOURS, others.size)
    nearest = np.argpartition(squares, count - 1, axis=1)[:, :count]
    log_weights = draws.log_weights(part)[others][nearest].max(axis=1) - log_z
    share = np.exp(np.minimum(log_weights, 50.0)).sum() * bad.size / some.size / draws.size
    return float(min(share, 1.0))
