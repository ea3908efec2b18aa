"""Few evaluations guided by a surrogate: unbiased whatever that is, with errors to be used."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import optimize
from scipy import stats as scipy_stats

import estimand as ep
from estimand.density import Density
from estimand.methods.economical import estimates, pool, rounds, surrogate
from estimand.methods.economical.target import Target
from problems.limit_states import HOSTILE, LIMIT_STATES
from problems.simulated import (
    EPIDEMIC_TAIL,
    TRUSS,
    TRUSS_ERROR,
    deflection,
    determinate_deflection,
    draws,
    epidemic_program,
)
from tests import stats

LINE = {"x": dist.Normal(0.0, 1.0)}


def normal(count: int) -> dict[str, Any]:
    return {"x": dist.Normal(0.0, 1.0).expand([count]).to_event(1)}


def first_of(points: dict[str, np.ndarray]) -> np.ndarray:
    return points["x"] if points["x"].ndim == 1 else points["x"][:, 0]


# --- the surrogate ---


def wave(points: np.ndarray) -> np.ndarray:
    return np.stack([np.sin(points[:, 0]) + points[:, 1] ** 2, np.exp(points[:, 1])], axis=1)


def test_the_surrogate_predicts_within_its_errors() -> None:
    rng = np.random.default_rng(0)
    points, fresh = rng.normal(size=(60, 2)), rng.normal(size=(500, 2))
    fitted = surrogate.fit(points, wave(points), np.arange(60.0), rng)
    mean, deviation = fitted.predict(fresh)
    np.testing.assert_allclose(mean, fitted.mean(fresh), atol=1e-8)
    scores = (fitted.forward(wave(fresh)) - mean) / deviation
    assert np.mean(np.abs(scores) < 3) > 0.95
    np.testing.assert_allclose(fitted.inverse(mean), wave(fresh), atol=0.2)
    assert fitted.warps[1].kind == "log"


def test_the_slope_of_the_likelihood() -> None:
    rng = np.random.default_rng(1)
    points = rng.normal(size=(20, 2))
    theta = np.array([0.3, -0.2, 0.1, -0.5, -2.0])
    outputs = wave(points)

    def value(theta: np.ndarray) -> float:
        return surrogate._negative_log_likelihood(theta, points, outputs)[0]

    slope = surrogate._negative_log_likelihood(theta, points, outputs)[1]
    np.testing.assert_allclose(slope, optimize.approx_fprime(theta, value, 1e-7), rtol=1e-4)


@pytest.mark.parametrize("kind", ["linear", "asinh", "log"])
def test_warps_are_undone(kind: str) -> None:
    warp = surrogate.Warp(kind, 0.5, 2.0)
    y = np.array([0.1, 1.0, 300.0])
    np.testing.assert_allclose(warp.inverse(warp.forward(y)), y, rtol=1e-12)
    slope = (warp.forward(y + 1e-6) - warp.forward(y - 1e-6)) / 2e-6
    np.testing.assert_allclose(np.exp(warp.log_slope(y)), slope, rtol=1e-6)


# --- a round ---


def a_round(num_known: int) -> tuple[Target, pool.Pool, rounds.Evaluated]:
    """A pool of a surrogate that knows too little, and the truth at all of its points."""
    bound = HOSTILE["wiggle"].program()()
    target = Target(Density.of(bound), (0,))

    def evaluated(points: np.ndarray) -> rounds.Evaluated:
        called = target.simulator.call(target.inputs(points))
        return rounds.Evaluated.of(target, points, called)

    known = evaluated(2 * target.draw((1,), num_known))
    target.learn_scales(known.points, known.outputs)
    fitted = rounds.fitted(known, None, (2,))
    _, found = rounds.prepared(target, fitted, pool.Proposal(()), (3,))
    return target, found, evaluated(found.points)


def test_a_round_is_unbiased_however_bad_the_surrogate_is() -> None:
    """Over choices from one pool: the mean is that of the truth over the pool; and the error."""
    _, found, truth = a_round(num_known=15)
    part = [estimates.Part(1, 0)]
    values, errors = [], []
    for seed in range(200):
        chosen, counts = rounds.choose(found, 60, (seed,))
        some = rounds.Evaluated(
            truth.points[chosen],
            truth.outputs[chosen],
            type(truth.values)(*(column[chosen] for column in truth.values)),
            (None,) * len(chosen),
        )
        one = rounds.Round(found, chosen, counts, some, np.zeros(0), 15)
        assert one.size == 60
        sums = estimates.sums_of_round(one, part, np.zeros(1))
        values.append(sums.values[0])
        errors.append(sums.covariance[0, 0])
    count = found.chances.size
    size = np.exp(part[0].log_sizes(found.values))
    true = np.exp(part[0].log_sizes(truth.values))
    weights = np.exp(found.log_weights)
    exact = np.mean(weights * size) + np.mean(weights[:count] * (true - size[:count]))
    assert abs(np.mean(weights * size) / exact - 1) > 0.05, "the surrogate is too good for a test"
    stats.assert_mean(np.asarray(values) / exact, 1.0)
    # The choice is systematic, whose variance is at most that of independent ones, which is told.
    pool_variance = np.var(weights * size) / weights.size
    assert np.var(values) < np.mean(errors) - pool_variance < 10 * np.var(values)


def test_weights_of_a_pool_integrate_the_prior() -> None:
    target, found, _ = a_round(num_known=15)
    weights = np.exp(found.log_weights)
    error = weights.std() / np.sqrt(weights.size)
    stats.assert_estimate(weights.mean(), error, 1.0)
    mean = (weights[: found.chances.size, None] * found.points).mean(axis=0)
    assert np.abs(mean).max() < 0.1
    assert target.has_likelihood is False


# --- estimates ---


@pytest.mark.parametrize(
    "name",
    [
        "rp75",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("four_branch", "rp8", "far")),
    ],
)
def test_failure_probabilities(name: str) -> None:
    problem = LIMIT_STATES[name]
    result = ep.estimate_expectation(problem.program()(), rng_key=1)
    stats.assert_estimate(result.value, result.standard_error, problem.probability)
    assert result.standard_error < 0.02 * result.value
    assert result.num_evaluations < 1000


def test_a_posterior_in_closed_form() -> None:
    """x ~ N(0, I), y = A x + noise: an event of the posterior, its mean, and the evidence."""
    matrix = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0], [0.3, 0.0, 1.0], [1.0, 1.0, 1.0]])
    y = np.array([1.0, -0.5, 0.7, 0.9])
    precision = np.eye(3) + matrix.T @ matrix / 0.25
    mean = np.linalg.solve(precision, matrix.T @ y / 0.25)
    deviation = np.sqrt(np.linalg.inv(precision)[0, 0])
    limit = mean[0] + 3.5 * deviation

    def likelihood(sites: Any, found: jax.Array, y: jax.Array) -> None:
        numpyro.sample("y", dist.Normal(found, 0.5).to_event(1), obs=y)

    program = ep.from_simulator(
        lambda points: points["x"] @ matrix.T,
        prior=normal(3),
        outputs=(4,),
        likelihood=likelihood,
        f=lambda sites, found: {"event": sites["x"][0] > limit, "mean": sites["x"][0]},
    )
    result = ep.estimate_expectation(program(y), ep.Economical(max_evaluations=300))
    exact = {"event": float(scipy_stats.norm.sf(3.5)), "mean": float(mean[0])}
    for name, truth in exact.items():
        stats.assert_estimate(result.value[name], result.standard_error[name], truth)
        assert result.standard_error[name] < 0.05 * abs(truth)
    log_z2 = scipy_stats.multivariate_normal.logpdf(y, cov=matrix @ matrix.T + 0.25 * np.eye(4))
    assert abs(result.outputs[0].parts.log_z("normaliser") - log_z2) < 0.1
    draws = result.samples("gamma1_plus", output=0)["x"]
    assert (draws[:, 0] > limit).all()


@pytest.mark.slow
def test_a_rare_catastrophe_in_a_cost() -> None:
    program = ep.from_simulator(
        lambda points: 9.5 - points["x"].sum(axis=1),
        prior=normal(4),
        f=lambda sites, margin: 1 + 1e6 * (margin < 0),
    )
    result = ep.estimate_expectation(program())
    stats.assert_estimate(result.value, result.standard_error, 2.01708324)


def test_outputs_of_both_signs() -> None:
    program = ep.from_simulator(
        lambda points: points["x"] ** 3, prior={"x": dist.Normal(0.5, 1.0)}, f=lambda _, g: g
    )
    result = ep.estimate_expectation(program(), ep.Economical(max_evaluations=150))
    stats.assert_estimate(result.value, result.standard_error, 0.5**3 + 3 * 0.5)


def test_one_key_gives_one_result_and_budgets_are_kept() -> None:
    bound = HOSTILE["jump"].program()()
    method = ep.Economical(max_evaluations=150)
    result = ep.estimate_expectation(bound, method, throw=False)
    assert bound.simulator.num_calls == result.num_evaluations <= 150
    again = ep.estimate_expectation(HOSTILE["jump"].program()(), method, throw=False)
    assert again.value == result.value
    assert not result.status, "a surrogate of a jump must not be believed"


def test_records_make_no_further_calls(tmp_path: Any) -> None:
    bound = LIMIT_STATES["rp22"].program()()
    result = ep.estimate_expectation(bound)
    count = bound.simulator.num_calls
    result.save(tmp_path / "result.est")
    result.summary()
    assert bound.simulator.num_calls == count
    assert ep.load(tmp_path / "result.est").value == result.value


def test_no_mass_is_said() -> None:
    program = ep.from_simulator(
        lambda points: 100.0 + first_of(points), prior=normal(2), f=lambda _, g: g < 0
    )
    result = ep.estimate_expectation(program(), ep.Economical(max_evaluations=120), throw=False)
    assert not result.status


def test_a_time_limit_is_obeyed() -> None:
    method = ep.Economical(max_seconds=1e-3)
    result = ep.estimate_expectation(HOSTILE["wiggle"].program()(), method, throw=False)
    assert result.status is ep.Status.interrupted
    assert result.num_evaluations < 100


def test_what_cannot_be_done_is_refused() -> None:
    def refused(match: str, method: ep.Economical | None = None, **statement: Any) -> None:
        settings: dict[str, Any] = {"prior": LINE, "f": lambda sites, g: jnp.sum(g) < 0} | statement
        program = ep.from_simulator(first_of, **settings)
        with pytest.raises(ep.ProgramError, match=match):
            ep.estimate_expectation(program(), method)

    refused(r"needs at least 73", ep.Economical(max_evaluations=72))
    refused(r"site 'x' .* is discrete", prior={"x": dist.Poisson(2.0)})
    refused(r"gives 101 numbers", outputs=(101,))

    @ep.expectation
    def plain() -> jax.Array:
        return numpyro.sample("x", dist.Normal(0, 1)) > 1

    with pytest.raises(ep.ProgramError, match="from_simulator"):
        ep.estimate_expectation(plain(), ep.Economical())
    with pytest.raises(ValueError, match="relative_error must be positive"):
        ep.Economical(relative_error=0.0)


# --- what the guide promises ---


def test_the_truss_is_the_one_of_the_reference() -> None:
    x = draws(np.random.default_rng(0), 100)
    np.testing.assert_allclose(deflection(x), determinate_deflection(x), rtol=1e-10)


@pytest.mark.slow
def test_a_finite_element_truss() -> None:
    """Ten dimensions, against ten million plain draws."""
    result = ep.estimate_expectation(TRUSS.program()())
    error = np.hypot(result.standard_error, TRUSS_ERROR)
    stats.assert_estimate(result.value, error, TRUSS.probability)
    assert result.num_evaluations <= 1000


@pytest.mark.slow
def test_an_epidemic_by_scipy() -> None:
    """A posterior tail probability through solve_ivp, against quadrature."""
    result = ep.estimate_expectation(epidemic_program())
    stats.assert_estimate(result.value, result.standard_error, EPIDEMIC_TAIL)
    assert result.num_evaluations <= 1000


@pytest.mark.slow
def test_a_well_that_no_slope_leads_to() -> None:
    """The points that only look find it, and what was said before is not counted."""
    problem = HOSTILE["well"]
    result = ep.estimate_expectation(problem.program()(), throw=False)
    stats.assert_estimate(result.value, result.standard_error, problem.probability)
    assert result.standard_error < 0.2 * result.value


@pytest.mark.slow
def test_errors_are_calibrated() -> None:
    """Over many seeds of a limit state that the surrogate does not know by heart."""
    problem = HOSTILE["wiggle"]
    low, high = [], []
    for seed in range(200):
        result = ep.estimate_expectation(
            problem.program()(), ep.Economical(max_evaluations=200), rng_key=seed, throw=False
        )
        if result.status:
            ends = result.interval()
            low.append(ends[0])
            high.append(ends[1])
    assert len(low) > 50
    stats.assert_coverage(low, high, problem.probability, at_least=0.9)
