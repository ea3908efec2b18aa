"""Every number that trust is decided by says what was measured, and by what."""

from __future__ import annotations

import ast
import importlib.util
import io
import re
import tokenize
from pathlib import Path

import pytest

from estimand.trust import thresholds

SOURCE = Path(thresholds.__file__).read_text()
# "not measured", the command or the tests that measured it, or a citation with its year.
GROUNDS = re.compile(
    r"(?i:not\s+measured)"
    r"|`benchmarks\.\w+`"
    r"|`tests/[\w/]+\.py`"
    r"|[A-Z]\w+ (?:et\s+al\.|and [A-Z]\w+)\s+\((?:19|20)\d\d\)"
)


def comments_above(source: str) -> dict[str, str]:
    """The comment above every constant of a module; constants in a row share the one above them."""
    found: dict[str, str] = {}
    comments: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_alone = token.line.strip().startswith("#")
        if token.type == tokenize.COMMENT and is_alone:
            comments[token.start[0]] = token.string.lstrip("#").strip()
    shared: dict[int, str] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        assert isinstance(target, ast.Name)
        line, lines = node.lineno - 1, list[str]()
        while line in comments:
            lines.insert(0, comments[line])
            line -= 1
        text = " ".join(lines) or shared.get(node.lineno - 1, "")
        assert node.end_lineno is not None
        found[target.id] = shared[node.end_lineno] = text
    return found


def test_comments_are_found() -> None:
    source = "# a\n# b\nA = 1\nB = (\n    2\n)\n\n# c\n\nC = 3\nD = 4  # beside\n"
    assert comments_above(source) == {"A": "a b", "B": "a b", "C": "", "D": ""}


CONSTANTS = [name for name in vars(thresholds) if name.isupper()]


def test_all_constants_are_seen() -> None:
    assert sorted(comments_above(SOURCE)) == sorted(CONSTANTS)
    assert len(CONSTANTS) > 15


@pytest.mark.parametrize("name", CONSTANTS)
def test_every_threshold_says_what_it_rests_on(name: str) -> None:
    comment = comments_above(SOURCE)[name]
    assert len(comment) > 20, f"{name} has no comment that says what it is"
    assert GROUNDS.search(comment), f"{name}: {comment}"


def test_every_command_that_is_named_exists() -> None:
    named = set(re.findall(r"`(benchmarks\.\w+)`", SOURCE))
    assert named
    for name in named:
        assert importlib.util.find_spec(name) is not None, name


def test_every_test_file_that_is_named_exists() -> None:
    root = Path(__file__).parents[2]
    for name in re.findall(r"`(tests/[\w/]+\.py)`", SOURCE):
        assert (root / name).is_file(), name


def test_grounds() -> None:
    assert GROUNDS.search("A guess. Not measured.")
    assert GROUNDS.search("that nothing shows; not\nmeasured")
    assert GROUNDS.search("says Vehtari et al. (2024)")
    assert not GROUNDS.search("A share that is small enough.")
