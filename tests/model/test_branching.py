"""Programs that branch: which sites may, which branches there are, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan

import estimand as ep
from estimand.density import Density
from estimand.model import BranchingExpectation
from problems.branching import BRANCHING, BRANCHING_PROBLEMS, BranchingProblem
from tests.stats import assert_estimate

PROBLEMS = list(BRANCHING_PROBLEMS)
pytestmark = pytest.mark.usefixtures("relaxed_ranks")


def bound(problem: BranchingProblem) -> BranchingExpectation:
    expectation = ep.expectation(problem.model)(*problem.args)
    assert isinstance(expectation, BranchingExpectation)
    return expectation


def leaves(expectation: Any, count: int) -> dict[tuple, float]:
    assert isinstance(expectation, BranchingExpectation)
    tree = expectation.tree()
    found = [leaf for _ in range(count) if (leaf := tree.next_leaf()) is not None]
    masses = {leaf.values: leaf.mass for leaf in found}
    assert math.fsum(masses.values()) + tree.mass_left == pytest.approx(1)
    return masses


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_most_probable_branches_are_found_first(name: str) -> None:
    problem = BRANCHING_PROBLEMS[name]
    masses = leaves(bound(problem), 6)
    assert set(masses) <= set(problem.probabilities)
    assert list(masses.values()) == sorted(masses.values(), reverse=True)


def test_prior_masses_are_exact_where_they_depend_on_no_other_site() -> None:
    masses = leaves(bound(BRANCHING_PROBLEMS["walk"]), 5)
    for values, mass in masses.items():
        ups = sum(step for _, step in values)
        assert mass == pytest.approx(0.8**ups * 0.2 ** (len(values) - ups))


def test_prior_masses_are_averages_where_they_depend_on_latents() -> None:
    problem = BRANCHING_PROBLEMS["learning_walk"]
    masses = leaves(bound(problem), 4)
    # P(up, up) and P(down) under Beta(8, 2); 1,024 draws have errors of some 0.5 %.
    assert masses[("step0", 1), ("step1", 1)] == pytest.approx(72 / 110, abs=0.03)
    assert masses[(("step0", 0),)] == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize(
    ("fn", "values"),
    [
        (dist.Bernoulli(0.3), {0: 0.7, 1: 0.3}),
        (dist.Categorical(probs=np.array([0.2, 0.0, 0.8])), {0: 0.2, 2: 0.8}),
        (dist.DiscreteUniform(-1, 1), {-1: 1 / 3, 0: 1 / 3, 1: 1 / 3}),
        (dist.Binomial(2, 0.5), {0: 0.25, 1: 0.5, 2: 0.25}),
    ],
)
def test_every_value_of_a_bounded_support_is_a_branch(fn: Any, values: dict[int, float]) -> None:
    @ep.expectation
    def program() -> Any:
        return numpyro.sample("k", fn, infer=BRANCHING)

    found = leaves(program(), 10)
    assert {key[0][1]: mass for key, mass in found.items()} == pytest.approx(values)


def test_a_support_of_many_values_is_looked_at_in_pieces() -> None:
    @ep.expectation
    def program() -> Any:
        return numpyro.sample("k", dist.Poisson(100.0), infer=BRANCHING)

    found = leaves(program(), 200)
    assert found[(("k", 100),)] == pytest.approx(math.exp(dist.Poisson(100.0).log_prob(100)))
    assert 0 not in [key[0][1] for key in list(found)[:50]]


def grid(size: int, low: float, high: float, dimension: int) -> tuple[np.ndarray, float]:
    axis = np.linspace(low, high, size)
    points = np.stack(np.meshgrid(*[axis] * dimension, indexing="ij"), axis=-1)
    return points.reshape(-1, dimension), (axis[1] - axis[0]) ** dimension


@pytest.mark.parametrize(
    ("name", "number", "size"),
    [
        ("two_models", 0, 400),
        ("two_models", 1, 400),
        ("polynomial", 0, 400),
        ("polynomial", 1, 400),
        ("components", 0, 400),
        ("components", 1, 400),
        ("learning_walk", 0, 4000),
        ("learning_walk", 3, 4000),
        ("walk", 3, 1),
    ],
)
def test_truths_are_integrals_of_the_straight_line_programs(
    name: str, number: int, size: int
) -> None:
    """By the trapezoidal rule in unconstrained coordinates, up to two dimensions."""
    problem = BRANCHING_PROBLEMS[name]
    truth = problem.branches[number]
    density = Density.of(bound(problem).branch(truth.values))
    points, volume = np.zeros((1, 0)), 1.0
    if density.dimension:
        points, volume = grid(size, -15.0, 15.0, density.dimension)

    @jax.jit
    def evaluate(positions: jax.Array) -> tuple:
        terms = jax.vmap(lambda u: density.terms(u)[:2])(positions)
        return sum(terms), jax.vmap(density.outputs)(positions)

    log_gamma, outputs = evaluate(points)
    gamma = np.exp(np.asarray(log_gamma) - truth.log_z2) * volume
    assert gamma.sum() == pytest.approx(1, abs=1e-6)
    expected = [truth.value[label] for label in density.model.output.labels]  # type: ignore[union-attr]
    np.testing.assert_allclose(gamma @ np.asarray(outputs), expected, atol=1e-5)


# --- what a program may do ---


def test_values_are_python_integers() -> None:
    seen = []

    @ep.expectation
    def program() -> Any:
        k = numpyro.sample("k", dist.DiscreteUniform(1, 2), infer=BRANCHING)
        seen.append(type(k))
        x = numpyro.sample("x", dist.Normal(0, 1).expand([k]).to_event(1))
        return sum(x[i] for i in range(k))

    expectation: Any = program()
    expectation.branch({"k": 2})
    assert set(seen) == {int}


def test_a_target_sees_the_values_of_branching_sites() -> None:
    def model() -> None:
        if numpyro.sample("m", dist.Bernoulli(0.25), infer=BRANCHING):
            numpyro.sample("x", dist.Normal(0, 1))

    result = ep.estimate_expectation(ep.expect(model, lambda sites: sites["m"])())
    assert_estimate(result.value, result.standard_error, 0.25)


def test_a_marked_site_with_data_does_not_branch() -> None:
    def model(m: int) -> Any:
        numpyro.sample("m", dist.Bernoulli(0.5), obs=m, infer=BRANCHING)
        return numpyro.sample("x", dist.Normal(0, 1))

    assert not isinstance(ep.expectation(model)(1), BranchingExpectation)
    conditioned = numpyro.handlers.condition(BRANCHING_PROBLEMS["two_models"].model, {"model1": 1})
    assert not isinstance(ep.expectation(conditioned)(), BranchingExpectation)


def test_outputs_can_be_taken_one_by_one() -> None:
    expectation = bound(BRANCHING_PROBLEMS["two_models"])
    assert repr(expectation) == "<expectation of two_models: 2 outputs, branches at site 'model1'>"
    result = ep.estimate_expectation(expectation["first"])
    assert_estimate(result.value, result.standard_error, 1 / (1 + math.exp(-0.15)))
    assert result.standard_error <= 0.01 * result.value  # what is requested


# --- what is refused ---


def refused(program: Any, words: str, *args: Any) -> None:
    with pytest.raises(ep.ProgramError, match=words):
        ep.expectation(program)(*args)


def test_control_flow_on_a_site_without_the_mark_names_the_mark() -> None:
    def program() -> Any:
        return 1.0 if numpyro.sample("m", dist.Bernoulli(0.5)) else 0.0

    refused(program, 'infer={"branching": True}')


def test_control_flow_on_a_site_without_the_mark_beside_one_with_it() -> None:
    def program() -> Any:
        numpyro.sample("k", dist.Bernoulli(0.5), infer=BRANCHING)
        return 1.0 if numpyro.sample("m", dist.Bernoulli(0.5)) else 0.0

    refused(program, "needs the value of a latent site as a Python number")


def test_continuous_sites_cannot_branch() -> None:
    def program() -> Any:
        return numpyro.sample("x", dist.Normal(0, 1), infer=BRANCHING)

    refused(program, "site 'x' .* are not integers")


def test_sites_of_several_elements_cannot_branch() -> None:
    def program() -> Any:
        with numpyro.plate("rows", 3):
            return numpyro.sample("m", dist.Bernoulli(0.5), infer=BRANCHING).sum()

    refused(program, r"site 'm' .* has shape \(3,\)")


def test_sites_inside_a_scan_cannot_branch() -> None:
    def program() -> Any:
        def step(carry: Any, _: Any) -> Any:
            # A dict of its own: NumPyro's scan writes into it.
            m = numpyro.sample("m", dist.Bernoulli(0.5), infer=dict(BRANCHING))
            return (carry + 1 if m else carry), m

        return scan(step, jnp.zeros(()), None, length=3)[0]

    refused(program, "needs the value of a latent site as a Python number")


def test_a_support_that_depends_on_latents_is_refused() -> None:
    def program() -> Any:
        n = numpyro.sample("n", dist.Poisson(2.0))
        return numpyro.sample("k", dist.Binomial(n, 0.5), infer=BRANCHING)

    refused(program, "support of branching site 'k' .* depends on other sites")


def test_a_program_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("estimand.model.numpyro.branching.MAX_CHOICES", 5)

    def program() -> Any:
        count = 0
        while True:
            numpyro.sample(f"m{count}", dist.Bernoulli(0.5), infer=BRANCHING)
            count += 1

    refused(program, "no end of program 'program' was found after 5 choices")


def test_branches_of_different_structures_are_refused_by_name() -> None:
    def program() -> Any:
        m = numpyro.sample("m", dist.Bernoulli(0.4), infer=BRANCHING)
        x = numpyro.sample("x", dist.Normal(0, 1))
        return (x, x) if m else x

    with pytest.raises(ep.ProgramError, match=r"different structures: with m=0 .*program \(m=1\)"):
        ep.estimate_expectation(ep.expectation(program)())


def test_a_program_that_changes_is_refused() -> None:
    count = iter(range(100))

    def program() -> Any:
        return numpyro.sample(f"m{next(count)}", dist.Bernoulli(0.5), infer=BRANCHING)

    refused(program, "meets other branching sites on every call")


def test_a_program_that_branches_has_no_single_density() -> None:
    expectation = bound(BRANCHING_PROBLEMS["two_models"])
    with pytest.raises(ep.ProgramError, match="branches at site 'model1'"):
        ep.log_evidence(expectation, ep.ImportanceSampling())
    evidence = ep.log_evidence(expectation.branch({"model1": 0}), ep.AdaptiveIS())
    truth = BRANCHING_PROBLEMS["two_models"].branches[0].log_z2
    assert float(evidence.log_z) == pytest.approx(truth, abs=1e-4)
