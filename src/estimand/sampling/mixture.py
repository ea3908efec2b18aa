"""Mixtures of Gaussians and Student-t distributions: fitting, densities, quasi-random draws.

All of it is in NumPy: in JAX every number of components would be a compilation of its own. Arrays
of one number for each component and point have the components as rows: sums over a short last axis
are slow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from estimand.sampling import sobol
from estimand.sampling.products import inverses_of, pieces, root_of, sums_of_products, times

STUDENT_DEGREES = 5.0
STUDENT_SHARE = 0.1
COMPONENT_COUNTS = (1, 2, 4, 8, 16)
# Points per free parameter that a fit needs before it may have that many components.
POINTS_PER_PARAMETER = 3.0
# Effective points that a group (a Markov chain) counts for at the most.
POINTS_PER_GROUP = 10.0
MAX_FIT_POINTS = 5000
MAX_REFIT_POINTS = 50_000
# Candidates, of which held-out points choose: how far a covariance is shrunk to its diagonal, and
# how many points per dimension the present covariances count for in a refit.
SHRINKAGES = (0.1, 0.3, 0.6, 1.0)
TRUSTS = (2.0, 10.0, 50.0, math.inf)
# Points that a present scale counts for where a refit changes only scales.
SCALE_TRUST = 5.0
# Up to this dimension a fit is made of the products of all pairs of coordinates, unless a component
# is so narrow, next to all points, that differences of these products have few digits left.
MAX_PAIRED_DIMENSION = 12
MIN_PAIRED_SCALE = 1e-3


class Mixture(NamedTuple):
    """Components with weights, means, Cholesky factors and degrees of freedom (inf: Gaussian)."""

    weights: np.ndarray
    means: np.ndarray
    factors: np.ndarray
    degrees: np.ndarray

    @property
    def size(self) -> int:
        return self.weights.size

    @property
    def dimension(self) -> int:
        return self.means.shape[1]

    def scaled(self, share: float) -> Mixture:
        return self._replace(weights=share * self.weights)

    @staticmethod
    def join(mixtures: list[Mixture]) -> Mixture:
        """One mixture with the components of several, whose weights are kept as they are."""
        return Mixture(*(np.concatenate(arrays) for arrays in zip(*mixtures, strict=True)))

    def draw(self, uniforms: np.ndarray) -> np.ndarray:
        """Points from uniforms of shape (n, d + 2): component, Student-t scale, normals."""
        from scipy.special import gammaincinv, ndtri

        edges = np.cumsum(self.weights) / self.weights.sum()
        chosen = np.minimum(np.searchsorted(edges, uniforms[:, 0], side="right"), self.size - 1)
        normals = ndtri(np.clip(uniforms[:, 2:], 1e-16, 1 - 1e-16))
        students = np.flatnonzero(np.isfinite(self.degrees[chosen]))
        nu = self.degrees[chosen[students]]
        chi_squared = 2 * gammaincinv(nu / 2, np.clip(uniforms[students, 1], 1e-16, 1 - 1e-16))
        normals[students] *= np.sqrt(nu / chi_squared)[:, None]
        points = np.empty_like(normals)
        order = np.argsort(chosen, kind="stable")
        ends = np.searchsorted(chosen[order], np.arange(self.size), side="right")
        for component, rows in enumerate(np.split(order, ends[:-1])):
            stretched = times(self.factors[component], normals[rows].T)
            points[rows] = self.means[component] + stretched.T
        return points


def num_moments(dimension: int) -> int:
    """Numbers in a mean and a covariance."""
    return dimension * (dimension + 3) // 2


def sobol_uniforms(rng: np.random.Generator, count: int, dimension: int) -> np.ndarray:
    """Scrambled Sobol points in the unit cube; independent scrambles for independent calls."""
    return sobol.scrambled(rng, math.ceil(math.log2(count)), dimension)[:count]


def shifted_uniforms(
    rng: np.random.Generator, num_replicates: int, count: int, dimension: int
) -> np.ndarray:
    """Replicates of Sobol points, one after the other, each with a random shift; count is 2**k."""
    return sobol.shifted(rng, num_replicates, count.bit_length() - 1, dimension)


# --- densities ---


def log_density(mixture: Mixture, points: np.ndarray) -> np.ndarray:
    """log of the (possibly unnormalised) mixture at points."""
    return log_density_and_shares(mixture, points, np.zeros(0, int))[0]


def log_density_and_shares(
    mixture: Mixture, points: np.ndarray, chosen: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The log density, and the shares in it of all or some components: (points, components).

    Under the mixture a share has the component's weight as its mean: a control variate.
    """
    chosen = np.arange(mixture.size) if chosen is None else chosen
    components = _Components.of(mixture)
    log_densities = np.empty(len(points))
    shares = np.empty((chosen.size, len(points))).T  # as they are computed, component by component
    for piece in components.pieces(len(points)):
        logs = components.log_densities(points[piece])
        log_densities[piece], relative = _normalised(logs)
        shares[piece] = relative[chosen].T
    return log_densities, shares


def _normalised(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log of the sum of rows given by their logarithms, and the share of each row in it.

    The shares take the place of the logarithms.
    """
    top = logs.max(axis=0)
    top[top == -np.inf] = 0.0  # no mass at all, and then no shares
    logs -= top
    np.exp(logs, out=logs)
    total = logs.sum(axis=0)
    with np.errstate(divide="ignore"):
        log_total = top + np.log(total)
    total[total == 0] = 1.0
    logs /= total
    return log_total, logs


class _Components(NamedTuple):
    """What the densities of the components need, computed once for all points."""

    means: np.ndarray
    inverses: np.ndarray
    log_constants: np.ndarray
    students: np.ndarray
    degrees: np.ndarray

    @classmethod
    def of(cls, mixture: Mixture) -> _Components:
        dimension, inverses = mixture.dimension, inverses_of(mixture.factors)
        students = np.flatnonzero(np.isfinite(mixture.degrees))
        degrees = mixture.degrees[students]
        with np.errstate(divide="ignore"):
            constants = np.log(mixture.weights)
        constants += np.log(np.diagonal(inverses, axis1=1, axis2=2)).sum(axis=1)
        constants -= 0.5 * dimension * math.log(2 * math.pi)
        constants[students] -= 0.5 * dimension * np.log(0.5 * degrees)
        constants[students] += [
            math.lgamma(0.5 * (nu + dimension)) - math.lgamma(0.5 * nu) for nu in degrees
        ]
        return cls(mixture.means[:, :, None], inverses, constants, students, degrees[:, None])

    def pieces(self, count: int) -> Iterator[slice]:
        """Slices of so many points, each of a size that is fast."""
        size, dimension, _ = self.inverses.shape
        return pieces(count, dimension**2, size * dimension)

    def log_densities(self, points: np.ndarray) -> np.ndarray:
        """log(weight · density) of every component at a piece of the points."""
        with np.errstate(over="ignore", invalid="ignore"):
            whitened = self.inverses @ (np.ascontiguousarray(points.T) - self.means)
            logs = np.einsum("kdn,kdn->kn", whitened, whitened)
        tails = np.log1p(logs[self.students] / self.degrees)
        logs *= -0.5
        logs[self.students] = -0.5 * (self.degrees + points.shape[1]) * tails
        logs += self.log_constants[:, None]
        return logs


# --- fits ---


def fit(
    points: np.ndarray,
    log_weights: np.ndarray,
    groups: np.ndarray,
    rng: np.random.Generator,
    rival: Mixture | None = None,
) -> Mixture:
    """Fits a mixture to weighted points: Gaussians, and a Student-t with the overall moments.

    The number of Gaussians is the one with the best likelihood on held-out groups. Points of one
    group (a Markov chain) are dependent and often equal: split at random they would reward
    components that sit on single points. A rival that does better there is given back instead.
    """
    effective, points, weights, groups = _thinned(points, log_weights, groups, rng, MAX_FIT_POINTS)
    if len(points) < 4:
        # So few that none can be held out: each counts several times.
        points, weights, groups = (np.concatenate([x] * 4) for x in (points, weights, groups))
    effective = min(effective, POINTS_PER_GROUP * np.unique(groups).size)
    held_out = _held_out(groups, rng)
    identity = np.zeros(points.shape[1]), np.eye(points.shape[1])
    candidates = [_fit_in(identity, points, weights, held_out, effective, rng)]
    if rival is not None:
        frame = rival.means[0], rival.factors[0]
        candidates.append(_fit_in(frame, points, weights, held_out, effective, rng))
        rival_score = _mean_log_density(gaussians_of(rival), points[held_out], weights[held_out])
        candidates.append((rival_score, rival))
    return max(candidates, key=lambda candidate: candidate[0])[1]


def _fit_in(
    frame: tuple[np.ndarray, np.ndarray],
    points: np.ndarray,
    weights: np.ndarray,
    held_out: np.ndarray,
    effective: float,
    rng: np.random.Generator,
) -> tuple[float, Mixture]:
    """The best fit with covariances shrunk to the diagonal of a frame, and its held-out score."""
    middle, axes = frame
    framed = _transformed(inverses_of(axes), points - middle)
    shrinkage = _best_shrinkage(framed, weights, held_out, effective)
    framed_center, framed_root = _moments(framed, weights, shrinkage)
    center, root = middle + axes @ framed_center, axes @ framed_root
    inverse = inverses_of(root)
    whitened = _transformed(inverse, points - center)
    train, test = (whitened[~held_out], weights[~held_out]), (whitened[held_out], weights[held_out])
    best, best_score = 1, -np.inf
    for count in COMPONENT_COUNTS:
        if not is_supported(count, 0.75 * effective, points.shape[1]):
            break
        start = _starting_mixture(*train, count, rng)
        score = _mean_log_density(_em(*train, start, 0.75 * effective), *test)
        if score > best_score + 0.005:
            best, best_score = count, score
        elif count > 2 * best:
            break
    start = _starting_mixture(whitened, weights, best, rng)
    fitted = with_student(_em(whitened, weights, start, effective), center, root)
    return best_score + float(np.log(np.abs(np.diag(inverse))).sum()), fitted


def gaussian(center: np.ndarray, precision: np.ndarray) -> Mixture:
    """A Gaussian, and a Student-t with the same moments."""
    root = root_of(np.linalg.inv(precision))
    dimension = center.size
    standard = Mixture(
        np.ones(1), np.zeros((1, dimension)), np.eye(dimension)[None], np.full(1, np.inf)
    )
    return with_student(standard, center, root)


def refit(
    mixture: Mixture, points: np.ndarray, log_weights: np.ndarray, rng: np.random.Generator
) -> Mixture:
    """A few more steps of the fit from new weighted points, with the same components.

    Covariances are averaged with the present ones, which count as some points per dimension: as
    many as make the best fit to held-out points, so that few points cannot ruin what is good.
    """
    names = np.arange(log_weights.size)
    effective, points, weights, _ = _thinned(points, log_weights, names, rng, MAX_REFIT_POINTS)
    present = gaussians_of(mixture)
    trust = _best_trust(present, points, weights, effective, rng)
    if trust is None:
        return mixture
    gaussians = _improved(present, points, weights, effective, trust)
    deviations = gaussians.means - gaussians.weights @ gaussians.means
    within = np.einsum("k,kij,klj->il", gaussians.weights, gaussians.factors, gaussians.factors)
    between = (gaussians.weights[:, None] * deviations).T @ deviations
    center, root = gaussians.weights @ gaussians.means, root_of(within + between)
    whitening = inverses_of(root)
    whitened = Mixture(
        gaussians.weights,
        (gaussians.means - center) @ whitening.T,
        whitening @ gaussians.factors,
        gaussians.degrees,
    )
    return with_student(whitened, center, root)


def gaussians_of(mixture: Mixture) -> Mixture:
    """The Gaussians of a mixture alone."""
    chosen = np.isinf(mixture.degrees)
    weights = mixture.weights[chosen]
    return Mixture(
        weights / weights.sum(),
        mixture.means[chosen],
        mixture.factors[chosen],
        mixture.degrees[chosen],
    )


def _improved(
    present: Mixture, points: np.ndarray, weights: np.ndarray, effective: float, trust: float
) -> Mixture:
    """EM from the present components, whose covariances count as `trust` points per dimension.

    With infinite trust only means and the scales along the present axes change.
    """
    if math.isinf(trust):
        return _rescaled(present, points, weights * effective / weights.sum())
    covariances = present.factors @ present.factors.transpose(0, 2, 1)
    return _em(points, weights, present, effective, prior=covariances, trust=trust, steps=8)


def _rescaled(present: Mixture, points: np.ndarray, weights: np.ndarray) -> Mixture:
    responsibilities = log_density_and_shares(present, points)[1]
    responsibilities *= weights[:, None]
    mass = responsibilities.sum(axis=0)
    means, factors = np.empty_like(present.means), np.empty_like(present.factors)
    for k in range(present.size):
        along = times(inverses_of(present.factors[k]), (points - present.means[k]).T)
        own = responsibilities[:, k]
        shift = (along * own).sum(axis=1) / (mass[k] + SCALE_TRUST)
        along -= shift[:, None]
        along *= along
        squares = (along * own).sum(axis=1)
        scales = np.sqrt((squares + SCALE_TRUST) / (mass[k] + SCALE_TRUST))
        means[k] = present.means[k] + present.factors[k] @ shift
        factors[k] = present.factors[k] * scales
    return Mixture((mass + 1.0) / (mass.sum() + mass.size), means, factors, present.degrees)


def _best_trust(
    present: Mixture,
    points: np.ndarray,
    weights: np.ndarray,
    effective: float,
    rng: np.random.Generator,
) -> float | None:
    """How much the present covariances deserve, by the fit to held-out points; None: all."""
    held_out = rng.random(weights.size) < 1 / 3
    if not 0 < held_out.sum() < held_out.size:
        return 2.0
    train = (points[~held_out], weights[~held_out])
    share = weights[~held_out].sum() / weights.sum()
    test = (points[held_out], weights[held_out])
    scores = {
        trust: _mean_log_density(_improved(present, *train, share * effective, trust), *test)
        for trust in TRUSTS
    }
    best = max(scores, key=lambda trust: scores[trust])
    return best if scores[best] > _mean_log_density(present, *test) else None


def _best_shrinkage(
    points: np.ndarray, weights: np.ndarray, held_out: np.ndarray, effective: float
) -> float:
    """How far the covariance is to be shrunk to its diagonal, by the fit to held-out points."""
    least = min(1.0, max(1e-3, points.shape[1] / effective))
    candidates = sorted({least, *(s for s in SHRINKAGES if s > least)})
    if len(candidates) == 1 or points.shape[1] == 1:
        return least
    train, test = (points[~held_out], weights[~held_out]), (points[held_out], weights[held_out])
    scores = []
    for shrinkage in candidates:
        center, root = _moments(*train, shrinkage)
        single = Mixture(np.ones(1), center[None], root[None], np.full(1, np.inf))
        scores.append(_mean_log_density(single, *test))
    return candidates[int(np.argmax(scores))]


def with_student(
    gaussians: Mixture, center: np.ndarray, root: np.ndarray, share: float = STUDENT_SHARE
) -> Mixture:
    """Gaussians moved back from whitened coordinates, together with a share of a Student-t."""
    means = center + gaussians.means @ root.T
    gaussians = Mixture(gaussians.weights, means, root @ gaussians.factors, gaussians.degrees)
    student = Mixture(
        np.array([share]),
        center[None],
        # Wider than the moments: it is there for what the Gaussians leave out.
        1.2 * root[None],
        np.array([STUDENT_DEGREES]),
    )
    return Mixture.join([gaussians.scaled(1 - share), student])


def _thinned(
    points: np.ndarray,
    log_weights: np.ndarray,
    groups: np.ndarray,
    rng: np.random.Generator,
    limit: int,
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Effective number of points, and at most `limit` of them with their weights."""
    weights = np.exp(log_weights - log_weights.max())
    effective = float(weights.sum() ** 2 / np.sum(weights**2))
    alive = weights > 0
    points, weights, groups = points[alive], weights[alive], groups[alive]
    if weights.size > limit:
        chance = weights / weights.sum()
        # Each point once, with its count as its weight: held-out points must not be among the rest.
        chosen, counts = np.unique(rng.choice(chance.size, limit, p=chance), return_counts=True)
        points, groups, weights = points[chosen], groups[chosen], counts.astype(float)
    return min(effective, limit), points, weights / weights.sum(), groups


def _moments(
    points: np.ndarray, weights: np.ndarray, shrinkage: float
) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean and Cholesky factor of the covariance, shrunk towards its diagonal."""
    weights = (weights / weights.sum())[:, None]
    center = (weights * points).sum(axis=0)
    deviations = points - center
    covariance = sums_of_products(weights * deviations, deviations)
    variances = np.maximum(np.diag(covariance), 1e-12 * (1 + center**2))
    covariance = (1 - shrinkage) * covariance + shrinkage * np.diag(variances)
    return center, root_of(covariance)


def _held_out(groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    names = np.unique(groups)
    chosen = rng.permutation(names)[: max(1, names.size // 4)]
    held_out = np.isin(groups, chosen)
    return held_out if 0 < held_out.sum() < held_out.size else np.arange(groups.size) % 4 == 0


def is_supported(count: int, effective: float, dimension: int) -> bool:
    """Whether so many effective points are enough for so many Gaussians."""
    parameters = count * (1 + dimension + dimension * (dimension + 1) / 2)
    return count == 1 or effective > POINTS_PER_PARAMETER * parameters


def _transformed(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The matrix times every point."""
    return np.ascontiguousarray(times(matrix, points.T).T)


def _mean_log_density(mixture: Mixture, points: np.ndarray, weights: np.ndarray) -> float:
    if not weights.any():
        return -math.inf
    return float(np.average(log_density(mixture, points), weights=weights))


def _starting_mixture(
    points: np.ndarray, weights: np.ndarray, count: int, rng: np.random.Generator
) -> Mixture:
    factor = math.sqrt(prior_variance(count, points.shape[1])) * np.eye(points.shape[1])
    return Mixture(
        np.full(count, 1 / count),
        spread_starts(points, weights, count, rng),
        np.broadcast_to(factor, (count, *factor.shape)).copy(),
        np.full(count, np.inf),
    )


def prior_variance(count: int, dimension: int) -> float:
    """What a component's variance is pulled to, in whitened coordinates."""
    return 1.0 if count == 1 else 0.3 / count ** (1.0 / dimension)


def _em(
    points: np.ndarray,
    weights: np.ndarray,
    start: Mixture,
    effective: float,
    *,
    prior: np.ndarray | None = None,
    trust: float = 2.0,
    steps: int = 60,
) -> Mixture:
    """Weighted expectation maximisation.

    The weights count as `effective` points. Every covariance is averaged with a prior one (by
    default a fraction of the identity, for whitened coordinates) that counts as `trust` points
    per dimension, so that no component can collapse onto a few points.
    """
    dimension, count = points.shape[1], start.size
    prior_points = trust * dimension
    if prior is None:
        prior = prior_variance(count, dimension) * np.eye(dimension)
    data = _Data.of(points, weights * effective / weights.sum())
    mixture, prior = data.scaled(start), prior / (data.scale[:, None] * data.scale)
    last = -np.inf
    for _ in range(1 if count == 1 else steps):
        score, mass, sums, products = data.expectations(mixture)
        moves = sums / (mass + 1e-3)[:, None]
        means, scatter = mixture.means + moves, _about(moves, mass, sums, products)
        covariances = (scatter + prior_points * prior) / (mass + prior_points)[:, None, None]
        factors = root_of(covariances)
        mixture = Mixture((mass + 1.0) / (mass.sum() + count), means, factors, mixture.degrees)
        if abs(score - last) < 1e-3:
            break
        last = score
    return data.unscaled(mixture)


class _Data(NamedTuple):
    """Weighted points of a fit in coordinates of unit scale, where sums of squares do not cancel.

    Up to `MAX_PAIRED_DIMENSION` there is a row for 1, each coordinate and each product of two, of
    which log densities and moments are linear functions; the time to take logarithms and
    exponentials is then most of it.
    """

    points: np.ndarray
    weights: np.ndarray
    center: np.ndarray
    scale: np.ndarray
    monomials: np.ndarray | None

    @classmethod
    def of(cls, points: np.ndarray, weights: np.ndarray) -> _Data:
        chance = weights[:, None] / weights.sum()
        center = (chance * points).sum(axis=0)
        deviations = points - center
        scale = np.sqrt((chance * deviations**2).sum(axis=0))
        scale = np.where(scale > 0, scale, 1.0)
        deviations /= scale
        dimension = points.shape[1]
        monomials = None
        if dimension <= MAX_PAIRED_DIMENSION:
            columns = np.ascontiguousarray(deviations.T)
            one, other = _pairs(dimension)
            ones = np.ones((1, len(points)))
            monomials = np.concatenate([ones, columns, columns[one] * columns[other]])
        return cls(deviations, weights, center, scale, monomials)

    def scaled(self, mixture: Mixture) -> Mixture:
        """A mixture in the coordinates of the data."""
        means = (mixture.means - self.center) / self.scale
        return mixture._replace(means=means, factors=mixture.factors / self.scale[:, None])

    def unscaled(self, mixture: Mixture) -> Mixture:
        """A mixture in the coordinates of the data back in those of the points."""
        means = self.center + mixture.means * self.scale
        return mixture._replace(means=means, factors=mixture.factors * self.scale[:, None])

    def expectations(self, mixture: Mixture) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
        """Mean log density of Gaussians, and the moments of the points that belong to each.

        The moments are the sums of 1, of the points' deviations from the mean of the Gaussian, and
        of the products of two of these.
        """
        scales = np.diagonal(mixture.factors, axis1=1, axis2=2)
        if self.monomials is None or scales.min() < MIN_PAIRED_SCALE:
            log_densities, shares = log_density_and_shares(mixture, self.points)
            shares *= self.weights[:, None]
            moments = self._moments(shares, mixture.means)
        else:
            logs = times(_coefficients(mixture), self.monomials)
            log_densities, shares = _normalised(logs)
            shares *= self.weights
            sums = sums_of_products(shares.T, self.monomials.T)
            moments = _paired_moments(sums, mixture.means)
        score = float((log_densities * self.weights).sum() / self.weights.sum())
        return score, *moments

    def _moments(
        self, shares: np.ndarray, means: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        sums, products = [], []
        for own, mean in zip(shares.T, means, strict=True):
            deviations = self.points - mean
            weighted = own[:, None] * deviations
            sums.append(weighted.sum(axis=0))
            products.append(sums_of_products(weighted, deviations))
        return shares.sum(axis=0), np.stack(sums), np.stack(products)


def _paired_moments(
    sums: np.ndarray, means: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Moments about the means from the sums of all monomials."""
    size, dimension = means.shape
    one, other = _pairs(dimension)
    products = np.empty((size, dimension, dimension))
    products[:, one, other] = products[:, other, one] = sums[:, 1 + dimension :]
    mass, first = sums[:, 0], sums[:, 1 : 1 + dimension]
    return mass, first - mass[:, None] * means, _about(means, mass, first, products)


def _about(
    places: np.ndarray, mass: np.ndarray, sums: np.ndarray, products: np.ndarray
) -> np.ndarray:
    """Sums of products of deviations from some places, from moments about the origin."""
    crossed = sums[:, :, None] * places[:, None, :]
    squares = mass[:, None, None] * places[:, :, None] * places[:, None, :]
    return products - crossed - crossed.transpose(0, 2, 1) + squares


@functools.cache
def _pairs(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """The first and the second coordinate of each product of two."""
    first, second = np.triu_indices(dimension)
    return first, second


def _coefficients(mixture: Mixture) -> np.ndarray:
    """Of the monomials of `_Data`, in the log of weight times density of each Gaussian."""
    dimension, inverses = mixture.dimension, inverses_of(mixture.factors)
    precisions = inverses.transpose(0, 2, 1) @ inverses
    slopes = np.einsum("kij,kj->ki", precisions, mixture.means)
    constants = np.log(mixture.weights) - 0.5 * np.einsum("ki,ki->k", slopes, mixture.means)
    constants += np.log(np.diagonal(inverses, axis1=1, axis2=2)).sum(axis=1)
    constants -= 0.5 * dimension * math.log(2 * math.pi)
    one, other = _pairs(dimension)
    squares = np.where(one == other, -0.5, -1.0) * precisions[:, one, other]
    return np.concatenate([constants[:, None], slopes, squares], axis=1)


def spread_starts(
    points: np.ndarray, weights: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Starting means far from each other: each drawn by its squared distance to the others."""
    chance = weights / weights.sum()
    starts = [points[rng.choice(points.shape[0], p=chance)]]
    distance = np.full(points.shape[0], np.inf)
    for _ in range(count - 1):
        deviations = points - starts[-1]
        distance = np.minimum(distance, np.einsum("nd,nd->n", deviations, deviations))
        chance = weights * distance
        chance = chance if chance.any() else weights  # fewer different points than starts
        starts.append(points[rng.choice(points.shape[0], p=chance / chance.sum())])
    return np.stack(starts)
