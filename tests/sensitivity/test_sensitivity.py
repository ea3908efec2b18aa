"""Derivatives of expectations against closed forms and differences on the same draws."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.stats import norm
from scipy import stats as laws

import estimand as ep
from estimand import plots
from estimand.density import Density
from estimand.sampling import in_chunks
from problems.sir import DATA, RECOVERY, new_infections
from tests import stats

DATA_10 = np.full(10, 3.5 / np.sqrt(10))


@ep.expectation
def predictive(y: np.ndarray, mean: float, scale: float) -> Any:
    """The paper's first problem, with mean and scale of the prior as arguments."""
    x = numpyro.sample("x", dist.Normal(mean, scale).expand([10]).to_event(1))
    with numpyro.plate("rows", 10):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return jnp.exp(jnp.sum(dist.Normal(x, jnp.sqrt(0.5)).log_prob(-y)))


def exact_predictive(y: Any, mean: Any, scale: Any, weights: Any = 1.0, power: Any = 1.0) -> Any:
    precision = power / scale**2 + weights
    centre = (power * mean / scale**2 + weights * y) / precision
    return jnp.exp(jnp.sum(norm.logpdf(-y, centre, jnp.sqrt(1 / precision + 0.5))))


@ep.expectation
def sum_above(limit: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([10]).to_event(1))
    return jnp.sum(x) > limit


@ep.expectation
def between(y: np.ndarray, low: float, high: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.size):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return (x > low) & (x < high)


@functools.cache
def estimate(name: str) -> ep.Estimate:
    return ep.estimate_expectation(
        {
            "predictive": lambda: predictive(DATA_10, 0.0, 1.0),
            "sum": lambda: sum_above(5 * np.sqrt(10)),
            "between": lambda: between(np.linspace(-1.5, 1.5, 20), 0.9, 1.3),
        }[name]()
    )


def check(derivative: ep.Derivative, truth: Any) -> None:
    truths = np.broadcast_to(np.asarray(truth), derivative.value.shape)
    for index in np.ndindex(derivative.value.shape):
        numbers = derivative.value[index], derivative.standard_error[index], truths[index]
        stats.assert_estimate(*map(float, numbers), degrees=derivative.degrees)


def test_data_prior_powers_and_rows_by_closed_form() -> None:
    found = estimate("predictive").sensitivity()
    y = jnp.asarray(DATA_10)
    by_data, by_mean, by_scale = jax.grad(exact_predictive, argnums=(0, 1, 2))(y, 0.0, 1.0)
    check(found.arguments["y"], by_data)
    check(found.arguments["mean"], by_mean)
    check(found.constants["x.loc"], by_mean)
    check(found.arguments["scale"], by_scale)
    check(found.constants["x.scale"], by_scale)
    arguments = (y, 0.0, 1.0, jnp.ones(10), 1.0)
    by_rows, by_power = jax.grad(exact_predictive, argnums=(3, 4))(*arguments)
    check(found.rows["y"], by_rows)
    check(found.powers["likelihood"], by_rows.sum())
    check(found.powers["prior"], by_power)
    assert found["x.loc"] is found.constants["x.loc"]
    assert "opposite directions" in found.verdict
    with pytest.raises(KeyError, match="no derivative by 'z'"):
        found["z"]


def test_a_tail_probability_by_closed_form() -> None:
    found = estimate("sum").sensitivity()
    density = laws.norm.pdf(5)
    check(found.constants["x.loc"], np.sqrt(10) * density)  # 4.701420e-6
    check(found.constants["x.scale"], 5 * density)
    check(found.arguments["limit"], -density / np.sqrt(10))  # across the boundary
    assert "likelihood" not in found.powers


def test_both_ends_of_an_interval() -> None:
    found = estimate("between").sensitivity()
    ends = laws.norm(0.0, 1 / np.sqrt(21)).pdf([0.9, 1.3])
    check(found.arguments["low"], -ends[0])
    check(found.arguments["high"], ends[1])
    check(found.arguments["y"], (ends[0] - ends[1]) / 21)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method", "least"),
    [
        ("predictive", ep.Auto(), 195),
        # A fifth of those by an edge are refused for too few draws.
        ("between", ep.Auto(), 140),
        ("between", ep.Auto(relative_error=0.001), 195),
    ],
)
def test_intervals_cover(name: str, method: ep.Auto, least: int) -> None:
    """Of the derivatives that are not refused, of which there are so many among 200."""
    bound: Any = estimate(name).question.expectation  # type: ignore[union-attr]
    truth = {"between": -float(laws.norm(0.0, 1 / np.sqrt(21)).pdf(0.9))}
    y = jnp.asarray(DATA_10)
    truth["predictive"] = float(jax.grad(exact_predictive, argnums=1)(y, 0.0, 1.0))
    argument = {"predictive": "mean", "between": "low"}[name]
    results = [ep.estimate_expectation(bound, method, rng_key=key) for key in range(200)]
    found = [result.sensitivity(throw=False)[argument] for result in results]
    known = [derivative for derivative in found if derivative.status]
    assert len(known) >= least
    low, high = np.asarray([derivative.interval for derivative in known], float).T
    stats.assert_coverage(low, high, truth[name], 0.95)


@pytest.mark.slow
def test_an_epidemic_by_differences_on_the_same_draws() -> None:
    @ep.expectation
    def epidemic(y: np.ndarray, mean: float, limit: float) -> Any:
        beta = numpyro.sample("beta", dist.TruncatedNormal(mean, 1.5, low=0.0))
        start = numpyro.sample("start", dist.TruncatedNormal(10.0, 10.0, low=0.0, high=1000.0))
        infected = new_infections(beta, 10.0 * start)
        numpyro.sample("y", dist.NegativeBinomial2(infected, 0.5), obs=y)
        return 1e12 * jax.nn.sigmoid(10.0 * beta / RECOVERY - limit)

    result = ep.estimate_expectation(epidemic(DATA, 2.0, 30.0))
    # Few draws say how `limit` matters, and the ends of the priors: those are marked.
    found = result.sensitivity()
    assert np.isnan(found.arguments["limit"].value)
    assert "limit" in str(found).split("cannot be trusted: low_ess")[0]
    normaliser = result.outputs[0].parts.normaliser
    log_weights = np.asarray(normaliser.log_weights)
    rows = np.asarray(normaliser.positions)[log_weights > -np.inf]

    def logs(mean: float, limit: float) -> Any:
        density = Density.of(epidemic(DATA, mean, limit))

        def evaluated(position: jax.Array) -> tuple[jax.Array, jax.Array]:
            terms, outputs = density.evaluate(position)
            return terms.log_prior + terms.log_likelihood, outputs.log_abs[0]

        return in_chunks(jax.jit(jax.vmap(evaluated)), rows)

    base = logs(2.0, 30.0)[0]

    def on_the_same_draws(mean: float) -> float:
        log_density, log_f = logs(mean, 30.0)
        shifted = log_weights[log_weights > -np.inf] + log_density - base
        weights = np.exp(shifted - shifted.max())
        return float(np.average(np.exp(log_f), weights=weights))

    step = 1e-3
    difference = (on_the_same_draws(2 + step) - on_the_same_draws(2 - step)) / (2 * step)
    assert found.arguments["mean"].value == pytest.approx(difference, rel=1e-5)
    assert found.arguments["mean"].status
    assert "y is left out" in found.notes[0]


def test_labels_that_are_summed_out_and_log_densities() -> None:
    @ep.expectation
    def labelled(y: np.ndarray, chance: float) -> Any:
        k = numpyro.sample("k", dist.Bernoulli(chance), infer={"enumerate": "parallel"})
        x = numpyro.sample("x", dist.Normal(2.0 * k, 1.0))
        with numpyro.plate("rows", y.size):
            numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x > 1.0

    y = np.array([0.3, 0.8])

    def exact(chance: float) -> float:
        grid = np.linspace(-10, 12, 200_001)
        prior = (1 - chance) * laws.norm.pdf(grid) + chance * laws.norm.pdf(grid, 2.0)
        density = prior * laws.norm.pdf(y[0], grid) * laws.norm.pdf(y[1], grid)
        return float(density[grid > 1].sum() / density.sum())

    found = ep.estimate_expectation(labelled(y, 0.3)).sensitivity()
    truth = (exact(0.301) - exact(0.299)) / 0.002
    assert found.arguments["chance"].value == pytest.approx(truth, rel=0.01)
    assert found.constants["k.probs"].value == pytest.approx(truth, rel=0.01)


def test_what_the_derivative_would_miss_is_refused() -> None:
    @ep.expectation
    def hidden(limit: float) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        return jax.lax.scan(lambda c, s: (c | (s > limit), None), False, x)[0]

    result = ep.estimate_expectation(hidden(1.0))
    found = result.sensitivity()
    assert np.isnan(found.arguments["limit"].value)
    assert found.arguments["limit"].status.name == found.status.name == "not_converged"
    assert found.constants["x.loc"].status
    truth = 3 * laws.norm.pdf(1) * laws.norm.cdf(1) ** 2
    check(found.constants["x.loc"], truth)


def test_a_derivative_with_few_draws_is_marked_and_the_others_stay() -> None:
    """The weight of one outlier in the prior is known by few draws."""

    @ep.expectation
    def mixed(shift: float, mean: float) -> Any:
        x = numpyro.sample("x", dist.Normal(mean, 1.0))
        numpyro.sample("y", dist.Normal(x, 3.0), obs=0.3)
        return 1.0 + x**2 + jnp.where(x > 3.6, jnp.exp(5.0 * (x - 3.6)) * shift, 0.0)

    prior = ep.TABI(ep.ImportanceSampling(num_samples=20_000))
    result = ep.estimate_expectation(mixed(1e-9, 0.3), prior)
    found = result.sensitivity()
    marked = found.arguments["shift"]
    assert marked.status.name == "low_ess"
    assert np.isnan(marked.value)
    assert marked.standard_error == np.inf
    check(found.arguments["mean"], 2 * 0.3 * 0.9)
    text = str(found)
    assert "shift cannot be trusted: low_ess: Z1_plus: ESS" in text
    assert "– " in text


def test_nothing_that_can_be_trusted_is_refused() -> None:
    @ep.expectation
    def few(mean: float) -> Any:
        x = numpyro.sample("x", dist.Normal(mean, 1.0))
        numpyro.sample("y", dist.Normal(x, 3.0), obs=0.3)
        return jnp.exp(8.0 * x)

    prior = ep.TABI(ep.ImportanceSampling(num_samples=2_000))
    result = ep.estimate_expectation(few(0.0), prior, throw=False)
    assert not result.status
    with pytest.raises(ep.EstimationError, match="cannot be trusted"):
        result.sensitivity()


def test_draws_on_one_side_of_a_boundary_do_not_say_how_it_moves() -> None:
    @ep.expectation
    def above(limit: float) -> Any:
        return numpyro.sample("x", dist.Normal(0.0, 1.0)) > limit

    islands = ep.TABI(ep.SMC(num_islands=16, num_particles=4000))
    found = ep.estimate_expectation(above(2.0), islands, throw=False).sensitivity(throw=False)
    assert not found.arguments["limit"].status
    check(found.constants["x.loc"], laws.norm.pdf(2.0))


def test_draws_are_needed(tmp_path: Path) -> None:
    result = estimate("sum")
    result.save(tmp_path / "sum.est")
    with pytest.raises(ValueError, match="Estimate again"):
        ep.load(tmp_path / "sum.est").sensitivity()
    chains = ep.estimate_expectation(predictive(DATA_10, 0.0, 1.0), ep.PosteriorMCMC(), throw=False)
    with pytest.raises(ValueError, match="draws"):
        chains.sensitivity(throw=False)
    with pytest.raises(ValueError, match="output must be from 0 to 0"):
        result.sensitivity(1)


def test_what_is_known_is_in_summary_report_and_plot() -> None:
    result = ep.estimate_expectation(between(np.linspace(-1.5, 1.5, 20), 0.9, 1.3))
    assert "Derivatives" not in str(result.summary())
    with pytest.raises(ValueError, match="not known yet"):
        plots.plot_sensitivity(result)
    found = result.sensitivity()
    assert "Derivatives of E[between]" in str(result.summary())
    assert "Influence of the data" in str(found)
    page = result.to_html()
    assert "What moves the expectation" in page
