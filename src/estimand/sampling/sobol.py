"""Scrambled Sobol points, without scipy.stats, whose import alone takes half a second.

The scrambling is SciPy's: a random lower triangular matrix of bits for each coordinate and a
digital shift (Matoušek 1998).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

BITS = 30
MAX_DIMENSION = 42
# The file new-joe-kuo-6 of Joe and Kuo (2008) up to 42 dimensions. In each line the number of the
# coordinate, the degree of its primitive polynomial, the polynomial's inner coefficients as bits,
# and the first direction numbers.
JOE_KUO = """
2 1 0 1
3 2 1 1 3
4 3 1 1 3 1
5 3 2 1 1 1
6 4 1 1 1 3 3
7 4 4 1 3 5 13
8 5 2 1 1 5 5 17
9 5 4 1 1 5 5 5
10 5 7 1 1 7 11 19
11 5 11 1 1 5 1 1
12 5 13 1 1 1 3 11
13 5 14 1 3 5 5 31
14 6 1 1 3 3 9 7 49
15 6 13 1 1 1 15 21 21
16 6 16 1 3 1 13 27 49
17 6 19 1 1 1 15 7 5
18 6 22 1 3 1 15 13 25
19 6 25 1 1 5 5 19 61
20 7 1 1 3 7 11 23 15 103
21 7 4 1 3 7 13 13 15 69
22 7 7 1 1 3 13 7 35 63
23 7 8 1 3 5 9 1 25 53
24 7 14 1 3 1 13 9 35 107
25 7 19 1 3 1 5 27 61 31
26 7 21 1 1 5 11 19 41 61
27 7 28 1 3 5 3 3 13 69
28 7 31 1 1 7 13 1 19 1
29 7 32 1 3 7 5 13 19 59
30 7 37 1 1 3 9 25 29 41
31 7 41 1 3 5 13 23 1 55
32 7 42 1 3 7 3 13 59 17
33 7 50 1 3 1 3 5 53 69
34 7 55 1 1 5 5 23 33 13
35 7 56 1 1 7 7 1 61 123
36 7 59 1 1 7 9 13 61 49
37 7 62 1 3 3 5 3 55 33
38 8 14 1 3 1 15 31 13 49 245
39 8 21 1 3 5 15 31 59 63 97
40 8 22 1 3 1 11 11 11 77 249
41 8 38 1 3 1 11 27 43 71 9
42 8 47 1 1 7 15 21 11 81 45
"""


def scrambled(rng: np.random.Generator, log2_count: int, dimension: int) -> np.ndarray:
    """2**log2_count points in the unit cube, each of them uniform in it."""
    directions, shifts, rest = scramble(rng, dimension, log2_count)
    return (_points(directions, shifts) + rest) * 2.0**-BITS


class Scramble(NamedTuple):
    """Direction numbers of every coordinate, a digital shift, and what is beyond the last bit.

    Uniform there, too: SciPy's points are multiples of 2**-BITS, and may be 0.
    """

    directions: np.ndarray
    shifts: np.ndarray
    rest: np.ndarray


def scramble(rng: np.random.Generator, dimension: int, num_bits: int = BITS) -> Scramble:
    """A random scrambling, for up to 2**num_bits points."""
    lower = np.tril(rng.integers(0, 2, (dimension, BITS, BITS)), -1) + np.eye(BITS, dtype=int)
    bits = _bits(_directions()[:dimension, :num_bits])
    # A bit of a scrambled number is a random sum of the bits of the plain one up to it.
    mixed = (bits @ lower.transpose(0, 2, 1)) & 1
    shifts = rng.integers(0, 1 << BITS, dimension)
    return Scramble(_numbers(mixed), shifts, rng.random(dimension))


def shifted(
    rng: np.random.Generator, num_replicates: int, log2_count: int, dimension: int
) -> np.ndarray:
    """Replicates of 2**log2_count points, one after the other, each with a shift of its own.

    A digital shift makes every point uniform in the cube; of all that `scrambled` does it is the
    cheap part.
    """
    shifts = rng.integers(0, 1 << BITS, (num_replicates, 1, dimension))
    points = _points(_directions()[:dimension, :log2_count], np.zeros(dimension, int)) ^ shifts
    rest = rng.random((num_replicates, 1, dimension))
    return ((points + rest) * 2.0**-BITS).reshape(-1, dimension)


def plain(log2_count: int, dimension: int) -> np.ndarray:
    """The first 2**log2_count Sobol points, which no randomness has touched."""
    directions = _directions()[:dimension, :log2_count]
    return _points(directions, np.zeros(dimension, int)) * 2.0**-BITS


def _points(directions: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """All sums modulo 2 of the columns of directions, shifted, of shape (points, dimension)."""
    dimension, log2_count = directions.shape
    points = np.empty((1 << log2_count, dimension), np.int64)
    points[0] = shifts
    for k in range(log2_count):
        np.bitwise_xor(points[: 1 << k], directions[:, k], out=points[1 << k : 2 << k])
    return points


@functools.cache
def _directions() -> np.ndarray:
    """Direction numbers of `BITS` bits, of shape (MAX_DIMENSION, BITS)."""
    rows = [[1] * BITS]
    for line in JOE_KUO.split("\n")[1:-1]:
        _, degree, inner, *numbers = (int(word) for word in line.split())
        for k in range(degree, BITS):
            number = numbers[k - degree] ^ (numbers[k - degree] << degree)
            for j in range(1, degree):
                if (inner >> (degree - 1 - j)) & 1:
                    number ^= numbers[k - j] << j
            numbers.append(number)
        rows.append(numbers)
    return np.array(rows) << np.arange(BITS)[::-1]


def _bits(numbers: np.ndarray) -> np.ndarray:
    """The bits of numbers along a new last axis, the highest first."""
    return (numbers[..., None] >> np.arange(BITS)[::-1]) & 1


def _numbers(bits: np.ndarray) -> np.ndarray:
    """The numbers that have these bits."""
    return bits @ (1 << np.arange(BITS)[::-1])
