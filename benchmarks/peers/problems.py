"""The problems: a NumPyro model each, its truth, and its target written as a logarithm.

Models and truths are those of the package `problems`. The logarithm of the target is what a user of
another library writes by hand, where the plain value would underflow; a test compares it with the
model's return value. Hierarchical models are given to the peers in the non-centred form that their
documentation recommends; estimand gets the model unchanged.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.handlers import reparam
from numpyro.infer.reparam import LocScaleReparam

from problems import PROBLEMS as TRUTHS
from problems.eight_schools import eight_schools
from problems.radon import LIMIT, SHARPNESS
from problems.sir import RECOVERY

jax.config.update("jax_enable_x64", True)


class Problem(NamedTuple):
    """A model with its data, the truth, and the target.

    Args:
        name: as in the table.
        model: NumPyro model that returns the target.
        args: its data.
        value: the truth.
        log_target: sign and log|f| of a dictionary of sites.
        sites: those that the target reads.
        signs: of the parts of f that are not zero.
        non_centred: sites that the peers get as location plus scale times a standard variable.
        margin: positive where an event happens, for problems without data; None for the others.
    """

    name: str
    model: Callable
    args: tuple[Any, ...]
    value: float
    log_target: Callable
    sites: tuple[str, ...]
    signs: tuple[int, ...] = (1,)
    non_centred: tuple[str, ...] = ()
    margin: Callable | None = None

    def bound(self):
        """The model with its data, in the form for the peers."""
        config = {name: LocScaleReparam(centered=0) for name in self.non_centred}
        return functools.partial(reparam(self.model, config=config), *self.args)

    def target(self, sites):
        """f itself."""
        sign, log_magnitude = self.log_target(sites)
        return sign * jnp.exp(log_magnitude)


def _gaussian(sites, y):
    return 1.0, dist.Normal(sites["x"], math.sqrt(0.5)).log_prob(-y).sum()


def _banana(sites):
    offset = sites["x1"] - 2.0
    log_magnitude = 3.0 * jnp.log(jnp.abs(offset)) + jax.nn.log_sigmoid(-50.0 * (sites["x2"] + 5.0))
    return jnp.sign(offset), log_magnitude


def _sir(sites):
    return 1.0, math.log(1e12) + jax.nn.log_sigmoid(10.0 * sites["beta"] / RECOVERY - 30.0)


def _radon(sites):
    return 1.0, jax.nn.log_sigmoid(-SHARPNESS * (jnp.exp(sites["alpha"]) - LIMIT)).sum()


def first_school(y, sigma):
    """The effect in the first of the eight schools."""
    return eight_schools(y, sigma)[0]


def all_schools(y, sigma):
    """Whether the effect is above 15 in every school."""
    return eight_schools(y, sigma)[4]


def _first_school(sites):
    theta = sites["theta"][0]
    return jnp.sign(theta), jnp.log(jnp.abs(theta))


def _all_schools(sites):
    return _indicator(sites["theta"].min() > 15.0)


def four_branch_margin(x):
    """How far the system is beyond failure; works on NumPy and JAX arrays, last axis the two."""
    total, difference = (x[..., 0] + x[..., 1]) / math.sqrt(2), x[..., 0] - x[..., 1]
    curved, straight = abs(total) - 0.1 * difference**2 - 3.0, abs(difference) - 7 / math.sqrt(2)
    return curved * (curved > straight) + straight * (curved <= straight)


def _four_branch(sites):
    return _indicator(four_branch_margin(sites["x"]) > 0)


def _indicator(event):
    return jnp.where(event, 1.0, 0.0), jnp.where(event, 0.0, -jnp.inf)


def _tabled(truth, log_target, sites, **others):
    found = TRUTHS[truth]
    return Problem(truth, found.model, found.args, found.value, log_target, sites, **others)


def _schools(name, model, output, log_target, signs):
    found = TRUTHS["eight_schools"]
    value = found.value[output]
    return Problem(name, model, found.args, value, log_target, ("theta",), signs, ("theta",))


_GAUSSIAN = TRUTHS["posterior_predictive"]
ALL = {
    problem.name: problem
    for problem in (
        _tabled("posterior_predictive", functools.partial(_gaussian, y=_GAUSSIAN.args[0]), ("x",)),
        _tabled("banana", _banana, ("x1", "x2"), signs=(1, -1)),
        _tabled("sir", _sir, ("beta",)),
        _tabled("radon", _radon, ("alpha",), non_centred=("alpha", "beta")),
        _schools("eight_schools", first_school, 0, _first_school, (1, -1)),
        _schools("eight_schools_event", all_schools, 4, _all_schools, (1,)),
        _tabled("four_branch", _four_branch, ("x",), margin=four_branch_margin),
    )
}
