"""The expectation of a return value beyond one of its quantiles."""

from __future__ import annotations

import dataclasses
import math
from concurrent.futures import Executor
from typing import Any

import jax
import jax.numpy as jnp

from estimand import record as records
from estimand.answers.evidence import auto_for
from estimand.answers.quantiles.found import Quantile
from estimand.answers.quantiles.search import Search, require_scalar
from estimand.answers.reported import Reported, provenance_of
from estimand.estimate import Estimate, EstimationError, estimate_expectation
from estimand.methods import Auto
from estimand.model import Bound, Derived, Expectation
from estimand.runtime import require_precision
from estimand.sampling import named_key
from estimand.settings import checked_names
from estimand.trust import (
    Finding,
    OutputEstimate,
    Status,
    most_severe,
    thresholds,
)
from estimand.view import Summary, Table


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Shortfall(Reported):
    """The mean of a return value in the worst share of cases, and the quantile where these begin.

    Examples:
        >>> shortfall = ep.shortfall(program(2.0), 0.01)
        >>> shortfall.value > shortfall.quantile.value
        True
    """

    program: str
    tail_probability: float
    value: float
    standard_error: float
    quantile: Quantile
    excess: OutputEstimate
    findings: tuple[Finding, ...]
    num_evaluations: int
    num_gradients: int
    provenance: records.Provenance = dataclasses.field(repr=False)

    @property
    def status(self) -> Status:
        return most_severe(self.findings)

    def interval(self, level: float = thresholds.CONFIDENCE) -> tuple[float, float]:
        """Confidence interval."""
        if not 0 < level < 1:
            raise ValueError(f"interval: level must be between 0 and 1; it is {level}.")
        reach = records.quantile(0.5 + level / 2, self.excess.degrees) * self.standard_error
        return self.value - reach, self.value + reach

    @property
    def cases(self) -> str:
        """Which cases the mean is of, in words."""
        sign = "above" if self.quantile.sign > 0 else "below"
        return f"the {self.tail_probability:g} of cases farthest {sign}"

    def summary(self) -> Summary:
        """A table of the mean, and of the quantile where the cases begin."""
        edge = self.quantile
        text = f"{self.value:.6g} ± {self.standard_error:.2g}"
        rows = (
            ("mean", text, _interval_text(self.interval()), self.status.name),
            ("they begin at", edge.text, _interval_text(edge.interval()), edge.status.name),
        )
        header = ("", "value", "95 % interval", "status")
        title = f"Mean of {self.program} in {self.cases}"
        return Summary([Table(title, header, rows)], [self.status.value])

    def __str__(self) -> str:
        low, high = self.interval()
        lines = [
            f"Mean of {self.program} in {self.cases}",
            f"  {self.value:.6g} ± {self.standard_error:.2g}   95 % interval [{low:.6g}, "
            f"{high:.6g}]   {self.status.name}",
            f"  they begin at {self.quantile.text}",
            f"  {self.num_evaluations:,} evaluations, {self.num_gradients:,} gradients",
            *(f"  {finding.status.name}: {finding}" for finding in self.findings),
            f"  {self.status.value}",
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain data; those that are not finite are strings, as in JSON."""
        return records.plain_numbers(
            {
                "program": self.program,
                "tail_probability": self.tail_probability,
                "value": self.value,
                "standard_error": self.standard_error,
                "interval": self.interval(),
                "quantile": self.quantile.value,
                "quantile_error": self.quantile.standard_error,
                "status": self.status.name,
                "findings": [str(finding) for finding in self.findings],
                "num_evaluations": self.num_evaluations,
                "num_gradients": self.num_gradients,
            }
        )


def _interval_text(interval: tuple[float, float]) -> str:
    low, high = interval
    return f"[{low:.6g}, {high:.6g}]"


@checked_names
def shortfall(
    expectation: Bound,
    tail_probability: float,
    *,
    lower: bool = False,
    rng_key: int | jax.Array = 0,
    method: Auto | None = None,
    throw: bool = True,
    precision: str = "double",
    progress_bar: bool | None = None,
    executor: Executor | None = None,
) -> Shortfall:
    """The expected shortfall: the mean of a return value in the worst share of all cases.

    With q the quantile at 1 − p it is q + E[(f − q)⁺]/p, also called the conditional value at risk:
    E[f | f > q] where f has no atom at q. An error of q changes it in the second order only.

    Args:
        expectation: a program called with its data that returns one number, a loss.
        tail_probability: p, the share of the largest values.
        lower: the share of the smallest values instead.
        rng_key: as in `quantile`, and so are those that follow.
        method: as in `quantile`.
        throw: raise `EstimationError` if the status is not `ok`.
        precision: as in `estimate_expectation`.
        progress_bar: as in `estimate_expectation`.
        executor: as in `estimate_expectation`.

    Raises:
        EstimationError: if the status is not `ok`, unless ``throw=False``.

    Examples:
        >>> shortfall = ep.shortfall(program(2.0), 1e-6)
        >>> round(shortfall.value)
        91
    """
    if not 0 < tail_probability < 1:
        raise ValueError(
            f"shortfall: tail_probability must be between 0 and 1; it is {tail_probability}."
        )
    base = require_scalar("shortfall", expectation)
    require_precision("shortfall", precision)
    key, sign = records.as_key(rng_key), -1 if lower else 1
    settings: dict[str, Any] = {
        "precision": precision,
        "progress_bar": progress_bar,
        "executor": executor,
    }
    method = auto_for("shortfall", method)
    search = Search(base, [(tail_probability, sign)], method, key, settings)
    [edge] = search.run()
    edge = dataclasses.replace(edge, level=tail_probability if lower else 1 - tail_probability)
    beyond = _beyond(base, edge, method, key, settings)
    excess = OutputEstimate(math.nan, math.inf) if beyond is None else beyond.outputs[0]
    found = Shortfall(
        program=base.name,
        tail_probability=tail_probability,
        value=edge.value + sign * excess.value / tail_probability,
        standard_error=excess.standard_error / tail_probability + _second_order(edge),
        quantile=edge,
        excess=excess,
        findings=(*edge.findings, *excess.findings),
        num_evaluations=search.num_evaluations + (0 if beyond is None else beyond.num_evaluations),
        num_gradients=search.num_gradients + (0 if beyond is None else beyond.num_gradients),
        provenance=provenance_of(base, method, key, precision),
    )
    if throw and not found.status:
        raise EstimationError(found)
    return found


def _beyond(
    base: Expectation, edge: Quantile, method: Auto, key: jax.Array, settings: dict[str, Any]
) -> Estimate | None:
    """The expected excess over a quantile; None where the quantile is not known."""
    if not math.isfinite(edge.value):
        return None
    question = Derived(base, f"{base.name} beyond its quantile", excess_over)
    return estimate_expectation(
        question({"sign": float(edge.sign), "threshold": edge.sign * edge.value}),
        method,
        rng_key=named_key(key, "shortfall"),
        throw=False,
        **settings,
    )


def excess_over(numbers: Any, value: Any) -> jax.Array:
    """By how much the return value, with a sign, is beyond a threshold."""
    number = jnp.asarray(value, float).reshape(())
    return jnp.maximum(numbers["sign"] * number - numbers["threshold"], 0.0)


def _second_order(edge: Quantile) -> float:
    """How much too large the shortfall is on average because of the quantile's error."""
    if edge.is_exact or not math.isfinite(edge.standard_error):
        return 0.0
    return edge.standard_error**2 / (2 * edge.beyond.scale())
