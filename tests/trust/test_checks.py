"""Every check at its threshold, just below and just above it, and what it says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import estimand as ep
from estimand.density import Density
from estimand.sampling import pareto_k
from estimand.trust import (
    CHECKS,
    Finding,
    Goal,
    Status,
    check_agreement,
    check_evidence,
    check_goal,
    check_mixing,
    check_numbers,
    check_precision,
    check_resolution,
    check_size,
    check_tail,
    checked,
    thresholds,
)
from problems.figure1 import figure1
from tests.trust.helpers import evidence, output


def test_the_requested_error_may_be_exceeded_by_half() -> None:
    assert thresholds.SLACK == 1.5
    assert check_goal(output(2.0, 0.03), Goal(0.01)) == []
    (finding,) = check_goal(output(2.0, 0.0301), Goal(0.01))
    lack: Any = pytest.approx(1.505**2)
    assert finding == Finding(
        Status.not_converged, None, "relative error 1.5 %; 1 % requested", "goal", lack
    )
    (finding,) = check_goal(output(-0.004, 0.001), Goal(0.0005))
    assert finding.detail == "relative error 25 %; 0.05 % requested"


def test_an_error_beyond_all_numbers_is_refused_as_any_other() -> None:
    [finding] = check_goal(output(1e3, 1e200), Goal(1e-2))
    assert finding.status is Status.not_converged
    assert finding.lack == math.inf


def test_without_slack_the_goal_is_the_goal() -> None:
    assert check_goal(output(2.0, 0.02), Goal(0.01), slack=1.0) == []
    (finding,) = check_goal(output(2.0, 0.0201), Goal(0.01), slack=1.0)
    assert finding.detail == "relative error 1 %; 1 % requested"


def test_a_goal_without_an_error_is_not_reached() -> None:
    (finding,) = check_goal(output(0.0, math.inf), Goal(0.01))
    assert finding.detail == "no error is known; 1 % requested"
    (finding,) = check_goal(output(2.0, math.nan), Goal(0.01))
    assert finding.detail == "no error is known; 1 % requested"


def test_where_signs_cancel_the_goal_is_relative_to_a_share_of_the_magnitude() -> None:
    """E|f| = 10, of which one percent: 0.1."""
    assert check_goal(output(1e-9, 0.0015, magnitude=10.0), Goal(0.01)) == []
    (finding,) = check_goal(output(1e-9, 0.0016, magnitude=10.0), Goal(0.01))
    assert finding.detail == "relative error 1.6 %; 1 % requested"


def test_effective_samples() -> None:
    assert thresholds.MIN_ESS == 50.0
    assert check_size(50.0) == []
    assert check_size(math.inf) == []
    (finding,) = check_size(49.0, "Z1_plus")
    assert finding == Finding(Status.low_ess, "Z1_plus", "ESS 49; 50 needed", "size", 50 / 49)
    assert check_size(400.0, needed=thresholds.ENOUGH_ESS) == []
    (finding,) = check_size(399.0, needed=thresholds.ENOUGH_ESS)
    assert str(finding) == "ESS 399; 400 needed"
    # An ESS that is not a number is not enough.
    assert check_size(math.nan)[0].status is Status.low_ess


def heavy(count: int, largest_share: float) -> np.ndarray:
    """Log weights with a tail index of 2, one of which holds that share."""
    log_weights = np.log(1.0 / np.arange(2, count + 1) ** 2 + 1e-4)
    rest = np.exp(log_weights).sum()
    return np.append(log_weights, math.log(rest * largest_share / (1 - largest_share)))


def test_a_heavy_tail_counts_only_where_one_draw_weighs_much() -> None:
    assert thresholds.MAX_WEIGHT_SHARE == 0.002
    assert thresholds.MAX_PARETO_K == 0.7
    light = np.random.default_rng(0).normal(0.0, 0.1, 100)
    assert pareto_k(light) < 0.7
    assert math.exp(light.max()) / np.exp(light).sum() > 0.002
    assert check_tail(light) == []
    log_weights = heavy(4000, 0.3)
    tail = pareto_k(log_weights)
    assert tail > 0.7
    (finding,) = check_tail(log_weights, "Z2")
    assert finding == Finding(
        Status.heavy_tailed,
        "Z2",
        f"Pareto k {tail:.2f}, above 0.7, and one draw holds 30 % of the weight, above 0.2 %",
        "tail",
    )
    # The scale of the weights is nothing.
    assert check_tail(log_weights + 1000.0, "Z2") == [finding]


@pytest.mark.parametrize(("share", "is_found"), [(0.00199, False), (0.00201, True)])
def test_at_the_largest_share_that_is_allowed(share: float, is_found: bool) -> None:
    """Many equal weights, and 600 that are quantiles of a law with tail index 1."""
    weights = 1.0 + np.append(np.zeros(400_000), 800 / np.arange(2, 600) - 1.33)
    total = weights.sum()
    weights = np.append(weights, total * share / (1 - share))
    assert weights.argmax() == weights.size - 1
    assert pareto_k(np.log(weights)) > 0.7
    assert bool(check_tail(np.log(weights))) is is_found


def test_precision_without_degrees_of_freedom() -> None:
    assert check_precision(1 / 50, math.inf) == []
    lack: Any = pytest.approx(1.01)
    (finding,) = check_precision(1.01 / 50, math.inf, "Z2")
    assert finding == Finding(
        *(Status.low_ess, "Z2", "relative error 14 %; at most 14 % allowed", "precision"),
        lack=lack,
    )
    (finding,) = check_precision(math.inf, math.inf)
    assert finding.detail == "no error is known"
    assert check_precision(math.nan, math.inf)[0].detail == "no error is known"


def test_precision_with_few_degrees_of_freedom_says_how_many() -> None:
    (finding,) = check_precision(0.02, 7.0)
    assert finding.detail == "relative error 14 %; at most 7.8 % allowed with 7 degrees of freedom"


def test_chains_that_agree() -> None:
    assert thresholds.MAX_R_HAT == 1.05
    assert check_mixing(1.05) == []
    (finding,) = check_mixing(1.051)
    assert finding == Finding(
        Status.not_converged, None, "R-hat 1.05; at most 1.05 allowed", "mixing"
    )
    (finding,) = check_mixing(2.5, "Z1_minus")
    assert str(finding) == "Z1_minus: R-hat 2.50; at most 1.05 allowed"
    assert check_mixing(math.nan)[0].status is Status.not_converged


def test_routes_that_agree() -> None:
    assert thresholds.MAX_JOINT_ERRORS == 4.0
    first = output(10.0, 0.3)
    assert check_agreement(first, output(12.0, 0.4), "another") == []
    (finding,) = check_agreement(first, output(12.01, 0.4), "another")
    assert finding == Finding(
        Status.replicates_disagree,
        None,
        "another says 12.01 ± 0.4: 4.0 joint standard errors away; at most 4 allowed",
        "agreement",
    )
    # No error on either side: equal or not.
    assert check_agreement(output(1.0, 0.0), output(1.0, 0.0), "another") == []
    assert check_agreement(output(1.0, 0.0), output(1.1, 0.0), "another") != []


def test_numbers() -> None:
    assert check_numbers(output(2.0, 0.1)) == []
    assert check_numbers(output(2.0, 0.0)) == []
    (finding,) = check_numbers(output(2.0, math.inf))
    assert finding == Finding(Status.low_ess, None, "no error is known", "numbers")
    assert check_numbers(output(2.0, math.nan)) == [finding]
    (finding,) = check_numbers(output(math.inf, 0.1))
    assert finding == Finding(Status.nan_density, None, "the value is inf", "numbers")
    assert check_numbers(output(math.nan, 0.1))[0].detail == "the value is nan"


def test_evidence_is_checked_for_everything() -> None:
    assert check_evidence(evidence()) == []
    assert [finding.check for finding in check_evidence(evidence(0.0, 1.0, num_samples=3))] == [
        "size",
        "precision",
    ]
    (finding,) = check_evidence(evidence(num_invalid=1200), "Z2")
    assert str(finding) == "Z2: the density was NaN or +inf at 1,200 positions"
    nothing = evidence(-math.inf, math.inf, log_weights=[-math.inf] * 2000)
    (finding,) = check_evidence(nothing)
    assert finding == Finding(Status.no_mass_found, None, "all 2,000 weights are 0", "mass")
    tailed = evidence(0.0, 0.001, log_weights=np.log(40_000 / np.arange(2, 40_000)))
    found = check_evidence(tailed, "Z1_plus")
    assert [finding.check for finding in found] == ["tail"]
    assert tailed.status is Status.heavy_tailed


def test_all_outputs_go_through_all_checks() -> None:
    density = Density.of(ep.expectation(figure1)(2.0))
    assert {check_resolution, check_numbers} == set(CHECKS)
    good, bad, vague = checked(
        [output(2.0, 0.1), output(math.nan, 0.1), output(2.0, math.nan)], density
    )
    assert good.findings == ()
    assert bad.status is Status.nan_density
    assert vague.status is Status.low_ess
    assert bad.standard_error == vague.standard_error == math.inf
    found = Finding(Status.low_ess, None, "mine", "mine")

    def mine(_output: Any, _density: Any) -> list[Finding]:
        return [found]

    (own,) = checked([output(2.0, 0.1)], density, [mine, mine])
    assert own.findings == (found, found)
