"""Draws that serve every part: weights, control variates and errors down to rounding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats

import estimand as ep
from estimand.methods.adaptive import draws as importance
from estimand.methods.adaptive.draws import GAMMA2, Draws, Evaluated, Means, Part
from estimand.methods.adaptive.proposal import MAX_CONTROLS, Proposal
from estimand.sampling import mixture, warp
from estimand.sampling.mixture import Mixture
from estimand.sampling.warp import Warped
from problems import gaussian
from tests.stats import assert_coverage, assert_mean

MIX = Mixture(
    np.array([0.3, 0.7]),
    np.array([[-1.0], [2.0]]),
    np.array([[[0.5]], [[1.5]]]),
    np.array([np.inf, np.inf]),
)
FIRST = scipy.stats.norm(-1.0, 0.5)


def drawn(
    rng: np.random.Generator, log_gamma: Any, count: int = 1600, *, controls: bool = True
) -> Draws:
    """Draws from MIX in 16 replicates, with f = x as the only output."""
    points = MIX.draw(rng.random((count, 3)))
    log_proposal, shares = mixture.log_density_and_shares(MIX, points)
    x = points[:, 0]
    return Draws(
        positions=points,
        log_prior=log_gamma(x),
        log_likelihood=np.zeros(count),
        signs=np.sign(x)[:, None],
        log_sizes=np.log(np.abs(x))[:, None],
        log_proposal=log_proposal,
        replicate=np.repeat(np.arange(16), count // 16),
        controls=shares - MIX.weights if controls else np.zeros((count, 0)),
    )


def test_weights_of_the_parts(seed: int) -> None:
    draws = drawn(np.random.default_rng(seed), FIRST.logpdf, 160)
    x = draws.positions[:, 0]
    ratio = FIRST.pdf(x) / np.exp(draws.log_proposal)
    for sign, expected in (
        (0, ratio),
        (1, ratio * np.maximum(x, 0)),
        (-1, ratio * np.maximum(-x, 0)),
    ):
        np.testing.assert_allclose(np.exp(draws.log_weights(Part(sign, 0))), expected)


def test_controls_have_mean_zero(seed: int) -> None:
    draws = drawn(np.random.default_rng(seed), FIRST.logpdf, 20_000)
    assert_mean(draws.controls, 0.0)


def test_a_component_is_integrated_exactly(seed: int) -> None:
    """γ is one of the components: its weight is a linear function of the controls."""
    rng = np.random.default_rng(seed)
    for _ in range(5):
        draws = drawn(rng, FIRST.logpdf)
        means = Means(draws)
        evidence = importance.part_evidence(means, GAMMA2)
        assert float(evidence.log_z) == pytest.approx(0.0, abs=1e-6)
        assert importance.part_variance(means, GAMMA2) < 1e-12
        bare = drawn(rng, FIRST.logpdf, controls=False)
        assert importance.part_variance(Means(bare), GAMMA2) > 1e-5


def test_controlled_means_are_unbiased(seed: int) -> None:
    """γ is not a mixture of the components: unbiased, less variance, intervals that cover."""
    rng, law = np.random.default_rng(seed), scipy.stats.norm(1.5, 1.2)
    runs = [(drawn(rng, law.logpdf), drawn(rng, law.logpdf, controls=False)) for _ in range(400)]
    found = [[importance.part_evidence(Means(d), GAMMA2) for d in pair] for pair in runs]
    means = np.array([[math.exp(item.log_z) for item in pair] for pair in found])
    assert_mean(means, 1.0)
    controlled, plain = means.std(axis=0)
    assert controlled < 0.8 * plain
    error = np.array([item.standard_error for item, _ in found])
    reach = scipy.stats.t(15).ppf(0.975) * error
    assert_coverage(means[:, 0] - reach, means[:, 0] + reach, 1.0, at_least=0.92)


def test_estimates_of_a_ratio(seed: int) -> None:
    """E[x] under a normal distribution, whose parts have opposite signs; intervals cover."""
    rng, law = np.random.default_rng(seed), scipy.stats.norm(1.5, 1.2)
    quantile = scipy.stats.t(15).ppf(0.975)
    found = [importance.output_estimate(Means(drawn(rng, law.logpdf)), 0) for _ in range(300)]
    assert {item.degrees for item in found} == {15.0}
    values = np.array([item.value for item in found])
    reach = quantile * np.array([item.standard_error for item in found])
    assert_mean(values, 1.5)
    assert_coverage(values - reach, values + reach, 1.5, at_least=0.92)
    magnitude = law.expect(abs)
    assert np.mean([item.magnitude for item in found]) == pytest.approx(magnitude, rel=0.02)


def test_a_component_that_is_rarely_drawn_is_not_a_control() -> None:
    rare = Mixture(
        np.array([0.6, 0.399, 0.001]), np.zeros((3, 1)), np.ones((3, 1, 1)), np.full(3, np.inf)
    )
    group = Warped(rare)
    points = np.linspace(-2, 2, 50)[:, None]
    found = Evaluated(points, np.zeros(50), np.zeros(50), np.ones((50, 1)), np.zeros((50, 1)))
    proposal = Proposal({GAMMA2: group}, {GAMMA2: 1.0}, MIX)
    assert proposal.weighed(found, 0).controls.shape == (50, 5)
    frequent = proposal._replace(least_control=0.01).weighed(found, 0).controls
    assert frequent.shape == (50, 4)


def test_means_without_controls_are_plain() -> None:
    rng = np.random.default_rng(0)
    draws = drawn(rng, FIRST.logpdf, 160, controls=False)
    values = rng.normal(size=160)
    found = draws.replicates.means(values)
    expected = [values[draws.replicate == r].mean() for r in range(16)]
    assert found.mean == pytest.approx(np.mean(expected))
    assert (found.deviations**2).sum() == pytest.approx(np.var(expected, ddof=1) / 16)


def test_only_replicates_of_the_same_round_are_compared() -> None:
    """A second round three times as large; and draws that are dealt out one by one."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=640)
    rounds = np.concatenate([np.repeat(np.arange(16), 10), np.repeat(np.arange(16), 30)])
    draws = drawn(rng, FIRST.logpdf, 640, controls=False)._replace(replicate=rounds)
    found = draws.replicates.means(values)
    first, second = (x.reshape(16, -1).mean(axis=1) for x in (values[:160], values[160:]))
    variance = (0.25**2 * first.var(ddof=1) + 0.75**2 * second.var(ddof=1)) / 16
    assert found.mean == pytest.approx(values.mean())
    assert (found.deviations**2).sum() == pytest.approx(variance)
    dealt = draws._replace(replicate=np.arange(640) % 16).replicates.means(values)
    variance = values.reshape(-1, 16).var(axis=1, ddof=1).mean() / 640
    assert (dealt.deviations**2).sum() == pytest.approx(variance)


def means_by_regression(draws: Draws, values: np.ndarray) -> np.ndarray:
    """Each run less what a regression over all other replicates explains in it."""
    centered = draws.controls - draws.controls.mean(axis=0)
    deviations = values - values.mean()
    corrected = np.zeros(values.size)
    for r in range(draws.replicate.max() + 1):
        own, others = draws.replicate == r, draws.replicate != r
        coefficients = np.linalg.lstsq(centered[others], deviations[others], rcond=1e-4)[0]
        corrected[own] = values[own] - draws.controls[own] @ coefficients
    starts = np.flatnonzero(np.diff(draws.replicate, prepend=-1))
    counts = np.diff(starts, append=values.size)
    return (np.add.reduceat(corrected, starts) / counts).reshape(-1, 16)


@pytest.mark.parametrize("order", ["rounds", "interleaved"])
def test_means_are_those_of_regressions(order: str, seed: int) -> None:
    """The two controls are dependent: they sum to 0."""
    rng = np.random.default_rng(seed)
    law = scipy.stats.norm(1.5, 1.2)
    rounds = [np.repeat(np.arange(16), 30), np.repeat(np.arange(16), 70)]
    replicate = np.concatenate(rounds) if order == "rounds" else np.arange(1600) % 16
    draws = drawn(rng, law.logpdf)._replace(replicate=replicate)
    values = np.exp(draws.log_weights(GAMMA2))
    found = draws.replicates.means(values)
    runs = means_by_regression(draws, values)
    shares = draws.replicates.counts / values.size
    expected = (runs - runs.mean(axis=1, keepdims=True)) * shares * math.sqrt(16 / 15)
    assert found.mean == pytest.approx((runs * shares).sum(), rel=1e-8)
    np.testing.assert_allclose(found.deviations, expected, rtol=1e-6, atol=1e-10 * found.mean)
    scale = np.exp(draws.weights(GAMMA2).log_mean)
    assert found.mean == pytest.approx(scale * draws.part_means(GAMMA2).mean, rel=1e-10)


def test_inverses_are_those_of_all_other_replicates(seed: int) -> None:
    """One control is the sum of the others; another is met by the first replicate alone."""
    rows = np.random.default_rng(seed).normal(size=(3, 20, 5))
    rows[1:, :, 3] = 0.0
    rows[:, :, 4] = rows[:, :, :4].sum(axis=2)
    grams = rows.transpose(0, 2, 1) @ rows
    found = importance._inverses_without(grams)
    for number, inverse in enumerate(found):
        others = np.delete(grams, number, axis=0).sum(axis=0)
        moments = others @ np.arange(5.0)
        expected = np.linalg.pinv(others, 1e-8, True) @ moments
        np.testing.assert_allclose(others @ inverse @ moments, others @ expected, rtol=1e-6)


def test_what_weights_say_is_asked_once(seed: int) -> None:
    draws = drawn(np.random.default_rng(seed), FIRST.logpdf, 160)
    log_weights = draws.log_weights(GAMMA2)
    assert draws.log_weights(GAMMA2) is log_weights
    assert draws.ess(GAMMA2) == importance.effective_sample_size(log_weights)
    with pytest.raises(ValueError, match="read-only"):
        log_weights[0] = 0.0
    # Other columns, other weights.
    moved = draws._replace(log_prior=draws.log_prior + 1.0)
    np.testing.assert_allclose(moved.log_weights(GAMMA2), log_weights + 1.0)


def test_controls_are_shares_in_the_whole_proposal(seed: int) -> None:
    """Of warped components, too, and only of the heaviest."""
    rng = np.random.default_rng(seed)
    bent = warp.Warp.fit(rng.gamma(2.0, size=(500, 1)), np.ones(500))
    many = Mixture(
        rng.dirichlet(np.ones(60)),
        rng.normal(size=(60, 1)),
        np.ones((60, 1, 1)),
        np.full(60, np.inf),
    )
    groups = {GAMMA2: Warped(many), Part(1, 0): Warped(MIX, bent)}
    proposal = Proposal.of(groups, MIX)
    points = proposal.draw((seed,), 512)
    count = len(points)
    ones = np.ones((count, 1))
    draws = proposal.weighed(Evaluated(points, ones[:, 0], ones[:, 0], ones, ones), 3)
    assert (draws.replicate == 3).all()
    densities, weights = [], []
    for piece in proposal.pieces:
        for k in range(piece.mixture.size):
            single = Warped(Mixture(*(array[[k]] for array in piece.mixture)), piece.warp)
            densities.append(np.exp(single.log_density(points)))
            weights.append(piece.mixture.weights[k])
    total = np.sum(densities, axis=0)
    np.testing.assert_allclose(draws.log_proposal, np.log(total), rtol=1e-9)
    heaviest = np.sort(np.argsort(weights)[-MAX_CONTROLS:])
    expected = [densities[k] / total - weights[k] for k in heaviest]
    np.testing.assert_allclose(draws.controls, np.transpose(expected), rtol=1e-7, atol=1e-12)


def test_pooled_pilots_count_by_their_effective_size(seed: int) -> None:
    rng = np.random.default_rng(seed)
    good, bad = (
        drawn(rng, scipy.stats.norm(1.0, 2.0).logpdf),
        drawn(rng, scipy.stats.norm(9.0).logpdf),
    )
    points, log_weights = importance.pooled([good, bad], GAMMA2)
    assert len(points) == 3200
    weights = np.exp(log_weights)
    sizes = [pilot.ess(GAMMA2) for pilot in (good, bad)]
    assert sizes[0] > 10 * sizes[1]
    assert weights[:1600].sum() / weights[1600:].sum() == pytest.approx(sizes[0] / sizes[1])


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["double", "single"])
def test_errors_are_not_below_rounding(precision: str, seed: int) -> None:
    """25 dimensions in which the mixture is almost exact: what is left is rounding."""
    truth = gaussian.posterior_predictive_problem("", 25).value
    assert isinstance(truth, float)
    expectation = ep.expectation(gaussian.posterior_predictive)(np.full(25, 0.7))
    method = ep.AdaptiveIS(max_evaluations=300_000)
    for key in range(3):
        result = ep.estimate_expectation(
            expectation, method, rng_key=1000 * seed + key, throw=False, precision=precision
        )
        assert result.status in (ep.Status.ok, ep.Status.not_converged)
        assert abs(result.value - truth) < 5 * result.standard_error
        assert result.standard_error < 0.02 * truth
        if precision == "single":
            assert result.standard_error > 1e-7 * truth
