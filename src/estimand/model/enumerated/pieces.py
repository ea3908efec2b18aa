"""A sum as its pieces: what is added up in a log density, each with labels of its own."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp

from estimand.model.enumerated.expression import Expression, Step
from estimand.model.enumerated.reach import Reached

# Steps after which the sum over all elements is the same.
_SAME_SUM = ("reshape", "squeeze", "expand_dims", "transpose", "rev", "copy", "copy_p")


class Piece(NamedTuple):
    """The sum of all elements of a variable, times a coefficient and scalars without labels.

    `factors` are pairs of a variable and whether the sum is divided by it.
    """

    place: int
    coefficient: float = 1.0
    factors: tuple[tuple[int, bool], ...] = ()

    def weight(self, values: dict[int, Any]) -> Any:
        """What the sum is multiplied by."""
        weight: Any = self.coefficient
        for place, is_divisor in self.factors:
            factor = jnp.reshape(values[place], ())
            weight = weight / factor if is_divisor else weight * factor
        return weight


def pieces_of(expression: Expression, found: Reached, place: int) -> list[Piece]:
    """The pieces whose sum is a scalar variable."""
    done, open_pieces = [], [Piece(place)]
    while open_pieces:
        piece = open_pieces.pop()
        parts = _parts(expression, found, piece)
        if parts is None:
            done.append(piece)
        else:
            open_pieces.extend(reversed(parts))
    return done


def _parts(expression: Expression, found: Reached, piece: Piece) -> list[Piece] | None:
    step = expression.made_by.get(piece.place)
    if step is None or found.reach[piece.place] is None:
        return None
    if step.name in _SAME_SUM or (step.name == "reduce_sum"):
        return [piece._replace(place=step.inputs[0])]
    if step.name == "convert_element_type":
        source = expression.avals[step.inputs[0]].dtype
        is_exact = jnp.issubdtype(source, jnp.floating) or jnp.issubdtype(source, jnp.integer)
        return [piece._replace(place=step.inputs[0])] if is_exact else None
    if step.name == "neg":
        return [piece._replace(place=step.inputs[0], coefficient=-piece.coefficient)]
    if step.name in ("add", "sub", "add_any"):
        return _terms(expression, step, piece)
    is_real = jnp.issubdtype(expression.avals[piece.place].dtype, jnp.floating)
    if step.name in ("mul", "div") and is_real:
        return _product(expression, found, step, piece)
    if step.name == "broadcast_in_dim":
        (source,) = step.inputs[:1]
        times = _size(expression, piece.place) / max(_size(expression, source), 1)
        return [piece._replace(place=source, coefficient=piece.coefficient * times)]
    return None


def _terms(expression: Expression, step: Step, piece: Piece) -> list[Piece]:
    signs = (1.0, -1.0 if step.name == "sub" else 1.0)
    whole = _size(expression, piece.place)
    return [
        piece._replace(
            place=place,
            coefficient=piece.coefficient * sign * whole / max(_size(expression, place), 1),
        )
        for place, sign in zip(step.inputs, signs, strict=True)
    ]


def _product(
    expression: Expression, found: Reached, step: Step, piece: Piece
) -> list[Piece] | None:
    """A factor that is one number without labels is taken out of the sum."""
    first, second = step.inputs
    choices = [(first, second)] if step.name == "div" else [(first, second), (second, first)]
    for inside, outside in choices:
        scalar = _scalar(expression, outside)
        is_free = scalar is not None and found.reach[scalar] is None
        if is_free and expression.avals[inside].shape == expression.avals[piece.place].shape:
            factors = (*piece.factors, (scalar, step.name == "div"))
            return [piece._replace(place=inside, factors=factors)]  # type: ignore[arg-type]
    return None


def _scalar(expression: Expression, place: int) -> int | None:
    """The variable with one number that is all that another one holds."""
    while _size(expression, place) != 1:
        step = expression.made_by.get(place)
        if step is None or step.name not in ("broadcast_in_dim", "reshape"):
            return None
        place = step.inputs[0]
    return place


def _size(expression: Expression, place: int) -> int:
    return math.prod(expression.avals[place].shape)
