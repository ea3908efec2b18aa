"""Matrix products in pieces that BLAS leaves to one thread, and roots of covariances.

A product over some thousand points takes a millisecond. Divided among threads, it has to wait for
the last of them: with another process on one of two cores, a hundred times as long was measured.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

# OpenBLAS divides a product among threads from this many multiplications on.
MAX_MULTIPLICATIONS = 2**18
# Numbers that a piece of work may hold at a time, to stay in the processor's cache.
MAX_NUMBERS = 2**19
MIN_PIECE, MAX_PIECE = 16, 2048
# The smallest eigenvalue of a covariance, relative to its largest, that is not rounding.
MIN_EIGENVALUE = 1e-10
# Up to this dimension NumPy inverts a stack of matrices faster than a loop over them.
MAX_SMALL = 12


def pieces(count: int, multiplications: int, numbers: int) -> Iterator[slice]:
    """Slices of so many points, given the work and the memory that each point takes."""
    size = min(MAX_MULTIPLICATIONS // max(multiplications, 1), MAX_NUMBERS // max(numbers, 1))
    size = min(max(size, MIN_PIECE), MAX_PIECE)
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def times(matrix: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """matrix @ columns, for few rows and many columns."""
    result = np.empty((len(matrix), columns.shape[1]))
    for piece in pieces(columns.shape[1], matrix.size, sum(matrix.shape)):
        np.matmul(matrix, columns[:, piece], out=result[:, piece])
    return result


def sums_of_products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left.T @ right, for many rows and few columns."""
    total = np.zeros((left.shape[1], right.shape[1]))
    for piece in pieces(len(left), total.size, sum(total.shape)):
        total += left[piece].T @ right[piece]
    return total


def inverses_of(factors: np.ndarray) -> np.ndarray:
    """Inverses of Cholesky factors, in a sixth of the operations of general matrices."""
    from scipy.linalg.lapack import dtrtri

    if factors.shape[-1] <= MAX_SMALL:
        return np.linalg.inv(factors)
    flat = factors.reshape(-1, *factors.shape[-2:])
    return np.stack([dtrtri(factor, lower=1)[0] for factor in flat]).reshape(factors.shape)


def root_of(covariances: np.ndarray) -> np.ndarray:
    """Cholesky factors; of matrices that are singular by rounding, those of close ones."""
    try:
        return np.linalg.cholesky(covariances)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariances)
        values = np.maximum(values, MIN_EIGENVALUE * values.max(axis=-1, keepdims=True))
        return np.linalg.cholesky((vectors * values[..., None, :]) @ np.swapaxes(vectors, -1, -2))
