"""`leave_one_out`: how well each row of data is predicted by the others.

p(yᵢ | the others) = Z2 / Z2₋ᵢ, and Z2₋ᵢ / Z2 is the expectation of 1/p(yᵢ | sites) under the
posterior: the draws of the posterior give it for rows that do not matter much, and for the others
it is an expectation like any other, whose target is the posterior without the row. A row whose
density is 0 for a part of the parameters cuts that part off, and the posterior without it may have
mass there: then p(yᵢ | the others) is the mean of p(yᵢ | sites) under the posterior without it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from estimand.answers.reported import Reported, provenance_of
from estimand.density import Density
from estimand.estimate import Estimate, EstimationError, estimate_expectation
from estimand.methods import Method
from estimand.model import (
    Bound,
    Expectation,
    ProgramError,
    predicted_row,
    rows_of,
    the_posterior,
    without_rows,
)
from estimand.record import Provenance, as_key, plain_numbers, quantile
from estimand.runtime import cache_on_disk, compiled_per_model, in_precision
from estimand.sampling import effective_sample_size, in_chunks, log_mean, pareto_k, vmapped
from estimand.settings import checked_names
from estimand.trust import (
    Evidence,
    Finding,
    Status,
    check_size,
    check_tail,
    jackknife,
    most_severe,
    replicates_of,
    thresholds,
    worst,
)
from estimand.view import Summary, Table

if TYPE_CHECKING:
    from arviz_stats.utils import ELPDData

# Rows that are worked on at a time, and that are explored in one estimate.
BLOCK, GROUP = 32, 4
MAX_PRINTED = 10
# Where it is looked whether a row cuts off a part of the parameters: prior draws, and draws of the
# posterior moved by some of its spreads along all coordinates and along one. And how many of the
# places where only one row has density 0 are looked at for the rest of the model.
NUM_SEEN, MOVES, MAX_ALONE = 4096, (0.1, 0.5, 2.0), 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """One row of data: the log of its predictive density given the others.

    `pareto_k` is the tail index of the weights that it rests on, and `posterior_k` that of the
    posterior's own draws. They differ where the posterior without the row was explored.
    """

    index: int
    elpd: float
    standard_error: float
    degrees: float
    log_density: float
    pareto_k: float
    posterior_k: float
    is_explored: bool
    findings: tuple[Finding, ...]

    @property
    def status(self) -> Status:
        return most_severe(self.findings)

    @property
    def interval(self) -> tuple[float, float]:
        reach = quantile(0.975, self.degrees) * self.standard_error
        return self.elpd - reach, self.elpd + reach


@dataclasses.dataclass(frozen=True, eq=False)
class LeaveOneOut(Reported):
    """Leave-one-out cross-validation of a program. Made by `leave_one_out`.

    `elpd` is the sum of the rows' log predictive densities and `standard_error` its Monte Carlo
    error; `se` is how far the sum may be from that of other data of this kind, by the spread of
    the rows. `effective_parameters` is what is lost against predictions that know the row.
    """

    program: str
    site: str
    rows: tuple[Prediction, ...]
    elpd: float
    standard_error: float
    num_draws: int
    posterior: Estimate = dataclasses.field(repr=False)
    provenance: Provenance = dataclasses.field(repr=False)

    @property
    def status(self) -> Status:
        """The most severe status of any row."""
        return worst(row.status for row in self.rows)

    @property
    def se(self) -> float:
        """Standard error of `elpd` by the spread of the rows."""
        values = np.asarray([row.elpd for row in self.rows])
        return float(math.sqrt(values.size) * values.std(ddof=1)) if values.size > 1 else math.nan

    @property
    def num_explored(self) -> int:
        """For how many rows the posterior without them was explored."""
        return sum(row.is_explored for row in self.rows)

    @property
    def effective_parameters(self) -> float:
        return float(sum(row.log_density - row.elpd for row in self.rows))

    def summary(self) -> Summary:
        """The rows that are predicted worst, and the sum over all of them."""
        words = [
            f"ELPD {self.elpd:.5g} ± {self.standard_error:.2g} (Monte Carlo), SE {self.se:.3g} by "
            f"the spread of the rows; effective parameters {self.effective_parameters:.3g}"
        ]
        if len(self.rows) > MAX_PRINTED:
            words.insert(0, f"and {len(self.rows) - MAX_PRINTED} more rows, better predicted")
        if self.num_explored:
            words.append(
                f"the posterior without the row was explored for {self.num_explored} of the rows"
            )
        return Summary([self.table(MAX_PRINTED)], [*words, *self._finding_lines()])

    def table(self, count: int) -> Table:
        """So many of the rows, those that are predicted worst."""
        header = ("row", "log density", "Pareto k", "of the posterior", "explored", "status")
        worst_first = sorted(self.rows, key=lambda row: (bool(row.status), row.elpd))
        lines = tuple(
            (
                str(row.index),
                f"{row.elpd:.5g} ± {row.standard_error:.2g}",
                f"{row.pareto_k:.2f}",
                f"{row.posterior_k:.2f}",
                "yes" if row.is_explored else "",
                row.status.name,
            )
            for row in worst_first[:count]
        )
        return Table(f"log p({self.site}[i] | the others) in {self.program}", header, lines)

    def _finding_lines(self) -> Iterator[str]:
        for row in self.rows:
            for finding in row.findings:
                yield f"row {row.index} {finding.status.name}: {finding}"

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain data; those that are not finite are strings, as in JSON."""
        return plain_numbers(
            {
                "program": self.program,
                "site": self.site,
                "status": self.status.name,
                "elpd": self.elpd,
                "standard_error": self.standard_error,
                "se": self.se,
                "effective_parameters": self.effective_parameters,
                "rows": [
                    {
                        "row": row.index,
                        "elpd": row.elpd,
                        "standard_error": row.standard_error,
                        "interval": row.interval,
                        "pareto_k": row.pareto_k,
                        "posterior_k": row.posterior_k,
                        "is_explored": row.is_explored,
                        "status": row.status.name,
                        "findings": [str(finding) for finding in row.findings],
                    }
                    for row in self.rows
                ],
            }
        )

    def to_arviz(self) -> ELPDData:
        """As ArviZ has it, for ``arviz_stats.compare``. Needs ArviZ:
        ``pip install 'estimand[arviz]'``.
        """
        try:
            from arviz_stats.utils import ELPDData
            from xarray import DataArray
        except ImportError as error:
            raise ImportError("to_arviz needs ArviZ: pip install 'estimand[arviz]'") from error
        dims = [f"{self.site}_row"]
        coords = {dims[0]: [row.index for row in self.rows]}

        def by_row(field: str, name: str) -> DataArray:
            return DataArray([getattr(row, field) for row in self.rows], coords, dims, name=name)

        return ELPDData(
            kind="loo",
            elpd=self.elpd,
            se=self.se,
            p=self.effective_parameters,
            n_samples=self.num_draws,
            n_data_points=len(self.rows),
            scale="log",
            warning=not self.status,
            good_k=thresholds.MAX_PARETO_K,
            elpd_i=by_row("elpd", "elpd_i"),
            pareto_k=by_row("pareto_k", "pareto_k"),
        )


@checked_names
def leave_one_out(
    expectation: Bound,
    *,
    site: str | None = None,
    method: Method | None = None,
    rng_key: int | jax.Array = 0,
    throw: bool = True,
    precision: str = "double",
    progress_bar: bool | None = None,
    executor: Executor | None = None,
) -> LeaveOneOut:
    """The log predictive density of every row of data given all other rows, and their sum.

    The draws of the posterior say it of most rows. Where their weights are too few or have too
    heavy a tail, the posterior without the row is explored. What the program returns does not
    matter.

    Args:
        expectation: a program called with its data.
        site: the observed site whose rows are meant, if there are several.
        method: as in `estimate_expectation`, for the posterior and for rows that are explored.
        rng_key: an int or a JAX key.
        throw: raise `EstimationError` if a row cannot be trusted; False returns what there is,
            whose `status` must then be looked at.
        precision: as in `estimate_expectation`.
        progress_bar: as in `estimate_expectation`.
        executor: as in `estimate_expectation`.

    Examples:
        >>> @ep.expectation
        ... def regression(y):
        ...     x = numpyro.sample("x", dist.Normal(0, 1))
        ...     with numpyro.plate("rows", y.size):
        ...         numpyro.sample("y", dist.Normal(x, 1), obs=y)
        ...     return x
        >>> loo = ep.leave_one_out(regression(jnp.array([0.1, -0.4, 6.0])))
        >>> min(loo.rows, key=lambda row: row.elpd).index
        2
    """
    if not isinstance(expectation, Expectation):
        raise ProgramError(
            f"leave_one_out: expected a program called with its data, whose rows JAX can see; got "
            f"{expectation!r}."
        )
    site, count = rows_of(expectation, site)
    key = as_key(rng_key)
    options: dict[str, Any] = {
        "method": method,
        "precision": precision,
        "progress_bar": progress_bar,
        "executor": executor,
        "throw": False,
    }
    posterior = estimate_expectation(the_posterior(expectation), rng_key=key, **options)
    if throw and not posterior.status:
        raise EstimationError(posterior)
    with in_precision(precision), cache_on_disk():
        known = _from_posterior(expectation, site, count, posterior)
    rows, errors = _settled(expectation, site, known, key, options)
    result = LeaveOneOut(
        program=expectation.name,
        site=site,
        rows=tuple(rows),
        elpd=float(sum(row.elpd for row in rows)),
        standard_error=math.hypot(*errors),
        num_draws=known.num_draws,
        posterior=posterior,
        provenance=provenance_of(expectation, posterior.method, key, precision),
    )
    if throw and not result.status:
        raise EstimationError(result)
    return result


def _settled(
    expectation: Expectation,
    site: str,
    known: _Known,
    key: jax.Array,
    options: dict[str, Any],
) -> tuple[list[Prediction], list[float]]:
    """All rows, those explored of which draws of the posterior do not say it; and errors of the sum
    of those that are known together."""
    rows = list(known.rows)
    weak = [row.index for row in rows if not row.status and row.index not in known.cutting]
    errors = [known.standard_error]
    for number, start in enumerate(range(0, len(weak), GROUP)):
        indices = weak[start : start + GROUP]
        explored, error = _explored(
            expectation, site, [rows[k] for k in indices], jax.random.fold_in(key, number), options
        )
        for row in explored:
            rows[row.index] = row
        errors.append(error)
    for index in known.cutting:
        own_key = jax.random.fold_in(key, len(rows) + index)
        rows[index] = _without(expectation, site, rows[index], len(rows), own_key, options)
        errors.append(rows[index].standard_error)
    return rows, errors


class _Known(NamedTuple):
    """What the posterior's own draws say: rows, the error of the sum of those that are ok, and the
    rows that cut off a part of the parameters."""

    rows: tuple[Prediction, ...]
    standard_error: float
    num_draws: int
    cutting: tuple[int, ...] = ()


def _from_posterior(expectation: Expectation, site: str, count: int, posterior: Estimate) -> _Known:
    evidence = posterior.outputs[0].parts.normaliser
    replicate = replicates_of(evidence) if isinstance(evidence, Evidence) else None
    if replicate is None or not math.isfinite(evidence.log_z):
        finding = Finding(Status.low_ess, None, "the posterior has no independent draws", "size")
        rows = [
            Prediction(
                index=k,
                elpd=0.0,
                standard_error=math.inf,
                degrees=math.inf,
                log_density=math.nan,
                pareto_k=math.nan,
                posterior_k=math.nan,
                is_explored=False,
                findings=(finding,),
            )
            for k in range(count)
        ]
        return _Known(tuple(rows), 0.0, 0)
    log_weights = np.asarray(evidence.log_weights, float)
    is_there = log_weights > -np.inf
    draws = _Draws(
        np.asarray(evidence.positions)[is_there],
        log_weights[is_there] - log_weights.max(),
        replicate[is_there],
    )
    elsewhere = _elsewhere(expectation, evidence, draws)
    num_cut, which = np.zeros(len(elsewhere), int), np.zeros(len(elsewhere), int)
    rows, columns = [], []
    for start in range(0, count, BLOCK):
        # Blocks of one size: those of the last rows are filled up with the last one.
        block = np.minimum(np.arange(start, start + BLOCK), count - 1)
        bound = without_rows(expectation, site, block, np.zeros(BLOCK))
        density = Density.of(bound).part("gamma2")
        found = -in_chunks(functools.partial(_log_sizes, density), draws.positions)
        cut = in_chunks(functools.partial(_log_sizes, density), elsewhere) == np.inf
        for k in range(start, min(start + BLOCK, count)):
            row, column = _row(k, draws, found[:, k - start])
            rows.append(row)
            columns.append(column)
            num_cut += cut[:, k - start]
            which += np.where(cut[:, k - start], k, 0)
    alone = {int(k): elsewhere[(num_cut == 1) & (which == k)] for k in set(which[num_cut == 1])}
    cutting = tuple(
        k for k in sorted(alone) if _is_possible(expectation, site, k, count, alone[k][:MAX_ALONE])
    )
    sums = [columns[row.index] for row in rows if row.status and row.index not in cutting]
    total = np.exp(draws.log_weights)
    normaliser = np.bincount(draws.replicate, total)
    error = 0.0
    if sums:
        table = np.stack([normaliser, *sums], axis=1)
        joint = jackknife(lambda means: np.log(means[0] / means[1:]).sum(), table)
        error = float(joint.standard_error)
    return _Known(tuple(rows), error, log_weights.size, cutting)


def _elsewhere(expectation: Expectation, evidence: Evidence, draws: _Draws) -> np.ndarray:
    """Positions within and beyond the posterior, among them those where its density is 0."""
    density = Density.of(the_posterior(expectation))
    generator = np.random.default_rng(0)
    share = np.exp(draws.log_weights)
    share /= share.sum()
    spread = np.sqrt(share @ (draws.positions - share @ draws.positions) ** 2)
    shape = NUM_SEEN, draws.positions.shape[1]
    found = [np.asarray(evidence.positions)[np.asarray(evidence.log_weights) == -np.inf]]
    if not density.layout.improper_sites:
        keys = jax.random.split(jax.random.key(0), NUM_SEEN)
        found.append(np.asarray(_prior_positions(density, keys)))
    if not density.layout.discrete_sites:
        for size in MOVES:
            for is_single in (False, True):
                moves = size * spread * generator.normal(size=shape)
                if is_single:
                    moves *= generator.integers(shape[1], size=NUM_SEEN)[:, None] == np.arange(
                        shape[1]
                    )
                starts = generator.choice(len(share), size=NUM_SEEN, p=share)
                found.append(draws.positions[starts] + moves)
    return np.concatenate(found)


@compiled_per_model
def _prior_positions(density: Density, keys: jax.Array) -> jax.Array:
    return jax.vmap(lambda key: density.draw_prior(key)[0])(keys)


def _is_possible(
    expectation: Expectation, site: str, row: int, count: int, positions: np.ndarray
) -> bool:
    """Whether the posterior without a row has mass at any of some positions."""
    density = Density.of(predicted_row(expectation, site, row, count, 0.0)).part("gamma2")
    return bool(np.isfinite(in_chunks(functools.partial(_log_gamma, density), positions)).any())


@compiled_per_model
def _log_gamma(density: Density, positions: jax.Array) -> jax.Array:
    def log_gamma(position: jax.Array) -> jax.Array:
        terms = density.evaluate(position)[0]
        return terms.log_prior + terms.log_likelihood

    return vmapped(log_gamma, positions)


def _without(
    expectation: Expectation,
    site: str,
    row: Prediction,
    count: int,
    rng_key: jax.Array,
    options: dict[str, Any],
) -> Prediction:
    """A row that cuts off a part of the parameters, by the posterior without it."""
    bound = predicted_row(expectation, site, row.index, count, row.log_density)
    output = estimate_expectation(bound, rng_key=rng_key, **options).outputs[0]
    is_known = output.value > 0 and math.isfinite(output.standard_error)
    ends = output.parts.normaliser, output.parts.plus
    tails = [end.pareto_k for end in ends if isinstance(end, Evidence)]
    return dataclasses.replace(
        row,
        elpd=row.log_density + (math.log(output.value) if is_known else 0.0),
        standard_error=output.standard_error / output.value if is_known else math.inf,
        degrees=output.degrees,
        pareto_k=max(tails, default=math.nan),
        is_explored=True,
        findings=output.findings,
    )


@compiled_per_model
def _log_sizes(density: Density, positions: jax.Array) -> jax.Array:
    """The logarithms of all outputs."""
    return vmapped(lambda position: density.evaluate(position)[1].log_abs, positions)


class _Draws(NamedTuple):
    """Draws of the posterior, with weights relative to the largest."""

    positions: np.ndarray
    log_weights: np.ndarray
    replicate: np.ndarray


def _row(index: int, draws: _Draws, log_density: np.ndarray) -> tuple[Prediction, np.ndarray]:
    """A row by the posterior's draws, and sums of its weights by replicate."""
    log_weights = draws.log_weights - log_density
    top = log_weights.max()
    sums = np.bincount(draws.replicate, np.exp(log_weights - top))
    table = np.stack([np.bincount(draws.replicate, np.exp(draws.log_weights)), sums], axis=1)
    found = jackknife(lambda means: np.log(means[0] / means[1]), table)
    size = effective_sample_size(log_weights)
    tail = pareto_k(log_weights)
    findings = [*check_tail(log_weights), *check_size(size, None, thresholds.ENOUGH_ESS)]
    own = log_mean(draws.log_weights + log_density) - log_mean(draws.log_weights)
    row = Prediction(
        index=index,
        elpd=float(found.value) - top,
        standard_error=float(found.standard_error),
        degrees=found.degrees,
        log_density=own,
        pareto_k=tail,
        posterior_k=tail,
        is_explored=False,
        findings=tuple(findings),
    )
    return row, sums


def _explored(
    expectation: Expectation,
    site: str,
    rows: list[Prediction],
    rng_key: jax.Array,
    options: dict[str, Any],
) -> tuple[list[Prediction], float]:
    """Rows for which the posterior without them is explored, and the error of their sum."""
    indices = np.asarray([row.index for row in rows])
    # Groups of one size share compiled code.
    filled = np.concatenate([indices, np.repeat(indices[-1:], GROUP - len(indices))])
    scales = np.asarray([row.elpd for row in rows] + [rows[-1].elpd] * (GROUP - len(rows)))
    bound = without_rows(expectation, site, filled, scales)
    estimate = estimate_expectation(bound, rng_key=rng_key, **options)
    found = []
    for row, output in zip(rows, estimate.outputs, strict=False):
        plus = output.parts.plus
        is_known = output.value > 0 and math.isfinite(output.standard_error)
        found.append(
            dataclasses.replace(
                row,
                elpd=row.elpd - (math.log(output.value) if is_known else 0.0),
                standard_error=output.standard_error / output.value if is_known else math.inf,
                degrees=output.degrees,
                pareto_k=math.nan if plus is None else plus.pareto_k,
                is_explored=True,
                findings=output.findings,
            )
        )
    # They are from the same draws: the error of the sum is at most the sum of theirs.
    return found, sum(row.standard_error for row in found)
