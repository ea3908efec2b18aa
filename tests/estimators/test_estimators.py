"""Estimators of normalising constants: unbiased, errors that cover, identical when repeated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats

import estimand as ep
from estimand.density import Density
from estimand.kernels.protocol import Kernel
from problems import PROBLEMS
from tests.estimators.helpers import PARTS, assert_all_parts_unbiased, density_of, log_truth, many
from tests.parameters import product
from tests.stats import assert_coverage, assert_error_rate, assert_standard_errors, assert_unbiased

SHAPES = ("bounded", "half_line", "simplex", "dependent")

KERNELS: dict[str, Kernel] = {
    "RandomWalk": ep.RandomWalk(scale=0.8),
    "MALA": ep.MALA(step_size=0.6),
    "HMC": ep.HMC(step_size=0.25, num_leapfrog=4),
    "NUTS": ep.NUTS(step_size=0.4, max_tree_depth=4),
}


# The combinations that the fast suite runs.
FAST_ANNEALED = {("half_line", "RandomWalk"), ("half_line", "HMC"), ("simplex", "RandomWalk")}


@pytest.mark.parametrize(
    ("name", "kernel"),
    product(
        SHAPES,
        KERNELS,
        slow=lambda name, kernel: (name, kernel) not in FAST_ANNEALED,
    ),
)
def test_annealed_is_unbiased(name: str, kernel: str, rng_key: jax.Array) -> None:
    estimator = ep.AnIS(num_samples=60, num_temperatures=8, kernel=KERNELS[kernel])
    assert_all_parts_unbiased(estimator, PROBLEMS[name], rng_key)


@pytest.mark.parametrize("name", product(SHAPES, slow=lambda name: name != "half_line"))
def test_annealed_with_redraws_is_unbiased(name: str, rng_key: jax.Array) -> None:
    estimator = ep.AnIS(
        num_samples=40, schedule=ep.geometric(8), kernel=KERNELS["RandomWalk"], redraw=True
    )
    assert_all_parts_unbiased(estimator, PROBLEMS[name], rng_key)


@pytest.mark.parametrize("name", ["branching", "branching_choice"])
def test_annealed_is_unbiased_with_discrete_sites(name: str, rng_key: jax.Array) -> None:
    problem = PROBLEMS[name]
    estimator = ep.AnIS(num_samples=50, num_temperatures=10, num_steps=2)
    results = many(estimator, density_of(problem), rng_key, 500)
    for part, (log_z, _) in zip(PARTS, results, strict=True):
        truth = log_truth(problem, part)
        if truth == -math.inf:
            assert (np.asarray(log_z) == -np.inf).all()
        else:
            assert_unbiased(np.asarray(log_z), truth)


@pytest.mark.parametrize(
    "name",
    product(
        [*SHAPES, "figure1", "hierarchical"],
        slow=lambda name: name in ("simplex", "bounded", "dependent"),
    ),
)
def test_importance_sampling_from_the_prior_is_unbiased(name: str, rng_key: jax.Array) -> None:
    assert_all_parts_unbiased(ep.ImportanceSampling(num_samples=400), PROBLEMS[name], rng_key)


def _guide(y: Any) -> None:
    a = numpyro.sample("a", dist.Gamma(2.0, 0.8))
    numpyro.sample("b", dist.Uniform(0.0, a))


@pytest.mark.parametrize(
    ("name", "proposal"),
    [
        ("figure1", dist.StudentT(5.0, 1.0, 1.2)),
        ("figure1", {"x": dist.Normal(0.5, 1.5)}),
        ("dependent", _guide),
    ],
)
def test_importance_sampling_from_a_proposal_is_unbiased(
    name: str, proposal: Any, rng_key: jax.Array
) -> None:
    estimator = ep.ImportanceSampling(num_samples=300, proposal=proposal)
    assert_all_parts_unbiased(estimator, PROBLEMS[name], rng_key)


@pytest.mark.slow
def test_importance_sampling_from_an_autoguide(rng_key: jax.Array) -> None:
    """NumPyro's automatic guides draw an auxiliary vector and Deltas; their density is right."""
    from numpyro.infer import SVI, Trace_ELBO, autoguide

    problem = PROBLEMS["half_line"]
    guide = autoguide.AutoNormal(problem.model)
    fit = SVI(problem.model, guide, numpyro.optim.Adam(0.02), Trace_ELBO())
    params = fit.run(rng_key, 500, *problem.args, progress_bar=False).params
    proposal = numpyro.handlers.substitute(guide, params)
    evidence = ep.log_evidence(
        ep.expectation(problem.model)(*problem.args),
        ep.ImportanceSampling(num_samples=20_000, proposal=proposal),
        rng_key=rng_key,
    )
    assert evidence.standard_error < 0.02
    assert abs(float(evidence.log_z) - problem.log_z2) < 5 * evidence.standard_error


def test_proposal_serves_an_improper_prior(rng_key: jax.Array) -> None:
    @ep.expectation
    def flat(y: float) -> Any:
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x

    sampler = ep.ImportanceSampling(num_samples=50_000, proposal=dist.StudentT(5.0, 2.0, 1.5))
    result = ep.estimate_expectation(flat(2.0), ep.TABI(sampler), rng_key=rng_key)
    assert abs(result.value - 2.0) < 5 * result.standard_error < 0.1
    assert abs(result.log_z["Z2"]) < 0.05


def test_proposal_must_sample_every_site() -> None:
    problem = PROBLEMS["dependent"]
    program = ep.expectation(problem.model)(*problem.args)
    with pytest.raises(ep.ProgramError, match="does not sample site 'b'"):
        ep.log_evidence(program, ep.ImportanceSampling(proposal={"a": dist.Gamma(2.0, 1.0)}))
    with pytest.raises(ep.ProgramError, match="dict of distributions"):
        ep.log_evidence(program, ep.ImportanceSampling(proposal=dist.Normal(0.0, 1.0)))


@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        pytest.param(
            "half_line",
            ep.AnIS(num_samples=400, num_temperatures=15, kernel=KERNELS["RandomWalk"]),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "simplex",
            ep.AnIS(num_samples=400, num_temperatures=10, kernel=KERNELS["HMC"]),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "figure1",
            ep.AnIS(num_samples=400, num_temperatures=20, redraw=True),
            marks=pytest.mark.slow,
        ),
        pytest.param("bounded", ep.ImportanceSampling(num_samples=1000), marks=pytest.mark.slow),
    ],
)
def test_intervals_cover(name: str, estimator: Any, rng_key: jax.Array) -> None:
    """The 95 % interval of log Z covers, and the reported variance is the empirical one."""
    problem, runs = PROBLEMS[name], 1000
    results = many(estimator, density_of(problem), rng_key, runs)
    for part, (log_z, relative_variance) in zip(PARTS, results, strict=True):
        log_z, error = np.asarray(log_z), np.sqrt(np.asarray(relative_variance))
        truth = log_truth(problem, part)
        reach = scipy.stats.norm.ppf(0.975) * error
        assert_coverage(log_z - reach, log_z + reach, truth, 0.95)
        ratios = np.exp(log_z - truth)
        assert_standard_errors(ratios, error * ratios)


@pytest.mark.slow
def test_error_falls_with_the_square_root_of_the_sample_size(rng_key: jax.Array) -> None:
    problem, sizes = PROBLEMS["half_line"], (50, 300, 1800)
    density = density_of(problem).part("gamma1_plus")
    errors = []
    for size in sizes:
        estimator = ep.AnIS(num_samples=size, num_temperatures=6)
        keys = jax.random.split(jax.random.fold_in(rng_key, size), 200)
        log_z = jax.vmap(lambda key, e=estimator: e.estimate(key, density).log_z)(keys)
        errors.append(np.exp(np.asarray(log_z) - log_truth(problem, "gamma1_plus")) - 1)
    assert_error_rate(sizes, errors)


def test_low_effective_sample_size_is_flagged(rng_key: jax.Array) -> None:
    problem = PROBLEMS["posterior_predictive"]
    density = density_of(problem).part("gamma1_plus")
    evidence = ep.ImportanceSampling(num_samples=2000).estimate(rng_key, density)
    assert evidence.ess < 50
    assert evidence.status in (ep.Status.low_ess, ep.Status.heavy_tailed)
    healthy = ep.ImportanceSampling(num_samples=2000).estimate(
        rng_key, density_of(PROBLEMS["figure1"])
    )
    assert healthy.ess > 50
    assert healthy.status is ep.Status.ok


def test_no_mass_found(rng_key: jax.Array) -> None:
    density = density_of(PROBLEMS["normal_tail"]).part("gamma1_plus")
    evidence = ep.AnIS(num_samples=50, num_temperatures=5).estimate(rng_key, density)
    assert evidence.status is ep.Status.no_mass_found
    assert evidence.log_z == -np.inf
    assert evidence.relative_variance == np.inf


@pytest.mark.parametrize("redraw", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("value", [math.nan, pytest.param(math.inf, marks=pytest.mark.slow)])
def test_nan_and_infinite_densities_are_counted(
    value: float, redraw: bool, rng_key: jax.Array
) -> None:
    @ep.expectation
    def broken() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("bad", jnp.where(x > 0.5, value, 0.0))
        return x

    density = Density.of(broken())
    for estimator in (
        ep.ImportanceSampling(num_samples=200),
        ep.AnIS(num_samples=200, num_temperatures=5, redraw=redraw),
        ep.AnIS(num_samples=200, num_temperatures=5, kernel=ep.HMC(), redraw=redraw),
    ):
        evidence = estimator.estimate(rng_key, density)
        assert evidence.status is ep.Status.nan_density
        assert 20 < evidence.num_invalid < evidence.num_evaluations + evidence.num_gradients
        # The rest of the line has density 1: what is counted is the positive part of it.
        assert abs(math.exp(evidence.log_z) - scipy.stats.norm.cdf(0.5)) < 0.2


@pytest.mark.slow
def test_path_is_kept_on_request(rng_key: jax.Array) -> None:
    density = density_of(PROBLEMS["figure1"])
    settings: dict[str, Any] = {
        "num_samples": 30,
        "num_temperatures": 7,
        "kernel": ep.HMC(num_leapfrog=2),
    }
    plain = ep.AnIS(**settings).estimate(rng_key, density)
    kept = ep.AnIS(**settings, keep_path=True).estimate(rng_key, density)
    assert plain.trace is not None
    assert kept.trace is not None
    assert plain.trace.positions is None
    assert plain.trace.acceptance_rate.shape == (6,)
    assert ((plain.trace.acceptance_rate > 0) & (plain.trace.acceptance_rate <= 1)).all()
    assert kept.trace.positions is not None
    assert kept.trace.log_weights is not None
    assert kept.trace.positions.shape == (30, 7, 1)
    np.testing.assert_array_equal(kept.trace.positions[:, -1], plain.positions)
    np.testing.assert_array_equal(kept.trace.log_weights[:, -1], plain.log_weights)
    assert plain.num_gradients == 30 * 6 * (1 + 2)
    assert plain.num_evaluations == 30


def test_cost_is_what_the_kernel_evaluates(rng_key: jax.Array) -> None:
    density = density_of(PROBLEMS["figure1"])
    walk = ep.AnIS(num_samples=10, num_temperatures=5, num_steps=3).estimate(rng_key, density)
    assert (walk.num_evaluations, walk.num_gradients) == (10 * (1 + 4 * 3), 0)
    mala = ep.AnIS(num_samples=10, num_temperatures=5, kernel=ep.MALA()).estimate(rng_key, density)
    assert (mala.num_evaluations, mala.num_gradients) == (10, 10 * 4 * 2)


# --- the same key gives the same result, however it is run ---

IDENTICAL = {
    "ImportanceSampling": ep.ImportanceSampling(num_samples=64),
    "RandomWalk": ep.AnIS(num_samples=64, num_temperatures=6, kernel=KERNELS["RandomWalk"]),
    "redraw": ep.AnIS(num_samples=64, num_temperatures=6, redraw=True),
    "HMC": ep.AnIS(num_samples=64, num_temperatures=6, kernel=KERNELS["HMC"]),
    "NUTS": ep.AnIS(num_samples=64, num_temperatures=4, kernel=KERNELS["NUTS"]),
}


def assert_identical(first: Any, second: Any) -> None:
    """Equal in every integer, and to the last few bits of a float.

    XLA fuses differently for other batch shapes, which moves the last bits of sums.
    """
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        if jnp.issubdtype(a.dtype, jnp.integer):
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("name", IDENTICAL)
def test_results_do_not_depend_on_how_they_are_run(name: str, rng_key: jax.Array) -> None:
    estimator: Any = IDENTICAL[name]
    density = density_of(PROBLEMS["half_line"]).part("gamma1_plus")
    result = estimator.estimate(rng_key, density)
    again = estimator.estimate(rng_key, density)
    jax.tree.map(np.testing.assert_array_equal, result, again)
    assert_identical(result, jax.jit(estimator.estimate)(rng_key, density))
    for batch_size in (24,) if name in ("HMC", "NUTS") else (1, 24, 32):
        batched = dataclasses.replace(estimator, batch_size=batch_size)
        assert_identical(result, batched.estimate(rng_key, density))
    keys = jnp.stack([rng_key, jax.random.fold_in(rng_key, 1)])
    vmapped = jax.vmap(estimator.estimate, in_axes=(0, None))(keys, density)
    assert_identical(result, jax.tree.map(lambda x: x[0], vmapped))
    assert vmapped.log_z[0] != vmapped.log_z[1]


@pytest.mark.parametrize(
    ("kernel", "x64"),
    product(KERNELS, [False, True], slow=lambda kernel, x64: kernel != "RandomWalk"),
)
def test_right_in_both_precisions(kernel: str, x64: bool, seed: int) -> None:
    problem = PROBLEMS["half_line"]
    with jax.enable_x64(x64):
        density = density_of(problem)
        estimator = ep.AnIS(num_samples=2000, num_temperatures=20, kernel=KERNELS[kernel])
        for part in PARTS:
            evidence = estimator.estimate(jax.random.key(seed), density.part(part))
            assert evidence.log_z.dtype == (jnp.float64 if x64 else jnp.float32)
            error = abs(float(evidence.log_z) - log_truth(problem, part))
            assert error < 5 * evidence.standard_error < 0.5


@pytest.mark.slow
def test_many_samples_in_single_precision(seed: int) -> None:
    """Counts whose squares are beyond 32 bits."""
    problem = PROBLEMS["half_line"]
    with jax.enable_x64(False):
        sampler = ep.ImportanceSampling(num_samples=200_000)
        evidence = sampler.estimate(jax.random.key(seed), density_of(problem))
        error = abs(float(evidence.log_z) - problem.log_z2)
        assert error < 5 * evidence.standard_error < 0.05
    expectation = ep.expectation(problem.model)(*problem.args)
    result = ep.estimate_expectation(expectation, rng_key=seed, precision="single")
    assert isinstance(problem.value, float)
    assert abs(result.value - problem.value) < 5 * result.standard_error


# --- settings ---


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ep.AnIS(num_samples=0), ["AnIS", "num_samples", "positive integer"]),
        (lambda: ep.AnIS(num_samples=-3), ["num_samples", "-3"]),
        (lambda: ep.AnIS(num_samples=10.5), ["num_samples", "10.5"]),  # type: ignore[arg-type]
        (lambda: ep.AnIS(num_temperatures=0), ["num_temperatures"]),
        (lambda: ep.AnIS(num_steps=0), ["num_steps"]),
        (lambda: ep.AnIS(batch_size=0), ["batch_size"]),
        (lambda: ep.AnIS(num_samples=1, redraw=True), ["redraw", "at least 2"]),
        (lambda: ep.AnIS(num_temperatures=3, schedule=ep.linear(3)), ["either", "not both"]),
        (lambda: ep.AnIS(schedule=[0.0, 0.5, 0.4, 1.0]), ["increase", "entry 2", "0.4"]),
        (lambda: ep.AnIS(schedule=[0.0, 0.5, 0.5, 1.0]), ["increase strictly"]),
        (lambda: ep.AnIS(schedule=[0.1, 1.0]), ["start at 0"]),
        (lambda: ep.AnIS(schedule=[0.0, 0.9]), ["end at 1"]),
        (lambda: ep.AnIS(schedule=[0.0, float("nan"), 1.0]), ["increase strictly"]),
        (lambda: ep.AnIS(kernel=0.5), ["kernel", "HMC()"]),  # type: ignore[arg-type]
        (lambda: ep.ImportanceSampling(num_samples=0), ["ImportanceSampling", "num_samples"]),
        (lambda: ep.ImportanceSampling(proposal=3), ["proposal", "guide"]),
    ],
)
def test_bad_settings_are_refused(make: Callable, words: list[str]) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        make()
    for word in words:
        assert word in str(error.value)


def test_counts_are_keyword_only() -> None:
    with pytest.raises(TypeError):
        ep.AnIS(1000, 100)  # type: ignore[call-arg]
