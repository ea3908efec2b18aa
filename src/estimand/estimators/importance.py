"""Importance sampling from the prior or from a proposal."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro import handlers

from estimand.density import Density, is_invalid
from estimand.model.sites import TRACING, ProgramError
from estimand.sampling.chunks import in_batches
from estimand.settings import Settings, require_count
from estimand.trust.evidence import Evidence, evidence_from_weights


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ImportanceSampling(Settings):
    """Importance sampling from the prior or from a proposal: unbiased.

    Args:
        num_samples: independent draws.
        proposal: None for the prior; a NumPyro guide, which is called with the program's
            arguments and must sample every latent site; a distribution, if there is one latent
            site; or a dict of distributions by site.
        batch_size: draws made at a time, which bounds memory; the result is the same.

    Examples:
        >>> evidence = ep.log_evidence(program(2.0), ep.ImportanceSampling())
        >>> abs(float(evidence.log_z) + 2.2655) < 4 * evidence.standard_error
        True
    """

    num_samples: int = 10_000
    proposal: Any = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        require_count("ImportanceSampling", "num_samples", self.num_samples)
        if self.batch_size is not None:
            require_count("ImportanceSampling", "batch_size", self.batch_size)
        if isinstance(self.proposal, Mapping):
            object.__setattr__(self, "proposal", _SiteDistributions(dict(self.proposal)))
        is_known = isinstance(self.proposal, dist.Distribution) or callable(self.proposal)
        if self.proposal is not None and not is_known:
            raise TypeError(
                "ImportanceSampling: proposal must be a guide, a distribution or a dict of "
                f"distributions by site; it is {self.proposal!r}."
            )

    def check(self, density: Density) -> None:
        if self.proposal is None:
            density.require_prior("ImportanceSampling without a proposal")
            return
        guide = self._guide(density)

        def draw(rng_key: jax.Array) -> None:
            sites = _run_guide(guide, density, rng_key)
            for place in density.layout.sites:
                if place.latent.name not in sites:
                    raise ProgramError(
                        f"ImportanceSampling: the proposal does not sample site "
                        f"{place.latent.name!r} of program {density.name!r}; it must sample every "
                        "latent site."
                    )

        jax.eval_shape(draw, jax.random.key(0))

    def estimate(self, rng_key: jax.Array, density: Density) -> Evidence:
        self.check(density)
        return _importance_sample(self, rng_key, density)

    def _guide(self, density: Density) -> Callable:
        if not isinstance(self.proposal, dist.Distribution):
            return self.proposal
        if len(density.layout.sites) != 1:
            names = [site.latent.name for site in density.layout.sites]
            raise ProgramError(
                f"ImportanceSampling: program {density.name!r} has latent sites {names}; give the "
                "proposal as a dict of distributions by site."
            )
        return _SiteDistributions({density.layout.sites[0].latent.name: self.proposal})


class _SiteDistributions:
    """A guide that draws each site from a distribution of its own."""

    def __init__(self, distributions: dict[str, dist.Distribution]):
        self.distributions = distributions

    def __call__(self, *_args: Any, **_kwargs: Any) -> None:
        for name, distribution in self.distributions.items():
            numpyro.sample(name, distribution)


def _run_guide(guide: Callable, density: Density, rng_key: jax.Array) -> dict:
    args, kwargs = density.arguments()
    with TRACING, handlers.trace() as sites, handlers.seed(rng_seed=rng_key):
        guide(*args, **kwargs)
    return {name: site for name, site in sites.items() if site["type"] == "sample"}


@functools.partial(jax.jit, static_argnums=0)
def _importance_sample(
    settings: ImportanceSampling, rng_key: jax.Array, density: Density
) -> Evidence:
    def from_prior(key: jax.Array) -> tuple:
        position, terms = density.draw_prior(key)
        return position, terms.log_weight

    def from_guide(key: jax.Array) -> tuple:
        sites = _run_guide(settings._guide(density), density, key)
        log_proposal = sum(jnp.sum(site["fn"].log_prob(site["value"])) for site in sites.values())
        position, terms = density.terms_at({name: s["value"] for name, s in sites.items()})
        log_weight = terms.log_prior + terms.log_weight - log_proposal
        is_outside = terms.log_prior == -jnp.inf
        return position, jnp.where(is_outside, -jnp.inf, log_weight)

    draw = from_prior if settings.proposal is None else from_guide
    keys = jax.random.split(rng_key, settings.num_samples)
    samples, _ = in_batches(lambda batch: (jax.vmap(draw)(batch), ()), keys, settings.batch_size)
    positions, log_weights = samples
    ones = jnp.ones(settings.num_samples, jnp.int32)
    invalid = is_invalid(log_weights).astype(jnp.int32)
    return evidence_from_weights(log_weights, positions, ones, 0 * ones, invalid)
