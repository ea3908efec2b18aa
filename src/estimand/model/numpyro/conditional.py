"""Expectations given a condition: E[f | A] = ∫γf1_A / ∫γ1_A, which has its own posterior γ1_A."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from estimand.model.layout import Output, ProgramError
from estimand.model.numpyro.program import NOTHING_OBSERVED, Expectation, ExpectationProgram
from estimand.model.protocol import Axes, Bound, Data, Identity, Model, described

Named = dict[str, Any]


class ConditionalProgram:
    """A program whose expectation is taken given a condition; calling it with data binds it.

    Made by `expect` with ``given=``.
    """

    def __init__(
        self,
        model: Callable,
        f: Callable[[Named], Any],
        given: Callable[[Named], Any],
        enumerate: bool | None = None,  # noqa: A002
    ):
        if not callable(given):
            raise TypeError(f"expect: given must be a function of the sites; it is {given!r}.")
        functools.update_wrapper(self, model, updated=[])
        self.joint = ExpectationProgram(
            model, functools.partial(_with_condition, f, given), enumerate=enumerate
        )

    @property
    def name(self) -> str:
        return self.joint.name

    @property
    def signature(self) -> inspect.Signature:
        """What it is called with: the data."""
        return self.joint.signature

    def __call__(self, *args: Any, **kwargs: Any) -> ConditionalExpectation:
        joint = self.joint(*args, **kwargs)
        if type(joint) is not Expectation:
            raise ProgramError(
                f"program {self.name!r} branches, and a condition is part of a single density: "
                "take a branch, or use `numpyro.factor` for the condition."
            )
        return ConditionalExpectation(joint)

    def __repr__(self) -> str:
        return f"<conditional expectation program {self.name!r}; call it with data>"


class ConditionalExpectation(Bound):
    """A program bound to data, with the expectation of its return value given a condition.

    `joint` returns the quantity of interest, 0 outside of the condition, and the condition. The
    estimators' γ is γ·1_A, which they are led to past the comparisons in the condition.
    """

    def __init__(self, joint: Expectation):
        self.joint = joint
        self.name = joint.name

    @property
    def output(self) -> Output:  # type: ignore[override]
        output = self.joint[0].output
        assert output is not None
        return output

    @property
    def condition(self) -> int:  # type: ignore[override]
        return self.output.size

    @property
    def model(self) -> Model:  # type: ignore[override]
        return self.joint.model

    @property
    def arrays(self) -> Data:  # type: ignore[override]
        return self.joint.arrays

    @property
    def num_constants(self) -> int:  # type: ignore[override]
        return self.joint.num_constants

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(note for note in self.joint.notes if note != NOTHING_OBSERVED)

    @property
    def axes(self) -> Axes | None:  # type: ignore[override]
        return self.joint.axes

    def identity(self) -> Identity:
        program, data, source = self.joint.identity()
        return Identity(("given", program), data, source)

    def __repr__(self) -> str:
        sites = described(self.output.size, [site.name for site in self.model.sites])
        return f"<conditional expectation of {self.name}: {sites}>"


def _with_condition(f: Callable[[Named], Any], given: Callable[[Named], Any], sites: Named) -> Any:
    condition = jnp.asarray(given(sites))
    if condition.shape != () or condition.dtype != bool:
        raise ProgramError(
            "expect: given must return one bool, such as sites['x'] > 3; it returns an array of "
            f"shape {condition.shape}, dtype {condition.dtype}. Use jnp.all or jnp.any."
        )

    def masked(leaf: Any) -> jax.Array:
        leaf = jnp.asarray(leaf)
        if leaf.dtype == bool:
            return leaf & condition
        return jnp.where(condition, leaf, jnp.zeros_like(leaf))

    return jax.tree.map(masked, f(sites)), condition
