"""What a return expression says about itself: sign, log-magnitude, softened comparisons."""

from estimand.target.intervals import Interval
from estimand.target.reading import Reading, SignedLog, event, read
from estimand.target.terms import Look

__all__ = ["Interval", "Look", "Reading", "SignedLog", "event", "read"]
