"""Stacks: every entry as if it were alone, and the same statistics as one by one."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.density import Density
from estimand.kernels import MALA, RandomWalk
from estimand.sampling import (
    SwarmSize,
    evaluate_stack,
    fit_stack,
    margin_spreads,
    mixture,
    prior_positions_of,
    recoordinated_stack,
    refit_stack,
    run_swarms,
    spread_of_margins,
    stacked,
)
from tests.stats import assert_mean


@ep.expectation
def program(y: Any) -> Any:
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    x = numpyro.sample("x", dist.Normal(0.0, scale))
    numpyro.sample("y", dist.Normal(x, 0.5), obs=y)
    return x > 1.0


@ep.expectation
def normal(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x, 0.5).to_event(1), obs=y)
    return x[0]


DATA = np.array([-0.5, 0.0, 0.7, 1.2])


def densities() -> list[Density]:
    return [Density.of(program(value)) for value in DATA]


def test_evaluations_are_those_of_each_density() -> None:
    positions = np.random.default_rng(0).normal(size=(len(DATA), 7, 2))
    columns = evaluate_stack(stacked(densities()), positions)
    for number in (0, 3):
        terms, outputs = jax.jit(jax.vmap(densities()[number].evaluate))(positions[number])
        expected = (terms.log_prior, terms.log_likelihood, *outputs)
        for column, one in zip(columns, expected, strict=True):
            np.testing.assert_allclose(column[number], one, rtol=1e-12)


def test_margins_spread_as_for_each_density() -> None:
    positions = np.random.default_rng(0).normal(size=(len(DATA), 7, 2))
    spreads = margin_spreads(stacked(densities()), positions)
    for spread, density, own in zip(spreads, densities(), positions, strict=True):
        np.testing.assert_allclose(spread, spread_of_margins(density, own), rtol=1e-12)


def test_prior_draws_are_those_of_the_prior() -> None:
    """x is normal with mean 0, and its scale half-normal, in unconstrained coordinates."""
    stack = stacked(densities())
    seeds = [(3, number) for number in range(len(DATA))]
    positions = prior_positions_of(stack, seeds, 2000)
    values = np.stack([jax.vmap(densities()[0].constrain)(rows)["x"] for rows in positions])
    assert_mean(values.ravel(), 0.0)
    assert_mean((values**2).ravel(), 4.0)
    again = prior_positions_of(stacked(densities()[1:2]), seeds[1:2], 2000)
    np.testing.assert_array_equal(again[0], positions[1])


def test_other_coordinates_and_their_volume() -> None:
    plain = stacked(densities())
    standard = [density.standardised() for density in densities()]
    positions = np.random.default_rng(1).normal(size=(len(DATA), 6, 2))
    moved = recoordinated_stack(plain, standard[0].model, positions)
    log_prior, log_likelihood, *_ = evaluate_stack(stacked(standard), moved.positions)
    np.testing.assert_allclose(moved.log_prior, log_prior, rtol=1e-10)
    np.testing.assert_allclose(log_likelihood, evaluate_stack(plain, positions)[1], rtol=1e-10)


@pytest.mark.parametrize("kernel", [RandomWalk(), MALA()])
def test_swarms_find_each_posterior(kernel: Any) -> None:
    """The posterior of each element is normal with mean 0.8·y and variance 0.2."""
    rng = np.random.default_rng(2)
    data = rng.normal(0.0, 1.5, (40, 2))
    first = Density.of(normal(data[0]))
    each = [dataclasses.replace(first, arrays=(row,)) for row in data]
    seeds = [(7, number) for number in range(len(data))]
    swarm = run_swarms(kernel, stacked(each), seeds, SwarmSize(128, 3), 512)
    assert not swarm.is_lost.any()
    errors = swarm.positions - 0.8 * data[:, None]
    assert_mean(errors.mean(axis=1), 0.0)
    assert abs(errors.var() / 0.2 - 1) < 0.1
    alone = run_swarms(kernel, stacked(each[5:6]), seeds[5:6], SwarmSize(128, 3), 512)
    np.testing.assert_array_equal(alone.positions[0], swarm.positions[5])


def test_a_density_without_mass_is_lost_and_the_others_are_not() -> None:
    first = Density.of(normal(np.zeros(2)))
    data: list[Any] = [np.zeros(2), np.array([np.nan, 0.0]), np.ones(2)]
    each = [dataclasses.replace(first, arrays=(row,)) for row in data]
    swarm = run_swarms(RandomWalk(), stacked(each), [(1,), (2,), (3,)], SwarmSize(64, 2), 256)
    assert swarm.is_lost.tolist() == [False, True, False]


def test_fits_find_separate_modes_and_single_gaussians() -> None:
    rng = np.random.default_rng(3)
    two = rng.normal(size=(600, 3)) * 0.2 + np.where(rng.random((600, 1)) < 0.3, -3.0, 3.0)
    one = rng.normal(size=(600, 3))
    points, log_weights = np.stack([two, one]), np.zeros((2, 600))
    is_held_out = np.arange(600) % 4 == 0
    rngs = [np.random.default_rng(number) for number in range(2)]
    fitted = fit_stack(points, log_weights, is_held_out, rngs)
    assert fitted[1].size == 2  # a Gaussian and a Student-t
    for own, found in zip(points, fitted, strict=True):
        fresh = found.draw(rng.random((4000, 5)))
        np.testing.assert_allclose(fresh.mean(axis=0), own.mean(axis=0), atol=0.3)
        np.testing.assert_allclose(fresh.std(axis=0), own.std(axis=0), rtol=0.25)
    # Next to that of the truth, less the Student-t's share; a single Gaussian is below −6.
    spike = mixture.log_density(fitted[0], two[is_held_out]).mean()
    truth = -1.5 * math.log(2 * math.pi * math.e * 0.04) + 0.3 * np.log(0.3) + 0.7 * np.log(0.7)
    assert spike > truth - 0.5
    again = fit_stack(points[1:], log_weights[1:], is_held_out, [np.random.default_rng(1)])
    np.testing.assert_array_equal(again[0].means, fitted[1].means)


def test_refits_move_to_the_weights() -> None:
    rng = np.random.default_rng(4)
    present = mixture.gaussian(np.zeros(2), np.eye(2))
    points = present.draw(rng.random((2000, 4)))
    target = mixture.gaussian(np.array([0.8, 0.0]), 2.0 * np.eye(2))
    log_weights = mixture.log_density(target, points) - mixture.log_density(present, points)
    refitted = refit_stack([present], points[None], log_weights[None])[0]
    np.testing.assert_allclose(refitted.means[0], [0.8, 0.0], atol=0.15)
