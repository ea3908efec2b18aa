"""When an evidence is precise enough to be trusted."""

from __future__ import annotations

import math

import pytest
import scipy.stats

from estimand.trust import check_precision
from estimand.trust.evidence import largest_variance
from estimand.trust.thresholds import MIN_ESS


@pytest.mark.parametrize("degrees", [3.0, 7.0, 15.0, math.inf])
def test_runs_that_underrate_their_error_do_not_pass(degrees: float) -> None:
    quantile = 1.0 if math.isinf(degrees) else scipy.stats.chi2.ppf(0.05, degrees) / degrees
    assert not check_precision(0.9 * quantile / MIN_ESS, degrees)
    assert check_precision(1.1 * quantile / MIN_ESS, degrees)
    assert largest_variance(degrees) == pytest.approx(quantile / MIN_ESS, rel=0.1)
