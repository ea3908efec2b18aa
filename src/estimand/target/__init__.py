"""What a return expression says about itself: sign, log-magnitude, softened comparisons."""

from estimand.target.reading import Reading, SignedLog, event, read

__all__ = ["Reading", "SignedLog", "event", "read"]
