"""Merging: outputs with normalisers of their own, and findings that stay or go."""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.density import Density
from estimand.methods import Run
from estimand.methods.protocol import interrupted
from estimand.record import Provenance, judged
from estimand.record.parts import SHARED
from estimand.runtime import LocalRuntime
from estimand.trust import EffectiveSizes, Finding, OutputEstimate, Status
from tests.same import assert_same_outputs


@ep.expectation
def moments(y: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return {"a": x**2, "b": x}


METHOD = ep.TABI(ep.ImportanceSampling(num_samples=400))
NUM_OUTPUTS = 2


@functools.cache
def estimate(rng_key: int, is_shared: bool) -> ep.Estimate:
    """All outputs by one run, or each by a run of its own, as where routes differ."""
    bound = moments(1.0)
    density, runtime = Density.of(bound), LocalRuntime()
    keys = jax.random.split(jax.random.key(rng_key), NUM_OUTPUTS)
    if is_shared:
        run = METHOD.run(keys[0], density, runtime)
    else:
        runs = [METHOD.run_outputs(keys[k], density, runtime, [k]) for k in range(NUM_OUTPUTS)]
        run = Run(
            outputs=tuple(
                run.outputs[0]._replace(route=f"route {k}") for k, run in enumerate(runs)
            ),
            num_evaluations=sum(run.num_evaluations for run in runs),
            num_gradients=0,
        )
    assert bound.output is not None
    return ep.Estimate(
        program="moments",
        method="by hand",
        output=bound.output,
        run=run,
        compile_seconds=0.0,
        run_seconds=0.0,
        provenance=Provenance(keys=(f"{rng_key} {is_shared}",)),
        density=density,
    )


def normalisers(result: ep.Estimate, kind: str = "parts") -> list[int]:
    return [item.output for item in getattr(result, kind) if item.name == "gamma2"]


# --- normalisers ---


def test_where_the_normaliser_is_in_common_it_stays_so() -> None:
    merged = estimate(1, True).merge(estimate(2, True))
    assert normalisers(merged) == normalisers(merged, "draws") == [SHARED]
    assert merged.log_z["Z2"]["a"] == merged.log_z["Z2"]["b"]


PAIRS = {
    "own and own": ((1, False), (2, False)),
    "own and in common": ((1, False), (2, True)),
    "in common and own": ((1, True), (2, False)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_own_normalisers_are_averaged_output_by_output(pair: str) -> None:
    first, second = (estimate(*which) for which in PAIRS[pair])
    merged = first.merge(second)
    assert normalisers(merged) == normalisers(merged, "draws") == [0, 1]
    shares = np.asarray([first.cost, second.cost]) / (first.cost + second.cost)
    for name in ("a", "b"):
        z = {
            constant: float(shares @ np.exp([r.log_z[constant][name] for r in (first, second)]))
            for constant in ("Z1_plus", "Z1_minus", "Z2")
        }
        for constant, expected in z.items():
            assert math.exp(merged.log_z[constant][name]) == pytest.approx(expected)
        assert merged.value[name] == pytest.approx((z["Z1_plus"] - z["Z1_minus"]) / z["Z2"])
    assert merged.log_z["Z2"]["a"] != pytest.approx(merged.log_z["Z2"]["b"], rel=1e-9)
    for number in range(NUM_OUTPUTS):
        part, draws = merged.part("gamma2", number), merged.draws_of("gamma2", number)
        assert part is not None
        assert draws is not None
        assert part.output == draws.output == number
        assert part.num_samples == draws.log_weights.size == 800
        assert merged.outputs[number].parts.normaliser is part


def test_draws_of_own_normalisers_stand_for_their_own_output() -> None:
    """The posterior mean of f from an output's own draws, by hand from the weights of two runs."""
    first, second = estimate(1, False), estimate(2, True)
    merged = first.merge(second)
    shares = np.asarray([first.cost, second.cost]) / (first.cost + second.cost)
    for number in range(NUM_OUTPUTS):
        top, bottom = 0.0, 0.0
        for share, result in zip(shares, (first, second), strict=True):
            used = result.outputs[number].parts.normaliser
            weights = share * np.exp(np.asarray(used.log_weights)) / used.log_weights.size
            top += weights @ np.asarray(used.positions)[:, 0]
            bottom += weights.sum()
        draws = merged.draws_of("gamma2", number)
        assert draws is not None
        assert draws.weights @ draws.sites["x"] == pytest.approx(top / bottom)


@pytest.mark.parametrize("pair", PAIRS)
def test_the_order_does_not_matter(pair: str) -> None:
    first, second = (estimate(*which) for which in PAIRS[pair])
    assert first.merge(second).to_json() == second.merge(first).to_json()
    third = estimate(3, True)
    one, other = first.merge(second).merge(third), first.merge(second, third)
    for name in ("a", "b"):
        assert one.value[name] == pytest.approx(other.value[name])
        assert one.log_z["Z2"][name] == pytest.approx(other.log_z["Z2"][name])


@pytest.mark.parametrize("pair", PAIRS)
def test_saved_and_loaded_they_are_the_same(pair: str, tmp_path: Path) -> None:
    first, second = (estimate(*which) for which in PAIRS[pair])
    for number, result in enumerate((first, second, first.merge(second))):
        path = tmp_path / f"{number}.est"
        result.save(path)
        loaded = ep.load(path)
        assert loaded.to_json() == result.to_json()
        assert normalisers(loaded) == normalisers(result)
        assert [output.route for output in loaded.outputs] == [
            output.route for output in result.outputs
        ]
    loaded = ep.load(tmp_path / "0.est").merge(ep.load(tmp_path / "1.est"))
    assert loaded.to_json() == ep.load(tmp_path / "2.est").to_json()


def test_routes_are_joined() -> None:
    def routes(result: ep.Estimate) -> list[str]:
        return [output.route for output in result.outputs]

    first, second = estimate(1, False), estimate(2, False)
    assert routes(first.merge(second)) == ["route 0", "route 1"]
    other = with_outputs(second, *(output._replace(route="x") for output in second.outputs))
    assert routes(first.merge(other)) == ["route 0, x", "route 1, x"]
    assert routes(first.merge(estimate(2, True))) == ["route 0", "route 1"]


# --- findings ---


def with_outputs(result: ep.Estimate, *outputs: OutputEstimate) -> ep.Estimate:
    return dataclasses.replace(result, run=result.run._replace(outputs=outputs))


def finding(status: Status, check: str, part: str | None = None) -> Finding:
    return Finding(status, part, f"the {check} is not right", check)


def found(number: int, *findings: Finding, ess: float = 300.0) -> ep.Estimate:
    """A run in all whose outputs there are these findings, and so many effective draws.

    All runs have the same Z, so that the effective draws of several are the sum of theirs.
    """
    result = estimate(1, True)
    sizes = EffectiveSizes(ess, ess, ess, ess)
    outputs = (
        output._replace(findings=(), ess=sizes).with_findings(findings) for output in result.outputs
    )
    provenance = Provenance(keys=(f"key {number}",))
    return dataclasses.replace(with_outputs(result, *outputs), provenance=provenance)


LOW = finding(Status.low_ess, "size", "Z1_plus")
GOAL = finding(Status.not_converged, "goal")
STOPPED = finding(Status.interrupted, "interruption")
LATE = finding(Status.interrupted, "time")
HEAVY = finding(Status.heavy_tailed, "tail", "Z2")
IN_A_RUN = {
    item: item._replace(detail=f"in a run: {item.detail}")
    for item in (LOW, GOAL, STOPPED, LATE, HEAVY)
}


def merged_findings(*runs: ep.Estimate) -> tuple[Finding, ...]:
    first, second = runs[0].merge(*runs[1:]).findings
    assert first == second
    return first


@pytest.mark.parametrize(("ess", "left"), [(200.0, ()), (199.9, (IN_A_RUN[LOW],))])
def test_few_effective_draws_are_enough_together(ess: float, left: tuple) -> None:
    """Two runs of 200 have the 400 that are enough."""
    runs = [found(1, LOW, ess=ess), found(2, LOW, ess=ess)]
    assert merged_findings(*runs) == left
    assert runs[0].merge(runs[1]).ess["min"]["a"] == pytest.approx(2 * ess)
    # What else was found is not put right by more draws.
    assert merged_findings(found(1, LOW, HEAVY), found(2)) == (IN_A_RUN[HEAVY],)


@pytest.mark.parametrize("cut", [STOPPED, LATE], ids=["interrupted", "out of time"])
def test_a_whole_run_takes_the_place_of_one_that_was_cut_short(cut: Finding) -> None:
    merged = found(1, cut).merge(found(2))
    assert merged.findings == ((), ())
    assert merged.status is Status.ok
    assert merged_findings(found(1), found(2, cut)) == ()
    assert merged_findings(found(1, cut), found(2, cut)) == (IN_A_RUN[cut],)
    # In three runs one that is whole is enough, in whatever order they are merged.
    assert merged_findings(found(1, cut), found(2, cut), found(3)) == ()
    assert merged_findings(found(1, cut).merge(found(2, cut)), found(3)) == ()


def test_a_run_that_was_interrupted_merges_without_its_status() -> None:
    """As `estimate_expectation` marks it."""
    whole, other = estimate(1, True), estimate(2, True)
    stopped = dataclasses.replace(whole, run=interrupted(whole.run, 3.0))
    assert stopped.status is Status.interrupted
    assert stopped.findings[0][-1].detail == "stopped by Ctrl-C after 3.0 s"
    assert Status.interrupted not in stopped.merge(other).statuses
    assert "Ctrl-C" not in str(stopped.merge(other))


def test_a_goal_that_a_run_missed_is_kept_until_it_is_judged_again() -> None:
    """`refine` knows the error that is asked for now; `merge` does not."""
    merged = found(1, GOAL).merge(found(2))
    assert merged.findings == ((IN_A_RUN[GOAL],),) * NUM_OUTPUTS
    assert merged.status is Status.not_converged
    assert judged(merged, 10.0).status is Status.ok
    again = judged(merged, 1e-9)
    (missed,) = again.findings[0]
    assert missed.check == "goal"
    assert "1e-07 % requested" in missed.detail
    assert judged(again, 1e-9) is again


def test_what_was_found_twice_is_said_once() -> None:
    assert merged_findings(found(1, HEAVY), found(2, HEAVY)) == (IN_A_RUN[HEAVY],)
    twice = found(1, HEAVY).merge(found(2)).merge(found(3, HEAVY))
    assert twice.findings == ((IN_A_RUN[HEAVY],),) * NUM_OUTPUTS
    other = HEAVY._replace(part="Z1_plus")
    both = merged_findings(found(1, HEAVY), found(2, other))
    assert [item.part for item in both] == ["Z2", "Z1_plus"]


def test_findings_of_one_output_stay_with_it() -> None:
    first = found(1)
    one = with_outputs(first, first.outputs[0].with_findings([HEAVY]), first.outputs[1])
    assert one.merge(found(2)).findings == ((IN_A_RUN[HEAVY],), ())


# --- files ---


def test_findings_and_routes_survive_a_round_trip(tmp_path: Path) -> None:
    every = [Finding(status, None, f"± {status.name}", "check") for status in Status if not status]
    named = [LOW, HEAVY._replace(part="Z1_minus"), GOAL]
    base = estimate(1, False)
    first, second = base.outputs
    result = with_outputs(
        base,
        first.with_findings(every),
        second.with_findings(named)._replace(route="by chains → é"),
    )
    result.save(tmp_path / "a.est")
    loaded = ep.load(tmp_path / "a.est")
    assert loaded.findings == result.findings
    assert loaded.statuses == result.statuses
    assert all(isinstance(item.status, Status) for item in loaded.findings[0])
    assert [output.route for output in loaded.outputs] == ["route 0", "by chains → é"]
    loaded.save(tmp_path / "b.est")
    assert_same_outputs(ep.load(tmp_path / "b.est").outputs, loaded.outputs)
    plain = result.to_dict()["outputs"]
    assert plain[1]["route"] == "by chains → é"
    assert plain[1]["findings"][-3] == {
        "status": "low_ess",
        "part": "Z1_plus",
        "detail": "the size is not right",
        "check": "size",
        "lack": 0.0,
    }
    for item, output in zip(plain, result.outputs, strict=True):
        assert item["status"] == output.status.name
        assert item["log_z"] == {
            "Z1_plus": output.parts.log_z("plus"),
            "Z1_minus": "-Infinity"
            if math.isinf(output.parts.log_z("minus"))
            else output.parts.log_z("minus"),
            "Z2": output.parts.log_z("normaliser"),
        }
        assert {float(size) for size in item["ess"].values() if size != "NaN"} == {
            size for size in output.ess if not math.isnan(size)
        }
