"""Answers that have a report."""

from __future__ import annotations

import os
from typing import Any

import jax

from estimand import record as records
from estimand.model import Bound
from estimand.runtime import in_precision
from estimand.view import Summarised


class Reported(Summarised):
    """An answer that is printed as its summary and written as a page."""

    def to_html(self, path: str | os.PathLike | None = None) -> str:
        """A report as one self-contained page, also written to `path` if one is given.

        The answer first, then the verdict, plots, tables and the program's source. Needs
        matplotlib: ``pip install 'estimand[plots]'``.

        Args:
            path: the file, in a folder that exists.

        Examples:
            >>> page = ep.quantile(program(2.0), 0.999).to_html()
        """
        from estimand.answers.pages import page_of

        page = page_of(self).to_html()
        if path is not None:
            records.write_atomically(path, page.encode())
        return page


def provenance_of(
    bound: Bound, method: Any, rng_key: jax.Array, precision: str
) -> records.Provenance:
    """The provenance of an answer that is made in this precision."""
    with in_precision(precision):
        return records.provenance_of(bound, method, rng_key)
