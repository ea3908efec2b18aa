"""Machinery that estimators and methods share: weights, tempering, chains, mixtures."""

from estimand.sampling import ensemble, mixture, resampling, schedule, warp
from estimand.sampling.bridging import meng_wong
from estimand.sampling.chains import (
    NUM_STARTS,
    Chains,
    autocorrelation_size,
    check_draws,
    freeze_draws,
    log_density,
    nuts,
    nuts_chains,
    positions_of,
    r_hat,
    rank_r_hat,
)
from estimand.sampling.chunks import (
    CHUNK,
    NUMBER_SECONDS,
    bytes_of_row,
    in_batches,
    in_chunks,
    in_pieces,
    rows_at_a_time,
    vmapped,
)
from estimand.sampling.climb import Climbed, Particles, climb, climb_to_target
from estimand.sampling.ensemble import (
    Drawn,
    Ensemble,
    Warmed,
    Way,
    charts_of,
    start_anywhere,
    warm_up,
)
from estimand.sampling.keys import entropy_of, named_key, named_seed
from estimand.sampling.laplace import Mode, find_mode, has_curvature
from estimand.sampling.mixture import Mixture
from estimand.sampling.prior import comparison_scales, prior_positions, spread_of_margins
from estimand.sampling.products import root_of, sums_of_products
from estimand.sampling.sampler import MAX_POINTS, Sampler, Source, uniforms_of
from estimand.sampling.schedule import geometric, linear
from estimand.sampling.scouts import Scouted, can_scout, run_scouts, to_posterior
from estimand.sampling.stacked_fits import fit_stack, refit_stack
from estimand.sampling.stacks import (
    ROWS,
    evaluate_stack,
    margin_spreads,
    prior_positions_of,
    recoordinated_stack,
    stacked,
    taken,
)
from estimand.sampling.swarms import Swarm, SwarmSize, run_swarms
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
    "MAX_POINTS",
    "MAX_TEMPERATURES",
    "NUMBER_SECONDS",
    "NUM_STARTS",
    "ROWS",
    "Chains",
    "Climbed",
    "Cloud",
    "Drawn",
    "Ensemble",
    "Mixture",
    "Mode",
    "Particles",
    "Population",
    "Sampler",
    "Scouted",
    "Source",
    "Swarm",
    "SwarmSize",
    "TemperingPath",
    "Warmed",
    "Warped",
    "Way",
    "autocorrelation_size",
    "bytes_of_row",
    "can_scout",
    "charts_of",
    "check_draws",
    "climb",
    "climb_to_target",
    "comparison_scales",
    "drive",
    "effective_sample_size",
    "ensemble",
    "entropy_of",
    "evaluate_stack",
    "find_mode",
    "fit_stack",
    "freeze_draws",
    "from_prior",
    "geometric",
    "has_curvature",
    "in_batches",
    "in_chunks",
    "in_pieces",
    "linear",
    "log_density",
    "log_mean",
    "margin_spreads",
    "meng_wong",
    "mixture",
    "named_key",
    "named_seed",
    "nuts",
    "nuts_chains",
    "pareto_k",
    "positions_of",
    "prior_positions",
    "prior_positions_of",
    "r_hat",
    "rank_r_hat",
    "recoordinated_stack",
    "refit_stack",
    "relative_weights",
    "resampling",
    "root_of",
    "rows_at_a_time",
    "run_scouts",
    "run_swarms",
    "schedule",
    "spread_of_margins",
    "stacked",
    "start_anywhere",
    "start_cloud",
    "sums_of_products",
    "taken",
    "to_posterior",
    "total",
    "uniforms_of",
    "vmapped",
    "warm_up",
    "warp",
]
