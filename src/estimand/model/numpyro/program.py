"""Expectation programs: NumPyro models whose return value is the quantity of interest.

``@expectation`` (or ``expect(model, f)``) makes a program, calling the program binds data and
gives an `Expectation`. Binding traces the model abstractly, so that everything that can be known
to be wrong is reported before any work starts; no density is evaluated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, overload

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.extend.core import ClosedJaxpr, Literal, jaxprs_in_params
from numpyro import handlers

from estimand.model.enumerated import EnumeratedModel
from estimand.model.layout import (
    Output,
    ProgramError,
    as_numbers,
    in_working_precision,
    log_positive_part,
    shape_of_key,
    written_order,
)
from estimand.model.numpyro.constants import Held
from estimand.model.numpyro.enumeration import summed_out
from estimand.model.numpyro.failures import explained
from estimand.model.numpyro.model import NumpyroModel, identity_of, source_text
from estimand.model.numpyro.sharing import is_same_with_arguments, shared_key
from estimand.model.numpyro.sites import (
    TRACING,
    Latent,
    Marked,
    SameIntegers,
    Watch,
    check_sites,
    drawing_from_prior,
    site_contents,
)
from estimand.model.protocol import Axes, Bound, Identity, described, kept
from estimand.runtime import SentOnce, in_precision, this_precision
from estimand.settings import checked_names

if TYPE_CHECKING:
    from estimand.model.numpyro.conditional import ConditionalProgram


NOTHING_OBSERVED = (
    "the program was given data and observes nothing, neither by obs= nor by a factor: this is an "
    "expectation under the prior"
)


class Arguments(SentOnce):
    """The arguments of one call and the constants that the program's functions hold, split into
    arrays that go into compiled code as arguments and everything else, which is compiled in.

    Equality and hash see the second kind only, so that fresh data of equal shape reuse the
    compiled code. The constants are the last leaves.
    """

    def __init__(self, leaves: list[Any], treedef: Any, is_array: tuple[bool, ...], held: Held):
        num_data = len(leaves) - len(held.constants)
        self.held = held
        self.numbers = tuple(
            kept(leaf) if place < num_data else leaf
            for place, (leaf, flag) in enumerate(zip(leaves, is_array, strict=True))
            if flag
        )
        self.leaves, self.treedef, self.is_array = tuple(leaves), treedef, is_array
        self.num_data = num_data
        self.num_lifted = sum(is_array[num_data:])
        static = (leaf for leaf, flag in zip(leaves, is_array, strict=True) if not flag)
        self.compared_by = (treedef, is_array, num_data, tuple(map(_constant_key, static)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Arguments) and self.compared_by == other.compared_by

    def __hash__(self) -> int:
        return hash(self.compared_by)

    @property
    def arrays(self) -> tuple[jax.Array, ...]:
        """Data and constants in the precision that JAX works in here."""
        return tuple(map(in_working_precision, self.numbers))

    def arguments(self, arrays: tuple[Any, ...]) -> tuple[tuple, dict]:
        """The model's ``(args, kwargs)`` with `arrays` in the places of the data."""
        return jax.tree.unflatten(self.treedef, self._filled(arrays)[: self.num_data])

    def functions(self, arrays: tuple[jax.Array, ...]) -> tuple[Callable, Callable | None]:
        """Model and target with `arrays` in the places of the constants that they hold."""
        return self.held.functions(self._filled(arrays)[self.num_data :])

    @property
    def written_functions(self) -> tuple[Callable, Callable | None]:
        """Model and target with the constants that they held."""
        return self.held.functions(self.leaves[self.num_data :])

    def _filled(self, arrays: tuple[jax.Array, ...]) -> list[Any]:
        dynamic = iter(arrays)
        pairs = zip(self.leaves, self.is_array, strict=True)
        return [next(dynamic) if flag else leaf for leaf, flag in pairs]


def _constant_key(leaf: Any) -> Hashable:
    if isinstance(leaf, np.ndarray | jax.Array):
        return ("array", leaf.shape, str(leaf.dtype), np.asarray(leaf).tobytes())
    try:
        hash(leaf)
    except TypeError:
        return _Itself(leaf)
    return (type(leaf), leaf)


class _Itself:
    """An object that equals nothing but itself."""

    def __init__(self, held: Any):
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.held is other.held

    def __hash__(self) -> int:
        return id(self.held)


class ExpectationProgram(SentOnce):
    """A model with a quantity of interest; calling it with data gives an `Expectation`.

    Made by `expectation` and `expect`. `model` is the undecorated NumPyro model. `shown` are the
    deterministic sites whose values are kept with draws; `axes` the names of dimensions.

    Examples:
        >>> def model(y):
        ...     x = numpyro.sample("x", dist.Normal(0, 1))
        ...     numpyro.sample("y", dist.Normal(x, 1), obs=y)
        >>> mean = ep.expect(model, lambda sites: sites["x"])
        >>> abs(float(ep.estimate_expectation(mean(2.0))) - 1) < 0.05
        True
    """

    shown: tuple[str, ...] = ()
    axes: Axes | None = None

    def __init__(
        self,
        model: Callable,
        target: Callable[[dict[str, Any]], Any] | None = None,
        *,
        enumerate: bool | None = None,  # noqa: A002 - NumPyro's word for it
    ):
        if not callable(model):
            raise TypeError(f"an expectation program is made from a function, not from {model!r}.")
        if enumerate not in (None, True, False):
            raise ValueError(f"enumerate must be True, False or None; it is {enumerate!r}.")
        self.model = model
        self.target = target
        self.enumerate = enumerate
        functools.update_wrapper(self, model, updated=[])
        self.name = getattr(model, "__name__", type(model).__name__)

    @property
    def signature(self) -> inspect.Signature:
        """What it is called with: the data."""
        return inspect.signature(self.model)

    def __call__(self, *args: Any, **kwargs: Any) -> Expectation:
        return bind(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<expectation program {self.name!r}; call it with data>"

    @property
    def source(self) -> str:
        """The text of the program's functions, for records."""
        functions = (self.model,) if self.target is None else (self.model, self.target)
        return "\n".join(dict.fromkeys(map(source_text, functions)))

    def content(self, data: Arguments) -> Any:
        """What two runs of the same program have in common; it is hashed for records."""
        return self.functions(data)

    def run(self, data: Arguments, arrays: tuple[jax.Array, ...]) -> Any:
        """Runs the model under the caller's handlers and gives the quantity of interest."""
        args, kwargs = data.arguments(arrays)
        return self.called(*self.functions(data, arrays), args, kwargs)

    @staticmethod
    def called(model: Callable, target: Callable | None, args: tuple, kwargs: dict) -> Any:
        """The quantity of interest of a model's call, under the caller's handlers."""
        if target is None:
            with SameIntegers():
                return model(*args, **kwargs)
        with handlers.trace() as sites, SameIntegers():
            returned = model(*args, **kwargs)
        values = {
            name: site["value"]
            for name, site in sites.items()
            if site["type"] in ("sample", "deterministic")
        }
        return target({**values, "return": returned})

    def functions(
        self, data: Arguments, arrays: tuple[jax.Array, ...] | None = None
    ) -> tuple[Callable, Callable | None]:
        """Model and target, with `arrays` or their own numbers in the places of constants."""
        if not data.num_lifted:
            return self.model, self.target
        return data.written_functions if arrays is None else data.functions(arrays)


@overload
def expectation(model: Callable, *, enumerate: bool | None = None) -> ExpectationProgram: ...


@overload
def expectation(*, enumerate: bool | None) -> Callable[[Callable], ExpectationProgram]: ...


@checked_names
def expectation(
    model: Callable | None = None,
    *,
    enumerate: bool | None = None,  # noqa: A002 - NumPyro's word for it
) -> ExpectationProgram | Callable[[Callable], ExpectationProgram]:
    """Makes a NumPyro model an expectation program: its return value is the quantity of interest.

    Args:
        model: a NumPyro model that returns a number, or a tuple, dict or array of numbers.
        enumerate: which discrete sites are summed out in every evaluation instead of drawn. By
            default those that are marked with ``infer={"enumerate": "parallel"}``, and others of
            few values where that is cheap; the notes of a result say which. False sums out none.
            True sums out all, or says why it cannot.

    Examples:
        >>> @ep.expectation
        ... def program(y):
        ...     x = numpyro.sample("x", dist.Normal(0, 1))
        ...     numpyro.sample("y", dist.Normal(x, 1), obs=y)
        ...     return x**3
        >>> program(2.0)
        <expectation of program: 1 output, 1 latent site (x)>
        >>> @ep.expectation(enumerate=False)
        ... def drawn():
        ...     return numpyro.sample("k", dist.Bernoulli(0.3))
        >>> drawn()
        <expectation of drawn: 1 output, 1 latent site (k)>
    """
    if model is None:
        return functools.partial(ExpectationProgram, enumerate=enumerate)
    return ExpectationProgram(model, enumerate=enumerate)


@overload
def expect(
    model: Callable, f: Callable[[dict[str, Any]], Any], *, enumerate: bool | None = None
) -> ExpectationProgram: ...


@overload
def expect(
    model: Callable,
    f: Callable[[dict[str, Any]], Any] | None = None,
    *,
    given: Callable[[dict[str, Any]], Any],
    enumerate: bool | None = None,
) -> ConditionalProgram: ...


@checked_names
def expect(
    model: Callable,
    f: Callable[[dict[str, Any]], Any] | None = None,
    *,
    given: Callable[[dict[str, Any]], Any] | None = None,
    enumerate: bool | None = None,  # noqa: A002 - NumPyro's word for it
) -> ExpectationProgram | ConditionalProgram:
    """An expectation program from a model that you cannot edit and a function of its sites.

    Args:
        model: a NumPyro model.
        f: the quantity of interest, of a dict that has the value of every site of the model by
            name, and the model's return value as ``"return"``. With `given` it is that return
            value, if it is left out.
        given: a condition A, a bool of the same dict: the program's expectation is E[f | A], and
            its posterior is that given A, too. A may be rare.
        enumerate: as in `expectation`.

    Examples:
        >>> def model(y):
        ...     x = numpyro.sample("x", dist.Normal(0, 1))
        ...     numpyro.sample("y", dist.Normal(x, 1), obs=y)
        >>> ep.expect(model, lambda sites: sites["x"] ** 3)(2.0)
        <expectation of model: 1 output, 1 latent site (x)>
        >>> beyond = ep.expect(model, lambda sites: sites["x"], given=lambda sites: sites["x"] > 6)
        >>> round(ep.estimate_expectation(beyond(2.0)).value, 2)
        6.1
    """
    if isinstance(model, ExpectationProgram):
        model = model.model
    if given is not None:
        from estimand.model.numpyro.conditional import ConditionalProgram

        return ConditionalProgram(model, f or _returned, given, enumerate)
    if f is None:
        raise TypeError("expect: f is missing: the quantity of interest, a function of the sites.")
    return ExpectationProgram(model, f, enumerate=enumerate)


def _returned(sites: dict[str, Any]) -> Any:
    return sites["return"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Expectation(Bound):
    """A program bound to data: the expectation of its return value under its own posterior.

    `gamma1_plus`, `gamma1_minus` and `gamma2` are ordinary NumPyro models without arguments.
    A program with several outputs can be unpacked or indexed to give them one by one.

    Examples:
        >>> program(2.0)
        <expectation of program: 1 output, 1 latent site (x)>
        >>> @ep.expectation
        ... def both():
        ...     x = numpyro.sample("x", dist.Normal(0, 1))
        ...     return {"square": x**2, "tail": x > 2}
        >>> abs(float(ep.estimate_expectation(both()["square"])) - 1) < 0.05
        True
    """

    program: ExpectationProgram
    data: Arguments
    latents: tuple[Latent, ...]
    output: Output | None
    path: tuple[Any, ...] = ()

    @property
    def model(self) -> NumpyroModel | EnumeratedModel:  # type: ignore[override]
        """The program as the estimators see it.

        It is made anew if the program has changed since, by a global or an attribute that it
        reads: what is compiled for the one must not be taken for the other.
        """
        try:
            found = _inspect(self.program, self.data, self.data.arrays, self.output is not None)
        except TypeError as error:
            raise self._wrong_types(error) from error
        program = self.program
        name = f"{program.name} {found.latents} {program.shown}"
        trace = shared_key(found.jaxpr, program, name)
        known = self.__dict__.get("_model")
        if known is None or known[0] != trace:
            known = trace, summed_out(NumpyroModel.of(self, trace), self), found.has_observations
            self.__dict__["_model"] = known
        return known[1]

    def _wrong_types(self, error: TypeError) -> ProgramError:
        here = this_precision()
        other = "single" if here == "double" else "double"
        return ProgramError(
            f"program {self.program.name!r} fails in {here} precision: {error}\nLet the types of "
            "arrays follow those of the data (jnp.zeros_like(y), or jnp.zeros(n) without a dtype), "
            f'or estimate with precision="{other}".'
        )

    @property
    def arrays(self) -> tuple[jax.Array, ...]:  # type: ignore[override]
        """The data, as they go into compiled code."""
        return self.data.arrays

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        if "_model" not in self.__dict__:
            _ = self.model
        _, model, has_observations = self.__dict__["_model"]
        notes = [model.note] if isinstance(model, EnumeratedModel) else []
        if not has_observations and any(self.data.is_array[: self.data.num_data]):
            return (*notes, NOTHING_OBSERVED)
        given = _by_name(self.program, *self.data.arguments(self.data.numbers))
        drawn = (latent.name for latent in self.latents if given.get(latent.name) is not None)
        notes += [
            f"{name!r} is an argument, and a site that is drawn: was obs={name} forgotten?"
            for name in drawn
        ]
        return tuple(notes)

    def identity(self) -> Identity:
        return identity_of(self.program, self.data, self.path, self.data.numbers)

    @property
    def num_constants(self) -> int:  # type: ignore[override]
        return self.data.num_lifted

    @property
    def axes(self) -> Axes | None:  # type: ignore[override]
        return self.program.axes

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.program.name + "".join(f"[{key!r}]" for key in self.path)

    def run(self, arrays: tuple[jax.Array, ...] | None = None) -> Any:
        """The quantity of interest, run under the caller's handlers."""
        value = self.program.run(self.data, self.data.arrays if arrays is None else arrays)
        for key in self.path:
            value = value[key]
        return value

    @property
    def gamma1_plus(self) -> Callable[[], Any]:
        """The NumPyro model with density γ·max(f, 0)."""
        return self._signed_model("gamma1_plus", 1)

    @property
    def gamma1_minus(self) -> Callable[[], Any]:
        """The NumPyro model with density γ·max(−f, 0)."""
        return self._signed_model("gamma1_minus", -1)

    @property
    def gamma2(self) -> Callable[[], Any]:
        """The NumPyro model itself, with density γ."""

        def gamma2() -> Any:
            return self.run()

        return gamma2

    def _signed_model(self, part: str, sign: int) -> Callable[[], Any]:
        if self.output is None or self.output.size != 1:
            raise ProgramError(
                f"{self.name} has several outputs, each with its own {part}: "
                f"take one of them first, as in expectation[0].{part}."
            )

        def model() -> Any:
            value = self.run()
            numpyro.factor(f"_{part}", log_positive_part(sign * as_numbers(value)[0]))
            return value

        model.__name__ = part
        return model

    def _elements(self) -> list[Any]:
        if self.output is None or (
            self.output.treedef.num_nodes == 1 and not self.output.shapes[0]
        ):
            raise TypeError(f"{self.name} has one output and cannot be unpacked or indexed.")
        indices = self.output.tree(range(len(self.output.places)))
        if isinstance(indices, int):
            return list(range(self.output.shapes[0][0]))
        return list(indices) if isinstance(indices, dict) else list(range(len(indices)))

    def __iter__(self) -> Iterator[Expectation]:
        return (self[key] for key in self._elements())

    def __len__(self) -> int:
        return len(self._elements())

    def __getitem__(self, key: Any) -> Expectation:
        keys = self._elements()
        if isinstance(key, int) and isinstance(keys[0], int) and -len(keys) <= key < 0:
            key += len(keys)
        if key not in keys:
            raise KeyError(f"{self.name} has no output {key!r}; it has {keys}.")
        assert self.output is not None
        template = self.output.unflatten(np.zeros(self.output.size))
        return dataclasses.replace(
            self,
            path=(*self.path, key),
            output=_describe_output(template[key], self.name, self._indicators()[key]),
        )

    def _indicators(self) -> Any:
        assert self.output is not None
        leaves = [
            np.full(shape, flag) if shape else flag
            for shape, flag in zip(self.output.shapes, self.output.is_indicator, strict=True)
        ]
        return self.output.tree(leaves)

    def __repr__(self) -> str:
        size = 0 if self.output is None else self.output.size
        sites = described(size, [latent.name for latent in self.latents])
        return f"<expectation of {self.name}: {sites}>"


def bind(
    program: ExpectationProgram, args: tuple, kwargs: dict, *, needs_output: bool = True
) -> Expectation:
    """Binds data to a program, after checking all that an abstract trace can show.

    A program whose types fit together in single precision alone is bound in that one.
    """
    try:
        with in_precision("double"):
            return _bind(program, args, kwargs, needs_output)
    except Marked:
        from estimand.model.numpyro.branching import bind_branching

        return bind_branching(program, args, kwargs, needs_output)
    except TypeError as error:
        with contextlib.suppress(Exception), in_precision("single"):
            return _bind(program, args, kwargs, needs_output)
        _reraise(program, error)
    except Exception as error:  # noqa: BLE001 - raised again, with the line it comes from
        _reraise(program, error)


def _reraise(program: ExpectationProgram, error: Exception) -> NoReturn:
    """Raises the error with the program's line; as it is, if that is not known."""
    known = explained(program.name, error)
    if known is error:
        raise error
    raise known from error


def _bind(
    program: ExpectationProgram, args: tuple, kwargs: dict, needs_output: bool
) -> Expectation:
    leaves, treedef = jax.tree.flatten((args, kwargs))
    leaves = [plain_column(leaf) for leaf in leaves]
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise ProgramError(
            f"the data of program {program.name!r} are traced by JAX: bind and estimate outside "
            "of jit, vmap and grad."
        )
    held = Held((program.model, program.target))
    asked = _Question(program, [*leaves, *held.constants], treedef, held, needs_output)
    try:
        found = asked.inspect()
    except CONCRETE as error:
        raise needs_value(program.name) from error
    latents, output = found.structure
    _check_missing_data(program, args, kwargs, latents)
    again = asked.inspect()
    if again.structure != found.structure:
        raise ProgramError(
            f"program {program.name!r} has a different structure on every call: first "
            f"{_structure(latents, output)}, then {_structure(*again.structure)}. Sites and return "
            "value must be the same in every run; remove the state that the program keeps."
        )
    if not _are_equal(_constants(program.name, again.jaxpr), _constants(program.name, found.jaxpr)):
        raise ProgramError(
            f"program {program.name!r} computes with different numbers on every call: it keeps "
            "state, or draws random numbers that are not sites. Draw with numpyro.sample, and "
            "remove the state."
        )
    return Expectation(program, asked.arguments(asked.traceable(found)), latents, output)


def rebound(known: Expectation, args: tuple, kwargs: dict) -> Expectation | None:
    """A program with other data of the same shapes and types, at a fifth of the cost of binding.

    None if they are not the same, or if the values of data are compiled in. Data that are
    impossible are refused as by `bind`.
    """
    leaves, treedef = jax.tree.flatten((args, kwargs))
    leaves = [plain_column(leaf) for leaf in leaves]
    data = known.data
    if treedef != data.treedef:
        return None
    each = zip(leaves, data.leaves, data.is_array, strict=False)  # the constants come last
    if not all(_is_alike(leaf, other) for leaf, other, flag in each if flag):
        return None
    again = Arguments([*leaves, *data.leaves[data.num_data :]], treedef, data.is_array, data.held)
    if again != data:
        return None
    _check_data(known.program, again)
    return dataclasses.replace(known, data=again)


def _check_data(program: ExpectationProgram, data: Arguments) -> None:
    """Runs the program with its data known, so that all sites can be checked."""
    written = Arguments(list(data.leaves), data.treedef, (False,) * len(data.leaves), data.held)

    def run(rng_key: jax.Array) -> int:
        with TRACING, handlers.trace() as sites, drawing_from_prior(rng_key), Watch(program.name):
            program.run(written, ())
        check_sites(program.name, sites)
        return 0

    with in_precision("double"):
        jax.eval_shape(run, shape_of_key())


def _is_alike(leaf: Any, other: Any) -> bool:
    """Whether a number or an array has the shape and the type of another one."""
    if type(other) is float or type(leaf) is float:
        return type(leaf) is type(other)
    return _is_array(leaf) and (leaf.shape, leaf.dtype) == (other.shape, other.dtype)


# What JAX raises where Python needs the value of something traced.
CONCRETE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def needs_value(program: str) -> ProgramError:
    """The error of a program that uses a traced value as a Python number."""
    return ProgramError(
        f"program {program!r} needs the value of a latent site as a Python number, and JAX traces "
        "it without one. Use jnp.where or jax.lax.cond instead of if, and functions of jax.numpy "
        "instead of numpy, math, max and min; & and | instead of `and` and `or`, as in "
        "(1 < x) & (x < 2); or, if it is the value of a discrete site, mark that site with "
        'infer={"branching": True}.'
    )


class _Inspection(NamedTuple):
    """What an abstract trace, which computes nothing, shows of a program."""

    latents: tuple[Latent, ...]
    output: Output | None
    has_observations: bool
    jaxpr: ClosedJaxpr

    @property
    def structure(self) -> tuple[tuple[Latent, ...], Output | None]:
        return self.latents, self.output


class _Question(NamedTuple):
    """A call of a program, of which it is not known yet what can be passed as arrays."""

    program: ExpectationProgram
    leaves: list[Any]
    treedef: Any
    held: Held
    needs_output: bool

    @property
    def num_constants(self) -> int:
        return len(self.held.constants)

    def arguments(self, is_array: tuple[bool, ...] | None = None) -> Arguments:
        flags = is_array or (False,) * len(self.leaves)
        return Arguments(self.leaves, self.treedef, flags, self.held)

    def inspect(self, is_array: tuple[bool, ...] | None = None) -> _Inspection:
        data = self.arguments(is_array)
        return _inspect(self.program, data, data.arrays, self.needs_output)

    def traceable(self, found: _Inspection) -> tuple[bool, ...]:
        """As many leaves as possible as arrays: data with floats, else arrays alone; constants.

        What cannot be traced (Python control flow over data) is compiled in, and so are Python's
        own integers: they are sizes and options more often than data, and know no overflow.
        """
        data = self.leaves[: len(self.leaves) - self.num_constants]
        numbers = tuple(isinstance(leaf, float) or _is_array(leaf) for leaf in data)
        arrays = tuple(_is_array(leaf) for leaf in data)
        written = (False,) * self.num_constants
        for flags in dict.fromkeys([numbers, arrays]):
            if any(flags) and (traced := self._traced((*flags, *written), found)):
                return (*flags, *self._liftable(flags, traced))
        nothing = (False,) * len(data)
        return (*nothing, *self._liftable(nothing, found))

    def _traced(self, flags: tuple[bool, ...], found: _Inspection) -> _Inspection | None:
        """The program with arrays in these places, if it has the same structure."""
        try:
            traced = self.inspect(flags)
        except Exception:  # noqa: BLE001 - whatever the model does with a tracer, we compile in
            return None
        return traced if traced.structure == found.structure else None

    def _liftable(self, data: tuple[bool, ...], found: _Inspection) -> tuple[bool, ...]:
        """The constants that can be arguments: all, or those that can be on their own."""
        count = self.num_constants
        everything, nothing = (True,) * count, (False,) * count
        if not count or self._is_same(data, everything, found):
            return everything
        alone = tuple(
            self._is_same(data, tuple(k == place for k in range(count)), found)
            for place in range(count)
        )
        return alone if any(alone) and self._is_same(data, alone, found) else nothing

    def _is_same(
        self, data: tuple[bool, ...], lifted: tuple[bool, ...], found: _Inspection
    ) -> bool:
        traced = self._traced((*data, *lifted), found)
        if traced is None:
            return False
        arrays = self.arguments((*data, *lifted)).arrays
        return is_same_with_arguments(found.jaxpr, traced.jaxpr, arrays[sum(data) :])


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic | jax.Array) and leaf.dtype.kind in "biuf"


def plain_column(leaf: Any) -> Any:
    """A table's column (a pandas or polars Series) as a NumPy array."""
    is_column = hasattr(leaf, "__array__") and getattr(leaf, "ndim", None) == 1
    if is_column and not isinstance(leaf, np.ndarray | np.generic | jax.Array):
        return np.asarray(leaf)
    return leaf


def _inspect(
    program: ExpectationProgram, data: Arguments, arrays: tuple, needs_output: bool
) -> _Inspection:
    """Sites and output of the program, from an abstract trace that computes nothing.

    The trace has everything in it that an estimator may ask of the program.
    """
    found: list[tuple[tuple[Latent, ...], Output | None, bool]] = []

    def run(rng_key: jax.Array, arrays: tuple) -> list[Any]:
        with TRACING, handlers.trace() as sites, drawing_from_prior(rng_key), Watch(program.name):
            value = program.run(data, arrays)
        latents = check_sites(program.name, sites)
        output = _describe_output(value, program.name) if needs_output else None
        is_observed = (site["is_observed"] for site in sites.values() if site["type"] == "sample")
        found.append((latents, output, any(is_observed)))
        contents = [*site_contents(sites), *(sites[name]["value"] for name in program.shown)]
        return contents if output is None else [output.numbers(value), contents]

    jaxpr = jax.make_jaxpr(run)(shape_of_key(), arrays)
    return _Inspection(*found[0], jaxpr)


def expression_of(program: ExpectationProgram, data: Arguments) -> Hashable:
    """A digest of the expression that JAX traces."""
    with in_precision("double"):
        found = _inspect(program, data, data.arrays, True)
    return shared_key(found.jaxpr, "", f"{found.latents} {program.shown}")


def _constants(program: str, jaxpr: Any) -> list[Any]:
    """The numbers that are written into a traced function."""
    found: list[Any] = []
    if isinstance(jaxpr, ClosedJaxpr):
        jaxpr, found = jaxpr.jaxpr, list(jaxpr.consts)
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("debug_callback", "debug_print"):
            raise ProgramError(
                f"program {program!r} has a jax.debug.print or jax.debug.callback, which would be "
                "compiled once for every particle: remove it."
            )
        found.extend(atom.val for atom in equation.invars if isinstance(atom, Literal))
        for inner in jaxprs_in_params(equation.params):
            found.extend(_constants(program, inner))
    found.extend(atom.val for atom in jaxpr.outvars if isinstance(atom, Literal))
    return found


def _are_equal(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(map(_is_equal, first, second))


def _is_equal(first: Any, second: Any) -> bool:
    if first is second or not hasattr(first, "dtype"):
        return first is second or first == second
    if jnp.issubdtype(first.dtype, jax.dtypes.prng_key):
        first, second = jax.random.key_data(first), jax.random.key_data(second)
    one, other = np.asarray(first), np.asarray(second)
    return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")


def _structure(latents: tuple[Latent, ...], output: Output | None) -> str:
    sites = ", ".join(f"{latent.name}{list(latent.shape)}" for latent in latents)
    return f"sites {sites or 'none'}" + (f" and outputs {output.shapes}" if output else "")


def _by_name(program: ExpectationProgram, args: tuple, kwargs: dict) -> dict[str, Any]:
    """The arguments by their names, with the defaults; none where these cannot be known."""
    try:
        bound = inspect.signature(program.model).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return {}
    bound.apply_defaults()
    return bound.arguments


def _check_missing_data(
    program: ExpectationProgram, args: tuple, kwargs: dict, latents: tuple[Latent, ...]
) -> None:
    given = _by_name(program, args, kwargs)
    for latent in latents:
        if latent.name in given and given[latent.name] is None:
            raise ProgramError(
                f"site {latent.name!r} of program {program.name!r} is unobserved because the "
                f"argument {latent.name!r} is None. Pass its data; or, if it is meant to be "
                "drawn, remove the argument."
            )


def _describe_output(value: Any, program: str, is_indicator: Any = None) -> Output:
    where = f"the return value of program {program!r}"
    _check_regular(value, where)
    leaves, _ = jax.tree.flatten_with_path(value, is_leaf=lambda leaf: leaf is None)
    if not leaves:
        raise ProgramError(f"{where} is empty: return the quantity of interest.")
    for path, leaf in leaves:
        name = where + (f" at {jax.tree_util.keystr(path)}" if path else "")
        if leaf is None:
            raise ProgramError(
                f"{name} is None: end the program with `return` and the quantity of interest."
            )
        dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
        if not (jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)):
            raise ProgramError(f"{name} is of type {type(leaf).__name__}: return real numbers.")
        if jnp.issubdtype(dtype, jnp.complexfloating):
            raise ProgramError(
                f"{name} is complex, and expectations are of real numbers: "
                "return its real and imaginary parts as a tuple."
            )
        if 0 in jnp.shape(leaf):
            raise ProgramError(f"{name} is an empty array: return at least one number.")
    if is_indicator is None:
        flags = [bool(jnp.issubdtype(jnp.result_type(leaf), jnp.bool_)) for _, leaf in leaves]
    else:
        flags = [bool(np.all(flag)) for flag in jax.tree.leaves(is_indicator)]
    order = written_order(value)
    shapes = [jnp.shape(leaves[place][1]) for place in order]
    return Output.like(value, shapes, [flags[place] for place in order])


def _check_regular(value: Any, where: str) -> None:
    if isinstance(value, dist.Distribution):
        raise ProgramError(
            f"{where} is a distribution, {type(value).__name__}: draw from it by numpyro.sample, "
            "or return its .mean or .cdf(…)."
        )
    if isinstance(value, Iterator):
        raise ProgramError(f"{where} is of type {type(value).__name__}: return real numbers.")
    if isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            _check_regular(item, where)
    if isinstance(value, list):
        shapes = {str(jax.tree.map(np.shape, item)) for item in value}
        if len(shapes) > 1:
            raise ProgramError(
                f"{where} is a ragged list, with elements of shapes {sorted(shapes)}: "
                "return a tuple or a dict of outputs."
            )
