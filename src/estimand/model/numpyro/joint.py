"""A prior of several parameters at once: a log density and a function that draws from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

Named = dict[str, jax.Array]


def sample_joint(
    log_prior: Callable[[Named], jax.Array],
    sampler: Callable[[jax.Array], Named],
    supports: dict[str, tuple[tuple[int, ...], Any]],
) -> Named:
    """A site for each of some parameters that have one prior together.

    Args:
        log_prior: of the parameters by name.
        sampler: from a random key to a draw of all.
        supports: shape and support of each parameter.
    """
    joint = _Joint(log_prior, sampler, tuple(supports))
    for name, (shape, support) in supports.items():
        joint.values[name] = numpyro.sample(name, _Parameter(joint, name, shape, support))
    return joint.values


class _Joint:
    """One run of a program: the values of the parameters so far, and the draw that they are of."""

    def __init__(self, log_prior: Callable, sampler: Callable, names: tuple[str, ...]):
        self.log_prior, self.sampler, self.names = log_prior, sampler, names
        self.values: Named = {}
        self._drawn: Named = {}

    def draw(self, rng_key: jax.Array, name: str) -> jax.Array:
        if name == self.names[0]:
            self._drawn = self.sampler(rng_key)
        if name not in self._drawn:
            raise ValueError(f"{name!r} can only be drawn together with {list(self.names)}.")
        return self._drawn[name]


class _Parameter(dist.Distribution):
    """One parameter of a joint prior. The last one has its density, the others have none."""

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, joint: _Joint, name: str, shape: tuple[int, ...], support: Any):
        self._joint, self._name, self._support = joint, name, support
        super().__init__(event_shape=shape, validate_args=False)

    @constraints.dependent_property
    def support(self) -> Any:
        axes = len(self.event_shape) - self._support.event_dim
        return constraints.independent(self._support, axes) if axes else self._support

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        if sample_shape:
            raise ValueError("a parameter of a joint prior is drawn once in a run.")
        return self._joint.draw(key, self._name)

    def log_prob(self, value: jax.Array, intermediates: Any = None) -> jax.Array:  # noqa: ARG002
        if self._name != self._joint.names[-1]:
            return jnp.zeros((), jnp.result_type(float))
        return self._joint.log_prior({**self._joint.values, self._name: value})
