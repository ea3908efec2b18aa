"""Mixtures: densities that integrate to one, fits that find components and do not collapse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from estimand.sampling import mixture as mixtures
from estimand.sampling import warp
from estimand.sampling.mixture import Mixture
from tests.stats import assert_mean, assert_same_law


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


def wide(dimension: int, size: int, rng: np.random.Generator) -> Mixture:
    """Components of all sizes, far from the origin; every third is a Student-t."""
    factors = np.tril(rng.normal(0.0, 0.3, (size, dimension, dimension)), -1) + np.eye(dimension)
    return Mixture(
        rng.dirichlet(np.ones(size)),
        100.0 + rng.normal(0.0, 2.0, (size, dimension)),
        factors * rng.uniform(0.2, 3.0, (size, 1, 1)),
        np.where(np.arange(size) % 3 == 2, 5.0, np.inf),
    )


@pytest.mark.parametrize(("dimension", "size"), [(1, 3), (3, 40), (20, 7)])
def test_shares_of_some_components_are_scipys(dimension: int, size: int, seed: int) -> None:
    """More points than one piece has."""
    rng = np.random.default_rng(seed)
    mixture = wide(dimension, size, rng)
    points = mixture.draw(rng.random((3000, dimension + 2)))
    chosen = np.array([size - 1, 0])
    log_density, shares = mixtures.log_density_and_shares(mixture, points, chosen)
    whole = density_by_scipy(mixture, points)
    np.testing.assert_allclose(np.exp(log_density), whole, rtol=1e-9)
    for column, component in enumerate(chosen):
        single = Mixture(*(array[[component]] for array in mixture))
        expected = density_by_scipy(single, points) / whole
        np.testing.assert_allclose(shares[:, column], expected, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(mixtures.log_density_and_shares(mixture, points)[1].sum(axis=1), 1.0)


def test_nowhere_is_without_density_and_shares() -> None:
    points = np.array([[np.inf, 0.0], [1e200, 0.0], [0.0, 0.0]])
    gaussian = Mixture(*(array[:2] for array in example()))
    log_density, shares = mixtures.log_density_and_shares(gaussian, points)
    assert np.isneginf(log_density[:2]).all()
    assert np.isfinite(log_density[2])
    assert not shares[:2].any()


def test_draws_are_transformed_uniforms(seed: int) -> None:
    """One draw after the other, by the component that its first uniform falls to."""
    mixture, rng = example(), np.random.default_rng(seed)
    uniforms = rng.random((500, 4))
    expected = []
    for u in uniforms:
        k = 0 if u[0] < 0.3 else 1 if u[0] < 0.8 else 2
        normals = scipy.stats.norm.ppf(u[2:])
        spread = np.sqrt(5.0 / scipy.stats.chi2(5).ppf(u[1])) if k == 2 else 1.0
        expected.append(mixture.means[k] + mixture.factors[k] @ (spread * normals))
    np.testing.assert_allclose(mixture.draw(uniforms), expected, rtol=1e-9, atol=1e-12)


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


def test_student_component_has_students_distribution(seed: int) -> None:
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
    """Draws from a wide distribution, weighted to a narrow one, give the narrow one."""
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


# --- expectation maximisation, against loops over components ---


def memberships(mixture: Mixture, points: np.ndarray) -> np.ndarray:
    parts = [
        weight * scipy.stats.multivariate_normal(mean, factor @ factor.T).pdf(points)
        for weight, mean, factor in zip(
            mixture.weights, mixture.means, mixture.factors, strict=True
        )
    ]
    return np.stack(parts) / np.sum(parts, axis=0)


def em_by_loops(
    points: np.ndarray, weights: np.ndarray, mixture: Mixture, prior: np.ndarray, trust: float
) -> Mixture:
    """One step; the weights sum to the effective number of points."""
    steps = []
    for k, own in enumerate(memberships(mixture, points) * weights):
        mean = (own @ points + 1e-3 * mixture.means[k]) / (own.sum() + 1e-3)
        scatter = sum(w * np.outer(x - mean, x - mean) for w, x in zip(own, points, strict=True))
        pull = trust * points.shape[1]
        covariance = (scatter + pull * prior[k]) / (own.sum() + pull)
        share = (own.sum() + 1.0) / (weights.sum() + mixture.size)
        steps.append((share, mean, np.linalg.cholesky(covariance)))
    weights, means, factors = (np.array(column) for column in zip(*steps, strict=True))
    return Mixture(weights, means, factors, mixture.degrees)


def gaussians_at(dimension: int, rng: np.random.Generator) -> tuple[Mixture, np.ndarray]:
    """Three Gaussians in coordinates of different scales, and points about them."""
    scale, offset = 10.0 ** rng.uniform(-1, 1, dimension), rng.normal(0.0, 50.0, dimension)
    plain = wide(dimension, 3, rng)
    mixture = Mixture(
        plain.weights,
        offset + (plain.means - 100.0) * scale,
        plain.factors * scale[:, None],
        np.full(3, np.inf),
    )
    return mixture, mixture.draw(rng.random((900, dimension + 2)))


@pytest.mark.parametrize("dimension", [1, 4, 15])
def test_expectation_maximisation_is_that_of_loops(dimension: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    start, points = gaussians_at(dimension, rng)
    weights = rng.random(900)
    prior = start.factors @ start.factors.transpose(0, 2, 1)
    found = mixtures._em(points, weights, start, 500.0, prior=prior, trust=3.0, steps=2)
    expected = start
    for _ in range(2):
        expected = em_by_loops(points, weights * 500 / weights.sum(), expected, prior, 3.0)
    scale = points.std(axis=0)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-7)
    np.testing.assert_allclose(found.means / scale, expected.means / scale, rtol=1e-7)
    np.testing.assert_allclose(
        found.factors / scale[:, None], expected.factors / scale[:, None], rtol=1e-6, atol=1e-9
    )


def test_components_may_be_narrow_next_to_their_distance(seed: int) -> None:
    """Two groups 1e9 standard deviations apart, where sums of squares would have no digits left."""
    rng = np.random.default_rng(seed)
    centers = np.array([[-1e9, 0.0], [1e9, 0.0]])
    offsets = rng.normal(size=(2, 400, 2))
    points = (centers[:, None] + offsets).reshape(-1, 2)
    start = Mixture(np.full(2, 0.5), centers, np.stack([np.eye(2)] * 2), np.full(2, np.inf))
    prior = start.factors @ start.factors.transpose(0, 2, 1)
    found = mixtures._em(points, np.ones(800), start, 800.0, prior=prior, trust=1e-3)
    for center, own, mean, factor in zip(centers, offsets, found.means, found.factors, strict=True):
        np.testing.assert_allclose(mean - center, own.mean(axis=0), atol=1e-4)
        np.testing.assert_allclose(factor @ factor.T, np.cov(own.T, ddof=0), atol=1e-4)


def test_scales_are_those_along_the_axes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    present, points = gaussians_at(3, rng)
    weights = rng.random(900)
    found = mixtures._rescaled(present, points, weights)
    for k, own in enumerate(memberships(present, points) * weights):
        along = np.linalg.solve(present.factors[k], (points - present.means[k]).T).T
        shift = own @ along / (own.sum() + mixtures.SCALE_TRUST)
        squares = own @ (along - shift) ** 2 + mixtures.SCALE_TRUST
        scales = np.sqrt(squares / (own.sum() + mixtures.SCALE_TRUST))
        np.testing.assert_allclose(found.means[k], present.means[k] + present.factors[k] @ shift)
        np.testing.assert_allclose(found.factors[k], present.factors[k] * scales, rtol=1e-8)


# --- decisions by held-out points ---


def correlated(dimension: int, rho: float) -> np.ndarray:
    return (1 - rho) * np.eye(dimension) + rho * np.ones((dimension, dimension))


def gain(mixture: Mixture, law: Any, rng: np.random.Generator) -> float:
    """Mean log density at fresh points of a distribution minus its own: at most 0."""
    fresh = law.rvs(20_000, random_state=rng)
    return float((mixtures.log_density(mixture, fresh) - law.logpdf(fresh)).mean())


@pytest.mark.parametrize(
    ("dimension", "count", "rho", "expected"),
    [(20, 60, 0.0, 1.0), (20, 5000, 0.9, 20 / 5000), (3, 2000, 0.8, 3 / 2000)],
)
def test_shrinkage_is_chosen_by_held_out_points(
    dimension: int, count: int, rho: float, expected: float, seed: int
) -> None:
    """The diagonal for few points in many dimensions, the full covariance for many points."""
    rng = np.random.default_rng(seed)
    points = rng.multivariate_normal(np.zeros(dimension), correlated(dimension, rho), count)
    held_out = np.arange(count) % 4 == 0
    weights = np.full(count, 1 / count)
    found = mixtures._best_shrinkage(points, weights, held_out, float(count))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_fit_in_many_dimensions_is_close(rho: float, seed: int) -> None:
    """With 2000 points of 20 dimensions the loss by estimation stays below that of the t part."""
    rng = np.random.default_rng(seed)
    law = scipy.stats.multivariate_normal(np.full(20, 3.0), correlated(20, rho))
    points = law.rvs(2000, random_state=rng)
    fitted = mixtures.fit(points, np.zeros(2000), np.arange(2000), rng)
    assert -0.3 < gain(fitted, law, rng) <= 0.0


def test_a_better_rival_is_taken(seed: int) -> None:
    """80 points in 20 dimensions cannot determine a covariance; the exact distribution can."""
    rng = np.random.default_rng(seed)
    law = scipy.stats.multivariate_normal(np.full(20, 3.0), correlated(20, 0.9))
    exact = mixtures.gaussian(law.mean, np.linalg.inv(law.cov))
    points = law.rvs(80, random_state=rng)
    data = (points, np.zeros(80), np.arange(80))
    alone = gain(mixtures.fit(*data, rng), law, rng)
    helped = gain(mixtures.fit(*data, rng, exact), law, rng)
    assert alone < -0.5
    assert helped > -0.3


def test_a_worse_rival_is_not_taken(seed: int) -> None:
    rng = np.random.default_rng(seed)
    law = scipy.stats.multivariate_normal(np.zeros(3), correlated(3, 0.5))
    points = law.rvs(2000, random_state=rng)
    for center, precision in ((4.0, np.eye(3)), (0.0, 100 * np.eye(3))):
        rival = mixtures.gaussian(np.full(3, center), precision)
        fitted = mixtures.fit(points, np.zeros(2000), np.arange(2000), rng, rival)
        assert fitted is not rival
        assert gain(fitted, law, rng) > -0.1


def test_gaussian_has_its_moments() -> None:
    precision = np.linalg.inv(correlated(4, 0.6))
    made = mixtures.gaussian(np.arange(4.0), precision)
    np.testing.assert_allclose(made.means, np.tile(np.arange(4.0), (2, 1)))
    np.testing.assert_allclose(made.factors[0] @ made.factors[0].T, correlated(4, 0.6))
    assert made.weights.sum() == pytest.approx(1.0)
    assert np.isinf(made.degrees).tolist() == [True, False]


def test_refit_moves_to_what_the_points_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    law = scipy.stats.multivariate_normal([2.0, -1.0], correlated(2, 0.9))
    wrong = mixtures.gaussian(np.zeros(2), np.eye(2) / 9)
    points = wrong.draw(rng.random((20_000, 4)))
    log_weights = law.logpdf(points) - mixtures.log_density(wrong, points)
    again = mixtures.refit(wrong, points, log_weights, rng)
    assert gain(wrong, law, rng) < -1.5
    assert gain(again, law, rng) > -0.1


@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_refit_from_few_effective_points_does_no_harm(spread: float, seed: int) -> None:
    """A good proposal in 15 dimensions, and weights so uneven that few points carry them all.

    More points than are kept: those that are thinned out repeat, and a copy among the held-out
    points would favour a component that sits on it.
    """
    rng = np.random.default_rng(seed)
    law = scipy.stats.multivariate_normal(np.zeros(15), correlated(15, 0.3))
    good = mixtures.gaussian(law.mean, np.linalg.inv(law.cov))
    before = gain(good, law, rng)
    for _ in range(3):
        points = law.rvs(60_000, random_state=rng)
        log_weights = spread * rng.standard_normal(60_000)
        again = mixtures.refit(good, points, log_weights, rng)
        assert gain(again, law, rng) > before - 0.05


def test_refit_from_a_handful_of_points_keeps_the_mixture_sane(seed: int) -> None:
    """25 points in 20 dimensions: whatever is chosen, nothing collapses."""
    rng = np.random.default_rng(seed)
    law = scipy.stats.multivariate_normal(np.zeros(20), np.eye(20))
    good = mixtures.gaussian(law.mean, law.cov)
    for _ in range(5):
        again = mixtures.refit(good, law.rvs(25, random_state=rng), np.zeros(25), rng)
        assert gain(again, law, rng) > gain(good, law, rng) - 1.0


def test_copies_of_one_point_have_a_width_above_rounding() -> None:
    """As from scouts that are all at one point of a thin event."""
    points, groups = np.ones((400, 1)), np.repeat(np.arange(40), 10)
    fitted = warp.fit(points, np.zeros(400), groups, np.random.default_rng(0))
    drawn = fitted.draw(np.random.default_rng(1).random((1000, 3)))
    assert np.unique(drawn).size > 900
    assert np.exp(fitted.log_density(np.ones((1, 1)))) < 1e10
