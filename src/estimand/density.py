"""A bound program as arrays: one evaluation gives log prior, log likelihood and every output.

Positions are flat vectors: the continuous latents in unconstrained coordinates, then the discrete
ones as numbers. The Jacobian of the coordinates is on the prior's side, so that a prior draw is an
exact draw from `log_prior`. `Density.standardised` has other coordinates, in which location-scale
priors are standard ones. Which part (γ1⁺, γ1⁻ or γ2), which output and which data are arrays,
not code: one compilation serves them all.

All that this library needs of NumPyro's internals is in this module.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.extend.core import jaxprs_in_params
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    LowerCholeskyAffine,
)

from estimand.program import (
    PARTS,
    Data,
    Expectation,
    ExpectationProgram,
    Latent,
    Output,
    ProgramError,
    as_numbers,
    drawing_from_prior,
    log_positive_part,
)

# Up to this many continuous dimensions a gradient is taken in forward mode, above it in reverse
# mode; programs with loops keep forward mode longer, because reverse mode stores every iteration.
# benchmarks/gradient_mode.py measures both; docs/performance.md has the figures.
FORWARD_MODE_DIMENSIONS = {"straight": 1, "with loops": 4}

_SIGNS = dict(zip(PARTS, (1, -1, 0), strict=True))


class Terms(NamedTuple):
    """What one evaluation of a part knows of a position; each is a log density."""

    log_prior: jax.Array
    log_likelihood: jax.Array
    log_target: jax.Array

    @property
    def log_weight(self) -> jax.Array:
        """log of target over prior: the importance weight of a prior draw."""
        return self.log_likelihood + self.log_target


class PathPoint(NamedTuple):
    """A point on the way from the prior to the target: prior · likelihood^a · f^b."""

    likelihood: jax.Array
    target: jax.Array

    def log_density(self, terms: Terms) -> jax.Array:
        """The tempered log density; −inf where a term is NaN or the density is infinite."""
        value = (
            terms.log_prior
            + _scale(self.likelihood, terms.log_likelihood)
            + _scale(self.target, terms.log_target)
        )
        return jnp.where(value < jnp.inf, value, -jnp.inf)


def _scale(coefficient: jax.Array, log_value: jax.Array) -> jax.Array:
    """coefficient · log_value with 0 · (−inf) = 0: a factor to the power 0 is 1."""
    return jnp.where(coefficient == 0, 0.0, coefficient * log_value)


def is_invalid(log_density: jax.Array) -> jax.Array:
    """NaN or +inf: not the logarithm of a density."""
    return ~(log_density < jnp.inf)


@dataclasses.dataclass(frozen=True)
class Coordinates:
    """The place of a latent site in the flat position."""

    latent: Latent
    start: int
    shape: tuple[int, ...]
    is_transformed: bool

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)

    def take(self, position: jax.Array) -> jax.Array:
        return position[self.start : self.stop].reshape(self.shape)


@dataclasses.dataclass(frozen=True)
class Layout:
    """All that is compiled in: the program and the places of its sites."""

    program: ExpectationProgram
    data: Data
    path: tuple[Any, ...]
    output: Output | None
    sites: tuple[Coordinates, ...]
    is_standardised: bool = False

    @property
    def dimension(self) -> int:
        return self.sites[-1].stop if self.sites else 0

    @functools.cached_property
    def num_continuous(self) -> int:
        return sum(math.prod(site.shape) for site in self.sites if not site.latent.is_discrete)

    @property
    def discrete_sites(self) -> tuple[str, ...]:
        return tuple(site.latent.name for site in self.sites if site.latent.is_discrete)

    @property
    def is_transformed(self) -> np.ndarray:
        """For every coordinate whether it is another one than the model's own."""
        sizes = [math.prod(site.shape) for site in self.sites]
        return np.repeat([site.is_transformed for site in self.sites], sizes)

    @property
    def improper_sites(self) -> tuple[str, ...]:
        return tuple(site.latent.name for site in self.sites if not site.latent.is_proper)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["arrays", "sign", "output"],
    meta_fields=["layout"],
)
@dataclasses.dataclass(frozen=True)
class Density:
    """One of the three densities of a bound program."""

    layout: Layout
    arrays: tuple[jax.Array, ...]
    sign: jax.Array
    output: jax.Array

    @classmethod
    def of(cls, expectation: Expectation) -> Density:
        """γ2 of a bound program."""
        layout = Layout(
            expectation.program,
            expectation.data,
            expectation.path,
            expectation.output,
            _coordinates(expectation),
        )
        return cls(layout, expectation.data.arrays, jnp.asarray(0), jnp.asarray(0))

    def part(self, name: str, output: int = 0) -> Density:
        """γ1⁺, γ1⁻ (of one output) or γ2 of the same program."""
        return dataclasses.replace(self, sign=jnp.asarray(_SIGNS[name]), output=jnp.asarray(output))

    def standardised(self) -> Density:
        """The same with coordinates (x − location) / scale where a prior has these.

        They are the "non-centred" ones: a hierarchy whose scale is itself unknown, a funnel in
        the model's own coordinates, starts from a standard law in these.
        """
        return self._with_coordinates(True)

    def _with_coordinates(self, is_standardised: bool) -> Density:
        layout = dataclasses.replace(self.layout, is_standardised=is_standardised)
        return dataclasses.replace(self, layout=layout)

    def in_plain_coordinates(self, positions: jax.Array) -> jax.Array:
        """Positions, one per row, as the density that is not standardised has them."""
        return _in_plain_coordinates(self, positions) if self.layout.is_standardised else positions

    def has_varying_scales(self) -> bool:
        """Whether standardised coordinates depend on other sites in more than their location."""
        scales = jax.jit(jax.vmap(self._log_scales))(jax.random.split(jax.random.key(0)))
        return bool((scales[0] != scales[1]).any())

    def _log_scales(self, rng_key: jax.Array) -> jax.Array:
        """log of the volumes by which the sites are standardised at a prior draw."""
        sites, _ = self._trace(None, rng_key)
        fns = [_without_mask(sites[site.latent.name]["fn"]) for site in self.layout.sites]
        transforms = [_standardising(fn) for fn in fns]
        return jnp.stack(
            [jnp.zeros(())]
            + [
                jnp.sum(transform.log_abs_det_jacobian(jnp.zeros(fn.shape()), None))
                for fn, transform in zip(fns, transforms, strict=True)
                if transform is not None
            ]
        )

    @property
    def name(self) -> str:
        return self.layout.program.name

    @property
    def dimension(self) -> int:
        return self.layout.dimension

    @property
    def num_outputs(self) -> int:
        return 0 if self.layout.output is None else self.layout.output.size

    # --- evaluation of one position; estimators vmap over particles ---

    def terms(self, position: jax.Array) -> Terms:
        """Log prior (with Jacobian), log likelihood and log f± at a position."""
        return self._terms(*self._trace(self._substitution(position)), position)

    def evaluate(self, position: jax.Array) -> tuple[Terms, jax.Array]:
        """Terms and every output at a position, in one evaluation."""
        sites, value = self._trace(self._substitution(position))
        return self._terms(sites, value, position), self._numbers(value)

    def draw_with_outputs(self, rng_key: jax.Array) -> tuple[jax.Array, Terms, jax.Array]:
        """An exact draw from the prior with its terms and outputs, in one evaluation."""
        sites, value = self._trace(None, rng_key)
        position = self._unconstrain(sites)
        return position, self._terms(sites, value, position), self._numbers(value)

    def _numbers(self, value: Any) -> jax.Array:
        return jnp.zeros(0) if self.layout.output is None else as_numbers(value)

    def outputs(self, position: jax.Array) -> jax.Array:
        """Every output at a position."""
        return as_numbers(self._trace(self._substitution(position))[1])

    def outputs_at(self, values: dict[str, jax.Array]) -> jax.Array:
        """Every output for given values of the latent sites."""
        return as_numbers(self._trace(lambda site: values.get(site["name"]))[1])

    def constrain(self, position: jax.Array) -> dict[str, jax.Array]:
        """The values of the latent sites at a position, in the model's own coordinates."""
        sites, _ = self._trace(self._substitution(position))
        return {site.latent.name: sites[site.latent.name]["value"] for site in self.layout.sites}

    def draw_prior(self, rng_key: jax.Array) -> tuple[jax.Array, Terms]:
        """An exact draw from the prior, and its terms, in one evaluation."""
        sites, value = self._trace(None, rng_key)
        position = self._unconstrain(sites)
        return position, self._terms(sites, value, position)

    def terms_at(self, values: dict[str, jax.Array]) -> tuple[jax.Array, Terms]:
        """Position and terms for given values of the sites; the log prior is without Jacobian."""
        sites, value = self._trace(lambda site: values.get(site["name"]))
        terms = self._terms(sites, value, None)
        return self._unconstrain(sites), terms

    def value_and_gradient(
        self, position: jax.Array, point: PathPoint
    ) -> tuple[Terms, jax.Array, jax.Array]:
        """Terms, tempered log density and its gradient; gradients that are NaN become 0."""

        def tempered(u: jax.Array) -> tuple[jax.Array, Terms]:
            terms = self.terms(u)
            return point.log_density(terms), terms

        if gradient_mode(self) == "forward":
            value, slopes, terms = _forward_gradient(tempered, position)
        else:
            (value, terms), slopes = jax.value_and_grad(tempered, has_aux=True)(position)
        return terms, value, jnp.where(jnp.isfinite(slopes), slopes, 0.0)

    def draw_discrete(
        self, rng_key: jax.Array, position: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """For every discrete coordinate a draw from its prior given the position.

        Gives the position with all of them redrawn, and the log prior of the present and of the
        redrawn values, one for each element that is drawn as a whole (see `discrete_elements`).
        """
        sites, _ = self._trace(self._substitution(position))
        drawn, before, after = position, [], []
        for number, place in enumerate(self.layout.sites):
            if not place.latent.is_discrete:
                continue
            site = sites[place.latent.name]
            fn = _without_mask(site["fn"])
            value = fn.sample(jax.random.fold_in(rng_key, number)).astype(site["value"].dtype)
            flat = jnp.ravel(value).astype(position.dtype)
            drawn = drawn.at[place.start : place.stop].set(flat)
            before.append(jnp.ravel(fn.log_prob(site["value"])))
            after.append(jnp.ravel(fn.log_prob(value)))
        return drawn, jnp.concatenate(before), jnp.concatenate(after)

    @property
    def discrete_elements(self) -> np.ndarray:
        """For every coordinate the number of the discrete element it belongs to; −1 if none."""
        owner, count = np.full(self.dimension, -1), 0
        for site in self.layout.sites:
            if site.latent.is_discrete:
                shape = site.latent.shape
                batch = shape[: len(shape) - site.latent.event_dim]
                elements = np.arange(math.prod(batch)).reshape(batch + (1,) * site.latent.event_dim)
                owner[site.start : site.stop] = count + np.broadcast_to(elements, shape).ravel()
                count += math.prod(batch)
        return owner

    # --- what the estimators need to ask before they start ---

    def require_prior(self, asker: str) -> None:
        """Refuses programs whose prior cannot be drawn from."""
        if self.layout.improper_sites:
            raise ProgramError(
                f"{asker} starts from prior draws, and the prior of site "
                f"{self.layout.improper_sites[0]!r} of program {self.name!r} is improper. Give it "
                "a proper prior, or use ImportanceSampling(proposal=...) with a guide."
            )

    def require_continuous(self, asker: str, needs: str = "gradients") -> None:
        """Refuses programs with discrete latents."""
        if self.layout.discrete_sites:
            raise ProgramError(
                f"{asker} needs {needs}, and site {self.layout.discrete_sites[0]!r} of program "
                f"{self.name!r} is discrete. Use RandomWalk, which proposes discrete sites from "
                "their prior, or ImportanceSampling."
            )

    # --- the model under NumPyro's handlers ---

    def run(self) -> Any:
        """The quantity of interest, run under the caller's handlers."""
        layout = self.layout
        return Expectation(layout.program, layout.data, (), layout.output, layout.path).run(
            self.arrays
        )

    def arguments(self) -> tuple[tuple, dict]:
        """The model's ``(args, kwargs)``."""
        return self.layout.data.arguments(self.arrays)

    def _trace(self, substitution: Callable | None, rng_key: Any = None) -> tuple[dict, Any]:
        with handlers.trace() as sites:
            if substitution is None:
                with drawing_from_prior(rng_key):
                    return sites, self.run()
            with handlers.substitute(substitute_fn=substitution):
                return sites, self.run()

    def _substitution(self, position: jax.Array) -> Callable[[dict], jax.Array | None]:
        places = {site.latent.name: site for site in self.layout.sites}

        def substitute(site: dict) -> jax.Array | None:
            place = places.get(site["name"])
            if place is None or site["type"] != "sample":
                return None
            value = place.take(position)
            if place.latent.is_discrete:
                return value.astype(jnp.result_type(int))
            transform = self._transform(site["fn"])
            # A site inside numpyro's scan is asked for one step at a time.
            step = site["infer"].get("_scan_current_index")
            if step is not None:
                shift = transform.codomain.event_dim - transform.domain.event_dim
                if value.ndim > len(site["fn"].shape()) - shift:
                    value = value[step]
            return transform(value)

        return substitute

    def _terms(self, sites: dict, value: Any, position: jax.Array | None) -> Terms:
        log_prior = jnp.zeros((), jnp.result_type(float))
        log_likelihood = log_prior
        for place in self.layout.sites:
            site = sites[place.latent.name]
            fn = _without_mask(site["fn"])
            log_prob = fn.log_prob(site["value"])
            log_prior += jnp.sum(log_prob)
            if site["scale"] is not None:
                # The prior is what prior draws have; a scale on top of it is the likelihood's.
                log_likelihood += jnp.sum((site["scale"] - 1) * log_prob)
            if position is not None and not place.latent.is_discrete:
                jacobian = self._transform(fn).log_abs_det_jacobian
                log_prior += jnp.sum(jacobian(place.take(position), site["value"]))
        for site in sites.values():
            if site["type"] == "sample" and site["is_observed"]:
                log_prob = site["fn"].log_prob(site["value"])
                scaled = log_prob if site["scale"] is None else site["scale"] * log_prob
                log_likelihood += jnp.sum(scaled)
        return Terms(log_prior, log_likelihood, self._log_target(value, log_prior.dtype))

    def _log_target(self, value: Any, dtype: Any) -> jax.Array:
        if self.layout.output is None:
            return jnp.zeros((), dtype)
        log_f = log_positive_part(self.sign * as_numbers(value)[self.output])
        return jnp.where(self.sign == 0, 0.0, log_f)

    def _unconstrain(self, sites: dict) -> jax.Array:
        pieces = [jnp.zeros(0, jnp.result_type(float))]
        for place in self.layout.sites:
            site = sites[place.latent.name]
            value = _unconstrained_value(place.latent, site, self._transform)
            pieces.append(jnp.ravel(value))
        return jnp.concatenate([piece.astype(pieces[0].dtype) for piece in pieces])

    def _transform(self, fn: Any) -> Any:
        """The map from a site's coordinates to its value."""
        transform = _standardising(_without_mask(fn)) if self.layout.is_standardised else None
        return _plain_transform(fn) if transform is None else transform


_LOCATION_SCALE = (
    dist.Normal,
    dist.Cauchy,
    dist.StudentT,
    dist.Laplace,
    dist.Logistic,
    dist.Gumbel,
)


def _plain_transform(fn: Any) -> Any:
    return biject_to(fn.support)


def _standardising(fn: Any) -> Any:
    """The map from a standard law to a location-scale one; None for all others."""
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
    return None


def _unconstrained_value(latent: Latent, site: dict, transform: Callable) -> jax.Array:
    if latent.is_discrete:
        return jnp.asarray(site["value"])
    value = transform(site["fn"]).inv(site["value"])
    # A draw that was rounded onto the edge of its support has infinite coordinates.
    limit = float(np.log(jnp.finfo(value.dtype).max))
    return jnp.nan_to_num(value, nan=jnp.nan, posinf=limit, neginf=-limit)


def _is_real(support: Any) -> bool:
    base = getattr(support, "base_constraint", support)
    return base is constraints.real or support.is_discrete


def _without_mask(fn: Any) -> Any:
    """The distribution of a latent site without mask.

    A mask removes a latent element's factor and so leaves no proper density for it. Such elements
    keep their own prior, which integrates to one and leaves every expectation as it is.
    """
    if isinstance(fn, dist.MaskedDistribution):
        return _without_mask(fn.base_dist)
    if isinstance(fn, dist.ExpandedDistribution):
        return _without_mask(fn.base_dist).expand(fn.batch_shape)
    if isinstance(fn, dist.Independent):
        return _without_mask(fn.base_dist).to_event(fn.reinterpreted_batch_ndims)
    return fn


def _coordinates(expectation: Expectation) -> tuple[Coordinates, ...]:
    """Places of the sites in the flat position, continuous ones first."""
    shapes: dict[str, tuple[int, ...]] = {}
    transformed: dict[str, bool] = {}

    def draw(rng_key: jax.Array) -> None:
        with handlers.trace() as sites, drawing_from_prior(rng_key):
            expectation.run()
        for latent in expectation.latents:
            try:
                value = _unconstrained_value(latent, sites[latent.name], _plain_transform)
                shapes[latent.name] = value.shape
                transformed[latent.name] = not _is_real(sites[latent.name]["fn"].support)
            # NumPyro raises this where it registers no bijection for a support.
            except NotImplementedError as error:
                raise ProgramError(
                    f"the support of site {latent.name!r} of program {expectation.name!r} has no "
                    "unconstrained coordinates in NumPyro: reparametrise the site."
                ) from error

    jax.eval_shape(draw, jax.random.key(0))
    places, start = [], 0
    for latent in sorted(expectation.latents, key=lambda latent: latent.is_discrete):
        name = latent.name
        places.append(Coordinates(latent, start, shapes[name], transformed[name]))
        start = places[-1].stop
    return tuple(places)


@jax.jit
def _in_plain_coordinates(density: Density, positions: jax.Array) -> jax.Array:
    def one(position: jax.Array) -> jax.Array:
        sites, _ = density._trace(density._substitution(position))
        return density._with_coordinates(False)._unconstrain(sites)

    return jax.lax.map(one, positions, batch_size=min(10_000, positions.shape[0]))


def _forward_gradient(
    function: Callable[[jax.Array], tuple[jax.Array, Terms]], position: jax.Array
) -> tuple[jax.Array, jax.Array, Terms]:
    def slope(direction: jax.Array) -> tuple[jax.Array, jax.Array, Terms]:
        return jax.jvp(function, (position,), (direction,), has_aux=True)

    basis = jnp.eye(position.size, dtype=position.dtype)
    return jax.vmap(slope, out_axes=(None, 0, None))(basis)


def gradient_mode(density: Density) -> str:
    """``"forward"`` or ``"reverse"``, whichever is cheaper by dimension and can be traced."""
    return _gradient_mode(density.layout, tuple(jax.typeof(array) for array in density.arrays))


@functools.lru_cache(maxsize=1024)
def _gradient_mode(layout: Layout, avals: tuple) -> str:
    def total(position: jax.Array, arrays: tuple) -> tuple[jax.Array, Terms]:
        terms = Density(layout, arrays, jnp.asarray(1), jnp.asarray(0)).terms(position)
        return terms.log_prior + terms.log_weight, terms

    structs = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)
    position = jax.ShapeDtypeStruct((layout.dimension,), jnp.result_type(float))
    has_loop = _has_loop(jax.make_jaxpr(total)(position, structs).jaxpr)
    kind = "with loops" if has_loop else "straight"
    is_small = layout.num_continuous <= FORWARD_MODE_DIMENSIONS[kind]
    preferred, other = ("forward", "reverse") if is_small else ("reverse", "forward")

    def gradient(position: jax.Array, arrays: tuple) -> jax.Array:
        function = functools.partial(total, arrays=arrays)
        if preferred == "forward":
            return _forward_gradient(function, position)[1]
        return jax.grad(function, has_aux=True)(position)[0]

    try:
        jax.eval_shape(gradient, position, structs)
    except (TypeError, ValueError):
        # A while loop has no reverse mode; a custom reverse rule has no forward mode.
        return other
    return preferred


def _has_loop(jaxpr: Any) -> bool:
    return any(
        equation.primitive.name in ("scan", "while")
        or any(map(_has_loop, jaxprs_in_params(equation.params)))
        for equation in jaxpr.eqns
    )
