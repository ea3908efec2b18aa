"""Supports that come with their own coordinates, and the unit cube as a prior."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import ndtr, ndtri
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import ParameterFreeTransform


class Mapped(constraints.Constraint):
    """The support that a bijection maps the real numbers to, which is its coordinates."""

    def __init__(self, transform: Any):
        self.transform = transform
        self.event_dim = transform.codomain.event_dim
        super().__init__()

    def __call__(self, x: Any) -> Any:
        return self.transform.codomain(x)

    def tree_flatten(self) -> tuple:
        return (self.transform,), (("transform",), {"event_dim": self.event_dim})


biject_to.register(Mapped, lambda support: support.transform)


class Probit(ParameterFreeTransform):
    """u = Φ(z), kept off 0 and 1: a prior transform is infinite there."""

    domain = constraints.real_vector
    codomain = constraints.independent(constraints.unit_interval, 1)

    def __call__(self, x: Any) -> Any:
        return inside(ndtr(x))

    def _inverse(self, y: Any) -> Any:
        return ndtri(y)

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Any:  # noqa: ARG002
        return jnp.sum(-0.5 * x**2 - 0.5 * math.log(2 * math.pi), axis=-1)


def inside(u: jax.Array) -> jax.Array:
    """Numbers of the closed unit interval as numbers of the open one."""
    limits = jnp.finfo(u.dtype)
    return jnp.clip(u, limits.tiny, 1 - limits.epsneg)


class Cube(dist.Distribution):
    """The uniform distribution on the unit cube; its coordinates are standard normal."""

    support = Mapped(Probit())
    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, dimension: int):
        super().__init__(event_shape=(dimension,), validate_args=False)

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        return inside(jax.random.uniform(key, (*sample_shape, *self.event_shape)))

    def log_prob(self, value: jax.Array, intermediates: Any = None) -> jax.Array:  # noqa: ARG002
        return jnp.zeros(value.shape[:-1], value.dtype)
