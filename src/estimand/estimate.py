"""The entry points: a bound program and a method in, an `Estimate` with its error out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import math
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from estimand import record as records
from estimand.density import Density
from estimand.estimators import Estimator
from estimand.methods import (
    Auto,
    Economical,
    Method,
    Run,
    estimate_branches,
    interrupted,
)
from estimand.model import (
    PARTS,
    Bound,
    BranchingExpectation,
    ConditionalExpectation,
    ConditionalProgram,
    Expectation,
    ExpectationProgram,
    Output,
    ProgramError,
    SimulatorExpectation,
    SimulatorProgram,
    not_a_number,
)
from estimand.record import Contents, Provenance, Question, Record
from estimand.runtime import (
    CompilationClock,
    ExecutorRuntime,
    Interruption,
    Journal,
    Listener,
    LocalRuntime,
    Progress,
    SendingError,
    Task,
    Teller,
    bar,
    cache_on_disk,
    ignore,
    in_precision,
    journal,
    one_blas_thread,
    require_precision,
    this_precision,
    warn_of_wrong_code,
)
from estimand.sensitivity import Sensitivity, sensitivity_of
from estimand.settings import checked_names, require_count
from estimand.trust import Finding, Status, checked, notes_on_ranges
from estimand.view import (
    Diagnosis,
    Reliability,
    Summary,
    diagnose,
    message,
    names_text,
    printed,
    reliability_of,
    summarise,
)

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import DataTree

_log = logging.getLogger("estimand")

# The names that `samples` takes for each density.
_DRAWN = {"posterior": "gamma2"} | {name: name for name in PARTS}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Estimate(Record):
    """The estimate of an expectation, with its error and how it was obtained.

    `value` and `standard_error` have the structure of the program's return value. Unpacks as the
    paper's pair ``value, diagnostics``. `question` is there in the session that made the estimate
    and is not saved.

    Examples:
        >>> value, diagnostics = ep.estimate_expectation(program(2.0))
        >>> round(value, 1), diagnostics["status"].name
        (2.5, 'ok')
    """

    question: Question | None = dataclasses.field(default=None, repr=False)

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Errors, status, effective sample sizes and costs by name."""
        return {
            "standard_error": self.standard_error,
            "interval": self.interval(),
            "status": self.status,
            "message": message(self),
            "findings": self.findings,
            "log_z": self.log_z,
            "ess": self.ess,
            "notes": self.run.notes,
            "num_evaluations": self.num_evaluations,
            "num_gradients": self.num_gradients,
            "compile_seconds": self.compile_seconds,
            "run_seconds": self.run_seconds,
        }

    def __iter__(self) -> Iterator[Any]:
        return iter((self.value, self.diagnostics))

    def __float__(self) -> float:
        if len(self.outputs) != 1:
            raise TypeError(
                f"float: {self.program!r} has {len(self.outputs)} outputs: take one of them from "
                "`value`."
            )
        return self.outputs[0].value

    def __str__(self) -> str:
        return printed(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    @functools.cached_property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """For every output the evidence for and against its estimate, and a verdict."""
        return diagnose(self)

    def summary(self) -> Summary:
        """Tables of the estimate, its parts and its diagnostics, to print or to show.

        ``print(result.summary())`` is in colour in a terminal where rich is installed.

        Examples:
            >>> print(result.summary())
            E[program] by Auto()
            ...
        """
        return summarise(self, self.diagnoses)

    @checked_names
    def reliability(self, output: int = 0, *, rng_key: int | jax.Array = 0) -> Reliability:
        """Of an event: the index β = −Φ⁻¹(P), design points, and the importance of each site.

        Design points are searched for from draws of the event, a branch of a union having one of
        its own, with its share of the probability. Once they are known, summaries and reports show
        them.

        Args:
            output: the number of the output, if the program has several.
            rng_key: an int or a JAX key, for the searches.

        Examples:
            >>> event = ep.expect(program.model, lambda sites: sites["x"] > 4)
            >>> reliability = ep.estimate_expectation(event(2.0)).reliability()
            >>> round(reliability.beta, 2)
            4.24
        """
        self.reliabilities[output] = reliability_of(self, output, rng_key)
        return self.reliabilities[output]

    @checked_names
    def to_html(self, path: str | os.PathLike | None = None) -> str:
        """A report as one self-contained page, also written to `path` if one is given.

        The number and its interval first, then the verdict, plots, tables, settings, versions and
        the program's source. Needs matplotlib: ``pip install 'estimand[plots]'``.

        Args:
            path: the file, in a folder that exists.

        Examples:
            >>> page = result.to_html("report.html")
        """
        from estimand.view import report

        page = report.to_html(self, self.diagnoses)
        if path is not None:
            records.write_atomically(path, page.encode())
        return page

    @checked_names
    def save(self, path: str | os.PathLike) -> None:
        """Saves the record as one file, which `load` reads without the program.

        The file is written as a whole or not at all. It keeps at most 5,000 weighted draws of
        each density; all else is kept in full.

        Args:
            path: the file, in a folder that exists; an older one is replaced.

        Examples:
            >>> result.save("result.est")
        """
        records.save(self, path)

    def merge(self, *others: Estimate) -> Estimate:
        """One estimate from this and other runs of the same program, data and method.

        The runs must have different random keys. Every Z is the mean over the runs, weighted by
        their cost, so that it is unbiased where theirs are; the order does not matter.

        Args:
            others: estimates.

        Raises:
            MergeError: if the records are of different programs, data or methods, or of one run.

        Examples:
            >>> other = ep.estimate_expectation(program(2.0), rng_key=1)
            >>> result.merge(other).standard_error < result.standard_error
            True
        """
        for other in others:
            if not isinstance(other, Estimate):
                raise TypeError(f"merge: expected estimates, got {other!r}.")
        if not others:
            return self
        questions = (item.question for item in (self, *others) if item.question is not None)
        merged = records.merge([self, *others])
        return Estimate(**merged, question=next(questions, None))

    @checked_names
    def refine(
        self,
        *,
        relative_error: float,
        max_evaluations: float = math.inf,
        max_runs: int = 100,
        expectation: Bound | None = None,
        method: Method | None = None,
        throw: bool = True,
        progress_bar: bool | None = None,
        executor: Executor | None = None,
    ) -> Estimate:
        """Goes on until the standard error is small enough; nothing so far is thrown away.

        Runs the same method again with fresh keys, which follow from those so far, in the same
        precision, and merges. An estimate that is precise enough is returned as it is. After Ctrl-C
        it is what the runs that were finished say.

        Args:
            relative_error: standard error to reach for every output, relative to its value.
            max_evaluations: evaluations that may be spent further, a gradient counting as 3; a
                run is begun if one of average cost fits.
            max_runs: runs that may be made further.
            expectation: the program called with its data; needed for a record that was loaded.
            method: the method; needed for a record that was loaded if it is not the default one.
            throw: raise `EstimationError` if the status is not `ok`.
            progress_bar: as in `estimate_expectation`.
            executor: where further runs, or expensive pieces of them, are run side by side, as in
                `estimate_expectation`.

        Returns:
            The merged estimate. Its status is `not_converged` if the error was not reached.

        Raises:
            ValueError: if a loaded record is of another program, other data or another method.

        Examples:
            >>> result.refine(relative_error=1.0) is result  # it is precise enough
            True
        """
        if not relative_error > 0:
            raise ValueError(f"refine: relative_error must be positive; it is {relative_error}.")
        if not max_evaluations > 0:
            raise ValueError(f"refine: max_evaluations must be positive; it is {max_evaluations}.")
        require_count("refine", "max_runs", max_runs)
        with (
            in_precision(self.precision),
            bar(progress_bar, f"E[{self.program}]") as listener,
            Interruption() as interruption,
        ):
            question = records.question_of(self, self.question, expectation, method)
            maker = _Maker(question, listener, interruption, executor)
            with maker.runtime(listener) as runtime:
                runs = _Runs(maker, runtime)
                pieces = _refined(self, runs, relative_error, max_evaluations, max_runs)
                notes = runtime.notes
        estimate = records.judged(pieces[0].merge(*pieces[1:]), relative_error)
        if len(pieces) > 1 and notes:
            estimate = dataclasses.replace(estimate, run=estimate.run.with_notes(*notes))
        if estimate.question is None:
            estimate = dataclasses.replace(estimate, question=question)
        if throw and not estimate.status:
            raise EstimationError(estimate)
        return estimate

    @checked_names
    def sensitivity(
        self, output: int = 0, *, expectation: Bound | None = None, throw: bool = True
    ) -> Sensitivity:
        """Derivatives of the expectation by what the program was given, from the same draws.

        By its arguments, by the constants in its distributions, by the powers to which prior and
        likelihood are raised, and by the weight of every row of data; each with its error. Once
        they are known, reports show them.

        Args:
            output: the number of the output, if the program has several.
            expectation: the program called with its data, if the estimate does not have it.
            throw: raise `EstimationError` if no derivative can be trusted. One that cannot has a
                status of its own, and the others stay; where few draws speak of it, it is NaN.

        Raises:
            ValueError: if the draws are not there: of a record that was loaded or merged, or where
                the method keeps no independent ones.

        Examples:
            >>> slope = result.sensitivity().arguments["y"]
            >>> bool(abs(slope.value - 2.25) < 4 * slope.standard_error)  # of y³/8 + 3y/4
            True
        """
        if not 0 <= output < self.output.size:
            raise ValueError(
                f"sensitivity: output must be from 0 to {self.output.size - 1}; it is {output}."
            )
        if output not in self.sensitivities:
            if expectation is None and self.question is not None:
                expectation = self.question.expectation
            if expectation is None or self.density is None:
                raise ValueError(
                    "sensitivity: it needs all draws of the session that made the estimate, and a "
                    "record that was loaded or merged keeps some of them. Estimate again."
                )
            self.sensitivities[output] = sensitivity_of(self, expectation, output)
        found = self.sensitivities[output]
        if throw and not found.has_any:
            raise EstimationError(found)
        return found

    def to_dict(self) -> dict[str, Any]:
        """All numbers and settings as plain data; NaN and infinities are strings, as in JSON.

        Examples:
            >>> result.to_dict()["outputs"][0]["status"]
            'ok'
        """
        return records.to_dict(self)

    def to_dataframe(self) -> DataFrame:
        """One row for every output: name, value, standard error, interval, status. Needs pandas.

        Examples:
            >>> result.to_dataframe()["status"].tolist()
            ['ok']
        """
        return records.to_dataframe(records.rows_of(self))

    def to_json(self) -> str:
        """`to_dict` as JSON; ``float`` reads the strings "NaN", "Infinity" and "-Infinity".

        Examples:
            >>> json.loads(result.to_json())["program"]
            'program'
        """
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def to_datatree(self, *, rng_key: int | jax.Array = 0) -> DataTree:
        """The draws as an xarray DataTree in ArviZ's layout.

        The groups ``posterior``, ``target_plus`` and ``target_minus`` (γ, γf⁺ and γf⁻; numbered by
        output if there are several) have equally weighted draws, as ArviZ takes them to be. The
        same names after ``weighted_`` have the draws as they were made, with ``log_weight``.
        ``sample_stats`` has the return value at the posterior's draws.

        Args:
            rng_key: an int or a JAX key, for the equally weighted draws.

        Examples:
            >>> import arviz_stats
            >>> float(arviz_stats.summary(result.to_datatree(), round_to=1).loc["x", "mean"])
            1.0
        """
        return records.to_datatree(self, records.generator_of(rng_key))

    @checked_names
    def samples(
        self,
        part: str = "posterior",
        *,
        output: int = 0,
        num_samples: int = 1000,
        rng_key: int | jax.Array = 0,
    ) -> dict[str, np.ndarray]:
        """Equally weighted draws from one of the densities: where the expectation comes from.

        They are drawn from the at most 5,000 weighted ones of the record, so that more of them
        only repeat those.

        Args:
            part: ``"posterior"`` or ``"gamma2"`` for γ, ``"gamma1_plus"`` for γf⁺,
                ``"gamma1_minus"`` for γf⁻.
            output: the number of the output whose f is meant, if the program has several.
            num_samples: draws.
            rng_key: an int or a JAX key.

        Returns:
            Values by latent site, in the model's own coordinates, with draws along the first axis.

        Examples:
            >>> bool((result.samples("gamma1_minus")["x"] < 0).all())
            True
        """
        if part not in _DRAWN:
            raise ValueError(f"samples: part must be one of {list(_DRAWN)}; it is {part!r}.")
        if not 0 <= output < self.output.size:
            raise ValueError(
                f"samples: output must be from 0 to {self.output.size - 1}; it is {output}."
            )
        if num_samples < 1:
            raise ValueError(f"samples: num_samples must be positive; it is {num_samples}.")
        draws = self.draws_of(_DRAWN[part], output)
        if draws is None:
            why = f"{self.method} keeps none."
            if self.draws:
                why = "its part of the target has no mass, or was skipped."
            raise ValueError(f"samples: there are no draws of {part}: {why}")
        rng = records.generator_of(rng_key)
        chosen = records.resample(draws.log_weights, num_samples, rng)
        return {name: values[chosen] for name, values in draws.sites.items()}


@checked_names
def load(path: str | os.PathLike) -> Estimate:
    """Reads a record that `Estimate.save` wrote. The program is not needed.

    Args:
        path: the file.

    Raises:
        RecordError: if the file is not a record, is damaged, or is of a newer format.

    Examples:
        >>> result.save("result.est")
        >>> ep.load("result.est").value == result.value
        True
    """
    return Estimate(**records.load(path))


class EstimationError(RuntimeError):
    """An estimate, or another answer, that cannot be trusted; it is kept as `estimate`.

    Examples:
        >>> few = ep.TABI(ep.ImportanceSampling(num_samples=20))
        >>> try:
        ...     ep.estimate_expectation(program(2.0), few)
        ... except ep.EstimationError as error:
        ...     print(error.estimate.status.name)
        low_ess
    """

    def __init__(self, estimate: Any):
        why = message(estimate) if isinstance(estimate, Record) else estimate.status.value
        super().__init__(
            f"{estimate.status.name}: {why}\n{estimate}\n"
            "(The estimate is the error's attribute `estimate`; throw=False returns it instead.)"
        )
        self.estimate = estimate


@checked_names
def estimate_expectation(
    expectation: Bound,
    method: Method | None = None,
    *,
    rng_key: int | jax.Array = 0,
    throw: bool = True,
    precision: str = "double",
    progress_bar: bool | None = None,
    checkpoint: str | os.PathLike | None = None,
    executor: Executor | None = None,
) -> Estimate:
    """Estimates the expectation of a bound program's return value.

    Args:
        expectation: a program called with its data.
        method: `Auto` by default, which chooses the route itself, and `Economical` for a
            simulator; or `AdaptiveIS`, `TABI`, `PosteriorBridge`, `SelfNormalised`,
            `PosteriorMCMC`.
        rng_key: an int or a JAX key; the same key gives the same result.
        throw: raise `EstimationError` if the status is not `ok`; False returns the estimate, whose
            `status` must then be looked at.
        precision: ``"double"`` computes in 64 bits, whatever JAX's ``jax_enable_x64`` says, and
            leaves that as it is. ``"single"`` computes in 32 bits, and the notes say so.
        progress_bar: a line on standard error with the stage and the estimate so far; by default
            where that is a terminal and rich is installed.
        checkpoint: a file in which the work is kept as it is done. A run that was cut off goes on
            from it when it is called again with the same arguments, to the same result. In the
            end the file is the saved record, which such a call then returns at once.
        executor: where expensive tasks are run: a `ProcessPoolExecutor` that spawns its processes,
            ``client.get_executor()`` of Dask, or any other of `concurrent.futures`. The result is
            the same, also if a worker dies; the notes say what was run there. It is not shut
            down. Needs cloudpickle: ``pip install 'estimand[executors]'``.

    Ctrl-C is obeyed at the next safe point, between compiled steps, and gives what is known by
    then as an estimate with status `interrupted`: returned, or with ``throw=True`` as the error's
    `estimate`. Where nothing is known yet it is a KeyboardInterrupt as usual; a run that ends
    before the next safe point is returned whole. A checkpoint stays whole, and the same call
    resumes from it.

    Raises:
        EstimationError: if the status is not `ok`, unless ``throw=False``.
        CheckpointError: if the checkpoint is of another program, data, method, key, precision or
            version of a library.

    Examples:
        >>> result = ep.estimate_expectation(program(2.0))
        >>> abs(result.value - 2.5) < 4 * result.standard_error
        True
    """
    _require_bound(expectation)
    method = _method_for(expectation, method)
    require_precision("estimate_expectation", precision)
    with (
        in_precision(precision),
        bar(progress_bar, f"E[{expectation.name}]") as listener,
        Interruption() as interruption,
    ):
        warn_of_wrong_code()
        key = records.as_key(rng_key)
        provenance = records.provenance_of(expectation, method, key)
        maker = _Maker(Question(expectation, method), listener, interruption, executor)
        if checkpoint is None:
            estimate = maker.made(key, provenance)
        else:
            estimate = _resumed(checkpoint, maker, key, provenance)
    if throw and not estimate.status:
        raise EstimationError(estimate)
    return estimate


def _require_bound(expectation: Any) -> None:
    if isinstance(expectation, ExpectationProgram | ConditionalProgram | SimulatorProgram):
        raise TypeError(
            f"program {expectation.name!r} is not bound to data: call it first, as in "
            f"estimate_expectation({expectation.name}(data))."
        )
    if not isinstance(expectation, Bound):
        raise TypeError(_not_a_program(expectation))
    if expectation.output is None:
        raise TypeError(f"{expectation.name!r} has no quantity of interest: make it with f=.")


def _not_a_program(value: Any) -> str:
    """What to do where something else was given; mostly the decorator was forgotten."""
    name = getattr(value, "__name__", "program")
    if callable(value) and not isinstance(value, type):
        return (
            f"{name!r} is a function and not an expectation program: write @ep.expectation above "
            f"it and call it with its data, as in ep.estimate_expectation({name}(data))."
        )
    if type(value).__module__.partition(".")[0] == "pymc":
        return 'that is a model of PyMC: write ep.from_pymc(model, lambda v: v["x"] > 3).'
    return (
        f"expected a program that was called with its data, and got {value!r}: write "
        "@ep.expectation above the model, and call it as in ep.estimate_expectation(program(data))."
    )


def default_method(expectation: Bound) -> type[Auto] | type[Economical]:
    """The kind of method that suits a program."""
    return Economical if isinstance(expectation, SimulatorExpectation) else Auto


def _method_for(expectation: Bound, method: Method | None) -> Method:
    """The method that was asked for, or the default one for such a program."""
    if method is None:
        return default_method(expectation)()
    if isinstance(method, type) or not isinstance(method, Method):
        raise TypeError(f"method must be one such as ep.Auto(); it is {method!r}.{_hint(method)}")
    return method


def _hint(method: Any) -> str:
    """What may have been meant by something that is no method."""
    name = method if isinstance(method, str) else getattr(method, "__name__", type(method).__name__)
    if isinstance(method, type) and hasattr(method, "run"):
        return f" It is a class: call it, as in ep.{name}()."
    if isinstance(method, Estimator) or hasattr(method, "estimate"):
        return f" An estimator of a normalising constant becomes a method by ep.TABI(ep.{name}(…))."
    if str(name).lower() in ("nuts", "hmc", "mcmc"):
        return " Averages of NUTS draws are ep.PosteriorMCMC()."
    if isinstance(method, str):
        return " Methods are objects: leave it out for the default one."
    return " Leave it out for the default one."


class _Maker:
    """Makes estimates of one question, for whoever waits for them."""

    def __init__(
        self,
        question: Question,
        listener: Listener = ignore,
        interruption: Interruption | None = None,
        executor: Executor | None = None,
    ):
        self.question, self.listener = question, listener
        self.interruption = Interruption() if interruption is None else interruption
        self.executor = executor
        self.num_threads: int | None = None

    def runtime(
        self, listener: Listener, book: Journal | None = None
    ) -> AbstractContextManager[LocalRuntime]:
        """Where tasks run: in this process, or by the executor."""
        return runtime_for(
            self.executor,
            self.question.expectation,
            journal=book,
            listener=listener,
            interruption=self.interruption,
            **({} if self.num_threads is None else {"num_threads": self.num_threads}),
        )

    def made(
        self,
        key: jax.Array,
        provenance: Provenance,
        book: Journal | None = None,
        *,
        takes_offers: bool = True,
    ) -> Estimate:
        """The estimate; after Ctrl-C the one that is known by then, if offers are taken."""
        started = time.perf_counter()
        expectation, method = self.question
        _log.info("E[%s] by %r", expectation.name, method)
        teller = Teller(self.listener)
        compilations = CompilationClock(self.interruption.check, teller.compiling)
        with (
            one_blas_thread(),
            cache_on_disk(),
            compilations as clock,
            explained(expectation.name),
            self.runtime(teller, book) as runtime,
        ):
            density = None
            if not isinstance(expectation, BranchingExpectation):
                density = Density.of(expectation)
                method.check(density)
            try:
                if isinstance(expectation, BranchingExpectation):
                    run = estimate_branches(key, expectation, method, runtime)
                else:
                    assert density is not None
                    run = method.run(key, density, runtime)
            except KeyboardInterrupt:
                if runtime.offered is None or not takes_offers:
                    raise
                clock.between = None
                run = interrupted(runtime.offered(), time.perf_counter() - started)
            # What is known now is returned, even if Ctrl-C is pressed again.
            clock.between = None
            if density is not None:
                run = run._replace(outputs=checked(run.outputs, density))
                run = _with_culprit(expectation, run)
                run = run.with_notes(*notes_on_ranges(density), *expectation.notes)
            if density is None or density.dimension:
                run = run.with_notes(*_zeros_notes(expectation, run))
            run = run.with_notes(*runtime.notes)
        if this_precision() == "single":
            run = run.with_notes("computed in single precision")
        if (note := _shapes_note(expectation)) and clock.num_compilations:
            run = run.with_notes(note)
        assert expectation.output is not None
        estimate = Estimate(
            program=expectation.name,
            method=repr(method),
            output=_joint_output(expectation.output, run),
            run=run,
            compile_seconds=clock.seconds,
            run_seconds=time.perf_counter() - started - clock.seconds,
            provenance=provenance,
            density=density,
            question=self.question,
        )
        _log.info("%s", estimate)
        return estimate


@contextlib.contextmanager
def runtime_for(executor: Executor | None, model: Bound, **settings: Any) -> Iterator[LocalRuntime]:
    """Where the tasks of a model run; what cannot be sent to workers is refused at once."""
    if executor is None:
        yield LocalRuntime(**settings)
        return
    runtime = ExecutorRuntime(executor, **settings)
    try:
        runtime.require_sendable(model)
    except SendingError as error:
        raise ProgramError(
            f"executor: program {model.name!r} cannot be sent to workers: {error}. Make what it "
            "refers to inside of the program, or leave out the executor."
        ) from error
    try:
        yield runtime
    finally:
        runtime.close()


def _with_culprit(expectation: Bound, run: Run) -> Run:
    """The run with the name of the site that is not a number, if one is the reason of a finding."""
    findings = [finding for output in run.outputs for finding in output.findings]
    has_nan = any(finding.status is Status.nan_density for finding in findings)
    asked = expectation.joint if isinstance(expectation, ConditionalExpectation) else expectation
    where = not_a_number(asked) if has_nan and isinstance(asked, Expectation) else ""
    if not where:
        return run

    def named(finding: Finding) -> Finding:
        is_meant = finding.status is Status.nan_density
        return finding._replace(detail=f"{finding.detail}: {where}") if is_meant else finding

    outputs = (one._replace(findings=tuple(map(named, one.findings))) for one in run.outputs)
    return run._replace(outputs=tuple(outputs))


def _zeros_notes(expectation: Bound, run: Run) -> list[str]:
    """Which outputs are 0 exactly, and why."""
    assert expectation.output is not None
    labels = zip(expectation.output.labels, run.outputs, strict=True)
    names = [label or "the return value" for label, output in labels if output.is_zero]
    return [f"0 whatever is drawn: {names_text(names)}, by the expression"] if names else []


def _joint_output(output: Output, run: Run) -> Output:
    """The structure of the return value; an indicator must be one in every branch."""
    flags = [branch.density.model.output.is_indicator for branch in run.branches]
    if not flags:
        return output
    return dataclasses.replace(output, is_indicator=tuple(map(all, zip(*flags, strict=True))))


@contextlib.contextmanager
def explained(program: str) -> Iterator[None]:
    """Says what to do where a callback of the program declares another precision."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "Incorrect output dtype" not in str(error):
            raise
        raise ProgramError(
            f"a callback of program {program!r} does not return what it declares: "
            f"{str(error).splitlines()[-1]}. Declare the type of its argument, as in "
            "jax.ShapeDtypeStruct(x.shape, x.dtype), or estimate with another precision."
        ) from error


# The shapes of the data with which a program was last estimated.
_last_shapes: weakref.WeakKeyDictionary[Any, tuple] = weakref.WeakKeyDictionary()


def _shapes_note(expectation: Bound) -> str:
    """Why a known program is compiled again, if the shapes of its data are the reason."""
    program = getattr(expectation, "program", None)
    if program is None:
        return ""
    shapes = tuple(array.shape for array in expectation.arrays)
    before = _last_shapes.get(program, shapes)
    _last_shapes[program] = shapes
    changed = [(old, new) for old, new in zip(before, shapes, strict=False) if old != new]
    if not changed:
        return ""
    old, new = changed[0]
    return f"compiled again: the data have other shapes than in the last call ({new}, were {old})"


def _resumed(
    path: str | os.PathLike, maker: _Maker, key: jax.Array, provenance: Provenance
) -> Estimate:
    """The finished record in a checkpoint, or a run that goes on from it and then replaces it."""
    wanted = records.fingerprint(provenance)
    if records.is_record(path):
        finished = load(path)
        journal.require_same(path, records.fingerprint(finished.provenance), wanted)
        return dataclasses.replace(finished, question=maker.question)
    with journal.writing(path, wanted) as book:
        estimate = maker.made(key, provenance, book)
        seconds = book.seconds - estimate.compile_seconds
    estimate = dataclasses.replace(estimate, run_seconds=seconds)
    is_interrupted = any(
        finding.check == "interruption" for findings in estimate.findings for finding in findings
    )
    if not is_interrupted:
        estimate.save(path)
    return estimate


# --- going on with an estimate ---


class _Runs:
    """Makes further runs of one question, several at a time where there is an executor."""

    def __init__(self, maker: _Maker, runtime: LocalRuntime):
        self.maker, self.runtime = maker, runtime

    def made(self, keys: Sequence[jax.Array], number: int) -> Iterator[Estimate]:
        """Runs with these keys, the first of which is the one of this number."""
        expectation, method = self.maker.question
        if self.maker.executor is None:
            for place, key in enumerate(keys):
                self.maker.listener(Progress(f"further run {number + place}"))
                provenance = records.provenance_of(expectation, method, key)
                yield _compact(self.maker.made(key, provenance, takes_offers=False))
            return
        self.runtime.report(Progress(f"further runs from {number} to {number + len(keys) - 1}"))
        tasks = [Task(further_run, (expectation, method, key)) for key in keys]
        with contextlib.closing(self.runtime.results(tasks)) as results:
            for estimate in results:
                yield dataclasses.replace(estimate, question=self.maker.question)


def single_run(
    expectation: Bound,
    method: Method,
    key: jax.Array,
    listener: Listener,
    interruption: Interruption,
) -> Estimate:
    """One estimate among many, which Ctrl-C ends without a result."""
    maker = _Maker(Question(expectation, method), listener, interruption)
    return maker.made(key, records.provenance_of(expectation, method, key), takes_offers=False)


def further_run(expectation: Bound, method: Method, key: jax.Array) -> Estimate:
    """A task: one more run, without what cannot be sent back."""
    maker = _Maker(Question(expectation, method))
    # Others run beside it; and pieces are handed out by the thread that the task runs in.
    maker.num_threads = 1
    estimate = maker.made(key, records.provenance_of(expectation, method, key), takes_offers=False)
    return dataclasses.replace(_compact(estimate), question=None)


def _refined(
    estimate: Estimate, runs: _Runs, goal: float, max_evaluations: float, max_runs: int
) -> list[Estimate]:
    """The estimate and further runs, as many as there are when Ctrl-C is pressed."""
    pieces = [estimate]
    with contextlib.suppress(KeyboardInterrupt):
        _go_on(pieces, runs, goal, max_evaluations, max_runs)
    return pieces


def _go_on(
    pieces: list[Estimate], runs: _Runs, goal: float, max_evaluations: float, max_runs: int
) -> None:
    """Adds further runs to the pieces, in rounds that at most double the number of runs."""
    merged = pieces[0]
    keys, spent = list(merged.provenance.keys), 0.0
    while (lack := records.lack_of(records.judged(merged, goal), goal)) > 1:
        cost = merged.cost / len(keys)
        wanted = min(math.ceil((min(lack, 2.0) - 1) * len(keys)), max_runs + 1 - len(pieces))
        before = len(pieces)
        # As many at a time as fit if all have the average cost.
        while (left := before + wanted - len(pieces)) > 0 and spent + cost <= max_evaluations:
            fitting = min(float(left), (max_evaluations - spent) / cost)
            fresh, texts = _fresh_keys(keys, int(fitting))
            for piece, text in zip(runs.made(fresh, len(pieces)), texts, strict=True):
                spent += piece.cost
                pieces.append(piece)
                keys.append(text)
                if spent + cost > max_evaluations:
                    break
        if len(pieces) == before:
            break
        merged = pieces[0].merge(*pieces[1:])


def _fresh_keys(keys: Sequence[str], count: int) -> tuple[list[jax.Array], list[str]]:
    """The next keys after those so far, also as they are written."""
    known, fresh = list(keys), []
    for _ in range(count):
        key, text = records.fresh_key(known)
        fresh.append(key)
        known.append(text)
    return fresh, known[len(keys) :]


def _compact(estimate: Estimate) -> Estimate:
    """The same without all of its draws, as if it had been saved and loaded."""
    contents = Contents(estimate.parts, estimate.draws, estimate.paths)
    outputs = records.with_parts(estimate.outputs, contents.parts)
    return dataclasses.replace(
        estimate,
        run=records.without_draws(estimate.run)._replace(outputs=outputs),
        density=None,
        contents=contents,
    )
