"""Programs from reliability, insurance, epidemiology, physics and statistics, by theme."""

from __future__ import annotations

from problems.adversarial.program import Adversarial
from problems.adversarial.second import (
    branches,
    counts,
    money,
    needles,
    outputs,
    paths,
    rows,
    scales,
    shapes,
    tails,
    unions,
)

THEMES = (
    money,
    unions,
    needles,
    branches,
    tails,
    paths,
    scales,
    rows,
    outputs,
    counts,
    shapes,
)

PROGRAMS: dict[str, Adversarial] = {
    program.name: program for theme in THEMES for program in theme.PROGRAMS
}
