"""Executables on disk: what they are kept by, and that no other program ever gets them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.runtime import cache, cache_on_disk, compiled_per_model, executables, kept
from estimand.runtime.executables import UntoldError, told


@compiled_per_model(static_argnums=(0,))
def outputs(power: Any, density: ep.Density, position: jax.Array) -> dict[str, jax.Array]:
    return {"value": density.outputs(position) ** (power if isinstance(power, int) else 1)}


@compiled_per_model
def solved(density: ep.Density, position: jax.Array) -> jax.Array:
    matrix = jnp.eye(3) * (2.0 + density.outputs(position)[0])
    return jnp.linalg.cholesky(matrix)


def density_of(factor: float, *, is_hidden: bool = False, rows: int = 2) -> ep.Density:
    def model(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", rows):
            numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        if is_hidden:
            shape = jax.ShapeDtypeStruct((), x.dtype)
            x = jax.pure_callback(lambda v: v, shape, x, vmap_method="sequential")
        return jnp.sin(x) * int(factor) + jnp.mean(y)

    return ep.Density.of(ep.expectation(model)(np.ones(rows)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, which is on."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    cache._folder.cache_clear()
    with cache_on_disk():
        yield tmp_path
    cache._folder.cache_clear()


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob(f"*{cache.KEPT}")}


def again(call: Callable[[], Any]) -> Any:
    """The same in a process that has compiled nothing."""
    kept._kept.clear()
    return call()


def test_code_comes_back_with_its_structure(folder: Path) -> None:
    position = jnp.array([0.5])

    def call() -> Any:
        return outputs(2, density_of(3), position)

    first = again(call)
    assert len(files(folder)) == 1
    loaded = again(call)
    assert len(files(folder)) == 1
    assert loaded.keys() == first.keys() == {"value"}
    assert loaded["value"].tolist() == first["value"].tolist()


def test_what_differs_is_compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program, setting, static argument, shape or type never gets code that is there."""
    asked: list[str] = []
    load = executables._loaded

    def noted(path: Path, args: tuple) -> Any:
        asked.append(path.name)
        return load(path, args)

    monkeypatch.setattr(executables, "_loaded", noted)
    position = jnp.array([0.5])
    calls: list[Callable[[], Any]] = [
        lambda: outputs(1, density_of(3), position),
        lambda: outputs(2, density_of(3), position),
        lambda: outputs(1, density_of(4), position),
        lambda: outputs(1, density_of(3, rows=3), position),
        lambda: outputs(1, density_of(3), position.astype(jnp.float32)),
        lambda: outputs(1, dataclasses.replace(density_of(3), has_looks=True), position),
    ]
    values = [again(call)["value"].tolist() for call in calls]
    with jax.default_matmul_precision("highest"):
        again(calls[0])
    assert len(asked) == len(set(asked)) == len(calls) + 1
    assert [again(call)["value"].tolist() for call in calls] == values
    assert asked[len(calls) + 1 :] == asked[: len(calls)]
    three, four = 3 * np.sin(0.5) + 1, 4 * np.sin(0.5) + 1
    np.testing.assert_allclose(values[:3], [[three], [three**2], [four]], rtol=1e-12)


def test_linear_algebra_is_made_known(folder: Path) -> None:
    def call() -> Any:
        return solved(density_of(3), jnp.array([0.5]))

    first = again(call)
    executables._make_lapack_known.cache_clear()
    assert again(call).tolist() == first.tolist()
    assert len(files(folder)) == 1
    assert executables._make_lapack_known.cache_info().currsize == 1


@dataclasses.dataclass(frozen=True)
class Foreign:
    """A setting of somebody else's, whose code may change."""

    size: int = 1


def test_what_cannot_be_told_is_left_to_jax(folder: Path) -> None:
    position = jnp.array([0.5])
    again(lambda: outputs(1, density_of(3, is_hidden=True), position))
    again(lambda: outputs(Foreign(), density_of(3), position))
    assert not files(folder)


def test_folders_that_others_write_to_are_not_used(folder: Path) -> None:
    (inner,) = folder.iterdir()
    inner.chmod(0o777)
    again(lambda: outputs(1, density_of(3), jnp.array([0.5])))
    assert not files(folder)


def test_code_that_does_not_run_is_made_again(folder: Path) -> None:
    def call() -> Any:
        return outputs(1, density_of(3), jnp.array([0.5]))["value"].tolist()

    first = again(call)
    (path,) = folder.rglob(f"*{cache.KEPT}")
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(content)
        assert again(call) == first
    assert not [name for name in os.listdir(path.parent) if name.startswith("tmp")]


def test_told_values() -> None:
    kernel = ep.HMC(num_leapfrog=3)
    same = [
        (1, 1),
        ((1, "a", None), (1, "a", None)),
        (kernel, ep.HMC(num_leapfrog=3)),
        (jax.tree.structure({"a": 1}), jax.tree.structure({"a": 2})),
    ]
    for one, two in same:
        assert told(one) == told(two)
    others = [
        1,
        1.0,
        True,
        "1",
        (1,),
        [1],
        (1, 2),
        ((1,), 2),
        kernel,
        ep.HMC(num_leapfrog=4),
        ep.NUTS(),
    ]
    others += [jax.tree.structure({"a": 1}), jax.tree.structure({"b": 1}), -0.0, 0.0]
    assert len({told(value) for value in others}) == len(others)


@pytest.mark.parametrize("value", [object(), Foreign(), lambda: 1, np.ones(2), (1, object())])
def test_untold_values(value: Any) -> None:
    with pytest.raises(UntoldError):
        told(value)
