"""Sums over discrete sites: truths against the density, examples against sums by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import estimand as ep
from problems.enumerated.exact import EXACT
from problems.enumerated.examples import EXAMPLES, Example
from problems.problem import panels
from tests.stats import assert_estimate

pytestmark = pytest.mark.usefixtures("relaxed_ranks")

# Coordinates between which the posterior lies, and panels of the rule over them.
RANGES: dict[str, list[tuple[float, ...]]] = {
    "two_components": [(-12.0, -4.0, -1.0, 1.0, 4.0, 12.0), (-5.0, -1.0, 1.0, 3.0, 7.0)],
    "three_components": [(-7.0, -4.0, -1.0, 3.0), (-5.0, -1.0, 2.0, 5.0)],
    "hidden_states": [(-6.0, -1.0, 2.0, 8.0)],
    "coal_mining": [(-20.0, -5.0, 0.5, 1.0, 1.5, 3.0), (-20.0, -5.0, -0.5, 0.0, 0.5, 3.0)],
    "abundance": [(-2.0, 1.0, 2.0, 3.5, 5.0), (-12.0, -4.0, -1.0, 1.0, 4.0, 12.0)],
    "ising": [(-30.0, -5.0, 0.0, 5.0, 30.0)],
}


def density_of(model: Any, args: tuple) -> ep.Density:
    return ep.Density.of(ep.expectation(model)(*args))


@jax.jit
def evaluated(density: ep.Density, positions: jax.Array) -> Any:
    return jax.vmap(lambda position: density.model.evaluate(position, density.arrays))(positions)


@pytest.mark.parametrize("name", EXACT)
def test_truths_do_not_depend_on_the_number_of_nodes(name: str) -> None:
    truth = EXACT[name].truth
    np.testing.assert_allclose(truth(50), truth(70), rtol=1e-9)


@pytest.mark.parametrize("name", RANGES)
def test_truths_are_integrals_of_the_summed_density(name: str) -> None:
    problem = EXACT[name]
    rules = [panels(edges, 40) for edges in RANGES[name]]
    nodes = np.stack([n.ravel() for n in np.meshgrid(*(r[0] for r in rules), indexing="ij")], 1)
    weights = np.prod(np.meshgrid(*(r[1] for r in rules), indexing="ij"), axis=0).ravel()
    found = evaluated(density_of(problem.model, problem.args), jnp.asarray(nodes))
    log_density = np.asarray(found.log_prior + found.log_likelihood)
    density = weights * np.exp(log_density - log_density.max())
    means = density @ np.asarray(found.outputs) / density.sum()
    np.testing.assert_allclose(means, problem.truth(), rtol=1e-6)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_have_the_density_of_the_sum_by_hand(name: str) -> None:
    """Up to a constant: labels that a mask takes away and that nothing depends on."""
    example: Example = EXAMPLES[name]
    summed = density_of(example.model, example.args)
    by_hand = density_of(example.by_hand, example.args)
    assert not summed.layout.has_discrete
    keys = jax.random.split(jax.random.key(0), 5)
    draws = jax.jit(jax.vmap(lambda key: summed.model.draw(key, summed.arrays)))(keys)
    places = {site.name: slice(site.start, site.stop) for site in summed.model.sites}
    others = jnp.concatenate([draws[:, places[site.name]] for site in by_hand.model.sites], axis=1)
    one, other = evaluated(summed, draws), evaluated(by_hand, others)
    difference = (one.log_prior + one.log_likelihood) - (other.log_prior + other.log_likelihood)
    np.testing.assert_allclose(difference, np.full(5, difference[0]), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(one.outputs, other.outputs, rtol=1e-12)


def test_a_network_of_flags_is_exact() -> None:
    problem = EXACT["alarm"]
    result = ep.estimate_expectation(ep.expectation(problem.model)(*problem.args))
    np.testing.assert_allclose(result.value, problem.truth(), rtol=1e-12)
    assert any("summed out" in note for note in result.run.notes)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXACT if name != "alarm"])
def test_estimates_are_right(name: str) -> None:
    problem = EXACT[name]
    expectation = ep.expectation(problem.model)(*problem.args)
    result = ep.estimate_expectation(expectation, progress_bar=False)
    for output, truth in zip(result.outputs, problem.truth(), strict=True):
        assert_estimate(output.value, output.standard_error, truth, degrees=output.degrees)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_agree_with_the_sum_by_hand(name: str) -> None:
    example = EXAMPLES[name]
    one, other = (
        ep.estimate_expectation(ep.expectation(model)(*example.args), progress_bar=False)
        for model in (example.model, example.by_hand)
    )
    error = np.hypot(one.standard_error, other.standard_error)
    assert_estimate(one.value, error, other.value, degrees=one.outputs[0].degrees)
