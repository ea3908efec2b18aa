"""What `TABI` and `log_evidence` need of an estimator of a normalising constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import jax

from estimand.density import Density
from estimand.runtime import Runtime, Task
from estimand.trust import Evidence, Trace


@runtime_checkable
class Estimator(Protocol):
    """An estimator of Z. Settings are hashable; `estimate` may be jitted and vmapped."""

    def check(self, density: Density) -> None:
        """Raises, before any work, if the estimator cannot take this density."""

    def estimate(self, rng_key: jax.Array, density: Density) -> Evidence: ...


@runtime_checkable
class StagedEstimator(Estimator, Protocol):
    """An estimator that works in stages on the host, each a task of its own."""

    def estimate_in(self, runtime: Runtime, rng_key: jax.Array, density: Density) -> Evidence: ...


@runtime_checkable
class HostedEstimator(Estimator, Protocol):
    """An estimator that the host can also drive, for which far less is compiled."""

    def estimate_on_host(self, rng_key: jax.Array, density: Density) -> Evidence: ...


class Request(NamedTuple):
    """An estimator, and what it is asked for."""

    estimator: Estimator
    rng_key: jax.Array
    density: Density


def estimate_all(runtime: Runtime, requests: Sequence[Request]) -> list[Evidence]:
    """What estimators say of densities, each independently of the others."""
    if any(isinstance(request.estimator, StagedEstimator) for request in requests):
        return [_estimate_one(runtime, request) for request in requests]
    return runtime.map([_task(request) for request in requests])


def _estimate_one(runtime: Runtime, request: Request) -> Evidence:
    if isinstance(request.estimator, StagedEstimator):
        return request.estimator.estimate_in(runtime, request.rng_key, request.density)
    return runtime.map([_task(request)])[0]


def _task(request: Request) -> Task:
    return Task(_estimate, tuple(request), kinds=(Evidence, Trace))


def _estimate(estimator: Estimator, rng_key: jax.Array, density: Density) -> Evidence:
    if isinstance(estimator, HostedEstimator):
        return estimator.estimate_on_host(rng_key, density)
    return jax.block_until_ready(estimator.estimate(rng_key, density))
