"""Where the latent sites are in a flat position, and how coordinates become values.

Plain coordinates are NumPyro's unconstrained ones. Standardised coordinates are (x − location) /
scale where a prior has these: the "non-centred" parametrisation. Where a support has an edge they
are stretched, so that a density which ends at the edge has the tails of a normal law. Spread
coordinates are real numbers for integers too: each value has an interval of length one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    LowerCholeskyAffine,
    ParameterFreeTransform,
    Transform,
)

from estimand.model.program import Data, Expectation, ExpectationProgram, Output
from estimand.model.sites import TRACING, Latent, ProgramError, drawing_from_prior, is_wrapped

# Prior draws by which it is seen whether a masked element matters to the rest of the density.
NUM_MASK_DRAWS = 4


@dataclasses.dataclass(frozen=True)
class Coordinates:
    """The place of a latent site in the flat position."""

    latent: Latent
    start: int
    shape: tuple[int, ...]
    is_transformed: bool
    is_spreadable: bool
    is_freed: tuple[bool, ...] = ()
    """For a masked site, which elements NumPyro's own density depends on."""

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)

    def take(self, position: jax.Array) -> jax.Array:
        return position[self.start : self.stop].reshape(self.shape)

    def masked(self, site: dict, log_prob: jax.Array) -> jax.Array:
        """The log prior of a traced site without the factors that a mask takes away."""
        if not any(self.is_freed):
            return log_prob
        is_freed = np.reshape(self.is_freed, log_prob.shape)
        return jnp.where(is_freed, site["fn"].log_prob(site["value"]), log_prob)


@dataclasses.dataclass(frozen=True)
class Layout:
    """All that is compiled in: the program and the places of its sites."""

    program: ExpectationProgram
    data: Data
    path: tuple[Any, ...]
    output: Output | None
    sites: tuple[Coordinates, ...]
    is_standardised: bool = False
    is_spread: bool = False

    @property
    def dimension(self) -> int:
        return self.sites[-1].stop if self.sites else 0

    @functools.cached_property
    def num_continuous(self) -> int:
        return sum(math.prod(site.shape) for site in self.sites if self.is_continuous(site))

    def is_continuous(self, site: Coordinates) -> bool:
        """Whether the coordinates of a site are real numbers."""
        return self.is_spread or not site.latent.is_discrete

    @property
    def discrete_sites(self) -> tuple[str, ...]:
        return tuple(site.latent.name for site in self.sites if not self.is_continuous(site))

    @property
    def has_integers(self) -> bool:
        """Whether a site has integer values, with whatever coordinates."""
        return any(site.latent.is_discrete for site in self.sites)

    @property
    def is_spreadable(self) -> bool:
        """Whether every discrete site is one of integers."""
        return all(site.is_spreadable for site in self.sites if site.latent.is_discrete)

    @property
    def discrete_elements(self) -> np.ndarray:
        """For every coordinate the number of the discrete element it belongs to; −1 if none."""
        owner, count = np.full(self.dimension, -1), 0
        for site in self.sites:
            if site.latent.is_discrete:
                shape = site.latent.shape
                batch = shape[: len(shape) - site.latent.event_dim]
                elements = np.arange(math.prod(batch)).reshape(batch + (1,) * site.latent.event_dim)
                owner[site.start : site.stop] = count + np.broadcast_to(elements, shape).ravel()
                count += math.prod(batch)
        return owner

    @property
    def is_transformed(self) -> np.ndarray:
        """For every coordinate whether it is another one than the model's own."""
        flags = [
            site.is_transformed or (self.is_spread and site.latent.is_discrete)
            for site in self.sites
        ]
        sizes = np.array([math.prod(site.shape) for site in self.sites], int)
        return np.repeat(np.array(flags, bool), sizes)

    @property
    def improper_sites(self) -> tuple[str, ...]:
        return tuple(site.latent.name for site in self.sites if not site.latent.is_proper)


_LOCATION_SCALE = (
    dist.Normal,
    dist.Cauchy,
    dist.StudentT,
    dist.Laplace,
    dist.Logistic,
    dist.Gumbel,
)


def plain_transform(fn: Any) -> Any:
    """The map from unconstrained coordinates to the support of a distribution."""
    return biject_to(fn.support)


class Stretch(ParameterFreeTransform):
    """u = v·√(1 + v²/4): the identity near 0, ±v²/2 far away.

    A density that is finite at an edge of its support falls off like e^−|u| in unconstrained
    coordinates u, which no Gaussian covers; in v it falls off like e^−v²/2.
    """

    domain = constraints.real
    codomain = constraints.real
    sign = 1

    def __call__(self, x: Any) -> Any:
        return x * jnp.sqrt(1 + 0.25 * x**2)

    def _inverse(self, y: Any) -> Any:
        # A draw that was rounded onto the edge of its support has infinite coordinates.
        limit = float(np.log(jnp.finfo(y.dtype).max))
        u = jnp.clip(y, -limit, limit)
        return u * jnp.sqrt(2 / (1 + jnp.sqrt(1 + u**2)))

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Any:  # noqa: ARG002
        return jnp.log1p(0.5 * x**2) - 0.5 * jnp.log1p(0.25 * x**2)


_POSITIVE_SCALES: dict[type, Callable] = {
    dist.HalfNormal: lambda fn: fn.scale,
    dist.HalfCauchy: lambda fn: fn.scale,
    dist.Exponential: lambda fn: 1 / fn.rate,
    dist.Gamma: lambda fn: fn.concentration / fn.rate,
    dist.InverseGamma: lambda fn: fn.rate / fn.concentration,
}


def location_scale(fn: Any) -> Any:
    """The map from a standard law to one with a location or a scale; None for all others."""
    base = fn
    while isinstance(base, dist.ExpandedDistribution | dist.Independent):
        base = base.base_dist
    shape = fn.shape()
    if isinstance(base, _LOCATION_SCALE):
        return AffineTransform(*(jnp.broadcast_to(x, shape) for x in (base.loc, base.scale)))
    if isinstance(base, dist.LogNormal):
        ends = (jnp.broadcast_to(x, shape) for x in (base.loc, base.scale))
        return ComposeTransform([AffineTransform(*ends), ExpTransform()])
    if isinstance(base, dist.MultivariateNormal):
        factor = jnp.broadcast_to(base.scale_tril, (*shape, shape[-1]))
        return LowerCholeskyAffine(jnp.broadcast_to(base.loc, shape), factor)
    if type(base) in _POSITIVE_SCALES:
        scale = jnp.broadcast_to(_POSITIVE_SCALES[type(base)](base), shape)
        shift = AffineTransform(jnp.log(scale), jnp.ones(shape, scale.dtype))
        return ComposeTransform([Stretch(), shift, ExpTransform()])
    return None


def standardised_transform(fn: Any) -> Any:
    """The map from standardised coordinates to the support of a distribution."""
    transform = location_scale(fn)
    if transform is None:
        plain = plain_transform(fn)
        transform = plain if _is_real(fn.support) else ComposeTransform([Stretch(), plain])
    return transform


class Numbers(ParameterFreeTransform):
    """The values of discrete sites as floating-point numbers."""

    domain = constraints.real
    codomain = constraints.real

    def __call__(self, x: Any) -> Any:
        return x.astype(jnp.result_type(int))

    def _inverse(self, y: Any) -> Any:
        return jnp.asarray(y, jnp.result_type(float))


class Integers(Transform):
    """Integers as the integer parts of real numbers, and these in unconstrained coordinates.

    A probability mass function becomes a density of steps, whose integral is the same sum. The
    inverse is at the given fraction of a value's interval.
    """

    domain = constraints.real
    codomain = constraints.real

    def __init__(self, fn: Any, fraction: Any = 0.5):
        support = getattr(fn.support, "base_constraint", fn.support)
        lower: Any = 0
        upper: Any = 1
        if support is not constraints.boolean:
            lower, upper = support.lower_bound, getattr(support, "upper_bound", math.inf)
        dtype = jnp.result_type(float)
        self.lower, self.upper = (jnp.asarray(end, dtype) for end in (lower, upper))
        is_bounded = upper is not math.inf
        ends: Any = (
            constraints.interval(self.lower, self.upper + 1)
            if is_bounded
            else constraints.greater_than(self.lower)
        )
        self.numbers = ComposeTransform([Stretch(), biject_to(ends)])
        self.fraction = fraction
        # Beyond it neighbours are the same number.
        self.limit = 2.0 ** jnp.finfo(dtype).nmant

    def __call__(self, x: Any) -> Any:
        value = jnp.clip(jnp.floor(self.numbers(x)), self.lower, self.upper)
        return jnp.clip(value, -self.limit, self.limit).astype(jnp.result_type(int))

    def _inverse(self, y: Any) -> Any:
        return self.numbers.inv(y + jnp.asarray(self.fraction, self.lower.dtype))

    def tree_flatten(self) -> tuple:
        leaves = self.numbers, self.lower, self.upper, self.fraction
        return leaves, (("numbers", "lower", "upper", "fraction"), {"limit": self.limit})

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Any:  # noqa: ARG002
        number = self.numbers(x)
        jacobian = self.numbers.log_abs_det_jacobian(x, number)
        return jnp.where(jnp.abs(number) < self.limit, jacobian, -jnp.inf)


def unconstrained_value(site: dict, transform: Any) -> jax.Array:
    """The coordinates of a traced site's value, by the transform of its distribution."""
    value = transform.inv(site["value"])
    # A draw that was rounded onto the edge of its support has infinite coordinates.
    limit = float(np.log(jnp.finfo(value.dtype).max))
    return jnp.nan_to_num(value, nan=jnp.nan, posinf=limit, neginf=-limit)


def _has_integers(support: Any) -> bool:
    base = getattr(support, "base_constraint", support)
    kinds = (constraints.integer_interval, constraints.integer_greater_than)
    return base is constraints.boolean or isinstance(base, kinds)


def _is_real(support: Any) -> bool:
    base = getattr(support, "base_constraint", support)
    return base is constraints.real or support.is_discrete


def without_mask(fn: Any) -> Any:
    """The distribution of a latent site without mask: that of its prior draws.

    A mask removes a latent element's factor. Where nothing else depends on the element, this
    leaves no proper density: it keeps its own prior, which integrates to one and leaves every
    expectation as it is. Elsewhere (see `Coordinates.is_freed`) the factor goes, on the
    likelihood's side.
    """
    if isinstance(fn, dist.MaskedDistribution):
        return without_mask(fn.base_dist)
    if isinstance(fn, dist.ExpandedDistribution):
        return without_mask(fn.base_dist).expand(fn.batch_shape)
    if isinstance(fn, dist.Independent):
        return without_mask(fn.base_dist).to_event(fn.reinterpreted_batch_ndims)
    return fn


def coordinates_of(expectation: Expectation) -> tuple[Coordinates, ...]:
    """Places of the sites in the flat position, continuous ones first."""
    shapes: dict[str, tuple[int, ...]] = {}
    transformed: dict[str, bool] = {}
    spreadable: dict[str, bool] = {}
    masked: list[str] = []

    def draw(rng_key: jax.Array) -> None:
        with TRACING, handlers.trace() as sites, drawing_from_prior(rng_key):
            expectation.run()
        for latent in expectation.latents:
            site, support = sites[latent.name], sites[latent.name]["fn"].support
            shapes[latent.name] = latent.shape
            if not latent.is_discrete:
                shapes[latent.name] = unconstrained_value(site, bijection(latent, support)).shape
            transformed[latent.name] = not _is_real(support)
            spreadable[latent.name] = _has_integers(support)
            if is_wrapped(site["fn"], dist.MaskedDistribution):
                masked.append(latent.name)

    def bijection(latent: Latent, support: Any) -> Any:
        try:
            return biject_to(support)
        except NotImplementedError as error:  # what NumPyro says of a support without a bijection
            raise ProgramError(
                f"the support of site {latent.name!r} of program {expectation.name!r} has no "
                "unconstrained coordinates in NumPyro: reparametrise the site."
            ) from error

    jax.eval_shape(draw, jax.random.key(0))
    freed = {name: _freed_elements(expectation, name) for name in masked}
    places, start = [], 0
    for latent in sorted(expectation.latents, key=lambda latent: latent.is_discrete):
        name = latent.name
        flags = transformed[name], spreadable[name], freed.get(name, ())
        places.append(Coordinates(latent, start, shapes[name], *flags))
        start = places[-1].stop
    return tuple(places)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _changes(
    program: ExpectationProgram, data: Data, name: str, arrays: tuple, keys: jax.Array, step: int
) -> jax.Array:
    """For every element of a site whether NumPyro's own density changes with it, at a prior draw.

    It is exchanged for that of another draw, or for the integer a step away.
    """

    def draw(rng_key: jax.Array) -> dict[str, dict]:
        args, kwargs = data.arguments(arrays)
        with TRACING, handlers.trace() as sites, drawing_from_prior(rng_key):
            program.run(args, kwargs)
        return sites

    def log_density(values: dict[str, jax.Array]) -> jax.Array:
        args, kwargs = data.arguments(arrays)
        with TRACING, handlers.trace() as sites, handlers.substitute(data=values):
            program.run(args, kwargs)
        total = jnp.zeros(())
        for site in sites.values():
            if site["type"] == "sample":
                scale = 1.0 if site["scale"] is None else site["scale"]
                total += jnp.sum(scale * site["fn"].log_prob(jnp.asarray(site["value"])))
        return total

    sites = draw(keys[0])
    values = {
        key: site["value"]
        for key, site in sites.items()
        if site["type"] == "sample" and not site["is_observed"]
    }
    value = values[name]
    is_discrete = jnp.issubdtype(value.dtype, jnp.integer)
    other = value + step if is_discrete else draw(keys[1])[name]["value"]
    shape = sites[name]["fn"].log_prob(value).shape
    before = log_density(values)

    def exchanged(element: jax.Array) -> jax.Array:
        is_chosen = jnp.arange(math.prod(shape)) == element
        is_chosen = is_chosen.reshape(shape + (1,) * (value.ndim - len(shape)))
        return log_density({**values, name: jnp.where(is_chosen, other, value)})

    after = jax.lax.map(exchanged, jnp.arange(math.prod(shape)), batch_size=256)
    slack = math.sqrt(jnp.finfo(before.dtype).eps) * (1 + jnp.abs(before))
    is_same = jnp.abs(after - before) <= jnp.where(jnp.isfinite(slack), slack, 0.0)
    return ~(is_same | (after == before) | (jnp.isnan(after) & jnp.isnan(before)))


def _freed_elements(expectation: Expectation, name: str) -> tuple[bool, ...]:
    """The elements of a masked latent site on which NumPyro's own density depends."""
    keys = jax.random.split(jax.random.key(0), (NUM_MASK_DRAWS, 2))
    data = expectation.data
    found = [
        _changes(expectation.program, data, name, data.arrays, pair, (-1) ** k)
        for k, pair in enumerate(keys)
    ]
    return tuple(np.any(found, axis=0).tolist())
