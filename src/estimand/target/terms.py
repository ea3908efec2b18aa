"""The terms of sums, each of which is explored on its own: the bulk of one hides the others.

A return expression such as 1 + 1e9·all(x > 1.5) is read as a sum of pieces. So is a density whose
logarithm is a log-sum-exp of a few terms: what each of these has of the whole is a piece, too.
Pieces of an event that comes about in several ways are these ways; they need not add up to it,
because pieces only say where to look.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.extend.source_info_util import summarize

from estimand.target import intervals
from estimand.target.expression import Flat, Step, is_event

# Pieces of one expression, at the most: a sum of more is explored as a whole.
MAX_PIECES = 8
# All pieces together, at the most.
MAX_ALL_PIECES = 128

Environment = dict[int, Any]
Element = tuple[int, ...] | None
"""The index of one element of an array; None is the whole array."""


class Look(NamedTuple):
    """A piece that is explored on its own.

    `output` is the number of the output that it is a term of, None for a term of the density;
    `text` says what messages call it.
    """

    output: int | None
    text: str


class _Piece(NamedTuple):
    """A term: how to compute it from all variables, and the step that makes it."""

    value: Callable[[Environment], Any]
    source: Step | None = None
    is_constant: bool = False


def with_pieces(
    closed: core.ClosedJaxpr, num_varying: int, log_densities: Sequence[int]
) -> tuple[core.ClosedJaxpr, tuple[Look, ...]]:
    """The same expression with its pieces behind its outputs, and what they are.

    Args:
        closed: an expression whose last result is a vector of outputs.
        num_varying: how many of its inputs vary.
        log_densities: the places of scalar log densities among its results.
    """
    flat = Flat(closed)
    splitter = _Splitter(flat, num_varying)
    found = [
        (Look(output, _where(piece)), piece)
        for output in range(flat.avals[flat.outputs[-1]].shape[0])
        for piece in splitter.terms(flat.outputs[-1], (output,))
    ]
    for place in log_densities:
        pieces = splitter.shares(flat.outputs[place])
        found += [
            (Look(None, f"a term of the density, {_where(piece)}"), piece) for piece in pieces
        ]
    if not found:
        return closed, ()
    looks, pieces = zip(*found[:MAX_ALL_PIECES], strict=True)
    return _extended(closed, flat, pieces), looks


def _where(piece: _Piece) -> str:
    """The line of the program that makes a piece."""
    equation = getattr(piece.source, "equation", None)
    text = "" if equation is None else summarize(equation.source_info)
    path, _, line = text.partition(":")
    return f"line {line.split(':')[0]} of {path.rsplit('/', 1)[-1]}" if line else "a term"


def _extended(closed: core.ClosedJaxpr, flat: Flat, pieces: Sequence[_Piece]) -> core.ClosedJaxpr:
    def evaluate(*values: Any) -> list[Any]:
        known: Environment = {**flat.constants, **dict(zip(flat.inputs, values, strict=True))}
        env = _Lazy(flat, known)
        *others, outputs = [env[index] for index in flat.outputs]
        more = [jnp.reshape(jnp.asarray(piece.value(env), outputs.dtype), (1,)) for piece in pieces]
        return [*others, jnp.concatenate([outputs, *more])]

    structs = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
        for aval in closed.in_avals
    ]
    return jax.make_jaxpr(evaluate)(*structs)


class _Lazy(dict):
    """Variables by number, each computed when it is first asked for."""

    def __init__(self, flat: Flat, known: Environment) -> None:
        super().__init__(known)
        self._made_by = {out: step for step in flat.steps for out in step.outputs}

    def __missing__(self, index: int) -> Any:
        waiting = [self._made_by[index]]
        while waiting:
            step = waiting[-1]
            lacking = [self._made_by[i] for i in step.inputs if i not in self]
            if lacking:
                waiting.extend(lacking)
                continue
            waiting.pop()
            operands = [self[i] for i in step.inputs]
            self.update(zip(step.outputs, step.apply(*operands), strict=True))
        return self[index]


def _read(index: int, element: Element, env: Environment) -> Any:
    return env[index] if element is None else env[index][element]


class _Splitter:
    """Splits variables of an expression into pieces."""

    def __init__(self, flat: Flat, num_varying: int) -> None:
        self.flat = flat
        self.made_by = {out: step for step in flat.steps for out in step.outputs}
        self.varies = set(flat.inputs[:num_varying])
        for step in flat.steps:
            if not self.varies.isdisjoint(step.inputs):
                self.varies.update(step.outputs)

    def terms(self, index: int, element: Element) -> list[_Piece]:
        """The terms of a sum that vary; none if it has only one and no constant beside it."""
        pieces = self.pieces(index, element)
        moving = [piece for piece in pieces if not piece.is_constant]
        return moving if len(pieces) > 1 else []

    def shares(self, index: int) -> list[_Piece]:
        """What each term of a log-sum-exp in a log density has of the whole."""
        found = []
        for total, parts in self._log_sums(index, ()):
            for part in parts:
                share = functools.partial(_share, part, total)
                found.append(_Piece(share, self.made_by.get(total.args[0])))
        return found if len(found) <= MAX_PIECES else []

    def shape(self, index: int) -> tuple[int, ...]:
        return self.flat.avals[index].shape

    def pieces(self, index: int, element: Element) -> list[_Piece]:
        step = self.made_by.get(index)
        whole = _Piece(functools.partial(_read, index, element), step, index not in self.varies)
        if whole.is_constant or step is None or step.is_internal:
            return [whole]
        if step.name == "clamp":
            return self.pieces(step.shadows[0], element)
        rule = _RULES.get(step.name)
        found = rule(self, step, element) if rule and not step.shadows else None
        if found is None or not 1 < len(found) <= MAX_PIECES:
            return [whole]
        if element is not None:
            return found
        # Of "x + 1" one term is a scalar, whatever the shape of x is.
        spread = functools.partial(jnp.broadcast_to, shape=self.shape(index))
        return _mapped(spread, found)

    def place(self, index: int, element: Element) -> Element:
        """The element of an operand that goes into one of the result: axes of size 1 are spread."""
        if element is None:
            return None
        shape = self.shape(index)
        return tuple(0 if size == 1 else k for k, size in zip(element, shape, strict=False))

    def operand(self, index: int, element: Element) -> list[_Piece]:
        """The pieces of an operand."""
        return self.pieces(index, self.place(index, element))

    def reading(self, index: int, element: Element) -> Callable[[Environment], Any]:
        return functools.partial(_read, index, self.place(index, element))

    def source_of(self, step: Step, element: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
        """The operand and its element that a step which only moves elements puts at a place."""
        numbers, start = [], 0
        for index in step.inputs:
            count = math.prod(self.shape(index))
            numbers.append(np.arange(start, start + count, dtype=float).reshape(self.shape(index)))
            start += count
        moved = intervals.moved(
            step.name,
            step.params,
            numbers,
            [self.flat.avals[index] for index in step.inputs],
            self.flat.avals[step.outputs[0]],
        )
        if moved is None:
            return None
        place = int(moved[element])
        for index, number in zip(step.inputs, numbers, strict=True):
            if place < number.size:
                return index, tuple(int(k) for k in np.unravel_index(place, number.shape))
            place -= number.size
        return None

    def reduced(self, step: Step, element: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The elements of a reduction's operand that make one element of its result."""
        shape, axes = self.shape(step.inputs[0]), step.params["axes"]
        kept = iter(element)
        ranges = [range(size) if k in axes else (next(kept),) for k, size in enumerate(shape)]
        return list(itertools.product(*ranges))

    def _log_sums(self, index: int, element: tuple[int, ...]) -> list[tuple[Any, list[Any]]]:
        """Sums in a log density that are log-sum-exps: each with its terms, as readings."""
        step = self.made_by.get(index)
        if step is None or index not in self.varies:
            return []
        read = functools.partial(functools.partial, _read)
        if str(step.params.get("name", "")) == "logaddexp" or _is_logaddexp(step):
            parts = [self.reading(i, element) for i in step.inputs]
            return [(read(index, element), parts)]
        if terms := self._logsumexp(step, element):
            return [(read(index, element), [read(*term) for term in terms])]
        if step.name in ("add", "sub", "add_any"):
            return [
                found
                for i in step.inputs[: 1 if step.name == "sub" else 2]
                for found in self._log_sums(i, self.place(i, element) or ())
            ]
        if step.name == "select_n":
            cases = [i for i in step.inputs[1:] if i in self.varies]
            return self._log_sums(cases[0], element) if len(cases) == 1 else []
        if step.name == "reduce_sum":
            elements = self.reduced(step, element)
            return self._log_sums(step.inputs[0], elements[0]) if len(elements) == 1 else []
        if step.name in ("convert_element_type", "copy"):
            return self._log_sums(step.inputs[0], element)
        if step.name in _MOVES and (source := self.source_of(step, element)):
            return self._log_sums(*source)
        return []

    def _logsumexp(self, step: Step, element: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
        """The terms of log Σ exp, as JAX writes it: the largest term is taken out and added."""
        steps = [self.made_by.get(i) for i in step.inputs]
        logs = [s for s in steps if s is not None and s.name == "log"]
        if step.name != "add" or len(logs) != 1:
            return []
        total = self.made_by.get(logs[0].inputs[0])
        if total is not None and total.name == "abs":
            total = self.made_by.get(total.inputs[0])
        if total is None or total.name != "reduce_sum":
            return []
        exponential = self.made_by.get(total.inputs[0])
        if exponential is None or exponential.name != "exp":
            return []
        shifted = self.made_by.get(exponential.inputs[0])
        if shifted is None or shifted.name != "sub":
            return []
        place = element if self.shape(total.outputs[0]) == self.shape(step.outputs[0]) else ()
        elements = self.reduced(total, place)
        has_few = 1 < len(elements) <= MAX_PIECES
        return [(shifted.inputs[0], one) for one in elements] if has_few else []


def _is_logaddexp(step: Step) -> bool:
    if step.name != "custom_jvp_call" or len(step.inputs) != 2:
        return False
    inner = step.params["call_jaxpr"]
    return {"max", "exp", "log1p"} <= {equation.primitive.name for equation in inner.eqns}


def _share(part: Callable, total: Callable, env: Environment) -> Any:
    return jnp.exp(part(env) - total(env))


# --- rules: the pieces of a step's result, None if it is not a sum ---


def _add(splitter: _Splitter, step: Step, element: Element) -> list[_Piece]:
    return [piece for index in step.inputs for piece in splitter.operand(index, element)]


def _union(splitter: _Splitter, step: Step, element: Element) -> list[_Piece] | None:
    is_logical = is_event(splitter.flat.avals[step.outputs[0]])
    return _add(splitter, step, element) if is_logical else None


def _sub(splitter: _Splitter, step: Step, element: Element) -> list[_Piece]:
    first, second = (splitter.operand(index, element) for index in step.inputs)
    return [*first, *_mapped(jnp.negative, second)]


def _neg(splitter: _Splitter, step: Step, element: Element) -> list[_Piece]:
    return _mapped(jnp.negative, splitter.operand(step.inputs[0], element))


def _product(splitter: _Splitter, step: Step, element: Element) -> list[_Piece] | None:
    is_both = step.name == "and"
    if is_both and not is_event(splitter.flat.avals[step.outputs[0]]):
        return None
    combine = jnp.logical_and if is_both else jnp.multiply
    first, second = (splitter.operand(index, element) for index in step.inputs)
    if len(first) * len(second) > MAX_PIECES:
        return None
    return [_combined(combine, one, other, step) for one in first for other in second]


def _quotient(splitter: _Splitter, step: Step, element: Element) -> list[_Piece]:
    divisor = _Piece(
        splitter.reading(step.inputs[1], element), step, step.inputs[1] not in splitter.varies
    )
    return [
        _combined(jnp.divide, piece, divisor, step)
        for piece in splitter.operand(step.inputs[0], element)
    ]


def _choice(splitter: _Splitter, step: Step, element: Element) -> list[_Piece] | None:
    """where(c, a, b) is 1[c]·a + 1[not c]·b; cases that are 0 are no pieces."""
    which, *cases = step.inputs
    flag = splitter.reading(which, element)
    pieces = []
    for number, index in enumerate(cases):
        if _is_constant(splitter, index, lambda value: bool(np.all(value == 0))):
            continue
        if _is_constant(splitter, index, lambda value: not np.isfinite(value).all()):
            return None
        for piece in splitter.operand(index, element):
            value = functools.partial(_chosen, flag, number, len(cases), piece.value)
            pieces.append(_Piece(value, piece.source or step, False))
    return pieces


def _chosen(flag: Callable, number: int, count: int, value: Callable, env: Environment) -> Any:
    which, piece = flag(env), jnp.asarray(value(env))
    shape = jnp.broadcast_shapes(jnp.shape(which), piece.shape)
    piece = jnp.broadcast_to(piece, shape)
    cases = [piece if k == number else jnp.zeros_like(piece) for k in range(count)]
    return jax.lax.select_n(jnp.broadcast_to(which, shape), *cases)


def _extremum(splitter: _Splitter, step: Step, element: Element) -> list[_Piece] | None:
    """max(a, c) is c + max(a − c, 0) for a constant c; of two that vary each where it is larger."""
    is_max = step.name == "max"
    fixed = [index for index in step.inputs if index not in splitter.varies]
    if fixed:
        if _is_constant(splitter, fixed[0], lambda value: bool(np.all(value == 0))):
            return None
        if _is_constant(splitter, fixed[0], lambda value: not np.isfinite(value).all()):
            return None
        moving = next(index for index in step.inputs if index in splitter.varies)
        read, edge = splitter.reading(moving, element), splitter.reading(fixed[0], element)
        excess = functools.partial(_excess, read, edge, is_max)
        return [_Piece(edge, step, True), _Piece(excess, step)]
    reads = [splitter.reading(index, element) for index in step.inputs]
    return [
        _Piece(functools.partial(_where_extreme, reads[0], reads[1], number, is_max), step)
        for number in (0, 1)
    ]


def _excess(read: Callable, edge: Callable, is_max: bool, env: Environment) -> Any:
    difference = read(env) - edge(env)
    return jnp.maximum(difference, 0) if is_max else jnp.minimum(difference, 0)


def _where_extreme(
    first: Callable, second: Callable, number: int, is_max: bool, env: Environment
) -> Any:
    """One of two where it is the extreme; the first one where they are equal."""
    one, other = jnp.broadcast_arrays(jnp.asarray(first(env)), jnp.asarray(second(env)))
    is_first = one >= other if is_max else one <= other
    mine = (one, other)[number]
    nothing = jnp.zeros_like(mine)
    return jax.lax.select_n(is_first, *((nothing, mine) if number == 0 else (mine, nothing)))


def _is_constant(splitter: _Splitter, index: int, condition: Callable[[Any], bool]) -> bool:
    """Whether a variable is a written number, or such a one in another shape, that fulfils it."""
    while index not in splitter.flat.constants:
        step = splitter.made_by.get(index)
        if step is None or step.name not in ("broadcast_in_dim", "convert_element_type"):
            return False
        index = step.inputs[0]
    value = splitter.flat.constants[index]
    return not isinstance(value, jax.core.Tracer) and condition(np.asarray(value))


def _total(splitter: _Splitter, step: Step, element: Element) -> list[_Piece] | None:
    """A sum, or an event's "any", of few elements one by one; of many term by term."""
    operand = step.inputs[0]
    if element is not None:
        elements = splitter.reduced(step, element)
        if len(elements) <= MAX_PIECES:
            pieces = [p for one in elements for p in splitter.pieces(operand, one)]
            if len(pieces) <= MAX_PIECES:
                return pieces
    axes = step.params["axes"]
    reduce = jnp.any if step.name == "reduce_or" else jnp.sum
    return [
        piece._replace(value=functools.partial(_reduced, reduce, piece.value, axes, element))
        for piece in splitter.pieces(operand, None)
    ]


def _reduced(
    reduce: Callable, value: Callable, axes: Any, element: Element, env: Environment
) -> Any:
    result = reduce(value(env), axis=axes)
    return result if element is None else result[element]


def _inner(splitter: _Splitter, step: Step, element: Element) -> list[_Piece] | None:
    """The product of two vectors with few elements."""
    shapes = [splitter.shape(index) for index in step.inputs]
    if element != () or any(len(shape) != 1 for shape in shapes) or shapes[0][0] > MAX_PIECES:
        return None
    pieces = []
    for k in range(shapes[0][0]):
        first, second = (splitter.pieces(index, (k,)) for index in step.inputs)
        pieces += [_combined(jnp.multiply, one, other, step) for one in first for other in second]
    return pieces


def _converted(splitter: _Splitter, step: Step, element: Element) -> list[_Piece]:
    dtype = step.params["new_dtype"]
    convert = functools.partial(jnp.asarray, dtype=dtype)
    return _mapped(convert, splitter.pieces(step.inputs[0], element))


def _moved(splitter: _Splitter, step: Step, element: Element) -> list[_Piece] | None:
    if element is not None:
        source = splitter.source_of(step, element)
        return None if source is None else splitter.pieces(*source)
    if len(step.inputs) > 1:
        return None
    return _mapped(lambda value: step.apply(value)[0], splitter.pieces(step.inputs[0], None))


def _threshold(splitter: _Splitter, step: Step, element: Element) -> list[_Piece] | None:
    """The largest of a few beyond a bound, or the smallest below it: each of them."""
    side = 0 if step.name in ("gt", "ge") else 1
    if element is None:
        return None
    for extreme, place in (("max", side), ("min", 1 - side)):
        ways = _ways(splitter, step.inputs[place], element, extreme)
        if 1 < len(ways) <= MAX_PIECES:
            other = splitter.reading(step.inputs[1 - place], element)
            return [
                _Piece(functools.partial(_compared, step, place, way, other), step) for way in ways
            ]
    return None


def _compared(step: Step, place: int, way: Callable, other: Callable, env: Environment) -> Any:
    mine, bound = jnp.asarray(way(env)), jnp.asarray(other(env))
    operands = (mine, bound) if place == 0 else (bound, mine)
    return step.apply(*operands)[0]


def _ways(
    splitter: _Splitter, index: int, element: tuple[int, ...], extreme: str
) -> list[Callable[[Environment], Any]]:
    """The numbers of which a variable is the largest or the smallest."""
    place = splitter.place(index, element) or ()
    step = splitter.made_by.get(index)
    if step is not None and step.name == f"reduce_{extreme}":
        elements = splitter.reduced(step, place)
        if len(elements) <= MAX_PIECES:
            return [w for one in elements for w in _ways(splitter, step.inputs[0], one, extreme)]
    if step is not None and step.name == extreme:
        return [way for i in step.inputs for way in _ways(splitter, i, place, extreme)]
    if step is not None and step.name in _MOVES and (source := splitter.source_of(step, place)):
        return _ways(splitter, *source, extreme)
    return [functools.partial(_read, index, place)]


def _mapped(function: Callable, pieces: Iterable[_Piece]) -> list[_Piece]:
    return [
        piece._replace(value=functools.partial(_applied, function, piece.value)) for piece in pieces
    ]


def _applied(function: Callable, value: Callable, env: Environment) -> Any:
    return function(value(env))


def _combined(combine: Callable, one: _Piece, other: _Piece, step: Step) -> _Piece:
    value = functools.partial(_both, combine, one.value, other.value)
    return _Piece(value, step, one.is_constant and other.is_constant)


def _both(combine: Callable, one: Callable, other: Callable, env: Environment) -> Any:
    return combine(one(env), other(env))


_MOVES = (
    "reshape", "squeeze", "expand_dims", "transpose", "concatenate", "broadcast_in_dim", "slice",
    "stack",
)  # fmt: skip

_RULES: dict[str, Callable[[_Splitter, Step, Element], list[_Piece] | None]] = {
    "add": _add,
    "add_any": _add,
    "sub": _sub,
    "neg": _neg,
    "mul": _product,
    "and": _product,
    "or": _union,
    "div": _quotient,
    "select_n": _choice,
    "max": _extremum,
    "min": _extremum,
    "reduce_sum": _total,
    "reduce_or": _total,
    "dot_general": _inner,
    "convert_element_type": _converted,
    "gt": _threshold,
    "ge": _threshold,
    "lt": _threshold,
    "le": _threshold,
    **dict.fromkeys(_MOVES, _moved),
}
