"""One self-contained page about a record: no scripts, no outside assets.

Needs matplotlib: ``pip install 'estimand[plots]'``.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from typing import Any

from estimand.plots import all as plots
from estimand.record.record import Record
from estimand.trust.status import Status
from estimand.view.diagnosis import Diagnosis
from estimand.view.tables import estimate_text, summarise, table_html

# Outputs that get plots of their own; the others are in the tables.
MAX_PLOTTED = 6
# Stands for the page's text colour in a figure, until it is replaced by that.
_INK = "#0a0b0c"

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2127; --soft: #5b6670; --paper: #ffffff;
  --panel: #f4f6f8; --line: #d9dfe4; --good: #00694f; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaee; --soft: #a3aeb8; --paper: #14181d;
  --panel: #1d232a; --line: #37414b; --good: #45c9a0; --bad: #ff8a80; }
  svg { filter: brightness(1.35); } }
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
.figures { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
figure { margin: 0; padding: .6rem; background: var(--panel); border: 1px solid var(--line);
  border-radius: .5rem; break-inside: avoid; }
figure.wide { grid-column: 1 / -1; max-width: 44rem; }
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
  svg { filter: none; } pre { white-space: pre-wrap; } .scroll { overflow: visible; } }
"""


def to_html(record: Record, diagnoses: tuple[Diagnosis, ...]) -> str:
    """The page as text."""
    title = f"E[{record.program}]"
    body = [
        _header(record, diagnoses, title),
        _plots(record),
        _tables(record, diagnoses),
        _settings(record),
        f"<h2>Program</h2>\n<pre>{html.escape(record.origin.source or 'no source is known')}</pre>",
        f"<footer>Written by estimand {html.escape(record.origin.versions.get('estimand', ''))}. "
        "This page is complete in itself: it runs no script and asks for nothing outside."
        "</footer>",
    ]
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


def _header(record: Record, diagnoses: tuple[Diagnosis, ...], title: str) -> str:
    pieces = ["<header>", f"<h1>{html.escape(title)}</h1>"]
    rows = zip(record.names, record.run.figures, record.bounds(), diagnoses, strict=True)
    for number, (name, figures, (low, high), diagnosis) in enumerate(rows):
        if number == MAX_PLOTTED:
            left = len(diagnoses) - MAX_PLOTTED
            pieces.append(f"<p>And {left} more outputs, in the table below.</p>")
            break
        if len(diagnoses) > 1:
            pieces.append(f"<h3>{html.escape(name)}</h3>")
        tone = "good" if figures.status is Status.ok else "bad"
        words = html.escape(f"{diagnosis.verdict} {diagnosis.advice}".strip())
        pieces += [
            f'<p class="number">{html.escape(estimate_text(figures))}</p>',
            f'<p class="interval">95 % interval <span>{low:.6g}</span> to <span>{high:.6g}</span> '
            f'&nbsp;<span class="badge {tone}">{figures.status.name}</span></p>',
            f'<p class="verdict {tone}"><span>{words}</span></p>',
        ]
    return "\n".join([*pieces, "</header>"])


def _tables(record: Record, diagnoses: tuple[Diagnosis, ...]) -> str:
    tables = summarise(record, diagnoses).tables
    wrapped = [f'<div class="scroll" tabindex="0">{table_html(table)}</div>' for table in tables]
    return "\n".join(["<h2>Figures</h2>", *wrapped])


def _settings(record: Record) -> str:
    keys = ", ".join(record.origin.keys) or "unknown"
    seconds = f"{record.compile_seconds:.2f} s compiling, {record.run_seconds:.2f} s running"
    settings = {
        "method": record.method,
        "random key": keys,
        "cost": f"{record.num_evaluations:,} evaluations, {record.num_gradients:,} gradients",
        "time": seconds,
        "made": record.origin.created or "unknown",
        **{f"{name}": version for name, version in record.origin.versions.items()},
        "program digest": record.origin.program_digest,
        "data digest": record.origin.data_digest,
        **({"notes": "; ".join(record.run.notes)} if record.run.notes else {}),
    }
    rows = [
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>"
        for name, value in settings.items()
    ]
    return "\n".join(["<h2>Settings and versions</h2>", "<dl>", *rows, "</dl>"])


# --- figures ---


def _plots(record: Record) -> str:
    shown = min(len(record.run.figures), MAX_PLOTTED)
    pieces = []
    for output in range(shown):
        heading = f"Plots of {record.names[output]}" if len(record.run.figures) > 1 else "Plots"
        pieces.append(f"<h2>{html.escape(heading)}</h2>")
        pieces.append(f'<div class="figures">{"".join(_figures(record, output))}</div>')
    return "\n".join(pieces)


def _figures(record: Record, output: int) -> list[str]:
    """Every plot that the record has the numbers for."""
    names = plots.coordinates(record)[: plots.MAX_CORNER]
    is_corner = len(names) > 2
    found = []
    if names:
        found.append(
            _figure(
                output,
                lambda axes: plots.plot_origin(record, names, output=output, axes=axes),
                "Where the expectation comes from: draws of the posterior, and of the densities "
                "of the positive and the negative part of the target.",
                shape=(len(names), len(names)) if is_corner else (1, 1),
            )
        )
    found.append(
        _figure(
            output,
            lambda ax: plots.plot_convergence(record, output=output, ax=ax),
            "How the estimate settled as more of the draws were counted.",
        )
    )
    if record.part("gamma2") is not None:
        found.append(
            _figure(
                output,
                lambda ax: plots.plot_weights(record, output=output, ax=ax),
                "The tail of the weights: one draw should hold well under 1 % (dotted line).",
            )
        )
    if len(record.paths[output].cost) > 1:
        found.append(
            _figure(
                output,
                lambda ax: plots.plot_cost(record, output=output, ax=ax),
                "Error against cost; dotted, the rate of independent draws.",
            )
        )
    if any(part.betas.size and part.output in (-1, output) for part in record.parts):
        found.append(
            _figure(
                output,
                lambda axes: plots.plot_temperatures(record, output=output, axes=axes),
                "On the way from the prior to each target: temperature, acceptance, and the "
                "share of particles that still count.",
                shape=(3, 1),
            )
        )
    return found


def _figure(
    output: int, draw: Callable[[Any], Any], caption: str, *, shape: tuple[int, int] = (1, 1)
) -> str:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("a report needs matplotlib: pip install 'estimand[plots]'") from error
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style: Any = {
        **dict.fromkeys((*inked, "grid.color"), _INK),
        "svg.fonttype": "none",
        "svg.hashsalt": f"{caption} {output}",
        "font.family": "sans-serif",
        "font.size": 10,
    }
    is_wide = shape[0] > 2 and shape[1] > 1
    size = (7.2, 7.2) if is_wide else (4.6, 5.2 if shape[0] > 1 else 3.5)
    with mpl.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        figure.patch.set_alpha(0.0)
        axes: Any = figure.subplots(*shape, sharex=shape == (3, 1))
        for ax in figure.axes:
            ax.patch.set_alpha(0.0)
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = html.escape(caption)
    kind = ' class="wide"' if is_wide else ""
    svg = _inline(buffer.getvalue(), text)
    return f"<figure{kind}>{svg}<figcaption>{text}</figcaption></figure>\n"


def _inline(svg: str, label: str) -> str:
    """An SVG file as an element of the page, in the page's colours and without needless names."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace(_INK, "currentColor")
    used = set(re.findall(r"#([\w-]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", svg)
    svg = re.sub(r'^<svg ([^>]*?)width="[^"]*" height="[^"]*"', r"<svg \1", svg, count=1)
    return re.sub(r"^<svg ", f'<svg role="img" aria-label="{label}" ', svg, count=1)
