"""A traced expression as steps, and what is known of it before any evaluation.

Calls are written out, so that a plan is a list of steps over numbered variables. The plan says
which variables have a scaled form, which of them softened comparisons change, and where they begin.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from estimand.target import intervals
from estimand.target.intervals import Interval
from estimand.target.scaled import EVENT_RULES, MAX_DEGREE, NUMBER_RULES, SOURCES, STRUCTURAL

COMPARISONS = ("gt", "ge", "lt", "le")
# Of integers: the closer they are, the closer they are to being equal.
EQUALITIES = ("eq", "ne")
# What jumps, and has the derivative 0 elsewhere.
LOOPS = ("while", "scan", "pure_callback", "io_callback")
_ROUNDINGS = ("floor", "ceil", "round")
_JUMPS = (*_ROUNDINGS, "argmax", "argmin")
# What gives a number whose derivative is 0.
FLAT = (*_JUMPS[:3], "sign", "stop_gradient")
# Calls whose equations are part of the expression.
_CALLS = ("jit", "pjit", "closed_call", "core_call", "core_closed_call", "custom_lin")
# Calls that stand for their equations but are evaluated as a whole, with their own derivative.
# Maps to the supports of distributions.
_SUPPORTS = ("numpyro/distributions/transforms",)
# What grows, or whose inverse grows, like an exponential.
_EXPONENTIALS = ("exp", "exp2", "expm1", "sinh", "cosh", "pow", "erfc", "erf", "logistic", "tanh")
_WHOLE_CALLS = (
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "checkpoint",
    "remat2",
)
# A whole call made of nothing else is a comparison in itself, such as relu.
_PLAIN_PRIMITIVES = {
    *COMPARISONS, "max", "min", "clamp", "select_n", "mul", "add", "sub", "neg", "jit", "pjit",
    "convert_element_type", "broadcast_in_dim", "and", "or", "not", "eq", "ne", "sign", "abs",
}  # fmt: skip
# Steps whose results depend on the same elements of their operands alone.
_ELEMENTWISE = {
    "add", "sub", "mul", "div", "neg", "abs", "square", "integer_pow", "pow", "max", "min", "exp",
    "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "tanh", "logistic", "erf", "erfc", "sin",
    "cos", "convert_element_type", "copy", "stop_gradient",
}  # fmt: skip
# Where functions of libraries are, as parts of paths; and JAX's own code around them.
_LIBRARY_FUNCTIONS = ("/jax/_src/scipy/", "/numpyro/distributions/")
_JAX = "/jax/_src/"
# Where what is flat is a part of a function that has its slope in other parts.
_SLOPED = (*_LIBRARY_FUNCTIONS, "/jax/_src/ops/", "/jax/_src/nn/", "/estimand/model/")
# Solvers of differential equations, whose results are smooth up to their tolerance.
_INTEGRATORS = ("/jax/experimental/ode", "/diffrax/")
# So many bounds at most are computed anew for one branch of a choice.
_MAX_RECOMPUTED = 12
# A bound that cuts off less than this of a known range guards against rounding.
_NEGLIGIBLE_CUT = 1e-6
# Results known to be within these bounds need no scale.
_SAFE_RANGE = (1e-9, 1e9)


# The expression as steps --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One equation; `shadows` are the results of a whole call, made by its own equations.

    `equation` is what JAX has traced; None for a step that was written for another one.
    """

    name: str
    params: dict
    apply: Callable[..., list]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    shadows: tuple[int, ...] = ()
    is_guard: bool = False
    equation: Any = None

    @functools.cached_property
    def is_internal(self) -> bool:
        """Whether a function of a library makes it, such as a cdf or the error function.

        These have cases for large and for small arguments of what is one smooth function.
        """
        return _is_made_in(self.equation, _LIBRARY_FUNCTIONS)


class Flat:
    """A jaxpr with its calls written out; variables are numbers."""

    def __init__(self, closed: core.ClosedJaxpr) -> None:
        self.avals: list[Any] = []
        self.constants: dict[int, Any] = {}
        self.steps: list[Step] = []
        self.inputs = tuple(self.new(variable.aval) for variable in closed.jaxpr.invars)
        self.outputs = self.inline(closed, self.inputs, False)

    def new(self, aval: Any) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def constant(self, aval: Any, value: Any) -> int:
        index = self.new(aval)
        self.constants[index] = value
        return index

    def inline(self, closed: Any, inputs: tuple[int, ...], is_guard: bool) -> tuple[int, ...]:
        jaxpr, constants = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
        places = dict(zip(jaxpr.invars, inputs, strict=True))
        for variable, value in zip(jaxpr.constvars, constants, strict=True):
            places[variable] = self.constant(variable.aval, value)

        def place(atom: Any) -> int:
            if isinstance(atom, core.Literal):
                return self.constant(atom.aval, np.asarray(atom.val, jnp.result_type(atom.aval)))
            return places[atom]

        for equation in jaxpr.eqns:
            operands = tuple(map(place, equation.invars))
            name, inner = equation.primitive.name, _inner(equation)
            if name in _CALLS and inner is not None:
                results = self.inline(inner, operands, is_guard)
            else:
                results = tuple(self.new(variable.aval) for variable in equation.outvars)
                shadows: tuple[int, ...] = ()
                if name == "clamp":
                    shadows = self._clamp(operands, equation.outvars[0].aval, is_guard)
                elif name in _WHOLE_CALLS and inner is not None and not _has_control_flow(inner):
                    hides = not _primitives(inner) <= _PLAIN_PRIMITIVES
                    is_function = hides and name.startswith("custom")
                    shadows = self.inline(inner, operands, is_guard or is_function)
                apply = functools.partial(_bind, equation)
                step = Step(
                    name, equation.params, apply, operands, results, shadows, is_guard, equation
                )
                self.steps.append(step)
            places.update(zip(equation.outvars, results, strict=True))
        return tuple(map(place, jaxpr.outvars))

    def _clamp(self, operands: tuple[int, ...], aval: Any, is_guard: bool) -> tuple[int, ...]:
        low, x, high = operands
        middle, result = self.new(aval), self.new(aval)
        for name, function, inputs, output in (
            ("max", jnp.maximum, (x, low), middle),
            ("min", jnp.minimum, (middle, high), result),
        ):
            apply = functools.partial(_apply_one, function)
            self.steps.append(Step(name, {}, apply, inputs, (output,), (), is_guard))
        return (result,)


def _apply_one(function: Callable, *values: jax.Array) -> list:
    return [function(*values)]


def _bind(equation: Any, *values: jax.Array) -> list:
    params = equation.primitive.get_bind_params(equation.params)
    # Some JAX releases give a call's functions apart from its parameters.
    functions, params = params if isinstance(params, tuple) else ((), params)
    with equation.ctx.manager:
        result = equation.primitive.bind(*functions, *values, **params)
    return list(result) if equation.primitive.multiple_results else [result]


def _inner(equation: Any) -> Any:
    """The equations of a call."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if key in equation.params:
            return equation.params[key]
    return None


def _primitives(closed: Any) -> set[str]:
    jaxpr = getattr(closed, "jaxpr", closed)
    found = {equation.primitive.name for equation in jaxpr.eqns}
    for equation in jaxpr.eqns:
        found.update(*map(_primitives, core.jaxprs_in_params(equation.params)))
    return found


def _has_control_flow(closed: Any) -> bool:
    names = _primitives(closed)
    return bool(names & {"scan", "while", "cond"}) or any("callback" in name for name in names)


# What is known before any evaluation --------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Steps, and which of them each layer evaluates."""

    avals: list[Any]
    constants: dict[int, Any]
    inputs: tuple[int, ...]
    auxiliary: tuple[int, ...]
    output: int
    steps: list[Step]
    bounds: dict[int, Interval]
    is_scaled: set[int]
    is_revised: set[int]
    is_soft: set[int]
    varies: set[int]
    sources: dict[Step, slice]
    guards: set[Step]
    lifted: list[Step]
    softened: list[Step]
    live: list[Step]

    @property
    def needs_lifting(self) -> bool:
        return self.output in self.is_scaled or self.output in self.is_revised

    @property
    def num_margins(self) -> int:
        return max((place.stop for place in self.sources.values()), default=0)

    @property
    def decisions(self) -> tuple:
        """All that the evaluation of the plan depends on, for two plans of one jaxpr."""
        signs = [
            (step.outputs, bool(hull.low >= 0), bool(hull.high <= 0))
            for step in self.sources
            for hull in [self.bounds[step.outputs[0]].hull()]
        ]
        listed = [
            sorted(step.outputs for step in steps)
            for steps in (self.guards, self.lifted, self.softened, self.live)
        ]
        return self.is_scaled, self.is_revised, self.is_soft, self.varies, signs, listed

    def bounds_with(self, known: Mapping[int, Any]) -> Interval:
        """The bounds of the output for known values of inputs, by their place."""
        values = {self.inputs[k]: value for k, value in known.items()}
        varying = [index for index in self.inputs if index in self.varies]
        constants = {**self.constants, **values}
        return _bounds(self.avals, constants, self.steps, varying)[self.output]


def analyse(
    closed: core.ClosedJaxpr, num_varying: int, known: Mapping[int, Any] = MappingProxyType({})
) -> Plan:
    """The plan of a jaxpr whose last result is the output and whose first inputs vary.

    `known` are the values of other inputs, by their place: the plan is for these values alone.
    """
    flat = Flat(closed)
    *auxiliary, output = flat.outputs
    steps = _ancestors(flat.steps, output)
    constants = {**flat.constants, **{flat.inputs[k]: value for k, value in known.items()}}
    varying = flat.inputs[:num_varying]
    bounds = _bounds(flat.avals, constants, steps, varying)
    is_scaled, is_revised = _scaled(flat, steps, bounds, constants)
    guards = {
        *_error_function_guards(steps, constants),
        *_repeated_choices(steps, flat),
        *_support_guards(steps, bounds),
    }
    varies, is_soft, begins = _soft(flat, steps, bounds, guards, varying)
    is_soft = _reaching(flat, steps, output, is_soft, guards)
    sources = _places(flat, [step for step in begins if step.outputs[0] in is_soft])
    softened = [step for step in steps if not is_soft.isdisjoint(step.outputs)]
    wanted = _wanted(steps, output, is_scaled, softened)
    lifted = [
        step
        for step in steps
        if not is_revised.isdisjoint(step.outputs)
        or not (is_scaled & wanted).isdisjoint(step.outputs)
    ]
    live = _live(flat, {*lifted, *softened})
    return Plan(
        flat.avals, flat.constants, flat.inputs, tuple(auxiliary), output, steps, bounds,
        is_scaled & wanted, is_revised, is_soft, varies, sources, guards, lifted, softened, live,
    )  # fmt: skip


def _ancestors(steps: list[Step], output: int) -> list[Step]:
    needed, found = {output}, []
    for step in reversed(steps):
        if not needed.isdisjoint(step.outputs):
            needed.update(step.inputs, step.shadows)
            found.append(step)
    return found[::-1]


def _live(flat: Flat, active: set[Step]) -> list[Step]:
    """The steps whose plain values are needed."""
    needed, found = set(flat.outputs), []
    for step in reversed(flat.steps):
        if step in active:
            needed.update(step.inputs, step.shadows)
        if not needed.isdisjoint(step.outputs):
            needed.update(step.inputs)
            found.append(step)
    return found[::-1]


def _bounds(
    every_aval: list[Any], constants: dict[int, Any], steps: list[Step], varying: Sequence[int]
) -> dict[int, Interval]:
    bounds = {index: intervals.of_dtype(aval.dtype) for index, aval in enumerate(every_aval)}
    bounds.update((i, intervals.of_variable(every_aval[i].dtype)) for i in varying)
    bounds.update((i, intervals.of_constant(value)) for i, value in constants.items())
    made_by: dict[int, Step] = {}
    for step in steps:
        operands = [bounds[i] for i in step.inputs]
        if step.name == "select_n":
            operands = [operands[0], *_chosen_bounds(step, every_aval, bounds, made_by)]
        for k, out in enumerate(step.outputs):
            bounds[out] = (
                bounds[step.shadows[k]]
                if step.shadows
                else _step_bounds(step, operands, every_aval, out, made_by)
            )
            made_by[out] = step
    return bounds


def _elements(index: int, avals: list[Any], made_by: Mapping[int, Step]) -> np.ndarray:
    """A number for every element of a variable, the same for what is only moved or repeated."""
    step = made_by.get(index)
    if step is not None and step.name in intervals.MOVEMENTS:
        read = [avals[i] for i in step.inputs]
        if all(math.prod(aval.shape) <= intervals.MAX_ELEMENTS for aval in read):
            numbers = [_elements(i, avals, made_by) for i in step.inputs]
            found = intervals.moved(step.name, step.params, numbers, read, avals[index])
            if found is not None:
                return found
    size = math.prod(avals[index].shape)
    return (float(index << 24) + np.arange(size)).reshape(avals[index].shape)


def _step_bounds(
    step: Step,
    operands: list[Interval],
    avals: list[Any],
    out: int,
    made_by: Mapping[int, Step] = MappingProxyType({}),
) -> Interval:
    is_same: Any = len(step.inputs) == 2 and step.inputs[0] == step.inputs[1]
    read = [avals[i] for i in step.inputs]
    is_small = math.prod(avals[out].shape) <= intervals.MAX_ELEMENTS
    if step.name in intervals.PAIRWISE and is_small and not made_by.keys().isdisjoint(step.inputs):
        first, second = (_elements(index, avals, made_by) for index in step.inputs)
        is_same = first == second
    return intervals.of_equation(step.name, step.params, operands, read, avals[out], is_same)


def _chosen_bounds(
    choice: Step, avals: list[Any], bounds: dict[int, Interval], made_by: dict[int, Step]
) -> list[Interval]:
    """The bounds of the branches of a choice, each where it is chosen.

    In where(x > 0, f(x), g(x)) a branch is only seen on its side of 0, which is what the normal
    cdf and every relu are written for. This follows elementwise steps from x to the branch.
    """
    cases = [bounds[i] for i in choice.inputs[1:]]
    test = made_by.get(choice.inputs[0])
    shape = avals[choice.outputs[0]].shape
    if test is None or len(cases) != 2 or avals[choice.inputs[0]].shape != shape:
        return cases
    if test.name == "ne":
        return [cases[0], _bounds_where_nan(test, choice, bounds, made_by)]
    if test.name in COMPARISONS:
        for k, index in enumerate(choice.inputs[1:]):
            known = _known_by(test, bool(k), bounds, made_by)
            known = {i: bound for i, bound in known.items() if avals[i].shape == shape}
            cases[k] = _recomputed(index, known, avals, bounds, made_by)
    return cases


def _known_by(
    test: Step, truth: bool, bounds: dict[int, Interval], made_by: dict[int, Step]
) -> dict[int, Interval]:
    """Bounds of the operands of a comparison whose result is known, and of what they are abs of.

    What is compared with NaN is false, which says nothing of the other operand.
    """
    is_above = (test.name in ("gt", "ge")) == truth
    larger, smaller = test.inputs if is_above else test.inputs[::-1]
    above, below = bounds[larger], bounds[smaller]
    known = {}
    if truth or not bounds[smaller].has_nan:
        known[larger] = above._replace(low=np.maximum(above.low, bounds[smaller].low))
    if truth or not bounds[larger].has_nan:
        below = below._replace(high=np.minimum(below.high, bounds[larger].high))
        known[smaller] = below
    size = made_by.get(smaller)
    if size is not None and size.name == "abs":
        (index,) = size.inputs
        low, high = bounds[index][:2]
        low, high = np.maximum(low, -below.high), np.minimum(high, below.high)
        known[index] = bounds[index]._replace(low=low, high=high)
    return known


def _recomputed(
    index: int,
    known: dict[int, Interval],
    avals: list[Any],
    bounds: dict[int, Interval],
    made_by: dict[int, Step],
) -> Interval:
    """The bounds of a variable if others have the known ones; `known` keeps what was computed."""
    if index in known:
        return known[index]
    step = made_by.get(index)
    known[index] = bounds[index]
    if step is not None and len(known) < _MAX_RECOMPUTED:
        k = step.outputs.index(index)
        if step.shadows:
            known[index] = _recomputed(step.shadows[k], known, avals, bounds, made_by)
        elif step.name in _ELEMENTWISE:
            operands = [_recomputed(i, known, avals, bounds, made_by) for i in step.inputs]
            if any(new is not bounds[i] for new, i in zip(operands, step.inputs, strict=True)):
                known[index] = _step_bounds(step, operands, avals, index)
    return known[index]


def _bounds_where_nan(
    test: Step, choice: Step, bounds: dict[int, Interval], made_by: dict[int, Step]
) -> Interval:
    """The branch that is chosen where a difference is NaN.

    logaddexp(a, b), and with it softplus, gives a + b where a − b is NaN: then one of both is NaN,
    or they are infinite alike.
    """
    index = choice.inputs[2]
    difference, total = made_by.get(test.inputs[0]), made_by.get(index)
    if test.inputs[0] != test.inputs[1] or difference is None or total is None:
        return bounds[index]
    if (difference.name, total.name) != ("sub", "add") or difference.inputs != total.inputs:
        return bounds[index]
    a, b = (bounds[i] for i in total.inputs)
    low = np.where((a.low == -np.inf) & (b.low == -np.inf), -np.inf, np.inf)
    high = np.where((a.high == np.inf) & (b.high == np.inf), np.inf, -np.inf)
    return bounds[index]._replace(low=low, high=high)


def is_float(aval: Any) -> bool:
    """Whether a variable is a real floating-point array."""
    return jnp.issubdtype(aval.dtype, jnp.floating)


def is_event(aval: Any) -> bool:
    """Whether a variable is boolean."""
    return aval.dtype == jnp.bool_


def element_inputs(step: Step) -> tuple[int, ...]:
    """The operands whose elements a step's rule takes as numbers."""
    if step.name == "select_n":
        return step.inputs[1:]
    return step.inputs[: STRUCTURAL.get(step.name)]


def has_number_rule(step: Step) -> bool:
    """Whether a step can be done with scaled numbers."""
    return (
        step.name in NUMBER_RULES
        or step.name in STRUCTURAL
        or step.name in ("select_n", "convert_element_type")
    )


def _scaled(
    flat: Flat, steps: list[Step], bounds: dict[int, Interval], constants: dict[int, Any]
) -> tuple[set[int], set[int]]:
    """Variables that have a scaled form, and those whose plain value is made from one."""
    is_scaled: set[int] = set()
    is_revised: set[int] = set()
    degrees = dict.fromkeys(constants, 0.0)
    for step in steps:
        operands = [degrees.get(i, 1.0) for i in step.inputs]
        degree = _degree(step, operands, flat, bounds)
        for k, out in enumerate(step.outputs):
            degrees[out] = min(degree, MAX_DEGREE)
            if not is_float(flat.avals[out]):
                continue
            takes_revised = any(i in is_revised and is_float(flat.avals[i]) for i in step.inputs)
            takes_scaled = any(i in is_scaled for i in element_inputs(step))
            if step.shadows:
                if step.shadows[k] in is_scaled:
                    is_scaled.add(out)
            elif step.name in SOURCES:
                hull = bounds[out].hull()
                if hull.low < _SAFE_RANGE[0] or hull.high > _SAFE_RANGE[1]:
                    is_scaled.add(out)
            elif has_number_rule(step) and step.name != "sign":
                is_large = degree > MAX_DEGREE and step.name in _DEGREES
                if is_large or takes_scaled:
                    is_scaled.add(out)
            if takes_revised or (step.name == "log" and step.inputs[0] in is_scaled):
                is_revised.add(out)
    return is_scaled, is_revised


def _degree(step: Step, operands: list[float], flat: Flat, bounds: dict[int, Interval]) -> float:
    """How many factors a result has, as far as its range is concerned."""
    rule = _DEGREES.get(step.name)
    if rule is not None:
        return rule(step, operands, flat.avals, bounds)
    is_linear = has_number_rule(step) and step.name not in SOURCES
    return max(operands, default=0.0) if is_linear else 1.0


def _power_degree(step: Step, operands: list[float], _: Any, bounds: dict[int, Interval]) -> float:
    size = float(bounds[step.inputs[1]].hull().size)
    return operands[0] * size if operands[0] else operands[1]


def _product_degree(step: Step, operands: list[float], avals: list, _: Any) -> float:
    shape = avals[step.inputs[0]].shape
    axes = step.params["axes"] if "axes" in step.params else (step.params["axis"],)
    return operands[0] * math.prod(shape[axis] for axis in axes)


_DEGREES: dict[str, Callable[[Step, list[float], list, dict], float]] = {
    "mul": lambda _step, operands, _avals, _bounds: sum(operands),
    "div": lambda _step, operands, _avals, _bounds: sum(operands),
    "dot_general": lambda _step, operands, _avals, _bounds: sum(operands),
    "square": lambda _step, operands, _avals, _bounds: 2 * operands[0],
    "integer_pow": lambda step, operands, _avals, _bounds: abs(step.params["y"]) * operands[0],
    "pow": _power_degree,
    "reduce_prod": _product_degree,
    "cumprod": _product_degree,
}


def _wanted(steps: list[Step], output: int, is_scaled: set[int], softened: list[Step]) -> set[int]:
    """The variables whose scaled form is used."""
    wanted, is_softened = {output}, set(softened)
    for step in reversed(steps):
        if step in is_softened or not wanted.isdisjoint(step.outputs):
            wanted.update(step.shadows)
            if has_number_rule(step) and step.name not in SOURCES:
                wanted.update(step.inputs)
        if step.name == "log" and step.inputs[0] in is_scaled:
            wanted.update(step.inputs)
    return wanted


def _soft(
    flat: Flat,
    steps: list[Step],
    bounds: dict[int, Interval],
    guards: set[Step],
    varying: tuple[int, ...],
) -> tuple[set[int], set[int], list[Step]]:
    """Variables that vary, those that softened comparisons change, and the comparisons."""
    varies, is_soft, begins = set(varying), set[int](), []
    whole = _whole(flat, steps)
    for step in steps:
        if not varies.isdisjoint(step.inputs):
            varies.update(step.outputs)
        is_guard = step.is_guard or step in guards
        if not is_guard and _is_source(step, flat.avals, bounds, varies, is_soft, whole):
            is_soft.update(step.outputs)
            begins.append(step)
        elif step.shadows:
            pairs = zip(step.outputs, step.shadows, strict=True)
            is_soft.update(out for out, shadow in pairs if shadow in is_soft)
        else:
            inputs = element_inputs(step) if is_guard else step.inputs
            if not is_soft.isdisjoint(inputs):
                soft = (out for out in step.outputs if _is_softened(step, out, flat, is_soft))
                is_soft.update(soft)
    return varies, is_soft, begins


def _reaching(
    flat: Flat, steps: list[Step], output: int, is_soft: set[int], guards: set[Step]
) -> set[int]:
    """Those of the softened variables that reach the output."""
    reaching = {output} & is_soft
    for step in reversed(steps):
        if not reaching.isdisjoint(step.outputs):
            is_comparison = step.name in (*COMPARISONS, *EQUALITIES)
            has_rule = has_number_rule(step) or step.name in EVENT_RULES or is_comparison
            inputs = element_inputs(step) if step in guards else step.inputs
            used = (i for i in inputs if has_rule or is_float(flat.avals[i]))
            reaching.update(i for i in (*step.shadows, *used) if i in is_soft)
    return reaching


def _places(flat: Flat, sources: list[Step]) -> dict[Step, slice]:
    """The place of each comparison's margins in the vector of all."""
    places: dict[Step, slice] = {}
    start = 0
    for step in sources:
        stop = start + math.prod(flat.avals[step.outputs[0]].shape)
        places[step], start = slice(start, stop), stop
    return places


def _whole(flat: Flat, steps: list[Step]) -> set[int]:
    """Variables that are whole numbers by their type or value, or because they are rounded."""
    integers = (k for k, aval in enumerate(flat.avals) if jnp.issubdtype(aval.dtype, jnp.integer))
    found = {*integers, *(k for k, value in flat.constants.items() if _is_whole(value))}
    for step in steps:
        keeps = step.name in (*STRUCTURAL, "convert_element_type", "neg", "add", "sub", "mul")
        if step.name in _ROUNDINGS or (keeps and found.issuperset(element_inputs(step))):
            found.update(step.outputs)
    return found


def _is_whole(value: Any) -> bool:
    is_number = not isinstance(value, jax.core.Tracer) and np.size(value) == 1
    return is_number and is_float(jax.typeof(value)) and np.asarray(value).item().is_integer()


def _is_source(
    step: Step,
    avals: list,
    bounds: dict[int, Interval],
    varies: set[int],
    is_soft: set[int],
    whole: set[int],
) -> bool:
    sources = (*COMPARISONS, *EQUALITIES, "max", "min", "sign")
    if step.name not in sources or step.outputs[0] not in varies or step.is_internal:
        return False
    if step.name in EQUALITIES:
        # What a rounded number is compared with is whole, or it never is the same.
        return all(i in whole or i not in varies for i in step.inputs)
    is_real = all(is_float(avals[i]) for i in step.inputs)
    if step.name in COMPARISONS:
        hull = bounds[step.outputs[0]].hull()
        is_count = not is_soft.isdisjoint(step.inputs) and not is_event(avals[step.inputs[0]])
        is_whole = all(jnp.issubdtype(avals[i].dtype, jnp.integer) for i in step.inputs)
        return bool(hull.low < hull.high) and (is_real or is_count or is_whole)
    if step.name == "sign":
        return is_real
    # The larger of two variables has a slope everywhere; only a fixed bound makes a plateau.
    fixed = [i for i in step.inputs if i not in varies]
    if not is_real or len(fixed) != 1:
        return False
    (moving,) = (i for i in step.inputs if i in varies)
    x, bound = bounds[moving].hull(), bounds[fixed[0]].hull()
    edge, limit = (x.low, bound.high) if step.name == "max" else (-x.high, -bound.low)
    cut, width = float(limit) - float(edge), float(x.high) - float(x.low)
    return cut > 0 and (cut == math.inf or cut > _NEGLIGIBLE_CUT * min(1.0, width))


def _is_softened(step: Step, out: int, flat: Flat, is_soft: set[int]) -> bool:
    """Whether a result differs when the operands in `is_soft` are softened."""
    aval = flat.avals[out]
    if is_event(aval):
        is_kept = step.name == "convert_element_type" and is_event(flat.avals[step.inputs[0]])
        return is_kept or step.name in (*EVENT_RULES, *STRUCTURAL, "select_n")
    if has_number_rule(step):
        return is_float(aval) or jnp.issubdtype(aval.dtype, jnp.integer)
    return is_float(aval) and any(i in is_soft and is_float(flat.avals[i]) for i in step.inputs)


def _error_function_guards(steps: list[Step], constants: dict[int, Any]) -> set[Step]:
    """Comparisons that choose between forms of one error function, as in the normal cdf."""
    made_by = {out: step for step in steps for out in step.outputs}
    forms: dict[int, int] = {}
    found: set[Step] = set()
    for step in steps:
        if step.name in ("erf", "erfc"):
            inner = made_by.get(step.inputs[0])
            is_abs = inner is not None and inner.name == "abs"
            forms[step.outputs[0]] = inner.inputs[0] if is_abs and inner else step.inputs[0]
        elif step.name in ("add", "sub", "mul", "neg", "select_n"):
            which, cases = step.inputs[:1], element_inputs(step)
            arguments = {forms.get(i) for i in cases if i not in constants}
            if len(arguments) == 1 and None not in arguments:
                if step.name != "select_n":
                    forms[step.outputs[0]] = arguments.pop()  # type: ignore[assignment]
                elif not any(i in constants for i in cases):
                    forms[step.outputs[0]] = arguments.pop()  # type: ignore[assignment]
                    found.update(made_by[i] for i in which if i in made_by)
    return found


def _support_guards(steps: list[Step], bounds: dict[int, Interval]) -> set[Step]:
    """Choices with a constant branch that is infinite or NaN, as in log densities."""

    def is_infinite(index: int) -> bool:
        hull = bounds[index].hull()
        return bool(hull.low > hull.high or (hull.low == hull.high and np.isinf(hull.low)))

    return {
        step
        for step in steps
        if step.name == "select_n" and any(map(is_infinite, element_inputs(step)))
    }


def _repeated_choices(steps: list[Step], flat: Flat) -> set[Step]:
    """Choices within a branch of the same choice: guards, as in where(c, log(where(c, x, 1)), 0).

    Softened, the inner one would give its function the arguments it is there to avoid.
    """
    choices: dict[int, list[Step]] = {}
    same, known = dict[int, int](), dict[tuple, int]()
    key: tuple
    for index, value in flat.constants.items():
        if np.size(value) == 1 and not isinstance(value, jax.core.Tracer):
            key = ("constant", str(flat.avals[index]), str(value))
            same[index] = known.setdefault(key, index)
    for step in steps:
        inputs = tuple(same.get(i, i) for i in step.inputs)
        if step.name in COMPARISONS or step.name in EVENT_RULES or has_number_rule(step):
            key = (step.name, str(step.params), inputs)
            same[step.outputs[0]] = known.setdefault(key, step.outputs[0])
        if step.name == "select_n":
            choices.setdefault(inputs[0], []).append(step)
    found: set[Step] = set()
    for group in choices.values():
        for k, inner in enumerate(group[:-1]):
            later, made = set(group[k + 1 :]), set(inner.outputs)
            for step in steps:
                if step in later and not made.isdisjoint(element_inputs(step)):
                    found.add(inner)
                if not made.isdisjoint(step.inputs):
                    made.update(step.outputs)
    return found


def has_jump(step: Step) -> bool:
    """Whether a step rounds, or is a loop or a branch with comparisons in it."""
    if step.name in _WHOLE_CALLS or step.equation is None:
        return False
    inner = list(core.jaxprs_in_params(step.equation.params))
    return step.name in _JUMPS or any(map(_compares, inner))


def has_float_jump(step: Step) -> bool:
    """Whether a step rounds, or is a loop or a branch that compares floating-point numbers.

    Not so functions of libraries, and integrators, whose steps are chosen that way.
    """
    if step.name in _WHOLE_CALLS or step.equation is None or step.is_internal:
        return False
    if _is_from(step, _INTEGRATORS):
        return False
    inner = list(core.jaxprs_in_params(step.equation.params))
    return step.name in _JUMPS or any(_compares(jaxpr, is_float) for jaxpr in inner)


def has_exponential(step: Step) -> bool:
    """Whether a step of the user's may grow as fast as a density with light tails falls."""
    if _is_from(step, _SUPPORTS):
        return False
    if step.name in _EXPONENTIALS:
        return True
    inner = core.jaxprs_in_params(step.equation.params) if step.equation is not None else ()
    return any(map(_has_exponentials, inner))


def _has_exponentials(jaxpr: core.Jaxpr) -> bool:
    return any(
        equation.primitive.name in _EXPONENTIALS
        or any(map(_has_exponentials, core.jaxprs_in_params(equation.params)))
        for equation in jaxpr.eqns
    )


def cuts(step: Step, avals: list[Any], is_varying: bool) -> set[str]:
    """The names of what in a step has the derivative 0 where its operand moves.

    Where the result varies, too, it is a boundary or a jump in another place of this package, but
    for a derivative that is stopped by its author.
    """
    if step.equation is None or _is_from(step, _INTEGRATORS):
        return set()
    found = _flat_primitives(step.equation)
    is_number = any(has_slope(avals[index]) for index in step.outputs)
    is_test = step.name == "is_finite" or is_nan_test(step)
    if not (is_number or is_test or _is_made_in(step.equation, _SLOPED)):
        found.add(step.name)
    return found & {"stop_gradient"} if is_varying else found


def has_slope(aval: Any) -> bool:
    """Whether a variable can have a derivative other than 0."""
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def is_nan_test(step: Step) -> bool:
    """Whether a step finds NaN: as x ≠ x."""
    return step.name == "ne" and step.inputs[0] == step.inputs[1]


def _flat_primitives(equation: Any) -> set[str]:
    """The names of what is flat in an equation, and in the loop or the branch that it is.

    A function with a derivative of its own has that.
    """
    name = equation.primitive.name
    if name.startswith(("custom_jvp", "custom_vjp")):
        return set()
    inner = [one for jaxpr in core.jaxprs_in_params(equation.params) for one in jaxpr.eqns]
    compares = name in COMPARISONS and is_float(equation.invars[0].aval)
    if name == "stop_gradient":
        is_flat = _is_stopped_by_author(equation)
    else:
        is_flat = (name in FLAT or compares) and not _is_made_in(equation, _SLOPED)
    own = {name} if is_flat else set()
    return own.union(*map(_flat_primitives, inner))


def _is_stopped_by_author(equation: Any) -> bool:
    """Whether the program itself calls `stop_gradient`, and not a function of a library."""
    called = ""
    for frame in _frames(equation):
        if _JAX not in frame.file_name.replace("\\", "/"):
            break
        called = frame.function_name
    return called == "stop_gradient" and not _is_made_in(equation, _SLOPED)


def _frames(equation: Any) -> list[Any]:
    """Where in the code an equation was made, from the inside."""
    traceback = getattr(getattr(equation, "source_info", None), "traceback", None)
    return [] if traceback is None else traceback.frames


def _is_made_in(equation: Any, folders: tuple[str, ...]) -> bool:
    """Whether any of some folders has the code that calls JAX, or that of JAX which is called."""
    for frame in _frames(equation):
        path = frame.file_name.replace("\\", "/")
        if any(folder in path for folder in folders):
            return True
        if _JAX not in path:
            return False
    return False


def _is_from(step: Step, folders: tuple[str, ...]) -> bool:
    """Whether any of some folders has code that made a step."""
    paths = [frame.file_name for frame in _frames(step.equation)]
    return any(folder in path.replace("\\", "/") for path in paths for folder in folders)


def _any(_aval: Any) -> bool:
    return True


def _compares(jaxpr: core.Jaxpr, is_meant: Callable[[Any], bool] = _any) -> bool:
    return any(
        (equation.primitive.name in (*COMPARISONS, *_JUMPS) and is_meant(equation.invars[0].aval))
        or (
            equation.primitive.name not in _WHOLE_CALLS
            and any(_compares(one, is_meant) for one in core.jaxprs_in_params(equation.params))
        )
        for equation in jaxpr.eqns
    )
