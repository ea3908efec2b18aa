"""Programs from a log likelihood and a prior: what they inherit, and what they refuse."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.scipy.special import ndtri
from jax.scipy.stats import norm
from numpyro.distributions import constraints
from numpyro.infer.util import initialize_model
from scipy import stats as laws

import estimand as ep
from estimand.record.provenance import provenance_of
from estimand.runtime import CompilationClock
from tests import stats

PRIOR = {"x": dist.Normal(0.0, 1.0)}
cheap = ep.TABI(ep.ImportanceSampling(num_samples=2000))


def log_likelihood(v: Any, y: Any) -> Any:
    return jnp.sum(norm.logpdf(y, v["x"], 1.0))


def cubed(v: Any) -> Any:
    return v["x"] ** 3


program = ep.from_density(log_likelihood, prior=PRIOR, f=cubed)


def output_at(bound: Any, position: float) -> tuple[float, int]:
    """The first output at a position, by compiled code, and how much of it was compiled."""
    with CompilationClock() as clock:
        found = outputs_of(ep.Density.of(bound), jnp.array([position]))
    return float(found[0]), clock.num_compilations


@jax.jit
def outputs_of(density: ep.Density, position: jax.Array) -> jax.Array:
    return density.outputs(position)


# --- what is inherited ---


def test_the_target_is_read() -> None:
    """A comparison is softened on the way into it, and signs are known."""
    bound = ep.from_density(log_likelihood, prior=PRIOR, f=lambda v: v["x"] > 4.0)(2.0)
    density = ep.Density.of(bound)
    assert density.has_comparisons
    assert density.known_signs.tolist() == [1]
    result = ep.estimate_expectation(bound)
    truth = laws.norm.sf(3.0 / np.sqrt(0.5))
    [output] = result.outputs
    stats.assert_estimate(output.value, output.standard_error, truth, degrees=output.degrees)
    assert result.status


def test_fresh_data_and_constants_compile_nothing() -> None:
    def stated(scale: float, threshold: float) -> Any:
        return ep.from_density(
            lambda v, y: jnp.sum(norm.logpdf(y, v["x"], scale)),
            prior={"x": dist.Normal(0.0, 2.0 * scale)},
            f=lambda v, t=threshold: v["x"] - t,
        )

    first, _ = output_at(stated(1.0, 0.5)(jnp.zeros(3)), 0.7)
    second, num_compiled = output_at(stated(2.5, 0.25)(jnp.ones(3)), 0.7)
    np.testing.assert_allclose([first, second], [0.2, 0.45], rtol=1e-6)
    assert num_compiled == 0


def test_a_distribution_that_jax_cannot_copy_is_kept_whole() -> None:
    class Shifted(dist.Normal):
        def __init__(self, shift: float):
            self.shift = shift
            super().__init__(0.0, 1.0)

        def log_prob(self, value: Any, intermediates: Any = None) -> Any:
            return super().log_prob(value - self.shift)

        def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
            return super().sample(key, sample_shape) + self.shift

    bound = ep.from_density(prior={"x": Shifted(3.0)}, f=lambda v: v["x"])()
    assessed = bound.model.assess({"x": jnp.array(3.0)}, bound.arrays)
    np.testing.assert_allclose(assessed.log_prior, laws.norm.logpdf(0.0), rtol=1e-6)


def test_outputs_of_every_kind() -> None:
    bound = ep.from_density(
        log_likelihood,
        prior=PRIOR,
        f=lambda v, y: {"event": v["x"] > jnp.max(y), "count": jnp.floor(v["x"]).astype(int)},
    )(np.array([1, 2]))
    assert bound.output is not None
    assert bound.output.is_indicator == (True, False)
    assert [part.name for part in bound] == ["log_likelihood['event']", "log_likelihood['count']"]


def test_records_can_be_saved_merged_and_refined(tmp_path: Path) -> None:
    one, two = (
        ep.estimate_expectation(program(2.0), cheap, rng_key=k, throw=False) for k in (0, 1)
    )
    one.save(tmp_path / "one.est")
    loaded = ep.load(tmp_path / "one.est")
    assert "x ~ Normal(loc=0.0, scale=1.0)" in loaded.provenance.source
    assert "def log_likelihood" in loaded.provenance.source
    assert "def cubed" in loaded.provenance.source
    merged = loaded.merge(two)
    assert merged.standard_error < one.standard_error
    refined = loaded.refine(
        relative_error=0.03, expectation=program(2.0), method=cheap, max_runs=5, throw=False
    )
    assert len(refined.provenance.keys) > 1
    other = ep.from_density(log_likelihood, prior={"x": dist.Normal(0.0, 1.5)}, f=cubed)(2.0)
    with pytest.raises(ep.MergeError):
        one.merge(ep.estimate_expectation(other, cheap, rng_key=1, throw=False))


def test_programs_travel_to_another_process() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    limit = 0.5
    for stated in (
        ep.from_density(log_likelihood, prior=PRIOR, f=lambda v: v["x"] > limit),
        ep.from_density(
            lambda theta, y: norm.logpdf(y, theta[0]),
            prior_transform=lambda u: ndtri(u) * limit,
            names=["a"],
            f=lambda theta: theta[0],
        ),
    ):
        bound = stated(2.0)
        again = cloudpickle.loads(cloudpickle.dumps(bound))
        assert again.model == bound.model
        digests = [provenance_of(one, cheap, jax.random.key(0)) for one in (bound, again)]
        assert digests[0].program_digest == digests[1].program_digest


def test_single_precision() -> None:
    y = np.array([1.5, 2.5], np.float32)
    result = ep.estimate_expectation(program(y), cheap, precision="single", throw=False)
    # E[x³] of N(4/3, 1/3) is m³ + 3mv.
    [output] = result.outputs
    truth = (4 / 3) ** 3 + 4 / 3
    stats.assert_estimate(output.value, output.standard_error, truth, degrees=output.degrees)


DIGEST = """
import jax, numpyro.distributions as dist, estimand as ep
from estimand.record.provenance import provenance_of
laws = {"a": dist.Normal(0.5, 2.0), "b": dist.TruncatedNormal(1.0, 2.0, low=0.5).expand([2])}
bound = ep.from_density(prior=laws, f=lambda v: v["a"])()
print(provenance_of(bound, 0, jax.random.key(0)).program_digest)
"""


@pytest.mark.slow
def test_digests_are_the_same_in_every_process() -> None:
    """NumPyro orders the leaves of a distribution by the hashes of their names."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1


def test_the_evidence_needs_no_quantity_of_interest() -> None:
    bound = ep.from_density(log_likelihood, prior=PRIOR)(2.0)
    evidence = ep.log_evidence(bound, ep.ImportanceSampling(num_samples=4000))
    error = float(evidence.standard_error)
    stats.assert_estimate(float(evidence.log_z), error, laws.norm.logpdf(2.0, 0, np.sqrt(2)))
    with pytest.raises(TypeError, match="no quantity of interest: make it with f="):
        ep.estimate_expectation(bound)


def test_discrete_parameters_are_summed_out() -> None:
    centres = jnp.array([0.0, 1.0, 5.0])
    bound = ep.from_density(
        lambda v, y: norm.logpdf(y, centres[v["k"]]),
        prior={"k": dist.Categorical(jnp.array([0.2, 0.3, 0.5]))},
        f=lambda v: v["k"] == 2,
    )(4.0)
    assert "k (3 values)" in bound.notes[0]
    weights = np.array([0.2, 0.3, 0.5]) * laws.norm.pdf(4.0, np.array([0.0, 1.0, 5.0]))
    result = ep.estimate_expectation(bound)
    np.testing.assert_allclose(result.value, weights[2] / weights.sum(), rtol=1e-9)


# --- the prior transform ---


def test_parameters_of_a_transform_are_kept_with_draws() -> None:
    bound = ep.from_density(
        lambda theta, y: jnp.sum(norm.logpdf(y, theta[0], theta[1])),
        prior_transform=lambda u: jnp.stack([ndtri(u[0]), 1.0 + u[1]]),
        names=["mean", "sd"],
        f=lambda theta: theta[0],
        name="nested",
    )(jnp.zeros(2))
    result = ep.estimate_expectation(bound, cheap, throw=False)
    draws = result.samples()
    assert sorted(draws) == ["cube", "mean", "sd"]
    assert (draws["sd"] > 1).all()
    np.testing.assert_allclose(draws["mean"], laws.norm.ppf(draws["cube"][:, 0]), rtol=1e-6)


def test_numpyro_can_run_the_densities() -> None:
    """Also where a support has coordinates of its own."""
    bound = ep.from_density(
        lambda theta, y: norm.logpdf(y, theta[0]),
        prior_transform=ndtri,
        dimension=1,
        f=lambda theta: theta[0],
    )(2.0)
    model_info = initialize_model(jax.random.key(0), bound.gamma2)
    position = model_info.param_info.z["cube"]
    energy = model_info.potential_fn({"cube": position})
    exact = laws.norm.logpdf(position[0]) + laws.norm.logpdf(2.0, position[0])
    np.testing.assert_allclose(-energy, exact, rtol=1e-5)


def test_transforms_with_other_names_do_not_share_values() -> None:
    def stated(names: list[str]) -> Any:
        return ep.from_density(
            lambda theta: jnp.sum(theta),
            prior_transform=lambda u: u,
            names=names,
            f=lambda theta: theta[0],
            name="same",
        )()

    assert stated(["a", "b"]).model != stated(["c", "d"]).model


# --- errors, before any work ---


def fails(v: Any, y: Any) -> Any:
    return np.log(v["x"]) + y


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "vector": (
        lambda: ep.from_density(lambda v, y: y - v["x"], prior=PRIOR, f=cubed)(jnp.zeros(3)),
        r"log_likelihood of program 'density' gives an array of shape \(3,\).*jnp.sum",
    ),
    "numpy": (
        lambda: ep.from_density(fails, prior=PRIOR, f=cubed)(1.0),
        "log_likelihood of program 'fails' needs the value.*jax.numpy",
    ),
    "none": (
        lambda: ep.from_density(lambda v: None, prior=PRIOR, f=cubed)(),
        "gives a value of type NoneType",
    ),
    "complex": (
        lambda: ep.from_density(lambda v: 1j * v["x"], prior=PRIOR, f=cubed)(),
        "complex128: return one real number",
    ),
    "missing data": (
        lambda: program(),
        "what log_likelihood takes after the parameters, y: missing a required argument: 'y'",
    ),
    "unknown data": (
        lambda: program(1.0, z=2.0),
        "after the parameters, y: got an unexpected keyword",
    ),
    "f of too much": (
        lambda: ep.from_density(log_likelihood, prior=PRIOR, f=lambda v, a, b: a)(1.0),
        "f of program 'log_likelihood' takes.*the parameters alone",
    ),
    "unknown parameter": (
        lambda: ep.from_density(log_likelihood, prior=PRIOR, f=lambda v: v["z"])(1.0),
        r"f of program 'log_likelihood' asks for 'z', and there are only \['x'\]",
    ),
    "order of the prior": (
        lambda: ep.from_density(
            prior={"a": lambda v: dist.Normal(v["b"], 1.0), "b": dist.Normal(0, 1)},
            f=lambda v: v["a"],
        )(),
        r"prior\['a'\] of program 'density' asks for 'b'",
    ),
    "no distribution": (
        lambda: ep.from_density(prior={"a": lambda v: 1.0}, f=lambda v: v["a"])(),
        "return a NumPyro distribution",
    ),
    "infinite transform": (
        lambda: ep.from_density(
            prior_transform=lambda u: jnp.log(u - 0.5), dimension=1, f=jnp.sum
        )(),
        "at the centre of the cube",
    ),
    "transform of numpy": (
        lambda: ep.from_density(prior_transform=lambda u: laws.norm.ppf(u), dimension=1, f=jnp.sum),
        "prior_transform.*jax.scipy",
    ),
    "names of a transform": (
        lambda: ep.from_density(prior_transform=lambda u: u[:1], names=["a", "b"], f=jnp.sum),
        "there are 2 names",
    ),
    "integers of a sampler": (
        lambda: ep.from_density(
            log_prior=lambda k: 0.0, sampler=lambda key: jax.random.poisson(key, 3.0), f=jnp.sum
        ),
        "parameters are real",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(ep.ProgramError, match=message):
        make()


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: ep.from_density(), "give log_likelihood, f or both"),
    "no prior": (lambda: ep.from_density(log_likelihood, f=cubed), "prior in one way"),
    "two priors": (
        lambda: ep.from_density(log_likelihood, prior=PRIOR, log_prior=cubed, f=cubed),
        "prior in one way",
    ),
    "a number": (
        lambda: ep.from_density(log_likelihood, prior={"x": 1.0}, f=cubed),
        r"prior\['x'\] is 1.0, of type float",
    ),
    "a class": (
        lambda: ep.from_density(log_likelihood, prior={"x": dist.Normal}, f=cubed),
        r"prior\['x'\] is <class",
    ),
    "an option of another": (
        lambda: ep.from_density(log_likelihood, prior=PRIOR, dimension=2, f=cubed),
        "dimension= goes with prior_transform=",
    ),
    "no dimension": (
        lambda: ep.from_density(log_likelihood, prior_transform=cubed, f=cubed),
        "dimension= or names=",
    ),
    "no sampler": (
        lambda: ep.from_density(log_likelihood, log_prior=cubed, f=cubed),
        "log_prior needs sampler=",
    ),
    "no parameters": (
        lambda: ep.from_density(lambda: 0.0, prior=PRIOR, f=cubed),
        "no argument for the parameters",
    ),
    "a discrete support": (
        lambda: ep.from_density(
            log_prior=lambda v: 0.0,
            sampler=lambda key: {"a": jax.random.normal(key)},
            supports={"a": constraints.nonnegative_integer},
            f=lambda v: v["a"],
        ),
        "continuous constraint",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_a_default_value_is_no_datum() -> None:
    """A threshold that a loop binds is not taken for the data."""
    bounds = [
        ep.from_density(log_likelihood, prior=PRIOR, f=lambda v, t=t: v["x"] > t)(9.0)
        for t in (1.0, 2.0)
    ]
    assert [output_at(bound, 1.5)[0] for bound in bounds] == [1.0, 0.0]


def test_names_do_not_clash() -> None:
    named = {"log_likelihood": dist.Normal(0.0, 1.0)}
    bound = ep.from_density(
        lambda v, y: norm.logpdf(y, v["log_likelihood"]),
        prior=named,
        f=lambda v: v["log_likelihood"],
    )(1.0)
    assert [site.name for site in bound.model.sites] == ["log_likelihood"]
    cube = ep.from_density(
        prior_transform=lambda u: {"cube": u}, dimension=1, f=lambda v: v["cube"][0]
    )()
    assert [site.name for site in cube.model.sites] == ["cube_"]


def test_partials_and_methods_are_functions() -> None:
    class Model:
        scale = 2.0

        def log_likelihood(self, v: Any, y: Any) -> Any:
            return norm.logpdf(y, v["x"], self.scale)

    method = ep.from_density(Model().log_likelihood, prior=PRIOR, f=cubed)(1.0)
    partial = ep.from_density(functools.partial(log_likelihood, y=1.0), prior=PRIOR, f=cubed)()
    for bound in (method, partial):
        assert np.isfinite(bound.model.evaluate(jnp.zeros(1), bound.arrays).log_likelihood)
