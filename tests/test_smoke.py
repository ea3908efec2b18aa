"""What every supported version of jax and numpyro must do; `make test-oldest` runs it."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep

ROOT = Path(__file__).parents[1]
# Their mean is 0, so that the posterior of x is N(0, 1/21).
DATA = np.linspace(-1.5, 1.5, 20)


@ep.expectation
def tail(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.size):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return {"tail": x > 1, "square": x**2}


@pytest.mark.parametrize(
    "method",
    [None, ep.AdaptiveIS(), ep.TABI(ep.SMC(num_particles=2000, num_islands=8))],
    ids=repr,
)
def test_a_tail_probability(method: Any, tmp_path: Path) -> None:
    result = ep.estimate_expectation(tail(DATA), method, throw=False)
    truths = (0.5 * math.erfc(math.sqrt(21 / 2)), 1 / 21)
    for output, truth in zip(result.outputs, truths, strict=True):
        assert abs(output.value - truth) < 5 * output.standard_error
        assert output.standard_error < 0.2 * truth
    result.save(tmp_path / "result.est")
    assert ep.load(tmp_path / "result.est").value == result.value


def test_chains_and_a_discrete_site() -> None:
    @ep.expectation
    def mixture(y: float) -> Any:
        z = numpyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(2.0 * z, 1.0), obs=y)
        return z

    odds = 0.3 / 0.7 * math.exp(-0.5 * (1.0 - 2.0) ** 2 + 0.5)
    assert ep.estimate_expectation(mixture(1.0)).value == pytest.approx(odds / (1 + odds))
    chains = ep.PosteriorMCMC(num_samples=200, num_warmup=200)
    result = ep.estimate_expectation(tail(DATA)["square"], chains, throw=False)
    assert abs(result.value - 1 / 21) < 6 * result.standard_error


def test_the_installed_versions_are_in_the_range_that_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ranges = {re.split("[><=]", item)[0]: item for item in project["dependencies"]}
    for module in (jax, numpyro):
        low, high = re.findall(r"[><]=?([\d.]+)", ranges[module.__name__])

        def numbers(version: str) -> list[int]:
            return [int(number) for number in re.findall(r"\d+", version)[:2]]

        assert numbers(low) <= numbers(module.__version__) < numbers(high)


def test_the_oldest_versions_are_the_lower_ends_of_the_ranges() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(
        line.split("==")
        for line in (ROOT / "tests" / "oldest.txt").read_text().splitlines()
        if not line.startswith("#")
    )
    for item in project["dependencies"]:
        name, low = re.match(r"([\w-]+)>=([\d.]+)", item).groups()  # type: ignore[union-attr]
        assert f"{pins[name]}.".startswith(f"{low}."), name


def test_dir_shows_public_names_only() -> None:
    assert set(dir(ep)) == {*ep.__all__, "__version__", "plots"}
