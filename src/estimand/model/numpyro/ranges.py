"""Whether the parameters of a program's distributions are in their ranges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist


class Range(NamedTuple):
    """A parameter of a site's distribution, and the ends of its range."""

    site: str
    parameter: str
    low: float | None
    high: float | None

    @property
    def text(self) -> str:
        """What a number outside of it is."""
        if self.low == 0 and self.high is None:
            return "negative"
        if self.high is None:
            return f"below {self.low:g}"
        if self.low is None:
            return f"above {self.high:g}"
        return f"outside of [{self.low:g}, {self.high:g}]"


def in_ranges(sites: dict[str, dict]) -> dict[Range, jax.Array]:
    """For every parameter with a range that is known, whether no element is outside of it."""
    found = {}
    for name, site in sites.items():
        if site["type"] != "sample":
            continue
        for parameter, value, low, high in _parameters(site["fn"]):
            is_in = jnp.asarray(True)
            if low is not None:
                is_in &= ~jnp.any(value < low)
            if high is not None:
                is_in &= ~jnp.any(value > high)
            found[Range(name, parameter, low, high)] = is_in
    return found


def _parameters(fn: Any) -> Iterator[tuple[str, jax.Array, float | None, float | None]]:
    """Real parameters that have a fixed end; what is masked may be anything."""
    while isinstance(fn, dist.ExpandedDistribution | dist.Independent):
        fn = fn.base_dist
    if isinstance(fn, dist.MaskedDistribution | dist.Unit):
        return
    for name, constraint in fn.arg_constraints.items():
        constraint = getattr(constraint, "base_constraint", constraint)
        ends = [getattr(constraint, end, None) for end in ("lower_bound", "upper_bound")]
        low, high = (float(end) if isinstance(end, int | float) else None for end in ends)
        if low is None and high is None:
            continue
        value = getattr(fn, name, None)
        if value is not None and jnp.issubdtype(jnp.result_type(value), jnp.floating):
            yield name, jnp.asarray(value), low, high
