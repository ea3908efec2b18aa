"""Every kernel leaves every tempered density invariant, whatever the support."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats

import estimand as ep
from estimand.density import Density, PathPoint
from tests.kernels.mutants import without_jacobian
from tests.parameters import product
from tests.stats import assert_proportion, assert_same_law

BETAS = (0.1, 0.5, 1.0)
NUM_CHAINS = 4000


class Tempered(NamedTuple):
    """A program whose tempered γ1⁺ can be drawn from, and has known marginals."""

    model: Callable
    draw: Callable[[float, np.random.Generator, int], dict[str, np.ndarray]]
    marginals: Callable[[float], dict[str, tuple[Callable, Any]]]


def half_line() -> Any:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("days", 3):
        numpyro.sample("counts", dist.Poisson(rate), obs=jnp.array([3, 1, 4]))
    return rate**2


def _half_line_law(beta: float) -> Any:
    return scipy.stats.gamma(2 + 8 * beta + 2 * beta, scale=1 / (1 + 3 * beta))


def bounded() -> Any:
    share = numpyro.sample("share", dist.Beta(2.0, 5.0))
    numpyro.sample("hits", dist.Binomial(10, share), obs=3)
    return share


def _bounded_law(beta: float) -> Any:
    return scipy.stats.beta(2 + 4 * beta, 5 + 7 * beta)


def simplex() -> Any:
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.array([2.0, 1.0, 3.0])))
    numpyro.sample("counts", dist.Multinomial(6, shares), obs=jnp.array([3, 1, 2]))
    return shares[0]


def _simplex_concentration(beta: float) -> np.ndarray:
    return np.array([2.0, 1.0, 3.0]) + beta * np.array([4.0, 1.0, 2.0])


def dependent() -> Any:
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
    b = numpyro.sample("b", dist.Uniform(0.0, a))
    return a * b


def _draw_dependent(beta: float, rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    a = rng.gamma(2 + 2 * beta, size=n)
    return {"a": a, "b": a * rng.beta(1 + beta, 1, size=n)}


TEMPERED = {
    "half_line": Tempered(
        half_line,
        lambda beta, rng, n: {"rate": _half_line_law(beta).rvs(n, random_state=rng)},
        lambda beta: {"rate": (lambda x: x["rate"], _half_line_law(beta).cdf)},
    ),
    "bounded": Tempered(
        bounded,
        lambda beta, rng, n: {"share": _bounded_law(beta).rvs(n, random_state=rng)},
        lambda beta: {"share": (lambda x: x["share"], _bounded_law(beta).cdf)},
    ),
    "simplex": Tempered(
        simplex,
        lambda beta, rng, n: {"shares": rng.dirichlet(_simplex_concentration(beta), size=n)},
        lambda beta: {
            f"shares[{i}]": (
                lambda x, i=i: x["shares"][:, i],
                scipy.stats.beta(
                    _simplex_concentration(beta)[i],
                    _simplex_concentration(beta).sum() - _simplex_concentration(beta)[i],
                ).cdf,
            )
            for i in (0, 2)
        },
    ),
    "dependent": Tempered(
        dependent,
        _draw_dependent,
        lambda beta: {
            "a": (lambda x: x["a"], scipy.stats.gamma(2 + 2 * beta).cdf),
            "b/a": (lambda x: x["b"] / x["a"], scipy.stats.beta(1 + beta, 1).cdf),
        },
    ),
}

KERNELS = {
    "RandomWalk": ep.RandomWalk(scale=0.8),
    "MALA": ep.MALA(step_size=0.7),
    "HMC": ep.HMC(step_size=0.3, num_leapfrog=5),
    "NUTS": ep.NUTS(step_size=0.4, max_tree_depth=5),
}


def run_kernel(
    kernel: Any, density: Density, positions: jax.Array, beta: float, key: jax.Array, steps: int = 6
) -> tuple[jax.Array, jax.Array]:
    """Positions after some steps at inverse temperature beta, and acceptance rates."""
    point = PathPoint(jnp.asarray(beta), jnp.asarray(beta))
    tuning = jax.tree.map(lambda x: x[0], kernel.tuning(density, 1))

    @jax.jit
    @jax.vmap
    def chain(position: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        state, _ = kernel.init(density, position, density.terms(position), point)

        def step(state: Any, key: jax.Array) -> tuple:
            state, info = kernel.step(key, density, state, point, tuning)
            return state, info.acceptance

        acceptance: jax.Array
        state, acceptance = jax.lax.scan(step, state, jax.random.split(key, steps))
        return state.position, acceptance.mean()

    return chain(positions, jax.random.split(key, positions.shape[0]))


@pytest.mark.parametrize(
    ("name", "kernel_name"),
    product(
        TEMPERED,
        KERNELS,
        slow=lambda name, kernel: name != "half_line" or kernel == "NUTS",
    ),
)
def test_kernel_leaves_its_target_invariant(
    name: str, kernel_name: str, seed: int, rng_key: jax.Array
) -> None:
    problem, rng = TEMPERED[name], np.random.default_rng(seed)
    density = Density.of(ep.expectation(problem.model)()).part("gamma1_plus")
    for number, beta in enumerate(BETAS):
        draws = problem.draw(beta, rng, NUM_CHAINS)
        positions, _ = jax.vmap(density.terms_at)({k: jnp.asarray(v) for k, v in draws.items()})
        key = jax.random.fold_in(rng_key, number)
        moved, acceptance = run_kernel(KERNELS[kernel_name], density, positions, beta, key)
        assert 0.2 < float(acceptance.mean()) <= 1.0
        assert np.mean(np.asarray(moved) != np.asarray(positions)) > 0.5
        values = {k: np.asarray(v) for k, v in jax.vmap(density.constrain)(moved).items()}
        for get, cdf in problem.marginals(beta).values():
            assert_same_law(get(values), cdf)


def test_assertion_detects_a_kernel_without_jacobian(seed: int, rng_key: jax.Array) -> None:
    density = Density.of(ep.expectation(bounded)()).part("gamma1_plus")
    mutant = without_jacobian(density)
    draws = jnp.asarray(_bounded_law(1.0).rvs(NUM_CHAINS, random_state=seed))
    positions, _ = jax.vmap(density.terms_at)({"share": draws})
    moved, _ = run_kernel(ep.RandomWalk(scale=0.8), mutant, positions, 1.0, rng_key)
    values = np.asarray(jax.vmap(density.constrain)(moved)["share"])
    with pytest.raises(AssertionError):
        assert_same_law(values, _bounded_law(1.0).cdf)


def mixed() -> Any:
    with numpyro.plate("switches", 2):
        m = numpyro.sample("m", dist.Bernoulli(jnp.array([0.3, 0.6])))
    a = numpyro.sample("a", dist.Normal(m.sum().astype(float), 1.0))
    numpyro.sample("y", dist.Normal(a, 1.0), obs=1.4)
    return a**2


@pytest.mark.parametrize("beta", BETAS)
def test_random_walk_leaves_discrete_sites_invariant(
    beta: float, seed: int, rng_key: jax.Array
) -> None:
    """γ2 tempered: the switches' weights, and a given them, are known in closed form."""
    rng = np.random.default_rng(seed)
    density = Density.of(ep.expectation(mixed, enumerate=False)())
    pairs = np.array([(0, 0), (0, 1), (1, 0), (1, 1)])
    prior = np.array([0.7 * 0.4, 0.7 * 0.6, 0.3 * 0.4, 0.3 * 0.6])
    weights = prior * np.exp(-beta * (1.4 - pairs.sum(axis=1)) ** 2 / (2 * (1 + beta)))
    weights /= weights.sum()
    chosen = rng.choice(4, p=weights, size=NUM_CHAINS)
    means = (pairs[chosen].sum(axis=1) + beta * 1.4) / (1 + beta)
    a = rng.normal(means, (1 + beta) ** -0.5)
    sites = {"m": jnp.asarray(pairs[chosen]), "a": jnp.asarray(a)}
    positions, _ = jax.vmap(density.terms_at)(sites)
    moved, _ = run_kernel(ep.RandomWalk(scale=1.0), density, positions, beta, rng_key)
    values = {k: np.asarray(v) for k, v in jax.vmap(density.constrain)(moved).items()}
    assert np.mean(values["m"] != pairs[chosen]) > 0.2
    for pair, weight in zip(pairs, weights, strict=True):
        assert_proportion(int((values["m"] == pair).all(axis=1).sum()), NUM_CHAINS, weight)
    standardised = (values["a"] - (values["m"].sum(axis=1) + beta * 1.4) / (1 + beta)) * (
        1 + beta
    ) ** 0.5
    assert_same_law(standardised, scipy.stats.norm.cdf)


@pytest.mark.slow
def test_metric_is_a_change_of_coordinates(rng_key: jax.Array) -> None:
    """A kernel with a metric moves as the plain kernel does in stretched coordinates."""
    factor = np.array([[1.5, 0.0], [0.4, 0.7]])

    @ep.expectation
    def plain() -> Any:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        return w[0]

    @ep.expectation
    def stretched() -> Any:
        x = numpyro.sample("x", dist.MultivariateNormal(jnp.zeros(2), scale_tril=factor))
        return x[0]

    covariance = factor @ factor.T
    start = jax.random.normal(rng_key, (50, 2))
    for bare, with_metric in [
        (ep.RandomWalk(scale=0.7), ep.RandomWalk(scale=0.7, covariance=covariance)),
        (ep.MALA(step_size=0.7), ep.MALA(step_size=0.7, metric=covariance)),
        (ep.HMC(step_size=0.3), ep.HMC(step_size=0.3, metric=covariance)),
        (ep.NUTS(step_size=0.3), ep.NUTS(step_size=0.3, metric=covariance)),
    ]:
        first, _ = run_kernel(bare, Density.of(plain()), start, 1.0, rng_key)
        second, _ = run_kernel(with_metric, Density.of(stretched()), start @ factor.T, 1.0, rng_key)
        np.testing.assert_allclose(second, first @ factor.T, rtol=1e-9, atol=1e-9)


def two_sites() -> Any:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    return a + b.sum()


def test_tuning_arrays() -> None:
    density = Density.of(ep.expectation(two_sites)())
    one = ep.RandomWalk(scale=0.3).tuning(density, 4)
    np.testing.assert_array_equal(one.step_size, np.full(4, 0.3))
    np.testing.assert_array_equal(one.factor, np.ones((4, 3)))
    by_site = ep.RandomWalk(scale={"a": 0.1, "b": [0.2, 0.3]}).tuning(density, 2)
    np.testing.assert_array_equal(by_site.factor, [[0.1, 0.2, 0.3]] * 2)
    np.testing.assert_array_equal(by_site.step_size, [1.0, 1.0])
    granular = ep.HMC(step_size=[0.1, 0.2], metric=[[1.0, 4.0, 9.0], [16.0, 25.0, 36.0]])
    np.testing.assert_array_equal(granular.tuning(density, 2).step_size, [0.1, 0.2])
    np.testing.assert_array_equal(granular.tuning(density, 2).factor, [[1, 2, 3], [4, 5, 6]])
    dense = ep.NUTS(metric=np.diag([4.0, 1.0, 9.0])).tuning(density, 2)
    np.testing.assert_array_equal(dense.factor, [np.diag([2.0, 1.0, 3.0])] * 2)
    per_temperature = np.stack([np.eye(3), 4 * np.eye(3)])
    dense = ep.MALA(metric=per_temperature).tuning(density, 2)
    np.testing.assert_array_equal(dense.factor, [np.eye(3), 2 * np.eye(3)])
    both = ep.RandomWalk(scale={"a": 2.0, "b": 3.0}, covariance=np.eye(3) + 0.5).tuning(density, 1)
    root = np.linalg.cholesky(np.eye(3) + 0.5)
    np.testing.assert_allclose(both.factor[0], np.diag([2.0, 3.0, 3.0]) @ root)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ep.RandomWalk(scale=0.0), ["RandomWalk", "scale", "positive"]),
        (lambda: ep.RandomWalk(scale={"a": -1.0}), ["scale['a']", "positive"]),
        (lambda: ep.MALA(step_size=float("nan")), ["MALA", "step_size", "positive"]),
        (lambda: ep.HMC(num_leapfrog=0), ["HMC", "num_leapfrog", "positive integer"]),
        (
            lambda: ep.NUTS(max_tree_depth=2.5),  # type: ignore[arg-type]
            ["NUTS", "max_tree_depth", "positive integer"],
        ),
        (lambda: ep.HMC(metric=np.ones((2, 2, 2, 2))), ["HMC", "metric", "shape"]),
    ],
)
def test_bad_settings_are_refused(make: Callable, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        make()
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (ep.RandomWalk(scale={"a": 1.0}), ["no entry for site 'b'"]),
        (ep.RandomWalk(scale={"a": 1.0, "c": 1.0}), ["'c'", "two_sites", "'a', 'b'"]),
        (ep.RandomWalk(scale={"a": 1.0, "b": [1.0, 2.0, 3.0]}), ["'b'", "(3,)", "(2,)"]),
        (ep.RandomWalk(scale=[1.0, 2.0]), ["2 entries for 5 temperatures"]),
        (ep.HMC(metric=np.ones((7, 7))), ["metric", "(7, 7)", "(3, 3)"]),
        (ep.HMC(metric=-np.eye(3)), ["metric", "positive definite"]),
    ],
)
def test_settings_that_do_not_fit_the_program_are_refused(kernel: Any, words: list[str]) -> None:
    density = Density.of(ep.expectation(two_sites)())
    with pytest.raises(ValueError, match=r".") as error:
        ep.AnIS(num_temperatures=5, kernel=kernel).check(density)
    for word in words:
        assert word in str(error.value)


def test_ambiguous_metric_is_refused() -> None:
    density = Density.of(ep.expectation(two_sites)())
    with pytest.raises(ValueError, match="one matrix or a diagonal"):
        ep.HMC(metric=np.eye(3)).tuning(density, 3)
    assert ep.HMC(metric=np.eye(3)[None]).tuning(density, 3).factor.shape == (3, 3, 3)
