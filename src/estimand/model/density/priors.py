"""A prior as a transform of the unit cube, or as a log density with a sampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint

from estimand.model.density.calls import (
    Drawn,
    Stated,
    call,
    check_names,
    free_name,
    one_number,
    parameters_of,
)
from estimand.model.layout import ProgramError, shape_of_key
from estimand.model.numpyro import Cube, sample_joint
from estimand.runtime import compiler_options

QUICK = compiler_options(0)


class Transformed(NamedTuple):
    """A prior transform; the parameters are shown beside the cube."""

    transform: Callable
    dimension: int
    names: tuple[str, ...] | None
    shown: tuple[str, ...]

    @classmethod
    def of(cls, transform: Any, dimension: Any, names: Any) -> Transformed:
        if not callable(transform):
            raise TypeError(f"from_density: prior_transform is no function: {transform!r}.")
        if names is not None:
            names = tuple([names] if isinstance(names, str) else names)
            check_names("names", names)
        if dimension is None:
            if names is None:
                raise TypeError("from_density: prior_transform needs dimension= or names=.")
            dimension = len(names)
        if (
            isinstance(dimension, bool)
            or not isinstance(dimension, int | np.integer)
            or dimension < 1
        ):
            raise ValueError(
                f"from_density: dimension must be a positive integer; it is {dimension!r}."
            )
        cube = jax.ShapeDtypeStruct((int(dimension),), jnp.result_type(float))
        made = cls(transform, int(dimension), names, ())
        shown = jax.eval_shape(lambda u: made.named(made.values("from_density", u)), cube)
        return made._replace(shown=tuple(shown))

    def values(self, program: str, cube: jax.Array) -> Any:
        return call(program, "prior_transform", self.transform, cube)

    def named(self, values: Any) -> dict[str, Any]:
        return parameters_of("prior_transform", values, self.names)

    @property
    def functions(self) -> list[Callable]:
        return [self.transform]

    @property
    def text(self) -> str:
        return ""

    @property
    def content(self) -> Any:
        return self.transform, self.dimension, self.names

    def check(self, program: str) -> None:
        # Compiled as one, which is quicker than step by step.
        transform = jax.jit(lambda u: self.named(self.values(program, u)), compiler_options=QUICK)
        for name, value in transform(jnp.full(self.dimension, 0.5)).items():
            if not np.isfinite(value).all():
                raise ProgramError(
                    f"prior_transform of program {program!r} gives {name} = {value} at the centre "
                    "of the cube: it must be finite inside of it."
                )

    def draw(self, stated: Stated, data: tuple[tuple, dict]) -> Drawn:  # noqa: ARG002
        site = free_name("cube", self.shown)
        cube = numpyro.sample(site, Cube(self.dimension))
        values = self.values(stated.name, cube)
        for name, value in self.named(values).items():
            numpyro.deterministic(name, value)
        return Drawn(values, (site, *self.shown))


class Given(NamedTuple):
    """A log prior, and a function that draws from it."""

    log_prior: Callable
    sampler: Callable
    supports: dict[str, Any]

    @classmethod
    def of(cls, log_prior: Any, sampler: Any, supports: Any) -> Given:
        if not callable(log_prior):
            raise TypeError(f"from_density: log_prior is no function: {log_prior!r}.")
        if not callable(sampler):
            raise TypeError(
                "from_density: log_prior needs sampler=, a function from a JAX key to a draw of "
                f"the parameters from their prior; it is {sampler!r}."
            )
        made = cls(log_prior, sampler, dict(supports or {}))
        names = made._structure("from_density").names
        for name, support in made.supports.items():
            if name not in names:
                raise ValueError(
                    f"from_density: supports has {name!r}, and the parameters that sampler draws "
                    f"are {list(names)}."
                )
            if not isinstance(support, Constraint) or support.is_discrete:
                raise TypeError(
                    f"from_density: supports[{name!r}] is {support!r}: give a continuous "
                    "constraint of numpyro.distributions.constraints."
                )
        return made

    @property
    def shown(self) -> tuple[str, ...]:
        return ()

    @property
    def functions(self) -> list[Callable]:
        return [self.log_prior, self.sampler]

    @property
    def text(self) -> str:
        lines = [f"#   {name}: {support}" for name, support in self.supports.items()]
        return "\n".join(["# supports", *lines]) + "\n" if lines else ""

    @property
    def content(self) -> Any:
        supports = {name: repr(support) for name, support in self.supports.items()}
        return self.log_prior, self.sampler, supports

    def check(self, program: str) -> None:
        """All is checked by the trace."""

    def _structure(self, program: str) -> _Structure:
        def draw(rng_key: jax.Array) -> Any:
            drawn = call(program, "sampler", self.sampler, rng_key)
            parameters_of("sampler", drawn, None)
            return drawn

        found = jax.eval_shape(draw, shape_of_key())
        shapes = {key: leaf.shape for key, leaf in parameters_of("sampler", found, None).items()}
        return _Structure(shapes, jax.tree.structure(found))

    def draw(self, stated: Stated, data: tuple[tuple, dict]) -> Drawn:  # noqa: ARG002
        structure = self._structure(stated.name)

        def log_prior(named: dict[str, jax.Array]) -> jax.Array:
            value = call(stated.name, "log_prior", self.log_prior, structure.whole(named))
            return one_number(stated.name, "log_prior", value).astype(jnp.result_type(float))

        def sampler(rng_key: jax.Array) -> dict[str, jax.Array]:
            return parameters_of("sampler", self.sampler(rng_key), None)

        supports = {
            name: (shape, self.supports.get(name, constraints.real))
            for name, shape in structure.shapes.items()
        }
        named = sample_joint(log_prior, sampler, supports)
        return Drawn(structure.whole(named), structure.names)


class _Structure(NamedTuple):
    """The parameters that a sampler draws: shapes by name, and how they are put together."""

    shapes: dict[str, tuple[int, ...]]
    treedef: Any

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.shapes)

    def whole(self, named: dict[str, jax.Array]) -> Any:
        return jax.tree.unflatten(self.treedef, [named[name] for name in self.shapes])
