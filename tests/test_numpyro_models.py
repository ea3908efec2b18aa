"""Models in the style of NumPyro's documentation, estimated by the default method.

Where the truth is known the estimates must be correct. Elsewhere, estimates with status ok agree
with NumPyro's NUTS, and the others report a status and have no narrow interval away from the
reference.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from numpyro import handlers
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

import estimand as ep
from problems import numpyro_models as models
from problems import numpyro_truths as truths
from tests.parameters import product
from tests.stats import assert_estimate

NARROW = 0.015


class Case(NamedTuple):
    """Arguments of a model, and whether its estimate must be ok or may be refused by a status."""

    args: tuple[Any, ...]
    must_be_ok: bool = True


KNOWN = {
    "eight_schools": Case((models.SCHOOLS["sigma"], models.SCHOOLS["y"])),
    "baseball": Case((models.AT_BATS, models.HITS)),
    "lung_capacity": Case((models.PATIENT, models.WEEK, models.LUNG), must_be_ok=False),
    "funnel": Case(()),
    "ordinal": Case((models.GRADES_X, models.GRADES)),
    "survival": Case((models.LIFETIMES, models.IS_CENSORED)),
    "censored_lifetimes": Case((models.LIFETIMES, models.IS_CENSORED)),
    "imputation": Case((models.AGE, models.SCORE)),
    "zero_inflated": Case((models.COUNTS,)),
    "gaussian_process": Case((models.GP_X, models.GP_Y)),
    "autoregression": Case((models.SERIES, 3)),
    "hidden_markov": Case((models.WORDS,)),
    "hidden_markov_enumerated": Case((models.WORDS,), must_be_ok=False),
    "capture_recapture": Case((models.CAPTURES,), must_be_ok=False),
    "mixture": Case((models.CLUSTERED,)),
    "latent_dirichlet": Case((models.DOCUMENTS,), must_be_ok=False),
    "change_point": Case((models.ACCIDENTS,), must_be_ok=False),
    "shells": Case(()),
}
COMPARED = {
    "admissions": tuple(models.ADMISSIONS.values()),
    "neural_network": (models.NET_X, models.NET_Y),
    "ordinal_with_flat_cuts": (models.GRADES_X, models.GRADES),
    "stochastic_volatility": (models.RETURNS,),
    "predator_prey": (np.stack([models.HARES, models.LYNXES], axis=1),),
}


@pytest.fixture(autouse=True)
def relaxed_ranks() -> Iterator[None]:
    """NumPyro's own distributions promote ranks, and so do models written for it."""
    with jax.numpy_rank_promotion("allow"):
        yield


def estimate(name: str, args: tuple) -> ep.Estimate:
    expectation = ep.expectation(getattr(models, name))(*args)
    return ep.estimate_expectation(expectation, throw=False, progress_bar=False)


def assert_agrees(result: ep.Estimate, truth: float, error: float = 0.0) -> None:
    """The estimate is the truth, which is itself known up to a standard error."""
    output = result.outputs[0]
    both = math.hypot(output.standard_error, error)
    assert_estimate(output.value, both, truth, degrees=output.degrees)


def assert_honest(result: ep.Estimate, truth: float, error: float = 0.0) -> None:
    """An estimate that is ok, or that claims to be narrow, agrees; all others say why."""
    output = result.outputs[0]
    is_narrow = output.standard_error < NARROW * abs(output.value)
    if result.status or is_narrow:
        assert_agrees(result, truth, error)
    else:
        assert result.status.name in str(result)


@pytest.mark.parametrize("name", product(KNOWN, slow=lambda name: name != "censored_lifetimes"))
def test_where_the_truth_is_known(name: str) -> None:
    case, truth = KNOWN[name], truths.TRUTHS[name]()
    result = estimate(name, case.args)
    if case.must_be_ok:
        assert result.status is ep.Status.ok, str(result)
        assert_agrees(result, truth)
    else:
        assert_honest(result, truth)


@pytest.mark.slow
def test_horseshoe() -> None:
    truth, error = truths.horseshoe()
    assert error < 0.01 * truth
    assert_honest(estimate("horseshoe", (models.COVARIATES, models.RESPONSE)), truth, error)


def by_nuts(model: Callable, args: tuple, rng_key: jax.Array) -> tuple[float, float]:
    """The average of the return value over NumPyro's own NUTS, with its Monte Carlo error."""
    sampler = MCMC(
        NUTS(model, target_accept_prob=0.95),
        num_warmup=1500,
        num_samples=3000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    sampler.run(rng_key, *args)
    seeded = handlers.seed(model, 0)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=0)
    @functools.partial(jax.vmap, in_axes=0)
    def returned(draw: dict) -> jax.Array:
        return handlers.substitute(seeded, draw)(*args)

    f = np.asarray(returned(sampler.get_samples(group_by_chain=True)), float)
    assert float(split_gelman_rubin(f)) < 1.02, "the reference itself has not converged"
    size = float(effective_sample_size(f))
    assert size > 400, "the reference itself rests on too few draws"
    return float(f.mean()), float(f.std(ddof=1)) / math.sqrt(size)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARED)
def test_where_only_a_sampler_can_tell(name: str, rng_key: jax.Array) -> None:
    reference = by_nuts(getattr(models, name), COMPARED[name], rng_key)
    assert_honest(estimate(name, COMPARED[name]), *reference)


def test_truths_are_those_of_finer_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quadratures have converged: 50 % more nodes give the same."""
    names = ("zero_inflated", "survival", "imputation", "capture_recapture", "shells")
    before = {name: truths.TRUTHS[name]() for name in names}
    coarse = truths.legendre
    monkeypatch.setattr(truths, "legendre", lambda low, high, n: coarse(low, high, n + n // 2))
    for name, value in before.items():
        assert truths.TRUTHS[name]() == pytest.approx(value, rel=1e-6)
