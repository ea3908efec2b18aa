"""The worked examples: each runs, is `ok`, and says what other computations say."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy import integrate, stats

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("examples", ROOT / "docs" / "examples.py")
assert _spec is not None
assert _spec.loader is not None
examples: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(examples)


def test_every_file_is_an_example_with_a_page() -> None:
    assert {path.stem for path in examples.FOLDER.glob("*.py")} == set(examples.EXAMPLES)
    navigation = (ROOT / "mkdocs.yml").read_text()
    for name in examples.EXAMPLES:
        assert f"gallery/{name}.md" in navigation


@pytest.mark.parametrize("name", examples.EXAMPLES)
def test_pages_and_notebooks_have_all_cells(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESTIMAND_GALLERY", "off")
    cells = examples.cells_of(name)
    assert cells[0].is_text
    assert cells[0].source.startswith("# ")
    page = examples.page_of(name)
    notebook = json.loads(examples.notebook_of(name))
    for cell, made in zip(cells, notebook["cells"], strict=True):
        assert cell.source in page
        assert made["source"] == cell.source
        assert made["cell_type"] == ("markdown" if cell.is_text else "code")
        if not cell.is_text:
            compile(cell.source, name, "exec")
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)


def ab_test() -> dict[str, float]:
    a, b = stats.beta(121, 2299), stats.beta(166, 2234)
    loss = integrate.quad(lambda x: a.sf(x) * b.cdf(x), 0.03, 0.12, epsabs=1e-14)[0]
    uplift = integrate.quad(lambda x: a.pdf(x) * b.sf(1.2 * x), 0.03, 0.08)[0]
    return {"loss": 1000 * loss, "uplift above 20 %": uplift}


def failure_probability() -> dict[str, float]:
    tests = np.array([48.2, 51.0, 44.9, 47.3, 53.1, 46.2, 49.5, 50.8])
    precision = 1 / 10**2 + len(tests) / 4**2
    mean = (50 / 10**2 + tests.sum() / 4**2) / precision
    spread = math.sqrt(1 / precision + 4**2 + 3**2)
    return {"": stats.norm.sf((mean - 20) / spread)}


def change_point() -> dict[str, float]:
    counts = np.array(
        [
            *(4, 5, 4, 1, 0, 4, 3, 4, 0, 6, 3, 3, 4, 0, 2, 6, 3, 3, 5, 4),
            *(1, 0, 1, 1, 0, 2, 1, 0, 0, 1, 1, 2, 1, 0, 1, 0, 3, 0, 1, 1),
        ]
    )
    log_mass, below = [], []
    for change in range(40):
        shapes = [1 + counts[:change].sum(), 1 + counts[change:].sum()]
        rates = [0.3 + change, 0.3 + 40 - change]
        log_mass.append(
            sum(math.lgamma(s) - s * math.log(r) for s, r in zip(shapes, rates, strict=True))
        )
        # P(late >= early): a ratio of gamma variables is one of betas.
        below.append(stats.beta.sf(rates[1] / (rates[0] + rates[1]), shapes[1], shapes[0]))
    mass = np.exp(np.array(log_mass) - max(log_mass))
    mass /= mass.sum()
    late = float(mass @ np.array(below))
    return {"before year 15": float(mass[:15].sum()), "did not": late}


def simulator() -> dict[str, float]:
    def inner(v: float) -> float:
        return stats.norm.pdf(v) * stats.norm.sf(2.5 + 0.2 * v**2)

    return {"": integrate.quad(inner, -8, 8)[0]}


TRUTHS = {
    "ab_test": ab_test,
    "failure_probability": failure_probability,
    "change_point": change_point,
    "simulator": simulator,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", examples.EXAMPLES)
def test_every_example_runs_and_is_right(name: str) -> None:
    with jax.numpy_rank_promotion("allow"):
        shown = examples.shown(name)
    result = shown.names["result"]
    assert result.status, result
    assert str(result) in shown.printed
    assert shown.picture.startswith(b"\x89PNG")
    truths = TRUTHS[name]() if name in TRUTHS else {}
    known = dict(zip(result.output.labels, result.outputs, strict=True))
    for label, truth in truths.items():
        assert abs(known[label].value - truth) < 5 * known[label].standard_error, label
