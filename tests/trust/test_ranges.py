"""Parameters that leave their ranges are noted, with their site and how often they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.trust import notes_on_ranges
from tests.stats import assert_estimate, assert_proportion


def notes_of(model: Callable, *args: Any) -> list[str]:
    return notes_on_ranges(ep.Density.of(ep.expectation(model)(*args)))


def normal_scale(y: Any) -> Any:
    scale = numpyro.sample("scale", dist.Normal(0.0, 1.0))
    x = numpyro.sample("x", dist.Normal(0.0, scale))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x > 1.0


def linear_rate(y: Any) -> Any:
    rate = numpyro.sample("rate", dist.Normal(1.0, 1.0))
    numpyro.sample("y", dist.Poisson(rate), obs=y)
    return rate


def chance(y: Any) -> Any:
    p = numpyro.sample("p", dist.LogNormal(-2.0, 1.0))
    with numpyro.plate("tosses", 3):
        numpyro.sample("heads", dist.Bernoulli(probs=p), obs=y)
    return p


@pytest.mark.parametrize(
    ("model", "args", "words"),
    [
        (normal_scale, (1.0,), ("scale of site 'x' is negative", "HalfNormal")),
        (linear_rate, (2,), ("rate of site 'y' is negative",)),
        (chance, (np.array([0, 1, 0]),), ("probs of site 'heads' is outside of [0, 1]",)),
    ],
)
def test_what_may_leave_its_range_is_named(
    model: Callable, args: tuple, words: tuple[str, ...]
) -> None:
    (note,) = notes_of(model, *args)
    for word in words:
        assert word in note


def test_the_share_is_that_of_the_prior() -> None:
    (note,) = notes_of(linear_rate, 2)
    share = float(note.split(" at ")[1].split(" %")[0]) / 100
    assert_proportion(round(1024 * share), 1024, 0.15866)


def proven(y: Any, x: Any) -> Any:
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(1.0))
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    count = numpyro.sample("count", dist.Poisson(jnp.exp(slope)))
    numpyro.sample("kind", dist.Bernoulli(share * 0.5 + 0.25))
    numpyro.sample("y", dist.Normal(slope * x, spread + 0.1 * count), obs=y)
    return slope


def masked(y: Any) -> Any:
    scale = numpyro.sample("scale", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(0.0, scale).mask(scale > 0), obs=y)
    return scale


def test_what_stays_in_its_range_is_not_mentioned() -> None:
    x = np.linspace(-1.0, 1.0, 5)
    assert notes_of(proven, 2 * x, x) == []
    assert notes_of(masked, 1.0) == []


@pytest.mark.parametrize("key", range(4))
def test_a_scale_that_may_be_negative_is_noted_beside_an_answer(key: int) -> None:
    """The prior draws without a density crashed the fit with two of these keys."""
    y = np.array([1.0, 2.0, 0.5])
    result = ep.estimate_expectation(ep.expectation(normal_scale)(y), rng_key=key, throw=False)
    assert any("scale of site 'x'" in note for note in result.run.notes)
    s = np.linspace(1e-3, 8.0, 1601)
    x = np.linspace(-12.0, 12.0, 2401)[:, None]
    log = -0.5 * s**2 - 0.5 * (x / s) ** 2 - np.log(s) - 0.5 * ((x - y.mean()) ** 2) * y.size
    density = np.exp(log).sum(axis=1)
    truth = density[x[:, 0] > 1.0].sum() / density.sum()
    assert_estimate(result.value, max(result.standard_error, 1e-3), truth, degrees=15)
