"""Kernels and supports together: Geweke's joint test and simulation-based calibration.

Latents and data are drawn jointly from the model. Whatever a correct kernel then does to the
latents given the data, and the model to the data given the latents, the joint distribution does not
change. All chains are independent and start in it, so the tests are exact however slowly they mix.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.distributions import transforms
from scipy import stats as laws

import estimand as ep
from estimand.density import Density, PathPoint
from estimand.kernels.independent_t import IndependentT
from estimand.kernels.protocol import State
from tests.kernels.mutants import without_jacobian
from tests.stats import assert_proportion, assert_same_law, assert_uniform_ranks

NUM_CHAINS, NUM_SWEEPS = 3000, 8
NUM_RANKED, NUM_STEPS = 19, 4
Values = dict[str, Any]


@pytest.fixture(autouse=True)
def relaxed_ranks() -> Iterator[None]:
    """NumPyro's own distributions promote ranks in batches."""
    with jax.numpy_rank_promotion("allow"):
        yield


# Models with data that can be drawn --------------------------------------------------------------


def real(y: Any = None) -> Any:
    x = numpyro.sample("x", dist.StudentT(4.0, 1.0, 2.0))
    numpyro.sample("y", dist.Normal(x, 1.5).expand([2]).to_event(1), obs=y)
    return x


def positive(y: Any = None) -> Any:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Exponential(rate).expand([2]).to_event(1), obs=y)
    return rate


def interval(y: Any = None) -> Any:
    share = numpyro.sample("share", dist.Beta(1.5, 3.0))
    numpyro.sample("y", dist.Normal(share, 0.3).expand([2]).to_event(1), obs=y)
    return share


def simplex(y: Any = None) -> Any:
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.array([2.0, 1.0, 3.0])))
    numpyro.sample("y", dist.Normal(shares, 0.3).to_event(1), obs=y)
    return shares[0]


def ordered(y: Any = None) -> Any:
    base = dist.Normal(0.0, 1.0).expand([3]).to_event(1)
    cuts = numpyro.sample("cuts", dist.TransformedDistribution(base, transforms.OrderedTransform()))
    numpyro.sample("y", dist.Normal(cuts, 1.0).to_event(1), obs=y)
    return cuts[1]


def correlation(y: Any = None) -> Any:
    factor = numpyro.sample("factor", dist.LKJCholesky(3, 1.5))
    law = dist.MultivariateNormal(jnp.zeros(3), scale_tril=factor)
    numpyro.sample("y", law.expand([2]).to_event(1), obs=y)
    return factor[1, 0]


def dependent_bounds(y: Any = None) -> Any:
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
    b = numpyro.sample("b", dist.Uniform(0.0, a))
    numpyro.sample("y", dist.Normal(a - b, 0.7).expand([2]).to_event(1), obs=y)
    return b


def mixed_discrete(y: Any = None) -> Any:
    with numpyro.plate("switches", 2):
        m = numpyro.sample("m", dist.Bernoulli(jnp.array([0.3, 0.6])))
    k = numpyro.sample("k", dist.Categorical(jnp.array([0.2, 0.5, 0.3])))
    x = numpyro.sample("x", dist.Normal(m.sum() - 1.0 * k, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0).expand([2]).to_event(1), obs=y)
    return x


class Joint(NamedTuple):
    """A model, the shape of its data, and functions of the latents with their distributions."""

    model: Callable
    shape: tuple[int, ...]
    laws: dict[str, tuple[Callable[[Values], Any], Callable]]


def _correlation(row: int, column: int) -> Callable[[Values], Any]:
    def get(v: Values) -> Any:
        return (v["factor"] @ np.swapaxes(v["factor"], -1, -2))[..., row, column]

    return get


# A correlation under LKJ(η) in d dimensions is 2B − 1 with B ~ Beta(η − 1 + d/2).
_LKJ = laws.beta(2.0, 2.0, loc=-1.0, scale=2.0).cdf

JOINTS = {
    "real": Joint(real, (2,), {"x": (lambda v: v["x"], laws.t(4, 1.0, 2.0).cdf)}),
    "positive": Joint(positive, (2,), {"rate": (lambda v: v["rate"], laws.gamma(2.0).cdf)}),
    "interval": Joint(interval, (2,), {"share": (lambda v: v["share"], laws.beta(1.5, 3.0).cdf)}),
    "simplex": Joint(
        simplex,
        (3,),
        {
            "first": (lambda v: v["shares"][..., 0], laws.beta(2.0, 4.0).cdf),
            "last": (lambda v: v["shares"][..., 2], laws.beta(3.0, 3.0).cdf),
        },
    ),
    "ordered": Joint(
        ordered,
        (3,),
        {
            "first": (lambda v: v["cuts"][..., 0], laws.norm.cdf),
            "gap": (lambda v: np.log(v["cuts"][..., 2] - v["cuts"][..., 1]), laws.norm.cdf),
        },
    ),
    "correlation": Joint(
        correlation,
        (2, 3),
        {"10": (_correlation(1, 0), _LKJ), "21": (_correlation(2, 1), _LKJ)},
    ),
    "dependent_bounds": Joint(
        dependent_bounds,
        (2,),
        {
            "a": (lambda v: v["a"], laws.gamma(2.0).cdf),
            "b/a": (lambda v: v["b"] / v["a"], laws.uniform.cdf),
        },
    ),
    "mixed_discrete": Joint(mixed_discrete, (2,), {}),
}
CONTINUOUS = [name for name in JOINTS if name != "mixed_discrete"]
KERNELS = {
    "RandomWalk": ep.RandomWalk(scale=0.9),
    "MALA": ep.MALA(step_size=0.8),
    "HMC": ep.HMC(step_size=0.35, num_leapfrog=4),
    "NUTS": ep.NUTS(step_size=0.5, max_tree_depth=3),
    "IndependentT": IndependentT(),
}


# Chains ------------------------------------------------------------------------------------------


class Chain(NamedTuple):
    """A kernel on the posterior of a model, whose data are redrawn repeatedly."""

    joint: Joint
    density: Density
    kernel: Any

    def start(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The position of latents from the prior, and data given them."""
        position_key, data_key = jax.random.split(key)
        position, _ = self.density.draw_prior(position_key)
        return position, self.data(data_key, position)

    def data(self, key: jax.Array, position: jax.Array) -> jax.Array:
        given = handlers.substitute(data=self.values(position))
        with handlers.trace() as sites, handlers.seed(rng_seed=key), given:
            self.joint.model()
        return sites["y"]["value"]

    def values(self, position: jax.Array) -> Values:
        return self.density.constrain(position)

    def given(self, y: jax.Array) -> Density:
        return dataclasses.replace(self.density, arrays=(y,))

    def step(self, key: jax.Array, position: jax.Array, y: jax.Array) -> jax.Array:
        density, one = self.given(y), jnp.ones(())
        point = PathPoint(one, one)
        tuning = jax.tree.map(lambda x: x[0], self.kernel.tuning(density, 1))
        state, _ = self.kernel.init(density, position, density.terms(position), point)
        return self.kernel.step(key, density, state, point, tuning)[0].position


def chain_of(name: str, kernel: Any) -> Chain:
    joint = JOINTS[name]
    density = Density.of(ep.expectation(joint.model, enumerate=False)(np.full(joint.shape, 0.5)))
    assert len(density.arrays) == 1
    return Chain(joint, density, kernel)


def successive(chain: Chain, rng_key: jax.Array) -> tuple[Values, np.ndarray]:
    """Latents after some sweeps of Geweke's chain, and how many of their coordinates moved."""

    @jax.jit
    @jax.vmap
    def run(key: jax.Array) -> tuple[Values, jax.Array]:
        start_key, sweep_key = jax.random.split(key)
        start, y = chain.start(start_key)

        def sweep(carry: tuple, key: jax.Array) -> tuple:
            position, y = carry
            step_key, data_key = jax.random.split(key)
            position = chain.step(step_key, position, y)
            return (position, chain.data(data_key, position)), None

        keys = jax.random.split(sweep_key, NUM_SWEEPS)
        (position, _), _ = jax.lax.scan(sweep, (start, y), keys)
        return chain.values(position), position != start

    values, moved = run(jax.random.split(rng_key, NUM_CHAINS))
    return jax.tree.map(np.asarray, values), np.asarray(moved)


def assert_joint(chain: Chain, rng_key: jax.Array) -> None:
    """Geweke's test: after the sweeps the latents still have the prior distribution."""
    values, moved = successive(chain, rng_key)
    assert moved.mean() > 0.3, "the chains have hardly moved"
    for get, cdf in chain.joint.laws.values():
        assert_same_law(get(values), cdf)


def ranks(chain: Chain, rng_key: jax.Array) -> dict[str, np.ndarray]:
    """Ranks of the latents that made the data among draws of a reversible kernel.

    The chain runs some steps from the latents, and from where it is then several chains run as
    many steps each. Those that made the data are exchangeable with their ends, because a
    reversible chain is the same backwards.
    """

    def several(key: jax.Array, position: jax.Array, y: jax.Array) -> jax.Array:
        def step(position: jax.Array, key: jax.Array) -> tuple:
            return chain.step(key, position, y), None

        return jax.lax.scan(step, position, jax.random.split(key, NUM_STEPS))[0]

    @jax.jit
    @jax.vmap
    def run(key: jax.Array) -> tuple[Values, Values]:
        start_key, back_key, key = jax.random.split(key, 3)
        start, y = chain.start(start_key)
        middle = several(back_key, start, y)
        keys = jax.random.split(key, NUM_RANKED)
        ends = jax.vmap(several, in_axes=(0, None, None))(keys, middle, y)
        return chain.values(start), jax.vmap(chain.values)(ends)

    values, ends = jax.tree.map(np.asarray, run(jax.random.split(rng_key, NUM_CHAINS)))
    shuffle = np.random.default_rng(0)
    found = {}
    for name, (get, _) in chain.joint.laws.items():
        distance = get(ends) - get(values)[:, None]
        # A chain that has rejected every step is where it began, up to rounding.
        is_tied = np.abs(distance) < 1e-9
        ties = shuffle.integers(0, is_tied.sum(axis=1) + 1)
        found[name] = ((distance < 0) & ~is_tied).sum(axis=1) + ties
    return found


# Correct kernels pass -----------------------------------------------------------------------

FAST = {("positive", "RandomWalk")}


def pairs() -> list[Any]:
    both = [(name, kernel) for name in CONTINUOUS for kernel in KERNELS]
    return [pytest.param(*p, marks=() if p in FAST else pytest.mark.slow) for p in both]


@pytest.mark.parametrize(("name", "kernel"), pairs())
def test_joint_distribution_is_invariant(name: str, kernel: str, rng_key: jax.Array) -> None:
    assert_joint(chain_of(name, KERNELS[kernel]), rng_key)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTINUOUS)
def test_joint_distribution_in_standardised_coordinates(name: str, rng_key: jax.Array) -> None:
    chain = chain_of(name, KERNELS["MALA"])
    assert_joint(chain._replace(density=chain.density.standardised()), rng_key)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "is_relaxed"), [("RandomWalk", False), ("RandomWalk", True), ("MALA", True)]
)
def test_joint_distribution_of_discrete_sites(
    kernel: str, is_relaxed: bool, rng_key: jax.Array
) -> None:
    """Redrawn from their prior, and as real coordinates."""
    chain = chain_of("mixed_discrete", KERNELS[kernel])
    if is_relaxed:
        chain = chain._replace(density=chain.density.relaxed())
    values, moved = successive(chain, rng_key)
    assert moved.mean() > 0.3
    assert_same_law(values["x"] - values["m"].sum(axis=-1) + values["k"], laws.norm.cdf)
    for k, share in enumerate((0.2, 0.5, 0.3)):
        assert_proportion(int((values["k"] == k).sum()), NUM_CHAINS, share)
    for column, share in enumerate((0.3, 0.6)):
        assert_proportion(int(values["m"][:, column].sum()), NUM_CHAINS, share)


RANKED = [("dependent_bounds", kernel) for kernel in KERNELS] + [
    (name, "MALA") for name in CONTINUOUS if name != "dependent_bounds"
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kernel"), RANKED)
def test_ranks_are_uniform(name: str, kernel: str, rng_key: jax.Array) -> None:
    for found in ranks(chain_of(name, KERNELS[kernel]), rng_key).values():
        assert_uniform_ranks(found, NUM_RANKED)


# Wrong ones are detected -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _WithoutRejection:
    """A Langevin step that forgets to reject."""

    kernel: ep.MALA

    def tuning(self, *args: Any) -> Any:
        return self.kernel.tuning(*args)

    def init(self, *args: Any) -> Any:
        return self.kernel.init(*args)

    def step(self, key: Any, density: Density, state: State, point: Any, tuning: Any) -> Any:
        noise = jax.random.normal(key, state.position.shape)
        size = tuning.step_size
        position = state.position + 0.5 * size**2 * state.gradient + size * noise
        return self.kernel.init(density, position, density.terms(position), point)


@pytest.mark.parametrize(
    "name",
    ["positive"]
    + [
        pytest.param(name, marks=pytest.mark.slow)
        for name in CONTINUOUS
        if name not in ("real", "positive")
    ],
)
def test_a_missing_jacobian_is_detected(name: str, rng_key: jax.Array) -> None:
    chain = chain_of(name, KERNELS["RandomWalk"])
    chain = chain._replace(density=without_jacobian(chain.density))
    with pytest.raises(AssertionError, match="do not follow the law"):
        assert_joint(chain, rng_key)


@pytest.mark.slow
def test_a_missing_rejection_is_detected(rng_key: jax.Array) -> None:
    chain = chain_of("real", _WithoutRejection(ep.MALA(step_size=1.5)))
    with pytest.raises(AssertionError, match="do not follow the law"):
        assert_joint(chain, rng_key)


@pytest.mark.slow
def test_ranks_detect_a_missing_jacobian(rng_key: jax.Array) -> None:
    chain = chain_of("positive", KERNELS["RandomWalk"])
    chain = chain._replace(density=without_jacobian(chain.density))
    with pytest.raises(AssertionError, match="ranks are not uniform"):
        assert_uniform_ranks(ranks(chain, rng_key)["rate"], NUM_RANKED)
