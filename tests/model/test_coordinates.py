"""Standardised coordinates: the same density by the Jacobian, and standard laws at the prior."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions import biject_to, constraints
from numpyro.infer.util import log_density
from scipy import stats as laws

import estimand as ep
from estimand.density import has_varying_scales, to_plain_coordinates
from estimand.model import NumpyroModel
from estimand.model.numpyro.model import _compiled_changes
from estimand.model.numpyro.transforms import Sticks, Stretch, location_scale
from problems import PROBLEMS
from tests.stats import assert_same_law, assert_unbiased

RTOL = 1e-10
Y = np.array([0.3, -1.2, 2.0])
TRIL = np.array([[1.5, 0.0, 0.0], [0.7, 0.5, 0.0], [-0.4, 0.2, 2.0]])


def observe(center: Any) -> Any:
    center = jnp.broadcast_to(center, (3,))
    numpyro.sample("y", dist.Normal(center, 1.3).to_event(1), obs=Y)
    return jnp.exp(-0.2 * center[0]) - 0.5


# The standard law of each family, as SciPy has it.
class Tamed:
    """Student's t in coordinates u with x² = degrees·(e^(u²/degrees) − 1)."""

    def __init__(self, degrees: float):
        self.degrees = degrees

    def logpdf(self, u: np.ndarray) -> np.ndarray:
        square = u**2 / self.degrees
        x = np.sign(u) * np.sqrt(self.degrees * np.expm1(square))
        return laws.t(self.degrees).logpdf(x) + square + np.log(u / x)


FAMILIES: dict[str, tuple[Any, Any]] = {
    "Normal": (dist.Normal(1.5, 2.5), laws.norm),
    "Cauchy": (dist.Cauchy(1.5, 0.5), Tamed(1)),
    "StudentT": (dist.StudentT(4.0, -1.5, 2.5), Tamed(4)),
    "Laplace": (dist.Laplace(1.5, 2.5), laws.laplace),
    "Logistic": (dist.Logistic(-1.5, 0.3), laws.logistic),
    "Gumbel": (dist.Gumbel(1.5, 2.5), laws.gumbel_r),
    "LogNormal": (dist.LogNormal(0.3, 0.4), laws.norm),
    "MultivariateNormal": (dist.MultivariateNormal(Y, scale_tril=TRIL), laws.norm),
    "batch": (dist.Normal(Y, np.array([0.1, 1.0, 10.0])), laws.norm),
    "independent": (dist.Normal(Y, np.array([0.1, 1.0, 10.0])).to_event(1), laws.norm),
    "expanded": (dist.StudentT(4.0, 1.0, 3.0).expand([3]), Tamed(4)),
    "expanded, independent": (dist.Gumbel(1.0, 3.0).expand([3]).to_event(1), laws.gumbel_r),
    "independent, expanded": (
        dist.Normal(Y, np.array([0.1, 1.0, 10.0])).to_event(1).expand([2]),
        laws.norm,
    ),
    "GaussianRandomWalk": (dist.GaussianRandomWalk(0.7, num_steps=3), laws.norm),
    "expanded MultivariateNormal": (
        dist.MultivariateNormal(Y, scale_tril=TRIL).expand([2]).to_event(1),
        laws.norm,
    ),
}


def family(name: str) -> Callable:
    def model() -> Any:
        x = numpyro.sample("x", FAMILIES[name][0])
        return observe(jnp.ravel(x)[0])

    return model


def plates() -> Any:
    loc = numpyro.sample("loc", dist.Normal(1.0, 2.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.2, 0.5))
    with numpyro.plate("rows", 3), numpyro.plate("pair", 2, dim=-2):
        x = numpyro.sample("x", dist.Normal(loc, scale))
    return observe(x.sum(axis=0))


def event_in_plate() -> Any:
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    with numpyro.plate("rows", 3):
        law = dist.MultivariateNormal(Y[:2], scale_tril=scale * TRIL[:2, :2])
        x = numpyro.sample("x", law)
    return observe(x[:, 1])


def student_vectors() -> Any:
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    with numpyro.plate("rows", 2):
        x = numpyro.sample("x", dist.MultivariateStudentT(3.0, Y, scale_tril=scale * TRIL))
    return observe(x.sum(axis=0))


def chain_of_scales() -> Any:
    """Every scale is known only from the site before it."""
    a = numpyro.sample("a", dist.Normal(0.5, 1.5))
    b = numpyro.sample("b", dist.StudentT(5.0, a, jnp.exp(0.5 * a)))
    c = numpyro.sample("c", dist.Laplace(a - b, 0.1 + b**2).expand([3]).to_event(1))
    return observe(c)


def walk() -> Any:
    """A random walk inside NumPyro's scan: locations and scales from the step before."""
    scale = numpyro.sample("scale", dist.LogNormal(-1.0, 0.3))

    def step(x: Any, _: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.9 * x, scale * (1 + x**2)))
        return x, x

    _, path = scan(step, jnp.asarray(0.4), None, length=3)
    return observe(path)


def vector_walk() -> Any:
    def step(x: Any, _: Any) -> Any:
        law = dist.MultivariateNormal(0.9 * x, scale_tril=TRIL[:2, :2])
        x = numpyro.sample("x", law)
        return x, x[0]

    _, path = scan(step, jnp.zeros(2), None, length=3)
    return observe(path)


def beside_others() -> Any:
    """Sites on intervals and half-lines next to one with a location and a scale."""
    share = numpyro.sample("share", dist.Beta(2.0, 3.0))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    x = numpyro.sample("x", dist.Normal(share, rate).expand([3]).to_event(1))
    low = numpyro.sample("low", dist.TruncatedNormal(0.0, 1.0, low=-1.0))
    return observe(x + low)


def masked() -> Any:
    with handlers.mask(mask=np.array([True, False, True])), numpyro.plate("rows", 3):
        x = numpyro.sample("x", dist.Normal(1.0, 2.0))
    whole = numpyro.sample("whole", dist.Normal(2.0, 3.0).expand([3]).mask(False).to_event(1))
    return observe(x + whole)


def scaled() -> Any:
    with handlers.scale(scale=3.0):
        x = numpyro.sample("x", dist.Normal(1.0, 2.0))
    return observe(x)


MODELS: dict[str, Callable] = {
    **{name: family(name) for name in FAMILIES},
    **{
        model.__name__: model
        for model in (
            plates,
            event_in_plate,
            student_vectors,
            chain_of_scales,
            walk,
            vector_walk,
            beside_others,
            masked,
            scaled,
        )
    },
}


@pytest.fixture(autouse=True)
def relaxed_ranks() -> Iterator[None]:
    """NumPyro's own laws promote ranks in batches."""
    with jax.numpy_rank_promotion("allow"):
        yield


def density_of(model: Callable, *args: Any) -> ep.Density:
    return ep.Density.of(ep.expectation(model, enumerate=False)(*args)).part("gamma1_plus")


class Compared(NamedTuple):
    """A model in both coordinates: at a position and its image, and the same prior draw."""

    position: Any
    terms: Any
    values: Any
    log_volume: Any
    moved_draw: Any
    plain_draw: Any


@functools.cache
def compared(name: str, is_blended: bool = False) -> list[Compared]:
    plain = density_of(MODELS[name])
    standard = plain.standardised()
    if is_blended:
        standard = plain.blended(np.linspace(0.0, 1.0, plain.dimension + 2)[1:-1])

    def moved(position: jax.Array) -> jax.Array:
        return to_plain_coordinates(standard, position[None])[0]

    @jax.jit
    def compare(rng_key: jax.Array) -> Compared:
        position = 1.5 * jax.random.normal(rng_key, (plain.dimension,))
        both = ((standard, position), (plain, moved(position)))
        return Compared(
            position,
            [density.terms(place) for density, place in both],
            [density.constrain(place) for density, place in both],
            jnp.linalg.slogdet(jax.jacfwd(moved)(position))[1],
            moved(standard.draw_prior(rng_key)[0]),
            plain.draw_prior(rng_key)[0],
        )

    return [compare(jax.random.key(k)) for k in range(3)]


@pytest.mark.parametrize("is_blended", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_log_densities_differ_by_the_jacobian(name: str, is_blended: bool) -> None:
    for found in compared(name, is_blended):
        one, other = found.terms
        np.testing.assert_allclose(one.log_prior, other.log_prior + found.log_volume, rtol=RTOL)
        np.testing.assert_allclose(one.log_likelihood, other.log_likelihood, rtol=RTOL)
        np.testing.assert_allclose(one.log_target, other.log_target, rtol=RTOL)
        for site, value in found.values[0].items():
            np.testing.assert_allclose(value, found.values[1][site], rtol=RTOL)


@pytest.mark.parametrize("name", FAMILIES)
def test_priors_are_standard(name: str) -> None:
    """Coordinates are independent, each with the standard law of the family."""
    for found in compared(name):
        expected = FAMILIES[name][1].logpdf(np.asarray(found.position)).sum()
        np.testing.assert_allclose(found.terms[0].log_prior, expected, rtol=RTOL)


@pytest.mark.parametrize("is_blended", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_positions_are_those_of_the_plain_density(name: str, is_blended: bool) -> None:
    for found in compared(name, is_blended):
        np.testing.assert_allclose(found.moved_draw, found.plain_draw, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_blended_coordinates_lead_from_standardised_to_own_ones(name: str) -> None:
    """With centredness 0 they are the former; with 1 locations and scales are gone.

    Heavy tails are tamed at either end.
    """
    plain = density_of(MODELS[name])
    position = jnp.linspace(-0.8, 0.9, plain.dimension)
    zeros, ones = np.zeros(plain.dimension), np.ones(plain.dimension)
    standard, blended = plain.standardised().terms(position), plain.blended(zeros).terms(position)
    np.testing.assert_allclose(blended.log_prior, standard.log_prior, rtol=RTOL)
    np.testing.assert_allclose(blended.log_likelihood, standard.log_likelihood, rtol=RTOL)
    values = plain.blended(ones).constrain(position)
    for site in plain.layout.sites:
        is_tamed = site.has_heavy_tails
        if not (site.is_transformed or is_tamed) and name != "GaussianRandomWalk":
            own = position[site.start : site.stop].reshape(site.shape)
            np.testing.assert_allclose(values[site.name], own, rtol=RTOL)


def test_the_neck_of_a_blended_funnel_is_no_rounding() -> None:
    """Where the scale is tiny, the value minus the location has no digits left."""

    def funnel() -> Any:
        s = numpyro.sample("s", dist.Normal(0.0, 10.0))
        return numpyro.sample("x", dist.Normal(1.0, jnp.exp(s)))

    density = density_of(funnel).blended(np.array([0.0, 0.5]))
    for u in (0.5, 0.5 + 1e-9, 0.6):
        found = density.terms(jnp.array([-5.0, u])).log_prior
        expected = laws.norm.logpdf(-5.0) + laws.norm.logpdf((u - 0.5) * np.exp(25.0)) + 25.0
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["chain_of_scales", "walk", "plates", "masked"])
def test_dependent_priors_are_standard_too(name: str, rng_key: jax.Array) -> None:
    """Draws of the last site, standard normal or Laplace whatever its scale is made of."""
    density = density_of(MODELS[name]).standardised()
    draws, _ = jax.jit(jax.vmap(density.draw_prior))(jax.random.split(rng_key, 5000))
    last = np.asarray(draws)[:, -1]
    assert_same_law(last, laws.laplace.cdf if name == "chain_of_scales" else laws.norm.cdf)


def test_coordinates_at_an_edge_are_stretched(rng_key: jax.Array) -> None:
    density = density_of(beside_others).standardised()
    positions = jax.random.normal(rng_key, (4, density.dimension))
    moved = np.asarray(to_plain_coordinates(density, positions))
    stretched = np.asarray(Stretch()(positions))
    assert [site.name for site in density.layout.sites] == ["share", "rate", "x", "low"]
    np.testing.assert_allclose(moved[:, [0, 5]], stretched[:, [0, 5]], rtol=RTOL)
    np.testing.assert_allclose(moved[:, 1], np.log(2.0) + stretched[:, 1], rtol=RTOL)
    assert (moved[:, 2:5] != stretched[:, 2:5]).all()


def test_stretch_and_its_inverse_and_slope() -> None:
    places = jnp.concatenate([-jnp.logspace(-8, 1.5, 40), jnp.zeros(1), jnp.logspace(-8, 1.5, 40)])
    stretched = Stretch()(places)
    np.testing.assert_allclose(Stretch().inv(stretched), places, rtol=1e-14)
    slopes = jax.vmap(jax.grad(Stretch()))(places)
    log_slopes = Stretch().log_abs_det_jacobian(places, stretched)
    np.testing.assert_allclose(log_slopes, jnp.log(slopes), atol=1e-14)


def test_draws_on_the_edge_have_finite_coordinates() -> None:
    inverse = Stretch().inv(jnp.array([-jnp.inf, jnp.inf]))
    np.testing.assert_array_less(np.abs(inverse), 40.0)
    assert inverse[0] == -inverse[1]


@pytest.mark.parametrize("law", [dist.HalfCauchy(5.0), dist.Exponential(0.2), dist.Uniform(2, 7)])
def test_tails_at_an_edge_are_those_of_a_normal_law(law: Any) -> None:
    """A law that is finite at an edge: in plain coordinates its log density falls by e^−|u|."""

    def model() -> Any:
        return numpyro.sample("x", law)

    density = density_of(model).part("gamma2")
    far = jnp.array([[-8.0], [-9.0], [-10.0]])
    plain = jax.vmap(density.terms)(far).log_prior
    np.testing.assert_allclose(jnp.diff(plain, n=2), 0.0, atol=0.01)
    stretched = jax.vmap(density.standardised().terms)(far).log_prior
    np.testing.assert_allclose(jnp.diff(stretched, n=2), -1.0, atol=0.05)


@pytest.mark.parametrize(
    ("law", "has_scale"),
    [
        (dist.HalfNormal(2.0), True),
        (dist.Gamma(2.0, 1.0), True),
        (dist.InverseGamma(3.0, 2.0).expand([3]).to_event(1), True),
        (dist.TruncatedNormal(0.0, 1.0, low=0.0), False),
        (
            dist.TransformedDistribution(dist.Normal(0.0, 1.0), dist.transforms.ExpTransform()),
            False,
        ),
        (dist.Beta(2.0, 2.0).expand([3]).to_event(1), False),
    ],
)
def test_which_laws_have_a_location_or_a_scale(law: Any, has_scale: bool) -> None:
    assert (location_scale(law) is not None) is has_scale


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (PROBLEMS["eight_schools"].model, True),
        (plates, True),
        (event_in_plate, True),
        (chain_of_scales, True),
        (walk, True),
        (family("MultivariateNormal"), False),
        (family("LogNormal"), False),
        (vector_walk, False),
        (scaled, False),
        (PROBLEMS["half_line"].model, False),
    ],
)
def test_which_scales_vary(model: Callable, expected: bool) -> None:
    args = {p.model: p.args for p in PROBLEMS.values()}.get(model, ())
    assert has_varying_scales(density_of(model, *args)) is expected


def test_positions_of_evidence_are_plain(rng_key: jax.Array) -> None:
    """AdaptiveIS works in standardised coordinates and gives back the model's own."""

    @ep.expectation
    def shifted() -> Any:
        x = numpyro.sample("x", dist.Normal(50.0, 0.1))
        numpyro.sample("y", dist.Normal(x, 0.1), obs=50.0)
        return x

    method = ep.AdaptiveIS(max_evaluations=20_000)
    result = ep.estimate_expectation(shifted(), method, rng_key=rng_key, throw=False)
    for part, evidence in result.evidence:
        if part == "gamma1_minus":
            continue
        weights = np.exp(evidence.log_weights - evidence.log_weights.max())
        mean = np.average(np.asarray(evidence.positions)[:, 0], weights=weights)
        assert mean == pytest.approx(50.0, abs=0.02)


def test_annealing_walks_in_the_coordinates_that_it_is_given(rng_key: jax.Array) -> None:
    """The paper's sampler has the model's own; in both it is unbiased."""

    def model() -> Any:
        x = numpyro.sample("x", dist.Normal(1.0, 2.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=2.5)
        return x

    density = density_of(model).part("gamma2")
    sampler = ep.AnIS(num_samples=50, num_temperatures=8, kernel=ep.RandomWalk(scale=0.8))
    run = jax.jit(jax.vmap(sampler.estimate, in_axes=(0, None)))
    keys = jax.random.split(rng_key, 400)
    plain, standard = run(keys, density), run(keys, density.standardised())
    # The same steps are twice as long in standardised coordinates.
    assert plain.trace.acceptance_rate.mean() > 1.1 * standard.trace.acceptance_rate.mean()
    for evidence in (plain, standard):
        assert_unbiased(np.asarray(evidence.log_z), laws.norm(1.0, 5**0.5).logpdf(2.5))


# Masked sites on which something depends ---------------------------------------------------------

HEIGHTS = np.array([0.3, np.nan, -1.1, np.nan])


def imputed(y: Any) -> Any:
    """Missing values without a factor of their own, which are observed as part of a column."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    found = numpyro.sample("found", dist.Normal(mean, 2.0).expand([2]).to_event(1).mask(False))
    column = jnp.asarray(HEIGHTS).at[jnp.array([1, 3])].set(found)
    with numpyro.plate("rows", 4):
        numpyro.sample("height", dist.Normal(mean, 2.0), obs=column)
        numpyro.sample("y", dist.Normal(column, 1.0), obs=y)
    return found[0]


def imputed_switches(y: Any) -> Any:
    with numpyro.plate("rows", 4):
        found = numpyro.sample("found", dist.Bernoulli(0.3).mask(False))
        numpyro.sample("switch", dist.Bernoulli(0.3), obs=found)
        numpyro.sample("y", dist.Normal(found.astype(float), 1.0), obs=y)
    return found[0]


def partly_used(y: Any) -> Any:
    """Of four masked elements the rest of the density sees the last two."""
    with numpyro.plate("rows", 4), handlers.mask(mask=np.array([True, False, False, False])):
        x = numpyro.sample("x", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0).mask(np.arange(4) > 1).to_event(1), obs=y)
    return x[0]


def scaled_and_masked(y: Any) -> Any:
    is_kept = handlers.mask(mask=np.arange(4) == 0)
    with numpyro.plate("rows", 4), is_kept, handlers.scale(scale=3.0):
        x = numpyro.sample("x", dist.Normal(0.5, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=y)
    return x[0]


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        (imputed, lambda values: 0.0),
        (imputed_switches, lambda values: 0.0),
        (partly_used, lambda values: laws.gamma.logpdf(values["x"][1], 2.0)),
        (scaled_and_masked, lambda values: 0.0),
    ],
)
def test_a_masked_element_that_matters_has_no_factor(
    model: Callable, kept: Callable, rng_key: jax.Array
) -> None:
    """The density is NumPyro's own, times the priors of elements on which nothing depends."""
    y = np.array([0.1, 0.8, -0.4, 1.2])
    density = density_of(model, y).part("gamma2")
    position, _ = density.draw_prior(rng_key)
    values = density.constrain(position)
    _, terms = density.terms_at(values)
    expected = float(log_density(model, (y,), {}, values)[0]) + kept(values)
    np.testing.assert_allclose(terms.log_prior + terms.log_likelihood, expected, rtol=RTOL)


def test_which_masked_elements_matter() -> None:
    """They are looked for by a program that is compiled once."""
    program = ep.expectation(partly_used)
    model = ep.Density.of(program(np.zeros(4))).model
    assert isinstance(model, NumpyroModel)
    assert model.freed == (("x", (True, False, True, True)),)  # the first one is not masked
    compiled = _compiled_changes.cache_info().misses
    again = ep.Density.of(program(np.ones(4))).model
    assert again == model
    assert _compiled_changes.cache_info().misses == compiled


def test_shares_are_those_of_numpyro() -> None:
    places = 3 * jax.random.normal(jax.random.key(0), (20, 4))
    theirs, ours = biject_to(constraints.simplex), Sticks()
    shares = ours(places)
    np.testing.assert_allclose(shares, theirs(places), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(ours.inv(shares), places, rtol=1e-12)
    slopes = ours.log_abs_det_jacobian(places, shares)
    np.testing.assert_allclose(slopes, theirs.log_abs_det_jacobian(places, shares), rtol=1e-9)
    assert ours.forward_shape((2, 3)) == theirs.forward_shape((2, 3))
    assert ours.inverse_shape((2, 4)) == theirs.inverse_shape((2, 4))


def test_small_shares_keep_their_digits() -> None:
    """What is left where nearly all is taken first, and where the product would be below all."""
    places = jnp.array([[60.0, 1.0], [-3.0, 200.0], [800.0, 0.0]])
    shares = Sticks()(places)
    assert (shares > 0).all()
    np.testing.assert_allclose(Sticks().inv(shares)[:2], places[:2], rtol=1e-12)
    left = -60.0 + np.log(2.0) + laws.logistic.logcdf(1.0)
    np.testing.assert_allclose(jnp.log(shares[0, 1]), left, rtol=1e-12)


def test_masked_elements_matter_beside_data_that_are_impossible() -> None:
    """All draws of ten known flags are wrong somewhere, and the density is 0 whatever is asked."""

    def known_flags(is_on: Any) -> Any:
        with numpyro.plate("rows", 10):
            flag = numpyro.sample("flag", dist.Bernoulli(0.3).mask(False))
            numpyro.factor("known", jnp.where(flag == is_on, 0.0, -jnp.inf))
        return flag[0]

    model = ep.Density.of(ep.expectation(known_flags, enumerate=False)(np.arange(10) % 2)).model
    assert isinstance(model, NumpyroModel)
    assert model.freed == (("flag", (True,) * 10),)
