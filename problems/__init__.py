"""Models whose answers are known: one place for tests, benchmarks, experiments and documentation.

Each problem is a NumPyro model whose return value is f. With gamma the prior times the likelihood,
Z2 = int gamma, Z1_plus = int gamma max(f, 0), Z1_minus = int gamma max(-f, 0), and
E[f] = (Z1_plus - Z1_minus) / Z2. `tests/problems/test_truths.py` recomputes every number in the
table from the model's own density.

- `PROBLEMS`, `IMPROPER`: the table, and expectations that do not exist. A module per model or
  family: `figure1`, `textbook`, `gaussian`, `banana`, `rosenbrock`, `reliability`, `eight_schools`,
  `sir`, `radon`.
- `known`: bound programs by name, the table's and families in any dimension.
- `numpyro_models`, `numpyro_truths`: models in the style of NumPyro's documentation.
- `hostile`: programs that are wrong or difficult, each with the outcome that it must have.
- `evidence`: models whose evidence, quantiles and shortfall are known.
- `shapes`: programs of several shapes and sizes, only for timing.

The truths are computed when the table is first used, so that a module with a single model stays
cheap to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from problems.problem import TAGS, Number, Problem

if TYPE_CHECKING:
    from problems.table import IMPROPER, PROBLEMS

__all__ = ["IMPROPER", "PROBLEMS", "TAGS", "Number", "Problem"]


def __getattr__(name: str) -> Any:
    if name in ("IMPROPER", "PROBLEMS"):
        from problems import table

        return getattr(table, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
