"""PyMC models as programs: data, names, records, and what is refused."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats as laws

import estimand as ep
from estimand.record.provenance import provenance_of
from estimand.runtime import CompilationClock
from tests import stats

pm = pytest.importorskip("pymc")

ROOT = Path(__file__).parents[2]
cheap = ep.TABI(ep.ImportanceSampling(num_samples=2000))


def conjugate(y: Any = 2.0) -> Any:
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0)
        pm.Deterministic("cube", x**3)
        pm.Normal("y", x, 1.0, observed=pm.Data("data", y))
    return model


def log_density(bound: ep.Expectation, **values: Any) -> float:
    arrays = {name: jnp.asarray(value) for name, value in values.items()}
    found = bound.model.assess(arrays, bound.arrays)
    return float(found.log_prior + found.log_likelihood)


def outputs_at(bound: ep.Expectation, **values: Any) -> list[float]:
    arrays = {name: jnp.asarray(value) for name, value in values.items()}
    return np.asarray(bound.model.assess(arrays, bound.arrays).outputs).tolist()


def test_every_way_to_ask() -> None:
    model = conjugate()
    x = model["x"]
    for asked in (lambda v: v["x"] ** 3, lambda v: v["cube"], "cube", x**3):
        assert outputs_at(ep.from_pymc(model, asked), x=1.5) == [1.5**3]
    several = ep.from_pymc(model, {"event": x > 1, "cube": "cube"})
    assert outputs_at(several, x=1.5) == [1.5**3, 1.0]
    assert several.output is not None
    assert several.output.is_indicator == (False, True)
    with_data = ep.from_pymc(model, lambda v: v["data"] + v["y"] + v["x"])
    assert outputs_at(with_data, x=1.0) == [5.0]


def test_the_model_is_left_as_it_was() -> None:
    model = conjugate()
    before = list(model.named_vars)
    ep.from_pymc(model, model["x"] > 1)
    assert list(model.named_vars) == before


def test_parents_come_first() -> None:
    """Whatever the order of the model's list of variables is."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 3.0, 1.0)
        pm.Normal("x", mu, 0.5)
    model.free_RVs.reverse()
    bound = ep.from_pymc(model, "x")
    assert [site.name for site in bound.model.sites] == ["mu", "x"]
    exact = laws.norm.logpdf(2.0, 3.0, 1.0) + laws.norm.logpdf(2.5, 2.0, 0.5)
    np.testing.assert_allclose(log_density(bound, mu=2.0, x=2.5), exact, rtol=1e-6)


def test_events_are_softened() -> None:
    model = conjugate()
    bound = ep.from_pymc(model, model["x"] > 4)
    assert ep.Density.of(bound).has_comparisons
    result = ep.estimate_expectation(bound)
    [output] = result.outputs
    truth = laws.norm.sf(3 / np.sqrt(0.5))
    stats.assert_estimate(output.value, output.standard_error, truth, degrees=output.degrees)


def test_fresh_data_compile_nothing() -> None:
    model = conjugate(np.array([1.0, 2.0]))

    @jax.jit
    def log_likelihood(density: ep.Density, position: jax.Array) -> jax.Array:
        return density.terms(position).log_likelihood

    def found() -> float:
        density = ep.Density.of(ep.from_pymc(model, "x"))
        return float(log_likelihood(density, jnp.array([0.5])))

    first = found()
    with model:
        pm.set_data({"data": np.array([3.0, -1.0])})
    with CompilationClock() as clock:
        second = found()
    assert clock.num_compilations == 0
    exact = [laws.norm.logpdf(y, 0.5).sum() for y in ([1.0, 2.0], [3.0, -1.0])]
    np.testing.assert_allclose([first, second], exact, rtol=1e-6)


def test_records(tmp_path: Path) -> None:
    with pm.Model(coords={"place": ["north", "south"]}) as model:
        level = pm.Normal("level", 0.0, 1.0, dims="place")
        pm.Deterministic("sum", level.sum())
        pm.Normal("y", level, 1.0, observed=[1.0, 2.0], dims="place")
    bound = ep.from_pymc(model, "sum")
    one, two = (ep.estimate_expectation(bound, cheap, rng_key=k, throw=False) for k in (0, 1))
    one.save(tmp_path / "one.est")
    loaded = ep.load(tmp_path / "one.est")
    assert "level ~ Normal(0, 1)" in loaded.provenance.source
    merged = loaded.merge(two)
    posterior = merged.to_datatree()["posterior"]
    assert posterior["level"].dims == ("chain", "draw", "place")
    assert list(posterior.coords["place"].values) == ["north", "south"]
    np.testing.assert_allclose(posterior["level"].sum("place"), posterior["sum"], rtol=1e-6)


def test_programs_travel_to_another_process() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    model = conjugate()
    for asked in (lambda v: v["x"] > 1, model["x"] > 1, "cube"):
        bound = ep.from_pymc(model, asked)
        again = cloudpickle.loads(cloudpickle.dumps(bound))
        assert again.model == bound.model
        digests = [provenance_of(one, cheap, jax.random.key(0)) for one in (bound, again)]
        assert digests[0].program_digest == digests[1].program_digest


def test_draws_of_arviz() -> None:
    arviz = pytest.importorskip("arviz_base")
    rng = np.random.default_rng(0)
    x = 1 + np.sqrt(0.5) * rng.normal(size=(4, 500))
    tree = arviz.from_dict({"posterior": {"x": x, "cube": x**3}})
    bound = ep.from_pymc(conjugate(), "cube")
    for draws in (tree, tree["posterior"], tree["posterior"].to_dataset()):
        evidence = ep.log_evidence(bound, ep.BridgeSampling(draws=draws))
        error = float(evidence.standard_error)
        truth = laws.norm.logpdf(2.0, 0, np.sqrt(2))
        stats.assert_estimate(float(evidence.log_z), error, truth)


def test_single_precision() -> None:
    result = ep.estimate_expectation(
        ep.from_pymc(conjugate(), "x"), cheap, precision="single", throw=False
    )
    [output] = result.outputs
    stats.assert_estimate(output.value, output.standard_error, 1.0, degrees=output.degrees)


def test_own_transforms_restrict_the_support() -> None:
    ordered = pm.distributions.transforms.ordered
    with pm.Model() as model:
        pm.Normal("mu", [0.0, 1.0], 2.0, shape=2, transform=ordered)
    bound = ep.from_pymc(model, lambda v: v["mu"][0])
    exact = laws.norm.logpdf([-1.0, 2.0], [0.0, 1.0], 2.0).sum()
    np.testing.assert_allclose(log_density(bound, mu=[-1.0, 2.0]), exact)
    assert log_density(bound, mu=[2.0, -1.0]) == -np.inf


def test_parameters_outside_of_their_range_have_no_density() -> None:
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0)
        pm.Normal("y", 0.0, x, observed=1.0)
    bound = ep.from_pymc(model, "x")
    assert log_density(bound, x=-1.0) == -np.inf
    assert np.isfinite(log_density(bound, x=1.0))


def test_improper_priors() -> None:
    y = np.array([0.5, 1.5, 1.0, 3.0])
    with pm.Model() as model:
        x = pm.Flat("x")
        pm.Normal("y", x, 1.0, observed=y)
    result = ep.estimate_expectation(ep.from_pymc(model, "x"))
    [output] = result.outputs
    stats.assert_estimate(output.value, output.standard_error, y.mean(), degrees=output.degrees)


def _minibatch() -> None:
    x = pm.Normal("x", 0, 1)
    pm.Normal("y", x, 1, observed=pm.Minibatch(np.ones(20), batch_size=5), total_size=20)


def _mixture() -> None:
    pm.NormalMixture("x", [0.3, 0.7], [0, 3], [1, 1])


def _no_draws() -> None:
    pm.CustomDist("x", 0.0, logp=lambda value, centre: -0.5 * (value - centre) ** 2)


def _geometric() -> None:
    pm.Geometric("x", 0.3)


def _not_in_jax() -> None:
    pm.ExGaussian("x", mu=0, sigma=1, nu=2)


REFUSED: dict[str, tuple[Callable[[], None], str]] = {
    "minibatch": (_minibatch, "random beyond the variables of the model"),
    "mixture": (_mixture, "'x'.*draws with wrong probabilities"),
    "no draws": (_no_draws, "the prior draw of 'x'.*CustomDist_x"),
    "discrete": (_geometric, "variable 'x'.*Geometric is not among those"),
    "operation": (_not_in_jax, "'x'.*JAX backend: No JAX implementation for Op erfcx"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    make, message = REFUSED[name]
    with pm.Model() as model:
        make()
    with pytest.raises(ep.ProgramError, match=message):
        ep.from_pymc(model, "x")


def test_wrong_arguments() -> None:
    model = conjugate()
    with pytest.raises(
        ep.ProgramError, match=r"no variable 'z'; it has \['x', 'cube', 'data', 'y'\]"
    ):
        ep.from_pymc(model, "z")
    with pytest.raises(ep.ProgramError, match=r"f of program 'from_pymc' asks for 'z'"):
        ep.from_pymc(model, lambda v: v["z"])
    for nothing in (None, 3.0):
        with pytest.raises(TypeError, match="f"):
            ep.from_pymc(model, nothing)
    with pytest.raises(TypeError, match="must be a PyMC model"):
        ep.from_pymc("model", "x")
    with pytest.raises(ep.ProgramError, match=r"no data \['z'\]; it has \['data'\]"):
        ep.from_pymc(model, "x").program(z=1.0)


# --- the documentation ---


def test_example_in_docstring() -> None:
    [test] = doctest.DocTestFinder(recurse=False).find(ep.from_pymc, "from_pymc")
    test.globs = {"ep": ep, "pm": pm}
    assert doctest.DocTestRunner().run(test).failed == 0


def test_guide(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "guides" / "from-pymc.md").read_text()
    namespace: dict[str, Any] = {}
    with jax.numpy_rank_promotion("allow"):
        for block in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
            exec(block, namespace)
    assert capsys.readouterr().out == "True\n"


def test_without_pymc_the_extra_is_named() -> None:
    code = "import sys; sys.modules['pymc'] = None; import estimand as ep; ep.from_pymc(None, 'x')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: from_pymc needs PyMC: pip install 'estimand[pymc]'" in found.stderr
