"""Discrete sites, alone and together with continuous ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from scipy import special, stats

from problems.adversarial.first.integrals import gauss_rule, integral
from problems.adversarial.program import Adversarial


def heads(tosses):
    count = numpyro.sample("count", dist.Binomial(tosses, 0.5))
    return count >= 140


def aggregate_claims(limit):
    number = numpyro.sample("number", dist.Poisson(2.0))
    size = numpyro.sample("size", dist.Exponential(1.0).expand([30]).to_event(1))
    total = jnp.sum(jnp.where(jnp.arange(30) < number, size, 0.0))
    return total > limit


def aggregate_truth() -> Iterable[float]:
    n = np.arange(1, 120)
    return [float(stats.poisson.pmf(n, 2.0) @ stats.gamma.sf(20.0, np.minimum(n, 30)))]


def aggregate_check() -> Iterable[float]:
    """More claims than points of a unit Poisson process on (0, 20)."""
    points = np.arange(0, 30)
    return [float(stats.poisson.pmf(points, 20.0) @ stats.poisson.sf(points, 2.0))]


def fish_in_the_lake(marked, caught, recaptured):
    fish = numpyro.sample("fish", dist.DiscreteUniform(90, 1000))
    unmarked, missed = fish - marked, caught - recaptured
    ways = gammaln(unmarked + 1.0) - gammaln(unmarked - missed + 1.0)
    numpyro.factor("recapture", ways - gammaln(fish + 1.0) + gammaln(fish - caught + 1.0))
    return fish


def fish_truth() -> Iterable[float]:
    fish = np.arange(90, 1001)
    weight = stats.hypergeom.pmf(20, fish, 60, 50)
    return [float(weight @ fish / weight.sum())]


def fish_check() -> Iterable[float]:
    """The ratio of neighbouring likelihoods, in exact fractions turned to floats."""
    weight, total, moment = 1.0, 0.0, 0.0
    for n in range(90, 1001):
        total, moment = total + weight, moment + n * weight
        weight *= float(Fraction((n + 1 - 60) * (n + 1 - 50), (n + 1 - 60 - 30) * (n + 1)))
    return [moment / total]


DISASTERS = np.array(
    [
        4,
        5,
        4,
        1,
        0,
        4,
        3,
        4,
        0,
        6,
        3,
        3,
        4,
        0,
        2,
        6,
        3,
        3,
        5,
        4,
        1,
        0,
        2,
        1,
        1,
        0,
        0,
        1,
        2,
        0,
        1,
        1,
        0,
        3,
        0,
        1,
        0,
        2,
        1,
        0,
    ]
)


def change_point(counts):
    change = numpyro.sample("change", dist.DiscreteUniform(1, counts.size - 1))
    early = numpyro.sample("early", dist.Gamma(2.0, 1.0))
    late = numpyro.sample("late", dist.Gamma(2.0, 1.0))
    rate = jnp.where(jnp.arange(counts.size) < change, early, late)
    with numpyro.plate("years", counts.size):
        numpyro.sample("counts", dist.Poisson(rate), obs=counts)
    return {"change": change, "ratio": late / early}


def change_truth() -> Iterable[float]:
    n, total = np.arange(1, 40), DISASTERS.sum()
    before = np.cumsum(DISASTERS)[:-1]
    a, b = 2 + before, 2 + total - before
    logs = special.gammaln(a) - a * np.log(1 + n) + special.gammaln(b) - b * np.log(1 + 40 - n)
    weight = special.softmax(logs)
    return [weight @ n, weight @ (b / (41 - n) * (1 + n) / (a - 1))]


def change_check() -> Iterable[float]:
    """Both rates by quadrature for every change point."""
    x, w = gauss_rule(np.linspace(1e-9, 30, 60))
    total = moment = ratio = 0.0
    for n in range(1, 40):
        first, last = DISASTERS[:n].sum(), DISASTERS[n:].sum()
        early = w * np.exp((1 + first) * np.log(x) - (1 + n) * x)
        late = w * np.exp((1 + last) * np.log(x) - (41 - n) * x)
        mass = early.sum() * late.sum()
        total, moment = total + mass, moment + n * mass
        ratio += (early / x).sum() * (late * x).sum()
    return [moment / total, ratio / total]


PARCELS = np.array([7, 11, 13, 18, 21, 25, 32, 37, 40, 46, 53, 61])


def packed_parcels(weights, reading):
    with numpyro.plate("parcels", weights.size):
        packed = numpyro.sample("packed", dist.Bernoulli(0.5))
    numpyro.sample("reading", dist.Normal(jnp.dot(packed, weights), 1.0), obs=reading)
    return packed[0]


def parcels_truth() -> Iterable[float]:
    packed = np.array(list(itertools.product([0, 1], repeat=12)))
    weight = np.exp(-0.5 * (packed @ PARCELS - 203.4) ** 2)
    return [weight @ packed[:, 0] / weight.sum()]


def parcels_check() -> Iterable[float]:
    """Counts of subsets by their total weight, without the first parcel."""
    ways = np.zeros(365)
    ways[0] = 1
    for parcel in PARCELS[1:]:
        ways[parcel:] = ways[parcel:] + ways[:-parcel]
    totals = np.arange(365)
    without = ways @ np.exp(-0.5 * (totals - 203.4) ** 2)
    including = ways @ np.exp(-0.5 * (totals + PARCELS[0] - 203.4) ** 2)
    return [including / (without + including)]


COUPLING, FIELD, SPINS = 0.8, 0.05, 14


def ring_of_spins(coupling, field):
    with numpyro.plate("sites", SPINS):
        up = numpyro.sample("up", dist.Bernoulli(0.5))
    spin = 2.0 * up - 1.0
    numpyro.factor("energy", coupling * jnp.sum(spin * jnp.roll(spin, 1)) + field * jnp.sum(spin))
    return {"all_up": jnp.all(up == 1), "magnetisation": jnp.mean(spin)}


def ring_truth() -> Iterable[float]:
    """Transfer matrices."""
    spin = np.array([1.0, -1.0])
    transfer = np.exp(COUPLING * np.outer(spin, spin) + FIELD * (spin[:, None] + spin) / 2)
    power = np.linalg.matrix_power(transfer, SPINS)
    total = np.trace(power)
    return [transfer[0, 0] ** SPINS / total, np.trace(np.diag(spin) @ power) / total]


def ring_check() -> Iterable[float]:
    states = 1 - 2.0 * ((np.arange(2**SPINS)[:, None] >> np.arange(SPINS)) & 1)
    energy = COUPLING * np.sum(states * np.roll(states, 1, axis=1), axis=1)
    weight = special.softmax(energy + FIELD * states.sum(axis=1))
    return [weight[0], weight @ states.mean(axis=1)]


def next_batch(inspected, defective):
    rate = numpyro.sample("rate", dist.Beta(1, 20))
    numpyro.sample("defective", dist.Binomial(inspected, rate), obs=defective)
    bad = numpyro.sample("bad", dist.Binomial(50, rate))
    return bad >= 10


def next_batch_check() -> Iterable[float]:
    rule = gauss_rule(np.linspace(0, 1, 60))
    return [integral(rule, lambda p: stats.beta.pdf(p, 5, 216) * stats.binom.sf(9, 50, p))]


PROGRAMS = [
    Adversarial(
        "at_least_140_heads_of_200",
        "discrete",
        heads,
        (200,),
        lambda: [stats.binom.sf(139, 200, 0.5)],
        lambda: [float(Fraction(sum(math.comb(200, k) for k in range(140, 201)), 2**200))],
        "The binomial survival function; exact integers.",
        is_easy=True,
    ),
    Adversarial(
        "aggregate_claims",
        "discrete",
        aggregate_claims,
        (20.0,),
        aggregate_truth,
        aggregate_check,
        "The sum over the number of claims of gamma tails; the duality with a Poisson process.",
    ),
    Adversarial(
        "fish_in_the_lake",
        "discrete",
        fish_in_the_lake,
        (60, 50, 20),
        fish_truth,
        fish_check,
        "Enumeration with the hypergeometric law; the recursion of its ratios.",
        is_easy=True,
    ),
    Adversarial(
        "change_point_in_counts",
        "discrete",
        change_point,
        (DISASTERS,),
        change_truth,
        change_check,
        "Gamma integrals for every change point; quadrature of both rates.",
        is_easy=True,
    ),
    Adversarial(
        "which_parcels_are_packed",
        "discrete",
        packed_parcels,
        (PARCELS, 203.4),
        parcels_truth,
        parcels_check,
        "Enumeration of 4,096 subsets; counts of subsets by total weight.",
    ),
    Adversarial(
        "ring_of_spins",
        "discrete",
        ring_of_spins,
        (COUPLING, FIELD),
        ring_truth,
        ring_check,
        "Transfer matrices; enumeration of 16,384 states.",
    ),
    Adversarial(
        "next_batch_is_bad",
        "discrete",
        next_batch,
        (200, 4),
        lambda: [stats.betabinom.sf(9, 50, 5, 216)],
        next_batch_check,
        "The beta-binomial survival function; quadrature over the rate.",
        is_easy=True,
    ),
]
