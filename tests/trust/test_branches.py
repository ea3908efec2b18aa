"""Sums over branches: value and error of ΣZ1 / ΣZ2, and probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from estimand.trust import (
    BranchEstimate,
    Evidence,
    OutputEstimate,
    Parts,
    combine,
    errors_of_pieces,
    merged_branch,
    pooled,
    probabilities,
    share_of_rest,
)
from estimand.trust.branches import interleaved, pooled_evidence
from tests.stats import assert_standard_errors
from tests.trust.helpers import evidence


def pieces() -> list[OutputEstimate]:
    """Three branches whose parts were estimated independently; one without Z1⁻."""
    return [
        combine(evidence(0.5, 1e-4), evidence(-1.0, 4e-4), evidence(1.0, 2e-4)),
        combine(evidence(-2.0, 9e-4), evidence(0.3, 1e-4), evidence(0.2, 3e-4)),
        combine(evidence(0.1, 2e-4), None, evidence(-1.5, 1e-4)),
    ]


def plain(estimates: list[OutputEstimate]) -> OutputEstimate:
    return pooled(estimates, [0.0] * len(estimates), is_one_model=False)


def test_a_sum_of_independent_parts_is_the_ratio_of_their_sums() -> None:
    total = plain(pieces())
    ratio = combine(*total.parts)
    assert total.value == pytest.approx(ratio.value, rel=1e-12)
    assert total.standard_error == pytest.approx(ratio.standard_error, rel=1e-12)
    assert total.covariance == pytest.approx(ratio.covariance, rel=1e-12)
    assert total.magnitude == pytest.approx(ratio.magnitude, rel=1e-12)
    errors = errors_of_pieces(pieces())
    assert math.hypot(*errors) == pytest.approx(total.standard_error)


def test_sums_of_sums_are_sums() -> None:
    first, second, third = pieces()
    nested = plain([plain([first, second]), third])
    total = plain(pieces())
    for field in ("value", "standard_error", "covariance", "magnitude"):
        assert getattr(nested, field) == pytest.approx(getattr(total, field), rel=1e-9)
    for field in Parts._fields:
        one, other = getattr(nested.parts, field), getattr(total.parts, field)
        assert float(one.log_z) == pytest.approx(float(other.log_z))
        assert float(one.relative_variance) == pytest.approx(float(other.relative_variance))


def test_the_error_of_a_sum_of_correlated_parts(seed: int) -> None:
    """Z1 and Z2 of a branch come from the same draws."""
    rng = np.random.default_rng(seed)
    means = np.array([[2.0, 1.0], [-0.5, 0.3], [0.9, 0.6]])
    root = 0.01 * rng.normal(size=(3, 2, 2))
    covariances = root @ root.transpose(0, 2, 1)
    shape = (300, 3)
    noise = np.einsum("bij,rbj->rbi", root, rng.normal(size=(*shape, 2)))
    found = [_summed(means + noise[run], covariances) for run in range(shape[0])]
    values, errors = np.asarray([(item.value, item.standard_error) for item in found]).T
    assert_standard_errors(values, errors)


def _summed(z: np.ndarray, covariances: np.ndarray) -> OutputEstimate:
    outputs = []
    for (z1, z2), covariance in zip(z, covariances, strict=True):
        slope = np.array([1.0, -z1 / z2]) / z2
        outputs.append(
            OutputEstimate(
                value=z1 / z2,
                standard_error=math.sqrt(slope @ covariance @ slope),
                covariance=float(slope @ covariance @ np.array([0.0, 1 / z2])),
                parts=Parts(
                    normaliser=evidence(math.log(z2), covariance[1, 1] / z2**2, num_samples=2)
                ),
            )
        )
    return plain(outputs)


def test_an_unknown_covariance_counts_at_its_worst() -> None:
    known = pieces()
    unknown = [output._replace(covariance=math.nan) for output in known]
    assert plain(unknown).standard_error > plain(known).standard_error
    for output in known:
        bound = output.standard_error * math.sqrt(float(output.parts.normaliser.relative_variance))
        assert abs(output.covariance) <= bound


def test_weights_of_a_sum_have_its_mean_and_are_spread_evenly() -> None:
    rng = np.random.default_rng(0)
    parts: list[Evidence | None] = []
    for size in (100, 300):
        logs = rng.normal(size=size)
        log_z = float(np.logaddexp.reduce(logs)) - math.log(size)
        parts.append(evidence(log_z, 1e-3, log_weights=logs))
    total = pooled_evidence([*parts, None], [0.0, math.log(2.0), 0.0], is_one_model=False)
    assert total is not None
    log_weights = np.asarray(total.log_weights)
    mean = float(np.logaddexp.reduce(log_weights)) - math.log(log_weights.size)
    assert mean == pytest.approx(float(total.log_z))
    order = interleaved([100, 300])
    assert [(order[:n] < 100).sum() for n in (40, 200, 400)] == [10, 50, 100]


def branch(value: int, log_z2: float, variance: float, mass: float = 0.25) -> BranchEstimate:
    output = OutputEstimate(float(value), 0.01, covariance=0.0)
    return BranchEstimate((("k", value),), mass, log_z2, variance, (output,), cost=100)


def test_probabilities_add_up_and_their_errors_cancel() -> None:
    two = [branch(0, math.log(3.0), 1e-4, 0.5), branch(1, 0.0, 4e-4, 0.5)]
    first, second = probabilities(two)
    assert (first.value, second.value) == pytest.approx((0.75, 0.25))
    error = 0.75 * 0.25 * math.sqrt(5e-4)
    assert (first.standard_error, second.standard_error) == pytest.approx((error, error))


def test_probabilities_know_of_branches_that_were_not_run() -> None:
    one = [branch(0, 0.0, 0.0, mass=0.9)]
    assert share_of_rest(one, 0.1) == pytest.approx(0.1)
    assert probabilities(one)[0].standard_error == pytest.approx(0.05)
    assert share_of_rest([branch(0, -math.inf, math.inf)], 0.5) == 0.0


def test_a_branch_without_mass_has_probability_0() -> None:
    found = probabilities([branch(0, 0.0, 1e-4, 0.5), branch(1, -math.inf, math.inf, 0.5)])
    assert found[1] == (0.0, 0.0)
    assert found[0].value == 1.0


def test_merged_branches_have_the_mean_of_their_z2() -> None:
    both = [branch(1, 0.0, 1e-4), branch(1, math.log(3.0), 1e-4)]
    merged = merged_branch(both, np.log([0.5, 0.5]))
    assert merged.log_z2 == pytest.approx(math.log(2.0))
    assert merged.relative_variance == pytest.approx(1e-4 * (0.25**2 + 0.75**2))
    assert merged.outputs[0].value == 1.0
    assert merged.outputs[0].standard_error == pytest.approx(0.01 * math.hypot(0.25, 0.75))
    assert merged.cost == 200
