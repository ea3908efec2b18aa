"""Oracle against oracle: every truth again, from the model's own density.

``log_density`` is evaluated on Gauss-Legendre panels whose edges follow the kinks and jumps of f,
so each integral converges to rounding error; discrete sites are enumerated. Two problems have too
many dimensions for a grid: there the Gaussian part is integrated by Laplace's formula, which is
exact for it, with derivatives taken of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy import stats

from problems import IMPROPER, PROBLEMS, TAGS, Problem

Array = NDArray[np.float64]
Grid = tuple[dict[str, Any], Array]


def gamma_and_f(problem: Problem, sites: dict[str, Any]) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """The model's log gamma and outputs at one point."""
    outputs: list[Any] = []
    log_gamma, _ = log_density(
        lambda *args: outputs.append(problem.model(*args)), problem.args, {}, sites
    )
    f = outputs[-1]
    f = f if isinstance(f, tuple) else (f,)
    return log_gamma, tuple(jnp.asarray(v, float) for v in f)


def as_tuple(value: float | tuple[float, ...]) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


def panels(edges: ArrayLike, order: int = 20) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights between consecutive edges of the last axis."""
    edges = np.asarray(edges, dtype=np.float64)
    nodes, weights = np.polynomial.legendre.leggauss(order)
    middle = (edges[..., 1:] + edges[..., :-1])[..., None] / 2
    half = np.diff(edges)[..., None] / 2
    shape = (*edges.shape[:-1], -1)
    return (middle + half * nodes).reshape(shape), (half * weights).reshape(shape)


def product(*axes: tuple[NDArray[Any], Array]) -> tuple[list[NDArray[Any]], Array]:
    """The product rule, flattened."""
    mesh = np.meshgrid(*[x for x, _ in axes], indexing="ij")
    weights = np.ones(())
    for _, w in axes:
        weights = np.multiply.outer(weights, w)
    return [x.ravel() for x in mesh], weights.ravel()


def nested(
    outer: tuple[Array, Array], inner_edges: Callable[[Array], list[Any]], low: Any, high: Any
) -> tuple[Array, Array, Array]:
    """A rule whose inner panels follow the outer node: edges are sorted and cut to low, high."""
    x, wx = outer
    edges = np.stack([np.broadcast_to(e, x.shape) for e in inner_edges(x)], axis=-1)
    low, high = (np.broadcast_to(e, x.shape)[:, None] for e in (low, high))
    edges = np.concatenate([low, np.sort(np.clip(edges, low, high)), high], axis=-1)
    y, wy = panels(edges)
    w = (wx[:, None] * wy).ravel()
    keep = w > 0  # an empty panel puts its nodes on the boundary of the support
    return np.repeat(x, y.shape[1])[keep], y.ravel()[keep], w[keep]


# Grids -------------------------------------------------------------------------------------------


def grid_line() -> Grid:
    x, w = panels([-10, -7, -5, -3, -2, -1, 0, 1, 2, 3, 4.5, 6, 8, 10])
    return {"x": x}, w


def grid_horse_kicks() -> Grid:
    x, w = panels(np.linspace(0, 2, 21))
    return {"lam": x}, w


def grid_drawn_kicks() -> Grid:
    (new, lam), w = product((np.arange(40), np.ones(40)), panels(np.linspace(0, 2, 21)))
    return {"lam": lam, "new": new}, w


def grid_branching() -> Grid:
    (m, a), w = product((np.arange(2), np.ones(2)), panels([-9, -6, -3, -1, 0, 1, 3, 6, 9]))
    return {"m": m, "a": a}, w


def grid_bounded() -> Grid:
    x, w = panels([0, 0.2, 0.45, 0.7, 1])
    return {"p": x}, w


def grid_half_line() -> Grid:
    x, w = panels([0, 0.5, 1, math.exp(0.5), 2.5, 4, 6, 9, 13, 20])
    return {"lam": x}, w


def grid_simplex() -> Grid:
    golden = (math.sqrt(5) - 1) / 2
    r, t, w = nested(
        panels([0, 0.1, 0.3, 0.5, golden, 0.8, 1]), lambda r: [r**2 / (1 - r)], low=0.0, high=1.0
    )
    p = np.stack([(1 - r) * t, (1 - r) * (1 - t), r], axis=-1)
    return {"p": p}, w * (1 - r)


def grid_dependent() -> Grid:
    outer = panels([*np.arange(0, 2, 0.25), 2, 2.5, 3, 4, 6, 9, 13, 20, 30, 45])
    a, b, w = nested(
        outer,
        lambda a: [a / 3, *((1.5 + k) / a for k in (-1, 0, 1, 2, 4, 6, 9))],
        low=0.0,
        high=outer[0],
    )
    return {"a": a, "b": b}, w


def grid_hierarchical() -> Grid:
    # Equal steps are as good as Gauss for a bell that ends inside the range.
    mu = np.arange(-5.5, 7.5, 0.5)
    theta = np.arange(-5.0, 6.5, 0.6)
    (mu, t0, t1, t2), w = product(
        (mu, np.full(mu.shape, 0.5)),
        (theta, np.full(theta.shape, 0.6)),
        (theta, np.full(theta.shape, 0.6)),
        panels([-5, -2, 0.5, 2, 4, 8], order=10),
    )
    return {"mu": mu, "theta": np.stack([t0, t1, t2], axis=-1)}, w


def grid_posterior_predictive_2d() -> Grid:
    (x1, x2), w = product(*[panels(np.linspace(-9, 9, 10), order=12)] * 2)
    return {"x": np.stack([x1, x2], axis=-1)}, w


def grid_banana() -> Grid:
    steep = [-6.5, -6, -5.6, -5.3, -5.1, -5, -4.9, -4.7, -4.4, -4]
    (x1, x2), w = product(
        panels([*np.linspace(-26, 2, 15), *np.linspace(4, 26, 12)], order=12),
        panels([-44, -34, -26, -20, -16, -13, -10, -8, *steep, -2, 0, 2, 4, 6, 8, 11, 15, 20, 30]),
    )
    return {"x1": x1, "x2": x2}, w


def grid_rosenbrock() -> Grid:
    corner = np.array([2.1, 2.15, 2.18, 2.2, 2.22, math.sqrt(5), 2.25, 2.27, 2.3, 2.35, 2.45])
    middle = [-2, -1.5, -1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1, 1.5, 2]
    valley = [-0.8, -0.5, -0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3, 0.5, 0.8]
    x, y, w = nested(
        panels([*-corner[::-1], *middle, *corner]),
        lambda x: [0.0, -0.2, *(x**2 + k for k in valley)],
        low=-5.0,
        high=5.0,
    )
    return {"x": x, "y": y}, w


def grid_rotated() -> Grid:
    d, s, w = nested(
        panels([-10, -7, -5, -3.5, -2, -1, 0, 1, 2, 3.5, 5, 7, 10]),
        lambda d: [-6, -4, -2, 0, 2, 4, 6, 3 + d**2 / 5, -3 - d**2 / 5, 2.5 + d**2 / 5],
        low=-10.0,
        high=10.0,
    )
    return {"x": np.stack([s + d, s - d], axis=-1) / math.sqrt(2)}, w


def grid_sir() -> Grid:
    (beta, i0), w = product(
        panels([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1, 1.2, 1.4, 1.7, 2, 2.5, 3, 4, 6, 9, 14]),
        panels([0, 0.01, 0.04, 0.1, 0.3, 1, 2, 4, 8, 15, 30, 60, 100]),
    )
    return {"beta": beta, "i0": i0}, w


GRIDS: dict[str, Callable[[], Grid]] = {
    "figure1": grid_line,
    "figure1_y3": grid_line,
    "figure1_zero": grid_line,
    "cancellation": grid_line,
    "three_outputs": grid_line,
    "normal_tail": grid_line,
    "horse_kicks": grid_horse_kicks,
    "drawn_kicks": grid_drawn_kicks,
    "branching": grid_branching,
    "branching_choice": grid_branching,
    "bounded": grid_bounded,
    "half_line": grid_half_line,
    "simplex": grid_simplex,
    "dependent": grid_dependent,
    "hierarchical": grid_hierarchical,
    "posterior_predictive_2d": grid_posterior_predictive_2d,
    "banana": grid_banana,
    "rosenbrock": grid_rosenbrock,
    "four_branch": grid_rotated,
    "rp22": grid_rotated,
    "sir": grid_sir,
}
LAPLACE = {"posterior_predictive", "eight_schools"}
ELSEWHERE = {"radon", "radon_step", "radon_85"}  # test_radon.py

# The truth of sir is the exact solution's: the model's step moves Z1 by 1.2e-6, and JAX's betaln,
# in the negative binomial, is a constant 7.8e-7 off for these data. Elsewhere 1e-8.
TOLERANCE = {"sir": 5e-6}


@jax.jit(static_argnums=0)
def on_grid(name: str, sites: dict[str, jax.Array]) -> Any:
    return jax.vmap(lambda point: gamma_and_f(PROBLEMS[name], point))(sites)


def assert_parts(problem: Problem, z2: float, plus: list[float], minus: list[float]) -> None:
    """The three integrals agree with the table, and so does the ratio."""
    rtol = TOLERANCE.get(problem.name, 1e-8)
    np.testing.assert_allclose(z2, math.exp(problem.log_z2), rtol=rtol)
    np.testing.assert_allclose(plus, np.exp(as_tuple(problem.log_z1_plus)), rtol=rtol)
    np.testing.assert_allclose(minus, np.exp(as_tuple(problem.log_z1_minus)), rtol=rtol)
    value, scale = np.subtract(plus, minus) / z2, np.add(plus, minus) / z2
    assert (np.abs(value - as_tuple(problem.value)) <= rtol * scale).all()


@pytest.mark.parametrize("name", sorted(GRIDS))
def test_quadrature_of_the_model(name: str) -> None:
    sites, weights = GRIDS[name]()
    log_gamma, outputs = on_grid(name, sites)
    gamma = weights * np.exp(np.asarray(log_gamma))
    plus = [float(gamma @ np.maximum(f, 0)) for f in outputs]
    minus = [float(gamma @ np.maximum(-f, 0)) for f in outputs]
    assert_parts(PROBLEMS[name], float(gamma.sum()), plus, minus)


def laplace(log_gamma: Callable[..., jax.Array], start: Array, *given: Array) -> Any:
    """Log integral, mean and covariance of Gaussian integrands, from one Newton step each.

    The leading axis runs over integrands. The linear algebra is NumPy's: only derivatives of the
    model are taken from JAX.
    """
    gradient = np.asarray(jax.jit(jax.vmap(jax.grad(log_gamma)))(start, *given))
    precision = -np.asarray(jax.jit(jax.vmap(jax.hessian(log_gamma)))(start, *given))
    covariance = np.linalg.inv(precision)
    mean = start + np.einsum("nij,nj->ni", covariance, gradient)
    log_det = np.linalg.slogdet(precision / (2 * math.pi))[1]
    return np.asarray(jax.jit(jax.vmap(log_gamma))(mean, *given)) - log_det / 2, mean, covariance


def test_posterior_predictive_by_laplace() -> None:
    """Two different starts must agree, or the integrand is not Gaussian."""
    problem = PROBLEMS["posterior_predictive"]

    def log_gamma2(x: jax.Array) -> jax.Array:
        return gamma_and_f(problem, {"x": x})[0]

    def log_gamma1(x: jax.Array) -> jax.Array:
        log_gamma, (f,) = gamma_and_f(problem, {"x": x})
        return log_gamma + jnp.log(f)

    starts = np.stack([np.linspace(-1, 1, 10), np.linspace(2, -3, 10)])
    for z2, z1 in zip(
        np.exp(laplace(log_gamma2, starts)[0]), np.exp(laplace(log_gamma1, starts)[0]), strict=True
    ):
        assert_parts(problem, float(z2), [float(z1)], [0.0])


def normal_parts(mean: Array, variance: Array) -> tuple[Array, Array]:
    """E[max(x, 0)] and E[max(-x, 0)] for a normal x."""
    sd = np.sqrt(variance)
    density = sd * stats.norm.pdf(mean / sd)
    return (
        mean * stats.norm.cdf(mean / sd) + density,
        -mean * stats.norm.cdf(-mean / sd) + density,
    )


def test_eight_schools_by_laplace_and_quadrature() -> None:
    """Given mu and tau the effects are Gaussian and independent; mu and tau go on a grid."""
    problem = PROBLEMS["eight_schools"]
    near = np.array([1e-3, 0.01, 0.03, 0.1, 0.2, 0.4, 0.7, 1.2, 2, 3])
    mu_edges = [*-near[::-1], 0, *near, 4, 8, *15 - near[::-1], 15, *15 + near]
    (mu, u), w = product(
        panels([-40, -30, -22, -15, -10, -6, -4, *mu_edges, 22, 30, 40], order=8),
        panels([-22, -12, -8, *np.linspace(-6, 5, 12), 6, 8], order=8),
    )
    tau = np.exp(u)

    def log_gamma(theta: jax.Array, mu: jax.Array, tau: jax.Array) -> jax.Array:
        return gamma_and_f(problem, {"mu": mu, "tau": tau, "theta": theta})[0]

    start = np.repeat(mu[:, None], 8, axis=1)
    log_z, mean, covariance = laplace(log_gamma, start, mu, tau)
    gamma = w * tau * np.exp(log_z)
    assert (covariance[:, ~np.eye(8, dtype=bool)] == 0).all()
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    sd = np.sqrt(variance)
    theta1 = normal_parts(mean[:, 0], variance[:, 0])
    gap = normal_parts(mean[:, 0] - mean[:, 2], variance[:, 0] + variance[:, 2])
    events = (
        stats.norm.sf((28 - mean[:, 0]) / sd[:, 0]),
        stats.norm.cdf(-mean / sd).prod(axis=1),
        stats.norm.sf((15 - mean) / sd).prod(axis=1),
    )
    plus = [float(gamma @ f) for f in (theta1[0], gap[0], *events)]
    minus = [*(float(gamma @ f) for f in (theta1[1], gap[1])), 0.0, 0.0, 0.0]
    assert_parts(problem, float(gamma.sum()), plus, minus)


# The numbers as they are published, to the digits given there.
PUBLISHED: dict[str, tuple[tuple[float, ...], float]] = {
    "figure1": ((2.5,), -2.2655121),
    "figure1_y3": ((5.625,), -3.5155121),
    "cancellation": ((0.007500125,), -1.2655371),
    "three_outputs": ((1.5, 2.75, 5.625), -3.5155121),
    "posterior_predictive": ((1.0567684272e-10,), -15.717621),
    "posterior_predictive_2d": ((1.64702163e-7,), math.nan),
    "banana": ((-0.0923781143,), -1.71705611),
    "sir": ((3.015842088e7,), -71.98897706),
    "horse_kicks": ((3.42736868e-7,), -208.69687),
    "eight_schools": (
        (6.21188424, 2.28487985, 4.82911126e-3, 0.0149229766, 6.80498348e-5),
        -31.311347,
    ),
    "rosenbrock": ((1.29334931, 4.7729722e-3, -0.161153553, 1.32092881e-4), -5.8041324),
    "four_branch": ((2.22279507e-3,), 0.0),
    "rp22": ((4.20730551e-3,), 0.0),
    "normal_tail": ((3.39767312e-6,), 0.0),
    "branching": ((0.331285077,), -1.34770226),
    "branching_choice": ((0.462570154,), -1.34770226),
    "radon": ((3.68761219e-8,), -224.041613331),
    "radon_step": ((1.30160740e-7,), -224.041613331),
    "radon_85": ((3.47918605e-18,), -1074.426298004),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_numbers(name: str) -> None:
    problem, (value, log_z2) = PROBLEMS[name], PUBLISHED[name]
    # The published quadrature of eight_schools is good to 1.5e-7, no better.
    rtol = 2e-7 if name == "eight_schools" else 1e-8
    np.testing.assert_allclose(as_tuple(problem.value), value, rtol=rtol)
    if not math.isnan(log_z2):
        assert abs(problem.log_z2 - log_z2) <= (6e-6 if name == "horse_kicks" else 6e-7)


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_every_entry_is_consistent(name: str) -> None:
    problem = PROBLEMS[name]
    plus, minus = (
        np.exp(np.subtract(as_tuple(p), problem.log_z2))
        for p in (problem.log_z1_plus, problem.log_z1_minus)
    )
    value, scale = plus - minus, plus + minus
    assert problem.name == name
    assert (np.abs(value - as_tuple(problem.value)) <= 1e-8 * scale).all()
    assert problem.tags <= set(TAGS)
    assert ("continuous" in problem.tags) != ("discrete" in problem.tags)
    assert ("signed" in problem.tags) == bool(((plus > 0) & (minus > 0)).any())
    assert ("multiple" in problem.tags) == isinstance(problem.value, tuple)


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_models_are_finite_where_the_prior_is(name: str) -> None:
    """No NaN in log gamma, f, or the gradient of log gamma, over draws from the prior."""
    problem = PROBLEMS[name]

    def draw(key: jax.Array) -> dict[str, Any]:
        trace = handlers.trace(handlers.seed(problem.model, key)).get_trace(*problem.args)
        latent = {k: s for k, s in trace.items() if s["type"] == "sample" and not s["is_observed"]}
        return {k: s["value"] for k, s in latent.items()}

    def check(key: jax.Array) -> Any:
        sites = draw(key)
        if "discrete" in problem.tags:
            return gamma_and_f(problem, sites)
        return jax.value_and_grad(lambda s: gamma_and_f(problem, s), has_aux=True)(sites)

    everything = jax.jit(jax.vmap(check))(jax.random.split(jax.random.key(0), 1000))
    for leaf in jax.tree.leaves(everything):
        assert np.isfinite(leaf).all()


def test_every_problem_is_checked() -> None:
    assert set(GRIDS) | LAPLACE | ELSEWHERE == set(PROBLEMS)
    assert not set(GRIDS) & (LAPLACE | ELSEWHERE)
    used = frozenset().union(*(p.tags for p in PROBLEMS.values()))
    assert used == set(TAGS)


@pytest.mark.parametrize("name", sorted(IMPROPER))
def test_improper_means_grow_with_the_range(name: str) -> None:
    """The integral of |f| gamma up to 10^k grows without bound in k."""
    x, w = panels(np.logspace(0, 12, 25))
    problem = Problem(name, IMPROPER[name], (), 0.0, 0.0, 0.0, 0.0, "", frozenset())
    log_gamma, (f,) = jax.vmap(lambda v: gamma_and_f(problem, {"x": v}))(x)
    parts = np.cumsum(w * np.exp(log_gamma) * f)[[len(x) // 3, 2 * len(x) // 3, -1]]
    steps = np.diff(parts)
    assert steps[1] >= 0.99 * steps[0] > 1
