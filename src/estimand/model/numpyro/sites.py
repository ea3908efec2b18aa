"""The sites of a program as an abstract trace shows them, and what can be wrong with them."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.primitives import Messenger

from estimand.model.layout import ProgramError
from estimand.model.numpyro.transforms import bijection_to

# NumPyro keeps the handlers of all threads in one list: only one thread may trace at a time.
TRACING = threading.RLock()
# Labels of more values than this are drawn by bisection. Not measured: ten comparisons against a
# thousand.
MIN_BISECTED = 1000


@dataclasses.dataclass(frozen=True)
class Latent:
    """A sample site without data, as the abstract trace saw it."""

    name: str
    shape: tuple[int, ...]
    event_dim: int
    is_discrete: bool
    is_proper: bool
    is_altered: bool
    """Under `handlers.scale` or a mask: its density is not that of its prior draws."""
    kinds: tuple[str, ...]
    """Classes of its distribution and of those that it wraps, on which its coordinates depend."""


class Marked(Exception):  # noqa: N818 - not an error: the program is one that branches
    """A site with ``infer={"branching": True}`` was met that has no value."""


def is_marked(msg: dict) -> bool:
    """Whether a message is of a latent site that Python control flow may use."""
    is_latent = msg["type"] == "sample" and not msg["is_observed"] and msg["value"] is None
    return is_latent and bool(msg["infer"].get("branching"))


class Watch(Messenger):
    """A handler that refuses what no abstract trace of the sites would show afterwards."""

    def __init__(self, program: str):
        super().__init__()
        self.program = program
        self.names: set[str] = set()

    def process_message(self, msg: dict) -> None:
        if is_marked(msg):
            raise Marked
        kind, name = msg["type"], msg.get("name")
        where = f"site {name!r} of program {self.program!r}"
        has_key = msg["kwargs"].get("rng_key") is not None if "kwargs" in msg else False
        if kind in ("sample", "deterministic"):
            if name in self.names:
                raise ProgramError(f"{where} is there twice: give every site a name of its own.")
            self.names.add(str(name))
        if kind == "sample" and not msg["is_observed"] and msg["value"] is None and has_key:
            raise ProgramError(
                f"{where} has a random key of its own, with which every draw from its prior would "
                "be the same: remove handlers.seed or rng_key= from the model."
            )
        if kind == "param" and msg["value"] is None:
            raise ProgramError(
                f"parameter {name!r} of program {self.program!r} has no prior: make it a site with "
                "numpyro.sample, or give it a value with numpyro.handlers.substitute."
            )
        if kind == "prng_key" and not has_key:
            raise ProgramError(
                f"program {self.program!r} asks for numpyro.prng_key(), and a random return value "
                "has no density: draw with numpyro.sample, so that it is a site."
            )


class SameIntegers(Messenger):
    """A handler under which a `scan` goes on with integers of the type it began with.

    Labels that begin as ``jnp.int32`` meet draws of 64 bits in double precision.
    """

    def process_message(self, msg: dict) -> None:
        if msg["type"] != "control_flow" or len(msg["args"]) < 2:
            return
        body, *rest = msg["args"]

        def same(carry: Any, x: Any) -> tuple[Any, Any]:
            after, y = body(carry, x)
            return jax.tree.map(_with_type_of, carry, after), y

        msg["args"] = (same, *rest)


def _with_type_of(before: Any, after: Any) -> Any:
    types = [jnp.result_type(value) for value in (before, after)]
    is_other = types[0] != types[1] and all(jnp.issubdtype(one, jnp.integer) for one in types)
    return jnp.asarray(after, types[0]) if is_other else after


def check_sites(program: str, sites: dict[str, dict]) -> tuple[Latent, ...]:
    """The latent sites of a trace, after all sites were checked."""
    latents = []
    for name, site in sites.items():
        where = f"site {name!r} of program {program!r}"
        if site["type"] == "plate":
            size, subsample_size = site["args"]
            if subsample_size is not None and subsample_size < size:
                raise ProgramError(
                    f"plate {name!r} of program {program!r} uses {subsample_size} of {size} rows. "
                    "A random subset gives a random density; remove subsample_size."
                )
        elif site["type"] != "sample" or isinstance(site["fn"], dist.Unit):
            continue
        elif site["is_observed"]:
            _check_observed(where, site)
        else:
            latents.append(_describe_latent(where, site))
    return tuple(latents)


def _check_observed(where: str, site: dict) -> None:
    value, shape = site["value"], site["fn"].shape()
    if isinstance(value, list | tuple):
        raise ProgramError(f"the data of {where} are a {type(value).__name__}: pass an array.")
    dtype = getattr(value, "dtype", None) or np.asarray(value).dtype
    if not (jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)):
        raise ProgramError(
            f"the data of {where} are of type {type(value).__name__} and dtype {dtype}: pass "
            "numbers."
        )
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise ProgramError(f"the data of {where} are complex: pass real numbers.")
    data_shape = jnp.shape(value)
    try:
        together = np.broadcast_shapes(shape, data_shape)
    except ValueError:
        raise ProgramError(
            f"{where} has shape {shape} and its data have shape {data_shape}, which do not fit "
            "together. Reshape the data, or give the site the shape of its data."
        ) from None
    if together != data_shape:
        raise ProgramError(
            f"{where} has shape {shape} and its data have shape {data_shape}: together they would "
            f"broadcast to {together}, which counts data more than once. Reshape the data to the "
            "shape of the site."
        )
    if is_wrapped(site["fn"], dist.MaskedDistribution) or isinstance(value, jax.core.Tracer):
        return
    value = np.asarray(value)
    if np.isnan(value).any():
        raise ProgramError(
            f"the data of {where} contain NaN. Remove those rows, or mask them with "
            "numpyro.handlers.mask."
        )
    if not _can_be_inside(site["fn"].support, value):
        raise ProgramError(
            f"the data of {where} lie outside of its support, {site['fn'].support}, where the "
            "density is 0. Fix the data, or choose a distribution that they can come from."
        )


def _can_be_inside(support: Any, value: np.ndarray) -> bool:
    """Whether data lie in a support, as far as that does not depend on latents."""
    if support is constraints.dependent:
        return True
    try:
        with jax.ensure_compile_time_eval():
            inside = support(value)
    except jax.errors.TracerArrayConversionError:
        return True
    return isinstance(inside, jax.core.Tracer) or bool(np.all(inside))


def observed_log_prob(site: dict) -> jax.Array:
    """The log density of data, which NumPyro wants as JAX's arrays where a support is traced."""
    try:
        return site["fn"].log_prob(site["value"])
    except jax.errors.TracerArrayConversionError:
        return site["fn"].log_prob(jnp.asarray(site["value"]))


def site_contents(sites: dict[str, dict]) -> list[Any]:
    """All numbers of a trace's sites: values, coordinates, densities, parameters and scales."""
    contents: list[Any] = []
    for site in sites.values():
        if site["type"] != "sample" or isinstance(site["fn"], dist.Unit):
            continue
        parameters = [leaf for leaf in _parameters(site["fn"]) if _is_numeric(leaf)]
        contents.append([parameters, 1.0 if site["scale"] is None else site["scale"]])
        if site["is_observed"]:
            contents.append(observed_log_prob(site))
            continue
        contents.append([site["value"], site["fn"].log_prob(site["value"])])
        # A support without a bijection is refused where coordinates are needed.
        bijection = None if site["fn"].support.is_discrete else bijection_to(site["fn"].support)
        if bijection is not None:
            contents.append(bijection.inv(site["value"]))
    return contents


def _parameters(value: Any) -> list[Any]:
    """The leaves of a distribution; NumPyro's own order of them differs from process to process."""
    leaves = []
    for leaf in jax.tree.leaves(value, is_leaf=lambda part: isinstance(part, dist.Distribution)):
        if isinstance(leaf, dist.Distribution):
            for name in sorted(leaf.gather_pytree_data_fields()):
                leaves += _parameters(leaf.__dict__.get(name))
        else:
            leaves.append(leaf)
    return leaves


def _is_numeric(leaf: Any) -> bool:
    return isinstance(leaf, bool | int | float | np.ndarray | np.generic | jax.Array)


def _describe_latent(where: str, site: dict) -> Latent:
    fn = site["fn"]
    if isinstance(fn, dist.Delta):
        raise ProgramError(
            f"{where} is a latent Delta, which has no density: use numpyro.deterministic."
        )
    return Latent(
        name=site["name"],
        shape=jnp.shape(site["value"]),
        event_dim=fn.event_dim,
        is_discrete=bool(fn.support.is_discrete),
        is_proper=not _is_improper(fn),
        is_altered=site["scale"] is not None or is_wrapped(fn, dist.MaskedDistribution),
        kinds=_kinds(fn),
    )


def _kinds(fn: Any) -> tuple[str, ...]:
    kinds = [type(fn).__module__, type(fn).__qualname__, type(fn.support).__qualname__]
    base = getattr(fn, "base_dist", None)
    return (*kinds, *(() if base is None else _kinds(base)))


@contextlib.contextmanager
def drawing_from_prior(rng_key: jax.Array) -> Iterator[None]:
    """Latent sites are drawn from their prior; improper ones get some value of their support."""

    def placeholder(site: dict) -> jax.Array | None:
        if site["type"] != "sample" or site["is_observed"] or not _is_improper(site["fn"]):
            return None
        transform = biject_to(site["fn"].support)
        return transform(jnp.zeros(transform.inverse_shape(site["fn"].shape())))

    with (
        handlers.seed(rng_seed=rng_key),
        handlers.substitute(substitute_fn=placeholder),
        _ManyLabels(),
    ):
        yield


class _ManyLabels(Messenger):
    """Draws labels by bisection: NumPyro compares with the chance of every value, one by one."""

    def process_message(self, msg: dict) -> None:
        is_categorical = type(msg.get("fn")) in (dist.CategoricalProbs, dist.CategoricalLogits)
        if not is_categorical or msg["type"] != "sample" or msg["is_observed"]:
            return
        chances = msg["fn"].probs
        if chances.ndim == 1 and chances.size > MIN_BISECTED:
            msg["fn"] = _Bisected(probs=chances)


class _Bisected(dist.CategoricalProbs):
    """The same law, drawn by looking a uniform number up among the cumulative chances."""

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        sums = jnp.cumsum(self.probs)
        uniforms = jax.random.uniform(key, sample_shape) * sums[-1]
        found = jnp.searchsorted(sums, uniforms, side="right")
        return jnp.minimum(found, self.probs.size - 1)


def _is_improper(fn: Any) -> bool:
    return is_wrapped(fn, dist.ImproperUniform)


def is_wrapped(fn: Any, kind: type) -> bool:
    """Whether a distribution, or one that it expands or reinterprets, is of a kind."""
    while not isinstance(fn, kind):
        fn = getattr(fn, "base_dist", None)
        if fn is None:
            return False
    return True
