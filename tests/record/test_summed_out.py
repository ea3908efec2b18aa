"""Records of programs whose labels are summed out: saved, merged, refined, resumed and shown."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats as laws

import estimand as ep
from estimand.runtime import LocalRuntime
from tests.stats import assert_estimate

pytestmark = pytest.mark.usefixtures("relaxed_ranks")

PRIOR = ep.TABI(ep.ImportanceSampling(num_samples=2000))
Y = np.array([-0.4, 1.7, 2.2])
NOTE = "summed out in every evaluation, not drawn: z (3 × 2 values)"


@ep.expectation
def program(y: Any) -> Any:
    share = numpyro.sample("share", dist.Uniform(0.0, 1.0))
    with numpyro.plate("rows", 3):
        z = numpyro.sample("z", dist.Bernoulli(share), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(2.0 * z, 1.0), obs=y)
    return {"share": share, "first": z[0], "all": jnp.all(z == 1)}


def truth() -> dict[str, float]:
    """With a uniform share k of three labels are 1 with probability 1/4, each way alike."""
    log_ratios = laws.norm(2.0).logpdf(Y) - laws.norm(0.0).logpdf(Y)
    flags = (np.arange(8)[:, None] >> np.arange(3)) & 1
    counts = flags.sum(axis=1)
    weights = np.exp(flags @ log_ratios) * np.array([1 / 4, 1 / 12, 1 / 12, 1 / 4])[counts]
    weights /= weights.sum()
    return {
        "share": float(weights @ ((1 + counts) / 5)),
        "first": float(weights @ flags[:, 0]),
        "all": float(weights[-1]),
    }


@functools.cache
def result(seed: int = 0) -> ep.Estimate:
    return ep.estimate_expectation(program(Y), PRIOR, rng_key=seed)


def assert_right(found: ep.Estimate) -> None:
    for name, value in truth().items():
        assert_estimate(found.value[name], found.standard_error[name], value)


def test_what_a_record_has() -> None:
    assert_right(result())
    assert NOTE in result().run.notes
    assert NOTE in str(result())
    draws = result().samples()
    assert draws["z"].shape == (1000, 3)
    assert set(np.unique(draws["z"])) == {0, 1}


def test_a_round_trip(tmp_path: Path) -> None:
    result().save(tmp_path / "result.est")
    loaded = ep.load(tmp_path / "result.est")
    assert loaded.to_json() == result().to_json()
    assert str(loaded.summary()) == str(result().summary())
    for kept, read in zip(result().draws, loaded.draws, strict=True):
        np.testing.assert_array_equal(kept.sites["z"], read.sites["z"])


def test_merging_and_refining() -> None:
    merged = result(0).merge(result(1))
    assert_right(merged)
    assert merged.run.notes.count(NOTE) == 1
    assert merged.samples()["z"].shape == (1000, 3)
    goal = result().standard_error["all"] / result().value["all"] / 1.5
    refined = result().refine(relative_error=goal)
    assert refined.standard_error["all"] <= goal * refined.value["all"]
    assert_right(refined)


class _CutError(Exception):
    pass


def test_a_run_that_is_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, compute = 0, LocalRuntime.map

    def cut(self: LocalRuntime, tasks: Any) -> Any:
        nonlocal count
        count += 1
        if count == 1:
            raise _CutError
        return compute(self, tasks)

    with monkeypatch.context() as patched:
        patched.setattr(LocalRuntime, "map", cut)
        with pytest.raises(_CutError):
            ep.estimate_expectation(program(Y), PRIOR, checkpoint=tmp_path / "run.est")
    resumed = ep.estimate_expectation(program(Y), PRIOR, checkpoint=tmp_path / "run.est")
    assert resumed.value == result().value


def test_the_report_and_plots() -> None:
    pytest.importorskip("matplotlib")
    from estimand import plots

    assert NOTE in result().to_html()
    for draw in (plots.plot_origin, plots.plot_weights, plots.plot_convergence):
        draw(result(), output=1)


MODEL = """
import numpyro
import numpyro.distributions as dist
import estimand as ep

@ep.expectation
def program(y):
    z = numpyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
    numpyro.sample("y", dist.Normal(3.0 * z, 1.0), obs=y)
    return z
"""


def test_the_command_line(tmp_path: Path) -> None:
    """Nothing is left to draw: the answer is exact."""
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
    chance = 1 / (1 + np.exp(-(2.0**2 - 1.0) / 2))
    assert found["outputs"][0]["value"] == pytest.approx(chance)
    assert any("summed out" in note for note in found["notes"])
    show = CliRunner().invoke(cli.main, ["show", record])
    assert "summed out" in show.stdout
    both = str(tmp_path / "both.est")
    second = str(tmp_path / "2.est")
    again = CliRunner().invoke(cli.main, ["run", *arguments, "--output", second, "--seed", "1"])
    assert again.exit_code == 0, again.output
    merge = CliRunner().invoke(cli.main, ["merge", record, second, "--output", both])
    assert merge.exit_code == 0, merge.output
