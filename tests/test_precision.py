"""Estimates compute in the precision that was asked for, whatever JAX's own switch says."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax
from numpyro import infer
from scipy import stats

import estimand as ep
from estimand.model import BoundModel
from estimand.runtime import LocalRuntime, Task, in_precision

QUICK = ep.AdaptiveIS(max_evaluations=60_000)
SIMPLE = ep.TABI(ep.ImportanceSampling(num_samples=2000))


@pytest.fixture(autouse=True)
def _as_users_have_it() -> Iterator[None]:
    with jax.enable_x64(False):
        yield


# --- numbers that single precision does not tell apart ---

COUNT = 400
Y = 1_000_003.0 + 1e-2 * np.random.default_rng(0).standard_normal(COUNT)
PRECISION = 1 / 10**2 + COUNT / 1e-2**2
MEAN = (1e6 / 10**2 + Y.sum() / 1e-2**2) / PRECISION
EDGE = MEAN + PRECISION**-0.5
TRUTH = stats.norm.sf(1.0)


@ep.expectation
def narrow(y: Any, edge: float) -> Any:
    """Its posterior's standard deviation is 5e-10 of its location."""
    x = numpyro.sample("x", dist.Normal(1e6, 10.0))
    with numpyro.plate("rows", COUNT):
        numpyro.sample("y", dist.Normal(x, 1e-2), obs=y)
    return x > edge


@functools.cache
def narrow_result() -> ep.Estimate:
    return ep.estimate_expectation(narrow(Y, EDGE))


def test_a_narrow_posterior() -> None:
    assert narrow_result().value == pytest.approx(TRUTH, rel=0.01)
    single = ep.estimate_expectation(narrow(Y, EDGE), throw=False, precision="single")
    assert not single.status or single.value != pytest.approx(TRUTH, rel=0.01)


def test_constants_that_the_program_holds_keep_their_digits() -> None:
    def made(edge: float) -> Callable:
        def model(y: Any) -> Any:
            x = numpyro.sample("x", dist.Normal(1e6, 10.0))
            numpyro.sample("y", dist.Normal(x, 0.5 / COUNT**0.5), obs=y)
            return x > edge

        return model

    result = ep.estimate_expectation(ep.expectation(made(1e6 + 1 / 512))(1e6 + 1 / 512))
    assert result.value == pytest.approx(0.5, rel=0.01)


def test_draws_that_are_taken_later() -> None:
    x = narrow_result().samples(num_samples=4000)["x"]
    assert x.dtype == np.float64
    assert x.std() == pytest.approx(PRECISION**-0.5, rel=0.1)


def test_counts_above_two_to_the_24() -> None:
    @ep.expectation
    def program(count: int) -> Any:
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1e-8))
        numpyro.sample("count", dist.Poisson(rate), obs=count)
        return rate > 50_010_000.0

    truth = stats.gamma(50_000_003, scale=1 / (1 + 1e-8)).sf(50_010_000.0)
    for count in (50_000_001, np.int64(50_000_001)):
        result = ep.estimate_expectation(program(count))
        assert result.value == pytest.approx(truth, rel=0.01)


def test_a_billion_labels() -> None:
    @ep.expectation
    def program() -> Any:
        label = numpyro.sample("label", dist.DiscreteUniform(0, 10**9))
        return {"mean": label, "tail": label > 999_000_000}

    value = ep.estimate_expectation(program()).value
    assert value["mean"] == pytest.approx(5e8, rel=0.01)
    assert value["tail"] == pytest.approx(1e-3, rel=0.01)


def test_evidence() -> None:
    def model(y: Any) -> None:
        x = numpyro.sample("x", dist.Normal(1e6, 10.0))
        numpyro.sample("y", dist.Normal(x, 1e-2), obs=y)

    arguments: dict[str, Any] = {"model_args": (1e6 + 1e-3,), "rng_key": 1}
    evidence = ep.log_evidence(model, ep.AdaptiveIS(max_evaluations=60_000), **arguments)
    assert float(evidence.log_z) == pytest.approx(stats.norm.logpdf(1e-3, 0, 10), abs=0.01)
    assert isinstance(evidence.positions, np.ndarray)
    assert evidence.positions.dtype == np.float64
    sampler = ep.ImportanceSampling()
    assert ep.log_evidence(model, sampler, **arguments, precision="single").log_z.dtype == "float32"


# --- what belongs to the user ---


@ep.expectation
def cube(y: Any, scale: Any = 1.0) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, scale), obs=y)
    return x**3


def assert_as_before() -> None:
    assert not jax.config.read("jax_enable_x64")
    assert jnp.ones(()).dtype == jnp.float32


def test_switch_and_arrays_stay() -> None:
    y, scale = jnp.asarray(2.0), np.float32(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = ep.estimate_expectation(cube(y, scale), SIMPLE)
        log_weights = [evidence.log_weights for _, evidence in result.evidence]
        assert all(jnp.exp(array).dtype == jnp.float32 for array in log_weights)
    assert_as_before()
    assert y.dtype == scale.dtype == jnp.float32


def test_the_switch_stays_after_an_error() -> None:
    def failing(y: Any) -> Any:
        raise RuntimeError(f"no {y}")

    @ep.expectation
    def untrusted() -> Any:
        return numpyro.sample("x", dist.Normal(0.0, 1.0)) > 30.0

    few = ep.TABI(ep.ImportanceSampling(num_samples=10))
    for call, kind in (
        (lambda: ep.expectation(failing)(1.0), RuntimeError),
        (lambda: ep.estimate_expectation(untrusted(), few), ep.EstimationError),
        (lambda: ep.log_evidence(failing, ep.AnIS()), TypeError),
    ):
        with pytest.raises(kind):
            call()
        assert_as_before()


@pytest.mark.parametrize("method", [SIMPLE, QUICK], ids=["TABI", "AdaptiveIS"])
def test_the_same_bits_with_the_switch_on_and_off(method: Any) -> None:
    def contents() -> str:
        result = ep.estimate_expectation(cube(2.0), method, rng_key=3, throw=False)
        found = result.to_dict()
        for changing in ("provenance", "compile_seconds", "run_seconds"):
            del found[changing]
        return json.dumps([found, result.samples()["x"].tolist()])

    off = contents()
    with jax.enable_x64(True):
        assert contents() == off


def test_data_keep_their_digits_until_they_are_used() -> None:
    expectation = cube(np.float64(1 / 3), jnp.asarray(0.5))
    for is_double, dtype in ((True, np.float64), (False, np.float32)):
        with jax.enable_x64(is_double):
            y, scale = expectation.arrays[:2]
        assert y.dtype == dtype
        assert scale.dtype == jnp.float32
        assert float(y) == dtype(1 / 3)


def test_data_of_other_models_keep_their_digits() -> None:
    with jax.enable_x64(True):
        model = cube(2.0).model
    bound = BoundModel(model, (1 / 3,))
    with jax.enable_x64(True):
        assert float(bound.arrays[0]) == 1 / 3
    assert bound.arrays[0].dtype == jnp.float32


@pytest.mark.parametrize("part", ["gamma1_plus", "gamma1_minus", "gamma2"])
def test_densities_run_in_the_precision_of_whoever_runs_them(part: str) -> None:
    @ep.expectation
    def program(y: Any, count: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0).expand([2]).to_event(1), obs=y)
        numpyro.sample("count", dist.Poisson(jnp.exp(x)), obs=count)
        return x**3

    expectation = program(np.array([1.0, 2.0]), np.array(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start = infer.init_to_value(values={"x": -0.5 if part == "gamma1_minus" else 0.5})
        kernel = infer.NUTS(getattr(expectation, part), init_strategy=start)
        sampler = infer.MCMC(kernel, num_warmup=50, num_samples=50, progress_bar=False)
        sampler.run(jax.random.key(0))
    assert sampler.get_samples()["x"].dtype == jnp.float32


SHIFTS = np.array([1e-9, 2e-9, 3e-9]) + 1.0


def test_numpy_arrays_that_are_used_in_both_precisions() -> None:
    """JAX keeps what it makes of them in one precision and takes it in the other, too."""

    @ep.expectation
    def program() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        return 1e9 * (jnp.sum(SHIFTS * (1.0 + 1e-12 * x)) - 3.0)

    own = jax.jit(lambda x: jnp.sum(SHIFTS * x))
    assert own(jnp.ones(3)).dtype == jnp.float32
    assert ep.estimate_expectation(program(), SIMPLE).value == pytest.approx(6.0, rel=1e-3)
    again = jax.jit(lambda x: jnp.sum(SHIFTS + x))
    assert again(jnp.ones(3)).dtype == jnp.float32


def test_draws_of_the_users_own() -> None:
    """NUTS in single precision gives draws that serve in double precision."""
    draws = {"x": 1 + jnp.sqrt(0.5) * jax.random.normal(jax.random.key(0), (4, 500))}
    evidence = ep.log_evidence(cube(2.0), ep.BridgeSampling(draws=draws))
    assert float(evidence.log_z) == pytest.approx(-2.2655, abs=0.05)
    assert evidence.log_z.dtype == np.float64


# --- single precision, where it is asked for ---


@pytest.mark.parametrize("is_on", [False, True])
def test_single_precision(is_on: bool) -> None:
    with jax.enable_x64(is_on):
        expectation = cube(2.0)
        result = ep.estimate_expectation(expectation, SIMPLE, precision="single")
        assert {draws.sites["x"].dtype for draws in result.draws} == {np.dtype("f4")}
        assert result.precision == "single"
        assert result.provenance.versions["precision"] == "float32"
        assert "computed in single precision" in result.run.notes
        assert {evidence.log_weights.dtype for _, evidence in result.evidence} == {np.dtype("f4")}
        more = result.refine(relative_error=result.standard_error / result.value / 1.2)
        assert len(more.provenance.keys) > 1
        assert more.precision == "single"
        assert {draws.sites["x"].dtype for draws in more.draws} == {np.dtype("f4")}
        double = ep.estimate_expectation(expectation, SIMPLE, rng_key=1)
    assert double.precision == "double"
    assert double.run.notes == ()
    with pytest.raises(ep.MergeError, match="double precision and record 1 of single precision"):
        result.merge(double)


@pytest.mark.parametrize("value", ["half", "float64", None, True, 64])
def test_other_precisions_are_refused(value: Any) -> None:
    words = f'precision must be "double" or "single"; it is {value!r}'
    with pytest.raises(ValueError, match=f"estimate_expectation: {words}"):
        ep.estimate_expectation(cube(2.0), precision=value)
    with pytest.raises(ValueError, match=f"log_evidence: {words}"):
        ep.log_evidence(cube(2.0), ep.ImportanceSampling(), precision=value)


def test_integers_that_single_precision_does_not_hold_are_refused() -> None:
    with jax.enable_x64(True):
        made = jnp.asarray([1, 5_000_000_000])
    for y in (np.array(5_000_000_000), made):
        with pytest.raises(ep.ProgramError, match="such as 5000000000, which int32 does not hold"):
            ep.estimate_expectation(cube(y, 1e9), SIMPLE, precision="single")


# --- programs with types of their own ---

WEIGHTS = np.array([1.0, 2.0, 3.0])


def float32_constants(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(jnp.zeros((), jnp.float32), jnp.ones((), jnp.float32)))
    total = jnp.asarray([1.0, 2.0, 3.0], jnp.float32) @ y
    numpyro.sample("z", dist.Normal(x * total, jnp.float32(1.0)), obs=jnp.asarray(5.0, jnp.float32))
    return x


def mixed(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(jnp.float32(0.0), 1.0))
    numpyro.sample("z", dist.Normal(x * (WEIGHTS @ y), 1.0), obs=5.0)
    return (jnp.float32(1.0) * x).astype(jnp.float32)


def scan_from_zero(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))

    def add(total: Any, row: Any) -> tuple:
        return total + x * row[0] * row[1], None

    total, _ = lax.scan(add, jnp.zeros(()), (WEIGHTS, y))
    numpyro.sample("z", dist.Normal(total, 1.0), obs=5.0)
    return x


def scan_that_casts(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))

    def add(total: Any, row: Any) -> tuple:
        return (total + x * row[0] * row[1]).astype(jnp.float32), None

    total, _ = lax.scan(add, jnp.zeros((), jnp.float32), (WEIGHTS, y))
    numpyro.sample("z", dist.Normal(total, 1.0), obs=5.0)
    return x


def scan_in_single(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))

    def add(total: Any, row: Any) -> tuple:
        return total + x * row[0] * row[1], None

    total, _ = lax.scan(add, jnp.zeros((), jnp.float32), (WEIGHTS, y))
    numpyro.sample("z", dist.Normal(total, 1.0), obs=5.0)
    return x


ROWS = np.array([0.3, 0.2, 0.1])
EXPECTED = 5.0 * (WEIGHTS @ ROWS) / (1 + (WEIGHTS @ ROWS) ** 2)


@pytest.mark.parametrize("model", [float32_constants, mixed, scan_from_zero, scan_that_casts])
def test_programs_with_types_of_their_own(model: Callable) -> None:
    for rows in (ROWS, jnp.asarray(ROWS)):
        result = ep.estimate_expectation(ep.expectation(model)(rows))
        assert result.value == pytest.approx(EXPECTED, rel=0.01)


def test_a_program_of_single_precision_alone_is_refused_in_double() -> None:
    expectation = ep.expectation(scan_in_single)(ROWS)
    with pytest.raises(ep.ProgramError, match="'scan_in_single' fails in double precision") as info:
        ep.estimate_expectation(expectation)
    assert 'precision="single"' in str(info.value)
    result = ep.estimate_expectation(expectation, precision="single")
    assert result.value == pytest.approx(EXPECTED, rel=0.01)


def test_errors_of_types_that_are_the_programs_own_name_their_line() -> None:
    def model(_y: Any) -> Any:
        raise TypeError("mine")

    with pytest.raises(ep.ProgramError, match=r"raise TypeError.*mine"):
        ep.expectation(model)(1.0)


def test_a_callback_that_declares_another_type() -> None:
    @ep.expectation
    def program() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        kind = jax.ShapeDtypeStruct((), jnp.float32)
        return jax.pure_callback(np.square, kind, x, vmap_method="expand_dims")

    with pytest.raises(ep.ProgramError, match="callback of program 'program'"):
        ep.estimate_expectation(program(), SIMPLE)
    result = ep.estimate_expectation(program(), SIMPLE, precision="single")
    assert result.value == pytest.approx(1.0, rel=0.2)


# --- threads, in which JAX's scopes do not hold ---


def dtype_here() -> str:
    return str(jnp.ones(()).dtype)


@pytest.mark.parametrize(("precision", "dtype"), [("single", "float32"), ("double", "float64")])
def test_threads_compute_as_their_caller(precision: str, dtype: str) -> None:
    with in_precision(precision):
        tasks = [Task(dtype_here, ())] * 3
        found = list(LocalRuntime()._results_of_threads(tasks, 2))
    assert found == [dtype] * 3


def test_in_a_process_of_its_own() -> None:
    """JAX as it comes, with all tasks but the first in threads: the same bits as here."""
    code = """
        from estimand.runtime import runtime

        runtime.default_threads, runtime.MIN_SECONDS = lambda: 2, -1.0

        import jax
        from tests import test_precision as here

        assert not jax.config.jax_enable_x64
        result = here.ep.estimate_expectation(here.narrow(here.Y, here.EDGE))
        assert not jax.config.jax_enable_x64
        print(result.value.hex(), result.standard_error.hex())
    """
    environment = {name: text for name, text in os.environ.items() if name != "JAX_ENABLE_X64"}
    command = [sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    expected = narrow_result()
    assert done.stdout.split() == [expected.value.hex(), expected.standard_error.hex()]
