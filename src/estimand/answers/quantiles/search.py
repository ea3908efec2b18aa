"""The search for quantiles: rounds of thresholds, all of them in one program."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from estimand.answers.quantiles.found import Quantile
from estimand.answers.quantiles.level import BEHIND, CLOSE, MAX_ROUNDS, Level
from estimand.answers.tail import Beyond, ValuesOf
from estimand.density import Density
from estimand.estimate import Estimate, estimate_expectation
from estimand.methods import Auto
from estimand.model import Bound, BranchingExpectation, Derived, Expectation
from estimand.sampling import named_key

# Before the last round, an error of this size will do.
ROUGH_ERROR = 0.05
# And so many evaluations for up to three parts.
ROUGH_BUDGET = 250_000
# The last threshold is put before the quantile, by so many relative errors and at most so much:
# draws beyond it show the way, and what lies on both sides of the quantile.
LEADING_ERRORS, MAX_LEAD = 5.0, 0.2


def require_scalar(owner: str, expectation: Any) -> Expectation:
    """A bound program with one number as its return value; others are refused."""
    if not isinstance(expectation, Bound):
        raise TypeError(f"{owner}: expected a program called with its data, got {expectation!r}.")
    if isinstance(expectation, BranchingExpectation):
        raise TypeError(
            f"{owner}: program {expectation.name!r} branches, and its tails are those of its "
            "branches: take one, as in expectation.branch({...})."
        )
    if not isinstance(expectation, Expectation):
        raise TypeError(f"{owner}: program {expectation.name!r} is not a NumPyro program.")
    if expectation.output is None or expectation.output.size != 1:
        size = 0 if expectation.output is None else expectation.output.size
        raise TypeError(
            f"{owner}: program {expectation.name!r} has {size} outputs, and a distribution is of "
            f"one number: take one, as in {owner}(expectation['name'], …)."
        )
    return expectation


def beyond_thresholds(numbers: Any, value: Any) -> jax.Array:
    """Whether the return value, with a sign, is beyond each of some thresholds."""
    number = jnp.asarray(value, float).reshape(())
    return numbers["signs"] * number > numbers["thresholds"]


def always(_numbers: Any, _value: Any) -> float:
    """1, for explorations of γ itself."""
    return 1.0


class Search:
    """Thresholds on their way to the quantiles, all of them in one program."""

    def __init__(
        self,
        base: Expectation,
        tails: Sequence[tuple[float, int]],
        method: Auto,
        rng_key: jax.Array,
        settings: dict[str, Any],
    ):
        self.base, self.method, self.rng_key, self.settings = base, method, rng_key, settings
        self.events = Derived(base, f"tail of {base.name}", beyond_thresholds)
        self.values = ValuesOf(base)
        lead = min(LEADING_ERRORS * method.relative_error, MAX_LEAD)
        self.levels = [Level(probability, sign, lead) for probability, sign in tails]
        self.num_evaluations = self.num_gradients = 0
        self.last: Estimate | None = None

    def run(self) -> list[Quantile]:
        """The quantiles, or what is known of them after the last round."""
        self._begin()
        for number in range(MAX_ROUNDS):
            if all(level.failure is not None for level in self.levels):
                break
            is_last = all(level.is_close(CLOSE) for level in self.levels)
            self._round(number, is_rough=not is_last)
            if is_last and all(level.is_close(BEHIND) for level in self.levels):
                break
        return [level.found() for level in self.levels]

    def _begin(self) -> None:
        """The first thresholds, from draws of the posterior."""
        one = Derived(self.base, f"posterior of {self.base.name}", always)()
        estimate = self._estimated(one, "posterior", is_rough=True)
        values, weights = self.values.at(estimate, "gamma2", 0)
        for level in self.levels:
            level.begin(Beyond.of(-math.inf, level.sign * values, weights), estimate)

    def _round(self, number: int, *, is_rough: bool) -> None:
        """The probabilities beyond the present thresholds, and the next ones."""
        pairs = [level.asked() for level in self.levels]
        size = max(map(len, pairs))
        rows = [pair + pair[-1:] * (size - len(pair)) for pair in pairs]
        signs = np.repeat([level.sign for level in self.levels], size).astype(float)
        numbers = {"signs": signs, "thresholds": np.asarray(rows, float).ravel()}
        estimate = self._estimated(self.events(numbers), f"round {number}", is_rough=is_rough)
        self.last = estimate
        for place, level in enumerate(self.levels):
            for column, threshold in enumerate(pairs[place]):
                output = place * size + column
                values, weights = self.values.at(estimate, "gamma1_plus", output)
                sample = Beyond.of(threshold, level.sign * values, weights)
                level.take(estimate.outputs[output], sample)
            level.advance()

    def _estimated(self, expectation: Bound, name: str, *, is_rough: bool) -> Estimate:
        method = self._roughly(expectation) if is_rough else self.method
        key = named_key(self.rng_key, "quantile", name)
        estimate = estimate_expectation(
            expectation, method, rng_key=key, throw=False, **self.settings
        )
        if any(
            finding.check == "interruption" and "Ctrl-C" in finding.detail
            for findings in estimate.findings
            for finding in findings
        ):
            raise KeyboardInterrupt
        self.num_evaluations += estimate.num_evaluations
        self.num_gradients += estimate.num_gradients
        return estimate

    def _roughly(self, expectation: Bound) -> Auto:
        """The method at a smaller size, which is enough to find the way."""
        density, method = Density.of(expectation), self.method
        parts = max(1.0, (1 + density.num_outputs) / 3)
        budget = max(int(ROUGH_BUDGET * parts), method.enough_evaluations(density))
        return dataclasses.replace(
            method,
            relative_error=max(method.relative_error, ROUGH_ERROR),
            max_evaluations=min(method.max_evaluations, budget),
        )
