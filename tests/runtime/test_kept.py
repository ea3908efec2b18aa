"""Compiled code is kept for the models used last."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.runtime import CompilationClock, compiled_per_model, kept


@compiled_per_model(static_argnums=(0,))
def outputs(power: int, density: ep.Density, position: jax.Array) -> jax.Array:
    return density.outputs(position) ** power


def density_of(factor: int) -> ep.Density:
    def model() -> Any:
        return factor * numpyro.sample("x", dist.Normal(0.0, 1.0))

    return ep.Density.of(ep.expectation(model)())


def compilations(call: Callable[[], Any]) -> int:
    with CompilationClock() as clock:
        call()
    return clock.num_compilations


def test_last_models_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "NUM_KEPT_MODELS", 2)
    densities = [density_of(101 + k) for k in range(3)]
    position = jnp.array([0.5])
    for density in densities:
        assert compilations(functools.partial(outputs, 2, density, position)) == 1
        assert compilations(functools.partial(outputs, 2, density, position)) == 0
    assert compilations(lambda: outputs(2, densities[1], position)) == 0
    assert compilations(lambda: outputs(2, densities[0], position)) == 1
    assert len(kept._kept) == 2


def test_code_of_forgotten_models_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "NUM_KEPT_MODELS", 1)
    density = density_of(111)
    outputs(1, density, jnp.array([0.5]))
    (functions,) = (kept._kept[key] for key in kept._kept)
    compiled = weakref.ref(*functions.values())
    del functions
    outputs(1, density_of(112), jnp.array([0.5]))
    gc.collect()
    assert compiled() is None


def test_within_other_transformations() -> None:
    density = density_of(3)
    many = jax.vmap(lambda position: outputs(2, density, position))(jnp.ones((4, 1)))
    assert many.tolist() == [[9.0]] * 4
    assert jax.jit(outputs, static_argnums=0)(1, density, jnp.ones(1)).tolist() == [3.0]
