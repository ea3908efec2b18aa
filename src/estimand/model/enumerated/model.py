"""A model whose discrete sites are summed out in every evaluation: a model without them.

γ(x) = Σ_z γ(x, z), and in the place of f is its mean given the rest,
F(x) = Σ_z γ(x, z) f(x, z) / γ(x). Then E[f] = ∫ γF / ∫ γ, and ∫ γ|F| is never more than ∫ Σ_z γ|f|.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from estimand.model.enumerated.plan import Plan, plan_of
from estimand.model.enumerated.reach import Fixed
from estimand.model.enumerated.trace import Apart, traced
from estimand.model.layout import Coordinates, Layout, Output, Site
from estimand.model.protocol import Assessment, Data, Evaluation, Identity, Model, Redraw
from estimand.runtime import NUM_KEPT_MODELS


class Labels(NamedTuple):
    """A discrete site that is summed out: its name, its shape, and the values of each element."""

    name: str
    shape: tuple[int, ...]
    supports: tuple[tuple[float, ...], ...]


class Splittable(Model, Protocol):
    """A model that knows its log density site by site; its last sites are summed out."""

    def apart(self, position: jax.Array, data: Data, num_kept: int) -> Apart: ...

    def in_coordinates(self, coordinates: Coordinates) -> Splittable: ...

    def without_output(self) -> Splittable: ...

    def keeping_plain(self, names: tuple[str, ...]) -> Splittable:
        """The same with some sites in plain coordinates, whatever those of the others are."""


class Look(NamedTuple):
    """Values of data that the plan depends on: their place, type and content."""

    place: int
    dtype: str
    shape: tuple[int, ...]
    content: bytes

    @property
    def value(self) -> np.ndarray:
        return np.frombuffer(self.content, self.dtype).reshape(self.shape)


@dataclasses.dataclass(frozen=True)
class EnumeratedModel:
    """A model without the sites that are summed out.

    `inner` has them, as its last sites. `looks` are the data that decide which label each datum
    depends on, such as the group of a row; other data share compiled code.
    """

    inner: Splittable
    labels: tuple[Labels, ...]
    looks: tuple[Look, ...]

    @classmethod
    def of(cls, inner: Splittable, labels: tuple[Labels, ...], data: Data) -> EnumeratedModel:
        """The model without some discrete sites, which are its last ones.

        Raises:
            TooManyError: if the sum would need too large a table.
            MixedError: if a site that is kept cannot be without them.
        """
        looked: dict[int, np.ndarray] = {}

        def look(place: int) -> Fixed:
            def value() -> np.ndarray:
                looked[place] = np.asarray(data[place])
                return looked[place]

            return Fixed(value)

        names = tuple(site.name for site in labels)
        inner = inner.keeping_plain(names)
        model = cls(inner, labels, ())
        avals = tuple(jax.typeof(array) for array in data)
        plan = model._made(avals, {place: look(place) for place in range(len(data))})
        _check_kept(model.sites, plan)
        mixed = tuple(model.sites[k].name for k in plan.mixed)
        looks = tuple(
            Look(place, str(value.dtype), value.shape, value.tobytes())
            for place, value in sorted(looked.items())
        )
        return cls(inner.keeping_plain((*names, *mixed)), labels, looks)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def output(self) -> Output | None:
        return self.inner.output

    @property
    def coordinates(self) -> Coordinates:
        return self.inner.coordinates

    @property
    def sites(self) -> tuple[Site, ...]:
        names = {site.name for site in self.labels}
        return tuple(site for site in self.inner.sites if site.name not in names)

    def in_coordinates(self, coordinates: Coordinates) -> EnumeratedModel:
        return dataclasses.replace(self, inner=self.inner.in_coordinates(coordinates))

    def without_output(self) -> EnumeratedModel:
        return dataclasses.replace(self, inner=self.inner.without_output())

    def identity(self, data: Data) -> Identity:
        return self.inner.identity(data)

    # --- one position at a time ---

    def draw(self, rng_key: jax.Array, data: Data) -> jax.Array:
        return self.inner.draw(rng_key, data)[: self._dimension]

    def evaluate(self, position: jax.Array, data: Data) -> Evaluation:
        return Evaluation(*self.plan(data).evaluate(position, data))

    def assess(self, values: dict[str, jax.Array], data: Data) -> Assessment:
        default = {
            site.name: jnp.array([support[0] for support in site.supports], int).reshape(site.shape)
            for site in self.labels
        }
        kept = {site.name: values[site.name] for site in self.sites}
        inner = self.inner.assess({**kept, **default}, data)
        found = self.evaluate(inner.position[: self._dimension], data)
        # The Jacobian does not depend on the labels.
        jacobian = self.inner.evaluate(inner.position, data).log_prior - inner.log_prior
        return Assessment(
            position=inner.position[: self._dimension],
            log_prior=found.log_prior - jacobian,
            log_likelihood=found.log_likelihood,
            outputs=found.outputs,
        )

    def values(self, position: jax.Array, data: Data) -> dict[str, jax.Array]:
        found = self.inner.values(self._whole(position), data)
        return {site.name: found[site.name] for site in self.sites}

    def redraw(self, rng_key: jax.Array, position: jax.Array, data: Data) -> Redraw:
        found = self.inner.redraw(rng_key, self._whole(position), data)
        count = int(Layout(self.sites).discrete_elements.max()) + 1
        return Redraw(
            found.position[: self._dimension], found.log_before[:count], found.log_after[:count]
        )

    def log_scales(self, rng_key: jax.Array, data: Data) -> jax.Array:
        return self.inner.log_scales(rng_key, data)

    def can_draw_targets(self, data: Data) -> bool:
        return self.plan(data).can_draw_targets

    def summed_values(
        self, rng_key: jax.Array, position: jax.Array, data: Data, output: Any, sign: Any
    ) -> dict[str, jax.Array]:
        """The sites that are summed out, drawn given the others."""
        chosen = self.plan(data).draw(rng_key, position, data, output, sign)
        supports = self._supports
        table = np.zeros((len(supports), max(map(len, supports))), int)
        for row, support in zip(table, supports, strict=True):
            row[: len(support)] = support
        flat = jnp.asarray(table)[np.arange(len(supports)), chosen]
        drawn, start = {}, 0
        for site in self.labels:
            stop = start + len(site.supports)
            drawn[site.name] = flat[start:stop].reshape(site.shape)
            start = stop
        return drawn

    # --- the plan ---

    @property
    def note(self) -> str:
        """Which sites are summed out, in words."""
        parts = []
        for site in self.labels:
            sizes = sorted({len(support) for support in site.supports})
            values = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
            times = f"{len(site.supports)} × " if site.shape else ""
            parts.append(f"{site.name} ({times}{values} values)")
        return f"summed out in every evaluation, not drawn: {', '.join(parts)}"

    @property
    def _dimension(self) -> int:
        return Layout(self.sites).dimension

    def _whole(self, position: jax.Array) -> jax.Array:
        default = [support[0] for support in self._supports]
        return jnp.concatenate([position, jnp.array(default, position.dtype)])

    @property
    def _supports(self) -> tuple[np.ndarray, ...]:
        return tuple(np.array(support) for site in self.labels for support in site.supports)

    def plan(self, data: Data) -> Plan:
        """How the labels are summed out."""
        avals = tuple(jax.typeof(array) for array in data)
        return _plan(self, avals, jnp.result_type(float))

    def _made(self, avals: tuple, known: dict[int, Fixed]) -> Plan:
        num_kept = len(self.sites)

        def function(position: jax.Array, labels: jax.Array, data: tuple) -> Apart:
            return self.inner.apart(jnp.concatenate([position, labels]), data, num_kept)

        structs = [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in avals
        ]
        trace = traced(function, self._dimension, self._supports, structs, known)
        return plan_of(trace, self.output is not None)


@functools.lru_cache(maxsize=4 * NUM_KEPT_MODELS)
def _plan(model: EnumeratedModel, avals: tuple, _dtype: Any) -> Plan:
    return model._made(avals, {look.place: Fixed.of(look.value) for look in model.looks})


class MixedError(ValueError):
    """A site that is kept cannot do without those that are summed out; the message says why."""


def _check_kept(sites: tuple[Site, ...], plan: Plan) -> None:
    """Refuses labels on which a kept site's support depends, or a discrete one's prior."""
    for site, place in zip(sites, plan.trace.results.values, strict=True):
        if plan.trace.reach(place) is not None:
            raise MixedError(f"the support of site {site.name!r} depends on them")
    for k in plan.mixed:
        if sites[k].is_discrete:
            raise MixedError(
                f"the prior of site {sites[k].name!r}, which is drawn, depends on them"
            )
