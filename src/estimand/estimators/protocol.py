"""What `TABI` and `log_evidence` need of an estimator of a normalising constant."""

from __future__ import annotations

from typing import Protocol

import jax

from estimand.density import Density
from estimand.runtime.journal import remember
from estimand.trust.evidence import Evidence, Trace


class Estimator(Protocol):
    """What `TABI` and `log_evidence` need of an estimator of a normalising constant."""

    def check(self, density: Density) -> None:
        """Raises, before any work, if the estimator cannot take this density."""

    def estimate(self, rng_key: jax.Array, density: Density) -> Evidence: ...


def remembered(estimator: Estimator, rng_key: jax.Array, density: Density) -> Evidence:
    """What the estimator says of a density, which a run with a checkpoint asks only once."""
    label = type(estimator).__name__
    return remember(label, lambda: estimator.estimate(rng_key, density), Evidence, Trace)
