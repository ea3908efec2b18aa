"""Products in pieces are the products."""

from __future__ import annotations

import numpy as np
import pytest

from estimand.sampling import products
from estimand.sampling.products import inverses_of


@pytest.mark.parametrize(("rows", "inner", "count"), [(3, 2, 1), (43, 43, 1000), (2, 600, 5000)])
def test_products_in_pieces(rows: int, inner: int, count: int) -> None:
    rng = np.random.default_rng(0)
    matrix, columns = rng.normal(size=(rows, inner)), rng.normal(size=(inner, count))
    np.testing.assert_allclose(products.times(matrix, columns), matrix @ columns, atol=1e-10)
    left = rng.normal(size=(count, rows))
    found = products.sums_of_products(left, columns.T)
    np.testing.assert_allclose(found, left.T @ columns.T, atol=1e-10)


@pytest.mark.parametrize("work", [1, 43**2, 10**9])
def test_pieces_are_all_of_it(work: int) -> None:
    slices = list(products.pieces(10_000, work, 5))
    whole = np.concatenate([np.arange(10_000)[piece] for piece in slices])
    np.testing.assert_array_equal(whole, np.arange(10_000))
    sizes = {piece.stop - piece.start for piece in slices[:-1]}
    assert max(sizes) <= products.MAX_PIECE
    assert max(sizes) * work <= products.MAX_MULTIPLICATIONS or sizes == {products.MIN_PIECE}


def test_roots_of_singular_covariances() -> None:
    direction = np.array([1.0, 2.0, -1.0])
    covariances = np.stack([np.eye(3), np.outer(direction, direction)])
    roots = products.root_of(covariances)
    np.testing.assert_allclose(roots @ roots.transpose(0, 2, 1), covariances, atol=1e-8)


@pytest.mark.parametrize("shape", [(3, 2, 2), (2, 40, 40), (40, 40)])
def test_inverses_of_factors(shape: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    factors = np.tril(rng.standard_normal(shape)) + 5 * np.eye(shape[-1])
    identity = np.broadcast_to(np.eye(shape[-1]), shape)
    np.testing.assert_allclose(inverses_of(factors) @ factors, identity, atol=1e-12)
