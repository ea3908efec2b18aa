"""Truths of the models in `numpyro_models.py`, computed without this library.

Each function gives E[f] by conjugacy, by sums over all discrete values or by quadrature in the
few coordinates that are left; none of them calls NumPyro.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy import special, stats

from problems import numpyro_models as models

# Quadrature --------------------------------------------------------------------------------------


def legendre(low: float, high: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the Gauss-Legendre rule on an interval."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return low + (high - low) * (nodes + 1) / 2, weights * (high - low) / 2


def average(log_density: Any, f: Any, weights: Any) -> float:
    """Σ w·γ·f / Σ w·γ over nodes, with γ given by its logarithm."""
    density = weights * np.exp(log_density - np.max(log_density))
    return float(np.sum(density * f) / np.sum(density))


def tensor(*axes: tuple[np.ndarray, np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """Flat coordinates and weights of a tensor grid."""
    nodes = [x.ravel() for x in np.meshgrid(*(axis[0] for axis in axes), indexing="ij")]
    weights = np.meshgrid(*(axis[1] for axis in axes), indexing="ij")
    return nodes, np.prod([w.ravel() for w in weights], axis=0)


def given_data(prior: np.ndarray, design: np.ndarray, noise: np.ndarray, y: np.ndarray) -> tuple:
    """Posterior mean and covariance of a centred Gaussian vector, and the log density of y."""
    across = prior @ design.T
    total = design @ across + noise
    gain = np.linalg.solve(total, across.T).T
    log_evidence = stats.multivariate_normal.logpdf(y, np.zeros(len(y)), total)
    return gain @ y, prior - gain @ across.T, log_evidence


# Hierarchies -------------------------------------------------------------------------------------


def eight_schools() -> float:
    """Everything but tau is Gaussian; tau = 5 tan(u) has u uniform."""
    y, sigma = models.SCHOOLS["y"], models.SCHOOLS["sigma"]
    nodes, weights = legendre(0.0, math.pi / 2, 300)
    log_z, tails = [], []
    for tau in 5 * np.tan(nodes):
        prior = np.diag(np.full(8, tau**2)) + 25.0
        mean, covariance, log_evidence = given_data(prior, np.eye(8), np.diag(sigma**2), y)
        log_z.append(log_evidence)
        tails.append(stats.norm.sf(25.0, mean[0], math.sqrt(covariance[0, 0])))
    return average(log_z, tails, weights)


def baseball() -> float:
    """The averages are beta-binomial; m and log kappa by quadrature."""
    (m, t), weights = tensor(legendre(0.0, 1.0, 250), legendre(0.0, 20.0, 400))
    kappa = np.exp(t)
    a, b = m * kappa, (1 - m) * kappa
    log_z = -1.5 * t
    for n, k in zip(models.AT_BATS, models.HITS, strict=True):
        log_z = log_z + special.betaln(a + k, b + n - k) - special.betaln(a, b)
    n, k = models.AT_BATS[0], models.HITS[0]
    return average(log_z, special.betaincc(a + k, b + n - k, 0.42), weights)


def lung_capacity() -> float:
    """Lines are Gaussian given the three scales."""
    patient, week, y = models.PATIENT, models.WEEK, models.LUNG
    choose = np.eye(4)[patient]
    design = np.hstack([choose, choose * week[:, None]])
    nodes, weights = tensor(legendre(0, 5, 30), legendre(0, 4, 30), legendre(0, 2, 60))
    log_z, tails = [], []
    for sigma_a, sigma_b, sigma in zip(*nodes, strict=True):
        a, b = sigma_a**2 * np.eye(4) + 1, sigma_b**2 * np.eye(4) + 1
        prior = np.block([[a, np.zeros((4, 4))], [np.zeros((4, 4)), b]])
        across = prior @ design.T
        factor = np.linalg.cholesky(design @ across + sigma**2 * np.eye(12))
        white = np.linalg.solve(factor, np.column_stack([y, across[5]]))
        log_z.append(-0.5 * np.sum(white[:, 0] ** 2) - np.sum(np.log(np.diag(factor))))
        mean, variance = white[:, 1] @ white[:, 0], prior[5, 5] - np.sum(white[:, 1] ** 2)
        tails.append(special.ndtr(mean / math.sqrt(variance)))
    sigma_a, sigma_b, sigma = nodes
    log_prior = -(sigma_a**2 + sigma_b**2) / 2 - 2 * sigma**2
    return average(np.array(log_z) + log_prior, np.array(tails), weights)


def funnel() -> float:
    scale, weights = legendre(-30.0, 30.0, 1000)
    return average(-(scale**2) / 18, stats.norm.sf(20 * np.exp(-scale / 2)), weights)


# Regressions -------------------------------------------------------------------------------------


def horseshoe(num_replicates: int = 8, log2_points: int = 16) -> tuple[float, float]:
    """E[f] with its standard error: coefficients are Gaussian given the five scales.

    These are integrated over their prior by randomised quasi-random points.
    """
    x, y = models.COVARIATES, models.RESPONSE
    gram, moment, row = x.T @ x, x.T @ y, np.array([0.5, 1.0, -1.0])
    replicates = []
    for seed in range(num_replicates):
        points = stats.qmc.Sobol(5, rng=seed).random_base2(log2_points)
        local, overall = np.tan(math.pi / 2 * points[:, :3]), np.tan(math.pi / 2 * points[:, 3])
        precision = special.gammaincinv(3.0, points[:, 4])
        scales = overall[:, None] * local
        # In coordinates scaled to a standard prior: posterior precision 1 + p·S·X'X·S.
        scaled = precision[:, None, None] * scales[:, :, None] * gram * scales[:, None, :]
        total = scaled + np.eye(3)
        covariance = np.linalg.inv(total)
        slope = precision[:, None] * scales * moment
        mean = np.einsum("nij,nj->ni", covariance, slope)
        log_z = len(y) / 2 * np.log(precision) - precision * (y @ y) / 2
        log_z += np.sum(slope * mean, axis=1) / 2 - np.linalg.slogdet(total)[1] / 2
        weighted = scales * row
        spread = np.einsum("ni,nij,nj->n", weighted, covariance, weighted)
        replicates.append(average(log_z, np.sum(weighted * mean, axis=1) ** 2 + spread, 1.0))
    return float(np.mean(replicates)), float(stats.sem(replicates))


def ordinal() -> float:
    """Three coordinates: the slope, the first cut and the log distance of the second."""
    axis = legendre(-7.0, 7.0, 80)
    (slope, first, gap), weights = tensor(legendre(-10.0, 14.0, 120), axis, axis)
    second = first + np.exp(gap)
    log_z = -(slope**2) / 8 - first**2 / 2 - gap**2 / 2
    for x, grade in zip(models.GRADES_X, models.GRADES, strict=True):
        at_least = [1.0, special.expit(slope * x - first), special.expit(slope * x - second), 0.0]
        log_z = log_z + np.log(np.maximum(at_least[grade] - at_least[grade + 1], 1e-300))
    return average(log_z, special.expit(-slope - second), weights)


def survival() -> float:
    (a, b), weights = tensor(legendre(-4.0, 4.0, 200), legendre(-7.0, 9.0, 400))
    shape, scale = np.exp(a / 2), np.exp(1 + b)
    log_z = -(a**2 + b**2) / 2
    for time, is_censored in zip(models.LIFETIMES, models.IS_CENSORED, strict=True):
        log_z = log_z - (time / scale) ** shape
        if not is_censored:
            log_z = log_z + np.log(shape / scale) + (shape - 1) * np.log(time / scale)
    return average(log_z, np.exp(-((6 / scale) ** shape)), weights)


def censored_lifetimes() -> float:
    """A gamma posterior, updated by failures and by total time."""
    failures, time = int((~models.IS_CENSORED).sum()), float(models.LIFETIMES.sum())
    return (1 + 8.0 / (2 + time)) ** -(2.0 + failures)


def imputation() -> float:
    """Given the slope, the mean and the missing values are Gaussian."""
    missing = np.isnan(models.AGE)
    seen = models.AGE[~missing]
    slopes, weights = legendre(-6.0, 8.0, 400)
    log_z, tails = [], []
    for slope in slopes:
        # The vector (mu, first missing, second missing); ages that are seen, then scores of the
        # missing ones.
        prior = np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.0, 1.0, 2.0]])
        design = np.zeros((7, 3))
        design[:5, 0], design[5, 1], design[6, 2] = 1.0, slope, slope
        noise = np.diag([1.0] * 5 + [0.49] * 2)
        y = np.concatenate([seen, models.SCORE[missing]])
        mean, covariance, log_evidence = given_data(prior, design, noise, y)
        known = stats.norm.logpdf(models.SCORE[~missing], slope * seen, 0.7).sum()
        log_z.append(log_evidence + known - slope**2 / 8)
        tails.append(stats.norm.sf(2.0, mean[1], math.sqrt(covariance[1, 1])))
    return average(log_z, tails, weights)


def zero_inflated() -> float:
    (gate, rate), weights = tensor(legendre(0.0, 1.0, 100), legendre(0.0, 25.0, 300))
    positive = models.COUNTS[models.COUNTS > 0]
    zeros = np.sum(models.COUNTS == 0)
    log_z = np.log(rate) - rate + zeros * np.log(gate + (1 - gate) * np.exp(-rate))
    log_z += len(positive) * (np.log1p(-gate) - rate) + positive.sum() * np.log(rate)
    return average(log_z, (1 - gate) * special.gammainc(6.0, rate), weights)


def gaussian_process() -> float:
    axis = legendre(-6.0, 6.0, 60)
    (a, b, c), weights = tensor(axis, axis, axis)
    variance, noise, length = np.exp(a), np.exp(b - 2), np.exp(c)
    x = np.append(models.GP_X, 0.9)
    log_z, tails = np.empty(len(a)), np.empty(len(a))
    for part in np.array_split(np.arange(len(a)), 20):
        v, s = variance[part, None, None], length[part, None, None]
        full = v * np.exp(-0.5 * ((x[:, None] - x[None, :]) / s) ** 2)
        total = full[:, :-1, :-1] + (noise[part, None, None] + 1e-6) * np.eye(7)
        factor = np.linalg.cholesky(total)
        y = np.broadcast_to(models.GP_Y, (len(part), 7))
        white = np.linalg.solve(factor, np.stack([y, full[:, -1, :-1]], axis=2))
        log_z[part] = -0.5 * np.sum(white[:, :, 0] ** 2, axis=1)
        log_z[part] -= np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
        mean = np.sum(white[:, :, 0] * white[:, :, 1], axis=1)
        spread = np.sqrt(variance[part] - np.sum(white[:, :, 1] ** 2, axis=1) + 1e-6)
        tails[part] = stats.norm.sf(1.5, mean, spread)
    return average(log_z - (a**2 + b**2 + c**2) / 2, tails, weights)


# Sequences ---------------------------------------------------------------------------------------


def autoregression(num_ahead: int = 3) -> float:
    """Given the three parameters the future is Gaussian."""
    y = models.SERIES
    grid = tensor(legendre(-3.0, 3.0, 80), legendre(-1.0, 1.0, 100), legendre(0.05, 3.0, 150))
    (alpha, phi, sigma), weights = grid
    log_z = -(alpha**2 + sigma**2) / 2
    for before, now in itertools.pairwise(y):
        log_z = log_z - np.log(sigma) - ((now - alpha - phi * before) / sigma) ** 2 / 2
    mean, variance = np.full(len(alpha), y[-1]), np.zeros(len(alpha))
    for _ in range(num_ahead):
        mean, variance = alpha + phi * mean, phi**2 * variance + sigma**2
    return average(log_z, stats.norm.sf(2.5, mean, np.sqrt(variance)), weights)


MOVES, EMITS = np.array([1.0, 2.0]), np.array([2.0, 1.0, 1.0])


def _log_path(path: Iterable[int], words: Iterable[int]) -> float:
    """log p(states, words), with moves and emissions integrated over their Dirichlet priors."""
    states = list(path)
    moves, emits = np.zeros((2, 2)), np.zeros((2, 3))
    for before, now in itertools.pairwise(states):
        moves[before, now] += 1
    for state, word in zip(states, words, strict=True):
        emits[state, word] += 1
    return math.log([0.8, 0.2][states[0]]) + float(
        sum(_log_dirichlet(MOVES, row) for row in moves)
        + sum(_log_dirichlet(EMITS, row) for row in emits)
    )


def _log_dirichlet(concentration: np.ndarray, counts: np.ndarray) -> float:
    """log E[∏ pᵢ^countᵢ] under a Dirichlet distribution."""
    after = concentration + counts
    gammas = np.sum(special.gammaln(after) - special.gammaln(concentration))
    return float(gammas + special.gammaln(concentration.sum()) - special.gammaln(after.sum()))


def _paths(words: np.ndarray) -> tuple[list[tuple[int, ...]], np.ndarray]:
    paths = list(itertools.product((0, 1), repeat=len(words)))
    return paths, np.exp([_log_path(path, words) for path in paths])


def hidden_markov() -> float:
    """Two evidences, with and without the next word, each a sum over all paths."""
    longer = np.append(models.WORDS, 1)
    return float(_paths(longer)[1].sum() / _paths(models.WORDS)[1].sum())


def hidden_markov_enumerated() -> float:
    paths, weights = _paths(models.WORDS)
    return float(np.average([path[-1] for path in paths], weights=weights))


def capture_recapture() -> float:
    """After its last capture an animal is either dead or not seen again."""
    (phi, rho), weights = tensor(legendre(0.0, 0.9, 80), legendre(0.0, 1.0, 80))
    upper, upper_weights = tensor(legendre(0.9, 1.0, 80), legendre(0.0, 1.0, 80))
    is_event = np.repeat([0.0, 1.0], [len(phi), len(upper[0])])
    phi, rho = np.append(phi, upper[0]), np.append(rho, upper[1])
    num_years = models.CAPTURES.shape[1]
    unseen = [np.ones(len(phi))]
    for _ in range(num_years):
        unseen.append(1 - phi + phi * (1 - rho) * unseen[-1])
    log_z = np.zeros(len(phi))
    for row in models.CAPTURES:
        first, last = np.flatnonzero(row)[[0, -1]]
        seen = row[first + 1 : last + 1]
        log_z += (last - first) * np.log(phi) + np.log(unseen[num_years - 1 - last])
        log_z += seen.sum() * np.log(rho) + (1 - seen).sum() * np.log1p(-rho)
    return average(log_z, is_event, np.append(weights, upper_weights))


# Discrete structure ------------------------------------------------------------------------------


def mixture() -> float:
    """Evidences with and without the new value, each a sum over all memberships."""

    def evidence(y: np.ndarray) -> float:
        total = 0.0
        for members in itertools.product((0, 1), repeat=len(y)):
            chosen = np.array(members)
            log_z = _log_dirichlet(np.ones(2), np.bincount(chosen, minlength=2))
            for component in (0, 1):
                own = y[chosen == component]
                precision = 1 / 9 + len(own) / 0.64
                log_z += -0.5 * math.log(9 * precision) - np.sum(own**2) / 1.28
                log_z += (own.sum() / 0.64) ** 2 / precision / 2
            total += math.exp(log_z)
        return total / (2 * math.pi * 0.64) ** (len(y) / 2)

    return evidence(np.append(models.CLUSTERED, 4.0)) / evidence(models.CLUSTERED)


def latent_dirichlet() -> float:
    words = models.DOCUMENTS.ravel()
    documents = np.repeat(np.arange(3), 3)
    total = same = 0.0
    for topics in itertools.product((0, 1), repeat=9):
        chosen = np.array(topics)
        log_z = 0.0
        for topic in (0, 1):
            own = np.bincount(words[chosen == topic], minlength=4)
            log_z += _log_dirichlet(np.full(4, 0.5), own)
        for document in range(3):
            own = np.bincount(chosen[documents == document], minlength=2)
            log_z += _log_dirichlet(np.ones(2), own)
        total += math.exp(log_z)
        same += math.exp(log_z) * (chosen[6] == chosen[7])
    return same / total


def change_point() -> float:
    """Rates have gamma distributions given the year."""
    counts = models.ACCIDENTS
    log_z = [
        sum(
            special.gammaln(1 + part.sum()) - (1 + part.sum()) * math.log(1 + len(part))
            for part in (counts[:year], counts[year:])
        )
        for year in range(len(counts))
    ]
    return average(log_z, np.arange(len(counts)) < 8, 1.0)


def shells() -> float:
    """Shells do not overlap and lie inside the square: their masses are ∫ r·N(r; 2, 0.1) dr."""

    def mass(high: float) -> float:
        r, weights = legendre(1.0, high, 400)
        return float(np.sum(weights * r * stats.norm.pdf(r, 2.0, 0.1)))

    return 0.3 * mass(2.3) / mass(3.0)


TRUTHS: dict[str, Callable[[], float]] = {
    function.__name__: function
    for function in (
        eight_schools,
        baseball,
        lung_capacity,
        funnel,
        ordinal,
        survival,
        censored_lifetimes,
        imputation,
        zero_inflated,
        gaussian_process,
        autoregression,
        hidden_markov,
        hidden_markov_enumerated,
        capture_recapture,
        mixture,
        latent_dirichlet,
        change_point,
        shells,
    )
}
