"""What is printed of an estimate: labels, order, many outputs, and what the log says."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep


@ep.expectation
def several(y: float) -> Any:
    """Keys in an order that is not the alphabet's."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return {"tail": x > 1, "moments": {"third": x**3, "first": x}, "mean": (x,)}


@ep.expectation
def twelve(y: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return {f"beyond {k / 4}": x > k / 4 for k in range(12)}


@ep.expectation
def single(y: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x


@functools.cache
def estimate(program: ep.ExpectationProgram) -> ep.Estimate:
    method = ep.TABI(ep.ImportanceSampling(num_samples=4000))
    return ep.estimate_expectation(program(2.0), method, throw=False)


NAMES = ["tail", "moments.third", "moments.first", "mean[0]"]
TRUTH = [0.5, 2.5, 1.0, 1.0]


def test_outputs_keep_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    result = estimate(several)
    result.save(tmp_path / "several.est")
    for one in (result, ep.load(tmp_path / "several.est"), result.merge(other_run())):
        for structure in (one.value, one.standard_error, one.interval()[0], one.log_z["Z2"]):
            assert list(structure) == ["tail", "moments", "mean"]
            assert list(structure["moments"]) == ["third", "first"]
            assert isinstance(structure["mean"], tuple)
        numbers = [
            one.value["tail"],
            one.value["moments"]["third"],
            one.value["moments"]["first"],
            one.value["mean"][0],
        ]
        assert numbers == [output.value for output in one.outputs]
        assert numbers == pytest.approx(TRUTH, abs=0.3)


def other_run() -> ep.Estimate:
    method = ep.TABI(ep.ImportanceSampling(num_samples=4000))
    return ep.estimate_expectation(several(2.0), method, throw=False, rng_key=1)


def test_labels_are_the_same_everywhere() -> None:
    result = estimate(several)
    assert list(result.output.labels) == result.names == NAMES
    assert [diagnosis.label for diagnosis in result.diagnoses] == NAMES
    assert [output["label"] for output in result.to_dict()["outputs"]] == NAMES
    assert list(result.to_dataframe()["output"]) == NAMES
    lines = repr(result).splitlines()[1:5]
    assert [line.split()[0] for line in lines] == NAMES
    assert {line.index("±") for line in lines} != {0}
    assert [row[0] for row in result.summary().tables[0].rows] == NAMES


def test_programs_that_differ_in_the_order_of_keys_alone_are_not_confused() -> None:
    """They have the same sorted leaves, and must not share what is compiled."""

    @ep.expectation
    def one() -> Any:
        x = numpyro.sample("x", dist.Normal(1.0, 0.1))
        return {"a": x, "b": -x}

    @ep.expectation
    def other() -> Any:
        x = numpyro.sample("x", dist.Normal(1.0, 0.1))
        return {"b": -x, "a": x}

    for program, order in ((one, "ab"), (other, "ba")):
        result = ep.estimate_expectation(program())
        assert list(result.value) == list(order)
        assert result.value["a"] == pytest.approx(1, abs=0.05)
        assert result.value["b"] == pytest.approx(-1, abs=0.05)
        first = program()[order[0]]
        assert ep.estimate_expectation(first).value == pytest.approx(
            result.value[order[0]], abs=0.05
        )


def test_branches_may_write_their_keys_in_another_order() -> None:
    @ep.expectation
    def program() -> Any:
        k = numpyro.sample("k", dist.Bernoulli(0.25), infer={"branching": True})
        if k:
            return {"b": numpyro.sample("one", dist.Normal(8.0, 1.0)), "a": 4.0}
        return {"a": 0.0, "b": numpyro.sample("zero", dist.Normal(4.0, 1.0))}

    result = ep.estimate_expectation(program(), throw=False)
    assert result.value["a"] == pytest.approx(1.0, abs=0.1)
    assert result.value["b"] == pytest.approx(5.0, abs=0.1)
    by_branch = {branch.values["k"]: branch.value["a"] for branch in result.branches}
    assert by_branch == pytest.approx({0: 0.0, 1: 4.0})
    labels = list(result.output.labels)
    for branch in result.to_dict()["branches"]:
        assert branch["value"][labels.index("a")] == by_branch[branch["values"]["k"]]


def test_nothing_that_is_shown_is_a_dump() -> None:
    result = estimate(several)
    assert repr(result) == str(result)
    for shown in (repr(result), repr(result.interval), repr(result.summary)):
        assert "array(" not in shown
        assert "Evidence(" not in shown


def test_one_output_is_a_float() -> None:
    result = estimate(single)
    assert float(result) == result.value
    with pytest.raises(TypeError, match="'several' has 4 outputs"):
        float(estimate(several))


def test_a_table_with_a_row_for_each_output() -> None:
    table = estimate(several).to_dataframe()
    assert list(table.columns)[:6] == ["output", "value", "standard_error", "low", "high", "status"]
    assert table["value"].tolist() == [output.value for output in estimate(several).outputs]


def test_twelve_outputs_fit_on_a_screen() -> None:
    """A terminal of 50 rows, with everything that there is to say."""
    result = estimate(twelve)
    assert len(str(result).splitlines()) < 40
    summary = result.summary()
    assert [len(table.rows) for table in summary.tables] == [12]
    text = summary.plain()
    assert len(text.splitlines()) < 50
    assert all(name in text for name in result.names)


def test_equal_findings_share_a_line() -> None:
    @ep.expectation
    def program() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        return {f"event {k}": x > 30 + k for k in range(9)}

    method = ep.SelfNormalised(ep.ImportanceSampling(num_samples=1000))
    result = ep.estimate_expectation(program(), method, throw=False)
    assert result.status is ep.Status.no_mass_found
    (line,) = [line for line in str(result).splitlines() if "no_mass_found:" in line]
    assert line.strip().startswith("event 0: no_mass_found: ")
    assert line.endswith("(also event 1, event 2, event 3, event 4, event 5, event 6 and 2 more)")


def test_the_log_is_silent_until_it_is_asked(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    assert any(
        isinstance(handler, logging.NullHandler)
        for handler in logging.getLogger("estimand").handlers
    )
    ep.estimate_expectation(single(2.0))
    assert capfd.readouterr() == ("", "")
    with caplog.at_level(logging.DEBUG, logger="estimand"):
        ep.estimate_expectation(single(2.0), rng_key=1)
    assert {record.name for record in caplog.records} == {"estimand"}
    text = caplog.text
    assert "E[single] by Auto()" in text
    assert "mixture: statuses ['ok']" in text
    assert "drawing from the prior" in text
