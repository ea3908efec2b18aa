"""Quantiles of a return value, however far out, and its expectation beyond one of them."""

from estimand.answers.quantiles.entry import quantile
from estimand.answers.quantiles.found import Quantile, Quantiles
from estimand.answers.quantiles.search import always, require_scalar
from estimand.answers.quantiles.shortfall import Shortfall, shortfall

__all__ = [
    "Quantile",
    "Quantiles",
    "Shortfall",
    "always",
    "quantile",
    "require_scalar",
    "shortfall",
]
