"""The worked examples: each runs, is `ok`, and says what other computations say."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from scipy import integrate, optimize, stats

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


class Answer(NamedTuple):
    """A number that an example shows, and what it should be."""

    label: str
    value: float
    error: float
    truth: float


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


def posterior_over(
    sides: list[tuple[float, float]], log_density: Callable[..., Any]
) -> tuple[Any, float, tuple[Any, ...]]:
    """Probabilities of a grid of Gauss-Legendre points, their mass, and the points."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    points = [low + (high - low) * (nodes + 1) / 2 for low, high in sides]
    grid = np.meshgrid(*points, indexing="ij")
    cells = math.prod(np.meshgrid(*([weights] * len(sides)), indexing="ij"))
    mass = cells * np.exp(log_density(*grid)) * math.prod((b - a) / 2 for a, b in sides)
    return mass / mass.sum(), float(mass.sum()), grid


def value_at_risk(names: dict[str, Any]) -> list[Answer]:
    returns = np.asarray(names["returns"])

    def log_density(mean: Any, sd: Any) -> Any:
        squares = ((returns[:, None, None] - mean) ** 2).sum(axis=0)
        return -(mean**2) / 8 - sd**2 / 50 - len(returns) * np.log(sd) - squares / (2 * sd**2)

    weights, _, (mean, sd) = posterior_over([(-4, 5), (0.8, 9)], log_density)

    def value_beyond(probability: float) -> float:
        def excess(loss: float) -> float:
            return float((weights * stats.norm.sf((loss + mean) / sd)).sum()) / probability - 1

        return optimize.brentq(excess, 0, 40)

    found = [
        Answer(
            f"{tail.level}", tail.value, tail.standard_error, value_beyond(tail.tail_probability)
        )
        for tail in names["result"].tails
    ]
    limit = value_beyond(1e-3)
    z = (limit + mean) / sd
    excess = sd * stats.norm.pdf(z) - (limit + mean) * stats.norm.sf(z)
    mean_beyond = limit + float((weights * excess).sum()) / 1e-3
    shortfall = names["shortfall"]
    return [*found, Answer("shortfall", shortfall.value, shortfall.standard_error, mean_beyond)]


def model_comparison(names: dict[str, Any]) -> list[Answer]:
    counts, result = np.asarray(names["counts"]), names["result"]
    by_count = list(zip(*np.unique(counts, return_counts=True), strict=True))

    def prior(mean: Any) -> Any:
        return stats.gamma.logpdf(mean, 2, scale=2)

    def poisson(mean: Any) -> Any:
        return prior(mean) + sum(n * stats.poisson.logpmf(k, mean) for k, n in by_count)

    def negative_binomial(mean: Any, log_spread: Any) -> Any:
        spread = np.exp(log_spread)
        share = 1 / (1 + spread * mean)
        likelihood = sum(n * stats.nbinom.logpmf(k, 1 / spread, share) for k, n in by_count)
        return prior(mean) + log_spread - spread + likelihood

    def zero_inflated(mean: Any, idle: Any) -> Any:
        return prior(mean) + sum(
            n * np.log(idle * (k == 0) + (1 - idle) * stats.poisson.pmf(k, mean))
            for k, n in by_count
        )

    weights, one, (mean,) = posterior_over([(0.05, 15)], poisson)
    tails = {"poisson": float((weights * stats.poisson.sf(12, mean)).sum())}
    spreads = (math.log(1e-6), math.log(40))
    weights, two, (mean, log_spread) = posterior_over([(0.05, 15), spreads], negative_binomial)
    spread = np.exp(log_spread)
    many = stats.nbinom.sf(12, 1 / spread, 1 / (1 + spread * mean))
    tails["negative binomial"] = float((weights * many).sum())
    weights, three, (mean, idle) = posterior_over([(0.05, 15), (0, 1)], zero_inflated)
    tails["zero-inflated"] = float((weights * (1 - idle) * stats.poisson.sf(12, mean)).sum())

    found, average = [], 0.0
    for name, evidence in zip(tails, (one, two, three), strict=True):
        row, own = result.models[name], result.estimates[name].outputs[0]
        probability = evidence / (one + two + three)
        average += probability * tails[name]
        found += [
            Answer(name, row.probability, row.probability_error, probability),
            Answer(f"many claims, {name}", own.value, own.standard_error, tails[name]),
        ]
    over = result.average[0]
    return [*found, Answer("over models", over.value, over.standard_error, average)]


def river(levels: Any, location: Any, log_scale: Any) -> Any:
    """The log density of the two examples of floods, in the logarithm of the scale."""
    z = (levels[:, None, None] - location) / np.exp(log_scale)
    likelihood = (-z - np.exp(-z)).sum(axis=0) - len(levels) * log_scale
    return likelihood - (location - 2) ** 2 / 2 - (log_scale + 1) ** 2 / 0.18


RIVER = [(0.8, 3.2), (math.log(0.12), math.log(2.5))]


def decision(names: dict[str, Any]) -> list[Answer]:
    levels, heights, result = np.asarray(names["levels"]), names["heights"], names["result"]
    weights, _, (location, log_scale) = posterior_over(
        RIVER, lambda location, log_scale: river(levels, location, log_scale)
    )
    scale = np.exp(log_scale)
    costs = np.stack([names["yearly_cost"](height, location, scale) for height in heights])
    utilities = -(weights * costs).sum(axis=(1, 2))
    evpi = -(weights * costs.min(axis=0)).sum() - utilities.max()
    assert result.best.setting == heights[utilities.argmax()]
    found = [
        Answer(action.name, action.utility.value, action.utility.standard_error, truth)
        for action, truth in zip(result.actions, utilities, strict=True)
    ]
    return [*found, Answer("evpi", result.evpi.value, result.evpi.standard_error, evpi)]


def rare_catastrophe(names: dict[str, Any]) -> list[Answer]:
    levels = np.asarray(names["levels"])
    weights, _, (location, log_scale) = posterior_over(
        RIVER, lambda location, log_scale: river(levels, location, log_scale)
    )
    beyond = -np.expm1(-np.exp(-(6.0 - location) / np.exp(log_scale)))
    return answers_of(names["result"], {"catastrophe": 1e4 * float((weights * beyond).sum())})


def answers_of(result: Any, truths: dict[str, float]) -> list[Answer]:
    known = dict(zip(result.output.labels, result.outputs, strict=True))
    return [
        Answer(label, known[label].value, known[label].standard_error, truth)
        for label, truth in truths.items()
    ]


TRUTHS = {
    "ab_test": ab_test,
    "failure_probability": failure_probability,
    "change_point": change_point,
    "simulator": simulator,
}
# Of examples with more than an estimate, everything that is shown.
ANSWERS = {
    "value_at_risk": value_at_risk,
    "model_comparison": model_comparison,
    "decision": decision,
    "rare_catastrophe": rare_catastrophe,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", examples.EXAMPLES)
def test_every_example_runs_and_is_right(name: str) -> None:
    with jax.numpy_rank_promotion("allow"):
        shown = examples.shown(name)
    result = shown.names["result"]
    assert result.status, result
    assert str(result) in "".join(shown.printed)
    assert shown.picture.startswith(b"\x89PNG")
    found = answers_of(result, TRUTHS[name]()) if name in TRUTHS else []
    if name in ANSWERS:
        found = ANSWERS[name](shown.names)
    for answer in found:
        assert abs(answer.value - answer.truth) < 5 * answer.error, answer
