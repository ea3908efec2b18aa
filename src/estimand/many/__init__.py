"""Many data sets: one program, one compilation, a record for each."""

from estimand.many.entry import estimate_many
from estimand.many.estimates import Estimates, load_many

__all__ = ["Estimates", "estimate_many", "load_many"]
