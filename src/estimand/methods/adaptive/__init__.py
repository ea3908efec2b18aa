"""Importance sampling from a mixture fitted to every part at once.

The stages, in the order in which they run: explore, fit, refine, integrate, validate; what the
validation finds missing is fitted, and the last three run again. `judge` makes outputs of a state.
"""

from estimand.methods.adaptive.method import AdaptiveIS, parts_of, require_budget

__all__ = ["AdaptiveIS", "parts_of", "require_budget"]
