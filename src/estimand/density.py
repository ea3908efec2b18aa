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
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params
from numpyro import handlers

from estimand.model.coordinates import (
    Coordinates,
    Integers,
    Layout,
    Numbers,
    coordinates_of,
    location_scale,
    plain_transform,
    standardised_transform,
    unconstrained_value,
    without_mask,
)
from estimand.model.program import PARTS, Expectation, as_numbers
from estimand.model.sites import TRACING, ProgramError, drawing_from_prior, observed_log_prob
from estimand.target.reading import Reading, SignedLog, read

# Up to this many continuous dimensions a gradient is taken in forward mode, above it in reverse
# mode; programs with loops keep forward mode longer, because reverse mode stores every iteration.
# benchmarks/gradient_mode.py measures both; docs/performance.md has the figures.
FORWARD_MODE_DIMENSIONS = {"straight": 1, "with loops": 4}
# How soft comparisons are on the rungs of a ladder, relative to their spread in prior draws.
SOFTNESS = tuple(4.0**-k for k in range(8))
NUM_SCALE_DRAWS = 1000

_SIGNS = dict(zip(PARTS, (1, -1, 0), strict=True))


class Terms(NamedTuple):
    """What one evaluation of a part knows of a position; each is a log density.

    `log_target` is a number, or for a softened density a ladder of them: log f with comparisons
    from soft to sharp, and exact at the end.
    """

    log_prior: jax.Array
    log_likelihood: jax.Array
    log_target: jax.Array

    @property
    def log_weight(self) -> jax.Array:
        """log of target over prior: the importance weight of a prior draw."""
        is_ladder = self.log_target.ndim > self.log_likelihood.ndim
        return self.log_likelihood + (self.log_target[..., -1] if is_ladder else self.log_target)

    def without(self, is_bad: jax.Array) -> Terms:
        """The same with density 0 at bad positions."""
        ladder = is_bad.reshape(is_bad.shape + (1,) * (self.log_target.ndim - is_bad.ndim))
        return self._replace(
            log_likelihood=jnp.where(is_bad, -jnp.inf, self.log_likelihood),
            log_target=jnp.where(ladder, 0.0, self.log_target),
        )


class PathPoint(NamedTuple):
    """A point on the way from the prior to the target: prior · likelihood^a · f^b.

    Along a ladder of n targets b·n counts its rungs: up to the first one the softest f grows from
    power 0 to 1, and from each rung to the next the one is exchanged for the other.
    """

    likelihood: jax.Array
    target: jax.Array

    def log_density(self, terms: Terms) -> jax.Array:
        """The tempered log density; −inf where a term is NaN or the density is infinite."""
        value = (
            terms.log_prior
            + _scale(self.likelihood, terms.log_likelihood)
            + self._log_target(terms)
        )
        return jnp.where(value < jnp.inf, value, -jnp.inf)

    def _log_target(self, terms: Terms) -> jax.Array:
        if terms.log_target.ndim == terms.log_likelihood.ndim:
            return _scale(self.target, terms.log_target)
        count = terms.log_target.shape[-1]
        shares = jnp.clip(1 - jnp.abs(count * self.target - jnp.arange(1, count + 1)), 0.0, 1.0)
        shares = jnp.broadcast_to(shares, terms.log_target.shape)
        return jnp.sum(_scale(shares, terms.log_target), axis=-1)


def _scale(coefficient: jax.Array, log_value: jax.Array) -> jax.Array:
    """coefficient · log_value with 0 · (−inf) = 0: a factor to the power 0 is 1."""
    return jnp.where(coefficient == 0, 0.0, coefficient * log_value)


def is_invalid(log_density: jax.Array) -> jax.Array:
    """NaN or +inf: not the logarithm of a density."""
    return ~(log_density < jnp.inf)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["arrays", "sign", "output", "scales"],
    meta_fields=["layout"],
)
@dataclasses.dataclass(frozen=True)
class Density:
    """One of the three densities of a bound program."""

    layout: Layout
    arrays: tuple[jax.Array, ...]
    sign: jax.Array
    output: jax.Array
    scales: jax.Array | None = None

    @classmethod
    def of(cls, expectation: Expectation) -> Density:
        """γ2 of a bound program."""
        layout = Layout(
            expectation.program,
            expectation.data,
            expectation.path,
            expectation.output,
            coordinates_of(expectation),
        )
        return cls(layout, expectation.data.arrays, jnp.asarray(0), jnp.asarray(0))

    def part(self, name: str, output: int = 0) -> Density:
        """γ1⁺, γ1⁻ (of one output) or γ2 of the same program."""
        return dataclasses.replace(self, sign=jnp.asarray(_SIGNS[name]), output=jnp.asarray(output))

    @property
    def known_signs(self) -> np.ndarray:
        """For each output 1 if its expression is never negative, −1 if never positive, else 0."""
        reading = self._reading
        return np.zeros(0, int) if reading is None else reading.known_signs

    @property
    def has_comparisons(self) -> bool:
        """Whether the return expression has comparisons that can be softened."""
        return self._reading is not None and self._reading.has_comparisons

    def softened(self, rng_key: jax.Array) -> Density:
        """The same with a ladder of targets that leads into events which no prior draw meets.

        Comparisons in the return expression are softened relative to their spread in prior
        draws. Without such comparisons it is the density itself.
        """
        if not self.has_comparisons:
            return self
        margins = _margins(self, jax.random.split(rng_key, NUM_SCALE_DRAWS))
        middle = jnp.nanmedian(margins, axis=0)
        spread = 1.48 * jnp.nanmedian(jnp.abs(margins - middle[None]), axis=0)
        return dataclasses.replace(self, scales=spread)

    def standardised(self) -> Density:
        """The same with coordinates (x − location) / scale where a prior has these.

        They are the "non-centred" ones: a hierarchy whose scale is itself unknown, a funnel in
        the model's own coordinates, starts from a standard law in these.
        """
        return self._with_layout(is_standardised=True)

    def spread(self) -> Density:
        """The same with real numbers as coordinates of integer sites; see `Integers`."""
        return self._with_layout(is_spread=self.layout.has_integers)

    def _with_layout(self, **flags: Any) -> Density:
        return dataclasses.replace(self, layout=dataclasses.replace(self.layout, **flags))

    def in_plain_coordinates(self, positions: jax.Array) -> jax.Array:
        """Positions, one per row, as the density in plain coordinates has them."""
        is_plain = not (self.layout.is_standardised or self.layout.is_spread)
        return positions if is_plain else _in_plain_coordinates(self, positions)

    def has_varying_scales(self) -> bool:
        """Whether standardised coordinates depend on other sites in more than their location."""
        scales = jax.jit(jax.vmap(self._log_scales))(jax.random.split(jax.random.key(0)))
        return bool((scales[0] != scales[1]).any())

    def _log_scales(self, rng_key: jax.Array) -> jax.Array:
        """log of the volumes by which the sites are standardised at a prior draw."""
        sites, _ = self._trace(None, rng_key)
        fns = [without_mask(sites[site.latent.name]["fn"]) for site in self.layout.sites]
        transforms = [location_scale(fn) for fn in fns]
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

    @property
    def num_rungs(self) -> int:
        """Length of the ladder of targets; 1 unless softened."""
        return 1 if self.scales is None else len(SOFTNESS) + 1

    # --- evaluation of one position; estimators vmap over particles ---

    def terms(self, position: jax.Array) -> Terms:
        """Log prior (with Jacobian), log likelihood and log f± at a position."""
        reading, scales = self._reading, self.scales
        if reading is None or scales is None:
            return self.evaluate(position)[0]
        softness = jnp.asarray((*SOFTNESS, 0.0), position.dtype)
        (log_prior, log_likelihood), outputs = jax.vmap(
            lambda soft: reading.softened(soft, scales, position, self.arrays),
            out_axes=((None, None), 0),
        )(softness)
        log_target = jax.vmap(self._log_part, in_axes=(0, None))(outputs, log_likelihood)
        return Terms(log_prior, log_likelihood, log_target)

    def evaluate(self, position: jax.Array) -> tuple[Terms, SignedLog]:
        """Terms and every output, as sign and log-magnitude, in one evaluation."""
        if self._reading is None:
            sites, _ = self._trace(self._substitution(position))
            log_prior, log_likelihood = self._log_densities(sites, position)
            nothing = jnp.zeros(0)
            return Terms(log_prior, log_likelihood, jnp.zeros(())), SignedLog(nothing, nothing)
        (log_prior, log_likelihood), outputs = self._reading.lifted(position, self.arrays)
        log_target = self._log_part(outputs, log_likelihood)
        return Terms(log_prior, log_likelihood, log_target), outputs

    def draw_with_outputs(self, rng_key: jax.Array) -> tuple[jax.Array, Terms, SignedLog]:
        """An exact draw from the prior with its terms and outputs, in one evaluation."""
        position = self._prior_position(rng_key)
        return position, *self.evaluate(position)

    def _prior_position(self, rng_key: jax.Array) -> jax.Array:
        return self._unconstrain(self._trace(None, rng_key)[0], jax.random.fold_in(rng_key, 1))

    def _log_part(self, outputs: SignedLog, log_likelihood: jax.Array) -> jax.Array:
        """log f± of this part's output, which may be anything where the likelihood is 0."""
        sign, log_abs = outputs.sign[self.output], outputs.log_abs[self.output]
        log_f = jnp.where(self.sign * sign > 0, log_abs, -jnp.inf)
        log_f = jnp.where(jnp.isnan(log_abs), jnp.nan, log_f)
        log_f = jnp.where((log_likelihood == -jnp.inf) & is_invalid(log_f), -jnp.inf, log_f)
        return jnp.where(self.sign == 0, 0.0, log_f)

    @property
    def _reading(self) -> Reading | None:
        if self.layout.output is None:
            return None
        avals = tuple(jax.typeof(array) for array in self.arrays)
        return _reading(self.layout, avals, jnp.result_type(float))

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
        position = self._prior_position(rng_key)
        return position, self.terms(position)

    def terms_at(self, values: dict[str, jax.Array]) -> tuple[jax.Array, Terms]:
        """Position and terms for given values of the sites; the log prior is without Jacobian."""
        sites, value = self._trace(lambda site: values.get(site["name"]))
        log_densities = self._log_densities(sites, None)
        if self.layout.output is None:
            return self._unconstrain(sites), Terms(*log_densities, jnp.zeros(()))
        numbers = as_numbers(value)
        outputs = SignedLog(jnp.sign(numbers), _log_abs(numbers))
        return self._unconstrain(sites), Terms(
            *log_densities, self._log_part(outputs, log_densities[1])
        )

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
        redrawn values, one for each element that is drawn as a whole (`Layout.discrete_elements`).
        """
        sites, _ = self._trace(self._substitution(position))
        drawn, before, after = position, [], []
        for number, place in enumerate(self.layout.sites):
            if not place.latent.is_discrete:
                continue
            site = sites[place.latent.name]
            fn = without_mask(site["fn"])
            value = fn.sample(jax.random.fold_in(rng_key, number)).astype(site["value"].dtype)
            flat = jnp.ravel(value).astype(position.dtype)
            drawn = drawn.at[place.start : place.stop].set(flat)
            before.append(jnp.ravel(fn.log_prob(site["value"])))
            after.append(jnp.ravel(fn.log_prob(value)))
        return drawn, jnp.concatenate(before), jnp.concatenate(after)

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
        with TRACING, handlers.trace() as sites:
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
            transform = self._transform(site["fn"], place)
            # A site inside numpyro's scan is asked for one step at a time.
            step = site["infer"].get("_scan_current_index")
            if step is not None:
                shift = transform.codomain.event_dim - transform.domain.event_dim
                if value.ndim > len(site["fn"].shape()) - shift:
                    value = value[step]
            return transform(value)

        return substitute

    def _log_densities(
        self, sites: dict, position: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Log prior, with the Jacobian of the position if there is one, and log likelihood."""
        log_prior = jnp.zeros((), jnp.result_type(float))
        log_likelihood = log_prior
        for place in self.layout.sites:
            site = sites[place.latent.name]
            fn = without_mask(site["fn"])
            log_prob = fn.log_prob(site["value"])
            log_prior += jnp.sum(log_prob)
            if site["scale"] is not None or any(place.is_freed):
                # The prior is what prior draws have; a scale or a mask on top is the likelihood's.
                scale = 1 if site["scale"] is None else site["scale"]
                log_likelihood += jnp.sum(scale * place.masked(site, log_prob) - log_prob)
            if position is not None and self.layout.is_continuous(place):
                jacobian = self._transform(fn, place).log_abs_det_jacobian
                log_prior += jnp.sum(jacobian(place.take(position), site["value"]))
        for site in sites.values():
            if site["type"] == "sample" and site["is_observed"]:
                log_prob = observed_log_prob(site)
                scaled = log_prob if site["scale"] is None else site["scale"] * log_prob
                log_likelihood += jnp.sum(scaled)
        return log_prior, log_likelihood

    def _unconstrain(self, sites: dict, rng_key: jax.Array | None = None) -> jax.Array:
        """The position of a trace, with integers at random in their intervals if there is a key."""
        pieces = [jnp.zeros(0, jnp.result_type(float))]
        for place in self.layout.sites:
            site = sites[place.latent.name]
            fraction: Any = 0.5
            if rng_key is not None and self.layout.is_spread:
                key = jax.random.fold_in(rng_key, place.start)
                fraction = jax.random.uniform(key, place.latent.shape)
            value = unconstrained_value(site, self._transform(site["fn"], place, fraction))
            pieces.append(jnp.ravel(value))
        return jnp.concatenate([piece.astype(pieces[0].dtype) for piece in pieces])

    def _transform(self, fn: Any, place: Coordinates, fraction: Any = 0.5) -> Any:
        """The map from a site's coordinates to its value."""
        if place.latent.is_discrete:
            return Integers(fn, fraction) if self.layout.is_spread else Numbers()
        if self.layout.is_standardised:
            return standardised_transform(without_mask(fn))
        return plain_transform(fn)


@jax.jit
def _in_plain_coordinates(density: Density, positions: jax.Array) -> jax.Array:
    def one(position: jax.Array) -> jax.Array:
        sites, _ = density._trace(density._substitution(position))
        return density._with_layout(is_standardised=False, is_spread=False)._unconstrain(sites)

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
def _reading(layout: Layout, avals: tuple, dtype: Any) -> Reading:
    """The traced program: log densities along with the outputs that are read."""

    def evaluate(position: jax.Array, arrays: tuple) -> tuple:
        density = Density(layout, arrays, jnp.asarray(0), jnp.asarray(0))
        sites, value = density._trace(density._substitution(position))
        return density._log_densities(sites, position), as_numbers(value)

    structs = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)
    return read(evaluate, jax.ShapeDtypeStruct((layout.dimension,), dtype), structs)


@jax.jit
def _margins(density: Density, rng_keys: jax.Array) -> jax.Array:
    def one(rng_key: jax.Array) -> jax.Array:
        position = density._prior_position(rng_key)
        reading = density._reading
        assert reading is not None
        return reading.margins(position, density.arrays)[1]

    return jax.vmap(one)(rng_keys)


def _log_abs(numbers: jax.Array) -> jax.Array:
    is_zero = numbers == 0
    return jnp.where(is_zero, -jnp.inf, jnp.log(jnp.abs(jnp.where(is_zero, 1.0, numbers))))


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
