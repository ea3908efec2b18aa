"""Many data sets of one program in one pass."""

from estimand.methods.many.lane import Outcome, run_lane, unsuited

__all__ = ["Outcome", "run_lane", "unsuited"]
