"""Which sites of a program are not a number, by prior draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers

from estimand.model.numpyro.program import Expectation
from estimand.model.numpyro.sites import TRACING, drawing_from_prior, observed_log_prob

# Prior draws that are looked at, and how many at a time.
NUM_DRAWS, BATCH = 4096, 64


def not_a_number(expectation: Expectation) -> str:
    """Where a program is NaN or +inf, and how often; nothing if no prior draw shows it.

    What comes after such a site mostly follows from it: the first one of a draw is named.
    """
    names: list[str] = []

    def look(rng_key: jax.Array) -> jax.Array:
        with TRACING, handlers.trace() as sites, drawing_from_prior(rng_key):
            value = expectation.run()
        own = {name: site for name, site in sites.items() if site["type"] == "sample"}
        names[:] = [*(_described(name, site) for name, site in own.items()), "the return value"]
        is_bad = [(~(observed_log_prob(site) < jnp.inf)).any() for site in own.values()]
        numbers = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(value)]
        return jnp.stack([*is_bad, ~jnp.stack(numbers).all()])

    keys = jax.random.split(jax.random.key(0), NUM_DRAWS)
    is_bad = np.asarray(jax.jit(lambda keys: jax.lax.map(look, keys, batch_size=BATCH))(keys))
    if not is_bad.any():
        return ""
    firsts = is_bad[is_bad.any(axis=1)].argmax(axis=1)
    place = int(np.bincount(firsts).argmax())
    share = 100 * float((firsts == place).sum()) / NUM_DRAWS
    return f"{names[place]} is NaN or +inf at {share:.2g} % of prior draws"


def _described(name: str, site: dict) -> str:
    if isinstance(site["fn"], dist.Unit):
        return f"factor {name!r}"
    return f"the log density of {'observation' if site['is_observed'] else 'site'} {name!r}"
