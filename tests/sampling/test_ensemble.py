"""Chains side by side and the ladders they climb: laws that stay, ratios that are right."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats as laws

import estimand as ep
from estimand.density import Density
from estimand.sampling import (
    climb,
    climb_to_target,
    ensemble,
    prior_positions,
    rank_r_hat,
    scouts,
    spread_of_margins,
)
from estimand.sampling.ensemble import NUM_CHAINS, NUM_ISLANDS, Ensemble, Way
from tests.stats import assert_mean, assert_same_law

NUM_COPIES = NUM_ISLANDS * NUM_CHAINS


@ep.expectation
def conjugate(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(x, 0.5).to_event(1), obs=y)
    return x[0] > 2.0


Y = np.array([1.0, -0.5, 0.2])
LOG_Z = laws.norm.logpdf(Y, 0.0, math.sqrt(1.25)).sum()
MEAN, SCALE = 0.8 * Y, math.sqrt(0.2)
P_EVENT = laws.norm.sf(2.0, MEAN[0], SCALE)


@ep.expectation
def funnel() -> Any:
    s = numpyro.sample("s", dist.Normal(0.0, 1.0))
    return s + numpyro.sample("x", dist.Normal(1.0, jnp.exp(s)).expand([3]).to_event(1))[0]


def funnel_draws(rng: np.random.Generator, charts: tuple[Density, ...]) -> np.ndarray:
    """Exact draws in the coordinates of the first chart."""
    positions = prior_positions(charts[0], tuple(rng.integers(2**31, size=2)), NUM_COPIES)
    return positions.reshape(NUM_ISLANDS, NUM_CHAINS, -1)


def test_chains_keep_the_law_that_they_have(seed: int) -> None:
    """Started from exact draws of a funnel they have the same law, whatever the chart."""
    rng = np.random.default_rng(seed)
    density = Density.of(funnel()).part("gamma2")
    charts = tuple(density.blended(np.full(4, c)) for c in (0.4, 0.0))
    unit = np.broadcast_to(np.eye(4), (NUM_ISLANDS, 4, 4))
    ends = []
    for number in range(8):
        start = Ensemble(funnel_draws(rng, charts), (Way.of(0.3, unit), Way.of(0.5, unit)))
        drawn = ensemble.draw(charts, start, 4, (seed, number))
        ends.append(drawn.positions[-1].reshape(NUM_COPIES, -1))
    points = np.concatenate(ends)
    standard = ensemble.recoordinated(charts[0], charts[1], points)
    for column in standard.T[:2]:
        assert_same_law(column, laws.norm.cdf)
    assert np.abs(points - standard).max() > 1.0


def posterior_draws(rng: np.random.Generator, count: int) -> np.ndarray:
    return MEAN + SCALE * rng.standard_normal((NUM_ISLANDS, count, 3))


@pytest.mark.parametrize("is_to_event", [False, True])
def test_ratios_of_islands_are_right(is_to_event: bool, seed: int) -> None:
    """From the prior to the posterior, and on to an event, which is past softened ones."""
    density = Density.of(conjugate(Y))
    rng = np.random.default_rng(seed)
    ratios = []
    for number in range(8):
        if is_to_event:
            part = (density.part("gamma1_plus"),)
            starts = posterior_draws(rng, 160)
            scales = spread_of_margins(density, starts[0])
            found = climb_to_target(part, scales, starts, (seed, number), 2, (0.8,))
            assert (found.particles.positions[..., 0] > 2.0).all()
            assert found.stiffness.max() < 0.5
            ratios.append(np.exp(found.log_z) / P_EVENT)
        else:
            gamma = (density.without_outputs(),)
            starts = rng.standard_normal((NUM_ISLANDS, 160, 3))
            found = climb(gamma, starts, scouts.to_posterior, (seed, number), num_pieces=2)
            ratios.append(np.exp(found.log_z - LOG_Z))
    assert_mean(np.concatenate(ratios), 1.0)


def test_warm_up_finds_scales_and_steps(seed: int) -> None:
    density = Density.of(conjugate(Y)).without_outputs()
    starts = np.random.default_rng(seed).uniform(-2, 2, (NUM_ISLANDS, NUM_CHAINS, 3))
    warmed = ensemble.warm_up(density, ensemble.start_anywhere(starts), (seed,), num_rough=8)
    assert warmed.r_hat < ensemble.MAX_WARM_R_HAT
    scales = np.sqrt(np.diagonal(warmed.ensemble.ways[0].factors[0] @ np.eye(3)) ** 2)
    assert (np.abs(np.log(scales / SCALE)) < 0.5).all()
    assert 0.3 < warmed.ensemble.ways[0].step_size < 2.0


def test_metric_of_an_island_is_that_of_the_others(seed: int) -> None:
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((40, NUM_ISLANDS, NUM_CHAINS, 2))
    before = ensemble.factors_of_others(states)
    states[:, 3] *= 10.0
    after = ensemble.factors_of_others(states)
    np.testing.assert_allclose(after[3], before[3], rtol=1e-6)
    assert (after[2] != before[2]).any()


def test_centredness_is_what_the_data_know(seed: int) -> None:
    """Independent coordinates with posterior variances 1 and 1/4: data know 0 and 3/4."""
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((400, NUM_ISLANDS, NUM_CHAINS, 2)) * np.array([1.0, 0.5])
    np.testing.assert_allclose(ensemble.best_centredness(states), [0.0, 0.75], atol=0.05)


def test_r_hat_by_ranks_sees_shifts_scales_and_infinite_variances(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_cauchy((8, 400))
    assert rank_r_hat(values) < 1.02
    shifted, stretched = values.copy(), values.copy()
    shifted[0] += 3.0
    stretched[0] *= 10.0
    assert rank_r_hat(shifted) > 1.05
    assert rank_r_hat(stretched) > 1.05


def test_positions_that_are_no_numbers_are_never_accepted(seed: int) -> None:
    @ep.expectation
    def edge() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("edge", jnp.where(x > 0.5, jnp.nan, 0.0))
        return x

    density = Density.of(edge()).without_outputs()
    starts = np.full((NUM_ISLANDS, NUM_CHAINS, 1), -0.5)
    unit = np.ones((NUM_ISLANDS, 1, 1))
    drawn = ensemble.draw((density,), Ensemble(starts, (Way.of(0.8, unit),)), 3, (seed,))
    assert (drawn.positions <= 0.5).all()
    assert jax.tree.all(jax.tree.map(np.isfinite, drawn.positions).all())
