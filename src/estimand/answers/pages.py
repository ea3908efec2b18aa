"""The reports of answers."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from estimand.answers import comparison_page
from estimand.answers.comparison import Comparison, with_error
from estimand.answers.decisions import Decision
from estimand.answers.distribution import Distribution
from estimand.answers.leave_one_out import LeaveOneOut
from estimand.answers.quantiles import Quantiles, Shortfall
from estimand.plots import (
    plot_decision,
    plot_distribution,
    plot_leave_one_out,
    plot_quantiles,
    plot_shortfall,
    plot_studies,
)
from estimand.record import Provenance
from estimand.trust import Finding
from estimand.view import Table, answer_page, estimate_text


@functools.singledispatch
def page_of(answer: Any) -> answer_page.AnswerPage:
    """What the page of an answer says, and in which order."""
    raise TypeError(f"there is no report of {type(answer).__name__}.")


page_of.register(Comparison, comparison_page.page_of)


@page_of.register
def _(quantiles: Quantiles) -> answer_page.AnswerPage:
    farthest = min(quantiles.tails, key=lambda tail: tail.tail_probability)
    low, high = farthest.interval()
    caption = (
        "Each quantile with its 95 % interval, at the probability beyond it, and how that falls "
        "around it."
    )
    return answer_page.AnswerPage(
        title=f"Quantiles of {quantiles.program}",
        answer=farthest.text,
        detail=f"at level {farthest.level:.10g}, 95 % interval {low:.6g} to {high:.6g}",
        status=quantiles.status,
        verdict=quantiles.status.value,
        drawings=(answer_page.Drawing(lambda ax: plot_quantiles(quantiles, ax=ax), caption),),
        tables=(
            *quantiles.summary().tables,
            *_findings(
                (f"level {tail.level:.10g}", finding)
                for tail in quantiles.tails
                for finding in tail.findings
            ),
        ),
        **_made(quantiles.provenance, cost=_cost(quantiles)),
    )


@page_of.register
def _(shortfall: Shortfall) -> answer_page.AnswerPage:
    low, high = shortfall.interval()
    caption = "The values in this share of cases: where they begin, and their mean."
    return answer_page.AnswerPage(
        title=f"Shortfall of {shortfall.program}",
        answer=with_error(shortfall.value, shortfall.standard_error),
        detail=f"in {shortfall.cases}, 95 % interval {low:.6g} to {high:.6g}",
        status=shortfall.status,
        verdict=shortfall.status.value,
        drawings=(answer_page.Drawing(lambda ax: plot_shortfall(shortfall, ax=ax), caption),),
        tables=(
            *shortfall.summary().tables,
            *_findings(("shortfall", finding) for finding in shortfall.findings),
        ),
        **_made(shortfall.provenance, cost=_cost(shortfall)),
    )


@page_of.register
def _(distribution: Distribution) -> answer_page.AnswerPage:
    caption = "The distribution function, and both of its tails, with 95 % bands point by point."
    drawing = answer_page.Drawing(
        lambda axes: plot_distribution(distribution, axes=axes), caption, (7.2, 3.4), columns=2
    )
    values = [tail.value if tail.standard_error > 0 else np.inf for tail in distribution.tails]
    rarest = int(np.argmin(values))
    tail, sign = distribution.tails[rarest], ">" if distribution.is_upper[rarest] else "≤"
    ends = (distribution.survival_interval if sign == ">" else distribution.interval)()
    low, high = (float(end[rarest]) for end in ends)
    return answer_page.AnswerPage(
        title=f"Distribution of {distribution.program}",
        answer=f"P(f {sign} {distribution.grid[rarest]:.6g}) = {estimate_text(tail)}",
        detail=f"the rarest of {len(values)} points, 95 % interval {low:.6g} to {high:.6g}",
        status=distribution.status,
        verdict=distribution.status.value,
        drawings=(drawing,),
        tables=(
            *distribution.summary().tables,
            *_findings(
                (f"t = {t:.6g}", finding)
                for t, findings in zip(distribution.grid, distribution.findings, strict=True)
                for finding in findings
            ),
        ),
        **_made(distribution.provenance, cost=_cost(distribution)),
    )


@page_of.register
def _(decision: Decision) -> answer_page.AnswerPage:
    best = decision.best
    captions = (
        "The expected utility of every action, with 95 % intervals.",
        "What the data of each study are worth, beside perfect information.",
    )
    drawings = [answer_page.Drawing(lambda ax: plot_decision(decision, ax=ax), captions[0])]
    if decision.studies:
        drawings.append(answer_page.Drawing(lambda ax: plot_studies(decision, ax=ax), captions[1]))
    found = [
        (f"{what} of {action.name}", finding)
        for action in decision.actions
        for what, quantity in (("utility", action.utility), ("difference", action.difference))
        if quantity is not None
        for finding in quantity.findings
    ]
    found += [
        (f"study {name}", finding)
        for name, study in decision.studies.items()
        for finding in study.findings
    ]
    return answer_page.AnswerPage(
        title=f"Decision by {decision.program}",
        answer=best.name if decision.status else "no choice can be relied on",
        detail=f"expected utility {best.utility.text}",
        status=decision.status,
        verdict=" ".join(decision.words),
        drawings=tuple(drawings),
        tables=(*decision.summary().tables, *_findings(found)),
        **_made(decision.provenance, cost=_cost(decision)),
    )


@page_of.register
def _(loo: LeaveOneOut) -> answer_page.AnswerPage:
    explored = (
        f" The posterior without the row was explored for {loo.num_explored} of the rows."
        if loo.num_explored
        else ""
    )
    caption = "The log predictive density of every row given the others, with 95 % intervals."
    return answer_page.AnswerPage(
        title=f"Leave-one-out of {loo.program}",
        answer=f"ELPD {with_error(loo.elpd, loo.standard_error)}",
        detail=(
            f"SE {loo.se:.3g} by the spread of the rows; effective parameters "
            f"{loo.effective_parameters:.3g}"
        ),
        status=loo.status,
        verdict=f"{loo.status.value}{explored}",
        drawings=(answer_page.Drawing(lambda ax: plot_leave_one_out(loo, ax=ax), caption),),
        tables=(
            loo.table(len(loo.rows)),
            *_findings((f"row {row.index}", own) for row in loo.rows for own in row.findings),
        ),
        **_made(loo.provenance),
    )


def _findings(found: Iterable[tuple[str, Finding]]) -> tuple[Table, ...]:
    """What the checks found of each part, if there is anything."""
    rows = tuple((name, finding.status.name, str(finding)) for name, finding in found)
    return (Table("What the checks found", ("of", "status", "finding"), rows),) if rows else ()


def _cost(answer: Any) -> str:
    return f"{answer.num_evaluations:,} evaluations, {answer.num_gradients:,} gradients"


def _made(provenance: Provenance, **settings: str) -> dict[str, Any]:
    """The fields of a page that say how an answer was made."""
    return {
        "settings": {
            "random key": ", ".join(provenance.keys),
            **settings,
            "made": provenance.created,
            **provenance.versions,
            "program digest": provenance.program_digest,
            "data digest": provenance.data_digest,
        },
        "sources": {"Program": provenance.source or "no source is known"},
        "versions": provenance.versions,
    }
