"""Discrete sites that are summed out: any model without some of its discrete sites.

`expression` says which numbers depend on which labels, `pieces` what a log density is the sum of,
`tables` how few runs of the program give all pieces, `elimination` in which order labels are summed
out. None of it knows NumPyro.
"""

from estimand.model.enumerated.elimination import MAX_JOINT, TooManyError
from estimand.model.enumerated.model import EnumeratedModel, Labels, MixedError
from estimand.model.enumerated.plan import Plan
from estimand.model.enumerated.trace import Apart

__all__ = ["MAX_JOINT", "Apart", "EnumeratedModel", "Labels", "MixedError", "Plan", "TooManyError"]
