"""Progress reports: what they say, to which listeners, and that nothing is printed by default."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.runtime import Listener, Progress, Teller, progress
from tests.same import assert_same_outputs

METHOD = ep.AdaptiveIS(max_evaluations=30_000)


@ep.expectation
def program() -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=1.0)
    return x > 2.5


def estimated_with(
    listener: Listener, expectation: ep.Expectation, method: Any, monkeypatch: pytest.MonkeyPatch
) -> ep.Estimate:
    """An estimate with a listener in the place of the bar."""

    @contextlib.contextmanager
    def heard(_: bool | None, _name: str = "") -> Iterator[Listener]:
        yield listener

    monkeypatch.setattr("estimand.estimate.bar", heard)
    return ep.estimate_expectation(expectation, method, throw=False)


def test_stages_of_an_estimation(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Progress] = []
    result = estimated_with(heard.append, program(), METHOD, monkeypatch)
    stages = list(dict.fromkeys(item.stage for item in heard))
    assert stages[0] == "drawing from the prior"
    assert {"exploring γf⁺", "fitting", "integrating"} <= set(stages)
    assert "exploring γf⁻" not in stages
    spent = [item.spent for item in heard]
    assert spent == sorted(spent)
    assert spent[-1] <= result.num_evaluations + 3 * result.num_gradients
    assert {item.budget for item in heard} == {30_000}
    said = [item.estimate for item in heard if item.estimate]
    assert said[-1] == f"{result.value:.5g} ± {result.standard_error:.1g}"


@pytest.mark.usefixtures("relaxed_ranks")
def test_other_routes_say_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    @ep.expectation
    def discrete() -> Any:
        return numpyro.sample("k", dist.Multinomial(4, jnp.array([0.5, 0.5])))[0] > 3

    heard: list[Progress] = []
    estimated_with(heard.append, discrete(), ep.Auto(max_evaluations=50_000), monkeypatch)
    assert "by SMC" in [item.stage for item in heard]


@pytest.mark.parametrize("wanted", [None, False])
def test_nothing_is_printed_where_there_is_no_terminal(
    wanted: bool | None, capfd: pytest.CaptureFixture
) -> None:
    ep.estimate_expectation(program(), METHOD, throw=False, progress_bar=wanted)
    assert capfd.readouterr() == ("", "")


def test_a_bar_that_is_asked_for_is_on_standard_error(capfd: pytest.CaptureFixture) -> None:
    pytest.importorskip("rich")
    bare = ep.estimate_expectation(program(), METHOD, throw=False)
    result = ep.estimate_expectation(program(), METHOD, throw=False, progress_bar=True)
    assert capfd.readouterr().out == ""
    assert_same_outputs(result.outputs, bare.outputs)


def test_by_default_a_bar_is_shown_in_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    with progress.bar(None) as listener:
        assert listener is progress.ignore
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.bar(None) as listener:
        assert listener is not progress.ignore


def test_a_bar_without_rich_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rich", "rich.console", "rich.progress"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"estimand\[rich\]"):
        ep.estimate_expectation(program(), METHOD, progress_bar=True)


def test_compilations_are_counted_and_say_what_comes_next() -> None:
    heard: list[Progress] = []
    teller = Teller(heard.append)
    teller(Progress("exploring γ", 10, 100, "1 ± 1", num_programs=2))
    with teller.compiling():
        pass
    with teller.compiling():
        pass
    teller(Progress("by SMC"))
    with teller.compiling():
        pass
    assert [item.stage for item in heard] == [
        "exploring γ",
        "compiling (1 of 2), then exploring γ",
        "exploring γ",
        "compiling (2 of 2), then exploring γ",
        "exploring γ",
        "by SMC",
        "compiling (3), then by SMC",
        "by SMC",
    ]
    assert heard[1][1:] == (10, 100, "1 ± 1", 2)


def test_a_first_estimate_says_what_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    @ep.expectation
    def fresh() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.25))
        return (x > 2.0) * 1.5

    heard: list[Progress] = []
    estimated_with(heard.append, fresh(), METHOD, monkeypatch)
    compiling = [item.stage for item in heard if item.stage.startswith("compiling")]
    assert compiling[:2] == [
        "compiling (1 of 4), then drawing from the prior",
        "compiling (2 of 4), then drawing from the prior",
    ]
    heard.clear()
    estimated_with(heard.append, fresh(), METHOD, monkeypatch)
    assert not [item.stage for item in heard if item.stage.startswith("compiling")]
