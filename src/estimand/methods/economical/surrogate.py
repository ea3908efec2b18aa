"""A Gaussian process in place of the simulator: it guides, and is never taken for the truth.

All outputs share one kernel, a Matérn 5/2 with a length for every coordinate plus a quadratic one,
so that one Cholesky factor serves them all. Each output is warped first, by the candidate under
which the process explains it best.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

# Points that the parameters of the kernel are fitted to, and that the process remembers.
MAX_FITTED, MAX_KEPT = 250, 500
# Distance at which the quadratic kernel bends, in standard deviations of the prior.
BEND = 2.0
# Bounds of the logarithms of lengths, of the two scales and of the noise, the kernel's parameters.
LOG_LENGTH, LOG_SCALE, LOG_NOISE = (-3.0, 5.0), (-6.0, 7.0), (-12.0, 0.0)
# Steps of the search for the kernel's parameters, at first and from where it was before.
FIRST_STEPS, FURTHER_STEPS = 40, 12
# Predictions are made for so many points at a time.
PIECE = 512


class Warp(NamedTuple):
    """A monotone function of an output: linear, logarithm, or asinh, which is linear within a
    scale and logarithmic beyond it."""

    kind: str
    centre: float
    scale: float

    def forward(self, y: np.ndarray) -> np.ndarray:
        if self.kind == "log":
            return np.log(y)
        z = (y - self.centre) / self.scale
        return np.arcsinh(z) if self.kind == "asinh" else z

    def log_slope(self, y: np.ndarray) -> np.ndarray:
        if self.kind == "log":
            return -np.log(y)
        z = (y - self.centre) / self.scale
        bent = -0.5 * np.log1p(z**2) if self.kind == "asinh" else np.zeros_like(z)
        return bent - math.log(self.scale)

    def inverse(self, z: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            if self.kind == "log":
                return np.exp(z)
            bent = np.sinh(z) if self.kind == "asinh" else z
        return self.centre + self.scale * bent


def candidates(y: np.ndarray) -> list[Warp]:
    """The warps that an output could have."""
    centre = float(np.median(y))
    deviation = np.abs(y - centre)
    scale = float(y.std()) or 1.0
    found = [Warp("linear", float(y.mean()), scale)]
    near = float(np.quantile(deviation, 0.3))
    if near > 1e-9 * scale:
        found.append(Warp("asinh", centre, near))
    if y.min() > 0:
        found.append(Warp("log", 0.0, 1.0))
    return found


class Kernel(NamedTuple):
    """Logarithms of the kernel's parameters."""

    log_lengths: np.ndarray
    log_scale: float
    log_quadratic: float
    log_noise: float

    @classmethod
    def start(cls, dimension: int) -> Kernel:
        return cls(np.full(dimension, math.log(2.0 * math.sqrt(dimension))), 0.0, 0.0, -6.0)

    @classmethod
    def of(cls, theta: np.ndarray) -> Kernel:
        return cls(theta[:-3], *map(float, theta[-3:]))

    @property
    def theta(self) -> np.ndarray:
        return np.concatenate([self.log_lengths, self[1:]])

    @property
    def bounds(self) -> list[tuple[float, float]]:
        return [LOG_LENGTH] * self.log_lengths.size + [LOG_SCALE, LOG_SCALE, LOG_NOISE]

    def covariance(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Between the rows of two arrays, without noise."""
        found = _distances(a * np.exp(-self.log_lengths), b * np.exp(-self.log_lengths))
        _matern(found)
        found *= math.exp(2 * self.log_scale)
        quadratic = _quadratic(a, b)
        quadratic *= quadratic
        quadratic *= math.exp(2 * self.log_quadratic)
        found += quadratic
        return found

    def variance(self, a: np.ndarray) -> np.ndarray:
        """At the rows of an array, without noise."""
        quadratic = (1 + np.sum(a**2, axis=1) / BEND**2) ** 2
        return math.exp(2 * self.log_scale) + math.exp(2 * self.log_quadratic) * quadratic


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    squares = a @ b.T
    squares *= -2
    squares += np.sum(a**2, axis=1)[:, None]
    squares += np.sum(b**2, axis=1)
    np.maximum(squares, 0.0, out=squares)
    return np.sqrt(squares, out=squares)


def _matern(r: np.ndarray) -> None:
    """Puts (1 + s + s²/3) exp(−s) with s = √5 r in the place of distances."""
    r *= math.sqrt(5)
    decay = np.exp(-r)
    r *= r / 3 + 1
    r += 1
    r *= decay


def _quadratic(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return 1 + a @ b.T / BEND**2


@dataclasses.dataclass(frozen=True, eq=False)
class Surrogate:
    """A fitted process: what it predicts of every output, and how far it may be off."""

    kernel: Kernel
    warps: tuple[Warp, ...]
    points: np.ndarray
    factor: np.ndarray
    solved: np.ndarray
    shift: np.ndarray
    spread: np.ndarray
    scale: np.ndarray
    """By how much the standard deviation of each warped output is that of the kernel."""
    doubt: float = 1.0
    """By how much errors at fresh points were larger than predicted."""

    def predict(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of every warped output, of shape (points, outputs)."""
        from scipy.linalg import solve_triangular

        means, deviations = [], []
        for start in range(0, len(points), PIECE):
            some = points[start : start + PIECE]
            cross = self.kernel.covariance(self.points, some)
            means.append(self.shift + self.spread * (cross.T @ self.solved))
            half = solve_triangular(self.factor, cross, lower=True, check_finite=False)
            left = self.kernel.variance(some) - np.einsum("ij,ij->j", half, half)
            left = np.maximum(left, math.exp(2 * self.kernel.log_noise))
            deviations.append(np.sqrt(left)[:, None] * (self.doubt * self.scale))
        return np.concatenate(means), np.concatenate(deviations)

    def mean(self, points: np.ndarray) -> np.ndarray:
        """What it predicts of every warped output."""
        pieces = [
            self.kernel.covariance(points[start : start + PIECE], self.points) @ self.solved
            for start in range(0, len(points), PIECE)
        ]
        return self.shift + self.spread * np.concatenate(pieces)

    def forward(self, outputs: np.ndarray) -> np.ndarray:
        columns = zip(self.warps, outputs.T, strict=True)
        return np.stack([warp.forward(column) for warp, column in columns], axis=1)

    def inverse(self, warped: np.ndarray) -> np.ndarray:
        columns = zip(self.warps, warped.T, strict=True)
        return np.stack([warp.inverse(column) for warp, column in columns], axis=1)


def fit(
    points: np.ndarray,
    outputs: np.ndarray,
    importance: np.ndarray,
    rng: np.random.Generator,
    before: Surrogate | None = None,
) -> Surrogate:
    """The process of some evaluations, all of them finite.

    Args:
        points: where the simulator was evaluated.
        outputs: what it gave, one column for each number.
        importance: what is remembered first if there are more points than can be.
        rng: for the choice of points.
        before: an earlier fit, from whose parameters the search starts.
    """
    kept = _chosen(importance, MAX_KEPT, rng)
    points, outputs, importance = points[kept], outputs[kept], importance[kept]
    kernel = Kernel.start(points.shape[1]) if before is None else before.kernel
    some = _chosen(importance, MAX_FITTED, rng)
    warps = tuple(_best_warp(kernel, points, column, some) for column in outputs.T)
    warped = np.stack(
        [warp.forward(column) for warp, column in zip(warps, outputs.T, strict=True)], axis=1
    )
    shift = warped[some].mean(axis=0)
    spread = warped[some].std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    num_steps = FIRST_STEPS if before is None else FURTHER_STEPS
    kernel = _fitted(kernel, points[some], (warped[some] - shift) / spread, num_steps)
    factor = _factor(kernel, points)
    relative = (warped - shift) / spread
    solved = _solve(factor, relative)
    # The scale of each output by itself, where the kernel's is a compromise.
    own = np.sqrt(np.maximum(np.mean(relative * solved, axis=0), 1e-12))
    return Surrogate(
        kernel=kernel,
        warps=warps,
        points=points,
        factor=factor,
        solved=solved,
        shift=shift,
        spread=spread,
        scale=own * spread,
    )


def _chosen(importance: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Two thirds of so many points by importance, the rest at random."""
    if importance.size <= most:
        return np.arange(importance.size)
    order = np.argsort(-importance, kind="stable")
    first, others = order[: 2 * most // 3], order[2 * most // 3 :]
    return np.sort(np.concatenate([first, rng.permutation(others)[: most - first.size]]))


def _factor(kernel: Kernel, points: np.ndarray) -> np.ndarray:
    covariance = kernel.covariance(points, points)
    noise = math.exp(2 * kernel.log_noise)
    diagonal = np.arange(len(points))
    while True:
        jittered = covariance.copy()
        jittered[diagonal, diagonal] += noise
        try:
            return np.linalg.cholesky(jittered)
        except np.linalg.LinAlgError:
            noise *= 10


def _solve(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    from scipy.linalg import cho_solve

    return cho_solve((factor, True), right, check_finite=False)


def _best_warp(kernel: Kernel, points: np.ndarray, y: np.ndarray, some: np.ndarray) -> Warp:
    """The warp under which a process with this kernel, of any scale, explains an output best.

    All of it must be in the warp's range; some of it decides.
    """
    if not np.ptp(y[some]) > 0:
        return Warp("linear", float(y[0]), 1.0)
    factor = _factor(kernel, points[some])
    scores = {}
    for warp in candidates(y):
        z = warp.forward(y[some])
        z = z - z.mean()
        size = float(z @ _solve(factor, z[:, None])[:, 0]) / z.size
        slopes = float(warp.log_slope(y[some]).sum())
        scores[warp] = -0.5 * z.size * math.log(max(size, 1e-300)) + slopes
    return max(scores, key=lambda warp: scores[warp])


def _fitted(kernel: Kernel, points: np.ndarray, outputs: np.ndarray, num_steps: int) -> Kernel:
    """The kernel of the largest likelihood, with weak priors that keep lengths within reason."""
    from scipy.optimize import minimize

    middle = math.log(2.0 * math.sqrt(points.shape[1]))

    def cost(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = _negative_log_likelihood(theta, points, outputs)
        away = theta[:-3] - middle
        value += 0.5 * float(away @ away)
        slope[:-3] += away
        return value, slope

    start = np.clip(kernel.theta, *np.transpose(kernel.bounds))
    found = minimize(
        cost,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=kernel.bounds,
        options={"maxiter": num_steps},
    )
    return Kernel.of(found.x if np.isfinite(found.fun) else start)


def _negative_log_likelihood(
    theta: np.ndarray, points: np.ndarray, outputs: np.ndarray
) -> tuple[float, np.ndarray]:
    """Of all outputs together, and its slope; the sum over outputs counts as one of them."""
    kernel, count = Kernel.of(theta), len(points)
    scaled = points * np.exp(-kernel.log_lengths)
    s = math.sqrt(5) * _distances(scaled, scaled)
    decay = math.exp(2 * kernel.log_scale) * np.exp(-s)
    matern = decay * (1 + s + s**2 / 3)
    quadratic = math.exp(2 * kernel.log_quadratic) * _quadratic(points, points) ** 2
    noise = math.exp(2 * kernel.log_noise)
    covariance = matern + quadratic
    covariance[np.arange(count), np.arange(count)] += noise
    try:
        factor = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return 1e25, np.zeros_like(theta)
    solved = _solve(factor, outputs)
    inverse = _solve(factor, np.eye(count))
    value = 0.5 * float(np.sum(outputs * solved)) / outputs.shape[1]
    value += float(np.log(np.diagonal(factor)).sum())
    outer = inverse - solved @ solved.T / outputs.shape[1]
    # d matern / d log length = 5/3 · decay · (1 + s) · (difference / length)².
    bent = outer * (5 / 3 * decay * (1 + s))
    squares = scaled**2
    rows = bent.sum(axis=1)
    lengths = 0.5 * (
        2 * rows @ squares - 2 * np.einsum("ij,ik,jk->k", bent, scaled, scaled, optimize=True)
    )
    slope = np.concatenate(
        [
            lengths,
            [np.sum(outer * matern), np.sum(outer * quadratic), noise * np.trace(outer)],
        ]
    )
    return value, slope
