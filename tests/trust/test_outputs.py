"""Outputs from their parts: which of them matter, the ratio, its error and its limits."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest

from estimand.trust import (
    Evidence,
    Goal,
    OutputEstimate,
    Parts,
    Status,
    combine,
    is_material,
    joint_errors,
    rule_of_three,
    thresholds,
    without_value,
)
from tests.trust.helpers import evidence, output

# --- which parts matter ---


def test_a_part_is_material_unless_the_error_of_the_others_dwarfs_all_of_it() -> None:
    """Its size is compared with half of the joint error of the others."""
    assert thresholds.MATTERS == 0.5
    assert is_material(2.51, [3.0, 4.0])
    assert not is_material(2.5, [3.0, 4.0])
    assert not is_material(2.49, [3.0, 4.0])
    assert is_material(1e-300, [])
    assert not is_material(0.0, [])
    assert not is_material(1e300, [math.inf])


def parts_of(minus: float, variances: tuple[float, float, float] = (1e-4,) * 3) -> Parts:
    """Z1⁺ = 1, Z2 = 1/7 and Z1⁻ as given."""
    logs = (0.0, math.log(minus), -math.log(7.0))
    return Parts(*(evidence(log, v) for log, v in zip(logs, variances, strict=True)))


def test_a_part_matters_by_the_rule_and_on_any_scale() -> None:
    """Z1⁺ and Z2 have an error of 1 %: in units of Z1⁺ together √2 %, of which half counts."""
    edge = 0.5 * math.hypot(0.01, 0.01 * (1 - 0.00707))
    for size, is_large in ((1.01 * edge, True), (0.99 * edge, False)):
        parts = parts_of(size)
        assert parts.matters("minus") is is_large
        assert parts.matters("plus")
        for shift in (-5000.0, 5000.0):
            moved = Parts(*(part._replace(log_z=part.log_z + shift) for part in parts))
            assert moved.matters("minus") is is_large
            assert moved.matters("plus")


def test_z2_always_matters() -> None:
    """Also where the other parts are far less certain, cancel or are not there."""
    assert parts_of(1.0, (1.0, 1.0, 1e-12)).matters("normaliser")
    assert Parts(normaliser=evidence()).matters("normaliser")
    assert Parts().matters("normaliser")


def test_a_part_without_mass_does_not_matter() -> None:
    parts = Parts(evidence(0.0), evidence(-math.inf, math.inf), evidence(0.0))
    assert not parts.matters("minus")
    assert parts.matters("plus")
    assert not Parts(evidence(0.0), None, evidence(0.0)).matters("minus")


@pytest.mark.parametrize("unknown", [math.inf, math.nan])
def test_a_part_without_a_finite_error_matters_and_does_not_hide_the_others(
    unknown: float,
) -> None:
    """However small it is; and a part that matters beside a known one does so beside it."""
    tiny = parts_of(1e-9, (1e-4, unknown, 1e-4))
    assert tiny.matters("minus")
    assert tiny.matters("plus")
    large = parts_of(0.5, (unknown, 1e-4, 1e-4))
    assert large.matters("plus")
    assert large.matters("minus")
    # Z2's own unknown error hides none either.
    assert parts_of(0.5, (1e-4, 1e-4, unknown)).matters("minus")


def test_parts_know_what_was_estimated() -> None:
    plus, normaliser = evidence(1.0), evidence(2.0)
    parts = Parts(plus=plus, normaliser=normaliser)
    assert dict(parts.known()) == {"Z1_plus": plus, "Z2": normaliser}
    assert parts.log_z("plus") == 1.0
    assert parts.log_z("minus") == -math.inf
    assert math.isnan(Parts().log_z("plus"))
    assert math.isnan(Parts().log_z("normaliser"))


# --- combining ---


def sampled(seed: int, log_scale: float, count: int = 4000) -> Evidence:
    """Evidence of lognormal weights, with the error that they have."""
    rng = np.random.default_rng(seed)
    log_weights = log_scale + rng.normal(0.0, 0.5, count)
    weights = np.exp(log_weights)
    variance = weights.var(ddof=1) / count / weights.mean() ** 2
    return evidence(math.log(weights.mean()), variance, log_weights=log_weights)


def test_the_value_and_error_are_those_of_the_ratio() -> None:
    parts = sampled(0, 1.0), sampled(1, 0.3), sampled(2, -0.7)
    combined = combine(*parts)
    z = [np.exp(np.asarray(part.log_weights)).mean() for part in parts]
    v = [np.exp(np.asarray(part.log_weights)).var(ddof=1) / part.log_weights.size for part in parts]
    value = (z[0] - z[1]) / z[2]
    assert combined.value == pytest.approx(value)
    # Var[(a − b)/c] to first order, in units of Z and not of its logarithm.
    variance = (v[0] + v[1]) / z[2] ** 2 + value**2 * v[2] / z[2] ** 2
    assert combined.standard_error == pytest.approx(math.sqrt(variance))
    assert combined.magnitude == pytest.approx((z[0] + z[1]) / z[2])
    assert combined.status is Status.ok
    assert math.isinf(combined.degrees)
    assert not combined.is_log_scale
    assert combined.ess.plus == pytest.approx(parts[0].ess)
    assert combined.ess.z1 == pytest.approx(min(parts[0].ess, parts[1].ess))
    assert combined.ess.z2 == pytest.approx(parts[2].ess)
    assert combined.parts == Parts(*parts)


def test_f_of_one_sign_has_its_interval_on_the_log_scale() -> None:
    plus, z2 = evidence(0.0), evidence(0.0)
    assert combine(plus, None, z2).is_log_scale
    assert combine(plus, None, z2).value == 1.0
    negative = combine(None, plus, z2)
    assert negative.is_log_scale
    assert negative.value == -1.0
    # A part that has no mass is none.
    assert combine(plus, evidence(-math.inf, math.inf), z2).is_log_scale


def test_degrees_of_freedom_are_satterthwaites() -> None:
    """Pieces (Z₊v₊)², (Z₋v₋)² and ((Z₊ − Z₋)v₂)² with 3, 7 and 15 degrees, by hand."""
    plus = evidence(math.log(3.0), 4e-4, degrees=3.0)
    minus = evidence(math.log(1.0), 9e-4, degrees=7.0)
    normaliser = evidence(math.log(2.0), 1e-4, degrees=15.0)
    pieces = [9 * 4e-4, 1 * 9e-4, 4 * 1e-4]
    expected = sum(pieces) ** 2 / (pieces[0] ** 2 / 3 + pieces[1] ** 2 / 7 + pieces[2] ** 2 / 15)
    combined = combine(plus, minus, normaliser)
    assert combined.degrees == pytest.approx(expected)
    assert 3 < combined.degrees < 25
    alone = combine(plus, None, evidence(0.0, 0.0, degrees=15.0))
    assert alone.degrees == pytest.approx(3.0)
    certain = combine(evidence(0.0, 0.0, degrees=3.0), None, evidence(0.0, 0.0))
    assert (certain.standard_error, certain.degrees) == (0.0, math.inf)


def test_an_expectation_below_all_numbers_underflows() -> None:
    """It is not 0 ± 0, and the bound says how small it is."""
    combined = combine(evidence(-2000.0), None, evidence(-100.0))
    assert combined.status is Status.underflow
    assert (combined.value, combined.standard_error) == (0.0, math.inf)
    assert combined.upper_bound == sys.float_info.min
    (finding,) = combined.findings
    assert "the logarithm of E|f| is -1900.0; -708.4 is the least" in finding.detail
    assert combined.parts.log_z("plus") == -2000.0
    # An error that is not told needs no effective samples.
    poor = combine(evidence(-2000.0, 1.0, num_samples=3), None, evidence(-100.0))
    assert poor.findings == combined.findings
    above = combine(evidence(thresholds.LOG_MIN + 0.01), None, evidence(0.0))
    assert above.status is Status.ok
    assert above.value > 0
    assert combine(evidence(thresholds.LOG_MIN - 0.01), None, evidence(0.0)).status is (
        Status.underflow
    )


def test_an_expectation_above_all_numbers_is_capped() -> None:
    """Finite, with the relative error that it has."""
    combined = combine(evidence(5000.0, 1e-4), evidence(4990.0, 1e-4), evidence(0.0, 0.0))
    assert math.isfinite(combined.value)
    assert combined.value == pytest.approx(math.exp(thresholds.LOG_MAX), rel=1e-4)
    assert combined.value <= sys.float_info.max / 2
    assert combined.standard_error / combined.value == pytest.approx(0.01, rel=1e-3)
    assert math.isfinite(combined.magnitude)


NOTHING = evidence(-math.inf, math.inf, log_weights=[-math.inf] * 100)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((NOTHING, NOTHING, evidence()), "no sample has mass of the target"),
        ((NOTHING, None, evidence()), "no sample has mass of the target"),
        ((None, NOTHING, evidence()), "no sample has mass of the target"),
        ((evidence(), evidence(), NOTHING), "no sample has mass of the posterior"),
        ((NOTHING, NOTHING, NOTHING), "no sample has mass of the target"),
    ],
)
def test_no_mass_is_never_zero_without_error(parts: Any, words: str) -> None:
    combined = combine(*parts)
    assert (combined.value, combined.standard_error) == (0.0, math.inf)
    assert combined.status is Status.no_mass_found
    assert [finding.detail for finding in combined.findings] == [words]


def test_nothing_known_is_never_zero_without_error() -> None:
    nothing = without_value()
    assert (nothing.value, nothing.standard_error) == (0.0, math.inf)
    assert nothing.upper_bound == math.inf
    assert without_value(num_draws=1000).upper_bound == pytest.approx(3 / 1000, rel=0.01)
    assert rule_of_three(1000) == 1 - 0.05 ** (1 / 1000)
    assert rule_of_three(0.1) == rule_of_three(1.0) == pytest.approx(0.95)


def test_nan_is_the_finding_whatever_else_there_is() -> None:
    for parts in (
        (evidence(num_invalid=3), None, evidence()),
        (NOTHING, evidence(num_invalid=3), evidence()),
        (evidence(-2000.0, num_invalid=3), None, evidence()),
        (evidence(), None, evidence(num_invalid=3)),
    ):
        combined = combine(*parts)
        assert combined.status is Status.nan_density
        assert any("NaN or +inf at 3 positions" in str(finding) for finding in combined.findings)


def test_parts_that_matter_are_checked_and_others_are_not() -> None:
    """The weights of the negative part are poor: that counts only where it is large enough."""
    good, poor = evidence(0.0, 1e-4), evidence(math.log(0.5), 1.0, num_samples=3)
    combined = combine(good, poor, good)
    assert combined.status is Status.low_ess
    assert {finding.part for finding in combined.findings} == {"Z1_minus"}
    small = combine(good, poor._replace(log_z=np.log(0.001)), good)
    assert small.findings == ()
    # Z2 is checked however small its share of the error is.
    assert combine(good, None, poor).findings[0].part == "Z2"


# --- errors ---


def test_an_error_is_relative_to_the_value_or_to_a_share_of_the_magnitude() -> None:
    assert output(-2.0, 0.1).error_scale == 2.0
    assert output(-2.0, 0.1, magnitude=1000.0).error_scale == 10.0
    assert output(0.0, 0.1).error_scale == math.inf
    assert output(2.0, 0.02).is_within(Goal(0.01))
    assert not output(2.0, 0.0201).is_within(Goal(0.01))
    assert not output(0.0, math.inf, magnitude=1.0).is_within(Goal(0.01))


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [
        (output(1.0, 3.0), output(11.0, 4.0), 2.0),
        (output(11.0, 4.0), output(1.0, 3.0), 2.0),
        (output(1.0, 0.0), output(1.0, 0.0), 0.0),
        (output(1.0, 0.0), output(1.1, 0.0), math.inf),
        (output(1.0, math.inf), output(5.0, 1.0), 0.0),
    ],
)
def test_joint_errors(first: OutputEstimate, second: OutputEstimate, distance: float) -> None:
    assert joint_errors(first, second) == pytest.approx(distance)
