"""Proposals: NumPyro guides, a distribution for the only site, or distributions by site."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro import handlers

from estimand.model.layout import ProgramError
from estimand.model.numpyro.model import NumpyroModel
from estimand.model.numpyro.sites import TRACING
from estimand.model.protocol import Data, Model


class SiteDistributions:
    """A guide that draws each site from a distribution of its own."""

    def __init__(self, distributions: Mapping[str, dist.Distribution]):
        self.distributions = dict(distributions)

    def __call__(self, *_args: Any, **_kwargs: Any) -> None:
        for name, distribution in self.distributions.items():
            numpyro.sample(name, distribution)


class Proposed(NamedTuple):
    """Values of all sites drawn from a guide, and the log density with which they were."""

    values: dict[str, jax.Array]
    log_density: jax.Array


def guide_of(asker: str, model: Model, proposal: Any) -> Callable:
    """A guide from what a user may give as a proposal."""
    if not isinstance(proposal, dist.Distribution):
        return proposal
    if len(model.sites) != 1:
        names = [site.name for site in model.sites]
        raise ProgramError(
            f"{asker}: program {model.name!r} has latent sites {names}; give the proposal as a "
            "dict of distributions by site."
        )
    return SiteDistributions({model.sites[0].name: proposal})


def propose(guide: Callable, model: Model, data: Data, rng_key: jax.Array) -> Proposed:
    """A draw from a guide, which is called with the program's arguments."""
    args, kwargs = model.arguments(data) if isinstance(model, NumpyroModel) else (data, {})
    with TRACING, handlers.trace() as trace, handlers.seed(rng_seed=rng_key):
        guide(*args, **kwargs)
    sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
    log_density: Any = sum(jnp.sum(site["fn"].log_prob(site["value"])) for site in sites.values())
    return Proposed({name: site["value"] for name, site in sites.items()}, log_density)
