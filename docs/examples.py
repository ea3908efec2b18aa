"""Worked examples: each file of docs/gallery as a page with its output and picture, and a notebook.

A file has cells, text after ``# %% [markdown]`` and code after ``# %%``. Cells are run where
the site is built, unless ESTIMAND_GALLERY is "off": then pages have their text and code alone.
"""

import contextlib
import functools
import io
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "gallery"
# In the order of the index, with what each is about.
EXAMPLES = {
    "ab_test": "An A/B test: P(uplift > 20 %), and the expected loss of a wrong choice",
    "failure_probability": "A failure probability with data: one in a hundred million",
    "value_at_risk": "Value at risk and shortfall, with what is not known of the parameters",
    "epidemic_tail": "The tail of an epidemic: more patients than beds",
    "rare_catastrophe": "The expected cost of a rare catastrophe",
    "change_point": "A change point: probabilities of a discrete site",
    "mixture": "A mixture with labels, which are summed out",
    "eight_schools": "Eight schools: a tail of a hierarchical model",
    "model_comparison": "Model comparison: three models of claims, and the answer over them",
    "decision": "A decision: how high a dyke, and what a study of the river is worth",
    "simulator": "A simulator that JAX cannot look into, in some hundred calls",
}


class Cell(NamedTuple):
    """A piece of an example; `is_text` for one that is not code."""

    is_text: bool
    source: str


class Shown(NamedTuple):
    """What each cell of an example prints, and its picture."""

    printed: tuple[str, ...]
    picture: bytes
    names: dict[str, Any]


def is_run() -> bool:
    return os.environ.get("ESTIMAND_GALLERY", "on") != "off"


def cells_of(name: str) -> list[Cell]:
    pieces = (FOLDER / f"{name}.py").read_text().split("# %%")[1:]
    cells = []
    for piece in pieces:
        head, _, body = piece.partition("\n")
        if "[markdown]" in head:
            lines = [line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()]
            cells.append(Cell(True, "\n".join(lines)))
        else:
            cells.append(Cell(False, body.strip()))
    return cells


@functools.cache
def shown(name: str) -> Shown:
    """Runs an example."""
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    plt.close("all")
    names: dict[str, Any] = {"__name__": name}
    path = FOLDER / f"{name}.py"
    text, printed = path.read_text(), []
    for cell in cells_of(name):
        stream = io.StringIO()
        if not cell.is_text:
            # Lines keep their numbers, by which a program finds its own source.
            above = "\n" * text[: text.index(cell.source)].count("\n")
            with contextlib.redirect_stdout(stream):
                exec(compile(above + cell.source, str(path), "exec"), names)
        printed.append(stream.getvalue())
    picture = io.BytesIO()
    plt.gcf().savefig(picture, format="png", dpi=100)
    plt.close("all")
    return Shown(tuple(printed), picture.getvalue(), names)


def page_of(name: str) -> str:
    """The page: text and code as they are written, then the output after the code that prints."""
    pieces = []
    for number, cell in enumerate(cells_of(name)):
        if cell.is_text:
            pieces.append(cell.source)
            continue
        pieces.append(f"```python\n{cell.source}\n```")
        if is_run() and "print(" in cell.source:
            pieces.append(f"```text\n{shown(name).printed[number].rstrip()}\n```")
        if is_run() and "plt.subplots" in cell.source:
            pieces.append(f"![The picture that the code draws]({name}.png)")
    pieces.append(f"[Download this example as a notebook]({name}.ipynb)")
    return "\n\n".join(pieces) + "\n"


def notebook_of(name: str) -> str:
    cells: list[dict[str, Any]] = []
    for number, cell in enumerate(cells_of(name)):
        common = {"id": f"cell-{number}", "metadata": {}, "source": cell.source}
        if cell.is_text:
            cells.append({"cell_type": "markdown", **common})
        else:
            cells.append({"cell_type": "code", "execution_count": None, "outputs": [], **common})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {
        "cells": cells,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def index() -> str:
    """The page with all examples, with their pictures."""
    rows = []
    for name, about in EXAMPLES.items():
        picture = f"![]({name}.png) " if is_run() else ""
        rows.append(f"- [{picture}{about}]({name}.md)")
    return "\n\n".join(
        [
            "# Examples",
            "One page each, run when these pages are built; each can be downloaded as a notebook.",
            '<div class="gallery" markdown>',
            "\n".join(rows),
            "</div>\n",
        ]
    )


def files() -> dict[str, str | bytes]:
    """All files of the gallery by their place in the site."""
    found: dict[str, str | bytes] = {"gallery/index.md": index()}
    for name in EXAMPLES:
        found[f"gallery/{name}.md"] = page_of(name)
        found[f"gallery/{name}.ipynb"] = notebook_of(name)
        if is_run():
            found[f"gallery/{name}.png"] = shown(name).picture
    return found
