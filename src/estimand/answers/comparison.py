"""Models compared by their evidence: Bayes factors, probabilities and averages over models."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from estimand import record as records
from estimand.answers.evidence import LogEvidence, as_bound, at_work, auto_for, evidence_of
from estimand.answers.reported import Reported, provenance_of
from estimand.estimate import Estimate, EstimationError, estimate_expectation
from estimand.methods import Auto
from estimand.model import Bound, Output
from estimand.runtime import require_precision
from estimand.sampling import named_key
from estimand.settings import checked_names
from estimand.trust import (
    BranchEstimate,
    Finding,
    OutputEstimate,
    Parts,
    Probability,
    Status,
    pooled,
    probabilities,
    worst,
)
from estimand.view import Summary, Table

if TYPE_CHECKING:
    from pandas import DataFrame


class ComparedModel(NamedTuple):
    """One of the models that are compared.

    `log_bayes_factor` is against the model with the most evidence, and `probability` is that of
    the model given the data; both are NaN for a model whose evidence cannot be trusted, and the
    probabilities of the others are then among these. Models that are the same share one estimate,
    and their `run` has the same number.
    """

    name: str
    prior: float
    evidence: LogEvidence
    run: int
    log_bayes_factor: float
    log_bayes_factor_error: float
    probability: float
    probability_error: float

    @property
    def status(self) -> Status:
        return self.evidence.status


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Comparison(Reported):
    """Models by their evidence, the best first; `models` has a row for each, by name.

    `average` is the expectation of the return value over all models, where it was asked for: an
    `OutputEstimate` for each output, and `estimates` those under each model, by name.

    Examples:
        >>> comparison = ep.compare({"one": program(2.0), "other": program(3.0)})
        >>> comparison.best
        'one'
        >>> round(comparison.models["other"].log_bayes_factor, 2)
        -1.25
    """

    models: dict[str, ComparedModel]
    estimates: dict[str, Estimate] = dataclasses.field(default_factory=dict)
    average: tuple[OutputEstimate, ...] = ()
    output: Output | None = None
    provenances: dict[str, records.Provenance] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def status(self) -> Status:
        """The most severe status of any model, and of the average."""
        rows = (row.status for row in self.models.values())
        return worst([*rows, *(output.status for output in self.average)])

    @property
    def best(self) -> str:
        """The name of the model with the most evidence, of those that can be trusted."""
        return next(name for name, row in self.models.items() if row.log_bayes_factor == 0)

    @property
    def refused(self) -> dict[str, str]:
        """Why a model's evidence cannot be trusted, by name."""
        return {
            name: f"{row.status.name}: {row.evidence.findings[0]}"
            for name, row in self.models.items()
            if not row.status
        }

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict of plain numbers for each model."""
        return [
            {
                "model": name,
                "prior": row.prior,
                "log_z": row.evidence.log_z,
                "log_z_error": row.evidence.standard_error,
                "log_bayes_factor": row.log_bayes_factor,
                "log_bayes_factor_error": row.log_bayes_factor_error,
                "probability": row.probability,
                "probability_error": row.probability_error,
                "status": row.status.name,
            }
            for name, row in self.models.items()
        ]

    def summary(self) -> Summary:
        """A table of the models, and one of the averages over them."""
        header = ("model", "log Z", "log Bayes factor", "prior", "probability", "status")
        rows = tuple(
            (
                name,
                with_error(row.evidence.log_z, row.evidence.standard_error),
                with_error(row.log_bayes_factor, row.log_bayes_factor_error),
                f"{row.prior:.4g}",
                with_error(row.probability, row.probability_error),
                row.status.name,
            )
            for name, row in self.models.items()
        )
        tables = [Table("Models by their evidence, the best first", header, rows)]
        if self.average:
            tables.append(self._averages())
        lines = [f"{name} cannot be trusted: {why}" for name, why in self.refused.items()]
        if lines:
            lines.append("Probabilities are among the other models.")
        for output in self.average:
            lines += [f"average: {item.status.name}: {item}" for item in output.findings]
        return Summary(tables, [*lines, self.status.value])

    def _averages(self) -> Table:
        assert self.output is not None
        labels = [label or "return value" for label in self.output.labels]
        names = list(self.estimates)
        rows = []
        for number, (label, average) in enumerate(zip(labels, self.average, strict=True)):
            own = (self.estimates[name].outputs[number] for name in names)
            numbers = [with_error(item.value, item.standard_error) for item in (average, *own)]
            rows.append((label, *numbers, average.status.name))
        header = ("expectation", "over models", *names, "status")
        return Table("Expectations, over the models and under each", header, tuple(rows))

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain data; those that are not finite are strings, as in JSON."""
        averages = [
            {
                "value": item.value,
                "standard_error": item.standard_error,
                "status": item.status.name,
            }
            for item in self.average
        ]
        content = {"status": self.status.name, "models": self.rows, "average": averages}
        return records.plain_numbers(content)

    def to_dataframe(self) -> DataFrame:
        """A row for each model, as a pandas DataFrame. Needs pandas."""
        return records.to_dataframe(self.rows, "model")


def with_error(value: float, error: float) -> str:
    """A number to the precision of its error; a dash if there is none."""
    if math.isnan(value):
        return "–"
    if not 0 < error < math.inf:
        return f"{value:.6g} ± {error:.2g}"
    places = min(max(1 - math.floor(math.log10(error)), 0), 15)
    if abs(value) < 1e-4 or places > 12:
        return f"{value:.4g} ± {error:.2g}"
    return f"{value:.{places}f} ± {error:.2g}"


@checked_names
def compare(
    models: Mapping[str, Bound | Callable],
    *,
    prior: Mapping[str, float] | None = None,
    average: bool = False,
    rng_key: int | jax.Array = 0,
    method: Auto | None = None,
    precision: str = "double",
    throw: bool = True,
    progress_bar: bool | None = None,
    executor: Executor | None = None,
) -> Comparison:
    """Compares models of the same data by their evidence.

    Every model is estimated on its own, with a key that follows from what it is: its row is the
    same whatever it is compared with. The same model with the same data under two names is
    estimated once, so that its Bayes factor against itself is exactly 1.

    Args:
        models: programs called with their data, or NumPyro models without arguments, by name.
        prior: the probability of each model before the data; equal by default. They are divided by
            their sum.
        average: also estimate the expectation of each program's return value, and its average
            over the models. The programs must return the same structure.
        rng_key: an int or a JAX key.
        method: settings of the default method, as in `log_evidence`.
        precision: as in `estimate_expectation`.
        throw: raise `EstimationError` if any row, or an average, cannot be trusted; the error's
            `estimate` has the other rows.
        progress_bar: as in `estimate_expectation`.
        executor: as in `estimate_expectation`.

    Raises:
        EstimationError: if a status is not `ok`, unless ``throw=False``.

    Examples:
        >>> comparison = ep.compare(
        ...     {"one": program(2.0), "other": program(3.0)}, prior={"one": 0.2, "other": 0.8}
        ... )
        >>> round(comparison.models["one"].probability, 2)
        0.47
    """
    if not isinstance(models, Mapping) or not models:
        raise TypeError(
            "compare: models must be a dict of programs called with their data, by name; it is "
            f"{models!r}."
        )
    require_precision("compare", precision)
    bound = {str(name): as_bound(f"compare: {name}", model) for name, model in models.items()}
    shares = _prior_of(list(bound), prior)
    bare = {str(name) for name, model in models.items() if not isinstance(model, Bound)}
    output = _common_output(bound, bare) if average else None
    method, key = auto_for("compare", method), records.as_key(rng_key)
    settings: dict[str, Any] = {
        "precision": precision,
        "progress_bar": progress_bar,
        "executor": executor,
    }
    distinct = _Distinct.of(bound, key)
    evidence = []
    for model, own_key in zip(distinct.models, distinct.keys, strict=True):
        with at_work(model, **settings) as work:
            evidence.append(evidence_of(model, own_key, method, work))
    rows = _rows(list(bound), [shares[name] for name in bound], distinct.numbers, evidence)
    comparison = Comparison(
        models={row.name: row for row in rows},
        provenances={
            name: provenance_of(model, method, key, precision) for name, model in bound.items()
        },
    )
    if output is not None:
        estimates = [
            estimate_expectation(
                model, method, rng_key=named_key(own_key, "average"), throw=False, **settings
            )
            for model, own_key in zip(distinct.models, distinct.keys, strict=True)
        ]
        comparison = _with_average(comparison, estimates, output)
    if throw and not comparison.status:
        raise EstimationError(comparison)
    return comparison


def _prior_of(names: list[str], prior: Mapping[str, float] | None) -> dict[str, float]:
    if prior is None:
        return {name: 1 / len(names) for name in names}
    if set(prior) != set(names):
        raise ValueError(
            f"compare: prior must have a number for each of {names}; it has {list(prior)}."
        )
    bad = {name: value for name, value in prior.items() if not 0 < value < math.inf}
    if bad:
        raise ValueError(f"compare: prior probabilities must be positive; they are {bad}.")
    total = math.fsum(prior.values())
    return {name: prior[name] / total for name in names}


def _common_output(models: Mapping[str, Bound], bare: Collection[str]) -> Output:
    """What all models return; `bare` ones are models of NumPyro, whose values are not asked for."""
    lacking = [name for name, model in models.items() if model.output is None or name in bare]
    if lacking:
        raise TypeError(f"compare: average needs a return value, and {lacking} have none.")
    outputs = {name: model.output for name, model in models.items() if model.output is not None}
    first = next(iter(outputs.values()))
    for name, output in outputs.items():
        if (output.treedef, output.shapes) != (first.treedef, first.shapes):
            raise TypeError(
                f"compare: average needs return values of the same structure, and that of "
                f"{name!r} is another one than that of {next(iter(outputs))!r}."
            )
    return first


class _Distinct(NamedTuple):
    """Models without repetitions, a key for each, and for every name the number of its model."""

    models: list[Bound]
    keys: list[jax.Array]
    numbers: list[int]

    @classmethod
    def of(cls, models: Mapping[str, Bound], rng_key: jax.Array) -> _Distinct:
        found: dict[tuple[str, str], int] = {}
        distinct = cls([], [], [])
        for model in models.values():
            provenance = records.provenance_of(model, None, rng_key)
            identity = provenance.program_digest, provenance.data_digest
            if identity not in found:
                found[identity] = len(distinct.models)
                distinct.models.append(model)
                distinct.keys.append(named_key(rng_key, "model", *identity))
            distinct.numbers.append(found[identity])
        return distinct


def _rows(
    names: list[str], prior: list[float], numbers: list[int], evidence: Sequence[LogEvidence]
) -> list[ComparedModel]:
    """A row for each name, the best first; those that cannot be trusted come last."""
    trusted = [number for number, item in enumerate(evidence) if item.status]
    best = max(trusted, key=lambda number: evidence[number].log_z, default=-1)
    shares = _probabilities(prior, numbers, evidence)
    rows = []
    for name, share, number in zip(names, prior, numbers, strict=True):
        own = evidence[number]
        factor = error = math.nan
        if number == best:
            factor = error = 0.0
        elif own.status and best >= 0:
            factor = own.log_z - evidence[best].log_z
            error = math.hypot(own.standard_error, evidence[best].standard_error)
        group = shares.get(number)
        of_group = share / math.fsum(
            other for other, one in zip(prior, numbers, strict=True) if one == number
        )
        probability, deviation = (
            (math.nan, math.nan)
            if group is None
            else (of_group * group.value, of_group * group.standard_error)
        )
        rows.append(ComparedModel(name, share, own, number, factor, error, probability, deviation))
    return sorted(rows, key=lambda row: (not row.status, -row.evidence.log_z))


def _probabilities(
    prior: list[float], numbers: list[int], evidence: Sequence[LogEvidence]
) -> dict[int, Probability]:
    """The posterior probability of each distinct model that can be trusted.

    Models are branches here, whose prior mass is their prior probability.
    """
    branches, found = [], []
    trusted = {number for number in numbers if evidence[number].status}
    total = math.fsum(p for p, number in zip(prior, numbers, strict=True) if number in trusted)
    for number in sorted(trusted):
        mass = math.fsum(p for p, one in zip(prior, numbers, strict=True) if one == number)
        branches.append(_branch(evidence[number], mass / total))
        found.append(number)
    return dict(zip(found, probabilities(branches), strict=True))


def _branch(evidence: LogEvidence, mass: float) -> BranchEstimate:
    return BranchEstimate(
        values=(),
        mass=mass,
        log_z2=evidence.log_z + math.log(mass),
        relative_variance=evidence.relative_variance,
        outputs=(),
        cost=0,
    )


def _with_average(
    comparison: Comparison, estimates: Sequence[Estimate], output: Output
) -> Comparison:
    """The comparison with expectations over the models that can be trusted.

    E[f] of a model and its evidence come from different runs: they are independent.
    """
    rows = list(comparison.models.values())
    by_name = {row.name: estimates[row.run] for row in rows}
    trusted = {row.run: row.evidence for row in rows if row.status}
    masses = {run: math.fsum(row.prior for row in rows if row.run == run) for run in trusted}
    averages = []
    for number in range(output.size):
        pieces = [
            estimates[run]
            .outputs[number]
            ._replace(parts=Parts(normaliser=evidence.evidence), covariance=0.0, findings=())
            for run, evidence in trusted.items()
        ]
        if not pieces:
            break
        log_masses = [math.log(mass) for mass in masses.values()]
        average = pooled(pieces, log_masses, is_one_model=False)._replace(parts=Parts())
        averages.append(average.with_findings(_unfit(rows, by_name, number, average)))
    return dataclasses.replace(
        comparison, estimates=by_name, average=tuple(averages), output=output
    )


def _unfit(
    rows: Sequence[ComparedModel],
    estimates: Mapping[str, Estimate],
    number: int,
    average: OutputEstimate,
) -> list[Finding]:
    """Expectations that cannot be trusted, of models whose share in the average matters."""
    found = []
    for row in rows:
        output = estimates[row.name].outputs[number]
        if not row.status or output.status:
            continue
        share = row.probability + 2 * row.probability_error
        size = share * max(abs(output.value - average.value), output.standard_error)
        if not size < average.standard_error / 10:
            finding = output.findings[0]
            detail = f"under {row.name}: {finding}"
            found.append(Finding(finding.status, None, detail, finding.check))
    return found
