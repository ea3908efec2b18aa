"""Which programs may share compiled code: those that JAX traces to the same expression.

A program is compared by what its trace says and not by what its functions are. Whatever Python
state it depends on (globals, attributes, containers that were changed) is in the trace as numbers
and shapes, so that no list of the ways in which a function may hold state has to be complete.
"""

from __future__ import annotations

import functools
import hashlib
import os
import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.extend import core

_CALLS = ("jit", "pjit", "closed_call", "core_call")
# Functions with derivatives of their own that come from here are always the same.
_LIBRARIES = tuple(
    os.path.dirname(module.__file__) + os.sep for module in (jax, numpyro) if module.__file__
)
# How far a constant may be from what Python makes of it, in units of its precision.
_ROUNDING = 16
# Longer contents are written as a digest.
_MAX_BYTES = 64


def shared_key(jaxpr: core.ClosedJaxpr, program: Hashable, name: str) -> Hashable:
    """What a traced program is compared by: equal for equal expressions.

    An expression may hold something whose content cannot be told, such as a callback. Then it is
    compared by the program as well.
    """
    writer = _Writer()
    text = _digest(name, writer.jaxpr(jaxpr))
    return text if writer.is_complete else (program, text)


def _digest(*pieces: Any) -> str:
    return hashlib.sha256(repr(pieces).encode()).hexdigest()


class _Writer:
    """Writes expressions as text, equal for equal ones; says if all of their content is in it."""

    def __init__(self) -> None:
        self.is_complete = True
        # With the jaxprs themselves, so that no other one gets the id of one that is gone.
        self._known: dict[int, tuple[Any, str]] = {}

    def jaxpr(self, closed: Any) -> str:
        if id(closed) in self._known:
            return self._known[id(closed)][1]
        jaxpr, values = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
        numbers: dict[Any, int] = {}

        def number(variable: Any) -> tuple:
            return numbers.setdefault(variable, len(numbers)), _text_of_aval(variable.aval)

        def atom(operand: Any) -> Any:
            is_literal = isinstance(operand, core.Literal)
            return self.literal(operand) if is_literal else number(operand)

        pieces: list[Any] = [[number(variable) for variable in (*jaxpr.invars, *jaxpr.constvars)]]
        pieces.append([self.array(value) for value in values])
        for equation in jaxpr.eqns:
            operands, results = map(atom, equation.invars), map(number, equation.outvars)
            step = (equation.primitive.name, self.params(equation))
            pieces.append((*step, list(operands), list(results)))
        pieces.append([atom(operand) for operand in jaxpr.outvars])
        text = _digest(pieces)
        self._known[id(closed)] = (closed, text)
        return text

    def params(self, equation: Any) -> list[tuple[str, Any]]:
        params = dict(equation.params)
        functions = [key for key, value in params.items() if _is_function(value)]
        if functions and not _is_of_library(params.get("call_jaxpr")):
            self.is_complete = False
        if "callback" in equation.primitive.name:
            functions, self.is_complete = list(params), False
        return [(key, self.param(params[key])) for key in sorted(params) if key not in functions]

    def param(self, value: Any) -> Any:
        if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
            return self.jaxpr(value)
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return self.array(value)
        if isinstance(value, tuple | list):
            return type(value).__name__, [self.param(item) for item in value]
        if isinstance(value, dict):
            return [(str(key), self.param(value[key])) for key in value]
        text = str(value)
        if " at 0x" in text:
            self.is_complete, text = False, ""
        return type(value).__name__, text

    def literal(self, literal: Any) -> Any:
        return "literal", _text_of_aval(literal.aval), self.array(literal.val)

    def array(self, value: Any) -> Any:
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return str(value.dtype), self.array(jax.random.key_data(value))
        known = bool | int | float | complex | np.ndarray | np.generic | jax.Array
        if isinstance(value, jax.core.Tracer) or not isinstance(value, known):
            self.is_complete = False
            return type(value).__name__
        array = np.asarray(value)
        if array.dtype.hasobject:
            self.is_complete = False
        content = array.tobytes()
        is_short = len(content) <= _MAX_BYTES
        text = content if is_short else hashlib.sha256(content).hexdigest()
        return str(array.dtype), array.shape, text


def _is_function(value: Any) -> bool:
    kinds = (types.FunctionType, types.MethodType, functools.partial)
    return isinstance(value, kinds) or hasattr(value, "call_wrapped")


def _is_of_library(closed: Any) -> bool:
    debug_info = getattr(getattr(closed, "jaxpr", closed), "debug_info", None)
    source = str(getattr(debug_info, "func_src_info", ""))
    return source.partition(" at ")[2].startswith(_LIBRARIES)


def _text_of_aval(aval: Any) -> str:
    return f"{aval}{getattr(aval, 'weak_type', False)}"


# --- whether a program is the same with its constants as arguments ---


class _Fixed:
    """A value that depends on constants alone; computed only where it must be."""

    def __init__(self, text: Any, compute: Callable[[], Any], is_lifted: bool):
        self.text, self._compute, self.is_lifted = text, compute, is_lifted

    @property
    def value(self) -> np.ndarray:
        return np.asarray(self._compute())

    def agrees(self, other: _Fixed) -> bool:
        if not self.is_lifted and not other.is_lifted:
            return self.text == other.text
        one, two = self.value, other.value
        if one.dtype != two.dtype or one.shape != two.shape:
            return False
        if not jnp.issubdtype(one.dtype, jnp.floating):
            return np.array_equal(one, two)
        slack = _ROUNDING * float(jnp.finfo(one.dtype).eps)
        return np.allclose(one.astype(float), two.astype(float), slack, 0.0, equal_nan=True)


class _Steps:
    """The equations of an expression that depend on its inputs, with its calls written out."""

    def __init__(self, closed: core.ClosedJaxpr, constants: tuple[Any, ...]):
        self.steps: list[tuple] = []
        self._count = 0
        self.writer = _Writer()
        num_inputs = len(closed.jaxpr.invars) - len(constants)
        inputs = [self._new() for _ in range(num_inputs)]
        lifted = [_Fixed(None, functools.partial(np.asarray, value), True) for value in constants]
        self.outputs = self._inline(closed, [*inputs, *lifted])

    def _new(self) -> int:
        self._count += 1
        return self._count

    def _inline(self, closed: Any, inputs: Iterable[Any]) -> list[Any]:
        jaxpr, values = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
        places: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        for variable, value in zip(jaxpr.constvars, values, strict=True):
            compute = functools.partial(np.asarray, value)
            places[variable] = _Fixed(self.writer.array(value), compute, False)

        def place(atom: Any) -> Any:
            if not isinstance(atom, core.Literal):
                return places[atom]
            compute = functools.partial(np.asarray, atom.val, jnp.result_type(atom.aval))
            return _Fixed(self.writer.literal(atom), compute, False)

        for equation in jaxpr.eqns:
            operands = [place(atom) for atom in equation.invars]
            inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            if equation.primitive.name in _CALLS and inner is not None:
                results = self._inline(inner, operands)
            elif all(isinstance(operand, _Fixed) for operand in operands):
                results = self._fixed(equation, operands)
            else:
                results = [self._new() for _ in equation.outvars]
                params = self.writer.params(equation)
                self.steps.append((equation.primitive.name, params, operands))
            places.update(zip(equation.outvars, results, strict=True))
        return [place(atom) for atom in jaxpr.outvars]

    def _fixed(self, equation: Any, operands: list[_Fixed]) -> list[_Fixed]:
        is_lifted = any(operand.is_lifted for operand in operands)
        text: Any = None
        if not is_lifted:
            params = self.writer.params(equation)
            texts = [operand.text for operand in operands]
            text = _digest(equation.primitive.name, params, texts)
        computed: list[Any] = []

        def compute(index: int) -> Any:
            if not computed:
                computed.extend(_apply(equation, [operand.value for operand in operands]))
            return computed[index]

        return [
            _Fixed((text, k), functools.partial(compute, k), is_lifted)
            for k in range(len(equation.outvars))
        ]


def _apply(equation: Any, values: list[Any]) -> list[Any]:
    params = equation.primitive.get_bind_params(equation.params)
    # Some JAX releases give a call's functions apart from its parameters.
    functions, params = params if isinstance(params, tuple) else ((), params)
    result = equation.primitive.bind(*functions, *map(jnp.asarray, values), **params)
    return list(result) if equation.primitive.multiple_results else [result]


def is_same_with_arguments(
    written: core.ClosedJaxpr, lifted: core.ClosedJaxpr, constants: tuple[jax.Array, ...]
) -> bool:
    """Whether an expression with constants as its last inputs is the one with them written in.

    It is another one where the program looks at the type of a constant, or where Python computes
    with it in a precision that JAX does not have.
    """
    one, other = _Steps(written, ()), _Steps(lifted, constants)
    if not (one.writer.is_complete and other.writer.is_complete):
        return False
    if len(one.steps) != len(other.steps):
        return False
    pairs = zip(one.steps, other.steps, strict=True)
    is_same = all(a[:2] == b[:2] and _agree(a[2], b[2]) for a, b in pairs)
    return is_same and _agree(one.outputs, other.outputs)


def _agree(operands: list[Any], others: list[Any]) -> bool:
    return len(operands) == len(others) and all(
        a.agrees(b) if isinstance(a, _Fixed) and isinstance(b, _Fixed) else a == b
        for a, b in zip(operands, others, strict=True)
    )
