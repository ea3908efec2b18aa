"""Data sets by name, bound to a program: those of equal shapes share one trace."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, NamedTuple

import jax

from estimand.density import Density
from estimand.methods import unsuited
from estimand.model import Bound, BranchingExpectation, Expectation, ExpectationProgram, rebound
from estimand.sampling import named_key

Name = str | int


class DataSet(NamedTuple):
    """The arguments of one call of the program."""

    name: Name
    args: tuple
    kwargs: dict[str, Any]


class Entrant(NamedTuple):
    """A data set that is bound to the program, and its random key."""

    name: Name
    expectation: Bound
    key: jax.Array


@dataclasses.dataclass
class Group:
    """Data sets of equal shapes: the first of them, and those that wait for a pass.

    `reason` says why all of them are run on their own; empty if they are not.
    """

    first: Expectation
    density: Density | None
    reason: str
    waiting: list[Entrant] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, first: Expectation) -> Group:
        if isinstance(first, BranchingExpectation):
            return cls(first, None, "the program branches")
        if not any(first.data.is_array[: first.data.num_data]):
            return cls(first, None, "the data are compiled into the program")
        density = Density.of(first)
        return cls(first, density, unsuited(density))

    def density_of(self, entrant: Entrant) -> Density:
        """γ with the data of one of them."""
        assert self.density is not None
        return dataclasses.replace(self.density, arrays=entrant.expectation.arrays)


class Binder:
    """Binds data sets to a program, and puts those of equal shapes into one group."""

    def __init__(self, program: ExpectationProgram, rng_key: jax.Array):
        self.program, self.rng_key = program, rng_key
        self._groups: dict[Any, list[Group]] = {}

    @property
    def groups(self) -> list[Group]:
        return [group for groups in self._groups.values() for group in groups]

    def add(self, data: DataSet) -> Group:
        """The group that a data set waits in; raises what binding raises."""
        known = self._groups.setdefault(_shape_of(data), [])
        key = named_key(self.rng_key, "data set", data.name)
        for group in known:
            if group.density is None:
                continue
            again = rebound(group.first, data.args, data.kwargs)
            if again is not None:
                group.waiting.append(Entrant(data.name, again, key))
                return group
        group = Group.of(self.program(*data.args, **data.kwargs))
        known.append(group)
        group.waiting.append(Entrant(data.name, group.first, key))
        return group


def _shape_of(data: DataSet) -> Any:
    """Structure, shapes and types of the arguments, by which groups are looked up."""
    leaves, treedef = jax.tree.flatten((data.args, data.kwargs))
    shapes = [
        (str(leaf.dtype), tuple(leaf.shape)) if hasattr(leaf, "dtype") else type(leaf)
        for leaf in leaves
    ]
    return treedef, tuple(shapes)


def data_sets(datasets: Any) -> Iterator[DataSet]:
    """Data sets by name, or by their place."""
    named: Iterable[tuple[Name, Any]] = (
        datasets.items() if isinstance(datasets, Mapping) else enumerate(datasets)
    )
    for name, value in named:
        if isinstance(value, tuple):
            yield DataSet(name, value, {})
        elif isinstance(value, dict):
            yield DataSet(name, (), value)
        else:
            yield DataSet(name, (value,), {})


def check_data_sets(datasets: Any) -> None:
    """Refuses what is no collection of data sets."""
    if isinstance(datasets, Mapping):
        for name in datasets:
            if not isinstance(name, str | int) or isinstance(name, bool):
                raise TypeError(
                    f"estimate_many: names of data sets are text or integers; one is {name!r}."
                )
        return
    if isinstance(datasets, str | bytes) or not isinstance(datasets, Iterable):
        raise TypeError(
            "estimate_many: datasets must be a mapping from names to data, or a sequence or a "
            f"generator of data; it is {datasets!r}."
        )
    if hasattr(datasets, "columns"):
        raise TypeError(
            "estimate_many: datasets is a table. Divide it first, as in {name: {'y': "
            "rows['y'].to_numpy()} for name, rows in table.groupby('group')}."
        )


def number_of(datasets: Any) -> float:
    """How many there are; infinitely many if nobody knows."""
    return len(datasets) if isinstance(datasets, Sized) else math.inf
