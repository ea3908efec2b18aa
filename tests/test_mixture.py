"""Mixtures: densities that integrate to one, fits that find components and do not collapse."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from stats import assert_mean, assert_same_law

from estimand import mixture as mixtures
from estimand.mixture import Mixture


def example() -> Mixture:
    return Mixture(
        np.array([0.3, 0.5, 0.2]),
        np.array([[-1.0, 0.5], [2.0, 0.0], [0.0, 0.0]]),
        np.array([[[0.5, 0.0], [0.2, 0.4]], [[1.0, 0.0], [-0.3, 0.6]], [[1.5, 0.0], [0.0, 1.5]]]),
        np.array([np.inf, np.inf, 5.0]),
    )


def density_by_scipy(mixture: Mixture, points: np.ndarray) -> np.ndarray:
    total = np.zeros(len(points))
    for weight, mean, factor, nu in zip(
        mixture.weights, mixture.means, mixture.factors, mixture.degrees, strict=True
    ):
        scale = factor @ factor.T
        if np.isinf(nu):
            law = scipy.stats.multivariate_normal(mean, scale)
        else:
            law = scipy.stats.multivariate_t(mean, scale, df=nu)
        total += weight * law.pdf(points)
    return total


def test_density_is_scipys(seed: int) -> None:
    mixture = example()
    points = np.random.default_rng(seed).normal(size=(50, 2)) * 3
    np.testing.assert_allclose(
        np.exp(mixtures.log_density(mixture, points)), density_by_scipy(mixture, points), rtol=1e-9
    )


def test_draws_have_the_density(seed: int) -> None:
    """Weights of a known Gaussian over the mixture have mean one, for Sobol and plain uniforms."""
    mixture, rng = example(), np.random.default_rng(seed)
    target = scipy.stats.multivariate_normal([0.5, 0.2], [[0.8, 0.1], [0.1, 0.3]])
    plain = mixture.draw(rng.random((20_000, 4)))
    log_weights = target.logpdf(plain) - mixtures.log_density(mixture, plain)
    assert_mean(np.exp(log_weights), 1.0)
    means = []
    for _ in range(50):
        points = mixture.draw(mixtures.sobol_uniforms(rng, 512, 4))
        means.append(np.exp(target.logpdf(points) - mixtures.log_density(mixture, points)).mean())
    assert_mean(np.array(means), 1.0)
    # Quasi-random replicates of 512 draws spread less than plain ones would.
    assert np.std(means) < 0.5 * np.exp(log_weights).std() / np.sqrt(512)


def test_student_component_has_students_law(seed: int) -> None:
    student = Mixture(np.ones(1), np.zeros((1, 1)), np.ones((1, 1, 1)), np.array([5.0]))
    points = student.draw(np.random.default_rng(seed).random((20_000, 3)))
    assert_same_law(points[:, 0], scipy.stats.t(5).cdf)


def test_fit_of_one_gaussian_is_one_gaussian(seed: int) -> None:
    """Chains that repeat their states do not call for more components."""
    rng = np.random.default_rng(seed)
    points = np.repeat(rng.multivariate_normal([1.0, -2.0], [[4.0, 1.0], [1.0, 2.0]], 1000), 5, 0)
    fitted = mixtures.fit(points, np.zeros(5000), np.arange(5000) // 50, rng)
    assert fitted.size == 2
    assert np.isinf(fitted.degrees).sum() == 1
    np.testing.assert_allclose(fitted.means[0], [1.0, -2.0], atol=0.3)
    np.testing.assert_allclose(
        fitted.factors[0] @ fitted.factors[0].T, [[4.0, 1.0], [1.0, 2.0]], atol=0.5
    )
    assert fitted.weights.sum() == pytest.approx(1.0)


def test_fit_uses_the_weights(seed: int) -> None:
    """Draws from a wide law, weighted to a narrow one, give the narrow one."""
    rng = np.random.default_rng(seed)
    points = rng.normal(0.0, 3.0, (8000, 1))
    log_weights = scipy.stats.norm(2.0, 0.5).logpdf(points[:, 0]) - scipy.stats.norm(
        0.0, 3.0
    ).logpdf(points[:, 0])
    fitted = mixtures.fit(points, log_weights, np.arange(8000), rng)
    again = mixtures.refit(fitted, points, log_weights, rng)
    for mixture in (fitted, again):
        gaussian = np.isinf(mixture.degrees)
        mean = np.average(mixture.means[gaussian, 0], weights=mixture.weights[gaussian])
        assert mean == pytest.approx(2.0, abs=0.1)


def test_fit_finds_separate_modes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    centers = np.array([[-4.0, 0.0], [4.0, 1.0], [0.0, 6.0]])
    points = np.concatenate([rng.normal(center, 0.5, (1500, 2)) for center in centers])
    order = rng.permutation(len(points))
    fitted = mixtures.fit(points[order], np.zeros(4500), np.arange(4500) // 20, rng)
    gaussian = np.isinf(fitted.degrees)
    for center in centers:
        near = np.linalg.norm(fitted.means[gaussian] - center, axis=1) < 0.5
        assert fitted.weights[gaussian][near].sum() == pytest.approx(0.3, abs=0.05)


def test_fit_of_few_points_does_not_collapse(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(40, 5))
    fitted = mixtures.fit(points, np.zeros(40), np.arange(40), rng)
    spreads = np.linalg.eigvalsh(fitted.factors @ fitted.factors.transpose(0, 2, 1))
    assert spreads.min() > 0.05
    degenerate = np.zeros((40, 2))
    degenerate[:, 0] = rng.normal(size=40)
    fitted = mixtures.fit(degenerate, np.zeros(40), np.arange(40), rng)
    assert np.isfinite(mixtures.log_density(fitted, degenerate)).all()


def test_one_dimensional_mixture_integrates_to_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    fitted = mixtures.fit(rng.gamma(2.0, size=(3000, 1)), np.zeros(3000), np.arange(3000), rng)
    total, _ = scipy.integrate.quad(
        lambda x: np.exp(mixtures.log_density(fitted, np.array([[x]]))[0]), -50, 50, limit=200
    )
    assert total == pytest.approx(1.0, abs=2e-3)
