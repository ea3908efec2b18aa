"""Which programs may share compiled code: those that JAX traces to the same expression.

A program is compared by what its trace says and not by what its functions are. Whatever Python
state it depends on (globals, attributes, containers that were changed) is in the trace as numbers
and shapes, so that no list of the ways in which a function may hold state has to be complete.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
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


class UnknownContentError(Exception):
    """An expression holds something whose content cannot be told, such as a callback."""


def digest_of(jaxpr: core.ClosedJaxpr, *labels: str) -> str | None:
    """A digest of a traced expression, equal for equal ones; None if its content is unknown."""
    try:
        return _digest(labels, _text_of_jaxpr(jaxpr, {}))
    except UnknownContentError:
        return None


def _digest(*pieces: Any) -> str:
    return hashlib.sha256(repr(pieces).encode()).hexdigest()


def _text_of_jaxpr(closed: Any, known: dict[int, Any]) -> str:
    """A digest of a jaxpr; `known` are those of jaxprs that were met before."""
    if id(closed) in known:
        return known[id(closed)][1]
    jaxpr, values = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
    numbers: dict[Any, int] = {}

    def number(variable: Any) -> tuple:
        return numbers.setdefault(variable, len(numbers)), _text_of_aval(variable.aval)

    def atom(operand: Any) -> Any:
        return _text_of_literal(operand) if isinstance(operand, core.Literal) else number(operand)

    pieces: list[Any] = [[number(variable) for variable in (*jaxpr.invars, *jaxpr.constvars)]]
    pieces.append([_text_of_array(value) for value in values])
    for equation in jaxpr.eqns:
        operands, results = map(atom, equation.invars), map(number, equation.outvars)
        params = _text_of_params(equation, known)
        pieces.append((equation.primitive.name, params, list(operands), list(results)))
    pieces.append([atom(operand) for operand in jaxpr.outvars])
    text = _digest(pieces)
    # The jaxpr is kept along, so that no other one gets its id.
    known[id(closed)] = (closed, text)
    return text


def _text_of_params(equation: Any, known: dict[int, Any]) -> list[tuple[str, Any]]:
    name, params = equation.primitive.name, equation.params
    if "callback" in name:
        raise UnknownContentError(name)
    if name.startswith("custom_") and any(map(callable, params.values())):
        if not _is_of_library(params.get("call_jaxpr")):
            raise UnknownContentError(name)
        params = {key: value for key, value in params.items() if not callable(value)}
    return [(key, _text_of_param(params[key], known)) for key in sorted(params)]


def _is_of_library(closed: Any) -> bool:
    debug_info = getattr(getattr(closed, "jaxpr", closed), "debug_info", None)
    source = str(getattr(debug_info, "func_src_info", ""))
    return source.partition(" at ")[2].startswith(_LIBRARIES)


def _text_of_param(value: Any, known: dict[int, Any]) -> Any:
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        return _text_of_jaxpr(value, known)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _text_of_array(value)
    if isinstance(value, tuple | list):
        return type(value).__name__, [_text_of_param(item, known) for item in value]
    if isinstance(value, dict):
        return [(str(key), _text_of_param(value[key], known)) for key in value]
    text = str(value)
    if " at 0x" in text or " object at " in text:
        raise UnknownContentError(text)
    return type(value).__name__, text


def _text_of_aval(aval: Any) -> str:
    return f"{aval}{getattr(aval, 'weak_type', False)}"


def _text_of_literal(literal: Any) -> Any:
    return "literal", _text_of_aval(literal.aval), _text_of_array(literal.val)


def _text_of_array(value: Any) -> Any:
    if isinstance(value, jax.core.Tracer):
        raise UnknownContentError(str(value))
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return str(value.dtype), _text_of_array(jax.random.key_data(value))
    if not isinstance(value, bool | int | float | complex | np.ndarray | np.generic | jax.Array):
        raise UnknownContentError(str(value))
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise UnknownContentError(str(value))
    content = array.tobytes()
    return (
        str(array.dtype),
        array.shape,
        content if len(content) <= 64 else hashlib.sha256(content).hexdigest(),
    )


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
        self._known: dict[int, Any] = {}
        num_inputs = len(closed.jaxpr.invars) - len(constants)
        inputs = [self._new() for _ in range(num_inputs)]
        lifted = [_Fixed(None, lambda value=value: value, True) for value in constants]
        self.outputs = self._inline(closed, [*inputs, *lifted])

    def _new(self) -> int:
        self._count += 1
        return self._count

    def _inline(self, closed: Any, inputs: Iterable[Any]) -> list[Any]:
        jaxpr, values = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
        places: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        for variable, value in zip(jaxpr.constvars, values, strict=True):
            places[variable] = _Fixed(_text_of_array(value), lambda value=value: value, False)

        def place(atom: Any) -> Any:
            if not isinstance(atom, core.Literal):
                return places[atom]
            dtype = atom.aval.dtype
            return _Fixed(_text_of_literal(atom), lambda: np.asarray(atom.val).astype(dtype), False)

        for equation in jaxpr.eqns:
            operands = [place(atom) for atom in equation.invars]
            inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            if equation.primitive.name in _CALLS and inner is not None:
                results = self._inline(inner, operands)
            elif all(isinstance(operand, _Fixed) for operand in operands):
                results = self._fixed(equation, operands)
            else:
                results = [self._new() for _ in equation.outvars]
                params = _text_of_params(equation, self._known)
                self.steps.append((equation.primitive.name, params, operands))
            places.update(zip(equation.outvars, results, strict=True))
        return [place(atom) for atom in jaxpr.outvars]

    def _fixed(self, equation: Any, operands: list[_Fixed]) -> list[_Fixed]:
        is_lifted = any(operand.is_lifted for operand in operands)
        text: Any = None
        if not is_lifted:
            params = _text_of_params(equation, self._known)
            texts = [operand.text for operand in operands]
            text = _digest(equation.primitive.name, params, texts)
        computed: list[Any] = []

        def compute(index: int) -> Any:
            if not computed:
                computed.extend(_apply(equation, [operand.value for operand in operands]))
            return computed[index]

        return [
            _Fixed((text, k), lambda k=k: compute(k), is_lifted)
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
    try:
        one, other = _Steps(written, ()), _Steps(lifted, constants)
        return len(one.steps) == len(other.steps) and all(
            a[:2] == b[:2] and _agree(a[2], b[2])
            for a, b in zip(
                [*one.steps, ("outputs", (), one.outputs)],
                [*other.steps, ("outputs", (), other.outputs)],
                strict=True,
            )
        )
    except UnknownContentError:
        return False


def _agree(operands: list[Any], others: list[Any]) -> bool:
    return len(operands) == len(others) and all(
        a.agrees(b) if isinstance(a, _Fixed) and isinstance(b, _Fixed) else a == b
        for a, b in zip(operands, others, strict=True)
    )
