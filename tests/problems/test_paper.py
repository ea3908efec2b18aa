"""The truths of the paper's experiments, by their own quadratures and in closed form."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.util import log_density
from scipy import special

from problems import PROBLEMS, banana, gaussian, radon, sir


@pytest.mark.parametrize("dimension", [2, 10, 100])
def test_gaussian_truth(dimension: int) -> None:
    problem = PROBLEMS["posterior_predictive"]
    expected = {2: 1.64702163e-7, 10: problem.value, 100: 1.27610307e-46}
    np.testing.assert_allclose(gaussian.expectation(dimension), expected[dimension], 1e-8)
    if dimension == 10:
        np.testing.assert_allclose(gaussian.log_z2(), problem.log_z2, rtol=1e-12)


def test_banana_truth() -> None:
    found, problem = banana.truth(40), PROBLEMS["banana"]
    np.testing.assert_allclose(found.value, problem.value, rtol=1e-11)
    np.testing.assert_allclose(found.plus, 0.0543333487867, rtol=1e-11)
    np.testing.assert_allclose(found.log_z2, problem.log_z2, rtol=0, atol=1e-12)
    assert problem.value == banana.EXPECTATION


def test_sir_truth() -> None:
    found = sir.truth(sir.runge_kutta(12), 16)
    np.testing.assert_allclose(found.value, sir.EXPECTATION, rtol=2e-6)
    np.testing.assert_allclose(found.log_z1, sir.LOG_Z1, rtol=0, atol=2e-6)
    np.testing.assert_allclose(found.log_z2, sir.LOG_Z2, rtol=0, atol=2e-6)
    np.testing.assert_allclose(found.beta_mass.sum(), 1.0)
    # The second mode has 3e-5 of the mass and nearly all of the expectation.
    assert 2e-5 < found.mass_above(1.0) < 4e-5
    assert 0.14 < found.quantile(0.005) < found.quantile(0.995) < 0.45


@pytest.mark.slow
def test_a_finer_sir_grid_changes_nothing() -> None:
    found = sir.truth(sir.runge_kutta(64), 40)
    np.testing.assert_allclose(found.value, sir.EXPECTATION, rtol=2e-9)
    coarse = sir.truth(sir.runge_kutta(4), 20)
    np.testing.assert_allclose(coarse.value / found.value - 1, 4.3e-5, rtol=0.02)


def test_solvers_agree() -> None:
    beta, infected = np.array([0.25, 1.3, 3.0]), np.array([100.0, 60.0, 300.0])
    exact = sir.runge_kutta(64)(beta, infected)
    model = jax.vmap(sir.new_infections)(jnp.asarray(beta), jnp.asarray(infected)).T
    np.testing.assert_allclose(model, exact, rtol=2e-4)
    np.testing.assert_allclose(sir.adaptive(1e-8)(beta, infected), exact, rtol=1e-5)


def test_both_coordinates_of_the_epidemic_have_one_posterior() -> None:
    inside = special.ndtr(2.0 / 1.5) * (special.ndtr(99.0) - special.ndtr(-1.0))
    for beta, i0 in ((0.3, 8.0), (1.3, 0.5)):
        sites = {"beta": jnp.asarray(beta), "i0": jnp.asarray(i0)}
        bounded, free = (
            float(log_density(sir.sir, (sir.DATA,), {"is_bounded": is_bounded}, sites)[0])
            for is_bounded in (True, False)
        )
        np.testing.assert_allclose(free - bounded, math.log(inside), rtol=1e-9)
    outside = {"beta": jnp.asarray(-0.1), "i0": jnp.asarray(8.0)}
    assert log_density(sir.sir, (sir.DATA,), {"is_bounded": False}, outside)[0] == -jnp.inf


def test_radon_truths_are_those_of_the_table() -> None:
    for name, value in {
        "radon": radon.EXPECTATION,
        "radon_step": radon.HARD_STEP,
        "radon_85": radon.ALL_COUNTIES,
    }.items():
        np.testing.assert_allclose(value, PROBLEMS[name].value, rtol=1e-7)
