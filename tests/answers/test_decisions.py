"""Decisions against closed forms: the value of information, insurance, and what is refused."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats as laws

import estimand as ep
from problems import evidence as known
from tests import stats

EVPI = 0.395593115  # net benefit N(1, 2²) against 0


@ep.expectation
def net_benefit(action: str) -> Any:
    x = numpyro.sample("x", dist.Normal(1.0, 2.0))
    return x if action == "adopt" else 0.0


@ep.expectation
def insured(deductible: float) -> Any:
    """A loss of a million or so, once in 4,300 years."""
    z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    size = numpyro.sample("size", dist.Exponential(1.0))
    loss = jnp.where(z > 3.5, 1e6 * size, 0.0)
    return -(400.0 * jnp.exp(-deductible / 4e5) + jnp.minimum(loss, deductible))


def cost(deductible: float) -> float:
    paid = 1e6 * (1 - np.exp(-deductible / 1e6))
    return -(400 * np.exp(-deductible / 4e5) + laws.norm.sf(3.5) * paid)


def test_net_benefit_by_closed_form() -> None:
    decision = ep.decide(net_benefit, ["adopt", "reject"])()
    assert decision.status
    assert decision.best.name == "adopt"
    assert decision.is_resolved
    truths = {
        EVPI: decision.evpi,
        1.0: decision["reject"].difference,
        float(laws.norm.cdf(0.5)): decision["adopt"].probability,
        float(laws.norm.sf(0.5)): decision["reject"].probability,
    }
    for truth, quantity in truths.items():
        assert quantity is not None
        stats.assert_estimate(quantity.value, quantity.standard_error, truth, degrees=15)
    rejected = decision["reject"].utility
    assert (rejected.value, rejected.standard_error, rejected.is_exact) == (0.0, 0.0, True)
    assert decision["reject"].regret.value == pytest.approx(1 + EVPI, rel=0.01)
    assert "adopt is the best action" in str(decision)
    best = decision.best
    assert str(best) == (
        f"adopt: expected utility {best.utility.text}; the best with probability "
        f"{best.probability.text}; expected regret {best.regret.text}"
    )
    assert repr(rejected) == "0 exactly"
    assert f"{decision['reject'].difference} below the best" in repr(decision["reject"])
    with pytest.raises(KeyError, match="no action 'sell'"):
        decision["sell"]


def test_two_pages_compared() -> None:
    """By quadrature: the probability that the worse page is the better one, and what is lost."""
    decision = ep.decide(_pages, ["a", "b"], utility=lambda sites, page: sites[page])()
    assert decision.best.name == "b"
    worse, lost = known.PAGES
    for quantity, truth in ((decision["a"].probability, worse), (decision.evpi, lost)):
        assert quantity.status
        stats.assert_estimate(quantity.value, quantity.standard_error, truth, degrees=15)
    result = ep.estimate_expectation(ep.expectation(known.tests_of_pages)())
    for output, truth in zip(result.outputs, known.PAGES, strict=True):
        assert output.status
        stats.assert_estimate(output.value, output.standard_error, truth, degrees=15)


def _pages() -> None:
    known.tests_of_pages()


@pytest.mark.slow
def test_intervals_of_a_decision_cover() -> None:
    found = [ep.decide(net_benefit, ["adopt", "reject"], rng_key=k)() for k in range(200)]
    measured: dict[float, list[Any]] = {
        EVPI: [item.evpi for item in found],
        1.0: [item["reject"].difference for item in found],
        float(laws.norm.cdf(0.5)): [item["adopt"].probability for item in found],
    }
    for truth, quantities in measured.items():
        low, high = np.asarray([quantity.interval for quantity in quantities]).T
        stats.assert_coverage(low, high, truth, 0.95)


@pytest.mark.slow
def test_rare_and_huge_losses_decide() -> None:
    deductibles = np.array([0.0, 3e5, 1e6, 3e6])
    decision = ep.decide(insured, deductibles)()
    assert decision.best.setting == 1e6
    assert decision.is_resolved
    for action in decision.actions[1:]:
        utility, lead = action.utility, action.difference
        stats.assert_estimate(
            utility.value, utility.standard_error, cost(action.setting), degrees=15
        )
        if lead is not None:
            truth = cost(1e6) - cost(action.setting)
            stats.assert_estimate(lead.value, lead.standard_error, truth, degrees=15)
    # Averaged over 4,000 draws of the posterior most seeds see no loss at all.
    stats.assert_estimate(
        decision["0"].probability.value,
        decision["0"].probability.standard_error,
        float(laws.norm.sf(3.5) * np.exp(-(400 - 400 * np.exp(-7.5)) / 1e6)),
        degrees=15,
    )


def model(y: float) -> None:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)


def test_a_rare_loss_that_all_actions_have_in_common_leaves_their_difference() -> None:
    """It is 1 at every draw; it was refused for what the utilities could have been elsewhere."""
    counts = np.random.default_rng(0).poisson(1.4, 20)

    @ep.expectation
    def profit(premium: float) -> Any:
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        numpyro.sample("counts", dist.Poisson(rate).expand([20]).to_event(1), obs=counts)
        return jnp.where(premium > 0, premium - 1e6 * (rate > 4.8), 0.0)

    law = laws.gamma(2.0 + counts.sum(), scale=1 / 21)
    decision = ep.decide(profit, [0.0, 1.0, 2.0])()
    assert decision.status
    assert decision.best.setting == 2.0
    one, nothing = decision["1"].difference, decision["0"].difference
    assert one is not None
    assert one.value == pytest.approx(1.0, abs=1e-6)
    # Doing nothing is 0 exactly, so that the difference to it is the utility of the best.
    assert nothing is not None
    assert nothing.standard_error <= 1.0001 * decision.best.utility.standard_error
    truth = 2.0 - 1e6 * law.sf(4.8)
    stats.assert_estimate(nothing.value, nothing.standard_error, truth, degrees=15)


def test_utility_of_a_model_and_data() -> None:
    def utility(sites: dict[str, Any], stake: float) -> Any:
        return stake * sites["x"] - 0.3 * stake**2

    decision = ep.decide(model, {"none": 0.0, "low": 1.0, "high": 2.0}, utility=utility)(1.0)
    assert [action.name for action in decision.actions] == ["none", "low", "high"]
    assert decision.best.name == "low"
    assert decision["high"].utility.value == pytest.approx(2 * 0.5 - 1.2, abs=0.02)
    assert {row["name"] for row in decision.rows} == {"none", "low", "high"}


def test_a_dominated_action_is_never_best_and_the_choice_stands() -> None:
    decision = ep.decide(model, ["more", "less"], utility=_more)(0.0)
    assert decision.status
    worse = decision["less"].probability
    assert not worse.status
    assert worse.interval[0] == 0
    assert worse.interval[1] < 1e-3
    assert decision.evpi.is_exact or not decision.evpi.status
    assert "worth" in str(decision)


@pytest.mark.parametrize("is_drawn", [False, True])
def test_one_utility_written_in_two_ways_is_a_tie(is_drawn: bool) -> None:
    """They differ by 1e-17 or so at every other draw, which is rounding."""

    @ep.expectation
    def gain(action: str) -> Any:
        x = numpyro.sample("x", dist.Normal(1.0, 1.0)) if is_drawn else 0.3
        return x if action == "plain" else 1.1 * x - 0.1 * x

    decision = ep.decide(gain, ["plain", "other"])()
    assert decision.status
    assert not decision.is_resolved
    assert decision.evpi.value == 0
    assert [action.probability.value for action in decision.actions] == [1.0, 1.0]
    assert decision.runner_up.difference is not None
    assert decision.runner_up.difference.value == 0
    assert decision.runner_up.regret.value == 0


def test_what_is_small_beside_the_utilities_is_no_rounding() -> None:
    @ep.expectation
    def gain(action: str) -> Any:
        x = numpyro.sample("x", dist.Normal(1.0, 1.0))
        return 1e6 + (1e-4 * x if action == "adopt" else 0.0)

    decision = ep.decide(gain, ["adopt", "reject"])()
    assert decision.is_resolved
    assert decision.best.name == "adopt"
    worth = 1e-4 * (laws.norm.pdf(1) - laws.norm.sf(1))
    assert decision.evpi.value == pytest.approx(worth, rel=0.02)


def _more(sites: dict[str, Any], action: str) -> Any:
    return jnp.exp(sites["x"]) + (1.0 if action == "more" else 0.0)


def test_an_action_may_have_any_place_among_the_arguments() -> None:
    @ep.expectation
    def stake(y: float, action: float) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return action * x

    decision = ep.decide(stake, [0.0, 1.0], argument="action")(y=1.0)
    assert decision.best.name == "1"


def test_what_is_wrong_is_said_before_any_work() -> None:
    @ep.expectation
    def acted(action: float) -> Any:
        return numpyro.sample("x", dist.Normal(action, 1.0))

    @ep.expectation
    def vector(_action: float) -> Any:
        return numpyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))

    with pytest.raises(ep.ProgramError, match="'x' of program 'acted' depends on the action"):
        ep.decide(acted, [0.0, 1.0])()
    with pytest.raises(ep.ProgramError, match="not one real number"):
        ep.decide(vector, [0.0, 1.0])()
    with pytest.raises(ep.ProgramError, match="no argument 'stake'"):
        ep.decide(net_benefit, ["adopt", "reject"], argument="stake")()
    with pytest.raises(ValueError, match="two actions at least"):
        ep.decide(net_benefit, ["adopt"])
    with pytest.raises(ValueError, match="same name"):
        ep.decide(net_benefit, ["adopt", "adopt"])
    with pytest.raises(TypeError, match="a list, an array or a dict"):
        ep.decide(net_benefit, "adopt")


def test_a_utility_without_expectation_is_refused() -> None:
    @ep.expectation
    def wild(action: float) -> Any:
        return action * numpyro.sample("x", dist.Pareto(1.0, 0.9))

    with pytest.raises(ep.EstimationError) as caught:
        ep.decide(wild, [1.0, 2.0])()
    assert not caught.value.estimate.status
    assert "No choice can be relied on" in str(caught.value)


@pytest.mark.slow
def test_errors_without_bounds_are_no_crash() -> None:
    """E[e^x] of an exponential x does not exist, and its errors have squares beyond all numbers."""

    def model() -> None:
        numpyro.sample("x", dist.Exponential(1.0))

    question = ep.decide(
        model,
        [0, 1],
        utility=lambda sites, action: jnp.where(action == 1, jnp.exp(sites["x"]), 5.0),
        rng_key=2,
        throw=False,
    )
    assert not question().status


def test_doing_nothing_is_worth_0_whatever_the_demand() -> None:
    """The newsvendor: sales are the lesser of the order and of a Poisson demand."""

    @ep.expectation
    def profit(order: int) -> Any:
        demand = numpyro.sample("demand", dist.Poisson(3.0))
        return 5.0 * jnp.minimum(order, demand) - 2.0 * order

    decision = ep.decide(profit, [0, 2, 4])()
    nothing, few, many = decision.actions
    assert nothing.utility.is_exact
    assert nothing.utility.value == 0
    for action, order in ((few, 2), (many, 4)):
        sold = laws.poisson(3.0).expect(lambda demand, order=order: np.minimum(order, demand))
        truth = 5.0 * sold - 2.0 * order
        stats.assert_estimate(
            action.utility.value, action.utility.standard_error, truth, degrees=15
        )
    assert decision.best is many


@pytest.mark.parametrize("prior", [dist.Delta(0.3), dist.Beta(3.0, 7.0)], ids=["known", "unknown"])
def test_probabilities_know_what_is_summed_out(prior: Any) -> None:
    """Whether to treat, after a test: the disease is summed out, and still is not known."""

    @ep.expectation
    def utility(treats: bool) -> Any:
        share = 0.3 if isinstance(prior, dist.Delta) else numpyro.sample("share", prior)
        ill = numpyro.sample("ill", dist.Bernoulli(share))
        numpyro.sample("test", dist.Bernoulli(jnp.where(ill == 1, 0.9, 0.05)), obs=1)
        return -10.0 - 20.0 * ill if treats else -100.0 * ill

    decision = ep.decide(utility, [False, True])()
    waits, treats = decision.actions
    truth = 0.3 * 0.9 / (0.3 * 0.9 + 0.7 * 0.05)
    assert decision.best is treats
    for quantity, true in ((treats.probability, truth), (waits.probability, 1 - truth)):
        assert quantity.status
        assert abs(quantity.value - true) < 4 * quantity.standard_error + 1e-9
    assert decision.evpi.value == pytest.approx(10 * (1 - truth), rel=0.05)


def test_many_labels_are_summed_out_of_a_decision_by_their_count() -> None:
    """Each utility adds up the faulty items anew, and all of them depend on one count."""

    @ep.expectation
    def utility(action: str) -> Any:
        share = numpyro.sample("share", dist.Beta(2.0, 8.0))
        with numpyro.plate("items", 30):
            is_faulty = numpyro.sample("is_faulty", dist.Bernoulli(share))
        num_faulty = jnp.sum(is_faulty)
        inspected = jnp.where(num_faulty > 10, -20.0, -4.0)
        return {"sell": -1.0 * num_faulty, "inspect": inspected, "scrap": -12.0}[action]

    decision = ep.decide(utility, ["sell", "inspect", "scrap"])()
    counts = np.arange(31)
    shares = laws.betabinom(30, 2.0, 8.0).pmf(counts)
    utilities = np.stack([-1.0 * counts, np.where(counts > 10, -20.0, -4.0), np.full(31, -12.0)])
    truths = utilities @ shares
    is_best = utilities == utilities.max(axis=0)
    assert "30 × 2 values" in " ".join(decision.contrasts.run.notes)
    for number, action in enumerate(decision.actions):
        assert action.utility.value == pytest.approx(truths[number], rel=0.05)
        assert action.probability.value == pytest.approx(is_best[number] @ shares, rel=0.05)
    assert decision.evpi.value == pytest.approx(
        utilities.max(axis=0) @ shares - truths.max(), rel=0.05
    )


@ep.expectation
def branching(stake: float, y: float) -> Any:
    """x ~ N(1, 1) with probability 0.3, and N(0, 2²) otherwise."""
    if numpyro.sample("k", dist.Bernoulli(0.3), infer={"branching": True}):
        x = numpyro.sample("x", dist.Normal(1.0, 1.0))
    else:
        x = numpyro.sample("wide", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return stake * x - 0.3 * stake**2


def test_programs_that_branch() -> None:
    decision = ep.decide(branching, [0.0, 1.0], study=_outcome)(1.0)
    odds = np.array([0.3 * laws.norm.pdf(1, 1, 2**0.5), 0.7 * laws.norm.pdf(1, 0, 5**0.5)])
    shares, means, sizes = odds / odds.sum(), np.array([1.0, 0.8]), np.sqrt([0.5, 0.8])
    truths = {
        float(shares @ means - 0.3): decision["1"].utility,
        float(shares @ laws.norm.sf(0.3, means, sizes)): decision["1"].probability,
        float(shares @ laws.norm.cdf(0.3, means, sizes)): decision["0"].probability,
    }
    assert decision.status
    assert decision.best.name == "1"
    for truth, quantity in truths.items():
        stats.assert_estimate(quantity.value, quantity.standard_error, truth, degrees=15)
    [study] = decision.studies.values()
    assert "branches have no draws in common" in study.findings[0].detail
    assert "Decision by branching" in decision.to_html()


def _outcome(_sites: Any) -> None:
    numpyro.sample("outcome", dist.Normal(0.0, 1.0))


def test_branches_must_not_depend_on_the_action() -> None:
    @ep.expectation
    def moved(stake: float) -> Any:
        if numpyro.sample("k", dist.Bernoulli(0.5), infer={"branching": True}):
            return stake * numpyro.sample("x", dist.Normal(stake, 1.0))
        return 0.0

    with pytest.raises(ep.ProgramError, match=r"density of site 'x' .* depends on the action"):
        ep.decide(moved, [0.0, 1.0])()
