"""Densities that are wrong on purpose, which a test of a kernel must detect."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from estimand.density import Density
from estimand.model import Data, Evaluation, NumpyroModel


class WithoutJacobian(NumpyroModel):
    """A model that forgets the Jacobian of its coordinates."""

    def evaluate(self, position: jax.Array, data: Data) -> Evaluation:
        sites, _ = self._trace(data, self._substitution(position, data))
        log_priors, _ = self._log_densities(sites, data, None)
        log_prior = jnp.stack(log_priors).sum()
        return super().evaluate(position, data)._replace(log_prior=log_prior)


def without_jacobian(density: Density) -> Density:
    """The same density of a model that forgets its Jacobian."""
    model = density.model
    assert isinstance(model, NumpyroModel)
    fields = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}
    return dataclasses.replace(density, model=WithoutJacobian(**fields))
