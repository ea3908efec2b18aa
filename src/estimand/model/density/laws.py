"""A prior as distributions by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.transforms import Transform
from numpyro.distributions.util import lazy_property

from estimand.model.density.calls import Drawn, Stated, check_names
from estimand.model.layout import ProgramError

# Objects whose attributes say all of them.
_OBJECTS = (dist.Distribution, Transform, Constraint)


class _Law(NamedTuple):
    """A distribution and its numbers by attribute, so that these are found among the constants.

    Not its leaves: their order is another one in another process.
    """

    template: Any
    parts: dict[str, Any]


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

    @property
    def content(self) -> Any:
        return [(name, _contents(_whole(law))) for name, law in self.laws.items()]

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


def _attributes(value: Any) -> dict[str, Any]:
    """What an object was made of, without what was computed of it later."""
    kind = type(value)
    return {
        name: item
        for name, item in sorted(vars(value).items())
        if not isinstance(getattr(kind, name, None), lazy_property)
    }


def _in_pieces(value: Any) -> Any:
    if type(value) is list:
        return [_in_pieces(item) for item in value]
    if not isinstance(value, _OBJECTS):
        return value
    parts = {}
    for name, item in _attributes(value).items():
        piece = _in_pieces(item)
        if piece is not item or _is_number(item):
            parts[name] = piece
    return _Law(value, parts) if parts else value


def _is_number(item: Any) -> bool:
    is_array = isinstance(item, np.ndarray | np.generic | jax.Array)
    return isinstance(item, float) or (is_array and jnp.issubdtype(item.dtype, jnp.floating))


def _whole(law: Any) -> Any:
    if isinstance(law, list):
        return [_whole(item) for item in law]
    if not isinstance(law, _Law):
        return law
    made = copy.copy(law.template)
    vars(made).clear()
    vars(made).update(_attributes(law.template))
    vars(made).update({name: _whole(piece) for name, piece in law.parts.items()})
    return made


def _contents(value: Any) -> Any:
    """A distribution as plain data, the same in every process."""
    if isinstance(value, list | tuple):
        return [_contents(item) for item in value]
    if not isinstance(value, _OBJECTS):
        return value
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    return name, {key: _contents(item) for key, item in _attributes(value).items()}


def _described(law: Any) -> str:
    fn = _whole(law)
    numbers = [
        f"{name}={item}" if np.size(item) < 9 else f"{name}=array of shape {np.shape(item)}"
        for name, item in _attributes(fn).items()
        if not name.startswith("_") and isinstance(item, int | float | np.ndarray | jax.Array)
    ]
    return f"{type(fn).__name__}({', '.join(numbers)}), shape {fn.shape()}"
