"""One of the three densities of a model as arrays: γ, γf⁺ or γf⁻, in plain JAX over a `Model`.

One evaluation gives log prior, log likelihood and every output. Which part, which output and which
data are arrays, not code: one compilation serves them all.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal, jaxprs_in_params

from estimand.model import (
    PARTS,
    PLAIN,
    Bound,
    Coordinates,
    Layout,
    Model,
    ProgramError,
    Redraw,
    shape_of_key,
)
from estimand.runtime import NUM_KEPT_MODELS, compiled_per_model
from estimand.target import Interval, Look, Reading, SignedLog, read

# What a gradient counts as in budgets and costs, in evaluations. A convention; not measured.
GRADIENT_COST = 3
# Up to this many continuous dimensions a gradient is taken in forward mode, above it in reverse
# mode; programs with loops keep forward mode longer, because reverse mode stores every iteration.
# benchmarks/gradient_mode.py measures both; docs/performance.md has the numbers.
FORWARD_MODE_DIMENSIONS = {"straight": 1, "with loops": 4}
# How soft comparisons are on the rungs of a ladder, relative to their spread in prior draws.
SOFTNESS = tuple(4.0**-k for k in range(8))
# Signs of outputs take the values of arrays up to this size into account.
MAX_KNOWN_ELEMENTS = 4096
# A model is read once in each of its coordinates.
NUM_KEPT_READINGS = 4 * NUM_KEPT_MODELS

# What is assumed where an expression does not tell: how often a loop runs until its condition ends
# it, and how many numbers a callback computes, a few milliseconds' worth; one that takes all rows
# of a batch at once may be as cheap as anything. Not measured.
_ASSUMED_LOOPS = 100
_ASSUMED_CALLBACK = 4e6
_ASSUMED_VECTOR_CALLBACK = 1e5
_MATRIX_STEPS = ("cholesky", "triangular_solve", "lu", "qr", "eigh", "svd")

# Calls whose equations are looked into.
_CALLS = ("jit", "pjit", "closed_call")

_SIGNS = dict(zip(PARTS, (1, -1, 0), strict=True))
# In the place of a sign: the distance of an output from a number, whatever its sign.
MAGNITUDE = 2
_NO_CENTRE = np.float64(0.0)


class Terms(NamedTuple):
    """What one evaluation of a part knows of a position; each is a log density.

    `log_target` is a number, or for a softened density a ladder of them: log f with comparisons
    from soft to sharp, and exact at the end.
    """

    log_prior: jax.Array
    log_likelihood: jax.Array
    log_target: jax.Array

    @property
    def log_weight(self) -> jax.Array:
        """log of target over prior: the importance weight of a prior draw."""
        is_ladder = self.log_target.ndim > self.log_likelihood.ndim
        return self.log_likelihood + (self.log_target[..., -1] if is_ladder else self.log_target)

    def without(self, is_bad: jax.Array) -> Terms:
        """The same with density 0 at bad positions."""
        ladder = is_bad.reshape(is_bad.shape + (1,) * (self.log_target.ndim - is_bad.ndim))
        return self._replace(
            log_likelihood=jnp.where(is_bad, -jnp.inf, self.log_likelihood),
            log_target=jnp.where(ladder, 0.0, self.log_target),
        )


class Work(NamedTuple):
    """What one evaluation takes, by its expression: steps, and the numbers that these compute."""

    num_steps: float
    num_numbers: float


class PathPoint(NamedTuple):
    """A point on the way from the prior to the target: prior · likelihood^a · f^b.

    Along a ladder of n targets b·n counts its rungs: up to the first one the softest f grows from
    power 0 to 1, and from each rung to the next the one is exchanged for the other.
    """

    likelihood: jax.Array
    target: jax.Array

    def log_density(self, terms: Terms) -> jax.Array:
        """The tempered log density; −inf where a term is NaN or the density is infinite."""
        value = (
            terms.log_prior
            + _scale(self.likelihood, terms.log_likelihood)
            + self._log_target(terms)
        )
        return jnp.where(value < jnp.inf, value, -jnp.inf)

    def _log_target(self, terms: Terms) -> jax.Array:
        if terms.log_target.ndim == terms.log_likelihood.ndim:
            return _scale(self.target, terms.log_target)
        count = terms.log_target.shape[-1]
        shares = jnp.clip(1 - jnp.abs(count * self.target - jnp.arange(1, count + 1)), 0.0, 1.0)
        shares = jnp.broadcast_to(shares, terms.log_target.shape)
        return jnp.sum(_scale(shares, terms.log_target), axis=-1)


def _scale(coefficient: jax.Array, log_value: jax.Array) -> jax.Array:
    """coefficient · log_value with 0 · (−inf) = 0: a factor to the power 0 is 1."""
    return jnp.where(coefficient == 0, 0.0, coefficient * log_value)


def is_invalid(log_density: jax.Array) -> jax.Array:
    """NaN or +inf: not the logarithm of a density."""
    return ~(log_density < jnp.inf)


def log_distance(sign: jax.Array, log_abs: jax.Array, centre: jax.Array) -> jax.Array:
    """log |sign · exp(log_abs) − centre|; −inf, with derivative 0, where it is 0."""
    is_centred = centre != 0
    log_centre = jnp.log(jnp.abs(jnp.where(is_centred, centre, 1.0)))
    larger = jnp.maximum(log_abs, log_centre)
    top = lax.stop_gradient(jnp.where(jnp.isfinite(larger), larger, 0.0))
    difference = sign * jnp.exp(log_abs - top) - jnp.sign(centre) * jnp.exp(log_centre - top)
    is_zero = difference == 0
    distance = jnp.log(jnp.abs(jnp.where(is_zero, 1.0, difference))) + top
    return jnp.where(is_centred, jnp.where(is_zero, -jnp.inf, distance), log_abs)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["arrays", "sign", "output", "centre", "scales", "softness"],
    meta_fields=["model", "written", "has_looks", "condition"],
)
@dataclasses.dataclass(frozen=True)
class Density:
    """One of the three densities of a bound program.

    `written` are constants of the program by their place among the arrays, if what is evaluated
    depends on their values; they are compiled in. With `has_looks` the terms of sums stand behind
    the outputs, as further ones (`looks`). `centre` is what `magnitude` measures an output from.
    Of an expectation given A, `condition` is the place of 1_A behind the outputs: its γ is γ·1_A,
    and the outputs are 0 outside of A.

    Examples:
        >>> density = ep.Density.of(program(2.0))
        >>> density.dimension
        1
    """

    model: Model
    arrays: tuple[jax.Array, ...]
    sign: Any
    output: Any
    centre: Any = _NO_CENTRE
    scales: Any = None
    softness: Any = None
    written: tuple[tuple[int, Constant], ...] = ()
    has_looks: bool = False
    condition: int | None = None

    @classmethod
    def of(cls, bound: Bound) -> Density:
        """γ of a model with its data."""
        arrays = bound.arrays
        density = cls(bound.model, arrays, np.int32(0), np.int32(0), condition=bound.condition)
        density = density.part("gamma2")
        reading = density._reading
        count = len(arrays)
        constants = tuple(
            (place, Constant.of(arrays[place]))
            for place in range(count - bound.num_constants, count)
            if _is_known(arrays[place])
        )
        if reading is None or reading.with_known(_inputs(constants)) is reading:
            return density
        return dataclasses.replace(density, written=constants)

    @property
    def compiled_for(self) -> tuple[Model, tuple]:
        """What compiled code is kept by: the model, in all its coordinates."""
        return self.model.in_coordinates(PLAIN), self.written

    @property
    def layout(self) -> Layout:
        """Where the sites are in a position."""
        return Layout(self.model.sites)

    def part(self, name: str, output: int = 0) -> Density:
        """γ1⁺, γ1⁻ (of one output) or γ2 of the same program."""
        if name == "gamma2" and self.condition is not None:
            name, output = "gamma1_plus", self.condition
        return dataclasses.replace(self, sign=np.int32(_SIGNS[name]), output=np.int32(output))

    def magnitude(self, output: int, centre: float = 0.0) -> Density:
        """γ·|f − centre| of one output, or of a term behind the outputs."""
        number = np.asarray(centre, jnp.result_type(float))
        return dataclasses.replace(
            self, sign=np.int32(MAGNITUDE), output=np.int32(output), centre=number
        )

    def with_looks(self) -> Density:
        """The same with the terms of sums behind the outputs, and with `magnitude`."""
        return dataclasses.replace(self, has_looks=True)

    @property
    def looks(self) -> tuple[Look, ...]:
        """The terms of sums in the return value and in the density; see `with_looks`."""
        return () if self._reading is None else self._reading.looks

    @property
    def known_signs(self) -> np.ndarray:
        """For each output 1 if its expression is never negative, −1 if never positive, else 0."""
        reading = self._on_support._reading
        return np.zeros(0, int) if reading is None else reading.signs_with(self._known_inputs())

    @functools.cached_property
    def bounds(self) -> Interval:
        """Bounds of each output, and of each term behind them, by their expressions."""
        reading = self._on_support._reading
        assert reading is not None
        return reading.bounds_with(self._known_inputs())

    def bounds_of(self, reading: Reading) -> Interval:
        """Bounds by another reading of a function of position and arrays."""
        return reading.bounds_with(self._known_inputs())

    @property
    def known_zeros(self) -> np.ndarray:
        """For each output whether by its expression it is 0 wherever it is a number."""
        if self._reading is None:
            return np.zeros(0, bool)
        is_zero = (self.bounds.low == 0) & (self.bounds.high == 0)
        return is_zero[: self.num_outputs]

    @property
    def _on_support(self) -> Density:
        """The same in coordinates in which no integer is outside of its support."""
        layout = self.layout
        return self.relaxed() if layout.has_discrete and layout.is_relaxable else self

    def farthest(self, output: int, centre: float = 0.0) -> float:
        """How far from a number an output, or a term behind them, can be."""
        ends = self.bounds.low[output], self.bounds.high[output]
        return max(abs(float(end) - centre) for end in ends)

    def _known_inputs(self) -> dict[int, np.ndarray]:
        values = [
            (place, Constant.of(array))
            for place, array in enumerate(self.arrays)
            if _is_known(array)
        ]
        return _inputs(values)

    @property
    def has_comparisons(self) -> bool:
        """Whether the return expression has comparisons that can be softened."""
        return self._reading is not None and self._reading.has_comparisons

    @property
    def has_exponentials(self) -> bool:
        """Whether anything in the return expression grows like an exponential, or may."""
        return self._reading is not None and self._reading.has_exponentials

    def may_jump(self, place: int) -> bool:
        """Whether an output may jump as an array moves, where no comparison can be softened."""
        return self._reading is not None and self._reading.may_jump(1 + place)

    @property
    def counts(self) -> np.ndarray:
        """For each of the `margins` whether it is of a count of other comparisons."""
        return np.zeros(0, bool) if self._reading is None else self._reading.counts

    @property
    def has_nested(self) -> bool:
        """Whether a comparison in the return expression is of what others decide."""
        return self._reading is not None and self._reading.has_nested

    def has_hidden_edges(self, place: int) -> bool:
        """Whether γ may jump as an array moves, where no comparison shows it."""
        return self._reading is not None and self._reading.auxiliary_may_jump(1 + place)

    def cuts(self, place: int, output: int) -> set[str]:
        """What has the derivative 0 between an array and γ or an output, though these depend on it
        there."""
        return set() if self._reading is None else self._reading.cuts(1 + place, output)

    def moves_edges(self, place: int) -> bool:
        """Whether a comparison in γ moves with an array."""
        return self._reading is not None and self._reading.moves_edges(1 + place)

    def softened(self, scales: np.ndarray, softness: Sequence[float] = (*SOFTNESS, 0.0)) -> Density:
        """The same with a ladder of targets that leads into events which no draw meets.

        Args:
            scales: for every comparison in the return expression, the spread of its margins in
                draws, relative to which it is softened; for `softened_outputs` also a row of these
                for each rung.
            softness: of each rung of the ladder; 0 is the target itself.
        """
        dtype = jnp.result_type(float)
        return dataclasses.replace(
            self, scales=np.asarray(scales, dtype), softness=np.asarray(softness, dtype)
        )

    def standardised(self) -> Density:
        """The same with coordinates (x − location) / scale where a prior has these.

        They are the "non-centred" ones: a hierarchy whose scale is itself unknown, a funnel in
        the model's own coordinates, starts from a standard distribution in these.
        """
        wanted = self.model.coordinates._replace(is_standardised=True, is_blended=False)
        return self._in_coordinates(wanted)

    def without_outputs(self) -> Density:
        """γ alone: nothing of the return value is evaluated, but for a condition."""
        if self.condition is not None:
            return self.part("gamma2")
        return dataclasses.replace(
            self.part("gamma2"),
            model=self.model.without_output(),
            scales=None,
            softness=None,
            written=(),
            has_looks=False,
        )

    def relaxed(self) -> Density:
        """The same with a real number for each integer; see `Coordinates`."""
        return self._in_coordinates(self.model.coordinates._replace(is_relaxed=True))

    def blended(self, centredness: np.ndarray) -> Density:
        """The same in coordinates between standardised ones and the model's own.

        Args:
            centredness: for every coordinate 0 for (x − location) / scale, 1 for the model's own,
                or what is between them.
        """
        wanted = self.model.coordinates._replace(is_standardised=True, is_blended=True)
        density = self._in_coordinates(wanted)
        if not density.model.coordinates.is_blended:
            return density
        array: Any = np.asarray(centredness, jnp.result_type(float))
        return dataclasses.replace(density, arrays=(*density.arrays, array))

    def _in_coordinates(self, coordinates: Coordinates) -> Density:
        is_blended = self.model.coordinates.is_blended
        arrays = self.arrays[:-1] if is_blended else self.arrays
        model = self.model.in_coordinates(coordinates)
        return dataclasses.replace(self, model=model, arrays=arrays)

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def dimension(self) -> int:
        return self.layout.dimension

    @property
    def num_outputs(self) -> int:
        return self.first_look if self.condition is None else self.condition

    @property
    def first_look(self) -> int:
        """The place of the first term behind the outputs, and behind a condition."""
        return 0 if self.model.output is None else self.model.output.size

    @property
    def work(self) -> Work:
        """What one evaluation takes, as far as the expression tells; the same on every machine."""
        avals = tuple(jax.typeof(array) for array in self.arrays)
        return _work(self.model, avals, jnp.result_type(float), self.has_looks)

    @property
    def num_rungs(self) -> int:
        """Length of the ladder of targets; 1 unless softened."""
        return 1 if self.scales is None else len(self.softness)

    # --- evaluation of one position; estimators vmap over particles ---

    def terms(self, position: jax.Array) -> Terms:
        """Log prior (with Jacobian), log likelihood and log f± at a position."""
        reading, scales = self._reading, self.scales
        if reading is None or scales is None:
            return self.evaluate(position)[0]
        softness = jnp.asarray(self.softness, position.dtype)
        (log_prior, log_likelihood), outputs = jax.vmap(
            lambda soft: reading.softened(soft, scales, position, self.arrays),
            out_axes=((None, None), 0),
        )(softness)
        log_target = jax.vmap(self._log_part, in_axes=(0, None))(outputs, log_likelihood)
        return Terms(log_prior, log_likelihood, log_target)

    def evaluate(self, position: jax.Array) -> tuple[Terms, SignedLog]:
        """Terms and every output, as sign and log-magnitude, in one evaluation."""
        if self._reading is None:
            found = self.model.evaluate(position, self.arrays)
            nothing = SignedLog(jnp.zeros(0), jnp.zeros(0))
            return Terms(found.log_prior, found.log_likelihood, jnp.zeros(())), nothing
        (log_prior, log_likelihood), outputs = self._reading.lifted(position, self.arrays)
        log_target = self._log_part(outputs, log_likelihood)
        return Terms(log_prior, log_likelihood, log_target), outputs

    def _log_part(self, outputs: SignedLog, log_likelihood: jax.Array) -> jax.Array:
        """log f± of this part's output, which may be anything where the likelihood is 0."""
        sign, log_abs = outputs.sign[self.output], outputs.log_abs[self.output]
        log_f = jnp.where(self.sign * sign > 0, log_abs, -jnp.inf)
        if self.has_looks:
            distance = log_distance(sign, log_abs, jnp.asarray(self.centre, log_abs.dtype))
            log_f = jnp.where(self.sign == MAGNITUDE, distance, log_f)
        log_f = jnp.where(jnp.isnan(log_abs), jnp.nan, log_f)
        log_f = jnp.where((log_likelihood == -jnp.inf) & is_invalid(log_f), -jnp.inf, log_f)
        return jnp.where(self.sign == 0, 0.0, log_f)

    @property
    def _reading(self) -> Reading | None:
        if self.model.output is None:
            return None
        avals = tuple(jax.typeof(array) for array in self.arrays)
        return _reading(self.model, avals, jnp.result_type(float), self.written, self.has_looks)

    def softened_outputs(self, position: jax.Array) -> SignedLog:
        """Every output with softened comparisons, a row for each rung of the ladder."""
        reading, scales = self._reading, self.scales
        assert reading is not None
        assert scales is not None
        softness = jnp.asarray(self.softness, position.dtype)
        scales = jnp.broadcast_to(scales, (softness.size, jnp.shape(scales)[-1]))
        return jax.vmap(
            lambda soft, scale: reading.softened(soft, scale, position, self.arrays)[1]
        )(softness, scales)

    def margins(self, position: jax.Array) -> jax.Array:
        """By how much every comparison of the return expression holds at a position."""
        assert self._reading is not None
        return self._reading.margins(position, self.arrays)[1]

    def edges(self, position: jax.Array) -> jax.Array:
        """By how much every comparison behind γ holds at a position."""
        assert self._reading is not None
        return self._reading.edges(position, self.arrays)

    def outputs(self, position: jax.Array) -> jax.Array:
        """Every output at a position, without a condition behind them."""
        return self.model.evaluate(position, self.arrays).outputs[: self.num_outputs]

    def constrain(self, position: jax.Array) -> dict[str, jax.Array]:
        """The values of the latent sites at a position, in the model's own coordinates."""
        return self.model.values(position, self.arrays)

    def position_of(self, values: dict[str, jax.Array]) -> jax.Array:
        """The position at which the latent sites have these values."""
        return self.model.assess(values, self.arrays).position

    def draw_prior(self, rng_key: jax.Array) -> tuple[jax.Array, Terms]:
        """An exact draw from the prior, and its terms, in one evaluation."""
        position = self.model.draw(rng_key, self.arrays)
        return position, self.terms(position)

    def terms_at(self, values: dict[str, jax.Array]) -> tuple[jax.Array, Terms]:
        """Position and terms for given values of the sites; the log prior is without Jacobian."""
        found = self.model.assess(values, self.arrays)
        log_target = jnp.zeros(())
        if self.model.output is not None:
            outputs = SignedLog(jnp.sign(found.outputs), _log_abs(found.outputs))
            log_target = self._log_part(outputs, found.log_likelihood)
        return found.position, Terms(found.log_prior, found.log_likelihood, log_target)

    def value_and_gradient(
        self, position: jax.Array, point: PathPoint
    ) -> tuple[Terms, jax.Array, jax.Array]:
        """Terms, tempered log density and its gradient; gradients that are NaN become 0."""

        def tempered(u: jax.Array) -> tuple[jax.Array, Terms]:
            terms = self.terms(u)
            return point.log_density(terms), terms

        if gradient_mode(self) == "forward":
            value, slopes, terms = _forward_gradient(tempered, position)
        else:
            (value, terms), slopes = jax.value_and_grad(tempered, has_aux=True)(position)
        return terms, value, jnp.where(jnp.isfinite(slopes), slopes, 0.0)

    def redraw(self, rng_key: jax.Array, position: jax.Array) -> Redraw:
        """For every discrete coordinate a draw from its prior given the position."""
        return self.model.redraw(rng_key, position, self.arrays)

    # --- what the estimators need to ask before they start ---

    def require_prior(self, asker: str) -> None:
        """Refuses programs whose prior cannot be drawn from."""
        if self.layout.improper_sites:
            raise ProgramError(
                f"{asker} starts from prior draws, and the prior of site "
                f"{self.layout.improper_sites[0]!r} of program {self.name!r} is improper. Give it "
                "a proper prior, or use ImportanceSampling(proposal=...) with a guide."
            )

    def require_continuous(self, asker: str, needs: str = "gradients") -> None:
        """Refuses programs with discrete latents."""
        if self.layout.discrete_sites:
            raise ProgramError(
                f"{asker} needs {needs}, and site {self.layout.discrete_sites[0]!r} of program "
                f"{self.name!r} is discrete. Use RandomWalk, which proposes discrete sites from "
                "their prior, or ImportanceSampling."
            )


@compiled_per_model(optimisation=0)
def to_plain_coordinates(density: Density, positions: jax.Array) -> jax.Array:
    """Positions, one per row, as the density in plain coordinates has them."""
    plain = density._in_coordinates(PLAIN)
    return jax.vmap(lambda position: plain.position_of(density.constrain(position)))(positions)


def _forward_gradient(
    function: Callable[[jax.Array], tuple[jax.Array, Terms]], position: jax.Array
) -> tuple[jax.Array, jax.Array, Terms]:
    def slope(direction: jax.Array) -> tuple[jax.Array, jax.Array, Terms]:
        return jax.jvp(function, (position,), (direction,), has_aux=True)

    basis = jnp.eye(position.size, dtype=position.dtype)
    return jax.vmap(slope, out_axes=(None, 0, None))(basis)


def has_varying_scales(density: Density) -> bool:
    """Whether standardised coordinates depend on other sites in more than their location."""
    avals = tuple(jax.typeof(array) for array in density.arrays)
    return _has_varying_scales(density.model, avals, jnp.result_type(float))


def gradient_mode(density: Density) -> str:
    """``"forward"`` or ``"reverse"``, whichever is cheaper by dimension and can be traced."""
    return _gradient_mode(density.model, tuple(jax.typeof(array) for array in density.arrays))


class Constant(NamedTuple):
    """An array that is compared by its content."""

    dtype: np.dtype
    shape: tuple[int, ...]
    content: bytes

    @classmethod
    def of(cls, array: jax.Array) -> Constant:
        value = np.asarray(array)
        return cls(value.dtype, value.shape, value.tobytes())

    @property
    def value(self) -> np.ndarray:
        return np.frombuffer(self.content, self.dtype).reshape(self.shape)


def _is_known(array: jax.Array) -> bool:
    kinds = (jnp.floating, jnp.integer, jnp.bool_)
    is_real = any(jnp.issubdtype(array.dtype, kind) for kind in kinds)
    is_small = array.size <= MAX_KNOWN_ELEMENTS
    return is_real and is_small and not isinstance(array, jax.core.Tracer)


def _inputs(constants: Iterable[tuple[int, Constant]]) -> dict[int, np.ndarray]:
    """Values by their place in a reading, where the position comes before the data."""
    return {1 + place: constant.value for place, constant in constants}


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


@functools.lru_cache(maxsize=NUM_KEPT_READINGS)
def _reading(
    model: Model,
    avals: tuple,
    dtype: Any,
    written: tuple[tuple[int, Constant], ...],
    has_looks: bool,
) -> Reading:
    """The traced model: log densities along with the outputs that are read."""
    if written:
        return _reading(model, avals, dtype, (), has_looks).with_known(_inputs(written))

    def evaluate(position: jax.Array, arrays: tuple) -> tuple:
        found = model.evaluate(position, arrays)
        return (found.log_prior, found.log_likelihood), found.outputs

    structs = tuple(map(_struct, avals))
    dimension = Layout(model.sites).dimension
    position = jax.ShapeDtypeStruct((dimension,), dtype)
    return read(evaluate, position, structs, has_looks=has_looks, log_densities=(0, 1))


@functools.lru_cache(maxsize=NUM_KEPT_READINGS)
def _has_varying_scales(model: Model, avals: tuple, _dtype: Any) -> bool:
    """Whether the traced log scales depend on what is drawn."""

    structs = tuple(map(_struct, avals))
    jaxpr = jax.make_jaxpr(model.log_scales)(shape_of_key(), structs).jaxpr
    is_drawn = [True] + [False] * (len(jaxpr.invars) - 1)
    return any(_depends_on(jaxpr, is_drawn))


def _depends_on(jaxpr: Any, are_inputs: list[bool]) -> list[bool]:
    """Which results of a jaxpr depend on some of its inputs; calls and loops are looked into."""
    depends = {v for v, is_one in zip(jaxpr.invars, are_inputs, strict=True) if is_one}

    def is_one(atom: Any) -> bool:
        return not isinstance(atom, Literal) and atom in depends

    for equation in jaxpr.eqns:
        results = _results_depend(equation, [is_one(atom) for atom in equation.invars])
        depends.update(v for v, result in zip(equation.outvars, results, strict=True) if result)
    return [is_one(atom) for atom in jaxpr.outvars]


def _results_depend(equation: Any, inputs: list[bool]) -> list[bool]:
    inner = next(iter(jaxprs_in_params(equation.params)), None)
    name = equation.primitive.name
    if inner is not None and name in _CALLS:
        return _depends_on(inner, inputs)
    sizes = [equation.params.get(key) for key in ("num_consts", "num_carry")]
    if inner is None or name != "scan" or None in sizes:
        return [any(inputs)] * len(equation.outvars)
    first, last = sizes[0], sum(sizes)
    while True:
        results = _depends_on(inner, inputs)
        carried = [a or b for a, b in zip(inputs[first:last], results, strict=False)]
        if carried == inputs[first:last]:
            return results
        inputs = [*inputs[:first], *carried, *inputs[last:]]


@compiled_per_model(optimisation=0)
def margins(density: Density, positions: jax.Array) -> jax.Array:
    """By how much every comparison of the return expression holds, at some positions."""
    return jax.vmap(density.margins)(positions)


def _log_abs(numbers: jax.Array) -> jax.Array:
    is_zero = numbers == 0
    return jnp.where(is_zero, -jnp.inf, jnp.log(jnp.abs(jnp.where(is_zero, 1.0, numbers))))


@functools.lru_cache(maxsize=NUM_KEPT_READINGS)
def _gradient_mode(model: Model, avals: tuple) -> str:
    layout = Layout(model.sites)

    def total(position: jax.Array, arrays: tuple) -> tuple[jax.Array, Terms]:
        terms = Density(model, arrays, np.int32(1), np.int32(0)).terms(position)
        return terms.log_prior + terms.log_weight, terms

    structs = tuple(map(_struct, avals))
    position = jax.ShapeDtypeStruct((layout.dimension,), jnp.result_type(float))
    expression = jax.make_jaxpr(total)(position, structs).jaxpr
    kind = "with loops" if has_loop(expression) else "straight"
    is_small = layout.num_continuous <= FORWARD_MODE_DIMENSIONS[kind]
    preferred, other = ("forward", "reverse") if is_small else ("reverse", "forward")

    def gradient(position: jax.Array, arrays: tuple) -> jax.Array:
        function = functools.partial(total, arrays=arrays)
        if preferred == "forward":
            return _forward_gradient(function, position)[1]
        return jax.grad(function, has_aux=True)(position)[0]

    try:
        jax.eval_shape(gradient, position, structs)
    except (TypeError, ValueError):
        # A while loop has no reverse mode; a custom reverse rule has no forward mode.
        return other
    return preferred


def has_loop(jaxpr: Any) -> bool:
    """Whether an expression, or a call in it, is a loop."""
    return any(
        equation.primitive.name in ("scan", "while")
        or any(map(has_loop, jaxprs_in_params(equation.params)))
        for equation in jaxpr.eqns
    )


# --- how much work an evaluation is ---


@functools.lru_cache(maxsize=NUM_KEPT_READINGS)
def _work(model: Model, avals: tuple, dtype: Any, has_looks: bool) -> Work:
    if model.output is not None:
        return _work_of(_reading(model, avals, dtype, (), has_looks).jaxpr.jaxpr)
    position = jax.ShapeDtypeStruct((Layout(model.sites).dimension,), dtype)
    structs = tuple(map(_struct, avals))
    return _work_of(jax.make_jaxpr(model.evaluate)(position, structs).jaxpr)


def _work_of(jaxpr: Any) -> Work:
    """Loops are counted as often as they run, or as is assumed; branches by the longest."""
    works = [_work_of_step(equation) for equation in jaxpr.eqns]
    return Work(sum(work.num_steps for work in works), sum(work.num_numbers for work in works))


def _work_of_step(equation: Any) -> Work:
    name, params = equation.primitive.name, equation.params
    if "callback" in name:
        is_sequential = str(params.get("vmap_method", "sequential")).startswith("sequential")
        return Work(1, _ASSUMED_CALLBACK if is_sequential else _ASSUMED_VECTOR_CALLBACK)
    inner = [_work_of(jaxpr) for jaxpr in jaxprs_in_params(params)]
    if not inner:
        return Work(1, _numbers_in(equation))
    if name == "cond":
        return Work(*(max(numbers) for numbers in zip(*inner, strict=True)))
    times = {"scan": params.get("length", 1), "while": _ASSUMED_LOOPS}.get(name, 1)
    return Work(*(times * sum(numbers) for numbers in zip(*inner, strict=True)))


def _numbers_in(equation: Any) -> float:
    """Numbers that a step computes, or goes through to compute fewer."""
    avals = [atom.aval for atom in (*equation.invars, *equation.outvars)]
    shapes: list[tuple[int, ...]] = [aval.shape for aval in avals if hasattr(aval, "shape")]
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return math.prod(shapes[-1]) * math.prod(shapes[0][axis] for axis in contracted)
    largest = max(shapes, key=math.prod, default=())
    if equation.primitive.name in _MATRIX_STEPS:
        return math.prod(largest) * largest[-1]
    return math.prod(largest)
