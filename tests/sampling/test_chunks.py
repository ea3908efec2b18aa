"""Work in pieces: the same numbers, however many rows are mapped over at a time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from estimand.sampling import chunks, vmapped

ROWS = np.random.default_rng(0).normal(size=(24, 3))
DATA = np.linspace(-1.0, 1.0, 1000)


def misfit(row: Any) -> dict[str, Any]:
    residuals = DATA - row[0] - row[1] * DATA
    return {"log": -0.5 * jnp.sum(residuals**2), "pair": (row[2], row[:2]), "none": row[3:]}


def assert_equal(one: Any, other: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13), one, other)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "MIN_ROWS", 4)


def in_a_loop(row: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda _, x: x * row[0], 1.0)


@pytest.mark.parametrize(("function", "has_batches"), [(jnp.sum, False), (in_a_loop, True)])
def test_small_rows_are_mapped_over_at_once_unless_they_have_a_loop(
    function: Any, has_batches: bool
) -> None:
    """So that the code of models with few data has no loop in it."""
    rows = np.ones((4096, 3))
    outer = jax.make_jaxpr(lambda rows: vmapped(function, rows))(rows).jaxpr
    assert any(equation.primitive.name == "scan" for equation in outer.eqns) is has_batches


@pytest.mark.parametrize("at_a_time", [1, 3, 8, 23, 24, 1000])
def test_rows_are_mapped_over_some_at_a_time(
    at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "MAX_BYTES", at_a_time * DATA.nbytes)
    found = jax.jit(lambda rows: vmapped(misfit, rows))(ROWS)
    assert_equal(found, jax.vmap(misfit)(ROWS))


def test_maps_inside_of_a_map_share_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "MAX_BYTES", 8 * DATA.nbytes)
    groups = ROWS.reshape(2, 12, 3)

    def both(groups: jax.Array) -> Any:
        return jax.vmap(lambda rows: vmapped(misfit, rows, copies=2))(groups)

    assert_equal(jax.jit(both)(groups), jax.vmap(jax.vmap(misfit))(groups))
    assert largest_array(both, groups) == 8 * DATA.nbytes


def test_the_largest_array_stays_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "MAX_BYTES", 6 * DATA.nbytes)
    assert largest_array(lambda rows: vmapped(misfit, rows), ROWS) == 6 * DATA.nbytes
    assert largest_array(lambda rows: jax.vmap(misfit)(rows), ROWS) == 24 * DATA.nbytes


@pytest.mark.parametrize(
    ("count", "num_bytes", "size"),
    [
        (4096, 8, 64),  # not more than the most
        (4096, 2**18, 16),
        (4096, 2**20, 4),
        (4096, 2**21, 1),  # fewer than the fewest: one by one
        (97, 8, 97),  # a prime number of small rows: all of them
        (97, 2**20, 1),
        (3, 8, 3),
    ],
)
def test_sizes_of_batches(count: int, num_bytes: int, size: int) -> None:
    assert chunks._batch_size(count, num_bytes) == size


def largest_array(function: Any, rows: np.ndarray) -> int:
    traced: core.ClosedJaxpr = jax.make_jaxpr(function)(rows)
    return chunks._largest_bytes(traced.jaxpr)
