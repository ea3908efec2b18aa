"""A prior as distributions by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

from estimand.model.density.calls import Drawn, Stated, check_names
from estimand.model.layout import ProgramError


class _Law(NamedTuple):
    """A distribution in pieces, so that its numbers are found among the program's constants."""

    leaves: tuple[Any, ...]
    structure: Any


class Laws(NamedTuple):
    """Distributions by name, or functions of the parameters before them."""

    laws: dict[str, Any]

    @classmethod
    def of(cls, prior: Any) -> Laws:
        if not isinstance(prior, Mapping) or not prior:
            raise TypeError(
                "from_density: prior must be a dict of NumPyro distributions by name, such as "
                f'{{"x": dist.Normal(0, 1)}}; it is {prior!r}.'
            )
        check_names("the keys of prior", list(prior))
        for name, law in prior.items():
            if isinstance(law, dist.Distribution) and law.batch_shape is None:
                raise TypeError(f"from_density: prior[{name!r}] has no shape.")
            if not isinstance(law, dist.Distribution) and not _is_function(law):
                raise TypeError(
                    f"from_density: prior[{name!r}] is {law!r}, of type {type(law).__name__}: give "
                    "a NumPyro distribution, or a function of the parameters before it that "
                    "returns one."
                )
        return cls({name: _in_pieces(law) for name, law in prior.items()})

    @property
    def shown(self) -> tuple[str, ...]:
        return ()

    @property
    def functions(self) -> list[Callable]:
        return [law for law in self.laws.values() if _is_function(law)]

    @property
    def text(self) -> str:
        lines = [
            f"#   {name} ~ {_described(law)}"
            for name, law in self.laws.items()
            if not _is_function(law)
        ]
        return "\n".join(["# prior", *lines]) + "\n" if lines else ""

    def check(self, program: str) -> None:
        """All is checked by the trace."""

    def draw(self, stated: Stated, data: tuple[tuple, dict]) -> Drawn:
        values: dict[str, jax.Array] = {}
        for name, law in self.laws.items():
            fn = _whole(law)
            if _is_function(fn):
                fn = stated.call(f"prior[{name!r}]", fn, dict(values), data)
                if not isinstance(fn, dist.Distribution):
                    raise ProgramError(
                        f"prior[{name!r}] of program {stated.name!r} gives {fn!r}: return a "
                        "NumPyro distribution."
                    )
            values[name] = numpyro.sample(name, fn)
        return Drawn(values, tuple(values))


def _is_function(law: Any) -> bool:
    is_whole = isinstance(law, dist.Distribution | _Law | type)
    return callable(law) and not is_whole


def _in_pieces(law: Any) -> Any:
    if not isinstance(law, dist.Distribution):
        return law
    leaves, structure = jax.tree.flatten(law)
    whole = jax.tree.unflatten(structure, leaves)
    return _Law(tuple(leaves), structure) if _has_all_of(whole, law) else law


def _has_all_of(copy: Any, original: Any) -> bool:
    """Whether a copy by JAX's flattening has the attributes of the original.

    It lacks those that a distribution of the user's own keeps without telling JAX.
    """
    if set(vars(original)) - set(vars(copy)):
        return False
    inner = [
        (value, getattr(copy, name))
        for name, value in vars(original).items()
        if isinstance(value, dist.Distribution | dist.transforms.Transform)
    ]
    return all(_has_all_of(mine, yours) for yours, mine in inner)


def _whole(law: Any) -> Any:
    return jax.tree.unflatten(law.structure, law.leaves) if isinstance(law, _Law) else law


def _described(law: Any) -> str:
    fn = _whole(law)
    numbers = ", ".join(
        str(leaf) if np.size(leaf) < 9 else f"array of shape {np.shape(leaf)}"
        for leaf in jax.tree.leaves(fn)
    )
    return f"{type(fn).__name__}({numbers}), shape {fn.shape()}"
