"""Strict JAX, one seed for the whole suite, and a count of its statistical assertions."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from typing import Any

# Most of the suite's time is compilation of small problems: optimise them less.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=1"

# All processes of a run share one cache of compiled code, which no other run has seen.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["ESTIMAND_CACHE"] = tempfile.mkdtemp(prefix="estimand-tests-")
    atexit.register(shutil.rmtree, os.environ["ESTIMAND_CACHE"], ignore_errors=True)

import hypothesis
import jax
import pytest

from tests import stats

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

hypothesis.settings.register_profile(
    "estimand", deadline=None, derandomize=True, database=None, max_examples=25
)
hypothesis.settings.load_profile("estimand")

SEED = int(os.environ.get("ESTIMAND_TEST_SEED", "0"))

_ACCOUNT = "statistical_assertions"
_made_by_workers = 0


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of every random test; set by ``ESTIMAND_TEST_SEED``, and 0 without it."""
    return SEED


@pytest.fixture
def rng_key(seed: int) -> jax.Array:
    return jax.random.key(seed)


@pytest.fixture
def usual_ctrl_c() -> Iterator[None]:
    """Shells start background jobs with the signal ignored; here Ctrl-C means what it usually does.

    And it does so again after a test that fails.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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
    """With pytest-xdist every worker keeps its own count; the controller adds them up."""
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
