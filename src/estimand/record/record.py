"""The record of an estimation: its outputs, and what it keeps of the run for a later look.

A record must be enough on its own for every diagnostic, plot and report. The draws of a run can be
many; a record keeps a bounded number of them for each density, in the model's own coordinates.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from estimand.density import Density
from estimand.methods import Run
from estimand.model import Output
from estimand.record.branches import Branch, branch_draws, branches_of
from estimand.record.draws import KeptDraws, kept_draws
from estimand.record.parts import PartSummary, find_part, summarise, used_evidence
from estimand.record.provenance import Provenance
from estimand.record.settling import Settling, settling
from estimand.runtime import in_precision
from estimand.trust import Evidence, Finding, OutputEstimate, Status, thresholds, worst


class Contents(NamedTuple):
    """What a record keeps of a run in addition to its outputs."""

    parts: tuple[PartSummary, ...]
    draws: tuple[KeptDraws, ...]
    paths: tuple[Settling, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """An estimate as plain data. `Estimate` adds what one can do with it.

    `contents` is there in a record that was loaded or merged. In a fresh one `density` stands in
    its place, and parts, draws and paths are computed when they are first used.
    """

    program: str
    method: str
    output: Output
    run: Run
    compile_seconds: float
    run_seconds: float
    provenance: Provenance = dataclasses.field(default_factory=Provenance)
    density: Density | None = dataclasses.field(default=None, repr=False)
    contents: Contents | None = dataclasses.field(default=None, repr=False)

    @property
    def outputs(self) -> tuple[OutputEstimate, ...]:
        """The estimate of each output, with what it stands on."""
        return self.run.outputs

    def structured(self, get: Callable[[OutputEstimate], Any]) -> Any:
        """One number of every output, in the structure of the program's return value."""
        return self.output.unflatten(np.asarray([get(output) for output in self.outputs]))

    @property
    def value(self) -> Any:
        """The estimate, in the structure of the program's return value."""
        return self.structured(lambda output: output.value)

    @property
    def standard_error(self) -> Any:
        """The standard error of every output."""
        return self.structured(lambda output: output.standard_error)

    def interval(self, level: float = thresholds.CONFIDENCE) -> tuple[Any, Any]:
        """Confidence interval; on the log scale where f has one sign and the method is TABI.

        Args:
            level: the probability with which such an interval has the truth in it.

        Examples:
            >>> low, high = result.interval(0.99)
            >>> low < 2.5 < high
            True
        """
        low, high = np.asarray(self.bounds(level), float).T
        return self.output.unflatten(low), self.output.unflatten(high)

    def bounds(self, level: float = thresholds.CONFIDENCE) -> list[tuple[float, float]]:
        """The confidence intervals of the outputs one by one."""
        if not 0 < level < 1:
            raise ValueError(f"interval: level must be between 0 and 1; it is {level}.")
        return [
            confidence_interval(output, is_indicator, level)
            for output, is_indicator in zip(self.outputs, self._indicators(), strict=True)
        ]

    @property
    def are_indicators(self) -> tuple[bool, ...]:
        """Of each output whether it is an event."""
        return tuple(self._indicators())

    def _indicators(self) -> Iterator[bool]:
        for shape, flag in zip(self.output.shapes, self.output.is_indicator, strict=True):
            yield from [flag] * math.prod(shape)

    @property
    def names(self) -> list[str]:
        """A short name for every output: its place in the return value, or the program's name."""
        return [label or self.program for label in self.output.labels]

    @property
    def status(self) -> Status:
        """The most severe status of any output; `statuses` has one for each."""
        return worst(self.statuses)

    @property
    def statuses(self) -> tuple[Status, ...]:
        """The status of each output."""
        return tuple(output.status for output in self.outputs)

    @property
    def findings(self) -> tuple[tuple[Finding, ...], ...]:
        """For each output what the checks found: why its status is what it is."""
        return tuple(output.findings for output in self.outputs)

    @property
    def log_z(self) -> dict[str, Any]:
        """log Z1_plus, Z1_minus and Z2 of every output; NaN where not estimated.

        All outputs have one Z2 in common unless they went different routes.
        """
        return {
            "Z1_plus": self.structured(lambda output: output.parts.log_z("plus")),
            "Z1_minus": self.structured(lambda output: output.parts.log_z("minus")),
            "Z2": self.structured(lambda output: output.parts.log_z("normaliser")),
        }

    @property
    def ess(self) -> dict[str, Any]:
        """Effective sample sizes as the paper's section 5 defines them for the method."""
        return {
            "Z1": self.structured(lambda output: output.ess.z1),
            "Z1_plus": self.structured(lambda output: output.ess.plus),
            "Z1_minus": self.structured(lambda output: output.ess.minus),
            "Z2": self.structured(lambda output: output.ess.z2),
            "min": self.structured(lambda output: min(output.ess.z1, output.ess.z2)),
        }

    @property
    def num_evaluations(self) -> int:
        """Densities evaluated without gradient."""
        return self.run.num_evaluations

    @property
    def num_gradients(self) -> int:
        """Densities evaluated with gradient."""
        return self.run.num_gradients

    @property
    def cost(self) -> int:
        """Evaluations, a gradient counting as 3."""
        return self.run.cost.spent

    @property
    def precision(self) -> str:
        """``"double"`` or ``"single"``: what the estimate was computed in."""
        is_single = self.provenance.versions.get("precision") == "float32"
        return "single" if is_single else "double"

    @property
    def evidence(self) -> tuple[tuple[str, Evidence], ...]:
        """Every normalising constant that outputs rest on, by the name of its density.

        With all weights and positions, and so only in the session that made them: a record that
        was loaded or merged has `parts` and `draws` instead.
        """
        return tuple((used.name, jax.device_get(used.evidence)) for used in used_evidence(self.run))

    @functools.cached_property
    def parts(self) -> tuple[PartSummary, ...]:
        """A summary of every density that the outputs rest on."""
        if self.contents is not None:
            return self.contents.parts
        return tuple(summarise(used) for used in used_evidence(self.run))

    @functools.cached_property
    def draws(self) -> tuple[KeptDraws, ...]:
        """Weighted draws of every density for which the method keeps them."""
        if self.contents is not None:
            return self.contents.draws
        if self.run.branches:
            with in_precision(self.precision):
                return branch_draws(self.run)
        if self.density is None:
            return ()
        with in_precision(self.precision):
            return kept_draws(self.run, self.density)

    @functools.cached_property
    def branches(self) -> tuple[Branch, ...]:
        """The branches of a program that branches, the most probable first; empty for others."""
        return branches_of(self.run, self.output)

    @functools.cached_property
    def sensitivities(self) -> dict[int, Any]:
        """Those that were asked for so far, by the number of the output; they are not saved."""
        return {}

    @functools.cached_property
    def reliabilities(self) -> dict[int, Any]:
        """As `sensitivities`, those of events."""
        return {}

    @functools.cached_property
    def paths(self) -> tuple[Settling, ...]:
        """How the estimate of every output settled."""
        if self.contents is not None:
            return self.contents.paths
        return tuple(settling(self.run, number) for number in range(len(self.outputs)))

    def part(self, name: str, output: int = 0) -> PartSummary | None:
        """The summary of one density, or None if the method has none."""
        return find_part(self.parts, name, output)

    def draws_of(self, name: str, output: int = 0) -> KeptDraws | None:
        """The draws of one density, or None if the method has none."""
        return find_part(self.draws, name, output)


def confidence_interval(
    output: OutputEstimate, is_indicator: bool, level: float
) -> tuple[float, float]:
    """The ends of the interval of one output."""
    if output.status is Status.underflow:
        return -output.upper_bound, output.upper_bound
    if not math.isfinite(output.standard_error):
        return (0.0, min(output.upper_bound, 1.0)) if is_indicator else (-math.inf, math.inf)
    reach = quantile(0.5 + level / 2, output.degrees) * output.standard_error
    if output.is_log_scale and output.value != 0:
        factor = thresholds.exp(reach / abs(output.value))
        ends = (output.value / factor, output.value * factor)
        return min(ends), max(ends)
    return output.value - reach, output.value + reach


def quantile(probability: float, degrees: float) -> float:
    """Quantile of the normal distribution, or of Student's t if the degrees are finite."""
    if math.isinf(degrees):
        return statistics.NormalDist().inv_cdf(probability)
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))
