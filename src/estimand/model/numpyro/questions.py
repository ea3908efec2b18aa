"""Programs that ask another question of a bound program: a function of what it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimand.model.numpyro.program import Expectation, ExpectationProgram, bind, rebound


class Derived:
    """A bound program whose return value is a function of numbers and of the old return value.

    The numbers are data: with other ones of the same shapes nothing is compiled again.

    Args:
        base: the bound program.
        name: of the new program.
        question: of the numbers and the return value; it must not hold numbers of its own.
    """

    def __init__(self, base: Expectation, name: str, question: Callable[[Any, Any], Any]):
        self.base = base
        self.program = _program(base, name, question)
        self._bound: Expectation | None = None

    def __call__(self, numbers: Any = ()) -> Expectation:
        """The program bound to the data of the old one, and to these numbers."""
        args, kwargs = self.base.data.arguments(self.base.data.numbers)
        arguments = (numbers, *args), kwargs
        again = None
        # A program that branches is only known branch by branch.
        if type(self._bound) is Expectation:
            again = rebound(self._bound, *arguments)
        self._bound = bind(self.program, *arguments) if again is None else again
        return self._bound


def _program(
    base: Expectation, name: str, question: Callable[[Any, Any], Any]
) -> ExpectationProgram:
    model, target = base.program.functions(base.data)
    path = base.path

    def derived(numbers: Any, *args: Any, **kwargs: Any) -> Any:
        value = ExpectationProgram.called(model, target, args, kwargs)
        for key in path:
            value = value[key]
        return question(numbers, value)

    program = ExpectationProgram(derived, enumerate=base.program.enumerate)
    program.name, program.shown, program.axes = name, base.program.shown, base.program.axes
    return program
