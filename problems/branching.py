"""Programs that branch in Python, with exact answers for every branch.

Truths are closed forms, or finite or fast converging sums of them.
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

BRANCHING = {"branching": True}


class BranchTruth(NamedTuple):
    """One branch: the values of its sites, its log Z2, and E[f | branch] by output."""

    values: dict[str, int]
    log_z2: float
    value: dict[str, float]


class BranchingProblem(NamedTuple):
    """A model whose return value is a dict of numbers, its data, and its branches.

    `branches` of an unbounded program are those with all but a negligible share of the mass.
    """

    name: str
    model: Callable[..., Any]
    args: tuple[Any, ...]
    branches: tuple[BranchTruth, ...]
    how: str

    @property
    def log_z2(self) -> float:
        return float(np.logaddexp.reduce([branch.log_z2 for branch in self.branches]))

    @property
    def probabilities(self) -> dict[tuple[tuple[str, int], ...], float]:
        """By the values of the branching sites."""
        return {
            tuple(branch.values.items()): math.exp(branch.log_z2 - self.log_z2)
            for branch in self.branches
        }

    @property
    def value(self) -> dict[str, float]:
        """The expectation of every output."""
        shares = list(self.probabilities.values())
        return {
            name: math.fsum(
                share * branch.value[name]
                for share, branch in zip(shares, self.branches, strict=True)
            )
            for name in self.branches[0].value
        }


def _normal_log_pdf(x: Any, mean: Any, variance: Any) -> Any:
    return -0.5 * (np.log(2 * math.pi * variance) + (x - mean) ** 2 / variance)


# NumPyro's own example ---------------------------------------------------------------------------


def two_models() -> Any:
    """The example in the documentation of NumPyro's DCC and SDVI."""
    model = numpyro.sample("model1", dist.Bernoulli(0.5), infer=BRANCHING)
    if model == 0:
        mean = numpyro.sample("a1", dist.Normal(0.0, 1.0))
    else:
        mean = numpyro.sample("a2", dist.Normal(1.0, 1.0))
    numpyro.sample("obs", dist.Normal(mean, 1.0), obs=0.2)
    return {"mean": mean, "first": model == 0}


def _two_models() -> BranchingProblem:
    branches = tuple(
        BranchTruth(
            {"model1": model},
            math.log(0.5) + float(_normal_log_pdf(0.2, model, 2.0)),
            {"mean": (model + 0.2) / 2, "first": float(model == 0)},
        )
        for model in (0, 1)
    )
    return BranchingProblem("two_models", two_models, (), branches, "closed form: two Gaussians")


# The degree of a polynomial ----------------------------------------------------------------------

_NOISE, _PRIOR, _AHEAD = 0.5, 2.0, 1.2


def polynomial(x: np.ndarray, y: np.ndarray) -> Any:
    """A polynomial of unknown degree: what it says beyond the data, and its degree."""
    degree = numpyro.sample("degree", dist.DiscreteUniform(0, 5), infer=BRANCHING)
    powers = range(degree + 1)
    w = numpyro.sample("w", dist.Normal(0.0, _PRIOR).expand([degree + 1]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(sum(w[k] * x**k for k in powers), _NOISE), obs=y)
    return {"ahead": sum(w[k] * _AHEAD**k for k in powers), "degree": degree}


def _polynomial() -> BranchingProblem:
    x = np.linspace(-1, 1, 15)
    y = 0.5 - x + 2 * x**2 + 0.5 * np.random.default_rng(0).normal(size=15)
    branches = []
    for degree in range(6):
        design = np.vander(x, degree + 1, increasing=True)
        covariance = _PRIOR**2 * design @ design.T + _NOISE**2 * np.eye(len(x))
        solved = np.linalg.solve(covariance, y)
        log_determinant = np.linalg.slogdet(2 * math.pi * covariance)[1]
        log_z2 = -math.log(6) - 0.5 * float(y @ solved + log_determinant)
        ahead = float(_AHEAD ** np.arange(degree + 1) @ (_PRIOR**2 * design.T @ solved))
        value = {"ahead": ahead, "degree": float(degree)}
        branches.append(BranchTruth({"degree": degree}, log_z2, value))
    how = "closed form: Gaussian evidences"
    return BranchingProblem("polynomial", polynomial, (x, y), tuple(branches), how)


# The number of components of a mixture -----------------------------------------------------------

_WIDTH, _SPREAD = 0.5, 3.0


def components(y: np.ndarray) -> Any:
    """A mixture of one to four components with equal weights: how many, and their average."""
    count = 1 + numpyro.sample("more", dist.Categorical(probs=np.full(4, 0.25)), infer=BRANCHING)
    mu = numpyro.sample("mu", dist.Normal(0.0, _SPREAD).expand([count]).to_event(1))
    mixture = dist.MixtureSameFamily(
        dist.Categorical(probs=jnp.full(count, 1 / count)), dist.Normal(mu, _WIDTH)
    )
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", mixture, obs=y)
    return {"count": count, "average": jnp.mean(mu)}


def _components() -> BranchingProblem:
    y = np.array([-2.1, -1.9, -2.4, 1.8, 2.2, 2.0])
    branches = []
    for more in range(4):
        count = more + 1
        labels = np.array(list(itertools.product(range(count), repeat=len(y))))
        log_weights = np.full(len(labels), -len(y) * math.log(count))
        averages = np.zeros(len(labels))
        for component in range(count):
            is_in = labels == component
            size, total = is_in.sum(axis=1), is_in @ y
            precision = 1 / _SPREAD**2 + size / _WIDTH**2
            mean = total / _WIDTH**2 / precision
            log_weights += 0.5 * (mean**2 * precision - np.log(precision * _SPREAD**2))
            averages += mean / count
        log_weights += _normal_log_pdf(y, 0.0, _WIDTH**2).sum()
        log_z = float(np.logaddexp.reduce(log_weights))
        value = {
            "count": float(count),
            "average": float(np.exp(log_weights - log_z) @ averages),
        }
        branches.append(BranchTruth({"more": more}, log_z - math.log(4), value))
    how = "closed form: a sum over all assignments of the data"
    return BranchingProblem("components", components, (y,), tuple(branches), how)


# A random walk that stops at a barrier -----------------------------------------------------------

_UP, _MAX_CYCLES = 0.8, 60


def _walk(up: Any) -> tuple[int, int]:
    """Steps up and down from 0 until −1 or 2 is reached: the place, and how many steps."""
    place = count = 0
    while -1 < place < 2:
        step = numpyro.sample(f"step{count}", dist.Bernoulli(up), infer=BRANCHING)
        place, count = place + 2 * step - 1, count + 1
    return place, count


def walk(y: float) -> Any:
    """A walk that stops at a barrier, and a measurement of how long it took."""
    place, count = _walk(_UP)
    numpyro.sample("y", dist.Normal(count, 2.0), obs=y)
    return {"steps": count, "below": place < 0}


def learning_walk(y: float) -> Any:
    """The same with an unknown probability of a step upwards."""
    up = numpyro.sample("up", dist.Beta(8.0, 2.0))
    place, count = _walk(up)
    numpyro.sample("y", dist.Normal(count, 2.0), obs=y)
    return {"steps": count, "below": place < 0, "up": up}


def _walks(y: float) -> list[tuple[int, int, BranchTruth]]:
    """All walks: up and down again some times, and then down, or up twice."""
    found = []
    for cycles in range(_MAX_CYCLES):
        for last in ((0,), (1, 1)):
            steps = (1, 0) * cycles + last
            values = {f"step{k}": step for k, step in enumerate(steps)}
            log_z2 = float(_normal_log_pdf(y, len(steps), 4.0))
            value = {"steps": float(len(steps)), "below": float(last == (0,))}
            ups = sum(steps)
            found.append((ups, len(steps) - ups, BranchTruth(values, log_z2, value)))
    return found


def _walk_problem() -> BranchingProblem:
    branches = tuple(
        branch._replace(log_z2=branch.log_z2 + ups * math.log(_UP) + downs * math.log(1 - _UP))
        for ups, downs, branch in _walks(4.0)
    )
    return BranchingProblem("walk", walk, (4.0,), branches, "closed form: a geometric series")


def _learning_walk_problem() -> BranchingProblem:
    from scipy.special import betaln

    branches = tuple(
        branch._replace(
            log_z2=branch.log_z2 + float(betaln(8 + ups, 2 + downs) - betaln(8, 2)),
            value=branch.value | {"up": (8 + ups) / (10 + ups + downs)},
        )
        for ups, downs, branch in _walks(4.0)
    )
    how = "closed form: a series of Beta functions"
    return BranchingProblem("learning_walk", learning_walk, (4.0,), branches, how)


BRANCHING_PROBLEMS = {
    problem.name: problem
    for problem in (
        _two_models(),
        _polynomial(),
        _components(),
        _walk_problem(),
        _learning_walk_problem(),
    )
}
