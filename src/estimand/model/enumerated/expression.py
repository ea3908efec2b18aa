"""A traced expression as steps over numbered variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend import core

# Calls whose equations are part of the expression.
_CALLS = ("jit", "pjit", "closed_call", "core_call", "core_closed_call", "custom_lin")


class Step(NamedTuple):
    """One equation over numbered variables."""

    equation: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.equation.primitive.name

    @property
    def params(self) -> dict[str, Any]:
        return self.equation.params

    def apply(self, values: Sequence[Any]) -> list[Any]:
        primitive = self.equation.primitive
        params = primitive.get_bind_params(self.params)
        # Some JAX releases give a call's functions apart from its parameters.
        functions, params = params if isinstance(params, tuple) else ((), params)
        with self.equation.ctx.manager:
            result = primitive.bind(*functions, *values, **params)
        return list(result) if primitive.multiple_results else [result]


class Expression:
    """A jaxpr with its calls written out; variables are numbers."""

    def __init__(self, closed: Any) -> None:
        self.avals: list[Any] = []
        self.constants: dict[int, Any] = {}
        self.steps: list[Step] = []
        self.made_by: dict[int, Step] = {}
        jaxpr = getattr(closed, "jaxpr", closed)
        self.inputs = tuple(self._new(variable.aval) for variable in jaxpr.invars)
        self.outputs = self._inline(closed, self.inputs)

    def _new(self, aval: Any) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def _inline(self, closed: Any, inputs: tuple[int, ...]) -> tuple[int, ...]:
        jaxpr, constants = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
        places = dict(zip(jaxpr.invars, inputs, strict=True))
        for variable, value in zip(jaxpr.constvars, constants, strict=True):
            places[variable] = self._constant(variable.aval, value)

        def place(atom: Any) -> int:
            if isinstance(atom, core.Literal):
                return self._constant(atom.aval, np.asarray(atom.val, jnp.result_type(atom.aval)))
            return places[atom]

        for equation in jaxpr.eqns:
            operands, inner = tuple(map(place, equation.invars)), inner_of(equation)
            if equation.primitive.name in _CALLS and inner is not None:
                results = self._inline(inner, operands)
            elif (source := self._source_of_slice(equation, operands)) is not None:
                results = (source,)
            else:
                results = tuple(self._new(variable.aval) for variable in equation.outvars)
                step = Step(equation, operands, results)
                self.steps.append(step)
                self.made_by.update(dict.fromkeys(results, step))
            places.update(zip(equation.outvars, results, strict=True))
        return tuple(map(place, jaxpr.outvars))

    def _source_of_slice(self, equation: Any, operands: tuple[int, ...]) -> int | None:
        """What a slice takes from one of the vectors that were put together just before.

        Positions and labels are put together and taken apart again.
        """
        joined = self.made_by.get(operands[0]) if operands else None
        params = equation.params
        is_slice = equation.primitive.name == "slice" and len(params["start_indices"]) == 1
        if not is_slice or params["strides"] not in (None, (1,)):
            return None
        if joined is None or joined.name != "concatenate":
            return None
        (start,), (stop,) = params["start_indices"], params["limit_indices"]
        for part in joined.inputs:
            (size,) = self.avals[part].shape
            if start >= 0 and stop <= size:
                return self._slice(equation, part, start, stop, size)
            start, stop = start - size, stop - size
        return None

    def _slice(self, equation: Any, part: int, start: int, stop: int, size: int) -> int:
        if (start, stop) == (0, size):
            return part
        bounds = {"start_indices": (start,), "limit_indices": (stop,)}
        result = self._new(equation.outvars[0].aval)
        step = Step(equation.replace(params={**equation.params, **bounds}), (part,), (result,))
        self.steps.append(step)
        self.made_by[result] = step
        return result

    def _constant(self, aval: Any, value: Any) -> int:
        index = self._new(aval)
        self.constants[index] = value
        return index

    def steps_to(self, wanted: Sequence[int], known: Any = ()) -> list[Step]:
        """The steps that are needed for some variables if others are known."""
        needed, found = set(wanted) - set(known), []
        for step in reversed(self.steps):
            if not needed.isdisjoint(step.outputs):
                needed.update(place for place in step.inputs if place not in known)
                found.append(step)
        return found[::-1]


def run(steps: Sequence[Step], values: dict[int, Any]) -> dict[int, Any]:
    """The values of variables, with those that the steps compute."""
    values = dict(values)
    for step in steps:
        results = step.apply([values[place] for place in step.inputs])
        values.update(zip(step.outputs, results, strict=True))
    return values


def inner_of(equation: Any) -> Any:
    """The equations of a call, if it is one."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if key in equation.params:
            return equation.params[key]
    return None
