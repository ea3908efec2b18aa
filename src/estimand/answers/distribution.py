"""The distribution function of a return value, its tails included."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from estimand import record as records
from estimand.answers.evidence import auto_for
from estimand.answers.quantiles import always, require_scalar
from estimand.answers.reported import Reported, provenance_of
from estimand.answers.tail import Beyond, ValuesOf, known_by_reading
from estimand.estimate import Estimate, EstimationError, estimate_expectation
from estimand.methods import Auto
from estimand.model import Bound, Derived
from estimand.runtime import require_precision
from estimand.sampling import named_key
from estimand.settings import checked_names
from estimand.trust import Finding, OutputEstimate, Status, thresholds, worst
from estimand.view import Summary, Table

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Distribution(Reported):
    """P(f ≤ t) and P(f > t) of a return value on a grid of t, each with its error.

    `tails` are the estimates of the smaller of the two at each point, `is_upper` says which that
    is. The other one is 1 less it. Beyond the ends of the return value, where its expression shows
    them, they are 0 and 1 exactly.

    Examples:
        >>> distribution = ep.distribution(program(2.0), [-8.0, 1.0, 64.0])
        >>> [float(f"{p:.2g}") for p in distribution.survival]
        [1.0, 0.5, 1.1e-05]
    """

    program: str
    grid: np.ndarray
    tails: tuple[OutputEstimate, ...]
    is_upper: np.ndarray
    num_evaluations: int
    num_gradients: int
    provenance: records.Provenance = dataclasses.field(repr=False)
    estimate: Estimate = dataclasses.field(repr=False)

    @property
    def status(self) -> Status:
        """The most severe status of any point."""
        return worst(self.statuses)

    @property
    def statuses(self) -> tuple[Status, ...]:
        """The status of each point."""
        return tuple(tail.status for tail in self.tails)

    @property
    def findings(self) -> tuple[tuple[Finding, ...], ...]:
        """For each point what the checks found."""
        return tuple(tail.findings for tail in self.tails)

    @property
    def cdf(self) -> np.ndarray:
        """P(f ≤ t) at each point."""
        return np.where(self.is_upper, 1 - self._values, self._values)

    @property
    def survival(self) -> np.ndarray:
        """P(f > t) at each point."""
        return np.where(self.is_upper, self._values, 1 - self._values)

    @property
    def standard_error(self) -> np.ndarray:
        """Of both."""
        return np.asarray([tail.standard_error for tail in self.tails])

    @property
    def _values(self) -> np.ndarray:
        return np.asarray([tail.value for tail in self.tails])

    def interval(self, level: float = thresholds.CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
        """Confidence intervals of P(f ≤ t), point by point."""
        low, high = self._bounds(level)
        return np.where(self.is_upper, 1 - high, low), np.where(self.is_upper, 1 - low, high)

    def survival_interval(
        self, level: float = thresholds.CONFIDENCE
    ) -> tuple[np.ndarray, np.ndarray]:
        """Confidence intervals of P(f > t), point by point."""
        low, high = self._bounds(level)
        return np.where(self.is_upper, low, 1 - high), np.where(self.is_upper, high, 1 - low)

    def _bounds(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        low, high = np.asarray(self.estimate.bounds(level)).T
        is_exact = self.standard_error == 0
        low, high = (np.where(is_exact, self._values, end) for end in (low, high))
        return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict of plain numbers for each point."""
        low, high = self.interval()
        columns = (self.grid, self.cdf, self.survival, self.standard_error, low, high)
        names = ("t", "cdf", "survival", "standard_error", "low", "high")
        return [
            dict(zip(names, map(float, row), strict=True)) | {"status": status.name}
            for *row, status in zip(*columns, self.statuses, strict=True)
        ]

    def summary(self) -> Summary:
        """A table with a row for each point."""
        low, high = self._bounds(thresholds.CONFIDENCE)
        rows = tuple(
            (
                f"{t:.6g}",
                f"P(f {'>' if upper else '≤'} t)",
                _number(tail),
                f"[{own[0]:.6g}, {own[1]:.6g}]",
                tail.status.name,
            )
            for t, upper, tail, own in zip(
                self.grid, self.is_upper, self.tails, zip(low, high, strict=True), strict=True
            )
        )
        header = ("t", "tail", "probability", "95 % interval", "status")
        lines = [
            f"{t:.6g}: {finding.status.name}: {finding}"
            for t, findings in zip(self.grid, self.findings, strict=True)
            for finding in findings
        ]
        cost = f"{self.num_evaluations:,} evaluations, {self.num_gradients:,} gradients"
        table = Table(f"Distribution of {self.program}", header, rows)
        return Summary([table], [cost, *lines, self.status.value])

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain data; those that are not finite are strings, as in JSON."""
        content = {"program": self.program, "status": self.status.name, "points": self.rows}
        return records.plain_numbers(content)

    def to_dataframe(self) -> DataFrame:
        """A row for each point, as a pandas DataFrame. Needs pandas."""
        return records.to_dataframe(self.rows, "t")


def _number(tail: OutputEstimate) -> str:
    if tail.standard_error == 0:
        return f"{tail.value:.6g} exactly"
    return f"{tail.value:.6g} ± {tail.standard_error:.2g}"


@checked_names
def distribution(
    expectation: Bound,
    grid: Sequence[float] | np.ndarray,
    *,
    rng_key: int | jax.Array = 0,
    method: Auto | None = None,
    throw: bool = True,
    precision: str = "double",
    progress_bar: bool | None = None,
    executor: Executor | None = None,
) -> Distribution:
    """The distribution function of a bound program's return value at some numbers.

    Of P(f ≤ t) and P(f > t) the smaller one is estimated, where it has its mass: a probability of
    1e-9 has its own relative error. All points share one set of draws.

    Args:
        expectation: a program called with its data that returns one number; of one with several,
            take one as ``program(data)["name"]``.
        grid: rising numbers, at most 200. Each is an output that is explored on its own.
        rng_key: an int or a JAX key.
        method: `Auto`, whose `relative_error` is that of the smaller probability at each point.
        throw: raise `EstimationError` if the status is not `ok`.
        precision: as in `estimate_expectation`.
        progress_bar: as in `estimate_expectation`.
        executor: as in `estimate_expectation`.

    Raises:
        EstimationError: if the status of any point is not `ok`, unless ``throw=False``.

    Examples:
        >>> distribution = ep.distribution(program(2.0), [0.0, 1.0, 8.0])
        >>> print(distribution)
        Distribution of program
        ...
    """
    base = require_scalar("distribution", expectation)
    require_precision("distribution", precision)
    points = np.asarray(grid, float)
    if points.ndim != 1 or not points.size or not np.isfinite(points).all():
        raise ValueError(f"distribution: grid must be a list of numbers; it is {grid!r}.")
    if (np.diff(points) <= 0).any():
        raise ValueError("distribution: the numbers of the grid must rise.")
    method, key = auto_for("distribution", method), records.as_key(rng_key)
    settings: dict[str, Any] = {
        "throw": False,
        "precision": precision,
        "progress_bar": progress_bar,
        "executor": executor,
    }
    one = Derived(base, f"posterior of {base.name}", always)()
    posterior = estimate_expectation(one, method, rng_key=named_key(key, "posterior"), **settings)
    values, weights = ValuesOf(base).at(posterior, "gamma2", 0)
    if not values.size:
        raise EstimationError(posterior)
    is_upper = points >= Beyond.of(-np.inf, values, weights).reach(np.log(2.0))
    events = Derived(base, f"distribution of {base.name}", smaller_tail)
    estimate = estimate_expectation(
        events({"is_upper": is_upper, "grid": points}),
        method,
        rng_key=named_key(key, "distribution"),
        **settings,
    )
    found = Distribution(
        program=base.name,
        grid=points,
        tails=known_by_reading(estimate),
        is_upper=is_upper,
        num_evaluations=posterior.num_evaluations + estimate.num_evaluations,
        num_gradients=posterior.num_gradients + estimate.num_gradients,
        provenance=provenance_of(base, method, key, precision),
        estimate=estimate,
    )
    if throw and not found.status:
        raise EstimationError(found)
    return found


def smaller_tail(numbers: Any, value: Any) -> jax.Array:
    """Whether the return value is above each number of a grid, or at most it."""
    number = jnp.asarray(value, float).reshape(())
    grid = numbers["grid"]
    return jnp.where(numbers["is_upper"], number > grid, number <= grid)
