"""Adversarial programs: meant to make a method say `ok` with a wrong number, or refuse a fair one.

They were written without knowledge of the methods. Each has a truth by two ways, which
`tests/problems/test_adversarial.py` compares. `FIRST` was looked at while the default method was
worked on; `SECOND` was kept for judging it.
"""

from __future__ import annotations

from problems.adversarial.first import PROGRAMS as FIRST
from problems.adversarial.program import CATEGORIES, Adversarial
from problems.adversarial.second import PROGRAMS as SECOND

PROGRAMS: dict[str, Adversarial] = {
    **{f"first/{name}": program for name, program in FIRST.items()},
    **{f"second/{name}": program for name, program in SECOND.items()},
}

__all__ = ["CATEGORIES", "FIRST", "PROGRAMS", "SECOND", "Adversarial"]
