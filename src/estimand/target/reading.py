"""What a return expression says about itself: sign, log-magnitude and softened comparisons.

`read` traces a function once. Its `Reading` evaluates the outputs as sign and log-magnitude
(`Reading.lifted`), which neither under- nor overflow and have derivatives where the plain value is
0.0 or inf in floating point, and with every comparison softened (`Reading.softened`): a smooth
path that leads into an event which no draw has met. Nothing in it knows of models; the program's
expression is a jaxpr here.

The expression is flattened into steps. Three layers evaluate them: plain values as JAX has them,
over these the scaled numbers that plain values cannot hold, and over these what softening changes.
A layer holds only what differs from the one below it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from estimand.settings import checked_names
from estimand.target import scaled
from estimand.target.expression import (
    COMPARISONS,
    EQUALITIES,
    FLAT,
    LOOPS,
    Plan,
    Step,
    analyse,
    cuts,
    element_inputs,
    has_exponential,
    has_float_jump,
    has_jump,
    has_number_rule,
    has_slope,
    is_event,
    is_float,
    is_nan_test,
)
from estimand.target.intervals import Interval
from estimand.target.scaled import EVENT_RULES, NUMBER_RULES, SOURCES, STRUCTURAL, Event, Scaled
from estimand.target.terms import Look, with_pieces

# Steps that keep the elements in their order, if there are as many as before.
_IN_ORDER = ("reshape", "broadcast_in_dim", "squeeze", "expand_dims", "convert_element_type")


class SignedLog(NamedTuple):
    """sign · exp(log_abs); 0 has sign 0 and log_abs −inf."""

    sign: jax.Array
    log_abs: jax.Array

    @classmethod
    def of(cls, number: Scaled) -> SignedLog:
        log_abs = scaled.log_abs(number)
        sign = jnp.where(log_abs == -jnp.inf, 0.0, jnp.sign(number.mantissa))
        return cls(sign.astype(log_abs.dtype), log_abs)


@checked_names
def event(margin: Any) -> jax.Array:
    """The event that a margin is positive, as a boolean.

    The same as ``margin > 0``. It is the way to write an event whose comparison is hidden, in a
    loop or a callback, from the estimators that soften comparisons: compute there how far the
    event is from happening, and call `event` on it outside.

    Args:
        margin: real floating-point array; positive where the event happens, and the more negative
            the farther it is from happening.

    Examples:
        >>> @ep.expectation
        ... def ruin():
        ...     steps = numpyro.sample("steps", dist.Normal(jnp.full(20, 0.1), 1.0).to_event(1))
        ...     lowest = jax.lax.reduce_min(jnp.cumsum(steps), (0,))
        ...     return ep.event(-15.0 - lowest)
        >>> ruin()
        <expectation of ruin: 1 output, 1 latent site (steps)>
    """
    array = jnp.asarray(margin)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"event: margin must be a real floating-point array; its dtype is {array.dtype}. Give "
            "the distance from the event instead of whether it happens."
        )
    return array > 0


def read(
    function: Callable[..., tuple[Any, jax.Array]],
    *args: Any,
    has_looks: bool = False,
    log_densities: tuple[int, ...] = (),
) -> Reading:
    """Traces a function and analyses its outputs.

    Args:
        function: gives a pair: anything (a pytree of arrays, evaluated along), and the vector of
            outputs that is read.
        args: pytrees of arrays or of `jax.ShapeDtypeStruct`. The first one varies; the others are
            data, and a comparison that depends on them alone is left as it is.
        has_looks: with the terms of sums behind the outputs; see `Reading.looks`.
        log_densities: the places of scalar log densities among the leaves of the first of the pair,
            whose terms are looked at, too.
    """
    jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    outputs = shapes[1]
    if len(outputs.shape) != 1 or not jnp.issubdtype(outputs.dtype, jnp.floating):
        raise TypeError(
            "read: the function must give a pair of anything and a vector of floating-point "
            f"outputs; the second of the pair has shape {outputs.shape}, dtype {outputs.dtype}."
        )
    num_varying = len(jax.tree.leaves(args[0])) if args else 0
    looks: tuple[Look, ...] = ()
    if has_looks:
        jaxpr, looks = with_pieces(jaxpr, num_varying, log_densities)
    return Reading(
        jaxpr,
        jax.tree.structure(args),
        jax.tree.structure(shapes[0]),
        num_varying,
        looks,
        analyse(jaxpr, num_varying),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """A traced expression and what is known of it; static under jit, compared by identity.

    `looks` are the terms of sums that stand behind the outputs, as further ones.
    """

    jaxpr: core.ClosedJaxpr
    inputs: Any
    auxiliary: Any
    num_varying: int
    looks: tuple[Look, ...]
    _plan: Plan = dataclasses.field(repr=False)

    @property
    def has_comparisons(self) -> bool:
        """Whether the outputs have comparisons that can be softened."""
        return self.num_margins > 0

    @property
    def has_loops(self) -> bool:
        """Whether anything behind the outputs is a loop or a callback."""
        return any(step.name in LOOPS for step in self._plan.steps)

    @property
    def has_exponentials(self) -> bool:
        """Whether anything behind the outputs grows like an exponential, or may."""
        return any(map(has_exponential, self._plan.steps))

    @property
    def num_margins(self) -> int:
        """Length of the vector of `margins`."""
        return self._plan.num_margins

    @property
    def needs_lifting(self) -> bool:
        """Whether `lifted` is more than the logarithm of the plain outputs."""
        return self._plan.needs_lifting

    @functools.cached_property
    def known_signs(self) -> np.ndarray:
        """For each output 1 if it is never negative, −1 if never positive, 0 if unknown."""
        return self.signs_with({})

    def signs_with(self, known: Mapping[int, Any]) -> np.ndarray:
        """As `known_signs`, for known values of some of the inputs.

        Args:
            known: arrays by their place among the leaves of the arguments.
        """
        signs = self._plan.bounds_with(known).sign
        return np.broadcast_to(signs, self._plan.avals[self._plan.output].shape).copy()

    def bounds_with(self, known: Mapping[int, Any]) -> Interval:
        """Bounds of each output, for known values of some of the inputs."""
        shape = self._plan.avals[self._plan.output].shape
        found = self._plan.bounds_with(known)
        low, high = (np.broadcast_to(bound, shape) for bound in (found.low, found.high))
        return found._replace(low=low, high=high)

    def with_known(self, known: Mapping[int, Any]) -> Reading:
        """The reading that the expression would have with these inputs written in as numbers.

        It is the same one, for all their values, unless what is evaluated depends on them, as
        where max(f, c) has no plateau because c is below all of f.
        """
        plan = analyse(self.jaxpr, self.num_varying, known)
        is_same = plan.decisions == self._plan.decisions
        return self if is_same else dataclasses.replace(self, _plan=plan)

    def may_jump(self, place: int) -> bool:
        """Whether outputs may jump as an input moves, where nothing of that can be softened.

        Args:
            place: of the input, among the leaves of the arguments.
        """
        plan, needed = self._plan, {self._plan.output}
        for step in reversed(plan.steps):
            if not needed.isdisjoint(step.outputs):
                needed.update(step.inputs)
        moved = {plan.inputs[place]}
        for step in plan.steps:
            if moved.isdisjoint(step.inputs):
                continue
            moved.update(step.outputs)
            is_seen = step in plan.sources or needed.isdisjoint(step.outputs)
            if not is_seen and not plan.varies.isdisjoint(step.outputs) and has_jump(step):
                return True
        return False

    @property
    def counts(self) -> np.ndarray:
        """For each of the `margins` whether it is of a count of other comparisons."""
        found = np.zeros(self.num_margins, bool)
        for step, place in self._plan.sources.items():
            is_nested = not self._plan.is_soft.isdisjoint(step.inputs)
            found[place] = is_nested and not is_float(self._plan.avals[step.inputs[0]])
        return found

    @property
    def has_nested(self) -> bool:
        """Whether one of the comparisons is of what others decide."""
        is_soft = self._plan.is_soft
        return any(not is_soft.isdisjoint(step.inputs) for step in self._plan.sources)

    def auxiliary_may_jump(self, place: int) -> bool:
        """Whether what comes along with the outputs may jump as an input moves, in a rounding, a
        loop or a branch of which `edges` know nothing.

        Args:
            place: of the input, among the leaves of the arguments.
        """
        moved = self._reached([self._plan.inputs[place]])
        return any(
            not moved.isdisjoint(step.inputs)
            and not self._varying.isdisjoint(step.outputs)
            and has_float_jump(step)
            for step in self._behind_auxiliary
        )

    def cuts(self, place: int, output: int) -> set[str]:
        """What has the derivative 0 between an input and an output, or what comes along, though
        these depend on it there: names of primitives.

        A choice between numbers that have slopes themselves is not among them, nor is a comparison
        with what varies.

        Args:
            place: of the input, among the leaves of the arguments.
            output: its number.
        """
        plan = self._plan
        varying = plan.varies | self._varying
        sloped, cut, nan_tests = {plan.inputs[place]}, dict[int, set[str]](), set[int]()
        for step in plan.live:
            if is_nan_test(step):
                nan_tests.update(step.outputs)
            is_guard = step.name == "select_n" and step.inputs[0] in nan_tests
            inputs = step.inputs[:2] if is_guard else step.inputs
            is_sloped = not sloped.isdisjoint(inputs)
            before = [i for i in inputs if i in cut]
            is_chosen = is_sloped and not any(has_slope(plan.avals[i]) for i in before)
            found = set[str]().union(*(cut[i] for i in before if not is_chosen))
            if is_sloped:
                found |= cuts(step, plan.avals, not varying.isdisjoint(step.outputs))
            for out in step.outputs:
                if found:
                    cut[out] = found
                if is_sloped and step.name not in FLAT and has_slope(plan.avals[out]):
                    sloped.add(out)
        wanted = (*plan.auxiliary, self._own_variable(output))
        return set[str]().union(*(cut.get(i, ()) for i in wanted))

    def _own_variable(self, output: int) -> int:
        """The last variable of an output before it is put beside the others."""
        plan = self._plan
        index, made_by = plan.output, {out: step for step in plan.live for out in step.outputs}
        while (step := made_by.get(index)) is not None:
            sizes = [math.prod(plan.avals[i].shape) for i in step.inputs]
            size = math.prod(plan.avals[index].shape)
            is_joined = step.name in ("concatenate", "stack") and not any(
                step.params.get(axis) for axis in ("dimension", "axis")
            )
            if is_joined:
                ends = np.cumsum(sizes)
                number = int(np.searchsorted(ends, output, side="right"))
                index, output = step.inputs[number], output - int(ends[number] - sizes[number])
            elif step.name in _IN_ORDER and sizes == [size]:
                (index,) = step.inputs
            else:
                break
        return index

    def moves_edges(self, place: int) -> bool:
        """Whether any of the `edges` moves with an input.

        Args:
            place: of the input, among the leaves of the arguments.
        """
        moved = self._reached([self._plan.inputs[place]])
        return any(not moved.isdisjoint(step.outputs) for step in self._edges)

    def edges(self, *args: Any) -> jax.Array:
        """The differences of all comparisons behind what comes along with the outputs, as a vector.

        Such a comparison may be a jump, a kink, or nothing that can be seen.
        """
        base = self._plain_layer(args)
        pieces = [jnp.ravel(_margin(step, base)) for step in self._edges]
        dtype = self._plan.avals[self._plan.output].dtype
        return jnp.concatenate([jnp.zeros(0, dtype), *(piece.astype(dtype) for piece in pieces)])

    @functools.cached_property
    def _behind_auxiliary(self) -> list[Step]:
        needed, found = set(self._plan.auxiliary), []
        for step in reversed(self._plan.live):
            if not needed.isdisjoint(step.outputs):
                needed.update(step.inputs)
                found.append(step)
        return found[::-1]

    @functools.cached_property
    def _varying(self) -> set[int]:
        return self._reached(self._plan.inputs[: self.num_varying])

    @functools.cached_property
    def _edges(self) -> list[Step]:
        return [
            step
            for step in self._behind_auxiliary
            if step.name in (*COMPARISONS, "sign")
            and step.outputs[0] in self._varying
            and all(is_float(self._plan.avals[index]) for index in step.inputs)
        ]

    def _reached(self, first: Iterable[int]) -> set[int]:
        """All variables behind the auxiliary that depend on some."""
        found = set(first)
        for step in self._behind_auxiliary:
            if not found.isdisjoint(step.inputs):
                found.update(step.outputs)
        return found

    def evaluate(self, *args: Any) -> tuple[Any, jax.Array]:
        """What the function gives, as if it was called."""
        *auxiliary, outputs = core.jaxpr_as_fun(self.jaxpr)(*self._flat(args))
        return jax.tree.unflatten(self.auxiliary, auxiliary), outputs

    def lifted(self, *args: Any) -> tuple[Any, SignedLog]:
        """What the function gives, its outputs as sign and log-magnitude."""
        if not self.needs_lifting:
            auxiliary, outputs = self.evaluate(*args)
            return auxiliary, SignedLog.of(Scaled(outputs))
        base = self._plain_layer(args)
        number = _lifted_layer(self._plan, base).number(self._plan.output)
        return self._auxiliary(base), SignedLog.of(number)

    def softened(self, softness: Any, scales: jax.Array, *args: Any) -> tuple[Any, SignedLog]:
        """As `lifted`, with each comparison a > b replaced by its probability logistic((a−b)/τ).

        Args:
            softness: how soft, a number that may be traced; at 0 this is `lifted`.
            scales: for each of the `margins` the difference that counts as large, such as its
                spread over prior draws; τ is softness times scale.
            args: as for the function.
        """
        if not self.has_comparisons:
            return self.lifted(*args)
        base = self._plain_layer(args)
        layer = _lifted_layer(self._plan, base)
        exact = SignedLog.of(layer.number(self._plan.output))
        is_soft = jnp.asarray(softness) > 0
        usable = jnp.where((scales > 0) & (scales < jnp.inf), scales, 1.0)
        widths = jnp.where(is_soft, softness, 1.0) * usable
        soft = SignedLog.of(_soft_layer(self._plan, layer, widths).number(self._plan.output))
        result = jax.tree.map(lambda a, b: jnp.where(is_soft, a, b).astype(b.dtype), soft, exact)
        return self._auxiliary(base), result

    def margins(self, *args: Any) -> tuple[Any, jax.Array]:
        """What the function gives, with the differences of all softened comparisons as vector.

        A comparison's margin is positive where it is true.
        """
        base = self._plain_layer(args)
        dtype = self._plan.avals[self._plan.output].dtype
        pieces = [jnp.zeros(0, dtype)]
        for step in self._plan.steps:
            if step in self._plan.sources:
                margin = _margin(step, base)
                shape = self._plan.avals[step.outputs[0]].shape
                pieces.append(jnp.ravel(jnp.broadcast_to(margin, shape)).astype(dtype))
        return self._auxiliary(base), jnp.concatenate(pieces)

    def _auxiliary(self, base: _Layer) -> Any:
        values = [base.value(index) for index in self._plan.auxiliary]
        return jax.tree.unflatten(self.auxiliary, values)

    def _flat(self, args: tuple) -> list[jax.Array]:
        leaves, structure = jax.tree.flatten(args)
        if structure != self.inputs:
            raise TypeError(
                f"the expression was read with arguments {self.inputs}; these are {structure}."
            )
        for leaf, aval in zip(leaves, self.jaxpr.in_avals, strict=True):
            if jnp.shape(leaf) != aval.shape:
                raise TypeError(
                    f"the expression was read with an argument of shape {aval.shape}; this one "
                    f"has {jnp.shape(leaf)}."
                )
        return leaves

    def _plain_layer(self, args: tuple) -> _Layer:
        plan = self._plan
        layer = _Layer(plan, None, dict(plan.constants))
        layer.values.update(zip(plan.inputs, self._flat(args), strict=True))
        for step in plan.live:
            values = step.apply(*map(layer.value, step.inputs))
            layer.values.update(zip(step.outputs, values, strict=True))
        return layer


# Evaluation ---------------------------------------------------------------------------------------


class _Layer:
    """Values, scaled numbers and events where they differ from those of the layer below."""

    def __init__(self, plan: Plan, below: _Layer | None, values: dict[int, Any]) -> None:
        self.plan, self.below, self.values = plan, below, values
        self.numbers: dict[int, Scaled] = {}
        self.events: dict[int, Event] = {}
        self.is_soft = False

    def value(self, index: int) -> Any:
        if index in self.values:
            return self.values[index]
        if self.is_soft and index in self.numbers and is_float(self.plan.avals[index]):
            self.values[index] = self.numbers[index].value().astype(self.plan.avals[index].dtype)
            return self.values[index]
        assert self.below is not None
        return self.below.value(index)

    def number(self, index: int) -> Scaled:
        if index in self.numbers:
            return self.numbers[index]
        if index in self.values or self.below is None:
            return Scaled(jnp.asarray(self.value(index)).astype(self.dtype(index)))
        return self.below.number(index)

    def event(self, index: int) -> Event:
        if index in self.events:
            return self.events[index]
        return Event.certain(self.value(index), self.plan.avals[self.plan.output].dtype)

    def dtype(self, index: int) -> Any:
        """The dtype of a variable as a number."""
        aval = self.plan.avals[index]
        return aval.dtype if is_float(aval) else self.plan.avals[self.plan.output].dtype


def _lifted_layer(plan: Plan, base: _Layer) -> _Layer:
    layer = _Layer(plan, base, {})
    for step in plan.lifted:
        if not plan.is_revised.isdisjoint(step.outputs):
            if step.name == "log" and step.inputs[0] in plan.is_scaled:
                number = layer.number(step.inputs[0])
                values = [jnp.where(number.mantissa < 0, jnp.nan, scaled.log_abs(number))]
            else:
                values = step.apply(*map(layer.value, step.inputs))
            pairs = zip(step.outputs, values, strict=True)
            layer.values.update((out, v) for out, v in pairs if out in plan.is_revised)
        for k, out in enumerate(step.outputs):
            if out in plan.is_scaled:
                made = layer.number(step.shadows[k]) if step.shadows else _number(step, layer, k)
                if made is not None:
                    layer.numbers[out] = made
    return layer


def _soft_layer(plan: Plan, below: _Layer, widths: jax.Array) -> _Layer:
    layer = _Layer(plan, below, {})
    layer.is_soft = True
    for step in plan.softened:
        aval = plan.avals[step.outputs[0]]
        if step in plan.sources:
            width = widths[plan.sources[step]].reshape(aval.shape)
            result = _softened_comparison(step, layer, width)
            if isinstance(result, Event):
                layer.events[step.outputs[0]] = result
            else:
                layer.numbers[step.outputs[0]] = result
        elif step.shadows:
            for out, shadow in zip(step.outputs, step.shadows, strict=True):
                if shadow in layer.events:
                    layer.events[out] = layer.events[shadow]
                elif out in plan.is_soft:
                    layer.numbers[out] = layer.number(shadow)
        elif is_event(aval):
            events = _events(step, layer)
            layer.events.update(zip(step.outputs, events, strict=True))
        else:
            numbers = [
                _number(step, layer, k) if has_number_rule(step) else None
                for k in range(len(step.outputs))
            ]
            if None not in numbers:
                layer.numbers.update(zip(step.outputs, numbers, strict=True))  # type: ignore[arg-type]
            else:
                values = step.apply(*map(layer.value, step.inputs))
                pairs = zip(step.outputs, values, strict=True)
                layer.values.update((out, v) for out, v in pairs if out in plan.is_soft)
    return layer


def _number(step: Step, layer: _Layer, k: int) -> Scaled | None:
    """A step's k-th result as a scaled number; None where its rule does not apply."""
    out = step.outputs[k]
    shape, dtype = layer.plan.avals[out].shape, layer.dtype(out)
    if step.name in SOURCES:
        operands = [Scaled(layer.value(index)) for index in step.inputs]
    else:
        operands = [layer.number(index) for index in element_inputs(step)]
    number: Scaled | None
    if step.name == "select_n":
        number = _selected(step, layer, [_in_shape(operand, shape) for operand in operands])
    elif step.name == "convert_element_type":
        event = layer.events.get(step.inputs[0])
        number = operands[0] if event is None else scaled.exponential(event.log_true)
    elif step.name in STRUCTURAL:
        number = _moved(step, layer, operands, k)
    else:
        number = NUMBER_RULES[step.name](*operands, **step.params)
    return None if number is None else _in_shape(number.map(lambda x: x.astype(dtype)), shape)


def _in_shape(number: Scaled, shape: tuple[int, ...]) -> Scaled:
    return number.map(lambda x: jnp.broadcast_to(x, shape))


def _selected(step: Step, layer: _Layer, cases: list[Scaled]) -> Scaled:
    which = layer.value(step.inputs[0])
    if step.inputs[0] not in layer.events or step in layer.plan.guards:
        return scaled.chosen(which, *cases)
    return scaled.mixed(layer.events[step.inputs[0]], which, *cases)


def _moved(step: Step, layer: _Layer, operands: list[Scaled], k: int) -> Scaled:
    rest = [layer.value(index) for index in step.inputs[len(operands) :]]
    degree = max(operand.degree for operand in operands)
    mantissa = step.apply(*(operand.mantissa for operand in operands), *rest)[k]
    if all(operand.log_scale is None for operand in operands):
        return Scaled(mantissa, None, degree)
    scale = step.apply(*(operand.scale for operand in operands), *rest)[k]
    return Scaled(mantissa, scale, degree)


def _events(step: Step, layer: _Layer) -> list[Event]:
    """A step's results as events."""
    events = [layer.event(index) for index in element_inputs(step)]
    if step.name == "select_n":
        which, (otherwise, then) = layer.event(step.inputs[0]), events
        log_true, log_false = (
            jnp.logaddexp(which.log_false + a, which.log_true + b)
            for a, b in zip(otherwise, then, strict=True)
        )
        return [Event(log_true, log_false)]
    if step.name == "convert_element_type":
        return events
    if step.name in STRUCTURAL:
        rest = [layer.value(index) for index in step.inputs[len(events) :]]
        logs = [step.apply(*parts, *rest) for parts in zip(*events, strict=True)]
        return [Event(*parts) for parts in zip(*logs, strict=True)]
    return [EVENT_RULES[step.name](*events, **step.params)]


def _margin(step: Step, layer: _Layer) -> jax.Array:
    """The difference that a comparison looks at, positive where it is true."""
    a = layer.number(step.inputs[0]).value()
    if step.name == "sign":
        return a
    b = layer.number(step.inputs[1]).value()
    if step.name in EQUALITIES:
        closeness = 0.5 - jnp.abs(a - b)
        return closeness if step.name == "eq" else -closeness
    difference = b - a if step.name in ("lt", "le") else a - b
    if is_float(layer.plan.avals[step.inputs[0]]) or step.name not in COMPARISONS:
        return difference
    # Counts are whole: k > n and k ≥ n + 1 are the same event, and its edge is half-way.
    return difference + (0.5 if step.name in ("ge", "le") else -0.5)


def _softened_comparison(step: Step, layer: _Layer, width: jax.Array) -> Event | Scaled:
    if step.name in (*COMPARISONS, *EQUALITIES):
        return Event.likely(_margin(step, layer) / width)
    if step.name == "sign":
        event = Event.likely(_margin(step, layer) / width)
        below = scaled.negated(scaled.exponential(event.log_false))
        return scaled.plus(scaled.exponential(event.log_true), below)
    a, b = (_in_shape(layer.number(index), width.shape) for index in step.inputs)
    x, bound = (a, b) if step.inputs[0] in layer.plan.varies else (b, a)
    hull = layer.plan.bounds[step.outputs[0]].hull()
    if step.name == "max":
        return scaled.softened_maximum(x, bound, width, is_negative=bool(hull.high <= 0))
    mirrored = scaled.softened_maximum(
        scaled.negated(x), scaled.negated(bound), width, is_negative=bool(hull.low >= 0)
    )
    return scaled.negated(mirrored)
