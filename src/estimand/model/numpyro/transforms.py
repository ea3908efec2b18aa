"""How coordinates become values of a NumPyro site.

Plain coordinates are NumPyro's unconstrained ones. Standardised coordinates are (x − location) /
scale where a prior has these: the "non-centred" parametrisation; the tails of Student's t are tamed
in them. Blended ones are partially centred: a number for each coordinate, its centredness, leads
from standardised (0) to the model's own (1). Where a support has an edge they are stretched, so
that a density that ends at the edge has Gaussian tails. With relaxed integers a real number stands
for each integer, in an interval of length one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    IndependentTransform,
    ParameterFreeTransform,
    Transform,
)

from estimand.model.numpyro.mapped import Cube, Probit

_LOCATION_SCALE = (
    dist.Normal,
    dist.Cauchy,
    dist.StudentT,
    dist.Laplace,
    dist.Logistic,
    dist.Gumbel,
)


def bijection_to(support: Any) -> Any | None:
    """The map from unconstrained coordinates to a support; None if NumPyro has no such map."""
    try:
        return _bijection(support)
    except NotImplementedError:  # how NumPyro's registry answers for a support it does not know
        return None


def plain_transform(fn: Any) -> Any:
    """The map from unconstrained coordinates to the support of a distribution."""
    return _bijection(fn.support)


def _bijection(support: Any) -> Any:
    """NumPyro's map, with shares in a form that resolves small ones."""
    if support is constraints.simplex:
        return Sticks()
    base = getattr(support, "base_constraint", None)
    if base is not None and isinstance(support, type(constraints.independent(base, 1))):
        return IndependentTransform(_bijection(base), support.reinterpreted_batch_ndims)
    return biject_to(support)


class Sticks(ParameterFreeTransform):
    """NumPyro's stick-breaking map to shares that add up to 1, with all digits of small ones.

    Where nearly all of a stick is taken, NumPyro has what is left as a difference of numbers near
    1, and as 0 from 1e-16 on. A Dirichlet distribution with a concentration of 0.1 has 2.5 % of
    its mass there.
    """

    domain = constraints.real_vector
    codomain = constraints.simplex

    def __call__(self, x: Any) -> Any:
        x = x - self._shift(x)
        all_of_it = jnp.ones((*x.shape[:-1], 1), x.dtype)
        taken = jnp.concatenate([jax.nn.sigmoid(x), all_of_it], axis=-1)
        left = jnp.cumprod(jax.nn.sigmoid(-x), axis=-1)
        shares = taken * jnp.concatenate([all_of_it, left], axis=-1)
        return jnp.maximum(shares, jnp.finfo(x.dtype).tiny)

    def _inverse(self, y: Any) -> Any:
        tiny = jnp.finfo(y.dtype).tiny
        left = jnp.cumsum(y[..., ::-1], axis=-1)[..., -2::-1]
        x = jnp.log(jnp.maximum(y[..., :-1], tiny)) - jnp.log(jnp.maximum(left, tiny))
        return x + self._shift(x)

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Any:  # noqa: ARG002
        left = jax.nn.log_sigmoid(self._shift(x) - x)
        return jnp.sum(jnp.log(y[..., :-1]) + left, axis=-1)

    @staticmethod
    def _shift(x: Any) -> Any:
        """With it 0 is where all shares are the same."""
        return jnp.log(x.shape[-1] - jnp.arange(x.shape[-1], dtype=x.dtype))

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] - 1)


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


_HEAVY_TAILED = (
    dist.StudentT,
    dist.MultivariateStudentT,
    dist.Cauchy,
    dist.HalfCauchy,
    dist.Pareto,
    dist.InverseGamma,
)


_COUNTS = (
    dist.BetaBinomial,
    dist.BinomialLogits,
    dist.BinomialProbs,
    dist.GammaPoisson,
    dist.GeometricLogits,
    dist.GeometricProbs,
    dist.Poisson,
)


class Walk(Transform):
    """A random walk as the sum of its steps, each multiplied by a scale."""

    domain = constraints.real_vector
    codomain = constraints.real_vector

    def __init__(self, scale: Any):
        self.scale = scale

    def __call__(self, x: Any) -> Any:
        return jnp.cumsum(self.scale * x, axis=-1)

    def _inverse(self, y: Any) -> Any:
        return jnp.diff(y, axis=-1, prepend=0.0) / self.scale

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Any:  # noqa: ARG002
        return jnp.sum(jnp.broadcast_to(jnp.log(self.scale), x.shape), axis=-1)

    def tree_flatten(self) -> tuple:
        return (self.scale,), (("scale",), {})


class Tamed(Transform):
    """x = u·√((e^s − 1)/s) with s = u²/degrees: Student's t as a nearly normal variable.

    A power of x has mass so far out that no mixture in x reaches it; in u it is that of a Gaussian.
    """

    domain = constraints.real
    codomain = constraints.real

    def __init__(self, degrees: Any):
        self.degrees = degrees

    def __call__(self, x: Any) -> Any:
        return x * jnp.exp(0.5 * self._log_ratio(x))

    def _inverse(self, y: Any) -> Any:
        size = jnp.abs(y)
        is_far = size > 1e100
        near = jnp.log1p(jnp.where(is_far, 0.0, size) ** 2 / self.degrees)
        far = 2 * jnp.log(jnp.where(is_far, size, 1.0)) - jnp.log(self.degrees)
        root = jnp.sqrt(self.degrees * jnp.where(is_far, far, near))
        # The square of a small number underflows.
        return jnp.sign(y) * jnp.where(size < 1e-6, size, root)

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Any:  # noqa: ARG002
        return x**2 / self.degrees - 0.5 * self._log_ratio(x)

    def _log_ratio(self, x: Any) -> Any:
        """log((e^s − 1)/s)."""
        square = x**2 / self.degrees
        is_small = square < 1e-4
        safe = jnp.where(is_small, 1.0, square)
        large = safe + jnp.log1p(-jnp.exp(-safe)) - jnp.log(safe)
        return jnp.where(is_small, 0.5 * square + square**2 / 24, large)

    def tree_flatten(self) -> tuple:
        return (self.degrees,), (("degrees",), {})


class TamedRadius(Transform):
    """The same for vectors, by their length: the multivariate Student's t."""

    domain = constraints.real_vector
    codomain = constraints.real_vector

    def __init__(self, degrees: Any):
        self.degrees = degrees

    def __call__(self, x: Any) -> Any:
        size = _length(x)
        return x * (self._radius(size) / size)

    def _inverse(self, y: Any) -> Any:
        size = _length(y)
        return y * (self._radius.inv(size) / size)

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Any:  # noqa: ARG002
        size = _length(x)[..., 0]
        tamed = Tamed(self.degrees)
        stretched = tamed(size)
        along = tamed.log_abs_det_jacobian(size, stretched)
        return along + (x.shape[-1] - 1) * (jnp.log(stretched) - jnp.log(size))

    @property
    def _radius(self) -> Tamed:
        return Tamed(self.degrees[..., None])

    def tree_flatten(self) -> tuple:
        return (self.degrees,), (("degrees",), {})


def _length(x: Any) -> Any:
    """Of vectors along the last axis, which it keeps; never quite 0, where it has no slope."""
    return jnp.sqrt(jnp.sum(x**2, axis=-1, keepdims=True) + jnp.finfo(x.dtype).tiny)


class CholeskyAffine(Transform):
    """x ↦ location + factor·x, as NumPyro's, which has no batches of factors before 0.22."""

    domain = constraints.real_vector
    codomain = constraints.real_vector

    def __init__(self, location: Any, factor: Any):
        self.location, self.factor = location, factor

    def __call__(self, x: Any) -> Any:
        return self.location + jnp.einsum("...ij,...j->...i", self.factor, x)

    def _inverse(self, y: Any) -> Any:
        return solve_triangular(self.factor, (y - self.location)[..., None], lower=True)[..., 0]

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Any:  # noqa: ARG002
        diagonal = jnp.diagonal(self.factor, axis1=-2, axis2=-1)
        return jnp.sum(jnp.log(diagonal), axis=-1)

    def tree_flatten(self) -> tuple:
        return (self.location, self.factor), (("location", "factor"), {})


def has_heavy_tails(fn: Any) -> bool:
    """Whether some moments of a distribution do not exist."""
    return isinstance(_base_of(fn), _HEAVY_TAILED)


def _base_of(fn: Any) -> Any:
    """The distribution of single values."""
    while isinstance(fn, dist.ExpandedDistribution | dist.Independent | dist.MaskedDistribution):
        fn = fn.base_dist
    return fn


def location_scale(fn: Any, centredness: Any = None) -> Any:
    """The map that adds location and scale to a standard distribution; None if there are none.

    With a centredness for each coordinate it adds less of both, and at 1 nothing.
    """
    base, shape = _base_of(fn), fn.shape()
    if isinstance(base, Cube):
        return Probit()
    if isinstance(base, (*_LOCATION_SCALE, dist.LogNormal)):
        location, scale = (jnp.broadcast_to(x, shape) for x in (base.loc, base.scale))
        if centredness is not None:
            scale = scale ** (1 - centredness)
            location = location * (1 - centredness * scale)
        affine = AffineTransform(location, scale)
        if isinstance(base, dist.LogNormal):
            return ComposeTransform([affine, ExpTransform()])
        tamed = _tamed(base, shape)
        return affine if tamed is None else ComposeTransform([tamed, affine])
    if isinstance(base, dist.MultivariateNormal):
        location = jnp.broadcast_to(base.loc, shape)
        factor = jnp.broadcast_to(base.scale_tril, (*shape, shape[-1]))
        if centredness is not None:
            location = location * (1 - centredness)
            factor = _blended_factor(factor, centredness)
        return CholeskyAffine(location, factor)
    if isinstance(base, dist.MultivariateStudentT):
        location = jnp.broadcast_to(base.loc, shape)
        factor = jnp.broadcast_to(base.scale_tril, (*shape, shape[-1]))
        tamed = TamedRadius(jnp.broadcast_to(base.df, shape[:-1]))
        return ComposeTransform([tamed, CholeskyAffine(location, factor)])
    if isinstance(base, dist.GaussianRandomWalk):
        scale = jnp.broadcast_to(jnp.expand_dims(base.scale, -1), shape)
        return Walk(scale if centredness is None else scale ** (1 - centredness))
    if type(base) in _POSITIVE_SCALES:
        scale = jnp.broadcast_to(_POSITIVE_SCALES[type(base)](base), shape)
        shift = jnp.log(scale) if centredness is None else (1 - centredness) * jnp.log(scale)
        shifted = AffineTransform(shift, jnp.ones(shape, scale.dtype))
        return ComposeTransform([Stretch(), shifted, ExpTransform()])
    return None


def _tamed(base: Any, shape: tuple[int, ...]) -> Tamed | None:
    """What tames the tails of a standard distribution; None if they are light."""
    if not isinstance(base, dist.StudentT | dist.Cauchy):
        return None
    degrees = base.df if isinstance(base, dist.StudentT) else 1.0
    return Tamed(jnp.broadcast_to(degrees, shape))


def log_density_of_blended(fn: Any, x: Any, centredness: Any) -> Any:
    """The log density of blended coordinates in all; None if there is no location and scale.

    It is that of the residual, found without the site's value: where the scale is tiny, the value
    minus the location is all rounding.
    """
    base, shape = _base_of(fn), fn.shape()
    if isinstance(base, (*_LOCATION_SCALE, dist.LogNormal)):
        location, scale = (jnp.broadcast_to(value, shape) for value in (base.loc, base.scale))
        log_jacobian = -centredness * jnp.log(scale)
        if (tamed := _tamed(base, shape)) is not None:
            x, tame = tamed(x), x
            log_jacobian += tamed.log_abs_det_jacobian(tame, x)
        residual = (x - centredness * location) * scale**-centredness
        return jnp.sum(_standard(base).log_prob(residual) + log_jacobian)
    if isinstance(base, dist.GaussianRandomWalk):
        scale = jnp.broadcast_to(jnp.expand_dims(base.scale, -1), shape)
        log_prob = dist.Normal().log_prob(x * scale**-centredness)
        return jnp.sum(log_prob - centredness * jnp.log(scale))
    if isinstance(base, dist.MultivariateNormal):
        factor = jnp.broadcast_to(base.scale_tril, (*shape, shape[-1]))
        blended = _blended_factor(factor, centredness)
        shift = jnp.einsum("...ij,...j->...i", blended, x) - centredness * base.loc
        residual = solve_triangular(factor, shift[..., None], lower=True)[..., 0]
        diagonals = (jnp.diagonal(item, axis1=-2, axis2=-1) for item in (blended, factor))
        change = jnp.sum(jnp.log(next(diagonals)) - jnp.log(next(diagonals)))
        return jnp.sum(dist.Normal().log_prob(residual)) + change
    return None


def _standard(base: Any) -> Any:
    """The standard distribution of a family with location and scale."""
    if isinstance(base, dist.StudentT):
        return dist.StudentT(base.df)
    return dist.Normal() if isinstance(base, dist.LogNormal) else type(base)(0.0, 1.0)


def _blended_factor(factor: Any, centredness: Any) -> Any:
    """Rows of a Cholesky factor between themselves and those of the unit matrix."""
    sizes = jnp.sqrt(jnp.sum(factor**2, axis=-1, keepdims=True))
    share = centredness[..., None]
    own = sizes * jnp.eye(factor.shape[-1], dtype=factor.dtype)
    return sizes**-share * ((1 - share) * factor + share * own)


def standardised_transform(fn: Any, centredness: Any = None) -> Any:
    """The map from standardised or blended coordinates to the support of a distribution."""
    transform = location_scale(fn, centredness)
    if transform is None:
        plain = plain_transform(fn)
        transform = plain if is_real(fn.support) else ComposeTransform([Stretch(), plain])
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
    inverse is at the given fraction of a value's interval. Standardised, counts have the location
    and scale of their distribution: with a large rate they follow it as closely as a thin curve.
    """

    domain = constraints.real
    codomain = constraints.real

    def __init__(self, fn: Any, fraction: Any = 0.5, is_standardised: bool = False):
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
        plain = biject_to(ends)
        steps = [Stretch(), *_standardised_counts(fn, plain)] if is_standardised else [Stretch()]
        self.numbers = ComposeTransform([*steps, plain])
        self.fraction = fraction
        # Beyond it neighbours are the same number.
        self.limit = 2.0 ** jnp.finfo(dtype).nmant

    def __call__(self, x: Any) -> Any:
        dtype = jnp.result_type(int)
        value, lower, upper = (
            jnp.clip(number, -self.limit, self.limit).astype(dtype)
            for number in (jnp.floor(self.numbers(x)), self.lower, self.upper)
        )
        # As integers: nothing is known of what a NaN is converted to, but that it is one.
        return jnp.clip(value, lower, upper)

    def _inverse(self, y: Any) -> Any:
        return self.numbers.inv(y + jnp.asarray(self.fraction, self.lower.dtype))

    def tree_flatten(self) -> tuple:
        leaves = self.numbers, self.lower, self.upper, self.fraction
        return leaves, (("numbers", "lower", "upper", "fraction"), {"limit": self.limit})

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Any:  # noqa: ARG002
        number = self.numbers(x)
        jacobian = self.numbers.log_abs_det_jacobian(x, number)
        return jnp.where(jnp.abs(number) < self.limit, jacobian, -jnp.inf)


def _standardised_counts(fn: Any, plain: Any) -> list[Transform]:
    """The map to unconstrained coordinates of counts from those in which they are standardised."""
    if not isinstance(_base_of(fn), _COUNTS):
        return []
    # Half of an interval, and its variance: these of a count that is always the same.
    center = fn.mean + 0.5
    location = plain.inv(center)
    log_slope = plain.log_abs_det_jacobian(location, center)
    return [AffineTransform(location, jnp.sqrt(fn.variance + 1 / 12) * jnp.exp(-log_slope))]


def log_scale(fn: Any) -> jax.Array | None:
    """The logarithm of the scale of standardised coordinates; None if they have none."""
    if isinstance(_base_of(fn), _COUNTS):
        _, affine, _ = Integers(fn, is_standardised=True).numbers.parts
        return jnp.sum(jnp.log(affine.scale))
    transform = location_scale(fn)
    if transform is None:
        return None
    return jnp.sum(transform.log_abs_det_jacobian(jnp.zeros(fn.shape()), None))


def unconstrained_value(site: dict, transform: Any) -> jax.Array:
    """The coordinates of a traced site's value, by the transform of its distribution."""
    value = transform.inv(site["value"])
    # A draw that was rounded onto the edge of its support has infinite coordinates.
    limit = float(np.log(jnp.finfo(value.dtype).max))
    return jnp.nan_to_num(value, nan=jnp.nan, posinf=limit, neginf=-limit)


def has_integers(support: Any) -> bool:
    """Whether a support is one of integers, flags included."""
    base = getattr(support, "base_constraint", support)
    kinds = (constraints.integer_interval, constraints.integer_greater_than)
    return base is constraints.boolean or isinstance(base, kinds)


def is_real(support: Any) -> bool:
    """Whether the values of a support are their own unconstrained coordinates."""
    base = getattr(support, "base_constraint", support)
    return base is constraints.real or support.is_discrete


def without_mask(fn: Any) -> Any:
    """The distribution of a latent site without mask: that of its prior draws.

    A mask removes a latent element's factor. Where nothing else depends on the element, this
    leaves no proper density: it keeps its own prior, which integrates to one and leaves every
    expectation as it is. Elsewhere (see `NumpyroModel.freed`) the factor goes, on the
    likelihood's side.
    """
    if isinstance(fn, dist.MaskedDistribution):
        return without_mask(fn.base_dist)
    if isinstance(fn, dist.ExpandedDistribution):
        return without_mask(fn.base_dist).expand(fn.batch_shape)
    if isinstance(fn, dist.Independent):
        return without_mask(fn.base_dist).to_event(fn.reinterpreted_batch_ndims)
    return fn
