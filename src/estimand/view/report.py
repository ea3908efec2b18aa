"""One self-contained page about a record: no scripts, no outside assets.

Needs matplotlib: ``pip install 'estimand[plots]'``.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimand.plots import Panels, RegisteredPlot, registered_plots
from estimand.record import Record
from estimand.trust import Status
from estimand.view.diagnosis import Diagnosis
from estimand.view.glossary import WORDS
from estimand.view.tables import Table, estimate_text, summarise, table_html

# Outputs that get plots of their own; the others have their numbers and their verdict.
MAX_PLOTTED = 6
# Stands for the page's text colour in a plot, until it is replaced by that.
_INK = "#0a0b0c"

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2127; --soft: #5b6670; --paper: #ffffff;
  --panel: #f4f6f8; --line: #d9dfe4; --good: #00694f; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaee; --soft: #a3aeb8; --paper: #14181d;
  --panel: #1d232a; --line: #37414b; --good: #45c9a0; --bad: #ff8a80; }
  svg { filter: brightness(1.35); } }
a { color: inherit; }
.contents { border-collapse: collapse; margin: .6rem 0 1.2rem; width: 100%; }
.contents td { white-space: normal; overflow-wrap: anywhere; }
section { margin-top: 1.6rem; } section + section { border-top: 1px solid var(--line); }
.words dt { color: var(--ink); font-weight: 600; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 3rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.1rem; font-weight: 600; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
.number { font-size: clamp(1.7rem, 7vw, 3rem); font-weight: 650; line-height: 1.15; margin: 0;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.interval { color: var(--soft); font-size: 1.1rem; margin: .2rem 0 .8rem; }
.interval span { white-space: nowrap; }
.badge { display: inline-block; padding: .1rem .6rem; border-radius: 1rem; font-size: .9rem;
  border: 1.5px solid currentColor; font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); }
.verdict { border-left: 4px solid currentColor; padding-left: .8rem; margin: 1rem 0; }
.verdict span { color: var(--ink); }
.plots { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
figure { margin: 0; padding: .6rem; background: var(--panel); border: 1px solid var(--line);
  border-radius: .5rem; break-inside: avoid; }
figure.wide { grid-column: 1 / -1; max-width: 44rem; }
figure:only-child { max-width: 44rem; }
figcaption { font-size: .9rem; color: var(--soft); margin-top: .3rem; }
svg { display: block; width: 100%; height: auto; color: var(--ink); }
.scroll { overflow-x: auto; margin: .6rem 0 1.2rem; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums;
  min-width: 20rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; caption-side: top; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th { color: var(--soft); font-weight: 600; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem;
  padding: .8rem; overflow-x: auto; font: .85rem/1.45 ui-monospace, monospace; }
footer { margin-top: 2.5rem; color: var(--soft); font-size: .85rem; }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .5rem; } }
@media print { :root { color-scheme: light; --ink: #000; --soft: #444; --paper: #fff;
  --panel: #fff; --line: #bbb; --good: #00694f; --bad: #b3261e; }
  body { max-width: none; padding: 0; font-size: 11pt; }
  svg { filter: none; } h2, .number, .interval { break-after: avoid; }
  .scroll, .verdict, dt, dd { break-inside: avoid; }
  pre { white-space: pre-wrap; } .scroll { overflow: visible; } }
"""


def to_html(record: Record, diagnoses: tuple[Diagnosis, ...]) -> str:
    """The page as text."""
    title = f"E[{record.program}]"
    source = record.provenance.source or "no source is known"
    body = [
        f"<header><h1>{html.escape(title)}</h1>{_contents(record)}</header>",
        *(_section(record, diagnosis, number) for number, diagnosis in enumerate(diagnoses)),
        _tables(record, diagnoses),
        words_list(WORDS),
        _settings(record),
        f"<h2>Program</h2>\n<pre>{html.escape(source)}</pre>",
        footer(record.provenance.versions),
    ]
    return framed(title, body)


def framed(title: str, body: list[str]) -> str:
    """A page of its own around some HTML."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{html.escape(title)}</title>",
            f"<style>{_STYLE}</style></head><body>",
            *body,
            "</body></html>\n",
        ]
    )


def footer(versions: Mapping[str, str]) -> str:
    """Who wrote the page."""
    return (
        f"<footer>Written by estimand {html.escape(versions.get('estimand', ''))}. "
        "This page is complete in itself: it runs no script and asks for nothing outside."
        "</footer>"
    )


def _contents(record: Record) -> str:
    """A line for each output, which leads to its section; nothing for one output."""
    if len(record.outputs) == 1:
        return ""
    rows = [
        f'<tr><td><a href="#output-{number}">{html.escape(name)}</a></td>'
        f"<td>{html.escape(estimate_text(output))}</td><td>{badge(output.status)}</td></tr>"
        for number, (name, output) in enumerate(zip(record.names, record.outputs, strict=True))
    ]
    return f'<nav><table class="contents"><tbody>{"".join(rows)}</tbody></table></nav>'


def badge(status: Status) -> str:
    """A status, in the colour of what it means."""
    tone = "good" if status is Status.ok else "bad"
    return f'<span class="badge {tone}">{status.name}</span>'


def _section(record: Record, diagnosis: Diagnosis, number: int) -> str:
    """One output: its number, the verdict and its plots."""
    name, output = record.names[number], record.outputs[number]
    low, high = record.bounds()[number]
    tone = "good" if output.status is Status.ok else "bad"
    words = html.escape(f"{diagnosis.verdict} {diagnosis.advice}".strip())
    heading = f"<h2>{html.escape(name)}</h2>" if len(record.names) > 1 else ""
    return "\n".join(
        [
            f'<section id="output-{number}">{heading}',
            f'<p class="number">{html.escape(estimate_text(output))}</p>',
            f'<p class="interval">95 % interval <span>{low:.6g}</span> to <span>{high:.6g}</span> '
            f"&nbsp;{badge(output.status)}</p>",
            f'<p class="verdict {tone}"><span>{words}</span></p>',
            _plots(record, number) if number < MAX_PLOTTED else "",
            "</section>",
        ]
    )


def words_list(words: Mapping[str, str]) -> str:
    """Words and what they mean, one below the other."""
    rows = [
        f"<dt>{html.escape(word)}</dt><dd>{html.escape(text)}</dd>" for word, text in words.items()
    ]
    return "\n".join(["<h2>What the words mean</h2>", '<dl class="words">', *rows, "</dl>"])


def _tables(record: Record, diagnoses: tuple[Diagnosis, ...]) -> str:
    return numbers(summarise(record, diagnoses).tables)


def numbers(tables: Sequence[Table]) -> str:
    """The tables, each of which scrolls by itself where the page is narrow."""
    wrapped = [f'<div class="scroll" tabindex="0">{table_html(table)}</div>' for table in tables]
    return "\n".join(["<h2>Numbers</h2>", *wrapped])


def _settings(record: Record) -> str:
    keys = ", ".join(record.provenance.keys) or "unknown"
    seconds = f"{record.compile_seconds:.2f} s compiling, {record.run_seconds:.2f} s running"
    settings = {
        "method": record.method,
        "random key": keys,
        "cost": f"{record.num_evaluations:,} evaluations, {record.num_gradients:,} gradients",
        "time": seconds,
        "made": record.provenance.created or "unknown",
        **record.provenance.versions,
        "program digest": record.provenance.program_digest,
        "data digest": record.provenance.data_digest,
        **{f"data: {name}": look for name, look in record.provenance.data.items()},
    }
    if record.run.notes:
        settings["notes"] = "; ".join(record.run.notes)
    return settings_list(settings)


def settings_list(settings: Mapping[str, str]) -> str:
    """Names and values, one below the other."""
    rows = [
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>"
        for name, value in settings.items()
    ]
    return "\n".join(["<h2>Settings and versions</h2>", "<dl>", *rows, "</dl>"])


# --- plots ---


def _plots(record: Record, output: int) -> str:
    elements = [
        _plot_element(entry, record, output)
        for entry in registered_plots()
        if entry.needs(record, output)
    ]
    return f'<div class="plots">{"".join(elements)}</div>'


def _plot_element(entry: RegisteredPlot, record: Record, output: int) -> str:
    panels = entry.panels_for(record, output)

    def draw(figure: Any) -> None:
        axes = figure.subplots(panels.rows, panels.columns, sharex=panels.share_x)
        for ax in figure.axes:
            ax.patch.set_alpha(0.0)
        entry.draw(record, output, axes)

    salt = f"{entry.name} {output}"
    return figure_of(draw, entry.caption, _size(panels), salt=salt, is_wide=_is_wide(panels))


def figure_of(
    draw: Callable[[Any], None],
    caption: str,
    size: tuple[float, float],
    *,
    salt: str,
    is_wide: bool = False,
) -> str:
    """A picture with its caption, as an element of the page; `draw` takes Matplotlib's figure."""
    escaped = html.escape(caption)
    kind = ' class="wide"' if is_wide else ""
    svg = _inline(_svg(draw, size, salt), escaped)
    return f"<figure{kind}>{svg}<figcaption>{escaped}</figcaption></figure>\n"


def _svg(draw: Callable[[Any], None], size: tuple[float, float], salt: str) -> str:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("a report needs matplotlib: pip install 'estimand[plots]'") from error
    with mpl.rc_context(_style(salt=salt)):
        figure = Figure(figsize=size, layout="constrained")
        figure.patch.set_alpha(0.0)
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _style(salt: str) -> Any:
    """Matplotlib's settings. The salt makes names in the SVG unique, and the same every time."""
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys((*inked, "grid.color"), _INK),
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "font.family": "sans-serif",
        "font.size": 10,
    }


def _is_wide(panels: Panels) -> bool:
    """Whether the plot has a row of the page to itself."""
    return panels.columns > 1


def _size(panels: Panels) -> tuple[float, float]:
    """Width and height in inches; the panels of a wide plot are square."""
    if _is_wide(panels):
        return 7.2, 7.2 * panels.rows / panels.columns
    return 4.6, max(3.5, 5.2 * panels.rows / 3)


def _inline(svg: str, label: str) -> str:
    """An SVG file as an element of the page, in the page's colours and without needless names."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace(_INK, "currentColor")
    used = set(re.findall(r"#([\w-]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", svg)
    svg = re.sub(r'^<svg ([^>]*?)width="[^"]*" height="[^"]*"', r"<svg \1", svg, count=1)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
