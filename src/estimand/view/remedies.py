"""What to do about an estimate that cannot be trusted: the cause, the code to type, its price."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

from estimand.estimators import SMC, AnIS, BridgeSampling, ImportanceSampling
from estimand.methods import AdaptiveIS, Auto, Economical, PosteriorBridge, PosteriorMCMC
from estimand.record import Record
from estimand.trust import SAME, UNMET, Finding, Status

# The setting by which each method or estimator takes more draws.
_AMOUNTS: dict[type, str] = {
    Auto: "max_evaluations",
    AdaptiveIS: "max_evaluations",
    Economical: "max_evaluations",
    PosteriorMCMC: "num_samples",
    PosteriorBridge: "num_particles",
    AnIS: "num_samples",
    SMC: "num_particles",
    BridgeSampling: "num_samples",
    ImportanceSampling: "num_samples",
}
# Methods that look for the target themselves, and spend what they may.
_ADAPTIVE = ("Auto", "AdaptiveIS")
# Methods that have a budget and a time limit.
_BUDGETED = (*_ADAPTIVE, "Economical")
# A factor where nobody knows how much it takes.
UNKNOWN_LACK = 4.0
# What is known of it is itself an estimate.
LACK_SLACK = 1.5
# Share of the budget, or of the time, from which on it counts as used up.
USED_UP = 0.25
# From this factor on it is a guess: so few draws do not show the tail of their weights.
MANY = 10.0
# If the default method lacks so much when all is spent, a tail may be without end.
HOPELESS = 20.0
# Nobody pays this many times as much.
BEYOND_REACH = 1e4
# A budget is larger than what is needed: draws are doubled, and some is kept for other routes.
BUDGET_SLACK = 2.0
# What takes more evaluations than this is out of reach.
MOST_EVALUATIONS = 1e12
_EXISTENCE = (
    "The expectation may not exist: check first that the mean of |f| is finite, as that of a "
    "Cauchy distribution is not."
)
EXPLORE_MORE = "AdaptiveIS(scout=SMC(num_particles=8_000, num_steps=20, num_islands=5))"


def message(record: Record, number: int | None = None) -> str:
    """What the status of an output means and what to do; by default of the worst output."""
    if number is None:
        severity = [output.status.severity for output in record.outputs]
        number = severity.index(max(severity))
    output = record.outputs[number]
    if output.status is Status.ok:
        return output.status.value
    worst = [finding for finding in output.findings if finding.status is output.status]
    if not worst:
        return output.status.value
    # What is known of the program comes before what its draws look like.
    finding = max(worst, key=lambda item: (item.check == "tails", item.lack))
    return f"{output.status.value} {_remedy(record, number, finding)}"


def _remedy(record: Record, number: int, finding: Finding) -> str:
    by_check = _BY_CHECK.get((finding.status, finding.check))
    return (by_check or _BY_STATUS[finding.status])(record, number, finding)


# --- more of the same ---


def more_draws(record: Record, lack: float, is_sure: bool = True) -> str:
    """How many more evaluations it takes, and the code that makes them."""
    is_known = lack > 1
    lack = LACK_SLACK * lack if is_known else UNKNOWN_LACK
    amount = f"about {_rounded(record.cost * (lack - 1)):,} more evaluations"
    settles = "are worth a try"
    if is_known:
        settles = "should settle it" if is_sure else "may settle it"
    has_budget = record.method.split("(")[0] in _BUDGETED
    code = with_budget(record, lack) if has_budget else with_more(record.method, lack)
    default = " The default method needs no such choice: `ep.estimate_expectation(program(data))`."
    instead = "" if is_sure or has_budget else default
    return f"{amount[0].upper()}{amount[1:]} {settles}: `{code}`.{instead}"


def with_more(method: str, factor: float) -> str:
    """The text of a method with so many times as many draws."""
    known = {kind.__name__: kind for kind in _AMOUNTS}
    # The first of them in the text takes the draws: TABI(AnIS()) by AnIS.
    found = re.search(rf"\b({'|'.join(known)})\(", method)
    if found is None:
        return method
    name = _AMOUNTS[known[found[1]]]
    count = setting_of(method, known[found[1]], name)
    return with_setting(method, found[1], name, f"{_rounded(count * factor):_}")


def with_budget(record: Record, lack: float) -> str:
    """The text of a method with a budget for so many times as many draws."""
    owner = record.method.split("(")[0]
    budget = _rounded(BUDGET_SLACK * record.cost * lack)
    return with_setting(record.method, owner, "max_evaluations", f"{budget:_}")


def setting_of(method: str, kind: type, name: str) -> Any:
    """A number among the settings in the text of a method; its default if it is not there."""
    found = re.search(rf"\b{name}=([\d._e+-]+)", method)
    if found is not None:
        return float(found[1])
    fields: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(kind)}
    return fields[name]


def with_setting(method: str, owner: str, name: str, value: str) -> str:
    """The text of a method in which one setting has another value."""
    known = re.compile(rf"\b{name}=[^,()]+")
    if known.search(method):
        return known.sub(f"{name}={value}", method)
    empty = f"{owner}()"
    if empty in method:
        return method.replace(empty, f"{owner}({name}={value})", 1)
    return method.replace(f"{owner}(", f"{owner}({name}={value}, ", 1)


def _rounded(number: float) -> int:
    """Two digits, rounded up."""
    if not 0 < number < 1e18:
        return 0
    unit = 10 ** max(math.floor(math.log10(number)) - 1, 0)
    return math.ceil(number / unit - 1e-9) * unit


def _is_adaptive(record: Record) -> bool:
    return record.method.split("(")[0] in _ADAPTIVE


def _has_budget_left(record: Record) -> bool:
    kind = Auto if record.method.startswith("Auto") else AdaptiveIS
    budget = setting_of(record.method, kind, "max_evaluations")
    return _is_adaptive(record) and record.cost < USED_UP * budget


def _time_is_up(record: Record) -> bool:
    limit = re.search(r"\bmax_seconds=([\d.e+-]+)", record.method)
    spent = record.compile_seconds + record.run_seconds
    return limit is not None and spent > USED_UP * float(limit[1])


# --- by what was found ---


def _goal(record: Record, number: int, finding: Finding) -> str:
    if _time_is_up(record):
        return _more_time(record, finding.lack)
    if record.cost * finding.lack > MOST_EVALUATIONS:
        return _out_of_reach(record, number)
    if record.method.split("(")[0] not in _BUDGETED:
        goal = setting_of(record.method, Auto, "relative_error")
        more = _rounded(record.cost * max(finding.lack - 1, 1.0))
        return (
            f"The requested error was not reached. About {more:,} more evaluations: "
            f"`result.refine(relative_error={goal:g})`."
        )
    return f"The requested error was not reached. {more_draws(record, finding.lack)}"


def _out_of_reach(record: Record, number: int) -> str:
    output, owner = record.outputs[number], record.method.split("(")[0]
    if not output.standard_error < output.error_scale:
        return _EXISTENCE if not _is_indicator(record, number) else _default_method(record)
    reached = f"{1.1 * output.standard_error / output.error_scale:.1g}"
    code = f"result.refine(relative_error={reached})"
    if owner in _BUDGETED:
        code = with_setting(record.method, owner, "relative_error", reached)
    return (
        "The requested error is out of reach: it would take more than "
        f"{MOST_EVALUATIONS:,.0f} evaluations. What this run has reached: `{code}`."
    )


def _more_time(record: Record, lack: float) -> str:
    owner = record.method.split("(")[0]
    if owner not in _BUDGETED:
        return "The time limit was reached: allow more time."
    spent = record.compile_seconds + record.run_seconds
    seconds = _rounded(max(spent * max(lack, UNKNOWN_LACK), 1.0))
    code = with_setting(record.method, owner, "max_seconds", f"{seconds:_}")
    return f"The time limit was reached. Allow about {seconds:,} s: `{code}`."


def _few_draws(record: Record, number: int, finding: Finding) -> str:
    if not finding.lack:
        return _default_method(record)
    if _has_budget_left(record):
        return f"The proposal does not fit, and more draws from it would not help: {_explore()}"
    more = more_draws(record, finding.lack, is_sure=finding.lack < MANY)
    if finding.lack < HOPELESS or not _is_adaptive(record) or _is_tame(record, number, finding):
        return more
    return f"{_EXISTENCE} If it is, more draws help. {more}"


def _is_tame(record: Record, number: int, finding: Finding) -> bool:
    """Whether what was found cannot come from a return value without an expectation."""
    return finding.part == "Z2" or _is_indicator(record, number)


def _default_method(record: Record) -> str:
    if _is_adaptive(record):
        return f"Explore more: {_explore()}"
    return "The default method looks for where f matters: `ep.estimate_expectation(program(data))`."


def _explore() -> str:
    return f"explore with four times as many particles, `{EXPLORE_MORE}`."


def _chains(record: Record, _number: int, finding: Finding) -> str:
    return f"The Markov chains disagree with each other. {more_draws(record, finding.lack)}"


def _exploration(record: Record, _number: int, finding: Finding) -> str:
    if finding.lack:
        return f"The exploration was too small. {more_draws(record, finding.lack)}"
    return f"There may be more modes than were found: {_explore()}"


def _unmet(record: Record, _number: int, finding: Finding) -> str:
    if not 0 < finding.lack < BEYOND_REACH:
        return (
            "A part of f was met by no draw. Return it as an output of its own, which is then "
            "explored on its own: `return {'all': f, 'rare': rare}`."
        )
    return f"A part of f was met by no draw. {more_draws(record, finding.lack)}"


def _path(record: Record, _number: int, _finding: Finding) -> str:
    return f"The path to the target is too long. {_default_method(record)}"


def _branches(record: Record, _number: int, finding: Finding) -> str:
    return f"Branches were left out. {more_draws(record, finding.lack)}"


def _tail(record: Record, number: int, finding: Finding) -> str:
    if _is_tame(record, number, finding):
        return (
            f"The draws do not cover the tails of {finding.part or 'f'}. {_default_method(record)}"
        )
    return f"{_EXISTENCE} If it is, {_lower_first(_default_method(record))}"


def _range(_record: Record, _number: int, _finding: Finding) -> str:
    return (
        "The expectation may not exist, as the mean of a Cauchy distribution does not: check that "
        "the mean of |f| is finite. A bounded f has an expectation: `jnp.clip(f, -1e6, 1e6)`."
    )


def _tails(_record: Record, _number: int, _finding: Finding) -> str:
    return (
        "The expectation does not exist, as f grows at least as fast as the tail of that prior "
        "falls: give the site a prior with lighter tails, as `dist.Normal`."
    )


def _growth(_record: Record, _number: int, _finding: Finding) -> str:
    return (
        "Where f is a ratio of densities, draw from the one with the heavier tails, as "
        "`dist.StudentT`, and return what is left of f. A bounded f needs nothing: "
        "`jnp.clip(f, -1e6, 1e6)`."
    )


def _coarse(_record: Record, _number: int, _finding: Finding) -> str:
    return (
        "The prior crowds against an edge of its support that is not 0, where numbers are too "
        "coarse: write the model so that this edge is at 0, as 1 - p in place of p."
    )


def _missed(_record: Record, _number: int, finding: Finding) -> str:
    where = f"of {finding.part} " if finding.part else ""
    return f"A mode {where}may have been missed: {_explore()}"


def _contradiction(_record: Record, _number: int, _finding: Finding) -> str:
    return f"Two ways to the same number contradict each other: {_explore()}"


def _runs_contradict(_record: Record, _number: int, _finding: Finding) -> str:
    return f"Runs with different keys contradict each other, so one has missed mass: {_explore()}"


def _no_mass(record: Record, number: int, finding: Finding) -> str:
    if not _is_adaptive(record):
        return (
            "This method draws where the target need not be. The default one goes there: "
            "`ep.estimate_expectation(program(data))`."
        )
    if finding.detail.endswith("the posterior"):
        return "The data are impossible for every draw of the prior: check the model with them."
    if _is_indicator(record, number):
        return (
            "If f compares inside of a loop, return how far it is from happening "
            "instead: `return ep.event(margin)`."
        )
    return "If f is 0 outside of a small region, check that the prior reaches that region."


def _underflow(record: Record, number: int, _finding: Finding) -> str:
    parts = record.outputs[number].parts
    size = max(parts.log_z("plus"), parts.log_z("minus")) - parts.log_z("normaliser")
    return (
        f"The logarithm of E|f| is {size:.6g}, by `log_z`. To have the number, return a multiple "
        f"of f: `return f * 1e{min(300, math.ceil(-size / math.log(10)))}`."
    )


def _cut_short(record: Record, _number: int, finding: Finding) -> str:
    if finding.check == "time":
        return _more_time(record, finding.lack)
    return (
        "It was stopped by Ctrl-C. Run it again with a checkpoint, and the same call then goes on "
        "where it was stopped: `ep.estimate_expectation(program(data), checkpoint='run.est')`."
    )


def _nan(_record: Record, _number: int, _finding: Finding) -> str:
    return (
        "Fix the program there: where an argument may leave the domain of a function, guard it, as "
        "in `jnp.log(jnp.maximum(x, 1e-300))`."
    )


_Advice = Callable[[Record, int, Finding], str]
_BY_CHECK: dict[tuple[Status, str], _Advice] = {
    (Status.not_converged, "goal"): _goal,
    (Status.not_converged, "exploration"): _exploration,
    (Status.not_converged, UNMET): _unmet,
    (Status.not_converged, SAME): _unmet,
    (Status.not_converged, "path"): _path,
    (Status.not_converged, "branches"): _branches,
    (Status.unresolved, "resolution"): _coarse,
    (Status.unresolved, "tails"): _tails,
    (Status.heavy_tailed, "growth"): _growth,
    (Status.replicates_disagree, "agreement"): _contradiction,
    (Status.replicates_disagree, "merge"): _runs_contradict,
}
_BY_STATUS: dict[Status, _Advice] = {
    Status.low_ess: _few_draws,
    Status.not_converged: _chains,
    Status.heavy_tailed: _tail,
    Status.unresolved: _range,
    Status.replicates_disagree: _missed,
    Status.underflow: _underflow,
    Status.no_mass_found: _no_mass,
    Status.interrupted: _cut_short,
    Status.nan_density: _nan,
}


def _is_indicator(record: Record, number: int) -> bool:
    sizes = [math.prod(shape) for shape in record.output.shapes]
    flags = zip(record.output.is_indicator, sizes, strict=True)
    return [flag for flag, size in flags for _ in range(size)][number]


def _lower_first(text: str) -> str:
    return text[0].lower() + text[1:]
