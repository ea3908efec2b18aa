"""One self-contained page about an answer to a question beyond one expectation.

Needs matplotlib: ``pip install 'estimand[plots]'``.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from estimand.trust import Status
from estimand.view.glossary import OF_ANSWERS, WORDS
from estimand.view.report import (
    badge,
    figure_of,
    footer,
    framed,
    numbers,
    settings_list,
    words_list,
)
from estimand.view.tables import Table


class Drawing(NamedTuple):
    """A plot of an answer, with its caption and its size in inches.

    `draw` takes one pair of axes, or as many beside each other as there are columns.
    """

    draw: Callable[[Any], Any]
    caption: str
    size: tuple[float, float] = (4.6, 3.5)
    columns: int = 1


class AnswerPage(NamedTuple):
    """What the page has: the answer first, then the verdict, plots, tables, settings and sources.

    `sources` has the text of each program, by name.
    """

    title: str
    answer: str
    detail: str
    status: Status
    verdict: str
    drawings: tuple[Drawing, ...]
    tables: tuple[Table, ...]
    settings: Mapping[str, str]
    sources: Mapping[str, str]
    versions: Mapping[str, str]

    def to_html(self) -> str:
        """The page as text."""
        tone = "good" if self.status else "bad"
        said = [
            f"<header><h1>{html.escape(self.title)}</h1></header>",
            f'<section id="answer"><p class="number">{html.escape(self.answer)}</p>',
            f'<p class="interval">{html.escape(self.detail)} &nbsp;{badge(self.status)}</p>',
            f'<p class="verdict {tone}"><span>{html.escape(self.verdict)}</span></p>',
            f'<div class="plots">{"".join(map(self._figure, range(len(self.drawings))))}</div>',
            "</section>",
            numbers(self.tables),
        ]
        pieces = [
            *said,
            words_list(_used("\n".join(said))),
            settings_list(self.settings),
            *(
                f"<h2>{html.escape(name)}</h2>\n<pre>{html.escape(source)}</pre>"
                for name, source in self.sources.items()
            ),
            footer(self.versions),
        ]
        return framed(self.title, pieces)

    def _figure(self, number: int) -> str:
        drawing = self.drawings[number]

        def draw(figure: Any) -> None:
            axes = figure.subplots(1, drawing.columns)
            for ax in figure.axes:
                ax.patch.set_alpha(0.0)
            drawing.draw(axes)

        return figure_of(
            draw,
            drawing.caption,
            drawing.size,
            salt=f"answer {number}",
            is_wide=drawing.columns > 1,
        )


def _used(text: str) -> dict[str, str]:
    """The words of the glossary that are in a text."""
    return {
        word: meaning
        for word, meaning in (WORDS | OF_ANSWERS).items()
        if re.search(rf"\b{re.escape(word)}s?\b", text, re.IGNORECASE)
    }
