"""Strict JAX, one seed for the whole suite, and the account of its statistical assertions."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from typing import Any

# Most of the suite's time is compilation of small problems: optimise them less.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=1"

import hypothesis
import jax
import pytest
import stats

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

hypothesis.settings.register_profile(
    "estimand", deadline=None, derandomize=True, database=None, max_examples=25
)
hypothesis.settings.load_profile("estimand")

SEED = int(os.environ.get("ESTIMAND_TEST_SEED", "0"))

_ACCOUNT = "statistical_assertions"
_made_by_workers = 0


# Dear members of families whose cheaper ones `make test` runs; `make test-slow` runs these.
DEAR = (
    r"test_evidence.py::test_results_do_not_depend_on_how_they_are_run\[(redraw|NUTS|RandomWalk|HMC)",
    r"test_evidence.py::test_annealed_is_unbiased\[(dependent|bounded|simplex)-(NUTS|HMC)",
    r"test_evidence.py::test_annealed_is_unbiased\[(half_line|simplex|bounded)-MALA",
    r"test_evidence.py::test_annealed_with_redraws_is_unbiased\[(bounded|simplex|dependent)",
    r"test_evidence.py::test_intervals_cover\[(simplex|bounded)",
    r"test_evidence.py::test_error_falls",
    r"test_evidence.py::test_importance_sampling_from_the_prior_is_unbiased\[simplex",
    r"test_evidence.py::test_right_in_both_precisions\[(NUTS|HMC)-True",
    r"test_evidence.py::test_nan_and_infinite_densities_are_counted\[.*True",
    r"test_kernels.py::test_kernel_leaves_its_target_invariant\[(bounded|simplex|dependent)-(NUTS|MALA|HMC)",
    r"test_kernels.py::test_kernel_leaves_its_target_invariant\[(bounded|dependent|simplex)-R",
    r"test_kernels.py::test_metric_is_a_change_of_coordinates",
    r"test_smc.py::test_fixed_smc_is_unbiased\[.*-dependent",
    r"test_smc.py::test_fixed_smc_is_unbiased\[(IndependentT|HMC)-half_line",
    r"test_smc.py::test_single_run_error_is_of_the_right_size",
    r"test_estimate.py::test_intervals_of_tabi_cover\[(posterior|half)",
    r"test_estimate.py::test_log_evidence_of_any_model",
    r"test_adaptive.py::test_expectations_that_do_not_exist_are_not_ok\[cauchy",
    r"test_adaptive.py::test_both_coordinates_agree_with_the_truth\[False",
    r"test_adaptive.py::test_one_percent_asked_one_percent_got\[(posterior_predictive|dependent|simplex|horse_kicks)",
    r"test_auto.py::test_integers_go_through_the_mixture\[drawn",
    r"test_importance.py::test_errors_are_not_below_rounding",
    r"test_smc.py::test_same_key_same_result",
    r"test_adaptive.py::test_a_second_attempt_mends_what_validation_found",
    r"test_invariances.py::test_names_of_sites",
    r"test_invariances.py::test_(order_of_data|one_batch_or_many)",
    r"test_reading.py::test_softened_smc",
    r"test_reading.py::test_rare_events_to_one_percent\[(far_out|rp22)",
    r"test_numpyro_models.py::test_where_the_truth_is_known\[(mixture|change_point|zero)",
    r"test_peers.py::test_numpyro_nuts",
    r"test_io.py::test_weighted_draws_give",
    r"test_bridge.py::test_evidence_of_every_part\[half",
    r"test_adaptive.py::test_few_scouts",
    r"test_resolution.py::test_unresolved\[(a mean|odds|a sparse simplex|all mass)",
    r"test_resolution.py::test_a_target_that_cancels",
    r"test_resolution.py::test_by_the_default_method",
    r"test_resolution.py::test_by_parts\[estimator0",
    r"test_evidence.py::test_intervals_cover\[half_line-estimator0",
    r"test_evidence.py::test_annealed_is_unbiased\[(half_line-NUTS|dependent-MALA)",
    r"test_evidence.py::test_many_samples_in_single_precision",
    r"test_bridge.py::test_high_dimension",
    r"test_report.py::test_the_page_is_whole_and_asks_for_nothing\[several",
    r"test_smc.py::test_fixed_smc_is_unbiased\[MALA-half_line",
    r"test_subset_simulation.py::test_mean_of_runs\[normal_tail",
    r"test_reading.py::test_product_of_many_logistics_in_single_precision",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    dear = re.compile("|".join(DEAR))
    for item in items:
        if dear.match(item.nodeid.removeprefix("tests/")):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of every random test; set by ``ESTIMAND_TEST_SEED``, and 0 without it."""
    return SEED


@pytest.fixture
def rng_key(seed: int) -> jax.Array:
    return jax.random.key(seed)


def pytest_report_header() -> str:
    return f"ESTIMAND_TEST_SEED={SEED}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    if report.failed:
        report.sections.append(("seed", f"ESTIMAND_TEST_SEED={SEED}"))
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """With pytest-xdist every worker keeps an account of its own; the controller adds them up."""
    global _made_by_workers
    _made_by_workers += getattr(node, "workeroutput", {}).get(_ACCOUNT, 0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    made = stats.assertions_made()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_ACCOUNT] = made
    elif made + _made_by_workers > stats.MAX_ASSERTIONS:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    made = stats.assertions_made() + _made_by_workers
    if made > stats.MAX_ASSERTIONS:
        terminalreporter.section("statistical assertions", red=True)
        terminalreporter.line(
            f"{made} comparisons were made and stats.MAX_ASSERTIONS is {stats.MAX_ASSERTIONS}: "
            "the declared FAILURE_RATE does not hold. Raise MAX_ASSERTIONS."
        )


@pytest.fixture
def relaxed_ranks() -> Iterator[None]:
    """For NumPyro's own code that promotes ranks, as in multinomial draws."""
    with jax.numpy_rank_promotion("allow"):
        yield
