"""Every number that trust is decided by, with what was measured and by which command.

"Not measured" says that a number is a convention or a guess, and that nothing here shows that
another one would be worse. `benchmarks.calibration` runs every method on all problems with known
answers and counts how often `ok` was wrong; `benchmarks.coverage` does so for the default method
with 200 seeds.
"""

from __future__ import annotations

import math
import sys

# --- weights ---

# Effective samples below which the standard error of one estimator's Z is too noisy to be used.
# With fewer, the coverage of `TABI`'s 95 % intervals failed an exact binomial test over 500 runs on
# four problems; with as many it passes (the coverage tests in `tests/test_estimate.py`).
MIN_ESS = 50.0
# Effective draws that every part needs where all parts share the draws of one mixture, and from
# which on a merged estimate is believed although its pieces were not. Not measured by itself: with
# it none of 1,855 `ok` outputs of the default method is wrong (`benchmarks.calibration`).
ENOUGH_ESS = 400.0
# Pareto tail index above which the variance of weights is not reached at practical sample sizes:
# Vehtari et al. (2024). Not measured here.
MAX_PARETO_K = 0.7
# A large tail index is harmless while no single draw holds more of the weight than this. Not
# measured.
MAX_WEIGHT_SHARE = 0.002
# Normal quantile of the level at which an error from few replicates must be known to be small.
# Without it 9 of 108 runs of TABI(SMC) with 8 small islands on RP22 were `ok`, 4 of them covered;
# with it none of 102 is `ok` (`benchmarks.calibration`).
PRECISION_QUANTILE = 1.645

# --- chains ---

# Split R-hat above which chains disagree. Not measured; Gelman and Rubin (1992) say 1.1, Vehtari
# et al. (2021) 1.01.
MAX_R_HAT = 1.05
# The same by ranks for 64 chains that are short: the error is that between chains, which counts
# what they have not yet forgotten. Not measured.
MAX_CHAIN_R_HAT = 1.1
# Correlation of where the chains of a level start and where they end, in any coordinate, above
# which they have not moved enough: with 0.95 an event of varying slopes came out at half its
# probability with status `ok` (`benchmarks.people`).
MAX_STIFFNESS = 0.5
# Acceptance rate below which a kernel hardly moves; only the advice uses it. Not measured.
LOW_ACCEPTANCE = 0.05

# --- parts ---

# A part does not matter if all of it is less than this share of the others' error. Not measured.
MATTERS = 0.5
# Below this |Z1⁺ − Z1⁻| / (Z1⁺ + Z1⁻) the two signs of f nearly cancel; only the advice uses it.
# Not measured.
STRONG_CANCELLATION = 0.05
# Where the parts cancel, an error is judged relative to this share of E|f|. Not measured.
CANCELLATION_FLOOR = 0.01

# --- explorations ---

# Share of a fresh exploration's mass that may weigh more than any draw. On targets that the
# mixture fits it is below 0.001, on a funnel or a missed mode above 0.02; the command was not
# recorded. `benchmarks.missed_modes` counts what it lets through.
MAX_EXCEEDANCE = 0.01
# Explored points, at the least, that rule out a missed mode in this many dimensions or more: with
# a fortieth of the default budget the narrow one of two modes in ten dimensions was missed with
# status `ok` (`benchmarks.calibration`, unequal_modes_10).
MIN_EXPLORED = 6_000
MIN_EXPLORED_DIMENSION = 7
# Share of ascents that may end where no other one did: about the share of starts from which modes
# are reached that nobody has met (`tests/methods/adaptive/test_ascents.py`).
MAX_LONELY_SHARE = 0.1
# Share of a part that could be where it is NaN, if it were as large there as at the draws around.
# Not measured.
MAX_NAN_SHARE = 1e-3
# Share of a part's mass that may lie where floating-point numbers end or are too coarse. Not
# measured.
MAX_UNRESOLVED = 1e-3

# --- errors ---

# A reached error may be this many times the requested one, which is itself an estimate. Not
# measured.
SLACK = 1.5
# Independent routes farther apart than this many joint standard errors disagree: of normal errors
# one in 16,000 is. Not measured.
MAX_JOINT_ERRORS = 4.0
# Merged runs that are farther apart than their errors explain, at this rate, disagree. Not
# measured.
DISAGREEMENT_RATE = 1e-4
# Standard deviations from the mean at which a replicate is worth a look, which only the advice
# says. Not measured.
FAR = 4.0
# The level of intervals, unless another one is asked for. A convention; not measured.
CONFIDENCE = 0.95

# --- floating point ---

# Logarithms between which a number can be told: above, values are capped; below, they underflow.
# Not measured: IEEE 754 says so.
LOG_MAX = math.log(sys.float_info.max) - 1
LOG_MIN = math.log(sys.float_info.min)


def exp(log_value: float) -> float:
    """e to the power of a logarithm, capped where floating point ends."""
    return math.exp(min(log_value, LOG_MAX))
