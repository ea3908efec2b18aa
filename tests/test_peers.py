"""The benchmarks' peers are used correctly: the same problems, correct counts and table."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers
from numpyro.infer.util import potential_energy

from benchmarks import evidence
from benchmarks.peers import branches, numpyro_nuts, prior, summary, sweep
from benchmarks.peers.density import Density, plain
from benchmarks.peers.problems import ALL
from benchmarks.peers.protocol import log_mean_exp, ratio
from benchmarks.peers.table import MODULES, PROBLEMS
from problems.branching import BRANCHING_PROBLEMS
from tests import stats

PACKAGE = Path(__file__).parents[1] / "benchmarks" / "peers"


def test_the_table_names_what_there_is() -> None:
    assert list(ALL) == list(PROBLEMS)
    assert all((PACKAGE / f"{module}.py").exists() for module in MODULES.values())


def test_only_the_default_method_imports_estimand() -> None:
    for path in PACKAGE.glob("*.py"):
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split(".")[0])
        assert ("estimand" in names) == (path.name == "default.py"), path.name


@pytest.mark.parametrize("name", PROBLEMS)
def test_targets_are_the_models_return_values(name: str, rng_key: jax.Array) -> None:
    problem = ALL[name]
    density = Density(problem)

    @jax.jit
    @jax.vmap
    def both(position: jax.Array) -> tuple[Any, Any]:
        values = density.constrain(position)
        returned = handlers.substitute(density.model, data=values)()
        return returned, density.target(position)

    returned, written = both(density.draws(rng_key, 2_000))
    np.testing.assert_allclose(written, np.asarray(returned, float), rtol=1e-9, atol=1e-300)
    assert np.any(np.asarray(written) != 0) or name == "eight_schools_event"


@pytest.mark.parametrize("name", PROBLEMS)
def test_densities_are_numpyros(name: str, rng_key: jax.Array) -> None:
    density = Density(ALL[name])

    @jax.jit
    @jax.vmap
    def both(position: jax.Array) -> tuple[Any, Any]:
        energy = potential_energy(density.model, (), {}, density._unravel(position))
        return -energy, density.log_prior(position) + density.log_likelihood(position)

    expected, found = both(density.draws(rng_key, 100))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_densities_of_the_parts_add_up(rng_key: jax.Array) -> None:
    density = Density(ALL["banana"])
    position = density.draw(rng_key)
    whole, plus, minus = (density.log_likelihood(position, sign) for sign in (None, 1, -1))
    signed = np.exp(plus - whole) - np.exp(minus - whole)
    np.testing.assert_allclose(signed, density.target(position), rtol=1e-12)


@pytest.mark.parametrize("name", ["sir", "radon"])
def test_the_cube_is_the_prior(name: str, rng_key: jax.Array) -> None:
    density = Density(ALL[name])
    cube = jax.random.uniform(rng_key, (density.dimension,))
    values = density.from_cube(cube)
    found = [np.ravel(plain(fn).cdf(values[site])) for site, fn in density.priors.items()]
    np.testing.assert_allclose(np.concatenate(found), cube, rtol=1e-6)


def test_prior_importance_sampling(seed: int) -> None:
    problem, size = ALL["four_branch"], 200_000
    outcome = prior.PEERS["prior"].prepare(problem)(size, seed)
    assert outcome.cost == size
    stats.assert_proportion(round(outcome.value * size), size, problem.value)


def test_prior_importance_sampling_with_data(seed: int) -> None:
    problem = ALL["sir"]
    run = prior.PEERS["prior"].prepare(problem)
    values = np.array([run(20_000, 100 * seed + number).value for number in range(40)])
    # A ratio's bias is of the order of its variance, 5e-4 here, far below the mean's error.
    stats.assert_mean(values / problem.value, 1.0)


@pytest.mark.slow
def test_numpyro_nuts_counts_its_warmup(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpyro_nuts, "NUM_WARMUP", 50)
    outcome = numpyro_nuts.PEERS["numpyro_nuts"].prepare(ALL["four_branch"])(100, seed)
    assert 0 <= outcome.value < 0.2
    assert outcome.num_gradients >= 4 * (50 + 100)
    assert outcome.cost == 3 * outcome.num_gradients


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "peer"),
    [
        ("blackjax", "blackjax_smc_ratio"),
        ("dynesty", "dynesty_ratio"),
        ("openturns", "openturns_subset"),
        ("openturns", "openturns_directional"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_peers_of_the_extra(package: str, peer: str, seed: int) -> None:
    pytest.importorskip(package, reason="pip install 'estimand[peers]'")
    name = "four_branch" if package == "openturns" else "sir"
    module = importlib.import_module(f"benchmarks.peers.{MODULES[peer]}")
    problem, sizes = ALL[name], {"blackjax": 2_000, "dynesty": 100, "openturns": 200}
    outcome = module.PEERS[peer].prepare(problem)(sizes[package], seed)
    assert outcome.cost > 1_000
    assert 0.3 < outcome.value / problem.value < 3


@pytest.mark.slow
@pytest.mark.usefixtures("relaxed_ranks")
def test_peers_for_programs_that_branch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They find both branches of NumPyro's own example, and count what they spend."""
    monkeypatch.setattr(branches, "NUM_WARMUP", 100)
    monkeypatch.setattr(branches, "NUM_SEARCHES", 20)
    problem = BRANCHING_PROBLEMS["two_models"]
    for shares, outputs, cost in (
        branches._dcc(problem, seed, 300),
        branches.sdvi(problem, seed, 30_000),
    ):
        assert sum(shares) == pytest.approx(1)
        assert outputs["first"] == pytest.approx(shares[0])
        assert 0.3 < shares[0] < 0.8
        assert 2 * (3 * 300 + 300) <= cost <= 30_000


@pytest.mark.parametrize("name", evidence.PROBLEMS)
def test_likelihoods_of_the_evidence_benchmark_are_the_models(name: str, seed: int) -> None:
    model, args, _, dimension, log_likelihood, transform = evidence.PROBLEMS[name]
    names = ("precision", "level", "slope") if name == "pine" else ("x",)
    x = transform(np.random.default_rng(seed).uniform(size=dimension))
    with jax.enable_x64(True):
        values = dict(zip(names, jnp.asarray(x if name == "pine" else [x]), strict=True))
        sites = handlers.trace(handlers.substitute(model, data=values)).get_trace(*args)
        terms = [s["fn"].log_prob(s["value"]).sum() for s in sites.values() if s.get("is_observed")]
        np.testing.assert_allclose(log_likelihood(x), float(sum(terms)), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("package", "name"), [("dynesty", "dynesty"), ("pymc", "PyMC SMC")])
@pytest.mark.filterwarnings("ignore")
def test_peers_of_the_evidence_benchmark(package: str, name: str, seed: int) -> None:
    pytest.importorskip(package, reason="pip install 'estimand[peers]'")
    for problem in ("pine", "eggbox", "shells_2"):
        run = evidence.PEERS[name](problem, seed)
        assert run["cost"] > 1_000
        assert abs(run["log_z"] - evidence.PROBLEMS[problem][2]) < 1


def test_the_table_of_evidence_has_its_place() -> None:
    assert all(mark in evidence.PAGE.read_text() for mark in (evidence.BEGIN, evidence.END))


def test_ratio_of_evidences() -> None:
    logs = {None: -700.0, 1: -701.0, -1: -702.0}
    np.testing.assert_allclose(ratio(ALL["banana"], logs.get), np.exp(-1) - np.exp(-2))
    np.testing.assert_allclose(ratio(ALL["sir"], logs.get), np.exp(-1))
    np.testing.assert_allclose(log_mean_exp([-1000.0, -1000.0 + np.log(3)]), -1000 + np.log(2))
    assert log_mean_exp([-np.inf, -np.inf]) == -np.inf


def _row(peer: str, values: list[float | None]) -> dict:
    runs = [{"value": value, "cost": 1000, "cpu_seconds": 2.0} for value in values]
    return {"problem": "sir", "peer": peer, "runs": runs, "compiling": {"cpu_seconds": 5.0}}


def test_what_one_percent_needs() -> None:
    found = summary.summary(_row("prior", [1.1, 0.9, 1.1]), 1.0)
    assert found["cold_seconds"] == 7.0
    needs = found["needs"]
    np.testing.assert_allclose([needs["cost"], needs["warm_seconds"]], [100_000, 200])
    assert not needs["is_measured"]
    needs = summary.summary(_row("estimand", [1.0001, 0.9999, 1.0001]), 1.0)["needs"]
    assert needs["cost"] == 1000
    assert needs["is_measured"]


def test_who_needs_less_than_estimand() -> None:
    rows = [_row("estimand", [1.0001] * 3), _row("prior", [1.001] * 3), _row("dynesty", [1.1] * 3)]
    for row in rows:
        row["summary"] = summary.summary(row, 1.0)
    # 1,000 evaluations with a squared error of 1e-6 are ten for 1e-4.
    assert summary.better(rows, "cost") == [["sir", "estimand 1.0e+03", "prior ~10"]]
    text = summary.page(rows)
    assert text.count("\n| prior | 3 | 0 | 1.0e-06 |") == 1
    assert all(mark in summary.PAGE.read_text() for mark in summary.MARKS)


def test_what_saw_nothing_or_failed() -> None:
    assert summary.summary(_row("prior", [0.0, 0.0, 1e-9]), 1.0)["needs"] == "never"
    assert summary.summary(_row("prior", [0.1, 0.3, 2.0]), 1.0)["needs"] == "unknown"
    found = summary.summary(_row("prior", [1.0, None, None]), 1.0)
    assert (found["failures"], found["rse"], found["needs"]) == (2, None, "unknown")
    assert summary.summary(_row("prior", [None]), 1.0) is None


def test_a_peer_that_does_not_import_is_a_row() -> None:
    row = {"problem": "sir", "peer": "tfp_ais", "runs": [], "trouble": "error: ImportError: no"}
    assert summary.cells(row | {"summary": None})[:2] == ["tfp_ais", "error: ImportError: no"]


@pytest.mark.slow
def test_a_cell_in_its_own_process() -> None:
    options = type("Options", (), {"limit": 300})
    found, trouble = sweep.lines(
        options, "four_branch", "prior", "--seeds", 2, "--budget", 50_000, "--cpu-seconds", 60
    )
    assert trouble is None
    assert [line["run"]["seed"] for line in found if "run" in line] == [0, 1]
    assert all(line["run"]["cost"] == 50_000 for line in found if "run" in line)
    found, trouble = sweep.lines(options, "no_such_problem", "prior")
    assert trouble == "error: KeyError: 'no_such_problem'"
