"""The entry points: a bound program and a method in, an `Estimate` with its error out."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from estimand import progress
from estimand.auto import Auto
from estimand.compilation import CompilationClock
from estimand.density import Density
from estimand.evidence import Estimator, Evidence, Status
from estimand.methods import CONFIDENCE, Figures, Method, Run, worst
from estimand.program import Expectation, ExpectationProgram, Output, bind


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimate of an expectation, with its error and how it was come by.

    `value` and `standard_error` have the structure of the program's return value. Unpacks as the
    paper's pair ``value, diagnostics``.
    """

    program: str
    method: str
    output: Output
    run: Run
    compile_seconds: float
    run_seconds: float

    def _structured(self, get: Callable[[Figures], Any]) -> Any:
        return self.output.unflatten(np.asarray([get(figures) for figures in self.run.figures]))

    @property
    def value(self) -> Any:
        return self._structured(lambda figures: figures.value)

    @property
    def standard_error(self) -> Any:
        return self._structured(lambda figures: figures.standard_error)

    def interval(self, level: float = CONFIDENCE) -> tuple[Any, Any]:
        """Confidence interval; on the log scale where f has one sign and the method is TABI."""
        if not 0 < level < 1:
            raise ValueError(f"interval: level must be between 0 and 1; it is {level}.")
        bounds = [
            _interval(figures, is_indicator, level)
            for figures, is_indicator in zip(self.run.figures, self._indicators(), strict=True)
        ]
        low, high = np.asarray(bounds, float).T
        return self.output.unflatten(low), self.output.unflatten(high)

    def _indicators(self) -> Iterator[bool]:
        for shape, flag in zip(self.output.shapes, self.output.is_indicator, strict=True):
            yield from [flag] * math.prod(shape)

    @property
    def status(self) -> Status:
        """The worst status of any output; `statuses` has one for each."""
        return worst(list(self.statuses))

    @property
    def statuses(self) -> tuple[Status, ...]:
        return tuple(figures.status for figures in self.run.figures)

    @property
    def log_z(self) -> dict[str, Any]:
        """log Z1_plus and Z1_minus of every output, and log Z2; NaN where not estimated."""
        return {
            "Z1_plus": self._structured(lambda figures: figures.log_z1_plus),
            "Z1_minus": self._structured(lambda figures: figures.log_z1_minus),
            "Z2": self.run.log_z2,
        }

    @property
    def ess(self) -> dict[str, Any]:
        """Effective sample sizes as the paper's section 5 defines them for the method."""
        return {
            "Z1": self._structured(lambda figures: figures.ess_z1),
            "Z1_plus": self._structured(lambda figures: figures.ess_z1_plus),
            "Z1_minus": self._structured(lambda figures: figures.ess_z1_minus),
            "Z2": self.run.ess_z2,
            "min": self._structured(lambda figures: min(figures.ess_z1, self.run.ess_z2)),
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
    def evidence(self) -> tuple[tuple[str, Evidence], ...]:
        """Every normalising constant that was estimated, by the name of its density."""
        return self.run.evidence

    @property
    def diagnostics(self) -> dict[str, Any]:
        return {
            "standard_error": self.standard_error,
            "interval": self.interval(),
            "status": self.status,
            "message": self.status.value,
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

    def __str__(self) -> str:
        lows, highs = (
            np.concatenate([np.ravel(x) for x in jax.tree.leaves(end)]) for end in self.interval()
        )
        lines = [f"E[{self.program}] by {self.method}"]
        for label, figures, low, high in zip(
            self.output.labels, self.run.figures, lows, highs, strict=True
        ):
            name = f"{label:>12}  " if label else "  "
            number = f"{figures.value:.6g} ± {figures.standard_error:.2g}"
            if figures.status is Status.no_mass_found:
                number = "no mass found"
            span = f"95 % interval [{low:.6g}, {high:.6g}]"
            lines.append(f"{name}{number}   {span}   {figures.status.name}")
        cost = f"{self.num_evaluations:,} evaluations, {self.num_gradients:,} gradients"
        seconds = f"{self.compile_seconds:.2f} s compiling, {self.run_seconds:.2f} s running"
        lines.append(f"  {cost}; {seconds}")
        lines.extend(f"  {note}" for note in self.run.notes)
        lines.append(f"  {self.status.value}")
        return "\n".join(lines)


def _interval(figures: Figures, is_indicator: bool, level: float) -> tuple[float, float]:
    if not math.isfinite(figures.standard_error):
        return (0.0, min(figures.upper_bound, 1.0)) if is_indicator else (-math.inf, math.inf)
    reach = _quantile(0.5 + level / 2, figures.degrees) * figures.standard_error
    if figures.is_log_scale and figures.value != 0:
        factor = math.exp(min(reach / abs(figures.value), 700.0))
        ends = (figures.value / factor, figures.value * factor)
        return min(ends), max(ends)
    return figures.value - reach, figures.value + reach


def _quantile(probability: float, degrees: float) -> float:
    """Quantile of the normal law, or of Student's t where an error comes from few replicates."""
    if math.isinf(degrees):
        return statistics.NormalDist().inv_cdf(probability)
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


class EstimationError(RuntimeError):
    """An estimate that cannot be trusted; it is kept as `estimate`."""

    def __init__(self, estimate: Estimate):
        super().__init__(
            f"{estimate.status.name}: {estimate.status.value}\n{estimate}\n"
            "(The estimate is the error's attribute `estimate`; throw=False returns it instead.)"
        )
        self.estimate = estimate


def estimate_expectation(
    expectation: Expectation,
    method: Method | None = None,
    *,
    rng_key: int | jax.Array = 0,
    throw: bool = True,
    progress_bar: bool | None = None,
) -> Estimate:
    """Estimates the expectation of a bound program's return value.

    Args:
        expectation: a program called with its data.
        method: `Auto` by default, which chooses the route itself; or `AdaptiveIS`, `TABI`,
            `PosteriorBridge`, `SelfNormalised`, `PosteriorMCMC`.
        rng_key: an int or a JAX key; the same key gives the same result.
        throw: raise `EstimationError` if the status is not `ok`; False returns the estimate, whose
            `status` must then be looked at.
        progress_bar: a bar on standard error with the stage and the estimate so far; by default
            where that is a terminal and rich is installed.
    """
    if isinstance(expectation, ExpectationProgram):
        raise TypeError(
            f"program {expectation.name!r} is not bound to data: call it first, as in "
            f"estimate_expectation({expectation.name}(data))."
        )
    if not isinstance(expectation, Expectation):
        raise TypeError(f"expected a bound expectation program, got {expectation!r}.")
    method = Auto() if method is None else method
    if not hasattr(method, "run"):
        hint = f" Did you mean TABI({type(method).__name__}(...))?" * hasattr(method, "estimate")
        raise TypeError(f"expected a method such as TABI(AnIS()), got {method!r}.{hint}")
    started = time.perf_counter()
    with progress.bar(progress_bar), CompilationClock() as clock:
        density = Density.of(expectation)
        method.check(density)
        run = method.run(as_key(rng_key), density)
    assert expectation.output is not None
    estimate = Estimate(
        program=expectation.name,
        method=repr(method),
        output=expectation.output,
        run=run,
        compile_seconds=clock.seconds,
        run_seconds=time.perf_counter() - started - clock.seconds,
    )
    if throw and not estimate.status:
        raise EstimationError(estimate)
    return estimate


def log_evidence(
    model: Expectation | Callable,
    estimator: Estimator,
    *,
    rng_key: int | jax.Array = 0,
    model_args: tuple = (),
    model_kwargs: dict[str, Any] | None = None,
) -> Evidence:
    """The log marginal likelihood of a bound program, or of any NumPyro model.

    >>> import numpyro, numpyro.distributions as dist, estimand as ep
    >>> def model(y):
    ...     x = numpyro.sample("x", dist.Normal(0, 1))
    ...     numpyro.sample("y", dist.Normal(x, 1), obs=y)
    >>> evidence = ep.log_evidence(model, ep.ImportanceSampling(num_samples=100_000),
    ...                            model_args=(2.0,))
    >>> abs(evidence.log_z + 2.26551) < 4 * evidence.standard_error
    Array(True, dtype=bool)
    """
    if isinstance(model, ExpectationProgram):
        model = model.model
    if not isinstance(model, Expectation):
        program = ExpectationProgram(model)
        model = bind(program, model_args, model_kwargs or {}, needs_output=False)
    elif model_args or model_kwargs:
        raise TypeError("log_evidence: a bound program has its arguments already.")
    density = Density.of(model)
    estimator.check(density)
    return jax.block_until_ready(estimator.estimate(as_key(rng_key), density))


def as_key(rng_key: int | jax.Array) -> jax.Array:
    """A JAX key from an int or a key."""
    if isinstance(rng_key, bool) or not isinstance(rng_key, int | np.integer | jax.Array):
        raise TypeError(f"rng_key must be an int or a JAX key; it is {rng_key!r}.")
    if isinstance(rng_key, jax.Array):
        if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key) and rng_key.shape == ():
            return rng_key
        if rng_key.dtype == jnp.uint32 and rng_key.ndim == 1:
            return jax.random.wrap_key_data(rng_key)
        raise TypeError(f"rng_key must be an int or a JAX key, and one only; it is {rng_key!r}.")
    return jax.random.key(rng_key)
