"""Every number that trust is decided by."""

from __future__ import annotations

# Below this effective sample size the standard error itself is too noisy to be trusted.
MIN_ESS = 50.0


# Above this Pareto tail index the weights' variance is not reached at practical sample sizes.
MAX_PARETO_K = 0.7
