"""The value of a study's data by closed forms and enumeration, and both ends of its bracket."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats as laws

import estimand as ep
from estimand.answers import studies
from estimand.model import Study
from tests import stats

# Net benefit N(1, 2²) against 0, and ten observations with a standard deviation of 4.
EVSI = 0.289019


@ep.expectation
def net_benefit(action: str) -> Any:
    x = numpyro.sample("x", dist.Normal(1.0, 2.0))
    return x if action == "adopt" else 0.0


def trial(sites: dict[str, Any]) -> None:
    with numpyro.plate("patients", 10):
        numpyro.sample("outcome", dist.Normal(sites["x"], 4.0))


def measured(sd: float) -> Callable[[dict[str, Any]], None]:
    def measurement(sites: dict[str, Any]) -> None:
        numpyro.sample("mean", dist.Normal(sites["x"], sd))

    return measurement


def worth(sd: float) -> float:
    """By closed form: the posterior mean is normal, and what counts is where it is below 0."""
    spread = 4 / np.sqrt(4 + sd**2)
    return float(spread * laws.norm.pdf(1 / spread) - laws.norm.sf(1 / spread))


@functools.cache
def asked(study: Callable, seed: int = 0) -> ep.StudyValue:
    decision = ep.decide(net_benefit, ["adopt", "reject"], study=study, rng_key=seed)()
    [found] = decision.studies.values()
    return found


def assert_right(found: ep.StudyValue, truth: float) -> None:
    assert found.status, found.findings
    assert found.lower.value <= found.value <= found.upper.value or found.standard_error > 0
    stats.assert_estimate(found.value, found.standard_error, truth, degrees=15)


def test_the_closed_form() -> None:
    assert worth(4 / np.sqrt(10)) == pytest.approx(EVSI, abs=1e-6)
    assert worth(1e-6) == pytest.approx(0.395593115, abs=1e-8)
    # By quadrature over the mean of the study.
    means = np.linspace(-30, 32, 400_001)
    density = laws.norm.pdf(means, 1.0, np.sqrt(4 + 1.6))
    best = np.maximum(-(means * 4 + 1.6) / 5.6, 0.0)
    assert np.trapezoid(best * density, means) == pytest.approx(EVSI, abs=1e-6)


def test_ten_observations(seed: int) -> None:
    found = asked(trial, seed)
    assert_right(found, EVSI)
    assert found.name == "trial"
    assert found.standard_error < 0.05 * EVSI


@pytest.mark.slow
def test_intervals_cover() -> None:
    """The mean of ten observations says all that they say."""
    mean = measured(4 / np.sqrt(10))
    found = [asked(mean, seed) for seed in range(200)]
    assert all(item.status for item in found)
    low, high = np.asarray([item.interval for item in found]).T
    stats.assert_coverage(low, high, EVSI, at_least=0.95)
    # The ends are so close to each other that each is right by itself.
    for end in ("lower", "upper"):
        low, high = np.asarray([getattr(item, end).interval for item in found]).T
        stats.assert_coverage(low, high, EVSI, 0.95)


@pytest.mark.slow
def test_the_bracket_covers_where_the_ends_are_far_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten actions of which none stands out: few draws choose one by chance, and both ends miss."""

    def model() -> None:
        numpyro.sample("x", dist.Normal(0.0, 1.0).expand([10]).to_event(1))

    def utility(sites: dict[str, Any], action: int) -> Any:
        return sites["x"][action]

    def faint(sites: dict[str, Any]) -> None:
        numpyro.sample("y", dist.Normal(sites["x"], 5.0).to_event(1))

    decision = ep.decide(model, list(range(10)), utility=utility, throw=False)()
    monkeypatch.setattr(studies, "NUM_DRAWS", (256,))
    study = Study("faint", faint)
    found = [
        studies.value_of_study(study, decision.contrasts, decision.evpi, jax.random.key(number))
        for number in range(200)
    ]
    # The posterior means are independent and normal: the largest of ten, by quadrature.
    grid = np.linspace(-8, 8, 100_001)
    largest = np.trapezoid(grid * 10 * laws.norm.pdf(grid) * laws.norm.cdf(grid) ** 9, grid)
    truth = float(largest / np.sqrt(26))
    low, high = np.asarray([item.interval for item in found]).T
    stats.assert_coverage(low, high, truth, at_least=0.95)
    assert stats.mean_scores(np.asarray([item.lower.value for item in found]), truth) < -5
    assert stats.mean_scores(np.asarray([item.upper.value for item in found]), truth) > 5


@pytest.mark.parametrize("size", [1, 8])
def test_binary_outcomes_and_data_by_enumeration(size: int, seed: int) -> None:
    @ep.expectation
    def rollout(action: str, successes: int) -> Any:
        rate = numpyro.sample("rate", dist.Beta(1.0, 1.0))
        numpyro.sample("seen", dist.Binomial(5, rate), obs=successes)
        return 10.0 * (rate - 0.6) if action == "roll out" else 0.0

    def pilot(sites: dict[str, Any]) -> None:
        with numpyro.plate("people", size):
            numpyro.sample("success", dist.Bernoulli(sites["rate"]))

    counts = np.arange(size + 1)
    chances = laws.betabinom.pmf(counts, size, 4, 3)
    gains = 10.0 * ((4 + counts) / (7 + size) - 0.6)
    truth = float(chances @ np.maximum(gains, 0.0) - max(10.0 * (4 / 7 - 0.6), 0.0))
    decide = ep.decide(rollout, ["roll out", "wait"], study={"pilot": pilot}, rng_key=seed)
    assert_right(decide(3).studies["pilot"], truth)


def test_three_actions_and_two_studies_at_once(seed: int) -> None:
    """Stakes s with the utility s·x − s²/2: by quadrature over the posterior mean of x."""

    def utility(sites: dict[str, Any], stake: float) -> Any:
        return stake * sites["x"] - stake**2 / 2

    def model() -> None:
        numpyro.sample("x", dist.Normal(0.0, 1.0))

    stakes = [0.0, 1.0, -1.0]
    both = {"rough": measured(2.0), "fine": measured(0.5)}
    decision = ep.decide(model, stakes, utility=utility, study=both, rng_key=seed)()
    for name, sd in (("rough", 2.0), ("fine", 0.5)):
        mean = np.linspace(-8, 8, 100_001) / np.sqrt(1 + sd**2)
        best = np.max([stake * mean - stake**2 / 2 for stake in stakes], axis=0)
        density = laws.norm.pdf(mean, 0.0, 1 / np.sqrt(1 + sd**2))
        assert_right(decision.studies[name], float(np.trapezoid(best * density, mean)))
    assert "The data of fine would be worth" in str(decision)


@ep.expectation
def repair(action: str) -> Any:
    """A fault once in 4,300 times."""
    z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    return -300.0 if action == "repair" else jnp.where(z > 3.5, -1e6, 0.0)


def warning(sites: dict[str, Any]) -> None:
    is_faulty = sites["z"] > 3.5
    numpyro.sample("warning", dist.Bernoulli(jnp.where(is_faulty, 0.9, 0.05)))


def worth_of_a_warning() -> float:
    """By enumeration: with a warning one repairs, and without one not."""
    fault = float(laws.norm.sf(3.5))
    warned = fault * 0.9 + (1 - fault) * 0.05
    losses = min(300.0 * warned, 1e6 * fault * 0.9), min(300.0 * (1 - warned), 1e6 * fault * 0.1)
    return min(300.0, 1e6 * fault) - sum(losses)


def asked_of_repair(seed: int) -> ep.StudyValue:
    return ep.decide(repair, ["repair", "go"], study=warning, rng_key=seed)().studies["warning"]


def test_rare_losses_and_a_warning(seed: int) -> None:
    assert_right(asked_of_repair(seed), worth_of_a_warning())


@pytest.mark.slow
def test_intervals_cover_rare_losses() -> None:
    found = [asked_of_repair(seed) for seed in range(200)]
    usable = [item for item in found if item.status]
    assert len(usable) > 180
    low, high = np.asarray([item.interval for item in usable]).T
    stats.assert_coverage(low, high, worth_of_a_warning(), at_least=0.95)


def test_a_study_that_says_nothing() -> None:
    def coin(_sites: dict[str, Any]) -> None:
        numpyro.sample("coin", dist.Bernoulli(0.5))

    found = asked(coin)
    assert found.status.name == "no_mass_found"
    assert found.interval[0] == 0
    assert found.interval[1] == pytest.approx(0.3956, rel=0.02)
    assert found.value == 0


def test_a_measurement_that_tells_all_draws_apart() -> None:
    found = asked(measured(1e-4))
    assert found.interval[0] < worth(1e-4) < found.interval[1]
    if not found.status:
        assert found.status.name == "not_converged"
        assert "too few draws agree" in str(found.findings[-1])


def test_a_likelihood_that_is_not_a_number() -> None:
    def wrong(sites: dict[str, Any]) -> None:
        numpyro.sample("y", dist.Normal(sites["x"], jnp.where(sites["x"] > 0, 1.0, jnp.nan)))

    decision = ep.decide(net_benefit, ["adopt", "reject"], study=wrong)()
    assert decision.status
    assert decision.studies["wrong"].status.name == "nan_density"
    assert "cannot be relied on" in str(decision)


def test_the_same_key_gives_the_same_value() -> None:
    one, other = (
        ep.decide(net_benefit, ["adopt", "reject"], study=trial, rng_key=3)() for _ in range(2)
    )
    assert one.studies["trial"].value == other.studies["trial"].value


def test_what_a_study_must_be() -> None:
    def known(sites: dict[str, Any]) -> None:
        numpyro.sample("y", dist.Normal(sites["x"], 1.0), obs=0.3)

    def empty(_sites: dict[str, Any]) -> None:
        return None

    with pytest.raises(ep.ProgramError, match="'y' of study 'known' has a value already"):
        asked(known)
    with pytest.raises(ep.ProgramError, match="study 'empty' has no site"):
        asked(empty)
    with pytest.raises(TypeError, match="study= must be a function"):
        ep.decide(net_benefit, ["adopt", "reject"], study={"a": 3})  # type: ignore[dict-item]

    def labelled() -> None:
        z = numpyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
        numpyro.sample("x", dist.Normal(1.0 * z, 1.0))

    def utility(sites: dict[str, Any], action: float) -> Any:
        return action * (sites["x"] - 0.2)

    with pytest.raises(ep.ProgramError, match="give the program enumerate=False"):
        ep.decide(labelled, [0.0, 1.0], utility=utility, study=trial)()
