"""Four of the problems, stated in every way in which a model can be stated.

Each statement is a function without arguments that gives a bound program. Parameters have the same
names in all of them, so that densities can be compared point by point.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import ndtr, ndtri
from jax.scipy.stats import norm
from numpyro.distributions import constraints

import estimand as ep
from problems import banana, eight_schools, gaussian, sir

DOORS = ("numpyro", "prior", "prior_transform", "log_prior", "pymc")
Statement = Callable[[], Any]


class Stated(NamedTuple):
    """A problem by door, and its truth."""

    truth: float
    by_door: dict[str, Statement]


# --- Gaussian ---


def _gaussian_likelihood(v: Any, y: Any) -> Any:
    return jnp.sum(norm.logpdf(y, v["x"], 1.0))


def _predictive(v: Any, y: Any) -> Any:
    return jnp.exp(jnp.sum(norm.logpdf(-y, v["x"], math.sqrt(0.5))))


def _gaussian_in_pymc() -> Any:
    import pymc as pm

    y = gaussian.data()
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0, shape=len(y))
        pm.Normal("y", x, 1.0, observed=y)
        log_f = pm.logp(pm.Normal.dist(x, math.sqrt(0.5)), -y).sum()
        f = pm.math.exp(log_f)
    return ep.from_pymc(model, f, name="gaussian")


def _gaussian() -> Stated:
    size = gaussian.DIMENSION
    y = gaussian.data()
    law = dist.Normal(0.0, 1.0).expand([size]).to_event(1)
    stated = functools.partial(
        ep.from_density, _gaussian_likelihood, f=_predictive, name="gaussian"
    )
    return Stated(
        gaussian.expectation(),
        {
            "numpyro": lambda: ep.expectation(gaussian.posterior_predictive)(y),
            "prior": lambda: stated(prior={"x": law})(y),
            "prior_transform": lambda: stated(
                prior_transform=lambda u: {"x": ndtri(u)}, dimension=size
            )(y),
            "log_prior": lambda: stated(
                log_prior=lambda v: jnp.sum(norm.logpdf(v["x"])),
                sampler=lambda key: {"x": jax.random.normal(key, (size,))},
            )(y),
            "pymc": _gaussian_in_pymc,
        },
    )


# --- banana ---


def _bend(v: Any) -> Any:
    curved = v["x2"] / 2 + 0.03 * (v["x1"] ** 2 - 100.0)
    return -0.5 * (0.03 * v["x1"] ** 2 + curved**2)


def _cut_cube(v: Any) -> Any:
    return (v["x1"] - 2.0) ** 3 * jax.nn.sigmoid(-50.0 * (v["x2"] + 5.0))


def _banana_in_pymc() -> Any:
    import pymc as pm

    with pm.Model() as model:
        x1 = pm.Normal("x1", 0.0, 4.0)
        x2 = pm.Normal("x2", 0.0, 4.0)
        curved = x2 / 2 + 0.03 * (x1**2 - 100.0)
        pm.Potential("banana", -0.5 * (0.03 * x1**2 + curved**2))
    return ep.from_pymc(model, _cut_cube, name="banana")


def _banana() -> Stated:
    stated = functools.partial(ep.from_density, _bend, f=_cut_cube, name="banana")
    law = dist.Normal(0.0, 4.0)

    def sampler(key: jax.Array) -> dict[str, jax.Array]:
        x1, x2 = 4.0 * jax.random.normal(key, (2,))
        return {"x1": x1, "x2": x2}

    return Stated(
        banana.EXPECTATION,
        {
            "numpyro": lambda: ep.expectation(banana.banana)(),
            "prior": lambda: stated(prior={"x1": law, "x2": law})(),
            "prior_transform": lambda: stated(
                prior_transform=lambda u: {"x1": 4 * ndtri(u[0]), "x2": 4 * ndtri(u[1])},
                dimension=2,
            )(),
            "log_prior": lambda: stated(
                log_prior=lambda v: norm.logpdf(v["x1"], 0.0, 4.0) + norm.logpdf(v["x2"], 0.0, 4.0),
                sampler=sampler,
            )(),
            "pymc": _banana_in_pymc,
        },
    )


# --- SIR ---

_RATE_LAW = dist.TruncatedNormal(2.0, 1.5, low=0.0)
_START_LAW = dist.TruncatedNormal(10.0, 10.0, low=0.0, high=1000.0)


def _counts(v: Any, y: Any) -> Any:
    mean = jnp.maximum(sir.new_infections(v["beta"], 10.0 * v["i0"]), sir.FLOOR)
    return jnp.sum(dist.NegativeBinomial2(mean, sir.DISPERSION).log_prob(y))


def _cost(v: Any) -> Any:
    return 1e12 * jax.nn.sigmoid(10.0 * v["beta"] / sir.RECOVERY - 30.0)


def _epidemic_from_cube(u: jax.Array) -> dict[str, jax.Array]:
    """By quantiles of the normal distributions between their bounds."""
    low, start, end = ndtr(-2.0 / 1.5), ndtr(-1.0), ndtr(99.0)
    return {
        "beta": 2.0 + 1.5 * ndtri(low + u[0] * (1 - low)),
        "i0": 10.0 + 10.0 * ndtri(start + u[1] * (end - start)),
    }


def _sir_in_pymc() -> Any:
    import pymc as pm
    import pytensor
    import pytensor.tensor as pt

    h = 1.0 / sir.STEPS_A_DAY

    def step(s: Any, i: Any, c: Any, beta: Any) -> list[Any]:
        def rates(s: Any, i: Any) -> tuple[Any, Any]:
            new = beta * s * i / sir.POPULATION
            return new, new - sir.RECOVERY * i

        n1, d1 = rates(s, i)
        n2, d2 = rates(s - h / 2 * n1, i + h / 2 * d1)
        n3, d3 = rates(s - h / 2 * n2, i + h / 2 * d2)
        n4, d4 = rates(s - h * n3, i + h * d3)
        new = h / 6 * (n1 + 2 * n2 + 2 * n3 + n4)
        return [s - new, i + h / 6 * (d1 + 2 * d2 + 2 * d3 + d4), c + new]

    with pm.Model() as model:
        beta = pm.TruncatedNormal("beta", 2.0, 1.5, lower=0.0)
        i0 = pm.TruncatedNormal("i0", 10.0, 10.0, lower=0.0, upper=1000.0)
        infected = 10.0 * i0
        _, _, total = pytensor.scan(
            step,
            outputs_info=[sir.POPULATION - infected, infected, pt.zeros(())],
            non_sequences=[beta],
            n_steps=sir.DAYS * sir.STEPS_A_DAY,
            return_updates=False,
        )
        daily = pt.diff(
            pt.concatenate([pt.zeros((1,)), total[sir.STEPS_A_DAY - 1 :: sir.STEPS_A_DAY]])
        )
        mean = pt.maximum(daily, sir.FLOOR)
        # Of Python's 0.5 PyTensor makes a number of single precision.
        dispersion = np.float64(sir.DISPERSION)
        pm.NegativeBinomial("y", mu=mean, alpha=dispersion, observed=sir.DATA)
    return ep.from_pymc(model, _cost, name="sir")


def _sir() -> Stated:
    stated = functools.partial(ep.from_density, _counts, f=_cost, name="sir")

    def sampler(key: jax.Array) -> dict[str, jax.Array]:
        keys = jax.random.split(key)
        return {"beta": _RATE_LAW.sample(keys[0]), "i0": _START_LAW.sample(keys[1])}

    return Stated(
        sir.EXPECTATION,
        {
            "numpyro": lambda: ep.expectation(sir.sir)(sir.DATA),
            "prior": lambda: stated(prior={"beta": _RATE_LAW, "i0": _START_LAW})(sir.DATA),
            "prior_transform": lambda: stated(prior_transform=_epidemic_from_cube, dimension=2)(
                sir.DATA
            ),
            "log_prior": lambda: stated(
                log_prior=lambda v: _RATE_LAW.log_prob(v["beta"]) + _START_LAW.log_prob(v["i0"]),
                sampler=sampler,
                supports={"beta": constraints.positive, "i0": constraints.interval(0.0, 1000.0)},
            )(sir.DATA),
            "pymc": _sir_in_pymc,
        },
    )


# --- eight schools ---


def _school_likelihood(v: Any, y: Any, sigma: Any) -> Any:
    return jnp.sum(norm.logpdf(y, v["theta"], sigma))


def _is_large(v: Any) -> Any:
    return v["theta"][0] > 28.0


def _large_effect(y: np.ndarray, sigma: np.ndarray) -> Any:
    return eight_schools.eight_schools(y, sigma)[2]


def _schools_in_pymc() -> Any:
    import pymc as pm

    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfCauchy("tau", 5.0)
        theta = pm.Normal("theta", mu, tau, dims="school")
        sigma = eight_schools.ERRORS
        pm.Normal("y", theta, sigma, observed=eight_schools.EFFECTS, dims="school")
    return ep.from_pymc(model, theta[0] > 28.0, name="eight_schools")


def _schools() -> Stated:
    data = eight_schools.EFFECTS, eight_schools.ERRORS
    stated = functools.partial(
        ep.from_density, _school_likelihood, f=_is_large, name="eight_schools"
    )
    mu_law, tau_law = dist.Normal(0.0, 5.0), dist.HalfCauchy(5.0)

    def sampler(key: jax.Array) -> dict[str, jax.Array]:
        keys = jax.random.split(key, 3)
        mu, tau = mu_law.sample(keys[0]), tau_law.sample(keys[1])
        return {"mu": mu, "tau": tau, "theta": mu + tau * jax.random.normal(keys[2], (8,))}

    def log_prior(v: Any) -> Any:
        effects = jnp.sum(norm.logpdf(v["theta"], v["mu"], v["tau"]))
        return mu_law.log_prob(v["mu"]) + tau_law.log_prob(v["tau"]) + effects

    def from_cube(u: jax.Array) -> dict[str, jax.Array]:
        mu, tau = 5.0 * ndtri(u[0]), 5.0 * jnp.tan(0.5 * jnp.pi * u[1])
        return {"mu": mu, "tau": tau, "theta": mu + tau * ndtri(u[2:])}

    [problem] = eight_schools.problems()
    assert isinstance(problem.value, tuple)
    return Stated(
        problem.value[2],
        {
            "numpyro": lambda: ep.expectation(_large_effect)(*data),
            "prior": lambda: stated(
                prior={
                    "mu": mu_law,
                    "tau": tau_law,
                    "theta": lambda v: dist.Normal(v["mu"], v["tau"]).expand([8]),
                }
            )(*data),
            "prior_transform": lambda: stated(prior_transform=from_cube, dimension=10)(*data),
            "log_prior": lambda: stated(
                log_prior=log_prior, sampler=sampler, supports={"tau": constraints.positive}
            )(*data),
            "pymc": _schools_in_pymc,
        },
    )


STATED = {
    "gaussian": _gaussian(),
    "banana": _banana(),
    "sir": _sir(),
    "eight_schools": _schools(),
}
