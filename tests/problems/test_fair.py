"""Fair programs are answered, or refused for a reason that is theirs."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from problems.fair import FAIR
from tests.parameters import product
from tests.stats import assert_estimate, assert_mean

QUICK = {"labels_50000", "coarse_reading", "correlation_with_a_pole", "power_of_t"}
# Outputs without an answer, by number: why, as the finding says it.
REFUSED = {
    # The mean does not exist.
    ("correlation_with_a_pole", 1): "NaN or +inf",
    # 16 Gaussians do not cover a shell a hundredth thick.
    ("thin_shell_event", 0): "fresh exploration",
    # A hundredth of the mass is within 1e-16 of 1, and numbers end there.
    ("rates_at_the_edges", 0): "where numbers end",
    ("rates_at_the_edges", 1): "where numbers end",
    # 1e-77, in 200 dimensions.
    ("local_level", 1): "relative error",
}


@pytest.mark.usefixtures("relaxed_ranks")
@pytest.mark.parametrize("name", product(FAIR, slow=lambda name: name not in QUICK))
def test_fair_programs_are_answered_or_the_reason_is_known(name: str, seed: int) -> None:
    problem = FAIR[name]
    bound = ep.expectation(problem.model)(*problem.args)
    result = ep.estimate_expectation(bound, rng_key=seed, throw=False, progress_bar=False)
    for number, (output, truth) in enumerate(zip(result.outputs, problem.truth(), strict=True)):
        reason = REFUSED.get((name, number))
        if not output.status:
            assert reason is not None
            assert any(reason in str(finding) for finding in output.findings)
        else:
            assert math.isfinite(truth)
            # Sums over labels are exact up to rounding.
            error = max(output.standard_error, 1e-12 * abs(truth))
            assert_estimate(output.value, error, truth, degrees=output.degrees)


def test_labels_are_drawn_by_bisection_from_the_same_law(seed: int) -> None:
    """Half of 2,000 labels have no chance, and must not be drawn; the others are equal."""
    chances = jnp.tile(jnp.array([0.0, 1.0]), 1000) / 1000

    def model() -> Any:
        return numpyro.sample("k", dist.Categorical(probs=chances))

    density = ep.Density.of(ep.expectation(model, enumerate=False)())
    keys = jax.random.split(jax.random.key(seed), 4000)
    draws = np.asarray(jax.vmap(lambda key: density.model.draw(key, density.arrays))(keys)).ravel()
    assert np.all(draws % 2 == 1)
    assert_mean(draws, 1000.0)
    assert_mean(draws < 500, 0.25)
