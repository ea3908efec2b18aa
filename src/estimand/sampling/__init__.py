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
from estimand.sampling.keys import entropy_of, named_key, named_seed
from estimand.sampling.laplace import Mode, find_mode
from estimand.sampling.mixture import Mixture
from estimand.sampling.prior import comparison_scales, prior_positions
from estimand.sampling.products import sums_of_products
from estimand.sampling.schedule import geometric, linear
from estimand.sampling.scouts import Scouted, can_scout, run_scouts
from estimand.sampling.tempering import (
    MAX_TEMPERATURES,
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
    "MAX_TEMPERATURES",
    "NUM_STARTS",
    "Chains",
    "Cloud",
    "Mixture",
    "Mode",
    "Population",
    "Scouted",
    "TemperingPath",
    "Warped",
    "autocorrelation_size",
    "can_scout",
    "check_draws",
    "comparison_scales",
    "drive",
    "effective_sample_size",
    "entropy_of",
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
    "named_key",
    "named_seed",
    "nuts",
    "nuts_chains",
    "pareto_k",
    "positions_of",
    "prior_positions",
    "r_hat",
    "relative_weights",
    "resampling",
    "run_scouts",
    "schedule",
    "start_cloud",
    "sums_of_products",
    "total",
    "warp",
]
