"""Hostile programs, each with the exact outcome that it must have.

An outcome was decided from what a user would expect, before the program was run: a refusal when
data are bound, a status that is not `ok`, or the right answer. Never 0 ± 0, never a silent NaN.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam, TransformReparam

import estimand as ep


@dataclass(frozen=True)
class Refused:
    """An error, with these words in it, when the program is called with its data."""

    words: tuple[str, ...]
    error: type[Exception] = ep.ProgramError


@dataclass(frozen=True)
class Told:
    """An estimate that is not `ok`, with exactly this status."""

    status: ep.Status


@dataclass(frozen=True)
class Right:
    """`ok`, and agreement with the truth by the estimate's own error."""

    truth: float | tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """A program: `bind` gives its expectation. `plain` is the outcome by draws from the prior."""

    bind: Callable[[], ep.Expectation]
    outcome: Refused | Told | Right
    plain: Told | Right | None


TABLE: dict[str, Row] = {}


def hostile(outcome: Any, plain: Any = None) -> Callable[[Callable], Callable]:
    def add(bind: Callable[[], ep.Expectation]) -> Callable[[], ep.Expectation]:
        assert bind.__name__ not in TABLE
        TABLE[bind.__name__] = Row(bind, outcome, plain or outcome)
        return bind

    return add


def refused(*words: str, error: type[Exception] = ep.ProgramError) -> Refused:
    return Refused(words, error)


NAN, NOTHING = Told(ep.Status.nan_density), Told(ep.Status.no_mass_found)


def returning(f: Callable[[Any], Any], y: Any = 2.0) -> ep.Expectation:
    """f of x ~ N(0, 1) given y ~ N(x, 1); at y = 2 the posterior is N(1, 1/2)."""

    @ep.expectation
    def program(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return f(x)

    return program(y)


def weighted(log_weight: Callable[[Any], Any]) -> ep.Expectation:
    """x ~ N(0, 1) with a factor."""

    @ep.expectation
    def program() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("weight", log_weight(x))
        return x

    return program()


def rate_of(law: Callable[[Any], Any], y: float) -> ep.Expectation:
    """The rate of the distribution of one observation."""

    @ep.expectation
    def program(y: float) -> Any:
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        numpyro.sample("y", law(rate), obs=y)
        return rate

    return program(y)


def observing(y: Any, make: Callable[[Any], Any] = jnp.asarray) -> ep.Expectation:
    """The mean of rows, with posterior N(sum / (n + 1), 1 / (n + 1))."""

    @ep.expectation
    def program(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        y = make(y)
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x**2

    return program(y)


ROWS = [0.3, -1.2, 2.0]
ROWS_TRUTH = (sum(ROWS) / 4) ** 2 + 1 / 4


def as_it_is(y: Any) -> Any:
    return y


# Densities that are NaN, infinite or zero -------------------------------------------------------


@hostile(NAN)
def nan_density_on_part_of_the_space() -> ep.Expectation:
    return weighted(lambda x: jnp.where(x > 1, jnp.nan, 0.0))


@hostile(NAN)
def infinite_density_on_part_of_the_space() -> ep.Expectation:
    return weighted(lambda x: jnp.where(x > 1, jnp.inf, 0.0))


@hostile(NAN)
def nan_density_everywhere() -> ep.Expectation:
    return weighted(lambda x: jnp.nan * x)


@hostile(NOTHING)
def zero_likelihood_everywhere() -> ep.Expectation:
    return weighted(lambda _: -jnp.inf)


@hostile(Right(math.sqrt(2 / math.pi)))
def zero_likelihood_on_half_the_space() -> ep.Expectation:
    return weighted(lambda x: jnp.where(x > 0, 0.0, -jnp.inf))


@hostile(NAN)
def a_negative_scale() -> ep.Expectation:
    @ep.expectation
    def program() -> Any:
        scale = numpyro.sample("scale", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(0.0, scale), obs=1.0)
        return scale

    return program()


@hostile(Told(ep.Status.unresolved))
def prior_draws_that_overflow() -> ep.Expectation:
    """One in 26 of them is above the largest number, and E[x] is e^80000."""

    @ep.expectation
    def program() -> Any:
        return numpyro.sample("x", dist.LogNormal(0.0, 400.0))

    return program()


@hostile(NAN, plain=Right(1.0))
def an_interval_without_width() -> ep.Expectation:
    """Its draws are all at 1, and its density is NaN."""

    @ep.expectation
    def program() -> Any:
        return numpyro.sample("x", dist.Uniform(1.0, 1.0))

    return program()


# Targets that are NaN, infinite or zero ---------------------------------------------------------


@hostile(NAN)
def target_nan_on_half_the_space() -> ep.Expectation:
    return returning(jnp.log)


@hostile(NAN)
def target_infinite_on_part_of_the_space() -> ep.Expectation:
    return returning(lambda x: jnp.where(x > 1, jnp.inf, x))


@hostile(NAN)
def target_minus_infinite_on_part_of_the_space() -> ep.Expectation:
    return returning(lambda x: jnp.where(x > 1, -jnp.inf, x))


@hostile(Right(1.0))
def target_infinite_at_one_point() -> ep.Expectation:
    @ep.expectation
    def program() -> Any:
        return -jnp.log(numpyro.sample("x", dist.Uniform(0.0, 1.0)))

    return program()


@hostile(Right(1.5))
def target_nan_where_the_density_is_zero() -> ep.Expectation:
    """x is exponential given x > 0, and sqrt(−1) is never asked for."""

    @ep.expectation
    def program() -> Any:
        x = numpyro.sample("x", dist.Laplace(0.0, 1.0))
        numpyro.factor("positive", jnp.where(x > 0, 0.0, -jnp.inf))
        return jnp.sqrt(x) ** 2 + 0.5

    return program()


@hostile(Right(3.0))
def constant_target() -> ep.Expectation:
    return returning(lambda _: 3.0)


@hostile(Right(0.0))
def target_identically_zero() -> ep.Expectation:
    return returning(lambda x: 0.0 * x)


@hostile(Right(0.0))
def target_zero_as_a_number() -> ep.Expectation:
    return returning(lambda _: 0)


@hostile(Right(0.0))
def parts_that_cancel_in_every_point() -> ep.Expectation:
    return returning(lambda x: x - x)


@hostile(Right(0.0))
def parts_that_cancel_exactly() -> ep.Expectation:
    return returning(lambda x: x, 0.0)


@hostile(Right((1.0, -1.0)))
def outputs_that_cancel_each_other() -> ep.Expectation:
    return returning(lambda x: (x, -x))


@hostile(Told(ep.Status.underflow))
def target_below_the_smallest_number() -> ep.Expectation:
    """E[f] is e^-1000 times 1.5: only log_z can represent it."""
    return returning(lambda x: jnp.exp(-600.0) * x**2 * jnp.exp(-400.0))


# Scales ------------------------------------------------------------------------------------------


@hostile(Right(1.5e300))
def target_of_scale_1e300() -> ep.Expectation:
    return returning(lambda x: 1e300 * x**2)


@hostile(Right(1.5e-300))
def target_of_scale_1e_minus_300() -> ep.Expectation:
    return returning(lambda x: 1e-300 * x**2)


def _scaled(scale: float) -> ep.Expectation:
    @ep.expectation
    def program(y: float) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, scale))
        numpyro.sample("y", dist.Normal(x, scale), obs=y)
        return (x / scale) ** 2

    return program(2.0 * scale)


@hostile(Right(1.5))
def sites_of_scale_1e300() -> ep.Expectation:
    return _scaled(1e300)


@hostile(Right(1.5))
def sites_of_scale_1e_minus_300() -> ep.Expectation:
    return _scaled(1e-300)


@hostile(Right(1.0))
def likelihood_of_scale_e1000() -> ep.Expectation:
    """Z2 is beyond every number; the ratio is not."""

    @ep.expectation
    def program() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("huge", 1000.0 + x)
        return x

    return program()


# State, randomness and control flow --------------------------------------------------------------


@hostile(refused("'program'", "different numbers on every call", "numpyro.sample"))
def random_target() -> ep.Expectation:
    return returning(lambda x: x + np.random.default_rng().normal())


@hostile(refused("'program'", "different numbers on every call", "remove the state"))
def stateful_target() -> ep.Expectation:
    calls: list[None] = []

    def count(x: Any) -> Any:
        calls.append(None)
        return x + len(calls)

    return returning(count)


@hostile(refused("'program'", "different numbers on every call", "numpyro.sample"))
def random_likelihood() -> ep.Expectation:
    @ep.expectation
    def program() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, np.random.default_rng().uniform(1, 2)), obs=2.0)
        return x

    return program()


@hostile(refused("'program'", "numpyro.prng_key()", "numpyro.sample"))
def randomness_that_is_no_site() -> ep.Expectation:
    return returning(lambda x: x + jax.random.normal(numpyro.prng_key()))


@hostile(Right(1.5))
def a_constant_that_was_drawn_once() -> ep.Expectation:
    offset = float(jax.random.normal(jax.random.key(0)))
    return returning(lambda x: x**2 + jax.random.normal(jax.random.key(0)) - offset)


@hostile(Right(1.5))
def mutable_default_argument() -> ep.Expectation:
    @ep.expectation
    def program(y: float, seen: list = []) -> Any:  # noqa: B006 - that is the point
        seen.append(len(seen))
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x**2

    return program(2.0)


@hostile(refused("'program'", "different numbers on every call", "remove the state"))
def mutable_default_argument_in_the_target() -> ep.Expectation:
    @ep.expectation
    def program(seen: list = []) -> Any:  # noqa: B006 - that is the point
        seen.append(len(seen))
        return numpyro.sample("x", dist.Normal(0.0, 1.0)) + len(seen)

    return program()


@hostile(Right(1.5))
def a_model_that_prints() -> ep.Expectation:
    def shown(x: Any) -> Any:
        print("the model was here")
        return x**2

    return returning(shown)


@hostile(refused("'program'", "jax.debug", "remove it"))
def a_model_that_prints_at_every_point() -> ep.Expectation:
    """JAX would unroll it over all particles: 20,000 of them took 10 GB and did not finish."""

    def shown(x: Any) -> Any:
        jax.debug.print("x = {}", x)
        return x

    return returning(shown)


@hostile(Right(5.0))
def control_flow_over_data() -> ep.Expectation:
    @ep.expectation
    def program(y: float, powers: list[int]) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        if y > 1:
            numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        total = jnp.zeros(())
        for power in powers:
            total += x**power
        return total

    return program(2.0, [1, 2, 3])


@hostile(refused("'program'", "jnp.where", "latent site"))
def control_flow_over_a_latent() -> ep.Expectation:
    return returning(lambda x: x if x > 0 else -x)


@hostile(refused("'program'", "functions of jax.numpy", "latent site"))
def numpy_of_a_latent() -> ep.Expectation:
    return returning(np.exp)


@hostile(refused("'program'", "functions of jax.numpy", "latent site"))
def a_latent_as_a_python_number() -> ep.Expectation:
    return returning(lambda x: math.exp(float(x)))


@hostile(Right(2.5))
def compiled_pieces_inside() -> ep.Expectation:
    @functools.partial(jax.jit, static_argnums=1)
    def power(x: Any, count: int) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, total: total * x, jnp.ones_like(x))

    return returning(lambda x: jax.vmap(lambda z: power(z, 3))(x[None])[0])


@hostile(refused("traced by JAX", "outside of jit"))
def data_that_are_traced() -> ep.Expectation:
    return jax.jit(lambda y: returning(lambda x: x, y).data.arrays[0])(2.0)


# Sites -------------------------------------------------------------------------------------------


@hostile(Right(3.0))
def no_latent_sites() -> ep.Expectation:
    @ep.expectation
    def program(y: float) -> Any:
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)
        return y + 1.0

    return program(2.0)


@hostile(Right(3.0))
def deterministic_sites_only() -> ep.Expectation:
    @ep.expectation
    def program() -> Any:
        return numpyro.deterministic("d", 3.0)

    return program()


@hostile(Right(3.0))
def factors_only() -> ep.Expectation:
    @ep.expectation
    def program() -> Any:
        numpyro.factor("weight", -1.0)
        return 3.0

    return program()


@hostile(Right(0.0))
def no_latent_sites_and_zero() -> ep.Expectation:
    @ep.expectation
    def program() -> Any:
        return 0.0

    return program()


@hostile(Right(1.0))
def no_observed_sites() -> ep.Expectation:
    @ep.expectation
    def program() -> Any:
        return numpyro.sample("x", dist.Normal(0.0, 1.0)) ** 2

    return program()


@hostile(Right(4.0))
def one_point_discrete() -> ep.Expectation:
    @ep.expectation
    def program() -> Any:
        k = numpyro.sample("k", dist.Categorical(jnp.ones(1)))
        n = numpyro.sample("n", dist.Binomial(0, 0.5))
        return (k + 2.0) ** 2 + n

    return program()


@hostile(Right(1.0))
def simplex_of_one_point() -> ep.Expectation:
    @ep.expectation
    def program() -> Any:
        return numpyro.sample("x", dist.Dirichlet(jnp.ones(1)))[0]

    return program()


@hostile(Right(1.0))
def a_latent_without_elements() -> ep.Expectation:
    @ep.expectation
    def program() -> Any:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([0]).to_event(1))
        return numpyro.sample("x", dist.Normal(0.0, 1.0)) ** 2 + z.sum()

    return program()


@hostile(refused("site 'x' of program 'program' is there twice", "name of its own"))
def duplicate_site_names() -> ep.Expectation:
    @ep.expectation
    def program() -> Any:
        return sum(numpyro.sample("x", dist.Normal(0.0, 1.0)) for _ in range(2))

    return program()


@hostile(refused("parameter 'w' of program 'program'", "numpyro.sample", "handlers.substitute"))
def a_parameter() -> ep.Expectation:
    return returning(lambda x: numpyro.param("w", 2.0) * x)


@hostile(Right(3.0))
def a_parameter_with_a_value() -> ep.Expectation:
    def model() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        return numpyro.param("w", 2.0) * x**2

    return ep.expectation(handlers.substitute(model, data={"w": jnp.asarray(3.0)}))()


@hostile(refused("site 'x' of program", "a random key of its own", "remove handlers.seed"))
def a_model_with_a_seed() -> ep.Expectation:
    def model() -> Any:
        return numpyro.sample("x", dist.Normal(0.0, 1.0))

    return ep.expectation(handlers.seed(model, 0))()


@hostile(refused("plate 'rows'", "4 of 10 rows", "remove subsample_size"))
def subsampled_plate() -> ep.Expectation:
    @ep.expectation
    def program(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 10, subsample_size=4) as rows:
            numpyro.sample("y", dist.Normal(x, 1.0), obs=jnp.asarray(y)[rows])
        return x

    return program(np.arange(10.0))


@hostile(refused("site 'x' of program 'program'", "Delta", "numpyro.deterministic"))
def latent_delta() -> ep.Expectation:
    @ep.expectation
    def program() -> Any:
        return numpyro.sample("x", dist.Delta(2.0))

    return program()


# What NumPyro has --------------------------------------------------------------------------------


def _pair(x: Any) -> None:
    numpyro.sample("y", dist.Normal(x, 1.0), obs=2.0)


@hostile(Right(1.5))
def masks() -> ep.Expectation:
    """The second row is not there, and its data are NaN."""

    @ep.expectation
    def program(y: Any, is_seen: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 2), handlers.mask(mask=is_seen):
            numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x**2

    return program(np.array([2.0, np.nan]), np.array([True, False]))


@hostile(Right(1.5))
def data_that_are_partly_latent() -> ep.Expectation:
    """`obs_mask` makes a latent site of the row that is not seen."""

    @ep.expectation
    def program(y: Any, is_seen: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 2):
            numpyro.sample("y", dist.Normal(x, 1.0), obs=y, obs_mask=is_seen)
        return x**2

    return program(np.array([2.0, 0.0]), np.array([True, False]))


@hostile(Right(11 / 9))
def scales() -> ep.Expectation:
    """Half a likelihood: the posterior is N(2/3, 2/3)."""

    @ep.expectation
    def program() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        with handlers.scale(scale=0.5):
            _pair(x)
        return x**2 + 1 / 9

    return program()


@hostile(Right(ROWS_TRUTH))
def nested_plates() -> ep.Expectation:
    @ep.expectation
    def program(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 3, dim=-2), numpyro.plate("columns", 1, dim=-1):
            numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x**2

    return program(np.array(ROWS)[:, None])


@hostile(Right(1.5))
def handlers_around_the_model() -> ep.Expectation:
    def model() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0))
        numpyro.sample("z", dist.Normal(x, 1.0), obs=9.0)
        return x**2

    blocked = handlers.block(handlers.condition(model, {"y": 2.0}), hide=["z"])
    return ep.expectation(blocked)()


@hostile(Right(1.5))
def reparametrised() -> ep.Expectation:
    def model() -> Any:
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.25))
        shift = numpyro.sample(
            "shift",
            dist.TransformedDistribution(
                dist.Normal(0.0, 1.0), dist.transforms.AffineTransform(0.0, scale)
            ),
        )
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        _pair(x)
        return x**2 + shift

    config = {"shift": TransformReparam(), "x": LocScaleReparam(0.0)}
    return ep.expectation(handlers.reparam(model, config))()


@hostile(Right(1.5))
def a_loop_by_lax_scan() -> ep.Expectation:
    def total(x: Any) -> Any:
        return jax.lax.scan(lambda sum_, _: (sum_ + x**2 / 50, None), 0.0, jnp.arange(50))[0]

    return returning(total)


@hostile(Right(1.0))
def sites_by_numpyros_scan() -> ep.Expectation:
    """A random walk of three steps, seen at its end: E[x3] = 3/4 · y, with y = 4/3."""

    @ep.expectation
    def program(y: float) -> Any:
        def step(x: Any, _: Any) -> tuple[Any, Any]:
            x = numpyro.sample("x", dist.Normal(x, 1.0))
            return x, x

        last, _ = scan(step, jnp.zeros(()), jnp.arange(3))
        numpyro.sample("y", dist.Normal(last, 1.0), obs=y)
        return last

    return program(4 / 3)


@hostile(Right(2 / 3))
def enumerated_sites() -> ep.Expectation:
    @ep.expectation
    def program() -> Any:
        k = numpyro.sample("k", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Bernoulli(0.25 + 0.25 * k), obs=1)
        return k

    return program()


@hostile(Right(1.5))
def a_callable_object() -> ep.Expectation:
    class Model:
        def __call__(self, y: float, *, scale: float) -> Any:
            x = numpyro.sample("x", dist.Normal(0.0, scale))
            numpyro.sample("y", dist.Normal(x, scale), obs=y)
            return x**2

    return ep.expectation(functools.partial(Model(), scale=1.0))(2.0)


@hostile(refused("'program'", "of type generator", "real numbers"))
def a_generator() -> ep.Expectation:
    @ep.expectation
    def program() -> Any:
        yield numpyro.sample("x", dist.Normal(0.0, 1.0))

    return program()


# Sizes and shapes --------------------------------------------------------------------------------


def thousands_of_latents(count: int) -> ep.Expectation:
    @ep.expectation
    def program(y: float) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([count]).to_event(1))
        numpyro.sample("y", dist.Normal(x.sum() / math.sqrt(count), 1.0), obs=y)
        return x.sum() ** 2 / count

    return program(2.0)


def thousands_of_outputs(count: int) -> ep.Expectation:
    return returning(lambda x: x**2 * jnp.arange(1.0, count + 1))


@hostile(Right((1.0, 1.0)), plain=Told(ep.Status.heavy_tailed))
def very_correlated_latents() -> ep.Expectation:
    """The likelihood ties two sites to 1e-4: each has posterior mean 1."""

    @ep.expectation
    def program() -> Any:
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        numpyro.sample("difference", dist.Normal(a - b, 1e-4), obs=0.0)
        numpyro.sample("sum", dist.Normal(a + b, math.sqrt(2)), obs=4.0)
        return a, b

    return program()


@hostile(Right((1.0, 0.5 * math.erfc(-1.0), 1.5, 2.0)))
def target_as_a_nest() -> ep.Expectation:
    return returning(lambda x: {"list": [x, x > 0], "int": (x**2, jnp.asarray(2))})


@hostile(refused("return value of program 'program'", "is None", "`return`"))
def target_none() -> ep.Expectation:
    return returning(lambda _: None)


@hostile(refused("return value of program 'program'", "complex", "real and imaginary parts"))
def target_complex() -> ep.Expectation:
    return returning(lambda x: x * 1j)


@hostile(refused("return value of program 'program'", "real numbers"))
def target_a_distribution() -> ep.Expectation:
    return returning(lambda x: dist.Normal(x, 1.0).log_prob)


# Data --------------------------------------------------------------------------------------------


@hostile(Right(ROWS_TRUTH))
def data_in_a_list() -> ep.Expectation:
    return observing(ROWS)


@hostile(refused("the data of site 'y' of program 'program' are a list", "pass an array"))
def data_in_a_list_as_it_is() -> ep.Expectation:
    return observing(ROWS, as_it_is)


@hostile(Right(ROWS_TRUTH))
def data_in_a_pandas_column() -> ep.Expectation:
    return observing(pd.DataFrame({"y": ROWS}, index=[5, 6, 7])["y"], as_it_is)


@hostile(refused("site 'y' of program 'program'", "NaN", "handlers.mask"))
def missing_values_in_a_pandas_column() -> ep.Expectation:
    return observing(pd.Series([0.3, None, 2.0]), as_it_is)


@hostile(Right(0.25 + 1.0))
def integer_data() -> ep.Expectation:
    return observing(np.array([1, 2, 1], np.int8))


@hostile(Right(8 / 15))
def counts_and_flags() -> ep.Expectation:
    """Beta(1, 1) after 6 of 10 and one success: Beta(8, 5), and f is x less a constant."""

    @ep.expectation
    def program(k: Any, is_true: Any) -> Any:
        x = numpyro.sample("x", dist.Beta(1.0, 1.0))
        numpyro.sample("k", dist.Binomial(10, x), obs=k)
        numpyro.sample("flag", dist.Bernoulli(x), obs=is_true)
        return x + 8 / 15 - 8 / 13

    return program(np.int64(6), True)


@hostile(refused("site 'y' of program 'program'", "(3,)", "(4,)", "Reshape the data"))
def data_of_another_length() -> ep.Expectation:
    @ep.expectation
    def program(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x[0]

    return program(np.zeros(4))


@hostile(refused("site 'y' of program 'program'", "(3,)", "(3, 1)", "more than once"))
def data_that_would_be_counted_more_than_once() -> ep.Expectation:
    @ep.expectation
    def program(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x[0]

    return program(np.zeros((3, 1)))


@hostile(Right(1.0))
def empty_data() -> ep.Expectation:
    """Without rows the posterior is the prior."""

    @ep.expectation
    def program(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0).expand([y.size]).to_event(1), obs=y)
        return x**2

    return program(np.zeros(0))


@hostile(refused("site 'y' of program 'program'", "dtype", "pass numbers"))
def data_of_text() -> ep.Expectation:
    return observing(np.array(["high", "low"]), as_it_is)


@hostile(refused("site 'y' of program 'program'", "complex", "real numbers"))
def complex_data() -> ep.Expectation:
    return observing(np.array(ROWS) + 1j, as_it_is)


@hostile(refused("site 'y' of program 'program'", "outside of its support"))
def data_outside_of_the_support() -> ep.Expectation:
    return rate_of(dist.Exponential, -1.0)


@hostile(refused("site 'y' of program 'program'", "outside of its support"))
def infinite_data() -> ep.Expectation:
    return observing(np.array([0.3, np.inf, 2.0]), as_it_is)


@hostile(refused("site 'y' of program 'program'", "outside of its support"))
def a_count_that_is_no_integer() -> ep.Expectation:
    return rate_of(dist.Poisson, 2.5)


@hostile(refused("site 'y' of program 'program'", "outside of its support"))
def data_on_the_edge_of_the_support() -> ep.Expectation:
    """NumPyro's exponential has no density at 0: an error is better than finding no mass."""
    return rate_of(dist.Exponential, 0.0)


@hostile(Right(1 / math.log(2)))
def data_in_a_support_that_depends_on_a_latent() -> ep.Expectation:
    """Given y = 1 in (0, t) the density of t is proportional to 1/t on (1, 2)."""

    @ep.expectation
    def program(y: int) -> Any:
        top = numpyro.sample("top", dist.Uniform(0.0, 2.0))
        numpyro.sample("y", dist.Uniform(0.0, top), obs=y)
        return top

    return program(1)


@hostile(refused("site 'y'", "argument 'y' is None", "Pass its data"))
def data_that_are_missing() -> ep.Expectation:
    return returning(lambda x: x, None)


def counted(rate: Any, least: int) -> ep.Expectation:
    """P(k > least) for a count whose rate has a prior."""

    @ep.expectation
    def program(least: int) -> Any:
        return numpyro.sample("k", dist.Poisson(numpyro.sample("rate", rate))) > least

    return program(least)


@hostile(Right(2 / math.pi * math.atan(1e-5)), plain=NOTHING)
def a_count_whose_rate_has_a_heavy_tail() -> ep.Expectation:
    """At 100,000 the spread of a count is 0.3 % of its rate: P(k > n) is P(rate > n) to 1e-5."""
    return counted(dist.HalfCauchy(1.0), 100_000)


@hostile(
    Right(0.5 * math.erfc((math.log(30_000.5) - 3.0) / math.sqrt(8.0))),
    plain=Told(ep.Status.low_ess),
)
def a_count_whose_rate_varies_by_orders_of_magnitude() -> ep.Expectation:
    return counted(dist.LogNormal(3.0, 2.0), 30_000)


@hostile(Told(ep.Status.heavy_tailed))
def a_cost_that_grows_as_fast_as_the_posterior_falls() -> ep.Expectation:
    """Beside N(0, 1/2) the mass is that of a Cauchy density, whose tails no draw of γ reaches."""
    return returning(lambda x: jnp.exp(x**2) / (1 + x**2), 0.0)


@hostile(refused("the return value of program 'program'", "is a distribution", "numpyro.sample"))
def a_return_value_that_is_a_distribution() -> ep.Expectation:
    """Its parameters are arrays in a pytree, and were two outputs in an order of their own."""
    return returning(lambda x: dist.Normal(x, 1.0))
