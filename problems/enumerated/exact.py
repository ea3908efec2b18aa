"""Programs with discrete sites whose answers are known by enumeration or quadrature.

Truths are computed with NumPy, without the library: sums over labels are taken one by one, by the
forward algorithm, or as the distribution of a count by convolution; what is continuous is left to a
Gauss-Legendre rule or a closed form.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan
from scipy import special, stats

from problems.problem import panels

_rng = np.random.default_rng(19)


class Exact(NamedTuple):
    """A program, its data, and its answers for a number of quadrature nodes."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    truth: Callable[..., np.ndarray]


def _average(log_weights: Any, values: Any, weights: Any) -> np.ndarray:
    """Means of the rows of values under exp(log_weights) at quadrature nodes with weights."""
    density = weights * np.exp(log_weights - np.max(log_weights))
    return np.atleast_2d(values) @ density / density.sum()


def _grid(*rules: tuple[np.ndarray, np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    nodes = np.meshgrid(*(rule[0] for rule in rules), indexing="ij")
    weights = np.meshgrid(*(rule[1] for rule in rules), indexing="ij")
    return [node.ravel() for node in nodes], np.prod(weights, axis=0).ravel()


def _log_add(*terms: np.ndarray) -> np.ndarray:
    return special.logsumexp(np.stack(np.broadcast_arrays(*terms)), axis=0)


def _tail_of_count(chances: np.ndarray, least: int) -> np.ndarray:
    """P(at least so many) of independent events, with chances (events, nodes)."""
    law = np.zeros((len(chances) + 1, chances.shape[1]))
    law[0] = 1.0
    for chance in chances:
        law[1:] = law[1:] * (1 - chance) + law[:-1] * chance
        law[0] *= 1 - chance
    return law[least:].sum(axis=0)


# Mixtures with 30 labels --------------------------------------------------------------------------

TWO = np.concatenate([_rng.normal(-1.0, 1.0, 18), _rng.normal(1.5, 1.0, 12)])
THREE = np.concatenate(
    [_rng.normal(-2.5, 1.0, 9), _rng.normal(0.0, 1.0, 11), _rng.normal(3.0, 1.0, 10)]
)


def two_components(y: Any) -> Any:
    """The mean of a component, one label, and more in it than half of them and a third."""
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    loc = numpyro.sample("loc", dist.Normal(1.0, 1.0))
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(share), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(jnp.where(z == 1, loc, -1.0), 1.0), obs=y)
    return loc, z[4] == 1, jnp.sum(z) >= 25


def two_components_truth(num_nodes: int = 60) -> np.ndarray:
    (share, loc), weights = _grid(
        panels((0.0, 0.1, 0.9, 1.0), num_nodes), panels((-3.0, 1.0, 5.0), num_nodes)
    )
    log_prior = stats.beta.logpdf(share, 2, 2) + stats.norm.logpdf(loc, 1, 1)
    ins = np.log(share) + stats.norm.logpdf(TWO[:, None], loc, 1)
    outs = np.log1p(-share) + stats.norm.logpdf(TWO[:, None], -1.0, 1)
    each = _log_add(ins, outs)
    chances = np.exp(ins - each)
    values = np.stack([loc, chances[4], _tail_of_count(chances, 25)])
    return _average(log_prior + each.sum(axis=0), values, weights)


def three_components(y: Any) -> Any:
    first = numpyro.sample("first", dist.Normal(-2.0, 1.0))
    second = numpyro.sample("second", dist.Normal(0.0, 1.0))
    locs = jnp.stack([first, second, jnp.full((), 3.0)])
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample(
            "z", dist.Categorical(jnp.array([0.3, 0.3, 0.4])), infer={"enumerate": "parallel"}
        )
        numpyro.sample("y", dist.Normal(locs[z], 1.0), obs=y)
    return second, z[8] == 0, jnp.sum(z == 1) >= 20


def three_components_truth(num_nodes: int = 60) -> np.ndarray:
    (first, second), weights = _grid(
        panels((-7.0, -2.0, 3.0), num_nodes), panels((-5.0, 0.0, 5.0), num_nodes)
    )
    log_prior = stats.norm.logpdf(first, -2, 1) + stats.norm.logpdf(second, 0, 1)
    rows = [
        math.log(share) + stats.norm.logpdf(THREE[:, None], loc, 1)
        for share, loc in ((0.3, first), (0.3, second), (0.4, np.full_like(first, 3.0)))
    ]
    each = _log_add(*rows)
    chances = [np.exp(row - each) for row in rows]
    values = np.stack([second, chances[0][8], _tail_of_count(chances[1], 20)])
    return _average(log_prior + each.sum(axis=0), values, weights)


# A hidden Markov model ----------------------------------------------------------------------------

STEPS = 50
SIGNAL = np.where((np.arange(STEPS) // 7) % 2, 1.0, 0.0) + 0.8 * _rng.normal(size=STEPS)


def hidden_states(y: Any) -> Any:
    """How long states last, the last one, and a path that stays in one state for twelve steps."""
    stay = numpyro.sample("stay", dist.Beta(4.0, 2.0))

    def step(state: Any, value: Any) -> Any:
        law = dist.Bernoulli(jnp.where(state == 1, stay, 1 - stay))
        state = numpyro.sample("state", law, infer={"enumerate": "parallel"})
        numpyro.sample("value", dist.Normal(1.0 * state, 0.8), obs=value)
        return state, state

    last, path = scan(step, 0, y)
    return stay, last == 1, jnp.all(path[18:30] == 1)


def hidden_states_truth(num_nodes: int = 40) -> np.ndarray:
    stay, weights = panels((0.0, 0.5, 0.9, 1.0), num_nodes)

    def forward(is_forced: Callable[[int], bool]) -> tuple[np.ndarray, np.ndarray]:
        alpha = np.stack([np.ones_like(stay), np.zeros_like(stay)])
        log_scale = np.zeros_like(stay)
        for t, value in enumerate(SIGNAL):
            moved = np.stack(
                [alpha[0] * stay + alpha[1] * (1 - stay), alpha[0] * (1 - stay) + alpha[1] * stay]
            )
            alpha = moved * stats.norm.pdf(value, np.array([[0.0], [1.0]]), 0.8)
            if is_forced(t):
                alpha[0] = 0.0
            log_scale += np.log(alpha.sum(axis=0))
            alpha /= alpha.sum(axis=0)
        return log_scale, alpha[1]

    log_z, last = forward(lambda _: False)
    log_path, _ = forward(lambda t: 18 <= t < 30)
    values = np.stack([stay, last, np.exp(log_path - log_z)])
    return _average(stats.beta.logpdf(stay, 4, 2) + log_z, values, weights)


# Coal mining accidents ----------------------------------------------------------------------------

# Disasters a year in British coal mines from 1851 on, without the two years that are missing.
DISASTERS = np.array(
    [
        4, 5, 4, 0, 1, 4, 3, 4, 0, 6, 3, 3, 4, 0, 2, 6, 3, 3, 5, 4, 5, 3, 1, 4, 4, 1, 5, 5, 3, 4,
        2, 5, 2, 2, 3, 4, 2, 1, 3, 2, 1, 1, 1, 1, 3, 0, 0, 1, 0, 1, 1, 0, 0, 3, 1, 0, 3, 2, 2, 0,
        1, 1, 1, 0, 1, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 1, 1, 0, 2, 3, 3, 1, 2, 1, 1, 1, 1, 2, 4, 2,
        0, 0, 1, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1,
    ]
)  # fmt: skip


def coal_mining(counts: Any) -> Any:
    """The year of the change, unmarked; the early rate, and a change after the 45th year."""
    early = numpyro.sample("early", dist.Exponential(1.0))
    late = numpyro.sample("late", dist.Exponential(1.0))
    year = numpyro.sample("year", dist.DiscreteUniform(1, len(counts) - 1))
    rate = jnp.where(jnp.arange(len(counts)) < year, early, late)
    numpyro.sample("counts", dist.Poisson(rate), obs=counts)
    return early, year > 45


def coal_mining_truth(_: int = 0) -> np.ndarray:
    """Given the year the rates have gamma distributions."""
    years = np.arange(1, len(DISASTERS))
    before = np.cumsum(DISASTERS)[:-1]
    after = DISASTERS.sum() - before
    rest = len(DISASTERS) - years
    log_z = special.gammaln(1 + before) - (1 + before) * np.log1p(years)
    log_z += special.gammaln(1 + after) - (1 + after) * np.log1p(rest)
    return _average(log_z, np.stack([(1 + before) / (1 + years), years > 45]), 1.0)


# Spike and slab -----------------------------------------------------------------------------------

DESIGN = _rng.normal(size=(25, 8))
OUTCOME = DESIGN @ np.array([1.2, 0.0, 0.0, 0.5, 0.0, 0.0, -0.3, 0.0]) + _rng.normal(size=25)


def spike_and_slab(x: Any, y: Any) -> Any:
    """Which of eight variables are in a regression."""
    with numpyro.plate("variables", x.shape[1]):
        is_in = numpyro.sample("is_in", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x @ (is_in * slope), 1.0), obs=y)
    return is_in


def spike_and_slab_truth(_: int = 0) -> np.ndarray:
    """Gaussian evidences of all 256 subsets."""
    log_z, flags = [], np.array(list(itertools.product((0, 1), repeat=8)))
    for row in flags:
        chosen = DESIGN[:, row == 1]
        law = stats.multivariate_normal(np.zeros(25), np.eye(25) + chosen @ chosen.T)
        log_z.append(law.logpdf(OUTCOME) + np.sum(np.where(row, math.log(0.3), math.log(0.7))))
    return _average(np.array(log_z), flags.T, 1.0)


# Counting animals ---------------------------------------------------------------------------------

MOST = 30
VISITS = np.array([[2, 3, 1], [0, 1, 0], [4, 2, 3], [1, 1, 2], [3, 5, 4]])


def abundance(visits: Any) -> Any:
    """Animals that are there and seen or not: their mean number, and that of the second place."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 0.4))
    seen = numpyro.sample("seen", dist.Beta(2.0, 2.0))
    law = dist.Categorical(logits=dist.Poisson(rate).log_prob(jnp.arange(MOST + 1)))
    with numpyro.plate("places", visits.shape[0]):
        count = numpyro.sample("count", law, infer={"enumerate": "parallel"})
        chance = dist.Binomial(count[:, None], seen).to_event(1)
        numpyro.sample("visits", chance, obs=visits)
    return rate, count[1], count[1] > 15


def abundance_truth(num_nodes: int = 60) -> np.ndarray:
    (rate, seen), weights = _grid(
        panels((0.0, 5.0, 12.0, 40.0, 120.0), num_nodes),
        panels((0.0, 0.05, 0.3, 0.7, 1.0), num_nodes),
    )
    counts = np.arange(MOST + 1)
    log_law = stats.poisson.logpmf(counts[:, None], rate)
    log_law -= special.logsumexp(log_law, axis=0)
    log_z = stats.gamma.logpdf(rate, 2.0, scale=1 / 0.4) + stats.beta.logpdf(seen, 2, 2)
    shares = None
    for place, row in enumerate(VISITS):
        log_rows = log_law + sum(stats.binom.logpmf(k, counts[:, None], seen) for k in row)
        total = special.logsumexp(log_rows, axis=0)
        log_z = log_z + total
        if place == 1:
            shares = np.exp(log_rows - total)
    assert shares is not None
    values = np.stack([rate, counts @ shares, shares[16:].sum(axis=0)])
    return _average(log_z, values, weights)


# A lattice ----------------------------------------------------------------------------------------


def ising() -> Any:
    """A 4 × 4 lattice with an unknown coupling: its magnetisation, and all but two spins up."""
    coupling = numpyro.sample("coupling", dist.Uniform(0.0, 0.6))
    with numpyro.plate("rows", 4, dim=-2), numpyro.plate("columns", 4, dim=-1):
        up = numpyro.sample("up", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
    spin = 2.0 * up - 1.0
    bonds = jnp.sum(spin[1:] * spin[:-1]) + jnp.sum(spin[:, 1:] * spin[:, :-1])
    numpyro.factor("energy", coupling * bonds + 0.2 * spin[0, 0])
    return coupling, spin[3, 3], jnp.sum(up) >= 14


def ising_truth(num_nodes: int = 60) -> np.ndarray:
    """All 65,536 states."""
    coupling, weights = panels((0.0, 0.6), num_nodes)
    bits = (np.arange(2**16)[:, None] >> np.arange(16)) & 1
    spin = (2.0 * bits - 1).reshape(-1, 4, 4)
    bonds = (spin[:, 1:] * spin[:, :-1]).sum(axis=(1, 2))
    bonds += (spin[:, :, 1:] * spin[:, :, :-1]).sum(axis=(1, 2))
    log_states = bonds[:, None] * coupling + 0.2 * spin[:, 0, 0][:, None]
    log_z = special.logsumexp(log_states, axis=0)
    shares = np.exp(log_states - log_z)
    is_up = (bits.sum(axis=1) >= 14).astype(float)
    values = np.stack([coupling, spin[:, 3, 3] @ shares, is_up @ shares])
    return _average(log_z, values, weights)


# A network ----------------------------------------------------------------------------------------


def alarm() -> Any:
    """Pearl's network: a burglary or an earthquake sets off an alarm, and neighbours call."""
    burglary = numpyro.sample("burglary", dist.Bernoulli(0.001), infer={"enumerate": "parallel"})
    earthquake = numpyro.sample(
        "earthquake", dist.Bernoulli(0.002), infer={"enumerate": "parallel"}
    )
    chances = jnp.array([[0.001, 0.29], [0.94, 0.95]])
    rings = numpyro.sample(
        "rings", dist.Bernoulli(chances[burglary, earthquake]), infer={"enumerate": "parallel"}
    )
    numpyro.sample("john", dist.Bernoulli(jnp.array([0.05, 0.90])[rings]), obs=1)
    numpyro.sample("mary", dist.Bernoulli(jnp.array([0.01, 0.70])[rings]), obs=1)
    return burglary, burglary & earthquake, rings


def alarm_truth(_: int = 0) -> np.ndarray:
    """All eight states."""
    weights, values = [], []
    for b, e, a in itertools.product((0, 1), repeat=3):
        chance = {(0, 0): 0.001, (0, 1): 0.29, (1, 0): 0.94, (1, 1): 0.95}[b, e]
        weight = (0.001 if b else 0.999) * (0.002 if e else 0.998)
        weight *= chance if a else 1 - chance
        weights.append(weight * (0.9 * 0.7 if a else 0.05 * 0.01))
        values.append((b, b & e, a))
    return _average(np.log(weights), np.array(values, float).T, 1.0)


EXACT = {
    "two_components": Exact(two_components, (TWO,), two_components_truth),
    "three_components": Exact(three_components, (THREE,), three_components_truth),
    "hidden_states": Exact(hidden_states, (SIGNAL,), hidden_states_truth),
    "coal_mining": Exact(coal_mining, (DISASTERS,), coal_mining_truth),
    "spike_and_slab": Exact(spike_and_slab, (DESIGN, OUTCOME), spike_and_slab_truth),
    "abundance": Exact(abundance, (VISITS,), abundance_truth),
    "ising": Exact(ising, (), ising_truth),
    "alarm": Exact(alarm, (), alarm_truth),
}
