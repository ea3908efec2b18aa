"""Programs of engineers, actuaries, analysts and statisticians, by theme."""

from __future__ import annotations

from problems.adversarial.first import (
    branches,
    costs,
    counting,
    failures,
    needles,
    numbers,
    paths,
    reports,
    shapes,
    steps,
    tails,
)
from problems.adversarial.program import Adversarial

_THEMES = (
    costs,
    failures,
    needles,
    branches,
    tails,
    steps,
    paths,
    numbers,
    reports,
    counting,
    shapes,
)
PROGRAMS: dict[str, Adversarial] = {
    program.name: program for theme in _THEMES for program in theme.PROGRAMS
}
