"""Importance sampling from a mixture fitted to every part at once.

The stages, in the order in which they run: explore, fit, refine, integrate, validate; what the
validation finds missing is fitted, and the last three run again. `judge` makes outputs of a state.
"""

from estimand.methods.adaptive.ascents import Ascents, can_ascend
from estimand.methods.adaptive.draws import Part
from estimand.methods.adaptive.from_posterior import climb_again
from estimand.methods.adaptive.judge import PartJudgement
from estimand.methods.adaptive.ladders import by_ladders
from estimand.methods.adaptive.method import (
    AdaptiveIS,
    parts_of,
    require_budget,
    require_goal,
    suits_own_coordinates,
)
from estimand.methods.adaptive.plan import MIN_LAPLACE_DIMENSION, PROBE, Ladder, Limits
from estimand.methods.adaptive.posterior import (
    Posterior,
    averages,
    more_draws,
    sample_posterior,
)

__all__ = [
    "MIN_LAPLACE_DIMENSION",
    "PROBE",
    "AdaptiveIS",
    "Ascents",
    "Ladder",
    "Limits",
    "Part",
    "PartJudgement",
    "Posterior",
    "averages",
    "by_ladders",
    "can_ascend",
    "climb_again",
    "more_draws",
    "parts_of",
    "require_budget",
    "require_goal",
    "sample_posterior",
    "suits_own_coordinates",
]
