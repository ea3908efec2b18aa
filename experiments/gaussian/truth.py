"""The exact expectation of the Gaussian problem, in closed form.

The posterior is N(y/2, I/2) and f(x) = N(−y; x, I/2), so that E = N(−y; y/2, I): with |y| = 3.5 the
distance is 1.5 · 3.5 in any dimension.
"""

from __future__ import annotations

import math

from experiments.gaussian.model import DIMENSION, NORM


def log_z2(dimension: int = DIMENSION) -> float:
    """log N(y; 0, 2I)."""
    return -0.5 * dimension * math.log(4 * math.pi) - NORM**2 / 4


def expectation(dimension: int = DIMENSION) -> float:
    """N(−y; y/2, I)."""
    return math.exp(-0.5 * dimension * math.log(2 * math.pi) - 0.5 * (1.5 * NORM) ** 2)


if __name__ == "__main__":
    for size in (2, 5, 10, 25, 50, 100):
        print(f"D = {size:3}   log Z2 = {log_z2(size):.6f}   E = {expectation(size):.8e}")
