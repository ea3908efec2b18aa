"""One compilation serves all three densities, every output and fresh data of the same shape."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.density import Density
from estimand.runtime.compilation import CompilationClock


def regression(x: Any, y: Any, scale: float = 1.0) -> Any:
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(scale))
    with numpyro.plate("rows", 5):
        numpyro.sample("y", dist.Normal(slope * x, sigma), obs=y)
    return slope, slope**2, slope > 1.0


X = np.linspace(-1.0, 1.0, 5)


class Steps:
    """Context manager that counts what JAX lowers and compiles, by name."""

    def __enter__(self) -> Steps:
        self.lowered, self.compiled = collections.Counter[str](), collections.Counter[str]()
        self._is_active = True
        jax.monitoring.register_event_duration_secs_listener(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_active = False  # JAX has no public way to take a listener back

    def _note(self, event: str, duration_secs: float, **about: Any) -> None:
        if self._is_active and event.endswith("jaxpr_to_mlir_module_duration"):
            self.lowered[str(about.get("fun_name"))] += 1
        if self._is_active and event.endswith("backend_compile_duration"):
            self.compiled[str(about.get("fun_name"))] += 1


@pytest.mark.parametrize("kernel", [ep.RandomWalk(), ep.HMC(num_leapfrog=2)])
def test_one_compilation_for_parts_outputs_data_and_step_sizes(kernel: Any) -> None:
    program = ep.expectation(regression)
    method = ep.TABI(ep.AnIS(num_samples=50, num_temperatures=5, kernel=kernel))
    with Steps() as steps:
        ep.estimate_expectation(program(X, 2 * X, scale=1.0), method, throw=False)
    assert steps.compiled["jit(_anneal)"] == 1
    with CompilationClock() as clock, Steps() as steps:
        again = ep.estimate_expectation(program(X, 2 * X, scale=1.0), method, throw=False)
        fresh = ep.estimate_expectation(program(X + 1, 3 * X, scale=2.0), method, throw=False)
        field = "scale" if isinstance(kernel, ep.RandomWalk) else "step_size"
        retuned = ep.TABI(
            ep.AnIS(
                num_samples=50,
                schedule=ep.geometric(5),
                kernel=dataclasses.replace(kernel, **{field: 0.3}),
            )
        )
        ep.estimate_expectation(program(X, 2 * X, scale=1.0), retuned, throw=False)
    assert clock.num_compilations == 0
    assert not steps.lowered
    assert fresh.value != again.value


@pytest.mark.slow
def test_chains_compile_once() -> None:
    program = ep.expectation(regression)
    method = ep.TABI(ep.BridgeSampling(num_samples=100, num_warmup=50, num_chains=2))
    ep.estimate_expectation(program(X, 2 * X), method, throw=False)
    with CompilationClock() as clock:
        ep.estimate_expectation(program(X + 1, 3 * X), method, rng_key=1, throw=False)
    assert clock.num_compilations == 0


def test_other_shapes_compile_again() -> None:
    @ep.expectation
    def program(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x

    method = ep.TABI(ep.AnIS(num_samples=20, num_temperatures=3))

    def compilations(y: np.ndarray) -> int:
        with CompilationClock() as clock, Steps() as steps:
            ep.estimate_expectation(program(y), method, throw=False)
        # Where nothing is compiled, nothing is made ready for it either.
        assert (clock.num_compilations > 0) == bool(steps.lowered)
        return clock.num_compilations

    assert compilations(np.zeros(3)) >= 1
    assert compilations(np.zeros(4)) >= 1
    assert compilations(np.ones(3)) == 0


def test_model_is_traced_a_fixed_number_of_times() -> None:
    calls = []

    @ep.expectation
    def program(y: float) -> Any:
        calls.append(y)
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x

    bound = program(1.0)
    assert len(calls) == 3
    method = ep.TABI(ep.AnIS(num_samples=20, num_temperatures=3))
    ep.estimate_expectation(bound, method, throw=False)
    after_first = len(calls)
    ep.estimate_expectation(bound, method, throw=False)
    # A second estimate looks once if the program has changed since.
    assert len(calls) == after_first + 1


def test_clock_merges_nested_intervals() -> None:
    clock = CompilationClock()
    with clock:
        clock.intervals.extend([(0.0, 2.0), (1.0, 1.5), (3.0, 4.0), (3.5, 5.0)])
    assert clock.seconds == 4.0


def test_clock_sees_compilations() -> None:
    with CompilationClock() as outer:
        with CompilationClock() as inner:
            jax.jit(lambda x: jnp.sin(x) + 17.0)(jnp.ones(3)).block_until_ready()
        assert inner.num_compilations >= 1
    assert outer.num_compilations == inner.num_compilations
    assert outer.seconds == inner.seconds > 0


def test_what_is_called_between_the_steps_of_a_compilation_can_end_it() -> None:
    """It is called after tracing, lowering and compiling."""
    steps: list[int] = []
    with CompilationClock(between=lambda: steps.append(1)):
        jax.jit(lambda x: jnp.sin(x) + 18.0)(jnp.ones(3)).block_until_ready()
    assert len(steps) >= 3

    def stop() -> None:
        raise KeyboardInterrupt

    with CompilationClock(between=stop), pytest.raises(KeyboardInterrupt):
        jax.jit(lambda x: jnp.sin(x) + 20.0)(jnp.ones(3)).block_until_ready()


def test_density_is_a_pytree_with_static_layout() -> None:
    program = ep.expectation(regression)
    first, second = Density.of(program(X, X)), Density.of(program(X, 2 * X))
    assert jax.tree.structure(first) == jax.tree.structure(second)  # type: ignore[operator]
    assert hash(first.layout) == hash(second.layout)


def test_other_shapes_are_the_reason_for_compiling_again() -> None:
    @ep.expectation
    def mean(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.5))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x

    method = ep.SelfNormalised(ep.ImportanceSampling(num_samples=100))

    def notes(count: int) -> tuple[str, ...]:
        result = ep.estimate_expectation(mean(np.ones(count)), method, throw=False)
        return result.run.notes

    assert notes(20) == notes(20) == ()
    assert notes(21) == (
        "compiled again: the data have other shapes than in the last call ((21,), were (20,))",
    )
    assert notes(20) == notes(21) == ()
