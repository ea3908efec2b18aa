"""Sites as standard normal numbers: each by the distribution function of its prior."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import ndtri
from numpyro.distributions import transforms

from estimand.model.layout import ProgramError


def standard_normals(name: str, fn: Any, value: jax.Array) -> jax.Array:
    """Numbers that are independent and standard normal where the value has its prior.

    Args:
        name: of the site, for messages.
        fn: its prior, given the sites before it.
        value: of the site.
    """
    base = fn
    while isinstance(base, dist.Independent | dist.ExpandedDistribution | dist.MaskedDistribution):
        base = base.base_dist
    if isinstance(base, dist.Normal):
        return jnp.ravel((value - base.loc) / base.scale)
    if isinstance(base, dist.LogNormal):
        return jnp.ravel((jnp.log(value) - base.loc) / base.scale)
    if isinstance(base, dist.MultivariateNormal):
        return jnp.ravel(solve_triangular(base.scale_tril, value - base.loc, lower=True))
    if isinstance(base, dist.TransformedDistribution):
        known = (transforms.AffineTransform, transforms.ExpTransform)
        if isinstance(base.base_dist, dist.Normal) and all(
            isinstance(item, known) for item in base.transforms
        ):
            for item in reversed(base.transforms):
                value = item._inverse(value)
            return standard_normals(name, base.base_dist, value)
    try:
        share = base.cdf(value)
    except NotImplementedError as error:  # how NumPyro says that it has no cdf
        raise ProgramError(
            f"site {name!r} has no standard normal coordinates: NumPyro knows no distribution "
            f"function of {type(base).__name__}."
        ) from error
    limits = jnp.finfo(share.dtype)
    return jnp.ravel(ndtri(jnp.clip(share, limits.tiny, 1 - limits.epsneg)))
