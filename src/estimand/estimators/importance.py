"""Importance sampling from the prior or from a proposal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from estimand.density import Density, is_invalid
from estimand.model import ProgramError, SiteDistributions, guide_of, propose, shape_of_key
from estimand.runtime import compiled_per_model
from estimand.sampling import in_batches
from estimand.settings import Settings, require_count
from estimand.trust import Evidence, evidence_from_weights


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
            object.__setattr__(self, "proposal", SiteDistributions(self.proposal))
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
        guide = guide_of("ImportanceSampling", density.model, self.proposal)

        def draw(rng_key: jax.Array) -> None:
            values = propose(guide, density.model, density.arrays, rng_key).values
            for site in density.layout.sites:
                if site.name not in values:
                    raise ProgramError(
                        f"ImportanceSampling: the proposal does not sample site {site.name!r} of "
                        f"program {density.name!r}; it must sample every latent site."
                    )

        jax.eval_shape(draw, shape_of_key())

    def estimate(self, rng_key: jax.Array, density: Density) -> Evidence:
        self.check(density)
        return _importance_sample(self, rng_key, density)


@compiled_per_model(static_argnums=(0,))
def _importance_sample(
    settings: ImportanceSampling, rng_key: jax.Array, density: Density
) -> Evidence:
    def from_prior(key: jax.Array) -> tuple:
        position, terms = density.draw_prior(key)
        return position, terms.log_weight

    def from_guide(key: jax.Array) -> tuple:
        guide = guide_of("ImportanceSampling", density.model, settings.proposal)
        proposed = propose(guide, density.model, density.arrays, key)
        position, terms = density.terms_at(proposed.values)
        log_weight = terms.log_prior + terms.log_weight - proposed.log_density
        is_outside = terms.log_prior == -jnp.inf
        return position, jnp.where(is_outside, -jnp.inf, log_weight)

    draw = from_prior if settings.proposal is None else from_guide
    keys = jax.random.split(rng_key, settings.num_samples)
    samples, _ = in_batches(lambda batch: (jax.vmap(draw)(batch), ()), keys, settings.batch_size)
    positions, log_weights = samples
    ones = jnp.ones(settings.num_samples, jnp.int32)
    invalid = is_invalid(log_weights).astype(jnp.int32)
    return evidence_from_weights(log_weights, positions, ones, 0 * ones, invalid)
