"""Mixtures in JAX: the same draws, densities and controls as those in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from estimand.sampling import Mixture, Warped, sobol, warp
from estimand.sampling.sampler import Sampler, Source, chi_squared_curve, uniforms_of


def mixture(rng: np.random.Generator, size: int, dimension: int, share: float) -> Mixture:
    factors = np.tril(rng.normal(0.0, 0.3, (size, dimension, dimension)), -1) + np.eye(dimension)
    degrees = np.where(np.arange(size) % 3 == 2, 5.0, np.inf)
    weights, means = share * rng.dirichlet(np.ones(size)), rng.normal(size=(size, dimension))
    return Mixture(weights, means, factors, degrees)


def example(seed: int, dimension: int, is_warped: bool) -> list[Warped]:
    rng = np.random.default_rng(seed)
    if not is_warped:
        return [Warped(mixture(rng, 11, dimension, 1.0))]
    bent = warp.Warp.fit(rng.exponential(size=(500, dimension)), np.ones(500))
    return [
        Warped(mixture(rng, 5, dimension, 0.6)),
        Warped(mixture(rng, 3, dimension, 0.4), bent),
    ]


@pytest.mark.parametrize("dimension", [1, 3, 20])
@pytest.mark.parametrize("is_warped", [False, True])
def test_draws_densities_and_controls_are_those_of_numpy(
    dimension: int, is_warped: bool, seed: int
) -> None:
    pieces = example(seed, dimension, is_warped)
    chosen = [np.arange(0, piece.mixture.size, 2) for piece in pieces]
    sampler = Sampler.of(pieces, chosen, 12)
    uniforms = np.random.default_rng(seed).random((600, dimension + 2))
    expected = warp.draw_from(pieces, uniforms)
    points = np.asarray(sampler.draw(jnp.asarray(uniforms)))
    np.testing.assert_allclose(points, expected, rtol=1e-9, atol=1e-9)

    log_density, controls = sampler.log_density_and_controls(jnp.asarray(expected))
    known = np.logaddexp.reduce([piece.log_density(expected) for piece in pieces], axis=0)
    np.testing.assert_allclose(log_density, known, rtol=1e-10, atol=1e-10)
    shares = []
    for piece, own in zip(pieces, chosen, strict=True):
        log_own, relative = piece.log_density_and_shares(expected, own)
        shares.append(relative * np.exp(log_own - known)[:, None] - piece.mixture.weights[own])
    width = sum(own.size for own in chosen)
    np.testing.assert_allclose(controls[:, :width], np.concatenate(shares, 1), atol=1e-10)
    assert not np.asarray(controls[:, width:]).any()


def test_uniforms_are_scrambled_sobol_points(seed: int) -> None:
    source = Source.of(np.random.default_rng(seed), 1, 5, is_random=False)
    own = jax.tree.map(lambda array: array[0], source)
    rng = np.random.default_rng(seed)
    rng.integers(2**32, size=(1, 2), dtype=np.uint32)
    expected = sobol.scrambled(rng, 9, 5)
    found = [uniforms_of(own, jnp.int32(start), 128, 5) for start in range(0, 512, 128)]
    np.testing.assert_array_equal(np.concatenate(found), expected)


def test_random_uniforms_differ_from_batch_to_batch_and_between_replicates(seed: int) -> None:
    source = Source.of(np.random.default_rng(seed), 2, 3, is_random=True)
    batches = [
        np.asarray(uniforms_of(jax.tree.map(lambda x, k=k: x[k], source), jnp.int32(start), 64, 3))
        for k in range(2)
        for start in (0, 64)
    ]
    assert len({batch.tobytes() for batch in batches}) == 4
    assert all(batch.min() >= 0 and batch.max() < 1 for batch in batches)


@pytest.mark.parametrize(("degrees", "error"), [(1.0, 2e-8), (3.0, 1e-11), (30.0, 1e-11)])
def test_curve_of_chi_squared(degrees: float, error: float) -> None:
    normals = np.linspace(-8.2, 8.2, 1001)
    found = np.polynomial.chebyshev.chebval(normals / 8.5, chi_squared_curve(degrees))
    law = scipy.stats.chi2(degrees)
    low, high = law.ppf(scipy.stats.norm.cdf(normals)), law.isf(scipy.stats.norm.sf(normals))
    np.testing.assert_allclose(found, np.log(np.where(normals < 0, low, high)), atol=error)
