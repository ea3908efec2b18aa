"""What JAX computes on."""

from __future__ import annotations

import jax

# Where a device does not say how much memory it has.
ASSUMED_MEMORY = 8 * 2**30


def has_accelerator() -> bool:
    """Whether JAX computes on something else than a processor."""
    return jax.default_backend() != "cpu"


def memory_of_device() -> int:
    """Bytes of memory that one device has."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    return int(statistics.get("bytes_limit", ASSUMED_MEMORY))
