"""PyMC's random variables as distributions of NumPyro.

Those of the table become NumPyro's own, with all that is known of these: standardised coordinates,
values of discrete ones. Others keep PyMC's density and transform and are drawn by PyTensor's JAX
backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform

from estimand.model.layout import ProgramError
from estimand.model.numpyro import Mapped
from estimand.model.pymc.graphs import Graphs, Random, Variable, default_transform

# From the values of the free variables before it, and the data, to a distribution.
Law = Callable[[Sequence[Any], Sequence[Any]], dist.Distribution]


def _truncated(mu: Any, sigma: Any, low: Any, high: Any) -> dist.Distribution:
    return dist.TruncatedNormal(mu, sigma, low=low, high=high)


# By the class of PyTensor's or PyMC's random variable; the arguments are its parameters.
_TABLE: dict[str, Callable[..., dist.Distribution]] = {
    "NormalRV": dist.Normal,
    "HalfNormalRV": lambda _, sigma: dist.HalfNormal(sigma),
    "LogNormalRV": dist.LogNormal,
    "UniformRV": dist.Uniform,
    "StudentTRV": dist.StudentT,
    "CauchyRV": dist.Cauchy,
    "HalfCauchyRV": lambda beta: dist.HalfCauchy(beta),
    "LaplaceRV": dist.Laplace,
    "LogisticRV": dist.Logistic,
    "GumbelRV": dist.Gumbel,
    "ExponentialRV": lambda scale: dist.Exponential(1 / scale),
    "GammaRV": lambda alpha, scale: dist.Gamma(alpha, 1 / scale),
    "InvGammaRV": dist.InverseGamma,
    "WeibullBetaRV": lambda alpha, beta: dist.Weibull(beta, alpha),
    "BetaRV": dist.Beta,
    "BetaClippedRV": dist.Beta,
    "TruncatedNormalRV": _truncated,
    "DirichletRV": dist.Dirichlet,
    "MvNormalRV": lambda mu, cov: dist.MultivariateNormal(mu, covariance_matrix=cov),
    "FlatRV": lambda: dist.ImproperUniform(constraints.real, (), ()),
    "HalfFlatRV": lambda: dist.ImproperUniform(constraints.positive, (), ()),
    "BernoulliRV": lambda p: dist.Bernoulli(probs=p),
    "BinomialRV": lambda n, p: dist.Binomial(n, probs=p),
    "PoissonRV": dist.Poisson,
    "CategoricalRV": lambda p: dist.Categorical(probs=p),
    "DiscreteUniformRV": dist.DiscreteUniform,
}
# Parameters that have to be numbers, by their place.
_KNOWN = {
    "HalfNormalRV": (0,),
    "TruncatedNormalRV": (2, 3),
    "BinomialRV": (0,),
    "DiscreteUniformRV": (0, 1),
}
_OF_INTEGERS = ("BinomialRV", "DiscreteUniformRV")
# Numbers with a vector as parameter.
_OF_VECTORS = ("CategoricalRV",)


def law_of(graphs: Graphs, random: Random, log_density: Variable) -> Law:
    """The distribution of a free variable given those before it."""
    kind = type(random.rv.owner.op).__name__
    known = _known(random, kind)
    if kind in _TABLE and known is not None:
        return _translated(graphs, random, kind, known)
    if np.issubdtype(np.dtype(random.rv.type.dtype), np.integer) or random.rv.type.dtype == "bool":
        raise ProgramError(
            f"variable {random.name!r} of {graphs.name!r} is discrete, and its distribution "
            f"{_said(kind)} is not among those that can be drawn or summed out: Bernoulli, "
            "Binomial, Categorical, DiscreteUniform and Poisson, with counts and bounds that are "
            "numbers. Marginalise it, or write it with one of these."
        )
    return _opaque(graphs, random, log_density)


def _said(kind: str) -> str:
    return kind.removeprefix("_").removesuffix("RV")


def _known(random: Random, kind: str) -> dict[int, np.ndarray] | None:
    """The values of parameters that must be known; None if they are not."""
    from pymc.pytensorf import constant_fold

    node, found = random.rv.owner, {}
    for place in _KNOWN.get(kind, ()):
        [value] = constant_fold([node.op.dist_params(node)[place]], raise_not_constant=False)
        if not isinstance(value, np.ndarray):
            return None
        found[place] = value
    if kind == "HalfNormalRV" and (found[0] != 0).any():
        return None
    if kind == "TruncatedNormalRV" and not all(_is_one_kind(found[place]) for place in (2, 3)):
        return None
    return found


def _is_one_kind(bound: np.ndarray) -> bool:
    """Whether all or none of a variable's elements are bounded."""
    return bool(np.isinf(bound).all() or np.isfinite(bound).all())


def _translated(graphs: Graphs, random: Random, kind: str, known: dict[int, np.ndarray]) -> Law:
    node = random.rv.owner
    parameters = graphs.of_values(node.op.dist_params(node))
    function = graphs.jaxified(f"the parameters of {random.name!r}", parameters)
    shape = random.shape

    def law(values: Sequence[Any], data: Sequence[Any]) -> dist.Distribution:
        computed = function(*_filled(graphs, values), *data)
        # PyMC's constants are of the smallest type that holds them.
        real = [jnp.asarray(item).astype(jnp.result_type(float)) for item in computed]
        if node.op.ndim_supp == 0 and kind not in _OF_VECTORS:
            real = [jnp.broadcast_to(item, shape) for item in real]
        found = [_given(kind, known[k]) if k in known else item for k, item in enumerate(real)]
        fn = _TABLE[kind](*found)
        batch_shape = shape[: len(shape) - fn.event_dim]
        return fn if fn.batch_shape == batch_shape else fn.expand(batch_shape)

    return law


def _given(kind: str, value: np.ndarray) -> Any:
    """A parameter that is known: one number where all elements have the same."""
    if np.isinf(value).all():
        return None
    number = value.astype(int if kind in _OF_INTEGERS else float)
    # NumPyro's supports are known while tracing if their ends are Python's numbers.
    return number.flat[0].item() if (number == number.flat[0]).all() else number


def _filled(graphs: Graphs, values: Sequence[Any]) -> list[Any]:
    """Values of all free variables: those that come later do not matter, and are 0."""
    later = graphs.free[len(values) :]
    dtypes = [jax.dtypes.canonicalize_dtype(random.rv.type.dtype) for random in later]
    zeros = [jnp.zeros(item.shape, dtype) for item, dtype in zip(later, dtypes, strict=True)]
    return [*values, *zeros]


def _opaque(graphs: Graphs, random: Random, log_density: Variable) -> Law:
    log_prob = graphs.jaxified(f"the log density of {random.name!r}", [log_density])
    draw = graphs.drawn(random)
    bijection = _bijection_of(graphs, random)

    def law(values: Sequence[Any], data: Sequence[Any]) -> dist.Distribution:
        def log_density_at(value: Any) -> Any:
            return log_prob(*_filled(graphs, [*values, value]), *data)[0]

        def drawn(rng_key: jax.Array) -> Any:
            return draw(rng_key, *_filled(graphs, values), *data)

        support = bijection(_filled(graphs, values), data)
        return Opaque(random.shape, log_density_at, drawn, support)

    return law


def _bijection_of(graphs: Graphs, random: Random) -> Callable[[Sequence, Sequence], Any]:
    """The support of a variable, with PyMC's own map to it."""
    transform, shape = default_transform(random), random.shape
    if transform is None:
        return lambda _, __: constraints.independent(constraints.real, len(shape))
    inputs = graphs.of_values(random.rv.owner.inputs)
    forward = transform.forward(random.value, *inputs)
    free = forward.type(name=f"{random.name}_unconstrained")
    backward = transform.backward(free, *inputs)
    jacobian = transform.log_jac_det(free, *inputs).sum()
    what = f"the transform of {random.name!r}"
    to_values = graphs.jaxified_of(what, free, [backward])
    to_jacobian = graphs.jaxified_of(what, free, [jacobian])
    to_coordinates = graphs.jaxified(what, [forward])
    place = [one.name for one in graphs.free].index(random.name)
    dims = forward.type.ndim, len(shape)

    def support(values: Sequence[Any], data: Sequence[Any]) -> Any:
        def inverse(value: Any) -> Any:
            own = [*values]
            own[place] = value
            return to_coordinates(*own, *data)[0]

        return Mapped(
            PymcTransform(
                *dims,
                lambda u: to_values(u, *values, *data)[0],
                inverse,
                lambda u: to_jacobian(u, *values, *data)[0],
            )
        )

    return support


class PymcTransform(Transform):
    """One of PyMC's transforms, of a value as a whole."""

    def __init__(
        self, num_free: int, num_axes: int, forward: Callable, inverse: Callable, jacobian: Callable
    ):
        self._num_free, self._num_axes = num_free, num_axes
        self._forward, self._backward, self._jacobian = forward, inverse, jacobian

    @property
    def domain(self) -> Any:
        return constraints.independent(constraints.real, self._num_free)

    @property
    def codomain(self) -> Any:
        return constraints.independent(constraints.real, self._num_axes)

    def __call__(self, x: Any) -> Any:
        return self._forward(x)

    def _inverse(self, y: Any) -> Any:
        return self._backward(y)

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Any:  # noqa: ARG002
        return self._jacobian(x)

    def tree_flatten(self) -> tuple:
        return (), ((), dict(vars(self)))


class Opaque(dist.Distribution):
    """A distribution that is known by its log density, its draws and its support."""

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, shape: tuple[int, ...], log_prob: Callable, draw: Callable, support: Any):
        self._log_prob, self._draw, self._support = log_prob, draw, support
        super().__init__(event_shape=shape, validate_args=False)

    @constraints.dependent_property
    def support(self) -> Any:
        return self._support

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        if sample_shape:
            keys = jax.random.split(key, math.prod(sample_shape))
            drawn = jax.vmap(self._draw)(keys)
            return drawn.reshape((*sample_shape, *self.event_shape))
        return self._draw(key)

    def log_prob(self, value: jax.Array, intermediates: Any = None) -> jax.Array:  # noqa: ARG002
        return self._log_prob(value)
