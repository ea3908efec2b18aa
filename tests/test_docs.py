"""The documentation: every block of code and every command runs, every link leads somewhere."""

from __future__ import annotations

import doctest
import functools
import importlib
import inspect
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand import plots

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
)


# --- docstrings ---

PUBLIC = {name: getattr(ep, name) for name in ep.__all__ if name != "SKIP"} | {
    f"plots.{name}": function for name, function in vars(plots).items() if name.startswith("plot_")
}
# What a newcomer meets; each has an example that runs.
MAIN = [
    "expectation",
    "expect",
    "event",
    "estimate_expectation",
    "log_evidence",
    "load",
    "Estimate",
    "Auto",
    "AdaptiveIS",
    "TABI",
    "SelfNormalised",
    "PosteriorMCMC",
    "PosteriorBridge",
    "ImportanceSampling",
    "AnIS",
    "SMC",
    "BridgeSampling",
    "linear",
    "geometric",
    *(name for name in PUBLIC if name.startswith("plots.")),
]
SLOW = {"PosteriorBridge", "SMC"}
METHODS_OF_ESTIMATE = [
    name
    for name, function in inspect.getmembers(ep.Estimate, inspect.isfunction)
    if not name.startswith("_") and name not in ("bounds", "structured", "part", "draws_of")
]


@ep.expectation
def program(y: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(x, 1), obs=y)
    return x**3


@functools.cache
def result() -> ep.Estimate:
    return ep.estimate_expectation(program(2.0))


def examples_of(name: str) -> list[doctest.DocTest]:
    owner, _, method = name.rpartition(".")
    found = getattr(ep.Estimate, method) if owner == "Estimate" else PUBLIC[name]
    return [
        test for test in doctest.DocTestFinder(recurse=False).find(found, name) if test.examples
    ]


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in MAIN),
        *(f"Estimate.{method}" for method in METHODS_OF_ESTIMATE),
    ],
)
def test_examples_in_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a namespace that has the program and the result of the reference's first lines."""
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    tests = examples_of(name)
    assert tests, f"{name} has no example"
    known = {"dist": dist, "ep": ep, "jax": jax, "jnp": jnp, "json": json, "numpyro": numpyro}
    for test in tests:
        assert test.docstring is not None
        test.globs = known | {"plots": plots, "program": program}
        if "result" in test.docstring:
            test.globs["result"] = result()
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        assert runner.run(test).failed == 0
    plt.close("all")


def parameters_of(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("name", PUBLIC)
def test_docstrings_name_every_argument(name: str) -> None:
    found = PUBLIC[name]
    text = inspect.getdoc(found)
    assert text
    is_made_by_users = name in MAIN and name != "Estimate"
    if is_made_by_users or name in ("RandomWalk", "MALA", "HMC", "NUTS", "IndependentT"):
        section = text.split("Args:")[1]
        for parameter in parameters_of(found):
            assert re.search(rf"^ +\*?{parameter}: ", section, re.MULTILINE), (name, parameter)


@pytest.mark.parametrize("method", METHODS_OF_ESTIMATE)
def test_methods_of_estimates_name_every_argument(method: str) -> None:
    function = getattr(ep.Estimate, method)
    text = inspect.getdoc(function)
    assert text
    for parameter in parameters_of(function):
        assert re.search(rf"^ +{parameter}: ", text, re.MULTILINE), parameter


def test_the_reference_has_every_public_name() -> None:
    pages = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    shown = re.findall(r"^::: estimand\.([\w.]+)$", pages, re.MULTILINE)
    assert sorted(shown) == sorted([*PUBLIC, "SKIP"])
