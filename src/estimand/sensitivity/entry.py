"""The sensitivity of one output: derivatives by arguments, constants, powers and rows of data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density
from estimand.model import (
    LIKELIHOOD,
    PRIOR,
    BranchingExpectation,
    ConditionalExpectation,
    Expectation,
    ProgramError,
    named_arrays,
    perturbed,
)
from estimand.record import Record
from estimand.runtime import cache_on_disk, in_precision
from estimand.sensitivity.derivatives import Derivative, derivatives
from estimand.trust import Status, worst
from estimand.view import Summary, Table

# Elements that are printed of each kind.
MAX_PRINTED = 8
# Relative change of E[f] for 10 % more or less power from which on prior or likelihood matter.
# A convention; not measured.
MATTERS = 0.02


@dataclasses.dataclass(frozen=True, eq=False)
class Sensitivity:
    """How one output's expectation depends on what the program was given.

    Derivatives by name: of the arguments that are floating-point numbers or arrays of them
    (`arguments`); of the constants in the program's distributions, as ``"x.scale"``
    (`constants`); of the powers to which prior and likelihood are raised, at 1 (`powers`); and of
    the weight of every element of the data (`rows`), by observed site. `notes` say what is left
    out. Made by `Estimate.sensitivity`.

    Examples:
        >>> sensitivity = result.sensitivity()
        >>> sorted(sensitivity.constants)
        ['x.loc', 'x.scale', 'y.scale']
    """

    program: str
    output: str
    value: float
    arguments: dict[str, Derivative]
    constants: dict[str, Derivative]
    powers: dict[str, Derivative]
    rows: dict[str, Derivative]
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Derivative:
        for kind in (self.arguments, self.constants, self.powers, self.rows):
            if name in kind:
                return kind[name]
        known = [*self.arguments, *self.constants, *self.powers, *self.rows]
        raise KeyError(f"there is no derivative by {name!r}; there are {known}.")

    @property
    def each(self) -> Iterator[Derivative]:
        """All derivatives."""
        for kind in (self.arguments, self.constants, self.powers, self.rows):
            yield from kind.values()

    @property
    def status(self) -> Status:
        """The most severe status of any derivative; each has one of its own."""
        return worst(item.status for item in self.each)

    @property
    def has_any(self) -> bool:
        """Whether any derivative, of any element, can be trusted."""
        each = list(self.each)
        return not each or any(status for item in each for status in item.statuses)

    @property
    def verdict(self) -> str:
        """What the powers of prior and likelihood say, in words."""
        if LIKELIHOOD not in self.powers:
            return ""
        if any(not item.status for item in self.powers.values()):
            return "How prior and likelihood decide this expectation is not known well enough."
        prior, likelihood = (
            0.1 * float(self.powers[name].value) / self.value for name in (PRIOR, LIKELIHOOD)
        )
        change = (
            f"a prior of power 1.1 changes this expectation by {_change(prior)}, a likelihood of "
            f"power 1.1 by {_change(likelihood)}, to first order"
        )
        by_prior, by_likelihood = abs(prior) > MATTERS, abs(likelihood) > MATTERS
        if by_prior and by_likelihood and prior * likelihood < 0:
            meaning = (
                "Prior and data pull in opposite directions: check whether they are in conflict"
            )
        elif by_prior and not by_likelihood:
            meaning = "The prior decides, and the data say little about it"
        elif by_prior:
            meaning = "Both the prior and the data matter"
        elif by_likelihood:
            meaning = "The data decide; the prior hardly matters"
        else:
            meaning = "Neither more weight on the prior nor on the data matters"
        return f"{meaning}: {change}."

    def __str__(self) -> str:
        return self.summary().plain()

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def summary(self) -> Summary:
        """The derivatives as tables, the largest effects of each kind, and a verdict.

        Examples:
            >>> print(result.sensitivity().summary())
            Derivatives of E[program]
            ...
        """
        title = f"Derivatives of E[{self.output}]"
        header = ("by", "at", "derivative", "effect", "status")
        kinds = (self.arguments, self.constants, self.powers)
        lines = [row for kind in kinds for row in self._rows_of(kind, _elasticity)]
        tables = [Table(title, header, tuple(lines))]
        if self.rows:
            influence = tuple(self._rows_of(self.rows, lambda _, slope: -slope))
            header = ("weight of", "at", "derivative", "effect", "status")
            tables.append(Table("Influence of the data", header, influence))
        words = [
            "The effect is the relative change of the expectation if the number is raised by a per "
            "cent, or if the row of data is left out; to first order of its logarithm.",
            self.verdict,
            *self._reasons(),
            *self.notes,
        ]
        return Summary(tables, [line for line in words if line])

    def _reasons(self) -> Iterator[str]:
        """Why some derivatives are not known, one line for each reason."""
        names: dict[str, list[str]] = {}
        for derivative in self.each:
            for number, findings in enumerate(derivative.findings):
                for finding in findings[:1]:
                    reason = f"{finding.status.name}: {finding}"
                    names.setdefault(reason, []).append(_element(derivative, number))
        for reason, own in list(names.items())[:MAX_PRINTED]:
            more = f" and {len(own) - MAX_PRINTED} more" if len(own) > MAX_PRINTED else ""
            yield f"{', '.join(own[:MAX_PRINTED])}{more} cannot be trusted: {reason}."
        if len(names) > MAX_PRINTED:
            yield f"{len(names) - MAX_PRINTED} more reasons are in the findings of each derivative."

    def _rows_of(self, kind: dict[str, Derivative], effect: Any) -> Iterator[tuple[str, ...]]:
        found = [
            (effect(float(at), float(slope)), number, derivative)
            for derivative in kind.values()
            for number, (at, slope) in enumerate(
                zip(derivative.at.ravel(), derivative.value.ravel(), strict=True)
            )
        ]
        per_name = {derivative.name: derivative.at.size for derivative in kind.values()}
        is_long = sum(per_name.values()) > MAX_PRINTED
        if is_long:
            found.sort(key=lambda item: -abs(np.nan_to_num(item[2].value.ravel()[item[1]])))
        for size, number, derivative in found[:MAX_PRINTED]:
            value, error = (
                float(array.ravel()[number])
                for array in (derivative.value, derivative.standard_error)
            )
            yield (
                _element(derivative, number),
                f"{derivative.at.ravel()[number]:.6g}",
                _slope(value, error),
                _change(size / self.value) if math.isfinite(size) else "–",
                derivative.statuses[number].name,
            )
        if len(found) > MAX_PRINTED:
            yield (f"and {len(found) - MAX_PRINTED} more", "", "", "", "")


def _slope(value: float, error: float) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:.5g} ± {error:.2g}" if error else "0 exactly"


def _elasticity(at: float, slope: float) -> float:
    return 0.01 * at * slope if at else math.nan


def _change(log_factor: float) -> str:
    """A relative change in words, from that of the logarithm."""
    if log_factor > 3:
        return f"× {math.exp(min(log_factor, 700.0)):.2g}"
    return f"{100 * math.expm1(log_factor):+.2g} %"


def _element(derivative: Derivative, number: int) -> str:
    if derivative.at.size == 1:
        return derivative.name
    index = ", ".join(str(k) for k in np.unravel_index(number, derivative.at.shape))
    return f"{derivative.name}[{index}]"


def sensitivity_of(record: Record, expectation: Any, output: int) -> Sensitivity:
    """The sensitivity of one output of an estimate to what its program was given.

    Raises:
        ValueError: if the estimate has no independent draws with which to find it.
        ProgramError: if the program is not one that can be differentiated.
    """
    if isinstance(expectation, ConditionalExpectation):
        raise ProgramError(
            f"sensitivity: program {record.program!r} is an expectation given a condition, which "
            "has no derivatives here. It is the quotient of two expectations that have: that of "
            "the return value where the condition holds and 0 elsewhere, and the probability of "
            "the condition; return both from one program without given=."
        )
    if isinstance(expectation, BranchingExpectation) or not isinstance(expectation, Expectation):
        raise ProgramError(
            f"sensitivity: program {record.program!r} is not one whose density JAX can "
            "differentiate: it branches, or calls a simulator."
        )
    notes = []
    with in_precision(record.precision), cache_on_disk():
        try:
            found = perturbed(expectation)
            named = _named(found)
            bound, shift = found.expectation, len(jax.tree.leaves(found.handles))
        except ProgramError as error:
            notes.append(f"constants, powers and rows of data are left out: {error}")
            bound, named, shift = expectation, [], 0
        density = Density.of(bound)
        arguments = []
        for (name, *keys), place in named_arrays(expectation):
            label = name + "".join(f"[{key}]" for key in keys)
            if jnp.issubdtype(density.arrays[shift + place].dtype, jnp.floating):
                arguments.append(("arguments", label, shift + place))
            else:
                notes.append(f"argument {label} is left out: it is not a floating-point number")
        wanted = [*arguments, *named]
        pairs = [(label, place) for _, label, place in wanted]
        slopes = derivatives(density, record.outputs[output], output, pairs) if pairs else []
    kinds: dict[str, dict[str, Derivative]] = {
        kind: {} for kind in ("arguments", "constants", "powers", "rows")
    }
    for (kind, label, _), slope in zip(wanted, slopes, strict=True):
        if kind == "constants":
            slope = dataclasses.replace(slope, at=_constant(found.values, label))
        kinds[kind][label] = slope
    return Sensitivity(
        program=record.program,
        output=record.names[output],
        value=record.outputs[output].value,
        **kinds,
        notes=tuple(notes),
    )


def _named(found: Any) -> list[tuple[str, str, int]]:
    """Kind, name and place among the arrays of every handle."""
    paths = jax.tree_util.tree_leaves_with_path(found.handles._asdict())
    # A NamedTuple's leaves are in the order of its fields, and a dict's in that of its keys.
    return [
        (kind.key, ".".join(str(key.key) for key in keys), place)
        for place, ((kind, *keys), _) in enumerate(paths)
    ]


def _constant(values: dict[str, dict[str, np.ndarray]], label: str) -> np.ndarray:
    site, _, name = label.rpartition(".")
    return np.asarray(values[site][name], float)
