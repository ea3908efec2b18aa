"""How an estimation went."""

from __future__ import annotations

import enum


class Status(enum.Enum):
    """How an estimation went; the values are the messages. Only `ok` can be trusted."""

    ok = "No diagnostic speaks against the estimate."
    low_ess = (
        "The effective sample size is too low for the standard error to be trusted: take more "
        "samples, more temperatures or a better kernel."
    )
    not_converged = (
        "The estimate has not settled: the Markov chains disagree with each other (R-hat above "
        "1.05), or the budget ran out before the asked error was reached. Allow more evaluations."
    )
    heavy_tailed = (
        "The weights are so heavy-tailed that their variance may not exist: take a proposal with "
        "wider tails or more temperatures, and check that the expectation exists."
    )
    unresolved = (
        "Much of the mass lies where floating-point numbers end or are too coarse: check that the "
        "expectation exists, take a prior with less mass at the edge of its support, or write the "
        "model so that this edge is at 0."
    )
    replicates_disagree = (
        "Independent explorations found mass that the estimate has missed: explore with more "
        "scouts or particles."
    )
    no_mass_found = (
        "No sample found any mass of the target. That is no proof that there is none: take more "
        "samples or more temperatures, or start from a proposal that reaches the target."
    )
    underflow = (
        "There is mass, but the expectation is nearer to 0 than floating point can hold: the "
        "logarithms of its parts are in log_z. Return a multiple of it that is larger."
    )
    nan_density = (
        "The density or the target was NaN or +inf at some positions, which were treated as "
        "having density 0: mend the program there."
    )

    def __bool__(self) -> bool:
        return self is Status.ok
