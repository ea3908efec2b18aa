"""Machinery that estimators and methods share: weights, tempering, chains, mixtures."""

from estimand.sampling import mixture, resampling, schedule, warp
from estimand.sampling.bridging import meng_wong
from estimand.sampling.chains import (
    NUM_STARTS,
    Chains,
    autocorrelation_size,
    check_draws,
    log_density,
    nuts,
    nuts_chains,
    positions_of,
    r_hat,
)
from estimand.sampling.chunks import CHUNK, in_batches, in_chunks
from estimand.sampling.laplace import Mode, find_mode
from estimand.sampling.mixture import Mixture
from estimand.sampling.products import sums_of_products
from estimand.sampling.schedule import geometric, linear
from estimand.sampling.tempering import (
    Cloud,
    Population,
    TemperingPath,
    drive,
    from_prior,
    start_cloud,
)
from estimand.sampling.warp import Warped
from estimand.sampling.weights import (
    effective_sample_size,
    log_mean,
    pareto_k,
    relative_weights,
    total,
)

__all__ = [
    "CHUNK",
    "NUM_STARTS",
    "Chains",
    "Cloud",
    "Mixture",
    "Mode",
    "Population",
    "TemperingPath",
    "Warped",
    "autocorrelation_size",
    "check_draws",
    "drive",
    "effective_sample_size",
    "find_mode",
    "from_prior",
    "geometric",
    "in_batches",
    "in_chunks",
    "linear",
    "log_density",
    "log_mean",
    "meng_wong",
    "mixture",
    "nuts",
    "nuts_chains",
    "pareto_k",
    "positions_of",
    "r_hat",
    "relative_weights",
    "resampling",
    "schedule",
    "start_cloud",
    "sums_of_products",
    "total",
    "warp",
]
