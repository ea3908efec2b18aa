"""Where the sites of a model are in a flat position, and what an output's structure is."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

PARTS = ("gamma1_plus", "gamma1_minus", "gamma2")


class ProgramError(ValueError):
    """A program, its data or its return value cannot be used; the message says what to do.

    Examples:
        >>> @ep.expectation
        ... def forgetful():
        ...     numpyro.sample("x", dist.Normal(0, 1))
        >>> try:
        ...     forgetful()
        ... except ep.ProgramError as error:
        ...     print(error)
        the return value of program 'forgetful' is None: end the program with `return` and ...
    """


class Coordinates(NamedTuple):
    """Which coordinates positions are in; plain ones are unconstrained real numbers.

    Standardised coordinates are (x − location) / scale where a prior has these; blended ones lie
    between these and the model's own, by a number for each coordinate that is the last array of
    the data. With relaxed integers a real number stands for each integer, in an interval of length
    one.
    """

    is_standardised: bool = False
    is_relaxed: bool = False
    is_blended: bool = False


PLAIN = Coordinates()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """A latent quantity of a model, and its place in the flat position.

    Args:
        name: of the site.
        shape: of its value.
        start: of its coordinates in the position.
        coordinate_shape: of its coordinates, which are fewer for a simplex or a Cholesky factor.
        is_discrete: whether its values are.
        is_continuous: whether its coordinates are real numbers.
        is_integer: discrete, and a real number can stand for each value.
        is_transformed: whether coordinates and value differ.
        is_proper: whether its prior can be drawn from.
        has_heavy_tails: whether some of its prior's moments do not exist.
        event_dim: trailing axes that are drawn as a whole.
    """

    name: str
    shape: tuple[int, ...] = ()
    start: int = 0
    coordinate_shape: tuple[int, ...] = ()
    is_discrete: bool = False
    is_continuous: bool = True
    is_integer: bool = False
    is_transformed: bool = False
    is_proper: bool = True
    has_heavy_tails: bool = False
    event_dim: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.coordinate_shape)

    @property
    def stop(self) -> int:
        return self.start + self.size

    def take(self, position: jax.Array) -> jax.Array:
        """The coordinates of this site."""
        return position[self.start : self.stop].reshape(self.coordinate_shape)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The sites of a model, continuous ones first, as a flat position has them."""

    sites: tuple[Site, ...]

    @property
    def dimension(self) -> int:
        return self.sites[-1].stop if self.sites else 0

    @functools.cached_property
    def num_continuous(self) -> int:
        return sum(site.size for site in self.sites if site.is_continuous)

    @property
    def discrete_sites(self) -> tuple[str, ...]:
        """Names of the sites whose coordinates are not real numbers."""
        return tuple(site.name for site in self.sites if not site.is_continuous)

    @property
    def has_discrete(self) -> bool:
        """Whether a site has discrete values, in whatever coordinates."""
        return any(site.is_discrete for site in self.sites)

    @property
    def is_relaxable(self) -> bool:
        """Whether every discrete site is one of integers."""
        return all(site.is_integer for site in self.sites if site.is_discrete)

    @property
    def improper_sites(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.sites if not site.is_proper)

    @property
    def has_heavy_tails(self) -> bool:
        """Whether some moments of a prior do not exist."""
        return any(site.has_heavy_tails for site in self.sites)

    @property
    def has_heavy_coordinates(self) -> bool:
        """Whether some of these are coordinates themselves, and not the logarithm of one."""
        return any(site.has_heavy_tails and not site.is_transformed for site in self.sites)

    @property
    def is_transformed(self) -> np.ndarray:
        """For every coordinate whether it is another number than the site's value."""
        flags = np.array([site.is_transformed for site in self.sites], bool)
        return np.repeat(flags, np.array([site.size for site in self.sites], int))

    @property
    def discrete_elements(self) -> np.ndarray:
        """For every coordinate the number of the discrete element it belongs to; −1 if none."""
        owner, count = np.full(self.dimension, -1), 0
        for site in self.sites:
            if site.is_discrete:
                batch = site.shape[: len(site.shape) - site.event_dim]
                elements = np.arange(math.prod(batch)).reshape(batch + (1,) * site.event_dim)
                owner[site.start : site.stop] = (
                    count + np.broadcast_to(elements, site.shape).ravel()
                )
                count += math.prod(batch)
        return owner


@dataclasses.dataclass(frozen=True)
class Output:
    """The structure of a return value: a pytree of real arrays, flattened to `size` numbers.

    Dicts keep the order in which they were written, where JAX sorts their keys: `places` has for
    each leaf its place among JAX's.
    """

    treedef: Any
    places: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    is_indicator: tuple[bool, ...]
    labels: tuple[str, ...]

    @classmethod
    def like(
        cls,
        value: Any,
        shapes: Sequence[tuple[int, ...]],
        is_indicator: Sequence[bool],
        labels: Sequence[str] | None = None,
    ) -> Output:
        """The structure of a value whose leaves, as they are written, have these shapes."""
        places = written_order(value)
        if labels is None:
            paths = [path for path, _ in jax.tree.flatten_with_path(value)[0]]
            labels = [
                _label(paths[place], index)
                for place, shape in zip(places, shapes, strict=True)
                for index in np.ndindex(*shape)
            ]
        return cls(
            jax.tree.structure(value), places, tuple(shapes), tuple(is_indicator), tuple(labels)
        )

    @classmethod
    def scalar(cls, *, is_indicator: bool = False) -> Output:
        """One number; `is_indicator` if it is only ever 0 or 1."""
        return cls.like(0, ((),), (is_indicator,))

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def structure(self) -> tuple[Any, tuple[tuple[int, ...], ...]]:
        """What two return values have in common that differ in the order of their keys alone."""
        shapes = dict(zip(self.places, self.shapes, strict=True))
        return self.treedef, tuple(shapes[place] for place in range(len(shapes)))

    def in_order_of(self, other: Output) -> Output:
        """The same with the leaves in another one's order, which has the same structure."""
        flags = dict(zip(self.places, self.is_indicator, strict=True))
        return dataclasses.replace(
            other, is_indicator=tuple(flags[place] for place in other.places)
        )

    def numbers(self, value: Any) -> jax.Array:
        """A return value as one flat array, in the order of the outputs."""
        leaves = jax.tree.leaves(value)
        return as_numbers([leaves[place] for place in self.places])

    def ravel(self, value: Any) -> np.ndarray:
        """The same of a value that is known, in NumPy."""
        leaves = jax.tree.leaves(value)
        return np.concatenate([np.ravel(leaves[place]) for place in self.places])

    def tree(self, leaves: Iterable[Any]) -> Any:
        """Puts leaves into the structure of the return value."""
        placed = dict(zip(self.places, leaves, strict=True))
        order = dict(zip(self.places, range(len(self.places)), strict=True))
        sorted_keys, ranks = (
            jax.tree.unflatten(self.treedef, [each[place] for place in range(len(each))])
            for each in (placed, order)
        )
        return _as_written(sorted_keys, ranks)

    def unflatten(self, flat: Any) -> Any:
        """Puts `size` numbers back into the structure of the return value."""
        leaves, start = [], 0
        for shape in self.shapes:
            stop = start + math.prod(shape)
            leaves.append(flat[start:stop].reshape(shape) if shape else flat[start].item())
            start = stop
        return self.tree(leaves)


def _children(value: Any, *others: Any) -> Iterator[tuple[Any, ...]]:
    """What a dict, tuple or list holds, beside what others of the same structure hold there."""
    if isinstance(value, dict):
        return ((value[key], *(other[key] for other in others)) for key in value)
    return zip(value, *others, strict=True)


def written_order(value: Any) -> tuple[int, ...]:
    """For each leaf, in the order in which a value was written, its place among JAX's leaves."""
    leaves, treedef = jax.tree.flatten(value)
    return tuple(_places(value, jax.tree.unflatten(treedef, range(len(leaves)))))


def _places(value: Any, places: Any) -> Iterator[int]:
    if isinstance(value, dict | tuple | list) and not isinstance(places, int):
        for child, inner in _children(value, places):
            yield from _places(child, inner)
    else:
        yield from jax.tree.leaves(places)


def _as_written(value: Any, ranks: Any) -> Any:
    """A value whose dicts have their keys in the order of the ranks of their leaves."""
    if isinstance(ranks, int):
        return value
    if type(value) is dict:
        order = sorted(value, key=lambda key: min(jax.tree.leaves(ranks[key]), default=-1))
        return {key: _as_written(value[key], ranks[key]) for key in order}
    if type(value) in (tuple, list):
        return type(value)(_as_written(*pair) for pair in _children(value, ranks))
    return value


def _label(path: Sequence[Any], index: Sequence[int]) -> str:
    """The place of a number in a return value: ``tail``, ``tail.left``, ``tail[0, 1]``."""
    label = ""
    for entry in path:
        name = getattr(entry, "key", getattr(entry, "name", None))
        if isinstance(name, str):
            label += f".{name}" if label else name
        else:
            label += f"[{name if name is not None else entry.idx!r}]"
    return label + (f"[{', '.join(map(str, index))}]" if index else "")


def shape_of_key() -> jax.ShapeDtypeStruct:
    """What a random key looks like, for abstract traces."""
    return jax.eval_shape(jax.random.key, 0)


def in_working_precision(number: Any) -> jax.Array:
    """A number or array in the precision that JAX works in here, and known while tracing.

    Python's floats adapt to the precision of others, as they do in JAX.
    """
    with jax.ensure_compile_time_eval():
        if type(number) is float:
            return jnp.asarray(number)
        dtype = jax.dtypes.canonicalize_dtype(number.dtype)
        if dtype == number.dtype:
            return jnp.asarray(number, dtype)
        # NumPy converts: JAX would compile a program for it.
        given = np.asarray(number)
        array = given.astype(dtype)
        if dtype.kind in "iu" and (array != given).any():
            raise ProgramError(
                f"the data have integers such as {given[array != given].flat[0]}, which {dtype} "
                "does not hold: compute in double precision, or give them as floats."
            )
        return jnp.asarray(array, dtype)


def as_numbers(value: Any) -> jax.Array:
    """A return value as one flat array of floats; bool and int count as numbers."""
    dtype = jnp.result_type(float)
    leaves = [jnp.ravel(jnp.asarray(leaf)).astype(dtype) for leaf in jax.tree.leaves(value)]
    return jnp.concatenate(leaves)


def log_positive_part(value: jax.Array) -> jax.Array:
    """log max(value, 0), with gradient 0 instead of NaN where it is −inf; NaN stays NaN."""
    is_zero = value <= 0
    return jnp.where(is_zero, -jnp.inf, jnp.log(jnp.where(is_zero, 1.0, value)))
