"""A NumPyro program as a `Model`: how positions become values, and values log densities."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import textwrap
import tokenize
import zlib
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers

from estimand.model.enumerated import Apart
from estimand.model.layout import (
    PLAIN,
    Coordinates,
    Output,
    ProgramError,
    Site,
    shape_of_key,
)
from estimand.model.numpyro.ranges import Range, in_ranges
from estimand.model.numpyro.sites import (
    TRACING,
    Latent,
    drawing_from_prior,
    is_wrapped,
    observed_log_prob,
)
from estimand.model.numpyro.standard import standard_normals
from estimand.model.numpyro.transforms import (
    Integers,
    Numbers,
    bijection_to,
    has_heavy_tails,
    has_integers,
    is_real,
    log_density_of_blended,
    log_scale,
    plain_transform,
    standardised_transform,
    unconstrained_value,
    without_mask,
)
from estimand.model.protocol import Assessment, Data, Evaluation, Identity, Redraw
from estimand.runtime import NUM_KEPT_MODELS, compiler_options

if TYPE_CHECKING:
    from estimand.model.numpyro.program import Arguments, Expectation, ExpectationProgram

# Prior draws by which it is seen whether a masked element matters to the rest of the density.
NUM_MASK_DRAWS = 4


@dataclasses.dataclass(frozen=True)
class NumpyroModel:
    """A program, the shape of its data and the places of its sites: all that is compiled in.

    Programs with equal traces are equal.
    """

    program: ExpectationProgram = dataclasses.field(compare=False)
    trace: Hashable
    """What the program is compared by; see `shared_key`."""
    shape_of_data: Arguments
    path: tuple[Any, ...]
    output: Output | None
    places: tuple[Site, ...]
    freed: tuple[tuple[str, tuple[bool, ...]], ...] = ()
    """For masked sites, which elements NumPyro's own density depends on."""
    coordinates: Coordinates = PLAIN
    plain: tuple[str, ...] = ()
    """Sites that are in plain coordinates whatever those of the others are."""

    @classmethod
    def of(cls, expectation: Expectation, trace: Hashable) -> NumpyroModel:
        """The model of a bound program."""
        return cls(
            program=expectation.program,
            trace=trace,
            shape_of_data=expectation.data,
            path=expectation.path,
            output=expectation.output,
            places=_places(expectation),
            freed=_freed(expectation, trace),
        )

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def sites(self) -> tuple[Site, ...]:
        if not self.coordinates.is_relaxed:
            return self.places
        return tuple(
            dataclasses.replace(site, is_continuous=True, is_transformed=True)
            if site.is_discrete and site.name not in self.plain
            else site
            for site in self.places
        )

    def in_coordinates(self, coordinates: Coordinates) -> NumpyroModel:
        has_discrete = any(site.is_discrete and site.name not in self.plain for site in self.places)
        wanted = coordinates._replace(is_relaxed=coordinates.is_relaxed and has_discrete)
        return dataclasses.replace(self, coordinates=wanted)

    def without_output(self) -> NumpyroModel:
        return dataclasses.replace(self, output=None)

    def keeping_plain(self, names: tuple[str, ...]) -> NumpyroModel:
        return dataclasses.replace(self, plain=names)

    def with_last(self, names: tuple[str, ...]) -> NumpyroModel:
        """The same with some sites last in a position."""
        ordered = sorted(self.places, key=lambda place: place.name in names)
        return dataclasses.replace(self, places=_placed(ordered))

    def identity(self, data: Data) -> Identity:
        return identity_of(self.program, self.shape_of_data, self.path, data)

    def arguments(self, data: Data) -> tuple[tuple, dict]:
        """The NumPyro model's ``(args, kwargs)``."""
        return self.shape_of_data.arguments(data)

    # --- one position at a time ---

    def draw(self, rng_key: jax.Array, data: Data) -> jax.Array:
        sites, _ = self._trace(data, None, rng_key)
        return self._unconstrain(sites, data, jax.random.fold_in(rng_key, 1))

    def evaluate(self, position: jax.Array, data: Data) -> Evaluation:
        sites, value = self._trace(data, self._substitution(position, data))
        log_priors, log_likelihood = self._log_densities(sites, data, position)
        return Evaluation(_total(log_priors), log_likelihood, self._outputs(value))

    def apart(self, position: jax.Array, data: Data, num_kept: int) -> Apart:
        """The log density in pieces; the sites after the first `num_kept` are summed out."""
        sites, value = self._trace(data, self._substitution(position, data))
        log_priors, log_likelihood = self._log_densities(sites, data, position)
        return Apart(
            log_priors=tuple(log_priors[:num_kept]),
            log_prior_of_labels=_total(log_priors[num_kept:]),
            log_likelihood=log_likelihood,
            outputs=self._outputs(value),
            values=tuple(sites[place.name]["value"] for place in self.places[:num_kept]),
        )

    def assess(self, values: dict[str, jax.Array], data: Data) -> Assessment:
        sites, value = self._trace(data, lambda site: values.get(site["name"]))
        log_priors, log_likelihood = self._log_densities(sites, data, None)
        return Assessment(
            position=self._unconstrain(sites, data),
            log_prior=_total(log_priors),
            log_likelihood=log_likelihood,
            outputs=self._outputs(value),
        )

    def values(self, position: jax.Array, data: Data) -> dict[str, jax.Array]:
        sites, _ = self._trace(data, self._substitution(position, data))
        names = (*(place.name for place in self.places), *self.program.shown)
        return {name: sites[name]["value"] for name in names}

    def in_ranges(self, position: jax.Array, data: Data) -> dict[Range, jax.Array]:
        """For parameters of distributions, whether they are in their ranges."""
        sites, _ = self._trace(data, self._substitution(position, data))
        return in_ranges(sites)

    def standard_normals(self, position: jax.Array, data: Data) -> tuple[jax.Array, ...]:
        """Every site as numbers that are standard normal under the prior."""
        sites, _ = self._trace(data, self._substitution(position, data))
        found = ((place.name, sites[place.name]) for place in self.places)
        return tuple(
            standard_normals(name, without_mask(site["fn"]), site["value"]) for name, site in found
        )

    def redraw(self, rng_key: jax.Array, position: jax.Array, data: Data) -> Redraw:
        sites, _ = self._trace(data, self._substitution(position, data))
        drawn, before, after = position, [], []
        for number, place in enumerate(self.places):
            if not place.is_discrete:
                continue
            site = sites[place.name]
            fn = without_mask(site["fn"])
            value = fn.sample(jax.random.fold_in(rng_key, number)).astype(site["value"].dtype)
            flat = jnp.ravel(value).astype(position.dtype)
            drawn = drawn.at[place.start : place.stop].set(flat)
            before.append(jnp.ravel(fn.log_prob(site["value"])))
            after.append(jnp.ravel(fn.log_prob(value)))
        return Redraw(drawn, jnp.concatenate(before), jnp.concatenate(after))

    def log_scales(self, rng_key: jax.Array, data: Data) -> jax.Array:
        sites, _ = self._trace(data, None, rng_key)
        fns = [
            without_mask(sites[place.name]["fn"])
            for place in self.places
            if place.name not in self.plain
        ]
        scales = [log_scale(fn) for fn in fns]
        return jnp.stack([jnp.zeros(())] + [scale for scale in scales if scale is not None])

    # --- the program under NumPyro's handlers ---

    def _run(self, data: Data) -> Any:
        own = data[:-1] if self.coordinates.is_blended else data
        value = self.program.run(self.shape_of_data, own)
        for key in self.path:
            value = value[key]
        return value

    def _trace(
        self, data: Data, substitution: Callable | None, rng_key: Any = None
    ) -> tuple[dict, Any]:
        with TRACING, handlers.trace() as sites:
            if substitution is None:
                with drawing_from_prior(rng_key):
                    return sites, self._run(data)
            with handlers.substitute(substitute_fn=substitution):
                return sites, self._run(data)

    def _outputs(self, value: Any) -> jax.Array:
        return jnp.zeros(0) if self.output is None else self.output.numbers(value)

    def _substitution(self, position: jax.Array, data: Data) -> Callable[[dict], jax.Array | None]:
        places = {place.name: place for place in self.places}

        def substitute(site: dict) -> jax.Array | None:
            place = places.get(site["name"])
            if place is None or site["type"] != "sample":
                return None
            value, centredness = place.take(position), self._centredness(place, data)
            # A site inside numpyro's scan is asked for one step at a time.
            step = site["infer"].get("_scan_current_index")
            if step is not None:
                transform = self._transform(site["fn"], place, None)
                shift = transform.codomain.event_dim - transform.domain.event_dim
                if value.ndim > len(site["fn"].shape()) - shift:
                    value = value[step]
                    centredness = None if centredness is None else centredness[step]
            transform = self._transform(site["fn"], place, centredness)
            return transform(value)

        return substitute

    def _log_densities(
        self, sites: dict, data: Data, position: jax.Array | None
    ) -> tuple[list[jax.Array], jax.Array]:
        """Every site's log prior, with the Jacobian of the position if there is one, and the log
        likelihood."""
        log_priors = []
        log_likelihood = jnp.zeros((), jnp.result_type(float))
        freed = dict(self.freed)
        for place in self.sites:
            site = sites[place.name]
            fn = without_mask(site["fn"])
            log_prob = fn.log_prob(site["value"])
            log_density = jnp.sum(log_prob)
            is_freed = freed.get(place.name, ())
            if site["scale"] is not None or any(is_freed):
                # The prior is what prior draws have; a scale or a mask on top is the likelihood's.
                scale = 1 if site["scale"] is None else site["scale"]
                masked = _masked(site, log_prob, is_freed)
                log_likelihood += jnp.sum(scale * masked - log_prob)
            if position is not None and place.is_continuous:
                coordinates, centredness = place.take(position), self._centredness(place, data)
                residual = None
                if centredness is not None:
                    residual = log_density_of_blended(fn, coordinates, centredness)
                transform = self._transform(fn, place, centredness)
                jacobian = jnp.sum(transform.log_abs_det_jacobian(coordinates, site["value"]))
                log_density = log_density + jacobian if residual is None else residual
            log_priors.append(log_density)
        for site in sites.values():
            if site["type"] == "sample" and site["is_observed"]:
                log_prob = observed_log_prob(site)
                scaled = log_prob if site["scale"] is None else site["scale"] * log_prob
                log_likelihood += jnp.sum(scaled)
        return log_priors, log_likelihood

    def _unconstrain(self, sites: dict, data: Data, rng_key: jax.Array | None = None) -> jax.Array:
        """The position of a trace, with integers at random in their intervals if there is a key."""
        pieces = [jnp.zeros(0, jnp.result_type(float))]
        for place in self.places:
            site = sites[place.name]
            fraction: Any = 0.5
            if rng_key is not None and self.coordinates.is_relaxed:
                key = jax.random.fold_in(rng_key, place.start)
                fraction = jax.random.uniform(key, place.shape)
            centredness = self._centredness(place, data)
            transform = self._transform(site["fn"], place, centredness, fraction)
            value = unconstrained_value(site, transform)
            pieces.append(jnp.ravel(value))
        return jnp.concatenate([piece.astype(pieces[0].dtype) for piece in pieces])

    def _centredness(self, place: Site, data: Data) -> jax.Array | None:
        """How much of the location and scale of a site's prior its coordinates keep."""
        if not self.coordinates.is_blended or place.name in self.plain:
            return None
        return place.take(jnp.asarray(data[-1]))

    def _transform(self, fn: Any, place: Site, centredness: Any, fraction: Any = 0.5) -> Any:
        """The map from a site's coordinates to its value."""
        is_plain = place.name in self.plain
        if place.is_discrete:
            if is_plain or not self.coordinates.is_relaxed:
                return Numbers()
            return Integers(without_mask(fn), fraction, self.coordinates.is_standardised)
        if (self.coordinates.is_standardised or self.coordinates.is_blended) and not is_plain:
            return standardised_transform(without_mask(fn), centredness)
        return plain_transform(fn)


def _total(log_densities: list[jax.Array]) -> jax.Array:
    return sum(log_densities, start=jnp.zeros((), jnp.result_type(float)))


def _masked(site: dict, log_prob: jax.Array, is_freed: tuple[bool, ...]) -> jax.Array:
    """The log prior of a traced site without the factors that a mask takes away."""
    if not any(is_freed):
        return log_prob
    flags = np.reshape(is_freed, log_prob.shape)
    return jnp.where(flags, site["fn"].log_prob(site["value"]), log_prob)


# --- the source, for records ---


def identity_of(
    program: ExpectationProgram, data: Arguments, path: tuple[Any, ...], arrays: Data
) -> Identity:
    """The identity of a bound program, with the constants that it held when it was bound."""
    asked = (program.content(data), path)
    return Identity(
        program=asked if program.enumerate is None else (*asked, program.enumerate),
        data=data.arguments(arrays),
        source=program.source,
    )


def source_text(function: Any) -> str:
    """The source of a function, or what can be said of it."""
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return f"# {getattr(function, '__qualname__', repr(type(function)))}: no source is known\n"


# --- places of the sites in the flat position ---


def _places(expectation: Expectation) -> tuple[Site, ...]:
    """Places of the sites, continuous ones first."""
    found: dict[str, Site] = {}

    def draw(rng_key: jax.Array) -> None:
        with TRACING, handlers.trace() as sites, drawing_from_prior(rng_key):
            expectation.run()
        for latent in expectation.latents:
            site, support = sites[latent.name], sites[latent.name]["fn"].support
            coordinate_shape = latent.shape
            if not latent.is_discrete:
                transform = _bijection(expectation.name, latent, support)
                coordinate_shape = unconstrained_value(site, transform).shape
            found[latent.name] = Site(
                name=latent.name,
                shape=latent.shape,
                coordinate_shape=coordinate_shape,
                is_discrete=latent.is_discrete,
                is_continuous=not latent.is_discrete,
                is_integer=has_integers(support),
                is_transformed=not is_real(support),
                is_proper=latent.is_proper,
                has_heavy_tails=has_heavy_tails(site["fn"]),
                event_dim=latent.event_dim,
            )

    jax.eval_shape(draw, shape_of_key())
    latents = sorted(expectation.latents, key=lambda latent: latent.is_discrete)
    return _placed([found[latent.name] for latent in latents])


def _placed(sites: list[Site]) -> tuple[Site, ...]:
    """Sites one after the other."""
    places, start = [], 0
    for site in sites:
        places.append(dataclasses.replace(site, start=start))
        start = places[-1].stop
    return tuple(places)


def _bijection(program: str, latent: Latent, support: Any) -> Any:
    bijection = bijection_to(support)
    if bijection is None:
        raise ProgramError(
            f"the support of site {latent.name!r} of program {program!r} has no unconstrained "
            "coordinates in NumPyro: reparametrise the site."
        )
    return bijection


# --- masked latents ---


def _freed(expectation: Expectation, trace: Hashable) -> tuple[tuple[str, tuple[bool, ...]], ...]:
    """For every masked latent site the elements on which NumPyro's own density depends."""
    masked: list[str] = []

    def draw(rng_key: jax.Array) -> None:
        with TRACING, handlers.trace() as sites, drawing_from_prior(rng_key):
            expectation.run()
        for latent in expectation.latents:
            if is_wrapped(sites[latent.name]["fn"], dist.MaskedDistribution):
                masked.append(latent.name)

    if not any(latent.is_altered for latent in expectation.latents):
        return ()
    jax.eval_shape(draw, shape_of_key())
    return tuple((name, _freed_elements(expectation, trace, name)) for name in masked)


def _freed_elements(expectation: Expectation, trace: Hashable, name: str) -> tuple[bool, ...]:
    keys = jax.random.split(jax.random.key(0), (NUM_MASK_DRAWS, 2))
    data = expectation.data
    changes = _compiled_changes(_Text(expectation.program, trace, data), name)
    found = [changes(data.arrays, pair, (-1) ** k) for k, pair in enumerate(keys)]
    return tuple(np.any(found, axis=0).tolist())


@dataclasses.dataclass(frozen=True)
class _Text:
    """A program and the shape of its data, compared by its trace."""

    program: ExpectationProgram = dataclasses.field(compare=False)
    trace: Hashable
    shape_of_data: Arguments

    def run(self, arrays: tuple) -> Any:
        return self.program.run(self.shape_of_data, arrays)


@functools.lru_cache(maxsize=NUM_KEPT_MODELS)
def _compiled_changes(text: _Text, name: str) -> Callable:
    changes = functools.partial(_changes, text, name)
    return jax.jit(changes, compiler_options=compiler_options(0))


def _anywhere(rng_key: jax.Array, site: dict) -> jax.Array | None:
    """A value of a continuous site in its support."""
    if site["type"] != "sample" or site["is_observed"] or site["fn"].support.is_discrete:
        return None
    transform = bijection_to(site["fn"].support)
    if transform is None:
        return None
    key = jax.random.fold_in(rng_key, zlib.crc32(site["name"].encode()))
    key = jax.random.fold_in(key, site["infer"].get("_scan_current_index", 0))
    return transform(jax.random.normal(key, transform.inverse_shape(site["fn"].shape())))


def _changes(text: _Text, name: str, arrays: tuple, keys: jax.Array, step: int) -> jax.Array:
    """For every element of a site whether NumPyro's own density changes with it, at some point.

    It is exchanged for that of another point, or for the integer a step away. Any point will do:
    continuous sites are normal in their coordinates, because priors take long to compile.
    """

    def draw(rng_key: jax.Array) -> dict[str, dict]:
        anywhere = handlers.substitute(substitute_fn=functools.partial(_anywhere, rng_key))
        with TRACING, handlers.trace() as sites, drawing_from_prior(rng_key), anywhere:
            text.run(arrays)
        return sites

    def log_factors(values: dict[str, jax.Array]) -> list[jax.Array]:
        # One by one: beside a factor of 0, which the data of other elements may be, none is seen.
        with TRACING, handlers.trace() as sites, handlers.substitute(data=values):
            text.run(arrays)
        found = []
        for site in sites.values():
            if site["type"] == "sample":
                scale = 1.0 if site["scale"] is None else site["scale"]
                found.append(scale * site["fn"].log_prob(jnp.asarray(site["value"])))
        return found

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
    before = log_factors(values)

    def is_changed(element: jax.Array) -> jax.Array:
        is_chosen = jnp.arange(math.prod(shape)) == element
        is_chosen = is_chosen.reshape(shape + (1,) * (value.ndim - len(shape)))
        after = log_factors({**values, name: jnp.where(is_chosen, other, value)})
        pairs = zip(before, after, strict=True)
        return jnp.any(jnp.stack([jnp.any(_differ(one, two)) for one, two in pairs]))

    return jax.lax.map(is_changed, jnp.arange(math.prod(shape)), batch_size=256)


def _differ(before: jax.Array, after: jax.Array) -> jax.Array:
    """Where log densities differ by more than rounding."""
    slack = math.sqrt(jnp.finfo(jnp.result_type(float)).eps) * (1 + jnp.abs(before))
    is_same = jnp.abs(after - before) <= jnp.where(jnp.isfinite(slack), slack, 0.0)
    return ~(is_same | (after == before) | (jnp.isnan(after) & jnp.isnan(before)))
