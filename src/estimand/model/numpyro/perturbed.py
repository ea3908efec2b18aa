"""A bound program with handles on what its author wrote down: the constants of its distributions,
the powers of prior and likelihood, and the weight of every row of data."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.primitives import Messenger

from estimand.model.layout import ProgramError
from estimand.model.numpyro.program import Expectation, ExpectationProgram, bind
from estimand.model.numpyro.sites import TRACING, drawing_from_prior
from estimand.runtime import in_precision

# Prior draws at which a parameter that is a constant is the same.
NUM_COMPARED = 4
_TRUNCATED = (
    dist.LeftTruncatedDistribution,
    dist.RightTruncatedDistribution,
    dist.TwoSidedTruncatedDistribution,
)
PRIOR, LIKELIHOOD = "prior", "likelihood"


class Handles(NamedTuple):
    """What a program is perturbed by; at these values it is as it was written.

    `constants` are added to parameters, by site and name; `powers` are those of prior and
    likelihood; `rows` are the weights of the elements of each observed site.
    """

    constants: dict[str, dict[str, Any]]
    powers: dict[str, Any]
    rows: dict[str, Any]


class Perturbed(NamedTuple):
    """The perturbed program, its handles as arrays, and the values of the constants."""

    expectation: Expectation
    handles: Handles
    values: dict[str, dict[str, np.ndarray]]


def perturbed(expectation: Expectation) -> Perturbed:
    """A bound program as a function of its handles too, which come before its data."""
    program, data = expectation.program, expectation.data
    args, kwargs = jax.tree.unflatten(data.treedef, data.leaves[: data.num_data])
    values, shapes = _described(expectation)
    handles = Handles(
        constants={
            site: {name: np.zeros(value.shape) for name, value in found.items()}
            for site, found in values.items()
        },
        powers={name: np.ones(()) for name in (PRIOR, *([LIKELIHOOD] if shapes else []))},
        rows={site: np.ones(shape) for site, shape in shapes.items()},
    )
    bound = bind(_with_handles(program), (tuple(handles), *args), kwargs)
    bound = dataclasses.replace(bound, path=expectation.path, output=expectation.output)
    count = len(jax.tree.leaves(handles))
    flags = bound.data.is_array[: bound.data.num_data]
    if not all(flags[:count]) or flags[count:] != data.is_array[: data.num_data]:
        raise ProgramError(f"program {program.name!r} needs the values of what is perturbed.")
    if bound.model.sites != expectation.model.sites:
        raise ProgramError(f"program {program.name!r} has other coordinates when it is perturbed.")
    return Perturbed(bound, handles, values)


def _with_handles(program: ExpectationProgram) -> ExpectationProgram:
    model = program.model

    def with_handles(handles: tuple, *args: Any, **kwargs: Any) -> Any:
        with _Perturbing(Handles(*handles)):
            return model(*args, **kwargs)

    made = ExpectationProgram(with_handles, program.target, enumerate=program.enumerate)
    made.name, made.shown = program.name, program.shown
    return made


class _Perturbing(Messenger):
    """Applies handles to the sites of a program."""

    def __init__(self, handles: Handles):
        super().__init__()
        self.handles = handles

    def process_message(self, msg: dict) -> None:
        if msg["type"] != "sample":
            return
        if steps := self.handles.constants.get(msg["name"]):
            msg["fn"] = _rebuilt(msg["fn"], steps)
        factor = self.handles.powers[LIKELIHOOD if msg["is_observed"] else PRIOR]
        if msg["is_observed"] and msg["name"] in self.handles.rows:
            factor = factor * self.handles.rows[msg["name"]]
        msg["scale"] = factor if msg["scale"] is None else msg["scale"] * factor


# --- parameters of distributions ---


def _rebuilt(fn: Any, steps: dict[str, Any]) -> Any:
    """A distribution with some of its parameters moved."""
    if isinstance(fn, dist.MaskedDistribution):
        return _rebuilt(fn.base_dist, steps).mask(fn._mask)
    if isinstance(fn, dist.ExpandedDistribution):
        return _rebuilt(fn.base_dist, steps).expand(fn.batch_shape)
    if isinstance(fn, dist.Independent):
        return _rebuilt(fn.base_dist, steps).to_event(fn.reinterpreted_batch_ndims)
    own = {
        name: value + jnp.asarray(steps[name], jnp.result_type(float)) if name in steps else value
        for name, value in _own_parameters(fn).items()
    }
    if isinstance(fn, _TRUNCATED):
        return type(fn)(_rebuilt(fn.base_dist, steps), **own)
    return type(fn)(**own)


def _own_parameters(fn: Any) -> dict[str, Any]:
    """What a distribution was made with, by the names of its parameters."""
    return {name: fn.__dict__[name] for name in fn.arg_constraints if name in fn.__dict__}


def _parameters(fn: Any) -> dict[str, Any]:
    """The parameters that can be moved: real numbers, element by element."""
    if isinstance(fn, dist.MaskedDistribution | dist.ExpandedDistribution | dist.Independent):
        return _parameters(fn.base_dist)
    inner = _parameters(fn.base_dist) if isinstance(fn, _TRUNCATED) else {}
    own = {
        name: value
        for name, value in _own_parameters(fn).items()
        if _is_movable(fn.arg_constraints[name])
    }
    return inner | own


def _is_movable(constraint: Any) -> bool:
    if constraint is dist.constraints.real_vector:
        return True
    return not constraint.is_discrete and constraint.event_dim == 0


def _described(
    expectation: Expectation,
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, tuple[int, ...]]]:
    """The parameters that are constants, by site, and the shapes of the rows of observed sites.

    A parameter is one if it is the same in all prior draws, and if the distribution can be made
    anew from its parameters.
    """
    shapes: dict[str, tuple[int, ...]] = {}

    def look(rng_key: jax.Array) -> dict[str, Any]:
        with TRACING, handlers.trace() as sites, drawing_from_prior(rng_key):
            expectation.run()
        found = {}
        for name, site in sites.items():
            if site["type"] != "sample":
                continue
            if site["is_observed"]:
                shapes[name] = site["fn"].batch_shape
            if not isinstance(site["fn"], dist.Unit):
                found[name] = _seen(site)
        return found

    with in_precision("double"):
        keys = jax.random.split(jax.random.key(0), NUM_COMPARED)
        sites = jax.device_get(jax.jit(jax.vmap(look))(keys))
    values = {}
    for name, (parameters, logs) in sites.items():
        if logs is None or not np.allclose(logs[0], logs[1], rtol=1e-9, atol=1e-9, equal_nan=True):
            continue
        constants = {
            key: value[0]
            for key, value in parameters.items()
            if (value == value[:1]).all() and np.isfinite(value).all()
        }
        if constants:
            values[name] = constants
    return values, shapes


def _seen(site: dict) -> tuple[dict[str, jax.Array], tuple[jax.Array, jax.Array] | None]:
    """The parameters of a site, and its log density as it is and made anew."""
    fn = site["fn"]
    value = jnp.asarray(site["value"])
    try:
        parameters = {
            name: jnp.asarray(value, jnp.result_type(float))
            for name, value in _parameters(fn).items()
            if jnp.ndim(value) <= 1 or jnp.size(value) > 0
        }
        again = _rebuilt(fn, {name: jnp.zeros(x.shape) for name, x in parameters.items()})
        return parameters, (jnp.sum(fn.log_prob(value)), jnp.sum(again.log_prob(value)))
    except (TypeError, ValueError, AttributeError, KeyError):
        return {}, None


def named_arrays(expectation: Expectation) -> list[tuple[tuple[str, ...], int]]:
    """For every array among the data its name in pieces, and its place among the arrays.

    The first piece is the argument, by the signature of the program; the others are keys in it.
    """
    data = expectation.data
    args, kwargs = jax.tree.unflatten(data.treedef, list(range(data.num_data)))
    try:
        arguments = expectation.program.signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        arguments = {**{str(k): arg for k, arg in enumerate(args)}, **kwargs}
    places = np.cumsum(data.is_array) - 1
    return [
        (tuple(_key_text(key) for key in path), int(places[leaf]))
        for path, leaf in jax.tree_util.tree_leaves_with_path(dict(arguments))
        if data.is_array[leaf]
    ]


def _key_text(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))))
