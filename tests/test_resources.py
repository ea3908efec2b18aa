"""Memory, time, Ctrl-C, and many calls in one process, one after another and at once."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import gc
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.methods import Run
from estimand.methods.protocol import interrupted
from estimand.runtime import CompilationClock, Listener, Progress, journal
from estimand.trust import Finding, OutputEstimate
from problems.figure1 import figure1
from tests.same import assert_same_outputs
from tests.stats import assert_estimate

QUICK = ep.TABI(ep.ImportanceSampling(num_samples=500))


ROOT = Path(__file__).parents[1]
cube = ep.expectation(figure1)


@ep.expectation
def wide(y: float) -> Any:
    """An evaluation needs 10,000 numbers at a time."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    grid = jnp.sort(jnp.sin(x * jnp.arange(10_000.0)))
    numpyro.sample("y", dist.Normal(grid[5_000], 1.0), obs=y)
    return grid[7_500]


def estimate(method: Any = QUICK, y: float = 2.0, **options: Any) -> ep.Estimate:
    return ep.estimate_expectation(cube(y), method, throw=False, **options)


# Memory ------------------------------------------------------------------------------------------


def working_memory(estimator: Any) -> int:
    """Bytes that XLA says the compiled estimator needs in addition to its arguments and results."""
    density = ep.Density.of(wide(0.5)).part("gamma1_plus")
    compiled = jax.jit(estimator.estimate).lower(jax.random.key(0), density).compile()
    analysis: Any = compiled.memory_analysis()
    return int(analysis.temp_size_in_bytes)


@pytest.mark.parametrize("estimator", [ep.ImportanceSampling(), ep.AnIS(num_temperatures=3)])
def test_batch_size_bounds_memory(estimator: Any) -> None:
    """Ten times the samples need the memory of one batch, and less than a tenth of no batches."""
    small, large, whole = (
        working_memory(dataclasses.replace(estimator, num_samples=count, batch_size=size))
        for count, size in ((1_000, 100), (10_000, 100), (10_000, None))
    )
    assert large < small + 10_000 * 200
    assert large < whole / 10


PEAK = """
import resource
import jax
jax.config.update("jax_enable_x64", True)
import estimand as ep
from tests.test_resources import wide

def run(batch_size):
    sampler = ep.ImportanceSampling(num_samples=2_000, batch_size=batch_size)
    ep.log_evidence(wide(0.5), sampler)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

run(10)
print(run(50), run(100), run(None))
"""


@pytest.mark.slow
def test_batch_size_bounds_the_peak_of_a_process() -> None:
    """In megabytes: 50 more rows of 10,000 numbers are 4, all 2,000 rows are 160."""
    done = in_a_process(PEAK)
    before, batches, whole = map(float, done.stdout.split())
    assert batches - before < 80
    assert whole - batches > 80


def in_a_process(code: str, *arguments: str) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.mark.slow
def test_a_thousand_calls_leave_nothing_behind() -> None:
    """Fresh data in every call; what grows is measured over the last 900."""
    for k in range(100):
        estimate(y=0.01 * k, rng_key=k)
    objects, before = num_objects(), peak_memory()
    with CompilationClock() as clock:
        for k in range(100, 1000):
            estimate(y=0.01 * k, rng_key=k)
    assert clock.num_compilations == 0
    assert num_objects() - objects < 200
    assert peak_memory() - before < 20


def num_objects() -> int:
    """Python objects that are alive.

    JAX keeps a dead weak reference of 72 bytes whenever it traces the logarithm of a constant, as
    in the density of a normal distribution; these are not counted.
    """
    gc.collect()
    return sum(not isinstance(item, weakref.ref) for item in gc.get_objects())


def peak_memory() -> float:
    """The largest memory of this process so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# Time --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("goal", [1e-6, 1e-9], ids=["more draws", "more routes"])
def test_a_budget_of_seconds_is_kept(goal: float) -> None:
    """An error that is not reached in that time; compilation is within the budget.

    Where more draws cannot help, the time is not used up.
    """
    method = ep.Auto(relative_error=goal, max_evaluations=10**12, max_seconds=30.0)
    started = time.monotonic()
    result = estimate(method)
    assert time.monotonic() - started < 36.0
    assert result.status is ep.Status.not_converged
    assert_estimate(result.value, result.standard_error, 2.5, degrees=15)


# Ctrl-C ------------------------------------------------------------------------------------------


class Interrupt:
    """Presses Ctrl-C when a method says that it is at a stage for the n-th time.

    With a signal, which is obeyed at the next safe point; or as a listener that raises.
    """

    def __init__(self, stage: str, count: int = 1, by_signal: bool = False):
        self.stage, self.left, self.by_signal = stage, count, by_signal

    def __call__(self, progress: Progress) -> None:
        self.left -= progress.stage.startswith(self.stage)
        if self.left == 0:
            self.left = -1
            if not self.by_signal:
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGINT)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """The listener in the place of the bar, and Ctrl-C with its usual meaning."""

    @contextlib.contextmanager
    def heard(*_: Any) -> Iterator[Listener]:
        yield listener

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("estimand.estimate.bar", heard)
            yield
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("by_signal", [False, True], ids=["by a listener", "by a signal"])
@pytest.mark.parametrize(("stage", "count"), [("fitting", 1), ("integrating", 2)])
def test_ctrl_c_returns_what_is_known(stage: str, count: int, by_signal: bool) -> None:
    method = ep.Auto(relative_error=1e-9)
    with listening(Interrupt(stage, count, by_signal)):
        result = estimate(method)
    assert result.status is ep.Status.interrupted
    assert result.findings[0][-1].check == "interruption"
    assert re.search(r"interrupted: stopped by Ctrl-C after \d+\.\d s", str(result))
    assert 0 < result.num_evaluations < 200_000
    assert_estimate(result.value, result.standard_error, 2.5, degrees=15)
    assert result.standard_error < 0.5
    assert abs(result.samples()["x"].mean() - 1.0) < 0.2


def test_an_interrupted_run_is_not_enough_by_itself() -> None:
    """It was stopped before it looked for missed modes; another run does so."""
    with listening(Interrupt("integrating", 2)):
        first = estimate(ep.Auto())
    assert first.standard_error < 0.025
    assert first.refine(relative_error=0.01, max_evaluations=1, throw=False).status is (
        ep.Status.interrupted
    )
    result = first.refine(relative_error=0.01)
    assert len(result.provenance.keys) == 2
    assert result.status


def test_ctrl_c_raises_by_default() -> None:
    with listening(Interrupt("fitting")), pytest.raises(ep.EstimationError) as error:
        ep.estimate_expectation(cube(2.0))
    assert isinstance(error.value.estimate.value, float)
    assert "interrupted" in str(error.value)


def test_ctrl_c_before_anything_is_known() -> None:
    with listening(Interrupt("drawing from the prior")), pytest.raises(KeyboardInterrupt):
        estimate(ep.Auto())


def test_ctrl_c_with_a_checkpoint_keeps_the_file(tmp_path: Path) -> None:
    """What is known is returned, and nothing partial is kept as the result: the call resumes."""
    path, method = tmp_path / "run.est", ep.Auto(max_evaluations=50_000)
    with listening(Interrupt("fitting", by_signal=True)):
        partial = estimate(method, checkpoint=path)
    assert partial.status is ep.Status.interrupted
    assert path.read_bytes().startswith(journal.MAGIC)
    whole = estimate(method)
    assert_same_outputs(estimate(method, checkpoint=path).outputs, whole.outputs)
    assert_same_outputs(estimate(method, checkpoint=path).outputs, ep.load(path).outputs)


def test_ctrl_c_with_a_checkpoint_before_anything_is_known(tmp_path: Path) -> None:
    path, method = tmp_path / "run.est", ep.Auto(max_evaluations=50_000)
    with listening(Interrupt("drawing from the prior")), pytest.raises(KeyboardInterrupt):
        estimate(method, checkpoint=path)
    assert path.read_bytes().startswith(journal.MAGIC)


def test_ctrl_c_marks_the_outputs_that_were_not_finished() -> None:
    """One that a route had finished with `ok` stays as it is."""
    poor = Finding(ep.Status.low_ess, None, "few", "size")
    begun = OutputEstimate(1.0, 0.1)
    outputs = (
        begun._replace(route="a mixture"),
        begun._replace(route="a mixture").with_findings([poor]),
        begun,
    )
    done = interrupted(Run(outputs, 100, 0), 12.34)
    stopped = Finding(ep.Status.interrupted, None, "stopped by Ctrl-C after 12.3 s", "interruption")
    assert [output.findings for output in done.outputs] == [(), (poor, stopped), (stopped,)]


def test_an_interrupted_nan_is_not_kept_as_the_result(tmp_path: Path) -> None:
    """`nan_density` is more severe; the run was cut short all the same."""

    @ep.expectation
    def broken() -> Any:
        return jnp.log(numpyro.sample("x", dist.Normal(0.0, 1.0)))

    path, method = tmp_path / "run.est", ep.AdaptiveIS(relative_error=1e-9)
    with listening(Interrupt("integrating", 2)):
        result = ep.estimate_expectation(broken(), method, throw=False, checkpoint=path)
    statuses = {finding.status for finding in result.findings[0]}
    assert {ep.Status.nan_density, ep.Status.interrupted} <= statuses
    assert result.status is ep.Status.nan_density
    assert path.read_bytes().startswith(journal.MAGIC)


def test_ctrl_c_while_refining_keeps_the_estimate() -> None:
    first = estimate()
    with listening(Interrupt("further run", 3)):
        result = first.refine(relative_error=1e-6, throw=False)
    assert result.status is ep.Status.not_converged
    assert len(result.provenance.keys) == 3
    assert result.num_evaluations == 3 * first.num_evaluations


@pytest.mark.slow
def test_a_later_route_that_is_interrupted_leaves_the_earlier_outputs() -> None:
    """The mixture cannot reach the error; the islands after it are interrupted."""
    method = ep.Auto(relative_error=1e-9, max_evaluations=1_000_000)
    with listening(Interrupt("by SMC")):
        result = estimate(method)
    assert "interrupted" in str(result)
    assert math.isfinite(result.standard_error)
    assert_estimate(result.value, result.standard_error, 2.5, degrees=15)


SIGNALLED = """
import jax
jax.config.update("jax_enable_x64", True)
import signal
import estimand as ep
from tests.test_resources import cube, listening

# Shells start background jobs with the signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

def show(progress):
    if progress.estimate:
        print(progress.estimate, flush=True)

method = ep.Auto(relative_error=1e-6, max_evaluations=10**12)
with listening(show):
    result = ep.estimate_expectation(cube(2.0), method, throw=False)
print(result.to_json(), flush=True)
"""


@pytest.mark.slow
def test_a_signal_ends_a_run_with_its_estimate() -> None:
    arguments = [sys.executable, "-c", SIGNALLED]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in range(2):
            assert "±" in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        text = child.stdout.read()
    result = json.loads(text[text.index("{") :])
    assert result["status"] == "interrupted"
    assert abs(result["outputs"][0]["value"] - 2.5) < 0.01


# Linear algebra -----------------------------------------------------------------------------------


LINEAR_ALGEBRA = """
import jax
import jax.numpy as jnp
import estimand

def two_solves(a, b):
    factors = jnp.linalg.cholesky(a), jnp.linalg.cholesky(a + jnp.eye(12))
    first, second = (jax.scipy.linalg.solve_triangular(f, b, lower=True) for f in factors)
    return (first * second).sum()

points = jax.random.normal(jax.random.key(0), (8192, 12, 12))
a = points @ points.mT + 12 * jnp.eye(12)[None]
function = jax.jit(jax.vmap(two_solves))
for _ in range(100):
    function(a, points[:, :, :1]).block_until_ready()
"""


@pytest.mark.slow
def test_batched_linear_algebra_does_not_wait_for_itself() -> None:
    """On two cores, and with two threads, it does so within a few of these calls."""
    subprocess.run([sys.executable, "-c", LINEAR_ALGEBRA], check=True, timeout=120)


# Many at once ------------------------------------------------------------------------------------


def programs(tag: str) -> Iterator[tuple[str, ep.ExpectationProgram]]:
    """Fresh programs, so that every thread traces and compiles its own."""
    for k in range(4):

        @ep.expectation
        def program(y: float, k: int = k) -> Any:
            x = numpyro.sample(f"x{k}", dist.Normal(0.0, 1.0 + k))
            numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
            return x**2, x > k

        yield f"{tag}{k}", program


def outputs_of(program: ep.ExpectationProgram) -> tuple[OutputEstimate, ...]:
    return ep.estimate_expectation(program(2.0), QUICK, throw=False).outputs


def test_threads_give_the_same_as_one_after_another() -> None:
    one_by_one = [outputs_of(program) for _, program in programs("alone")]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        at_once = list(pool.map(outputs_of, [program for _, program in programs("at once")]))
    for mine, theirs in zip(at_once, one_by_one, strict=True):
        assert_same_outputs(mine, theirs)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        one_program = next(programs("shared"))[1]
        repeated = list(pool.map(outputs_of, [one_program] * 8))
    assert len(repeated) == 8
    for outputs in repeated:
        assert_same_outputs(outputs, one_by_one[0])


SAME = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
from tests.test_resources import estimate
result = estimate(rng_key=int(sys.argv[1]))
print(result.value.hex(), result.standard_error.hex())
"""


@pytest.mark.slow
def test_processes_give_the_same_as_one_after_another() -> None:
    flags = os.environ["XLA_FLAGS"]
    assert flags  # the children compile as this process does
    children = [
        subprocess.Popen(
            [sys.executable, "-c", SAME, str(k)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for k in range(3)
    ]
    texts = [child.communicate(timeout=600)[0].split() for child in children]
    for k, (value, error) in enumerate(texts):
        result = estimate(rng_key=k)
        np.testing.assert_array_equal(
            [float.fromhex(value), float.fromhex(error)], [result.value, result.standard_error]
        )
