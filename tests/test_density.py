"""A bound program as arrays, against NumPyro's densities, by hand and by exact distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions import transforms
from numpyro.infer import reparam
from numpyro.infer.util import log_density, potential_energy
from scipy import stats as laws

import estimand as ep
from estimand import density as density_module
from estimand.density import PathPoint, Terms, gradient_mode, to_plain_coordinates
from estimand.model.numpyro.transforms import Integers
from tests.stats import assert_proportion, assert_same_law, assert_unbiased

RTOL = 1e-11

Y = np.array([0.3, -1.2, 2.0, 0.7])
Y2 = np.array([[0.3, -1.2, 2.0], [0.7, 0.1, -0.4]])


def density_of(model: Callable, *args: Any) -> ep.Density:
    return ep.Density.of(ep.expectation(model, enumerate=False)(*args))


def positions_of(density: ep.Density, rng_key: jax.Array, count: int = 3) -> jax.Array:
    return jax.random.normal(rng_key, (count, density.dimension))


# Models, one for each kind of site and handler ---------------------------------------------------


def real(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.5, 2.0))
    numpyro.sample("y", dist.Normal(x, 1.0).expand([4]).to_event(1), obs=y)
    return x


def positive(y: Any) -> Any:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 3.0))
    scale = numpyro.sample("scale", dist.HalfCauchy(2.0))
    numpyro.sample("y", dist.Normal(rate, scale).expand([4]).to_event(1), obs=y)
    return rate


def interval(y: Any) -> Any:
    p = numpyro.sample("p", dist.Beta(2.0, 3.0))
    t = numpyro.sample("t", dist.TruncatedNormal(1.0, 2.0, low=-1.0, high=3.0))
    numpyro.sample("y", dist.Normal(t, 1.0 + p).expand([4]).to_event(1), obs=y)
    return p


def simplex(y: Any) -> Any:
    p = numpyro.sample("p", dist.Dirichlet(jnp.array([2.0, 1.0, 3.0, 0.5])))
    numpyro.sample("y", dist.Normal(p, 1.0).to_event(1), obs=y)
    return p[0]


def ordered(y: Any) -> Any:
    base = dist.Normal(0.0, 1.0).expand([4]).to_event(1)
    cuts = numpyro.sample("cuts", dist.TransformedDistribution(base, transforms.OrderedTransform()))
    numpyro.sample("y", dist.Normal(cuts, 1.0).to_event(1), obs=y)
    return cuts[0]


def correlation(y: Any) -> Any:
    factor = numpyro.sample("factor", dist.LKJCholesky(4, 1.5))
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(4), scale_tril=factor), obs=y)
    return factor[1, 0]


def positive_definite(y: Any) -> Any:
    scale = jnp.array([[1.0, 0.2, 0.0], [0.2, 2.0, 0.3], [0.0, 0.3, 1.5]])
    matrix = numpyro.sample("matrix", dist.Wishart(5.0, scale))
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(3), matrix), obs=y[:3])
    return matrix[0, 0]


def dependent_bounds(y: Any) -> Any:
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
    b = numpyro.sample("b", dist.Uniform(0.0, a))
    numpyro.sample("y", dist.Normal(a * b, 1.0).expand([4]).to_event(1), obs=y)
    return b


def plates(y: Any) -> Any:
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(y)):
        theta = numpyro.sample("theta", dist.Normal(0.0, tau))
        numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)
    return theta[1]


def nested_plates(y: Any) -> Any:
    with numpyro.plate("columns", y.shape[1], dim=-1):
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0], dim=-2):
            z = numpyro.sample("z", dist.Gamma(2.0, 1.0))
            numpyro.sample("y", dist.Normal(z, scale[None, :]), obs=y)
    return z[1, 2]


def scaled(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    with handlers.scale(scale=2.5), numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x


def scaled_latent(y: Any) -> Any:
    with handlers.scale(scale=0.3), numpyro.plate("rows", len(y)):
        x = numpyro.sample("x", dist.Normal(1.0, 2.0))
    numpyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=y)
    return x[0]


def scaled_by_row(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)), handlers.scale(scale=jnp.array([1.0, 2.0, 0.5, 3.0])):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x


def factor(y: Any) -> Any:
    x = numpyro.sample("x", dist.Exponential(1.5))
    numpyro.factor("penalty", -jnp.sum((y - x) ** 4) / 10)
    return x


def masked(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)), handlers.mask(mask=y > 0):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x


def unconditioned() -> Any:
    x = numpyro.sample("x", dist.Gamma(2.0, 1.0))
    z = numpyro.sample("z", dist.Normal(x, 1.0))
    numpyro.sample("w", dist.Normal(z, 1.0))
    return x


def deterministic(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    mean = numpyro.deterministic("mean", jnp.exp(x))
    numpyro.sample("y", dist.Normal(mean, 1.0).expand([4]).to_event(1), obs=y)
    return mean


def latents_in_scan(y: Any) -> Any:
    drift = numpyro.sample("drift", dist.Normal(0.0, 1.0))

    def step(level: Any, observed: Any) -> Any:
        noise = numpyro.sample("noise", dist.Gamma(2.0, 1.0))
        level = numpyro.sample("level", dist.Normal(level + drift, noise))
        numpyro.sample("y", dist.Normal(level, 1.0), obs=observed)
        return level, level

    _, levels = scan(step, 0.0, y)
    return levels[-1]


def scaled_scan(y: Any) -> Any:
    def step(level: Any, observed: Any) -> Any:
        level = numpyro.sample("level", dist.Normal(level, 1.0))
        with handlers.scale(scale=0.5):
            numpyro.sample("y", dist.Normal(level, 1.0), obs=observed)
        return level, level

    return scan(step, 0.0, y)[1][-1]


def vectors_in_scan(y: Any) -> Any:
    def step(total: Any, observed: Any) -> Any:
        share = numpyro.sample("share", dist.Dirichlet(jnp.array([2.0, 1.0, 3.0])))
        numpyro.sample("y", dist.Normal(share[0] + total, 1.0), obs=observed)
        return total + share[1], share

    return scan(step, 0.0, y)[1][-1, 0]


def plain_scan(y: Any) -> Any:
    x = numpyro.sample("x", dist.LogNormal(0.0, 1.0))
    _, path = lax.scan(lambda level, _: (x * level / (1 + level),) * 2, 1.0, None, length=4)
    numpyro.sample("y", dist.Normal(path, 1.0).to_event(1), obs=y)
    return path[-1]


def conditioned() -> Any:
    return handlers.condition(unconditioned, data={"w": jnp.asarray(0.7)})()


def decentred(y: Any) -> Any:
    return handlers.reparam(plates, config={"theta": reparam.LocScaleReparam(0.0)})(y)


def transformed(y: Any) -> Any:
    def model() -> Any:
        base = dist.Normal(0.0, 1.0)
        x = numpyro.sample(
            "x", dist.TransformedDistribution(base, transforms.AffineTransform(1.0, 3.0))
        )
        numpyro.sample("y", dist.Normal(x, 1.0).expand([4]).to_event(1), obs=y)
        return x

    return handlers.reparam(model, config={"x": reparam.TransformReparam()})()


_MODELS: list[tuple[Callable, tuple]] = [
    (real, (Y,)),
    (positive, (Y,)),
    (interval, (Y,)),
    (simplex, (Y,)),
    (ordered, (Y,)),
    (correlation, (Y,)),
    (positive_definite, (Y,)),
    (dependent_bounds, (Y,)),
    (plates, (Y,)),
    (nested_plates, (Y2,)),
    (scaled, (Y,)),
    (scaled_latent, (Y,)),
    (scaled_by_row, (Y,)),
    (factor, (Y,)),
    (masked, (Y,)),
    (conditioned, ()),
    (deterministic, (Y,)),
    (latents_in_scan, (Y,)),
    (scaled_scan, (Y,)),
    (vectors_in_scan, (Y,)),
    (plain_scan, (Y,)),
    (decentred, (Y,)),
    (transformed, (Y,)),
]
MODELS = {model.__name__: (model, args) for model, args in _MODELS}


# NumPyro's own code promotes ranks in batches of simplexes and in multinomial draws.
RELAXED = {"vectors_in_scan"}


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of every model, under the ranks that NumPyro needs for it."""
    with jax.numpy_rank_promotion("allow" if request.param in RELAXED else "raise"):
        yield request.param


def test_terms_are_numpyros_potential_energy(name: str, rng_key: jax.Array) -> None:
    model, args = MODELS[name]
    density = density_of(model, *args)

    def energy(position: jax.Array) -> jax.Array:
        params = {site.name: site.take(position) for site in density.layout.sites}
        return potential_energy(model, args, {}, params)

    positions = positions_of(density, rng_key)
    terms = jax.jit(jax.vmap(density.terms))(positions)
    assert terms.log_prior.shape == terms.log_likelihood.shape == terms.log_target.shape == (3,)
    total = terms.log_prior + terms.log_likelihood
    np.testing.assert_allclose(total, -jax.jit(jax.vmap(energy))(positions), rtol=RTOL)
    assert (terms.log_target == 0.0).all()


# What of a value is free: the coordinates in which its density is one.
FREE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "real": lambda v: jnp.atleast_1d(v["x"]),
    "positive": lambda v: jnp.stack([v["rate"], v["scale"]]),
    "interval": lambda v: jnp.stack([v["p"], v["t"]]),
    "simplex": lambda v: v["p"][:-1],
    "ordered": lambda v: v["cuts"],
    "correlation": lambda v: v["factor"][np.tril_indices(4, -1)],
    "positive_definite": lambda v: v["matrix"][np.tril_indices(3)],
    "dependent_bounds": lambda v: jnp.stack([v["a"], v["b"]]),
    "plates": lambda v: jnp.append(v["theta"], v["tau"]),
    "nested_plates": lambda v: jnp.append(v["scale"], v["z"]),
    "scaled_latent": lambda v: v["x"],
}

SCALE = [[1.0, 0.2, 0.0], [0.2, 2.0, 0.3], [0.0, 0.3, 1.5]]


def _lkj(factor: Any) -> float:
    """The density of the Cholesky factor, normalised by the product of its rows' beta functions."""
    dimension, concentration = factor.shape[0], 1.5
    total = 0.0
    for row in range(1, dimension):
        # Given its length, a row of the factor is uniform in direction; the squared length is
        # Beta(row / 2, concentration + (dimension - 1 - row) / 2).
        second = concentration + (dimension - 1 - row) / 2
        squared = float(np.sum(factor[row, :row] ** 2))
        total += laws.beta.logpdf(squared, row / 2, second)
        # The density of the row itself: over the sphere's area and the change to the length.
        total += math.log(2) + 0.5 * math.log(squared)
        total -= math.log(2) + row / 2 * math.log(math.pi) - math.lgamma(row / 2)
        total -= (row - 1) / 2 * math.log(squared)
    return total


def _ordered(cuts: Any) -> float:
    steps = np.log(np.diff(cuts))
    return laws.norm.logpdf([cuts[0], *steps]).sum() - steps.sum()


# The prior's log density by SciPy, in the model's own coordinates.
PRIORS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "real": lambda v: laws.norm.logpdf(v["x"], 0.5, 2),
    "positive": lambda v: (
        laws.gamma.logpdf(v["rate"], 2, scale=1 / 3) + laws.halfcauchy.logpdf(v["scale"], scale=2)
    ),
    "interval": lambda v: (
        laws.beta.logpdf(v["p"], 2, 3) + laws.truncnorm.logpdf(v["t"], -1, 1, loc=1, scale=2)
    ),
    "simplex": lambda v: laws.dirichlet.logpdf(v["p"] / v["p"].sum(), [2, 1, 3, 0.5]),
    "ordered": lambda v: _ordered(v["cuts"]),
    "correlation": lambda v: _lkj(v["factor"]),
    "positive_definite": lambda v: laws.wishart.logpdf(v["matrix"], 5, SCALE),
    "dependent_bounds": lambda v: laws.gamma.logpdf(v["a"], 2) - np.log(v["a"]),
    "plates": lambda v: (
        laws.halfnorm.logpdf(v["tau"]) + laws.norm.logpdf(v["theta"], 0, v["tau"]).sum()
    ),
    "nested_plates": lambda v: (
        laws.lognorm.logpdf(v["scale"], 1).sum() + laws.gamma.logpdf(v["z"], 2).sum()
    ),
    "scaled_latent": lambda v: laws.norm.logpdf(v["x"], 1, 2).sum(),
}


@pytest.mark.parametrize("name", PRIORS)
def test_log_prior_by_hand(name: str, rng_key: jax.Array) -> None:
    """SciPy's density in the model's coordinates, and the Jacobian of `constrain` itself."""
    model, args = MODELS[name]
    density = density_of(model, *args)
    positions = positions_of(density, rng_key)
    jacobian = jax.jacfwd(lambda u: FREE[name](density.constrain(u)))
    evaluate = jax.jit(jax.vmap(lambda u: (density.constrain(u), jacobian(u), density.terms(u))))
    values, jacobians, terms = jax.tree.map(np.asarray, evaluate(positions))
    for i, log_prior in enumerate(terms.log_prior):
        sign, log_volume = np.linalg.slogdet(jacobians[i])
        assert sign != 0
        by_hand = PRIORS[name]({site: value[i] for site, value in values.items()}) + log_volume
        # SciPy and LAPACK round in the last few digits of sums of about ten terms.
        np.testing.assert_allclose(log_prior, by_hand, rtol=1e-9)


def test_scale_on_a_latent_is_the_likelihoods() -> None:
    """The prior stays the distribution of prior draws; the likelihood compensates for the scale.

    NumPyro's potential energy scales the Jacobian too, which its own `log_density` does not.
    """

    def model(y: Any) -> Any:
        with handlers.scale(scale=0.3):
            x = numpyro.sample("x", dist.Gamma(2.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x

    density = density_of(model, 0.5)
    terms = density.terms(jnp.asarray([0.4]))
    x = math.exp(0.4)
    log_prior, log_likelihood = laws.gamma.logpdf(x, 2), laws.norm.logpdf(0.5, x)
    np.testing.assert_allclose(terms.log_prior, log_prior + 0.4, rtol=RTOL)
    np.testing.assert_allclose(terms.log_likelihood, log_likelihood - 0.7 * log_prior, rtol=RTOL)
    total, _ = log_density(model, (0.5,), {}, {"x": jnp.asarray(x)})
    np.testing.assert_allclose(terms.log_prior + terms.log_likelihood, total + 0.4, rtol=RTOL)


# Prior draws -------------------------------------------------------------------------------------

NUM_DRAWS = 4000

Statistic = Callable[[dict[str, Any]], Any]

LAWS: dict[str, list[tuple[Statistic, Any]]] = {
    "real": [(lambda v: v["x"], laws.norm(0.5, 2))],
    "positive": [
        (lambda v: v["rate"], laws.gamma(2, scale=1 / 3)),
        (lambda v: v["scale"], laws.halfcauchy(scale=2)),
    ],
    "interval": [
        (lambda v: v["p"], laws.beta(2, 3)),
        (lambda v: v["t"], laws.truncnorm(-1, 1, loc=1, scale=2)),
    ],
    "simplex": [
        (lambda v: v["p"][:, 0], laws.beta(2, 4.5)),
        (lambda v: v["p"][:, 3], laws.beta(0.5, 6)),
    ],
    "ordered": [
        (lambda v: v["cuts"][:, 0], laws.norm()),
        (lambda v: v["cuts"][:, 3] - v["cuts"][:, 2], laws.lognorm(1)),
    ],
    # Of a 4 x 4 correlation with concentration c, (r + 1) / 2 ~ Beta(c + 1, c + 1).
    "correlation": [(lambda v: (v["factor"][:, 1, 0] + 1) / 2, laws.beta(2.5, 2.5))],
    "positive_definite": [(lambda v: v["matrix"][:, 1, 1], laws.chi2(5, scale=2))],
    # b given a is uniform below a, which for this Gamma prior makes b exponential.
    "dependent_bounds": [
        (lambda v: v["a"], laws.gamma(2)),
        (lambda v: v["b"], laws.expon()),
    ],
    "plates": [(lambda v: v["theta"][:, 2] / v["tau"], laws.norm())],
    "latents_in_scan": [
        (lambda v: v["noise"][:, 2], laws.gamma(2)),
        (
            lambda v: (v["level"][:, 2] - v["level"][:, 1] - v["drift"]) / v["noise"][:, 2],
            laws.norm(),
        ),
    ],
    "vectors_in_scan": [(lambda v: v["share"][:, 3, 1], laws.beta(1, 5))],
}


def test_prior_draws(name: str, rng_key: jax.Array) -> None:
    """A draw has the prior distribution, and comes with its own terms."""
    model, args = MODELS[name]
    density = density_of(model, *args).part("gamma1_plus")

    def draw(key: jax.Array) -> tuple[dict[str, jax.Array], Terms, Terms]:
        position, drawn = density.draw_prior(key)
        return density.constrain(position), drawn, density.terms(position)

    keys = jax.random.split(rng_key, NUM_DRAWS if name in LAWS else 20)
    values, drawn, again = jax.jit(jax.vmap(draw))(keys)
    for one, other in zip(drawn, again, strict=True):
        # Through the inverse transform and back: a few digits less than a single evaluation.
        np.testing.assert_allclose(one[:20], other[:20], rtol=1e-8, atol=1e-10)
    for statistic, law in LAWS.get(name, []):
        assert_same_law(statistic(values), law.cdf)


def test_positions_round_trip(rng_key: jax.Array) -> None:
    """The terms at a site's values are those of the position, except for the Jacobian."""
    density = density_of(positive, Y)
    for position in positions_of(density, rng_key):
        again, terms = density.terms_at(density.constrain(position))
        np.testing.assert_allclose(again, position, rtol=RTOL, atol=1e-14)
        with_jacobian = density.terms(position)
        # Both sites are exponentials, whose log Jacobian is the position.
        np.testing.assert_allclose(
            terms.log_prior + position.sum(), with_jacobian.log_prior, rtol=RTOL
        )
        np.testing.assert_allclose(terms.log_likelihood, with_jacobian.log_likelihood, rtol=RTOL)


# Discrete sites ----------------------------------------------------------------------------------


def discrete(y: Any) -> Any:
    k = numpyro.sample("k", dist.Categorical(jnp.array([0.2, 0.5, 0.3])))
    x = numpyro.sample("x", dist.Normal(k, 1.0))
    with numpyro.plate("rows", 2):
        counts = numpyro.sample("counts", dist.Multinomial(3, jnp.array([0.5, 0.3, 0.2])))
    flag = numpyro.sample("flag", dist.Bernoulli(jnp.array([0.1, 0.6, 0.9])[k]))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(x + flag + counts[0, 0], scale), obs=y)
    return k * x


@pytest.mark.usefixtures("relaxed_ranks")
def test_discrete_sites_come_last() -> None:
    density = density_of(discrete, 0.3)
    assert [site.name for site in density.layout.sites] == [
        *("x", "scale"),
        *("k", "counts", "flag"),
    ]
    assert density.layout.num_continuous == 2
    assert density.layout.discrete_sites == ("k", "counts", "flag")
    assert density.dimension == 2 + 1 + 6 + 1
    assert density.layout.discrete_elements.tolist() == [-1, -1, 0, 1, 1, 1, 2, 2, 2, 3]


DISCRETE_POSITION = [0.4, -0.2, 2.0, 3.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]


@pytest.mark.usefixtures("relaxed_ranks")
def test_discrete_values_are_integers() -> None:
    values = density_of(discrete, 0.3).constrain(jnp.asarray(DISCRETE_POSITION))
    for name in ("k", "counts", "flag"):
        assert jnp.issubdtype(values[name].dtype, jnp.integer)
    assert int(values["k"]) == 2
    assert values["counts"].tolist() == [[3, 0, 0], [1, 1, 1]]
    assert int(values["flag"]) == 0
    assert float(values["x"]) == 0.4


@pytest.mark.usefixtures("relaxed_ranks")
def test_discrete_terms_by_hand() -> None:
    terms = density_of(discrete, 0.3).terms(jnp.asarray(DISCRETE_POSITION))
    x, scale, probabilities = 0.4, math.exp(-0.2), [0.5, 0.3, 0.2]
    log_prior = (
        math.log(0.3)
        + laws.norm.logpdf(x, 2)
        + laws.multinomial.logpmf([[3, 0, 0], [1, 1, 1]], 3, probabilities).sum()
        + math.log(1 - 0.9)
        + laws.halfnorm.logpdf(scale)
        - 0.2
    )
    np.testing.assert_allclose(terms.log_prior, log_prior, rtol=RTOL)
    np.testing.assert_allclose(terms.log_likelihood, laws.norm.logpdf(0.3, x + 3, scale), rtol=RTOL)


@pytest.mark.usefixtures("relaxed_ranks")
def test_discrete_draws_are_from_the_prior_given_the_position(rng_key: jax.Array) -> None:
    density = density_of(discrete, 0.3)
    position = jnp.asarray(DISCRETE_POSITION)
    keys = jax.random.split(rng_key, NUM_DRAWS)
    drawn, before, after = jax.jit(jax.vmap(lambda key: density.redraw(key, position)))(keys)
    assert (drawn[:, :2] == position[:2]).all()
    for value, probability in enumerate([0.2, 0.5, 0.3]):
        assert_proportion(int((drawn[:, 2] == value).sum()), NUM_DRAWS, probability)
    # The flag's prior is that of the present k = 2, whichever k is drawn.
    assert_proportion(int(drawn[:, 9].sum()), NUM_DRAWS, 0.9)
    counts = np.asarray(drawn[:, 3:9]).reshape(NUM_DRAWS, 2, 3)
    assert (counts.sum(axis=2) == 3).all()
    assert_proportion(int((counts[:, 0, 1] == 0).sum()), NUM_DRAWS, 0.7**3)
    assert_proportion(int((counts[:, 1, 2] == 3).sum()), NUM_DRAWS, 0.2**3)

    law = laws.multinomial(3, [0.5, 0.3, 0.2])
    present = [math.log(0.3), *law.logpmf([[3, 0, 0], [1, 1, 1]]), math.log(0.1)]
    np.testing.assert_allclose(before, np.broadcast_to(present, before.shape), rtol=RTOL)
    k, flag = np.asarray(drawn[:, 2], int), np.asarray(drawn[:, 9], int)
    columns = [
        np.log(np.array([0.2, 0.5, 0.3])[k]),
        *law.logpmf(counts).T,
        np.log(np.array([0.1, 0.9])[flag]),
    ]
    np.testing.assert_allclose(after, np.stack(columns, axis=1), rtol=RTOL)


@pytest.mark.usefixtures("relaxed_ranks")
def test_discrete_prior_draws(rng_key: jax.Array) -> None:
    density = density_of(discrete, 0.3)
    keys = jax.random.split(rng_key, NUM_DRAWS)
    positions = jax.jit(jax.vmap(lambda key: density.draw_prior(key)[0]))(keys)
    k, flag = positions[:, 2], positions[:, 9]
    assert_proportion(int((k == 1).sum()), NUM_DRAWS, 0.5)
    assert_proportion(int(flag.sum()), NUM_DRAWS, 0.2 * 0.1 + 0.5 * 0.6 + 0.3 * 0.9)
    assert_same_law(positions[:, 0] - k, laws.norm.cdf)


# Integers as real numbers ------------------------------------------------------------------------


def test_integers_are_a_pytree() -> None:
    integers = Integers(dist.DiscreteUniform(3, 5), 0.25)
    leaves, structure = jax.tree.flatten(integers)
    again = jax.tree.unflatten(structure, leaves)
    x = np.linspace(-3.0, 3.0, 50)
    np.testing.assert_array_equal(again(x), integers(x))
    np.testing.assert_allclose(again.inv(again(x)), integers.inv(integers(x)))


def integers(y: Any) -> Any:
    count = numpyro.sample("count", dist.Poisson(jnp.array([0.7, 3.0])).to_event(1))
    flag = numpyro.sample("flag", dist.Bernoulli(0.3))
    part = numpyro.sample("part", dist.Binomial(2 + flag, 0.4))
    first = numpyro.sample("first", dist.DiscreteUniform(3, 5))
    numpyro.sample("y", dist.Normal(count.sum() + part, 1.0), obs=y)
    return first


def test_relaxed_coordinates_are_all_continuous() -> None:
    density = density_of(integers, 0.3)
    assert density.layout.is_relaxable
    relaxed = density.relaxed()
    assert relaxed.layout.discrete_sites == ()
    assert relaxed.layout.num_continuous == relaxed.dimension == 5
    assert relaxed.layout.is_transformed.all()
    relaxed.require_continuous("anything")


LAWS_OF_INTEGERS = [
    (dist.Poisson(2.5), np.arange(30)),
    (dist.Bernoulli(0.3), np.arange(2)),
    (dist.Binomial(6, 0.4), np.arange(7)),
    (dist.Binomial(6, logits=2.0), np.arange(7)),
    (dist.BetaBinomial(0.7, 1.5, 6), np.arange(7)),
    (dist.GammaPoisson(1.5, 0.8), np.arange(12)),
    (dist.NegativeBinomial2(4.0, 2.0), np.arange(12)),
    (dist.Geometric(0.3), np.arange(12)),
    (dist.DiscreteUniform(-2, 3), np.arange(-2, 4)),
    (dist.Categorical(jnp.array([0.2, 0.5, 0.3])), np.arange(3)),
]


@pytest.mark.parametrize("is_standardised", [False, True])
@pytest.mark.parametrize(("law", "values"), LAWS_OF_INTEGERS, ids=lambda item: type(item).__name__)
def test_a_relaxed_density_has_the_mass_of_each_value(
    law: Any, values: np.ndarray, is_standardised: bool
) -> None:
    """Trapezoids over a fine grid of coordinates, whose steps cost 1e-3 of a value's mass."""
    relaxed = density_of(lambda: numpyro.sample("k", law)).relaxed()
    if is_standardised:
        relaxed = relaxed.standardised()
    grid = np.linspace(-14.0, 14.0, 400_001)[:, None]
    log_prior = jax.jit(jax.vmap(lambda u: relaxed.terms(u).log_prior))(grid)
    found = np.asarray(jax.jit(jax.vmap(relaxed.constrain))(grid)["k"])
    assert np.issubdtype(found.dtype, np.integer)
    width = grid[1, 0] - grid[0, 0]
    masses = [width * np.exp(np.asarray(log_prior))[found == value].sum() for value in values]
    np.testing.assert_allclose(masses, np.exp(law.log_prob(values)), rtol=2e-3, atol=1e-12)
    assert set(found) >= set(values)


@pytest.mark.parametrize("is_certain", [False, True])
def test_standardised_counts_follow_a_rate_of_any_size(is_certain: bool) -> None:
    """Their place in these coordinates is that of the count among its likely ones."""

    def model() -> Any:
        size = numpyro.sample("size", dist.LogNormal(0.0, 5.0))
        law = dist.Binomial(1000, 1.0) if is_certain else dist.Poisson(size)
        return numpyro.sample("k", law)

    density = density_of(model).relaxed().standardised()
    for log_size in (-2.0, 0.0, 2.0):
        at = jnp.stack([jnp.full(5, log_size), jnp.linspace(-2.0, 2.0, 5)], axis=1)
        found = np.asarray(jax.vmap(density.constrain)(at)["k"])
        size = np.exp(5.0 * log_size)
        if is_certain:
            assert found[2] == 1000
        else:
            assert np.all(np.abs(found - size) <= 10.0 * (np.sqrt(size) + 1.0))


def test_masked_counts_are_standardised_like_the_others(rng_key: jax.Array) -> None:
    def model() -> Any:
        with numpyro.plate("rows", 3):
            law = dist.Poisson(jnp.array([3.0, 300.0, 30_000.0]))
            return numpyro.sample("k", law.mask(jnp.array([True, False, True])))

    density = density_of(model).relaxed().standardised()
    positions, _ = jax.jit(jax.vmap(density.draw_prior))(jax.random.split(rng_key, 200))
    assert np.all(np.abs(positions) < 8.0)


def test_relaxed_prior_draws(rng_key: jax.Array) -> None:
    """Values are those of the plain draws of the same keys; places in the intervals are uniform."""
    density = density_of(integers, 0.3)
    keys = jax.random.split(rng_key, NUM_DRAWS)
    plain = jax.jit(jax.vmap(lambda key: density.draw_prior(key)[0]))(keys)
    relaxed, terms = jax.jit(jax.vmap(density.relaxed().draw_prior))(keys)
    np.testing.assert_array_equal(to_plain_coordinates(density.relaxed(), relaxed), plain)
    first = Integers(dist.DiscreteUniform(3, 5)).numbers(relaxed[:, 4])
    assert_same_law(first - plain[:, 4], laws.uniform.cdf)
    count = Integers(dist.Poisson(3.0)).numbers(relaxed[:, 1])
    assert_same_law(count - plain[:, 1], laws.uniform.cdf)
    log_likelihood = laws.norm.logpdf(0.3, plain[:, :2].sum(axis=1) + plain[:, 3])
    np.testing.assert_allclose(terms.log_likelihood, log_likelihood, rtol=RTOL)


def test_integers_end_where_numbers_do() -> None:
    relaxed = density_of(lambda: numpyro.sample("k", dist.Poisson(2.0))).relaxed()
    terms = relaxed.terms(jnp.asarray([500.0]))
    assert terms.log_prior == -jnp.inf


# Outputs -----------------------------------------------------------------------------------------


def many_outputs(y: Any) -> Any:
    x = numpyro.sample("x", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return {"b": (x > 1.0, jnp.stack([x, x**2])), "a": 3, "c": -x}


def test_outputs_in_the_order_of_the_labels() -> None:
    expectation = ep.expectation(many_outputs)(1.0)
    density = ep.Density.of(expectation)
    assert density.num_outputs == 5
    assert expectation.output is not None
    assert expectation.output.labels == ("b[0]", "b[1][0]", "b[1][1]", "a", "c")
    x = jnp.exp(jnp.asarray(0.3))
    expected = [1.0, float(x), float(x**2), 3.0, float(-x)]
    assert density.outputs(jnp.asarray([0.3])).tolist() == expected
    assert density.model.assess({"x": x}, density.arrays).outputs.tolist() == expected
    one = ep.Density.of(expectation["b"][1][1])
    assert one.model.assess({"x": x}, one.arrays).outputs.tolist() == [float(x**2)]


@pytest.mark.parametrize("output", range(5))
@pytest.mark.parametrize(("part", "sign"), [("gamma1_plus", 1), ("gamma1_minus", -1)])
def test_log_target_of_every_output(output: int, part: str, sign: int) -> None:
    density = density_of(many_outputs, 1.0)
    for position in (jnp.asarray([0.3]), jnp.asarray([-0.7])):
        f = sign * float(density.outputs(position)[output])
        log_target = float(density.part(part, output).terms(position).log_target)
        if f > 0:
            assert log_target == pytest.approx(math.log(f), rel=1e-15, abs=1e-16)
        else:
            assert log_target == -math.inf


def test_a_program_without_latents() -> None:
    def constant(y: Any) -> Any:
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)
        return 4.0

    density = density_of(constant, 2.0)
    assert density.dimension == 0
    position, terms = density.draw_prior(jax.random.key(0))
    assert position.shape == (0,)
    assert float(terms.log_prior) == 0.0
    np.testing.assert_allclose(terms.log_likelihood, laws.norm.logpdf(2.0), rtol=RTOL)
    assert density.outputs(position).tolist() == [4.0]


# Gradients ---------------------------------------------------------------------------------------


@pytest.fixture
def fresh_gradient_modes() -> Iterator[None]:
    density_module._gradient_mode.cache_clear()
    yield
    density_module._gradient_mode.cache_clear()


GRADIENT_MODELS = [
    *("positive", "simplex", "correlation", "dependent_bounds", "nested_plates"),
    *("latents_in_scan", "masked", "decentred"),
]
POINTS = [(1.0, 1.0), (0.3, 0.7), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)]


def _gradients(
    density: ep.Density, positions: jax.Array, points: jax.Array
) -> tuple[Terms, jax.Array, jax.Array]:
    """Terms, values and gradients with positions and path points as leading axes."""

    def at(position: jax.Array, point: jax.Array) -> tuple[Terms, jax.Array, jax.Array]:
        return density.value_and_gradient(position, PathPoint(point[0], point[1]))

    over_points = jax.vmap(at, in_axes=(None, 0))
    return jax.jit(jax.vmap(over_points, in_axes=(0, None)))(positions, points)


@pytest.mark.usefixtures("fresh_gradient_modes")
@pytest.mark.parametrize("name", GRADIENT_MODELS)
def test_gradients(name: str, rng_key: jax.Array, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward mode is reverse mode, and both are central differences."""
    model, args = MODELS[name]
    density = density_of(lambda *a: jnp.exp(model(*a)), *args).part("gamma1_plus")
    positions, points = positions_of(density, rng_key, 2), jnp.asarray(POINTS)
    found = {}
    for mode, limit in {"forward": 1000, "reverse": 0}.items():
        limits = {"straight": limit, "with loops": limit}
        monkeypatch.setattr(density_module, "FORWARD_MODE_DIMENSIONS", limits)
        density_module._gradient_mode.cache_clear()
        assert gradient_mode(density) == mode
        found[mode] = _gradients(density, positions, points)
    for one, other in zip(*map(jax.tree.leaves, found.values()), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)

    def value(position: jax.Array, point: jax.Array) -> jax.Array:
        return PathPoint(point[0], point[1]).log_density(density.terms(position))

    # The rounding of a central difference is ~ eps·|value|/h and its truncation ~ h²·|third|.
    h, (_, values, gradients) = 1e-5, found["forward"]
    steps = h * jnp.eye(density.dimension)
    over_points = jax.vmap(value, in_axes=(None, 0))
    shifted = jax.jit(jax.vmap(jax.vmap(over_points, in_axes=(0, None)), in_axes=(0, None)))
    up = shifted(positions[:, None, :] + steps[None], points)
    down = shifted(positions[:, None, :] - steps[None], points)
    differences = jnp.swapaxes((up - down) / (2 * h), 1, 2)
    tolerance = 1e-6 * max(1.0, float(jnp.abs(values).max()))
    np.testing.assert_allclose(gradients, differences, rtol=1e-6, atol=tolerance)


def test_gradient_where_the_target_is_zero() -> None:
    """f ≤ 0 has no gradient; with exponent 0 it must not spoil the other gradients."""

    def cube(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x**3

    density = density_of(cube, 2.0).part("gamma1_plus")
    one, zero = jnp.asarray(1.0), jnp.asarray(0.0)
    position = jnp.asarray([-0.4])
    terms, value, gradient = density.value_and_gradient(position, PathPoint(one, zero))
    assert float(terms.log_target) == -math.inf
    assert float(value) == float(terms.log_prior + terms.log_likelihood)
    np.testing.assert_allclose(gradient, [0.4 + 2.4], rtol=RTOL)
    _, value, gradient = density.value_and_gradient(position, PathPoint(zero, zero))
    assert float(value) == float(terms.log_prior)
    np.testing.assert_allclose(gradient, [0.4], rtol=RTOL)
    _, value, gradient = density.value_and_gradient(position, PathPoint(one, one))
    assert float(value) == -math.inf
    assert np.isfinite(np.asarray(gradient)).all()


@pytest.mark.usefixtures("fresh_gradient_modes")
@pytest.mark.parametrize("dimension", [2, 12])
def test_a_while_loop_is_differentiated_forwards(dimension: int) -> None:
    def model(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([dimension]).to_event(1))
        # Doubles the sum until it exceeds 10: a number of turns that depends on the position.
        total = lax.while_loop(lambda s: jnp.abs(s) < 10.0, lambda s: 2.0 * s, jnp.sum(x))
        numpyro.sample("y", dist.Normal(total, 1.0), obs=y)
        return total

    density = density_of(model, 11.0)
    assert gradient_mode(density) == "forward"
    position = jnp.full(dimension, 3.0 / dimension)
    one = jnp.asarray(1.0)
    _, value, gradient = jax.jit(density.value_and_gradient)(position, PathPoint(one, one))
    # 3, 6, 12: two turns, so that the mean is four times the sum.
    log_density = laws.norm.logpdf(position).sum() + laws.norm.logpdf(11.0, 12.0)
    np.testing.assert_allclose(value, log_density, rtol=RTOL)
    np.testing.assert_allclose(gradient, -position + 4.0 * (11.0 - 12.0), rtol=RTOL)


@jax.custom_vjp
def _square(x: jax.Array) -> jax.Array:
    return x**2


_square.defvjp(lambda x: (x**2, x), lambda x, g: (2.0 * x * g,))


@pytest.mark.usefixtures("fresh_gradient_modes")
@pytest.mark.parametrize("dimension", [2, 12])
def test_a_custom_reverse_rule_is_used(dimension: int) -> None:
    def model(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([dimension]).to_event(1))
        numpyro.sample("y", dist.Normal(_square(x), 1.0).to_event(1), obs=y)
        return x[0]

    y = np.full(dimension, 0.5)
    density = density_of(model, y)
    assert gradient_mode(density) == "reverse"
    position = jnp.linspace(-1.0, 2.0, dimension)
    one = jnp.asarray(1.0)
    _, value, gradient = jax.jit(density.value_and_gradient)(position, PathPoint(one, one))
    log_density = laws.norm.logpdf(position).sum() + laws.norm.logpdf(y, position**2).sum()
    np.testing.assert_allclose(value, log_density, rtol=RTOL)
    by_hand = -position + (y - position**2) * 2 * position
    np.testing.assert_allclose(gradient, by_hand, rtol=RTOL, atol=1e-14)


# Points of the path ------------------------------------------------------------------------------

NUMBERS = st.floats(-1e3, 1e3)
EXPONENTS = st.one_of(st.just(0.0), st.floats(1e-3, 1.0))


def _tempered(a: float, b: float, *terms: float) -> float:
    point = PathPoint(jnp.asarray(a), jnp.asarray(b))
    return float(point.log_density(Terms(*map(jnp.asarray, terms))))


@given(EXPONENTS, EXPONENTS, NUMBERS, NUMBERS, NUMBERS)
def test_tempered_density(a: float, b: float, prior: float, likelihood: float, f: float) -> None:
    expected = prior + a * likelihood + b * f
    assert _tempered(a, b, prior, likelihood, f) == pytest.approx(expected, rel=1e-14, abs=1e-12)


@given(EXPONENTS, EXPONENTS, NUMBERS, st.sampled_from([-math.inf, math.inf, math.nan]))
def test_what_is_not_finite_counts_by_its_exponent(
    a: float, b: float, prior: float, bad: float
) -> None:
    """A factor to the power 0 is 1 whatever it is; any other power of it has density 0."""
    assert _tempered(a, b, prior, bad, 0.0) == (prior if a == 0 else -math.inf)
    assert _tempered(a, b, prior, 0.0, bad) == (prior if b == 0 else -math.inf)
    assert _tempered(a, b, bad, 0.0, 0.0) == -math.inf


# Masks -------------------------------------------------------------------------------------------


SEEN = np.array([True, False, True])


def masked_rows() -> Any:
    with numpyro.plate("rows", 3), handlers.mask(mask=SEEN):
        return numpyro.sample("x", dist.Gamma(2.0, 1.0))


def masked_columns() -> Any:
    """The mask is of one row, and the plate repeats it."""
    rows, columns = numpyro.plate("rows", 2, dim=-2), numpyro.plate("columns", 3, dim=-1)
    with rows, columns, handlers.mask(mask=SEEN):
        return numpyro.sample("x", dist.Gamma(2.0, 1.0))


def masked_event() -> Any:
    return numpyro.sample("x", dist.Gamma(2.0, 1.0).expand([3]).mask(SEEN).to_event(1))


@pytest.mark.parametrize("model", [masked_rows, masked_columns, masked_event])
def test_a_masked_latent_keeps_its_prior(model: Callable, rng_key: jax.Array) -> None:
    density = density_of(model)
    position = jnp.linspace(-0.4, 0.7, density.dimension)
    by_hand = laws.gamma.logpdf(np.exp(position), 2).sum() + position.sum()
    np.testing.assert_allclose(density.terms(position).log_prior, by_hand, rtol=RTOL)
    keys = jax.random.split(rng_key, NUM_DRAWS)
    draws = jax.jit(jax.vmap(lambda key: jnp.exp(density.draw_prior(key)[0])))(keys)
    assert_same_law(draws[:, 1], laws.gamma(2).cdf)


def _evidences(expectation: ep.Expectation, rng_key: jax.Array, num_samples: int) -> jax.Array:
    estimator, density = ep.ImportanceSampling(num_samples=num_samples), ep.Density.of(expectation)
    return jax.jit(jax.vmap(lambda key: estimator.estimate(key, density).log_z))(
        jax.random.split(rng_key, 400)
    )


def test_evidence_of_partly_observed_data(rng_key: jax.Array) -> None:
    """`obs_mask`: the missing element is a latent, and does not change Z."""

    def model(y: Any, seen: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 3):
            return numpyro.sample("y", dist.Normal(x, 1.0), obs=y, obs_mask=seen)

    y, seen = np.array([0.4, np.nan, -0.3]), np.array([True, False, True])
    expectation = ep.expectation(model)(y, seen)
    assert [latent.name for latent in expectation.latents] == ["x", "y_unobserved"]
    assert expectation.output is not None
    assert expectation.output.shapes == ((3,),)
    log_z = laws.multivariate_normal.logpdf(y[seen], np.zeros(2), np.eye(2) + 1.0)
    assert_unbiased(_evidences(expectation, rng_key, 100), float(log_z))
    # What is observed is the data; what is not is drawn.
    values = ep.Density.of(expectation).outputs(jnp.asarray([0.2, 7.0, 8.0, 9.0]))
    assert values.tolist() == [0.4, 8.0, -0.3]


def test_evidence_with_masked_rows(rng_key: jax.Array) -> None:
    expectation = ep.expectation(masked)(Y)
    kept = Y[Y > 0]
    covariance = np.eye(len(kept)) + 1.0
    log_z = laws.multivariate_normal.logpdf(kept, np.zeros(len(kept)), covariance)
    assert_unbiased(_evidences(expectation, rng_key, 100), float(log_z))


# What is compiled in -----------------------------------------------------------------------------


def sized(n: int, y: Any, shift: float = 0.0) -> Any:
    x = numpyro.sample("x", dist.Normal(shift, 1.0).expand([n]).to_event(1))
    numpyro.sample("y", dist.Normal(x.sum(), 1.0).expand([4]).to_event(1), obs=y)
    return x[0]


def test_fresh_data_have_an_equal_model() -> None:
    program = ep.expectation(sized)
    model = ep.Density.of(program(2, Y)).model
    fresh = ep.Density.of(program(2, Y + 1.0))
    assert fresh.model == model
    assert hash(fresh.model) == hash(model)
    assert (np.asarray(fresh.arrays[0]) == Y + 1.0).all()


def test_other_constants_have_another_model() -> None:
    program = ep.expectation(sized)
    model = ep.Density.of(program(2, Y)).model
    assert ep.Density.of(program(3, Y)).model != model
    assert ep.Density.of(program(2, Y, shift=1.0)).model != model
    assert ep.Density.of(ep.expectation(sized)(2, Y)).model == model


def test_numbers_are_data_where_they_can_be() -> None:
    program = ep.expectation(deterministic)
    assert ep.Density.of(program(Y)).model == ep.Density.of(program(Y[::-1])).model

    @ep.expectation
    def scalar(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x

    two, three = ep.Density.of(scalar(2.0)), ep.Density.of(scalar(3.0))
    assert two.model == three.model
    position = jnp.asarray([0.5])
    for density, y in ((two, 2.0), (three, 3.0)):
        log_likelihood = density.terms(position).log_likelihood
        np.testing.assert_allclose(log_likelihood, laws.norm.logpdf(y, 0.5), rtol=RTOL)


def test_outputs_of_one_program_have_models_of_their_own() -> None:
    first, second = ep.expectation(lambda: (numpyro.sample("x", dist.Normal(0, 1)), 2.0))()
    assert ep.Density.of(first).model != ep.Density.of(second).model


# Single precision --------------------------------------------------------------------------------


def test_single_precision_throughout(rng_key: jax.Array) -> None:
    model, args = MODELS["dependent_bounds"]
    double = density_of(model, *args).part("gamma1_plus")
    reference = double.terms(jnp.asarray([0.3, -0.8]))
    with jax.enable_x64(False):
        density = density_of(model, *args).part("gamma1_plus")
        at, one = jnp.asarray([0.3, -0.8]), jnp.asarray(1.0)
        terms = jax.jit(density.terms)(at)
        everything = (
            *(density.arrays, terms, jax.jit(density.draw_prior)(rng_key)),
            jax.jit(density.value_and_gradient)(at, PathPoint(one, one)),
            *(jax.jit(density.outputs)(at), jax.jit(density.constrain)(at)),
        )
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(everything)} == {"float32"}
        for single, exact in zip(terms, reference, strict=True):
            np.testing.assert_allclose(single, exact, rtol=1e-5)
        evidence = ep.ImportanceSampling(num_samples=10).estimate(rng_key, density)
        assert evidence.log_z.dtype == evidence.positions.dtype == jnp.float32


def test_gradient_mode_rule() -> None:
    """Forward mode in one dimension, and up to four where the program has a loop."""

    def straight(dimension: int) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([dimension]).to_event(1))
        return x.sum()

    def looping(dimension: int) -> Any:
        x = straight(dimension)
        return jax.lax.scan(lambda total, _: (total + x, None), 0.0 * x, None, length=5)[0]

    def mode(model: Any, dimension: int) -> str:
        return gradient_mode(density_of(model, dimension))

    assert [mode(straight, d) for d in (1, 2, 5)] == ["forward", "reverse", "reverse"]
    assert [mode(looping, d) for d in (1, 4, 5)] == ["forward", "forward", "reverse"]
