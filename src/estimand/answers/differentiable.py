"""`differentiable`: an expectation as a function that `jax.grad` takes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density
from estimand.estimate import Estimate, EstimationError, estimate_expectation
from estimand.methods import Method
from estimand.model import Expectation, ExpectationProgram, ProgramError
from estimand.record import as_key
from estimand.runtime import cache_on_disk, in_precision
from estimand.sensitivity import Derivative, Sensitivity, derivatives
from estimand.settings import checked_names


@checked_names
def differentiable(
    program: ExpectationProgram,
    method: Method | None = None,
    *,
    rng_key: int | jax.Array = 0,
    precision: str = "double",
    executor: Executor | None = None,
) -> Callable[..., Any]:
    """The expectation of a program as a function of its arguments, which `jax.grad` takes.

    The derivative is found with the draws of the estimate. Every call has the same random key, so
    that an optimiser sees one smooth function. Value and derivative raise `EstimationError` where
    they cannot be trusted. It cannot be called within ``jax.jit`` or ``jax.vmap``, and has first
    derivatives only.

    Args:
        program: an expectation program. Its arguments that are floats, or arrays of them, can be
            differentiated by.
        method: as in `estimate_expectation`.
        rng_key: an int or a JAX key.
        precision: as in `estimate_expectation`.
        executor: as in `estimate_expectation`.

    Examples:
        >>> mean_cube = ep.differentiable(program)
        >>> abs(float(jax.grad(mean_cube)(2.0)) - 2.25) < 0.05  # of y³/8 + 3y/4
        True
    """
    if not isinstance(program, ExpectationProgram):
        raise TypeError(f"differentiable: expected an expectation program, got {program!r}.")
    key = as_key(rng_key)
    options: dict[str, Any] = {"rng_key": key, "precision": precision, "executor": executor}

    def function(*args: Any, **kwargs: Any) -> Any:
        leaves, treedef = jax.tree.flatten((args, kwargs))
        places = [k for k, leaf in enumerate(leaves) if _is_real(leaf)]

        def estimated(floats: list[Any]) -> Estimate:
            if any(isinstance(x, jax.core.Tracer) for x in floats):
                raise ProgramError(
                    f"differentiable: the arguments of {program.name!r} are traced by JAX: call it "
                    "outside of jit and vmap. It has first derivatives only."
                )
            filled = list(leaves)
            for place, x in zip(places, floats, strict=True):
                filled[place] = np.asarray(x)
            own_args, own_kwargs = jax.tree.unflatten(treedef, filled)
            return estimate_expectation(program(*own_args, **own_kwargs), method, **options)

        @jax.custom_vjp
        def value(*floats: jax.Array) -> Any:
            return _as_arrays(estimated(list(floats)))

        def forward(*floats: Any) -> tuple[Any, tuple]:
            estimate = estimated([x.value for x in floats])
            wanted = [k for k, x in zip(places, floats, strict=True) if x.perturbed]
            slopes = _slopes(estimate, wanted)
            zeros = tuple(jnp.zeros_like(x.value) for x in floats)
            numbers = [places.index(k) for k in wanted]
            return _as_arrays(estimate), (slopes, zeros, tuple(numbers))

        def backward(kept: tuple, cotangent: Any) -> tuple:
            slopes, zeros, numbers = kept
            weights = np.concatenate(
                [np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(cotangent)]
            )
            found = list(zeros)
            for number, own in zip(numbers, zip(*slopes, strict=True), strict=True):
                total = sum(w * slope for w, slope in zip(weights, own, strict=True))
                found[number] = jnp.asarray(total, zeros[number].dtype)
            return tuple(found)

        value.defvjp(forward, backward, symbolic_zeros=True)
        return value(*(jnp.asarray(leaves[place]) for place in places))

    return function


def _is_real(leaf: Any) -> bool:
    if isinstance(leaf, bool | int) or not isinstance(
        leaf, float | np.ndarray | np.generic | jax.Array
    ):
        return False
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def _as_arrays(estimate: Estimate) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(float)), estimate.value)


def _slopes(estimate: Estimate, leaves: list[int]) -> tuple[tuple[np.ndarray, ...], ...]:
    """For every output its derivatives by some leaves of the program's arguments."""
    assert estimate.question is not None
    bound: Any = estimate.question.expectation
    if not isinstance(bound, Expectation):
        raise ProgramError(
            f"differentiable: program {estimate.program!r} branches; its density is no function "
            "of its arguments that JAX can differentiate."
        )
    data = bound.data
    missing = [leaf for leaf in leaves if not data.is_array[leaf]]
    if missing:
        raise ProgramError(
            f"differentiable: program {estimate.program!r} needs the value of an argument as a "
            "Python number, and cannot be differentiated by it."
        )
    places = np.cumsum(data.is_array) - 1
    wanted = [(f"argument {leaf}", int(places[leaf])) for leaf in leaves]
    with in_precision(estimate.precision), cache_on_disk():
        density = Density.of(bound)
        found = [
            derivatives(density, output, number, wanted)
            for number, output in enumerate(estimate.outputs)
        ]
    weak: list[Derivative] = [item for each in found for item in each if not item.status]
    if weak:
        raise EstimationError(_refused(estimate, weak))
    return tuple(tuple(item.value for item in each) for each in found)


def _refused(estimate: Estimate, weak: list[Derivative]) -> Sensitivity:
    """What is wrong with derivatives, in the form in which they are shown."""
    by_name = {item.name: item for item in weak}
    name, value = estimate.names[0], estimate.outputs[0].value
    return Sensitivity(estimate.program, name, value, by_name, {}, {}, {})
