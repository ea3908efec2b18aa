"""Studies that have not been made: the data that one would give, and how likely they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro import handlers

from estimand.model.layout import ProgramError
from estimand.model.numpyro.sites import TRACING, observed_log_prob

Sites = dict[str, jax.Array]


class Study(NamedTuple):
    """A NumPyro function of the dict of a program's sites, whose own sites are the study's data."""

    name: str
    function: Callable[[Sites], Any]

    def simulate(self, rng_key: jax.Array, sites: Sites) -> Sites:
        """Data, given the values of a program's sites."""
        with TRACING, handlers.trace() as own, handlers.seed(rng_seed=rng_key):
            self.function(sites)
        found = {name: site for name, site in own.items() if site["type"] == "sample"}
        known = [name for name, site in found.items() if site["is_observed"]]
        if known:
            raise ProgramError(
                f"site {known[0]!r} of study {self.name!r} has a value already: a study draws the "
                "data that it would give, and what is known is part of the program."
            )
        if not found:
            raise ProgramError(
                f"study {self.name!r} has no site: draw its data with numpyro.sample, given the "
                "dict of the program's sites."
            )
        return {name: site["value"] for name, site in found.items()}

    def log_likelihood(self, data: Sites, sites: Sites) -> jax.Array:
        """The log density of such data, given the values of a program's sites."""
        with (
            TRACING,
            handlers.trace() as own,
            # Sites of its own have values; what else asks for a key is not random.
            handlers.seed(rng_seed=jax.random.key(0)),
            handlers.condition(data=data),
        ):
            self.function(sites)
        total = jnp.zeros(())
        for site in own.values():
            if site["type"] != "sample" or isinstance(site["fn"], dist.Unit):
                continue
            scale = 1.0 if site["scale"] is None else site["scale"]
            total = total + jnp.sum(scale * observed_log_prob(site))
        return total
