"""Models people have: plain NumPyro programs, each with an ordinary, a common and a rare question.

Each program returns `jnp.stack([ordinary, common, rare])`: an expectation that people would ask
for, an event of probability about one per cent, and the same event further out, of probability
about one in a million. `references.json` holds the answers, which `references.py` computes by
NUTS and by multilevel splitting, without the library.
"""

from __future__ import annotations

import hashlib

from problems.people import hierarchies, populations, regressions, time_series
from problems.people.model import PeopleModel

MODELS: dict[str, PeopleModel] = {
    entry.name: entry
    for module in (regressions, hierarchies, populations, time_series)
    for entry in module.MODELS
}


def is_held_out(name: str) -> bool:
    """Whether a model is kept for the last examination: about half are, by their names alone."""
    return hashlib.sha256(name.encode()).digest()[-1] % 2 == 1


__all__ = ["MODELS", "PeopleModel", "is_held_out"]
