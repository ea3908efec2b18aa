"""The record: draws that it keeps, saving and loading, merging, conversion for other libraries."""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.density import Density
from estimand.methods import Run
from estimand.record import Provenance
from estimand.record import storage as io
from estimand.record.draws import thin
from estimand.record.provenance import digest
from estimand.sampling import log_mean
from estimand.trust import (
    Finding,
    OutputEstimate,
    Parts,
    combine,
    evidence_from_weights,
)
from problems import PROBLEMS
from problems.figure1 import figure1
from tests.stats import assert_coverage, assert_mean, assert_same_law, assert_standard_errors

cube = ep.expectation(figure1)
SHIFT = 1.0
OFFSETS = np.array([1.0, 2.0])


@ep.expectation
def mixed(y: float) -> Any:
    scale = numpyro.sample("scale", dist.Exponential(1.0))
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
    numpyro.sample("y", dist.Normal(share[0], scale), obs=y)
    return {"scale": scale, "tail": scale > 3.0, "share": share - 0.3}


TINY = ep.TABI(ep.AnIS(num_samples=300, num_temperatures=10))


@functools.cache
def estimate(name: str, rng_key: int = 0) -> ep.Estimate:
    programs = {"cube": cube(2.0), "mixed": mixed(0.5)}
    methods: dict[str, Any] = {
        "TABI": TINY,
        "prior": ep.TABI(ep.ImportanceSampling(num_samples=20_000)),
        "islands": ep.TABI(ep.SMC(num_particles=200, num_steps=10, num_islands=6)),
        "adaptive": ep.AdaptiveIS(max_evaluations=50_000),
        "chains": ep.PosteriorMCMC(num_samples=200, kernel=ep.RandomWalk(scale=1.0)),
    }
    program, method = name.split()
    return ep.estimate_expectation(programs[program], methods[method], rng_key=rng_key, throw=False)


RECORDS = ["cube TABI", "cube islands", "cube adaptive", "cube chains", "mixed prior"]


# --- what a record keeps ---


def test_thinning_keeps_means_and_heavy_draws(seed: int) -> None:
    rng = np.random.default_rng(seed)
    log_weights = np.append(rng.normal(0.0, 2.0, 3000), -np.inf)
    f = rng.normal(size=3001)
    truth = np.sum(np.exp(log_weights) * f)
    sums = []
    for _ in range(2000):
        chosen, kept = thin(log_weights, 100, rng)
        assert chosen.size <= 100
        assert np.unique(chosen).size == chosen.size
        heaviest = np.argmax(log_weights)
        assert kept[chosen == heaviest] == pytest.approx(log_weights[heaviest])
        sums.append(np.sum(np.exp(kept) * f[chosen]))
    assert_mean(sums, truth)
    chosen, kept = thin(log_weights, 5000, rng)
    np.testing.assert_array_equal(chosen, np.arange(3000))
    np.testing.assert_array_equal(kept, log_weights[:3000])


def test_kept_draws_are_in_the_models_coordinates() -> None:
    result = estimate("mixed prior")
    draws = result.draws_of("gamma2")
    assert draws is not None
    assert draws.log_weights.size == 5000
    assert (draws.sites["scale"] > 0).all()
    np.testing.assert_allclose(draws.sites["share"].sum(axis=1), 1.0)
    tails = draws.outputs[:, result.output.labels.index("tail")]
    np.testing.assert_array_equal(tails, draws.sites["scale"] > 3.0)
    number = result.output.labels.index("scale")
    mean = draws.weights @ draws.outputs[:, number]
    assert mean == pytest.approx(result.value["scale"], rel=0.05)


@pytest.mark.slow
def test_weighted_draws_give_the_estimate_back() -> None:
    """E[f²] from γ's draws, and from γf⁺'s and γf⁻'s: two routes to one number."""
    result = estimate("cube adaptive")
    gamma2, plus, minus = (
        result.draws_of(name) for name in ("gamma2", "gamma1_plus", "gamma1_minus")
    )
    assert gamma2 is not None
    assert plus is not None
    assert minus is not None
    log_z = result.log_z
    square = math.exp(log_z["Z1_plus"] - log_z["Z2"]) * (plus.weights @ plus.outputs[:, 0])
    square -= math.exp(log_z["Z1_minus"] - log_z["Z2"]) * (minus.weights @ minus.outputs[:, 0])
    exact = 1 + 15 * 0.5 + 45 * 0.25 + 15 * 0.125  # sixth moment of N(1, 1/2)
    assert square == pytest.approx(exact, rel=0.05)
    assert gamma2.weights @ gamma2.outputs[:, 0] ** 2 == pytest.approx(exact, rel=0.15)


def test_parts_match_the_evidence() -> None:
    result = estimate("cube TABI")
    for name, evidence in result.evidence:
        part = result.part(name)
        assert part is not None
        assert part.log_z == float(evidence.log_z)
        assert part.ess == pytest.approx(evidence.ess)
        assert part.status is evidence.status
        assert part.num_samples == 300
        assert part.betas.shape == part.acceptance.shape == (1, 11)
        assert np.isnan(part.acceptance[0, [0, -1]]).all()
        assert (part.acceptance[0, 1:-1] > 0).all()
        assert part.replicate_log_z.shape == (16,)
        assert log_mean(part.replicate_log_z) == pytest.approx(part.log_z, abs=0.1)
    islands = estimate("cube islands").part("gamma2")
    assert islands is not None
    assert islands.betas.shape[0] == 6
    assert islands.betas[0, np.isfinite(islands.betas[0])][-1] == 1.0
    assert islands.replicate_log_z.size == 6
    assert log_mean(islands.replicate_log_z) == pytest.approx(islands.log_z)


def test_temperature_path_of_effective_sizes() -> None:
    sampler = ep.AnIS(num_samples=200, num_temperatures=5, keep_path=True)
    result = ep.estimate_expectation(cube(2.0), ep.TABI(sampler), throw=False)
    part = result.part("gamma2")
    assert part is not None
    assert np.isnan(part.effective[0, 0])
    assert part.effective[0, -1] == pytest.approx(part.ess / 200)


@pytest.mark.parametrize("name", ["cube TABI", "cube islands", "cube adaptive"])
def test_paths_end_at_the_estimate(name: str) -> None:
    result = estimate(name)
    (path,) = result.paths
    assert path.cost[-1] == pytest.approx(result.cost)
    assert path.value[-1] == pytest.approx(result.value, rel=1e-6)
    assert path.standard_error[-1] == pytest.approx(result.standard_error)
    assert (np.diff(path.cost) > 0).all()
    if name == "cube TABI":
        middle = np.searchsorted(path.cost, result.cost / 4)
        assert 1.4 < path.standard_error[middle] / path.standard_error[-1] < 2.8


def test_a_part_without_error_leaves_a_path() -> None:
    """Without data every weight of γ is 1."""

    @ep.expectation
    def square() -> Any:
        return numpyro.sample("x", dist.Normal(0.0, 1.0)) ** 2

    method = ep.TABI(ep.ImportanceSampling(num_samples=1000))
    result = ep.estimate_expectation(square(), method, throw=False)
    (path,) = result.paths
    assert path.cost.size > 20
    assert path.value[-1] == pytest.approx(result.value)
    assert path.standard_error[-1] == pytest.approx(result.standard_error)
    weights = np.exp(np.asarray(dict(result.evidence)["gamma1_plus"].log_weights))
    # γ1⁻, which the expression rules out, is not estimated.
    assert result.cost == 2000
    first = round(path.cost[0] / 2)
    assert path.value[0] == pytest.approx(weights[:first].mean())


def test_an_output_that_another_route_replaced_brings_its_parts_with_it() -> None:
    """Evidence and estimate are one thing: no part of the old route is kept."""
    first, second = estimate("cube TABI", 1), estimate("cube TABI", 2)
    both = dataclasses.replace(first, run=first.run._replace(outputs=second.outputs))
    assert [part.log_z for part in both.parts] == [part.log_z for part in second.parts]
    assert [part.log_z for part in both.parts] != [part.log_z for part in first.parts]
    assert both.paths[0].value[-1] == pytest.approx(second.value)


# --- files ---


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_survives_a_round_trip(name: str, tmp_path: Path) -> None:
    result = estimate(name)
    path = tmp_path / "result.est"
    result.save(path)
    loaded = ep.load(path)
    assert str(jax.tree.structure(loaded.value)) == str(jax.tree.structure(result.value))
    for get in (lambda r: r.value, lambda r: r.standard_error, lambda r: r.interval()):
        jax.tree.map(np.testing.assert_array_equal, get(loaded), get(result))
    for mine, theirs in zip(result.outputs, loaded.outputs, strict=True):
        assert mine.status is theirs.status
        assert mine.findings == theirs.findings
        assert mine.route == theirs.route
        # repr, because NaN is not itself.
        assert repr(mine._replace(parts=Parts())) == repr(theirs._replace(parts=Parts()))
        for field in Parts._fields:
            np.testing.assert_array_equal(mine.parts.log_z(field), theirs.parts.log_z(field))
    assert loaded.status is result.status
    assert str(loaded) == str(result)
    assert loaded.to_json() == result.to_json()
    assert loaded.provenance == result.provenance
    assert loaded.density is None
    assert len(loaded.parts) == len(result.parts)
    for kept, read in zip(result.draws, loaded.draws, strict=True):
        assert (kept.name, kept.output) == (read.name, read.output)
        jax.tree.map(np.testing.assert_array_equal, kept.sites, read.sites)
    again = tmp_path / "again.est"
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["again.est", "result.est"]


def test_structures_of_return_values_survive_a_round_trip(tmp_path: Path) -> None:
    Pair = collections.namedtuple("Pair", ["left", "right"])

    @ep.expectation
    def program() -> Any:
        x = numpyro.sample("x", dist.Normal(1.0, 1.0))
        return {"a": (x, [x**2, x**3]), "b": Pair(x, jnp.stack([x, -x]))}

    result = ep.estimate_expectation(program(), TINY, throw=False)
    result.save(tmp_path / "r.est")
    value = ep.load(tmp_path / "r.est").value
    assert value["a"][1][1] == result.value["a"][1][1]
    assert value["b"].left == result.value["b"].left
    np.testing.assert_array_equal(value["b"].right, result.value["b"].right)


def test_loading_needs_no_program(tmp_path: Path) -> None:
    estimate("cube TABI").save(tmp_path / "r.est")
    code = (
        "import sys, estimand as ep; r = ep.load(sys.argv[1]); print(r.value);"
        "print(r.samples('gamma1_plus', num_samples=3)['x'].shape);"
        "source = r.provenance.source;"
        "assert 'def figure1' in source; assert 'numpyro.sample' in source"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "r.est")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.split("\n")[:2] == [str(estimate("cube TABI").value), "(3,)"]


def test_damaged_and_foreign_files_are_refused(tmp_path: Path, seed: int) -> None:
    path, bad = tmp_path / "r.est", tmp_path / "bad.est"
    estimate("cube TABI").save(path)
    data = path.read_bytes()
    rng = np.random.default_rng(seed)
    for size in [0, 1, 20, 100, *rng.integers(100, len(data), 20), len(data) - 1]:
        bad.write_bytes(data[:size])
        with pytest.raises(ep.RecordError, match=r"damaged|not a record"):
            ep.load(bad)
    for place in [0, 30, len(data) - 1, *rng.integers(0, len(data), 60)]:
        altered = bytearray(data)
        altered[place] ^= 1 << int(rng.integers(8))
        bad.write_bytes(bytes(altered))
        with pytest.raises(ep.RecordError):
            ep.load(bad)
    bad.write_bytes(data + b"x")
    with pytest.raises(ep.RecordError, match="damaged"):
        ep.load(bad)
    assert data.startswith(b"estimand-record 2 ")
    bad.write_bytes(data.replace(b"record 2 ", b"record 3 ", 1))
    with pytest.raises(ep.RecordError, match=r"version 3.*newer estimand"):
        ep.load(bad)
    bad.write_bytes(data.replace(b"record 2 ", b"record 1 ", 1))
    with pytest.raises(ep.RecordError, match=r"version 1, .*Run the estimation again"):
        ep.load(bad)
    content, arrays = io._encode(estimate("cube TABI"))
    payload = io._archive({**content, "outputs": [{"mood": "good"}]}, arrays)
    head = f"{io.MAGIC} {io.VERSION} {hashlib.sha256(payload).hexdigest()}\n".encode()
    bad.write_bytes(head + payload)
    with pytest.raises(ep.RecordError, match="contents that this version does not know"):
        ep.load(bad)
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(ep.RecordError, match="not a record"):
        ep.load(tmp_path / "other.npz")
    with pytest.raises(FileNotFoundError):
        ep.load(tmp_path / "nothing.est")


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.est"
    estimate("cube TABI").save(path)
    before = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        estimate("cube adaptive").save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["r.est"]
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError, match="no folder"):
        estimate("cube TABI").save(tmp_path / "none" / "r.est")


def test_json_is_strict_and_reads_back() -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    rare = ep.estimate_expectation(
        ep.expectation(PROBLEMS["normal_tail"].model)(*PROBLEMS["normal_tail"].args),
        TINY,
        throw=False,
    )
    for result in (rare, *map(estimate, RECORDS)):
        read = json.loads(result.to_json(), parse_constant=refuse)
        assert read == result.to_dict()
        assert read["outputs"][0]["value"] == result.outputs[0].value
        assert read["status"] == result.status.name
        ends = [float(end) for end in read["outputs"][0]["interval"]]
        assert tuple(ends) == result.bounds()[0]
    assert rare.to_dict()["outputs"][0]["standard_error"] == "Infinity"
    assert float("Infinity") == math.inf


# --- merging ---


def test_merged_constants_are_means_of_z() -> None:
    a, b = estimate("cube TABI", 1), estimate("cube TABI", 2)
    merged = a.merge(b)
    for name in ("Z1_plus", "Z1_minus", "Z2"):
        z = (math.exp(a.log_z[name]) + math.exp(b.log_z[name])) / 2
        assert math.exp(merged.log_z[name]) == pytest.approx(z)
    plus, minus, z2 = (math.exp(merged.log_z[name]) for name in ("Z1_plus", "Z1_minus", "Z2"))
    assert merged.value == pytest.approx((plus - minus) / z2)
    assert merged.value != pytest.approx((a.value + b.value) / 2, rel=1e-9)
    assert merged.num_evaluations == a.num_evaluations + b.num_evaluations
    assert merged.standard_error < 0.85 * max(a.standard_error, b.standard_error)


def test_merging_equals_one_run_of_the_summed_size() -> None:
    """Weights of two runs put together by hand, and the same runs merged."""
    a, b = estimate("cube TABI", 1), estimate("cube TABI", 2)

    def joined(name: str) -> Any:
        first, second = (dict(run.evidence)[name] for run in (a, b))
        both = jax.tree.map(lambda *x: jnp.concatenate(x), first[2:7], second[2:7])
        return evidence_from_weights(*both)

    parts = {name: joined(name) for name in ("gamma1_plus", "gamma1_minus", "gamma2")}
    whole = combine(parts["gamma1_plus"], parts["gamma1_minus"], parts["gamma2"])
    merged = a.merge(b)
    assert merged.value == pytest.approx(whole.value)
    assert merged.standard_error == pytest.approx(whole.standard_error, rel=0.02)
    assert merged.ess["Z1_plus"] == pytest.approx(whole.ess.plus)
    assert merged.ess["Z2"] == pytest.approx(parts["gamma2"].ess)
    for name, evidence in parts.items():
        part = merged.part(name)
        assert part is not None
        assert part.log_z == pytest.approx(float(evidence.log_z))
        assert part.pareto_k == pytest.approx(evidence.pareto_k)
        assert part.num_samples == 600
        draws = merged.draws_of(name)
        assert draws is not None
        positions = np.asarray(evidence.positions)[:, 0]
        weights = np.asarray(jnp.exp(evidence.log_weights - evidence.log_z)) / 600
        assert draws.weights @ draws.sites["x"] == pytest.approx(weights @ positions)


def test_the_order_of_merging_does_not_matter() -> None:
    a, b, c = (estimate("cube TABI", key) for key in (1, 2, 3))
    merged = a.merge(b, c)
    assert merged.to_json() == c.merge(a, b).to_json()
    nested = a.merge(c).merge(b)
    assert nested.value == pytest.approx(merged.value)
    assert nested.standard_error == pytest.approx(merged.standard_error)
    assert nested.provenance.keys == merged.provenance.keys
    assert a.merge() is a


@pytest.mark.slow
def test_merged_intervals_cover(rng_key: jax.Array) -> None:
    """300 merges of 4 runs of figure 1, each as `TABI` combines it."""
    problem, runs = PROBLEMS["figure1"], 300
    sampler = ep.AnIS(num_samples=400, num_temperatures=10, redraw=True)
    expectation = ep.expectation(problem.model)(*problem.args)
    density = Density.of(expectation)
    assert expectation.output is not None

    @jax.jit
    @jax.vmap
    def parts(sign: jax.Array, keys: jax.Array) -> Any:
        part = dataclasses.replace(density, sign=sign)
        return jax.vmap(sampler.estimate, in_axes=(0, None))(keys, part)

    evidences = parts(jnp.array([1, -1, 0]), jax.random.split(rng_key, (3, 4 * runs)))
    evidences = jax.tree.map(np.asarray, evidences)
    results = []
    for run in range(4 * runs):
        plus, minus, z2 = (jax.tree.map(lambda x, p=p: x[p, run], evidences) for p in range(3))  # noqa: B023
        results.append(
            ep.Estimate(
                program="by hand",
                method="by hand",
                output=expectation.output,
                run=Run((combine(plus, minus, z2),), 100, 0),
                compile_seconds=0.0,
                run_seconds=0.0,
                provenance=Provenance(keys=(str(run),)),
            )
        )
    merged = [results[4 * k].merge(*results[4 * k + 1 : 4 * k + 4]) for k in range(runs)]
    assert isinstance(problem.value, float)
    lows, highs = zip(*(result.interval() for result in merged), strict=True)
    assert_coverage(lows, highs, problem.value, 0.95)
    values, errors = [r.value for r in merged], [r.standard_error for r in merged]
    assert_standard_errors(values, errors)
    assert np.mean(errors) == pytest.approx(
        np.mean([r.standard_error for r in results]) / 2, rel=0.05
    )
    assert sum(bool(result.status) for result in merged) > 0.98 * runs


def test_what_cannot_be_merged_is_refused() -> None:
    result = estimate("cube TABI", 1)
    with pytest.raises(ep.MergeError, match="same random key"):
        result.merge(estimate("cube TABI", 1))
    with pytest.raises(ep.MergeError, match="same random key"):
        result.merge(estimate("cube TABI", 2)).merge(estimate("cube TABI", 2))
    with pytest.raises(ep.MergeError, match="different settings"):
        result.merge(estimate("cube adaptive", 2))
    other = ep.estimate_expectation(cube(2.5), TINY, rng_key=2, throw=False)
    with pytest.raises(ep.MergeError, match="different data"):
        result.merge(other)

    @ep.expectation
    def cube_again(y: float) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x**2

    other = ep.estimate_expectation(cube_again(2.0), TINY, rng_key=2, throw=False)
    with pytest.raises(ep.MergeError, match="different source code"):
        result.merge(other)
    with pytest.raises(TypeError, match="expected estimates"):
        result.merge(3)  # type: ignore[arg-type]
    by_hand = dataclasses.replace(result, provenance=Provenance())
    with pytest.raises(ep.MergeError, match="does not say"):
        result.merge(by_hand)


def with_outputs(result: ep.Estimate, *outputs: OutputEstimate) -> ep.Estimate:
    """The same with other outputs."""
    return dataclasses.replace(result, run=result.run._replace(outputs=outputs))


def test_a_run_that_found_nothing_counts_in_the_mean() -> None:
    a, b = estimate("cube TABI", 1), estimate("cube TABI", 2)
    (output,) = b.outputs
    nothing = output._replace(
        value=0.0,
        standard_error=math.inf,
        parts=Parts(normaliser=output.parts.normaliser),
        ess=output.ess._replace(z1=0.0, plus=0.0),
        findings=(Finding(ep.Status.no_mass_found, None, "no mass", "mass"),),
    )
    empty = with_outputs(b, nothing)
    merged = a.merge(empty)
    assert merged.value == pytest.approx(a.value / 2, rel=0.2)
    assert merged.standard_error == pytest.approx(a.value / 2, rel=0.2)
    assert not merged.status
    bound = with_outputs(a, nothing._replace(upper_bound=1 - 0.05 ** (1 / 1000)))
    other = with_outputs(b, nothing._replace(upper_bound=1 - 0.05 ** (1 / 500)))
    both = bound.merge(other)
    assert both.outputs[0].upper_bound == pytest.approx(1 - 0.05 ** (1 / 1500))
    assert both.status is ep.Status.no_mass_found


def test_runs_that_contradict_each_other_are_not_ok() -> None:
    a, b = estimate("cube adaptive", 1), estimate("cube adaptive", 2)
    off = b.outputs[0]._replace(value=b.value + 12 * (a.standard_error + b.standard_error))
    assert a.merge(b).status is ep.Status.ok
    merged = a.merge(with_outputs(b, off))
    assert merged.status is ep.Status.replicates_disagree


def test_merges_of_records_without_z_average_by_cost() -> None:
    a, b = estimate("cube chains", 1), estimate("cube chains", 2)
    merged = a.merge(b)
    assert merged.value == pytest.approx((a.value + b.value) / 2)
    expected = math.hypot(a.standard_error, b.standard_error) / 2
    assert merged.standard_error == pytest.approx(expected)
    assert merged.draws == ()


def test_loaded_records_merge(tmp_path: Path) -> None:
    for key in (1, 2):
        estimate("mixed prior", key).save(tmp_path / f"{key}.est")
    merged = ep.load(tmp_path / "1.est").merge(ep.load(tmp_path / "2.est"))
    direct = estimate("mixed prior", 1).merge(estimate("mixed prior", 2))
    assert merged.to_json() == direct.to_json()
    merged.save(tmp_path / "both.est")
    assert ep.load(tmp_path / "both.est").to_json() == direct.to_json()
    draws = merged.draws_of("gamma2")
    assert draws is not None
    assert draws.log_weights.size <= 5000


# --- digests ---


def test_digests_see_what_the_program_refers_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(power: int) -> Any:
        def model() -> Any:
            return helper(numpyro.sample("x", dist.Normal(SHIFT, 1.0))) ** power

        return model

    def helper(x: Any) -> Any:
        return x + OFFSETS[0]

    first = digest(make(2))
    assert first == digest(make(2))
    assert first != digest(make(3))
    monkeypatch.setitem(helper.__globals__, "SHIFT", 2.0)
    shifted = digest(make(2))
    assert shifted != first
    monkeypatch.setitem(helper.__globals__, "OFFSETS", np.array([1.0, 3.0]))
    assert digest(make(2)) not in (first, shifted)


def test_digests_of_settings_do_not_depend_on_sharing() -> None:
    kernel = ep.RandomWalk(scale=0.3)
    shared = ep.TABI(ep.AnIS(kernel=kernel))
    apart = ep.TABI(
        normaliser=ep.AnIS(kernel=ep.RandomWalk(scale=0.3)),
        positive=ep.AnIS(kernel=ep.RandomWalk(scale=0.3)),
        negative=ep.AnIS(kernel=ep.RandomWalk(scale=0.3)),
    )
    assert digest(shared) == digest(apart)
    assert digest(shared) != digest(ep.TABI(ep.AnIS()))
    cyclic: list = [1]
    cyclic.append(cyclic)
    assert digest(cyclic) != digest([1])


def test_digests_skip_what_has_no_content() -> None:
    """Loggers, locks and keys may be referred to; a user's own object counts by its content."""
    import logging
    import threading

    class Box:
        def __init__(self, number: float):
            self.number = number

    assert digest(logging.getLogger("a")) == digest(logging.getLogger("b"))
    assert digest(threading.Lock()) == digest(threading.Lock())
    assert digest(jax.random.key(0)) != digest(jax.random.key(1))
    assert digest(Box(1.0)) == digest(Box(1.0)) != digest(Box(2.0))
    normals = [dist.Normal(0.0, scale) for scale in (1.0, 1.0, 2.0)]
    proposals = [digest(ep.ImportanceSampling(proposal={"x": n})) for n in normals]
    assert proposals[0] == proposals[1] != proposals[2]


def test_data_digests_see_values_shapes_and_structure() -> None:
    digests = {
        digest(value)
        for value in (1, 1.0, True, "1", np.ones(2), np.ones((2, 1)), [1], (1,), {"a": 1}, {"b": 1})
    }
    assert len(digests) == 10


# --- draws for users ---


def test_samples_follow_their_densities(rng_key: jax.Array) -> None:
    """The posterior of x is N(1, 1/2); γf⁺ is that times x³ on the positive half-line."""
    from scipy import integrate, stats

    result = ep.estimate_expectation(
        cube(2.0), ep.TABI(ep.ImportanceSampling(num_samples=200_000)), rng_key=rng_key
    )
    posterior = stats.norm(1.0, math.sqrt(0.5))
    # 300 of the 5,000 kept draws, which are a sample of the weighted 200,000.
    x = result.samples("posterior", num_samples=300)["x"]
    assert_same_law(x, posterior.cdf)
    np.testing.assert_array_equal(x, result.samples("gamma2", num_samples=300)["x"])
    whole = integrate.quad(lambda u: u**3 * posterior.pdf(u), 0, 8)[0]
    grid = np.linspace(0, 8, 4001)
    cdf = np.cumsum(grid**3 * posterior.pdf(grid)) * (grid[1] - grid[0]) / whole
    plus = result.samples("gamma1_plus", num_samples=300, rng_key=3)["x"]
    assert_same_law(plus, lambda u: np.interp(u, grid, cdf))
    minus = result.samples("gamma1_minus", num_samples=300)["x"]
    assert (minus < 0).all()
    assert minus.shape == (300,)


def test_samples_refuse_what_is_not_there() -> None:
    result = estimate("mixed prior")
    with pytest.raises(ValueError, match="part must be one of"):
        result.samples("prior")
    with pytest.raises(ValueError, match="output must be from 0 to 4"):
        result.samples("gamma1_plus", output=5)
    with pytest.raises(ValueError, match="num_samples"):
        result.samples(num_samples=0)
    number = result.output.labels.index("scale")
    with pytest.raises(ValueError, match="no mass"):
        result.samples("gamma1_minus", output=number)
    with pytest.raises(ValueError, match="keeps none"):
        estimate("cube chains").samples()


def test_datatree_is_arvizs() -> None:
    xarray = pytest.importorskip("xarray")
    result = estimate("mixed prior")
    tree = result.to_datatree()
    assert isinstance(tree, xarray.DataTree)
    assert tree["posterior"]["share"].dims == ("chain", "draw", "share_dim_0")
    assert {"posterior", "weighted_posterior", "target_plus_0", "sample_stats"} <= set(
        tree.children
    )
    assert tree.attrs["inference_library"] == "estimand"
    equal = float(tree["posterior"]["scale"].mean())
    weighted = tree["weighted_posterior"]
    weights = np.exp(weighted["log_weight"].values)
    assert weights.sum() == pytest.approx(1.0)
    assert equal == pytest.approx((weights * weighted["scale"].values).sum(), rel=0.05)
    assert tree["sample_stats"]["scale"].values == pytest.approx(tree["posterior"]["scale"].values)
    single = estimate("cube TABI").to_datatree()
    assert float(single["target_minus"]["x"].max()) < 0
    with pytest.raises(ValueError, match="keeps no draws"):
        estimate("cube chains").to_datatree()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match=r"estimand\[arviz\]"):
        estimate("cube TABI").to_datatree()


def test_io_numbers() -> None:
    assert [io.number(x) for x in (1.5, math.nan, math.inf, -math.inf)] == [
        1.5,
        "NaN",
        "Infinity",
        "-Infinity",
    ]


def test_draws_of_no_weight_beside_the_heaviest_are_left_out() -> None:
    """Two branches whose weights are 10^400 apart, each with more draws than are kept."""
    log_weights = np.concatenate([np.zeros(5), np.full(50, -950.0)])
    found = thin(log_weights, 10, np.random.default_rng(0))
    assert list(found.indices) == [0, 1, 2, 3, 4]
    assert (found.log_weights == 0).all()
