"""Records of programs that branch: saved, merged, refined, resumed, shown and run as a command."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats as laws

import estimand as ep
from estimand.record.draws import joined_sites
from estimand.runtime import LocalRuntime
from problems.branching import BRANCHING_PROBLEMS
from tests.stats import assert_estimate

PRIOR = ep.TABI(ep.ImportanceSampling(num_samples=2000))
TRUTH = BRANCHING_PROBLEMS["two_models"]


@ep.expectation
def program() -> Any:
    return TRUTH.model()


@functools.cache
def result(seed: int = 0) -> ep.Estimate:
    return ep.estimate_expectation(program(), PRIOR, rng_key=seed)


def test_branches_survive_a_round_trip(tmp_path: Path) -> None:
    result().save(tmp_path / "result.est")
    loaded = ep.load(tmp_path / "result.est")
    assert loaded.branches == result().branches
    assert loaded.to_json() == result().to_json()
    assert str(loaded.summary()) == str(result().summary())
    for kept, read in zip(result().draws, loaded.draws, strict=True):
        for name, values in kept.sites.items():
            np.testing.assert_array_equal(values, read.sites[name])


def test_branches_as_plain_data() -> None:
    first, second = json.loads(result().to_json())["branches"]
    assert first["values"] == {"model1": 0}
    assert first["status"] == "ok"
    assert first["probability"] + second["probability"] == pytest.approx(1)
    by_label = dict(zip(result().output.labels, first["value"], strict=True))
    # Z1 and Z2 are independent, though f is 1 in this branch.
    assert by_label["first"] == result().branches[0].value["first"]
    assert by_label["mean"] == result().branches[0].value["mean"]


def test_merged_branches(tmp_path: Path) -> None:
    merged = result(0).merge(result(1), result(2))
    assert merged.to_json() == result(2).merge(result(0), result(1)).to_json()
    assert merged.branches[0].probability_error < result(0).branches[0].probability_error
    for branch, share in zip(merged.branches, TRUTH.probabilities.values(), strict=True):
        assert_estimate(branch.probability, branch.probability_error, share)
    truth = TRUTH.value["mean"]
    assert_estimate(merged.value["mean"], merged.standard_error["mean"], truth)
    result(1).save(tmp_path / "1.est")
    again = result(0).merge(ep.load(tmp_path / "1.est"), result(2))
    assert again.to_json() == merged.to_json()


def test_refining_runs_all_branches_again() -> None:
    goal = result().standard_error["mean"] / result().value["mean"] / 1.5
    refined = result().refine(relative_error=goal)
    assert len(refined.provenance.keys) > 1
    assert refined.standard_error["mean"] <= goal * refined.value["mean"]
    assert [branch.values for branch in refined.branches] == [{"model1": 0}, {"model1": 1}]


class _CutError(Exception):
    pass


def test_a_run_that_is_cut_off_between_branches_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, compute = 0, LocalRuntime.map

    def cut(self: LocalRuntime, tasks: Any) -> Any:
        nonlocal count
        count += 1
        if count == 2:
            raise _CutError
        return compute(self, tasks)

    with monkeypatch.context() as patched:
        patched.setattr(LocalRuntime, "map", cut)
        with pytest.raises(_CutError):
            ep.estimate_expectation(program(), PRIOR, checkpoint=tmp_path / "run.est")
    resumed = ep.estimate_expectation(program(), PRIOR, checkpoint=tmp_path / "run.est")
    assert resumed.value == result().value
    assert resumed.branches == result().branches


def test_ctrl_c_leaves_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    count, compute = 0, LocalRuntime.map

    def pressed(self: LocalRuntime, tasks: Any) -> Any:
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        return compute(self, tasks)

    monkeypatch.setattr(LocalRuntime, "map", pressed)
    stopped = ep.estimate_expectation(program(), PRIOR, throw=False)
    assert stopped.status is ep.Status.interrupted
    assert [branch.values for branch in stopped.branches] == [{"model1": 0}]
    assert "branches with 0.5 of the prior mass were not run" in str(stopped)


# --- draws ---


def test_draws_have_nan_where_a_branch_has_no_such_site() -> None:
    draws = result().samples(num_samples=2000)
    is_first = draws["model1"] == 0
    assert np.isnan(draws["a1"]).tolist() == (~is_first).tolist()
    assert np.isnan(draws["a2"]).tolist() == is_first.tolist()
    share = TRUTH.probabilities[(("model1", 0),)]
    assert abs(is_first.mean() - share) < 5 * math.sqrt(share * (1 - share) / 2000)
    only_first = result().samples("gamma1_plus", output=1)
    assert result().output.labels[1] == "first"
    assert (only_first["model1"] == 0).all()


def test_sites_of_different_sizes_are_filled_up() -> None:
    joined = joined_sites(
        [
            {"k": np.array([0, 0]), "w": np.ones((2, 1)), "a": np.ones(2)},
            {"k": np.array([1]), "w": 2 * np.ones((1, 2))},
        ]
    )
    assert joined["k"].tolist() == [0, 0, 1]
    np.testing.assert_array_equal(joined["w"], [[1, np.nan], [1, np.nan], [2, 2]])
    np.testing.assert_array_equal(joined["a"], [1, 1, np.nan])


# --- what people see ---


def test_branches_are_printed() -> None:
    text = str(result())
    assert "a sum over 2 branches" in text
    assert "branch model1=0: probability 0.53" in text
    table = next(table for table in result().summary().tables if table.title == "Branches")
    assert table.header == (
        "branch",
        "prior",
        "probability",
        "log Z2",
        "E[mean]",
        "E[first]",
        "status",
    )
    assert [row[0] for row in table.rows] == ["model1=0", "model1=1"]


def test_many_branches_have_a_common_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("estimand.view.tables.MAX_BRANCHES", 1)
    monkeypatch.setattr("estimand.view.text.MAX_BRANCHES", 1)
    assert "and 1 more branches, in summary()" in str(result())
    table = next(table for table in result().summary().tables if table.title == "Branches")
    share = f"{result().branches[1].probability:.3g}"
    assert table.rows[-1][:3] == ("1 others", "0.5", share)


def test_the_report_has_the_branches() -> None:
    pytest.importorskip("matplotlib")
    page = result().to_html()
    assert "<caption>Branches</caption>" in page
    assert "The most probable branches" in page
    assert page.count("The most probable branches: posterior") == 2  # the plot, and its label


def test_a_plot_of_a_program_without_branches_is_refused() -> None:
    pytest.importorskip("matplotlib")
    from estimand import plots

    @ep.expectation
    def plain() -> Any:
        return numpyro.sample("x", dist.Normal(0, 1)) ** 2

    with pytest.raises(ValueError, match="does not branch"):
        plots.plot_branches(ep.estimate_expectation(plain(), PRIOR))


MODEL = """
import numpyro
import numpyro.distributions as dist
import estimand as ep

@ep.expectation
def program(y):
    m = numpyro.sample("m", dist.Bernoulli(0.5), infer={"branching": True})
    numpyro.sample("y", dist.Normal(3.0 if m else 0.0, 1.0), obs=y)
    return m
"""


def test_the_command_line_runs_programs_that_branch(tmp_path: Path) -> None:
    pytest.importorskip("click")
    from click.testing import CliRunner

    from estimand import cli

    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "data.json").write_text('{"y": 2.0}')
    record = str(tmp_path / "run.est")
    arguments = [f"{tmp_path / 'model.py'}:program", "--data", str(tmp_path / "data.json")]
    run = CliRunner().invoke(cli.main, ["run", *arguments, "--output", record, "--json"])
    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout)
    truth = 1 / (1 + math.exp(-(2.0**2 - 1.0) / 2))
    assert found["outputs"][0]["value"] == pytest.approx(truth)
    assert found["branches"][0]["values"] == {"m": 1}
    show = CliRunner().invoke(cli.main, ["show", record])
    assert "Branches" in show.stdout
    second = str(tmp_path / "2.est")
    again = CliRunner().invoke(cli.main, ["run", *arguments, "--output", second, "--seed", "1"])
    assert again.exit_code == 0
    both = str(tmp_path / "both.est")
    merge = CliRunner().invoke(cli.main, ["merge", record, second, "--output", both])
    assert merge.exit_code == 0, merge.output


@pytest.mark.slow
def test_labels_that_are_summed_out_in_a_branch_are_drawn() -> None:
    """Drawn from their conditionals, and NaN in the branch that has none; the notes name them."""

    @ep.expectation
    def labelled() -> Any:
        k = numpyro.sample("k", dist.Bernoulli(0.5), infer={"branching": True})
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        if k == 0:
            z = numpyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Normal(m + 2 * z, 1.0), obs=1.5)
        else:
            numpyro.sample("y", dist.Normal(m, 1.0), obs=1.5)
        return m

    found = ep.estimate_expectation(labelled(), PRIOR)
    assert any("branch k=0: summed out" in note for note in found.run.notes)
    draws = found.samples(num_samples=4000)
    is_first = draws["k"] == 0
    np.testing.assert_array_equal(np.isnan(draws["z"]), ~is_first)
    ones = 0.3 * laws.norm(2.0, 2**0.5).pdf(1.5)
    chance = ones / (ones + 0.7 * laws.norm(0.0, 2**0.5).pdf(1.5))
    count = int(is_first.sum())
    # Draws of a few thousand positions: the error of independent ones, doubled.
    error = 2 * math.sqrt(chance * (1 - chance) / count)
    assert_estimate(draws["z"][is_first].mean(), error, chance)
