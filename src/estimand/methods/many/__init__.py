"""Many data sets of one program in one pass."""

from estimand.methods.many.lane import LANE, Outcome, run_lane, unsuited

__all__ = ["LANE", "Outcome", "run_lane", "unsuited"]
