"""The log marginal likelihood of a program, with its error and status."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any, NamedTuple

import jax

from estimand import record as records
from estimand.density import Density
from estimand.estimate import EstimationError, explained, runtime_for
from estimand.estimators import Estimator
from estimand.methods import AdaptiveIS, Auto, estimate_evidence, evidence_of_branches
from estimand.model import (
    Bound,
    BranchingExpectation,
    Derived,
    ExpectationProgram,
    SimulatorExpectation,
    bind,
)
from estimand.runtime import (
    CompilationClock,
    Interruption,
    LocalRuntime,
    Teller,
    bar,
    cache_on_disk,
    in_precision,
    one_blas_thread,
    require_precision,
    warn_of_wrong_code,
)
from estimand.settings import checked_names
from estimand.trust import Evidence, Finding, Status, most_severe, thresholds


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LogEvidence:
    """log Z2 of a program, its standard error, and how it was obtained.

    `degrees` are those of Student's t where the error comes from few replicates. `evidence` has
    all weights and positions.

    Examples:
        >>> evidence = ep.log_evidence(program(2.0))
        >>> round(evidence.log_z, 3), evidence.status.name
        (-2.266, 'ok')
    """

    program: str
    log_z: float
    standard_error: float
    degrees: float
    route: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    num_evaluations: int
    num_gradients: int
    seconds: float
    evidence: Evidence = dataclasses.field(repr=False)

    @property
    def status(self) -> Status:
        """That of the most severe finding; `ok` if there is none."""
        return most_severe(self.findings)

    @property
    def relative_variance(self) -> float:
        """The square of the standard error: the relative variance of Z."""
        return self.standard_error**2

    def interval(self, level: float = thresholds.CONFIDENCE) -> tuple[float, float]:
        """Confidence interval of log Z.

        Args:
            level: the probability with which such an interval has the truth in it.
        """
        if not 0 < level < 1:
            raise ValueError(f"interval: level must be between 0 and 1; it is {level}.")
        reach = records.quantile(0.5 + level / 2, self.degrees) * self.standard_error
        return self.log_z - reach, self.log_z + reach

    def __str__(self) -> str:
        low, high = self.interval()
        lines = [
            f"log evidence of {self.program}",
            f"  {self.log_z:.6g} ± {self.standard_error:.2g}   95 % interval [{low:.6g}, "
            f"{high:.6g}]   {self.status.name}",
            f"  by {self.route}; {self.num_evaluations:,} evaluations, {self.num_gradients:,} "
            f"gradients; {self.seconds:.1f} s",
            *(f"  {note}" for note in self.notes),
            *(f"  {finding.status.name}: {finding}" for finding in self.findings),
            f"  {self.status.value}",
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain data; those that are not finite are strings, as in JSON."""
        return records.plain_numbers(
            {
                "program": self.program,
                "log_z": self.log_z,
                "standard_error": self.standard_error,
                "interval": list(self.interval()),
                "status": self.status.name,
                "findings": [f"{item.status.name}: {item}" for item in self.findings],
                "route": self.route,
                "notes": list(self.notes),
                "num_evaluations": self.num_evaluations,
                "num_gradients": self.num_gradients,
                "seconds": self.seconds,
            }
        )


@checked_names
def log_evidence(
    model: Bound | Callable,
    estimator: Estimator | None = None,
    *,
    rng_key: int | jax.Array = 0,
    model_args: tuple = (),
    model_kwargs: dict[str, Any] | None = None,
    precision: str = "double",
    executor: Executor | None = None,
    method: Auto | None = None,
    throw: bool = True,
    progress_bar: bool | None = None,
) -> Any:
    """The log marginal likelihood of a bound program, or of any NumPyro model.

    Without an estimator it is the default method's: a mixture fitted to explorations from the
    prior, or to chains of the posterior, with the checks that estimates have; where these do not
    pass, bridge sampling of chains, or islands of `SMC`.

    Args:
        model: a program called with its data, or a NumPyro model.
        estimator: `ImportanceSampling`, `AnIS`, `SMC`, `AdaptiveIS` or `BridgeSampling` instead,
            whose `Evidence` is returned as it is, whatever its status.
        rng_key: an int or a JAX key.
        model_args: arguments of a NumPyro model.
        model_kwargs: its arguments by name.
        precision: ``"double"`` or ``"single"``, as in `estimate_expectation`.
        executor: where expensive tasks are run, as in `estimate_expectation`; with an estimator,
            for `AdaptiveIS`, as the others run in one piece.
        method: the default method's settings. `relative_error` is the error of log Z to aim for,
            0.01 by default; what is reached is reported, and above 0.14 it is refused.
        throw: raise `EstimationError` if the status is not `ok`.
        progress_bar: as in `estimate_expectation`.

    Returns:
        A `LogEvidence`; the `Evidence` of the estimator, if one is given.

    Raises:
        EstimationError: if the status is not `ok`, unless ``throw=False``.

    Examples:
        >>> def model(y):
        ...     x = numpyro.sample("x", dist.Normal(0, 1))
        ...     numpyro.sample("y", dist.Normal(x, 1), obs=y)
        >>> evidence = ep.log_evidence(model, model_args=(2.0,))
        >>> round(evidence.log_z, 3)
        -2.266
        >>> evidence = ep.log_evidence(model, ep.ImportanceSampling(), model_args=(2.0,))
        >>> abs(float(evidence.log_z) + 2.2655) < 4 * evidence.standard_error
        True
    """
    require_precision("log_evidence", precision)
    bound = as_bound("log_evidence", model, model_args, model_kwargs or {})
    key = records.as_key(rng_key)
    if estimator is not None:
        if executor is not None and not isinstance(estimator, AdaptiveIS):
            raise TypeError(
                f"log_evidence: {type(estimator).__name__} runs in one piece, and an executor is "
                "of no use to it: leave out executor=, or use AdaptiveIS."
            )
        if method is not None:
            raise TypeError("log_evidence: give an estimator or a method, not both.")
        return _by_estimator(bound, estimator, key, precision, executor)
    method = auto_for("log_evidence", method)
    with at_work(bound, precision, progress_bar, executor) as work:
        evidence = evidence_of(bound, key, method, work)
    if throw and not evidence.status:
        raise EstimationError(evidence)
    return evidence


def _by_estimator(
    bound: Bound, estimator: Estimator, key: jax.Array, precision: str, executor: Executor | None
) -> Evidence:
    with in_precision(precision), explained(bound.name):
        density = Density.of(bound)
        estimator.check(density)
        if executor is None or not isinstance(estimator, AdaptiveIS):
            return jax.device_get(estimator.estimate(key, density))
        with cache_on_disk(), CompilationClock(), runtime_for(executor, bound) as runtime:
            return jax.device_get(estimator.estimate_in(runtime, key, density))


# --- what other answers need of it, too ---


def as_bound(owner: str, model: Any, args: tuple = (), kwargs: dict | None = None) -> Bound:
    """A program with its data, or a NumPyro model that is called with these arguments."""
    if isinstance(model, Bound):
        if args or kwargs:
            raise TypeError(f"{owner}: a bound program has its arguments already.")
        return model
    if isinstance(model, ExpectationProgram):
        model = model.model
    if not callable(model):
        raise TypeError(f"{owner}: expected a program called with its data, got {model!r}.")
    return bind(ExpectationProgram(_counting(model)), args, kwargs or {})


def _counting(model: Callable) -> Callable:
    """A model that returns 1: beside a return value its density is read, too."""

    @functools.wraps(model)
    def program(*args: Any, **kwargs: Any) -> float:
        model(*args, **kwargs)
        return 1.0

    return program


def auto_for(owner: str, method: Any) -> Auto:
    """The default method's settings."""
    method = Auto() if method is None else method
    if not isinstance(method, Auto):
        raise TypeError(f"{owner}: method must be Auto(...); it is {method!r}.")
    return method


class Work(NamedTuple):
    """What answers are worked out with."""

    runtime: LocalRuntime
    clock: CompilationClock


@contextlib.contextmanager
def at_work(
    bound: Bound, precision: str, progress_bar: bool | None, executor: Executor | None
) -> Iterator[Work]:
    """A runtime, with a progress bar, that Ctrl-C ends between steps."""
    with (
        in_precision(precision),
        bar(progress_bar) as listener,
        Interruption() as interruption,
    ):
        warn_of_wrong_code()
        teller = Teller(listener)
        with (
            one_blas_thread(),
            cache_on_disk(),
            CompilationClock(interruption.check, teller.compiling) as clock,
            explained(bound.name),
            runtime_for(executor, bound, listener=teller, interruption=interruption) as runtime,
        ):
            yield Work(runtime, clock)


def evidence_of(bound: Bound, key: jax.Array, method: Auto, work: Work) -> LogEvidence:
    """The evidence of one program by the default method."""
    if isinstance(bound, SimulatorExpectation):
        raise TypeError(
            f"the evidence of program {bound.name!r}: it calls a simulator, for which there is no "
            "default way. Name an estimator, such as log_evidence(..., SMC())."
        )
    started = time.perf_counter()
    notes: tuple[str, ...] = ()
    if isinstance(bound, BranchingExpectation):
        one = Derived(bound, bound.name, _one)()
        assert isinstance(one, BranchingExpectation)
        run = evidence_of_branches(key, one, work.runtime, method)
    else:
        run = estimate_evidence(key, Density.of(bound), work.runtime, method)
        notes = bound.notes
    evidence = run.evidence
    return LogEvidence(
        program=bound.name,
        log_z=float(evidence.log_z),
        standard_error=math.sqrt(float(evidence.relative_variance)),
        degrees=float(evidence.degrees),
        route=run.route,
        findings=run.findings,
        notes=(*notes, *run.notes),
        num_evaluations=run.cost.num_evaluations,
        num_gradients=run.cost.num_gradients,
        seconds=time.perf_counter() - started,
        evidence=evidence,
    )


def _one(_numbers: Any, _value: Any) -> float:
    return 1.0
