"""Sums over discrete sites, against all joint values one by one."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from scipy import stats

import estimand as ep
from estimand.model.enumerated import EnumeratedModel, Labels
from tests.stats import FAILURE_RATE

pytestmark = pytest.mark.usefixtures("relaxed_ranks")

MARK = {"enumerate": "parallel"}
Y = np.array([-1.2, 0.3, 0.9, 2.1, 2.4])
GROUP = np.array([0, 2, 1, 1, 2])


class Case(NamedTuple):
    model: Callable[..., Any]
    args: tuple = ()
    sizes: tuple[int, ...] = ()
    """How many values each label has."""


def mixture(y: Any) -> Any:
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(3)))
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample("z", dist.Categorical(w), infer=MARK)
        numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)
    return mu[0] - 1, z[1] == 2, mu[z[3]] > 1.0, jnp.sum(z == 1), jnp.sum(z) >= 6, z == 0


def mixture_of_vectors(y: Any) -> Any:
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0).expand([2, 2]).to_event(2))
    with numpyro.plate("rows", len(y) - 1):
        z = numpyro.sample("z", dist.Bernoulli(0.3), infer=MARK)
        pairs = jnp.stack([y[1:], y[:-1]], axis=-1)
        numpyro.sample("y", dist.Normal(mu[z], 1.0).to_event(1), obs=pairs)
    return jnp.all(z == 1), jnp.any(z == 0)


def flags_without_plate(y: Any) -> Any:
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    z = numpyro.sample("z", dist.Bernoulli(jnp.array([0.1, 0.5, 0.7])).to_event(1))
    numpyro.sample("y", dist.Normal(z * 2.0, s).to_event(1), obs=y[:3])
    return jnp.mean(z) * s


def groups(y: Any, group: Any) -> Any:
    """Several data for each label, in any order."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with numpyro.plate("groups", 3):
        z = numpyro.sample("z", dist.Bernoulli(0.4), infer=MARK)
    numpyro.sample("y", dist.Normal(mu + 2.0 * z[group], 1.0), obs=y)
    return mu * z[0] + z[2]


def nested(y: Any) -> Any:
    """A label for all rows, and one for each row that depends on it."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    top = numpyro.sample("top", dist.Categorical(jnp.array([0.2, 0.3, 0.5])), infer=MARK)
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(jnp.array([0.1, 0.5, 0.8])[top]), infer=MARK)
        numpyro.sample("y", dist.Normal(mu + z * 1.5, 1.0), obs=y)
    return top == 1, jnp.sum(z) + top


def spike(y: Any) -> Any:
    """All labels in every datum, and a prior that depends on a label."""
    x = jnp.array([[1.0, 0.5, -1.0], [0.2, 1.0, 0.3], [0.5, -0.7, 0.1], [1.0, 1.0, 1.0], [0, 1, 2]])
    with numpyro.plate("features", 3):
        z = numpyro.sample("z", dist.Bernoulli(0.3), infer=MARK)
        beta = numpyro.sample("beta", dist.Normal(0.0, jnp.where(z == 1, 2.0, 0.1)))
    numpyro.sample("y", dist.Normal(x @ (beta * z), 1.0), obs=y)
    return z, beta[0]


def chain(y: Any) -> Any:
    p = numpyro.sample("p", dist.Beta(2.0, 2.0))
    trans = jnp.stack(
        [jnp.array([0.5, 0.3, 0.2]), jnp.stack([p / 2, 1 - p, p / 2]), jnp.ones(3) / 3]
    )

    def step(z: Any, y: Any) -> Any:
        z = numpyro.sample("z", dist.Categorical(trans[z]), infer=MARK)
        numpyro.sample("y", dist.Normal(z.astype(float), 1.0), obs=y)
        return z, z

    last, path = scan(step, 0, y)
    return p, last == 2, jnp.sum(path == 1), jnp.all(path[1:4] == 2), path[2] * p


def chain_in_python(y: Any) -> Any:
    p = numpyro.sample("p", dist.Beta(2.0, 2.0))
    z = 0
    for t in range(4):
        z = numpyro.sample(f"z{t}", dist.Bernoulli(jnp.where(z == 1, p, 0.2)), infer=MARK)
        numpyro.sample(f"y{t}", dist.Normal(1.5 * z, 1.0), obs=y[t])
    return z, p


def chains_in_a_plate(y: Any) -> Any:
    """As in capture-recapture: a mask that depends on the label, sequences side by side."""
    phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0))

    def step(carry: Any, y: Any) -> Any:
        first, z = carry
        with numpyro.plate("animals", 2, dim=-1), handlers.mask(mask=first):
            z = numpyro.sample("z", dist.Bernoulli(phi * z), infer=MARK)
            numpyro.sample("y", dist.Bernoulli(0.6 * z), obs=y)
        return (first | y.astype(bool), z), None

    seen = jnp.array([[1, 0], [1, 1], [0, 1]])
    scan(step, (jnp.array([True, False]), jnp.ones(2, int)), seen)
    return phi


def ising(y: Any) -> Any:
    beta = numpyro.sample("beta", dist.Uniform(0.0, 1.0))
    with numpyro.plate("rows", 3, dim=-2), numpyro.plate("columns", 3, dim=-1):
        z = numpyro.sample("z", dist.Bernoulli(0.5), infer=MARK)
    s = 2.0 * z - 1
    energy = jnp.sum(s[1:] * s[:-1]) + jnp.sum(s[:, 1:] * s[:, :-1])
    numpyro.factor("energy", beta * energy)
    pairs = z[1:] == z[:-1]
    return jnp.sum(z) > 6, jnp.mean(s), jnp.all(z == 1), beta * jnp.any(z == 0), jnp.all(pairs)


def scaled_and_masked(y: Any) -> Any:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", 5), handlers.scale(scale=0.5):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.3, 0.3, 0.4])), infer=MARK)
        with handlers.mask(mask=jnp.array([True, True, False, True, False])):
            numpyro.sample("y", dist.Normal(mu + z, 1.0), obs=y)
    return mu


def uneven(y: Any) -> Any:
    """Labels of different sizes as one vector, and as terms that are 0 for some of them."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", 4):
        z = numpyro.sample("z", dist.DiscreteUniform(0, np.array([3, 1, 4, 2])), infer=MARK)
        numpyro.sample("y", dist.Normal(mu * z, 1.0), obs=y[:4])
    table = jnp.array([[0.0, 1.0], [0.0, -1.0]]).at[1, 1].set(mu)
    return z, jnp.stack([z[0] * mu, z[1] + 1.0, mu]), table[z[1], z[1]], 3.0 * z[0] + z[2] - mu


def impossible(y: Any) -> Any:
    """Values of probability 0, and a label that only its prior and f know."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", 2):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.5, 0.0, 0.5])), infer=MARK)
    k = numpyro.sample("k", dist.DiscreteUniform(2, 4), infer=MARK)
    numpyro.sample("y", dist.Normal(mu + z, 1.0), obs=y[:2])
    return k * mu, z[0] == 1


CASES = {
    "mixture": Case(mixture, (Y,), (3,) * 5),
    "mixture_of_vectors": Case(mixture_of_vectors, (Y,), (2,) * 4),
    "flags_without_plate": Case(flags_without_plate, (Y,), (2,) * 3),
    "groups": Case(groups, (Y, GROUP), (2,) * 3),
    "nested": Case(nested, (Y,), (3, 2, 2, 2, 2, 2)),
    "spike": Case(spike, (Y,), (2,) * 3),
    "chain": Case(chain, (Y,), (3,) * 5),
    "chain_in_python": Case(chain_in_python, (Y,), (2,) * 4),
    "chains_in_a_plate": Case(chains_in_a_plate, (Y,), (2,) * 6),
    "ising": Case(ising, (Y,), (2,) * 9),
    "scaled_and_masked": Case(scaled_and_masked, (Y,), (3,) * 5),
    "uneven": Case(uneven, (Y,), (4, 2, 5, 3)),
    "impossible": Case(impossible, (Y,), (3, 3, 3)),
}


class Whole(NamedTuple):
    """A program at a position with all joint values of its labels."""

    log_prior: np.ndarray
    log_joint: np.ndarray
    outputs: np.ndarray
    slopes: np.ndarray


@functools.partial(jax.jit, static_argnums=1)
def _each(density: ep.Density, num_kept: int, positions: jax.Array) -> Whole:
    def one(kept: jax.Array, labels: jax.Array) -> tuple:
        found = density.model.evaluate(jnp.concatenate([kept, labels]), density.arrays)
        return found.log_prior + found.log_likelihood, found

    def whole(position: jax.Array) -> Whole:
        slope = jax.value_and_grad(one, has_aux=True)
        (total, found), slopes = slope(position[:num_kept], position[num_kept:])
        return Whole(found.log_prior, total, found.outputs, slopes)

    return jax.vmap(whole)(positions)


def one_by_one(case: Case, kept: np.ndarray, names: list[str]) -> Whole:
    """The program with its labels drawn, at all their joint values."""
    density = ep.Density.of(ep.expectation(case.model, enumerate=False)(*case.args))
    discrete = [site for site in density.model.sites if site.name in names]
    supports: list[range] = []
    for site in discrete:
        first = 2 if site.name == "k" else 0
        for _ in range(site.size):
            supports.append(range(first, first + case.sizes[len(supports)]))
    rows = np.array(list(itertools.product(*supports)), float)
    positions = np.concatenate([np.tile(kept, (len(rows), 1)), rows], axis=1)
    return Whole(*map(np.asarray, _each(density, kept.size, jnp.asarray(positions))))


def log_sum(values: np.ndarray) -> float:
    return float(np.logaddexp.reduce(values))


def labels_of_density(density: ep.Density) -> tuple[Labels, ...]:
    assert isinstance(density.model, EnumeratedModel)
    return density.model.labels


def summed(case: Case) -> ep.Density:
    return ep.Density.of(ep.expectation(case.model)(*case.args))


class Found(NamedTuple):
    """A program with its labels summed out, at a position."""

    position: jax.Array
    log_prior: jax.Array
    log_joint: jax.Array
    outputs: jax.Array
    slopes: jax.Array


@jax.jit
def found_at(density: ep.Density, rng_key: jax.Array) -> Found:
    def log_joint(position: jax.Array) -> tuple:
        found = density.model.evaluate(position, density.arrays)
        return found.log_prior + found.log_likelihood, found

    position = density.model.draw(rng_key, density.arrays)
    (total, found), slopes = jax.value_and_grad(log_joint, has_aux=True)(position)
    return Found(position, found.log_prior, total, found.outputs, slopes)


@pytest.mark.parametrize("name", CASES)
def test_sums_and_their_slopes_are_those_of_all_joint_values(name: str) -> None:
    case = CASES[name]
    density = summed(case)
    names = [site.name for site in labels_of_density(density)]
    for seed in range(2):
        found = found_at(density, jax.random.key(seed))
        truth = one_by_one(case, np.asarray(found.position), names)
        total = log_sum(truth.log_joint)
        np.testing.assert_allclose(found.log_prior, log_sum(truth.log_prior), rtol=1e-10)
        np.testing.assert_allclose(found.log_joint, total, rtol=1e-10)
        shares = np.exp(truth.log_joint - total)
        np.testing.assert_allclose(found.outputs, shares @ truth.outputs, rtol=1e-9, atol=1e-14)
        slopes = np.where(shares > 0, truth.slopes.T, 0.0) @ shares
        np.testing.assert_allclose(found.slopes, slopes, rtol=1e-8, atol=1e-10)


# Draws of what is summed out ----------------------------------------------------------------------


def test_labels_are_drawn_from_their_conditionals() -> None:
    """Of all sites given a position, against the shares of all joint values."""
    for name in ("chain", "nested", "impossible"):
        case = CASES[name]
        density = summed(case)
        names = [site.name for site in labels_of_density(density)]
        found = found_at(density, jax.random.key(0))
        truth = one_by_one(case, np.asarray(found.position), names)
        shares = np.exp(truth.log_joint - log_sum(truth.log_joint))
        keys = jax.random.split(jax.random.key(1), 4000)
        draw = jax.vmap(
            lambda key, d=density, p=found.position: d.model.summed_values(key, p, d.arrays, 0, 0)
        )
        drawn = jax.jit(draw)(keys)
        flat = np.concatenate([np.asarray(drawn[n]).reshape(4000, -1) for n in names], axis=1)
        first = np.array(
            [
                site.supports[k][0]
                for site in labels_of_density(density)
                for k in range(len(site.supports))
            ]
        )
        codes = np.ravel_multi_index(tuple((flat - first).astype(int).T), case.sizes)
        counts = np.bincount(codes, minlength=shares.size)
        assert (counts[shares == 0] == 0).all()
        likely = shares > 0.01
        observed = np.append(counts[likely], counts[~likely].sum())
        expected = 4000 * np.append(shares[likely], shares[~likely].sum())
        is_there = expected > 1e-6
        statistic = np.sum((observed[is_there] - expected[is_there]) ** 2 / expected[is_there])
        assert_below_chi_squared(statistic, int(is_there.sum()) - 1)


def assert_below_chi_squared(statistic: float, degrees: int) -> None:
    assert stats.chi2.sf(statistic, degrees) > FAILURE_RATE


def test_draws_of_the_target_have_labels_in_proportion_to_it() -> None:
    @ep.expectation
    def program(y: Any) -> Any:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 3):
            z = numpyro.sample("z", dist.Bernoulli(0.4))
            numpyro.sample("y", dist.Normal(mu + z, 1.0), obs=y)
        return z[1] == 1

    result = ep.estimate_expectation(program(Y[:3]), rng_key=1)
    assert result.samples()["z"].shape == (1000, 3)
    assert (result.samples("gamma1_plus")["z"][:, 1] == 1).all()
    share = result.samples()["z"][:, 1].mean()
    assert abs(share - result.value) < 5 * math.sqrt(result.value * (1 - result.value) / 1000)


# What is summed out, and what is refused ----------------------------------------------------------


def labels_of(program: ep.ExpectationProgram, *args: Any) -> list[str]:
    model = ep.Density.of(program(*args)).model
    return [site.name for site in getattr(model, "labels", ())]


def unmarked(y: Any) -> Any:
    k = numpyro.sample("k", dist.DiscreteUniform(0, 3))
    n = numpyro.sample("n", dist.Poisson(2.0))
    numpyro.sample("y", dist.Normal(k + 0.5 * n, 1.0), obs=y)
    return n


def test_the_switch() -> None:
    assert labels_of(ep.expectation(unmarked), 1.0) == ["k"]
    assert labels_of(ep.expectation(unmarked, enumerate=False), 1.0) == []
    with pytest.raises(ep.ProgramError, match=r"site 'n'.*Poisson.*infinitely many"):
        labels_of(ep.expectation(unmarked, enumerate=True), 1.0)
    with pytest.raises(ValueError, match="enumerate must be True, False or None"):
        ep.expectation(unmarked, enumerate="parallel")  # type: ignore[call-overload]


def mark(is_marked: bool) -> dict[str, str]:
    return {"enumerate": "parallel"} if is_marked else {}


def path(y: Any, is_marked: bool) -> Any:
    law = dist.Bernoulli(0.5).expand([30]).to_event(1)
    z = numpyro.sample("z", law, infer=mark(is_marked))
    numpyro.sample("y", dist.Normal(z, 1.0).to_event(1), obs=y)
    start = jnp.zeros((), z.dtype)
    return jax.lax.scan(lambda most, one: (jnp.maximum(most, one + most), None), start, z)[0]


def test_a_function_of_all_labels_is_refused_by_name_if_they_are_marked() -> None:
    y = np.zeros(30)
    assert labels_of(ep.expectation(path), y, False) == []
    with pytest.raises(ep.ProgramError, match=r"'z' of program 'path'.*30 labels.*4,096 at most"):
        labels_of(ep.expectation(path), y, True)


def test_a_support_that_depends_on_a_label() -> None:
    def model(is_marked: bool) -> Any:
        k = numpyro.sample("k", dist.Bernoulli(0.5), infer=mark(is_marked))
        return numpyro.sample("x", dist.Uniform(0.0, 1.0 + k))

    assert labels_of(ep.expectation(model), False) == []
    with pytest.raises(ep.ProgramError, match="the support of site 'x' depends on them"):
        labels_of(ep.expectation(model), True)


def test_fresh_data_share_compiled_code_unless_the_labels_change_places() -> None:
    program = ep.expectation(groups)
    model = ep.Density.of(program(Y, GROUP)).model
    assert ep.Density.of(program(Y + 1.0, GROUP)).model == model
    assert ep.Density.of(program(Y, GROUP[::-1])).model != model


def test_sizes_that_are_not_alike() -> None:
    def model() -> Any:
        n = numpyro.sample("n", dist.Binomial(np.array([1, 3]), 0.5))
        return jnp.sum(n)

    result = ep.estimate_expectation(ep.expectation(model)())
    assert math.isclose(result.value, 2.0, rel_tol=1e-12)


def test_branches_of_a_prior_are_drawn_unless_they_are_marked() -> None:
    """A rare kind of storm has most of the damage: drawing the kind finds it."""
    probabilities = np.array([0.9, 0.0999, 0.0001])

    def storm(is_marked: bool) -> Any:
        infer = {"enumerate": "parallel"} if is_marked else {}
        kind = numpyro.sample("kind", dist.Categorical(probs=probabilities), infer=infer)
        return numpyro.sample("damage", dist.LogNormal(jnp.array([0.0, 2.0, 11.0])[kind], 0.7))

    program = ep.expectation(storm)
    assert program(True).notes
    assert not program(False).notes


def test_a_label_of_many_values_is_summed_out_where_it_is_all_there_is() -> None:
    """A rare value with most of the expectation is not met by draws."""
    chances = np.arange(1.0, 2001.0) ** -3
    values = np.ones(2000)
    values[[17, 1990]] = 50.0, 1e11

    @ep.expectation
    def program() -> Any:
        z = numpyro.sample("z", dist.Categorical(probs=jnp.asarray(chances / chances.sum())))
        return jnp.asarray(values)[z]

    result = ep.estimate_expectation(program())
    np.testing.assert_allclose(result.value, chances @ values / chances.sum(), rtol=1e-12)
