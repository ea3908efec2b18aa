"""The report of models that were compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from estimand.plots import plot_average, plot_comparison
from estimand.view import Table, answer_page

if TYPE_CHECKING:
    from estimand.answers.comparison import Comparison

# Outputs whose average has a plot.
MAX_PLOTTED = 6


def page_of(comparison: Comparison) -> answer_page.AnswerPage:
    """What the page says, and in which order."""
    rows = list(comparison.models.values())
    summary = comparison.summary()
    provenances = comparison.provenances
    first = next(iter(provenances.values()), None)
    versions = {} if first is None else first.versions
    settings = {
        "random key": "unknown" if first is None else ", ".join(first.keys),
        "made": "unknown" if first is None else first.created,
        **versions,
        **{f"data digest of {name}": item.data_digest for name, item in provenances.items()},
    }
    return answer_page.AnswerPage(
        title=f"{len(rows)} models compared" if len(rows) > 1 else f"Evidence of {rows[0].name}",
        answer=_answer(comparison),
        detail=_detail(comparison),
        status=comparison.status,
        verdict=" ".join(_sentence(line) for line in summary.lines),
        drawings=_drawings(comparison),
        tables=(*summary.tables, _routes(comparison)),
        settings=settings,
        sources={
            f"Program {name}": item.source or "no source is known"
            for name, item in provenances.items()
        },
        versions=versions,
    )


def _sentence(line: str) -> str:
    return line if line.endswith(".") else f"{line}."


def _answer(comparison: Comparison) -> str:
    trusted = [row for row in comparison.models.values() if row.status]
    if not trusted:
        return "no model can be trusted"
    if len(comparison.models) == 1:
        evidence = trusted[0].evidence
        return f"log Z = {evidence.log_z:.6g} ± {evidence.standard_error:.2g}"
    return f"{trusted[0].name}: probability {trusted[0].probability:.4g}"


def _detail(comparison: Comparison) -> str:
    trusted = [row for row in comparison.models.values() if row.status]
    if not trusted:
        return "The findings are below."
    if len(trusted) == 1:
        low, high = trusted[0].evidence.interval()
        return f"95 % interval of log Z {low:.6g} to {high:.6g}"
    second = trusted[1]
    return (
        f"log Bayes factor {-second.log_bayes_factor:.4g} ± {second.log_bayes_factor_error:.2g} "
        f"against {second.name}"
    )


def _drawings(comparison: Comparison) -> tuple[answer_page.Drawing, ...]:
    height = 1.4 + 0.4 * len(comparison.models)
    found = [
        answer_page.Drawing(
            lambda ax: plot_comparison(comparison, ax=ax),
            "The probability of each model given the data, with 95 % intervals.",
            (4.6, height),
        )
    ]

    def drawing(number: int) -> answer_page.Drawing:
        def draw(ax: Any) -> Any:
            return plot_average(comparison, output=number, ax=ax)

        caption = "The expectation under each model and over all of them, with 95 % intervals."
        return answer_page.Drawing(draw, caption, (4.6, height + 0.4))

    return (*found, *map(drawing, range(min(len(comparison.average), MAX_PLOTTED))))


def _routes(comparison: Comparison) -> Table:
    """How each evidence was obtained."""
    rows = tuple(
        (
            name,
            row.evidence.route,
            f"{row.evidence.num_evaluations:,}",
            f"{row.evidence.num_gradients:,}",
            f"{row.evidence.seconds:.1f}",
            "; ".join(row.evidence.notes) or "–",
        )
        for name, row in comparison.models.items()
    )
    header = ("model", "route", "evaluations", "gradients", "seconds", "notes")
    return Table("How each evidence was obtained", header, rows)
