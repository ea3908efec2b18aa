"""`from_simulator`: a prior, a function that JAX cannot trace, a likelihood, and f."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro import handlers

from estimand.model.layout import Output, ProgramError
from estimand.model.numpyro import Expectation, ExpectationProgram, NumpyroModel, bind
from estimand.model.protocol import Bound, Identity, described
from estimand.model.simulator.calls import Job, Shapes, Simulator
from estimand.model.simulator.model import SimulatorModel
from estimand.runtime import SentOnce
from estimand.settings import checked_names

# Failures that the notes tell of.
MAX_TOLD = 3


@checked_names
def from_simulator(
    simulate: Callable,
    *,
    prior: Mapping[str, dist.Distribution] | Callable[[], Any],
    f: Callable[[dict[str, Any], Any], Any],
    likelihood: Callable[..., Any] | None = None,
    outputs: tuple[int, ...] | Mapping[str, tuple[int, ...]] = (),
    per_point: bool = False,
    executor: Executor | None = None,
    evaluations: str | os.PathLike | None = None,
) -> SimulatorProgram:
    """A program around a function that JAX cannot trace: NumPy, compiled code, an executable.

    The function must be deterministic. It is called with batches of points and without gradients;
    density and f share each call. The default method for such a program is `Economical`.

    Args:
        simulate: called with a dict of arrays by site, with the points along the first axis; gives
            an array with the points along the first axis, or a dict of such arrays. NaN, or an
            exception, says that it failed at a point.
        prior: distributions by the name of their site, or a NumPyro model without arguments. Its
            sites are what `simulate` is called with.
        f: the quantity of interest in JAX, of the sites by name and of the outputs.
        likelihood: called with sites, outputs and the program's data. It has observed sites,
            ``numpyro.sample(…, obs=y)``, or returns a log likelihood in JAX.
        outputs: the shape of what `simulate` gives for one point; shapes by name for a dict.
        per_point: `simulate` takes and gives one point at a time, without a first axis.
        executor: where calls are run side by side, of `concurrent.futures`; processes need a
            function at the top level of a module.
        evaluations: a file in which every call is kept, a line of JSON each. What is in it is not
            simulated again, by a run that was cut off or by a later one.

    Returns:
        A program; called with the likelihood's data it gives what `estimate_expectation` takes.

    Examples:
        >>> import numpy as np
        >>> def limit_state(points):
        ...     x = points["x"]
        ...     return 2.5 - x.sum(axis=1) / np.sqrt(2) + 0.1 * (x[:, 0] - x[:, 1]) ** 2
        >>> failure = ep.from_simulator(
        ...     limit_state,
        ...     prior={"x": dist.Normal(0, 1).expand([2]).to_event(1)},
        ...     f=lambda sites, g: g < 0,
        ... )
        >>> failure()
        <expectation of limit_state: 1 output, 1 latent site (x)>
    """
    for name, function in (("simulate", simulate), ("f", f), ("likelihood", likelihood)):
        if not callable(function) and not (name == "likelihood" and function is None):
            raise TypeError(f"from_simulator: {name} must be a function; it is {function!r}.")
    _require_prior(prior)
    return SimulatorProgram(
        simulate=simulate,
        prior=prior,
        f=f,
        likelihood=likelihood,
        shapes=_shapes(outputs),
        is_per_point=per_point,
        executor=executor,
        path=None if evaluations is None else Path(evaluations),
    )


def _require_prior(prior: Any) -> None:
    if isinstance(prior, Mapping):
        for name, distribution in prior.items():
            if not isinstance(name, str) or not isinstance(distribution, dist.Distribution):
                raise TypeError(
                    "from_simulator: prior has NumPyro distributions by the name of their site; "
                    f"at {name!r} it has {distribution!r}."
                )
    if not prior or not (isinstance(prior, Mapping) or callable(prior)):
        raise TypeError(
            "from_simulator: prior must be a dict of distributions, or a NumPyro model without "
            f"arguments; it is {prior!r}."
        )


def _shapes(outputs: Any) -> Shapes:
    if isinstance(outputs, Mapping):
        shapes = {str(name): tuple(shape) for name, shape in outputs.items()}
    else:
        shapes = {"": tuple(outputs)}
    sizes = [size for shape in shapes.values() for size in shape]
    if not shapes or any(not isinstance(size, int) or size < 1 for size in sizes):
        raise ValueError(
            f"from_simulator: outputs must be a shape such as () or (15,), or shapes by name; it "
            f"is {outputs!r}."
        )
    # In the order in which JAX has the leaves of a dict.
    names = tuple(sorted(shapes))
    return Shapes(names, tuple(shapes[name] for name in names))


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SimulatorProgram(SentOnce):
    """A program around a simulator; called with data it gives a `SimulatorExpectation`."""

    simulate: Callable
    prior: Mapping[str, dist.Distribution] | Callable[[], Any]
    f: Callable
    likelihood: Callable | None
    shapes: Shapes
    is_per_point: bool
    executor: Executor | None
    path: Path | None

    @property
    def name(self) -> str:
        return getattr(self.simulate, "__name__", type(self.simulate).__name__)

    @property
    def signature(self) -> inspect.Signature:
        """What it is called with: what the likelihood takes after sites and outputs."""
        if self.likelihood is None:
            return inspect.Signature()
        signature = inspect.signature(self.likelihood)
        return signature.replace(parameters=list(signature.parameters.values())[2:])

    def __repr__(self) -> str:
        return f"<expectation program {self.name!r}; call it with data>"

    def __call__(self, *data: Any, **named: Any) -> SimulatorExpectation:
        given = bind(self._program, (self._blank(), *data), named)
        if not isinstance(given, Expectation):
            raise ProgramError(
                f"simulator {self.name!r}: a prior with branching sites is not supported: leave "
                'out infer={"branching": True}.'
            )
        count = len(self.shapes.names)
        if not all(given.data.is_array[:count]):
            raise ProgramError(
                f"f or the likelihood of simulator {self.name!r} uses its outputs as Python "
                "numbers, and JAX traces them: use jax.numpy instead of numpy, math and if."
            )
        return SimulatorExpectation(given, self._simulator)

    def _blank(self) -> Any:
        arrays = {
            name: jnp.ones(shape)
            for name, shape in zip(self.shapes.names, self.shapes.shapes, strict=True)
        }
        return arrays[""] if self.shapes.names == ("",) else arrays

    @functools.cached_property
    def _program(self) -> ExpectationProgram:
        prior, likelihood, f = self.prior, self.likelihood, self.f

        def given(simulated: Any, *data: Any, **named: Any) -> Any:
            sites = _drawn(prior)
            if likelihood is not None:
                log_likelihood = likelihood(dict(sites), simulated, *data, **named)
                if log_likelihood is not None:
                    numpyro.factor("_log_likelihood", jnp.sum(log_likelihood))
            return f(dict(sites), simulated)

        given.__name__ = self.name
        return ExpectationProgram(given, enumerate=False)

    @functools.cached_property
    def _simulator(self) -> Simulator:
        return Simulator(
            Job(self.simulate, self._inputs, self.shapes, self.is_per_point),
            self.executor,
            self.path,
        )

    @functools.cached_property
    def _inputs(self) -> Shapes:
        def draw(rng_key: jax.Array) -> dict[str, Any]:
            with handlers.seed(rng_seed=rng_key):
                return _drawn(self.prior)

        shapes = jax.eval_shape(draw, jax.random.key(0))
        return Shapes(tuple(shapes), tuple(shapes[name].shape for name in shapes))


def _drawn(prior: Any) -> dict[str, Any]:
    """The sites of the prior, under the caller's handlers."""
    if isinstance(prior, Mapping):
        return {name: numpyro.sample(name, fn) for name, fn in prior.items()}
    with handlers.trace() as found:
        prior()
    return {
        name: site["value"]
        for name, site in found.items()
        if site["type"] == "sample" and not site["is_observed"]
    }


class SimulatorExpectation(Bound):
    """A simulator's program bound to data; `given` is the NumPyro program of its outputs."""

    def __init__(self, given: Expectation, simulator: Simulator):
        self.given, self.simulator = given, simulator
        self.name, self.output = given.name, given.output

    @property
    def model(self) -> SimulatorModel:  # type: ignore[override]
        given = self.given.model
        assert isinstance(given, NumpyroModel)
        return SimulatorModel(given, self.simulator)

    @property
    def arrays(self) -> tuple[jax.Array, ...]:  # type: ignore[override]
        """The data, without the simulator's outputs."""
        return self.given.arrays[len(self.simulator.job.outputs.names) :]

    @property
    def num_constants(self) -> int:  # type: ignore[override]
        return self.given.num_constants

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """What failed so far."""
        failures = self.simulator.failures
        more = len(failures) - MAX_TOLD
        told = [f"the simulator failed: {failure}" for failure in failures[:MAX_TOLD]]
        return tuple(told + ([f"and at {more} more points"] if more > 0 else []))

    def identity(self) -> Identity:
        return self.model.identity(self.arrays)

    def __iter__(self) -> Iterator[SimulatorExpectation]:
        return (SimulatorExpectation(one, self.simulator) for one in self.given)

    def __len__(self) -> int:
        return len(self.given)

    def __getitem__(self, key: Any) -> SimulatorExpectation:
        return SimulatorExpectation(self.given[key], self.simulator)

    def __repr__(self) -> str:
        output: Output | None = self.output
        size = 0 if output is None else output.size
        return (
            f"<expectation of {self.name}: {described(size, [s.name for s in self.model.sites])}>"
        )
