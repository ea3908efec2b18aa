"""Runs the code of pages, and writes what it prints into the blocks below it.

Run it as ``python -m docs.printed`` in the root of the repository, with the pages that are meant:
``python -m docs.printed README.md docs/tutorial.md``. Without any, all pages with such blocks are
run. Where nothing but times has changed, a block stays as it is.
"""

import contextlib
import io
import math
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
# A number as it is printed, with thousands as in 1,000 or 1_000.
_NUMBER = r"[-+]?\d(?:[\d,_]*\d)?(?:\.\d+)?(?:e[-+]?\d+)?"
_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
# Standard errors between two estimates of the same number, and the ratio of two errors or costs.
MAX_ERRORS, MAX_RATIO = 5.0, 2.0


class Block(NamedTuple):
    """A fenced block of a page; `span` is where its text is."""

    language: str
    title: str
    text: str
    span: tuple[int, int]


def blocks_of(text: str) -> list[Block]:
    return [
        Block(match[1], match[2] or "", match[3], match.span(3)) for match in _FENCE.finditer(text)
    ]


def outline(text: str) -> str:
    """Printed text without its numbers, rules and alignment."""
    text = re.sub(rf"(< )?{_NUMBER}", "#", text)
    return re.sub(r"\s+", " ", text.replace("─", "")).strip()


def without_times(text: str) -> str:
    return re.sub(rf"{_NUMBER} s\b", "# s", text)


def disagreements(printed: str, shown: str) -> list[str]:
    """What a page shows and the code does not print: words, estimates beyond their errors, costs.

    Digits differ from machine to machine, and times from run to run.
    """
    if outline(printed) != outline(shown):
        return [f"other words: {outline(printed)!r} and not {outline(shown)!r}"]
    found = []
    for (value, error), (other, other_error) in zip(
        _estimates(printed), _estimates(shown), strict=True
    ):
        reach = MAX_ERRORS * math.hypot(error, other_error)
        if abs(value - other) > reach or not _is_near(error, other_error):
            found.append(f"{value:g} ± {error:g} and not {other:g} ± {other_error:g}")
    for cost, other in zip(_costs(printed), _costs(shown), strict=True):
        if not _is_near(cost, other):
            found.append(f"{cost:,.0f} evaluations and not {other:,.0f}")
    return found


def _is_near(one: float, other: float) -> bool:
    low, high = sorted((one, other))
    return high <= MAX_RATIO * low


def _estimates(text: str) -> list[tuple[float, float]]:
    pairs = re.findall(rf"({_NUMBER}) ± ({_NUMBER})", text)
    return [(_as_float(value), _as_float(error)) for value, error in pairs]


def _costs(text: str) -> list[float]:
    return [
        _as_float(number) for number in re.findall(rf"({_NUMBER}) (?:evaluations|gradients)", text)
    ]


def _as_float(number: str) -> float:
    return float(number.replace(",", "").replace("_", ""))


def run(blocks: list[Block], name: str) -> list[tuple[Block, str]]:
    """The blocks of printed text, with what the code before each prints."""
    namespace: dict[str, Any] = {"__name__": "page"}
    printed, found = "", []
    for block in blocks:
        if block.language == "python":
            stream = io.StringIO()
            with contextlib.redirect_stdout(stream):
                exec(compile(block.text, name, "exec", dont_inherit=True), namespace)
            printed = stream.getvalue()
        elif block.language == "text":
            found.append((block, printed))
    return found


def refresh(page: Path) -> list[str]:
    """Writes what is printed now into a page; what has changed."""
    text = page.read_text()
    changed = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        results = run(blocks_of(text), page.name)
    for block, printed in reversed(results):
        tidy = "\n".join(line.rstrip() for line in printed.rstrip().splitlines()) + "\n"
        if without_times(tidy) != without_times(block.text):
            start, end = block.span
            text = text[:start] + tidy + text[end:]
            changed.append(tidy)
    page.write_text(text)
    return changed[::-1]


def main(names: list[str]) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    pages = [Path(name).resolve() for name in names] or [
        page
        for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
        if any(block.language == "text" for block in blocks_of(page.read_text()))
    ]
    for page in pages:
        try:
            said = f"{len(refresh(page))} blocks changed"
        except ModuleNotFoundError as error:
            said = f"not run: {error}"
        print(f"{page.relative_to(ROOT)}: {said}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
