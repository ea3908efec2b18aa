"""What the rest of the library needs of a model, however it is stated.

A model maps flat positions to log prior, log likelihood and outputs. Which data it has are arrays
that are passed along, so that one compilation serves fresh data of equal shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from estimand.model.layout import Coordinates, Output, Site, in_working_precision

Data = tuple[jax.Array, ...]


class Evaluation(NamedTuple):
    """A model at a position.

    The Jacobian of the coordinates is on the prior's side, so that a prior draw is an exact draw
    from `log_prior`. `outputs` are all numbers of the return value, flattened.
    """

    log_prior: jax.Array
    log_likelihood: jax.Array
    outputs: jax.Array


class Assessment(NamedTuple):
    """A model at given values of its sites; `log_prior` is without a Jacobian."""

    position: jax.Array
    log_prior: jax.Array
    log_likelihood: jax.Array
    outputs: jax.Array


class Redraw(NamedTuple):
    """A position with all discrete elements redrawn from their prior given the rest.

    `log_before` and `log_after` are the log prior of the old and the new value of each element
    that is drawn as a whole (`Layout.discrete_elements`).
    """

    position: jax.Array
    log_before: jax.Array
    log_after: jax.Array


class Identity(NamedTuple):
    """What makes two runs runs of the same thing: contents that are hashed, and the source."""

    program: Any
    data: Any
    source: str = ""


@runtime_checkable
class Model(Protocol):
    """A model: hashable, static under jit; equal models share compiled code.

    `output` is the structure of the return value, None for a model without one. All methods but
    `in_coordinates` and `identity` are traced by JAX, for one position at a time.
    """

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def sites(self) -> tuple[Site, ...]: ...

    @property
    def output(self) -> Output | None: ...

    @property
    def coordinates(self) -> Coordinates: ...

    def draw(self, rng_key: jax.Array, data: Data) -> jax.Array:
        """The position of an exact draw from the prior."""

    def evaluate(self, position: jax.Array, data: Data) -> Evaluation: ...

    def assess(self, values: dict[str, jax.Array], data: Data) -> Assessment: ...

    def values(self, position: jax.Array, data: Data) -> dict[str, jax.Array]:
        """The values of the sites at a position."""

    def redraw(self, rng_key: jax.Array, position: jax.Array, data: Data) -> Redraw:
        """Never called for a model without discrete sites."""

    def log_scales(self, rng_key: jax.Array, data: Data) -> jax.Array:
        """Logarithms of the scales by which sites are standardised, at a draw from the prior."""

    def in_coordinates(self, coordinates: Coordinates) -> Model:
        """The same model in other coordinates, or itself if it has no such ones."""

    def without_output(self) -> Model:
        """The same model without its return value."""

    def identity(self, data: Data) -> Identity: ...


@runtime_checkable
class SummingModel(Protocol):
    """A model that sums over sites which are not in its positions, and can draw them."""

    @property
    def note(self) -> str:
        """Which sites these are, in words."""

    def can_draw_targets(self, data: Data) -> bool:
        """Whether they can be drawn in proportion to the return value, too."""

    def summed_values(
        self, rng_key: jax.Array, position: jax.Array, data: Data, output: Any, sign: Any
    ) -> dict[str, jax.Array]:
        """Those sites given a position, in proportion to γ, or to γ times an output or −1 times it.

        `sign` is 0, 1 or −1; the density must be positive at the position.
        """


# "dims": names of dimensions by site; "coords": labels by name of dimension. As JSON has them.
Axes = dict[str, dict[str, list]]


class Bound:
    """A model together with its data: what `estimate_expectation` takes.

    The last `num_constants` of the arrays are numbers that are written in the model's text. `notes`
    say what was done to the model, and are kept with every estimate. `axes` name the dimensions of
    sites. `condition` is the place of a condition behind the outputs, for expectations given it.
    """

    name: str
    model: Model
    arrays: Data
    output: Output | None
    num_constants: int = 0
    notes: tuple[str, ...] = ()
    axes: Axes | None = None
    condition: int | None = None

    def identity(self) -> Identity:
        """What makes two runs runs of the same thing."""
        return self.model.identity(self.arrays)


def kept(array: Any) -> Any:
    """A number or array with the digits that it was given with, whatever JAX works in."""
    return array if isinstance(array, jax.Array) else np.array(array)


class BoundModel(Bound):
    """Any model with its data.

    Args:
        model: anything that implements the `Model` protocol.
        arrays: its data, which go into compiled code as arguments.
    """

    def __init__(self, model: Model, arrays: Sequence[Any] = ()):
        self.model = model
        self.numbers = tuple(map(kept, arrays))
        self.name, self.output = model.name, model.output

    @property
    def arrays(self) -> Data:  # type: ignore[override]
        return tuple(map(in_working_precision, self.numbers))

    def __repr__(self) -> str:
        names = [site.name for site in self.model.sites]
        size = 0 if self.output is None else self.output.size
        return f"<expectation of {self.name}: {described(size, names)}>"


def described(num_outputs: int, sites: list[str]) -> str:
    """Outputs and sites in words: ``1 output, 2 latent sites (a, b)``."""

    def count(number: int, noun: str) -> str:
        return f"{number} {noun}{'' if number == 1 else 's'}"

    names = ", ".join(sites)
    return f"{count(num_outputs, 'output')}, {count(len(sites), 'latent site')} ({names})"
